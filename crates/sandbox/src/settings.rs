//! The settings of a sandbox.

use std::time::{Duration, SystemTime};

use tower_webhook::Sender;
use tower_webhook::event::Timestamp;

use super::fault::Faults;

/// The settings of a [`Sandbox`](super::Sandbox): see [`Sandbox::in_process_with`](super::Sandbox::in_process_with) and [`Sandbox::over_http`](super::Sandbox::over_http).
///
/// ```
/// use tower_webhook_sandbox::{Faults, Settings};
///
/// let settings = Settings {
///     seed: 7,
///     faults: Faults::all(0.02),
///     ..Settings::default()
/// };
/// ```
#[derive(Clone, Debug)]
pub struct Settings {
    /// The seed of all random numbers: faults, keys and the contents of chats. Defaults to 0.
    pub seed: u64,
    /// How often each [`Fault`](super::Fault) happens. None happens by default.
    pub faults: Faults,
    /// How deliveries are signed, and when they are retried and webhooks disabled. Defaults to the platform itself.
    pub sender: Sender,
    /// How long the platform waits for a response, in `tokio::time` like the delays of faults. Defaults
    /// to 10 seconds.
    pub attempt_timeout: Duration,
    /// When a chat that was closed or transferred is rated without a script, counted from its last event
    /// ([Spec 3, rule 1](tower_webhook::docs::platform#spec-3-rule-1)). Defaults to an hour.
    pub rate_after: Duration,
    /// The time of the platform's clock at the start. Defaults to the system's time; set it if runs must
    /// repeat byte by byte.
    pub start: Timestamp,
    /// How much faster the platform's clock runs than `tokio::time`. Defaults to 1.
    pub speed: u32,
}

impl Default for Settings {
    fn default() -> Self {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        Self {
            seed: 0,
            faults: Faults::none(),
            sender: Sender::default(),
            attempt_timeout: Duration::from_secs(10),
            rate_after: Duration::from_secs(60 * 60),
            start: Timestamp::from_millis(i64::try_from(now.as_millis()).unwrap_or_default()),
            speed: 1,
        }
    }
}
