//! What is in the file of a spool, for operators.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

use super::Shared;
use crate::inbox::in_words;
use crate::inbox::queue::{CountEvents, MeasureTables};
use crate::lock::lock;
use crate::store::{StoreError, StoreErrorKind};

/// What is in the file of a spool.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Status {
    /// The number of events that wait there.
    pub events: u64,
    /// The time since the oldest of them was accepted.
    pub oldest: Option<Duration>,
    /// The number of events that the queue refuses, though it accepts others. They are tried again, ever less often.
    pub refused: u64,
    /// The bytes that are in use.
    pub bytes: u64,
    /// The limit of these bytes.
    pub limit: u64,
    /// The time until the limit is reached, at the rate of the last minute. `None` if the file does not grow.
    pub full_in: Option<Duration>,
    /// Whether the queue does not accept events, so that all go to the file.
    pub is_open: bool,
}

/// One line, such as `12 events, the oldest 3 s ago`.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} events", self.events)?;
        if let Some(oldest) = self.oldest {
            write!(f, ", the oldest {} ago", in_words(oldest))?;
        }
        if let Some(full_in) = self.full_in {
            write!(f, ", full in {}", in_words(full_in))?;
        }
        if self.refused > 0 {
            write!(f, ", {} refused", self.refused)?;
        }
        Ok(())
    }
}

/// The status, and the bytes of the last minute.
#[derive(Default)]
pub(super) struct Measured {
    pub(super) status: Status,
    pub(super) at: Option<Instant>,
    /// When the events were counted, and how long that took.
    pub(super) counted: Option<(Instant, Duration)>,
    bytes: VecDeque<(Instant, u64)>,
    was_warned: bool,
}

/// The time over which the rate is measured.
const RATE_OVER: Duration = Duration::from_secs(60);

/// When the file is nearly full, which the log has.
pub(super) const SOON: Duration = Duration::from_secs(40 * 60);

/// The time between two counts of the events, each of which reads all of them, in times that the last one took.
const COUNT_EVERY: u32 = 50;
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What a row and its indexes take beside the body.
const ROW: u64 = 1024;

impl Measured {
    fn may_count(&self) -> bool {
        let counted = self.counted.as_ref();
        counted.is_none_or(|(at, took)| at.elapsed() >= (*took * COUNT_EVERY).min(LONGEST_PAUSE))
    }

    fn see(&mut self, now: Instant, bytes: u64, limit: u64) {
        self.at = Some(now);
        while self
            .bytes
            .front()
            .is_some_and(|(at, _)| now - *at > RATE_OVER)
        {
            self.bytes.pop_front();
        }
        let first = self.bytes.front().copied();
        self.bytes.push_back((now, bytes));
        let full_in = first.and_then(|(at, before)| {
            let (grown, took) = (bytes.checked_sub(before)?, now - at);
            let left = limit.saturating_sub(bytes) as f64 * took.as_secs_f64() / grown as f64;
            // Without growth, or beyond all time.
            Duration::try_from_secs_f64(left).ok()
        });
        (self.status.bytes, self.status.full_in) = (bytes, full_in);
    }
}

impl Shared {
    pub(super) fn status(&self) -> Status {
        Status {
            limit: self.spool.limit,
            is_open: self.gate.is_open(),
            refused: self.refused(),
            ..lock(&self.measured).status.clone()
        }
    }

    /// Measures what is in the file, and fits the reserve to it.
    pub(super) async fn measure(&self) -> Result<(), StoreError> {
        let may_count = lock(&self.measured).may_count();
        if may_count {
            self.count().await?;
        }
        let bytes = self.file.size().await?;
        let mut measured = lock(&self.measured);
        measured.see(Instant::now(), bytes, self.spool.limit);
        let full_in = measured.status.full_in.filter(|full_in| *full_in < SOON);
        match full_in {
            Some(full_in) if !measured.was_warned => tracing::error!(
                minutes = full_in.as_secs() / 60,
                "at the rate of the last minute, the spool is soon full, and deliveries are then answered with 503"
            ),
            _ => {}
        }
        measured.was_warned = full_in.is_some();
        drop(measured);
        lock(&self.reserve).follow();
        Ok(())
    }

    async fn count(&self) -> Result<(), StoreError> {
        let began = Instant::now();
        let stats = self.file.stats().await?;
        let mut measured = lock(&self.measured);
        measured.counted = Some((Instant::now(), began.elapsed()));
        measured.status.events = stats.unsettled();
        measured.status.oldest = stats.kinds.iter().filter_map(|kind| stats.age(kind)).max();
        Ok(())
    }

    /// Refuses an event for which there is no room.
    pub(super) async fn check_room(&self, body: usize) -> Result<(), StoreError> {
        let bytes = body as u64 + ROW;
        let has_room = || {
            let mut measured = lock(&self.measured);
            let after = measured.status.bytes.saturating_add(bytes);
            let has_room = after <= self.spool.limit;
            if has_room {
                measured.status.bytes = after;
            }
            has_room
        };
        if has_room() {
            return Ok(());
        }
        lock(&self.measured).status.bytes = self.file.size().await?;
        match has_room() {
            true => Ok(()),
            false => Err(StoreError::new(
                StoreErrorKind::Unavailable,
                format!(
                    "the spool has reached its limit of {} bytes",
                    self.spool.limit
                ),
            )),
        }
    }

    /// Records the metrics of the spool: see the [table of metrics](crate::docs::metrics#spool).
    #[cfg(feature = "metrics")]
    pub(super) fn record_metrics(&self) {
        use crate::telemetry as names;

        let status = self.status();
        let seconds = |time: Option<Duration>, none| time.map_or(none, |time| time.as_secs_f64());
        metrics::gauge!(names::SPOOL_EVENTS).set(status.events as f64);
        metrics::gauge!(names::SPOOL_OLDEST).set(seconds(status.oldest, 0.0));
        metrics::gauge!(names::SPOOL_REFUSED).set(status.refused as f64);
        metrics::gauge!(names::SPOOL_BYTES).set(status.bytes as f64);
        metrics::gauge!(names::SPOOL_LIMIT).set(status.limit as f64);
        metrics::gauge!(names::SPOOL_FULL_IN).set(seconds(status.full_in, f64::INFINITY));
        metrics::gauge!(names::SPOOL_OPEN).set(f64::from(u8::from(status.is_open)));
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[test]
    fn a_status_is_one_line() {
        let mut status = Status {
            events: 12,
            ..Status::default()
        };
        assert_eq!(status.to_string(), "12 events");
        status.oldest = Some(Duration::from_millis(3999));
        status.full_in = Some(Duration::from_secs(179));
        status.refused = 1;
        let line = "12 events, the oldest 3 s ago, full in 2 min, 1 refused";
        assert_eq!(status.to_string(), line);
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_is_full_in_a_time_that_follows_from_the_last_minute() {
        let mut measured = Measured::default();
        for (passed, bytes, full_in) in [
            (0, 1_000, None),
            (10, 2_000, Some(80)),
            // From what it had 60 s ago.
            (60, 5_000, Some(100)),
            (1, 5_000, None),
            (61, 5_000, None),
            (1, 4_000, None),
            (1, 11_000, Some(0)),
        ] {
            advance(Duration::from_secs(passed)).await;
            measured.see(Instant::now(), bytes, 10_000);
            let seconds = measured.status.full_in.map(|it| it.as_secs());
            assert_eq!(seconds, full_in, "{bytes}");
            assert_eq!(measured.status.bytes, bytes);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn counts_take_a_fiftieth_of_the_time() {
        let mut measured = Measured::default();
        assert!(measured.may_count());
        measured.counted = Some((Instant::now(), Duration::from_millis(100)));
        advance(Duration::from_millis(4999)).await;
        assert!(!measured.may_count());
        advance(Duration::from_millis(1)).await;
        assert!(measured.may_count());
        // As when the process was frozen.
        measured.counted = Some((Instant::now(), Duration::from_secs(20)));
        advance(LONGEST_PAUSE).await;
        assert!(measured.may_count());
    }
}
