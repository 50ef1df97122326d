//! Bodies of 25 MiB, which are the largest that GitHub sends, in a file.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tokio::time::sleep;
use tower_webhook::inbox::Inbox;
use tower_webhook::{EventKind, EventRouter, IdempotencyKey, RawDelivery, Sender, Webhooks};
use tower_webhook_console::Console;

use support::delivery::{secret, send};
use support::scratch::Scratch;
use support::{SECOND, eventually, lock};

use super::{answer, get};

const LARGEST: usize = 25 << 20;

/// A delivery with a body of this size.
fn delivery(github: &Sender, number: usize, size: usize) -> Request<Full<Bytes>> {
    let begin = format!(r#"{{"number":{number},"text":""#);
    let fill = size - begin.len() - 2;
    let body = [&begin, &*"x".repeat(fill), r#""}"#].concat();
    let key = IdempotencyKey::new(format!("delivery-{number}").parse().unwrap());
    let delivery = RawDelivery::new(EventKind::from_static("push"), body).with_key(key);
    let mut request = Request::post("/")
        .body(Full::new(delivery.body().clone()))
        .unwrap();
    *request.headers_mut() = github.sign(&secret(), &delivery).unwrap();
    request
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_largest_bodies_are_stored_handled_shown_and_exported_and_harm_no_small_ones() {
    let scratch = Scratch::new();
    let inbox = Inbox::new(scratch.queue());
    let handled = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&handled);
    let events = EventRouter::new().fallback(move |delivery: RawDelivery| {
        lock(&seen).push(delivery.body().len());
        async { Ok(()) }
    });
    let github = Sender::named("github", None).unwrap();
    let webhooks = Webhooks::new(secret()).sender(github.clone());
    let (webhooks, running) = webhooks.inbox(inbox.clone()).start(events).unwrap();

    let largest = send(&webhooks, delivery(&github, 1, LARGEST)).await;
    largest.assert_ok();
    let larger = send(&webhooks, delivery(&github, 2, LARGEST + 1)).await;
    larger.assert_problem(413, "body-too-large");
    eventually("it is handled", async || *lock(&handled) == [LARGEST]).await;
    let app = Console::new().inbox(inbox).router();
    let page = get(&app, "/events/1").await;
    page.is(200)
        .shows("This is the beginning of 26214400 bytes.");
    let (status, written) = answer(&app, "/export?format=jsonl").await;
    assert_eq!(status, 200);
    assert!(written > LARGEST as u64, "{written} bytes");

    // Only some of them have room, and the others are refused.
    let ten = (2..12).map(|number| {
        let (webhooks, request) = (webhooks.clone(), delivery(&github, number, LARGEST));
        tokio::spawn(async move { send(&webhooks, request).await.status.as_u16() })
    });
    let ten: Vec<_> = ten.collect();
    let mut small = 0;
    while small < 10 || ten.iter().any(|sent| !sent.is_finished()) {
        let sent = send(&webhooks, delivery(&github, 100 + small, 100)).await;
        sent.assert_ok();
        small += 1;
        sleep(Duration::from_millis(20)).await;
    }
    let mut accepted = 0;
    for sent in ten {
        match sent.await.unwrap() {
            200 => accepted += 1,
            status => assert_eq!(status, 503),
        }
    }
    assert!(accepted > 0, "none was accepted");
    eventually("all are handled", async || {
        lock(&handled).len() == 1 + accepted + small
    })
    .await;
    let large = lock(&handled)
        .iter()
        .filter(|size| **size == LARGEST)
        .count();
    assert_eq!(large, 1 + accepted);
    running.drain(SECOND).await.unwrap();
}
