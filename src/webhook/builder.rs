//! The builder of one route: every setting once, for a store or an inbox, checked together at the end.

use std::collections::BTreeSet;
use std::sync::Arc;
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
use crate::execution::{Defaults, Given, Lent, Limits};
use crate::idempotency::{Idempotency, IdempotencyLayer, Rules};
use crate::inbox::Inbox;
use crate::inbox::lane::{ChatOf, LaneOf};
use crate::inbox::route::Route;
use crate::inbox::worker::{Handler, handler};
#[cfg(feature = "moka")]
use crate::memory::MokaStore;
use crate::outcome::Outcome;
use crate::route::RouteName;
use crate::router::EventRouter;
use crate::sender::Sender;
use crate::signature::{
    MAX_BUFFERED, Neighbours, OnSecret, Secrets, Signature, SignatureLayer, Verifier,
};
use crate::store::Store;
use crate::telemetry::{Observer, Observers};

/// Builds a receiver of one sender's webhooks: it verifies deliveries, and deduplicates them in a
/// [store](crate::docs::stores) or accepts them into an [inbox](crate::docs::inbox).
///
/// Every setting is given once, for either, and in any order. If a setter is called twice, the last call wins. `start`
/// checks the settings together, and returns the service and a [`Running`]:
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
/// let listener = TcpListener::bind("127.0.0.1:3000").await?;
/// running
///     .serve(tower_webhook::shutdown(), Duration::from_secs(30), |stop| {
///         axum::serve(listener, app).with_graceful_shutdown(stop)
///     })
///     .await?;
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
/// To receive from several senders, build each with its own `Webhooks`. To share an inbox and its worker, add them to
/// [`Inbox::routes`].
#[derive(Clone, Debug)]
#[must_use = "it receives nothing until it is started"]
pub struct Webhooks<T = ()> {
    pub(super) route: Settings,
    target: T,
}

/// The settings of a route that do not depend on where its deliveries go.
#[derive(Clone)]
pub(super) struct Settings {
    /// `None` without secrets: nothing is received, and events that others have accepted are handled.
    signature: Option<SignatureLayer>,
    sender: Sender,
    name: Option<RouteName>,
    lane_by: Option<Arc<ChatOf>>,
    given: Given,
    rules: Rules,
    /// The sender's replay guard is left out.
    equal_bodies: bool,
    max_body: Option<usize>,
    observers: Observers,
    kept: Option<Kept>,
    on_secret: Option<OnSecret>,
    neighbours: Option<Neighbours>,
}

/// The kinds that are kept.
#[derive(Clone)]
enum Kept {
    Only(Arc<BTreeSet<EventKind>>),
    /// Resolved at the start, because the route's name may be set after this.
    Handled(EventRouter),
}

partial_debug!(
    Settings,
    |it| sender = it.sender,
    name = it.name,
    given = it.given,
    rules = it.rules
);

impl Webhooks {
    /// Verifies with `secrets`: a [`Secret`](crate::Secret), or [`Secrets`], a handle to a set of them.
    pub fn new(secrets: impl Into<Secrets>) -> Self {
        Self::with(Some(SignatureLayer::new(secrets)))
    }

    /// Verifies **nothing**: anybody who reaches the URL can make handlers run. See
    /// [`SignatureLayer::dangerously_unsigned`].
    pub fn dangerously_unsigned() -> Self {
        Self::with(Some(SignatureLayer::dangerously_unsigned()))
    }

    /// Receives nothing: for a process that only handles what others have accepted, see
    /// [`Routes::handle`](crate::Routes::handle).
    pub fn without_secrets() -> Self {
        Self::with(None)
    }

    /// Verifies with a [`Verifier`], for a sender that no description fits: [`Twilio`](crate::signature::Twilio),
    /// [`Mailgun`](crate::signature::Mailgun), or one of your own. It has the secrets, and takes the place of
    /// [`sender`](Self::sender).
    ///
    /// ```
    /// # fn main() -> Result<(), tower_webhook::ConfigError> {
    /// use tower_webhook::signature::Twilio;
    /// use tower_webhook::{EventRouter, Secret, Webhooks};
    ///
    /// let twilio = Twilio::new("https://example.com/twilio", Secret::new("the auth token")?)?;
    /// let (webhooks, running) = Webhooks::verified_by(twilio)?.start(EventRouter::new())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ConfigError::Description`] when its [name](Verifier::name) is none of 1 to 64 letters, digits, `-`, `_` and `.`.
    pub fn verified_by(verifier: impl Verifier) -> Result<Self, ConfigError> {
        let verifier: Arc<dyn Verifier> = Arc::new(verifier);
        let (policy, guard) = (verifier.policy(), verifier.needs_replay_guard());
        let sender = Sender::of_verifier(verifier.name(), policy, guard)?;
        Ok(Self::with(Some(SignatureLayer::by(verifier))).sender(sender))
    }

    fn with(signature: Option<SignatureLayer>) -> Self {
        Self {
            route: Settings {
                signature,
                sender: Sender::default(),
                name: None,
                lane_by: None,
                given: Given::default(),
                rules: Rules::default(),
                equal_bodies: false,
                max_body: None,
                observers: Observers::default(),
                kept: None,
                on_secret: None,
                neighbours: None,
            },
            target: (),
        }
    }

    /// Remembers keys in `store`, and runs handlers before the answer. Several receivers may share one store.
    pub fn store<St: Store>(self, store: St) -> Webhooks<IdempotencyLayer<St>> {
        Webhooks {
            route: self.route,
            target: IdempotencyLayer::new(store),
        }
    }

    /// Accepts deliveries into an inbox: a [`Queue`](crate::inbox::Queue), or an [`Inbox`] with settings of its own. The
    /// answer is 200 when an event is stored, and a worker runs the handlers later.
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
    /// let inbox = Inbox::new(MemoryQueue::new())
    ///     .backlog_limit(1 << 30)
    ///     .worker(|worker| worker.concurrency(8));
    /// let (webhooks, running) = Webhooks::new(Secret::new("8c1f…")?)
    ///     .inbox(inbox.clone()) // keep a clone, as for a console
    ///     .start(events)?;
    /// # drop(webhooks);
    /// running.drain(Duration::from_secs(30)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn inbox(self, inbox: impl Into<Inbox>) -> Webhooks<Inbox> {
        Webhooks {
            route: self.route,
            target: inbox.into(),
        }
    }
}

/// # Settings
impl<T> Webhooks<T> {
    /// Sets who sends the deliveries: the chat platform by default. All defaults are derived from its
    /// [policy](Sender::policy).
    ///
    /// The [replay guard](Self::replay_guard) is set if its signature does not [cover the key](Sender::covers_key), unless the
    /// sender or [`equal_bodies`](Self::equal_bodies) says that equal bodies are different events.
    pub fn sender(mut self, sender: Sender) -> Self {
        self.route.given.sender_policy = Some(sender.policy());
        self.route.sender = sender;
        self
    }

    /// Sets what keeps a secret that the sender brings in a [handshake](crate::docs::senders#handshakes), and returns whether
    /// it did: a POST that nothing proves. Without it, handshakes are refused, as is one of which `keep` returns `false`.
    ///
    /// Whoever reaches the URL can bring a secret, and sign with it: keep one, while you ask the sender for it, and refuse
    /// all others. `keep` is called within the request, so it must not block for long. To accept deliveries that are
    /// signed with the secret, add it to the [`Secrets`] that the receiver was made with.
    ///
    /// ```
    /// # fn main() -> Result<(), tower_webhook::ConfigError> {
    /// use std::sync::OnceLock;
    ///
    /// use tower_webhook::{Secret, Secrets, Sender, Webhooks};
    ///
    /// // Nobody has the first one, which proves nothing.
    /// let secrets = Secrets::from(Secret::new("3fa1…")?);
    /// let (known, learned) = (secrets.clone(), OnceLock::new());
    /// let webhooks = Webhooks::new(secrets)
    ///     .sender(Sender::named("notion", None)?)
    ///     .on_secret(move |secret| {
    ///         let is_first = learned.set(()).is_ok();
    ///         is_first && Secret::new(secret).and_then(|it| known.replace([it])).is_ok()
    ///     });
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_secret(mut self, keep: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        self.route.on_secret = Some(OnSecret::new(keep));
        self
    }

    /// Makes the route known to the others of the program, so that a request which one of them refuses is tried with the
    /// secrets of the others: see [`Neighbours`]. The routes of one [`Routes`](crate::Routes) know each other without this.
    pub fn neighbours(mut self, all: &Neighbours) -> Self {
        self.route.neighbours = Some(all.clone());
        self
    }

    /// Names the route, for a second account of one sender: by default, it has the name of its
    /// [sender](Sender::name).
    ///
    /// Routes of different names have their own keys, lanes, pauses and counts on one store or queue. Events that are
    /// unsettled when a route is renamed wait for a worker of the old name.
    ///
    /// ```
    /// # use tower_webhook::{Secret, Sender, Webhooks};
    /// # fn main() -> Result<(), tower_webhook::ConfigError> {
    /// let webhooks = Webhooks::new(Secret::new("8c1f…")?)
    ///     .sender(Sender::github())
    ///     .name("github-europe".parse()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn name(mut self, name: RouteName) -> Self {
        self.route.name = Some(name);
        self
    }

    /// Sets the size limit of a body in bytes: by default [the sender's](Sender::max_body), or 1 MiB. A larger one is answered with 413
    /// ([`Refusal::BodyTooLarge`](crate::signature::Refusal::BodyTooLarge)).
    pub fn max_body(mut self, bytes: usize) -> Self {
        self.route.max_body = Some(bytes);
        self
    }

    /// Sets the memory limit, in bytes, of all bodies that are being received at a time: 64 MiB by default.
    ///
    /// Clones of the service share the limit. A body no longer counts once it is complete. Beyond the limit, the slowest
    /// body is given up for another, and answered with 503
    /// ([`Refusal::Overloaded`](crate::signature::Refusal::Overloaded)): the one with the most memory, multiplied by the
    /// time since its last 64 KiB (at least 0.1 s). Bodies that were given up may take as much memory again, until their
    /// tasks have run. Bodies of an inbox that wait for its queue may take as much, too: beyond that, deliveries are answered with
    /// 503 (`database-unavailable`).
    ///
    /// The first 64 KiB of each body do not count, so that connections which hold back the end of large bodies
    /// cannot displace genuine deliveries. Limit the number of connections to limit their memory.
    pub fn max_buffered(mut self, bytes: usize) -> Self {
        if let Some(signature) = &mut self.route.signature {
            signature.config.bounds.budget.limit = bytes;
        }
        self
    }

    /// Sets how long a body of up to 1 MiB may take to arrive at most: 10 seconds by default. A body whose length is declared has
    /// less: 2 seconds, and another one for each 32 KiB. A larger one has a second more for each MiB that has arrived after the
    /// first, so that a length that is only claimed buys no time. A slower one is answered with 408
    /// ([`Refusal::BodyTimeout`](crate::signature::Refusal::BodyTimeout)).
    pub fn body_timeout(mut self, timeout: Duration) -> Self {
        if let Some(signature) = &mut self.route.signature {
            signature.config.bounds.timeout = timeout;
        }
        self
    }

    /// Answers a delivery without an `Idempotency-Key` with 400
    /// ([`Refusal::MissingKey`](crate::signature::Refusal::MissingKey)). By default it is handled without deduplication,
    /// because the test request of [Spec 6, rule 5](crate::docs::platform#spec-6-rule-5) has no key.
    pub fn require_key(mut self) -> Self {
        if let Some(signature) = &mut self.route.signature {
            signature.config.require_key = true;
        }
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
        self.route.kept = Some(Kept::Only(Arc::new(kinds.into_iter().collect())));
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
        self.route.kept = Some(Kept::Handled(router.clone()));
        self
    }

    /// Reports each delivery, each attempt, and each call of the store or queue to an observer: see
    /// [`telemetry`](crate::telemetry).
    ///
    /// With an inbox, it also sees the other routes, the worker, and the calls of each clone of the inbox. Set it with the
    /// first route.
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
        self.route.observers = Observers::new(observer);
        self
    }

    /// Sets how long a key is remembered after its event was handled, or with an inbox accepted: 8 days by default. The key
    /// of an unsettled event or a dead letter is remembered for longer if necessary, until the event is settled. It
    /// must be longer than [`SenderPolicy::retry_for`](crate::SenderPolicy::retry_for), 7 days: an event whose key is
    /// forgotten is handled again.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.route.given.retention = Some(retention);
        self
    }

    /// Sets how long a claim lasts that is not renewed, as after a crash: 60 seconds by default, and 30 seconds with an
    /// inbox, or half of a [`SenderPolicy::retry_every`](crate::SenderPolicy::retry_every) below a minute. It is renewed
    /// whenever a third of it has passed. It must be at least 100 milliseconds, shorter than
    /// [`SenderPolicy::retry_every`](crate::SenderPolicy::retry_every), 600 seconds, and longer than
    /// [`in_flight_wait`](Self::in_flight_wait).
    ///
    /// The claim of a handler that blocks its thread is renewed as long as the runtime has another thread that is idle.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.route.given.lease = Some(lease);
        self
    }

    /// Sets the time limit of each operation of the store, or for storing an event in an inbox: 2 seconds by default, and
    /// more than zero. An inbox adds a second for each 4 MB of the body. When it has passed, the answer is 503
    /// ([`Outcome::Unavailable`]). An inbox may have stored the event
    /// nevertheless; its next delivery is then a duplicate.
    pub fn store_timeout(mut self, timeout: Duration) -> Self {
        self.route.given.store_timeout = Some(timeout);
        self
    }

    /// Sets the time limit of a handler: 30 seconds by default, and more than zero. A handler that exceeds it is dropped,
    /// and its event is handled again. See [`Outcome::TimedOut`].
    ///
    /// A handler that blocks its thread cannot be dropped, and work that it started with `spawn_blocking` continues beside
    /// the next attempt.
    pub fn handler_timeout(mut self, timeout: Duration) -> Self {
        self.route.given.handler_timeout = Some(timeout);
        self
    }

    /// Sets how long a duplicate waits for the run that holds its key, before it is answered with 409: by default 5
    /// seconds, or half of a [`lease`](Self::lease) below 10 seconds. It must be shorter than the lease.
    /// Zero does not wait; a transactional handler then waits at most
    /// 100 ms, and only for another process. An inbox answers duplicates at once.
    pub fn in_flight_wait(mut self, wait: Duration) -> Self {
        self.route.given.in_flight_wait = Some(wait);
        self
    }

    /// Answers with 422 when a delivery's key was used with another body, instead of treating it as the same event.
    ///
    /// Bodies are compared by a 128-bit digest, so a retry that was signed with another secret is still the same body.
    pub fn reject_changed_bodies(mut self) -> Self {
        self.route.rules.reject_changed_bodies = true;
        self
    }

    /// Answers with 422 when a delivery's body was handled under another key, for as long as the
    /// [`retention`](Self::retention) lasts.
    ///
    /// The key is not signed. Without this guard, an attacker who captured a delivery can have it handled
    /// again under another key. A body that had no key either time is answered as a replay.
    ///
    /// The guard is off by default, because two events may legitimately share a body. It costs a second
    /// claim for each delivery. See the [threat model](crate::docs::threat_model).
    pub fn replay_guard(mut self) -> Self {
        self.route.rules.replay_guard = true;
        self.route.equal_bodies = false;
        self
    }

    /// Handles equal bodies under different keys as different events, although the [sender](Self::sender) signs no key: it
    /// leaves out the [replay guard](Self::replay_guard) that its description sets.
    ///
    /// Use it where a sender repeats bodies on purpose. Whoever captured a delivery can then have it handled again under
    /// another key. The [table](crate::docs::senders#profiles) says which profiles do so by themselves.
    ///
    /// ```
    /// # use tower_webhook::{Secret, Sender, Webhooks};
    /// # fn main() -> Result<(), tower_webhook::ConfigError> {
    /// let webhooks = Webhooks::new(Secret::new("8c1f…")?)
    ///     .sender(Sender::named("zerohash", None)?)
    ///     .equal_bodies();
    /// # Ok(())
    /// # }
    /// ```
    pub fn equal_bodies(mut self) -> Self {
        self.route.rules.replay_guard = false;
        self.route.equal_bodies = true;
        self
    }

    /// Sets a function that returns the id of what an event is about, such as a chat or a repository: with an inbox, the
    /// events of one id are handled in order. Without it, the id is the chat of the chat platform's events, and what the
    /// `order` of a [sender's description](crate::docs::senders#another-sender) names. The function is not called for
    /// the chat platform's own kinds.
    ///
    /// If it returns `None` or panics, the event is handled independently of all others. It is called before the event is
    /// stored, so it should be fast.
    ///
    /// ```
    /// # use tower_webhook::{Secret, Sender, Webhooks};
    /// # fn main() -> Result<(), tower_webhook::ConfigError> {
    /// #[derive(serde::Deserialize)]
    /// struct Ticket {
    ///     chat_id: Option<String>,
    /// }
    ///
    /// let webhooks = Webhooks::new(Secret::new("8c1f…")?).lane_by(|delivery| {
    ///     let ticket: Ticket = delivery.decode().ok()?;
    ///     ticket.chat_id
    /// });
    /// # Ok(())
    /// # }
    /// ```
    pub fn lane_by(
        mut self,
        chat: impl Fn(&RawDelivery) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.route.lane_by = Some(Arc::new(chat));
        self
    }
}

/// # Verification alone
impl Webhooks {
    /// Returns the layer that verifies, for handlers that recognise duplicates themselves, such as `transactional` ones.
    /// These alone follow the settings of keys and of handlers.
    ///
    /// ```
    /// # use tower::Layer;
    /// # use tower_webhook::{EventRouter, Secret, Webhooks};
    /// # fn main() -> Result<(), tower_webhook::ConfigError> {
    /// # let transactional_events = EventRouter::new();
    /// let layer = Webhooks::new(Secret::new("8c1f…")?)
    ///     .require_key()
    ///     .into_signature_layer()?;
    /// let webhooks = layer.layer(transactional_events);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ConfigError::NeedsKeys`] with [`reject_changed_bodies`](Self::reject_changed_bodies), [`ConfigError::NoSecrets`], a
    /// limit of zero, a [`retention`](Self::retention) that is too short, and
    /// [`ConfigError::Sender`] when a secret is not written as this sender writes its
    /// secrets, or the token of its challenges is missing.
    pub fn into_signature_layer(self) -> Result<SignatureLayer, ConfigError> {
        Limits::new(&self.route.given, Defaults::TRANSACTION)?;
        if self.route.rules.reject_changed_bodies {
            return Err(ConfigError::NeedsKeys("reject_changed_bodies"));
        }
        let observers = self.route.observers.clone();
        self.route.signature(observers)
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
    /// Handles events **without deduplication** while the store fails, instead of answering 503. An event may then be
    /// handled several times, even concurrently.
    pub fn dangerously_handle_without_store(mut self) -> Self {
        self.route.rules.handle_without_store = true;
        self
    }

    /// Starts the receiver. `service` is an [`EventRouter`], an axum `Router`, or any other service of
    /// `Request<`[`Verified`](crate::Verified)`>`.
    ///
    /// # Errors
    ///
    /// The first setting that would break one of the [guarantees](crate::docs::guarantees).
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
        let (signature, idempotency) = self.into_layers()?;
        let running = Running::new(Work::Inline(idempotency.runs()), vec![signature.clone()]);
        Ok((WebhookLayer::new(signature, idempotency), running))
    }

    /// Returns the two layers, for a service that stands between them. Wait for [`IdempotencyLayer::runs`] when the server
    /// has stopped.
    ///
    /// ```
    /// # use tower::ServiceBuilder;
    /// # use tower_webhook::memory::MokaStore;
    /// # use tower_webhook::{EventRouter, Secret, Webhooks};
    /// # fn main() -> Result<(), tower_webhook::ConfigError> {
    /// let (signature, idempotency) = Webhooks::new(Secret::new("8c1f…")?)
    ///     .store(MokaStore::new())
    ///     .into_layers()?;
    /// let webhooks = ServiceBuilder::new()
    ///     .layer(signature)
    ///     .concurrency_limit(64) // of verified deliveries
    ///     .layer(idempotency)
    ///     .service(EventRouter::new());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn into_layers(self) -> Result<(SignatureLayer, IdempotencyLayer<St>), ConfigError> {
        let mut idempotency = self.target;
        let replay_guard = self.route.replay_guard();
        let Settings {
            given,
            rules,
            observers,
            ..
        } = self.route.clone();
        let limits = Limits::new(&given, Defaults::STORE)?;
        limits.warn_of_deadline();
        idempotency.leases.limits = limits;
        idempotency.leases.observers = observers.clone();
        idempotency.rules = rules;
        idempotency.rules.replay_guard = replay_guard;
        Ok((self.route.signature(observers)?, idempotency))
    }
}

/// # With an inbox
impl Webhooks<Inbox> {
    /// Starts the receiver and a worker. `service` is an [`EventRouter`], or any other service of
    /// [`RawDelivery`] whose response is an [`Outcome`].
    ///
    /// [`Inbox::routes`] starts several receivers, or one half alone.
    ///
    /// # Errors
    ///
    /// The first setting that would break one of the [guarantees](crate::docs::guarantees).
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
        let mut routes = self.target.routes();
        let receiver = routes.add_with(self.route, handler)?;
        Ok((receiver, routes.start()?))
    }
}

impl Settings {
    pub(super) fn name(&self) -> RouteName {
        let of_sender = || self.sender.name().parse().unwrap_or_default();
        self.name.clone().unwrap_or_else(of_sender)
    }

    pub(super) fn sender(&self) -> &Sender {
        &self.sender
    }

    pub(super) fn observers(&self) -> Option<&Observers> {
        Some(&self.observers).filter(|it| it.any())
    }

    pub(super) fn neighbours(&self) -> Option<&Neighbours> {
        self.neighbours.as_ref()
    }

    /// What an inbox and its worker know of the route.
    pub(super) fn route(&self) -> Result<Route, ConfigError> {
        Ok(Route {
            name: self.name(),
            limits: Limits::new(&self.given, Defaults::INBOX)?,
            given: self.given.clone(),
            lane_of: LaneOf::new(&self.sender, self.lane_by.clone()),
            reject_changed_bodies: self.rules.reject_changed_bodies,
            replay_guard: self.replay_guard(),
            max_waiting: (self.signature.as_ref())
                .map_or(MAX_BUFFERED, |it| it.config.bounds.budget.limit),
        })
    }

    fn replay_guard(&self) -> bool {
        self.rules.replay_guard || !self.equal_bodies && self.sender.needs_replay_guard()
    }

    /// The layer that verifies its deliveries.
    pub(super) fn signature(self, observers: Observers) -> Result<SignatureLayer, ConfigError> {
        let (name, replay_guard) = (self.name(), self.replay_guard());
        let signature = self.signature.ok_or(ConfigError::NoSecrets)?;
        if self.on_secret.is_some() && !self.sender.brings_secret() {
            return Err(self.sender.is_wrong(
                "it brings no secret in a handshake: leave out `on_secret`, or --learn-secret",
            ));
        }
        let mut signature = signature.at(name.clone(), self.sender)?;
        signature.config.on_secret = self.on_secret;
        if let Some(bytes) = self.max_body {
            signature.config.bounds.max_body = bytes;
        }
        signature.config.kept = match self.kept {
            Some(Kept::Only(kinds)) => Some(kinds),
            Some(Kept::Handled(router)) => router.handled_at(&name).map(Arc::new),
            None => None,
        };
        let lent = Lent {
            replay_guard,
            given: self.given,
            observers: observers.clone(),
        };
        signature.config.lent = Some(lent.into_any());
        signature.config.observers = observers;
        if let Some(neighbours) = &self.neighbours {
            signature.beside(neighbours);
        }
        Ok(signature)
    }
}
