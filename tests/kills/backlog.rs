//! The memory of a receiver beside a backlog, while its handlers fail and while it is handled.
//!
//! `BACKLOG=1000000` sets the number of waiting events, which defaults to 10,000.

use std::process::Stdio;
use std::time::{Duration, Instant};
use tower_webhook::inbox::internal::{self, Lane};

use futures_util::future::join_all;
use nix::sys::signal::Signal;
use tempfile::TempDir;
use tokio::time::sleep;
use tower_webhook::event::EventKind;
use tower_webhook::inbox::Inbox;
use tower_webhook::inbox::internal::NewEvent;
use tower_webhook::sqlite::SqliteQueue;
use tower_webhook::store::EventKey;

use support::delivery::SECRET;
use support::program::{PATIENCE, Program, Server, example};
use support::queue::{Calls, new_event};

/// What a receiver may take, in KiB.
const LIMIT: usize = 100_000;

/// An event of 600 bytes.
fn event(number: usize, chats: usize) -> NewEvent {
    let chat = number % chats;
    let body = format!(r#"{{"id":"chat-{chat}","transcript":"{number:0>560}"}}"#);
    let key = format!("event-{number}");
    NewEvent {
        key: Some(EventKey::new("", key.as_bytes(), body.as_bytes())),
        chat: Some(format!("chat-{chat}")),
        lane: Some(Lane(chat.try_into().unwrap())),
        ..new_event(EventKind::CHAT_CLOSED, body)
    }
}

fn receiver(inbox: &str, args: &[&str]) -> Server {
    let mut command = example("receiver");
    command
        .args(["--listen", "127.0.0.1:0", "--inbox", inbox])
        .args(args)
        .env("WEBHOOK_SECRET", SECRET)
        .stdout(Stdio::null());
    Server::listening(Program::spawn(&mut command, TempDir::new().unwrap()))
}

fn terminate(mut receiver: Server) {
    receiver.signal(Signal::SIGTERM);
    receiver.program.child.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn receiver_stays_small_beside_a_backlog() {
    let backlog: usize = std::env::var("BACKLOG").map_or(10_000, |count| count.parse().unwrap());
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("webhooks.db");
    let url = format!("sqlite:{}", path.display());
    let inbox = Inbox::new(SqliteQueue::open(&path).unwrap());
    for first in (0..backlog).step_by(500) {
        let events = (first..backlog.min(first + 500)).map(|number| event(number, backlog / 10));
        for accepted in
            join_all(events.map(|event| internal::queue(&inbox).accept_one(event, None))).await
        {
            accepted.unwrap();
        }
    }

    let failing = receiver(&url, &["--exec", "false"]);
    sleep(Duration::from_secs(10)).await;
    let while_failing = failing.memory("VmHWM");
    terminate(failing);
    println!("{backlog} events: {while_failing} KiB while they fail");
    let stats = inbox.stats().await.unwrap();
    assert_eq!(stats.unsettled(), backlog as u64);

    let working = receiver(&url, &[]);
    let began = Instant::now();
    while inbox.stats().await.unwrap().unsettled() > 0 {
        let most = PATIENCE + Duration::from_millis(backlog as u64 / 2);
        assert!(began.elapsed() < most, "{}", inbox.stats().await.unwrap());
        sleep(Duration::from_millis(500)).await;
    }
    let took = began.elapsed();
    let while_working = working.memory("VmHWM");
    terminate(working);
    println!("{backlog} events: {while_working} KiB while they are handled, in {took:.1?}");
    assert!(while_failing < LIMIT, "{while_failing} KiB");
    assert!(while_working < LIMIT, "{while_working} KiB");
    assert!(inbox.stats().await.unwrap().is_all_handled());
}
