//! The router calls the handler of each event, with and without HTTP.

#![cfg(feature = "moka")]

use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde::Deserialize;
use tower_webhook::event::{ChatClosed, ChatOpened, ChatRated, MessageCreated};
use tower_webhook::{
    Delivery, Event, EventKind, EventRouter, Handler, HandlerError, HandlerResult, Outcome,
    RawDelivery, Webhooks,
};

use support::Ready;
use support::delivery::{BODY, Crm, HANDLER_ERROR, RequestExt, Step, delivery, secret, send};

fn raw(kind: &'static str, body: &'static str) -> RawDelivery {
    RawDelivery::new(EventKind::from_static(kind), body)
}

/// One struct that handles several events.
#[derive(Clone, Default)]
struct Journal(Arc<Mutex<Vec<String>>>);

impl Journal {
    fn write(&self, line: String) -> HandlerResult {
        self.0.lock().unwrap().push(line);
        Ok(())
    }

    fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl Handler<ChatRated> for Journal {
    async fn handle(&self, delivery: Delivery<ChatRated>) -> HandlerResult {
        self.write(format!("rated {:?}", delivery.payload.id))
    }
}

impl Handler<ChatClosed> for Journal {
    async fn handle(&self, delivery: Delivery<ChatClosed>) -> HandlerResult {
        self.write(format!("closed {:?}", delivery.payload.id))
    }
}

impl Handler<MessageCreated> for Journal {
    async fn handle(&self, delivery: Delivery<MessageCreated>) -> HandlerResult {
        self.write(format!("message {:?}", delivery.payload.text))
    }
}

#[tokio::test]
async fn one_struct_handles_several_events() {
    let journal = Journal::default();
    let router = EventRouter::new()
        .on::<ChatRated>(journal.clone())
        .on::<ChatClosed>(Arc::new(journal.clone()))
        .on::<MessageCreated>(journal.clone());
    let service = Webhooks::new(secret()).layer(router);
    for (kind, body) in [
        ("chat-rated", r#"{"id":"c-1"}"#),
        ("chat-closed", r#"{"id":"c-2"}"#),
        ("message-created", r#"{"text":"hello"}"#),
        ("chat-opened", r#"{"id":"nobody wants it"}"#),
    ] {
        send(&service, delivery(body).kind(kind)).await.assert_ok();
    }
    assert_eq!(
        journal.lines(),
        [
            r#"rated Some("c-1")"#,
            r#"closed Some("c-2")"#,
            r#"message Some("hello")"#
        ]
    );
}

async fn function(delivery: Delivery<ChatRated>) -> HandlerResult {
    match delivery.payload.id.as_deref() {
        Some("c-1") => Ok(()),
        _ => Err(HandlerError::discard("another chat")),
    }
}

#[tokio::test]
async fn functions_and_closures_are_handlers() {
    let runs = Arc::new(AtomicUsize::new(0));
    let captured = Arc::clone(&runs);
    let router = EventRouter::new()
        .on::<ChatRated>(function)
        .on::<ChatOpened>(async |_: Delivery<ChatOpened>| Ok(()))
        .on::<ChatClosed>(move |_: Delivery<ChatClosed>| {
            let runs = Arc::clone(&captured);
            async move {
                runs.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
        })
        .on::<MessageCreated>(|_| async { Ok(()) });
    for kind in [
        "chat-rated",
        "chat-opened",
        "chat-closed",
        "message-created",
    ] {
        let outcome = router.handle(raw(kind, r#"{"id":"c-1"}"#)).await;
        assert!(matches!(outcome, Outcome::Handled), "{kind}: {outcome:?}");
    }
    assert_eq!(runs.load(Ordering::Relaxed), 1);
    let discarded = router.handle(raw("chat-rated", "{}")).await;
    assert!(
        matches!(discarded, Outcome::Discarded(reason) if reason.to_string() == "another chat")
    );
}

#[tokio::test]
async fn errors_of_any_type_are_retried() {
    fn io() -> Result<(), std::io::Error> {
        Err(std::io::Error::other("no disk"))
    }
    let router = EventRouter::new().on::<ChatRated>(async |delivery: Delivery<ChatRated>| {
        match delivery.payload.id.as_deref() {
            Some("io") => io()?,
            Some("number") => drop("x".parse::<u32>()?),
            Some("boxed") => Err(Box::<dyn Error + Send + Sync>::from("boxed"))?,
            Some("anyhow") => Err(anyhow::anyhow!("any").context("how"))?,
            Some("text") => Err("text")?,
            Some("string") => return Err(String::from("string").into()),
            _ => return Err(HandlerError::retry("retry")),
        }
        Ok(())
    });
    for (id, text) in [
        (r#"{"id":"io"}"#, "no disk"),
        (r#"{"id":"number"}"#, "invalid digit found in string"),
        (r#"{"id":"boxed"}"#, "boxed"),
        (r#"{"id":"anyhow"}"#, "how"),
        (r#"{"id":"text"}"#, "text"),
        (r#"{"id":"string"}"#, "string"),
        ("{}", "retry"),
    ] {
        match router.handle(raw("chat-rated", id)).await {
            Outcome::Failed { reason, .. } => assert_eq!(reason.to_string(), text),
            other => panic!("{other:?}"),
        }
    }
    let error = HandlerError::from(io().unwrap_err());
    assert!(!error.is_discard());
    assert!(error.into_source().unwrap().is::<std::io::Error>());
}

#[test]
#[should_panic(
    expected = "there are two handlers for `chat-rated`: the second is for `tower_webhook::event::ChatRated`"
)]
fn two_handlers_for_one_event_panic() {
    let _ = EventRouter::new()
        .on::<ChatRated>(Crm::default())
        .on::<ChatRated>(Crm::default());
}

enum Shadow {}

impl Event for Shadow {
    const KIND: EventKind = EventKind::CHAT_RATED;
    type Payload = serde::de::IgnoredAny;
}

#[test]
#[should_panic(
    expected = "there are two handlers for `chat-rated`: the second is for `pipeline::router::Shadow`"
)]
fn two_handlers_for_one_kind_panic() {
    let _ = EventRouter::new()
        .on::<ChatRated>(Crm::default())
        .on::<Shadow>(async |_: Delivery<Shadow>| Ok(()));
}

#[derive(Deserialize)]
struct Archived {
    id: String,
    by: u32,
}

enum ChatArchived {}

impl Event for ChatArchived {
    const KIND: EventKind = EventKind::from_static("chat-archived");
    type Payload = Archived;
}

#[tokio::test]
async fn custom_events_are_handled() {
    let router = EventRouter::new().on::<ChatArchived>(async |delivery: Delivery<ChatArchived>| {
        assert_eq!(
            delivery.kind(),
            "chat-archived".parse::<EventKind>().as_ref().unwrap()
        );
        assert_eq!(
            (delivery.payload.id.as_str(), delivery.payload.by),
            ("c-1", 7)
        );
        assert_eq!(delivery.raw().body(), r#"{"id":"c-1","by":7}"#);
        Ok(())
    });
    let service = Webhooks::new(secret()).layer(router);
    let send = async |body| send(&service, delivery(body).kind("chat-archived")).await;

    send(r#"{"id":"c-1","by":7}"#).await.assert_ok();
    // Its payload is as strict as the user made it.
    for refused in [r#"{"id":"c-1"}"#, r#"{"id":"c-1","by":"7"}"#, "{}"] {
        send(refused).await.assert_problem(422, "undecodable");
    }
}

#[tokio::test]
async fn fallback_does_not_receive_events_with_a_handler() {
    let fallback = Journal::default();
    let journal = fallback.clone();
    let crm = Crm::default();
    let router = EventRouter::new()
        .fallback(move |raw: RawDelivery| {
            let written = journal.write(format!("{} {:?}", raw.kind(), raw.body()));
            async { written }
        })
        .on::<ChatRated>(crm.clone());

    for kind in ["chat-rated", "chat-closed", "chat-archived"] {
        let outcome = router.handle(raw(kind, "{\"x\":1}")).await;
        assert!(matches!(outcome, Outcome::Handled));
    }
    let undecodable = router.handle(raw("chat-closed", "{x}")).await;
    assert!(matches!(undecodable, Outcome::Undecodable(_)));
    assert_eq!(crm.runs(), 1);
    assert_eq!(
        fallback.lines(),
        [
            r#"chat-closed b"{\"x\":1}""#,
            r#"chat-archived b"{\"x\":1}""#
        ]
    );
}

#[tokio::test]
async fn handler_of_undecodable_bodies_determines_the_response() {
    let crm = Crm::default();
    let router = EventRouter::new()
        .on::<ChatRated>(crm.clone())
        .fallback(async |_| Ok(()))
        .on_undecodable(|raw: RawDelivery, error| async move {
            assert_eq!(
                raw.decode::<serde_json::Value>().unwrap_err().to_string(),
                error.to_string()
            );
            match &raw.body()[..] {
                b"[]" => Ok(()),
                b"discard" => Err(HandlerError::discard(error)),
                _ => Err(error.into()),
            }
        });
    for kind in ["chat-rated", "chat-archived"] {
        let handle = async |body| router.handle(raw(kind, body)).await;
        assert!(matches!(handle("[]").await, Outcome::Handled));
        assert!(matches!(handle("discard").await, Outcome::Discarded(_)));
        assert!(matches!(handle("7").await, Outcome::Failed { .. }));
        assert!(matches!(handle("{}").await, Outcome::Handled));
    }
    assert_eq!(crm.runs(), 1);
}

#[tokio::test]
async fn delivery_is_dispatched_without_http() {
    let crm = Crm::new([
        Step::Succeed,
        Step::Fail,
        Step::Discard,
        Step::Panic,
        Step::PanicAfterAwait,
    ]);
    let router = EventRouter::new().on::<ChatRated>(crm.clone());
    let attempt = std::num::NonZeroU32::new(7);
    let stored = raw("chat-rated", BODY).with_attempt(attempt);
    let handle = async || router.handle(stored.clone()).await;

    assert!(matches!(handle().await, Outcome::Handled));
    assert!(
        matches!(handle().await, Outcome::Failed { reason, .. } if reason.to_string() == HANDLER_ERROR)
    );
    assert!(matches!(handle().await, Outcome::Discarded(_)));
    assert!(matches!(handle().await, Outcome::Panicked(_)));
    assert!(matches!(handle().await, Outcome::Panicked(_)));
    // It is not deduplicated.
    assert!(matches!(handle().await, Outcome::Handled));
    assert_eq!(crm.attempts(), [Some(7); 6]);

    let unhandled = router.handle(raw("chat-closed", "not even JSON")).await;
    assert!(matches!(unhandled, Outcome::Ignored));
    let undecodable = router.handle(raw("chat-rated", "[]")).await;
    assert!(matches!(undecodable, Outcome::Undecodable(_)));
}

#[tokio::test]
async fn extending_a_router_does_not_change_its_clone() {
    let base = EventRouter::new().on::<ChatRated>(Crm::default());
    let strict = base
        .clone()
        .on::<ChatClosed>(Journal::default())
        .reject_unhandled();
    let closed = || raw("chat-closed", BODY);
    assert!(matches!(base.handle(closed()).await, Outcome::Ignored));
    assert!(matches!(strict.handle(closed()).await, Outcome::Handled));
    let shown = format!("{strict:?}");
    assert!(
        shown.contains("chat-closed") && shown.contains("chat-rated"),
        "{shown}"
    );
}
