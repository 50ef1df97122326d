//! Measures a delivery within this process, against handwritten receivers.
//!
//! Run with: cargo bench --workspace --bench pipeline

mod by_hand;
mod contest;
mod deliveries;
mod parts;

use std::convert::Infallible;
use std::hint::black_box;

use axum::Router;
use axum::routing::post;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tower::{Layer, Service, service_fn};
use tower_webhook::event::{ChatClosed, EventKind, sample};
use tower_webhook::memory::MokaStore;
use tower_webhook::{Delivery, EventRouter, SignatureLayer, Verified, WebhookLayer, Webhooks};

use self::contest::{Contest, Effort};
use self::deliveries::{Deliveries, secret};

const SECRET: &str = "1f0c7a2e9b5d4836a1c0ffee5eed00d15ea5e123";
const STORE_CAPACITY: u64 = 1_000_000;

fn main() {
    // `cargo test` does not pass `--bench`, and only checks that this works.
    let arguments: Vec<String> = std::env::args().collect();
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    if has("--list") {
        return;
    }
    let effort = if has("--bench") {
        Effort::FULL
    } else {
        Effort::SMOKE
    };

    let chat = Bytes::from(sample(&EventKind::CHAT_CLOSED).unwrap_or_default());
    let delivery = Deliveries::of(&chat);
    let replay = Deliveries {
        unique: false,
        ..delivery.clone()
    };
    let tampered = Deliveries {
        body: chat.slice(1..),
        status: StatusCode::UNAUTHORIZED,
        ..delivery.clone()
    };

    let mut contest = Contest::new("One delivery", chat.len(), effort.requests);
    contest.enter("axum, bytes only", bare_axum(), &delivery);
    contest.enter("axum, by hand", by_hand::router(), &delivery);
    contest.enter("axum, pipeline", on_axum(pipeline()), &delivery);
    contest.enter("pipeline", pipeline(), &delivery);
    let parts = parts::service(MokaStore::with_capacity(STORE_CAPACITY));
    contest.enter("HMAC, JSON and store", parts, &delivery);
    contest.enter("pipeline, replay", pipeline(), &replay);
    contest.enter("pipeline, wrong signature", pipeline(), &tampered);
    contest.run(effort.rounds, &["axum, bytes only", "axum, by hand"]);
    contest.compare("pipeline", "HMAC, JSON and store");

    let large = Bytes::from(vec![b' '; 1024 * 1024]);
    for (body, requests) in [(chat, effort.requests), (large, effort.large_requests)] {
        let delivery = Deliveries::of(&body);
        let mut contest = Contest::new("Verification alone", body.len(), requests);
        contest.enter("HMAC and nothing else", plain_hmac(), &delivery);
        contest.enter("SignatureLayer", verification(), &delivery);
        contest.run(effort.rounds, &["HMAC and nothing else"]);
    }
}

/// The floor: a route that receives the body and does nothing with it.
fn bare_axum() -> Router {
    Router::new().route("/webhooks", post(async |body: Bytes| drop(black_box(body))))
}

/// A receiver with this crate.
fn pipeline() -> Pipeline {
    let events = EventRouter::new().on::<ChatClosed>(async |chat: Delivery<ChatClosed>| {
        black_box(chat);
        Ok(())
    });
    let store = MokaStore::with_capacity(STORE_CAPACITY);
    let webhooks = Webhooks::new(secret()).store(store);
    webhooks.start(events).expect("the defaults are valid").0
}

type Pipeline = <WebhookLayer<MokaStore> as Layer<EventRouter>>::Service;

fn on_axum(pipeline: Pipeline) -> Router {
    Router::new().route_service("/webhooks", pipeline)
}

/// The layer around a service that does nothing.
fn verification()
-> impl Service<Request<Full<Bytes>>, Response = Response<impl Sized>, Error = Infallible> + Clone {
    let nothing = service_fn(async |verified: Request<Verified>| {
        black_box(verified);
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    });
    SignatureLayer::new(secret()).layer(nothing)
}

/// The parts that every verification needs.
fn plain_hmac()
-> impl Service<Request<Full<Bytes>>, Response = Response<impl Sized>, Error = Infallible> + Clone {
    let keyed = by_hand::keyed();
    service_fn(move |request: Request<Full<Bytes>>| {
        let mac = keyed.clone();
        async move {
            let (head, body) = request.into_parts();
            let Ok(body) = body.collect().await;
            let authentic = parts::is_authentic(mac, &head.headers, &body.to_bytes());
            Ok(parts::answer(match authentic {
                true => StatusCode::OK,
                false => StatusCode::UNAUTHORIZED,
            }))
        }
    })
}
