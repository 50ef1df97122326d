//! Routes deliveries to the handler of their kind.

use std::any::type_name;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::future::{self, Future};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::FutureExt;
use serde::de::DeserializeOwned;
use tower_service::Service;

use crate::delivery::{DecodeError, Delivery, RawDelivery};
use crate::error::CatchPanic;
use crate::event::{Event, EventKind};
use crate::handler::{Handler, HandlerResult};
use crate::outcome::Outcome;
use crate::route::RouteName;
use crate::throttle::Throttle;

/// How often a kind without a handler is logged, in seconds.
const MINUTE: u64 = 60;

/// Routes deliveries to the [`Handler`] of their kind: the innermost service.
///
/// A kind without a handler is answered with 200 and not remembered, unless a
/// [`fallback`](Self::fallback) takes it or [`reject_unhandled`](Self::reject_unhandled) was called.
/// [`Webhooks::keep_handled`](crate::Webhooks::keep_handled) decides it before a store or an inbox is asked.
/// A handler that panics has failed, as if it had returned an error.
///
/// Behind [`IdempotencyLayer`](crate::IdempotencyLayer), handlers have a time limit, and continue when
/// the client disconnects; without it, neither applies.
///
/// Clones share their handlers.
///
/// # Without HTTP
///
/// A router is also a [`Service`] of [`RawDelivery`] whose response is the [`Outcome`], so tower's layers
/// can wrap it. [`handle`](Self::handle) does the same as a method:
///
/// ```
/// use tower_webhook::event::{ChatRated, EventKind};
/// use tower_webhook::{Delivery, EventRouter, Outcome, RawDelivery};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let router = EventRouter::new().on::<ChatRated>(async |_: Delivery<ChatRated>| Ok(()));
///
/// let stored = RawDelivery::new(EventKind::CHAT_RATED, r#"{"id":"c-1","rating":1}"#);
/// assert!(matches!(router.handle(stored).await, Outcome::Handled));
/// # });
/// ```
#[derive(Clone, Default)]
#[must_use]
pub struct EventRouter {
    shared: Arc<Routes>,
}

#[derive(Clone, Default)]
struct Routes {
    routers: BTreeMap<RouteName, EventRouter>,
    handlers: BTreeMap<EventKind, Route>,
    fallback: Option<Route>,
    undecodable: Option<OnUndecodable>,
    reject_unhandled: bool,
    /// The kinds without a handler.
    ignored: Throttle<MINUTE>,
}

/// What is handled of a route.
#[derive(Clone, Debug, Default)]
pub(crate) struct Handles {
    /// The kinds that have a handler.
    pub(crate) named: BTreeSet<EventKind>,
    /// Whether the others are handled, too.
    pub(crate) has_fallback: bool,
}

impl Handles {
    /// Everything, by a fallback.
    pub(crate) fn all() -> Self {
        Self {
            named: BTreeSet::new(),
            has_fallback: true,
        }
    }
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
/// A handler whose event's type was erased.
type Route = Arc<dyn Fn(RawDelivery, Option<OnUndecodable>) -> BoxFuture<Outcome> + Send + Sync>;
type OnUndecodable =
    Arc<dyn Fn(RawDelivery, DecodeError) -> BoxFuture<HandlerResult> + Send + Sync>;

impl EventRouter {
    /// Creates a router without handlers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Handles the events `E` with `handler`.
    ///
    /// A closure clones a captured value for each event:
    ///
    /// ```
    /// # use std::sync::{Arc, Mutex};
    /// # use tower_webhook::event::ChatRated;
    /// # use tower_webhook::{Delivery, EventRouter};
    /// let ratings = Arc::new(Mutex::new(Vec::new()));
    /// let router = EventRouter::new().on::<ChatRated>(move |delivery: Delivery<ChatRated>| {
    ///     let ratings = Arc::clone(&ratings);
    ///     async move {
    ///         ratings.lock().map_err(|_| "poisoned")?.push(delivery.payload.rating);
    ///         Ok(())
    ///     }
    /// });
    /// ```
    ///
    /// # Panics
    ///
    /// When `E`'s kind already has a handler.
    #[track_caller]
    pub fn on<E: Event>(mut self, handler: impl Handler<E>) -> Self {
        let handlers = &mut Arc::make_mut(&mut self.shared).handlers;
        let handler = Arc::new(handler);
        let route: Route = Arc::new(move |delivery, undecodable| {
            let handler = Arc::clone(&handler);
            Box::pin(async move { run(&*handler, delivery, undecodable).await })
        });
        if handlers.insert(E::KIND, route).is_some() {
            panic!(
                "there are two handlers for `{}`: the second is for `{}`",
                E::KIND,
                type_name::<E>()
            );
        }
        self
    }

    /// Handles the events of a kind by its name, and decodes their bodies into the type of the closure's first argument. The
    /// second one is the delivery with its key and headers.
    ///
    /// ```
    /// use serde::Deserialize;
    /// use tower_webhook::EventRouter;
    ///
    /// /// GitHub's event `push`, with the fields that are needed here.
    /// #[derive(Deserialize)]
    /// struct Push {
    ///     r#ref: String,
    /// }
    ///
    /// let router = EventRouter::new().on_named("push", async |push: Push, _| {
    ///     println!("{} was pushed", push.r#ref);
    ///     Ok(())
    /// });
    /// ```
    ///
    /// # Panics
    ///
    /// When the name is not that of an event, or the kind already has a handler.
    #[track_caller]
    pub fn on_named<P, F, Fut>(mut self, kind: &str, handler: F) -> Self
    where
        P: DeserializeOwned + Send + 'static,
        F: Fn(P, RawDelivery) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult> + Send + 'static,
    {
        let Ok(kind) = kind.parse::<EventKind>() else {
            panic!(
                "{kind:?} cannot be the name of an event: use 1 to 128 visible ASCII characters"
            );
        };
        let handler = Arc::new(handler);
        let route: Route = Arc::new(move |delivery, undecodable| {
            let handler = Arc::clone(&handler);
            Box::pin(async move {
                match delivery.decode() {
                    Ok(payload) => handler(payload, delivery).await.into(),
                    Err(error) => give_up(undecodable, delivery, error).await,
                }
            })
        });
        let handlers = &mut Arc::make_mut(&mut self.shared).handlers;
        if handlers.insert(kind.clone(), route).is_some() {
            panic!("there are two handlers for `{kind}`");
        }
        self
    }

    /// Leaves the deliveries of a route to another router, if one router serves several routes.
    ///
    /// ```
    /// # use tower_webhook::{EventRouter, RawDelivery, Sender};
    /// let github = EventRouter::new().on_named("ping", async |_: serde_json::Value, _| Ok(()));
    /// let router = EventRouter::new()
    ///     .at("github".parse()?, github)
    ///     .fallback(async |delivery: RawDelivery| {
    ///         println!("{} of {}", delivery.kind(), delivery.route());
    ///         Ok(())
    ///     });
    /// # Ok::<(), tower_webhook::InvalidRouteName>(())
    /// ```
    ///
    /// # Panics
    ///
    /// When the route already has a router.
    #[track_caller]
    pub fn at(mut self, route: RouteName, router: EventRouter) -> Self {
        let routers = &mut Arc::make_mut(&mut self.shared).routers;
        if routers.insert(route.clone(), router).is_some() {
            panic!("there are two routers for the route `{route}`");
        }
        self
    }

    /// Handles the events of all kinds without a handler.
    ///
    /// The body is known to be a JSON object in UTF-8, and is not decoded further. If the sender sends forms, it may be
    /// a form: [`Sender::form_as_json`](crate::Sender::form_as_json) reads it.
    ///
    /// ```
    /// # use tower_webhook::{EventRouter, RawDelivery};
    /// let router = EventRouter::new().fallback(async |delivery: RawDelivery| {
    ///     println!("{}: {}", delivery.kind(), delivery.json()?);
    ///     Ok(())
    /// });
    /// ```
    pub fn fallback<F, Fut>(mut self, handler: F) -> Self
    where
        F: Fn(RawDelivery) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult> + Send + 'static,
    {
        let handler = Arc::new(handler);
        let route: Route = Arc::new(move |delivery, undecodable| {
            let handler = Arc::clone(&handler);
            Box::pin(async move {
                match delivery.check_body() {
                    Ok(()) => handler(delivery).await.into(),
                    Err(error) => give_up(undecodable, delivery, error).await,
                }
            })
        });
        Arc::make_mut(&mut self.shared).fallback = Some(route);
        self
    }

    /// Handles the deliveries whose body cannot be decoded. Without such a handler, they are answered with 422 and retried for
    /// days; in an inbox, which has answered 200, they are dead letters. A body that is no JSON object never reaches a handler
    /// of an inbox: it is a dead letter from the start. `Ok` acknowledges them:
    ///
    /// ```
    /// # use tower_webhook::{DecodeError, EventRouter, RawDelivery};
    /// let router = EventRouter::new().on_undecodable(async |delivery: RawDelivery, error: DecodeError| {
    ///     eprintln!("a delivery of {} is lost: {error}", delivery.kind());
    ///     Ok(())
    /// });
    /// ```
    pub fn on_undecodable<F, Fut>(mut self, handler: F) -> Self
    where
        F: Fn(RawDelivery, DecodeError) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult> + Send + 'static,
    {
        let handler: OnUndecodable = Arc::new(move |raw, error| Box::pin(handler(raw, error)));
        Arc::make_mut(&mut self.shared).undecodable = Some(handler);
        self
    }

    /// Answers a kind that has no handler with 404 instead of 200. The platform counts each answer as a
    /// failed attempt, and disables a webhook after 500 of them in an hour.
    ///
    /// ```
    /// # use tower_webhook::EventRouter;
    /// let router = EventRouter::new().reject_unhandled();
    /// ```
    pub fn reject_unhandled(mut self) -> Self {
        Arc::make_mut(&mut self.shared).reject_unhandled = true;
        self
    }

    /// Runs the handler of a delivery, without HTTP. The delivery is not deduplicated, and the handler has no
    /// time limit.
    ///
    /// ```no_run
    /// use tower_webhook::event::{ChatRated, EventKind, sample};
    /// use tower_webhook::{Delivery, EventRouter, Outcome, RawDelivery};
    ///
    /// #[tokio::test]
    /// async fn a_rating_is_handled() {
    ///     let router = EventRouter::new().on::<ChatRated>(async |_: Delivery<ChatRated>| Ok(()));
    ///     let kind = EventKind::CHAT_RATED;
    ///     let delivery = RawDelivery::new(kind.clone(), sample(&kind).unwrap());
    ///     assert!(matches!(router.handle(delivery).await, Outcome::Handled));
    /// }
    /// ```
    pub fn handle(&self, delivery: RawDelivery) -> impl Future<Output = Outcome> + Send + 'static {
        self.route(delivery).map(|outcome| {
            let Ok(outcome) = outcome;
            outcome
        })
    }

    /// The kinds of a route that a handler takes: all with a fallback.
    pub(crate) fn handled_at(&self, route: &RouteName) -> Option<BTreeSet<EventKind>> {
        let shared = &self.shared;
        if let Some(router) = shared.routers.get(route) {
            return router.handled_at(route);
        }
        match shared.fallback {
            Some(_) => None,
            None => Some(shared.handlers.keys().cloned().collect()),
        }
    }

    /// What it handles at a route.
    pub(crate) fn handles(&self, route: &RouteName) -> Handles {
        let shared = &self.shared;
        match shared.routers.get(route) {
            Some(router) => router.handles(route),
            None => Handles {
                named: shared.handlers.keys().cloned().collect(),
                has_fallback: shared.fallback.is_some(),
            },
        }
    }

    fn route(&self, delivery: RawDelivery) -> RouterFuture {
        RouterFuture {
            outcome: CatchPanic::new(self.run(delivery)),
        }
    }

    fn run(&self, delivery: RawDelivery) -> BoxFuture<Outcome> {
        let shared = &self.shared;
        if let Some(router) = shared.routers.get(delivery.route()) {
            return router.run(delivery);
        }
        let route = shared.handlers.get(delivery.kind());
        match route.or(shared.fallback.as_ref()) {
            Some(route) => route(delivery, shared.undecodable.clone()),
            None if shared.reject_unhandled => Box::pin(future::ready(Outcome::Unhandled)),
            None => {
                if let Some(left_out) = shared.ignored.admit(delivery.kind().as_str()) {
                    tracing::info!(
                        route = %delivery.route(),
                        kind = %delivery.kind(),
                        left_out = (left_out > 0).then_some(left_out),
                        "this kind of event has no handler: the event is ignored"
                    );
                }
                Box::pin(future::ready(Outcome::Ignored))
            }
        }
    }
}

impl Service<RawDelivery> for EventRouter {
    type Response = Outcome;
    type Error = Infallible;
    type Future = RouterFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, delivery: RawDelivery) -> RouterFuture {
        self.route(delivery)
    }
}

partial_debug!(
    EventRouter,
    |it| kinds = it.shared.handlers.keys().collect::<Vec<_>>(),
    fallback = it.shared.fallback.is_some()
);

/// The response future of [`EventRouter`] as a service of deliveries.
#[must_use = "futures do nothing unless polled"]
pub struct RouterFuture {
    // Around all handlers, and not around each, for which it would be compiled again.
    outcome: CatchPanic<BoxFuture<Outcome>>,
}

impl Future for RouterFuture {
    type Output = Result<Outcome, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = ready!(Pin::new(&mut self.outcome).poll(cx));
        Poll::Ready(Ok(
            outcome.unwrap_or_else(|panic| Outcome::Panicked(Arc::new(panic)))
        ))
    }
}

partial_debug!(RouterFuture);

/// Not an `async fn`, whose future would keep room for the decoded delivery beside the handler's.
fn run<E: Event>(
    handler: &impl Handler<E>,
    delivery: RawDelivery,
    undecodable: Option<OnUndecodable>,
) -> impl Future<Output = Outcome> + Send {
    match Delivery::decode(delivery) {
        Ok(delivery) => handler.handle(delivery).map_into().left_future(),
        Err((delivery, error)) => give_up(undecodable, delivery, error).right_future(),
    }
}

async fn give_up(
    handler: Option<OnUndecodable>,
    delivery: RawDelivery,
    error: DecodeError,
) -> Outcome {
    match handler {
        Some(handler) => handler(delivery, error).await.into(),
        None => Outcome::Undecodable(error),
    }
}
