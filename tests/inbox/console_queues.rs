//! The operator's console over real queues, and operators who act at the same time.
//!
//! `REDRIVES=100000` redrives that many events; the default is 11,000, as the console counts up to 10,000.

use crate::suite::Harness;
use axum::Router;
use futures_util::future::join;
use http::StatusCode;
use tower_webhook::console::Console;
use tower_webhook::inbox::{EventState, Filter, Inbox, Page, Queue};
use tower_webhook::memory::MemoryQueue;

use crate::console::{cancelled_redrive, explains_wrong_requests, get, post};
use crate::memory::Memory;
use crate::postgres::Database;
use crate::sqlite::Scratch;
use crate::worker::webhooks;
use support::delivery::{RequestExt, delivery, send};

fn console<Q: Queue>(inbox: &Inbox<Q>) -> Router {
    Console::new().inbox(inbox.clone()).router()
}

/// Two processes have a console each. Two operators see the same dead letters, and decide at the same moment.
async fn decided_once<H: Harness>(harness: &H) {
    let inbox = Inbox::new(harness.open().await);
    let other = Inbox::new(harness.open().await);
    let (one, two) = (console(&inbox), console(&other));
    for n in 0..40 {
        let dead = delivery(format!("[{n}]")).key(&n.to_string());
        send(&webhooks(&inbox), dead).await.assert_ok();
    }
    let listed = inbox.list(&Filter::default(), Page::oldest(100)).await;
    let listed = listed.unwrap().events;
    assert_eq!(listed.len(), 40);
    for (n, event) in listed.iter().enumerate() {
        let path = |action| format!("/events/{}/{action}", event.id);
        let second = if n % 2 == 0 { "redrive" } else { "discard" };
        let (redrive, second_path) = (path("redrive"), path(second));
        let (first, second) = join(
            post(&one, &redrive, "state=dead"),
            post(&two, &second_path, "state=dead"),
        )
        .await;
        let expected = match (first.status, second.status) {
            (StatusCode::SEE_OTHER, StatusCode::CONFLICT) => EventState::Retrying,
            (StatusCode::CONFLICT, StatusCode::SEE_OTHER) if n % 2 == 0 => EventState::Retrying,
            (StatusCode::CONFLICT, StatusCode::SEE_OTHER) => EventState::Discarded,
            other => panic!("{other:?}"),
        };
        let state = inbox.get(event.id).await.unwrap().unwrap().summary.state;
        assert_eq!(state, expected);
        get(&two, &format!("/events/{}", event.id))
            .await
            .is(200)
            .shows(expected.name());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_two_operators_decides() {
    decided_once(&Memory(MemoryQueue::new())).await;
    decided_once(&Scratch::new()).await;
    decided_once(&Database::create().await).await;
}

#[tokio::test]
async fn wrong_requests_are_explained_by_a_console_of_a_file_or_a_database() {
    let file = Scratch::new();
    explains_wrong_requests(Inbox::new(file.open().await)).await;
    let database = Database::create().await;
    explains_wrong_requests(Inbox::new(database.queue().await)).await;
}

fn redrives() -> usize {
    std::env::var("REDRIVES").map_or(11_000, |count| count.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_redrive_in_a_file_loses_and_duplicates_nothing() {
    let file = Scratch::new();
    cancelled_redrive(Inbox::new(file.open().await), redrives()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_redrive_in_postgres_loses_and_duplicates_nothing() {
    let database = Database::create().await;
    cancelled_redrive(Inbox::new(database.queue().await), redrives()).await;
}
