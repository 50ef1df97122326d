//! The memory store, on moka.

use std::collections::HashMap;
use std::fmt;
use std::hash::BuildHasher;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use foldhash::quality::RandomState;
use moka::Expiry;
use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use tokio::time::Instant;

use super::{Claim, DeliveryId, Fence, KeyState, Lease, SettleError, Store, StoreError};

/// Remembers keys in the memory of this process: the default, for one process that may forget.
///
/// **What it guarantees.** One run at a time per key, and none after a success, within one process
/// and for as long as it lives. A restart forgets everything: events that the sender retries after
/// it are handled again. Two processes know nothing of each other.
///
/// **Capacity.** A million keys unless set, which is 8 days at 1.4 events a second. When it is
/// full, the keys that were used least recently are forgotten, even before the end of their
/// retention. Where the event was handled, that is counted in [`evictions`](Self::evictions) and warned
/// about in the log. Keys in flight are never forgotten, and take none of the capacity. Keys of events
/// that failed or that no handler wants do take some: how often they were tried is remembered too.
///
/// **Time** is `tokio::time`, so that tests can pause it.
///
/// Clones share their keys.
///
/// ```
/// use tower_webhook::store::MokaStore;
///
/// let store = MokaStore::with_capacity(100_000);
/// assert_eq!(store.evictions(), 0);
/// ```
#[derive(Clone)]
pub struct MokaStore {
    shared: Arc<Shared>,
}

struct Shared {
    /// Dropped before `parts`, because what goes with the whole store is not counted.
    evictions: Arc<Evictions>,
    parts: Box<[Part]>,
    /// Picks the part under a random key of its own, so that nobody can aim at one of them.
    hasher: RandomState,
    next_fence: AtomicU64,
}

/// A share of the keys. A large cache would stand still for milliseconds whenever it tidies up.
struct Part {
    /// Keys in flight: no cache may evict them. Locked for each step on a key, which makes the step
    /// atomic over both maps.
    in_flight: Mutex<InFlight>,
    /// Keys that are done or have failed.
    settled: Cache<u128, Arc<Settled>, RandomState>,
}

const MOST_PARTS: u64 = 64;

/// How many keys are worth a part of their own.
const KEYS_OF_A_PART: u64 = 8_192;

#[derive(Default)]
struct InFlight {
    runs: HashMap<u128, Run, RandomState>,
    /// Leases that ended without being settled are swept when there are this many runs.
    sweep_at: usize,
}

#[derive(Clone, Copy)]
struct Run {
    fence: Fence,
    body: u128,
    attempt: NonZeroU32,
    until: Instant,
    forget: Instant,
}

/// Counts itself when it is dropped before its time. Moka's eviction listener would do so too, but
/// makes every insertion take a lock of its own.
struct Settled {
    outcome: Outcome,
    until: Instant,
    /// Gone when the store is.
    evictions: Weak<Evictions>,
}

struct Evictions {
    count: AtomicU64,
    capacity: u64,
}

impl Drop for Settled {
    fn drop(&mut self) {
        // Not by tokio's clock, which may be paused in the thread that happens to drop this.
        let valid = self.until.into_std() > std::time::Instant::now();
        let forgotten = valid && matches!(self.outcome, Outcome::Done { .. });
        if forgotten && let Some(evictions) = self.evictions.upgrade() {
            evictions.add_one();
        }
    }
}

impl Evictions {
    /// Says so the first time, and whenever the number has doubled.
    fn add_one(&self) {
        let evictions = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        if evictions.is_power_of_two() {
            tracing::warn!(
                evictions,
                capacity = self.capacity,
                "the memory store is full and forgot a key before the end of its retention: a later \
                 delivery of that event will be handled again; give the store more capacity, or use \
                 a durable one"
            );
        }
    }
}

#[derive(Clone, Copy)]
enum Outcome {
    Done { body: u128 },
    Failed { attempts: NonZeroU32 },
}

impl MokaStore {
    /// Remembers a million keys.
    #[must_use]
    pub fn new() -> Self {
        Self::with_capacity(1_000_000)
    }

    /// Remembers `capacity` keys, and up to 5 percent more, besides those in flight.
    ///
    /// # Panics
    ///
    /// When `capacity` is zero: nothing would be deduplicated.
    #[must_use]
    #[track_caller]
    pub fn with_capacity(capacity: u64) -> Self {
        assert!(
            capacity > 0,
            "a memory store needs room for at least one key"
        );
        let parts = (capacity / KEYS_OF_A_PART).clamp(1, MOST_PARTS);
        let share = capacity.div_ceil(parts);
        // Keys spread by chance: with four standard deviations more, hardly any part is full too early.
        let room = if parts == 1 {
            share
        } else {
            share + 4 * share.isqrt()
        };
        Self {
            shared: Arc::new(Shared {
                evictions: Arc::new(Evictions {
                    count: AtomicU64::new(0),
                    capacity,
                }),
                parts: (0..parts).map(|_| Part::new(room)).collect(),
                hasher: RandomState::default(),
                next_fence: AtomicU64::new(0),
            }),
        }
    }

    /// How many keys were forgotten before the end of their retention, because the store was full.
    ///
    /// Should this grow, the capacity is too small for the traffic: an event whose key was
    /// forgotten is handled again if the sender delivers it again.
    #[must_use]
    pub fn evictions(&self) -> u64 {
        self.shared.evictions.count.load(Ordering::Relaxed)
    }

    fn part(&self, key: u128) -> &Part {
        let parts = &self.shared.parts;
        &parts[self.shared.hasher.hash_one(key) as usize % parts.len()]
    }

    fn settle(&self, part: &Part, key: u128, outcome: Outcome, until: Instant) {
        let evictions = Arc::downgrade(&self.shared.evictions);
        let settled = Settled {
            outcome,
            until,
            evictions,
        };
        part.settled.insert(key, Arc::new(settled));
    }
}

impl Part {
    fn new(capacity: u64) -> Self {
        let settled = Cache::builder()
            .max_capacity(capacity)
            // TinyLFU, the default, would turn away new keys in favour of old ones.
            .eviction_policy(EvictionPolicy::lru())
            .expire_after(CollectGarbage)
            .build_with_hasher(RandomState::default());
        Self {
            in_flight: Mutex::default(),
            settled,
        }
    }

    fn lock(&self) -> MutexGuard<'_, InFlight> {
        self.in_flight
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// What is remembered of a key that is not in flight.
    fn settled(&self, key: u128, now: Instant) -> Option<Outcome> {
        self.settled
            .get(&key)
            .filter(|known| known.until > now)
            .map(|known| known.outcome)
    }
}

impl Default for MokaStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MokaStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MokaStore")
            .field("evictions", &self.evictions())
            .finish_non_exhaustive()
    }
}

impl Store for MokaStore {
    const LEASES_OUTLIVE_PROCESS: bool = false;

    async fn claim(
        &self,
        id: &DeliveryId,
        lease: Duration,
        retain: Duration,
    ) -> Result<Claim, StoreError> {
        let now = Instant::now();
        let part = self.part(id.key());
        let mut in_flight = part.lock();
        let attempts = match in_flight.runs.get(&id.key()) {
            Some(run) if run.until > now => {
                return Ok(Claim::InFlight {
                    remaining: run.until - now,
                    same_body: run.body == id.body(),
                });
            }
            Some(dead) if dead.forget > now => Some(dead.attempt),
            Some(_) => None,
            None => match part.settled(id.key(), now) {
                Some(Outcome::Done { body }) => {
                    return Ok(Claim::Done {
                        same_body: body == id.body(),
                    });
                }
                Some(Outcome::Failed { attempts }) => Some(attempts),
                None => None,
            },
        };

        let run = Run {
            fence: Fence(
                self.shared
                    .next_fence
                    .fetch_add(1, Ordering::Relaxed)
                    .into(),
            ),
            body: id.body(),
            attempt: attempts.map_or(NonZeroU32::MIN, |attempts| attempts.saturating_add(1)),
            until: after(now, lease),
            forget: after(now, retain),
        };
        for (key, dead) in in_flight.insert(id.key(), run, now) {
            self.settle(
                part,
                key,
                Outcome::Failed {
                    attempts: dead.attempt,
                },
                dead.forget,
            );
        }
        Ok(Claim::Acquired(Lease::new(*id, run.fence, run.attempt)))
    }

    async fn peek(&self, id: &DeliveryId) -> Result<KeyState, StoreError> {
        let now = Instant::now();
        let part = self.part(id.key());
        let in_flight = part.lock();
        Ok(match in_flight.runs.get(&id.key()) {
            Some(run) if run.until > now => KeyState::InFlight {
                remaining: run.until - now,
            },
            Some(_) => KeyState::Free,
            None => match part.settled(id.key(), now) {
                Some(Outcome::Done { .. }) => KeyState::Done,
                Some(Outcome::Failed { .. }) | None => KeyState::Free,
            },
        })
    }

    async fn renew(&self, lease: &Lease, extend: Duration) -> Result<(), SettleError> {
        let now = Instant::now();
        let mut in_flight = self.part(lease.id().key()).lock();
        in_flight.current(lease, now)?.until = after(now, extend);
        Ok(())
    }

    async fn complete(&self, lease: &Lease, retain: Duration) -> Result<(), SettleError> {
        let now = Instant::now();
        let part = self.part(lease.id().key());
        let mut in_flight = part.lock();
        let run = *in_flight.current(lease, now)?;
        self.settle(
            part,
            lease.id().key(),
            Outcome::Done { body: run.body },
            after(now, retain),
        );
        in_flight.runs.remove(&lease.id().key());
        Ok(())
    }

    async fn release(&self, lease: &Lease) -> Result<(), SettleError> {
        let now = Instant::now();
        let part = self.part(lease.id().key());
        let mut in_flight = part.lock();
        let run = *in_flight.current(lease, now)?;
        self.settle(
            part,
            lease.id().key(),
            Outcome::Failed {
                attempts: run.attempt,
            },
            run.forget,
        );
        in_flight.runs.remove(&lease.id().key());
        Ok(())
    }
}

impl InFlight {
    /// The run that `lease` stands for, if it still has the key.
    fn current(&mut self, lease: &Lease, now: Instant) -> Result<&mut Run, SettleError> {
        self.runs
            .get_mut(&lease.id().key())
            .filter(|run| run.fence == lease.fence() && run.until > now)
            .ok_or(SettleError::Superseded)
    }

    /// Adds a run, and returns those that ended unsettled whenever enough have gathered to be worth
    /// a sweep.
    fn insert(&mut self, key: u128, run: Run, now: Instant) -> Vec<(u128, Run)> {
        let mut dead = Vec::new();
        if self.runs.len() >= self.sweep_at {
            dead.extend(self.runs.extract_if(|_, run| run.until <= now));
            self.sweep_at = (2 * self.runs.len()).max(64);
        }
        self.runs.insert(key, run);
        dead
    }
}

/// Lets moka drop what is out of date, and some time later than that. What counts is compared in
/// [`Part::settled`]: moka's own clock goes on while ours is paused.
struct CollectGarbage;

const GRACE: Duration = Duration::from_secs(60);

impl Expiry<u128, Arc<Settled>> for CollectGarbage {
    fn expire_after_create(
        &self,
        _: &u128,
        settled: &Arc<Settled>,
        now: std::time::Instant,
    ) -> Option<Duration> {
        Some(settled.until.into_std().saturating_duration_since(now) + GRACE)
    }

    fn expire_after_update(
        &self,
        key: &u128,
        settled: &Arc<Settled>,
        now: std::time::Instant,
        _: Option<Duration>,
    ) -> Option<Duration> {
        self.expire_after_create(key, settled, now)
    }
}

/// A deadline that even `Duration::MAX` does not overflow.
fn after(now: Instant, duration: Duration) -> Instant {
    const YEARS_30: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);
    now + duration.min(YEARS_30)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const WEEK: Duration = Duration::from_secs(7 * 24 * 60 * 60);

    fn id(key: u64) -> DeliveryId {
        DeliveryId::new("", &key.to_be_bytes(), b"{}")
    }

    async fn claim(store: &MokaStore, key: u64, lease: Duration) -> Lease {
        match store.claim(&id(key), lease, WEEK).await.unwrap() {
            Claim::Acquired(lease) => lease,
            claim => panic!("key {key} cannot be claimed: {claim:?}"),
        }
    }

    /// How many runs are in memory, be they in flight or dead.
    fn runs(store: &MokaStore) -> usize {
        let part = |part: &Part| part.lock().runs.len();
        store.shared.parts.iter().map(part).sum()
    }

    fn tidy_up(store: &MokaStore) {
        for part in &store.shared.parts {
            part.settled.run_pending_tasks();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn claims_that_are_never_settled_do_not_pile_up() {
        const AT_ONCE: u64 = 1_000;
        let store = MokaStore::new();
        let mut most = 0;
        for round in 0..100 {
            for key in 0..AT_ONCE {
                claim(&store, round * AT_ONCE + key, SECOND).await;
            }
            most = most.max(runs(&store));
            tokio::time::advance(2 * SECOND).await;
        }
        // Each part is swept when it has twice as many runs as were alive after the last sweep, or
        // 64. A part's share is 16 on average.
        assert!(
            most <= 64 * store.shared.parts.len(),
            "{most} runs were in memory"
        );

        // Those that were swept are still counted.
        assert_eq!(claim(&store, 0, SECOND).await.attempt().get(), 2);
    }

    #[test]
    #[should_panic = "room for at least one key"]
    fn a_store_without_room_is_refused() {
        let _ = MokaStore::with_capacity(0);
    }

    #[tokio::test(start_paused = true)]
    async fn runs_in_flight_survive_any_number_of_others() {
        let store = MokaStore::with_capacity(10);
        let mut leases = Vec::new();
        for key in 0..10_000 {
            leases.push(claim(&store, key, 60 * SECOND).await);
        }
        tokio::time::advance(30 * SECOND).await;
        assert_eq!(runs(&store), 10_000);
        for lease in &leases {
            store.renew(lease, 60 * SECOND).await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_store_knows_the_newest_keys_and_counts_what_it_forgot() {
        const CAPACITY: u64 = 1_000;
        let store = MokaStore::with_capacity(CAPACITY);
        let in_flight = claim(&store, u64::MAX, WEEK).await;
        for key in 0..3 * CAPACITY {
            let lease = claim(&store, key, SECOND).await;
            store.complete(&lease, WEEK).await.unwrap();
        }
        tidy_up(&store);

        for key in 0..3 * CAPACITY {
            let expected = match key < 2 * CAPACITY {
                true => KeyState::Free,
                false => KeyState::Done,
            };
            assert_eq!(store.peek(&id(key)).await.unwrap(), expected, "key {key}");
        }
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while store.evictions() < 2 * CAPACITY && std::time::Instant::now() < deadline {
            // Another thread may be about to drop some.
            tidy_up(&store);
            store.peek(&id(0)).await.unwrap();
        }
        assert_eq!(store.evictions(), 2 * CAPACITY);
        store.complete(&in_flight, WEEK).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_of_many_parts_has_the_room_that_was_asked_for() {
        const CAPACITY: u64 = 100_000;
        let store = MokaStore::with_capacity(CAPACITY);
        assert_eq!(store.shared.parts.len(), 12);
        for key in 0..2 * CAPACITY {
            let lease = claim(&store, key, SECOND).await;
            store.complete(&lease, WEEK).await.unwrap();
        }
        tidy_up(&store);
        let mut known = 0;
        for key in CAPACITY..2 * CAPACITY {
            known += u64::from(store.peek(&id(key)).await.unwrap() == KeyState::Done);
        }
        // By chance a part may get more than its share: one in a thousand would be no chance.
        assert!(known > CAPACITY - CAPACITY / 1_000, "{known} are known");
        let forgotten = store.evictions();
        assert!(
            (9 * CAPACITY / 10..CAPACITY).contains(&forgotten),
            "{forgotten}"
        );
    }

    // In real time, which is what evictions go by.
    #[tokio::test]
    async fn what_was_out_of_date_is_not_counted_as_forgotten() {
        let store = MokaStore::with_capacity(100);
        for key in 0..100 {
            let lease = claim(&store, key, SECOND).await;
            let brief = Duration::from_millis(1);
            store.complete(&lease, brief).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
        for key in 100..200 {
            let lease = claim(&store, key, SECOND).await;
            store.complete(&lease, WEEK).await.unwrap();
        }
        tidy_up(&store);
        assert_eq!(store.evictions(), 0);
    }
}
