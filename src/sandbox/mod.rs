//! The platform, simulated: in your own tests, or on your desk (feature `sandbox`).
//!
//! A [`Sandbox`] keeps what the spec says of the platform in its sections 3 to 8: a portal with
//! webhooks and API keys, chats whose lives are events, deliveries that are signed, retried every
//! 10 minutes for 7 days and counted against the webhook, and the Admin API's endpoint. It delivers
//! into a service in your process, or over HTTP, and reports what became of every event.
//!
//! All time is `tokio::time`. In a test whose time is paused, 7 days take milliseconds.
//!
//! # Example
//!
//! A chat's life reaches your handlers, though one answer is lost on its way back:
//!
//! ```
//! # use tower_webhook::event::*;
//! # use tower_webhook::{Delivery, EventRouter};
//! use tower::Layer;
//! use tower_webhook::sandbox::{Fault, Rating, Sandbox, Webhook};
//! use tower_webhook::{Secret, WebhookLayer};
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
//!     let sandbox = Sandbox::in_process(WebhookLayer::new(secret.clone()).layer(my_handlers()));
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
//! Decided against the receiver, so that nothing you rely on here is missing there:
//!
//! - 2xx counts as delivered, and nothing else.
//! - An event that arises while its webhook is disabled, inactive or without a URL is never sent.
//!   One that waits already resumes with its chat's next round of retries once the webhook delivers
//!   again; its 7 days go on meanwhile.
//! - Chats have rounds of retries, and an event joins that of its chat: its first retry can come
//!   sooner than 10 minutes after it failed.
//! - No order is kept, and the events of a chat are sent at the same time.
//! - Duplicates count as failed attempts too, when they fail.
//! - An enabled webhook starts with no failures. Test events never count, and are not retried.

mod chat;
mod clock;
mod fault;
mod graphql;
mod portal;
mod report;
mod sender;
mod target;

use std::fmt;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, SystemTime};

use http::{Request, Response};
use tokio::sync::broadcast;
use tokio::task::AbortHandle;
use tower_service::Service;

pub use self::chat::{Generator, Rating, SimulatedChat};
pub use self::fault::{Fault, Faults, Injected, InvalidFaults};
pub use self::graphql::GraphQl;
pub use self::portal::{ApiKey, Webhook, WebhookStatus};
pub use self::report::{Attempt, AttemptId, EventId, EventReport, EventState, Outcome, Report};
pub use self::target::{Body, CutOff};

use self::chat::{Facts, RATE_AFTER, invent};
use self::sender::{Shared, State};
use self::target::Target;
use crate::event::SenderPolicy;
use crate::event::{ChatLifecycle, EventKind, Timestamp, sample};
use crate::signature::HeaderNames;

/// What a [`Sandbox`] is started with.
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
    /// Where all chance comes from: faults, keys, what chats are about. 0 unless set.
    pub seed: u64,
    /// What goes wrong. Nothing unless set.
    pub faults: Faults,
    /// When attempts are repeated and webhooks disabled.
    pub policy: SenderPolicy,
    /// How the headers are called.
    pub header_names: HeaderNames,
    /// How long the platform waits for an answer: 10 seconds unless set. Neither this nor the
    /// delays of faults go by the platform's clock.
    pub attempt_timeout: Duration,
    /// When a customer rates a chat that was closed or transferred and that no script rates: an
    /// hour after the last that happened in it unless set.
    pub rate_after: Duration,
    /// What the platform's clock shows at the start: the time of day unless set. A run that is to
    /// repeat byte by byte needs one of its own.
    pub start: Timestamp,
    /// How much faster the platform's clock runs than `tokio::time`: as fast unless set.
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

/// The platform. See the [module](self).
///
/// Clones are handles to one platform, which stops when the last of them is dropped. A [`Chat`] and a
/// [`Generator`] hold one each. It remembers every event for as long as it lives.
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
    /// Delivers into a service in this process, whatever the URLs say.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime.
    #[track_caller]
    pub fn in_process<S, B>(service: S) -> Self
    where
        S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
        S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
        S::Future: Send,
    {
        Self::in_process_with(service, Settings::default())
    }

    /// The same with settings of your own.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime.
    #[track_caller]
    pub fn in_process_with<S, B>(service: S, settings: Settings) -> Self
    where
        S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
        S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
        S::Future: Send,
    {
        Self::start(target::service(service), settings)
    }

    /// Delivers over HTTP/1.1, without TLS, to the URLs of the webhooks.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime.
    #[track_caller]
    #[must_use]
    pub fn over_http(settings: Settings) -> Self {
        Self::start(target::http(), settings)
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

    /// Configures the webhook of one kind of event, in place of what it was before. One that the
    /// platform disabled stays disabled.
    pub fn configure(&self, kind: EventKind, webhook: Webhook) {
        self.change(|state| state.portal.configure(kind, webhook));
    }

    /// Configures the webhooks of all seven kinds alike.
    pub fn configure_all(&self, webhook: &Webhook) {
        for kind in EventKind::ALL {
            self.configure(kind, webhook.clone());
        }
    }

    /// Enables a webhook by hand after the platform disabled it (Spec 6, rule 4).
    pub fn enable(&self, kind: &EventKind) {
        self.change(|state| state.portal.enable(kind));
    }

    /// The webhooks that were ever configured.
    #[must_use]
    pub fn webhooks(&self) -> Vec<WebhookStatus> {
        let mut state = self.lock();
        let now = state.clock.now();
        state.portal.status(now)
    }

    /// Creates an API key: the access token of the [Admin API](Self::graphql). It is not shown
    /// again (Spec 5.1).
    ///
    /// It follows from the seed, and so protects nothing but the sandbox.
    #[must_use]
    pub fn create_api_key(&self, description: impl Into<String>) -> String {
        self.change(|state| {
            let key = format!("{:032x}", state.rng.u128(..));
            let now = state.clock.timestamp(state.clock.now());
            state.portal.add_api_key(&key, description.into(), now);
            key
        })
    }

    /// What is known of the API keys that were created.
    #[must_use]
    pub fn api_keys(&self) -> Vec<ApiKey> {
        self.lock().portal.api_keys.clone()
    }

    /// The Admin API's endpoint.
    #[must_use]
    pub fn graphql(&self) -> GraphQl {
        GraphQl::new(Arc::clone(&self.shared))
    }

    /// Whether the chat is available, as the Admin API tells. It is at first.
    #[must_use]
    pub fn is_available(&self) -> bool {
        self.lock().portal.available
    }

    /// Switches the availability.
    pub fn set_available(&self, available: bool) {
        self.change(|state| state.portal.available = available);
    }

    /// A new chat, about something. Nobody is told before it is [assigned](Chat::assign).
    #[must_use]
    pub fn chat(&self) -> SimulatedChat {
        let index = self.change(|state| {
            let number = state.chats.len() + 1;
            let now = state.clock.timestamp(state.clock.now());
            let chat = invent(&mut state.rng, number, now);
            state.add_chat(Facts::new(chat))
        });
        SimulatedChat::new(self.clone(), index)
    }

    /// A new chat about what you say. What is `None` or empty is omitted from payloads.
    #[must_use]
    pub fn chat_about(&self, chat: ChatLifecycle) -> SimulatedChat {
        let index = self.change(|state| state.add_chat(Facts::new(chat)));
        SimulatedChat::new(self.clone(), index)
    }

    /// Lets chats live by chance, from the sandbox's seed.
    #[must_use]
    pub fn generator(&self) -> Generator {
        Generator::new(self.clone(), self.shared.settings.seed)
    }

    /// Sends a test event to the webhook's URL, with the [sample] of its kind and without a key: once,
    /// even if the webhook is inactive (Spec 6, rule 5).
    ///
    /// `None` when the kind is not one of the platform's.
    pub fn send_test(&self, kind: EventKind) -> Option<EventId> {
        let body = sample(&kind)?;
        Some(self.change(|state| state.emit_test(kind, body.into())))
    }

    /// Puts a fault into the next attempt that is neither a duplicate nor of a test event. Several
    /// calls stand in line.
    pub fn inject(&self, fault: Fault) {
        self.change(|state| state.injected.push_back(fault));
    }

    /// Tries an event that waits at once, and at its retries as before. Tells whether it does:
    /// whether it waits and its webhook delivers.
    pub fn retry_now(&self, event: EventId) -> bool {
        self.change(|state| state.retry_now(event))
    }

    /// The platform's clock.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        let state = self.lock();
        state.clock.timestamp(state.clock.now())
    }

    /// Puts the platform's clock forward. Of the retries that fall into that time, one remains.
    pub fn advance(&self, time: Duration) {
        self.change(|state| state.clock.advance(time));
    }

    /// Changes how much faster than `tokio::time` the platform's clock runs.
    pub fn set_speed(&self, speed: u32) {
        self.change(|state| state.clock.set_speed(speed));
    }

    /// Every attempt from now on, as soon as it has ended.
    #[must_use]
    pub fn attempts(&self) -> broadcast::Receiver<Attempt> {
        self.shared.attempts.subscribe()
    }

    /// Waits until nothing is under way or due at this moment. Retries may still be to come.
    pub async fn idle(&self) {
        self.shared.until(State::is_idle).await;
    }

    /// Waits until nothing will happen by itself any more: every event was delivered or lost, and
    /// every chat that will be rated is. Unless the time is paused, that can take weeks.
    pub async fn finish(&self) -> Report {
        self.shared.until(State::is_finished).await;
        self.report()
    }

    /// What became of every event so far.
    #[must_use]
    pub fn report(&self) -> Report {
        Report {
            events: self.lock().reports().collect(),
        }
    }

    /// What became of one event so far, if there is one of this number.
    #[must_use]
    pub fn event(&self, id: EventId) -> Option<EventReport> {
        self.lock().report_of(id)
    }

    /// What became of the last `most` events so far, the last one first.
    #[must_use]
    pub fn latest(&self, most: usize) -> Vec<EventReport> {
        self.lock().reports().rev().take(most).collect()
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
