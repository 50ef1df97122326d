//! The example that divides chats over several databases.

use std::collections::{BTreeMap, BTreeSet};

use support::database::{Database, connect};
use support::delivery::SECRET;
use support::eventually;
use support::net::{content_length, head, status, whole, whole_with};
use support::program::{PATIENCE, Server, curl, example};
use tokio::time::timeout;
use tower_webhook::Secret;
use tower_webhook::inbox::{Filter, Inbox, Page, Scope};
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

/// Sends an event of each chat.
async fn send(server: &Server, number: usize) {
    let address = server.address().parse().unwrap();
    for chat in 0..CHATS {
        let body = format!(r#"{{"id":"chat-{chat}","rating":{number}}}"#);
        let request = whole(&format!("{chat}-{number}"), &body);
        assert_eq!(status(address, request).await.unwrap(), 200);
    }
}

async fn all_are_handled(databases: &[&Database]) {
    for database in databases {
        let inbox = inbox(database).await;
        eventually("all are handled", async || {
            inbox.stats().await.unwrap().is_all_handled()
        })
        .await;
    }
}

/// The ratings of each chat in the order of its handlers, of which each wrote a line.
fn handled(out: &str) -> BTreeMap<String, Vec<usize>> {
    let mut handled = BTreeMap::<_, Vec<usize>>::new();
    for line in out.lines() {
        // `Some("chat-1") was rated Some(1.0)`
        let values: Vec<_> = line.split(['(', ')']).collect();
        let (chat, rating) = (values[1].trim_matches('"'), values[3]);
        let rating: f64 = rating.parse().unwrap();
        handled
            .entry(chat.to_owned())
            .or_default()
            .push(rating as usize);
    }
    handled
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

/// As the page says: its inbox is paused until the others have handled what they have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_database_takes_its_share_of_the_chats_and_keeps_their_order() {
    let all = [
        Database::create().await,
        Database::create().await,
        Database::create().await,
    ];
    let [first, second, third] = &all;
    let two = [first, second];
    let server = start(&two);
    send(&server, 1).await;
    all_are_handled(&two).await;
    // These wait when the third is added.
    for database in two {
        let inbox = inbox(database).await;
        inbox.pause(Scope::Everything, "").await.unwrap();
    }
    send(&server, 2).await;
    // The same keys again.
    send(&server, 2).await;
    let (before, number) = places(&two).await;
    assert_eq!(number, 2 * CHATS);
    assert!(before.values().all(|it| it.len() == 1), "{before:?}");
    let of_first = before.values().filter(|it| it.contains(&0)).count();
    assert!((CHATS / 5..CHATS * 4 / 5).contains(&of_first), "{of_first}");
    let mut out = server.out();
    assert_eq!(server.stop(), 0);

    PostgresQueue::open(connect(&third.url, 1).await)
        .await
        .unwrap();
    let new = inbox(third).await;
    new.pause(Scope::Everything, "").await.unwrap();
    let three = [first, second, third];
    let server = start(&three);
    send(&server, 3).await;
    for database in two {
        let inbox = inbox(database).await;
        inbox.resume(Scope::Everything).await.unwrap();
    }
    all_are_handled(&two).await;
    let (after, number) = places(&three).await;
    assert_eq!(number, 3 * CHATS);
    let moved = after.iter().filter(|(chat, at)| before[*chat] != **at);
    let moved: Vec<_> = moved.map(|(_, at)| at).collect();
    assert!(
        (CHATS / 8..CHATS * 2 / 3).contains(&moved.len()),
        "{after:?}"
    );
    assert!(moved.iter().all(|at| at.contains(&2)), "{after:?}");
    assert_eq!(new.stats().await.unwrap().unsettled(), moved.len() as u64);
    new.resume(Scope::Everything).await.unwrap();
    all_are_handled(&three).await;
    out += &server.out();
    assert_eq!(server.stop(), 0);
    let handled = handled(&out);
    assert_eq!(handled.len(), CHATS);
    for (chat, ratings) in handled {
        assert_eq!(ratings, [1, 2, 3], "{chat}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_console_shows_the_chats_of_its_database() {
    let [first, second] = [Database::create().await, Database::create().await];
    let databases = [&first, &second];
    let server = start(&databases);
    send(&server, 1).await;
    all_are_handled(&databases).await;
    let (places, _) = places(&databases).await;
    let consoles = server.url_of("consoles");
    for at in 0..2 {
        let console = format!("{}{at}/", consoles.trim_end_matches("0/"));
        for (chat, places) in &places {
            let page = curl(&[&format!("{console}events?chat={chat}")]);
            let shown = page.contains(&format!("/{at}/chat?id={chat}\""));
            assert_eq!(shown, places.contains(&at), "{chat} at {at}: {page}");
        }
    }
    assert_eq!(server.stop(), 0);
}

/// What is not verified costs no more than at a receiver alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_large_and_slow_deliveries_are_refused_as_by_a_receiver() {
    let database = Database::create().await;
    let server = start(&[&database]);
    let address = server.address().parse().unwrap();
    let forged = whole_with(&Secret::new("another").unwrap(), "k", r#"{"id":"chat-1"}"#);
    assert_eq!(status(address, forged).await.unwrap(), 401);
    // Their bodies never come.
    for (length, refused) in [((1 << 20) + 1, 413), (100, 408)] {
        let head = head("k", b"", &content_length(length));
        let answer = timeout(PATIENCE, status(address, head)).await;
        assert_eq!(answer.expect("an answer").unwrap(), refused);
    }
    assert_eq!(server.stop(), 0);
}
