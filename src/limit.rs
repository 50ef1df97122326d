//! A time limit that costs nothing where there is nothing to wait for.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::task::coop::{Unconstrained, unconstrained};
use tokio::time::{Sleep, sleep};

/// Ends so long after it was polled for the first time. Poll it after what it limits, most of which is ready
/// at once and needs no timer.
pub(crate) struct Limit {
    duration: Duration,
    /// Rings even when the task has used up what tokio lets it do at a time.
    timer: Option<Pin<Box<Unconstrained<Sleep>>>>,
}

impl Limit {
    pub(crate) fn new(duration: Duration) -> Self {
        Self {
            duration,
            timer: None,
        }
    }

    pub(crate) fn duration(&self) -> Duration {
        self.duration
    }
}

impl Future for Limit {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let duration = self.duration;
        self.timer
            .get_or_insert_with(|| Box::pin(unconstrained(sleep(duration))))
            .as_mut()
            .poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::task::coop::poll_proceed;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_counts_from_the_first_poll() {
        let limit = Limit::new(Duration::from_secs(10));
        sleep(Duration::from_secs(60)).await;
        let polled = Instant::now();
        limit.await;
        let elapsed = polled.elapsed();
        assert!(elapsed >= Duration::from_secs(10) && elapsed < Duration::from_secs(11));
    }

    #[tokio::test]
    async fn it_ends_what_uses_up_its_task_s_budget_at_every_poll() {
        let give_up = Instant::now() + Duration::from_secs(10);
        let greedy = poll_fn(|cx| {
            while let Poll::Ready(turn) = poll_proceed(cx) {
                turn.made_progress();
            }
            cx.waker().wake_by_ref();
            match Instant::now() < give_up {
                true => Poll::Pending,
                false => Poll::Ready(()),
            }
        });
        tokio::select! {
            biased;
            () = greedy => panic!("the limit never ended"),
            () = Limit::new(Duration::from_millis(10)) => {}
        }
    }
}
