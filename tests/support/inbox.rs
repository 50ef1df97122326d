//! An inbox in memory, its events, and a handler that notes what it handles.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tokio::time::sleep;
use tower::{BoxError, Layer, Service};
use tower_webhook::event::ChatRated;
use tower_webhook::inbox::internal::Tuning;
use tower_webhook::inbox::{Accept, EventState, Filter, Inbox, OnFailure, Page, Retry, Worker};
use tower_webhook::memory::MemoryQueue;
use tower_webhook::signature::Signature;
use tower_webhook::{
    Delivery, EventRouter, EventType, HandlerResult, Outcome, RawDelivery, Receiver, Running,
    SignatureLayer, Webhooks,
};

use super::delivery::{RequestExt, delivery, secret};
use super::{MINUTE, SECOND, lock};

pub fn inbox() -> Inbox {
    Inbox::new(MemoryQueue::new())
}

pub fn webhooks(inbox: &Inbox) -> Signature<Accept> {
    SignatureLayer::new(secret()).layer(inbox.accept())
}

/// A receiver with other settings, whose events another route or process handles.
pub fn accepting(inbox: &Inbox, webhooks: Webhooks) -> Receiver {
    inbox.routes().accept(webhooks).unwrap()
}

/// A worker without a receiver, with its settings in one chain.
#[must_use]
pub struct Work<S> {
    inbox: Inbox,
    route: Webhooks,
    service: S,
}

pub trait Works {
    /// Handles the events of the chat platform's route with `service`.
    fn work<S>(&self, service: S) -> Work<S>;
}

impl Works for Inbox {
    fn work<S>(&self, service: S) -> Work<S> {
        Work {
            inbox: self.clone(),
            route: Webhooks::without_secrets(),
            service,
        }
    }
}

macro_rules! settings {
    ($($setting:ident($($argument:ident: $type:ty),*);)*) => {$(
        pub fn $setting(self $(, $argument: $type)*) -> Self {
            self.set(|worker| worker.$setting($($argument),*))
        }
    )*};
}

impl<S> Work<S> {
    fn set(mut self, set: impl FnOnce(Worker) -> Worker) -> Self {
        self.inbox = self.inbox.worker(set);
        self
    }

    settings! {
        concurrency(events: usize);
        retry(retry: Retry);
        on_failure(rule: OnFailure);
        on_failure_of(of: impl Into<EventType>, rule: OnFailure);
        only(types: impl IntoIterator<Item = impl Into<EventType>>);
        hold_lane_on_dead();
        max_crashes(crashes: u32);
        credit(lanes: usize);
        poll_every(interval: Duration);
    }

    /// Sets what is set with the route.
    pub fn route(mut self, set: impl FnOnce(Webhooks) -> Webhooks) -> Self {
        self.route = set(self.route);
        self
    }

    pub fn lease(self, lease: Duration) -> Self {
        self.route(|route| route.lease(lease))
    }

    pub fn handler_timeout(self, limit: Duration) -> Self {
        self.route(|route| route.handler_timeout(limit))
    }

    pub fn spawn<E>(self) -> Running
    where
        S: Service<RawDelivery, Response = Outcome, Error = E, Future: Send>
            + Clone
            + Send
            + 'static,
        E: Into<BoxError>,
    {
        let mut routes = self.inbox.routes();
        routes.handle(self.route, self.service).unwrap();
        routes.start().unwrap()
    }
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
        let running = InProgress(Arc::clone(&self.running));
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

struct InProgress(Arc<AtomicUsize>);

impl Drop for InProgress {
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
