//! The platform's clock.

use std::time::Duration;

use tokio::time::Instant;
use tower_webhook::event::Timestamp;

/// The platform's clock: `tokio::time` multiplied by a speed, which can be advanced by hand.
///
/// Its times are durations since the start of the sandbox. It is built on `tokio::time`, so a test that
/// pauses Tokio's clock pauses the platform too.
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
        // Fixes the time so far at the old speed, so that the clock neither jumps nor runs backwards.
        self.advance(Duration::ZERO);
        self.speed = speed.max(1);
    }

    /// Converts a time of this clock to an instant of `tokio::time`.
    pub(super) fn instant(&self, at: Duration) -> Instant {
        // Rounded up: an engine that wakes a nanosecond early finds nothing due and wakes again.
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
