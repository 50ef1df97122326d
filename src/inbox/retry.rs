//! The delays between attempts, and the end of them. A dead letter is freed by a person: see each queue's `person`.

use std::time::Duration;

/// Decides when an event is tried again after a failure, and when it becomes a dead letter.
///
/// By default, the delay doubles with each failure from 5 seconds to 1 hour, and the event becomes a dead letter when
/// it fails 7 days or more after its first failure. Up to a quarter of each delay is subtracted at random. Failures
/// that do not count have [limits of their own](crate::docs::inbox#when-an-attempt-fails).
///
/// ```
/// use std::time::Duration;
/// use tower_webhook::inbox::Retry;
///
/// let retry = Retry::default()
///     .delays(Duration::from_secs(1), Duration::from_secs(60))
///     .give_up_after(Duration::from_secs(24 * 60 * 60))
///     .max_attempts(20);
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Retry {
    shortest: Duration,
    longest: Duration,
    give_up_after: Duration,
    max_attempts: Option<u32>,
}

/// The shortest delay of an event whose type is short of credit.
const WHEN_SHORT: Duration = Duration::from_secs(2 * 60);

impl Default for Retry {
    fn default() -> Self {
        Self {
            shortest: Duration::from_secs(5),
            longest: Duration::from_secs(60 * 60),
            give_up_after: Duration::from_secs(7 * 24 * 60 * 60),
            max_attempts: None,
        }
    }
}

impl Retry {
    /// Sets the delay after the first failure, and the longest delay: 5 seconds and 1 hour by default. The longest
    /// delay is at least `shortest`. A handler can ask for a longer delay with
    /// [`HandlerError::retry_after`](crate::HandlerError::retry_after).
    pub fn delays(mut self, shortest: Duration, longest: Duration) -> Self {
        self.shortest = shortest;
        self.longest = longest.max(shortest);
        self
    }

    /// Sets the time after the first failure at which another failure is the last one: 7 days by default.
    pub fn give_up_after(mut self, duration: Duration) -> Self {
        self.give_up_after = duration;
        self
    }

    /// Sets the maximum number of counted attempts. Their number is not limited by default.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = Some(attempts);
        self
    }

    /// Whether a failure that counts is the last one, of an event that had failed `failures` times before, first
    /// `tried_for` ago.
    pub(super) fn is_last(&self, failures: u32, tried_for: Option<Duration>) -> bool {
        let next = failures.saturating_add(1);
        self.max_attempts.is_some_and(|most| next >= most)
            || failures > 0 && tried_for.is_some_and(|tried_for| tried_for >= self.give_up_after)
    }

    /// The delay after a failure that follows `failures` others, without up to a quarter of it: `jitter` is from 0 to 1,
    /// so that events that failed at the same time are not tried again at the same time.
    pub(super) fn delay(&self, failures: u32, jitter: f64) -> Duration {
        let factor = 2_u32.saturating_pow(failures.min(31));
        self.with_jitter(self.shortest.saturating_mul(factor), jitter)
    }

    /// The shortest delay while the credit of the event's type is short: events that were never tried go first.
    pub(super) fn delay_when_short(&self, jitter: f64) -> Duration {
        self.with_jitter(WHEN_SHORT, jitter)
    }

    fn with_jitter(&self, delay: Duration, jitter: f64) -> Duration {
        let delay = delay.min(self.longest);
        delay.saturating_sub(delay.mul_f64(jitter / 4.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(60 * 60);

    #[test]
    fn delays_double_up_to_the_longest() {
        let retry = Retry::default();
        for (failures, longest) in [
            (0, 5),
            (1, 10),
            (2, 20),
            (9, 2560),
            (10, 3600),
            (u32::MAX, 3600),
        ] {
            let longest = Duration::from_secs(longest);
            assert_eq!(retry.delay(failures, 0.0), longest);
            assert_eq!(retry.delay(failures, 1.0), longest.mul_f64(0.75));
        }
        let hourly = retry.delays(HOUR, Duration::ZERO);
        assert_eq!(
            [0, 1].map(|failures| hourly.delay(failures, 0.0)),
            [HOUR; 2]
        );
    }

    #[test]
    fn an_event_is_given_up_after_its_time_or_its_attempts() {
        let retry = Retry::default();
        assert!(!retry.is_last(0, None));
        assert!(!retry.is_last(0, Some(168 * HOUR)), "of others");
        assert!(!retry.is_last(500, Some(167 * HOUR)));
        assert!(retry.is_last(1, Some(168 * HOUR)));

        let soon = retry.give_up_after(HOUR);
        assert!(soon.is_last(1, Some(HOUR)));
        let twice = Retry::default().max_attempts(2);
        assert!(!twice.is_last(0, None));
        assert!(twice.is_last(1, Some(HOUR)));
    }
}
