//! The builder of several routes on one inbox: each accepts, handles, or both; one worker handles all.

use std::collections::BTreeMap;
use std::sync::Arc;

use tower_layer::Layer;
use tower_service::Service;

use super::builder::{Settings, Webhooks};
use super::receiver::Receiver;
use super::running::{Running, Work};
use crate::config::ConfigError;
use crate::delivery::RawDelivery;
use crate::error::BoxError;
use crate::inbox::route::Route;
use crate::inbox::worker::{Handled, Handler, handler};
use crate::inbox::{Accept, Inbox};
use crate::outcome::Outcome;
use crate::route::RouteName;
use crate::signature::{Neighbours, SignatureLayer};
use crate::telemetry::Observers;

/// Starts the routes of several senders on one [`Inbox`]: they share its queue, one worker, one drain and one observer.
/// [`Inbox::routes`] makes it.
///
/// ```
/// # use std::time::Duration;
/// use axum::Router;
/// use tower_webhook::inbox::Inbox;
/// use tower_webhook::memory::MemoryQueue;
/// use tower_webhook::{EventRouter, Secret, Sender, Webhooks};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let [chat_events, pushes] = [(); 2].map(|()| EventRouter::new());
/// let mut routes = Inbox::new(MemoryQueue::new()).routes();
/// let chats = routes.add(Webhooks::new(Secret::new("8c1f…")?), chat_events)?;
/// let github = Webhooks::new(Secret::new("d20b…")?).sender(Sender::github());
/// let github = routes.add(github, pushes)?;
/// let running = routes.start()?;
///
/// let app: Router = Router::new()
///     .route_service("/webhooks", chats)
///     .route_service("/github", github);
/// # drop(app);
/// running.drain(Duration::from_secs(30)).await?; // when the server has stopped
/// # Ok(())
/// # }
/// ```
///
/// A process that only accepts events calls [`accept`](Self::accept). One that only handles them calls
/// [`handle`](Self::handle).
///
/// No route takes the last quarter of the worker's [slots](crate::inbox::Worker::concurrency), at least one, while another
/// one had an event in the last minute. A slot that becomes free goes to the route with due events that has the fewest
/// attempts in progress.
#[must_use = "nothing is handled until it is started"]
pub struct Routes {
    inbox: Inbox,
    /// The senders of all routes, by which an error names them.
    senders: BTreeMap<RouteName, String>,
    signatures: Vec<SignatureLayer>,
    neighbours: Neighbours,
    handled: Vec<Handled>,
    is_started: bool,
}

impl Inbox {
    /// Returns the builder of the routes whose events are in this inbox.
    pub fn routes(&self) -> Routes {
        Routes {
            inbox: self.clone(),
            senders: BTreeMap::new(),
            signatures: Vec::new(),
            neighbours: Neighbours::default(),
            handled: Vec::new(),
            is_started: false,
        }
    }
}

impl Routes {
    /// Adds a route that accepts deliveries, and whose events the worker handles with `service`: an
    /// [`EventRouter`](crate::EventRouter), or any service of [`RawDelivery`] whose response is an
    /// [`Outcome`]. Returns the service that receives them.
    ///
    /// # Errors
    ///
    /// The first setting that would break one of the [guarantees](crate::docs::guarantees), and
    /// [`ConfigError::RouteTwice`] when a route of this name was added before, or [`ConfigError::SharedLanes`] when one was whose
    /// name has the same digest, as one pair of names in a million.
    pub fn add<S>(&mut self, webhooks: Webhooks, service: S) -> Result<Receiver, ConfigError>
    where
        S: Service<RawDelivery, Response = Outcome, Error: Into<BoxError>, Future: Send>
            + Clone
            + Send
            + 'static,
    {
        self.add_with(webhooks.route, handler(service))
    }

    // Not generic, so that it is compiled with this crate.
    pub(super) fn add_with(
        &mut self,
        settings: Settings,
        handler: Handler,
    ) -> Result<Receiver, ConfigError> {
        let route = Arc::new(settings.route()?);
        let (signature, accept) = self.halves(settings, Arc::clone(&route))?;
        self.handled.push((route, handler));
        Ok(Receiver::new(signature.layer(accept)))
    }

    /// Adds a route whose deliveries are accepted here, and handled by another process: an edge, or a function that scales to
    /// zero. It stores events as soon as it is served, so it needs no [`start`](Self::start).
    ///
    /// # Errors
    ///
    /// As [`add`](Self::add).
    pub fn accept(&mut self, webhooks: Webhooks) -> Result<Receiver, ConfigError> {
        let (signature, accept) = self.accept_in_halves(webhooks)?;
        Ok(Receiver::new(signature.layer(accept)))
    }

    /// Adds such a route, and returns its two halves, for a service that stands between them.
    ///
    /// # Errors
    ///
    /// As [`add`](Self::add).
    pub fn accept_in_halves(
        &mut self,
        webhooks: Webhooks,
    ) -> Result<(SignatureLayer, Accept), ConfigError> {
        let route = Arc::new(webhooks.route.route()?);
        self.halves(webhooks.route, route)
    }

    fn halves(
        &mut self,
        settings: Settings,
        route: Arc<Route>,
    ) -> Result<(SignatureLayer, Accept), ConfigError> {
        // First, so that a route that is refused leaves its name free.
        let mut signature = settings.clone().signature(Observers::default())?;
        self.insert(&settings)?;
        signature.config.observers = self.inbox.observers().clone();
        if settings.neighbours().is_none() {
            signature.beside(&self.neighbours);
        }
        self.signatures.push(signature.clone());
        Ok((signature, self.inbox.accept_at(route)))
    }

    /// Adds a route whose events another process accepts, and the worker of this one handles. It needs no secrets: see
    /// [`Webhooks::without_secrets`]. Its name must be that of the accepting process.
    ///
    /// # Errors
    ///
    /// As [`add`](Self::add).
    pub fn handle<S>(&mut self, webhooks: Webhooks, service: S) -> Result<(), ConfigError>
    where
        S: Service<RawDelivery, Response = Outcome, Error: Into<BoxError>, Future: Send>
            + Clone
            + Send
            + 'static,
    {
        let settings = webhooks.route;
        let route = Arc::new(settings.route()?);
        self.insert(&settings)?;
        self.handled.push((route, handler(service)));
        Ok(())
    }

    /// Notes a route, and what it sets for all of them.
    fn insert(&mut self, settings: &Settings) -> Result<(), ConfigError> {
        let (name, sender) = (settings.name(), settings.sender().name());
        if let Some(other) = self.senders.get(&name) {
            let senders = [other.clone(), sender.to_owned()];
            return Err(ConfigError::RouteTwice { name, senders });
        }
        let mut names = self.senders.keys();
        if let Some(other) = names.find(|other| other.lanes() == name.lanes()) {
            let routes = [other.clone(), name];
            return Err(ConfigError::SharedLanes { routes });
        }
        // The routes before have no observer, and could not get this one.
        if let Some(observers) = settings.observers()
            && !(self.senders.is_empty() && self.inbox.observe(observers.clone()))
        {
            return Err(ConfigError::NotFirst {
                setting: "observer",
                route: name,
            });
        }
        self.senders.insert(name, sender.to_owned());
        Ok(())
    }

    /// Starts one worker for all routes that are handled here.
    ///
    /// # Errors
    ///
    /// [`ConfigError::NoRoutes`], and [`ConfigError::NotHandled`] when a setting of the worker names another route.
    ///
    /// # Panics
    ///
    /// When it is called outside of a tokio runtime.
    pub fn start(mut self) -> Result<Running, ConfigError> {
        self.is_started = true;
        if self.senders.is_empty() {
            return Err(ConfigError::NoRoutes);
        }
        let (handled, signatures) = (
            std::mem::take(&mut self.handled),
            std::mem::take(&mut self.signatures),
        );
        let work = match handled.is_empty() {
            true => Work::Accepting,
            false => {
                self.inbox.check_worker(&handled)?;
                Work::Inbox(self.inbox.start_worker(handled))
            }
        };
        Ok(Running::new(work, signatures))
    }
}

impl Drop for Routes {
    fn drop(&mut self) {
        if !self.is_started && !self.handled.is_empty() && !std::thread::panicking() {
            tracing::error!(
                "routes with handlers were added to an inbox and not started: their events are accepted, and wait for another \
                 worker; call `start`"
            );
        }
    }
}

partial_debug!(Routes, |it| inbox = it.inbox, senders = it.senders);
