//! An inbox in memory, its events, and a handler that notes what it handles.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tokio::time::sleep;
use tower::Layer;
use tower_webhook::event::ChatRated;
use tower_webhook::inbox::{Accept, EventState, Filter, Inbox, Page};
use tower_webhook::memory::MemoryQueue;
use tower_webhook::signature::Signature;
use tower_webhook::{Delivery, EventRouter, HandlerResult, SignatureLayer};

use super::delivery::{RequestExt, delivery, secret};
use super::{MINUTE, SECOND, lock};

pub fn inbox() -> Inbox {
    Inbox::new(MemoryQueue::new())
}

pub fn webhooks(inbox: &Inbox) -> Signature<Accept> {
    SignatureLayer::new(secret()).layer(inbox.accept())
}

/// The event `n` of a chat.
pub fn event(chat: &str, n: usize) -> Request<Full<Bytes>> {
    delivery(format!(r#"{{"id":"{chat}","rating":{n}}}"#)).key(&format!("{chat}-{n}"))
}

/// A handler that notes what it handles, and fails or waits on request.
#[derive(Clone, Default)]
pub struct NotingCrm {
    pub log: Arc<Mutex<Vec<(String, usize)>>>,
    attempts: Arc<AtomicUsize>,
    pub most_at_once: Arc<AtomicUsize>,
    pub running: Arc<AtomicUsize>,
    pub down: Arc<AtomicBool>,
    pub takes: Arc<Mutex<Duration>>,
}

impl NotingCrm {
    pub fn router(&self) -> EventRouter {
        let crm = self.clone();
        EventRouter::new().on::<ChatRated>(move |delivery: Delivery<ChatRated>| {
            let crm = crm.clone();
            async move { crm.handle(delivery).await }
        })
    }

    async fn handle(&self, delivery: Delivery<ChatRated>) -> HandlerResult {
        self.attempts.fetch_add(1, Ordering::SeqCst);
        let running = Running(Arc::clone(&self.running));
        let now = running.0.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_at_once.fetch_max(now, Ordering::SeqCst);
        let takes = *lock(&self.takes);
        if !takes.is_zero() {
            sleep(takes).await;
        }
        if self.down.load(Ordering::SeqCst) {
            return Err("the CRM is down".into());
        }
        let chat = delivery.payload.id.clone().unwrap_or_default();
        let n = delivery.payload.rating.unwrap_or_default() as usize;
        lock(&self.log).push((chat, n));
        Ok(())
    }

    pub fn handled(&self) -> usize {
        lock(&self.log).len()
    }

    pub fn attempts(&self) -> usize {
        self.attempts.load(Ordering::SeqCst)
    }

    pub fn order(&self) -> HashMap<String, Vec<usize>> {
        let mut order: HashMap<_, Vec<_>> = HashMap::new();
        for (chat, n) in &*lock(&self.log) {
            order.entry(chat.clone()).or_default().push(*n);
        }
        order
    }
}

struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits until `is_so`, for a month at most: by seconds at first, then by minutes.
pub async fn within_a_month(is_so: impl Fn() -> bool) {
    let seconds = (0..600).map(|_| SECOND);
    for pause in seconds.chain((0..30 * 24 * 60).map(|_| MINUTE)) {
        if is_so() {
            return;
        }
        sleep(pause).await;
    }
    panic!("it never became so");
}

pub async fn states(inbox: &Inbox) -> Vec<EventState> {
    let page = Page::oldest(1000);
    let listed = inbox.list(&Filter::default(), page).await.unwrap();
    listed.events.into_iter().map(|event| event.state).collect()
}
