//! A time limit that starts a timer only when the limited future has to wait.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::task::coop::{Unconstrained, unconstrained};
use tokio::time::{Sleep, sleep};

/// A future that is ready when `duration` has passed since it was first polled.
///
/// Poll it after the future that it limits: most of those are ready at once, and never need the timer.
pub(crate) struct Deadline {
    duration: Duration,
    /// Unconstrained, because a task that uses up its cooperative budget must be limited too.
    timer: Option<Pin<Box<Unconstrained<Sleep>>>>,
}

impl Deadline {
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

impl Future for Deadline {
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
        let deadline = Deadline::new(Duration::from_secs(10));
        sleep(Duration::from_secs(60)).await;
        let polled = Instant::now();
        deadline.await;
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
            () = greedy => panic!("the deadline never passed"),
            () = Deadline::new(Duration::from_millis(10)) => {}
        }
    }
}
