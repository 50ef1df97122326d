//! The counts of an inbox. Counting millions of events takes a second, and pages do not wait for that long.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::inbox::{Inbox, Queue, Stats};
use crate::store::{StoreError, StoreErrorKind};

/// How long a page waits for new counts if there are earlier ones.
const WAIT: Duration = Duration::from_millis(50);

/// Counts that take longer than [`WAIT`] are kept for this many times their duration.
const SHARE: u32 = 10;

/// The age up to which the last counts are shown while new ones are made, if counting does not take longer.
const OLDEST: Duration = Duration::from_secs(30);

/// The last counts, and those that are made now.
#[derive(Clone, Default)]
pub(super) struct Counts(Arc<Mutex<Kept>>);

#[derive(Default)]
struct Kept {
    last: Option<Last>,
    /// The end of the counting that is in progress.
    counting: Option<watch::Receiver<()>>,
    /// The number of changes after which counts were forgotten.
    changes: u64,
}

struct Last {
    stats: Stats,
    at: Instant,
    took: Duration,
}

impl Counts {
    /// Returns new counts, or the last ones if counting takes longer than [`WAIT`].
    pub(super) async fn get<Q: Queue>(&self, inbox: &Inbox<Q>) -> Result<Stats, StoreError> {
        let known = {
            let kept = self.lock();
            if let Some(last) = &kept.last
                && last.took > WAIT
                && last.at.elapsed() < SHARE * last.took
            {
                return Ok(last.stats.clone());
            }
            let oldest = |last: &&Last| OLDEST.max(2 * SHARE * last.took);
            let last = kept.last.as_ref();
            last.filter(|last| last.at.elapsed() < oldest(last))
                .map(|last| last.stats.clone())
        };
        let Some(known) = known else {
            return self.count(inbox.clone()).await;
        };
        match timeout(WAIT, self.count(inbox.clone())).await {
            Ok(counted) => counted,
            Err(_) => Ok(known),
        }
    }

    /// Drops the last counts after a change, so that the next page counts again.
    pub(super) fn forget(&self) {
        let mut kept = self.lock();
        *kept = Kept {
            changes: kept.changes + 1,
            ..Kept::default()
        };
    }

    /// Counts, or waits for the counting in progress, which continues if the caller is dropped.
    async fn count<Q: Queue>(&self, inbox: Inbox<Q>) -> Result<Stats, StoreError> {
        let asked = Instant::now();
        let running = self.lock().counting.clone();
        if let Some(mut running) = running {
            // It ends by being dropped.
            let _ = running.changed().await;
            if let Some(last) = &self.lock().last
                && last.at >= asked
            {
                return Ok(last.stats.clone());
            }
        }
        let (ends, counting) = watch::channel(());
        let changes = {
            let mut kept = self.lock();
            kept.counting = Some(counting);
            kept.changes
        };
        let of = self.clone();
        let counted = tokio::spawn(async move {
            let _ends = ends;
            let began = Instant::now();
            let stats = inbox.stats().await;
            let mut kept = of.lock();
            if kept.changes != changes {
                return stats;
            }
            kept.counting = None;
            if let Ok(stats) = &stats {
                kept.last = Some(Last {
                    stats: stats.clone(),
                    at: Instant::now(),
                    took: began.elapsed(),
                });
            }
            stats
        });
        match counted.await {
            Ok(stats) => stats,
            Err(error) => Err(StoreError::new(StoreErrorKind::Unavailable, error)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
