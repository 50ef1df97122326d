//! A simulated platform for tests and local development (feature `sandbox`).
//!
//! A [`Sandbox`] implements sections 3 to 8 of the [platform's interface](crate::docs::platform):
//!
//! - a portal with [webhooks](Webhook) and [API keys](Sandbox::create_api_key);
//! - [chats](SimulatedChat) that cause events, by script or [at random](Generator);
//! - signed deliveries, retried every 10 minutes for 7 days
//!   ([Spec 6, rule 3](crate::docs::platform#spec-6-rule-3)) and counted against the webhook
//!   ([rule 4](crate::docs::platform#spec-6-rule-4)), with [`Faults`] on request;
//! - the [Admin API's endpoint](GraphQl).
//!
//! It delivers [into a service of this process](Sandbox::in_process) or [over HTTP](Sandbox::over_http),
//! and returns a [`Report`] on every event.
//!
//! All time is `tokio::time`. In a test with paused time, 7 days take milliseconds.
//!
//! # Example
//!
//! The events of a chat reach your handlers, although one response is lost:
//!
//! ```
//! # use tower_webhook::event::*;
//! # use tower_webhook::{Delivery, EventRouter};
//! use tower_webhook::sandbox::{Fault, Rating, Sandbox, Webhook};
//! use tower_webhook::{Secret, Webhooks};
//! # fn my_handlers() -> EventRouter {
//! #     EventRouter::new().on::<ChatRated>(async |_: Delivery<ChatRated>| Ok(()))
//! # }
//!
//! # /*
//! #[tokio::test(start_paused = true)]
//! # */
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() { a_chat_is_handled().await }
//! async fn a_chat_is_handled() {
//!     let secret = Secret::new("secret").unwrap();
//!     let (webhooks, _running) = Webhooks::new(secret.clone()).start(my_handlers()).unwrap();
//!     let sandbox = Sandbox::in_process(webhooks);
//!     sandbox.configure_all(&Webhook::new("/webhooks").signed(secret));
//!     sandbox.inject(Fault::DropResponse);
//!     let chat = sandbox.chat();
//!     chat.assign();
//!     chat.message("Where is my parcel?");
//!     chat.close();
//!     chat.rate(Rating::Good);
//!     let report = sandbox.finish().await;
//!     assert!(report.is_all_delivered(), "{report}");
//! }
//! ```
//!
//! # What the spec leaves open
//!
//! Where the spec is silent, the sandbox assumes the case that is harder for the receiver, so that a
//! receiver that works here does not rely on more than the platform does:
//!
//! - Only 2xx counts as delivered ([`AttemptResult::is_delivered`]).
//! - An event is never sent if its webhook is disabled, inactive or without a URL when it is created
//!   ([`EventState::NeverSent`]). If the webhook is disabled later, the event is retried in its chat's
//!   first round after the webhook delivers again; its 7 days continue meanwhile.
//! - All events of a chat are retried together, so the first retry of an event can come less than 10
//!   minutes after it failed.
//! - No order is kept: the events of a chat are sent at the same time.
//! - Duplicates that fail count as failed attempts.
//! - A webhook that is [enabled](Sandbox::enable) again starts without failures. Test events never
//!   count, and are not retried.
//!
//! In strict mode, it also assumes what is unlikely:
//!
//! ```
//! # use tower_webhook::sandbox::{Body, Sandbox, Webhook};
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! # let receiver = tower::service_fn(async |_: http::Request<Body>| {
//! #     Ok::<_, std::convert::Infallible>(http::Response::new(()))
//! # });
//! let sandbox = Sandbox::in_process(receiver).strict();
//! # }
//! ```
//!
//! [`Sandbox::strict`] lists the differences.
//!
//! # What is invented
//!
//! These have no source in the spec, and a receiver must not rely on them:
//!
//! - the names of the types of the Admin API's schema, its introspection, and its errors ([`ApiFault`]);
//! - the words of `status` (`opened`, `closed` and so on) and of a message's `type` (`message`);
//! - a button that sends a test event: the spec has it sent by hand
//!   ([Spec 6, rule 5](crate::docs::platform#spec-6-rule-5));
//! - that deliveries resume after a webhook was enabled again;
//! - one secret per webhook: the spec does not say whether all webhooks share one.

mod api_fault;
mod chat;
mod clock;
mod fault;
mod graphql;
mod lookup;
mod portal;
mod report;
mod sender;
mod state;
mod strict;
mod target;

use std::fmt;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, SystemTime};

use http::{Request, Response};
use tokio::sync::broadcast;
use tokio::task::AbortHandle;
use tower_service::Service;

pub use self::api_fault::ApiFault;
pub use self::chat::{Generator, Rating, SimulatedChat};
pub use self::fault::{Fault, Faults, Injected, InvalidFaults};
pub use self::graphql::GraphQl;
pub use self::lookup::EventFilter;
pub use self::portal::{ApiKey, Webhook, WebhookStatus};
pub use self::report::{
    Attempt, AttemptId, AttemptResponse, AttemptResult, EventId, EventReport, EventState, Report,
};
pub use self::target::{Body, BodyTruncated};

use self::chat::{ChatData, RATE_AFTER, invent};
use self::sender::Shared;
use self::state::State;
use self::target::Target;
use crate::event::SenderPolicy;
use crate::event::{ChatLifecycle, EventKind, Timestamp, sample};
use crate::signature::{HeaderNames, Secret};

/// The settings of a [`Sandbox`]: see [`Sandbox::in_process_with`] and [`Sandbox::over_http`].
///
/// ```
/// use tower_webhook::sandbox::{Faults, Settings};
///
/// let settings = Settings {
///     seed: 7,
///     faults: Faults::all(0.02),
///     ..Settings::default()
/// };
/// ```
#[derive(Clone, Debug)]
pub struct Settings {
    /// The seed of all random numbers: faults, keys and the contents of chats. Defaults to 0.
    pub seed: u64,
    /// How often each [`Fault`] happens. None happens by default.
    pub faults: Faults,
    /// When events are retried and webhooks disabled. Defaults to the platform's policy.
    pub policy: SenderPolicy,
    /// The names of the headers. Defaults to the platform's names.
    pub header_names: HeaderNames,
    /// How long the platform waits for a response, in `tokio::time` like the delays of faults. Defaults
    /// to 10 seconds.
    pub attempt_timeout: Duration,
    /// When a chat that was closed or transferred is rated without a script, counted from its last event
    /// ([Spec 3, rule 1](crate::docs::platform#spec-3-rule-1)). Defaults to an hour.
    pub rate_after: Duration,
    /// The time of the platform's clock at the start. Defaults to the system's time; set it if runs must
    /// repeat byte by byte.
    pub start: Timestamp,
    /// How much faster the platform's clock runs than `tokio::time`. Defaults to 1.
    pub speed: u32,
}

impl Default for Settings {
    fn default() -> Self {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        Self {
            seed: 0,
            faults: Faults::none(),
            policy: SenderPolicy::default(),
            header_names: HeaderNames::default(),
            attempt_timeout: Duration::from_secs(10),
            rate_after: RATE_AFTER,
            start: Timestamp::from_millis(i64::try_from(now.as_millis()).unwrap_or_default()),
            speed: 1,
        }
    }
}

/// The simulated platform. See the [module](self) for an example.
///
/// Clones are handles to one platform, which stops when the last handle is dropped. A [`SimulatedChat`]
/// and a [`Generator`] hold one each. Events are kept in memory until then.
#[derive(Clone)]
pub struct Sandbox {
    shared: Arc<Shared>,
    _engine: Arc<Engine>,
}

struct Engine(AbortHandle);

impl Drop for Engine {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Sandbox {
    /// Starts a platform that delivers into a service in this process, whatever the webhooks' URLs are.
    ///
    /// ```
    /// # use tower_webhook::EventKind;
    /// # use tower_webhook::sandbox::{Body, EventState, Sandbox, Webhook};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// # let receiver = tower::service_fn(async |_: http::Request<Body>| {
    /// #     Ok::<_, std::convert::Infallible>(http::Response::new(()))
    /// # });
    /// let sandbox = Sandbox::in_process(receiver);
    /// sandbox.configure(EventKind::CHAT_ASSIGNED, Webhook::new("/webhooks"));
    /// sandbox.chat().assign();
    ///
    /// let report = sandbox.finish().await;
    /// assert_eq!(report.count(EventState::Delivered), 1);
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// Panics outside of a Tokio runtime.
    #[track_caller]
    pub fn in_process<S, B>(service: S) -> Self
    where
        S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
        S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
        S::Future: Send,
    {
        Self::in_process_with(service, Settings::default())
    }

    /// Like [`in_process`](Self::in_process), with [`Settings`].
    ///
    /// ```
    /// # use tower_webhook::sandbox::{Body, Faults, Sandbox, Settings};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// # let receiver = tower::service_fn(async |_: http::Request<Body>| {
    /// #     Ok::<_, std::convert::Infallible>(http::Response::new(()))
    /// # });
    /// let settings = Settings { faults: Faults::all(0.05), seed: 7, ..Settings::default() };
    /// let sandbox = Sandbox::in_process_with(receiver, settings);
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// Panics outside of a Tokio runtime.
    #[track_caller]
    pub fn in_process_with<S, B>(service: S, settings: Settings) -> Self
    where
        S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
        S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
        S::Future: Send,
    {
        Self::start(target::service(service), settings)
    }

    /// Starts a platform that delivers over HTTP/1.1 to the webhooks' URLs: over TLS to `https` URLs, with
    /// the operating system's certificates, or those in `SSL_CERT_FILE` on Linux.
    ///
    /// ```
    /// # use tower_webhook::sandbox::{Sandbox, Settings, Webhook};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// let sandbox = Sandbox::over_http(Settings::default());
    /// sandbox.configure_all(&Webhook::new("http://127.0.0.1:3000/webhooks"));
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// Panics outside of a Tokio runtime.
    #[track_caller]
    #[must_use]
    pub fn over_http(settings: Settings) -> Self {
        Self::start(target::http(), settings)
    }

    /// Makes the platform as hard on the receiver as the spec allows, from now on:
    ///
    /// - Only 200 counts as delivered; another 2xx status is [`AttemptResult::NotAccepted`].
    /// - The events that wait when a webhook is disabled are [lost](EventState::Lost).
    /// - Failures of test events count against the webhook.
    /// - `status` and `type` have words that no receiver knows, and some fields without a value are `null`
    ///   instead of omitted.
    /// - About half of the queries to the [Admin API](Self::graphql) have an [`ApiFault`].
    ///
    /// The [`Faults`] of deliveries are set separately.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// use http::{Request, Response, StatusCode};
    /// use tower_webhook::sandbox::{Body, EventState, Sandbox, Webhook};
    ///
    /// let receiver = tower::service_fn(async |_: Request<Body>| {
    ///     let mut response = Response::new(());
    ///     *response.status_mut() = StatusCode::NO_CONTENT;
    ///     Ok::<_, std::convert::Infallible>(response)
    /// });
    /// let sandbox = Sandbox::in_process(receiver).strict();
    /// sandbox.configure_all(&Webhook::new("/webhooks"));
    /// sandbox.chat().assign();
    ///
    /// let report = sandbox.finish().await;
    /// assert_eq!(report.count(EventState::Lost), 1);
    /// # }
    /// ```
    #[must_use]
    pub fn strict(self) -> Self {
        self.change(|state| state.strict = true);
        self
    }

    #[track_caller]
    fn start(target: Target, settings: Settings) -> Self {
        let shared = Arc::new(Shared::new(target, settings));
        let engine = tokio::spawn(Arc::clone(&shared).run());
        Self {
            shared,
            _engine: Arc::new(Engine(engine.abort_handle())),
        }
    }

    /// Configures the [`Webhook`] of one kind of event, and replaces an earlier configuration. A webhook
    /// that the platform disabled stays disabled until [`enable`](Self::enable).
    pub fn configure(&self, kind: EventKind, webhook: Webhook) {
        self.change(|state| state.portal.configure(kind, webhook));
    }

    /// Configures the webhooks of [all seven kinds](EventKind::ALL) alike.
    pub fn configure_all(&self, webhook: &Webhook) {
        for kind in EventKind::ALL {
            self.configure(kind, webhook.clone());
        }
    }

    /// Enables a webhook that the platform disabled
    /// ([Spec 6, rule 4](crate::docs::platform#spec-6-rule-4)).
    pub fn enable(&self, kind: &EventKind) {
        self.change(|state| state.portal.enable(kind));
    }

    /// Returns the configured webhooks and their state.
    #[must_use]
    pub fn webhooks(&self) -> Vec<WebhookStatus> {
        let state = &mut *self.lock();
        state.portal.status(&state.clock)
    }

    /// Creates an API key, the access token of the [Admin API](Self::graphql), which is not shown again
    /// ([Spec 5.1](crate::docs::platform#spec-5-1)).
    ///
    /// The key is derived from the [seed](Settings::seed), so it is no secret.
    #[must_use]
    pub fn create_api_key(&self, description: impl Into<String>) -> String {
        self.change(|state| {
            let key = format!("{:032x}", state.rng.u128(..));
            let now = state.clock.timestamp(state.clock.now());
            state.portal.add_api_key(&key, description.into(), now);
            key
        })
    }

    /// Returns the API keys that were created, without the keys themselves.
    #[must_use]
    pub fn api_keys(&self) -> Vec<ApiKey> {
        self.lock().portal.api_keys.clone()
    }

    /// Returns the Admin API's endpoint as a service; see [`GraphQl`] for an example.
    #[must_use]
    pub fn graphql(&self) -> GraphQl {
        GraphQl::new(Arc::clone(&self.shared))
    }

    /// Applies a fault to the next query of the [Admin API](Self::graphql) with a valid API key. The faults
    /// of several calls are applied one after the other.
    ///
    /// ```
    /// # use tower_webhook::sandbox::{Body, Sandbox};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// # let receiver = tower::service_fn(async |_: http::Request<Body>| {
    /// #     Ok::<_, std::convert::Infallible>(http::Response::new(()))
    /// # });
    /// use tower_webhook::sandbox::ApiFault;
    ///
    /// let sandbox = Sandbox::in_process(receiver);
    /// sandbox.inject_api(ApiFault::TooManyRequests);
    /// # }
    /// ```
    pub fn inject_api(&self, fault: ApiFault) {
        self.change(|state| state.api_faults.push_back(fault));
    }

    /// Returns whether chat is available, as the [Admin API](Self::graphql) reports it. Initially it is.
    #[must_use]
    pub fn is_available(&self) -> bool {
        self.lock().portal.available
    }

    /// Sets whether chat [is available](Self::is_available).
    pub fn set_available(&self, available: bool) {
        self.change(|state| state.portal.available = available);
    }

    /// Creates a chat with random contents. It causes no event before a method such as
    /// [`SimulatedChat::assign`] is called.
    #[must_use]
    pub fn chat(&self) -> SimulatedChat {
        let index = self.change(|state| {
            let number = state.chats.len() + 1;
            let now = state.clock.timestamp(state.clock.now());
            let chat = invent(&mut state.rng, number, now);
            state.add_chat(ChatData::new(chat))
        });
        SimulatedChat::new(self.clone(), index)
    }

    /// Creates a chat with the given contents. Fields that are `None` or empty are omitted from payloads.
    ///
    /// ```
    /// # use tower_webhook::event::ChatLifecycle;
    /// # use tower_webhook::sandbox::{Body, Sandbox};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// # let receiver = tower::service_fn(async |_: http::Request<Body>| {
    /// #     Ok::<_, std::convert::Infallible>(http::Response::new(()))
    /// # });
    /// let sandbox = Sandbox::in_process(receiver);
    /// let chat = sandbox.chat_about(ChatLifecycle {
    ///     id: Some("c-1".into()),
    ///     question: Some("Where is my parcel?".into()),
    ///     ..ChatLifecycle::default()
    /// });
    /// assert_eq!(chat.id(), "c-1");
    /// # }
    /// ```
    #[must_use]
    pub fn chat_about(&self, chat: ChatLifecycle) -> SimulatedChat {
        let index = self.change(|state| state.add_chat(ChatData::new(chat)));
        SimulatedChat::new(self.clone(), index)
    }

    /// Returns a generator of random chats and events, which starts from the [seed](Settings::seed).
    ///
    /// ```
    /// # use tower_webhook::sandbox::{Body, Sandbox, Webhook};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// # let receiver = tower::service_fn(async |_: http::Request<Body>| {
    /// #     Ok::<_, std::convert::Infallible>(http::Response::new(()))
    /// # });
    /// let sandbox = Sandbox::in_process(receiver);
    /// sandbox.configure_all(&Webhook::new("/webhooks"));
    /// let mut generator = sandbox.generator();
    /// for _ in 0..20 {
    ///     generator.step();
    /// }
    /// let report = sandbox.finish().await;
    /// assert!(report.is_all_delivered(), "{report}");
    /// # }
    /// ```
    #[must_use]
    pub fn generator(&self) -> Generator {
        Generator::new(self.clone(), self.shared.settings.seed)
    }

    /// Sends a test event with the [`sample`] of its kind and without a key to the webhook's URL: once,
    /// even if the webhook is inactive ([Spec 6, rule 5](crate::docs::platform#spec-6-rule-5)).
    ///
    /// Returns `None` if the kind is not in [`EventKind::ALL`].
    ///
    /// ```
    /// # use tower_webhook::EventKind;
    /// # use tower_webhook::sandbox::{Body, Sandbox, Webhook};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// # let receiver = tower::service_fn(async |_: http::Request<Body>| {
    /// #     Ok::<_, std::convert::Infallible>(http::Response::new(()))
    /// # });
    /// # let sandbox = Sandbox::in_process(receiver);
    /// # sandbox.configure_all(&Webhook::new("/webhooks"));
    /// let event = sandbox.send_test(EventKind::CHAT_RATED).unwrap();
    /// sandbox.idle().await;
    /// assert_eq!(sandbox.event(event).unwrap().key, None);
    /// # }
    /// ```
    pub fn send_test(&self, kind: EventKind) -> Option<EventId> {
        let body = sample(&kind)?;
        Some(self.change(|state| state.emit_test(kind, body.into(), None)))
    }

    /// Sends a test event that is signed with a test secret instead of the webhook's; otherwise the same
    /// as [`send_test`](Self::send_test).
    ///
    /// ```
    /// # use tower_webhook::{EventKind, Secret};
    /// # use tower_webhook::sandbox::{Body, Sandbox, Webhook};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), tower_webhook::ConfigError> {
    /// # let receiver = tower::service_fn(async |_: http::Request<Body>| {
    /// #     Ok::<_, std::convert::Infallible>(http::Response::new(()))
    /// # });
    /// # let sandbox = Sandbox::in_process(receiver);
    /// # sandbox.configure_all(&Webhook::new("/webhooks"));
    /// sandbox.send_test_signed(EventKind::CHAT_RATED, Secret::new("for tests alone")?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn send_test_signed(&self, kind: EventKind, secret: Secret) -> Option<EventId> {
        let body = sample(&kind)?;
        Some(self.change(|state| state.emit_test(kind, body.into(), Some(secret))))
    }

    /// Applies a fault to the next attempt that is neither a duplicate nor of a test event. The faults of
    /// several calls are applied one after the other.
    ///
    /// ```
    /// # use tower_webhook::sandbox::{Body, Fault, Sandbox, Webhook};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// # let receiver = tower::service_fn(async |_: http::Request<Body>| {
    /// #     Ok::<_, std::convert::Infallible>(http::Response::new(()))
    /// # });
    /// let sandbox = Sandbox::in_process(receiver);
    /// sandbox.configure_all(&Webhook::new("/webhooks"));
    /// sandbox.inject(Fault::DropResponse);
    /// let event = sandbox.chat().assign();
    ///
    /// sandbox.finish().await;
    /// let report = sandbox.event(event).unwrap();
    /// assert_eq!(report.attempts.len(), 2); // the event was retried
    /// # }
    /// ```
    pub fn inject(&self, fault: Fault) {
        self.change(|state| state.injected.push_back(fault));
    }

    /// Retries a [waiting](EventState::Waiting) event now, in addition to its later retries. Returns
    /// whether it does so: `false` if the event is not waiting or its webhook does not deliver.
    ///
    /// ```
    /// # use tower_webhook::sandbox::{Body, EventState, Fault, Sandbox, Webhook};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// # let receiver = tower::service_fn(async |_: http::Request<Body>| {
    /// #     Ok::<_, std::convert::Infallible>(http::Response::new(()))
    /// # });
    /// # let sandbox = Sandbox::in_process(receiver);
    /// # sandbox.configure_all(&Webhook::new("/webhooks"));
    /// sandbox.inject(Fault::DropResponse);
    /// let event = sandbox.chat().assign();
    /// sandbox.idle().await;
    ///
    /// assert!(sandbox.retry_now(event));
    /// sandbox.idle().await;
    /// assert_eq!(sandbox.event(event).unwrap().state, EventState::Delivered);
    /// # }
    /// ```
    pub fn retry_now(&self, event: EventId) -> bool {
        self.change(|state| state.retry_now(event))
    }

    /// Returns the time of the platform's clock.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        let state = self.lock();
        state.clock.timestamp(state.clock.now())
    }

    /// Advances the platform's clock. If several retries of an event fall into that time, it is retried
    /// once.
    ///
    /// ```
    /// # use tower_webhook::sandbox::{Body, Sandbox};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// # let receiver = tower::service_fn(async |_: http::Request<Body>| {
    /// #     Ok::<_, std::convert::Infallible>(http::Response::new(()))
    /// # });
    /// use std::time::Duration;
    ///
    /// let sandbox = Sandbox::in_process(receiver);
    /// let start = sandbox.now();
    /// sandbox.advance(Duration::from_secs(3_600));
    /// assert!(sandbox.now().as_millis() - start.as_millis() >= 3_600_000);
    /// # }
    /// ```
    pub fn advance(&self, time: Duration) {
        self.change(|state| state.clock.advance(time));
    }

    /// Sets how much faster the platform's clock runs than `tokio::time`: [`Settings::speed`].
    pub fn set_speed(&self, speed: u32) {
        self.change(|state| state.clock.set_speed(speed));
    }

    /// Subscribes to the attempts that end from now on.
    ///
    /// ```
    /// # use tower_webhook::sandbox::{Body, Sandbox, Webhook};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// # let receiver = tower::service_fn(async |_: http::Request<Body>| {
    /// #     Ok::<_, std::convert::Infallible>(http::Response::new(()))
    /// # });
    /// let sandbox = Sandbox::in_process(receiver);
    /// sandbox.configure_all(&Webhook::new("/webhooks"));
    /// let mut attempts = sandbox.attempts();
    /// sandbox.chat().assign();
    ///
    /// let attempt = attempts.recv().await.unwrap();
    /// assert!(attempt.result.is_delivered());
    /// # }
    /// ```
    #[must_use]
    pub fn attempts(&self) -> broadcast::Receiver<Attempt> {
        self.shared.attempts.subscribe()
    }

    /// Waits until no attempt is in progress or due now. Events may still be
    /// [waiting](EventState::Waiting) for a retry.
    pub async fn idle(&self) {
        self.shared.until(State::is_idle).await;
    }

    /// Waits until every event is delivered, lost or never sent, and every closed or transferred chat is
    /// rated, and returns the report. This can take weeks unless time is paused.
    pub async fn finish(&self) -> Report {
        self.shared.until(State::is_finished).await;
        self.report()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.lock()
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        self.shared.change(change)
    }
}

impl fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sandbox").finish_non_exhaustive()
    }
}
