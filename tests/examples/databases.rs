//! The example that divides chats over several databases.

use std::collections::{BTreeMap, BTreeSet};

use support::database::{Database, connect};
use support::delivery::SECRET;
use support::eventually;
use support::net::{status, whole, whole_with};
use support::program::{Server, curl, example};
use tower_webhook::Secret;
use tower_webhook::inbox::{Filter, Inbox, Page};
use tower_webhook::postgres::PostgresQueue;

const CHATS: usize = 60;

fn start(databases: &[&Database]) -> Server {
    let mut command = example("databases");
    command.args(["--console", "127.0.0.1:0"]);
    for database in databases {
        command.args(["--database", &database.url]);
    }
    Server::start_by(command.env("WEBHOOK_SECRET", SECRET))
}

/// Sends an event of each chat, and waits until all are handled.
async fn send(server: &Server, databases: &[&Database], number: usize) {
    let address = server.address().parse().unwrap();
    for chat in 0..CHATS {
        let body = format!(r#"{{"id":"chat-{chat}","rating":{number}}}"#);
        let request = whole(&format!("{chat}-{number}"), &body);
        assert_eq!(status(address, request).await.unwrap(), 200);
    }
    for database in databases {
        let inbox = inbox(database).await;
        eventually("all are handled", async || {
            inbox.stats().await.unwrap().is_all_handled()
        })
        .await;
    }
}

async fn inbox(database: &Database) -> Inbox {
    Inbox::new(PostgresQueue::new(connect(&database.url, 1).await))
}

/// The number of the database that has the last event of each chat, and the number of events that all have.
async fn places(databases: &[&Database]) -> (BTreeMap<String, BTreeSet<usize>>, usize) {
    let mut places = BTreeMap::<_, BTreeSet<_>>::new();
    let mut number = 0;
    for (at, database) in databases.iter().enumerate() {
        let listed = inbox(database)
            .await
            .list(&Filter::default(), Page::oldest(1_000))
            .await;
        for event in listed.unwrap().events {
            places.entry(event.chat.unwrap()).or_default().insert(at);
            number += 1;
        }
    }
    (places, number)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chat_has_one_database_and_a_new_database_takes_its_share() {
    let all = [
        Database::create().await,
        Database::create().await,
        Database::create().await,
    ];
    let [first, second, third] = &all;
    let two = [first, second];
    let server = start(&two);
    send(&server, &two, 1).await;
    send(&server, &two, 2).await;
    // The same keys again.
    send(&server, &two, 2).await;
    let (before, number) = places(&two).await;
    assert_eq!(number, 2 * CHATS);
    assert!(before.values().all(|it| it.len() == 1), "{before:?}");
    let of_first = before.values().filter(|it| it.contains(&0)).count();
    assert!((CHATS / 5..CHATS * 4 / 5).contains(&of_first), "{of_first}");

    let forged = whole_with(&Secret::new("another").unwrap(), "k", r#"{"id":"chat-1"}"#);
    let address = server.address().parse().unwrap();
    assert_eq!(status(address, forged).await.unwrap(), 401);
    let consoles = server.url_of("consoles");
    for at in 0..2 {
        let page = curl(&[&format!("{}{at}/", consoles.trim_end_matches("0/"))]);
        assert!(page.contains("Overview"), "{page}");
    }
    assert_eq!(server.stop(), 0);

    let three = [first, second, third];
    let server = start(&three);
    send(&server, &three, 3).await;
    let (after, number) = places(&three).await;
    assert_eq!(number, 3 * CHATS);
    let moved = after.iter().filter(|(chat, at)| before[*chat] != **at);
    let moved: Vec<_> = moved.map(|(_, at)| at).collect();
    assert!(
        (CHATS / 8..CHATS * 2 / 3).contains(&moved.len()),
        "{after:?}"
    );
    assert!(moved.iter().all(|at| at.contains(&2)), "{after:?}");
    assert_eq!(server.stop(), 0);
}
