//! The builder: every setting once, for a store or an inbox, checked together at the end.

use std::time::Duration;

use tower_layer::Layer;
use tower_service::Service;

use super::layer::WebhookLayer;
use super::receiver::Receiver;
use super::running::{Running, Work};
use crate::config::ConfigError;
use crate::delivery::RawDelivery;
use crate::error::BoxError;
use crate::event::EventKind;
use crate::execution::{Given, Limits};
use crate::idempotency::{Idempotency, IdempotencyLayer, Rules};
use crate::inbox::worker::{Handler, handler};
use crate::inbox::{Inbox, Worker};
#[cfg(feature = "moka")]
use crate::memory::MokaStore;
use crate::outcome::Outcome;
use crate::router::EventRouter;
use crate::sender::Sender;
use crate::signature::{Secrets, Signature, SignatureLayer};
use crate::store::Store;
use crate::telemetry::{Observer, Observers};

/// Builds a receiver: it verifies deliveries, and deduplicates them in a [store](crate::docs::stores) or accepts them into
/// an [inbox](crate::docs::inbox).
///
/// Every setting is given once, for either, and in any order. A setter that is called twice counts as called last.
/// `start` checks the settings together, and returns the service and a [`Running`]:
///
/// ```no_run
/// # #[cfg(all(feature = "signal", feature = "sqlite"))]
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// # use tower_webhook::event::ChatRated;
/// use std::time::Duration;
///
/// use axum::Router;
/// use tokio::net::TcpListener;
/// use tower_webhook::sqlite::SqliteStore;
/// use tower_webhook::{Delivery, EventRouter, Secret, Webhooks};
///
/// let events = EventRouter::new().on::<ChatRated>(async |_: Delivery<ChatRated>| Ok(()));
/// let (webhooks, running) = Webhooks::new(Secret::from_env("WEBHOOK_SECRET")?)
///     .store(SqliteStore::open("webhooks.db")?) // or .inbox(SqliteQueue::open("webhooks.db")?)
///     .handler_timeout(Duration::from_secs(10))
///     .start(events)?;
///
/// let app = Router::new().route_service("/webhooks", webhooks);
/// axum::serve(TcpListener::bind("127.0.0.1:3000").await?, app)
///     .with_graceful_shutdown(tower_webhook::shutdown())
///     .await?;
/// running.drain(Duration::from_secs(30)).await?;
/// # Ok(())
/// # }
/// ```
///
/// Without [`store`](Self::store) and [`inbox`](Self::inbox), keys are remembered in memory (feature `moka`).
///
/// The service is `Clone`, and its errors are those of the inner service. Mount it with axum's `Router::route_service`,
/// or serve it with hyper. For axum handlers that are wrapped by `Router::route_layer`, use
/// [`into_layer`](Self::into_layer) instead of `start`.
///
/// # Settings of the pieces
///
/// The receiver is made of a [`SignatureLayer`] around an [`IdempotencyLayer`], or around an [`Inbox`] with its
/// [`Worker`]. A piece that was configured separately can be passed to [`idempotency`](Self::idempotency) or
/// [`inbox`](Self::inbox). A setting that has one value here and another on the piece is refused:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_webhook::ConfigError> {
/// use tower_webhook::inbox::Inbox;
/// use tower_webhook::memory::MemoryQueue;
/// use tower_webhook::{EventRouter, Secret, Webhooks};
///
/// let error = Webhooks::new(Secret::new("8c1f…")?)
///     .namespace("europe")
///     .inbox(Inbox::new(MemoryQueue::new()).namespace("america"))
///     .start(EventRouter::new())
///     .unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     r#"`namespace` is "europe" on `Webhooks` and "america" on `Inbox`: set it on one of them"#
/// );
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "it receives nothing until it is started"]
pub struct Webhooks<T = ()> {
    shared: Shared,
    target: T,
}

/// The settings that do not depend on where deliveries go.
#[derive(Clone, Debug)]
struct Shared {
    signature: SignatureLayer,
    sender: Option<Sender>,
    given: Given,
    rules: Rules,
    observers: Observers,
}

impl Webhooks {
    /// Verifies with `secrets`: a [`Secret`](crate::Secret), or [`Secrets`], a handle to a set of them.
    pub fn new(secrets: impl Into<Secrets>) -> Self {
        Self::with(SignatureLayer::new(secrets))
    }

    /// Verifies **nothing**: anybody who reaches the URL can make handlers run. See
    /// [`SignatureLayer::dangerously_unsigned`].
    pub fn dangerously_unsigned() -> Self {
        Self::with(SignatureLayer::dangerously_unsigned())
    }

    fn with(signature: SignatureLayer) -> Self {
        Self {
            shared: Shared {
                signature,
                sender: None,
                given: Given::default(),
                rules: Rules::default(),
                observers: Observers::default(),
            },
            target: (),
        }
    }
}

/// # Where deliveries go
///
/// A later call of these replaces an earlier one, with the settings that only a store or only an inbox has.
impl<T> Webhooks<T> {
    /// Remembers keys in `store`, and runs handlers before the answer. Several receivers may share one store.
    pub fn store<St: Store>(self, store: St) -> Webhooks<IdempotencyLayer<St>> {
        self.idempotency(IdempotencyLayer::new(store))
    }

    /// Like [`store`](Self::store), with a layer that was configured separately.
    pub fn idempotency<St: Store>(
        self,
        layer: IdempotencyLayer<St>,
    ) -> Webhooks<IdempotencyLayer<St>> {
        self.with_target(layer)
    }

    /// Accepts deliveries into an inbox: a [`Queue`](crate::inbox::Queue), or an [`Inbox`] with settings of its own. The answer is 200 when an
    /// event is stored, and a worker runs the handlers later.
    ///
    /// What is set here applies to the receiver and its worker. A clone of the inbox that you keep, as for a
    /// [console](https://docs.rs/tower-webhook-console), has only the settings that were set on the inbox: set an
    /// [`observer`](Inbox::observer) there. It finds the keys of every receiver that was started with one of its clones.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # use tower_webhook::{EventRouter, Secret, Webhooks};
    /// # let events = EventRouter::new();
    /// use tower_webhook::inbox::Inbox;
    /// use tower_webhook::memory::MemoryQueue;
    ///
    /// let inbox = Inbox::new(MemoryQueue::new()).backlog_limit(1 << 30);
    /// let (webhooks, running) = Webhooks::new(Secret::new("8c1f…")?)
    ///     .inbox(inbox.clone())
    ///     .worker(|worker| worker.concurrency(8))
    ///     .start(events)?;
    /// # drop(webhooks);
    /// running.drain(Duration::from_secs(30)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn inbox(self, inbox: impl Into<Inbox>) -> Webhooks<Worker> {
        // `start` gives it its service.
        self.with_target(inbox.into().worker(EventRouter::new()))
    }

    fn with_target<U>(mut self, target: U) -> Webhooks<U> {
        self.shared.given.in_flight_wait = None;
        self.shared.rules.handle_without_store = false;
        Webhooks {
            shared: self.shared,
            target,
        }
    }
}

/// # Settings
impl<T> Webhooks<T> {
    /// Sets who sends the deliveries: the chat platform by default. All defaults are derived from its
    /// [policy](Sender::policy).
    ///
    /// Of another sender, the [namespace](Self::namespace) is its name unless you set one, and the
    /// [replay guard](Self::replay_guard) is set if its signature does not [cover the key](Sender::covers_key).
    pub fn sender(mut self, sender: Sender) -> Self {
        self.shared.given.sender_policy = Some(sender.policy());
        self.shared.sender = Some(sender);
        self
    }

    /// Sets the size limit of a body in bytes: 1 MiB by default. A larger one is answered with 413.
    pub fn max_body(mut self, bytes: usize) -> Self {
        self.shared.signature = self.shared.signature.max_body(bytes);
        self
    }

    /// Sets the memory limit, in bytes, of all bodies that are being received at a time: 64 MiB by default. See
    /// [`SignatureLayer::max_buffered`].
    pub fn max_buffered(mut self, bytes: usize) -> Self {
        self.shared.signature = self.shared.signature.max_buffered(bytes);
        self
    }

    /// Sets how long a body may take to arrive at most: 10 seconds by default. See [`SignatureLayer::body_timeout`].
    pub fn body_timeout(mut self, timeout: Duration) -> Self {
        self.shared.signature = self.shared.signature.body_timeout(timeout);
        self
    }

    /// Answers a delivery without an `Idempotency-Key` with 400. See [`SignatureLayer::require_key`].
    pub fn require_key(mut self) -> Self {
        self.shared.signature = self.shared.signature.require_key();
        self
    }

    /// Keeps the events of these kinds only. After verification, an event of another kind is answered with 200
    /// ([`Outcome::Filtered`]), and neither stored nor remembered: its key stays free. Observers see it as any delivery. A
    /// call replaces earlier calls of this and of [`keep_handled`](Self::keep_handled).
    ///
    /// By default, an inbox stores the events of all kinds, since a worker that is deployed tomorrow may handle them.
    ///
    /// ```
    /// # use tower_webhook::{EventKind, Secret, Webhooks};
    /// # fn main() -> Result<(), tower_webhook::ConfigError> {
    /// let webhooks = Webhooks::new(Secret::new("8c1f…")?)
    ///     .keep_only([EventKind::CHAT_CLOSED, EventKind::CHAT_RATED]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn keep_only(mut self, kinds: impl IntoIterator<Item = EventKind>) -> Self {
        let kinds = kinds.into_iter().collect();
        self.shared.signature = self.shared.signature.keep(Some(kinds));
        self
    }

    /// Keeps the events only whose kind has a handler in `router`, as [`keep_only`](Self::keep_only). A router with a
    /// [`fallback`](EventRouter::fallback) handles all. [`reject_unhandled`](EventRouter::reject_unhandled) has no effect
    /// then, because the router never sees another kind.
    ///
    /// ```
    /// # use tower_webhook::event::ChatRated;
    /// # use tower_webhook::{Delivery, EventRouter, Secret, Webhooks};
    /// # fn main() -> Result<(), tower_webhook::ConfigError> {
    /// let events = EventRouter::new().on::<ChatRated>(async |_: Delivery<ChatRated>| Ok(()));
    /// let (webhooks, running) = Webhooks::new(Secret::new("8c1f…")?)
    ///     .keep_handled(&events)
    ///     .start(events)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn keep_handled(mut self, router: &EventRouter) -> Self {
        self.shared.signature = self.shared.signature.keep(router.handled());
        self
    }

    /// Reports each delivery, each attempt, and each call of the store or queue to an observer: see
    /// [`telemetry`](crate::telemetry). An observer that was set on a piece sees the same, if there is none here.
    ///
    /// ```
    /// # use tower_webhook::telemetry::FailureBudget;
    /// # use tower_webhook::{Secret, Webhooks};
    /// # fn main() -> Result<(), tower_webhook::ConfigError> {
    /// let budget = FailureBudget::default();
    /// let webhooks = Webhooks::new(Secret::new("8c1f…")?).observer(budget.clone());
    /// # Ok(())
    /// # }
    /// ```
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.shared.observers = Observers::new(observer);
        self
    }

    /// Keeps the keys apart from those of other receivers on the same store or queue. It defaults to an empty string. See
    /// [`IdempotencyLayer::namespace`] and [`Inbox::namespace`].
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.shared.given.namespace = Some(namespace.into());
        self
    }

    /// Sets how long a key is remembered after its event was handled, or with an inbox accepted: 8 days by default. It
    /// must be longer than [`SenderPolicy::retry_for`](crate::SenderPolicy::retry_for), 7 days.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.shared.given.retention = Some(retention);
        self
    }

    /// Sets how long a claim lasts that is not renewed, as after a crash: 60 seconds by default, and 30 seconds with an
    /// inbox. It must be at least 100 milliseconds, shorter than
    /// [`SenderPolicy::retry_every`](crate::SenderPolicy::retry_every), 600 seconds, and longer than
    /// [`in_flight_wait`](Webhooks::in_flight_wait). See [`IdempotencyLayer::lease`] and [`Worker::lease`].
    pub fn lease(mut self, lease: Duration) -> Self {
        self.shared.given.lease = Some(lease);
        self
    }

    /// Sets the time limit of each operation of the store, or for storing an event in an inbox: 2 seconds by default, and
    /// more than zero. When it has passed, the answer is 503. See [`IdempotencyLayer::store_timeout`] and
    /// [`Inbox::store_timeout`].
    pub fn store_timeout(mut self, timeout: Duration) -> Self {
        self.shared.given.store_timeout = Some(timeout);
        self
    }

    /// Sets the time limit of a handler: 30 seconds by default, and more than zero. A handler that exceeds it is dropped,
    /// and its event is handled again. See [`IdempotencyLayer::handler_timeout`].
    pub fn handler_timeout(mut self, timeout: Duration) -> Self {
        self.shared.given.handler_timeout = Some(timeout);
        self
    }

    /// Answers with 422 when a delivery's key was used with another body, instead of treating it as the same event.
    pub fn reject_changed_bodies(mut self) -> Self {
        self.shared.rules.reject_changed_bodies = true;
        self
    }

    /// Answers with 422 when a delivery's body was handled under another key, because an attacker may have captured it.
    /// See [`IdempotencyLayer::replay_guard`].
    pub fn replay_guard(mut self) -> Self {
        self.shared.rules.replay_guard = true;
        self
    }
}

/// # In memory
#[cfg(feature = "moka")]
impl Webhooks {
    /// Starts a receiver that remembers keys in memory, in a new [`MokaStore`]. A restart forgets them.
    ///
    /// # Errors
    ///
    /// The first setting that would break one of the [guarantees](crate::docs::guarantees).
    pub fn start<S>(
        self,
        service: S,
    ) -> Result<(Signature<Idempotency<S, MokaStore>>, Running), ConfigError> {
        self.store(MokaStore::new()).start(service)
    }

    /// Returns the layer instead of a service, as [`Webhooks::into_layer`] does with a store.
    ///
    /// # Errors
    ///
    /// As `start`.
    pub fn into_layer(self) -> Result<(WebhookLayer<MokaStore>, Running), ConfigError> {
        self.store(MokaStore::new()).into_layer()
    }
}

/// # With a store
impl<St: Store> Webhooks<IdempotencyLayer<St>> {
    /// Sets how long a duplicate waits for the run that holds its key, before it is answered with 409: 5 seconds by
    /// default, and shorter than the [`lease`](Self::lease). Zero does not wait.
    pub fn in_flight_wait(mut self, wait: Duration) -> Self {
        self.shared.given.in_flight_wait = Some(wait);
        self
    }

    /// Handles events **without deduplication** while the store fails, instead of answering 503. An event may then be
    /// handled several times, even concurrently.
    pub fn dangerously_handle_without_store(mut self) -> Self {
        self.shared.rules.handle_without_store = true;
        self
    }

    /// Starts the receiver. `service` is an [`EventRouter`], an axum `Router`, or any other service of
    /// `Request<`[`Verified`](crate::Verified)`>`.
    ///
    /// # Errors
    ///
    /// The first setting that would break one of the [guarantees](crate::docs::guarantees), or that was set differently
    /// on a piece: [`ConfigError::SetTwice`].
    pub fn start<S>(
        self,
        service: S,
    ) -> Result<(Signature<Idempotency<S, St>>, Running), ConfigError>
    where
        St: Clone,
    {
        let (layer, running) = self.into_layer()?;
        Ok((layer.layer(service), running))
    }

    /// Returns the layer instead of a service, to wrap several services, or an axum `Router` with its `route_layer`.
    ///
    /// ```
    /// # use axum::Router;
    /// # use axum::routing::post;
    /// # use tower_webhook::{Secret, Webhooks};
    /// # fn main() -> Result<(), tower_webhook::ConfigError> {
    /// let (webhooks, running) = Webhooks::new(Secret::new("8c1f…")?).into_layer()?;
    /// let app: Router = Router::new()
    ///     .route("/webhooks", post(async || "any event"))
    ///     .route_layer(webhooks);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn into_layer(self) -> Result<(WebhookLayer<St>, Running), ConfigError> {
        let mut idempotency = self.target;
        let leases = &mut idempotency.leases;
        let (rules, replay_guard) = (self.shared.rules, self.shared.replay_guard());
        let signature = self.shared.join(
            &mut leases.limits,
            &mut leases.observers,
            |_| "IdempotencyLayer",
        )?;
        idempotency.rules.handle_without_store |= rules.handle_without_store;
        idempotency.rules.reject_changed_bodies |= rules.reject_changed_bodies;
        idempotency.rules.replay_guard |= replay_guard;
        let running = Running::new(Work::Inline(idempotency.runs()), &signature);
        Ok((WebhookLayer::new(signature, idempotency), running))
    }
}

/// # With an inbox
impl Webhooks<Worker> {
    /// Changes the settings that only a worker has, such as [`concurrency`](Worker::concurrency) and
    /// [`retry`](Worker::retry).
    pub fn worker(mut self, change: impl FnOnce(Worker) -> Worker) -> Self {
        self.target = change(self.target);
        self
    }

    /// Starts the receiver and a worker. `service` is an [`EventRouter`], or any other service of
    /// [`RawDelivery`] whose response is an [`Outcome`].
    ///
    /// # Errors
    ///
    /// The first setting that would break one of the [guarantees](crate::docs::guarantees), or that was set differently
    /// on a piece: [`ConfigError::SetTwice`].
    ///
    /// # Panics
    ///
    /// When it is called outside of a tokio runtime.
    pub fn start<S>(self, service: S) -> Result<(Receiver, Running), ConfigError>
    where
        S: Service<RawDelivery, Response = Outcome, Error: Into<BoxError>, Future: Send>
            + Clone
            + Send
            + 'static,
    {
        self.start_with(handler(service))
    }

    // Not generic, so that it is compiled with this crate.
    fn start_with(self, handler: Handler) -> Result<(Receiver, Running), ConfigError> {
        let mut worker = self.target;
        let settings = worker.inbox.set();
        if let Some(sender) = &self.shared.sender {
            settings.lane_of.of_sender(sender);
        }
        let (rules, replay_guard) = (self.shared.rules, self.shared.replay_guard());
        let signature = self.shared.join(
            &mut settings.limits,
            &mut settings.observers,
            |setting| match setting {
                "lease" | "handler_timeout" => "Worker",
                _ => "Inbox",
            },
        )?;
        settings.reject_changed_bodies |= rules.reject_changed_bodies;
        settings.replay_guard |= replay_guard;
        let webhooks = Receiver::new(signature.layer(worker.inbox.accept()));
        worker.handler = handler;
        let handle = worker.spawn();
        Ok((webhooks, Running::new(Work::Inbox(handle), &signature)))
    }
}

impl Shared {
    /// Whether it was asked for, or the sender needs it.
    fn replay_guard(&self) -> bool {
        let sender = self.sender.as_ref();
        self.rules.replay_guard || sender.is_some_and(Sender::needs_replay_guard)
    }

    /// Adds the settings to those of a piece, and returns the layer that goes around it.
    fn join(
        self,
        limits: &mut Limits,
        observers: &mut Observers,
        piece: fn(&'static str) -> &'static str,
    ) -> Result<SignatureLayer, ConfigError> {
        limits.join(self.given, piece)?;
        if let Some(name) = self.sender.as_ref().and_then(Sender::namespace) {
            limits.set(|given| {
                given.namespace.get_or_insert_with(|| name.to_owned());
            });
        }
        match (self.observers.any(), observers.any()) {
            (true, true) => {
                return Err(ConfigError::SetTwice {
                    setting: "observer",
                    piece: piece("observer"),
                    values: None,
                });
            }
            (true, false) => *observers = self.observers,
            (false, _) => {}
        }
        let sender = self.sender.unwrap_or_default();
        Ok(self
            .signature
            .sender(sender)?
            .sender_policy(limits.policy)
            .observers(observers.clone()))
    }
}
