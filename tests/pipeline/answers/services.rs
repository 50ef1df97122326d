//! Bodies of any type, and inner services of any kind.

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body::Frame;
use http_body_util::Full;
use tower::{Layer, Service};
use tower_webhook::event::ChatRated;
use tower_webhook::memory::MokaStore;
use tower_webhook::store::KeyState;
use tower_webhook::{Delivery, EventRouter, HandlerResult, IdempotencyLayer, Outcome};

use support::Ready;
use support::delivery::{BODY, Crm, HANDLER_ERROR, RequestExt, SIGNATURE, delivery, secret, send};
use support::observer::Notes;
use support::store::StoreExt;

use super::{layer, router};

#[tokio::test]
async fn any_body_type_is_accepted() {
    let service = layer(&MokaStore::new()).layer(router(&Crm::default()));

    send(&service, delivery(BODY)).await.assert_ok();
    send(&service, delivery(BODY).map(axum::body::Body::new))
        .await
        .assert_ok();
    send(&service, delivery(BODY).map(|_| BODY.to_owned()))
        .await
        .assert_ok();

    let (mut sender, channel) = http_body_util::channel::Channel::<Bytes>::new(1);
    let (answered, ()) = tokio::join!(
        send(&service, delivery(BODY).map(|_| channel)),
        async move {
            for part in BODY.as_bytes().chunks(4) {
                sender.send_data(Bytes::from_static(part)).await.unwrap();
            }
        }
    );
    answered.assert_ok();

    let parts = BODY.as_bytes().chunks(3);
    let frames = parts.map(|part| Ok::<_, std::io::Error>(Frame::data(Bytes::from_static(part))));
    let stream = http_body_util::StreamBody::new(futures_util::stream::iter(frames));
    send(&service, delivery(BODY).map(|_| stream))
        .await
        .assert_ok();

    fn accepts<B>(_: &impl Service<Request<B>>) {}
    accepts::<hyper::body::Incoming>(&service);
}

/// An inner service that answers with a status given in a header, an `Outcome`, or an error.
fn inner(status: StatusCode, outcome: Option<Outcome>) -> axum::Router {
    axum::Router::new().fallback(async move |body: Bytes| {
        assert_eq!(body, BODY);
        let mut response = http::Response::new(axum::body::Body::from("from the inner service"));
        *response.status_mut() = status;
        if let Some(outcome) = outcome.clone() {
            response.extensions_mut().insert(outcome);
        }
        response
    })
}

#[tokio::test]
async fn custom_inner_service_is_settled_by_its_response() {
    for (status, outcome, done) in [
        (200, None, true),
        (202, None, true),
        (204, None, true),
        (302, None, false),
        (404, None, false),
        (409, None, false),
        (500, None, false),
        (200, Some(Outcome::Ignored), false),
        (500, Some(Outcome::Handled), true),
        (200, Some(Outcome::Handled), true),
        (500, Some(Outcome::Ignored), false),
    ] {
        let store = MokaStore::new();
        let status = StatusCode::from_u16(status).unwrap();
        let service = layer(&store).layer(inner(status, outcome.clone()));

        let answered = send(&service, delivery(BODY).key("a")).await;
        assert_eq!(answered.status, status);
        assert_eq!(answered.body, "from the inner service");
        assert_eq!(
            store.state("a").await == KeyState::Done,
            done,
            "{status} {outcome:?}"
        );
    }
}

#[tokio::test]
async fn failing_or_panicking_inner_service_releases_the_key() {
    let store = MokaStore::new();
    let failing = tower::service_fn(|_: Request<tower_webhook::Verified>| async {
        Err::<http::Response<Full<Bytes>>, _>(HANDLER_ERROR)
    });
    let notes = Notes::default();
    let service = layer(&store).observer(notes.clone()).layer(failing);
    let result = tower::ServiceExt::oneshot(service, delivery(BODY).key("a")).await;
    assert_eq!(result.unwrap_err(), HANDLER_ERROR);
    assert_eq!(store.state("a").await, KeyState::Free);
    let ends = notes.take_ends();
    assert!(ends[1].starts_with("delivery failed - "), "{ends:?}");

    let panicking =
        tower::service_fn(
            |_: Request<tower_webhook::Verified>| -> std::future::Ready<
                Result<http::Response<Full<Bytes>>, std::convert::Infallible>,
            > { panic!("{HANDLER_ERROR}") },
        );
    let service = layer(&store).layer(panicking);
    send(&service, delivery(BODY).key("a"))
        .await
        .assert_problem(500, "panicked");
    assert_eq!(store.state("a").await, KeyState::Free);
}

#[tokio::test]
async fn layers_work_with_another_one_between_them() {
    let (store, crm) = (MokaStore::new(), Crm::default());
    let service = tower::ServiceBuilder::new()
        .layer(tower_webhook::SignatureLayer::new(secret()))
        .map_response(|mut response: http::Response<_>| {
            response
                .headers_mut()
                .insert("x-between", "1".try_into().unwrap());
            response
        })
        .layer(IdempotencyLayer::new(store))
        .service(router(&crm));

    let refused = send(&service, delivery(BODY).without(SIGNATURE)).await;
    refused.assert_problem(401, "invalid-signature");
    assert_eq!(refused.header("x-between"), None);
    for replayed in [None, Some("true")] {
        let answered = send(&service, delivery(BODY).key("a")).await;
        assert_eq!(answered.status, StatusCode::OK);
        assert_eq!(answered.header("x-between"), Some("1"));
        assert_eq!(answered.header("idempotent-replayed"), replayed);
    }
    assert_eq!(crm.runs(), 1);

    // Without the second layer nothing is remembered.
    let service = tower_webhook::SignatureLayer::new(secret()).layer(router(&crm));
    for _ in 0..2 {
        send(&service, delivery(BODY).key("a")).await.assert_ok();
    }
    assert_eq!(crm.attempts(), [Some(1), None, None]);
}

#[tokio::test]
async fn layers_can_be_mounted_in_axum() {
    let crm = Crm::default();
    let service = layer(&MokaStore::new()).layer(router(&crm));
    let app = axum::Router::new().route_service("/webhooks", service);
    let request = || delivery(BODY).key("a").map(axum::body::Body::new);
    send(&app, request()).await.assert_ok();
    send(&app, request()).await.assert_replayed();
    assert_eq!(crm.runs(), 1);
}

#[tokio::test]
async fn closures_are_handlers() {
    let closure = async |delivery: Delivery<ChatRated>| -> HandlerResult {
        assert_eq!(delivery.payload.id.as_deref(), Some("chat-1"));
        Ok(())
    };
    let service = layer(&MokaStore::new()).layer(EventRouter::new().on::<ChatRated>(closure));
    send(&service, delivery(BODY)).await.assert_ok();
}
