//! The tasks of an operator, each from the overview on.
//!
//! `TASKS=1000000` has so many events in the database that two receivers share; the default is 2,000.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use futures_util::{StreamExt, stream};
use http::StatusCode;
use tokio::time::sleep;
use tower_webhook::inbox::internal::Tuning;
use tower_webhook::inbox::{self, EventState, Filter, Inbox, Retry};
use tower_webhook::{EventRouter, HandlerError, RawDelivery, Webhooks};

use crate::chromium::{Page, Window, until};
use crate::desk::{Desk, event};
use support::SECOND;
use support::database::Database;
use support::delivery::{secret, send};
use support::net::serve;
use support::program::Server;

/// The clicks that a task may take, beside typing.
const MOST: usize = 4;

/// Why events have failed.
const ERROR: &str = "timeout of the CRM";

/// Requests that are not verified.
const REFUSED: usize = 120;

const YES: &str = "main form button:not([disabled])";

/// Where the tasks are done.
struct Site<'a> {
    /// The consoles, of which each task takes the next.
    urls: &'a [String],
    page: &'a Page,
    inbox: &'a Inbox,
    /// The number of events that have failed.
    failed: usize,
    /// From where requests were sent that are not verified.
    address: &'a str,
    turns: AtomicUsize,
}

impl Site<'_> {
    async fn task(&self, name: &str, task: impl AsyncFnOnce(&Page)) {
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        self.page.goto(&self.urls[turn % self.urls.len()]).await;
        self.page.clicks();
        task(self.page).await;
        let clicks = self.page.clicks();
        assert!(clicks <= MOST, "{name}: {clicks} clicks");
    }
}

async fn all_tasks(urls: &[String], inbox: &Inbox, failed: usize, address: &str) {
    let test = async |page: Page| {
        let site = Site {
            urls,
            page: &page,
            inbox,
            failed,
            address,
            turns: AtomicUsize::new(0),
        };
        what_is_wrong(&site).await;
        whom_it_concerns(&site).await;
        repairs(&site).await;
        what_was_done(&site).await;
        compares_days(&site).await;
        after_an_outage(&site).await;
        forgets(&site).await;
        page.has_no_errors().await;
    };
    Window::new(1280).open(&urls[0], test).await;
}

#[tokio::test]
async fn each_task_of_an_operator_takes_at_most_four_clicks() {
    const DEAD: usize = 100;
    let desk = Desk::new(ERROR);
    desk.add_five().await;
    for n in 0..DEAD {
        desk.accept(event(&format!("dead-{n}"), 1)).await;
    }
    let last = i64::try_from(5 + DEAD).unwrap();
    desk.until(last, EventState::Dead).await;
    for _ in 0..REFUSED {
        desk.refuse().await;
    }
    let urls = [desk.serve(desk.console()).await];
    all_tasks(&urls, &desk.inbox, DEAD + 2, "203.0.113.9").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_task_takes_at_most_four_clicks_with_two_receivers_and_many_events() {
    let events = std::env::var("TASKS").map_or(2_000, |events| events.parse().unwrap());
    let dead = (events / 10).clamp(100, 10_000);
    let database = Database::create().await;
    let inbox = Inbox::new(database.queue().await);
    fill(&inbox, events, dead).await;
    // The system behind the receivers is down.
    let down = Router::new().fallback(async || (StatusCode::SERVICE_UNAVAILABLE, ERROR));
    let target = format!("http://{}/", serve(down).await);
    let any = "127.0.0.1:0";
    let kept = ["--secret", "s", "--inbox", database.url()];
    let args = [&kept[..], &["--console", any, "--forward", &target]].concat();
    let receivers = [Server::receiver(&args), Server::receiver(&args)];
    receivers[0].send("wrong", &["--count", &REFUSED.to_string()]);
    let urls = receivers.each_ref().map(|it| it.url_of("console"));
    all_tasks(&urls, &inbox, dead + 1, "127.0.0.1").await;
}

/// Adds dead letters, events that were handled, and one chat that is blocked.
async fn fill(inbox: &Inbox, events: usize, dead: usize) {
    let hour = Duration::from_secs(60 * 60);
    let router = EventRouter::new().fallback(async |delivery: RawDelivery| match delivery.body() {
        body if body.starts_with(br#"{"id":"dead"#) => Err(HandlerError::dead_letter(ERROR)),
        body if body.starts_with(br#"{"id":"stuck"#) => Err(HandlerError::retry(ERROR)),
        _ => Ok(()),
    });
    let tuned = inbox.clone().worker(|worker| {
        let worker = worker.retry(Retry::default().delays(hour, hour));
        worker.credit(usize::MAX).concurrency(64)
    });
    let webhooks = Webhooks::new(secret()).inbox(tuned);
    let (webhooks, running) = webhooks.start(router).unwrap();
    let fine = events.saturating_sub(dead + 3);
    let all = (0..dead)
        .map(|n| (format!("dead-{n}"), 1))
        .chain((0..fine).map(|n| (format!("fine-{n}"), 1)))
        .chain((1..=3).map(|n| ("stuck".to_owned(), n)));
    let accepted = stream::iter(all).map(async |(chat, n)| {
        // As a sender does: a database with a million new rows may not answer in time.
        while send(&webhooks, event(&chat, n)).await.status != StatusCode::OK {
            sleep(SECOND).await;
        }
    });
    accepted.buffered(128).collect::<()>().await;
    until("events that are handled", async || {
        let stats = inbox.stats().await.unwrap();
        (stats.unsettled() == 3 && stats.dead() as usize == dead).then_some(())
    })
    .await;
    running.drain(SECOND).await.unwrap();
}

async fn what_is_wrong(site: &Site<'_>) {
    site.task("what fails, and since when", async |page| {
        for text in [ERROR, "First", "Last"] {
            page.until_contains("#causes", text).await;
        }
    })
    .await;
    site.task("how near the limit of the sender is", async |page| {
        let failures = format!("{REFUSED} requests were not verified in the last hour");
        page.until_contains("#alerts", &failures).await;
        page.until_contains("#alerts", "after 500 in an hour").await;
    })
    .await;
    site.task(
        "wrong signatures: since when, and from where",
        async |page| {
            page.follow(".site a[href='/refusals']").await;
            for text in [site.address, "invalid-signature", "First", "Last"] {
                page.until_contains("#origins", text).await;
            }
            page.until_contains("#origins", &REFUSED.to_string()).await;
        },
    )
    .await;
}

async fn whom_it_concerns(site: &Site<'_>) {
    for (what, text, rows) in [
        ("chat", "stuck", 3),
        ("key", "stuck-2", 1),
        ("text", "\"rating\":3", 1),
    ] {
        let name = format!("the events of a customer, by {what}");
        site.task(&name, async |page| {
            page.set(".find input", text).await;
            page.follow(".find button").await;
            if what == "text" {
                // Of a large inbox, the newest payloads alone are searched at once.
                page.follow("#text").await;
            }
            until(&name, async || {
                (page.count("main tbody tr").await == rows).then_some(())
            })
            .await;
        })
        .await;
    }
    site.task("who blocks a chat, and since when", async |page| {
        page.follow("#blocked a[href='/chat?id=stuck']").await;
        page.until_contains("#blocked", "Blocked by event ").await;
        page.until_contains("#blocked", ERROR).await;
    })
    .await;
}

async fn repairs(site: &Site<'_>) {
    site.task(
        "redrive by reason and time, and cancel half-way",
        async |page| {
            page.follow("a[href='/events?state=failed']").await;
            page.set("#error", "timeout").await;
            page.script("document.getElementById('from').value = '2020-01-01T02:00'")
                .await;
            page.follow("button[formaction][value=redrive]").await;
            let all = match site.failed {
                failed @ 1_000.. => format!("{},{:03}", failed / 1_000, failed % 1_000),
                failed => failed.to_string(),
            };
            page.until_contains("h1", &format!("redrive {all} events?"))
                .await;
            // It takes a minute, in which a person has the time to cancel.
            page.set("#rate", &(site.failed / 60 + 1).to_string()).await;
            page.follow(YES).await;
            let (none, some) = (format!("Changed0 of {all}"), format!(" of {all} redriven"));
            page.until_text("#change", |text| {
                text.contains(&some) && !text.contains(&none)
            })
            .await;
            page.follow("#cancel").await;
            let left = format!(" of {all} were left as they were.");
            page.until_contains("#change", &left).await;
        },
    )
    .await;
    site.task("discard an event with a note", async |page| {
        page.set(".find input", "dead-90-1").await;
        page.follow(".find button").await;
        page.follow("main tbody a[href^='/events/']").await;
        page.set("#reason", "test data").await;
        page.follow("[id^='discard-']").await;
        page.follow(YES).await;
        page.until_contains("#state", "discarded").await;
        page.until_contains("#done", "discard by ada").await;
        page.until_contains("#done", "test data").await;
    })
    .await;
    site.task("pause a type", async |page| {
        page.follow("#pause-chat-rated").await;
        page.set("#reason", "the CRM is down").await;
        page.follow(YES).await;
        page.until_contains("#paused", "chat-rated is paused").await;
    })
    .await;
    site.task("resume it", async |page| {
        page.follow("#pause-chat-rated").await;
        page.follow(YES).await;
        page.until_contains("#notice", "chat-rated was resumed.")
            .await;
    })
    .await;
}

async fn what_was_done(site: &Site<'_>) {
    site.task("who did what today, and yesterday", async |page| {
        page.follow(".site a[href='/actions']").await;
        // Links of the form: today, yesterday, all.
        page.follow("main form a:nth-of-type(1)").await;
        for text in ["ada", "redrive", "cancel", "discard", "test data", "pause"] {
            page.until_contains("#rows", text).await;
        }
        page.follow("main form a:nth-of-type(2)").await;
        page.until_contains("#rows", "None.").await;
    })
    .await;
}

async fn compares_days(site: &Site<'_>) {
    site.task("a day against the same weekday before", async |page| {
        page.follow(".site a[href='/history']").await;
        let today = "const day = document.getElementById('day');
            day.value = new Date().toISOString().slice(0, 10);
            return day.value";
        let today = page.script(today).await.unwrap();
        page.follow("form:has(#day) button").await;
        page.until_contains("main", "week before").await;
        let day = "return document.getElementById('day').value";
        assert_eq!(page.script(day).await, Some(today));
    })
    .await;
}

async fn after_an_outage(site: &Site<'_>) {
    site.task("what the sender has given up", async |page| {
        page.follow(".site a[href='/gaps']").await;
        page.until_contains("#rows", "chat-closed or chat-transferred")
            .await;
        page.script("document.getElementById('from').value = '2999-01-01T02:00'")
            .await;
        page.follow("main form button").await;
        page.until_contains("main", "No chat is incomplete.").await;
    })
    .await;
}

async fn forgets(site: &Site<'_>) {
    site.task("forget a person", async |page| {
        page.follow(".site a[href='/forget']").await;
        page.set("#person", "\"dead-7\"").await;
        page.follow("#search").await;
        page.until_contains("#progress", "1 event has the text.")
            .await;
        page.set("#reason", "her wish").await;
        page.follow("#forget").await;
        page.until_contains("#notice", "The payloads of 1 chat were deleted: 1.")
            .await;
    })
    .await;
    let of_chat = Filter::default().chat("dead-7");
    let left = site.inbox.list(&of_chat, inbox::Page::oldest(10)).await;
    let states: Vec<_> = left.unwrap().events.iter().map(|it| it.state).collect();
    assert_eq!(states, [EventState::Discarded]);
}
