//! A console: pages that show deliveries and events to operators, with buttons to redrive, discard and pause.
//!
//! [`Console::router`] returns an axum `Router`, to be mounted under any path of your application, behind your own
//! authentication:
//!
//! ```
//! use axum::Router;
//! use tower_webhook_console::Console;
//! use tower_webhook::inbox::Inbox;
//! use tower_webhook::memory::MemoryQueue;
//! use tower_webhook::telemetry::{FailureBudget, Recent, Silence};
//! use tower_webhook::{Secret, SignatureLayer};
//! use tower::Layer;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_webhook::ConfigError> {
//! let (budget, silence, recent) = (FailureBudget::default(), Silence::new().learn(), Recent::new());
//! let observer = std::sync::Arc::new((budget.clone(), silence.clone(), recent.clone()));
//! let inbox = Inbox::new(MemoryQueue::new()).observer(observer.clone());
//! let webhooks = SignatureLayer::new(Secret::new("8c1f…")?)
//!     .observer(observer)
//!     .layer(inbox.accept());
//!
//! let console = Console::new()
//!     .inbox(inbox)
//!     .budget(budget)
//!     .silence(silence)
//!     .recent(recent);
//! let app: Router = Router::new()
//!     .route_service("/webhooks", webhooks)
//!     .nest("/console", console.router()); // behind a layer that authenticates operators
//! # Ok(())
//! # }
//! ```
//!
//! The pages are rendered by the server, work without JavaScript, and load nothing from other sites.
//!
//! # Security
//!
//! The console shows payloads, and anybody who reaches it can discard events. It does not authenticate anybody. It refuses
//! changes that a browser sends on behalf of another site, and with [`Console::hosts`] those under another host name.
//! [`Console::read_only`] removes the buttons and their routes, and [`Console::hide_payloads`] the payloads. Each change
//! is logged with the name of the operator, if a proxy sets a header that [`Console::actor_header`] names.

#![cfg_attr(docsrs, feature(doc_cfg))]
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

mod actions;
mod bulk;
mod counts;
mod export;
mod guard;
mod history;
mod operations;
mod page;
mod problem;
mod request;
mod routes;
mod settings;
mod task;

pub use self::settings::Console;

/// The data stay consistent when a thread panics while it holds them.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
