//! Faults of the Admin API.

use std::time::Duration;

use http::StatusCode;

/// A fault of the [Admin API](super::GraphQl), set by [`Sandbox::inject_api`](super::Sandbox::inject_api)
/// or drawn in [strict mode](super::Sandbox::strict).
///
/// The spec publishes neither the errors nor the limits of the API
/// ([Spec 7](tower_webhook::docs::platform#spec-7), [8](tower_webhook::docs::platform#spec-8)), so all of these are invented.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ApiFault {
    /// 429 with a `Retry-After` of 30 seconds, and an error in GraphQL's envelope.
    TooManyRequests,
    /// 503 with a `Retry-After` of 30 seconds, and an error in GraphQL's envelope.
    Unavailable,
    /// 500 with a page in HTML, as from a proxy.
    ServerError,
    /// The right response after 5 seconds of `tokio::time`.
    Slow,
    /// 200 with partial data: `isAvailable` is `null`, and the response has an error for it.
    PartialErrors,
    /// 200 with `null` for one of `partner`, `state`, `chat` and `isAvailable`, chosen by the
    /// [seed](super::Settings::seed), and without an error: the schema allows it.
    Null,
}

impl ApiFault {
    /// All faults.
    pub const ALL: [Self; 6] = [
        Self::TooManyRequests,
        Self::Unavailable,
        Self::ServerError,
        Self::Slow,
        Self::PartialErrors,
        Self::Null,
    ];

    /// The status of a response that the fault replaces.
    pub(super) fn status(self) -> Option<StatusCode> {
        match self {
            Self::TooManyRequests => Some(StatusCode::TOO_MANY_REQUESTS),
            Self::Unavailable => Some(StatusCode::SERVICE_UNAVAILABLE),
            Self::ServerError => Some(StatusCode::INTERNAL_SERVER_ERROR),
            Self::Slow | Self::PartialErrors | Self::Null => None,
        }
    }
}

/// How long [`ApiFault::Slow`] takes.
pub(super) const SLOW: Duration = Duration::from_secs(5);

/// The `Retry-After` of [`ApiFault::TooManyRequests`] and [`ApiFault::Unavailable`] in seconds.
pub(super) const RETRY_AFTER_SECONDS: u64 = 30;

/// The fault of one query.
pub(super) struct Drawn {
    pub(super) fault: Option<ApiFault>,
    /// How many fields lead to the field that [`ApiFault::Null`] makes `null`.
    pub(super) depth: u8,
}
