//! Whether the queue that is back still has what it had accepted.

use std::time::{Duration, SystemTime};

use super::{Shared, within};
use crate::inbox::event::EventId;
use crate::inbox::queue::Accepted;
use crate::lock::lock;
use crate::store::EventKey;

/// An event that the queue has accepted.
pub(super) struct Kept {
    id: EventId,
    key: u128,
    at: SystemTime,
    retain: Duration,
}

#[derive(Default)]
pub(super) struct Newest {
    accepted: Option<Kept>,
    /// The newest one before the breaker opened, until it is looked for.
    doubtful: Option<Kept>,
}

impl Shared {
    /// Notes an event if the queue has accepted it as a new one. A queue that was away is looked at first.
    pub(super) async fn note_accepted(
        &self,
        key: Option<EventKey>,
        retain: Duration,
        accepted: &Accepted,
    ) {
        let Accepted::New { id, .. } = accepted else {
            return;
        };
        let doubtful = lock(&self.newest).doubtful.take();
        if let Some(kept) = doubtful {
            // It is rare, and would make each acceptance larger.
            Box::pin(self.look_for(kept)).await;
        }
        if let Some(key) = key {
            lock(&self.newest).accepted = Some(Kept {
                id: *id,
                key: key.key(),
                at: SystemTime::now(),
                retain,
            });
        }
    }

    /// Has the newest event looked for when the queue is back.
    pub(super) fn doubt_newest(&self) {
        let mut newest = lock(&self.newest);
        if let Some(accepted) = newest.accepted.take() {
            newest.doubtful = Some(accepted);
        }
    }

    /// Looks for that event, after the queue has stored another one: a standby that only reads may get it later.
    async fn look_for(&self, kept: Kept) {
        let age = kept.at.elapsed().unwrap_or_default();
        // The key is deleted after `retain`, by another clock.
        if age > kept.retain / 2 {
            return;
        }
        match within(self.spool.accept_within, self.queue.list.find(kept.key)).await {
            Ok(found) if found == Some(kept.id) => {}
            Ok(_) => tracing::error!(
                event = kept.id.0,
                seconds_ago = age.as_secs(),
                "the inbox has lost this event, and others that it accepted shortly before: its database was restored \
                 from a backup, or replaced by a standby that lagged. Find them in the log, and compare your data with \
                 the sender's. The events in the spool are forwarded"
            ),
            Err(_) => {
                lock(&self.newest).doubtful.get_or_insert(kept);
            }
        }
    }
}
