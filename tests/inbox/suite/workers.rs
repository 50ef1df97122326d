//! Several workers on many lanes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::{Instant, sleep};

use super::make::lane;
use super::steps::{Trial, joined};
use super::{HELD, Harness, PATIENCE, SHORT};
use tower_webhook::inbox::EventId;
use tower_webhook::inbox::internal::{Lane, Settlement, TakenEvent};

use support::queue::{dead, retry, snooze};

/// The events that several workers have, and had.
#[derive(Default)]
struct Seen {
    busy: HashMap<Lane, EventId>,
    done: HashMap<Lane, Vec<EventId>>,
    alone: Vec<EventId>,
}

impl Seen {
    fn begin(&mut self, taken: &TakenEvent) {
        let id = taken.lease.id;
        if let Some(lane) = taken.lane
            && let Some(other) = self.busy.insert(lane, id)
        {
            panic!("events {other} and {id} of one lane were taken at one time");
        }
    }

    fn end(&mut self, taken: &TakenEvent) {
        let done = match taken.lane {
            Some(lane) => {
                self.busy.remove(&lane);
                self.done.entry(lane).or_default()
            }
            None => &mut self.alone,
        };
        done.push(taken.lease.id);
    }

    fn count(&self) -> usize {
        self.done.values().map(Vec::len).sum::<usize>() + self.alone.len()
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Workers on several handles that accept, claim and settle at the same time never hold an event twice, nor two events
/// of one lane, and each lane runs in the order of acceptance.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn lanes_run_one_at_a_time<H: Harness>(harness: &H) {
    const LANES: usize = 6;
    const EVENTS: usize = 10;
    const WORKERS: usize = 4;

    let trial = Trial::open(harness).await;
    let lanes: Vec<_> = (0..LANES).map(|_| lane()).collect();
    let (mut lines, mut alone) = (Vec::new(), Vec::new());
    for _ in 0..EVENTS {
        for lane in &lanes {
            let id = trial.accept(trial.in_lane(*lane)).await;
            lines.push((*lane, id));
        }
        alone.push(trial.accept(trial.event()).await);
    }
    let total = (LANES + 1) * EVENTS + WORKERS * EVENTS;
    let seen = Arc::new(Mutex::new(Seen::default()));
    let handles = trial.handles(harness, WORKERS).await;
    let workers = handles.into_iter().map(|handle| {
        let (seen, lanes) = (Arc::clone(&seen), lanes.clone());
        tokio::spawn(async move {
            let give_up = Instant::now() + 2 * PATIENCE;
            let mut accepted = Vec::new();
            loop {
                let mut events = handle.claim(HELD, 3, 0).await.events;
                events.iter().for_each(|taken| lock(&seen).begin(taken));
                if accepted.len() < EVENTS {
                    let lane = lanes[accepted.len() % LANES];
                    let (id, taken) = handle.accept_and_take(handle.in_lane(lane), HELD).await;
                    accepted.push((lane, id));
                    taken.iter().for_each(|taken| lock(&seen).begin(taken));
                    events.extend(taken);
                }
                while let Some(taken) = events.pop() {
                    // Others have time to take the next one.
                    tokio::task::yield_now().await;
                    let id = taken.lease.id;
                    lock(&seen).end(&taken);
                    if id.0 % 2 == 0 {
                        handle.settle(&taken, &Settlement::Handled).await;
                    } else if let Some(next) =
                        handle.settle_and_take(&taken, &Settlement::Handled).await
                    {
                        lock(&seen).begin(&next);
                        events.push(next);
                    }
                }
                let count = lock(&seen).count();
                if count >= total {
                    return accepted;
                }
                assert!(
                    Instant::now() < give_up,
                    "only {count} of {total} events could be taken"
                );
                sleep(SHORT / 20).await;
            }
        })
    });
    let mut accepted: Vec<_> = joined(workers.collect()).await;
    let before: Vec<_> = lines.iter().map(|(_, id)| *id).collect();
    accepted.push(lines);
    let mut seen = lock(&seen);
    seen.alone.sort_unstable();
    assert_eq!(
        seen.alone, alone,
        "the events without a lane that were taken"
    );
    // What was accepted at one time has no order.
    for accepted in accepted {
        for lane in &lanes {
            let of_lane = accepted.iter().filter(|(of, _)| of == lane);
            let expected: Vec<_> = of_lane.map(|(_, id)| *id).collect();
            let mut done = seen.done[lane].clone();
            done.retain(|id| expected.contains(id));
            assert_eq!(done, expected, "the events of a lane that were taken");
        }
    }
    for lane in &lanes {
        let done = &seen.done[lane];
        assert!(
            done.iter().take(EVENTS).all(|id| before.contains(id)),
            "events of a lane were overtaken by those that were accepted later"
        );
    }
    let count = seen.count();
    assert_eq!(count, total, "the events that were taken");
}

/// However many events of a lane wait, are of another kind, or have crashed: a claim finds the other events, even a
/// claim of one event.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn no_lane_starves_another<H: Harness>(harness: &H) {
    const BLOCKED: usize = 40;

    let trial = Trial::open(harness).await;
    let mut ids = Vec::new();
    for settlement in [
        None,
        Some(retry(HELD)),
        Some(dead(true)),
        Some(snooze(HELD)),
    ] {
        let lane = lane();
        let taken = trial.taken(trial.in_lane(lane), HELD).await;
        trial.line(lane, BLOCKED).await;
        if let Some(settlement) = settlement {
            trial.settle(&taken, &settlement).await;
        }
    }
    let crashed = [trial.event(), trial.event()];
    for event in crashed {
        trial.taken(event, SHORT).await;
    }
    let other = trial.fresh();
    for _ in 0..BLOCKED {
        other.accept(other.event()).await;
    }
    sleep(2 * SHORT).await;
    for _ in 0..4 {
        ids.push(trial.accept(trial.event()).await);
        ids.push(trial.accept(trial.in_lane(lane())).await);
    }
    let mut found = Vec::new();
    let give_up = Instant::now() + PATIENCE;
    while found.len() < ids.len() {
        for taken in trial.claim(HELD, 1, 0).await.events {
            found.push(taken.lease.id);
        }
        assert!(
            Instant::now() < give_up,
            "of {ids:?} only {found:?} were found"
        );
    }
    found.sort_unstable();
    assert_eq!(found, ids, "the events that can be taken");
}
