//! Two services with handlers of different types on one queue: neither ignores what the other one handles, also while that is
//! away. In paused time.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio::time::sleep;
use tower::service_fn;
use tower_webhook::event::EventKind;
use tower_webhook::inbox::internal::{NewNote, observe};
use tower_webhook::inbox::{
    Change, EventId, EventState, HandlerNote, Inbox, Queue, Retired, Scope,
};
use tower_webhook::memory::MemoryQueue;
use tower_webhook::store::StoreError;
use tower_webhook::{EventRouter, RawDelivery, RouteName, Running, Webhooks};
use tracing::Level;

#[cfg(all(feature = "postgres", feature = "sqlite"))]
use support::database::{Database, execute};
use support::delivery::{RequestExt, delivery, secret, send};
use support::inbox::{Works, accepting, states};
use support::log::Log;
use support::observer::Notes;
use support::queue::{Calls, FaultyQueue, unless};
use support::{DAY, HOUR, MINUTE, SECOND, lock};
#[cfg(all(feature = "postgres", feature = "sqlite"))]
use support::{eventually, scratch::Scratch};

#[cfg(all(feature = "postgres", feature = "sqlite"))]
use crate::suite::Harness;

/// Of the service under test, of the other one, and of none.
const OWN: EventKind = EventKind::CHAT_RATED;
const OTHER: EventKind = EventKind::CHAT_CLOSED;
const NOBODYS: EventKind = EventKind::CHAT_OPENED;

/// Longer than any event is put off.
const SOON: Duration = Duration::from_secs(11 * 60);

/// Services on one queue, as processes that share it, and what each has handled.
struct Shop {
    queue: Queue,
    /// The only process, if there is one. It does not poll, so that weeks are short.
    alone: Option<Inbox>,
    handled: Arc<Mutex<Vec<(&'static str, usize)>>>,
}

impl Shop {
    fn new() -> Self {
        Self::on(MemoryQueue::new().shared())
    }

    fn on(queue: Queue) -> Self {
        Self {
            alone: (!queue.is_shared).then(|| Inbox::new(queue.clone())),
            queue,
            handled: Arc::default(),
        }
    }

    fn alone() -> Self {
        Self::on(MemoryQueue::new().into())
    }

    /// A process of its own.
    fn inbox(&self) -> Inbox {
        let new = || Inbox::new(self.queue.clone());
        self.alone.clone().unwrap_or_else(new)
    }

    fn router(&self, service: &'static str, kinds: &[EventKind]) -> EventRouter {
        kinds.iter().fold(EventRouter::new(), |router, kind| {
            let handled = Arc::clone(&self.handled);
            router.on_named(kind.as_str(), move |body: serde_json::Value, _| {
                note(&handled, service, &body);
                async { Ok(()) }
            })
        })
    }

    fn with_fallback(&self, service: &'static str, router: EventRouter) -> EventRouter {
        let handled = Arc::clone(&self.handled);
        router.fallback(move |delivery: RawDelivery| {
            note(&handled, service, &delivery.decode().unwrap());
            async { Ok(()) }
        })
    }

    /// Starts a service that handles these kinds.
    fn start(&self, service: &'static str, kinds: &[EventKind]) -> Running {
        self.inbox().work(self.router(service, kinds)).spawn()
    }

    /// Accepts the events of one chat with these kinds and numbers, where no worker runs.
    async fn accept(&self, events: &[(EventKind, usize)]) {
        accept(&self.inbox(), events).await;
    }

    fn handled(&self) -> Vec<(&'static str, usize)> {
        lock(&self.handled).clone()
    }

    /// What becomes of the events, in their order, and when their next attempts are.
    async fn states(&self) -> Vec<EventState> {
        states(&self.inbox()).await
    }
}

fn note(
    handled: &Mutex<Vec<(&'static str, usize)>>,
    service: &'static str,
    body: &serde_json::Value,
) {
    let number = body["number"].as_u64().unwrap();
    lock(handled).push((service, usize::try_from(number).unwrap()));
}

async fn accept(inbox: &Inbox, events: &[(EventKind, usize)]) {
    let webhooks = accepting(inbox, Webhooks::new(secret()));
    for (kind, number) in events {
        let body = format!(r#"{{"id":"chat","number":{number}}}"#);
        let event = delivery(body).kind(kind.as_str()).key(&number.to_string());
        send(&webhooks, event).await.assert_ok();
    }
}

async fn stop(running: Running) {
    running.drain(SECOND).await.unwrap();
}

const HANDLED: EventState = EventState::Handled;
const WAITING: EventState = EventState::Waiting;

#[tokio::test(start_paused = true)]
async fn each_service_handles_its_own() {
    let shop = Shop::new();
    let desk = shop.inbox();
    let own = desk.work(shop.router("own", &[OWN])).spawn();
    let other = shop.start("other", &[OTHER]);
    sleep(SECOND).await;
    // Through the process of the one that could ignore it, in which there is room.
    for number in 0..6 {
        let kind = [OWN, OTHER][number % 2].clone();
        accept(&desk, &[(kind, number)]).await;
    }
    sleep(10 * SECOND).await;
    let expected: Vec<_> = (0..6)
        .map(|number| (["own", "other"][number % 2], number))
        .collect();
    assert_eq!(shop.handled(), expected);
    assert_eq!(shop.states().await, [HANDLED; 6]);
    // What nobody handles is ignored at once.
    accept(&desk, &[(NOBODYS, 6), (OWN, 7)]).await;
    sleep(SECOND).await;
    assert_eq!(shop.states().await[6..], [EventState::Ignored, HANDLED]);
    stop(own).await;
    stop(other).await;
}

/// With other workers of the same process, which are told at once.
#[tokio::test(start_paused = true)]
async fn each_worker_of_a_process_handles_its_own() {
    let shop = Shop::alone();
    let inbox = shop.inbox();
    let workers = [("own", OWN), ("other", OTHER)].map(|(name, kind)| {
        let router = shop.router(name, &[kind]);
        inbox.work(router).spawn()
    });
    sleep(SECOND).await;
    accept(&inbox, &[(OTHER, 0), (OWN, 1), (OTHER, 2), (OTHER, 3)]).await;
    sleep(SECOND).await;
    let expected = [("other", 0), ("own", 1), ("other", 2), ("other", 3)];
    assert_eq!(shop.handled(), expected);
    for worker in workers {
        stop(worker).await;
    }
}

/// The worker looks once more before it ignores an event.
#[tokio::test(start_paused = true)]
async fn a_service_that_was_started_just_now_is_seen() {
    let shop = Shop::new();
    let desk = shop.inbox();
    let own = desk.work(shop.router("own", &[OWN])).spawn();
    sleep(10 * MINUTE + 30 * SECOND).await;
    accept(&desk, &[(OTHER, 0)]).await;
    sleep(SECOND).await;
    assert_eq!(shop.states().await, [EventState::Ignored]);
    let other = shop.start("other", &[OTHER]);
    accept(&desk, &[(OTHER, 1), (OTHER, 2)]).await;
    sleep(10 * SECOND).await;
    assert_eq!(shop.handled(), [("other", 1), ("other", 2)]);
    // Not by the one that has ignored it, which has room at once.
    let redriven = desk.redrive(EventId(1), None).await.unwrap();
    assert_eq!(redriven, Change::Made);
    sleep(10 * SECOND).await;
    assert_eq!(shop.handled()[2..], [("other", 0)]);
    assert_eq!(shop.states().await, [HANDLED; 3]);
    stop(own).await;
    stop(other).await;
}

const EVENTS: [(EventKind, usize); 3] = [(OWN, 0), (OTHER, 1), (OWN, 2)];
const IN_ORDER: [(&str, usize); 3] = [("own", 0), ("other", 1), ("own", 2)];

#[tokio::test(start_paused = true)]
async fn a_chat_waits_for_a_service_that_is_away_for_minutes() {
    let shop = Shop::new();
    let own = shop.start("own", &[OWN]);
    stop_after_a_while(shop.start("other", &[OTHER])).await;
    shop.accept(&EVENTS).await;
    sleep(2 * MINUTE).await;
    assert_eq!(shop.handled(), [("own", 0)]);
    assert_eq!(shop.states().await, [HANDLED, WAITING, WAITING]);
    let other = shop.start("other", &[OTHER]);
    sleep(10 * SECOND).await;
    assert_eq!(shop.handled(), IN_ORDER);
    stop(own).await;
    stop(other).await;
}

async fn stop_after_a_while(running: Running) {
    sleep(SECOND).await;
    stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn a_chat_goes_on_without_a_service_that_is_away_for_an_hour() {
    let log = Log::capture(Level::WARN);
    let shop = Shop::new();
    let own = shop.start("own", &[OWN]);
    stop_after_a_while(shop.start("other", &[OTHER])).await;
    shop.accept(&EVENTS).await;
    sleep(9 * MINUTE).await;
    assert_eq!(shop.handled(), [("own", 0)]);
    let away = "nobody handles this type, as the worker that did is away";
    assert_eq!(log.count(Level::WARN, away), 0, "{}", log.text());
    sleep(3 * MINUTE).await;
    assert_eq!(shop.handled(), [("own", 0), ("own", 2)]);
    assert_eq!(shop.states().await, [HANDLED, WAITING, HANDLED]);
    assert_eq!(log.count(Level::WARN, away), 1, "{}", log.text());
    let told = log.events();
    let told = told
        .iter()
        .find(|it| it["message"].starts_with(away))
        .unwrap();
    assert_eq!(
        (&*told["route"], &*told["kind"]),
        ("chat-platform", "chat-closed")
    );
    assert!(told["worker"].contains(&format!("process {}", std::process::id())));
    assert!(
        told["unseen_for"].starts_with("66") || told["unseen_for"].starts_with("67"),
        "{told:?}"
    );
    sleep(48 * MINUTE).await;
    let other = shop.start("other", &[OTHER]);
    sleep(SOON).await;
    assert_eq!(shop.handled(), [("own", 0), ("own", 2), ("other", 1)]);
    assert_eq!(shop.states().await, [HANDLED; 3]);
    stop(own).await;
    stop(other).await;
}

/// A hundred failures that do not count, or a week of them, would end it.
#[tokio::test(start_paused = true)]
async fn nothing_is_counted_of_an_event_that_is_put_off() {
    let shop = Shop::alone();
    let own = shop.start("own", &[OWN]);
    stop_after_a_while(shop.start("other", &[OTHER])).await;
    sleep(DAY).await;
    shop.accept(&EVENTS).await;
    sleep(6 * DAY).await;
    let event = shop.inbox().get(EventId(2)).await.unwrap().unwrap();
    assert_eq!(event.summary.state, WAITING);
    assert_eq!((event.summary.failures, event.failures.len()), (0, 0));
    let other = shop.start("other", &[OTHER]);
    sleep(SOON).await;
    assert_eq!(shop.handled()[2..], [("other", 1)]);
    stop(own).await;
    stop(other).await;
}

#[tokio::test(start_paused = true)]
async fn a_note_that_is_not_kept_any_more_protects_nothing() {
    let shop = Shop::alone();
    let desk = shop.inbox();
    let own = desk.work(shop.router("own", &[OWN])).spawn();
    stop_after_a_while(shop.start("other", &[OTHER])).await;
    sleep(7 * DAY).await;
    shop.accept(&EVENTS).await;
    sleep(HOUR).await;
    assert_eq!(shop.states().await, [HANDLED, WAITING, HANDLED]);
    sleep(DAY).await;
    assert_eq!(shop.states().await[1], EventState::Ignored);
    // Also when it is redriven, and at once.
    assert_eq!(desk.redrive(EventId(2), None).await.unwrap(), Change::Made);
    shop.accept(&[(OTHER, 3), (OWN, 4)]).await;
    sleep(10 * SECOND).await;
    let [.., redriven, _, ignored, last] = shop.states().await[..] else {
        panic!("five events");
    };
    assert_eq!(
        [redriven, ignored, last],
        [EventState::Ignored, EventState::Ignored, HANDLED]
    );
    stop(own).await;
}

#[tokio::test(start_paused = true)]
async fn a_person_retires_a_handler() {
    let shop = Shop::new();
    let own = shop.start("own", &[OWN]);
    stop_after_a_while(shop.start("other", &[OTHER])).await;
    shop.accept(&EVENTS).await;
    sleep(HOUR).await;
    let inbox = shop.inbox();
    assert_eq!(shop.states().await[1], WAITING);
    assert_eq!(inbox.retire(OTHER).await.unwrap(), Retired::Ended);
    assert_eq!(inbox.retire(OTHER).await.unwrap(), Retired::NotNoted);
    sleep(SOON).await;
    assert_eq!(shop.states().await, [HANDLED, EventState::Ignored, HANDLED]);
    stop(own).await;
}

/// Without its note, others would ignore its events until it notes it again.
#[tokio::test(start_paused = true)]
async fn the_note_of_a_handler_that_is_there_is_kept() {
    let shop = Shop::new();
    let own = shop.start("own", &[OWN]);
    let other = shop.start("other", &[OTHER]);
    sleep(MINUTE + 30 * SECOND).await;
    let inbox = shop.inbox();
    let retire = async || inbox.retire(OTHER).await.unwrap();
    let Retired::Kept { until } = retire().await else {
        panic!("it is there");
    };
    let left = until.duration_since(inbox.stats().await.unwrap().at);
    assert!(left.unwrap().abs_diff(9 * MINUTE + 30 * SECOND) < SECOND);
    shop.accept(&[(OTHER, 0)]).await;
    sleep(10 * SECOND).await;
    assert_eq!(shop.handled(), [("other", 0)]);
    stop(other).await;
    sleep(9 * MINUTE).await;
    assert!(matches!(retire().await, Retired::Kept { .. }));
    sleep(MINUTE).await;
    assert_eq!(retire().await, Retired::Ended);
    let of_all = inbox.retire(Scope::Everything).await.unwrap();
    assert_eq!(of_all, Retired::NotNoted);
    stop(own).await;
}

#[tokio::test(start_paused = true)]
async fn only_still_waits() {
    let shop = Shop::alone();
    let both = [OWN, OTHER, NOBODYS];
    let work = shop.inbox().work(shop.router("own", &[OWN, OTHER]));
    let own = work.only([OWN]).spawn();
    shop.accept(&EVENTS).await;
    sleep(7 * DAY).await;
    // Its handler of the other type notes nothing, as it does not take it.
    let noted = shop.inbox().stats().await.unwrap().handlers;
    assert_eq!(
        noted.iter().map(|it| &it.of).collect::<Vec<_>>(),
        [&Scope::from(OWN)]
    );
    assert_eq!(shop.states().await, [HANDLED, WAITING, WAITING]);
    // One that takes a type without a handler has no handler.
    let work = shop.inbox().work(shop.router("second", &[NOBODYS]));
    let second = work.only(both).spawn();
    let third = shop.start("other", &[OTHER]);
    sleep(10 * SECOND).await;
    assert_eq!(shop.handled(), IN_ORDER);
    for running in [own, second, third] {
        stop(running).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_fallback_leaves_what_another_service_names() {
    let shop = Shop::new();
    let desk = shop.inbox();
    let router = shop.with_fallback("own", shop.router("own", &[OWN]));
    let own = desk.work(router).spawn();
    let other = shop.start("other", &[OTHER]);
    sleep(2 * MINUTE).await;
    accept(&desk, &[(OTHER, 0), (NOBODYS, 1), (OWN, 2), (OTHER, 3)]).await;
    sleep(10 * SECOND).await;
    let each = [("other", 0), ("own", 1), ("own", 2), ("other", 3)];
    assert_eq!(shop.handled(), each);
    stop(other).await;
    accept(&desk, &[(OTHER, 4), (OWN, 5)]).await;
    sleep(9 * MINUTE).await;
    assert_eq!(shop.handled().len(), 4);
    sleep(2 * MINUTE).await;
    assert_eq!(shop.handled()[4..], [("own", 4), ("own", 5)]);
    stop(own).await;
}

/// The next version handles the same types in another way, so that its worker names none: it waits, and takes them over.
#[tokio::test(start_paused = true)]
async fn a_fallback_takes_over_what_a_service_that_is_away_has_named() {
    let shop = Shop::new();
    stop_after_a_while(shop.start("old", &[OWN, OTHER])).await;
    shop.accept(&EVENTS).await;
    let router = shop.with_fallback("new", EventRouter::new());
    let new = shop.inbox().work(router).spawn();
    // It handles none of them, and leaves them to the one that does now.
    let third = shop.start("third", &[NOBODYS]);
    sleep(9 * MINUTE).await;
    assert_eq!(shop.handled(), []);
    sleep(2 * MINUTE).await;
    assert_eq!(shop.handled(), [("new", 0), ("new", 1), ("new", 2)]);
    shop.accept(&[(OTHER, 3), (NOBODYS, 4), (OTHER, 5)]).await;
    sleep(10 * SECOND).await;
    assert_eq!(shop.handled()[3..], [("new", 3), ("third", 4), ("new", 5)]);
    assert_eq!(shop.inbox().stats().await.unwrap().away(), []);
    stop(new).await;
    stop(third).await;
}

/// It looks before it handles, as a worker that names the type may have been started just now.
#[tokio::test(start_paused = true)]
async fn a_fallback_leaves_what_a_service_names_that_was_started_just_now() {
    let shop = Shop::new();
    let desk = shop.inbox();
    let router = shop.with_fallback("old", EventRouter::new());
    let old = desk.work(router).spawn();
    sleep(10 * MINUTE + 30 * SECOND).await;
    accept(&desk, &[(OTHER, 0)]).await;
    sleep(SECOND).await;
    assert_eq!(shop.handled(), [("old", 0)]);
    let new = shop.start("new", &[OTHER]);
    sleep(SECOND).await;
    accept(&desk, &[(OTHER, 1), (OTHER, 2)]).await;
    sleep(10 * SECOND).await;
    assert_eq!(shop.handled()[1..], [("new", 1), ("new", 2)]);
    stop(old).await;
    stop(new).await;
}

/// A type that is slowed down here, and that another service handles: no attempt here could end the alarm.
#[tokio::test(start_paused = true)]
async fn a_type_is_not_slowed_down_once_another_service_handles_it() {
    let log = Log::capture(Level::INFO);
    let shop = Shop::new();
    let desk = shop.inbox();
    let notes = Notes::default();
    observe(&desk, notes.clone());
    let router = EventRouter::new().fallback(async |_: RawDelivery| Err("it is down".into()));
    let own = desk.work(router).credit(2).spawn();
    sleep(SECOND).await;
    let webhooks = accepting(&desk, Webhooks::new(secret()));
    for number in 0..2 {
        let body = format!(r#"{{"id":"chat {number}","number":{number}}}"#);
        let event = delivery(body).kind(OTHER.as_str());
        send(&webhooks, event).await.assert_ok();
    }
    sleep(MINUTE).await;
    assert!(desk.slowed().contains_key(&OTHER.into()));
    let other = shop.start("other", &[OTHER]);
    sleep(2 * MINUTE).await;
    assert_eq!(shop.states().await, [HANDLED; 2]);
    assert_eq!(desk.slowed(), [].into());
    let mut changes = notes.take();
    changes.retain(|line| line.starts_with("slowed"));
    assert_eq!(
        changes,
        ["slowed chat-closed true", "slowed chat-closed false"]
    );
    let told = "another worker handles this type";
    assert_eq!(log.count(Level::INFO, told), 1, "{}", log.text());
    stop(own).await;
    stop(other).await;
}

/// And a service that is no router, of which nobody knows what it handles.
#[tokio::test(start_paused = true)]
async fn what_nobody_names_is_left_to_a_fallback() {
    let shop = Shop::new();
    let desk = shop.inbox();
    let own = desk.work(shop.router("own", &[OWN])).spawn();
    let router = shop.with_fallback("other", EventRouter::new());
    let opaque = service_fn(move |delivery: RawDelivery| {
        let router = router.clone();
        async move { Ok::<_, Infallible>(router.handle(delivery).await) }
    });
    let other = shop.inbox().work(opaque).spawn();
    sleep(2 * MINUTE).await;
    let events = [(OTHER, 0), (NOBODYS, 1)];
    accept(&desk, &events).await;
    sleep(10 * SECOND).await;
    assert_eq!(shop.handled(), [("other", 0), ("other", 1)]);
    stop(other).await;
    accept(&desk, &[(NOBODYS, 2), (OWN, 3)]).await;
    sleep(2 * MINUTE).await;
    assert_eq!(shop.handled().len(), 2);
    sleep(HOUR).await;
    assert_eq!(shop.handled()[2..], [("own", 3)]);
    assert_eq!(shop.states().await[2], WAITING);
    let platform = Scope::Route(RouteName::default());
    let retired = shop.inbox().retire(platform).await.unwrap();
    assert_eq!(retired, Retired::Ended);
    sleep(SOON).await;
    assert_eq!(shop.states().await[2], EventState::Ignored);
    stop(own).await;
}

#[tokio::test(start_paused = true)]
async fn both_services_are_started_again_after_an_hour() {
    let shop = Shop::new();
    let services = [shop.start("own", &[OWN]), shop.start("other", &[OTHER])];
    sleep(SECOND).await;
    for running in services {
        stop(running).await;
    }
    shop.accept(&EVENTS).await;
    sleep(HOUR).await;
    let own = shop.start("own", &[OWN]);
    sleep(5 * MINUTE).await;
    assert_eq!(shop.handled(), [("own", 0)]);
    let other = shop.start("other", &[OTHER]);
    sleep(10 * SECOND).await;
    assert_eq!(shop.handled(), IN_ORDER);
    stop(own).await;
    stop(other).await;
}

/// A handler that was removed: its note is kept for days, and each start would wait for it anew.
#[tokio::test(start_paused = true)]
async fn a_worker_that_is_started_again_does_not_wait_anew() {
    let shop = Shop::new();
    stop_after_a_while(shop.start("other", &[OTHER])).await;
    let own = shop.start("own", &[OWN]);
    sleep(HOUR).await;
    stop(own).await;
    sleep(5 * MINUTE).await;
    let own = shop.start("own", &[OWN]);
    shop.accept(&EVENTS).await;
    sleep(MINUTE).await;
    assert_eq!(shop.handled(), [("own", 0), ("own", 2)]);
    stop(own).await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_often_started_again_does_not_wait_for_ever() {
    let shop = Shop::new();
    stop_after_a_while(shop.start("other", &[OTHER])).await;
    shop.accept(&EVENTS).await;
    for handled in [1, 1, 1, 2] {
        let own = shop.start("own", &[OWN]);
        sleep(3 * MINUTE + SECOND).await;
        assert_eq!(shop.handled().len(), handled);
        stop(own).await;
    }
    assert_eq!(shop.handled(), [("own", 0), ("own", 2)]);
}

/// Also if it has no handler that it could note.
#[tokio::test(start_paused = true)]
async fn a_worker_without_handlers_counts_absence_too() {
    let shop = Shop::new();
    let services = [shop.start("own", &[]), shop.start("other", &[OTHER])];
    sleep(SECOND).await;
    for running in services {
        stop(running).await;
    }
    sleep(HOUR).await;
    let own = shop.start("own", &[]);
    shop.accept(&[(OTHER, 0), (NOBODYS, 1)]).await;
    sleep(9 * MINUTE).await;
    assert_eq!(shop.states().await, [WAITING; 2]);
    sleep(3 * MINUTE).await;
    assert_eq!(shop.states().await, [WAITING, EventState::Ignored]);
    stop(own).await;
}

#[tokio::test(start_paused = true)]
async fn the_database_is_away_for_a_quarter_of_an_hour() {
    let faulty = FaultyQueue::new(MemoryQueue::new());
    let shop = Shop::on(faulty.clone().into());
    let own = shop.start("own", &[OWN]);
    let other = shop.start("other", &[OTHER]);
    sleep(HOUR).await;
    // The other one is slower to come back.
    stop(other).await;
    shop.accept(&EVENTS).await;
    faulty.faults.is_down.store(true, Ordering::SeqCst);
    sleep(15 * MINUTE).await;
    faulty.faults.is_down.store(false, Ordering::SeqCst);
    sleep(2 * MINUTE).await;
    assert_eq!(shop.handled(), [("own", 0)]);
    let other = shop.start("other", &[OTHER]);
    sleep(10 * SECOND).await;
    assert_eq!(shop.handled(), IN_ORDER);
    stop(own).await;
    stop(other).await;
}

/// A queue whose notes cannot be read, if so, and how often they were.
#[derive(Clone, Default)]
struct Unreadable {
    queue: MemoryQueue,
    fails: Arc<AtomicBool>,
    reads: Arc<AtomicUsize>,
}

#[async_trait]
impl Calls for Unreadable {
    fn inner(&self) -> Result<Queue, StoreError> {
        Ok(self.queue.clone().into())
    }

    async fn note_handlers(
        &self,
        worker: &str,
        notes: &[NewNote],
    ) -> Result<(Vec<HandlerNote>, SystemTime), StoreError> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        unless(&self.fails)?;
        self.queue.note_handlers(worker, notes).await
    }
}

/// However many events a fallback handles.
#[tokio::test(start_paused = true)]
async fn a_fallback_reads_the_notes_once_a_second() {
    let counting = Unreadable::default();
    let shop = Shop::on(counting.clone().shared());
    let desk = shop.inbox();
    let router = shop.with_fallback("own", shop.router("own", &[OWN]));
    let own = desk.work(router).spawn();
    sleep(30 * SECOND).await;
    let before = counting.reads.load(Ordering::SeqCst);
    for number in 0..100 {
        accept(&desk, &[(NOBODYS, number)]).await;
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(shop.states().await, [HANDLED; 100]);
    let reads = counting.reads.load(Ordering::SeqCst) - before;
    assert!((1..=6).contains(&reads), "{reads} times in 5 s");
    stop(own).await;
}

/// A fallback goes by what it knows.
#[tokio::test(start_paused = true)]
async fn a_fallback_handles_events_if_the_notes_cannot_be_read_again() {
    let faulty = Unreadable::default();
    let shop = Shop::on(faulty.clone().shared());
    let router = shop.with_fallback("own", EventRouter::new());
    let own = shop.inbox().work(router).spawn();
    sleep(10 * SECOND).await;
    faulty.fails.store(true, Ordering::SeqCst);
    shop.accept(&EVENTS).await;
    sleep(10 * SECOND).await;
    assert_eq!(shop.states().await, [HANDLED; 3]);
    stop(own).await;
}

/// An event is neither ignored nor lost when nobody can say who handles it.
#[tokio::test(start_paused = true)]
async fn an_event_is_tried_again_if_the_notes_cannot_be_read() {
    let faulty = Unreadable::default();
    let shop = Shop::on(faulty.clone().shared());
    faulty.fails.store(true, Ordering::SeqCst);
    let own = shop.start("own", &[OWN]);
    shop.accept(&EVENTS).await;
    sleep(MINUTE).await;
    assert_eq!(
        shop.states().await,
        [HANDLED, EventState::Retrying, WAITING]
    );
    faulty.fails.store(false, Ordering::SeqCst);
    let other = shop.start("other", &[OTHER]);
    sleep(10 * MINUTE).await;
    assert_eq!(shop.handled(), IN_ORDER);
    stop(own).await;
    stop(other).await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_with_other_handlers_is_warned_of_once() {
    let log = Log::capture(Level::WARN);
    let shop = Shop::new();
    let own = shop.start("own", &[OWN, NOBODYS]);
    let same = shop.start("own", &[OWN, NOBODYS]);
    sleep(HOUR).await;
    let text = "handles types that this one does not";
    assert_eq!(log.count(Level::WARN, text), 0, "{}", log.text());
    let other = shop.start("other", &[OWN, OTHER]);
    sleep(HOUR).await;
    let warned = log.events();
    let warned: Vec<_> = (warned.iter())
        .filter(|it| it["message"].contains(text))
        .map(|it| (&*it["route"], &*it["types"]))
        .collect();
    let closed = ("chat-platform", "chat-closed");
    assert_eq!(warned.len(), 3, "{}", log.text());
    assert_eq!(warned.iter().filter(|it| **it == closed).count(), 2);
    assert!(warned.contains(&("chat-platform", "chat-opened")));
    for running in [own, same, other] {
        stop(running).await;
    }
}

/// A worker that is started again goes on where the last one was: it neither waits anew, nor ignores the event.
#[cfg(all(feature = "postgres", feature = "sqlite"))]
async fn put_off_over_a_restart<H: Harness>(harness: &H, rewind: impl AsyncFn()) {
    let mut shop = Shop::on(harness.open().await);
    let other = shop.start("other", &[OTHER]);
    eventually("it is noted", async || {
        !shop.inbox().stats().await.unwrap().handlers.is_empty()
    })
    .await;
    stop(other).await;
    // It was there for 20 minutes, and has been away for 11.
    rewind().await;
    shop.accept(&EVENTS).await;
    for restart in 0..3_usize {
        shop.queue = harness.open().await;
        let own = shop.start("own", &[OWN]);
        let (last, inbox) = (2 * restart, shop.inbox());
        eventually("the chat goes on", async || {
            shop.handled().contains(&("own", last + 2))
        })
        .await;
        let event = inbox.get(EventId(2)).await.unwrap().unwrap().summary;
        assert_eq!((event.state, event.failures), (WAITING, 0));
        let left = event
            .due_at
            .and_then(|due| due.duration_since(SystemTime::now()).ok());
        assert!(left > Some(9 * MINUTE), "it was put off: {left:?}");
        stop(own).await;
        // It is due now, before another event of its chat.
        let redriven = inbox.redrive(EventId(2), None).await.unwrap();
        assert_eq!(redriven, Change::Made);
        shop.accept(&[(OTHER, last + 3), (OWN, last + 4)]).await;
    }
    let other = shop.start("other", &[OTHER]);
    eventually("it is handled", async || {
        shop.handled().contains(&("other", 1))
    })
    .await;
    stop(other).await;
}

#[cfg(all(feature = "postgres", feature = "sqlite"))]
#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_put_off_over_a_restart() {
    let file = Scratch::new();
    put_off_over_a_restart(&file, async || {
        let rewind = "UPDATE handlers SET since = since - 1200000, seen = seen - 660000";
        file.sql().execute(rewind, []).unwrap();
    })
    .await;
    let database = Database::create().await;
    put_off_over_a_restart(&database, async || {
        let rewind =
            "UPDATE tower_webhook.handlers SET since = since - 1200000000, seen = seen - 660000000";
        execute(&database.pool(1).await, rewind).await;
    })
    .await;
}
