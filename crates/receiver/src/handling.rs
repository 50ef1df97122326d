//! What is waited for when the receiver stops.

use std::future::Future;
use std::sync::Arc;
#[cfg(all(feature = "postgres", feature = "sqlite"))]
use std::time::Duration;

use futures_util::future::join_all;
use tower_webhook::Running;
#[cfg(all(feature = "postgres", feature = "sqlite"))]
use tower_webhook::spool::Spooled;

/// The events that are being handled, of each route.
#[derive(Default)]
pub(crate) struct Handling {
    pub(crate) inline: Vec<Arc<Running>>,
    pub(crate) inboxes: Vec<Arc<Running>>,
    /// At most one.
    #[cfg(all(feature = "postgres", feature = "sqlite"))]
    pub(crate) spools: Vec<Spooled>,
}

impl Handling {
    /// Waits until the running events have finished, or until `cut` is ready, whose output is returned then.
    pub(crate) async fn drain<T>(&self, cut: impl Future<Output = T> + Clone) -> Option<T> {
        let all = self.inline.iter().chain(&self.inboxes);
        let drained = join_all(all.map(|running| drain(running, cut.clone()))).await;
        drained.into_iter().flatten().next()
    }

    /// Forwards what is in the spool, if its queue can be reached, until `cut` is ready. Says what is left.
    #[cfg(all(feature = "postgres", feature = "sqlite"))]
    pub(crate) async fn flush<T>(&self, cut: impl Future<Output = T> + Clone) {
        const FOREVER: Duration = Duration::from_secs(1 << 30);
        for spool in &self.spools {
            if !spool.status().is_open {
                tokio::select! {
                    _ = spool.flush(FOREVER) => {}
                    _ = cut.clone() => {}
                }
            }
            let left = spool.flush(Duration::ZERO).await;
            if left > 0 {
                tracing::warn!(
                    left,
                    "events are left in the spool: the next start with its file forwards them, or `receiver inbox flush`"
                );
            }
        }
    }

    /// What becomes of them when they are not waited for.
    pub(crate) fn rest(&self) -> &'static str {
        match (self.inline.is_empty(), self.inboxes.is_empty()) {
            (_, true) => "the platform retries the events that were running",
            (true, false) => "the events that were running stay in the inbox",
            (false, false) => {
                "the events that were running stay in their inbox, or are retried by their senders"
            }
        }
    }
}

async fn drain<T>(running: &Running, cut: impl Future<Output = T>) -> Option<T> {
    let mut output = None;
    let cut = async { output = Some(cut.await) };
    match running.drain_until(cut).await {
        Ok(()) => None,
        Err(_) => output,
    }
}
