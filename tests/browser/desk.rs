//! A console over an inbox with events in all states, in this process.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tower::Layer;
use tower_webhook::console::Console;
use tower_webhook::inbox::internal::{
    Accepted, Claims, EventLease, NewEvent, Settled, Settlement, Take, Work,
};
use tower_webhook::inbox::{
    Accept, BlockedLane, Change, EventId, EventRecord, EventState, Filter, Forgotten, Inbox,
    Listed, Page, Records, Retry, Stats, WorkerHandle,
};
use tower_webhook::memory::MemoryQueue;
use tower_webhook::signature::Signature;
use tower_webhook::store::StoreError;
use tower_webhook::telemetry::{FailureBudget, Recent, Silence};
use tower_webhook::{EventKind, EventRouter, HandlerError, RawDelivery, SignatureLayer};

use crate::chromium::until;
use crate::support::delivery::{RequestExt, SIGNATURE, delivery, secret, send};

/// Serves on a port of its own until the test ends.
pub(crate) async fn serve(app: Router) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async { axum::serve(listener, app).await });
    port
}

/// The queue in memory, in which each redrive takes a permit.
pub(crate) struct Gated {
    queue: MemoryQueue,
    redrives: Arc<Semaphore>,
}

/// The number of chats after which a kind is tripped.
pub(crate) const TRIP_AFTER: usize = 150;

/// Events of a chat whose id begins with `dead` are dead letters, and those of `stuck` are retried in an
/// hour, until the fault is repaired.
pub(crate) struct Desk {
    pub(crate) inbox: Inbox<Gated>,
    pub(crate) redrives: Arc<Semaphore>,
    is_repaired: Arc<AtomicBool>,
    webhooks: Signature<Accept<Gated>>,
    recent: Recent,
    budget: FailureBudget,
    silence: Silence,
    _worker: WorkerHandle,
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
        let redrives = Arc::new(Semaphore::new(1_000));
        let queue = Gated {
            queue: MemoryQueue::new(),
            redrives: Arc::clone(&redrives),
        };
        let inbox = Inbox::new(queue).observer(observer.clone());
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
        let hour = Duration::from_secs(60 * 60);
        let worker = inbox
            .worker(events)
            .retry(Retry::default().delays(hour, hour))
            .trip_after(TRIP_AFTER);
        Self {
            webhooks: SignatureLayer::new(secret())
                .observer(observer)
                .layer(inbox.accept()),
            _worker: worker.spawn(),
            inbox,
            redrives,
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
        let port = serve(console.hosts(["localhost"]).router()).await;
        format!("http://127.0.0.1:{port}")
    }

    /// Sends a request that is not verified.
    pub(crate) async fn refuse(&self) {
        let forged = event("forged", 1).with(SIGNATURE, "0".repeat(64));
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

impl Work for Gated {
    const SHARED: bool = MemoryQueue::SHARED;

    async fn accept(&self, event: NewEvent, take: Option<&Take>) -> Result<Accepted, StoreError> {
        self.queue.accept(event, take).await
    }

    async fn claim(
        &self,
        take: &Take,
        limit: usize,
        suspects: usize,
    ) -> Result<Claims, StoreError> {
        self.queue.claim(take, limit, suspects).await
    }

    async fn extend(
        &self,
        leases: &[EventLease],
        lease: Duration,
    ) -> Result<Vec<bool>, StoreError> {
        self.queue.extend(leases, lease).await
    }

    async fn settle(
        &self,
        lease: &EventLease,
        settlement: &Settlement,
        next: Option<&Take>,
    ) -> Result<Settled, StoreError> {
        self.queue.settle(lease, settlement, next).await
    }

    async fn find(&self, key: u128) -> Result<Option<EventId>, StoreError> {
        self.queue.find(key).await
    }

    async fn purge(&self, keep_bodies: Duration) -> Result<bool, StoreError> {
        self.queue.purge(keep_bodies).await
    }

    async fn size(&self) -> Result<u64, StoreError> {
        self.queue.size().await
    }
}

impl Records for Gated {
    async fn list(&self, filter: &Filter, page: Page) -> Result<Listed, StoreError> {
        self.queue.list(filter, page).await
    }

    async fn get(&self, id: EventId) -> Result<Option<EventRecord>, StoreError> {
        self.queue.get(id).await
    }

    async fn blocked_lanes(
        &self,
        chat: Option<&str>,
        after: Option<EventId>,
        limit: usize,
    ) -> Result<Vec<BlockedLane>, StoreError> {
        self.queue.blocked_lanes(chat, after, limit).await
    }

    async fn redrive(&self, id: EventId, from: Option<EventState>) -> Result<Change, StoreError> {
        self.redrives.acquire().await.unwrap().forget();
        self.queue.redrive(id, from).await
    }

    async fn discard(&self, id: EventId, from: Option<EventState>) -> Result<Change, StoreError> {
        self.queue.discard(id, from).await
    }

    async fn forget(
        &self,
        chat: &str,
        events: Option<RangeInclusive<EventId>>,
    ) -> Result<Forgotten, StoreError> {
        self.queue.forget(chat, events).await
    }

    async fn pause(&self, kind: Option<&EventKind>, paused: bool) -> Result<(), StoreError> {
        self.queue.pause(kind, paused).await
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        self.queue.stats().await
    }
}
