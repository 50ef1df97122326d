//! Several routes in one schema.

use std::time::Duration;

use crate::delivery::RawDelivery;
use crate::event::EventKind;
use crate::inbox::actions::{ActionKind, By, Which};
use crate::inbox::event::{
    EventId, EventState, Failure, KindShare, Kinds, Lane, NewEvent, Settlement, Share, Take,
    TakenEvent,
};
use crate::inbox::queue::{Accepted, Queue, Settled};
use crate::inbox::records::AcceptOne;
use crate::inbox::records::{Filter, Page};
use crate::postgres::PostgresQueue;
use crate::postgres::tests::{Database, execute};
use crate::route::{EventType, RouteName, Scope};

const MINUTE: Duration = Duration::from_secs(60);

struct Desk {
    queue: Queue,
    pool: sqlx::PgPool,
}

impl Desk {
    async fn open() -> Self {
        let pool = Database::create().await.pool(6).await;
        let queue = PostgresQueue::open(pool.clone()).await.unwrap().into();
        Self { queue, pool }
    }

    async fn accept(&self, event: NewEvent, take: Option<&Take>) -> (EventId, Option<TakenEvent>) {
        let accepted = self.queue.accept.accept_one(event, take).await.unwrap();
        let Accepted::New { id, taken } = accepted else {
            panic!("{accepted:?}");
        };
        (id, taken.map(|taken| *taken))
    }

    async fn add(&self, event: NewEvent) -> EventId {
        self.accept(event, None).await.0
    }

    async fn claim(&self, of: &[Share], suspects: usize) -> (Vec<i64>, Option<Duration>) {
        let claims = self.queue.claim.claim(of, 10, suspects).await.unwrap();
        let ids = claims.events.iter().map(|taken| taken.lease.id.0);
        (ids.collect(), claims.next_due)
    }

    async fn pause(&self, of: &Scope, note: Option<&str>) {
        let by = By::default();
        self.queue.change.pause(of, note, &by).await.unwrap();
    }

    /// As if two minutes had passed for what stands at the head of its lane.
    async fn wait(&self) {
        let wait = "UPDATE tower_webhook.head SET due = due - 120000000";
        execute(&self.pool, wait).await;
    }
}

fn route(name: &str) -> RouteName {
    name.parse().unwrap()
}

fn event(name: &str, chat: &str) -> NewEvent {
    let route = route(name);
    NewEvent {
        key: None,
        guard: None,
        rejects_changed_body: false,
        lane: Some(Lane::at(&route, chat)),
        chat: Some(chat.to_owned()),
        delivery: RawDelivery::new(EventKind::CHAT_RATED, "{}").with_route(route),
        retain: Duration::ZERO,
        dead: None,
    }
}

fn take(name: &str) -> Take {
    Take {
        lease: MINUTE,
        kinds: Kinds::all().at(route(name)),
    }
}

fn share(name: &str, busy: usize, most: usize) -> Share {
    let kind = EventKind::CHAT_RATED;
    Share {
        busy,
        most,
        kinds: vec![KindShare {
            kind,
            busy,
            most: usize::MAX,
        }],
        ..take(name).into()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_route_with_the_fewest_attempts_is_next() {
    for (busy, most, expected) in [
        // By turns, and the longest due first where both have as many.
        ([0, 0], [9, 9], &[1, 4, 2, 5, 3, 6][..]),
        ([2, 0], [9, 9], &[4, 5, 1, 6, 2, 3]),
        ([0, 1], [9, 9], &[1, 2, 4, 3, 5, 6]),
        ([0, 0], [1, 9], &[1, 4, 5, 6]),
        ([1, 0], [1, 2], &[4, 5]),
        ([3, 0], [1, 2], &[4, 5]),
    ] {
        let desk = Desk::open().await;
        for chat in 1..=6 {
            let name = if chat <= 3 { "github" } else { "stripe" };
            desk.add(event(name, &chat.to_string())).await;
        }
        let of = [
            share("stripe", busy[1], most[1]),
            share("github", busy[0], most[0]),
        ];
        // Also where events are left, of a route that may have no more.
        let claimed = desk.claim(&of, 10).await;
        assert_eq!(claimed, (expected.to_vec(), None), "{busy:?}, {most:?}");
        let left: Vec<_> = (1..=6).filter(|id| !expected.contains(id)).collect();
        let of = [share("stripe", 0, 9), share("github", 0, 9)];
        let (mut claimed, _) = desk.claim(&of, 10).await;
        claimed.sort_unstable();
        assert_eq!(claimed, left, "{busy:?}, {most:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn suspects_are_first_while_their_route_has_room() {
    let desk = Desk::open().await;
    for (name, chat) in [("github", "1"), ("github", "2"), ("stripe", "3")] {
        desk.accept(event(name, chat), Some(&take(name))).await;
    }
    // The end of a lease counts while its route has room.
    assert_eq!(desk.claim(&[share("github", 1, 1)], 9).await.1, None);
    assert!(desk.claim(&[share("github", 0, 1)], 9).await.1.is_some());
    desk.wait().await;
    desk.add(event("github", "4")).await;
    desk.add(event("stripe", "5")).await;

    let of = [share("github", 1, 2), share("stripe", 5, 9)];
    // The suspect that is left is of a full route.
    assert_eq!(desk.claim(&of, 2).await, (vec![1, 3, 5], None));
    let (rest, _) = desk.claim(&[share("github", 0, 2)], 9).await;
    assert_eq!(rest, [2, 4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_route_has_its_own_lease() {
    let desk = Desk::open().await;
    desk.add(event("github", "1")).await;
    desk.add(event("stripe", "2")).await;
    let long = Take {
        lease: 10 * MINUTE,
        ..take("stripe")
    };
    let of = [share("github", 0, 9), long.into()];
    assert_eq!(desk.claim(&of, 9).await.0, [1, 2]);
    desk.wait().await;
    assert_eq!(desk.claim(&of, 9).await.0, [1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_at_several_routes_end_in_one_statement() {
    let desk = Desk::open().await;
    let routes = ["chat-platform", "github", "stripe"];
    let mut ends = Vec::new();
    for name in routes {
        let take = match name {
            "stripe" => Take {
                kinds: take(name).kinds.except([EventKind::CHAT_RATED]),
                ..take(name)
            },
            _ => take(name),
        };
        let (_, taken) = desk.accept(event(name, "1"), Some(&self::take(name))).await;
        desk.add(event(name, "1")).await;
        ends.push((taken.unwrap().lease, take));
    }
    let settle = &desk.queue.settle;
    let ended = ends.iter().map(async |(lease, take)| {
        let settled = settle.settle(lease, &Settlement::Handled, Some(take));
        let Settled::Ended(next) = settled.await.unwrap() else {
            panic!("the lease is held");
        };
        next.map(|next| (next.lease.id.0, next.delivery.route().to_string()))
    });
    let ended = futures_util::future::join_all(ended).await;
    let next = |id, name: &str| Some((id, name.to_owned()));
    let expected = [next(2, "chat-platform"), next(4, "github"), None];
    assert_eq!(ended, expected);
    // Of the event's own route only.
    let (first, _) = desk.claim(&[share("stripe", 0, 9)], 9).await;
    assert_eq!(first, [6]);
    let foreign = desk.queue.claim.take(EventId(6), &take("github")).await;
    assert!(foreign.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_route_is_paused_with_all_its_types() {
    let desk = Desk::open().await;
    let queue = &desk.queue;
    let github = Scope::Route(route("github"));
    desk.add(event("github", "1")).await;
    desk.pause(&github, Some("an upgrade")).await;
    let of = [share("github", 0, 9), share("stripe", 0, 9)];
    assert_eq!(desk.claim(&of, 9).await, (vec![], None));
    for (name, is_taken) in [("github", false), ("stripe", true)] {
        let (_, taken) = desk.accept(event(name, "2"), Some(&take(name))).await;
        assert_eq!(taken.is_some(), is_taken);
    }
    let mut opened = event("github", "3");
    opened.delivery = RawDelivery::new(EventKind::CHAT_OPENED, "{}").with_route(route("github"));
    let opened = desk.add(opened).await;
    let taken = queue.claim.take(opened, &take("github")).await.unwrap();
    assert!(taken.is_none(), "a type that is new");

    // It is kept while nothing of it is left, and is no type.
    for id in 1..=opened.0 {
        let (kind, by) = (ActionKind::Discard, By::default());
        let discarded = queue.change.change(kind, EventId(id), None, &by);
        discarded.await.unwrap();
    }
    while queue.purge.purge(Duration::ZERO).await.unwrap() {}
    let stats = queue.count.stats().await.unwrap();
    assert!(stats.kinds.is_empty(), "{stats:?}");
    let [pause] = &stats.pauses[..] else {
        panic!("{stats:?}");
    };
    assert_eq!((&pause.of, &*pause.note), (&github, "an upgrade"));
    assert!(!stats.is_paused());
    let later = desk.add(event("github", "5")).await;
    assert!(queue.count.stats().await.unwrap().kinds[0].is_paused);
    assert!(desk.claim(&of, 9).await.0.is_empty());

    desk.pause(&github, None).await;
    assert_eq!(desk.claim(&of, 9).await.0, [later.0]);
    while queue.purge.purge(Duration::ZERO).await.unwrap() {}
    let left = "SELECT count(*) FROM tower_webhook.kinds WHERE name = '' AND route <> ''";
    let left: i64 = sqlx::query_scalar(left)
        .fetch_one(&desk.pool)
        .await
        .unwrap();
    assert_eq!(left, 0);
    let done = queue.list.actions(Which::All, None, 2).await.unwrap();
    let about: Vec<_> = done
        .into_iter()
        .map(|done| (done.kind, done.about))
        .collect();
    assert_eq!(about[0], (ActionKind::Resume, Some("github/".to_owned())));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_of_one_name_at_two_routes_is_two_types() {
    let desk = Desk::open().await;
    let queue = &desk.queue;
    let rated = |name: &str| EventType::new(route(name), EventKind::CHAT_RATED);
    // In the order of the routes' names, which is another one than that of the types.
    let billing = desk.add(event("billing", "1")).await;
    let own = desk.add(event("chat-platform", "2")).await;
    let paused = Scope::from(rated("billing"));
    desk.pause(&paused, Some("")).await;
    desk.pause(&Scope::Everything, Some("")).await;

    let stats = queue.count.stats().await.unwrap();
    let types = stats.kinds.iter();
    let types: Vec<_> = types
        .map(|of| (of.event_type(), of.waiting, of.is_paused))
        .collect();
    let own_type = EventType::from(EventKind::CHAT_RATED);
    assert_eq!(types, [(own_type, 1, false), (rated("billing"), 1, true)]);
    let pauses: Vec<_> = stats.pauses.iter().map(|pause| &pause.of).collect();
    assert_eq!(pauses, [&Scope::Everything, &paused]);
    desk.pause(&Scope::Everything, None).await;
    let of = [share("billing", 0, 9), share("chat-platform", 0, 9)];
    assert_eq!(desk.claim(&of, 9).await.0, [own.0]);

    // A list of kinds that are taken names those of one route.
    desk.pause(&paused, None).await;
    let other = desk.add(event("chat-platform", "3")).await;
    let only = Kinds::only([EventKind::CHAT_CLOSED]).at(route("billing"));
    let limited = |kinds| {
        Share::from(Take {
            lease: MINUTE,
            kinds,
        })
    };
    let of = [limited(only), share("chat-platform", 0, 9)];
    assert_eq!(desk.claim(&of, 9).await.0, [other.0]);
    let except = Kinds::all().except([EventKind::CHAT_RATED]);
    let of = [limited(except), share("billing", 0, 9)];
    assert_eq!(desk.claim(&of, 9).await.0, [billing.0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_found_by_route_and_chats_at_all_routes() {
    let desk = Desk::open().await;
    let list = &desk.queue.list;
    let mut failed = Vec::new();
    for name in ["chat-platform", "crm"] {
        let (id, taken) = desk.accept(event(name, "chat"), Some(&take(name))).await;
        let failure = Failure::new("no-luck", "no luck");
        let retry = Settlement::Retry {
            after: MINUTE,
            failure: Some(failure),
            counts: true,
            is_slowed: false,
            blocks_lane: true,
        };
        let lease = taken.unwrap().lease;
        desk.queue
            .settle
            .settle(&lease, &retry, None)
            .await
            .unwrap();
        desk.add(event(name, "chat")).await;
        failed.push(id);
    }
    let [own, crm] = failed[..] else { panic!() };
    let filter = Filter::default;
    let of_crm = || filter().routes([route("crm")]);
    let rated = [EventKind::CHAT_RATED];
    for (filter, expected) in [
        (filter().kinds(rated.clone()), &[1, 2, 3, 4][..]),
        (of_crm(), &[3, 4]),
        (
            filter().routes([route("crm"), RouteName::default()]),
            &[1, 2, 3, 4],
        ),
        (of_crm().kinds(rated), &[3, 4]),
        (of_crm().kinds([EventKind::CHAT_OPENED]), &[]),
        (of_crm().states([EventState::Waiting]), &[4]),
        (filter().routes([route("billing")]), &[]),
        (filter().chat("chat"), &[1, 2, 3, 4]),
        (
            filter().chat("chat").states([EventState::Retrying]),
            &[1, 3],
        ),
        (of_crm().chat("chat").states([EventState::Waiting]), &[4]),
        (filter().chat("other").states([EventState::Waiting]), &[]),
    ] {
        let listed = list.list(&filter, Page::oldest(9)).await.unwrap().events;
        let found: Vec<_> = listed.iter().map(|event| event.id.0).collect();
        assert_eq!(found, expected, "{filter:?}");
    }
    let record = list.get(crm).await.unwrap().unwrap();
    assert_eq!(record.summary.route, route("crm"));

    for chat in [None, Some("chat")] {
        let blocked = list.blocked_lanes(chat, None, 9).await.unwrap();
        let blocked = blocked.iter();
        let blocked: Vec<_> = blocked
            .map(|lane| (lane.event.id, lane.event.route.clone(), lane.waiting))
            .collect();
        assert_eq!(
            blocked,
            [(own, RouteName::default(), 1), (crm, route("crm"), 1)]
        );
    }
    let none = list.blocked_lanes(Some("other"), None, 9).await.unwrap();
    assert!(none.is_empty());
    let forgotten = desk.queue.forget.forget("chat", None, &By::default()).await;
    assert_eq!(forgotten.unwrap().bodies, 4);
}
