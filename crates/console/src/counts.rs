//! What is counted in an inbox. Counting millions of events takes a second, and pages do not wait for that long.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tower_webhook::inbox::{Inbox, Stats};
use tower_webhook::store::{StoreError, StoreErrorKind};

use super::lock;
use super::reading::read;

/// How long a page waits for new counts if there are earlier ones.
const WAIT: Duration = Duration::from_millis(50);

/// Counts that take longer than [`WAIT`] twice in a row are kept for this many times their duration, as accepting is slower
/// while the queue counts; and for [`KEPT`] at most.
const SHARE: u32 = 20;
const KEPT: Duration = Duration::from_secs(60);

/// The age up to which the last counts are shown while new ones are made.
const OLDEST: Duration = Duration::from_secs(5 * 60);

/// The last counts, and those that are made now.
pub(super) struct Counts<T = Stats>(Arc<Mutex<Kept<T>>>);

impl<T> Clone for Counts<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Default for Counts<T> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Kept {
            last: None,
            counting: None,
            changes: 0,
        })))
    }
}

struct Kept<T> {
    last: Option<Last<T>>,
    /// The end of the counting that is in progress, and when it began.
    counting: Option<(watch::Receiver<()>, Instant)>,
    /// The number of changes after which counts were forgotten.
    changes: u64,
}

struct Last<T> {
    counted: T,
    at: Instant,
    took: Duration,
    /// Or the time that the counts before took, if that was shorter: when a machine was busy for once, the next page counts
    /// again.
    shorter: Duration,
}

impl Counts {
    /// Returns the counts of an inbox, and their age.
    pub(super) async fn of(&self, inbox: &Inbox) -> Result<(Stats, Duration), StoreError> {
        let inbox = inbox.clone();
        self.by(async move { inbox.stats().await }).await
    }
}

impl<T: Clone + Send + 'static> Counts<T> {
    /// Returns what is counted, and its age.
    pub(super) async fn by(
        &self,
        count: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<(T, Duration), StoreError> {
        read(self.get(count)).await
    }

    /// Returns new counts, or the last ones if counting takes longer than [`WAIT`], and their age.
    async fn get(
        &self,
        count: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<(T, Duration), StoreError> {
        let new = |counted| (counted, Duration::ZERO);
        let known = {
            let kept = lock(&self.0);
            let last = kept.last.as_ref();
            let last = last.map(|last| (last, last.at.elapsed()));
            if let Some((last, age)) = last
                && last.shorter > WAIT
                && age < (SHARE * last.shorter).min(KEPT)
            {
                return Ok((last.counted.clone(), age));
            }
            let known = last
                .filter(|(_, age)| *age < OLDEST)
                .map(|(last, age)| (last.counted.clone(), age));
            // Another page has waited for it.
            let waits = |(_, began): &(_, Instant)| began.elapsed() >= WAIT;
            if let Some(known) = &known
                && kept.counting.as_ref().is_some_and(waits)
            {
                return Ok(known.clone());
            }
            known
        };
        let Some(known) = known else {
            return self.count(count).await.map(new);
        };
        match timeout(WAIT, self.count(count)).await {
            Ok(counted) => counted.map(new),
            Err(_) => Ok(known),
        }
    }

    /// Drops the last counts after a change, so that the next page counts again.
    pub(super) fn forget(&self) {
        let mut kept = lock(&self.0);
        *kept = Kept {
            // A counting in progress may have begun before the change, so its result is not kept.
            changes: kept.changes + 1,
            last: None,
            counting: None,
        };
    }

    /// Counts, or waits for the counting in progress, which continues if the caller is dropped.
    async fn count(
        &self,
        count: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let asked = Instant::now();
        let running = lock(&self.0).counting.clone();
        if let Some((mut running, _)) = running {
            // It ends by being dropped.
            let _ = running.changed().await;
            if let Some(last) = &lock(&self.0).last
                // Older counts are left if the counting has failed. Then this page counts again.
                && last.at >= asked
            {
                return Ok(last.counted.clone());
            }
        }
        let (ends, counting) = watch::channel(());
        let changes = {
            let mut kept = lock(&self.0);
            kept.counting = Some((counting, asked));
            kept.changes
        };
        let of = self.clone();
        let counted = tokio::spawn(async move {
            let _ends = ends;
            let began = Instant::now();
            let counted = count.await;
            let mut kept = lock(&of.0);
            if kept.changes != changes {
                return counted;
            }
            kept.counting = None;
            if let Ok(counted) = &counted {
                let took = began.elapsed();
                let before = kept.last.as_ref().map(|last| last.took);
                kept.last = Some(Last {
                    counted: counted.clone(),
                    at: Instant::now(),
                    took,
                    shorter: before.map_or(took, |before| took.min(before)),
                });
            }
            counted
        });
        match counted.await {
            Ok(counted) => counted,
            Err(error) => Err(StoreError::new(StoreErrorKind::Unavailable, error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use tokio::time::{advance, sleep};
    use tower_webhook::memory::MemoryQueue;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Counts that are recognised by their time, and take some.
    async fn stats(number: u64, took: Duration) -> Result<Stats, StoreError> {
        sleep(took).await;
        let mut stats = Inbox::new(MemoryQueue::new()).stats().await?;
        stats.at = SystemTime::UNIX_EPOCH + Duration::from_secs(number);
        Ok(stats)
    }

    async fn get(counts: &Counts<Stats>, number: u64, took: Duration) -> (u64, Duration) {
        let (stats, age) = counts.get(stats(number, took)).await.unwrap();
        let at = stats.at.duration_since(SystemTime::UNIX_EPOCH);
        (at.unwrap().as_secs(), age)
    }

    #[tokio::test(start_paused = true)]
    async fn quick_counts_are_always_new() {
        let counts = Counts::default();
        for number in 1..3 {
            let counted = get(&counts, number, WAIT / 2).await;
            assert_eq!(counted, (number, Duration::ZERO));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_does_not_wait_for_slow_counts_and_shows_their_age() {
        let counts = Counts::default();
        assert_eq!(get(&counts, 1, SECOND).await, (1, Duration::ZERO));
        advance(14 * SECOND).await;
        assert_eq!(get(&counts, 2, SECOND).await, (1, 14 * SECOND));

        // Old enough for new ones, which are made while the page shows these.
        advance(KEPT).await;
        let began = Instant::now();
        let (number, age) = get(&counts, 3, SECOND).await;
        assert_eq!(began.elapsed(), WAIT);
        assert_eq!((number, age), (1, 74 * SECOND));
        // Another page does not wait for the same counting.
        let (number, _) = get(&counts, 4, SECOND).await;
        assert_eq!((number, began.elapsed()), (1, WAIT));
        sleep(SECOND).await;
        assert_eq!(get(&counts, 4, SECOND).await.0, 3);
    }

    /// As a machine is busy for once.
    #[tokio::test(start_paused = true)]
    async fn one_slow_count_between_quick_ones_keeps_no_page_from_new_counts() {
        let counts = Counts::default();
        get(&counts, 1, WAIT / 2).await;
        let (number, _) = get(&counts, 2, 6 * WAIT).await;
        assert_eq!(number, 1);
        sleep(6 * WAIT).await;
        let counted = get(&counts, 3, WAIT / 2).await;
        assert_eq!(counted, (3, Duration::ZERO));
    }

    /// 0.3 s each, as in an incident with many events.
    #[tokio::test(start_paused = true)]
    async fn slow_counts_are_made_again_after_seconds() {
        let counts = Counts::default();
        get(&counts, 1, 6 * WAIT).await;
        advance(5 * SECOND).await;
        assert_eq!(get(&counts, 2, 6 * WAIT).await, (1, 5 * SECOND));
        advance(SECOND).await;
        get(&counts, 3, 6 * WAIT).await;
        sleep(6 * WAIT).await;
        assert_eq!(get(&counts, 4, 6 * WAIT).await.0, 3);
    }

    #[tokio::test(start_paused = true)]
    async fn counts_of_long_ago_or_before_a_change_are_not_shown() {
        let counts = Counts::default();
        get(&counts, 1, SECOND).await;
        advance(OLDEST).await;
        assert_eq!(get(&counts, 2, SECOND).await, (2, Duration::ZERO));
        counts.forget();
        assert_eq!(get(&counts, 3, SECOND).await, (3, Duration::ZERO));
    }
}
