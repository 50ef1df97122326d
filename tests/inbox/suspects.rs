//! Events that were in progress at a crash, in paused time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use tower_webhook::event::{ChatRated, EventKind};
use tower_webhook::inbox::internal::{Lane, NewEvent};
use tower_webhook::inbox::{EventState, Inbox};
use tower_webhook::memory::MemoryQueue;
use tower_webhook::{Delivery, EventRouter};

use support::inbox::{NotingCrm, Works, states, within_a_month};
use support::lock;
use support::queue::{Calls, FaultyQueue, new_event, take};
use support::{MINUTE, SECOND};

/// Stores events of chats of their own, from number `from`.
async fn accept(queue: &MemoryQueue, from: usize, events: usize) {
    for n in from..from + events {
        let body = format!(r#"{{"id":"chat-{n}","rating":{n}}}"#);
        let event = NewEvent {
            lane: Some(Lane(n as i64)),
            ..new_event(EventKind::CHAT_RATED, body)
        };
        queue.accept_one(event, None).await.unwrap();
    }
}

/// A process takes all that it can get, and dies.
async fn crash(queue: &MemoryQueue, suspects: usize) {
    queue
        .claim_of(&take(SECOND), usize::MAX, suspects)
        .await
        .unwrap();
    sleep(SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn suspects_of_different_chats_run_side_by_side() {
    let (queue, crm) = (MemoryQueue::new(), NotingCrm::default());
    accept(&queue, 0, 160).await;
    crash(&queue, 0).await;
    *lock(&crm.takes) = SECOND;
    let inbox = Inbox::new(queue);
    let worker = inbox.work(crm.router()).concurrency(32).spawn();
    let began = Instant::now();
    within_a_month(|| crm.handled() == 160).await;
    assert_eq!(crm.most_at_once.load(Ordering::SeqCst), 8);
    assert!(began.elapsed() <= 21 * SECOND, "{:?}", began.elapsed());
    worker.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn suspects_whose_next_crash_would_be_the_last_run_alone() {
    let queue = MemoryQueue::new();
    accept(&queue, 0, 20).await;
    crash(&queue, 0).await;
    // Five of them crash twice. The others come after them, and between them.
    crash(&queue, 5).await;
    accept(&queue, 20, 5).await;
    crash(&queue, 0).await;

    let running = Arc::new(AtomicUsize::new(0));
    let alone = Arc::new(Mutex::new(Vec::new()));
    let (now, seen) = (Arc::clone(&running), Arc::clone(&alone));
    let router = EventRouter::new().on::<ChatRated>(move |delivery: Delivery<ChatRated>| {
        let (now, seen) = (Arc::clone(&now), Arc::clone(&seen));
        async move {
            let is_last = delivery.attempt().is_some_and(|attempt| attempt.get() == 3);
            let before = now.fetch_add(1, Ordering::SeqCst);
            sleep(SECOND).await;
            let after = now.fetch_sub(1, Ordering::SeqCst) - 1;
            lock(&seen).push((is_last, before.max(after)));
            Ok(())
        }
    });
    let inbox = Inbox::new(queue);
    let worker = inbox.work(router).spawn();
    within_a_month(|| lock(&alone).len() == 25).await;
    let seen = lock(&alone).clone();
    let last: Vec<_> = seen.iter().filter(|(is_last, _)| *is_last).collect();
    assert_eq!(last, [&(true, 0); 5]);
    assert!(
        seen.contains(&(false, 7)),
        "others run side by side: {seen:?}"
    );
    worker.drain(SECOND).await.unwrap();
}

/// A receiver whose process dies again and again.
struct Dying {
    queue: MemoryQueue,
    kill: Arc<Notify>,
    /// When each event was first cut off by a kill, and when it was handled.
    cut: Arc<Mutex<Vec<Option<Instant>>>>,
    handled: Arc<Mutex<Vec<Option<Instant>>>>,
    /// The event that kills its process.
    poison: Option<usize>,
    takes: Duration,
}

impl Dying {
    fn new(events: usize, takes: Duration, poison: Option<usize>) -> Self {
        Self {
            queue: MemoryQueue::new(),
            kill: Arc::default(),
            cut: Arc::new(Mutex::new(vec![None; events])),
            handled: Arc::new(Mutex::new(vec![None; events])),
            poison,
            takes,
        }
    }

    fn router(&self) -> EventRouter {
        let (poison, takes) = (self.poison, self.takes);
        let [cut, handled] = [&self.cut, &self.handled].map(Arc::clone);
        let kill = Arc::clone(&self.kill);
        EventRouter::new().on::<ChatRated>(move |delivery: Delivery<ChatRated>| {
            let (cut, handled, kill) = (Arc::clone(&cut), Arc::clone(&handled), Arc::clone(&kill));
            async move {
                let n = delivery.payload.rating.unwrap_or_default() as usize;
                let running = Cut(cut, n);
                if poison == Some(n) {
                    kill.notify_one();
                }
                sleep(takes).await;
                std::mem::forget(running);
                lock(&handled)[n] = Some(Instant::now());
                Ok(())
            }
        })
    }

    /// Runs a process for a time, or until its poison kills it.
    async fn live(&self, time: Duration) {
        let faulty = FaultyQueue::new(self.queue.clone());
        let faults = Arc::clone(&faulty.faults);
        let worker = Inbox::new(faulty).work(self.router()).lease(SECOND);
        let worker = worker.spawn();
        let _ = timeout(time, self.kill.notified()).await;
        faults.is_down.store(true, Ordering::SeqCst);
        drop(worker);
        sleep(Duration::from_millis(1)).await;
    }
}

/// Notes when its attempt was cut off first.
struct Cut(Arc<Mutex<Vec<Option<Instant>>>>, usize);

impl Drop for Cut {
    fn drop(&mut self) {
        lock(&self.0)[self.1].get_or_insert_with(Instant::now);
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_that_kills_its_process_takes_no_other_with_it() {
    let dying = Dying::new(200, SECOND / 10, Some(17));
    accept(&dying.queue, 0, 200).await;
    let mut lives = 0;
    while lock(&dying.handled).iter().flatten().count() < 199 {
        dying.live(MINUTE).await;
        lives += 1;
        assert!(lives < 10, "the process dies for ever");
    }
    dying.live(MINUTE).await;
    let states = states(&Inbox::new(dying.queue.clone())).await;
    let dead = |state: &EventState| *state == EventState::Dead;
    assert_eq!(states.iter().position(dead), Some(17));
    assert_eq!(states.iter().filter(|state| dead(state)).count(), 1);
    assert!(lives <= 4, "{lives}");
}

#[tokio::test(start_paused = true)]
async fn suspects_do_not_pile_up_while_a_process_is_killed_again_and_again() {
    const EVENTS: usize = 2000;

    let dying = Dying::new(EVENTS, SECOND / 2, None);
    let accepting = async {
        for n in 0..EVENTS {
            accept(&dying.queue, n, 1).await;
            sleep(Duration::from_millis(40)).await;
        }
    };
    let killing = async {
        loop {
            dying.live(Duration::from_millis(2600)).await;
        }
    };
    tokio::select! {
        () = accepting => {}
        () = killing => {}
    }
    dying.live(10 * MINUTE).await;
    let pairs = lock(&dying.cut)
        .clone()
        .into_iter()
        .zip(lock(&dying.handled).clone());
    let mut waits: Vec<_> = pairs
        .filter_map(|(cut, handled)| Some(handled? - cut?))
        .collect();
    waits.sort_unstable();
    let late = waits.iter().filter(|wait| **wait > 20 * SECOND).count();
    let longest = waits.last().copied().unwrap_or_default();
    let states = states(&Inbox::new(dying.queue.clone())).await;
    let dead = states
        .iter()
        .filter(|state| **state == EventState::Dead)
        .count();
    eprintln!(
        "{} were cut off, {late} waited for more than 20 s, the longest {longest:?}; {dead} dead",
        waits.len()
    );
    assert!(waits.len() > 100, "{}", waits.len());
    assert!(longest < 20 * SECOND, "{longest:?}");
}
