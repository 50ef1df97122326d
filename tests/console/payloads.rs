//! Events are found by a text in their payloads.
//!
//! `PAYLOADS=1000000` searches that many in a file and in PostgreSQL; the default is 20,000.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream;
use tower_webhook::inbox::Inbox;
use tower_webhook::inbox::internal::{self, Accepted, NewEvent};
use tower_webhook::{EventKind, RawDelivery};
use tower_webhook_console::Console;
use tracing::Level;

use support::delivery::{RequestExt, delivery, send};
use support::inbox::{inbox, webhooks};
use support::log::Log;
use support::queue::{Calls, new_event};

use super::get;

#[tokio::test(start_paused = true)]
async fn a_text_in_a_payload_finds_events() {
    let inbox = inbox();
    let webhooks = webhooks(&inbox);
    for (key, name) in [("a", "Zo\u{eb}"), ("b", "Zo\\u00EB"), ("c", "Zoe")] {
        let event = delivery(format!(r#"{{"id":"chat-{key}","name":"{name}"}}"#)).key(key);
        send(&webhooks, event).await.assert_ok();
    }
    let app = Console::new().inbox(inbox.clone()).router();
    let found = get(&app, "/events?payload=zo%C3%AB").await;
    found
        .shows(r#"name="payload" value="zoë""#)
        .shows(r#"href="/events/1""#)
        .shows(r#"href="/events/2""#)
        .hides(r#"href="/events/3""#)
        .hides("Redrive all");
    let none = get(&app, "/events?payload=Anna&order=oldest").await;
    none.shows("No event matches.");
    let long = format!("/events?payload={}", "x".repeat(201));
    get(&app, &long)
        .await
        .is(400)
        .shows("at most 200 characters");
    let all = "/all?action=redrive&state=waiting&payload=Zoe";
    get(&app, all)
        .await
        .is(400)
        .shows("select them in the list");

    let log = Log::capture(Level::INFO);
    let export = get(&app, "/export?payload=Zo%C3%AB&format=jsonl").await;
    assert_eq!(export.is(200).text.lines().count(), 2, "{}", export.text);
    let logged = log.events().pop().unwrap();
    assert_eq!(logged["filter"], "payload=hidden");

    let hidden = Console::new().inbox(inbox).hide_payloads().router();
    get(&hidden, "/events").await.hides("Payload contains");
    for path in ["/events?payload=Zoe", "/export?payload=Zoe&format=csv"] {
        let refused = get(&hidden, path).await;
        refused.is(400).shows("Payloads are hidden.");
    }
}

/// Follows the link that continues the search, as the page's script does. The oldest event alone has the text.
#[cfg_attr(not(all(feature = "postgres", feature = "sqlite")), allow(dead_code))]
async fn searches_on(inbox: Inbox) {
    let count = std::env::var("PAYLOADS").map_or(20_000, |count| count.parse().unwrap());
    let accept = async |n: usize| {
        let name = if n == 0 { "Zo\\u00eb" } else { "J\\u00f6rg" };
        let text = "The delivery has not arrived yet. ".repeat(8);
        let body =
            format!(r#"{{"id":"chat-{n}","name":"{name}","messages":[{{"text":"{text}"}}]}}"#);
        let delivery = RawDelivery::new(EventKind::CHAT_CLOSED, body.clone());
        let event = NewEvent {
            delivery,
            ..new_event(EventKind::CHAT_CLOSED, "{}")
        };
        match internal::queue(&inbox)
            .accept_one(event, None)
            .await
            .unwrap()
        {
            Accepted::New { .. } => {}
            other => panic!("{other:?}"),
        }
    };
    accept(0).await;
    let others = stream::iter(1..count).map(accept).buffer_unordered(512);
    others.collect::<Vec<()>>().await;

    let app = Console::new().inbox(inbox.clone()).router();
    let (began, mut slowest) = (Instant::now(), Duration::ZERO);
    let (mut path, mut pages) = ("/events?payload=ZO%C3%AB".to_owned(), 0);
    let found = loop {
        let of_page = Instant::now();
        let page = get(&app, &path).await;
        page.is(200);
        slowest = slowest.max(of_page.elapsed());
        pages += 1;
        let Some((before, _)) = page.text.split_once("\" rel=\"next\" data-search") else {
            break page;
        };
        page.hides("No event matches.")
            .shows(" % were searched, and event ");
        let next = before
            .rsplit("href=\"")
            .next()
            .unwrap()
            .replace("&amp;", "&");
        assert_ne!(next, path);
        path = next;
    };
    found.shows(r#"href="/events/1""#).shows("all was searched");
    assert_eq!(
        found.text.matches(r#"name="id""#).count(),
        2,
        "one row, and the box of all pages"
    );
    println!(
        "{count} payloads: {:?}, {pages} pages, the slowest {slowest:?}",
        began.elapsed()
    );
}

#[cfg(all(feature = "postgres", feature = "sqlite"))]
mod durable {
    use support::database::Database;
    use support::scratch::Scratch;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_search_of_the_payloads_of_a_file_goes_on_to_its_end() {
        let file = Scratch::new();
        searches_on(Inbox::new(file.queue())).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_search_of_the_payloads_of_a_database_goes_on_to_its_end() {
        let database = Database::create().await;
        searches_on(Inbox::new(database.queue().await)).await;
    }
}
