//! What is waited for when the receiver stops.

use std::future::Future;
use std::sync::Arc;

use tower_webhook::Running;

/// The events that are being handled.
pub(crate) struct Handling {
    pub(crate) running: Arc<Running>,
    /// What becomes of them when they are not waited for.
    pub(crate) rest: &'static str,
}

impl Handling {
    /// Waits until the running events have finished, or until `cut` is ready, whose output is returned then.
    pub(crate) async fn drain<T>(&self, cut: impl Future<Output = T>) -> Option<T> {
        let mut output = None;
        let cut = async { output = Some(cut.await) };
        match self.running.drain_until(cut).await {
            Ok(()) => None,
            Err(_) => output,
        }
    }
}
