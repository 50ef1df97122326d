//! A console over an inbox with events in all states, in this process.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tokio::sync::Semaphore;
use tower_webhook::inbox::internal::{BulkStep, Tuning};
use tower_webhook::inbox::{
    ActionKind, By, Change, EventId, EventState, Filter, Inbox, Listed, Page, Queue, Retry,
};
use tower_webhook::memory::MemoryQueue;
use tower_webhook::store::StoreError;
use tower_webhook::telemetry::{FailureBudget, Recent, Silence};
use tower_webhook::{
    EventKind, EventRouter, HandlerError, RawDelivery, Receiver, Running, Webhooks,
};
use tower_webhook_console::Console;

use crate::chromium::until;
use support::delivery::{RequestExt, SIGNATURE, delivery, secret, send};
use support::net::serve;
use support::queue::Calls;

/// The queue in memory, in which each redrive takes a permit, and each step of a search.
pub(crate) struct Gated {
    queue: MemoryQueue,
    redrives: Arc<Semaphore>,
    searches: Arc<Semaphore>,
}

/// The number of chats after which a kind is slowed.
pub(crate) const TRIP_AFTER: usize = 150;

/// Events of a chat whose id begins with `dead` are dead letters, and those of `stuck` are retried in an
/// hour, until the fault is repaired.
pub(crate) struct Desk {
    pub(crate) inbox: Inbox,
    pub(crate) redrives: Arc<Semaphore>,
    pub(crate) searches: Arc<Semaphore>,
    is_repaired: Arc<AtomicBool>,
    webhooks: Receiver,
    recent: Recent,
    budget: FailureBudget,
    silence: Silence,
    _running: Running,
}

/// The trace in which the first five events were delivered.
pub(crate) const TRACE_PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// The event `n` of a chat.
pub(crate) fn event(chat: &str, n: usize) -> Request<Full<Bytes>> {
    let body = serde_json::json!({ "id": chat, "rating": n }).to_string();
    delivery(body).key(&format!("{chat}-{n}"))
}

impl Desk {
    /// The error of failed attempts is this text.
    pub(crate) fn new(error: &'static str) -> Self {
        let (recent, budget) = (Recent::new(), FailureBudget::default());
        let silence = Silence::new().expect(EventKind::CHAT_OPENED, Duration::from_millis(1));
        let observer = Arc::new((recent.clone(), budget.clone(), silence.clone()));
        let [redrives, searches] = [(); 2].map(|()| Arc::new(Semaphore::new(1_000)));
        let queue = Gated {
            queue: MemoryQueue::new(),
            redrives: Arc::clone(&redrives),
            searches: Arc::clone(&searches),
        };
        // Other processes do not use it, as if it were not gated.
        let queue = Queue {
            is_shared: false,
            ..queue.shared()
        };
        let hour = Duration::from_secs(60 * 60);
        let inbox = Inbox::new(queue).worker(|worker| {
            worker
                .retry(Retry::default().delays(hour, hour))
                .credit(TRIP_AFTER)
        });
        let is_repaired = Arc::new(AtomicBool::new(false));
        let repaired = Arc::clone(&is_repaired);
        let events = EventRouter::new().fallback(move |delivery: RawDelivery| {
            let is_down = !repaired.load(Ordering::SeqCst);
            async move {
                let body = delivery.body();
                match is_down {
                    true if body.starts_with(br#"{"id":"dead"#) => {
                        Err(HandlerError::dead_letter(error))
                    }
                    true if body.starts_with(br#"{"id":"stuck"#) => Err(HandlerError::retry(error)),
                    _ => Ok(()),
                }
            }
        });
        let webhooks = Webhooks::new(secret()).observer(observer);
        let (webhooks, running) = webhooks.inbox(inbox.clone()).start(events).unwrap();
        Self {
            webhooks,
            _running: running,
            inbox,
            redrives,
            searches,
            is_repaired,
            recent,
            budget,
            silence,
        }
    }

    pub(crate) fn console(&self) -> Console {
        Console::new()
            .inbox(self.inbox.clone())
            .recent(self.recent.clone())
            .budget(self.budget.clone())
            .silence(self.silence.clone())
    }

    /// Serves a console, and returns its URL.
    pub(crate) async fn serve(&self, console: Console) -> String {
        let address = serve(console.hosts(["localhost"]).router()).await;
        format!("http://{address}")
    }

    /// Sends a request that is not verified.
    pub(crate) async fn refuse(&self) {
        let mut forged = event("forged", 1).with(SIGNATURE, "0".repeat(64));
        let peer = SocketAddr::from(([203, 0, 113, 9], 50_000));
        forged.extensions_mut().insert(peer);
        send(&self.webhooks, forged).await;
    }

    pub(crate) async fn accept(&self, event: Request<Full<Bytes>>) {
        send(&self.webhooks, event).await.assert_ok();
    }

    /// Adds event 1, which is handled, 2, a dead letter, 3, which is retried, and 4 and 5, which wait for it.
    pub(crate) async fn add_five(&self) {
        for (chat, n) in [
            ("fine", 1),
            ("dead", 1),
            ("stuck", 1),
            ("stuck", 2),
            ("stuck", 3),
        ] {
            let traced = event(chat, n).with("traceparent", TRACE_PARENT);
            self.accept(traced).await;
        }
        self.until(3, EventState::Retrying).await;
        self.until(2, EventState::Dead).await;
        self.until(1, EventState::Handled).await;
    }

    pub(crate) fn repair(&self) {
        self.is_repaired.store(true, Ordering::SeqCst);
    }

    pub(crate) async fn state(&self, id: i64) -> EventState {
        let record = self.inbox.get(EventId(id)).await.unwrap();
        record.unwrap().summary.state
    }

    pub(crate) async fn until(&self, id: i64, state: EventState) {
        until(&format!("event {id} {state}"), async || {
            (self.state(id).await == state).then_some(())
        })
        .await;
    }
}

#[async_trait]
impl Calls for Gated {
    fn inner(&self) -> Result<Queue, StoreError> {
        self.queue.inner()
    }

    async fn step(&self, number: i64, step: &BulkStep) -> Result<bool, StoreError> {
        if step.redrives {
            let events = step.events.len() as u32;
            self.redrives.acquire_many(events).await.unwrap().forget();
        }
        self.queue.step(number, step).await
    }

    async fn change(
        &self,
        kind: ActionKind,
        id: EventId,
        from: Option<EventState>,
        by: &By,
    ) -> Result<Change, StoreError> {
        if kind == ActionKind::Redrive {
            self.redrives.acquire().await.unwrap().forget();
        }
        self.queue.change(kind, id, from, by).await
    }

    /// A search for a text in payloads looks at one event at a time.
    async fn list(&self, filter: &Filter, mut page: Page) -> Result<Listed, StoreError> {
        if filter.body.is_none() {
            return self.queue.list(filter, page).await;
        }
        self.searches.acquire().await.unwrap().forget();
        page.limit = 1;
        let next = self.queue.list(&Filter::default(), page).await?.events;
        let next = next.first().map(|event| event.id);
        let mut found = self.queue.list(filter, page).await?;
        found.events.retain(|event| Some(event.id) == next);
        found.searched = next;
        Ok(found)
    }
}
