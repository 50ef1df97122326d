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

/// Tells the machine's clock, and the one that never jumps.
pub(super) type Machine = Box<dyn Fn() -> (SystemTime, Instant) + Send>;

pub(super) fn machine() -> Machine {
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

/// The last millisecond of a `duration` that begins `now`, even of `Duration::MAX`.
///
/// Rounded up, because a lease must not end before its time.
pub(super) fn after(now: i64, duration: Duration) -> i64 {
    let millis = duration.as_nanos().div_ceil(1_000_000);
    now.saturating_add(i64::try_from(millis).unwrap_or(i64::MAX))
}
