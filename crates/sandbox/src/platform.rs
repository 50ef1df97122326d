//! The handle to a simulated platform.

use std::fmt;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use http::{Request, Response};
use tokio::sync::broadcast;
use tokio::task::JoinSet;
use tower_service::Service;
use tower_webhook::Secret;
use tower_webhook::event::{EventKind, Timestamp, sample};

use super::api_fault::ApiFault;
use super::fault::Fault;
#[cfg(feature = "graphql")]
use super::graphql::GraphQl;
use super::portal::{ApiKey, Webhook, WebhookStatus};
use super::report::{Attempt, EventId, Report};
use super::sender::Shared;
use super::settings::Settings;
use super::state::State;
use super::target::{self, Body, Target};

/// The simulated platform. See the [module](super) for an example.
///
/// Clones are handles to one platform, which stops when the last handle is dropped. A [`SimulatedChat`](super::SimulatedChat)
/// and a [`Generator`](super::Generator) hold one each. Events are kept in memory until then.
#[derive(Clone)]
pub struct Sandbox {
    pub(super) shared: Arc<Shared>,
    _engine: Arc<JoinSet<()>>,
}

impl Sandbox {
    /// Starts a platform that delivers into a service in this process, whatever the webhooks' URLs are.
    ///
    /// ```
    /// # use tower_webhook::EventKind;
    /// # use tower_webhook_sandbox::{Body, EventState, Sandbox, Webhook};
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
    /// # use tower_webhook_sandbox::{Body, Faults, Sandbox, Settings};
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
    /// # use tower_webhook_sandbox::{Sandbox, Settings, Webhook};
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
    /// - Only 200 counts as delivered; another 2xx status is [`AttemptResult::NotAccepted`](super::AttemptResult::NotAccepted).
    /// - The events that wait when a webhook is disabled are [lost](super::EventState::Lost).
    /// - Failures of test events count against the webhook.
    /// - `status` and `type` have words that no receiver knows, and some fields without a value are `null`
    ///   instead of omitted.
    /// - About half of the queries to the [Admin API](Self::graphql) have an [`ApiFault`].
    ///
    /// The [`Faults`](super::Faults) of deliveries are set separately.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// use http::{Request, Response, StatusCode};
    /// use tower_webhook_sandbox::{Body, EventState, Sandbox, Webhook};
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
        let mut engine = JoinSet::new();
        engine.spawn(Arc::clone(&shared).run());
        Self {
            shared,
            _engine: Arc::new(engine),
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
    /// ([Spec 6, rule 4](tower_webhook::docs::platform#spec-6-rule-4)).
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
    /// ([Spec 5.1](tower_webhook::docs::platform#spec-5-1)).
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
    #[cfg(feature = "graphql")]
    pub fn graphql(&self) -> GraphQl {
        GraphQl::new(Arc::clone(&self.shared))
    }

    /// Applies a fault to the next query of the [Admin API](Self::graphql) with a valid API key. The faults
    /// of several calls are applied one after the other.
    ///
    /// ```
    /// # use tower_webhook_sandbox::{Body, Sandbox};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// # let receiver = tower::service_fn(async |_: http::Request<Body>| {
    /// #     Ok::<_, std::convert::Infallible>(http::Response::new(()))
    /// # });
    /// use tower_webhook_sandbox::ApiFault;
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

    /// Sends a test event with the [`sample`] of its kind and without a key to the webhook's URL: once,
    /// even if the webhook is inactive ([Spec 6, rule 5](tower_webhook::docs::platform#spec-6-rule-5)).
    ///
    /// Returns `None` if the kind is not in [`EventKind::ALL`].
    ///
    /// ```
    /// # use tower_webhook::EventKind;
    /// # use tower_webhook_sandbox::{Body, Sandbox, Webhook};
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
    /// # use tower_webhook_sandbox::{Body, Sandbox, Webhook};
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
    /// # use tower_webhook_sandbox::{Body, Fault, Sandbox, Webhook};
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

    /// Retries a [waiting](super::EventState::Waiting) event now, in addition to its later retries. Returns
    /// whether it does so: `false` if the event is not waiting or its webhook does not deliver.
    ///
    /// ```
    /// # use tower_webhook_sandbox::{Body, EventState, Fault, Sandbox, Webhook};
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
    /// # use tower_webhook_sandbox::{Body, Sandbox};
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
    /// # use tower_webhook_sandbox::{Body, Sandbox, Webhook};
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
    /// [waiting](super::EventState::Waiting) for a retry.
    pub async fn idle(&self) {
        self.shared.until(State::is_idle).await;
    }

    /// Waits until every event is delivered, lost or never sent, and every closed or transferred chat is
    /// rated, and returns the report. This can take weeks unless time is paused.
    pub async fn finish(&self) -> Report {
        self.shared.until(State::is_finished).await;
        self.report()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.lock()
    }

    pub(super) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        self.shared.change(change)
    }
}

impl fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sandbox").finish_non_exhaustive()
    }
}
