//! What the sender promises, as one value from which every default is derived.

use std::time::Duration;

/// The limits of the platform's sender (Spec 6, rules 3 and 4; Spec 8).
///
/// Nothing in this crate repeats these numbers: retention, leases and `Retry-After` follow from
/// them. Change them only for a platform that has other ones.
///
/// ```
/// use std::time::Duration;
/// use tower_webhook::SenderPolicy;
///
/// let policy = SenderPolicy::default();
/// assert_eq!(policy.retry_every, Duration::from_secs(600));
/// assert!(policy.retention() > policy.retry_for);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderPolicy {
    /// The time between two attempts to deliver one event: 600 seconds.
    pub retry_every: Duration,
    /// How long an event is retried: 7 days.
    pub retry_for: Duration,
    /// A webhook with more failed attempts than this within an hour is disabled: 500.
    pub disable_after: u32,
}

impl SenderPolicy {
    /// How long a completed key is remembered unless set: a day longer than the sender retries.
    #[must_use]
    pub const fn retention(&self) -> Duration {
        self.retry_for
            .saturating_add(Duration::from_secs(24 * 60 * 60))
    }

    /// How long a claim lasts without renewal unless set: a tenth of `retry_every`, so that the
    /// first retry after a crash finds the key free.
    #[must_use]
    pub fn lease(&self) -> Duration {
        self.retry_every / 10
    }
}

impl Default for SenderPolicy {
    fn default() -> Self {
        Self {
            retry_every: Duration::from_secs(600),
            retry_for: Duration::from_secs(7 * 24 * 60 * 60),
            disable_after: 500,
        }
    }
}
