//! Records the end of an attempt, again and again while its lease lasts.

use std::error::Error;
use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::error::Chain;

/// The pause after the first try, and the longest one.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Calls `settle` until it returns no error, with growing pauses in between. It is passed whether it is the first try:
/// an earlier one may have taken effect without an answer.
///
/// # Errors
///
/// The error of the last try, if the lease ends before the next one. `valid_until` is asked after each error, because a
/// lease may be extended meanwhile.
pub(crate) async fn settle_until<T, E: Error + 'static, F: Future<Output = Result<T, E>>>(
    mut valid_until: impl FnMut() -> Instant,
    mut settle: impl FnMut(bool) -> F,
) -> Result<T, E> {
    let (mut pause, mut is_first) = (PAUSE, true);
    loop {
        let error = match settle(is_first).await {
            Ok(settled) => return Ok(settled),
            Err(error) if Instant::now() + pause >= valid_until() => return Err(error),
            Err(error) => error,
        };
        if is_first {
            tracing::warn!(
                reason = Chain(&error).to_string(),
                "the attempt ended, but that could not be recorded; recording is retried while the lease lasts"
            );
        }
        is_first = false;
        sleep(pause).await;
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn tries_end_with_the_lease() {
        let valid_until = Instant::now() + Duration::from_secs(60);
        let mut tries = Vec::new();
        let ended: io::Result<()> = settle_until(
            || valid_until,
            |is_first| {
                assert_eq!(is_first, tries.is_empty());
                tries.push(Instant::now());
                async { Err(io::Error::other("down")) }
            },
        )
        .await;
        assert_eq!(ended.unwrap_err().to_string(), "down");
        assert!(Instant::now() < valid_until);
        let pauses: Vec<_> = tries.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(pauses.len() > 10);
        assert_eq!((pauses[0], pauses[1]), (PAUSE, 2 * PAUSE));
        assert_eq!(pauses.last(), Some(&LONGEST_PAUSE));
    }
}
