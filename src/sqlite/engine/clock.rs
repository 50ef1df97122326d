//! The time by which leases and retentions are counted.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970 that never run backwards, by the count of all processes that share a file.
///
/// The machine's clock is asked once, at the start. From then on the time goes by [`Instant`], so that a
/// jump of the machine's clock is not noticed, and by what others wrote into the file.
pub(super) struct Clock {
    machine: Machine,
    anchor: Instant,
    anchored_at: i64,
}

/// Reads the machine's clock, and the clock that never jumps.
pub(crate) type Machine = Box<dyn Fn() -> (SystemTime, Instant) + Send>;

pub(crate) fn machine() -> Machine {
    Box::new(|| (SystemTime::now(), Instant::now()))
}

impl Clock {
    pub(super) fn start(machine: Machine) -> Self {
        let (wall, anchor) = machine();
        let since_1970 = wall.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            machine,
            anchor,
            anchored_at: i64::try_from(since_1970.as_millis()).unwrap_or(i64::MAX),
        }
    }

    /// The time, which is no earlier than `highest`: the time that the file has seen.
    pub(super) fn now(&mut self, highest: i64) -> i64 {
        let (_, instant) = (self.machine)();
        let elapsed = instant.saturating_duration_since(self.anchor);
        let elapsed = i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX);
        let own = self.anchored_at.saturating_add(elapsed);
        if own >= highest {
            return own;
        }
        self.anchor = instant;
        self.anchored_at = highest;
        highest
    }
}

/// All processes agree on the time to so many milliseconds. It is written into the file again when it has
/// advanced by as much, because that takes a page in the log.
pub(crate) const AGREEMENT: i64 = 10;

/// The last millisecond of a lease that begins `now`, for the process that is first to see it end.
pub(crate) fn lease_end(now: i64, lease: Duration) -> i64 {
    after(now, lease).saturating_add(AGREEMENT)
}

/// How long a valid lease that ends then still lasts, which is never zero.
pub(crate) fn remaining(now: i64, lease_end: i64) -> Duration {
    let millis = lease_end.saturating_sub(now).saturating_sub(AGREEMENT);
    Duration::from_millis(millis.max(1).unsigned_abs())
}

/// A time that is past for all processes.
pub(crate) fn past(now: i64) -> i64 {
    now.saturating_sub(AGREEMENT + 1)
}

/// The last millisecond of a `duration` that begins `now`, even of `Duration::MAX`. Rounded up.
pub(crate) fn after(now: i64, duration: Duration) -> i64 {
    let millis = duration.as_nanos().div_ceil(1_000_000);
    now.saturating_add(i64::try_from(millis).unwrap_or(i64::MAX))
}
