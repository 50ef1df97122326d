//! The silence watch beside deliveries of several events: inline, at an inbox and with a spool, it sees the types of their items.

use std::fmt::Debug;
use std::sync::atomic::Ordering;
use std::sync::mpsc;

use bytes::{Buf, Bytes};
use http::{Request, Response};
use http_body::Body;
use http_body_util::Full;
use tokio::task::spawn_blocking;
use tokio::time::advance;
use tower::Service;
use tower_webhook::inbox::{Inbox, Queue};
use tower_webhook::memory::MemoryQueue;
use tower_webhook::spool::Spool;
use tower_webhook::telemetry::Silence;
use tower_webhook::{EventKind, EventRouter, EventType, RawDelivery, Sender, Webhooks};

use support::delivery::{secret, send};
use support::queue::FaultyQueue;
use support::scratch::Scratch;
use support::{HOUR, SECOND};

fn line() -> Sender {
    Sender::named("line", None).unwrap()
}

/// A delivery of these events.
fn request(events: &[&str]) -> Request<Full<Bytes>> {
    let body = format!(r#"{{"destination":"U1","events":[{}]}}"#, events.join(","));
    let delivery = RawDelivery::new(EventKind::from_static("line"), body);
    let body = Full::new(delivery.body().clone());
    let mut request = Request::post("/").body(body).unwrap();
    *request.headers_mut() = line().sign(&secret(), &delivery).unwrap();
    request
}

fn event(of: &str) -> String {
    let id = fastrand::u64(..);
    format!(r#"{{"webhookEventId":"{id}","type":"{of}","source":{{"userId":"U2"}}}}"#)
}

/// Expects events that come, the delivery's own type, and events that never come.
fn silence() -> Silence {
    let all = ["line/message", "line/follow", "line/line", "line/leave"];
    let expect =
        |silence: Silence, of: &str| silence.expect(of.parse::<EventType>().unwrap(), HOUR);
    all.into_iter().fold(Silence::new(), expect)
}

fn silent(silence: &Silence) -> Vec<String> {
    let silent = silence.silent().into_iter();
    silent.map(|it| it.kind.to_string()).collect()
}

fn webhooks(silence: &Silence) -> Webhooks {
    let webhooks = Webhooks::new(secret()).sender(line());
    webhooks.observer(silence.clone())
}

fn at_inbox(queue: impl Into<Queue>, silence: &Silence) -> tower_webhook::Receiver {
    let inbox = Inbox::new(queue);
    inbox.routes().accept(webhooks(silence)).unwrap()
}

/// Time passes only where it is advanced, since files are on a real disk.
fn stopped_clock() -> mpsc::Sender<()> {
    let (until_the_end, ended) = mpsc::channel::<()>();
    spawn_blocking(move || ended.recv());
    until_the_end
}

async fn sees_items<S, R>(service: &S, silence: &Silence)
where
    S: Service<Request<Full<Bytes>>, Response = Response<R>, Error: Debug> + Clone,
    R: Body<Data: Buf, Error: Debug>,
{
    assert!(silent(silence).is_empty());
    advance(HOUR + SECOND).await;
    assert_eq!(silent(silence), ["follow", "leave", "line", "message"]);
    let (message, follow) = (event("message"), event("follow"));
    send(service, request(&[&message])).await.assert_ok();
    assert_eq!(silent(silence), ["follow", "leave", "line"]);
    send(service, request(&[&follow])).await.assert_ok();
    assert_eq!(silent(silence), ["leave", "line"], "it is of another type");
    send(service, request(&[])).await.assert_ok();
    assert_eq!(silent(silence), ["leave"], "an empty batch");

    advance(HOUR + SECOND).await;
    assert_eq!(silent(silence).len(), 4);
    let (one, other) = (event("message"), event("follow"));
    send(service, request(&[&one, &other])).await.assert_ok();
    assert_eq!(silent(silence), ["leave", "line"]);
    // A redelivery is a sign of life, too.
    advance(HOUR + SECOND).await;
    assert_eq!(send(service, request(&[&one])).await.status, 200);
    assert_eq!(silent(silence), ["follow", "leave", "line"]);
    // An item without a type has that of its delivery.
    send(service, request(&[r#"{"mode":"active"}"#]))
        .await
        .assert_ok();
    assert_eq!(silent(silence), ["follow", "leave"]);
}

#[tokio::test(start_paused = true)]
async fn items_that_are_handled_before_the_response() {
    let (_clock, silence) = (stopped_clock(), silence());
    let (service, _running) = webhooks(&silence).start(EventRouter::new()).unwrap();
    sees_items(&service, &silence).await;
}

#[tokio::test(start_paused = true)]
async fn items_at_an_inbox() {
    let (_clock, silence) = (stopped_clock(), silence());
    let service = at_inbox(MemoryQueue::new(), &silence);
    sees_items(&service, &silence).await;
}

#[tokio::test(start_paused = true)]
async fn items_that_are_spooled() {
    let (_clock, silence) = (stopped_clock(), silence());
    let (scratch, remote) = (Scratch::new(), FaultyQueue::new(MemoryQueue::new()));
    let spool = Spool::new(scratch.path()).on_any_disk();
    let spooled = spool.open(remote.clone()).await.unwrap();
    remote.faults.is_down.store(true, Ordering::SeqCst);
    let service = at_inbox(spooled.clone(), &silence);
    sees_items(&service, &silence).await;
    assert!(spooled.status().is_open);
}

#[tokio::test(start_paused = true)]
async fn items_of_types_that_are_not_kept() {
    let silence = silence();
    let webhooks = webhooks(&silence).keep_only([EventKind::from_static("follow")]);
    let inbox = Inbox::new(MemoryQueue::new());
    let service = inbox.routes().accept(webhooks).unwrap();
    advance(HOUR + SECOND).await;
    let message = event("message");
    send(&service, request(&[&message])).await.assert_ok();
    assert_eq!(silent(&silence), ["follow", "leave", "line"]);
}

/// The delivery's type is not learned beside those of its items.
#[tokio::test(start_paused = true)]
async fn types_of_items_are_learned() {
    let silence = Silence::new().learn();
    let service = at_inbox(MemoryQueue::new(), &silence);
    for _ in 0..20 {
        let message = event("message");
        send(&service, request(&[&message])).await.assert_ok();
        advance(12 * HOUR).await;
    }
    assert!(silence.silent().is_empty());
    advance(13 * HOUR).await;
    assert_eq!(silent(&silence), ["message"]);
}
