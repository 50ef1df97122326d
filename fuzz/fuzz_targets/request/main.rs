//! Whole requests through the full pipeline, held against the table of answers written anew.
#![no_main]

mod input;
mod model;
mod wire;

use std::future::ready;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;
use libfuzzer_sys::fuzz_target;
use tokio::runtime::{Builder, Runtime};
use tower::{Layer, ServiceExt};
use tower_webhook::event::{ChatClosed, ChatRated, MessageCreated};
use tower_webhook::store::MokaStore;
use tower_webhook::{
    Delivery, Event, EventRouter, HandlerError, HandlerResult, IdempotencyLayer, RawDelivery,
    Secret, Secrets, SignatureLayer, WebhookLayer,
};

use self::input::{Config, Input, SECRETS};
use self::model::{Model, Run};

thread_local! {
    static RUNTIME: Runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O");
}

fuzz_target!(|input: Input| {
    let runs = Runs::default();
    let service = webhooks(&input.config).layer(events(&input.config, &runs));
    let mut model = Model::new(&input.config);

    for request in &input.requests {
        let response = RUNTIME.with(|runtime| {
            runtime.block_on(async {
                let Ok(response) = service.clone().oneshot(request.to_http()).await;
                let (head, body) = response.into_parts();
                let Ok(body) = body.collect().await;
                (head, body.to_bytes())
            })
        });
        let (head, body) = response;
        let expected = model.answer(request);

        assert_eq!(head.status.as_u16(), expected.status);
        assert_eq!(
            head.headers.contains_key("idempotent-replayed"),
            expected.replayed
        );
        assert_eq!(runs.take(), Vec::from_iter(expected.run));
        assert_presented(head.status, &head.headers, &body);
    }
});

fn assert_presented(status: StatusCode, headers: &HeaderMap, body: &Bytes) {
    assert_eq!(
        headers.contains_key(ALLOW),
        status == StatusCode::METHOD_NOT_ALLOWED
    );
    if status == StatusCode::OK {
        assert!(body.is_empty());
        return;
    }
    assert_eq!(headers[CONTENT_TYPE], "application/problem+json");
    let problem: serde_json::Value = serde_json::from_slice(body).expect("a problem document");
    assert_eq!(problem["status"], status.as_u16());
}

fn webhooks(config: &Config) -> WebhookLayer<MokaStore> {
    let mut signature = match config.secrets {
        0 => SignatureLayer::dangerously_unsigned(),
        count => {
            let secrets = SECRETS[..count].iter().map(|secret| Secret::new(*secret));
            let secrets = secrets
                .collect::<Result<Vec<_>, _>>()
                .expect("none is empty");
            SignatureLayer::new(Secrets::new(secrets).expect("there is one at least"))
        }
    };
    let mut idempotency = IdempotencyLayer::new(MokaStore::with_capacity(1000));
    if config.require_key {
        signature = signature.require_key();
    }
    if config.reject_changed_bodies {
        idempotency = idempotency.reject_changed_bodies();
    }
    if config.replay_guard {
        idempotency = idempotency.replay_guard();
    }
    if config.is_full {
        signature = signature.max_buffered(0);
    }
    let signature = signature.max_body(config.max_body);
    WebhookLayer::from_layers(signature, idempotency)
}

/// Of the platform's seven kinds three have a handler: one may fail at first, and one discards.
fn events(config: &Config, runs: &Runs) -> EventRouter {
    let mut events = EventRouter::new()
        .on::<ChatRated>(runs.handler(fails_at_first(config.failures)))
        .on::<MessageCreated>(runs.handler(|| Ok(())))
        .on::<ChatClosed>(runs.handler(|| Err(HandlerError::discard("not wanted"))));
    if config.fallback {
        let runs = runs.clone();
        events = events.fallback(move |raw| {
            runs.note(&raw);
            async { Ok(()) }
        });
    }
    if config.reject_unhandled {
        events = events.reject_unhandled();
    }
    events
}

fn fails_at_first(failures: usize) -> impl Fn() -> HandlerResult + Send + Sync + 'static {
    let left = AtomicUsize::new(failures);
    move || {
        let fails = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            left.checked_sub(1)
        });
        match fails {
            Ok(_) => Err("not yet".into()),
            Err(_) => Ok(()),
        }
    }
}

/// What the handlers saw.
#[derive(Clone, Default)]
struct Runs(Arc<Mutex<Vec<Run>>>);

impl Runs {
    fn handler<E: Event, F>(&self, result: F) -> impl tower_webhook::Handler<E> + use<E, F>
    where
        F: Fn() -> HandlerResult + Send + Sync + 'static,
    {
        let runs = self.clone();
        move |delivery: Delivery<E>| {
            runs.note(delivery.raw());
            ready(result())
        }
    }

    fn note(&self, raw: &RawDelivery) {
        self.0.lock().expect("one thread").push(Run {
            kind: raw.kind().as_str().to_owned(),
            key: raw.key().map(|key| key.as_bytes().to_owned()),
            attempt: raw.attempt().map(u32::from),
            body: raw.body().to_vec(),
        });
    }

    fn take(&self) -> Vec<Run> {
        std::mem::take(&mut self.0.lock().expect("one thread"))
    }
}
