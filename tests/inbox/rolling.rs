//! Two versions of a program that know different kinds of events, or two receivers of different webhooks, on one queue.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::suite::Harness;
use tokio::time::{sleep, timeout};
use tower_webhook::event::EventKind;
use tower_webhook::inbox::{Change, EventState, Filter, Inbox, Page, Retry, Stats};
use tower_webhook::memory::MemoryQueue;
use tower_webhook::{EventRouter, Outcome, RawDelivery, RouteName, Webhooks};

use support::SECOND;
use support::database::Database;
use support::delivery::{RequestExt, delivery, secret, send};
use support::inbox::{Works, accepting};
use support::program::PATIENCE;
use support::scratch::Scratch;
use support::{eventually, lock};

const KNOWN: [EventKind; 2] = [EventKind::CHAT_RATED, EventKind::CHAT_ASSIGNED];
const CHATS: usize = 5;

/// What was handled: the version, the kind, the chat and the number in it.
type Handled = (&'static str, EventKind, String, u64);

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<Handled>>>);

impl Log {
    /// Handlers for everything.
    fn router(&self, version: &'static str) -> EventRouter {
        let log = self.clone();
        EventRouter::new().fallback(move |delivery: RawDelivery| {
            let body: serde_json::Value = delivery.decode().unwrap();
            let (chat, number) = (body["id"].as_str().unwrap(), body["number"].as_u64());
            let kind = delivery.kind().clone();
            lock(&log.0).push((version, kind, chat.to_owned(), number.unwrap()));
            async { Ok(()) }
        })
    }

    /// Handlers for some kinds. The first attempts of what is not known to all fail, so many of them.
    fn named(
        &self,
        version: &'static str,
        kinds: &[EventKind],
        fails: &Arc<AtomicUsize>,
    ) -> EventRouter {
        kinds.iter().fold(EventRouter::new(), |router, kind| {
            let (all, fails) = (self.router(version), Arc::clone(fails));
            let one_less = |left: usize| left.checked_sub(1);
            let is_new = !KNOWN.contains(kind);
            router.on_named(kind.as_str(), move |_: serde_json::Value, delivery| {
                let failed = is_new && fails.fetch_update(SeqCst, SeqCst, one_less).is_ok();
                let all = all.clone();
                async move {
                    if failed {
                        return Err("the first time".into());
                    }
                    assert!(matches!(all.handle(delivery).await, Outcome::Handled));
                    Ok(())
                }
            })
        })
    }

    fn len(&self) -> usize {
        lock(&self.0).len()
    }

    /// Each chat was handled in its order, and by the older version what that knows.
    fn assert_in_order(&self, number: u64) {
        let mut chats: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for (version, kind, chat, number) in &*lock(&self.0) {
            assert!(
                *version == "new" || KNOWN.contains(kind),
                "{version} {kind}"
            );
            chats.entry(chat.clone()).or_default().push(*number);
        }
        let in_order: Vec<_> = (0..number).collect();
        assert!(chats.values().all(|chat| *chat == in_order), "{chats:?}");
    }
}

async fn accept(inbox: &Inbox, kind: &EventKind, chat: usize, number: u64) {
    accept_at(&RouteName::default(), inbox, kind, chat, number).await;
}

async fn accept_at(route: &RouteName, inbox: &Inbox, kind: &EventKind, chat: usize, number: u64) {
    let webhooks = accepting(inbox, Webhooks::new(secret()).name(route.clone()));
    let body = format!(r#"{{"id":"chat-{chat}","number":{number}}}"#);
    let key = format!("{chat}-{number}");
    let event = delivery(body).kind(kind.as_str()).key(&key);
    send(&webhooks, event).await.assert_ok();
}

async fn finished(inbox: &Inbox) -> Stats {
    timeout(PATIENCE, inbox.finish()).await.unwrap().unwrap()
}

async fn states(inbox: &Inbox) -> BTreeMap<EventState, usize> {
    let page = Page::oldest(10_000);
    let mut states = BTreeMap::new();
    for event in inbox.list(&Filter::default(), page).await.unwrap().events {
        *states.entry(event.state).or_default() += 1;
    }
    states
}

/// In each chat, kinds that only the newer version handles are between those that both handle.
async fn deploy([older, newer]: [Inbox; 2]) {
    let kinds = [KNOWN[0].clone(), EventKind::CHAT_CLOSED, KNOWN[1].clone()];
    let log = Log::default();
    let soon = Duration::from_millis(20);
    let old_worker = older.work(log.router("old")).only(KNOWN);
    let old_worker = old_worker.poll_every(soon).spawn();
    let mut number = 0;
    accept_all(&older, &kinds, &mut number).await;
    eventually("the older version works", async || log.len() >= CHATS).await;
    sleep(10 * soon).await;
    // The other kind waits, and so does what is behind it.
    assert_eq!(log.len(), CHATS);
    let waiting = states(&older).await;
    assert_eq!(waiting[&EventState::Waiting], 2 * CHATS, "{waiting:?}");

    let new_worker = newer.work(log.router("new")).poll_every(soon).spawn();
    for inbox in [&older, &newer, &older, &newer] {
        accept_all(inbox, &kinds, &mut number).await;
    }
    old_worker.drain(10 * SECOND).await.unwrap();
    accept_all(&older, &kinds, &mut number).await;
    assert!(finished(&newer).await.is_all_handled());
    new_worker.drain(SECOND).await.unwrap();

    let total = CHATS * usize::try_from(number).unwrap();
    assert_eq!(
        states(&newer).await,
        BTreeMap::from([(EventState::Handled, total)])
    );
    log.assert_in_order(number);
}

/// An event of each kind for each chat, with its number in the chat.
async fn accept_all(inbox: &Inbox, kinds: &[EventKind], number: &mut u64) {
    for kind in kinds {
        for chat in 0..CHATS {
            accept(inbox, kind, chat, *number).await;
        }
        *number += 1;
    }
}

async fn processes<H: Harness>(harness: &H) -> [Inbox; 2] {
    [harness.open().await, harness.open().await].map(Inbox::new)
}

#[tokio::test(flavor = "multi_thread")]
async fn two_versions_lose_and_ignore_nothing() {
    let inbox = Inbox::new(MemoryQueue::new());
    deploy([inbox.clone(), inbox]).await;
    deploy(processes(&Scratch::new()).await).await;
    deploy(processes(&Database::create().await).await).await;
}

/// Without `only`: the older version accepts, and leaves what the newer one handles. An attempt of it fails before.
async fn deploy_without_only([older, newer]: [Inbox; 2]) {
    const OTHER: EventKind = EventKind::CHAT_CLOSED;
    let log = Log::default();
    let soon = Duration::from_millis(20);
    let old = log.named("old", &KNOWN, &Arc::default());
    let old_worker = older.work(old).poll_every(soon).spawn();
    let all = [KNOWN[0].clone(), OTHER, KNOWN[1].clone()];
    let fails = Arc::new(AtomicUsize::new(CHATS));
    let new = log.named("new", &all, &fails);
    let retry = Retry::default().delays(soon, soon);
    let new_worker = newer.work(new).poll_every(soon).retry(retry).spawn();
    eventually("it is noted", async || {
        let noted = older.stats().await.unwrap().handlers;
        noted.iter().any(|note| note.of == OTHER.into())
    })
    .await;
    let mut number = 0;
    accept_all(&older, &all, &mut number).await;
    accept_all(&older, &all, &mut number).await;
    assert!(finished(&newer).await.is_all_handled());
    old_worker.drain(SECOND).await.unwrap();
    new_worker.drain(SECOND).await.unwrap();
    let total = CHATS * usize::try_from(number).unwrap();
    let all_handled = BTreeMap::from([(EventState::Handled, total)]);
    assert_eq!(states(&newer).await, all_handled);
    log.assert_in_order(number);
    assert_eq!(fails.load(SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_without_only_ignores_nothing_of_the_newer_one() {
    let inbox = Inbox::new(MemoryQueue::new());
    deploy_without_only([inbox.clone(), inbox]).await;
    deploy_without_only(processes(&Scratch::new()).await).await;
    deploy_without_only(processes(&Database::create().await).await).await;
}

/// A version without `only` ignores what it does not know, and the newer one can redrive it.
async fn ignored<H: Harness>(harness: &H) {
    let log = Log::default();
    let inbox = Inbox::new(harness.open().await);
    let older = inbox.work(EventRouter::new()).spawn();
    accept(&inbox, &EventKind::CHAT_CLOSED, 0, 0).await;
    finished(&inbox).await;
    older.drain(SECOND).await.unwrap();
    assert_eq!(
        states(&inbox).await,
        BTreeMap::from([(EventState::Ignored, 1)])
    );

    let newer = inbox.work(log.router("new")).spawn();
    let page = Page::oldest(1);
    let listed = inbox.list(&Filter::default(), page).await.unwrap();
    let event = &listed.events[0];
    assert_eq!(inbox.redrive(event.id, None).await.unwrap(), Change::Made);
    finished(&inbox).await;
    assert_eq!(log.len(), 1);
    assert_eq!(
        states(&inbox).await,
        BTreeMap::from([(EventState::Handled, 1)])
    );
    newer.drain(SECOND).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn ignored_events_are_not_lost() {
    ignored(&MemoryQueue::new()).await;
    ignored(&Scratch::new()).await;
    ignored(&Database::create().await).await;
}

/// Each receiver handles the events that it accepted, also those of chats that both know.
async fn receive([first, second]: [Inbox; 2]) {
    let log = Log::default();
    let receivers = [("chat-platform", first), ("crm", second)];
    let route = |name: &str| name.parse::<RouteName>().unwrap();
    let workers = receivers.each_ref().map(|(name, inbox)| {
        let worker = inbox.work(log.router(name));
        let worker = worker.route(|webhooks| webhooks.name(route(name)));
        worker.poll_every(Duration::from_millis(10)).spawn()
    });
    for number in 0..10 {
        for (name, inbox) in &receivers {
            for chat in 0..CHATS {
                let number = 2 * number + u64::from(*name == "crm");
                accept_at(&route(name), inbox, &KNOWN[0], chat, number).await;
            }
        }
    }
    let (_, inbox) = &receivers[0];
    assert!(finished(inbox).await.is_all_handled());
    for worker in workers {
        worker.drain(SECOND).await.unwrap();
    }
    assert_eq!(log.len(), 20 * CHATS);
    let is_own = |(name, _, _, number): &Handled| (*name == "crm") == (number % 2 == 1);
    let foreign = lock(&log.0).iter().filter(|event| !is_own(event)).count();
    assert_eq!(foreign, 0, "events of the other receiver");
}

#[tokio::test(flavor = "multi_thread")]
async fn receivers_of_two_routes_are_apart() {
    let inbox = Inbox::new(MemoryQueue::new());
    receive([inbox.clone(), inbox]).await;
    receive(processes(&Scratch::new()).await).await;
    receive(processes(&Database::create().await).await).await;
}
