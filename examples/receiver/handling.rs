//! How events are handled: before they are answered, or from an inbox.

use std::future::Future;
use std::time::Duration;

use tower_webhook::Runs;
use tower_webhook::inbox::WorkerHandle;

/// What is waited for when the receiver stops.
pub(crate) enum Handling {
    Inline(Runs),
    Inbox(WorkerHandle),
}

impl Handling {
    /// What becomes of the events that were running.
    pub(crate) fn rest(&self) -> &'static str {
        match self {
            Self::Inline(_) => "the platform retries the events that were running",
            Self::Inbox(_) => "the events that were running stay in the inbox",
        }
    }

    /// Waits until the running events have finished, or until `cut` is ready, whose output is returned then.
    pub(crate) async fn drain<T>(self, cut: impl Future<Output = T>) -> Option<T> {
        match self {
            Self::Inline(runs) => tokio::select! {
                Ok(()) = runs.drain(Duration::MAX) => None,
                output = cut => Some(output),
            },
            Self::Inbox(worker) => {
                let mut output = None;
                let drained = worker.drain_until(async { output = Some(cut.await) }).await;
                match drained {
                    Ok(()) => None,
                    Err(_) => output,
                }
            }
        }
    }
}
