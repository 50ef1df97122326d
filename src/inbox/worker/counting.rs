//! The task that writes counts, and reads the failures of other processes.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_all;
use tokio::time::sleep;

use super::super::queue::Queue;
use super::pool::Pool;
use crate::error::Chain;

/// The interval between writes: what a kill loses.
const EVERY: Duration = Duration::from_secs(1);

/// How many writes there are to a read of the failures of others.
const WRITES: u32 = 5;

/// The longest pause after a failure, in seconds.
const LONGEST_PAUSE: u32 = 30;

pub(super) async fn count<Q: Queue>(pool: Arc<Pool<Q>>) {
    let (shared, settings, kept) = (&pool.shared, &pool.settings, &pool.kept);
    let (mut pause, mut writes) = (1, 0);
    loop {
        let mut done = shared.write_counts(settings, kept).await;
        if done.is_ok() && writes % WRITES == 0 && (Q::SHARED || writes == 0) {
            done = shared.read_failures(settings, kept).await;
        }
        writes += 1;
        match done {
            Ok(()) => pause = 1,
            Err(error) => {
                if pause == 1 {
                    tracing::warn!(
                        reason = Chain(&error).to_string(),
                        "counts cannot be kept in the queue; this is retried, and those of the last hour wait in memory"
                    );
                }
                pause = (2 * pause).min(LONGEST_PAUSE);
            }
        }
        sleep(EVERY * pause).await;
        if !Q::SHARED && pause == 1 {
            // There is nothing to read.
            let changes = kept.iter().map(|kept| kept.tally().until_changed());
            select_all(changes.map(Box::pin)).await;
        }
    }
}
