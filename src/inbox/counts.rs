//! Counts of observers that the queue keeps: of all processes, and across restarts.

use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use futures_util::future::select_all;
use tokio::time::sleep;

use super::handle::{Inbox, Shared};
use crate::error::Chain;
use crate::store::StoreError;
use crate::telemetry::{Count, CountsOf, Kept, Series, minute_of};

/// How many minutes are put together: those of a bar of each longer history.
pub(crate) const SPANS: [i64; 3] = [1, 30, 12 * HOUR];
const HOUR: i64 = 60;
const DAY: i64 = 24 * HOUR;

/// The first minutes that are kept, for each of [`SPANS`]. Older ones are put together, or deleted if they are those of a
/// budget or of the last span. A process writes those of the last hour.
pub(crate) fn kept_from(now: SystemTime, series: Series) -> [i64; 3] {
    let kept = match series {
        Series::Refused => [7 * DAY, 14 * DAY, 30 * DAY],
        // As long as the samples, which have addresses, too.
        Series::Origin => [2 * HOUR, 7 * DAY, 7 * DAY],
        _ => [2 * HOUR, 14 * DAY, 30 * DAY],
    };
    let now = minute_of(now);
    kept.map(|kept| now - kept)
}

/// How many counts one call writes.
const AT_ONCE: usize = 256;

/// The time limit of a call.
const LIMIT: Duration = Duration::from_secs(5);

/// How many counts of failures are read.
const MOST_FAILURES: usize = 10_000;

/// The interval between writes: what a kill loses.
const EVERY: Duration = Duration::from_secs(1);

/// How many writes there are to a read of the failures of others.
const WRITES: u32 = 5;

/// The longest pause after a failure, in seconds.
const LONGEST_PAUSE: u32 = 30;

impl Inbox {
    /// Returns the counts of all processes, from the newest minute to the oldest. The workers of this inbox write them
    /// once a second, if the [observer](crate::Webhooks::observer) contains [`Recent`](crate::telemetry::Recent) or a
    /// [`FailureBudget`](crate::telemetry::FailureBudget).
    ///
    /// They are kept for 30 days: by the minute for 2 hours (7 days if they are refused deliveries), by 30 minutes for 14
    /// days, and then by 12 hours.
    ///
    /// ```
    /// # use tower_webhook::inbox::Inbox;
    /// # use tower_webhook::store::StoreError;
    /// use std::time::SystemTime;
    /// use tower_webhook::telemetry::{CountsOf, Series, minute_of};
    ///
    /// # async fn example(inbox: &Inbox) -> Result<(), StoreError> {
    /// let now = minute_of(SystemTime::now());
    /// let dead = CountsOf::new([Series::Dead], now - 60..now + 1);
    /// for count in inbox.counts(&dead).await? {
    ///     println!("minute {}: {} dead letters of {:?}", count.minute, count.number, count.kind);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When the queue fails.
    pub async fn counts(&self, of: &CountsOf) -> Result<Vec<Count>, StoreError> {
        let counts = self.shared.queue.count.counts(of);
        self.shared.call("counts", counts).await
    }
}

impl Shared {
    /// Writes counts, and reads the failures of other processes.
    pub(super) async fn keep_counts(&self, kept: &[Kept]) {
        let (mut pause, mut writes) = (1, 0);
        loop {
            let mut done = self.write_counts(kept).await;
            let reads = self.queue.is_shared && writes % WRITES == 0;
            if let Ok(wrote) = done
                // After a failure, a reading tells whether the queue is there again, although nothing has to be written.
                && (reads || writes == 0 || pause > 1)
            {
                let read = self.read_failures(kept).await;
                done = read.map(|has_read| wrote || has_read);
            }
            writes += 1;
            match done {
                Ok(true) => {
                    pause = 1;
                    self.loses_counts.store(false, Ordering::Relaxed);
                }
                // Nobody was asked, so nothing is known of the queue.
                Ok(false) => {}
                Err(error) => {
                    // A worker and a receiver of one process count apart.
                    if !self.loses_counts.swap(true, Ordering::Relaxed) {
                        tracing::warn!(
                            reason = Chain(&error).to_string(),
                            "counts cannot be kept in the database; this is retried, and those of the last hour wait in memory"
                        );
                    }
                    pause = (2 * pause).min(LONGEST_PAUSE);
                }
            }
            sleep(EVERY * pause).await;
            if !self.queue.is_shared && pause == 1 {
                // There is nothing to read.
                let changes = kept.iter().map(|kept| kept.tally().until_changed());
                select_all(changes.map(Box::pin)).await;
            }
        }
    }

    /// Writes the counts that have changed since the last call. Returns whether there were any.
    pub(super) async fn write_counts(&self, kept: &[Kept]) -> Result<bool, StoreError> {
        // Several workers of one inbox may have the same observers.
        let mut written = self.written.lock().await;
        let mut has_written = false;
        for tally in kept.iter().map(Kept::tally) {
            let after = written.entry(tally.process()).or_default();
            loop {
                let (counts, last) = tally.changed(*after, AT_ONCE);
                if counts.is_empty() {
                    break;
                }
                let write = self.queue.count.note_counts(&counts);
                let now = self.call_within(LIMIT, "note-counts", write).await?;
                tally.set_time(now);
                *after = last;
                has_written = true;
            }
        }
        Ok(has_written)
    }

    /// Reads the failures of the last hour. Returns whether a budget needs them.
    pub(super) async fn read_failures(&self, kept: &[Kept]) -> Result<bool, StoreError> {
        let mut has_read = false;
        for kept in kept {
            let Kept::Budget(budget) = kept else {
                continue;
            };
            has_read = true;
            let now = minute_of(budget.tally().now());
            let of = CountsOf {
                series: vec![Series::Budget],
                from: now - HOUR - 1,
                until: now + 2,
                bucket: 1,
                by_process: true,
                limit: MOST_FAILURES,
            };
            let counts = self.queue.count.counts(&of);
            budget.take(self.call_within(LIMIT, "counts", counts).await?);
        }
        Ok(has_read)
    }
}
