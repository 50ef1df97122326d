//! Two services with handlers of different types on one queue: neither ignores what the other one handles, also while that is
//! away. In paused time.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio::time::sleep;
use tower::service_fn;
use tower_webhook::event::EventKind;
use tower_webhook::inbox::internal::NewNote;
use tower_webhook::inbox::{Change, EventId, EventState, HandlerNote, Inbox, Queue, Scope};
use tower_webhook::memory::MemoryQueue;
use tower_webhook::store::StoreError;
use tower_webhook::{EventRouter, RawDelivery, RouteName, Running, Webhooks};
use tracing::Level;

use support::delivery::{RequestExt, delivery, secret, send};
use support::inbox::{Works, accepting, states};
use support::log::Log;
use support::queue::{Calls, FaultyQueue, unless};
use support::{DAY, HOUR, MINUTE, SECOND, lock};

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
    assert!(inbox.retire(OTHER).await.unwrap());
    assert!(!inbox.retire(OTHER).await.unwrap());
    sleep(SOON).await;
    assert_eq!(shop.states().await, [HANDLED, EventState::Ignored, HANDLED]);
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
    sleep(2 * MINUTE).await;
    assert_eq!(shop.handled().len(), 4);
    sleep(HOUR).await;
    assert_eq!(shop.handled()[4..], [("own", 5)]);
    assert_eq!(shop.states().await[4], WAITING);
    shop.inbox().retire(OTHER).await.unwrap();
    sleep(SOON).await;
    assert_eq!(shop.handled()[5..], [("own", 4)]);
    stop(own).await;
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
    assert!(shop.inbox().retire(platform).await.unwrap());
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

/// A queue whose notes cannot be read, if so.
#[derive(Clone, Default)]
struct Unreadable {
    queue: MemoryQueue,
    fails: Arc<AtomicBool>,
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
        unless(&self.fails)?;
        self.queue.note_handlers(worker, notes).await
    }
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
