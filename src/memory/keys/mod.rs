//! The memory store, on moka.

mod in_flight;
mod settled;

use std::hash::BuildHasher;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use foldhash::quality::RandomState;
use tokio::time::Instant;

use self::in_flight::{InFlight, Run};
use self::settled::{Evictions, Settled, Settlement, short};
use crate::SenderPolicy;
use crate::lock::lock;
use crate::store::{Claim, EventKey, Fence, KeyState, Lease, SettleError, Store, StoreError};

/// Remembers keys in the memory of this process: the default, for one process that may forget.
///
/// **What it guarantees.** One run at a time per key, and none after a success, within one process
/// and for as long as it lives. A restart forgets everything: events that the sender retries after
/// it are handled again. Two processes share nothing.
///
/// **Capacity.** By default a million keys, which is 8 days at 1.4 events a second. When the store is
/// full, the keys that were used least recently are forgotten, even before the end of their
/// retention. For events that were handled, this is counted in [`evictions`](Self::evictions) and logged as
/// a warning. Keys in flight are never forgotten, and take none of the capacity. Keys of events that
/// failed or have no handler do take some: their attempts are remembered too.
///
/// **Size.** 336 bytes of memory for each key; 48 more where a key is retained for less than half as
/// long as the longest, or as the default of 8 days. The memory of keys whose retention has ended is
/// returned while others arrive: that of keys with 48 bytes more a minute later, that of the others when
/// they were not used for as long as the longest retention (and up to a quarter more, where that is above
/// the default).
///
/// **Bodies** of events that were handled are compared by 88 bits of their digests: one changed body in
/// 2^88 counts as the same. It is not handled either way.
///
/// **Time** is that of [`tokio::time`], so that tests can pause it.
///
/// Clones share their keys.
///
/// ```
/// use tower_webhook::memory::MokaStore;
///
/// let store = MokaStore::with_capacity(100_000);
/// assert_eq!(store.evictions(), 0);
/// ```
#[derive(Clone)]
pub struct MokaStore {
    shared: Arc<Table>,
}

struct Table {
    evictions: Arc<Evictions>,
    parts: Box<[Part]>,
    /// Picks the part by a hash with a random key, so that no sender can target one of them.
    hasher: RandomState,
    next_fence: AtomicU64,
}

/// A share of the keys. A large cache would block for milliseconds whenever it tidies up.
struct Part(Mutex<Keys>);

/// Locked for each step on a key, which makes the step atomic over both maps.
struct Keys {
    /// No cache may evict these.
    in_flight: InFlight,
    /// Keys that are done or have failed.
    settled: Settled,
}

const MOST_PARTS: u64 = 32;

/// The number of keys for which a store gets one more part.
const KEYS_OF_A_PART: u64 = 8_192;

impl MokaStore {
    /// Remembers a million keys. See [`with_capacity`](Self::with_capacity) for another number.
    #[must_use]
    pub fn new() -> Self {
        Self::with_capacity(1_000_000)
    }

    /// Remembers `capacity` keys, and up to 5 percent more, besides those in flight.
    ///
    /// ```
    /// use tower_webhook::memory::MokaStore;
    ///
    /// let store = MokaStore::with_capacity(10_000_000); // 8 days at 14 events a second
    /// assert_eq!(store.evictions(), 0);
    /// ```
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
        // Below 16,384 keys there is one part, which forgets exactly the keys that were used least recently.
        let parts = (capacity / KEYS_OF_A_PART).clamp(1, MOST_PARTS);
        let share = capacity.div_ceil(parts);
        // Keys spread by chance: with four standard deviations more, hardly any part is full too early.
        let room = if parts == 1 {
            share
        } else {
            share + 4 * share.isqrt()
        };
        let evictions = Arc::new(Evictions {
            count: AtomicU64::new(0),
            warn_at: AtomicU64::new(1),
            capacity,
            start: Instant::now(),
        });
        Self {
            shared: Arc::new(Table {
                parts: (0..parts).map(|_| Part::new(room, &evictions)).collect(),
                evictions,
                hasher: RandomState::default(),
                next_fence: AtomicU64::new(0),
            }),
        }
    }

    /// Returns how many keys were forgotten before the end of their retention, because the store was full.
    ///
    /// When this grows, the capacity is too small for the traffic: an event whose key was forgotten is
    /// handled again if the sender delivers it again.
    #[must_use]
    pub fn evictions(&self) -> u64 {
        self.shared.evictions.count.load(Ordering::Relaxed)
    }

    /// Records the [`evictions`](Self::evictions): see the [table of metrics](crate::docs::metrics).
    #[cfg(feature = "metrics")]
    pub fn record_metrics(&self) {
        metrics::counter!(crate::telemetry::EVICTIONS).absolute(self.evictions());
    }

    fn part(&self, key: u128) -> &Part {
        let parts = &self.shared.parts;
        &parts[self.shared.hasher.hash_one(key) as usize % parts.len()]
    }

    /// Ends the run that has the lease, with its outcome and the end of the time that it is known.
    fn settle(
        &self,
        lease: &Lease,
        outcome: impl FnOnce(&Run, Instant) -> (Settlement, Instant),
    ) -> Result<(), SettleError> {
        let key = lease.id().key();
        let now = Instant::now();
        {
            let mut keys = lock(&self.part(key).0);
            let (outcome, until) = outcome(keys.in_flight.current(lease, now)?, now);
            keys.settled.insert(key, outcome, until, now);
            keys.in_flight.runs.remove(&key);
        }
        // After the lock is released: a subscriber of the log may be slow.
        self.shared.evictions.warn_if_doubled();
        Ok(())
    }
}

impl Part {
    fn new(capacity: u64, evictions: &Arc<Evictions>) -> Self {
        let usual = SenderPolicy::default().retention();
        Self(Mutex::new(Keys {
            in_flight: InFlight::default(),
            settled: Settled::new(capacity, usual, Arc::clone(evictions)),
        }))
    }
}

impl Default for MokaStore {
    fn default() -> Self {
        Self::new()
    }
}

partial_debug!(MokaStore, |it| evictions = it.evictions());

impl Store for MokaStore {
    const DURABLE_LEASES: bool = false;

    async fn claim(
        &self,
        id: &EventKey,
        lease: Duration,
        retain: Duration,
    ) -> Result<Claim, StoreError> {
        let now = Instant::now();
        let mut keys = lock(&self.part(id.key()).0);
        let Keys { in_flight, settled } = &mut *keys;
        let attempts = match in_flight.runs.get(&id.key()) {
            Some(run) if run.until > now => {
                return Ok(Claim::InFlight {
                    remaining: run.until - now,
                    same_body: run.body == id.body(),
                });
            }
            // The lease of this run expired, so its attempt has failed and counts.
            Some(dead) if dead.forget > now => Some(dead.attempt),
            Some(_) => None,
            None => match settled.get(id.key(), now) {
                Some(Settlement::Done { body }) => {
                    return Ok(Claim::Done {
                        same_body: body == short(id.body()),
                    });
                }
                Some(Settlement::Failed { attempts }) => Some(attempts),
                None => None,
            },
        };

        let run = Run {
            fence: Fence(
                self.shared
                    .next_fence
                    // A fence only has to differ from all others, so the order of threads does not matter.
                    .fetch_add(1, Ordering::Relaxed)
                    .into(),
            ),
            body: id.body(),
            attempt: attempts.map_or(NonZeroU32::MIN, |attempts| attempts.saturating_add(1)),
            until: after(now, lease),
            forget: after(now, retain),
        };
        for (key, dead) in in_flight.insert(id.key(), run, now) {
            // Swept runs have failed. The next claim of their keys counts on from their attempts.
            settled.insert(key, dead.failed(), dead.forget, now);
        }
        Ok(Claim::Acquired(Lease::new(*id, run.fence, run.attempt)))
    }

    async fn peek(&self, id: &EventKey) -> Result<KeyState, StoreError> {
        let now = Instant::now();
        let keys = lock(&self.part(id.key()).0);
        Ok(match keys.in_flight.runs.get(&id.key()) {
            Some(run) if run.until > now => KeyState::InFlight {
                remaining: run.until - now,
            },
            Some(_) => KeyState::Free,
            None => match keys.settled.get(id.key(), now) {
                Some(Settlement::Done { .. }) => KeyState::Done,
                Some(Settlement::Failed { .. }) | None => KeyState::Free,
            },
        })
    }

    async fn renew(&self, lease: &Lease, extend: Duration) -> Result<(), SettleError> {
        let now = Instant::now();
        let mut keys = lock(&self.part(lease.id().key()).0);
        keys.in_flight.current(lease, now)?.until = after(now, extend);
        Ok(())
    }

    async fn complete(&self, lease: &Lease, retain: Duration) -> Result<(), SettleError> {
        self.settle(lease, |run, now| (run.done(), after(now, retain)))
    }

    async fn release(&self, lease: &Lease) -> Result<(), SettleError> {
        // Until the end of the retention that the claim began: a failure does not prolong it.
        self.settle(lease, |run, _| (run.failed(), run.forget))
    }
}

/// A deadline that even `Duration::MAX` does not overflow.
fn after(now: Instant, duration: Duration) -> Instant {
    const YEARS_30: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);
    now + duration.min(YEARS_30)
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;

    use super::settled::{CollectGarbage, GRACE, Known};
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const WEEK: Duration = Duration::from_secs(7 * 24 * 60 * 60);

    fn id(key: u64) -> EventKey {
        EventKey::new("", &key.to_be_bytes(), b"{}")
    }

    async fn claim(store: &MokaStore, key: u64, lease: Duration) -> Lease {
        match store.claim(&id(key), lease, WEEK).await.unwrap() {
            Claim::Acquired(lease) => lease,
            claim => panic!("key {key} cannot be claimed: {claim:?}"),
        }
    }

    /// How many runs are in memory, be they in flight or dead.
    fn runs(store: &MokaStore) -> usize {
        let part = |part: &Part| lock(&part.0).in_flight.runs.len();
        store.shared.parts.iter().map(part).sum()
    }

    fn tidy_up(store: &MokaStore) {
        for part in &store.shared.parts {
            lock(&part.0).settled.cache.run_pending_tasks();
        }
    }

    /// Waits for so many, but at most 10 s: another thread may be about to drop some.
    async fn forgotten(store: &MokaStore, at_least: u64) -> u64 {
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while store.evictions() < at_least && std::time::Instant::now() < deadline {
            tidy_up(store);
            store.peek(&id(0)).await.unwrap();
        }
        store.evictions()
    }

    async fn assert_forgotten(store: &MokaStore, expected: u64) {
        forgotten(store, expected).await;
        // What is dropped late must not be more.
        for _ in 0..1_000 {
            tidy_up(store);
            store.peek(&id(0)).await.unwrap();
        }
        assert_eq!(store.evictions(), expected);
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
        assert_forgotten(&store, 2 * CAPACITY).await;
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
        let forgotten = forgotten(&store, 9 * CAPACITY / 10).await;
        assert!(
            (9 * CAPACITY / 10..CAPACITY).contains(&forgotten),
            "{forgotten}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_failed_before_is_counted_once_when_it_is_forgotten() {
        const CAPACITY: u64 = 100;
        let store = MokaStore::with_capacity(CAPACITY);
        for key in 0..2 * CAPACITY {
            for attempt in 1..4 {
                let lease = claim(&store, key, SECOND).await;
                assert_eq!(lease.attempt().get(), attempt);
                store.release(&lease).await.unwrap();
            }
            let lease = claim(&store, key, SECOND).await;
            store.complete(&lease, WEEK).await.unwrap();
        }
        assert_forgotten(&store, CAPACITY).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_longer_retention_than_any_before_costs_no_key() {
        const KEYS: u64 = 1_000;
        let store = MokaStore::with_capacity(2 * KEYS);
        for key in 0..KEYS {
            let lease = claim(&store, key, SECOND).await;
            match key % 2 {
                0 => store.complete(&lease, WEEK).await.unwrap(),
                _ => store.release(&lease).await.unwrap(),
            }
        }
        let patience = || {
            let part = lock(&store.shared.parts[0].0);
            part.settled.cache.policy().time_to_idle().unwrap()
        };
        let usual = patience();
        assert!(usual > SenderPolicy::default().retention());
        for weeks in [2, 3, 52] {
            let lease = claim(&store, KEYS + u64::from(weeks), SECOND).await;
            store.complete(&lease, weeks * WEEK).await.unwrap();
            assert!(patience() > weeks * WEEK);
        }

        for key in 0..KEYS {
            match key % 2 {
                0 => assert_eq!(store.peek(&id(key)).await.unwrap(), KeyState::Done),
                _ => assert_eq!(claim(&store, key, SECOND).await.attempt().get(), 2),
            }
        }
        assert_forgotten(&store, 0).await;
    }

    #[tokio::test(start_paused = true)]
    async fn only_keys_of_a_short_retention_get_a_timer() {
        let start = Instant::now();
        let garbage = CollectGarbage {
            start,
            longest: 2 * WEEK,
        };
        let timer = |retain: Duration| {
            let known = Known {
                until: garbage.nanos(start + SECOND + retain),
                outcome: Settlement::Done { body: short(0) },
                kept: false,
                counter: Weak::new(),
            };
            garbage.timer(&known, (start + SECOND).into_std())
        };
        assert_eq!(timer(2 * WEEK), None);
        assert_eq!(timer(WEEK), None);
        let less = WEEK - Duration::from_nanos(1);
        assert_eq!(timer(less), Some(less + GRACE));
        assert_eq!(timer(Duration::ZERO), Some(GRACE));
    }

    #[tokio::test(start_paused = true)]
    async fn a_simulated_week_ends_retentions_too() {
        let store = MokaStore::with_capacity(100);
        for key in 0..100 {
            let lease = claim(&store, key, SECOND).await;
            store.complete(&lease, WEEK).await.unwrap();
        }
        tokio::time::advance(WEEK).await;
        for key in 100..200 {
            let lease = claim(&store, key, SECOND).await;
            store.complete(&lease, WEEK).await.unwrap();
        }
        assert_forgotten(&store, 0).await;
    }

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
        assert_forgotten(&store, 0).await;
    }
}
