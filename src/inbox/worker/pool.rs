//! The state of a worker, which its tasks share.

use std::any::Any;
use std::future::poll_fn;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;
use tower_service::Service;

use super::super::credit::{ACTIVE, Change, Credits, three_quarters};
use super::super::event::{Share, Take};
use super::super::handle::{Inbox, Settings, Shared};
use super::super::handlers::Duty;
use super::super::route::Route;
use super::super::rules::Rules;
use super::leases::HeldLeases;
use super::others::Others;
use super::suspects::Suspects;
use crate::delivery::RawDelivery;
use crate::error::BoxError;
use crate::execution::{Clocks, Lent, Limits};
use crate::lock::lock;
use crate::outcome::Outcome;
use crate::route::{EventType, RouteName};
use crate::router::{EventRouter, Handles};
use crate::telemetry::{Kept, Observation};

/// Whether a worker stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    No,
    /// It takes no events, and ends the attempts in progress.
    Draining,
    /// The attempts in progress are interrupted.
    Now,
}

/// The state of a worker.
pub(super) struct Pool {
    pub(super) shared: Arc<Shared>,
    pub(super) settings: Arc<Settings>,
    pub(super) routes: Vec<Place>,
    began: Instant,
    pub(super) credits: Mutex<Credits>,
    /// Held by whoever tells of types that are slowed down.
    tells: Mutex<()>,
    pub(super) permits: Arc<Semaphore>,
    /// Whether the last claim may have left events of a route, because it has as many attempts as it may have.
    pub(super) is_capped: AtomicBool,
    /// Whether this process has accepted an event for the worker since the last claim.
    pub(super) accepts: AtomicBool,
    /// How many more attempts may begin at acceptance, before events that have been due for longer: `usize::MAX` while none
    /// has to wait.
    early: AtomicUsize,
    /// Since when a claim has been asked for, and none succeeds.
    unable: Mutex<Option<Instant>>,
    /// When the queue is asked for events next. `None` when nothing is known to become due.
    pub(super) plan: Mutex<Option<Instant>>,
    pub(super) wake: Notify,
    pub(super) suspects: Mutex<Suspects>,
    /// How often background tasks have panicked.
    pub(super) panics: AtomicUsize,
    pub(super) leases: HeldLeases,
    pub(super) others: Others,
    /// Keeps the timers of the runtime in time beside handlers that block.
    pub(super) clocks: Clocks,
    pub(super) stop: watch::Sender<Stop>,
    /// What the observers count for the queue to keep.
    pub(super) kept: Vec<Kept>,
}

/// The service for deliveries, as a trait object: the worker is compiled once, with this crate, and not with each
/// user's program.
pub(crate) type Handler = Arc<dyn Handle>;

pub(crate) trait Handle: Send + Sync {
    fn handle(&self, delivery: RawDelivery) -> BoxFuture<'static, Outcome>;
    /// What it handles of a route.
    fn handles(&self, route: &RouteName) -> Handles;
}

/// Makes a handler of a service. Each delivery has a clone of its own.
pub(crate) fn handler<S>(service: S) -> Handler
where
    S: Service<RawDelivery, Response = Outcome, Error: Into<BoxError>, Future: Send>
        + Clone
        + Send
        + 'static,
{
    let router = (&service as &dyn Any).downcast_ref::<EventRouter>();
    Arc::new(Cloned {
        router: router.cloned(),
        service: Mutex::new(service),
    })
}

struct Cloned<S> {
    service: Mutex<S>,
    /// The service, if it is one. Of any other one, nobody knows what it handles.
    router: Option<EventRouter>,
}

impl<S> Handle for Cloned<S>
where
    S: Service<RawDelivery, Response = Outcome, Error: Into<BoxError>, Future: Send>
        + Clone
        + Send
        + 'static,
{
    fn handle(&self, delivery: RawDelivery) -> BoxFuture<'static, Outcome> {
        let mut service = lock(&self.service).clone();
        Box::pin(async move {
            if let Err(error) = poll_fn(|cx| service.poll_ready(cx)).await {
                return Outcome::failed(error);
            }
            match service.call(delivery).await {
                Ok(outcome) => outcome,
                Err(error) => Outcome::failed(error),
            }
        })
    }

    fn handles(&self, route: &RouteName) -> Handles {
        let router = self.router.as_ref();
        router.map_or_else(Handles::all, |router| router.handles(route))
    }
}

/// A route that a worker handles, and its handlers.
pub(crate) type Handled = (Arc<Route>, Handler);

/// A route in a worker.
pub(super) struct Place {
    pub(super) route: Arc<Route>,
    pub(super) handler: Handler,
    pub(super) lent: Arc<dyn Any + Send + Sync>,
    pub(super) handles: Handles,
    /// The kinds to take, without the kinds that are left to other workers.
    take: Mutex<Arc<Take>>,
    /// The number of attempts in progress.
    busy: Arc<AtomicUsize>,
    /// When the route had an event last.
    seen: Mutex<Option<Instant>>,
}

/// Attempts that are in progress at a route, or about to begin, until it is dropped.
pub(super) struct Busy {
    of: Arc<AtomicUsize>,
    attempts: usize,
}

impl Busy {
    /// Makes one of the attempts independent of the others.
    pub(super) fn split(&mut self) -> Option<Self> {
        self.attempts = self.attempts.checked_sub(1)?;
        let of = Arc::clone(&self.of);
        Some(Self { of, attempts: 1 })
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.of.fetch_sub(self.attempts, Ordering::SeqCst);
    }
}

/// Room for one attempt. When it is given back, others that found none ask again.
pub(super) struct Slot {
    pool: Arc<Pool>,
    /// Given back in this order: who gets the permit must see that the route has room.
    room: Option<(Busy, OwnedSemaphorePermit)>,
}

impl Slot {
    pub(super) fn new(pool: Arc<Pool>, busy: Busy, permit: OwnedSemaphorePermit) -> Self {
        let room = Some((busy, permit));
        Self { pool, room }
    }

    pub(super) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some((busy, permit)) = self.room.take() {
            drop(busy);
            drop(permit);
        }
        if self.pool.is_capped.swap(false, Ordering::SeqCst) {
            self.pool.ask_now();
        }
    }
}

/// A call of the handler of an event, which costs credit of its type. Without an end, it counts as interrupted.
pub(super) struct Call {
    pool: Arc<Pool>,
    of: EventType,
    began: Instant,
    has_ended: bool,
}

impl Call {
    /// Of a call that has begun.
    pub(super) fn new(pool: &Arc<Pool>, of: EventType) -> Self {
        let pool = Arc::clone(pool);
        Self {
            pool,
            of,
            began: Instant::now(),
            has_ended: false,
        }
    }

    pub(super) fn of(&self) -> &EventType {
        &self.of
    }

    /// Ends the call, which showed whether the handler works. Returns whether the type is slowed down, and short of credit.
    pub(super) fn end(&mut self, works: Option<bool>, lane: i64) -> [bool; 2] {
        let took = self.began.elapsed();
        let mut credits = lock(&self.pool.credits);
        self.has_ended = true;
        let has_room = credits.end(&self.of, took, works, lane);
        let state = match works {
            Some(false) => [credits.is_slowed(&self.of), credits.is_short(&self.of)],
            _ => [false; 2],
        };
        drop(credits);
        self.pool.tell();
        if has_room {
            self.pool.ask_now();
        }
        state
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.has_ended {
            self.end(None, 0);
        }
    }
}

/// A worker without a claim that succeeded says so after this long.
const UNABLE: Duration = Duration::from_secs(10);

impl Place {
    pub(super) fn take(&self) -> Arc<Take> {
        Arc::clone(&lock(&self.take))
    }

    pub(super) fn busy(&self) -> usize {
        self.busy.load(Ordering::SeqCst)
    }

    /// Makes room for at most `wanted` attempts, so that there are no more than `most`. Returns how many there were before.
    pub(super) fn enter(&self, wanted: usize, most: usize) -> (usize, Busy) {
        let room = |busy: usize| wanted.min(most.saturating_sub(busy));
        let add = |busy| Some(busy + room(busy));
        let before = (self.busy).fetch_update(Ordering::SeqCst, Ordering::SeqCst, add);
        let before = before.unwrap_or_else(|busy| busy);
        let of = Arc::clone(&self.busy);
        let attempts = room(before);
        (before, Busy { of, attempts })
    }

    /// Notes that the route has an event.
    pub(super) fn see(&self) {
        *lock(&self.seen) = Some(Instant::now());
    }

    pub(super) fn seen(&self) -> Option<Instant> {
        *lock(&self.seen)
    }

    pub(super) fn is_active(&self) -> bool {
        self.seen().is_some_and(|at| at.elapsed() < ACTIVE)
    }
}

impl Pool {
    pub(super) fn new(inbox: &Inbox, routes: Vec<Handled>) -> Self {
        let (shared, settings) = (Arc::clone(&inbox.shared), Arc::clone(&inbox.settings));
        let rules = &settings.rules;
        let routes = routes.into_iter().map(|(route, handler)| {
            shared.note_route(&route.name, false);
            Place {
                take: Mutex::new(Arc::new(Take {
                    lease: route.limits.lease(),
                    kinds: rules.kinds(&route.name),
                })),
                handles: handler.handles(&route.name),
                lent: Lent {
                    given: route.given.clone(),
                    observers: shared.observers().clone(),
                    replay_guard: false,
                }
                .into_any(),
                route,
                handler,
                busy: Arc::default(),
                seen: Mutex::default(),
            }
        });
        let routes = routes.collect();
        let (stop, _) = watch::channel(Stop::No);
        Self {
            routes,
            began: Instant::now(),
            credits: Mutex::new(Credits::new(rules.concurrency, rules.credit)),
            tells: Mutex::default(),
            permits: Arc::new(Semaphore::new(rules.concurrency)),
            is_capped: false.into(),
            accepts: false.into(),
            early: usize::MAX.into(),
            unable: Mutex::default(),
            plan: Mutex::default(),
            wake: Notify::new(),
            suspects: Mutex::default(),
            panics: 0.into(),
            leases: HeldLeases::default(),
            others: Others::default(),
            clocks: Clocks::default(),
            stop,
            kept: shared.observers().kept(),
            shared,
            settings,
        }
    }

    pub(super) fn rules(&self) -> &Rules {
        &self.settings.rules
    }

    /// The place of a route. A queue hands out events of these routes alone.
    pub(super) fn place(&self, route: &RouteName) -> Option<&Place> {
        self.routes.iter().find(|place| place.route.name == *route)
    }

    /// The names of its routes, for a line in the log.
    pub(super) fn names(&self) -> String {
        let names = self.routes.iter().map(|place| place.route.name.as_str());
        names.collect::<Vec<_>>().join(", ")
    }

    /// The most attempts of a route at a time: not the last quarter of them, while another one has events.
    pub(super) fn most(&self, of: &Place) -> usize {
        let all = self.rules().concurrency;
        let mut others = self.routes.iter().filter(|place| !std::ptr::eq(*place, of));
        match others.any(Place::is_active) {
            true => three_quarters(all),
            false => all,
        }
    }

    /// The routes without an event since the worker was started, if that was so long ago.
    pub(super) fn idle(&self, time: Duration) -> Vec<RouteName> {
        if self.began.elapsed() < time {
            return Vec::new();
        }
        let idle = self.routes.iter().filter(|place| place.seen().is_none());
        idle.map(|place| place.route.name.clone()).collect()
    }

    /// What to claim, and the room for it: events that are accepted during the claim must not take it as well.
    pub(super) fn shares(&self, limit: usize, may_be_due: bool) -> (Vec<Share>, Vec<Busy>) {
        let mut credits = lock(&self.credits);
        let (of_kinds, each) = (credits.shares(may_be_due), credits.each());
        drop(credits);
        let shares = self.routes.iter().map(|place| {
            let (take, most) = (place.take(), self.most(place));
            let (busy, room) = place.enter(limit, most);
            let name = &place.route.name;
            let kinds = of_kinds.iter().filter(|(route, _)| route == name);
            let kinds = kinds.map(|(_, kind)| kind.clone()).collect();
            let share = Share {
                take,
                busy,
                most,
                kinds,
                each,
            };
            (share, room)
        });
        shares.unzip()
    }

    /// What the lane's next event may be, which is taken in the step that ends an attempt.
    pub(super) fn take_next(&self, place: &Place) -> Arc<Take> {
        let take = place.take();
        let without = lock(&self.credits).without(&place.route.name);
        if without.is_empty() {
            return take;
        }
        let without = without.into_iter().map(|of| of.kind);
        Arc::new(Take {
            lease: take.lease,
            kinds: take.kinds.clone().except(without),
        })
    }

    /// Begins a call of the handler of an event that was taken.
    pub(super) fn call(self: &Arc<Self>, of: EventType) -> Call {
        lock(&self.credits).begin(&of);
        Call::new(self, of)
    }

    /// Tells observers which types are slowed down, or no longer are, in the order of these changes. No lock is held
    /// that an observer may need. If another call is telling already, it also tells of the newest changes.
    pub(super) fn tell(&self) {
        while lock(&self.credits).has_changes() {
            let _one = match self.tells.try_lock() {
                Ok(one) => one,
                Err(TryLockError::Poisoned(one)) => one.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            loop {
                let change = lock(&self.credits).next_change();
                let Some((EventType { route, kind }, change)) = change else {
                    break;
                };
                self.shared.observers().observe(&Observation::Slowed {
                    route: &route,
                    kind: &kind,
                    is_slowed: change == Change::Slowed,
                });
                match change {
                    Change::Slowed => tracing::error!(
                        %route, %kind,
                        "events of this type fail, and none succeeds: until one does, attempts of this type are slowed down, and \
                         failures do not count"
                    ),
                    Change::Succeeded => tracing::info!(
                        %route, %kind,
                        "an event of this type succeeded: its attempts are not slowed down any more"
                    ),
                    Change::Left => tracing::info!(
                        %route, %kind,
                        "another worker handles this type, or did: its attempts are not slowed down here any more"
                    ),
                }
            }
        }
    }

    /// Notes how many attempts a claim has begun, and whether it left others that are due: then as many may begin at
    /// acceptance until the next claim, so that half of all are of those due longest.
    pub(super) fn claimed(&self, attempts: usize, is_behind: bool) {
        let most = self.rules().concurrency;
        let after = |early: usize| match (is_behind, early) {
            (false, _) => usize::MAX,
            (true, usize::MAX) => attempts,
            (true, early) => (early + attempts).min(most),
        };
        let update = |early| Some(after(early));
        let _ = (self.early).fetch_update(Ordering::Relaxed, Ordering::Relaxed, update);
    }

    pub(super) fn is_behind(&self) -> bool {
        self.early.load(Ordering::Relaxed) != usize::MAX
    }

    /// Whether another attempt may begin at acceptance.
    pub(super) fn begins_early(&self) -> bool {
        let begin = |early: usize| match early {
            usize::MAX => Some(early),
            early => early.checked_sub(1),
        };
        let begun = (self.early).fetch_update(Ordering::Relaxed, Ordering::Relaxed, begin);
        begun.is_ok()
    }

    /// Notes that a claim is asked for, or has succeeded.
    pub(super) fn note_claim(&self, has_succeeded: bool) {
        let mut unable = lock(&self.unable);
        *unable = match has_succeeded {
            true => None,
            false => Some(unable.unwrap_or_else(Instant::now)),
        };
    }

    pub(super) fn can_claim(&self) -> bool {
        lock(&self.unable).is_none_or(|since| since.elapsed() < UNABLE)
    }

    /// Whether a route may have one more attempt.
    pub(super) fn has_room(&self, route: &RouteName) -> bool {
        let place = self.place(route);
        place.is_some_and(|place| place.busy() < self.most(place))
    }

    /// Longer than that of a delivery, which has a sender who waits.
    pub(super) fn store_timeout(&self) -> Duration {
        let limits = self.routes.iter().map(|place| &place.route.limits);
        limits.map(|it| it.store_timeout).max().unwrap_or_default()
    }

    pub(super) fn shortest_lease(&self) -> Duration {
        let limits = self.routes.iter().map(|place| &place.route.limits);
        limits.map(Limits::lease).min().unwrap_or(Duration::MAX)
    }

    /// The worker's number among those of its inbox.
    pub(super) fn number(&self) -> usize {
        ptr::from_ref(self).addr()
    }

    pub(super) fn ask_now(&self) {
        self.ask_at(Instant::now());
    }

    /// Plans to ask the queue at this time at the latest.
    pub(super) fn ask_at(&self, at: Instant) {
        let mut plan = lock(&self.plan);
        if plan.is_none_or(|planned| at < planned) {
            *plan = Some(at);
            drop(plan);
            self.wake.notify_one();
        }
    }

    pub(super) fn next_ask(&self) -> Option<Instant> {
        let planned = *lock(&self.plan);
        let credit = lock(&self.credits).next(|route| self.has_room(route));
        planned.into_iter().chain(credit).min()
    }

    /// Sets the kinds to take, after other workers have come or gone. Returns whether they are others.
    pub(super) fn set_kinds(&self) -> bool {
        let mut has_changed = false;
        let mut credits = lock(&self.credits);
        let noted = self.others.noted();
        if let Some(noted) = &noted
            && credits.has_failing()
        {
            // Nothing is tried here any more that could succeed.
            credits.leave(|EventType { route, kind }| {
                self.place(route).is_some_and(|place| {
                    let duty = noted.duty(place.handles.own(kind), route, kind);
                    matches!(duty, Duty::Leave | Duty::PutOff)
                })
            });
        }
        drop(credits);
        self.tell();
        for place in &self.routes {
            let route = &place.route;
            let mut kinds = self.rules().kinds(&route.name);
            if let Some(noted) = &noted {
                kinds = noted.taken(kinds, &place.handles);
            }
            let mut take = lock(&place.take);
            has_changed |= take.kinds != kinds;
            *take = Arc::new(Take {
                lease: route.limits.lease(),
                kinds,
            });
        }
        has_changed
    }

    pub(super) fn stop(&self, stop: Stop) {
        self.stop.send_replace(stop);
        self.wake.notify_one();
        if stop == Stop::Now {
            self.leases.interrupt_all();
        }
    }

    pub(super) fn stops(&self) -> bool {
        *self.stop.borrow() != Stop::No
    }
}
