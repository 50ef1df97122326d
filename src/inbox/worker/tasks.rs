//! The tasks of a worker that run beside its attempts.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::sleep;

use super::pool::Pool;

/// The pause before a task that panicked is started again.
const PAUSE: Duration = Duration::from_secs(1);

/// Runs a task, and starts it again whenever it panics.
pub(super) async fn keep<F: Future<Output = ()>>(
    pool: Arc<Pool>,
    task: &'static str,
    mut start: impl FnMut(Arc<Pool>) -> F,
) {
    while AssertUnwindSafe(start(Arc::clone(&pool)))
        .catch_unwind()
        .await
        .is_err()
    {
        pool.panics.fetch_add(1, Ordering::Relaxed);
        tracing::error!(
            task,
            "a background task of the worker panicked; it is started again"
        );
        sleep(PAUSE).await;
    }
}
