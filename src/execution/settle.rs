//! Records the end of an attempt, again and again while its lease lasts.

use std::error::Error;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::error::Chain;

/// The tries to record the end of an attempt, with growing pauses in between.
pub(crate) struct Tries {
    pause: Duration,
    is_first: bool,
}

/// The pause after the first try, and the longest one.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

impl Tries {
    pub(crate) fn new() -> Self {
        Self {
            pause: PAUSE,
            is_first: true,
        }
    }

    /// Whether no try came before this one. An earlier one may have taken effect without an answer.
    pub(crate) fn is_first(&self) -> bool {
        self.is_first
    }

    /// Waits before the next try.
    ///
    /// # Errors
    ///
    /// The error of the last try, if the lease ends before the next one.
    pub(crate) async fn again<E: Error + 'static>(
        &mut self,
        error: E,
        valid_until: Instant,
    ) -> Result<(), E> {
        if Instant::now() + self.pause >= valid_until {
            return Err(error);
        }
        if self.is_first {
            tracing::warn!(
                reason = Chain(&error).to_string(),
                "the attempt ended, but that could not be recorded; recording is retried while the lease lasts"
            );
        }
        self.is_first = false;
        sleep(self.pause).await;
        self.pause = (2 * self.pause).min(LONGEST_PAUSE);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn tries_end_with_the_lease() {
        let valid_until = Instant::now() + Duration::from_secs(60);
        let mut tries = Tries::new();
        let mut pauses = Vec::new();
        let error = loop {
            assert_eq!(tries.is_first(), pauses.is_empty());
            let asked = Instant::now();
            if let Err(error) = tries.again(io::Error::other("down"), valid_until).await {
                break error;
            }
            pauses.push(asked.elapsed());
        };
        assert_eq!(error.to_string(), "down");
        assert!(Instant::now() < valid_until && pauses.len() > 10);
        assert_eq!((pauses[0], pauses[1]), (PAUSE, 2 * PAUSE));
        assert_eq!(pauses.last(), Some(&LONGEST_PAUSE));
    }
}
