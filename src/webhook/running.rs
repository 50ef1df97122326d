//! What still runs when the server has stopped.

use std::future::Future;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::sleep;

use crate::execution::{DrainTimeout, Runs};
use crate::inbox::WorkerHandle;
#[cfg(feature = "metrics")]
use crate::signature::SignatureLayer;
#[cfg(feature = "metrics")]
use crate::store::StoreError;

/// The part of a receiver that a server does not know: with a store, the runs whose client disconnected; with an inbox,
/// its worker. It is returned by [`Webhooks::start`](crate::Webhooks).
///
/// With a store, drain it after the server has stopped. With an inbox, a drain may begin as soon as the server is to
/// stop, which keeps a slow connection from [delaying it](crate::docs::inbox#shutdown). To share it with a task that records metrics, put it into an
/// [`Arc`](std::sync::Arc). Dropping it stops the worker of an inbox, and interrupts its attempts as
/// [`drain`](Self::drain) does at its limit. Detached runs continue.
#[derive(Debug)]
#[must_use = "dropping it stops the worker of an inbox"]
pub struct Running {
    work: Work,
    #[cfg(feature = "metrics")]
    signature: SignatureLayer,
}

#[derive(Debug)]
pub(super) enum Work {
    Inline(Runs),
    Inbox(WorkerHandle),
}

impl Running {
    pub(super) fn new(work: Work, signature: &crate::signature::SignatureLayer) -> Self {
        #[cfg(not(feature = "metrics"))]
        let _ = signature;
        Self {
            work,
            #[cfg(feature = "metrics")]
            signature: signature.clone(),
        }
    }

    /// Waits until everything in progress has ended, or until `limit` from now has passed.
    ///
    /// With a store, it waits for detached runs; see [`Runs::drain`]. With an inbox, the worker takes no more events, and
    /// the attempts in progress are waited for; see [`WorkerHandle::drain`]. Attempts that are still in progress at the
    /// limit are interrupted, and their events are released.
    ///
    /// A server that shuts down gracefully ends with its last connection, and the worker takes events until then. To
    /// prevent that, drain at the same time:
    ///
    /// ```ignore
    /// let server = axum::serve(listener, app).with_graceful_shutdown(tower_webhook::shutdown());
    /// let drained = async {
    ///     tower_webhook::shutdown().await;
    ///     running.drain(Duration::from_secs(30)).await
    /// };
    /// let (served, drained) = tokio::join!(server.into_future(), drained);
    /// ```
    ///
    /// # Errors
    ///
    /// When the limit has passed. No event is lost: the platform or the next worker tries again.
    pub async fn drain(&self, limit: Duration) -> Result<(), DrainTimeout> {
        self.drained(limit).await
    }

    // A box that this crate makes, so that the program of a user does not compile it.
    fn drained(&self, limit: Duration) -> BoxFuture<'_, Result<(), DrainTimeout>> {
        Box::pin(self.drain_until(sleep(limit)))
    }

    /// Like [`drain`](Self::drain), until `cut` is ready: a deadline, or a second signal.
    ///
    /// # Errors
    ///
    /// When `cut` was ready first.
    pub async fn drain_until(&self, cut: impl Future<Output = ()>) -> Result<(), DrainTimeout> {
        match &self.work {
            Work::Inline(runs) => runs.drain_until(cut).await,
            Work::Inbox(worker) => worker.drain_until(cut).await,
        }
    }

    /// Records the memory of the bodies that are being received, and with a store the number of detached runs, with an
    /// inbox its events and its size: see the [table of metrics](crate::docs::metrics).
    ///
    /// # Errors
    ///
    /// When the queue of an inbox fails.
    #[cfg(feature = "metrics")]
    pub async fn record_metrics(&self) -> Result<(), StoreError> {
        self.signature.record_metrics();
        match &self.work {
            Work::Inline(runs) => {
                runs.record_metrics();
                Ok(())
            }
            Work::Inbox(worker) => worker.record_metrics().await,
        }
    }
}
