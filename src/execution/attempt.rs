//! One attempt: the work, which is dropped at its time limit or when its lease is lost.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::FutureExt;
use pin_project_lite::pin_project;
use tokio::time::Instant;

use crate::deadline::Deadline;
use crate::error::{CatchPanic, Panic};
use crate::outcome::Outcome;

/// Runs `work` until it is ready, and returns its result.
///
/// Otherwise returns why the work was cut short: it panicked, took longer than `limit` from when it first
/// had to wait, or `cut` became ready, with the outcome that it has.
pub(crate) fn attempt<W, C>(work: W, limit: Duration, cut: C) -> Attempt<W, C>
where
    W: Future,
    C: Future<Output = Outcome>,
{
    Attempt {
        cut,
        work: Some(CatchPanic::new(work)),
        limit: Deadline::new(limit),
        began: None,
    }
}

pin_project! {
    // Not an `async fn`, which would make room for the work several times over.
    #[must_use = "futures do nothing unless polled"]
    pub(crate) struct Attempt<W, C> {
        #[pin]
        cut: C,
        #[pin]
        work: Option<CatchPanic<W>>,
        limit: Deadline,
        began: Option<Instant>,
    }
}

impl<W: Future, C: Future<Output = Outcome>> Future for Attempt<W, C> {
    type Output = Result<W::Output, Outcome>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let Some(work) = this.work.as_mut().as_pin_mut() else {
            return Poll::Pending;
        };
        let began = *this.began.get_or_insert_with(Instant::now);
        // First, so that work whose lease is lost does not win by being ready as well.
        let cut_short = if let Poll::Ready(outcome) = this.cut.poll(cx) {
            outcome
        } else if let Poll::Ready(worked) = work.poll(cx) {
            // The limit cannot cut work that does not return to its runtime, so at least a person learns of it.
            let (took, limit) = (began.elapsed(), this.limit.duration());
            if took > limit {
                tracing::warn!(
                    ?took,
                    ?limit,
                    "the handler ended after its time limit, which could not stop it: it, or another task of the runtime, \
                     has blocked its thread; do blocking work in `tokio::task::spawn_blocking`"
                );
            }
            return Poll::Ready(worked.map_err(|panic| Outcome::Panicked(Arc::new(panic))));
        } else {
            ready!(this.limit.poll_unpin(cx));
            Outcome::TimedOut {
                limit: this.limit.duration(),
            }
        };
        // What the work holds may panic when it is dropped, which must not end the run.
        if let Err(panic) = Panic::catch(|| this.work.set(None)) {
            let reason = panic.to_string();
            tracing::error!(reason, "the handler panicked when it was dropped");
        }
        Poll::Ready(Err(cut_short))
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::time::sleep;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    async fn lost_after(time: Duration) -> Outcome {
        sleep(time).await;
        Outcome::LeaseLost
    }

    #[tokio::test(start_paused = true)]
    async fn work_is_cut_short_by_its_limit_a_panic_or_a_lost_lease() {
        let handled = attempt(ready(7), LIMIT, pending()).await;
        assert!(matches!(handled, Ok(7)));

        let panicked = attempt(async { panic!("work") }, LIMIT, pending()).await;
        assert!(matches!(panicked, Err::<(), _>(Outcome::Panicked(_))));

        let slow = attempt(pending::<()>(), LIMIT, pending()).await;
        assert!(matches!(slow, Err(Outcome::TimedOut { limit }) if limit == LIMIT));

        let lost = attempt(pending::<()>(), LIMIT, lost_after(LIMIT / 2)).await;
        assert!(matches!(lost, Err(Outcome::LeaseLost)));
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_panics_when_it_is_dropped_was_cut_short_all_the_same() {
        struct Panics;
        impl Drop for Panics {
            fn drop(&mut self) {
                panic!("dropped");
            }
        }
        let work = || async {
            let _panics = Panics;
            pending::<()>().await;
        };
        let slow = attempt(work(), LIMIT, pending()).await;
        assert!(matches!(slow, Err(Outcome::TimedOut { .. })));
        let lost = attempt(work(), LIMIT, lost_after(LIMIT / 2)).await;
        assert!(matches!(lost, Err(Outcome::LeaseLost)));
    }

    #[tokio::test]
    async fn a_lost_lease_wins_over_work_that_is_ready() {
        let lost = attempt(ready(()), LIMIT, ready(Outcome::LeaseLost)).await;
        assert!(matches!(lost, Err(Outcome::LeaseLost)));
    }
}
