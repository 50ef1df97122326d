//! One attempt: the work, its time limit and its lease.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::CatchUnwind;
use pin_project_lite::pin_project;

use crate::deadline::Deadline;
use crate::outcome::Outcome;

/// Runs `work` until it is ready, and returns its result.
///
/// Otherwise returns why the work was cut short: it panicked, took longer than `limit` from when it first
/// had to wait, or `lease_lost` became ready.
pub(crate) fn attempt<W, L>(work: W, limit: Duration, lease_lost: L) -> Attempt<W, L>
where
    W: Future,
    L: Future<Output = ()>,
{
    Attempt {
        lease_lost,
        work: AssertUnwindSafe(work).catch_unwind(),
        limit: Deadline::new(limit),
    }
}

pin_project! {
    // Not an `async fn`, which would make room for the work several times over.
    #[must_use = "futures do nothing unless polled"]
    pub(crate) struct Attempt<W, L> {
        #[pin]
        lease_lost: L,
        #[pin]
        work: CatchUnwind<AssertUnwindSafe<W>>,
        limit: Deadline,
    }
}

impl<W: Future, L: Future<Output = ()>> Future for Attempt<W, L> {
    type Output = Result<W::Output, Outcome>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        // First, so that work whose lease is lost does not win by being ready as well.
        if this.lease_lost.poll(cx).is_ready() {
            return Poll::Ready(Err(Outcome::LeaseLost));
        }
        if let Poll::Ready(worked) = this.work.poll(cx) {
            return Poll::Ready(worked.map_err(|_panic| Outcome::Panicked));
        }
        ready!(this.limit.poll_unpin(cx));
        Poll::Ready(Err(Outcome::TimedOut {
            limit: this.limit.duration(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::time::sleep;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn work_is_cut_short_by_its_limit_a_panic_or_a_lost_lease() {
        let handled = attempt(ready(7), LIMIT, pending()).await;
        assert!(matches!(handled, Ok(7)));

        let panicked = attempt(async { panic!("work") }, LIMIT, pending()).await;
        assert!(matches!(panicked, Err::<(), _>(Outcome::Panicked)));

        let slow = attempt(pending::<()>(), LIMIT, pending()).await;
        assert!(matches!(slow, Err(Outcome::TimedOut { limit }) if limit == LIMIT));

        let lost = attempt(pending::<()>(), LIMIT, sleep(LIMIT / 2)).await;
        assert!(matches!(lost, Err(Outcome::LeaseLost)));
    }

    #[tokio::test]
    async fn a_lost_lease_wins_over_work_that_is_ready() {
        let lost = attempt(ready(()), LIMIT, ready(())).await;
        assert!(matches!(lost, Err(Outcome::LeaseLost)));
    }
}
