//! One event of a chat after the other, and chats beside each other.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::{Instant, sleep};
use tower_webhook::event::{ChatClosed, ChatRated, EventKind};
use tower_webhook::inbox::internal::{Claims, Share};
use tower_webhook::inbox::{EventId, EventState, Filter, Inbox, Page, Queue};
use tower_webhook::memory::MemoryQueue;
use tower_webhook::store::StoreError;
use tower_webhook::{Delivery, EventRouter, HandlerError, RawDelivery, Webhooks};

use super::listed;
use support::delivery::{RequestExt, delivery, secret, send};
use support::inbox::{NotingCrm, Works, accepting, event, inbox, states, webhooks, within_a_month};
use support::queue::Calls;
use support::{DAY, SECOND, lock};

#[tokio::test(start_paused = true)]
async fn one_attempt_at_a_time_per_chat_and_no_more_than_the_limit() {
    let (inbox, crm) = (inbox(), NotingCrm::default());
    *lock(&crm.takes) = SECOND;
    let worker = inbox.work(crm.router()).concurrency(8).spawn();
    let webhooks = webhooks(&inbox);
    for n in 1..=50 {
        for chat in ["a", "b", "c"] {
            send(&webhooks, event(chat, n)).await.assert_ok();
        }
    }
    within_a_month(|| crm.handled() == 150).await;
    assert_eq!(crm.most_at_once.load(Ordering::SeqCst), 3);
    let all: Vec<_> = (1..=50).collect();
    assert!(crm.order().values().all(|order| *order == all));

    for n in 0..100 {
        send(&webhooks, event(&format!("chat-{n}"), 1))
            .await
            .assert_ok();
    }
    within_a_month(|| crm.handled() == 250).await;
    assert_eq!(crm.most_at_once.load(Ordering::SeqCst), 8);
    worker.drain(SECOND).await.unwrap();
}

/// A queue whose claims take a while, as those of a busy database.
struct Slow(MemoryQueue);

#[async_trait]
impl Calls for Slow {
    fn inner(&self) -> Result<Queue, StoreError> {
        Ok(self.0.clone().into())
    }

    async fn claim(
        &self,
        of: &[Share],
        limit: usize,
        suspects: usize,
    ) -> Result<Claims, StoreError> {
        sleep(Duration::from_millis(100)).await;
        self.0.claim(of, limit, suspects).await
    }
}

#[tokio::test(start_paused = true)]
async fn in_a_backlog_half_of_the_attempts_are_of_those_due_longest() {
    const PLACES: usize = 8;
    const OLD: usize = 200;

    let inbox = Inbox::new(Slow(MemoryQueue::new()).shared());
    let webhooks = webhooks(&inbox);
    for n in 0..OLD {
        let old = event(&format!("old {n}"), 1);
        send(&webhooks, old).await.assert_ok();
    }
    let crm = NotingCrm::default();
    *lock(&crm.takes) = Duration::from_millis(20);
    let worker = inbox.work(crm.router()).concurrency(PLACES).spawn();
    let is_old = |(chat, _): &&(String, usize)| chat.starts_with("old");
    let mut new = 0;
    while lock(&crm.log).iter().filter(is_old).count() < OLD {
        // Of idle chats, each with several events.
        for n in 1..=3 {
            let new = event(&format!("new {new}"), n);
            send(&webhooks, new).await.assert_ok();
        }
        new += 1;
        sleep(Duration::from_millis(2)).await;
    }
    let log = lock(&crm.log).clone();
    let mut old = 0;
    for (at, of) in log.iter().enumerate() {
        old += usize::from(is_old(&of));
        let others = at + 1 - old;
        assert!(others <= old + 2 * PLACES, "{others} beside {old}");
        if old == OLD {
            break;
        }
    }
    // The rest is handled, too, and at once when there is no backlog.
    within_a_month(|| crm.handled() == OLD + 3 * new).await;
    let began = Instant::now();
    send(&webhooks, event("idle", 1)).await.assert_ok();
    within_a_month(|| crm.handled() == OLD + 3 * new + 1).await;
    assert!(began.elapsed() <= SECOND);
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
    let worker = inbox.work(events).hold_lane_on_dead().spawn();
    for n in [1, 2] {
        send(&webhooks(&inbox), event("a", n)).await.assert_ok();
    }
    sleep(DAY).await;
    assert_eq!(
        states(&inbox).await,
        [EventState::Dead, EventState::Waiting]
    );
    inbox.discard(EventId(1), None).await.unwrap();
    within_a_month(|| handled.load(Ordering::SeqCst) == 1).await;
    worker.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn chats_of_other_kinds_are_found_by_a_function() {
    #[derive(serde::Deserialize)]
    struct Ticket {
        ticket: u32,
    }

    let inbox = inbox();
    let tickets = Webhooks::new(secret()).lane_by(|delivery| {
        let ticket: Ticket = delivery.decode().ok()?;
        Some(format!("ticket-{}", ticket.ticket))
    });
    let webhooks = accepting(&inbox, tickets);
    for (key, body) in [("1", r#"{"ticket":7}"#), ("2", r#"{"other":7}"#)] {
        let event = delivery(body).kind("ticket-created").key(key);
        send(&webhooks, event).await.assert_ok();
    }
    let of_ticket = Filter::default().chat("ticket-7");
    assert_eq!(listed(&inbox, &of_ticket, Page::oldest(10)).await, [1]);
    let other = inbox.get(EventId(2)).await.unwrap().unwrap();
    assert_eq!(other.summary.chat, None);
}

#[tokio::test(start_paused = true)]
async fn a_busy_chat_does_not_starve_the_others() {
    let (inbox, crm) = (inbox(), NotingCrm::default());
    let webhooks = webhooks(&inbox);
    for n in 0..500 {
        send(&webhooks, event("busy", n)).await.assert_ok();
    }
    send(&webhooks, event("quiet", 1)).await.assert_ok();
    *lock(&crm.takes) = SECOND;
    let worker = inbox.work(crm.router()).concurrency(1).spawn();
    within_a_month(|| crm.order().contains_key("quiet")).await;
    // By the time of acceptance, the busy chat comes first; but not with all that it has at once, if others are due.
    assert!(crm.handled() <= 501);
    within_a_month(|| crm.handled() == 501).await;
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
    let worker = inbox.work(router).concurrency(32).spawn();
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
    within_a_month(|| lock(&latencies).len() == CHATS).await;
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

#[tokio::test(start_paused = true)]
async fn a_function_that_finds_no_chat_but_panics_costs_no_event() {
    let inbox = inbox();
    let webhooks = Webhooks::new(secret()).lane_by(|_| panic!("no chat"));
    let webhooks = accepting(&inbox, webhooks);
    let ticket = delivery(r#"{"ticket":1}"#).kind("ticket-created").key("1");
    send(&webhooks, ticket).await.assert_ok();
    let record = inbox.get(EventId(1)).await.unwrap().unwrap();
    assert_eq!(record.summary.chat, None);
    assert_eq!(record.summary.state, EventState::Waiting);
}

#[tokio::test(start_paused = true)]
async fn workers_of_other_kinds_are_woken_within_a_chat() {
    let (inbox, crm) = (inbox(), NotingCrm::default());
    let webhooks = webhooks(&inbox);
    let closed = EventRouter::new().on::<ChatClosed>(async |_: Delivery<ChatClosed>| Ok(()));
    let one = inbox.work(closed).only([EventKind::CHAT_CLOSED]).spawn();
    let other = inbox
        .work(crm.router())
        .only([EventKind::CHAT_RATED])
        .spawn();
    let first = delivery(r#"{"id":"a"}"#).kind("chat-closed").key("closed");
    for request in [first, event("a", 1)] {
        send(&webhooks, request).await.assert_ok();
    }
    within_a_month(|| crm.handled() == 1).await;
    drop((one, other));
}
