//! Lets deliveries of one key take turns within this process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use crate::lock::lock;

/// Lets one delivery of a key proceed at a time: its duplicates wait here, where they hold no
/// connection. Those of other processes meet in the database.
#[derive(Clone, Debug, Default)]
pub(super) struct Turns(Arc<Mutex<HashMap<u128, Weak<AsyncMutex<()>>>>>);

/// The right to proceed with a key, or a place among the deliveries that wait for it.
#[derive(Debug)]
pub(super) struct Turn {
    turns: Turns,
    key: u128,
    lock: Option<Arc<AsyncMutex<()>>>,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Turns {
    pub(super) async fn wait(&self, key: u128) -> Turn {
        let lock = self.with(|locks| match locks.get(&key).and_then(Weak::upgrade) {
            Some(lock) => lock,
            None => {
                let lock = Arc::default();
                locks.insert(key, Arc::downgrade(&lock));
                lock
            }
        });
        let mut turn = Turn {
            turns: self.clone(),
            key,
            lock: Some(Arc::clone(&lock)),
            guard: None,
        };
        turn.guard = Some(lock.lock_owned().await);
        turn
    }

    fn with<T>(&self, step: impl FnOnce(&mut HashMap<u128, Weak<AsyncMutex<()>>>) -> T) -> T {
        step(&mut lock(&self.0))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.guard = None;
        self.lock = None;
        self.turns.with(|locks| {
            if locks
                .get(&self.key)
                .is_some_and(|lock| lock.strong_count() == 0)
            {
                locks.remove(&self.key);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_at_a_time_and_nothing_is_left_behind() {
        let turns = Turns::default();
        let first = turns.wait(1).await;
        assert!(turns.wait(2).now_or_never().is_some(), "another key");
        assert!(turns.wait(1).now_or_never().is_none());

        let given_up = timeout(Duration::from_secs(5), turns.wait(1)).await;
        assert!(given_up.is_err());
        let waiting = tokio::spawn({
            let turns = turns.clone();
            async move { drop(turns.wait(1).await) }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());

        drop(first);
        waiting.await.unwrap();
        assert_eq!(turns.with(|locks| locks.len()), 0);
    }
}
