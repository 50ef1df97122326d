//! A receiver is killed in the midst of a change of all that match, again and again. A person continues it in the next one,
//! and each event is changed once.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use sqlx::postgres::PgPoolOptions;
use support::postgres::PostgresServer;
use support::program::{PATIENCE, Server, curl};
use support::queue::{Calls, failure, new_event};
use tempfile::TempDir;
use tokio::time::{sleep, timeout};
use tower_webhook::EventKind;
use tower_webhook::inbox::internal::{self, NewEvent};
use tower_webhook::inbox::{Action, BulkState, EventState, Filter, Inbox, Page, Scope, Which};
use tower_webhook::postgres::PostgresQueue;
use tower_webhook::sqlite::SqliteQueue;

const EVENTS: u64 = 3_000;
const KILLS: u64 = 2;

#[tokio::test(flavor = "multi_thread")]
async fn killed_changes_change_each_event_once_with_sqlite() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("webhooks.db");
    let inbox = Inbox::new(SqliteQueue::open(&path).unwrap());
    survives(&format!("sqlite:{}", path.display()), &inbox).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_changes_change_each_event_once_with_postgres() {
    let server = PostgresServer::start();
    let pool = PgPoolOptions::new().connect_lazy(&server.url()).unwrap();
    let queue = PostgresQueue::new(pool);
    queue.migrate().await.unwrap();
    survives(&server.url(), &Inbox::new(queue)).await;
}

async fn survives(url: &str, inbox: &Inbox) {
    let accepts = (0..EVENTS).map(|n| {
        let event = NewEvent {
            dead: Some(failure("the CRM is down")),
            ..new_event(EventKind::CHAT_RATED, n.to_string())
        };
        async {
            internal::queue(inbox)
                .accept_one(event, None)
                .await
                .unwrap()
        }
    });
    let accepted = stream::iter(accepts).buffer_unordered(256).count().await;
    assert_eq!(accepted as u64, EVENTS);
    // What is redriven is not handled.
    inbox.pause(Scope::Everything, "maintenance").await.unwrap();

    let start = || {
        let args = ["--secret", "s", "--inbox", url, "--exec", "true"];
        Server::receiver(&[&args[..], &["--console", "127.0.0.1:0"]].concat())
    };
    let mut receiver = start();
    begin(&receiver.url_of("console"));
    for kill in 1..=KILLS {
        reaches(inbox, kill * EVENTS / (KILLS + 1)).await;
        receiver.program.child.kill().unwrap();
        receiver.program.child.wait().unwrap();
        let at = change(inbox).await;
        assert!((1..EVENTS).contains(&at.changed), "{at:?}");
        receiver = start();
        // Nobody goes on by himself.
        sleep(Duration::from_secs(1)).await;
        assert_eq!(change(inbox).await.changed, at.changed);
        let path = format!("actions/{}/continue", at.number);
        post(&receiver.url_of("console"), &path, "");
    }
    reaches(inbox, EVENTS).await;
    let done = timeout(PATIENCE, async {
        loop {
            let action = change(inbox).await;
            if action.bulk.as_ref().unwrap().state != BulkState::Running {
                break action;
            }
            sleep(Duration::from_millis(50)).await;
        }
    });
    let done = done.await.expect("the change does not end");
    let bulk = done.bulk.clone().unwrap();
    // An event that was tried twice would be skipped.
    assert_eq!((bulk.state, bulk.skipped), (BulkState::Done, 0));
    assert_eq!(done.changed, EVENTS);
    let mut page = Page::oldest(500);
    let mut events = 0;
    loop {
        let listed = inbox.list(&Filter::default(), page).await.unwrap().events;
        for event in &listed {
            assert_eq!(event.state, EventState::Retrying, "{event:?}");
            let of = inbox.actions(Which::Of(event.id), None, 10).await.unwrap();
            assert_eq!(of, std::slice::from_ref(&done));
        }
        events += listed.len() as u64;
        page.after = listed.last().map(|event| event.id);
        if listed.len() < page.limit {
            break;
        }
    }
    assert_eq!(events, EVENTS);
}

/// Asks for a redrive of all dead letters, and confirms it.
fn begin(console: &str) {
    // It asks again while it counts the events.
    let asked = curl(&["-L", &format!("{console}all?action=redrive&state=dead")]);
    let inputs = asked.split("<input type=\"hidden\" name=\"").skip(1);
    let mut form = "rate=1000&reason=the+CRM+is+back".to_owned();
    for input in inputs {
        let (name, rest) = input.split_once("\" value=\"").unwrap();
        form += &format!("&{name}={}", rest.split('"').next().unwrap());
    }
    post(console, "all", &form);
}

fn post(console: &str, path: &str, form: &str) {
    let origin = format!("origin: {}", console.trim_end_matches('/'));
    let url = format!("{console}{path}");
    let form = format!("{form}&who=somebody");
    let answer = curl(&["-i", "-H", &origin, "-d", &form, &url]);
    assert!(answer.starts_with("HTTP/1.1 303"), "{answer}");
}

async fn change(inbox: &Inbox) -> Action {
    let actions = inbox.actions(Which::All, None, 10).await.unwrap();
    let mut changes = actions.into_iter().filter(|it| it.bulk.is_some());
    changes.next().expect("it has begun")
}

async fn reaches(inbox: &Inbox, changed: u64) {
    let reached = async {
        while change(inbox).await.changed < changed {
            sleep(Duration::from_millis(20)).await;
        }
    };
    let reached = timeout(2 * PATIENCE, reached).await;
    reached.unwrap_or_else(|_| panic!("it does not change {changed} events"));
}
