//! The spool: a queue in memory behind it that is away, hangs, loses answers, and is replaced.

mod batches;
mod doubts;
mod lanes;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::suite::{self, Harness};
use async_trait::async_trait;
use futures_util::future::join_all;
use http::Request;
use http_body_util::Full;
use support::delivery::{RequestExt, delivery, secret, send};
use support::inbox::{Works, event, states, webhooks};
use support::log::Log;
use support::queue::{Calls, new_event, unless};
use support::scratch::Scratch;
use support::{SECOND, eventually, lock};
use tokio::task::spawn_blocking;
use tokio::time::{advance, sleep, timeout};
use tower_webhook::event::{ChatRated, EventKind};
use tower_webhook::inbox::internal::{self, Accepted, Lane, NewEvent, Tables, Take, Tuning};
use tower_webhook::inbox::{
    Action, By, EventId, EventRecord, EventState, EventSummary, Filter, Inbox, Page, Queue, Which,
};
use tower_webhook::memory::MemoryQueue;
use tower_webhook::spool::{Spool, Spooled};
use tower_webhook::sqlite::{SqliteQueue, SqliteStore};
use tower_webhook::store::{EventKey, OpenErrorKind, Store, StoreError, StoreErrorKind};
use tower_webhook::{Delivery, EventRouter, Item, Receiver, Running, Webhooks};
use tracing::Level;

/// The chat of events that the queue behind never stores, and of those that no queue could store.
const REFUSED: &str = "refused";
const CORRUPT: &str = "corrupt";
/// The chat of events of one type more than may wait.
const TOO_MANY: &str = "too many";

/// A queue that is reached through a network.
#[derive(Clone, Debug, Default)]
struct Remote {
    queue: Arc<Mutex<MemoryQueue>>,
    faults: Arc<Faults>,
    /// By the handlers of all replicas.
    seen: Seen,
}

#[derive(Debug, Default)]
struct Faults {
    /// Every call fails, and has no effect.
    is_down: AtomicBool,
    /// Acceptances take effect, and are never answered.
    hangs: AtomicBool,
    /// Acceptances take effect, and their callers get an error.
    loses_answers: AtomicBool,
    /// Another process handles events under all keys.
    holds_keys: AtomicBool,
    /// It was restored from a backup: events are not found.
    loses_events: AtomicBool,
    /// Acceptances of events of these chats wait, as while another transaction has locked them.
    locked: Mutex<HashSet<String>>,
    /// No call is answered.
    is_silent: AtomicBool,
    /// Its size takes longer than anybody waits.
    measures_slowly: AtomicBool,
    /// It has more than any limit allows.
    is_full: AtomicBool,
    /// It is a standby.
    is_read_only: AtomicBool,
    /// Nobody can read who changed what.
    lists_no_actions: AtomicBool,
    /// The first event of `REFUSED` is stored.
    stores_refused: AtomicBool,
    /// The lanes of acceptances of that chat.
    lanes: Mutex<Vec<Option<Lane>>>,
}

impl Remote {
    fn set(&self, fault: fn(&Faults) -> &AtomicBool, is_so: bool) {
        fault(&self.faults).store(is_so, Ordering::SeqCst);
    }

    fn down(&self, is_down: bool) {
        self.set(|faults| &faults.is_down, is_down);
    }

    fn lock(&self, chats: &[&str]) {
        *lock(&self.faults.locked) = chats.iter().map(|chat| (*chat).to_owned()).collect();
    }

    fn is_locked(&self, chat: Option<&str>) -> bool {
        chat.is_some_and(|chat| lock(&self.faults.locked).contains(chat))
    }

    fn memory(&self) -> MemoryQueue {
        lock(&self.queue).clone()
    }

    async fn answers(&self) {
        if self.faults.is_silent.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
    }
}

#[async_trait]
impl Calls for Remote {
    fn inner(&self) -> Result<Queue, StoreError> {
        unless(&self.faults.is_down)?;
        Ok(self.memory().into())
    }

    async fn accept(
        &self,
        events: Arc<[NewEvent]>,
        take: Option<&Take>,
    ) -> Result<Vec<Accepted>, StoreError> {
        self.answers().await;
        unless(&self.faults.is_read_only)?;
        for event in &*events {
            match event.chat.as_deref() {
                Some(REFUSED) => {
                    lock(&self.faults.lanes).push(event.lane);
                    let is_first = event.delivery.body().ends_with(br#""rating":1}"#);
                    let is_stored = self.faults.stores_refused.load(Ordering::SeqCst);
                    unless(&AtomicBool::new(is_first && !is_stored))?;
                }
                Some(CORRUPT) => return Err(StoreError::new(StoreErrorKind::Corrupt, "no text")),
                Some(TOO_MANY) => return Ok(vec![Accepted::DeadLetter { id: EventId(7) }]),
                _ => {}
            }
            while self.is_locked(event.chat.as_deref()) {
                sleep(Duration::from_millis(100)).await;
            }
        }
        if self.faults.holds_keys.load(Ordering::SeqCst) {
            let remaining = SECOND;
            return Ok(vec![Accepted::InFlight { remaining }]);
        }
        let hangs = self.faults.hangs.load(Ordering::SeqCst);
        let loses_answers = unless(&self.faults.loses_answers);
        // What is taken for a lost call is released.
        let take = take.filter(|_| !hangs && loses_answers.is_ok());
        let accepted = self.inner()?.accept(events, take).await?;
        if hangs {
            std::future::pending::<()>().await;
        }
        loses_answers.map(|()| accepted)
    }

    async fn actions(
        &self,
        which: Which,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<Action>, StoreError> {
        unless(&self.faults.lists_no_actions)?;
        self.inner()?.list.actions(which, before, limit).await
    }

    async fn size(&self) -> Result<u64, StoreError> {
        self.answers().await;
        if self.faults.measures_slowly.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        match self.faults.is_full.load(Ordering::SeqCst) {
            true => Ok(u64::MAX),
            false => self.inner()?.measure.size().await,
        }
    }

    async fn tables(&self) -> Result<Tables, StoreError> {
        self.answers().await;
        let mut tables = self.inner()?.measure.tables().await?;
        tables.is_writable &= !self.faults.is_read_only.load(Ordering::SeqCst);
        Ok(tables)
    }

    async fn find(&self, key: u128) -> Result<Option<EventId>, StoreError> {
        match self.faults.loses_events.load(Ordering::SeqCst) {
            true => Ok(None),
            false => self.inner()?.find(key).await,
        }
    }
}

impl From<Remote> for Queue {
    fn from(remote: Remote) -> Self {
        remote.shared()
    }
}

fn spool(scratch: &Scratch) -> Spool {
    Spool::new(scratch.path())
        .limit(1 << 20)
        .on_any_disk()
        .accept_within(Duration::from_millis(200))
}

/// The process before may still be closing the file.
async fn reopen(spool: &Spool, queue: &Remote) -> Spooled {
    for _ in 0..100 {
        match spool.clone().open(queue.clone()).await {
            Ok(spooled) => return spooled,
            Err(error) if error.to_string().contains("another process") => {
                sleep(Duration::from_millis(20)).await;
            }
            Err(error) => panic!("{}", support::chain(&error)),
        }
    }
    panic!("the file is never closed");
}

/// What a handler has seen: chat, number, and whether it was spooled.
type Seen = Arc<Mutex<Vec<(String, usize, bool)>>>;

struct Desk {
    remote: Remote,
    spooled: Spooled,
    inbox: Inbox,
    webhooks: Receiver,
    seen: Seen,
    _worker: Running,
    scratch: Scratch,
}

impl Desk {
    async fn open() -> Self {
        Self::with(|webhooks| webhooks, |spool| spool).await
    }

    async fn with(
        set: impl FnOnce(Webhooks) -> Webhooks,
        set_spool: impl FnOnce(Spool) -> Spool,
    ) -> Self {
        Self::before(Remote::default(), set, set_spool).await
    }

    async fn before(
        remote: Remote,
        set: impl FnOnce(Webhooks) -> Webhooks,
        set_spool: impl FnOnce(Spool) -> Spool,
    ) -> Self {
        let scratch = Scratch::new();
        let spooled = set_spool(spool(&scratch)).open(remote.clone()).await;
        let spooled = spooled.unwrap();
        let soon = Duration::from_millis(20);
        let inbox = Inbox::new(spooled.clone()).worker(|worker| worker.poll_every(soon));
        let seen = Arc::clone(&remote.seen);
        let log = Arc::clone(&seen);
        let events = EventRouter::new().on::<ChatRated>(move |delivery: Delivery<ChatRated>| {
            let chat = delivery.payload.id.clone().unwrap_or_default();
            let number = delivery.payload.rating.unwrap_or_default() as usize;
            lock(&log).push((chat, number, delivery.was_spooled()));
            async { Ok(()) }
        });
        let webhooks = set(Webhooks::new(secret())).inbox(inbox.clone());
        let (webhooks, worker) = webhooks.start(events).unwrap();
        Self {
            remote,
            spooled,
            inbox,
            webhooks,
            seen,
            _worker: worker,
            scratch,
        }
    }

    fn close(self) -> (Remote, Scratch) {
        (self.remote, self.scratch)
    }

    async fn send(&self, request: Request<Full<bytes::Bytes>>) -> u16 {
        let answered = send(&self.webhooks, request).await;
        answered.status.as_u16()
    }

    async fn handled(&self, count: usize) -> Vec<(String, usize, bool)> {
        eventually("all are handled", async || lock(&self.seen).len() >= count).await;
        lock(&self.seen).clone()
    }

    async fn flushed(&self) {
        let began = Instant::now();
        assert_eq!(self.spooled.flush(20 * SECOND).await, 0);
        assert!(began.elapsed() < 20 * SECOND);
    }

    async fn events(&self) -> Vec<EventSummary> {
        let page = Page::oldest(1000);
        let listed = self.remote.memory().list(&Filter::default(), page).await;
        listed.unwrap().events
    }
}

fn of<'a>(all: &'a [(String, usize, bool)], chat: &str) -> Vec<&'a (String, usize, bool)> {
    all.iter().filter(|(of, ..)| of == chat).collect()
}

fn seen(chat: &str, number: usize, was_spooled: bool) -> (String, usize, bool) {
    (chat.to_owned(), number, was_spooled)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_are_accepted_while_the_queue_is_away_and_handled_when_it_is_back() {
    let desk = Desk::open().await;
    assert_eq!(desk.send(event("a", 1)).await, 200);
    desk.handled(1).await;
    desk.remote.down(true);
    for n in [2, 3] {
        assert_eq!(desk.send(event("a", n)).await, 200);
    }
    eventually("they are counted", async || {
        desk.spooled.status().events == 2
    })
    .await;
    assert!(desk.spooled.status().is_open);
    assert_eq!(desk.spooled.flush(Duration::ZERO).await, 2);
    desk.remote.down(false);
    desk.flushed().await;
    let all = desk.handled(3).await;
    let expected = [(1, false), (2, true), (3, true)].map(|(n, was)| seen("a", n, was));
    assert_eq!(all, expected);

    assert_eq!(desk.send(event("a", 4)).await, 200);
    assert_eq!(desk.handled(4).await[3], seen("a", 4, false));
    let status = desk.spooled.status();
    assert!(!status.is_open);
    // Nothing of the events stays in the file.
    drop((desk.inbox, desk.webhooks, desk._worker, desk.spooled));
    let rest = "SELECT (SELECT count(*) FROM bodies) + (SELECT count(key) FROM events) + (SELECT count(*) FROM keys)";
    let rest = async || {
        desk.scratch
            .sql()
            .query_row(rest, [], |row| row.get::<_, i64>(0))
            .unwrap()
    };
    eventually("they are gone", async || rest().await == 0).await;
}

/// Three replicas in 24 hours of simulated time.
#[tokio::test(start_paused = true)]
async fn a_day_without_the_queue_is_answered_with_200_and_handled_in_order() {
    const HOURS: usize = 24;
    const AN_HOUR: usize = 20;
    const CHATS: usize = 13;

    // Time passes only where it is advanced: the file is on a real disk.
    let (_until_the_end, ended) = mpsc::channel::<()>();
    spawn_blocking(move || ended.recv());
    let remote = Remote::default();
    let mut desks = Vec::new();
    for _ in 0..3 {
        let large = |spool: Spool| spool.limit(4 << 20);
        desks.push(Desk::before(remote.clone(), |webhooks| webhooks, large).await);
    }
    remote.down(true);
    for number in 0..HOURS * AN_HOUR {
        for (replica, desk) in desks.iter().enumerate() {
            let chat = format!("{replica}-{}", number % CHATS);
            assert_eq!(desk.send(event(&chat, number)).await, 200, "{number}");
        }
        for _ in 0..6 {
            advance(Duration::from_secs(60 * 60) / AN_HOUR as u32 / 6).await;
        }
    }
    assert!(desks.iter().all(|desk| desk.spooled.status().is_open));
    remote.down(false);
    let began = Instant::now();
    let seen = || lock(&remote.seen).clone();
    while seen().len() < 3 * HOURS * AN_HOUR
        || desks.iter().any(|desk| desk.spooled.status().is_open)
    {
        assert!(began.elapsed() < 60 * SECOND, "{}", seen().len());
        let pause = spawn_blocking(|| thread::sleep(Duration::from_millis(1)));
        pause.await.unwrap();
        advance(Duration::from_millis(100)).await;
    }
    let mut chats = HashMap::<_, Vec<_>>::new();
    for (chat, number, was_spooled) in seen() {
        assert!(was_spooled);
        chats.entry(chat).or_default().push(number);
    }
    assert_eq!(chats.len(), 3 * CHATS);
    for (chat, numbers) in chats {
        let (_, first) = chat.split_once('-').unwrap();
        let all = first.parse().unwrap()..HOURS * AN_HOUR;
        assert!(all.step_by(CHATS).eq(numbers), "{chat}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acceptance_that_hangs_goes_to_the_spool_in_the_same_request_and_counts_once() {
    let desk = Desk::open().await;
    desk.remote.set(|faults| &faults.hangs, true);
    let began = Instant::now();
    assert_eq!(desk.send(event("a", 1)).await, 200);
    assert!(began.elapsed() < SECOND, "{:?}", began.elapsed());
    assert_eq!(desk.send(event("a", 2)).await, 200);
    desk.remote.set(|faults| &faults.hangs, false);
    desk.flushed().await;
    let all = desk.handled(2).await;
    assert_eq!((all.len(), &*all[0].0, all[0].1, all[1].1), (2, "a", 1, 2));
    assert_eq!(desk.events().await.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delivery_without_a_key_is_never_stored_twice() {
    let desk = Desk::open().await;
    let keyless = |n: usize| delivery(format!(r#"{{"id":"a","rating":{n}}}"#));
    desk.remote.set(|faults| &faults.hangs, true);
    // It may have been stored, and nobody could tell.
    assert_eq!(desk.send(keyless(1)).await, 503);
    assert_eq!(desk.send(keyless(2)).await, 200);
    desk.remote.set(|faults| &faults.hangs, false);
    // What is forwarded takes effect, and the spool does not learn it.
    desk.remote.set(|faults| &faults.loses_answers, true);
    eventually("it is forwarded", async || desk.events().await.len() == 2).await;
    sleep(2 * SECOND).await;
    desk.remote.set(|faults| &faults.loses_answers, false);
    desk.flushed().await;
    desk.handled(2).await;
    assert_eq!(desk.events().await.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_was_spooled_is_known_by_its_replay_guard() {
    let desk = Desk::with(Webhooks::replay_guard, |spool| spool).await;
    let keyless = || delivery(r#"{"id":"a","rating":1}"#);
    desk.remote.down(true);
    assert_eq!(desk.send(keyless()).await, 200);
    desk.remote.down(false);
    desk.flushed().await;
    desk.handled(1).await;
    assert_eq!(desk.send(keyless()).await, 200);
    assert_eq!(desk.send(keyless().key("another")).await, 422);
    assert_eq!(desk.events().await.len(), 1);
}

/// Events of chats come one after another, while the queue goes away and comes back in every way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_order_of_a_chat_holds_over_every_switch_and_nothing_is_lost_or_handled_twice() {
    const CHATS: usize = 8;
    let desk = Desk::with(|webhooks| webhooks, |spool| spool.limit(64 << 20)).await;
    let faults: [fn(&Faults) -> &AtomicBool; 3] = [
        |faults| &faults.is_down,
        |faults| &faults.hangs,
        |faults| &faults.loses_answers,
    ];
    let ended = AtomicBool::new(false);
    let breaks = async {
        let mut rounds = 0;
        sleep(Duration::from_millis(300)).await;
        for fault in faults.iter().cycle().take(6) {
            desk.remote.set(*fault, true);
            sleep(Duration::from_millis(250 + 70 * rounds)).await;
            desk.remote.set(*fault, false);
            sleep(Duration::from_millis(2500)).await;
            rounds += 1;
        }
        ended.store(true, Ordering::SeqCst);
    };
    let chat = async |chat: usize| {
        let mut sent = 0;
        while !ended.load(Ordering::SeqCst) {
            sent += 1;
            let request = || event(&format!("chat-{chat}"), sent);
            assert_eq!(desk.send(request()).await, 200, "chat {chat}, event {sent}");
            // Now and then, the sender did not hear the answer.
            if sent % 5 == 0 {
                assert_eq!(desk.send(request()).await, 200);
            }
            sleep(Duration::from_millis(10)).await;
        }
        sent
    };
    let chats = futures_util::future::join_all((0..CHATS).map(chat));
    let ((), sent) = tokio::join!(breaks, chats);
    desk.flushed().await;
    let all = desk.handled(sent.iter().sum()).await;
    for (chat, sent) in sent.into_iter().enumerate() {
        let name = format!("chat-{chat}");
        let of_chat = all.iter().filter(|(chat, ..)| *chat == name);
        let numbers: Vec<_> = of_chat.map(|(_, number, _)| *number).collect();
        assert_eq!(numbers, (1..=sent).collect::<Vec<_>>(), "{name}");
    }
    assert!(all.iter().any(|(.., was_spooled)| *was_spooled));
    assert!(all.iter().any(|(.., was_spooled)| !was_spooled));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_could_not_be_decided_becomes_a_dead_letter_with_its_reason() {
    let set = |webhooks: Webhooks| webhooks.reject_changed_bodies().replay_guard();
    let desk = Desk::with(set, |spool| spool).await;
    let of = |key: &str, n: usize| delivery(format!(r#"{{"id":"a","rating":{n}}}"#)).key(key);
    assert_eq!(desk.send(of("first", 1)).await, 200);
    desk.handled(1).await;
    desk.remote.down(true);
    // The spool knows its own keys.
    for (key, n, expected) in [("other", 1, 200), ("other", 2, 422), ("new", 3, 200)] {
        assert_eq!(desk.send(of(key, n)).await, expected, "{key} {n}");
    }
    desk.remote.down(false);
    desk.flushed().await;
    desk.handled(2).await;
    let mut reasons = Vec::new();
    for event in desk.events().await {
        if event.state == EventState::Dead {
            let record = desk.inbox.get(event.id).await.unwrap().unwrap();
            reasons.push(record.failures[0].failure.outcome.clone());
        }
    }
    assert_eq!(reasons, ["body-replayed"]);
}

#[tokio::test]
async fn a_changed_body_becomes_a_dead_letter_only_if_it_is_to_be_rejected() {
    let of = |n: usize| delivery(format!(r#"{{"id":"a","rating":{n}}}"#)).key("key");
    for rejects in [false, true] {
        let set = |webhooks: Webhooks| match rejects {
            true => webhooks.reject_changed_bodies(),
            false => webhooks,
        };
        let log = Log::capture(Level::WARN);
        let desk = Desk::with(set, |spool| spool).await;
        assert_eq!(desk.send(of(1)).await, 200);
        desk.remote.down(true);
        assert_eq!(desk.send(of(2)).await, 200);
        desk.remote.down(false);
        desk.flushed().await;
        let expected: &[_] = match rejects {
            false => &[EventState::Handled],
            true => &[EventState::Handled, EventState::Dead],
        };
        // The first one may be settled late, as the queue was away.
        eventually("both are settled", async || {
            let events = desk.events().await;
            events
                .iter()
                .map(|event| event.state)
                .eq(expected.iter().copied())
        })
        .await;
        let warnings = log.count(Level::WARN, "counts as the same event");
        assert_eq!(warnings, usize::from(!rejects), "{}", log.text());
        let dead = log.count(Level::ERROR, "is a dead letter from the start");
        assert_eq!(dead, usize::from(rejects), "{}", log.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_in_flight_is_answered_as_without_a_spool() {
    let (scratch, behind) = (Scratch::new(), Scratch::new());
    let store = SqliteStore::open(behind.path()).unwrap();
    let queue = SqliteQueue::with_store(&store);
    let of_key = EventKey::new("", b"a-1", br#"{"id":"a","rating":1}"#);
    let minute = Duration::from_secs(60);
    let claim = store.claim(&of_key, minute, minute).await.unwrap();
    let tower_webhook::store::Claim::Acquired(lease) = claim else {
        panic!("{claim:?}")
    };
    let spooled = spool(&scratch).open(queue.clone()).await.unwrap();
    let inbox = Inbox::new(spooled.clone());
    // As if the queue had been away.
    let files = support::queue::new_event(EventKind::CHAT_RATED, r#"{"id":"a","rating":1}"#);
    let files = NewEvent {
        key: Some(of_key),
        ..files
    };
    let accepted = spooled.accept_one(files, None).await.unwrap();
    assert!(
        matches!(accepted, Accepted::InFlight { .. }),
        "{accepted:?}"
    );
    store.release(&lease).await.unwrap();
    assert_eq!(send(&webhooks(&inbox), event("a", 1)).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_whose_key_is_in_flight_waits_in_the_spool() {
    let desk = Desk::open().await;
    desk.remote.down(true);
    assert_eq!(desk.send(event("a", 1)).await, 200);
    desk.remote.set(|faults| &faults.holds_keys, true);
    desk.remote.down(false);
    assert_eq!(desk.spooled.flush(3 * SECOND).await, 1);
    desk.remote.set(|faults| &faults.holds_keys, false);
    desk.flushed().await;
    assert_eq!(desk.handled(1).await, [seen("a", 1, true)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_that_no_queue_could_store_is_not_spooled() {
    let desk = Desk::open().await;
    assert_eq!(desk.send(event(CORRUPT, 1)).await, 503);
    assert_eq!(desk.spooled.flush(Duration::ZERO).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chat_that_is_forgotten_leaves_nothing_in_the_spool_and_is_forgotten_at_the_flush() {
    let desk = Desk::open().await;
    assert_eq!(desk.send(event("b", 1)).await, 200);
    desk.handled(1).await;
    desk.remote.down(true);
    for chat in ["a", "b", "c"] {
        assert_eq!(desk.send(event(chat, 2)).await, 200);
    }
    // Here, while the queue is away.
    desk.inbox.forget("a").await.unwrap_err();
    // In another process, which reaches it.
    let (by, memory) = (By::new("ada"), desk.remote.memory());
    memory.forget("b", None, &by).await.unwrap();
    // More than a page of them.
    for n in 0..200 {
        memory.forget(&format!("{n}"), None, &by).await.unwrap();
    }
    desk.remote.down(false);
    desk.flushed().await;
    let all = desk.handled(2).await;
    assert_eq!(all[1], seen("c", 2, true));
    for event in desk.events().await {
        let record = desk.inbox.get(event.id).await.unwrap().unwrap();
        assert_ne!(event.chat.as_deref(), Some("a"));
        if event.chat.as_deref() == Some("b") {
            assert_eq!(record.body, None, "{event:?}");
        }
    }
    let again = memory.actions(Which::All, None, 1).await.unwrap();
    assert_eq!(again[0].by, By::new("spool"));
    sleep(Duration::from_millis(200)).await;
    assert_eq!(lock(&desk.seen).len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_spool_refuses_and_drops_nothing() {
    let desk = Desk::open().await;
    desk.remote.down(true);
    let large = |n: usize| {
        let text = "x".repeat(100_000);
        delivery(format!(r#"{{"id":"a","rating":{n},"x":"{text}"}}"#)).key(&format!("large-{n}"))
    };
    let mut accepted = 0;
    while desk.send(large(accepted + 1)).await == 200 {
        accepted += 1;
    }
    assert!((3..=11).contains(&accepted), "{accepted}");
    assert_eq!(desk.send(large(accepted + 1)).await, 503);
    eventually("it is measured", async || {
        desk.spooled.status().events == accepted as u64
    })
    .await;
    let size = fs::metadata(desk.scratch.path()).unwrap().len();
    assert!(size <= 2 << 20, "{size}");
    desk.remote.down(false);
    desk.flushed().await;
    assert_eq!(desk.handled(accepted).await.len(), accepted);
    desk.remote.down(true);
    assert_eq!(desk.send(large(accepted + 1)).await, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_process_has_left_is_forwarded_by_the_next_one() {
    let desk = Desk::open().await;
    desk.remote.down(true);
    for n in 1..=3 {
        assert_eq!(desk.send(event("a", n)).await, 200);
    }
    let (remote, scratch) = desk.close();
    // While the queue is still away.
    let spooled = reopen(&spool(&scratch), &remote).await;
    assert_eq!(spooled.flush(Duration::ZERO).await, 3);
    let inbox = Inbox::new(spooled.clone());
    assert_eq!(send(&webhooks(&inbox), event("a", 4)).await.status, 200);
    remote.down(false);
    assert_eq!(spooled.flush(20 * SECOND).await, 0);
    let listed = remote
        .memory()
        .list(&Filter::default(), Page::oldest(9))
        .await;
    let keys: Vec<_> = listed
        .unwrap()
        .events
        .iter()
        .map(|event| event.key.clone().unwrap().to_string())
        .collect();
    assert_eq!(keys, ["a-1", "a-2", "a-3", "a-4"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_chats_than_are_forwarded_at_once_go_on_in_order() {
    // The file has one route, whatever that of the inbox is.
    let shop = |webhooks: Webhooks| webhooks.name("shop".parse().unwrap());
    let desk = Desk::with(shop, |spool| spool).await;
    desk.remote.down(true);
    let chats: Vec<_> = (0..300).map(|chat| format!("{chat}")).collect();
    for n in [1, 2] {
        let sent = chats.iter().map(|chat| desk.send(event(chat, n)));
        assert!(join_all(sent).await.iter().all(|status| *status == 200));
    }
    desk.remote.down(false);
    desk.flushed().await;
    let all = desk.handled(2 * chats.len()).await;
    for chat in &chats {
        let of_chat: Vec<_> = all.iter().filter(|(of, ..)| of == chat).collect();
        assert_eq!(of_chat, [&seen(chat, 1, true), &seen(chat, 2, true)]);
    }
}

/// What accepts nothing is away.
#[tokio::test(start_paused = true)]
async fn an_event_is_put_aside_only_while_others_are_accepted() {
    let log = Log::capture(Level::WARN);
    // Time passes only where it is advanced: the file is on a real disk.
    let (_until_the_end, ended) = mpsc::channel::<()>();
    spawn_blocking(move || ended.recv());
    let desk = Desk::open().await;
    assert_eq!(desk.send(event(REFUSED, 1)).await, 200);
    for _ in 0..200 {
        let pause = spawn_blocking(|| thread::sleep(Duration::from_millis(5)));
        pause.await.unwrap();
        advance(Duration::from_millis(100)).await;
    }
    assert_eq!(desk.spooled.status().refused, 0);
    assert_eq!(desk.spooled.flush(Duration::ZERO).await, 1);
    assert_eq!(log.events().len(), 1, "{}", log.text());
}

#[tokio::test]
async fn an_older_database_is_reported_with_the_newest_event_that_it_lacks() {
    for is_older in [false, true] {
        let log = Log::capture(Level::ERROR);
        let desk = Desk::open().await;
        for n in [1, 2] {
            assert_eq!(desk.send(event("a", n)).await, 200);
        }
        desk.handled(2).await;
        let newest = desk.events().await[1].id.0.to_string();
        desk.remote.down(true);
        assert_eq!(desk.send(event("a", 3)).await, 200);
        desk.remote.set(|faults| &faults.loses_events, is_older);
        desk.remote.down(false);
        desk.flushed().await;
        assert_eq!(desk.send(event("a", 4)).await, 200);
        desk.handled(4).await;
        let mut reported = log.events();
        reported.retain(|it| it["message"].starts_with("the inbox has lost this event"));
        let reported: Vec<_> = reported.iter().map(|it| &it["event"]).collect();
        assert_eq!(reported, Vec::from_iter(is_older.then_some(&newest)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_database_gets_nothing() {
    let desk = Desk::open().await;
    desk.remote.down(true);
    assert_eq!(desk.send(event("a", 1)).await, 200);
    // It comes back without its events.
    let before = std::mem::replace(&mut *lock(&desk.remote.queue), MemoryQueue::new());
    desk.remote.down(false);
    assert_eq!(desk.spooled.flush(3 * SECOND).await, 1);
    assert_eq!(desk.send(event("a", 2)).await, 200);
    assert!(desk.events().await.is_empty());

    let (remote, scratch) = desk.close();
    let refused = loop {
        match spool(&scratch).open(remote.clone()).await {
            Err(error) if error.to_string().contains("another process") => {}
            Err(error) => break error,
            Ok(_) => panic!("it is another database"),
        }
        sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(refused.kind(), OpenErrorKind::Foreign, "{refused}");
    assert!(
        refused.to_string().contains("another database"),
        "{refused}"
    );
    *lock(&remote.queue) = before;
    let spooled = reopen(&spool(&scratch), &remote).await;
    assert_eq!(spooled.flush(20 * SECOND).await, 0);
    assert_eq!(remote.memory().stats().await.unwrap().unsettled(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_no_spool_or_is_in_use_is_refused_and_stays_as_it_is() {
    let scratch = Scratch::new();
    let remote = Remote::default();
    let refusal = async || {
        let error = spool(&scratch).open(remote.clone()).await.unwrap_err();
        (error.kind(), error.to_string())
    };
    // An inbox.
    let queue = scratch.queue();
    let new = support::queue::new_event(EventKind::CHAT_RATED, "{}");
    queue.accept_one(new, None).await.unwrap();
    drop(queue);
    let (kind, told) = refusal().await;
    assert_eq!(kind, OpenErrorKind::Foreign, "{told}");
    assert!(
        told.contains("is an inbox or a store, not a spool"),
        "{told}"
    );
    assert_eq!(scratch.queue().stats().await.unwrap().unsettled(), 1);

    // A spool, as an inbox, and twice.
    let scratch = Scratch::new();
    let first = spool(&scratch).open(remote.clone()).await.unwrap();
    let error = spool(&scratch).open(remote.clone()).await.unwrap_err();
    assert!(
        error.to_string().contains("used by another process"),
        "{error}"
    );
    drop(first);
    drop(reopen(&spool(&scratch), &remote).await);
    let told = scratch.refusal(OpenErrorKind::Foreign);
    assert!(told.contains("is a spool"), "{told}");

    // Damaged.
    let scratch = Scratch::new();
    fs::write(scratch.path(), vec![b'x'; 100_000]).unwrap();
    let error = spool(&scratch).open(remote.clone()).await.unwrap_err();
    assert!(matches!(error.kind(), OpenErrorKind::Corrupt), "{error}");
    assert_eq!(fs::read(scratch.path()).unwrap(), vec![b'x'; 100_000]);
}

/// Handles on one queue, each with a spool of its own.
struct WithSpools<H> {
    behind: H,
    directory: tempfile::TempDir,
    opened: AtomicUsize,
}

impl<H: Harness> WithSpools<H> {
    fn of(behind: H) -> Self {
        Self {
            behind,
            directory: tempfile::tempdir().unwrap(),
            opened: AtomicUsize::new(0),
        }
    }
}

impl<H: Harness> Harness for WithSpools<H> {
    async fn open(&self) -> Queue {
        let number = self.opened.fetch_add(1, Ordering::SeqCst);
        let path = self.directory.path().join(number.to_string());
        let spool = Spool::new(path).limit(1 << 20).on_any_disk();
        let spool = spool.accept_within(10 * SECOND);
        let spooled = spool.open(self.behind.open().await).await;
        spooled.unwrap().into()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn conforms_in_front_of_memory() {
    suite::run(&WithSpools::of(MemoryQueue::new())).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn conforms_in_front_of_postgres() {
    suite::run(&WithSpools::of(support::database::Database::create().await)).await;
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_ends_with_its_machine_is_refused_unless_it_is_allowed() {
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let spool = Spool::new(memory.path().join("spool.db")).limit(1);
    let refused = spool.clone().open(MemoryQueue::new()).await.unwrap_err();
    assert_eq!(refused.kind(), OpenErrorKind::Unsuitable);
    assert!(refused.to_string().contains("tmpfs"), "{refused}");
    let opened = spool.on_any_disk().open(MemoryQueue::new()).await.unwrap();
    assert_eq!(opened.status().limit, 1 << 20);
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_its_owner_can_read_a_spool_and_its_room_is_reserved() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    let desk = Desk::open().await;
    let of = |end| fs::metadata(desk.scratch.beside(end)).unwrap();
    for end in ["", "-wal", "-shm", "-reserve"] {
        assert_eq!(of(end).permissions().mode() & 0o777, 0o600, "{end}");
    }
    let files = of("").len() + of("-wal").len() + of("-reserve").len();
    assert!((2 << 20..3 << 20).contains(&files), "{files}");
    assert!(512 * of("-reserve").blocks() >= of("-reserve").len());
}

/// So that a full disk has room for what is in the log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_files_of_a_spool_stay_within_the_room_that_is_reserved() {
    let desk = Desk::open().await;
    desk.remote.down(true);
    let mut accepted = 0;
    while desk
        .send(event(&format!("{}", accepted % 50), accepted))
        .await
        == 200
    {
        accepted += 1;
        let [file, log] =
            ["", "-wal"].map(|end| fs::metadata(desk.scratch.beside(end)).unwrap().len());
        assert!(
            log <= 1 << 20 && file + log <= 2 << 20,
            "{accepted}: {file}, {log}"
        );
    }
    assert!(accepted > 300, "{accepted}");
    desk.remote.down(false);
    desk.flushed().await;
}

/// What is forwarded is left to the service that handles it, as what is accepted.
#[tokio::test]
async fn what_another_service_handles_is_forwarded_to_it() {
    let desk = Desk::open().await;
    let seen = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&seen);
    let events = EventRouter::new().on_named("chat-closed", move |_: serde_json::Value, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { Ok(()) }
    });
    let soon = Duration::from_millis(20);
    let other = Inbox::new(Queue::from(desk.remote.clone()));
    let other = other.work(events).poll_every(soon).spawn();
    eventually("it is noted", async || {
        let noted = desk.inbox.stats().await.unwrap().handlers;
        noted
            .iter()
            .any(|note| note.of == EventKind::CHAT_CLOSED.into())
    })
    .await;
    desk.remote.down(true);
    for number in 0..4 {
        let kind = ["chat-closed", "chat-rated"][number % 2];
        assert_eq!(desk.send(event("a", number).kind(kind)).await, 200);
    }
    desk.remote.down(false);
    eventually("all are handled", async || {
        seen.load(Ordering::SeqCst) == 2 && lock(&desk.seen).len() == 2
    })
    .await;
    assert!(desk.inbox.finish().await.unwrap().is_all_handled());
    let states = states(&desk.inbox).await;
    assert_eq!(states, [EventState::Handled; 4]);
    other.drain(SECOND).await.unwrap();
}
