//! The queue in PostgreSQL does what the queue in memory does, in any order of operations.

use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use tower_webhook::event::EventKind;
use tower_webhook::inbox::internal::{
    Accepted, EventLease, KindShare, Kinds, Lane, NewEvent, Settled, Settlement, Share, Take,
    TakenEvent,
};
use tower_webhook::inbox::{
    ActionKind, BlockedLane, By, EventId, EventState, EventSummary, Failure, Filter, Queue, Scope,
    Stats,
};
use tower_webhook::memory::MemoryQueue;
use tower_webhook::store::EventKey;
use tower_webhook::{EventType, IdempotencyKey, RawDelivery, RouteName};

use support::HOUR;
use support::database::Database;
use support::queue::{Calls, page};

/// Numbers that are the same in every run with the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }

    fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }

    fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize].clone()
    }

    fn kinds(&mut self) -> Kinds {
        match self.below(4) {
            0 => Kinds::only([self.pick(&KINDS)]),
            1 => Kinds::all().except([self.pick(&KINDS)]),
            _ => Kinds::all(),
        }
    }

    fn take(&mut self) -> Take {
        let route = self.route();
        self.take_at(route)
    }

    fn take_at(&mut self, route: RouteName) -> Take {
        // Such a short lease has expired when the next operation begins.
        let lease = match self.one_in(4) {
            true => Duration::from_micros(1),
            false => HOUR,
        };
        let kinds = self.kinds().at(route);
        Take { lease, kinds }
    }

    fn route(&mut self) -> RouteName {
        self.pick(&["chat-platform", "chat-platform", "chat-platform", "crm"])
            .parse()
            .unwrap()
    }

    /// Of one route, or of both, in any order.
    fn shares(&mut self) -> Vec<(RouteName, Share)> {
        let mut routes = vec![self.route()];
        routes.extend(Some(self.route()).filter(|route| !routes.contains(route)));
        let shares = routes.into_iter().map(|route| {
            let share = Share {
                busy: self.below(3) as usize,
                most: self.pick(&[usize::MAX, usize::MAX, 1, 3]),
                kinds: self.kind_shares(),
                each: self.pick(&[usize::MAX, usize::MAX, 1, 3]),
                ..self.take_at(route.clone()).into()
            };
            (route, share)
        });
        shares.collect()
    }

    fn kind_shares(&mut self) -> Vec<KindShare> {
        let mut shares = Vec::new();
        for kind in KINDS {
            if self.one_in(3) {
                let busy = self.below(3) as usize;
                let most = self.pick(&[usize::MAX, 0, 1, 3]);
                shares.push(KindShare { kind, busy, most });
            }
        }
        shares
    }

    fn next(&mut self) -> Option<Take> {
        (!self.one_in(3)).then(|| self.take())
    }

    fn event(&mut self, count: u64) -> NewEvent {
        let body = format!(r#"{{"n":{}}}"#, self.below(40));
        // Most keys are new ones.
        let key = match self.below(6) {
            0 => None,
            1 => Some(format!("key {}", self.below(10))),
            _ => Some(format!("new {count}")),
        };
        let chat = (!self.one_in(5)).then(|| self.pick(&["a", "b", "c"]).to_owned());
        let route = self.route();
        let mut headers = HeaderMap::new();
        if count.is_multiple_of(3) {
            headers.insert("traceparent", HeaderValue::from(count));
        }
        let guard = key.as_ref().filter(|_| self.one_in(4));
        let guard = guard.map(|key| EventKey::new("guard", body.as_bytes(), key.as_bytes()));
        let raw = key
            .as_deref()
            .map(|key| IdempotencyKey::new(HeaderValue::from_str(key).unwrap()).unwrap());
        NewEvent {
            key: key
                .as_ref()
                .map(|key| EventKey::new("", key.as_bytes(), body.as_bytes())),
            guard,
            rejects_changed_body: false,
            lane: chat.as_deref().map(|chat| Lane::at(&route, chat)),
            delivery: RawDelivery::new(self.pick(&KINDS), body)
                .with_route(route)
                .with_key(raw)
                .with_headers(headers),
            chat,
            retain: match self.one_in(4) {
                true => Duration::ZERO,
                false => HOUR,
            },
            dead: self.one_in(12).then(|| failure("undecodable")),
        }
    }

    fn settlement(&mut self) -> Settlement {
        match self.below(12) {
            0 => Settlement::Ignored,
            1 => Settlement::Discarded(failure("discarded")),
            2 | 3 => Settlement::Dead {
                failure: failure("dead"),
                hold_lane: self.one_in(2),
            },
            4..=7 => Settlement::Retry {
                after: match self.one_in(3) {
                    true => HOUR,
                    false => Duration::ZERO,
                },
                failure: (!self.one_in(3)).then(|| failure("failed")),
                counts: !self.one_in(3),
                is_slowed: self.one_in(2),
                blocks_lane: self.one_in(2),
            },
            8 => Settlement::Released,
            _ => Settlement::Handled,
        }
    }
}

const KINDS: [EventKind; 3] = [
    EventKind::CHAT_OPENED,
    EventKind::CHAT_CLOSED,
    EventKind::MESSAGE_CREATED,
];

fn failure(outcome: &str) -> Failure {
    let failure = Failure::new(outcome, "it did not work \0 \u{1f980}");
    match outcome {
        "discarded" => failure,
        _ => failure.took(Duration::from_micros(1_234_567)),
    }
}

/// Both leases of an event in progress.
type Held = (EventLease, EventLease);

fn same_taken(memory: &TakenEvent, postgres: &TakenEvent) -> Held {
    let shown = |taken: &TakenEvent| {
        (
            taken.lease.id,
            (
                taken.delivery.route().clone(),
                taken.delivery.kind().clone(),
            ),
            taken.delivery.key().cloned(),
            taken.delivery.body().clone(),
            taken.delivery.headers().clone(),
            taken.delivery.attempt(),
            taken.delivery.is_redriven(),
            taken.lane,
            (taken.failures, taken.crashes),
            taken.tried_for.is_some(),
        )
    };
    assert_eq!(shown(memory), shown(postgres));
    assert!(postgres.delivery.accepted_at().is_some());
    (memory.lease, postgres.lease)
}

fn shown(summary: &EventSummary) -> impl PartialEq + std::fmt::Debug {
    (
        summary.id,
        EventType::new(summary.route.clone(), summary.kind.clone()),
        summary.key.clone(),
        summary.chat.clone(),
        summary.state,
        summary.settled_at.is_some(),
        summary.due_at.is_some(),
        (summary.failures, summary.is_redriven),
        summary
            .last_failure
            .as_ref()
            .map(|past| past.failure.clone()),
    )
}

struct Both {
    random: Random,
    /// For what changes nothing.
    views: Random,
    memory: Queue,
    postgres: Queue,
    /// Leases that last, and those that have ended one way or another.
    held: Vec<Held>,
    ended: Vec<Held>,
    last: i64,
}

impl Both {
    fn took(&mut self, held: Held, take: &Take) {
        match take.lease < HOUR {
            true => self.ended.push(held),
            false => self.held.push(held),
        }
    }

    async fn step(&mut self, count: u64) {
        let Self {
            memory, postgres, ..
        } = self;
        let (memory, postgres) = (memory.clone(), postgres.clone());
        let random = &mut self.random;
        let some_id = EventId(random.below(self.last as u64 + 2) as i64);
        let op = random.below(40);
        if std::env::var("SEED").is_ok() {
            println!("{count} op {op} {some_id}");
        }
        match op {
            0..=13 => {
                let (event, take) = (random.event(count), random.next());
                let m = memory
                    .accept_one(event.clone(), take.as_ref())
                    .await
                    .unwrap();
                let p = postgres.accept_one(event, take.as_ref()).await.unwrap();
                match (m, p) {
                    (Accepted::New { id, taken: m }, Accepted::New { id: id_p, taken: p }) => {
                        assert_eq!(id, id_p);
                        self.last = id.0;
                        assert_eq!(m.is_some(), p.is_some(), "taken at once");
                        if let (Some(m), Some(p)) = (m, p) {
                            let held = same_taken(&m, &p);
                            self.took(held, &take.unwrap());
                        }
                    }
                    (m, p) => assert_eq!(format!("{m:?}"), format!("{p:?}")),
                }
            }
            14..=19 => {
                let shares = random.shares();
                let of: Vec<_> = shares.iter().map(|(_, share)| share.clone()).collect();
                let (limit, suspects) = (random.below(4) as usize, random.below(3) as usize);
                let m = memory.claim(&of, limit, suspects).await.unwrap();
                let p = postgres.claim(&of, limit, suspects).await.unwrap();
                let ids = |events: &[TakenEvent]| -> Vec<_> {
                    events.iter().map(|taken| taken.lease.id).collect()
                };
                let (m_ids, p_ids) = (ids(&m.events), ids(&p.events));
                if m_ids != p_ids {
                    for id in m_ids.iter().chain(&p_ids) {
                        println!("{:#?}", memory.get(*id).await.unwrap());
                        println!("{:#?}", postgres.get(*id).await.unwrap());
                    }
                    println!("{m:?} {p:?}");
                }
                assert_eq!(m_ids, p_ids, "{of:?} {limit} {suspects}");
                assert_eq!(
                    m.next_due.is_some_and(|due| due.is_zero()),
                    p.next_due.is_some_and(|due| due.is_zero()),
                    "{:?} {:?}",
                    m.next_due,
                    p.next_due
                );
                for (m, p) in m.events.iter().zip(&p.events) {
                    let held = same_taken(m, p);
                    let mut shares = shares.iter();
                    let share = shares.find(|(route, _)| route == m.delivery.route());
                    self.took(held, &share.unwrap().1.take);
                }
            }
            20..=29 if !self.held.is_empty() => {
                let at = random.below(self.held.len() as u64) as usize;
                let (settlement, next) = (random.settlement(), random.next());
                let held = self.held.swap_remove(at);
                self.ended.push(held);
                let m = memory.settle(&held.0, &settlement, next.as_ref());
                let p = postgres.settle(&held.1, &settlement, next.as_ref());
                match (m.await.unwrap(), p.await.unwrap()) {
                    (Settled::Lost, Settled::Lost) => {}
                    (Settled::Ended(m), Settled::Ended(p)) => {
                        assert_eq!(m.is_some(), p.is_some(), "the next one: {m:?} {p:?}");
                        if let (Some(m), Some(p)) = (m, p) {
                            let held = same_taken(&m, &p);
                            self.took(held, &next.unwrap());
                        }
                    }
                    (m, p) => panic!("{m:?} {p:?}"),
                }
            }
            30 if !self.held.is_empty() => {
                let leases: Vec<_> = self.held.clone();
                let m: Vec<_> = leases.iter().map(|held| held.0).collect();
                let p: Vec<_> = leases.iter().map(|held| held.1).collect();
                let m = memory.extend(&m, HOUR).await.unwrap();
                assert_eq!(m, postgres.extend(&p, HOUR).await.unwrap());
                let mut lasts = m.into_iter();
                self.held.retain(|_| lasts.next().unwrap() == Some(true));
            }
            31 => {
                let Some(held) = self.ended.pop() else {
                    return;
                };
                let end = Settlement::Handled;
                let m = memory.settle(&held.0, &end, None).await.unwrap();
                let p = postgres.settle(&held.1, &end, None).await.unwrap();
                assert_eq!(format!("{m:?}"), format!("{p:?}"), "{held:?}");
            }
            32..=34 => {
                // An event in another state is not changed.
                let seen = memory.get(some_id).await.unwrap();
                let seen = seen.map(|record| record.summary.state);
                let other = self.views.pick(&EventState::ALL);
                let states = [
                    (Some(other) != seen).then_some(Some(other)),
                    Some(self.views.pick(&[None, seen])),
                ];
                for from in states.into_iter().flatten() {
                    let (by, kind) = match op {
                        34 => (By::default(), ActionKind::Discard),
                        _ => (By::default(), ActionKind::Redrive),
                    };
                    let m = memory.change(kind, some_id, from, &by).await.unwrap();
                    let p = postgres.change(kind, some_id, from, &by).await.unwrap();
                    assert_eq!(m, p, "{some_id} {from:?}");
                }
            }
            35 if random.one_in(4) => {
                let chat = random.pick(&["a", "b", "c", "d"]);
                let m = memory.forget_all(chat, &By::default()).await;
                let p = postgres.forget_all(chat, &By::default()).await;
                assert_eq!(m.unwrap(), p.unwrap());
            }
            36 => {
                let of = match random.below(8) {
                    0 | 1 => Scope::Everything,
                    2 => Scope::Route(random.route()),
                    _ => EventType::new(random.route(), random.pick(&KINDS)).into(),
                };
                let note = random.one_in(3).then_some("");
                memory.pause(&of, note, &By::default()).await.unwrap();
                postgres.pause(&of, note, &By::default()).await.unwrap();
            }
            37 if random.one_in(4) => {
                let keep = random.pick(&[Duration::ZERO, HOUR]);
                let m = memory.purge(keep).await.unwrap();
                assert_eq!(m, postgres.purge(keep).await.unwrap());
            }
            _ => self.compare().await,
        }
    }

    async fn compare(&mut self) {
        let Self {
            random,
            views,
            memory,
            postgres,
            ..
        } = self;
        let mut states = Vec::new();
        for _ in 0..random.below(3) {
            states.push(random.pick(&EventState::ALL));
        }
        let kinds = random.one_in(2).then(|| random.pick(&KINDS));
        let routes = views.one_in(4).then(|| views.route());
        let mut some = Filter::default().states(states).routes(routes).kinds(kinds);
        some.chat = random.one_in(3).then(|| "a".to_owned());
        some.key = views.one_in(6).then(|| {
            let key = format!("key {}", views.below(10));
            IdempotencyKey::new(HeaderValue::from_str(&key).unwrap()).unwrap()
        });
        some.error = views
            .one_in(3)
            .then(|| views.pick(&["FAILED", "d", "\0 \u{1f980}", ""]).to_owned());
        for (at, filter) in [Filter::default(), some].iter().enumerate() {
            let after = (at > 0 && random.one_in(2))
                .then(|| EventId(random.below(self.last as u64 + 1) as i64));
            let mut page = page([10_000, 5][at], random.one_in(2));
            page.after = after;
            page.within = views.one_in(2).then_some(HOUR);
            let m = memory.list(filter, page).await.unwrap().events;
            let p = postgres.list(filter, page).await.unwrap().events;
            let m: Vec<_> = m.iter().map(shown).collect();
            let p: Vec<_> = p.iter().map(shown).collect();
            let differ = m.iter().zip(&p).find(|(m, p)| m != p);
            assert!(
                m.len() == p.len() && differ.is_none(),
                "{differ:?} {filter:?}"
            );
        }
        let some_id = EventId(random.below(self.last as u64 + 2) as i64);
        let m = memory.get(some_id).await.unwrap();
        let p = postgres.get(some_id).await.unwrap();
        assert_eq!(m.is_some(), p.is_some());
        if let (Some(m), Some(p)) = (m, p) {
            assert_eq!(shown(&m.summary), shown(&p.summary));
            assert_eq!(m.body, p.body);
            assert_eq!(m.headers, p.headers);
            let failures = |failures: &[tower_webhook::inbox::PastFailure]| -> Vec<_> {
                failures.iter().map(|past| past.failure.clone()).collect()
            };
            assert_eq!(failures(&m.failures), failures(&p.failures));
        }
        let chat = views.one_in(3).then(|| views.pick(&["a", "b", "c"]));
        let after = views
            .one_in(3)
            .then(|| EventId(views.below(self.last as u64 + 1) as i64));
        let limit = views.pick(&[1, 10]);
        let m = memory.blocked_lanes(chat, after, limit).await.unwrap();
        let p = postgres.blocked_lanes(chat, after, limit).await.unwrap();
        let blocked = |lanes: Vec<BlockedLane>| -> Vec<String> {
            let lanes = lanes.iter().map(|lane| {
                let has_failed = lane.since > lane.event.accepted_at;
                format!("{:?}", (shown(&lane.event), has_failed, lane.waiting))
            });
            lanes.collect()
        };
        assert_eq!(blocked(m), blocked(p), "{chat:?} {after:?}");
        let (m, p) = (
            memory.stats().await.unwrap(),
            postgres.stats().await.unwrap(),
        );
        let pauses = |stats: &Stats| -> Vec<_> {
            let pauses = stats.pauses.iter();
            pauses
                .map(|pause| (pause.of.clone(), pause.note.clone()))
                .collect()
        };
        assert_eq!(pauses(&m), pauses(&p));
        // A kind whose events were all deleted stays in the tables.
        let shown = |stats: &Stats| -> Vec<_> {
            let counts = stats.kinds.iter().map(|kind| {
                let counts = [
                    kind.waiting,
                    kind.in_progress,
                    kind.retrying,
                    kind.dead,
                    kind.blocking,
                ];
                (
                    kind.event_type(),
                    counts,
                    kind.is_paused,
                    kind.oldest.is_some(),
                )
            });
            counts
                .filter(|(of, counts, ..)| {
                    let of = Scope::from(of.clone());
                    *counts != [0; 5] || stats.pauses.iter().any(|pause| pause.of == of)
                })
                .collect()
        };
        assert_eq!(shown(&m), shown(&p));
        assert_eq!((m.unsettled(), m.dead()), (p.unsettled(), p.dead()));
    }
}

#[tokio::test]
async fn any_order_of_operations_has_the_results_of_the_queue_in_memory() {
    let seeds = match std::env::var("SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..4).collect(),
    };
    for seed in seeds {
        println!("SEED={seed}");
        let mut both = Both {
            random: Random(seed),
            views: Random(!seed),
            memory: MemoryQueue::new().into(),
            postgres: Database::create().await.queue().await.into(),
            held: Vec::new(),
            ended: Vec::new(),
            last: 0,
        };
        for count in 0..400 {
            both.step(count).await;
        }
        both.compare().await;
    }
}
