//! The parts of a queue that a spool replaces.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use tokio::time::timeout;

use super::gate::Way;
use super::{Asked, Spooled, is_of_event, within};
use crate::inbox::Queue;
use crate::inbox::actions::By;
use crate::inbox::event::{EventId, NewEvent, Take};
use crate::inbox::internal::forget_all;
use crate::inbox::queue::{AcceptEvents, Accepted, ForgetChats, MeasureTables, Tables};
use crate::inbox::records::Forgotten;
use crate::store::StoreError;

impl From<Spooled> for Queue {
    fn from(spooled: Spooled) -> Self {
        let behind = spooled.shared.queue.clone();
        let front = Arc::new(spooled);
        Self {
            // Its events come from here, too, where no worker is woken.
            is_shared: true,
            accept: front.clone(),
            forget: front.clone(),
            measure: front,
            ..behind
        }
    }
}

#[async_trait]
impl AcceptEvents for Spooled {
    async fn accept(
        &self,
        events: Arc<[NewEvent]>,
        take: Option<&Take>,
    ) -> Result<Vec<Accepted>, StoreError> {
        let shared = &*self.shared;
        let it = Asked::of(&events);
        let direct = match shared.gate.way(it.lanes.clone()).await {
            // In boxes, so that an acceptance by the queue is not larger for them.
            Way::File(storing) => return Box::pin(shared.store(events, storing)).await,
            Way::Queue(direct) => direct,
        };
        let accepting = shared.queue.accept.accept(Arc::clone(&events), take);
        let limit = shared.spool.accept_within + it.time;
        let error = match within(limit, accepting).await {
            Ok(accepted) => {
                shared.accepted(&it, &accepted).await;
                return Ok(accepted);
            }
            Err(error) => error,
        };
        shared.did_not_accept(&it, &error);
        if it.key.is_none() || is_of_event(&error) {
            // Without a key, it may have been stored, which nobody would recognise.
            return Err(error);
        }
        let storing = shared.gate.turn(it.lanes);
        let stored = Box::pin(shared.store(events, storing)).await;
        drop(direct);
        stored
    }
}

#[async_trait]
impl MeasureTables for Spooled {
    /// That of the file while the queue does not work: then, deliveries go there. A size that takes long says little about
    /// the queue, which is asked whether it works.
    async fn size(&self) -> Result<u64, StoreError> {
        let shared = &*self.shared;
        if !shared.gate.is_open() {
            let mut size = shared.queue.measure.size();
            let answered = match timeout(shared.spool.accept_within, &mut size).await {
                Ok(answered) => answered,
                Err(_) => {
                    shared.gate.doubt();
                    size.await
                }
            };
            if answered.is_ok() {
                return answered;
            }
            // The delivery that may wait for this goes to the file at once.
            if let Err(error) = shared.ask().await {
                shared.did_not_answer(&error);
            }
        }
        shared.file.size().await
    }

    async fn tables(&self) -> Result<Tables, StoreError> {
        let shared = &*self.shared;
        if !shared.gate.is_open() {
            // The file accepts events in any case, so the caller waits for little longer than for an acceptance.
            match within(
                shared.spool.accept_within / 2,
                shared.queue.measure.tables(),
            )
            .await
            {
                Ok(tables) if tables.is_writable => return Ok(tables),
                _ => shared.gate.doubt(),
            }
        }
        Ok(Tables {
            identity: shared.identity.load(Ordering::Relaxed),
            is_writable: shared.file.size().await? < shared.spool.limit,
        })
    }
}

#[async_trait]
impl ForgetChats for Spooled {
    async fn forget(
        &self,
        chat: &str,
        events: Option<RangeInclusive<EventId>>,
        by: &By,
    ) -> Result<Forgotten, StoreError> {
        let shared = &*self.shared;
        let _forwarding = shared.forwarding.write().await;
        if events.is_none() {
            forget_all(&shared.file, chat, by).await?;
            // Those of this chat do not fail again.
            shared.forget_failures(None);
        }
        shared.queue.forget.forget(chat, events, by).await
    }
}
