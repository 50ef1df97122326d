//! What happens to deliveries, for operators: observations, the failure budget, silence, and metrics.
//!
//! An [`Observer`] sees each delivery, attempt and call of a store when it has ended. This module has these:
//!
//! - [`FailureBudget`] counts failed deliveries against the limit above which the sender disables a webhook, and logs
//!   warnings before that.
//! - [`Silence`] notices that a webhook delivers nothing any more.
//! - [`Recent`] keeps the last problems and durations, and counts the events of each minute and the answers of an hour.
#![cfg_attr(
    feature = "metrics",
    doc = "- [`Metrics`] records metrics through the [`metrics`](https://docs.rs/metrics) facade."
)]
#![cfg_attr(
    not(feature = "metrics"),
    doc = "- `Metrics` records metrics through the [`metrics`](https://docs.rs/metrics) facade (feature `metrics`)."
)]
//!
//! Without an observer, none of this costs anything.
//!
//! ```
//! use tower_webhook::telemetry::{FailureBudget, Silence};
//! use tower_webhook::{Secret, Webhooks};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_webhook::ConfigError> {
//! let budget = FailureBudget::default();
//! let silence = Silence::new().learn();
//! tokio::spawn(silence.clone().watch());
//!
//! let webhooks = Webhooks::new(Secret::new("8c1f…")?).observer((budget.clone(), silence));
//! # Ok(())
//! # }
//! ```

mod budget;
mod calls;
#[cfg(feature = "metrics")]
mod gauges;
mod labels;
#[cfg(feature = "metrics")]
mod metrics;
mod observer;
mod recent;
mod request;
mod short;
mod silence;
mod span;
mod tally;
mod watch;

pub use self::budget::{FailureBudget, Spent};
pub(crate) use self::calls::Call;
#[cfg(feature = "metrics")]
pub(crate) use self::gauges::Gauges;
#[cfg(all(feature = "metrics", feature = "moka"))]
pub(crate) use self::metrics::EVICTIONS;
#[cfg(feature = "metrics")]
pub use self::metrics::Metrics;
#[cfg(feature = "metrics")]
pub(crate) use self::metrics::{
    AWAY, BLOCKED, BUFFERED, BYTES, DEAD, DETACHED_NOW, IN_PROGRESS, LIMIT, OLDEST, PAUSED,
    RETRYING, WAITING,
};
#[cfg(all(feature = "metrics", feature = "sqlite"))]
pub(crate) use self::metrics::{
    SPOOL_BYTES, SPOOL_EVENTS, SPOOL_FULL_IN, SPOOL_LIMIT, SPOOL_OLDEST, SPOOL_OPEN, SPOOL_REFUSED,
};
pub(crate) use self::observer::Observers;
pub use self::observer::{
    AttemptEnded, CallEnded, CallTarget, DeliveryEnded, End, Observation, Observer,
};
pub use self::recent::{Minute, Problem, Recent};
pub(crate) use self::request::Asked;
pub(crate) use self::short::Short;
pub use self::silence::{Silence, Silent};
pub(crate) use self::span::{DeliverySpan, item_span};
pub use self::tally::{Count, CountsOf, Sample, Series, minute_of};
pub(crate) use self::tally::{Kept, Sums};
pub(crate) use self::watch::{AttemptWatch, DeliveryWatch, Ending};
pub use crate::error::Chain;
pub(crate) use crate::throttle::Throttle;
