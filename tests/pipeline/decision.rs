//! What layers outside read of each response, and what a handler's error becomes.

#![cfg(feature = "moka")]

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_webhook::event::{ChatRated, EventKind};
use tower_webhook::memory::MokaStore;
use tower_webhook::signature::{self, SignatureError};
use tower_webhook::store::KeyState;
use tower_webhook::{
    Decision, Delivery, EventRouter, HandlerError, Outcome, RawDelivery, Secret, Sender, Verified,
    Webhooks, idempotency,
};
use tracing::Level;

use support::Ready;
use support::delivery::{BODY, Crm, KEY, RequestExt, SIGNATURE, Step, delivery, secret, send};
use support::log::Log;
use support::store::StoreExt;

fn router(steps: impl IntoIterator<Item = Step>) -> EventRouter {
    EventRouter::new().on::<ChatRated>(Crm::new(steps))
}

async fn decide<S, B>(service: &S, request: Request<Full<Bytes>>) -> Decision
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>, Error: std::fmt::Debug> + Clone,
{
    let response = service.clone().oneshot(request).await.unwrap();
    Decision::of(&response)
        .expect("every response has one")
        .clone()
}

#[tokio::test(start_paused = true)]
async fn every_response_carries_its_decision() {
    let kind = EventKind::CHAT_RATED;
    let service = Webhooks::new(secret())
        .reject_changed_bodies()
        .require_key()
        .layer(router([Step::Succeed, Step::Fail, Step::Hang, Step::Discard]).reject_unhandled());
    let changed = || delivery(r#"{"id":"another"}"#).key("a");
    for (request, name) in [
        (delivery(BODY).key("a"), "handled"),
        (delivery(BODY).key("a"), "replayed"),
        (delivery(BODY).key("b"), "failed"),
        (delivery(BODY).key("c"), "handler-timeout"),
        (delivery(BODY).key("d"), "discarded"),
        (delivery("[]").key("e"), "undecodable"),
        (changed(), "body-changed"),
    ] {
        let decision = decide(&service, request).await;
        assert_eq!(decision.name(), name);
        assert_eq!(decision.kind(), Some(&kind), "{name}");
        assert!(decision.is_verified(), "{name}");
        assert_eq!(decision.outcome().is_some(), name != "body-changed");
        assert_eq!(decision.refusal().is_some(), name == "body-changed");
    }
    let unhandled = decide(&service, delivery(BODY).key("f").kind("chat-archived")).await;
    assert!(matches!(unhandled.outcome(), Some(Outcome::Unhandled)));
    assert_eq!(unhandled.kind().unwrap().as_str(), "chat-archived");

    let conflict = decide(&service, changed()).await;
    assert_eq!(
        conflict.refusal().unwrap().downcast_ref(),
        Some(&idempotency::Refusal::BodyChanged)
    );
}

#[tokio::test]
async fn a_refused_request_shows_the_kind_that_it_claims() {
    let service = Webhooks::new(secret()).require_key().layer(router([]));
    let refused = [
        (delivery(BODY).without(SIGNATURE), "invalid-signature"),
        (delivery(BODY).with("content-length", "9"), "malformed-body"),
        (
            delivery(BODY).with("content-type", "text/plain"),
            "unsupported-media-type",
        ),
        (delivery(BODY).key("a").and(KEY, "b"), "conflicting-keys"),
        (delivery(BODY), "missing-key"),
    ];
    for (request, name) in refused {
        let log = Log::capture(Level::INFO);
        let decision = decide(&service, request).await;
        assert_eq!(decision.name(), name);
        assert_eq!(decision.kind(), Some(&EventKind::CHAT_RATED), "{name}");
        // The last three checks come after the one of the signature.
        let is_verified = !matches!(name, "invalid-signature" | "malformed-body");
        assert_eq!(decision.is_verified(), is_verified, "{name}");
        assert!(decision.outcome().is_none(), "{name}");
        assert!(decision.refusal().unwrap().is::<signature::Refusal>());
        let spans = log.spans();
        assert_eq!(&*spans[0]["kind"], "chat-rated", "{name}");
    }

    let forged = delivery(BODY)
        .with(SIGNATURE, "0".repeat(64))
        .kind("chat-closed");
    let decision = decide(&service, forged).await;
    assert_eq!(decision.kind(), Some(&EventKind::CHAT_CLOSED));
    let github = Webhooks::new(secret()).sender(Sender::github());
    let pushed = delivery(BODY).with("x-github-event", "push");
    let decision_of_github = decide(&github.layer(router([])), pushed).await;
    assert_eq!(decision_of_github.kind().unwrap().as_str(), "push");
    assert!(matches!(
        decision.refusal().unwrap().downcast_ref(),
        Some(signature::Refusal::InvalidSignature(SignatureError::Wrong))
    ));

    // No kind is made up where the header names none.
    for request in [
        delivery(BODY).kind("not a token"),
        delivery(BODY).and("x-service-event", "chat-closed"),
        delivery(BODY).without("x-service-event"),
        // Nor is a long one recorded, which anybody could send.
        delivery(BODY).without(SIGNATURE).kind(&"k".repeat(65)),
    ] {
        let log = Log::capture(Level::INFO);
        let decision = decide(&service, request.key("a")).await;
        assert!(decision.refusal().is_some());
        assert_eq!(decision.kind(), None);
        assert!(!log.spans()[0].contains_key("kind"));
    }
}

#[tokio::test]
async fn another_inner_service_is_decided_by_its_status_or_outcome() {
    for (status, outcome, name) in [
        (200, None, "handled"),
        (204, None, "handled"),
        (302, None, "failed"),
        (500, None, "failed"),
        (202, Some(Outcome::Ignored), "ignored"),
        (500, Some(Outcome::Handled), "handled"),
    ] {
        let inner = tower::service_fn(move |_: Request<Verified>| {
            let mut response = Response::new(Full::<Bytes>::default());
            *response.status_mut() = StatusCode::from_u16(status).unwrap();
            if let Some(outcome) = outcome.clone() {
                response.extensions_mut().insert(outcome);
            }
            std::future::ready(Ok::<_, std::convert::Infallible>(response))
        });
        let service = Webhooks::new(secret()).layer(inner);
        let decision = decide(&service, delivery(BODY).key("a")).await;
        assert_eq!((status, decision.name()), (status, name));
        assert_eq!(decision.kind(), Some(&EventKind::CHAT_RATED));
        assert!(decision.is_verified());
    }
}

#[tokio::test]
async fn an_outcome_that_a_service_inserts_is_logged() {
    let inner = tower::service_fn(|_: Request<Verified>| {
        let mut response = Response::new(Full::<Bytes>::default());
        let outcome = Outcome::Failed {
            reason: std::sync::Arc::new(std::io::Error::other("no disk")),
            retry_after: None,
        };
        response.extensions_mut().insert(outcome);
        std::future::ready(Ok::<_, std::convert::Infallible>(response))
    });
    let service = Webhooks::new(secret()).layer(inner);
    let log = Log::capture(Level::INFO);
    send(&service, delivery(BODY).key("a")).await;
    let events = log.events();
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(&*events[0]["outcome"], "failed");
    assert_eq!(&*events[0]["reason"], "no disk");
}

#[tokio::test(start_paused = true)]
async fn an_outcome_is_logged_although_the_client_disconnected() {
    let inner = tower::service_fn(async |_: Request<Verified>| {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut response = Response::new(Full::<Bytes>::default());
        let outcome = Outcome::Discarded(std::sync::Arc::new(std::io::Error::other("no disk")));
        response.extensions_mut().insert(outcome);
        Ok::<_, std::convert::Infallible>(response)
    });
    let layer = Webhooks::new(secret()).ready();
    let runs = layer.runs();
    let service = layer.layer(inner);
    let log = Log::capture(Level::INFO);
    let disconnected = tokio::time::timeout(
        Duration::from_millis(100),
        service.clone().oneshot(delivery(BODY).key("a")),
    );
    assert!(disconnected.await.is_err());
    runs.drain(Duration::from_secs(10)).await.unwrap();
    let events = log.events();
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(&*events[0]["outcome"], "discarded");
    assert_eq!(&*events[0]["reason"], "no disk");
    send(&service, delivery(BODY).key("a"))
        .await
        .assert_replayed();
}

#[tokio::test]
async fn retry_after_becomes_the_header_of_the_answer() {
    let router = EventRouter::new().on::<ChatRated>(async |_: Delivery<ChatRated>| {
        Err(HandlerError::retry_after(
            Duration::from_millis(90_500),
            "the CRM is read-only",
        ))
    });
    let store = MokaStore::new();
    let service = Webhooks::new(secret()).store(store.clone()).layer(router);
    let answered = send(&service, delivery(BODY).key("a")).await;
    answered.assert_problem(500, "failed");
    assert_eq!(answered.header("retry-after"), Some("91"));
    assert_eq!(store.state("a").await, KeyState::Free);
}

#[tokio::test]
async fn a_dead_letter_without_an_inbox_is_discarded_with_a_warning() {
    let router = EventRouter::new().on::<ChatRated>(async |_: Delivery<ChatRated>| {
        Err(HandlerError::dead_letter("not a chat of ours"))
    });
    let store = MokaStore::new();
    let service = Webhooks::new(secret()).store(store.clone()).layer(router);
    let log = Log::capture(Level::INFO);
    send(&service, delivery(BODY).key("a")).await.assert_ok();
    send(&service, delivery(BODY).key("a"))
        .await
        .assert_replayed();
    assert_eq!(store.state("a").await, KeyState::Done);

    let events = log.events();
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(&*events[0]["level"], "WARN");
    assert_eq!(&*events[0]["outcome"], "dead-letter");
    assert_eq!(&*events[0]["reason"], "not a chat of ours");
    assert!(events[0]["message"].contains("only an inbox"), "{events:?}");
}

#[tokio::test]
async fn a_retry_under_another_secret_has_the_same_body() {
    let new = Secret::new("the next secret").unwrap();
    let secrets = tower_webhook::Secrets::new([secret(), new.clone()]).unwrap();
    let service = Webhooks::new(secrets)
        .reject_changed_bodies()
        .replay_guard()
        .layer(router([]));
    send(&service, delivery(BODY).key("a")).await.assert_ok();
    let rotated = |body: &'static str| {
        let signature = new.sign(body.as_bytes());
        delivery(body).with(SIGNATURE, signature)
    };
    send(&service, rotated(BODY).key("a"))
        .await
        .assert_replayed();

    send(&service, rotated(r#"{"id":"another"}"#).key("a"))
        .await
        .assert_problem(422, "body-changed");
    send(&service, rotated(BODY).key("b"))
        .await
        .assert_problem(422, "body-replayed");
}

#[tokio::test]
async fn the_layers_of_tower_stand_around_a_router_of_deliveries() {
    let mut service = ServiceBuilder::new()
        .concurrency_limit(1)
        .map_request(|body: &'static str| RawDelivery::new(EventKind::CHAT_RATED, body))
        .service(router([Step::Fail]));
    for completes in [false, true] {
        let outcome = service.ready().await.unwrap().call(BODY).await.unwrap();
        assert_eq!(outcome.completes(), completes, "{outcome}");
    }
}
