//! Whole requests through the full pipeline, held against the table of answers written anew.
#![no_main]

mod concurrent;
mod input;
mod model;
mod service;
mod wire;

use std::convert::Infallible;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE};
use http::{HeaderMap, Response, StatusCode};
use http_body::Body;
use http_body_util::BodyExt;
use libfuzzer_sys::fuzz_target;
use tokio::runtime::{Builder, Runtime};
use tower::{Layer, ServiceExt};

use self::input::{Config, Input};
use self::model::Model;
use self::service::{Calls, Number, events, webhooks};
use self::wire::Request;

thread_local! {
    static RUNTIME: Runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O");
}

fuzz_target!(|input: Input| {
    let Input {
        config, requests, ..
    } = &input;
    RUNTIME.with(|runtime| match &input.schedule {
        Some(schedule) => runtime.block_on(concurrent::deliver(config, requests, schedule)),
        None => runtime.block_on(deliver(config, requests)),
    });
});

/// One request after another.
async fn deliver(config: &Config, requests: &[Request]) {
    let calls = Calls::default();
    let service = webhooks(config, false).layer(events(config, &calls));
    let mut model = Model::new(config);

    for (number, request) in requests.iter().enumerate() {
        let mut http = request.to_http();
        http.extensions_mut().insert(Number(number));
        let received = receive(service.clone().oneshot(http).await).await;
        let expected = model.answer(request);

        assert_eq!(received.status.as_u16(), expected.status);
        assert_eq!(received.is_replay(), expected.replayed);
        let runs = calls.take().into_iter().filter_map(|call| call.run);
        assert_eq!(Vec::from_iter(runs), Vec::from_iter(expected.run));
    }
}

/// An answer, as the client gets it.
struct Received {
    status: StatusCode,
    headers: HeaderMap,
}

impl Received {
    fn is_replay(&self) -> bool {
        self.headers.contains_key("idempotent-replayed")
    }
}

async fn receive<B>(response: Result<Response<B>, Infallible>) -> Received
where
    B: Body<Data = Bytes, Error = Infallible>,
{
    let Ok(response) = response;
    let (head, body) = response.into_parts();
    let Ok(body) = body.collect().await;
    assert_presented(head.status, &head.headers, &body.to_bytes());
    Received {
        status: head.status,
        headers: head.headers,
    }
}

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
