//! For how long pages read, and how a list continues that has ended early.

use std::future::Future;
use std::time::Duration;

use tokio::time::timeout;
use tower_webhook::inbox::EventId;
use tower_webhook::store::{StoreError, StoreErrorKind};

/// The time limit of what a page reads.
const LIMIT: Duration = Duration::from_secs(5);

/// Reads within the time limit. Changes have none: after one, nobody would know whether a change has taken effect.
pub(super) async fn read<T>(
    reading: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    timeout(LIMIT, reading).await.unwrap_or_else(|_| {
        Err(StoreError::new(
            StoreErrorKind::TimedOut,
            "the page waited for 5 s",
        ))
    })
}

/// The time limit of a search. After it, the page shows the events that were found.
pub(super) const SEARCH: Duration = Duration::from_millis(40);

/// How a list continues.
#[derive(Clone, Copy, Debug)]
pub(super) enum More {
    Nothing,
    /// Another page, after this event.
    Page(EventId),
    /// Events that were not searched, after this one, and how many percent were.
    Search(EventId, u8),
}
