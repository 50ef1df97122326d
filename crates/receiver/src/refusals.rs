//! The log of requests that were refused before they were deliveries.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::sleep;

/// How often a line is logged for each kind of refusal.
const EVERY: Duration = Duration::from_secs(1);

/// The refusals of a listener.
pub(crate) struct Refusals {
    listener: &'static str,
    /// Those since the last line, of each kind that had one within [`EVERY`].
    counts: Mutex<HashMap<&'static str, u64>>,
}

impl Refusals {
    /// `listener` is the name in the log and in metrics.
    pub(crate) fn new(listener: &'static str) -> Arc<Self> {
        Arc::new(Self {
            listener,
            counts: Mutex::default(),
        })
    }

    /// Logs a refusal at once, or counts it if a line of its kind was logged just before.
    pub(crate) fn log(
        self: &Arc<Self>,
        outcome: &'static str,
        peer: impl Into<Option<SocketAddr>>,
        reason: &dyn fmt::Display,
    ) {
        let listener = self.listener;
        #[cfg(feature = "metrics")]
        metrics::counter!("receiver_refusals_total", "listener" => listener, "outcome" => outcome)
            .increment(1);
        match self.counts().entry(outcome) {
            Entry::Occupied(mut more) => *more.get_mut() += 1,
            Entry::Vacant(first) => {
                first.insert(0);
                let peer = peer.into().map(tracing::field::display);
                tracing::warn!(
                    outcome,
                    listener,
                    peer,
                    reason = reason.to_string(),
                    "a request was refused"
                );
                tokio::spawn(Arc::clone(self).count(outcome));
            }
        }
    }

    /// Logs how many there were, until there are no more.
    async fn count(self: Arc<Self>, outcome: &'static str) {
        let listener = self.listener;
        loop {
            sleep(EVERY).await;
            let mut counts = self.counts();
            match counts.get_mut(outcome) {
                Some(more) if *more > 0 => {
                    let more = std::mem::take(more);
                    drop(counts);
                    tracing::warn!(outcome, listener, more, "further requests were refused");
                }
                _ => {
                    counts.remove(outcome);
                    return;
                }
            }
        }
    }

    fn counts(&self) -> std::sync::MutexGuard<'_, HashMap<&'static str, u64>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
