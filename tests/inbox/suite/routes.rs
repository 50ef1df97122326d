//! Routes: a worker takes the events of its own, one claim takes those of several, and each may be paused.

use std::time::Duration;

use tokio::time::sleep;

use super::make::{chat, key, route};
use super::steps::{Trial, ok};
use super::{DRIFT, HELD, Harness, SHORT};
use tower_webhook::event::EventKind;
use tower_webhook::inbox::internal::{
    Claims, KindShare, Kinds, Lane, NewEvent, Settlement, Share, Take,
};
use tower_webhook::inbox::{By, Change, EventId, Filter, Inbox, Page, Scope};

use support::queue::{Calls, retry};

/// Two routes have events of the same kind, chat and key. None is taken for the other one: not by an acceptance, by a
/// claim, nor as the next event of a lane. They do not wait for each other. A person sees both, and the route of each.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn routes_are_apart<H: Harness>(harness: &H) {
    let one = Trial::open(harness).await;
    let two = one.handles(harness, 1).await[0].at(&route());
    let (chat, foreign) = (chat(), "it is of another route");
    let event = |of: &Trial| NewEvent {
        chat: Some(chat.clone()),
        ..of.in_lane(Lane::at(&of.route, &chat))
    };
    let (of_one, of_two) = (|| event(&one), || event(&two));
    let key = key();
    let with_key = |of: &Trial| {
        let NewEvent { delivery, key, .. } = of.with_key(&key, "{}");
        NewEvent {
            delivery,
            key,
            ..event(of)
        }
    };

    let second = one.not_taken(with_key(&two), foreign).await;
    one.nothing(foreign).await;
    let first = one.taken(with_key(&one), SHORT).await;
    for of in [&one, &two] {
        of.duplicate(with_key(of), true, "the key of a route").await;
    }
    let after_first = two.not_taken(of_one(), foreign).await;
    let second = two.claims(second, HELD, "an event of the route").await;
    two.nothing(foreign).await;
    sleep(SHORT + DRIFT).await;
    two.nothing(foreign).await;
    let first = one.claims(first.lease.id, HELD, "a suspect").await;
    let after_second = one.accept(of_two()).await;
    two.hands_nothing_over(&first, &Settlement::Handled, foreign)
        .await;
    two.nothing(foreign).await;
    one.hands_nothing_over(&second, &Settlement::Handled, foreign)
        .await;
    let failed = one
        .claims(after_first, HELD, "the next event of the lane")
        .await;
    one.settle(&failed, &retry(HELD)).await;
    let failed = two
        .claims(after_second, HELD, "the next event of the lane")
        .await;
    let last = two.accept(of_two()).await;
    two.settle(&failed, &retry(HELD)).await;
    let redriven = [first, second].map(|taken| taken.lease.id);
    for id in redriven {
        one.redrive(id, Change::Made, "a handled event").await;
    }
    two.claims(redriven[1], HELD, "a redriven event").await;
    two.nothing(foreign).await;
    one.claims(redriven[0], HELD, "a redriven event").await;

    let blocked = one.queue.blocked_lanes(Some(&chat), None, 10).await;
    let blocked = ok(blocked, "blocked lanes").into_iter();
    let blocked: Vec<_> = blocked.map(|lane| (lane.event.id, lane.waiting)).collect();
    assert_eq!(blocked, [(after_first, 0), (after_second, 1)]);
    let ids = [redriven[1], redriven[0], after_first, after_second, last];
    let of_two = [ids[0], ids[3], ids[4]];
    let inbox = Inbox::new(harness.open().await);
    for (id, ahead, unsettled) in [
        (last, Some(after_second), &of_two[..]),
        (after_second, None, &of_two),
        (after_first, None, &ids[1..3]),
    ] {
        let record = ok(inbox.get(id).await, "get").expect("an event");
        let place = ok(inbox.place_of(&record.summary).await, "the place");
        let first = place.ahead(&record.summary).map(|first| first.id);
        assert_eq!(first, ahead, "the event for which event {id} waits");
        let found: Vec<_> = place.unsettled.iter().map(|event| event.id).collect();
        assert_eq!(found, unsettled, "the unsettled events of its lane");
    }
    let at_two = || [two.route.clone()];
    for (filter, expected) in [
        (one.filter(), &ids[..]),
        (in_chat(&chat, &[]), &ids),
        (in_chat(&chat, &["retrying"]), &ids[2..4]),
        (in_chat(&chat, &["waiting"]), &ids[4..]),
        (Filter::default().routes(at_two()), &of_two),
        (in_chat(&chat, &["retrying"]).routes(at_two()), &ids[3..4]),
        (one.filter().routes([one.route.clone()]), &ids[1..3]),
        (one.filter().routes([route()]), &[]),
    ] {
        let listed = ok(one.queue.list(&filter, Page::oldest(10)).await, "list");
        for event in &listed.events {
            let expected = match of_two.contains(&event.id) {
                true => &two.route,
                false => &one.route,
            };
            assert_eq!(event.route, *expected, "the route of event {}", event.id);
        }
        let listed: Vec<_> = listed.events.iter().map(|event| event.id).collect();
        assert_eq!(listed, expected, "{filter:?}");
    }
    let stats = ok(one.queue.stats().await, "stats").kinds;
    for (of, expected) in [(&one, (0, 1, 1, 1)), (&two, (1, 1, 1, 1))] {
        let mut own = stats.iter().filter(|it| it.event_type() == of.event_type());
        let counts = own
            .next()
            .map(|it| (it.waiting, it.in_progress, it.retrying, it.blocking));
        assert_eq!(counts, Some(expected), "the counts of {}", of.event_type());
    }
    assert_eq!(
        ok(one.queue.forget_all(&chat, &By::default()).await, "forget"),
        5
    );
}

/// Chats of other routes never stand in a lane: not those that are named as their routes, nor one that has the name of the
/// other one's route, whose route has that of the other one's chat.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn chats_of_other_routes_block_nothing<H: Harness>(harness: &H) {
    let one = Trial::open(harness).await.at(&route());
    let two = one.at(&route());
    let [name_of_one, name_of_two] = [&one, &two].map(|trial| trial.route.as_str());
    for (of, chat) in [
        (&one, name_of_one),
        (&two, name_of_two),
        (&one, name_of_two),
        (&two, name_of_one),
    ] {
        let event = NewEvent {
            chat: Some(chat.to_owned()),
            ..of.in_lane(Lane::at(&of.route, chat))
        };
        of.taken(event, HELD).await;
    }
}

fn in_chat(chat: &str, states: &[&str]) -> Filter {
    Filter::default()
        .chat(chat)
        .states(states.iter().map(|state| state.parse().unwrap()))
}

/// A pause of a type is one of a route, and a pause of a route is one of all its types, also of those that appear later.
/// Each of them ends by itself.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn pauses_are_for_their_routes<H: Harness>(harness: &H) {
    let one = Trial::open(harness).await;
    let two = one.at(&route());
    let other = two.fresh();
    let (of_type, of_route) = (
        Scope::from(two.event_type()),
        Scope::Route(two.route.clone()),
    );
    let runs = async |trial: &Trial| {
        let taken = trial.taken(trial.event(), HELD).await;
        trial.settle(&taken, &Settlement::Released).await;
        let id = taken.lease.id;
        let taken = trial.claims(id, HELD, "an event that is not paused").await;
        trial.settle(&taken, &Settlement::Handled).await;
    };
    let waits = async |trial: &Trial| {
        let id = trial.not_taken(trial.event(), "it is paused").await;
        trial.nothing("it is paused").await;
        trial.discard(id, Change::Made, "an event").await;
    };
    let shown = async |expected: &[&Scope]| {
        let stats = ok(one.queue.stats().await, "stats");
        let pauses = stats.pauses.iter().map(|pause| &pause.of);
        let own = pauses.filter(|of| [&of_type, &of_route].contains(of));
        assert_eq!(own.collect::<Vec<_>>(), expected, "what is paused");
        for (trial, is_paused) in [
            (&one, false),
            (&two, !expected.is_empty()),
            (&other, expected.contains(&&of_route)),
        ] {
            let of = trial.event_type();
            let kinds = stats.kinds.iter();
            for kind in kinds.filter(|kind| kind.event_type() == of) {
                assert_eq!(kind.is_paused, is_paused, "whether {of} is paused");
            }
        }
    };

    one.pause(of_type.clone(), true).await;
    waits(&two).await;
    runs(&one).await;
    runs(&other).await;
    shown(&[&of_type]).await;

    one.pause(of_route.clone(), true).await;
    waits(&two).await;
    waits(&other).await;
    waits(&two.fresh()).await;
    runs(&one).await;
    shown(&[&of_route, &of_type]).await;

    one.pause(of_type.clone(), false).await;
    waits(&two).await;
    waits(&other).await;
    shown(&[&of_route]).await;

    one.pause(of_type.clone(), true).await;
    one.pause(of_route.clone(), false).await;
    waits(&two).await;
    runs(&other).await;
    shown(&[&of_type]).await;

    // An attempt that began before the pause hands nothing over.
    let lane = Lane::at(&two.route, &chat());
    one.pause(of_type.clone(), false).await;
    let taken = two.taken(two.in_lane(lane), HELD).await;
    let next = two.accept(two.in_lane(lane)).await;
    one.pause(of_route.clone(), true).await;
    two.hands_nothing_over(&taken, &Settlement::Handled, "its route is paused")
        .await;
    one.pause(of_route.clone(), false).await;
    two.claims(next, HELD, "an event of a route that was paused")
        .await;
    runs(&two).await;
    shown(&[]).await;
}

/// What a worker takes of the events of a trial's route.
fn share(trial: &Trial, busy: usize, most: usize) -> Share {
    Share {
        busy,
        most,
        ..trial.take(HELD).into()
    }
}

async fn claim(of: [Share; 2], by: &Trial, limit: usize, suspects: usize) -> Claims {
    let claims = ok(by.queue.claim(&of, limit, suspects).await, "claim");
    assert!(claims.events.len() <= limit, "a claim took too many events");
    claims
}

/// The numbers of the events that were taken of a trial's route, in order.
fn taken(claims: &Claims, of: &Trial) -> Vec<EventId> {
    let own = claims.events.iter();
    let own = own.filter(|taken| *taken.delivery.route() == of.route);
    let mut ids: Vec<_> = own.map(|taken| taken.lease.id).collect();
    ids.sort_unstable();
    ids
}

/// One claim takes events of several routes: each is of the one with the fewest attempts in progress, and then the longest
/// due. Of a route, no more are taken than it may have, not even suspects; what is left is taken later.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn claims_are_shared<H: Harness>(harness: &H) {
    const ALL: usize = usize::MAX;

    let one = Trial::open(harness).await;
    let two = one.handles(harness, 1).await[0].at(&route());
    let mut of_one = Vec::new();
    for _ in 0..12 {
        of_one.push(one.accept(one.event()).await);
    }
    let mut of_two = Vec::new();
    for _ in 0..4 {
        of_two.push(two.accept(two.event()).await);
    }

    // The one whose events have been due for longer has the odd place.
    let claims = claim([share(&two, 0, ALL), share(&one, 0, ALL)], &one, 3, 0).await;
    assert_eq!(taken(&claims, &one), of_one[..2]);
    assert_eq!(taken(&claims, &two), of_two[..1]);
    // Attempts in progress count.
    let claims = claim([share(&one, 5, ALL), share(&two, 3, ALL)], &two, 2, 0).await;
    assert_eq!(taken(&claims, &one), []);
    assert_eq!(taken(&claims, &two), of_two[1..3]);
    let claims = claim([share(&one, 1, ALL), share(&two, 3, ALL)], &two, 4, 0).await;
    assert_eq!(taken(&claims, &one), of_one[2..5]);
    assert_eq!(taken(&claims, &two), of_two[3..]);
    // What has no place makes no other claim due.
    let claims = claim([share(&one, 2, 4), share(&two, 0, 4)], &one, 100, 0).await;
    assert_eq!(taken(&claims, &one), of_one[5..7]);
    assert_ne!(claims.next_due, Some(Duration::ZERO), "when to claim next");
    let claims = claim([share(&one, 4, 4), share(&two, 0, 4)], &one, 100, 0).await;
    assert!(claims.events.is_empty(), "a route has too many attempts");
    assert_ne!(claims.next_due, Some(Duration::ZERO), "when to claim next");
    // They are not forgotten.
    let claims = claim([share(&one, 3, ALL), share(&two, 0, ALL)], &two, 2, 0).await;
    assert_eq!(taken(&claims, &one), of_one[7..9]);
    assert_eq!(claims.next_due, Some(Duration::ZERO), "when to claim next");
    let claims = claim([share(&two, 0, 1), share(&one, 0, ALL)], &one, 100, 0).await;
    assert_eq!(taken(&claims, &one), of_one[9..]);

    // Suspects.
    for _ in 0..3 {
        one.taken(one.event(), SHORT).await;
    }
    let of_two = two.accept(two.event()).await;
    sleep(2 * SHORT).await;
    let claims = claim([share(&one, 2, 2), share(&two, 0, 2)], &one, 100, 100).await;
    assert_eq!(taken(&claims, &one), []);
    assert_eq!(taken(&claims, &two), [of_two]);
    let claims = claim([share(&one, 1, 2), share(&two, 0, 2)], &one, 100, 100).await;
    assert_eq!(claims.events.len(), 1, "a suspect has a place");
    let of_two = two.accept(two.event()).await;
    // The first one comes first, and counts as an attempt of its route.
    let claims = claim([share(&one, 0, ALL), share(&two, 0, ALL)], &one, 2, 1).await;
    assert_eq!(taken(&claims, &one).len(), 1, "a suspect comes first");
    assert_eq!(taken(&claims, &two), [of_two]);
    let claims = claim([share(&one, 0, ALL), share(&two, 0, ALL)], &one, 100, 100).await;
    assert_eq!(claims.events.len(), 1, "the last suspect");
}

/// A claim takes events of several kinds of a route: each is of the kind with the fewest attempts in progress, and then the
/// longest due. Of a kind, no more are taken than it may have, not even suspects; what is left is taken later.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn claims_are_shared_by_kinds<H: Harness>(harness: &H) {
    const ALL: usize = usize::MAX;

    let one = Trial::open(harness).await;
    let two = &Trial::open(harness).await.at(&one.route);
    let kinds = || Kinds::only([one.kind.clone(), two.kind.clone()]).at(one.route.clone());
    let share = |of_one: Option<[usize; 2]>, of_two: Option<[usize; 2]>, each: usize| {
        let kinds_apart = [(&one.kind, of_one), (&two.kind, of_two)].into_iter();
        let apart = |(kind, of): (&EventKind, Option<[usize; 2]>)| {
            let kind = kind.clone();
            of.map(|[busy, most]| KindShare { kind, busy, most })
        };
        Share {
            kinds: kinds_apart.filter_map(apart).collect(),
            each,
            ..Take {
                lease: HELD,
                kinds: kinds(),
            }
            .into()
        }
    };
    let claim = async |of: Share, limit: usize, suspects: usize| {
        let claims = ok(one.queue.claim(&[of], limit, suspects).await, "claim");
        assert!(claims.events.len() <= limit, "a claim took too many events");
        claims
    };
    let taken = |claims: &Claims, of: &Trial| {
        let own = claims.events.iter();
        let own = own.filter(|taken| *taken.delivery.kind() == of.kind);
        own.map(|taken| taken.lease.id).collect::<Vec<_>>()
    };
    let mut of_one = Vec::new();
    for _ in 0..12 {
        of_one.push(one.accept(one.event()).await);
    }
    let mut of_two = Vec::new();
    for _ in 0..4 {
        of_two.push(one.accept(two.event()).await);
    }

    let claims = claim(share(None, None, ALL), 3, 0).await;
    assert_eq!(taken(&claims, &one), of_one[..2]);
    assert_eq!(taken(&claims, two), of_two[..1]);
    // Attempts in progress count.
    let claims = claim(share(Some([5, ALL]), Some([3, ALL]), ALL), 2, 0).await;
    assert_eq!(taken(&claims, &one), []);
    assert_eq!(taken(&claims, two), of_two[1..3]);
    // What has no place makes no other claim due.
    let claims = claim(share(Some([2, 4]), Some([1, 1]), ALL), 100, 0).await;
    assert_eq!(taken(&claims, &one), of_one[2..4]);
    assert_eq!(taken(&claims, two), []);
    assert_ne!(claims.next_due, Some(Duration::ZERO), "when to claim next");
    let claims = claim(share(Some([4, 0]), None, 0), 100, 0).await;
    assert!(claims.events.is_empty(), "the kinds have too many attempts");
    assert_ne!(claims.next_due, Some(Duration::ZERO), "when to claim next");
    // Any other kind has a limit, too.
    let claims = claim(share(Some([0, 0]), None, 1), 100, 0).await;
    assert_eq!(taken(&claims, two), of_two[3..]);
    let claims = claim(share(None, None, 3), 100, 0).await;
    assert_eq!(taken(&claims, &one), of_one[4..7]);
    // They are not forgotten.
    let claims = claim(share(None, None, ALL), 2, 0).await;
    assert_eq!(taken(&claims, &one), of_one[7..9]);
    assert_eq!(claims.next_due, Some(Duration::ZERO), "when to claim next");
    let claims = claim(share(None, None, ALL), 100, 0).await;
    assert_eq!(taken(&claims, &one), of_one[9..]);

    // Suspects.
    for _ in 0..3 {
        one.taken(one.event(), SHORT).await;
    }
    let more = one.accept(one.event()).await;
    sleep(2 * SHORT).await;
    let claims = claim(share(Some([1, 1]), None, ALL), 100, 100).await;
    assert!(
        claims.events.is_empty(),
        "suspects of a kind without a place"
    );
    let claims = claim(share(Some([1, 3]), None, ALL), 100, 100).await;
    assert_eq!(claims.events.len(), 2, "suspects have the places");
    assert!(!taken(&claims, &one).contains(&more), "suspects come first");
    let claims = claim(share(None, None, ALL), 100, 100).await;
    assert_eq!(
        claims.events.len(),
        2,
        "the last suspect, and another event"
    );
}

/// One claim takes the events of each route under the lease of that route.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn routes_have_their_leases<H: Harness>(harness: &H) {
    let one = Trial::open(harness).await;
    let two = one.at(&route());
    let first = one.accept(one.event()).await;
    let second = two.accept(two.event()).await;
    let brief = Share::from(one.take(SHORT));
    let claims = claim([share(&two, 0, 9), brief], &one, 9, 0).await;
    assert_eq!(claims.events.len(), 2, "the events that were taken");
    sleep(SHORT + DRIFT).await;
    let again = one
        .claims(first, HELD, "an event whose lease has expired")
        .await;
    assert_eq!(again.crashes, 1, "how often it crashed");
    two.nothing("its lease is longer").await;
    let held = claims.events.iter().find(|taken| taken.lease.id == second);
    let held = held.map(|taken| taken.lease);
    let held = held.expect("an event of the other route");
    assert_eq!(two.extend(&[held], HELD).await, [true], "its lease");
}
