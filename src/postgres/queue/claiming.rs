//! A claim whose caller may give up in the middle of it.

use std::future::{Future, pending};
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::PostgresQueue;
use super::batches::GRACE;
use crate::inbox::queue::Claims;
use crate::store::StoreError;

type Execution = Pin<Box<dyn Future<Output = Result<Claims, StoreError>> + Send>>;

/// Executes a claim. When it is dropped before that, it waits a little for the server, and releases what was taken:
/// those events would be taken until their leases expire, and would count as crashed.
pub(super) struct Claiming {
    execution: Execution,
    queue: PostgresQueue,
    /// One claim that was given up is waited for at a time.
    abandoned: Arc<Semaphore>,
    has_ended: bool,
}

impl Claiming {
    pub(super) fn new(queue: &PostgresQueue, execution: Execution) -> Self {
        Self {
            execution,
            queue: queue.clone(),
            abandoned: Arc::clone(&queue.shared.abandoned_claims),
            has_ended: false,
        }
    }
}

impl Future for Claiming {
    type Output = Result<Claims, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let claims = self.execution.as_mut().poll(cx);
        self.has_ended = claims.is_ready();
        claims
    }
}

impl Drop for Claiming {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        if let Ok(runtime) = Handle::try_current()
            && let Ok(place) = Arc::clone(&self.abandoned).try_acquire_owned()
        {
            let execution = mem::replace(&mut self.execution, Box::pin(pending()));
            let queue = self.queue.clone();
            runtime.spawn(async move {
                let claims = timeout(GRACE, execution).await;
                drop(place);
                if let Ok(Ok(claims)) = claims
                    && !claims.events.is_empty()
                {
                    let leases = claims.events.iter().map(|event| event.lease);
                    queue.release(leases.collect()).await;
                }
            });
        }
    }
}
