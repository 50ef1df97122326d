//! The steps that rules consist of.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::make::{endings, kind};
use super::{DRIFT, HELD, Harness, PATIENCE, RETAIN, SHORT};
use tower_webhook::event::EventKind;
use tower_webhook::inbox::internal::{
    Accepted, Claims, EventLease, Kinds, Lane, NewEvent, Settled, Settlement, Take, TakenEvent,
};
use tower_webhook::inbox::{
    By, Change, EventId, EventRecord, EventState, Failure, Filter, Queue, Scope,
};
use tower_webhook::store::EventKey;
pub(super) use tower_webhook::store::conformance::steps::{abandon, joined, named, ok};
use tower_webhook::{EventType, IdempotencyKey, RawDelivery, RouteName};

use support::queue::{Calls, new_event};

/// A handle on the queue, and a kind of events that no other rule uses, at the route of the chat platform or at another.
#[derive(Clone)]
pub(super) struct Trial {
    pub(super) queue: Queue,
    pub(super) route: RouteName,
    pub(super) kind: EventKind,
    /// The kinds that are taken.
    pub(super) kinds: Kinds,
}

impl Trial {
    pub(super) async fn open<H: Harness>(harness: &H) -> Self {
        Self::on(harness.open().await)
    }

    fn on(queue: Queue) -> Self {
        let kind = kind();
        let kinds = Kinds::only([kind.clone()]);
        Self {
            queue,
            route: RouteName::default(),
            kind,
            kinds,
        }
    }

    /// One with a kind of its own, at the same route.
    pub(super) fn fresh(&self) -> Self {
        Self::on(self.queue.clone()).at(&self.route)
    }

    /// One with a kind of the same name at another route.
    pub(super) fn at(&self, route: &RouteName) -> Self {
        Self {
            route: route.clone(),
            kinds: self.kinds.clone().at(route.clone()),
            ..self.clone()
        }
    }

    pub(super) fn event_type(&self) -> EventType {
        EventType::new(self.route.clone(), self.kind.clone())
    }

    fn deliver(&self, body: &'static str) -> RawDelivery {
        RawDelivery::new(self.kind.clone(), body).with_route(self.route.clone())
    }

    /// One that takes other kinds.
    pub(super) fn taking(&self, kinds: Kinds) -> Self {
        Self {
            kinds,
            ..self.clone()
        }
    }

    /// The same on other handles.
    pub(super) async fn handles<H: Harness>(&self, harness: &H, count: usize) -> Vec<Arc<Self>> {
        let mut handles = Vec::new();
        for _ in 0..count {
            handles.push(Arc::new(Self {
                queue: harness.open().await,
                ..self.clone()
            }));
        }
        handles
    }

    /// An event without a key, a chat and a lane.
    pub(super) fn event(&self) -> NewEvent {
        NewEvent {
            retain: RETAIN,
            delivery: self.deliver("{}"),
            ..new_event(self.kind.clone(), "{}")
        }
    }

    pub(super) fn in_lane(&self, lane: Lane) -> NewEvent {
        NewEvent {
            lane: Some(lane),
            ..self.event()
        }
    }

    /// Accepts this many events of a lane.
    pub(super) async fn line(&self, lane: Lane, count: usize) -> Vec<EventId> {
        let mut ids = Vec::new();
        for _ in 0..count {
            ids.push(self.accept(self.in_lane(lane)).await);
        }
        ids
    }

    pub(super) fn with_key(&self, key: &IdempotencyKey, body: &'static str) -> NewEvent {
        let namespace = match self.route == RouteName::default() {
            true => "",
            false => self.route.as_str(),
        };
        NewEvent {
            delivery: self.deliver(body).with_key(key.clone()),
            key: Some(EventKey::new(namespace, key.as_bytes(), body.as_bytes())),
            ..self.event()
        }
    }

    pub(super) fn take(&self, lease: Duration) -> Take {
        Take {
            lease,
            kinds: self.kinds.clone(),
        }
    }

    /// Accepts an event that is new.
    pub(super) async fn accept(&self, event: NewEvent) -> EventId {
        match ok(self.queue.accept_one(event, None).await, "accept") {
            Accepted::New { id, taken: None } => id,
            Accepted::New { taken, .. } => panic!("an event was taken unasked: {taken:?}"),
            other => panic!("an event that is new was not accepted: {other:?}"),
        }
    }

    /// Accepts an event that is new, and takes it if that is possible.
    pub(super) async fn accept_and_take(
        &self,
        event: NewEvent,
        lease: Duration,
    ) -> (EventId, Option<TakenEvent>) {
        let take = self.take(lease);
        match ok(self.queue.accept_one(event, Some(&take)).await, "accept") {
            Accepted::New { id, taken } => {
                if let Some(taken) = &taken {
                    assert_eq!(taken.lease.id, id, "the number of an event that was taken");
                    assert_eq!(*taken.delivery.route(), self.route, "the route of an event");
                }
                (id, taken.map(|taken| *taken))
            }
            other => panic!("an event that is new was not accepted: {other:?}"),
        }
    }

    /// Accepts an event that can be taken, and takes it.
    pub(super) async fn taken(&self, event: NewEvent, lease: Duration) -> TakenEvent {
        match self.accept_and_take(event, lease).await {
            (_, Some(taken)) => taken,
            (id, None) => panic!("event {id} can be taken, and was not when it was accepted"),
        }
    }

    /// Accepts an event that cannot be taken.
    pub(super) async fn not_taken(&self, event: NewEvent, why: &str) -> EventId {
        let (id, taken) = self.accept_and_take(event, HELD).await;
        assert!(taken.is_none(), "an event was taken although {why}");
        id
    }

    /// Asserts that the queue recognises a duplicate.
    pub(super) async fn duplicate(&self, event: NewEvent, expected: bool, what: &str) {
        let take = self.take(HELD);
        match ok(self.queue.accept_one(event, Some(&take)).await, "accept") {
            Accepted::Duplicate { same_body } => {
                assert_eq!(same_body, expected, "`same_body` of {what}");
            }
            other => panic!("{what} was not recognised as a duplicate: {other:?}"),
        }
    }

    pub(super) async fn claim(&self, lease: Duration, limit: usize, suspects: usize) -> Claims {
        let take = self.take(lease);
        let claims = ok(self.queue.claim_of(&take, limit, suspects).await, "claim");
        assert!(
            claims.events.len() <= limit,
            "a claim of {limit} events took {}",
            claims.events.len()
        );
        let crashed = claims.events.iter().filter(|event| event.crashes > 0);
        let crashed = crashed.count();
        assert!(
            crashed <= suspects,
            "a claim of {suspects} suspects took {crashed}"
        );
        for taken in &claims.events {
            let kind = taken.delivery.kind();
            assert!(self.kinds.contains(kind), "a claim took the kind {kind}");
            assert_eq!(*taken.delivery.route(), self.route, "the route of an event");
        }
        claims
    }

    /// Pauses events, or ends that.
    pub(super) async fn pause(&self, of: impl Into<Scope>, paused: bool) {
        let (of, by) = (of.into(), By::default());
        let made = self.queue.pause(&of, paused.then_some(""), &by);
        ok(made.await, "pause");
    }

    /// Claims one event, if there is one.
    pub(super) async fn try_claim(&self, lease: Duration) -> Option<TakenEvent> {
        self.claim(lease, 1, 1).await.events.pop()
    }

    /// Claims one event, and waits for it.
    pub(super) async fn claimed(&self, lease: Duration, what: &str) -> TakenEvent {
        self.claimed_at(lease, what).await.1
    }

    /// Claims one event, and waits for it. Returns the time before which it was not taken.
    pub(super) async fn claimed_at(&self, lease: Duration, what: &str) -> (Instant, TakenEvent) {
        let give_up = Instant::now() + PATIENCE;
        loop {
            let before = Instant::now();
            if let Some(taken) = self.try_claim(lease).await {
                return (before, taken);
            }
            assert!(Instant::now() < give_up, "{what} cannot be taken");
            sleep(SHORT / 20).await;
        }
    }

    /// Claims an event, which must be this one.
    pub(super) async fn claims(&self, id: EventId, lease: Duration, what: &str) -> TakenEvent {
        let taken = self.claimed(lease, what).await;
        assert_eq!(taken.lease.id, id, "not {what} was taken");
        taken
    }

    /// Claims as many events, in any order, and waits for them.
    pub(super) async fn all_of(
        &self,
        ids: &[EventId],
        lease: Duration,
        what: &str,
    ) -> Vec<TakenEvent> {
        let mut taken = Vec::new();
        for _ in ids {
            taken.push(self.claimed(lease, what).await);
        }
        let mut found: Vec<_> = taken.iter().map(|taken| taken.lease.id).collect();
        found.sort_unstable();
        let mut expected = ids.to_vec();
        expected.sort_unstable();
        assert_eq!(found, expected, "the events that were taken of {what}");
        taken
    }

    /// Asserts that no event can be taken now.
    pub(super) async fn nothing(&self, what: &str) {
        let claims = self.claim(HELD, 16, 16).await;
        let ids: Vec<_> = claims.events.iter().map(|taken| taken.lease.id).collect();
        assert!(ids.is_empty(), "{what}, but {ids:?} could be taken");
    }

    /// Ends an attempt without the next one.
    pub(super) async fn settle(&self, taken: &TakenEvent, settlement: &Settlement) {
        let settled = self.queue.settle(&taken.lease, settlement, None).await;
        match ok(settled, "settle") {
            Settled::Ended(None) => {}
            Settled::Ended(Some(next)) => panic!("an event was taken unasked: {next:?}"),
            Settled::Lost => panic!("a lease that is held was lost: {settlement:?}"),
        }
    }

    /// Ends an attempt, and takes the next event of the lane if that is possible.
    pub(super) async fn settle_and_take(
        &self,
        taken: &TakenEvent,
        settlement: &Settlement,
    ) -> Option<TakenEvent> {
        let take = self.take(HELD);
        let settled = self
            .queue
            .settle(&taken.lease, settlement, Some(&take))
            .await;
        match ok(settled, "settle") {
            Settled::Ended(next) => next.map(|next| *next),
            Settled::Lost => panic!("a lease that is held was lost: {settlement:?}"),
        }
    }

    /// Ends an attempt, and takes the next event of the lane, which must be this one.
    pub(super) async fn hands_over(
        &self,
        taken: &TakenEvent,
        settlement: &Settlement,
        next: EventId,
    ) -> TakenEvent {
        match self.settle_and_take(taken, settlement).await {
            Some(taken) => {
                assert_eq!(taken.lease.id, next, "the event that was handed over");
                assert_eq!(*taken.delivery.route(), self.route, "the route of an event");
                taken
            }
            None => panic!("event {next} was not handed over after {settlement:?}"),
        }
    }

    /// Ends an attempt, after which no event of the lane can be taken.
    pub(super) async fn hands_nothing_over(
        &self,
        taken: &TakenEvent,
        settlement: &Settlement,
        why: &str,
    ) {
        if let Some(next) = self.settle_and_take(taken, settlement).await {
            panic!("event {} was handed over although {why}", next.lease.id);
        }
    }

    /// Whether each of the leases was still held.
    pub(super) async fn extend(&self, leases: &[EventLease], lease: Duration) -> Vec<bool> {
        let extended = ok(self.queue.extend(leases, lease).await, "extend");
        let known = extended
            .into_iter()
            .map(|held| held.expect("nothing is locked"));
        known.collect()
    }

    /// Asserts that an attempt can neither be ended nor extended, and that trying it changes nothing.
    pub(super) async fn refuses(&self, lease: &EventLease, what: &str) {
        let before = Image::of(&self.record(lease.id).await);
        let take = self.take(HELD);
        for settlement in endings() {
            match ok(
                self.queue.settle(lease, &settlement, Some(&take)).await,
                "settle",
            ) {
                Settled::Lost => {}
                Settled::Ended(_) => panic!("{what} could be settled: {settlement:?}"),
            }
            let after = Image::of(&self.record(lease.id).await);
            assert_eq!(
                before, after,
                "{what} was lost, but changed the event: {settlement:?}"
            );
        }
        assert_eq!(
            self.extend(&[*lease], HELD).await,
            [false],
            "whether {what} could be extended"
        );
        let after = Image::of(&self.record(lease.id).await);
        assert_eq!(
            before, after,
            "{what} was lost, but its extension changed the event"
        );
    }

    pub(super) async fn record(&self, id: EventId) -> EventRecord {
        match ok(self.queue.get(id).await, "get") {
            Some(record) => {
                assert_eq!(record.summary.id, id, "the number of an event");
                record
            }
            None => panic!("event {id} was not found"),
        }
    }

    /// Asserts the state of an event by all accounts.
    pub(super) async fn is(&self, id: EventId, state: EventState, what: &str) {
        let found = self.record(id).await.summary;
        assert_eq!(found.state, state, "the state of {what}");
        let settled = !state.is_unsettled();
        assert_eq!(
            found.settled_at.is_some(),
            settled,
            "whether {what} has a time of settling"
        );
    }

    pub(super) async fn redrive(&self, id: EventId, expected: Change, what: &str) {
        let change = ok(
            self.queue.redrive(id, None, &By::default()).await,
            "redrive",
        );
        assert_eq!(change, expected, "the result of redriving {what}");
    }

    pub(super) async fn discard(&self, id: EventId, expected: Change, what: &str) {
        let change = ok(
            self.queue.discard(id, None, &By::default()).await,
            "discard",
        );
        assert_eq!(change, expected, "the result of discarding {what}");
    }

    /// Takes an event for `SHORT`, and waits until its lease has expired.
    pub(super) async fn expired(&self, event: NewEvent) -> TakenEvent {
        let taken = self.taken(event, SHORT).await;
        sleep(2 * SHORT).await;
        taken
    }

    /// Purges until there is no more to purge.
    pub(super) async fn purge(&self, keep_bodies: Duration) {
        let give_up = Instant::now() + PATIENCE;
        while ok(self.queue.purge(keep_bodies).await, "purge") {
            assert!(Instant::now() < give_up, "there is always more to purge");
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// Selects the events of the kind.
    pub(super) fn filter(&self) -> Filter {
        Filter::default().kinds([self.kind.clone()])
    }
}

/// What a call that changes nothing leaves as it was.
#[derive(Debug, PartialEq)]
struct Image {
    state: EventState,
    settled_at: Option<std::time::SystemTime>,
    counted: u32,
    is_redriven: bool,
    body: Option<usize>,
    failures: Vec<Failure>,
}

impl Image {
    fn of(record: &EventRecord) -> Self {
        Self {
            state: record.summary.state,
            settled_at: record.summary.settled_at,
            counted: record.summary.failures,
            is_redriven: record.summary.is_redriven,
            body: record.body.as_ref().map(bytes::Bytes::len),
            failures: record
                .failures
                .iter()
                .map(|past| past.failure.clone())
                .collect(),
        }
    }
}

/// Asserts that something which was not begun before `began` lasted for `SHORT`.
pub(super) fn lasted(began: Instant, what: &str) {
    let lasted = began.elapsed();
    assert!(
        lasted + DRIFT >= SHORT,
        "{what} of {SHORT:?} ended after {lasted:?} at the latest"
    );
}

pub(super) fn assert_attempt(taken: &TakenEvent, failures: u32, crashes: u32, after: &str) {
    assert_eq!(taken.failures, failures, "failures after {after}");
    assert_eq!(taken.crashes, crashes, "crashes after {after}");
    let attempt = taken.delivery.attempt().map(u32::from);
    assert_eq!(
        attempt,
        Some(1 + failures + crashes),
        "the attempt after {after}"
    );
    assert_eq!(
        taken.tried_for.is_some(),
        failures > 0 || taken.uncounted > 0,
        "whether it failed before {after}"
    );
}
