//! Seven days during which every handler fails: with an inbox, the platform does not notice.
//!
//! `DARK_DAYS_RATE=1` sets the number of events per second, which defaults to one a minute.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower_webhook::inbox::{Filter, Inbox, Page};
use tower_webhook::memory::MemoryQueue;
use tower_webhook::{EventKind, EventRouter, HandlerResult, RawDelivery, Secret, Webhooks};
use tower_webhook_sandbox::{Sandbox, Settings, Webhook};

use support::Ready;
use support::{DAY, SECOND};

/// Handlers of a system that is down at first.
#[derive(Clone, Default)]
struct CrmDownAtFirst {
    is_up: Arc<AtomicBool>,
    attempts: Arc<AtomicUsize>,
    /// The events that were handled.
    handled: Arc<Mutex<Vec<Digest>>>,
}

/// Of an event's key: six million events fit into the memory.
type Digest = u64;

fn digest(text: impl ToString) -> Digest {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(text.to_string())
}

impl CrmDownAtFirst {
    fn router(&self) -> EventRouter {
        let crm = self.clone();
        EventRouter::new().fallback(move |delivery: RawDelivery| {
            let crm = crm.clone();
            async move { crm.handle(&delivery) }
        })
    }

    fn handle(&self, delivery: &RawDelivery) -> HandlerResult {
        self.attempts.fetch_add(1, Ordering::SeqCst);
        if !self.is_up.load(Ordering::SeqCst) {
            return Err("the CRM is down".into());
        }
        let event = digest(delivery.key().unwrap());
        self.handled.lock().unwrap().push(event);
        Ok(())
    }
}

fn secret() -> Secret {
    Secret::new("secret").unwrap()
}

/// The events of each chat, in the order in which they were accepted.
async fn accepted(inbox: &Inbox) -> HashMap<Digest, Vec<Digest>> {
    let mut chats: HashMap<_, Vec<_>> = HashMap::new();
    let mut page = Page::oldest(1000);
    loop {
        let events = inbox.list(&Filter::default(), page).await.unwrap().events;
        let Some(last) = events.last() else {
            return chats;
        };
        page.after = Some(last.id);
        for event in events {
            let chat = chats.entry(digest(event.chat.unwrap())).or_default();
            chat.push(digest(event.key.unwrap()));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn seven_dark_days_cost_the_sender_nothing() {
    let crm = CrmDownAtFirst::default();
    // As long as the test, so that it can look at all events afterwards.
    let inbox = Inbox::new(MemoryQueue::new());
    let receiver = Webhooks::new(secret()).retention(60 * DAY);
    let (receiver, worker) = receiver.inbox(inbox.clone()).start(crm.router()).unwrap();

    let mut random = fastrand::Rng::with_seed(17);
    let rate: f64 =
        std::env::var("DARK_DAYS_RATE").map_or(1.0 / 60.0, |rate| rate.parse().unwrap());
    // Some 34 events in each, as many as without the variable.
    let chats = 43.max((rate * DAY.as_secs_f64() / 34.0) as usize);
    let (mut events, mut sent) = (0, 0);
    for day in 1..=7 {
        // The report of a platform has all of its events, so each day has a platform of its own.
        let settings = Settings {
            seed: day,
            ..Settings::default()
        };
        let sandbox = Sandbox::in_process_with(receiver.clone(), settings);
        sandbox.configure_all(&Webhook::new("/webhooks").signed(secret()));
        let chats: Vec<_> = (0..chats).map(|_| sandbox.chat()).collect();
        let midnight = Instant::now() + DAY;
        while Instant::now() < midnight {
            let chat = &chats[random.usize(..chats.len())];
            match random.u8(..5) {
                0 => chat.assign(),
                1 => chat.transfer(),
                _ => chat.message("Is anybody there?"),
            };
            events += 1;
            sleep(SECOND.mul_f64(2.0 * random.f64() / rate)).await;
        }
        sandbox.idle().await;

        // Nothing was handled, and the platform has noticed nothing.
        let report = sandbox.report();
        assert!(report.is_all_delivered(), "{report}");
        let failed = report
            .attempts()
            .iter()
            .filter(|attempt| !attempt.result.is_delivered())
            .count();
        assert_eq!(failed, 0);
        assert!(sandbox.webhooks().iter().all(|webhook| !webhook.disabled));
        assert!(crm.handled.lock().unwrap().is_empty());
        sent += report.events.len();
    }
    let stats = inbox.stats().await.unwrap();
    assert_eq!(stats.unsettled(), sent as u64);
    assert_eq!(stats.dead(), 0);
    // Of each kind, one a second for ten minutes, and then one in ten seconds.
    let most = 64 + 600 + 7 * 24 * 360;
    let attempts = crm.attempts.load(Ordering::SeqCst);
    assert!(attempts < 3 * most, "{attempts} attempts");

    crm.is_up.store(true, Ordering::SeqCst);
    let repaired = Instant::now();
    let stats = inbox.finish().await.unwrap();
    assert!(stats.is_all_handled(), "{stats}");
    // The last attempt was less than ten seconds ago, and a lane waits for its first event for an hour at most.
    assert!(
        repaired.elapsed() < 2 * 60 * 60 * SECOND,
        "{:?}",
        repaired.elapsed()
    );

    let handled = std::mem::take(&mut *crm.handled.lock().unwrap());
    let distinct: HashSet<_> = handled.iter().collect();
    assert_eq!(distinct.len(), handled.len(), "an event was handled twice");
    let accepted = accepted(&inbox).await;
    let place: HashMap<_, _> = handled.iter().zip(0..).collect();
    let mut inversions = 0;
    for keys in accepted.values() {
        let places: Vec<i32> = keys.iter().map(|key| place[key]).collect();
        inversions += places.windows(2).filter(|pair| pair[0] > pair[1]).count();
    }
    assert_eq!(inversions, 0);
    println!(
        "{events} events, {attempts} attempts in the dark, drained within {:?}",
        repaired.elapsed()
    );
    let count: usize = accepted.values().map(Vec::len).sum();
    assert_eq!(count, handled.len());
    assert!(count >= events);
    worker.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn without_an_inbox_the_webhook_is_disabled_when_arithmetic_says() {
    let crm = CrmDownAtFirst::default();
    let sandbox = Sandbox::in_process(Webhooks::new(secret()).layer(crm.router()));
    sandbox.configure(
        EventKind::MESSAGE_CREATED,
        Webhook::new("/webhooks").signed(secret()),
    );
    // An event every 20 seconds, each in a chat of its own, and each retried every 10 minutes.
    let (every, retry_every) = (20, 600);
    let attempts_until = |second: u64| -> u64 {
        (0..=second / every)
            .map(|n| 1 + (second - n * every) / retry_every)
            .sum()
    };
    let disabled_after = (0..3600)
        .find(|second| attempts_until(*second) > 500)
        .unwrap();

    let mut disabled_at = BTreeMap::new();
    let began = Instant::now();
    for _ in 0..180 {
        let _ = sandbox.chat().message("Is anybody there?");
        sandbox.idle().await;
        for webhook in sandbox.webhooks() {
            if webhook.disabled {
                disabled_at
                    .entry(webhook.kind)
                    .or_insert(began.elapsed().as_secs());
            }
        }
        sleep(Duration::from_secs(every)).await;
    }
    let disabled_at = disabled_at[&EventKind::MESSAGE_CREATED];
    assert!(
        disabled_at.abs_diff(disabled_after) <= 60,
        "after {disabled_at} s, not {disabled_after} s"
    );
}
