//! The sender's limits, from which every default is derived.

use std::time::Duration;

/// The limits of the platform's sender ([Spec 6, rule 3](crate::docs::platform#spec-6-rule-3) and
/// [rule 4](crate::docs::platform#spec-6-rule-4); [Spec 8](crate::docs::platform#spec-8)).
///
/// The defaults of [`Webhooks`](crate::Webhooks) for retention, leases and `Retry-After` are
/// derived from these numbers. Change them only for a platform with other limits.
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
#[non_exhaustive]
pub struct SenderPolicy {
    /// The time between two attempts to deliver one event; 600 seconds by default.
    pub retry_every: Duration,
    /// How long an event is retried; 7 days by default.
    pub retry_for: Duration,
    /// How many attempts per hour may fail before the webhook is disabled; 500 by default. `None` if the sender has no such
    /// rule, or it is not known.
    pub disable_after: Option<u32>,
    /// How long the sender waits for an answer. `None` if it is not known.
    pub deadline: Option<Duration>,
}

impl SenderPolicy {
    /// Returns the limits of a sender that retries an event every `retry_every`, for `retry_for`, and is not known to disable
    /// a webhook.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_webhook::SenderPolicy;
    ///
    /// let (minute, day) = (Duration::from_secs(60), Duration::from_secs(24 * 60 * 60));
    /// let policy = SenderPolicy::new(5 * minute, 3 * day).disable_after(100);
    /// assert_eq!(policy.retention(), 4 * day);
    /// ```
    #[must_use]
    pub const fn new(retry_every: Duration, retry_for: Duration) -> Self {
        Self {
            retry_every,
            retry_for,
            disable_after: None,
            deadline: None,
        }
    }

    /// Sets how long the sender waits for an answer. A receiver without an inbox warns at its start if a handler may take
    /// longer.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_webhook::SenderPolicy;
    ///
    /// let policy = SenderPolicy::default().deadline(Duration::from_secs(3));
    /// assert_eq!(policy.deadline, Some(Duration::from_secs(3)));
    /// ```
    #[must_use]
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Sets how many attempts per hour may fail before the webhook is disabled.
    #[must_use]
    pub const fn disable_after(mut self, failures: u32) -> Self {
        self.disable_after = Some(failures);
        self
    }

    /// Returns how long a completed key is remembered by default: [`retry_for`](Self::retry_for) plus
    /// one day.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_webhook::SenderPolicy;
    ///
    /// let day = Duration::from_secs(24 * 60 * 60);
    /// assert_eq!(SenderPolicy::default().retention(), 8 * day);
    /// ```
    #[must_use]
    pub const fn retention(&self) -> Duration {
        self.retry_for
            .saturating_add(Duration::from_secs(24 * 60 * 60))
    }

    /// Returns how long a claim lasts without renewal by default: a tenth of
    /// [`retry_every`](Self::retry_every), so that the lease has expired before the first retry after a
    /// crash.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_webhook::SenderPolicy;
    ///
    /// assert_eq!(SenderPolicy::default().lease(), Duration::from_secs(60));
    /// ```
    #[must_use]
    pub fn lease(&self) -> Duration {
        self.retry_every / 10
    }
}

impl Default for SenderPolicy {
    fn default() -> Self {
        let week = Duration::from_secs(7 * 24 * 60 * 60);
        Self::new(Duration::from_secs(600), week).disable_after(500)
    }
}
