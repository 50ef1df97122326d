use std::time::Duration;

use tokio::time::Instant;

use crate::event::Timestamp;

/// The platform's clock: `tokio::time`, times a factor, and jumps by hand.
///
/// Times are counted from the start of the sandbox.
#[derive(Debug)]
pub(super) struct Clock {
    start: Timestamp,
    speed: u32,
    /// What the clock showed at `origin`.
    base: Duration,
    origin: Instant,
}

impl Clock {
    pub(super) fn new(start: Timestamp, speed: u32) -> Self {
        Self {
            start,
            speed: speed.max(1),
            base: Duration::ZERO,
            origin: Instant::now(),
        }
    }

    pub(super) fn now(&self) -> Duration {
        self.base
            .saturating_add(self.origin.elapsed().saturating_mul(self.speed))
    }

    pub(super) fn advance(&mut self, time: Duration) {
        self.base = self.now().saturating_add(time);
        self.origin = Instant::now();
    }

    pub(super) fn set_speed(&mut self, speed: u32) {
        self.advance(Duration::ZERO);
        self.speed = speed.max(1);
    }

    /// When this clock will show `at`.
    pub(super) fn instant(&self, at: Duration) -> Instant {
        // Rounded up, so that it is not a moment too early.
        let nanos = at
            .saturating_sub(self.base)
            .as_nanos()
            .div_ceil(self.speed.into());
        let wait = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        self.origin + wait
    }

    pub(super) fn timestamp(&self, at: Duration) -> Timestamp {
        let millis = i64::try_from(at.as_millis()).unwrap_or(i64::MAX);
        Timestamp::from_millis(self.start.as_millis().saturating_add(millis))
    }
}
