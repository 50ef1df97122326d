//! Counts of observers that the queue keeps: of all processes, and across restarts.

use std::time::{Duration, SystemTime};

use super::handle::{Inbox, Settings, Shared};
use super::queue::Queue;
use crate::store::StoreError;
use crate::telemetry::{Count, CountsOf, Kept, Series, minute_of};

/// How many minutes of an hour-long history are put together.
pub(crate) const HOUR: i64 = 60;
const DAY: i64 = 24 * HOUR;

/// After how many days nothing is left.
const HOURS_KEPT: i64 = 30 * DAY;

/// For how many minutes counts are kept by minute. Then they are put together by the hour, but for those of a budget.
pub(crate) fn minutes_kept(series: Series) -> i64 {
    match series {
        Series::Budget => 2 * HOUR,
        Series::Refused => 7 * DAY,
        _ => DAY,
    }
}

/// The first minutes that are kept: by minute, and by the hour.
pub(crate) fn kept_from(now: SystemTime, series: Series) -> (i64, i64) {
    let now = minute_of(now);
    (now - minutes_kept(series), now - HOURS_KEPT)
}

/// How many counts one call writes.
const AT_ONCE: usize = 256;

/// The time limit of a call.
const LIMIT: Duration = Duration::from_secs(5);

/// How many counts of failures are read.
const MOST_FAILURES: usize = 10_000;

impl<Q: Queue> Inbox<Q> {
    /// Returns counts of all processes, from the newest minute to the oldest.
    #[cfg(feature = "console")]
    pub(crate) async fn counts(&self, of: &CountsOf) -> Result<Vec<Count>, StoreError> {
        let counts = self.shared.queue.counts(of);
        self.settings.call("counts", counts).await
    }
}

impl<Q: Queue> Shared<Q> {
    /// Writes the counts that have changed since the last call.
    pub(super) async fn write_counts(
        &self,
        settings: &Settings,
        kept: &[Kept],
    ) -> Result<(), StoreError> {
        // Several workers of one inbox may have the same observers.
        let mut written = self.written.lock().await;
        for tally in kept.iter().map(Kept::tally) {
            let after = written.entry(tally.process()).or_default();
            loop {
                let (counts, last) = tally.changed(*after, AT_ONCE);
                if counts.is_empty() {
                    break;
                }
                let write = self.queue.note_counts(&counts);
                let now = settings.call_within(LIMIT, "note-counts", write).await?;
                tally.set_time(now);
                *after = last;
            }
        }
        Ok(())
    }

    /// Reads the failures of the last hour.
    pub(super) async fn read_failures(
        &self,
        settings: &Settings,
        kept: &[Kept],
    ) -> Result<(), StoreError> {
        for kept in kept {
            let Kept::Budget(budget) = kept else {
                continue;
            };
            let now = minute_of(budget.tally().now());
            let of = CountsOf {
                series: vec![Series::Budget],
                from: now - HOUR - 1,
                until: now + 2,
                bucket: 1,
                by_process: true,
                limit: MOST_FAILURES,
            };
            let counts = self.queue.counts(&of);
            budget.take(settings.call_within(LIMIT, "counts", counts).await?);
        }
        Ok(())
    }
}
