//! The queue returns what the one in memory returns.

use super::*;
use crate::inbox::queue::Claims;
use crate::inbox::records::{AcceptOne, BlockedLane, Listed, Stats, forget_all};
use crate::memory::MemoryQueue;

/// A step, which both queues do.
struct Pair {
    memory: MemoryQueue,
    sqlite: SqliteQueue,
    desk: Desk,
    random: fastrand::Rng,
    held: Vec<[EventLease; 2]>,
    last: i64,
    log: Vec<String>,
}

fn shown(taken: &TakenEvent) -> String {
    format!(
        "{} of {:?} at {}, {} failures, {} crashes, {:?}, {:?}, redriven {}",
        taken.lease.id,
        taken.lane,
        taken.delivery.route(),
        taken.failures,
        taken.crashes,
        taken.tried_for,
        taken.delivery.attempt(),
        taken.delivery.is_redriven(),
    )
}

fn accepted(accepted: &Accepted) -> String {
    match accepted {
        Accepted::New { id, taken } => format!("{id} {:?}", taken.as_deref().map(shown)),
        other => format!("{other:?}"),
    }
}

fn route(random: &mut fastrand::Rng) -> RouteName {
    match random.u8(0..4) {
        0 => "crm".parse().unwrap(),
        _ => RouteName::default(),
    }
}

impl Pair {
    fn same(&mut self, step: String, memory: String, sqlite: String) {
        self.log.push(format!("{step} -> {memory}"));
        let log = self.log.join("\n");
        assert_eq!(sqlite, memory, "{log}");
    }

    fn hold<'a>(
        &mut self,
        memory: impl IntoIterator<Item = &'a TakenEvent>,
        sqlite: impl IntoIterator<Item = &'a TakenEvent>,
    ) {
        let leases = memory.into_iter().zip(sqlite);
        self.held.extend(leases.map(|(a, b)| [a.lease, b.lease]));
    }

    fn take(&mut self) -> Take {
        // Both queues round differently, so leases end between two whole seconds.
        let lease = Duration::from_millis(500) + SECOND * self.random.u32(5..60);
        let route = route(&mut self.random);
        let kinds = match self.random.u8(0..4) {
            0 => Kinds::only([EventKind::CHAT_RATED]),
            1 => Kinds::all().except([EventKind::CHAT_RATED]),
            _ => Kinds::all(),
        };
        let kinds = kinds.at(route);
        Take { lease, kinds }
    }

    /// Of one route, or of both, in any order.
    fn shares(&mut self) -> Vec<Share> {
        let mut shares = Vec::new();
        for _ in 0..self.random.usize(1..4) {
            let take = self.take();
            let is_new = |share: &Share| share.take.kinds.route != take.kinds.route;
            if shares.iter().all(is_new) {
                shares.push(Share {
                    busy: self.random.usize(0..3),
                    most: [usize::MAX, 1, 3][self.random.usize(0..3)],
                    ..take.into()
                });
            }
        }
        shares
    }

    fn maybe_take(&mut self) -> Option<Take> {
        let take = self.take();
        self.random.bool().then_some(take)
    }

    fn settlement(&mut self) -> Settlement {
        let failure = failure();
        match self.random.u8(0..9) {
            0 | 1 => Settlement::Handled,
            2 => Settlement::Ignored,
            3 => Settlement::Discarded(failure),
            4 => Settlement::Dead {
                failure,
                hold_lane: self.random.bool(),
            },
            5 => Settlement::Released,
            _ => Settlement::Retry {
                after: SECOND * self.random.u32(0..30),
                failure: self.random.bool().then_some(failure),
                counts: self.random.bool(),
                is_slowed: self.random.bool(),
                blocks_lane: self.random.bool(),
            },
        }
    }

    /// Has SQLite do what the queue in memory does with each operation.
    async fn return_to_lines(&self) {
        self.sqlite.claim(&[take().into()], 0, 0).await.unwrap();
    }

    async fn step(&mut self) {
        let random = &mut self.random;
        match random.u8(0..20) {
            0..=5 => {
                let lane = random.i64(0..4);
                let kind = match random.bool() {
                    true => EventKind::CHAT_RATED,
                    false => EventKind::CHAT_OPENED,
                };
                let key = random.u64(0..200);
                let mut event = keyed(lane, key);
                let route = route(random);
                let chat = event.chat.as_deref().unwrap_or_default();
                event.lane = (lane > 0).then_some(Lane::at(&route, chat));
                event.delivery = RawDelivery::new(kind, "{}").with_route(route);
                event.retain = Duration::from_millis(500) + SECOND * random.u32(0..100);
                event.dead = (random.u8(0..10) == 0).then(failure);
                if random.bool() {
                    let body = random.u64(0..100).to_be_bytes();
                    event.guard = Some(EventKey::new("body", &body, &key.to_be_bytes()));
                }
                let take = self.maybe_take();
                let a = self
                    .memory
                    .accept_one(event.clone(), take.as_ref())
                    .await
                    .unwrap();
                let b = self
                    .sqlite
                    .accept_one(event.clone(), take.as_ref())
                    .await
                    .unwrap();
                if let Accepted::New { id, .. } = a {
                    self.last = id.0;
                }
                self.same(
                    format!("accept {event:?}, {take:?}"),
                    accepted(&a),
                    accepted(&b),
                );
                if let (
                    Accepted::New { taken: Some(a), .. },
                    Accepted::New { taken: Some(b), .. },
                ) = (&a, &b)
                {
                    self.hold([&**a], [&**b]);
                }
            }
            6..=8 => {
                let (limit, suspects) = (random.usize(0..4), random.usize(0..3));
                let of = self.shares();
                let a = self.memory.claim(&of, limit, suspects).await.unwrap();
                let b = self.sqlite.claim(&of, limit, suspects).await.unwrap();
                let show = |claims: &Claims| {
                    // Leases of SQLite last a little longer.
                    let next = claims.next_due.map(|due| due.as_secs_f64().floor());
                    let events: Vec<_> = claims.events.iter().map(shown).collect();
                    format!("{events:?}, next {next:?}")
                };
                let step = format!("claim {of:?}, {limit}, {suspects}");
                self.same(step, show(&a), show(&b));
                self.hold(&a.events, &b.events);
            }
            9..=13 if !self.held.is_empty() => {
                let at = random.usize(0..self.held.len());
                let [a, b] = self.held.swap_remove(at);
                let (settlement, take) = (self.settlement(), self.maybe_take());
                let ended = [
                    self.memory
                        .settle(&a, &settlement, take.as_ref())
                        .await
                        .unwrap(),
                    self.sqlite
                        .settle(&b, &settlement, take.as_ref())
                        .await
                        .unwrap(),
                ];
                let show = |settled: &Settled| match settled {
                    Settled::Ended(next) => format!("{:?}", next.as_deref().map(shown)),
                    Settled::Lost => "lost".to_owned(),
                };
                let step = format!("settle {}, {settlement:?}, {take:?}", a.id);
                self.same(step, show(&ended[0]), show(&ended[1]));
                if matches!(settlement, Settlement::Retry { after, .. } if after.is_zero()) {
                    self.return_to_lines().await;
                }
                if let [Settled::Ended(Some(a)), Settled::Ended(Some(b))] = &ended {
                    self.hold([&**a], [&**b]);
                }
            }
            14 if !self.held.is_empty() => {
                let [a, b] = self.held[random.usize(0..self.held.len())];
                let lease = self.take().lease;
                let held = [
                    self.memory.extend(&[a], lease).await.unwrap(),
                    self.sqlite.extend(&[b], lease).await.unwrap(),
                ];
                let [x, y] = held.map(|held| format!("{held:?}"));
                self.same(format!("extend {} by {lease:?}", a.id), x, y);
            }
            15 if self.last > 0 => {
                let id = EventId(random.i64(1..=self.last));
                let kind = match random.bool() {
                    true => ActionKind::Redrive,
                    false => ActionKind::Discard,
                };
                let from = random.bool().then(|| EventState::ALL[random.usize(0..7)]);
                let by = By::default();
                let changes = [
                    self.memory.change(kind, id, from, &by).await.unwrap(),
                    self.sqlite.change(kind, id, from, &by).await.unwrap(),
                ];
                let [x, y] = changes.map(|change| format!("{change:?}"));
                self.same(format!("{kind} {id} {from:?}"), x, y);
            }
            16 => {
                let route = route(random);
                let of = match random.u8(0..4) {
                    0 => Scope::Everything,
                    1 => Scope::Route(route),
                    _ => EventType::new(route, EventKind::CHAT_RATED).into(),
                };
                let note = (random.u8(0..4) == 0).then_some("");
                let by = By::default();
                self.memory.pause(&of, note, &by).await.unwrap();
                self.sqlite.pause(&of, note, &by).await.unwrap();
                self.log.push(format!("pause {of:?} {note:?}"));
            }
            17 if random.u8(0..4) == 0 => {
                let keep = Duration::from_millis(500) + SECOND * random.u32(0..60);
                self.memory.purge(keep).await.unwrap();
                self.sqlite.purge(keep).await.unwrap();
                self.log.push(format!("purge {keep:?}"));
                if random.u8(0..4) == 0 {
                    let a = forget_all(&self.memory, "chat-2", &By::default())
                        .await
                        .unwrap();
                    let b = forget_all(&self.sqlite, "chat-2", &By::default())
                        .await
                        .unwrap();
                    self.same("forget".to_owned(), a.to_string(), b.to_string());
                }
            }
            _ => {
                let time = SECOND * random.u32(0..20);
                tokio::time::advance(time).await;
                self.desk.wait(time);
                self.log.push(format!("wait {time:?}"));
                // SQLite drops expired keys by itself, also those whose events are redriven later.
                while self.memory.purge(DAY).await.unwrap() {}
                self.sqlite.purge_all(DAY).await;
                // Where an event waits behind an expired lease, the lease is lost when that is noticed.
                self.return_to_lines().await;
            }
        }
        self.compare().await;
    }

    /// All events, and their number.
    async fn compare(&mut self) {
        let page = Page {
            after: None,
            limit: usize::MAX,
            newest_first: self.random.bool(),
            within: None,
        };
        let show = |listed: Listed| {
            let one = |event: &EventSummary| {
                let due = event.due_at.is_some();
                let settled = event.settled_at.is_some();
                let last = event.last_failure.as_ref().map(|past| &past.failure);
                format!(
                    "{} {} at {} {:?} due {due} settled {settled} failures {} redriven {} last {last:?}",
                    event.id,
                    event.state,
                    event.route,
                    event.chat,
                    event.failures,
                    event.is_redriven
                )
            };
            listed.events.iter().map(one).collect::<Vec<_>>().join("\n")
        };
        let mut states = EventState::ALL.to_vec();
        self.random.shuffle(&mut states);
        states.truncate(self.random.usize(0..4));
        let routes = (self.random.u8(0..4) == 0).then(|| route(&mut self.random));
        let all = Filter::default().states(states).routes(routes);
        let a = show(self.memory.list(&all, page).await.unwrap());
        let b = show(self.sqlite.list(&all, page).await.unwrap());
        self.same(format!("list {all:?}"), a, b);
        self.log.pop();
        let show = |stats: Stats| {
            let kinds = stats.kinds.iter().filter(|kind| kind.oldest.is_some());
            let kinds = kinds.map(|kind| {
                let (waiting, retrying) = (kind.waiting, kind.retrying);
                (
                    kind.event_type(),
                    waiting,
                    kind.in_progress,
                    retrying,
                    kind.dead,
                    kind.blocking,
                    kind.is_paused,
                )
            });
            let kinds: Vec<_> = kinds.collect();
            let pauses = stats.pauses.iter();
            let pauses: Vec<_> = pauses.map(|pause| (&pause.of, &pause.note)).collect();
            format!("{kinds:?}, {pauses:?}")
        };
        let a = show(self.memory.stats().await.unwrap());
        let b = show(self.sqlite.stats().await.unwrap());
        self.same("stats".to_owned(), a, b);
        self.log.pop();
        let show = |lanes: Vec<BlockedLane>| {
            let one = |lane: &BlockedLane| {
                let event = &lane.event;
                let last = event.last_failure.as_ref().map(|past| &past.failure);
                format!(
                    "{} {} and {}, {last:?}",
                    event.id, event.state, lane.waiting
                )
            };
            lanes.iter().map(one).collect::<Vec<_>>().join("\n")
        };
        let (after, limit) = (self.random.i64(0..=self.last), self.random.usize(1..20));
        let after = self.random.bool().then_some(EventId(after));
        let chat = self.random.bool().then_some("chat-1");
        let a = self.memory.blocked_lanes(chat, after, limit).await.unwrap();
        let b = self.sqlite.blocked_lanes(chat, after, limit).await.unwrap();
        let step = format!("blocked lanes of {chat:?} after {after:?}");
        self.same(step, show(a), show(b));
        self.log.pop();
    }
}

#[tokio::test(start_paused = true)]
async fn it_does_as_the_queue_in_memory() {
    for seed in 0..SEEDS {
        let desk = Desk::new();
        let mut pair = Pair {
            memory: MemoryQueue::new(),
            sqlite: desk.open(),
            desk,
            random: fastrand::Rng::with_seed(seed),
            held: Vec::new(),
            last: 0,
            log: vec![format!("seed {seed}")],
        };
        for _ in 0..300 {
            pair.step().await;
        }
    }
}

const SEEDS: u64 = 3;
