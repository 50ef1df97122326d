//! A simulated platform for tests and local development.
//!
//! A [`Sandbox`] implements sections 3 to 8 of the [platform's interface](tower_webhook::docs::platform):
//!
//! - a portal with [webhooks](Webhook) and [API keys](Sandbox::create_api_key);
//! - [chats](SimulatedChat) that cause events, by script or [at random](Generator);
//! - signed deliveries, retried every 10 minutes for 7 days
//!   ([Spec 6, rule 3](tower_webhook::docs::platform#spec-6-rule-3)) and counted against the webhook
//!   ([rule 4](tower_webhook::docs::platform#spec-6-rule-4)), with [`Faults`] on request;
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
//! use tower_webhook_sandbox::{Fault, Rating, Sandbox, Webhook};
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
//!   first round after the webhook delivers again; its 7 days continue while the webhook is disabled.
//! - All events of a chat are retried together, so the first retry of an event can come less than 10
//!   minutes after it failed.
//! - No order is kept: the events of a chat are sent at the same time.
//! - Duplicates that fail count as failed attempts.
//!
//! Two assumptions are the easier case: a webhook that is [enabled](Sandbox::enable) again starts without failures, and test
//! events never count. They are not retried.
//!
//! In strict mode, it also assumes what is unlikely:
//!
//! ```
//! # use tower_webhook_sandbox::{Body, Sandbox, Webhook};
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
//!   ([Spec 6, rule 5](tower_webhook::docs::platform#spec-6-rule-5));
//! - that deliveries resume after a webhook was enabled again;
//! - one secret per webhook: the spec does not say whether all webhooks share one.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(feature = "graphql"),
    allow(dead_code, reason = "what only the Admin API asks for")
)]
#![cfg_attr(
    not(test),
    warn(
        clippy::expect_used,
        clippy::unwrap_used,
        clippy::print_stderr,
        clippy::print_stdout
    )
)]

use std::sync::{Mutex, MutexGuard, PoisonError};

mod api_fault;
mod chat;
mod clock;
mod fault;
mod generator;
#[cfg(feature = "graphql")]
mod graphql;
mod invent;
mod lookup;
mod payload;
mod platform;
mod portal;
mod report;
mod sender;
mod settings;
mod state;
mod strict;
mod target;

pub use self::api_fault::ApiFault;
pub use self::chat::SimulatedChat;
pub use self::fault::{Fault, Faults, Injected, InvalidFaults};
pub use self::generator::Generator;
#[cfg(feature = "graphql")]
pub use self::graphql::GraphQl;
pub use self::lookup::EventFilter;
pub use self::payload::Rating;
pub use self::platform::Sandbox;
pub use self::portal::{ApiKey, Webhook, WebhookStatus};
pub use self::report::{
    Attempt, AttemptId, AttemptResponse, AttemptResult, EventId, EventReport, EventState, Report,
};
pub use self::settings::Settings;
pub use self::target::{Body, BodyTruncated};

/// An error of any crate.
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The data stay consistent when a thread panics while it holds them.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
