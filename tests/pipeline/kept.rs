//! Events of kinds that are not kept.

use axum::Router;
use axum::body::Body;
use axum::routing::post;
use http::{Request, StatusCode};
use tower_webhook::event::ChatRated;
use tower_webhook::{Decision, EventKind, EventRouter, RawDelivery, Sender, Webhooks};

use support::delivery::{BODY, Crm, RequestExt, SIGNATURE, delivery, delivery_of, secret, send};
use support::observer::Notes;

fn router(crm: &Crm) -> EventRouter {
    EventRouter::new().on::<ChatRated>(crm.clone())
}

#[tokio::test]
async fn other_kinds_are_observed_and_reach_neither_store_nor_handler() {
    let (crm, notes) = (Crm::default(), Notes::default());
    let (service, _running) = Webhooks::new(secret())
        .keep_only([EventKind::CHAT_RATED])
        .replay_guard()
        .observer(notes.clone())
        .start(router(&crm))
        .unwrap();
    for _ in 0..2 {
        let other = delivery_of("k").kind("chat-closed");
        send(&service, other).await.assert_ok();
        let seen = notes.take();
        let [seen] = &*seen else { panic!("{seen:?}") };
        let said = "delivery filtered 200 chat-closed k verified";
        assert!(seen.starts_with(said), "{seen}");
    }
    assert_eq!(crm.runs(), 0);

    // Neither the key nor the body is remembered.
    send(&service, delivery_of("k")).await.assert_ok();
    assert_eq!(crm.attempts(), [Some(1)]);
    send(&service, delivery_of("k")).await.assert_replayed();
    let seen = notes.take().join("\n");
    assert!(seen.contains("delivery handled 200 chat-rated k"), "{seen}");
}

/// The chat platform does not sign the kind, so whoever captured a delivery can change it.
#[tokio::test]
async fn forged_kinds_do_not_take_the_place_of_genuine_ones() {
    let crm = Crm::default();
    let (service, _running) = Webhooks::new(secret())
        .keep_only([EventKind::CHAT_RATED])
        .start(router(&crm))
        .unwrap();
    for kind in ["chat-closed", "Chat-Rated", "chat-rated2", "chat-rate"] {
        send(&service, delivery_of("k").kind(kind))
            .await
            .assert_ok();
    }
    let unsigned = delivery_of("k").with(SIGNATURE, "0".repeat(64));
    for (request, status, name) in [
        (unsigned.kind("chat-closed"), 401, "invalid-signature"),
        (
            delivery_of("k").kind("no token"),
            400,
            "invalid-event-header",
        ),
        (delivery_of("k").kind(""), 400, "invalid-event-header"),
        (
            delivery_of("k")
                .kind("chat-closed")
                .and("x-service-event", "chat-rated"),
            400,
            "invalid-event-header",
        ),
    ] {
        send(&service, request).await.assert_problem(status, name);
    }
    assert_eq!(crm.runs(), 0);
    send(&service, delivery_of("k")).await.assert_ok();
    assert_eq!(crm.runs(), 1);
}

#[tokio::test]
async fn kinds_with_a_handler_are_kept() {
    let crm = Crm::default();
    let outcomes = async |webhooks: Webhooks, router: EventRouter| {
        let (service, _running) = webhooks.start(router).unwrap();
        let mut outcomes = Vec::new();
        for kind in ["chat-rated", "chat-closed"] {
            let request = delivery(BODY).kind(kind);
            let response = tower::ServiceExt::oneshot(service.clone(), request).await;
            let response = response.unwrap();
            let decision = Decision::of(&response).unwrap();
            assert_eq!(decision.kind().unwrap().as_str(), kind);
            assert!(decision.is_verified());
            outcomes.push((response.status().as_u16(), decision.name()));
        }
        outcomes
    };
    let webhooks = || Webhooks::new(secret());
    let rated = router(&crm);
    let strict = rated.clone().reject_unhandled();
    let all = rated.clone().fallback(async |_| Ok(()));
    let nothing = EventRouter::new();
    let closed = [EventKind::CHAT_CLOSED];
    let handled = (200, "handled");
    for (webhooks, router, expected) in [
        (webhooks(), &rated, [handled, (200, "ignored")]),
        (
            webhooks().keep_handled(&rated),
            &rated,
            [handled, (200, "filtered")],
        ),
        (
            webhooks().keep_handled(&strict),
            &strict,
            [handled, (200, "filtered")],
        ),
        (webhooks().keep_handled(&all), &all, [handled, handled]),
        (
            webhooks().keep_handled(&nothing),
            &rated,
            [(200, "filtered"), (200, "filtered")],
        ),
        // The last call counts.
        (
            webhooks().keep_handled(&rated).keep_only(closed.clone()),
            &all,
            [(200, "filtered"), handled],
        ),
        (
            webhooks().keep_only(closed).keep_handled(&all),
            &all,
            [handled, handled],
        ),
    ] {
        assert_eq!(outcomes(webhooks, router.clone()).await, expected);
    }
}

#[tokio::test]
async fn layers_and_other_senders_keep_the_same() {
    let (layer, _running) = Webhooks::new(secret())
        .sender(Sender::github())
        .keep_only(["push".parse().unwrap()])
        .into_layer()
        .unwrap();
    let app: Router = Router::new()
        .route("/", post(async || (StatusCode::ACCEPTED, "any event")))
        .route_layer(layer);
    for (kind, status) in [("push", 202), ("watch", 200)] {
        let kind: EventKind = kind.parse().unwrap();
        let signed = RawDelivery::new(kind.clone(), BODY);
        let mut request = Request::post("/").body(Body::from(BODY)).unwrap();
        *request.headers_mut() = Sender::github().sign(&secret(), &signed).unwrap();
        assert_eq!(send(&app, request).await.status, status, "{kind}");
    }
}
