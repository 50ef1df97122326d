//! Keys that are done or have failed, in a cache that forgets the least recently used ones.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use foldhash::quality::RandomState;
use moka::Expiry;
use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use tokio::time::Instant;

pub(super) struct Settled {
    /// The only strong reference, dropped before `cache`: keys that are dropped with the store do not count.
    counter: Arc<Counter>,
    pub(super) cache: Cache<u128, Known, RandomState>,
    capacity: u64,
    garbage: CollectGarbage,
}

/// A key, which counts itself when the cache drops it too early. Moka's eviction listener could do the same,
/// but makes every insertion take another lock.
pub(super) struct Known {
    pub(super) until: Nanos,
    pub(super) outcome: Settlement,
    /// Whether this is the value in the cache, or a clone of it.
    pub(super) kept: bool,
    /// Dangling where a drop is not to be counted.
    pub(super) counter: Weak<Counter>,
}

#[derive(Clone, Copy)]
pub(super) enum Settlement {
    Done { body: ShortBody },
    Failed { attempts: NonZeroU32 },
}

/// The part of a body's digest that is stored.
pub(super) type ShortBody = [u8; 11];

/// Nanoseconds since the store was made: half the size of an [`Instant`].
pub(super) type Nanos = u64;

// One more byte would cost 16 for each key.
const _: () = assert!(size_of::<Known>() <= 32);

/// Counts the evictions of one cache while it exists.
pub(super) struct Counter {
    evictions: Arc<Evictions>,
    /// The time of the newest operation, by tokio's clock.
    newest: AtomicU64,
}

pub(super) struct Evictions {
    pub(super) count: AtomicU64,
    /// The count at which the next warning is logged.
    pub(super) warn_at: AtomicU64,
    pub(super) capacity: u64,
    pub(super) start: Instant,
}

/// Moka keeps one clone of each value, and returns clones of that one, which do not count.
impl Clone for Known {
    fn clone(&self) -> Self {
        Self {
            until: self.until,
            outcome: self.outcome,
            kept: true,
            counter: match self.kept {
                true => Weak::new(),
                false => Weak::clone(&self.counter),
            },
        }
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        if self.kept
            && let Some(counter) = self.counter.upgrade()
        {
            // Any thread may drop this, also one in which tokio's clock is not the store's.
            let evictions = &counter.evictions;
            let real = nanos(evictions.start.into_std(), std::time::Instant::now());
            if self.until > real.max(counter.newest.load(Ordering::Relaxed)) {
                evictions.count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl Evictions {
    /// Warns of the first eviction, and whenever their number has doubled. Not when a key is dropped: moka does
    /// that on any thread that uses a cache, under its locks and in another delivery's span.
    pub(super) fn warn_if_doubled(&self) {
        let evictions = self.count.load(Ordering::Relaxed);
        let warn_at = self.warn_at.load(Ordering::Relaxed);
        if evictions < warn_at {
            return;
        }
        let next = evictions.saturating_add(1).next_power_of_two();
        let warned =
            // Several threads may see the same count, and one of them logs it.
            self.warn_at
                .compare_exchange(warn_at, next, Ordering::Relaxed, Ordering::Relaxed);
        if warned.is_ok() {
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

impl Settled {
    pub(super) fn new(capacity: u64, longest: Duration, evictions: Arc<Evictions>) -> Self {
        let garbage = CollectGarbage {
            start: evictions.start,
            longest,
        };
        let cache = Cache::builder()
            .max_capacity(capacity)
            // TinyLFU, the default, would turn away new keys in favour of old ones.
            .eviction_policy(EvictionPolicy::lru())
            .time_to_idle(longest + GRACE)
            .expire_after(garbage)
            .build_with_hasher(RandomState::default());
        Self {
            counter: Arc::new(Counter {
                evictions,
                newest: AtomicU64::new(0),
            }),
            cache,
            capacity,
            garbage,
        }
    }

    #[inline]
    pub(super) fn get(&self, key: u128, now: Instant) -> Option<Settlement> {
        let known = self.cache.get(&key)?;
        (known.until > self.garbage.nanos(now)).then_some(known.outcome)
    }

    #[inline]
    pub(super) fn insert(&mut self, key: u128, outcome: Settlement, until: Instant, now: Instant) {
        let retain = until.saturating_duration_since(now);
        if retain > self.garbage.longest {
            // A quarter more, so that retentions that grow little by little do not make a copy each time.
            self.retain_up_to(retain + retain / 4);
        }
        // Before the cache drops others for this one.
        let now = self.garbage.nanos(now);
        self.counter.newest.fetch_max(now, Ordering::Relaxed);
        let known = self.known(self.garbage.nanos(until), outcome);
        self.cache.insert(key, known);
    }

    #[inline]
    fn known(&self, until: Nanos, outcome: Settlement) -> Known {
        Known {
            until,
            outcome,
            kept: false,
            counter: match outcome {
                Settlement::Done { .. } => Arc::downgrade(&self.counter),
                // A forgotten failure costs the count of its attempts, and no event is handled twice for it.
                Settlement::Failed { .. } => Weak::new(),
            },
        }
    }

    /// Moves all keys to a cache that retains them for `longest`: moka cannot change a cache's limit.
    fn retain_up_to(&mut self, longest: Duration) {
        let longer = Self::new(self.capacity, longest, Arc::clone(&self.counter.evictions));
        for (key, known) in &self.cache {
            // Made anew, since a clone of what a cache keeps does not count itself when it is dropped.
            let known = longer.known(known.until, known.outcome);
            longer.cache.insert(*key, known);
        }
        *self = longer;
    }
}

/// Lets moka drop expired keys, some time after they expired. [`Settled::get`] decides whether a key has
/// expired, because moka's own clock continues while tokio's is paused.
///
/// Most keys have the same retention. They are dropped when they were not used for that time, which moka
/// knows from the order in which it evicts. Only keys with a much shorter retention get a timer each, of 48
/// bytes.
#[derive(Clone, Copy)]
pub(super) struct CollectGarbage {
    pub(super) start: Instant,
    pub(super) longest: Duration,
}

pub(super) const GRACE: Duration = Duration::from_secs(60);

impl CollectGarbage {
    pub(super) fn nanos(&self, at: Instant) -> Nanos {
        nanos(self.start.into_std(), at.into_std())
    }

    pub(super) fn timer(&self, known: &Known, now: std::time::Instant) -> Option<Duration> {
        let left = known
            .until
            .saturating_sub(nanos(self.start.into_std(), now));
        let left = Duration::from_nanos(left);
        (left < self.longest / 2).then(|| left + GRACE)
    }
}

impl Expiry<u128, Known> for CollectGarbage {
    fn expire_after_create(
        &self,
        _: &u128,
        known: &Known,
        now: std::time::Instant,
    ) -> Option<Duration> {
        self.timer(known, now)
    }

    fn expire_after_update(
        &self,
        _: &u128,
        known: &Known,
        now: std::time::Instant,
        _: Option<Duration>,
    ) -> Option<Duration> {
        self.timer(known, now)
    }
}

/// Enough for more than 500 years, of which [`after`] allows 30 at once.
fn nanos(start: std::time::Instant, at: std::time::Instant) -> Nanos {
    at.saturating_duration_since(start).as_nanos() as Nanos
}

#[inline]
pub(super) fn short(body: u128) -> ShortBody {
    let [short @ .., _, _, _, _, _] = body.to_be_bytes();
    short
}
