//! Accepting and handling, in paused time.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use tower_webhook::inbox::internal::Work;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};
use http_body_util::Full;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};
use tower::Layer;
use tower_webhook::event::{ChatClosed, ChatRated, EventKind};
use tower_webhook::inbox::internal::{Accepted, Namespace, NewEvent, Settled, Settlement, Take};
use tower_webhook::inbox::{
    Accept, Change, EventId, EventState, Filter, Inbox, Kinds, Lane, OnFailure, Page, Queue,
    WorkerHandle,
};
use tower_webhook::memory::MemoryQueue;
use tower_webhook::signature::Signature;
use tower_webhook::{
    Delivery, EventRouter, HandlerError, HandlerResult, IdempotencyKey, Outcome, RawDelivery,
    SignatureLayer,
};
use tracing::Level;

use support::delivery::{RequestExt, delivery, secret, send};
use support::lock;
use support::log::Log;

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MINUTE: Duration = Duration::from_secs(60);
pub(crate) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

pub(crate) fn inbox() -> Inbox<MemoryQueue> {
    Inbox::new(MemoryQueue::new())
}

pub(crate) fn webhooks<Q: Queue>(inbox: &Inbox<Q>) -> Signature<Accept<Q>> {
    SignatureLayer::new(secret()).layer(inbox.accept())
}

/// The event `n` of a chat.
pub(crate) fn event(chat: &str, n: usize) -> Request<Full<Bytes>> {
    delivery(format!(r#"{{"id":"{chat}","rating":{n}}}"#)).key(&format!("{chat}-{n}"))
}

/// A handler that notes what it handles, and fails or waits on request.
#[derive(Clone, Default)]
pub(crate) struct Crm {
    pub(crate) log: Arc<Mutex<Vec<(String, usize)>>>,
    attempts: Arc<AtomicUsize>,
    pub(crate) most_at_once: Arc<AtomicUsize>,
    pub(crate) running: Arc<AtomicUsize>,
    pub(crate) down: Arc<AtomicBool>,
    pub(crate) takes: Arc<Mutex<Duration>>,
}

impl Crm {
    pub(crate) fn router(&self) -> EventRouter {
        let crm = self.clone();
        EventRouter::new().on::<ChatRated>(move |delivery: Delivery<ChatRated>| {
            let crm = crm.clone();
            async move { crm.handle(delivery).await }
        })
    }

    async fn handle(&self, delivery: Delivery<ChatRated>) -> HandlerResult {
        self.attempts.fetch_add(1, Ordering::SeqCst);
        let running = Running(Arc::clone(&self.running));
        let now = running.0.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_at_once.fetch_max(now, Ordering::SeqCst);
        let takes = *lock(&self.takes);
        if !takes.is_zero() {
            sleep(takes).await;
        }
        if self.down.load(Ordering::SeqCst) {
            return Err("the CRM is down".into());
        }
        let chat = delivery.payload.id.clone().unwrap_or_default();
        let n = delivery.payload.rating.unwrap_or_default() as usize;
        lock(&self.log).push((chat, n));
        Ok(())
    }

    pub(crate) fn handled(&self) -> usize {
        lock(&self.log).len()
    }

    pub(crate) fn attempts(&self) -> usize {
        self.attempts.load(Ordering::SeqCst)
    }

    pub(crate) fn order(&self) -> HashMap<String, Vec<usize>> {
        let mut order: HashMap<_, Vec<_>> = HashMap::new();
        for (chat, n) in &*lock(&self.log) {
            order.entry(chat.clone()).or_default().push(*n);
        }
        order
    }
}

struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits until `is_so`, for a month at most: by seconds at first, then by minutes.
pub(crate) async fn until(is_so: impl Fn() -> bool) {
    let seconds = (0..600).map(|_| SECOND);
    for pause in seconds.chain((0..30 * 24 * 60).map(|_| MINUTE)) {
        if is_so() {
            return;
        }
        sleep(pause).await;
    }
    panic!("it never became so");
}

pub(crate) async fn states<Q: Queue>(inbox: &Inbox<Q>) -> Vec<EventState> {
    let page = Page::oldest(1000);
    let listed = inbox.list(&Filter::default(), page).await.unwrap();
    listed.events.into_iter().map(|event| event.state).collect()
}

/// The numbers of the events that match, in the order of the page.
async fn listed(inbox: &Inbox<MemoryQueue>, filter: &Filter, page: Page) -> Vec<i64> {
    let listed = inbox.list(filter, page).await.unwrap();
    assert_eq!(listed.searched, None);
    listed.events.iter().map(|event| event.id.0).collect()
}

/// Each hour, in the end, for four days.
#[tokio::test(start_paused = true)]
async fn an_event_whose_attempts_never_count_becomes_a_dead_letter() {
    let inbox = inbox();
    let attempts = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&attempts);
    let service = tower::service_fn(move |_: RawDelivery| {
        count.fetch_add(1, Ordering::SeqCst);
        let away = Outcome::Unavailable {
            reason: Arc::new(std::io::Error::other("the database is away")),
            retry_after: SECOND,
        };
        std::future::ready(Ok::<_, std::convert::Infallible>(away))
    });
    let worker = inbox.worker(service).spawn();
    send(&webhooks(&inbox), event("a", 1)).await.assert_ok();
    sleep(8 * DAY).await;
    assert_eq!(attempts.load(Ordering::SeqCst), 100);
    assert_eq!(states(&inbox).await, [EventState::Dead]);

    // It begins anew.
    inbox.redrive(EventId(1), None).await.unwrap();
    sleep(MINUTE).await;
    assert_eq!(states(&inbox).await, [EventState::Retrying]);
    worker.drain(MINUTE).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn deliveries_without_a_key_are_refused_if_one_is_required() {
    let inbox = inbox();
    let webhooks = SignatureLayer::new(secret())
        .require_key()
        .layer(inbox.accept());
    let refused = send(&webhooks, delivery(r#"{"id":"a"}"#)).await;
    refused.assert_problem(400, "missing-key");
    assert!(states(&inbox).await.is_empty());
    send(&webhooks, event("a", 1)).await.assert_ok();
    assert_eq!(states(&inbox).await, [EventState::Waiting]);
}

#[tokio::test(start_paused = true)]
async fn events_are_found_by_their_keys() {
    let of_crm = inbox().namespace("crm");
    let of_others = of_crm.clone().namespace("");
    let accept = async || send(&webhooks(&of_crm), event("chat", 1)).await.assert_ok();
    accept().await;
    send(&webhooks(&of_crm), event("chat", 2)).await.assert_ok();
    let key = Filter {
        key: IdempotencyKey::new(HeaderValue::from_static("chat-1")),
        ..Filter::default()
    };
    // Another namespace has other keys.
    let unknown = listed(&of_others, &key, Page::newest(10)).await;
    assert!(unknown.is_empty(), "{unknown:?}");
    for page in [Page::oldest(10), Page::newest(10)] {
        assert_eq!(listed(&of_crm, &key, page).await, [1]);
        assert!(
            listed(&of_crm, &key, page.after(EventId(1)))
                .await
                .is_empty()
        );
    }
    assert_eq!(
        listed(&of_crm, &key, Page::newest(1).after(EventId(2))).await,
        [1]
    );
    assert!(listed(&of_crm, &key, Page::oldest(0)).await.is_empty());
    let others = [
        Filter {
            states: vec![EventState::Dead],
            ..key.clone()
        },
        Filter {
            kinds: vec![EventKind::CHAT_OPENED],
            ..key.clone()
        },
        Filter {
            chat: Some("chat-1".to_owned()),
            ..key.clone()
        },
        Filter {
            error: Some("the CRM".to_owned()),
            ..key.clone()
        },
        Filter {
            accepted_until: Some(SystemTime::UNIX_EPOCH),
            ..key.clone()
        },
    ];
    for other in others {
        assert!(
            listed(&of_crm, &other, Page::oldest(10)).await.is_empty(),
            "{other:?}"
        );
    }

    of_crm.discard(EventId(1), None).await.unwrap();
    sleep(30 * DAY).await;
    accept().await;
    // Event 1 is not deleted yet, and the index has the newest one.
    assert_eq!(listed(&of_crm, &key, Page::oldest(10)).await, [3]);
    let discarded = Filter {
        states: vec![EventState::Discarded],
        ..key.clone()
    };
    assert!(
        listed(&of_crm, &discarded, Page::oldest(10))
            .await
            .is_empty()
    );
}

/// The headers that a handler sees, and those of the record.
async fn headers_of(inbox: Inbox<MemoryQueue>) -> [HeaderMap; 2] {
    let seen = Arc::new(Mutex::new(HeaderMap::new()));
    let handler = {
        let seen = Arc::clone(&seen);
        EventRouter::new().fallback(move |delivery: RawDelivery| {
            *lock(&seen) = delivery.headers().clone();
            async { Ok(()) }
        })
    };
    let _worker = inbox.worker(handler).spawn();
    let mut request = event("a", 1);
    for (name, value) in [
        (
            "traceparent",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ),
        ("tracestate", "a=1"),
        ("tracestate", "b=2"),
        ("x-request-id", "17"),
        ("cookie", "secret"),
    ] {
        request
            .headers_mut()
            .append(name, HeaderValue::from_static(value));
    }
    let answer = send(&webhooks(&inbox), request).await;
    assert_eq!(answer.status, StatusCode::OK);
    inbox.finish().await.unwrap();
    let record = inbox.get(EventId(1)).await.unwrap().unwrap();
    [lock(&seen).clone(), record.headers]
}

#[tokio::test(start_paused = true)]
async fn headers_of_the_request_reach_the_handler() {
    for headers in headers_of(inbox()).await {
        let names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["traceparent", "tracestate"]);
        let states: Vec<_> = headers.get_all("tracestate").iter().collect();
        assert_eq!(states, ["a=1", "b=2"]);
    }
    let own = inbox().keep_headers([HeaderName::from_static("x-request-id")]);
    for headers in headers_of(own).await {
        assert_eq!(headers.len(), 1);
        assert_eq!(headers["x-request-id"], "17");
    }
    for headers in headers_of(inbox().keep_headers([])).await {
        assert!(headers.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn failures_have_the_duration_of_their_attempts() {
    let (inbox, crm) = (inbox(), Crm::default());
    crm.down.store(true, Ordering::SeqCst);
    *lock(&crm.takes) = 3 * SECOND;
    let _worker = inbox.worker(crm.router()).spawn();
    send(&webhooks(&inbox), event("a", 1)).await;
    until(|| crm.attempts() == 3).await;
    let record = inbox.get(EventId(1)).await.unwrap().unwrap();
    let took = record.failures.iter().map(|past| past.failure.took);
    let took: Vec<_> = took.collect();
    assert_eq!(took, [Some(3 * SECOND); 2]);
}

#[tokio::test(start_paused = true)]
async fn an_event_is_acknowledged_when_stored_and_handled_then() {
    let (inbox, crm) = (inbox(), Crm::default());
    let webhooks = webhooks(&inbox);
    send(&webhooks, event("a", 1)).await.assert_ok();
    assert_eq!(states(&inbox).await, [EventState::Waiting]);

    let worker = inbox.worker(crm.router()).spawn();
    until(|| crm.handled() == 1).await;
    // Handed over in this process, without asking the queue.
    send(&webhooks, event("a", 2)).await.assert_ok();
    until(|| crm.handled() == 2).await;
    send(&webhooks, event("a", 1)).await.assert_replayed();
    worker.drain(SECOND).await.unwrap();
    assert_eq!(states(&inbox).await, [EventState::Handled; 2]);
    assert_eq!(crm.attempts(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_not_the_senders_and_is_retried_in_order() {
    let (inbox, crm) = (inbox(), Crm::default());
    let webhooks = webhooks(&inbox);
    crm.down.store(true, Ordering::SeqCst);
    let worker = inbox.worker(crm.router()).spawn();
    for n in 1..=3 {
        send(&webhooks, event("a", n)).await.assert_ok();
    }
    sleep(4 * MINUTE).await;
    // Later ones wait for the first one.
    assert_eq!(
        states(&inbox).await,
        [
            EventState::Retrying,
            EventState::Waiting,
            EventState::Waiting
        ]
    );
    assert!((4..=9).contains(&crm.attempts()), "{}", crm.attempts());
    let first = inbox.get(EventId(1)).await.unwrap().unwrap();
    assert_eq!(first.failures.len(), crm.attempts());
    assert_eq!(first.failures[0].failure.reason, "the CRM is down");

    crm.down.store(false, Ordering::SeqCst);
    until(|| crm.handled() == 3).await;
    assert_eq!(crm.order()["a"], [1, 2, 3]);
    worker.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_event_that_never_succeeds_is_a_dead_letter_after_seven_days() {
    let (inbox, crm) = (inbox(), Crm::default());
    crm.down.store(true, Ordering::SeqCst);
    let worker = inbox.worker(crm.router()).spawn();
    let webhooks = webhooks(&inbox);
    send(&webhooks, event("a", 1)).await.assert_ok();
    send(&webhooks, event("a", 2)).await.assert_ok();
    sleep(7 * DAY - MINUTE).await;
    assert_eq!(
        states(&inbox).await,
        [EventState::Retrying, EventState::Waiting]
    );
    sleep(2 * 60 * MINUTE).await;
    // Its lane is free.
    assert_eq!(
        states(&inbox).await,
        [EventState::Dead, EventState::Retrying]
    );
    // It stays, and its key with it.
    sleep(10 * DAY).await;
    send(&webhooks, event("a", 1)).await.assert_replayed();

    crm.down.store(false, Ordering::SeqCst);
    assert_eq!(inbox.redrive(EventId(1), None).await.unwrap(), Change::Made);
    until(|| crm.handled() == 1).await;
    assert_eq!(crm.order()["a"], [1]);
    worker.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_skipped_event_does_not_keep_its_chat_waiting() {
    let (inbox, crm) = (inbox(), Crm::default());
    crm.down.store(true, Ordering::SeqCst);
    let worker = inbox
        .worker(crm.router())
        .on_failure_of(EventKind::CHAT_RATED, OnFailure::Skip)
        .spawn();
    let webhooks = webhooks(&inbox);
    send(&webhooks, event("a", 1)).await.assert_ok();
    until(|| crm.attempts() == 1).await;
    crm.down.store(false, Ordering::SeqCst);
    send(&webhooks, event("a", 2)).await.assert_ok();
    until(|| crm.handled() == 2).await;
    assert_eq!(crm.order()["a"], [2, 1]);
    worker.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_attempt_at_a_time_per_chat_and_no_more_than_the_limit() {
    let (inbox, crm) = (inbox(), Crm::default());
    *lock(&crm.takes) = SECOND;
    let worker = inbox.worker(crm.router()).concurrency(8).spawn();
    let webhooks = webhooks(&inbox);
    for n in 1..=50 {
        for chat in ["a", "b", "c"] {
            send(&webhooks, event(chat, n)).await.assert_ok();
        }
    }
    until(|| crm.handled() == 150).await;
    assert_eq!(crm.most_at_once.load(Ordering::SeqCst), 3);
    let all: Vec<_> = (1..=50).collect();
    assert!(crm.order().values().all(|order| *order == all));

    for n in 0..100 {
        send(&webhooks, event(&format!("chat-{n}"), 1))
            .await
            .assert_ok();
    }
    until(|| crm.handled() == 250).await;
    assert_eq!(crm.most_at_once.load(Ordering::SeqCst), 8);
    worker.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_outage_costs_few_attempts_and_no_event_its_patience() {
    let (inbox, crm) = (inbox(), Crm::default());
    crm.down.store(true, Ordering::SeqCst);
    let worker = inbox.worker(crm.router()).spawn();
    let webhooks = webhooks(&inbox);
    for n in 0..500 {
        send(&webhooks, event(&format!("chat-{n}"), 1))
            .await
            .assert_ok();
    }
    sleep(9 * DAY).await;
    // Some 40 before the kind is tripped, then one each minute.
    assert!(crm.attempts() < 9 * 24 * 60 * 2, "{}", crm.attempts());
    assert!(
        states(&inbox)
            .await
            .iter()
            .all(|state| state.is_unsettled())
    );
    let before = Instant::now();
    crm.down.store(false, Ordering::SeqCst);
    until(|| crm.handled() == 500).await;
    assert!(before.elapsed() < 2 * 60 * MINUTE, "{:?}", before.elapsed());
    worker.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn snoozing_is_no_failure() {
    let inbox = inbox().retention(60 * DAY).unwrap(); // it is not purged as soon as it is handled
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&calls);
    let router = EventRouter::new().on::<ChatRated>(move |delivery: Delivery<ChatRated>| {
        let seen = Arc::clone(&seen);
        async move {
            assert_eq!(delivery.attempt().map(NonZeroU32::get), Some(1));
            match seen.fetch_add(1, Ordering::SeqCst) {
                0..20 => Err(HandlerError::snooze(DAY)),
                _ => Ok(()),
            }
        }
    });
    let worker = inbox.worker(router).spawn();
    send(&webhooks(&inbox), event("a", 1)).await.assert_ok();
    sleep(19 * DAY).await;
    assert_eq!(states(&inbox).await, [EventState::Waiting]);
    until(|| calls.load(Ordering::SeqCst) == 21).await;
    sleep(SECOND).await;
    let event = inbox.get(EventId(1)).await.unwrap().unwrap();
    assert_eq!(event.summary.state, EventState::Handled);
    assert!(event.failures.is_empty());
    worker.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn each_error_of_a_handler_has_its_state() {
    let log = Log::capture(Level::INFO);
    let inbox = inbox();
    let router = EventRouter::new().on::<ChatRated>(async |delivery: Delivery<ChatRated>| {
        match delivery.payload.id.as_deref() {
            Some("discard") => Err(HandlerError::discard("no")),
            Some("dead") => Err(HandlerError::dead_letter("look")),
            Some("panic") => panic!("handler"),
            Some("slow") => std::future::pending().await,
            Some("later") => Err(HandlerError::retry_after(2 * DAY, "maintenance")),
            _ => Ok(()),
        }
    });
    let worker = inbox.worker(router).spawn();
    let webhooks = webhooks(&inbox);
    for chat in ["discard", "dead", "panic", "slow", "later", "fine"] {
        send(&webhooks, event(chat, 1)).await.assert_ok();
    }
    send(&webhooks, delivery("{}").kind("chat-tagged").key("ignored"))
        .await
        .assert_ok();
    send(&webhooks, delivery("not JSON").key("undecodable"))
        .await
        .assert_ok();
    sleep(31 * SECOND).await;
    use EventState::{Dead, Discarded, Handled, Ignored, Retrying};
    assert_eq!(
        states(&inbox).await,
        [
            Discarded, Dead, Retrying, Retrying, Retrying, Handled, Ignored, Dead
        ]
    );
    let record = async |id| inbox.get(EventId(id)).await.unwrap().unwrap();
    let panicked = record(3).await.failures.remove(0).failure;
    assert_eq!(panicked.outcome, "panicked");
    for text in ["the handler panicked: ", "worker.rs:"] {
        assert!(panicked.reason.contains(text), "{panicked:?}");
    }
    assert!(log.count(Level::WARN, "the event is tried again") >= 3);
    assert_eq!(log.count(Level::ERROR, ""), 1);
    assert_eq!(log.count(Level::ERROR, "is now a dead letter"), 1);
    assert_eq!(
        record(4).await.failures[0].failure.outcome,
        "handler-timeout"
    );
    let due = record(5).await.summary.due_at.unwrap();
    assert!(
        due.duration_since(record(5).await.summary.accepted_at)
            .unwrap()
            >= 2 * DAY
    );
    let undecodable = record(8).await;
    assert_eq!(undecodable.body.as_deref(), Some(&b"not JSON"[..]));
    assert_eq!(undecodable.failures[0].failure.outcome, "undecodable");
    worker.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_then_releases_without_counting() {
    let (inbox, crm) = (inbox(), Crm::default());
    let webhooks = webhooks(&inbox);
    *lock(&crm.takes) = 10 * SECOND;
    let worker = inbox.worker(crm.router()).spawn();
    send(&webhooks, event("a", 1)).await.assert_ok();
    sleep(SECOND).await;
    worker.drain(30 * SECOND).await.unwrap();
    assert_eq!(crm.handled(), 1);

    let worker = inbox.worker(crm.router()).spawn();
    send(&webhooks, event("b", 1)).await.assert_ok();
    sleep(SECOND).await;
    let timeout = worker.drain(SECOND).await.unwrap_err();
    assert_eq!(timeout.count(), 1);
    // Released at once, and its attempt does not count.
    let event = inbox.get(EventId(2)).await.unwrap().unwrap();
    assert_eq!(event.summary.state, EventState::Waiting);
    assert_eq!(event.summary.failures, 0);
    assert_eq!(crm.running.load(Ordering::SeqCst), 0);

    let worker = inbox.worker(crm.router()).spawn();
    until(|| crm.handled() == 2).await;
    worker.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_dropped_releases_its_events() {
    let (inbox, crm) = (inbox(), Crm::default());
    *lock(&crm.takes) = 10 * SECOND;
    let worker = inbox.worker(crm.router()).spawn();
    send(&webhooks(&inbox), event("a", 1)).await.assert_ok();
    sleep(SECOND).await;
    drop(worker);
    sleep(SECOND).await;
    assert_eq!(states(&inbox).await, [EventState::Waiting]);
    assert_eq!(crm.running.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn a_pause_stops_handling_and_not_accepting() {
    let (inbox, crm) = (inbox(), Crm::default());
    let worker = inbox.worker(crm.router()).spawn();
    let webhooks = webhooks(&inbox);
    for kind in [None, Some(&EventKind::CHAT_RATED)] {
        let before = crm.handled();
        inbox.pause(kind).await.unwrap();
        send(&webhooks, event("a", before)).await.assert_ok();
        sleep(MINUTE).await;
        assert_eq!(crm.handled(), before);
        inbox.resume(kind).await.unwrap();
        until(|| crm.handled() == before + 1).await;
    }
    worker.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_event_that_crashes_its_process_is_a_dead_letter() {
    let inbox = inbox().clone();
    let accepted = async |n: i64| {
        let event = NewEvent {
            namespace: Namespace::default(),
            delivery: RawDelivery::new(EventKind::CHAT_RATED, r#"{"id":"a"}"#),
            key: None,
            guard: None,
            chat: None,
            lane: Some(Lane(n)),
            retain: DAY,
            dead: None,
        };
        inbox.queue().accept(event, None).await.unwrap()
    };
    for n in 0..3 {
        assert!(matches!(accepted(n).await, Accepted::New { .. }));
    }
    // Processes that take the events, and die.
    let take = Take {
        lease: SECOND,
        kinds: Kinds::all(),
    };
    assert_eq!(
        inbox.queue().claim(&take, 9, 1).await.unwrap().events.len(),
        3
    );
    // The first one takes each process with it. The others were only beside it, and come one at a time.
    let mut deaths = 1;
    while deaths < 3 {
        sleep(2 * SECOND).await;
        let claims = inbox.queue().claim(&take, 9, 1).await.unwrap();
        assert_eq!(claims.events.len(), 1, "one suspect at a time");
        let suspect = &claims.events[0];
        match suspect.lease.id {
            EventId(1) => {
                assert_eq!(suspect.crashes, deaths);
                deaths += 1;
            }
            _ => {
                let released = inbox
                    .queue()
                    .settle(&suspect.lease, &Settlement::Released, None);
                assert!(matches!(released.await, Ok(Settled::Ended(None))));
            }
        }
    }
    sleep(2 * SECOND).await;
    let crm = Crm::default();
    let worker = inbox.worker(crm.router()).spawn();
    until(|| crm.handled() == 2).await;
    use EventState::{Dead, Handled};
    assert_eq!(states(&inbox).await, [Dead, Handled, Handled]);
    assert_eq!(crm.most_at_once.load(Ordering::SeqCst), 1);
    let dead = inbox.get(EventId(1)).await.unwrap().unwrap();
    assert_eq!(dead.failures[0].failure.outcome, "crashed");
    worker.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_long_handler_keeps_its_lease() {
    let (inbox, crm) = (inbox(), Crm::default());
    *lock(&crm.takes) = 20 * MINUTE;
    let worker = inbox
        .worker(crm.router())
        .handler_timeout(60 * MINUTE)
        .unwrap()
        .lease(SECOND)
        .unwrap()
        .spawn();
    send(&webhooks(&inbox), event("a", 1)).await.assert_ok();
    until(|| crm.handled() == 1).await;
    assert_eq!(crm.attempts(), 1);
    worker.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn discarding_an_event_in_progress_ends_its_attempt() {
    let (inbox, crm) = (inbox(), Crm::default());
    *lock(&crm.takes) = 20 * MINUTE;
    let worker = inbox
        .worker(crm.router())
        .handler_timeout(60 * MINUTE)
        .unwrap()
        .spawn();
    let webhooks = webhooks(&inbox);
    send(&webhooks, event("a", 1)).await.assert_ok();
    send(&webhooks, event("a", 2)).await.assert_ok();
    sleep(SECOND).await;
    *lock(&crm.takes) = SECOND;
    assert_eq!(
        inbox.redrive(EventId(1), None).await.unwrap(),
        Change::WrongState
    );
    assert_eq!(inbox.discard(EventId(1), None).await.unwrap(), Change::Made);
    // Its handler is dropped at once, so that the next one of its chat does not run beside it.
    sleep(Duration::from_millis(1)).await;
    assert_eq!(crm.running.load(Ordering::SeqCst), 1);
    assert_eq!(crm.attempts(), 2);
    until(|| crm.handled() == 1).await;
    sleep(MINUTE).await;
    assert_eq!(crm.order()["a"], [2]);
    assert_eq!(
        states(&inbox).await,
        [EventState::Discarded, EventState::Handled]
    );
    assert_eq!(crm.running.load(Ordering::SeqCst), 0);
    worker.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_full_inbox_warns_answers_503_and_recovers() {
    let log = Log::capture(Level::WARN);
    let inbox = inbox().backlog_limit(2000).keep_bodies(Duration::ZERO);
    let crm = Crm::default();
    let webhooks = webhooks(&inbox);
    let mut accepted = 0;
    let refused = loop {
        sleep(2 * SECOND).await;
        let answer = send(&webhooks, event("a", accepted)).await;
        match answer.status {
            StatusCode::OK => accepted += 1,
            _ => break answer,
        }
    };
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(refused.retry_after(), Some(600));
    assert!((4..=5).contains(&accepted), "{accepted}");
    send(&webhooks, event("a", 0)).await.assert_replayed();
    assert_eq!(log.count(Level::WARN, "the inbox is nearly full"), 1);

    let worker = inbox.worker(crm.router()).spawn();
    until(|| crm.handled() == accepted).await;
    // The worker deletes the bodies, and what is left of the events when their retention ends.
    sleep(9 * DAY).await;
    send(&webhooks, event("b", 1)).await;
    sleep(2 * SECOND).await;
    send(&webhooks, event("b", 2)).await.assert_ok();
    until(|| crm.handled() > accepted).await;
    assert!(inbox.get(EventId(1)).await.unwrap().is_none());
    worker.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn workers_delete_the_bodies_of_handled_events() {
    let (inbox, crm) = (inbox().keep_bodies(MINUTE), Crm::default());
    let worker = inbox.worker(crm.router()).spawn();
    send(&webhooks(&inbox), event("a", 1)).await.assert_ok();
    until(|| crm.handled() == 1).await;
    let body = async || inbox.get(EventId(1)).await.unwrap().unwrap().body;
    assert!(body().await.is_some());
    sleep(3 * MINUTE).await;
    assert!(body().await.is_none());
    worker.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn dead_letters_hold_their_lane_on_request() {
    let inbox = inbox();
    let handled = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&handled);
    let events = EventRouter::new().fallback(move |delivery: RawDelivery| {
        let is_first = delivery.body().ends_with(br#""rating":1}"#);
        count.fetch_add(usize::from(!is_first), Ordering::SeqCst);
        async move {
            match is_first {
                true => Err(HandlerError::dead_letter("no such customer")),
                false => Ok(()),
            }
        }
    });
    let worker = inbox.worker(events).hold_lane_on_dead().spawn();
    for n in [1, 2] {
        send(&webhooks(&inbox), event("a", n)).await.assert_ok();
    }
    sleep(DAY).await;
    assert_eq!(
        states(&inbox).await,
        [EventState::Dead, EventState::Waiting]
    );
    inbox.discard(EventId(1), None).await.unwrap();
    until(|| handled.load(Ordering::SeqCst) == 1).await;
    worker.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn chats_of_other_kinds_are_found_by_a_function() {
    #[derive(serde::Deserialize)]
    struct Ticket {
        ticket: u32,
    }

    let inbox = inbox().chat_by(|delivery| {
        let ticket: Ticket = delivery.decode().ok()?;
        Some(format!("ticket-{}", ticket.ticket))
    });
    for (key, body) in [("1", r#"{"ticket":7}"#), ("2", r#"{"other":7}"#)] {
        let event = delivery(body).kind("ticket-created").key(key);
        send(&webhooks(&inbox), event).await.assert_ok();
    }
    let of_ticket = Filter {
        chat: Some("ticket-7".to_owned()),
        ..Filter::default()
    };
    assert_eq!(listed(&inbox, &of_ticket, Page::oldest(10)).await, [1]);
    let other = inbox.get(EventId(2)).await.unwrap().unwrap();
    assert_eq!(other.summary.chat, None);
}

#[tokio::test(start_paused = true)]
async fn keyless_events_are_accepted_each_time() {
    let (inbox, crm) = (inbox(), Crm::default());
    let worker = inbox.worker(crm.router()).spawn();
    let webhooks = webhooks(&inbox);
    for _ in 0..3 {
        send(&webhooks, delivery(r#"{"id":"a"}"#)).await.assert_ok();
    }
    until(|| crm.handled() == 3).await;
    worker.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn changed_bodies_and_replayed_bodies_are_refused_on_request() {
    let plain = inbox();
    send(&webhooks(&plain), event("a", 1)).await.assert_ok();
    send(&webhooks(&plain), event("b", 2).key("a-1"))
        .await
        .assert_replayed();

    let strict = inbox().reject_changed_bodies().replay_guard();
    let webhooks = webhooks(&strict);
    send(&webhooks, event("a", 1)).await.assert_ok();
    send(&webhooks, event("a", 1)).await.assert_replayed();
    for other in [event("b", 2).key("a-1"), event("a", 1).key("other")] {
        let answer = send(&webhooks, other).await;
        assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY);
    }
}

#[tokio::test(start_paused = true)]
async fn a_busy_chat_does_not_starve_the_others() {
    let (inbox, crm) = (inbox(), Crm::default());
    let webhooks = webhooks(&inbox);
    for n in 0..500 {
        send(&webhooks, event("busy", n)).await.assert_ok();
    }
    send(&webhooks, event("quiet", 1)).await.assert_ok();
    *lock(&crm.takes) = SECOND;
    let worker = inbox.worker(crm.router()).concurrency(1).spawn();
    until(|| crm.order().contains_key("quiet")).await;
    // By the time of acceptance, the busy chat comes first; but not with all that it has at once, if others are due.
    assert!(crm.handled() <= 501);
    until(|| crm.handled() == 501).await;
    worker.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_client_that_disconnects_costs_no_event() {
    let (inbox, crm) = (inbox(), Crm::default());
    let worker: WorkerHandle = inbox.worker(crm.router()).spawn();
    let webhooks = webhooks(&inbox);
    for n in 0..10 {
        let cut = timeout(Duration::ZERO, send(&webhooks, event("a", n))).await;
        drop(cut);
    }
    sleep(MINUTE).await;
    // What was stored was handled, once.
    let stored = states(&inbox).await.len();
    assert_eq!(crm.handled(), stored);
    assert_eq!(crm.attempts(), stored);
    worker.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_tower_layer_can_stand_around_the_handlers() {
    let (inbox, crm) = (inbox(), Crm::default());
    *lock(&crm.takes) = SECOND;
    let limited =
        tower::limit::ConcurrencyLimit::with_semaphore(crm.router(), Arc::new(Semaphore::new(2)));
    let worker = inbox.worker(limited).spawn();
    let webhooks = webhooks(&inbox);
    for n in 0..20 {
        send(&webhooks, event(&format!("chat-{n}"), 1))
            .await
            .assert_ok();
    }
    until(|| crm.handled() == 20).await;
    assert_eq!(crm.most_at_once.load(Ordering::SeqCst), 2);
    worker.drain(SECOND).await.unwrap();
}

/// Latencies from acceptance to the end of the handler, sorted, of 10,000 chats at three quarters of the capacity.
async fn latencies(with_poison: bool) -> Vec<Duration> {
    const CHATS: usize = 10_000;

    let inbox = inbox();
    let accepted = Arc::new(Mutex::new(HashMap::new()));
    let latencies = Arc::new(Mutex::new(Vec::new()));
    let (known, measured) = (Arc::clone(&accepted), Arc::clone(&latencies));
    let router = EventRouter::new().on::<ChatRated>(move |delivery: Delivery<ChatRated>| {
        let (known, measured) = (Arc::clone(&known), Arc::clone(&measured));
        async move {
            let chat = delivery.payload.id.clone().unwrap();
            let takes = delivery.payload.rating.unwrap_or_default();
            sleep(Duration::from_secs_f64(takes / 1000.0)).await;
            if chat == "poison" {
                return Err("always".into());
            }
            let accepted: Instant = lock(&known)[&chat];
            lock(&measured).push(accepted.elapsed());
            Ok(())
        }
    });
    let worker = inbox.worker(router).concurrency(32).spawn();
    let webhooks = webhooks(&inbox);
    let mut random = fastrand::Rng::with_seed(4);
    for n in 0..CHATS {
        if with_poison && n % 100 == 0 {
            let body = r#"{"id":"poison","rating":200}"#;
            let event = delivery(body).key(&format!("poison-{n}"));
            send(&webhooks, event).await.assert_ok();
        }
        let chat = format!("chat-{n}");
        lock(&accepted).insert(chat.clone(), Instant::now());
        send(&webhooks, event(&chat, random.usize(50..500)))
            .await
            .assert_ok();
        sleep(Duration::from_millis(random.u64(0..23))).await;
    }
    until(|| lock(&latencies).len() == CHATS).await;
    drop(worker);
    let mut latencies = lock(&latencies).clone();
    latencies.sort_unstable();
    latencies
}

#[tokio::test(start_paused = true)]
async fn one_poisoned_chat_among_10_000_delays_no_other() {
    let (without, with) = (latencies(false).await, latencies(true).await);
    let p99 = |sorted: &[Duration]| sorted[sorted.len() * 99 / 100];
    let (without, with) = (p99(&without), p99(&with));
    assert!(with < without.mul_f64(1.05), "{without:?}, {with:?}");
}

/// An event that was taken once and never ended, so that it is a suspect now.
async fn crashed(inbox: &Inbox<MemoryQueue>, kind: EventKind, lane: i64, crashes: u32) -> EventId {
    let take = Take {
        lease: SECOND,
        kinds: Kinds::only([kind.clone()]),
    };
    let event = NewEvent {
        namespace: Namespace::default(),
        delivery: RawDelivery::new(kind, format!(r#"{{"id":"{lane}","rating":1}}"#)),
        key: None,
        guard: None,
        chat: None,
        lane: Some(Lane(lane)),
        retain: DAY,
        dead: None,
    };
    let queue = inbox.queue();
    let Accepted::New { id, taken } = queue.accept(event, Some(&take)).await.unwrap() else {
        panic!("a new event");
    };
    assert!(taken.is_some());
    for _ in 1..crashes {
        sleep(SECOND).await;
        let claims = queue.claim(&take, 1, 1).await.unwrap();
        assert_eq!(claims.events[0].lease.id, id);
    }
    sleep(SECOND).await;
    id
}

#[tokio::test(start_paused = true)]
async fn an_endless_snooze_delays_no_suspect() {
    let inbox = inbox();
    let first = crashed(&inbox, EventKind::CHAT_RATED, 1, 1).await;
    let second = crashed(&inbox, EventKind::CHAT_RATED, 2, 1).await;
    let events = EventRouter::new().on::<ChatRated>(async |delivery: Delivery<ChatRated>| {
        match delivery.payload.id.as_deref() {
            Some("1") => Err(HandlerError::snooze(Duration::MAX)),
            _ => Ok(()),
        }
    });
    let worker = inbox.worker(events).spawn();
    sleep(MINUTE).await;
    let state = async |id| inbox.get(id).await.unwrap().unwrap().summary.state;
    assert!(state(first).await.is_unsettled());
    assert_eq!(state(second).await, EventState::Handled);
    drop(worker);
}

/// An error that cannot be displayed.
#[derive(Debug)]
struct Unspeakable;

impl std::fmt::Display for Unspeakable {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        panic!("it cannot be displayed");
    }
}

impl std::error::Error for Unspeakable {}

#[tokio::test(start_paused = true)]
async fn an_error_that_panics_when_displayed_is_a_failure() {
    let inbox = inbox();
    let webhooks = webhooks(&inbox);
    send(&webhooks, event("a", 1)).await.assert_ok();
    let events =
        EventRouter::new().on::<ChatRated>(async |_: Delivery<ChatRated>| Err(Unspeakable.into()));
    let worker = inbox.worker(events).spawn();
    sleep(SECOND).await;
    let record = inbox.get(EventId(1)).await.unwrap().unwrap();
    assert_eq!(record.summary.state, EventState::Retrying);
    assert_eq!(record.summary.failures, 1);
    assert_eq!(record.failures.len(), 1);
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn a_probe_of_an_event_that_crashed_too_often_ends() {
    let (inbox, crm) = (inbox(), Crm::default());
    let webhooks = webhooks(&inbox);
    crm.down.store(true, Ordering::SeqCst);
    let worker = inbox.worker(crm.router()).trip_after(2).spawn();
    for chat in ["a", "b", "c"] {
        send(&webhooks, event(chat, 1)).await.assert_ok();
    }
    sleep(Duration::from_millis(500)).await;
    // The kind is tripped, and what crashes comes first.
    let dead = crashed(&inbox, EventKind::CHAT_RATED, 9, 3).await;
    until(|| crm.attempts() > 4).await;
    sleep(10 * MINUTE).await;
    let record = inbox.get(dead).await.unwrap().unwrap();
    assert_eq!(record.summary.state, EventState::Dead);

    crm.down.store(false, Ordering::SeqCst);
    until(|| crm.handled() == 3).await;
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn failures_that_do_not_count_come_back_ever_less_often() {
    let inbox = inbox();
    let webhooks = webhooks(&inbox);
    send(&webhooks, event("a", 1)).await.assert_ok();
    let attempts = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&attempts);
    let busy = tower::service_fn(move |_: RawDelivery| {
        count.fetch_add(1, Ordering::SeqCst);
        async {
            Ok::<_, std::convert::Infallible>(Outcome::InFlight {
                remaining: Duration::ZERO,
            })
        }
    });
    let worker = inbox.worker(busy).spawn();
    sleep(3 * DAY).await;
    let attempts = attempts.load(Ordering::SeqCst);
    assert!(
        (65..100).contains(&attempts),
        "{attempts} attempts in three days"
    );
    let record = inbox.get(EventId(1)).await.unwrap().unwrap();
    assert_eq!(record.summary.state, EventState::Retrying);
    assert_eq!(record.summary.failures, 0);
    assert_eq!(record.failures.len(), attempts);
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn a_function_that_finds_no_chat_but_panics_costs_no_event() {
    let inbox = inbox().chat_by(|_| panic!("no chat"));
    let webhooks = webhooks(&inbox);
    let ticket = delivery(r#"{"ticket":1}"#).kind("ticket-created").key("1");
    send(&webhooks, ticket).await.assert_ok();
    let record = inbox.get(EventId(1)).await.unwrap().unwrap();
    assert_eq!(record.summary.chat, None);
    assert_eq!(record.summary.state, EventState::Waiting);
}

#[tokio::test(start_paused = true)]
async fn workers_of_other_kinds_are_woken_within_a_chat() {
    let (inbox, crm) = (inbox(), Crm::default());
    let webhooks = webhooks(&inbox);
    let closed = EventRouter::new().on::<ChatClosed>(async |_: Delivery<ChatClosed>| Ok(()));
    let one = inbox.worker(closed).only([EventKind::CHAT_CLOSED]).spawn();
    let other = inbox
        .worker(crm.router())
        .only([EventKind::CHAT_RATED])
        .spawn();
    let first = delivery(r#"{"id":"a"}"#).kind("chat-closed").key("closed");
    for request in [first, event("a", 1)] {
        send(&webhooks, request).await.assert_ok();
    }
    until(|| crm.handled() == 1).await;
    drop((one, other));
}

#[tokio::test(start_paused = true)]
async fn forgetting_a_chat_ends_its_attempts() {
    let (inbox, crm) = (inbox(), Crm::default());
    let webhooks = webhooks(&inbox);
    *lock(&crm.takes) = 10 * MINUTE;
    let worker = inbox.worker(crm.router());
    let worker = worker.handler_timeout(20 * MINUTE).unwrap().spawn();
    send(&webhooks, event("a", 1)).await.assert_ok();
    sleep(SECOND).await;
    assert_eq!(crm.running.load(Ordering::SeqCst), 1);
    assert_eq!(inbox.forget("a").await.unwrap(), 1);
    sleep(Duration::from_millis(10)).await;
    assert_eq!(crm.running.load(Ordering::SeqCst), 0);
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_attempts_whatever_the_concurrency() {
    let (inbox, crm) = (inbox(), Crm::default());
    let webhooks = webhooks(&inbox);
    *lock(&crm.takes) = 10 * MINUTE;
    let worker = inbox.worker(crm.router());
    let worker = worker
        .handler_timeout(20 * MINUTE)
        .unwrap()
        .concurrency(usize::MAX);
    let worker = worker.spawn();
    send(&webhooks, event("a", 1)).await.assert_ok();
    sleep(SECOND).await;
    let began = Instant::now();
    let drained = worker.drain(MINUTE / 2).await;
    assert!(drained.is_err(), "the attempt was still in progress");
    assert!(began.elapsed() >= MINUTE / 2);
}
