//! What still runs when the server has stopped, and how both stop.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::error::BoxError;
use crate::execution::{DrainTimeout, Runs};
use crate::inbox::worker::WorkerHandle;
use crate::signature::SignatureLayer;
#[cfg(feature = "metrics")]
use crate::store::StoreError;

/// The part of a receiver that a server does not know: with a store, the runs whose client disconnected; with an inbox,
/// its worker. It is returned by [`Webhooks::start`](crate::Webhooks) and
/// [`Routes::start`](crate::Routes::start).
///
/// [`serve`](Self::serve) runs the server, and stops both in the order that is safe. To share it with a task that records
/// metrics, put it into an [`Arc`](std::sync::Arc). Dropping it stops the worker of an inbox, and interrupts its attempts as
/// [`drain`](Self::drain) does at its limit: without a drain before, that is logged as an error. Detached runs continue.
#[derive(Debug)]
#[must_use = "dropping it stops the worker of an inbox"]
pub struct Running {
    work: Work,
    #[cfg_attr(
        not(feature = "metrics"),
        allow(dead_code, reason = "only its memory is recorded")
    )]
    signatures: Vec<SignatureLayer>,
}

#[derive(Debug)]
pub(super) enum Work {
    Inline(Runs),
    Inbox(WorkerHandle),
    /// Another process handles the events.
    Accepting,
}

impl Running {
    pub(super) fn new(work: Work, signatures: Vec<SignatureLayer>) -> Self {
        Self { work, signatures }
    }

    /// Runs a server until `signal` is ready, and then stops everything within `limit`, in the order that is safe:
    ///
    /// 1. The server accepts no more connections, and answers the requests on open ones. An inbox's worker takes no more
    ///    events at the same time, so that a slow connection does not keep it from stopping.
    /// 2. Attempts in progress end. With a store, those whose client has disconnected are waited for after the server.
    /// 3. At the limit, what is left is interrupted: the server is dropped, and events are released. The
    ///    sender or the next worker tries again.
    ///
    /// `server` gets the future that tells it to stop, for axum's `with_graceful_shutdown` or its like. If the server
    /// fails, the rest is stopped, too.
    ///
    /// ```no_run
    /// # #[cfg(feature = "signal")]
    /// # async fn example(
    /// #     listener: tokio::net::TcpListener, app: axum::Router, running: tower_webhook::Running,
    /// # ) -> Result<(), tower_webhook::ServeError> {
    /// use std::time::Duration;
    ///
    /// running
    ///     .serve(tower_webhook::shutdown(), Duration::from_secs(30), |stop| {
    ///         axum::serve(listener, app).with_graceful_shutdown(stop)
    ///     })
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When the server failed, or the limit has passed. No event is lost.
    pub async fn serve<F, E>(
        &self,
        signal: impl Future<Output = ()> + Send,
        limit: Duration,
        server: impl FnOnce(Stop) -> F,
    ) -> Result<(), ServeError>
    where
        F: IntoFuture<Output = Result<(), E>, IntoFuture: Send>,
        E: Into<BoxError>,
    {
        let (sender, stop) = oneshot::channel();
        let server = server(Stop(stop)).into_future();
        let server = Box::pin(server.map(|ended| ended.map_err(Into::into)));
        self.serve_boxed(Box::pin(signal), sender, limit, server)
            .await
    }

    // Not generic, so that it is compiled with this crate.
    fn serve_boxed<'a>(
        &'a self,
        signal: BoxFuture<'a, ()>,
        stop: oneshot::Sender<()>,
        limit: Duration,
        mut server: BoxFuture<'a, Result<(), BoxError>>,
    ) -> BoxFuture<'a, Result<(), ServeError>> {
        Box::pin(async move {
            let served = tokio::select! {
                biased;
                served = &mut server => Some(served),
                () = signal => None,
            };
            let _ = stop.send(());
            let end = Instant::now() + limit;
            let rest = async {
                match served {
                    Some(served) => served,
                    None => match timeout_at(end, &mut server).await {
                        Ok(served) => served,
                        Err(_) => Err("it still had connections at the limit".into()),
                    },
                }
            };
            let drain = || self.drain_until(sleep_until(end));
            let (served, drained) = match &self.work {
                // Each connection may detach a run, so the runs are complete when the server has stopped.
                Work::Inline(_) => {
                    let served = rest.await;
                    (served, drain().await)
                }
                Work::Inbox(_) | Work::Accepting => tokio::join!(rest, drain()),
            };
            served.map_err(ServeError::Server)?;
            drained.map_err(ServeError::Drain)
        })
    }

    /// Waits until everything in progress has ended, or until `limit` from now has passed. For a program whose server stops
    /// in another way than with [`serve`](Self::serve).
    ///
    /// With a store, it waits for detached runs; see [`Runs::drain`]. With an inbox, the worker takes no more events, and
    /// the attempts in progress are waited for. Attempts that are still in progress at the limit are interrupted: their
    /// handlers are dropped, their events are released at once, and the attempts do not count.
    ///
    /// # Errors
    ///
    /// When the limit has passed, or a background task of the worker [has panicked](DrainTimeout::panics) since it was
    /// started. No event is lost: the platform or the next worker tries again.
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
            Work::Accepting => Ok(()),
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
        SignatureLayer::record_all(&self.signatures);
        match &self.work {
            Work::Inline(runs) => {
                runs.record_metrics();
                Ok(())
            }
            Work::Inbox(worker) => worker.record_metrics().await,
            Work::Accepting => Ok(()),
        }
    }
}

/// Completes when a server is to stop: see [`Running::serve`].
#[derive(Debug)]
#[must_use = "a server that does not wait for it does not stop"]
pub struct Stop(oneshot::Receiver<()>);

impl Future for Stop {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.poll_unpin(cx).map(drop)
    }
}

/// The error of [`Running::serve`].
#[derive(Debug)]
#[non_exhaustive]
pub enum ServeError {
    /// The server failed, or still had connections at the limit.
    Server(BoxError),
    /// The rest was still in progress at the limit, or has panicked.
    Drain(DrainTimeout),
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(_) => f.write_str("the server failed"),
            Self::Drain(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ServeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Server(error) => Some(&**error),
            Self::Drain(error) => error.source(),
        }
    }
}
