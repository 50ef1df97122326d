//! Several routes in one file.

use super::*;

fn route(name: &str) -> RouteName {
    name.parse().unwrap()
}

fn at(name: &str, lane: i64) -> NewEvent {
    let (event, route) = (event(lane), route(name));
    NewEvent {
        lane: event.chat.as_deref().map(|chat| Lane::at(&route, chat)),
        delivery: event.delivery.with_route(route),
        ..event
    }
}

fn take_at(name: &str) -> Take {
    Take {
        kinds: Kinds::all().at(route(name)),
        ..take()
    }
}

fn share(name: &str, busy: usize, most: usize) -> Share {
    let kind = event(1).delivery.kind().clone();
    Share {
        busy,
        most,
        kinds: vec![KindShare {
            kind,
            busy,
            most: usize::MAX,
        }],
        ..take_at(name).into()
    }
}

#[tokio::test]
async fn the_route_with_the_fewest_attempts_is_next() {
    let route_of = |id: i64| if id <= 3 { "github" } else { "stripe" };
    for (busy, most, expected) in [
        // By turns, and the longest due first where both have as many.
        ([0, 0], [9, 9], &[1, 4, 2, 5, 3, 6][..]),
        ([2, 0], [9, 9], &[4, 5, 1, 6, 2, 3]),
        ([0, 1], [9, 9], &[1, 2, 4, 3, 5, 6]),
        ([0, 0], [1, 9], &[1, 4, 5, 6]),
        ([1, 0], [1, 2], &[4, 5]),
    ] {
        let desk = Desk::new();
        let queue = desk.open();
        for lane in 1..=6 {
            queue.add(at(route_of(lane), lane)).await;
        }
        let of = [
            share("stripe", busy[1], most[1]),
            share("github", busy[0], most[0]),
        ];
        let claims = queue.claim(&of, 10, 10).await.unwrap();
        assert_eq!(ids(&claims.events), expected, "{busy:?}, {most:?}");
        for taken in &claims.events {
            assert_eq!(taken.delivery.route(), &route(route_of(taken.lease.id.0)));
        }
        // Also where events are left, of a route that may have no more.
        assert_eq!(claims.next_due, None, "{busy:?}, {most:?}");
    }
}

#[tokio::test]
async fn suspects_are_first_while_their_route_has_room() {
    let desk = Desk::new();
    let queue = desk.open();
    for (name, lane) in [("github", 1), ("github", 2), ("stripe", 3)] {
        queue
            .accept_one(at(name, lane), Some(&take_at(name)))
            .await
            .unwrap();
    }
    // The end of a lease counts while its route has room.
    let next = async |of: &[Share]| queue.claim(of, 9, 9).await.unwrap().next_due;
    assert_eq!(next(&[share("github", 1, 1)]).await, None);
    assert!(next(&[share("github", 0, 1)]).await.is_some());
    desk.wait(31 * SECOND);
    queue.add(at("github", 4)).await;
    queue.add(at("stripe", 5)).await;

    let of = [share("github", 1, 2), share("stripe", 5, 9)];
    let claims = queue.claim(&of, 9, 2).await.unwrap();
    assert_eq!(ids(&claims.events), [1, 3, 5]);
    let crashes: Vec<_> = claims.events.iter().map(|taken| taken.crashes).collect();
    assert_eq!(crashes, [1, 1, 0]);
    assert_eq!(
        claims.next_due, None,
        "the suspect that is left is of a full route"
    );

    let claims = queue.claim(&[share("github", 0, 2)], 0, 9).await.unwrap();
    assert_eq!(claims.next_due, Some(Duration::ZERO));
    let rest = queue.claim(&[share("github", 0, 2)], 9, 9).await.unwrap();
    assert_eq!(ids(&rest.events), [2, 4]);
}

#[tokio::test]
async fn each_route_has_its_own_lease() {
    let desk = Desk::new();
    let queue = desk.open();
    for (name, lane) in [("github", 1), ("stripe", 2)] {
        queue.add(at(name, lane)).await;
    }
    let long = Take {
        lease: 90 * SECOND,
        ..take_at("stripe")
    };
    let of = [share("github", 0, 9), long.into()];
    assert_eq!(queue.claim(&of, 9, 9).await.unwrap().events.len(), 2);
    desk.wait(31 * SECOND);
    assert_eq!(ids(&queue.claim(&of, 9, 9).await.unwrap().events), [1]);
    desk.wait(60 * SECOND);
    assert_eq!(ids(&queue.claim(&of, 9, 9).await.unwrap().events), [1, 2]);
}

#[tokio::test]
async fn a_route_is_paused_with_all_its_types() {
    let desk = Desk::new();
    let queue = desk.open();
    let by = By::new("ada");
    let github = Scope::Route(route("github"));
    let pause = async |of: &Scope, note| queue.pause(of, note, &by).await.unwrap();
    queue.add(at("github", 1)).await;
    pause(&github, Some("an upgrade")).await;
    let of = [share("github", 0, 9), share("stripe", 0, 9)];
    assert!(queue.claim(&of, 9, 9).await.unwrap().events.is_empty());
    for (name, is_taken) in [("github", false), ("stripe", true)] {
        let accepted = queue.accept_one(at(name, 2), Some(&take_at(name))).await;
        let Accepted::New { taken, .. } = accepted.unwrap() else {
            panic!("its lane is free");
        };
        assert_eq!(taken.is_some(), is_taken);
    }
    let mut opened = at("github", 3);
    opened.delivery = RawDelivery::new(EventKind::CHAT_OPENED, "{}").with_route(route("github"));
    let opened = EventId(queue.add(opened).await);
    let taken = queue.take(opened, &take_at("github")).await.unwrap();
    assert!(taken.is_none(), "a type that is new");

    // It is kept while nothing of it is left, and is no type.
    desk.wait(9 * DAY);
    for event in 1..=4 {
        queue
            .change(ActionKind::Discard, EventId(event), None, &by)
            .await
            .unwrap();
    }
    desk.wait(9 * DAY);
    queue.add(event(9)).await;
    queue.purge_all(DAY).await;
    let stats = queue.stats().await.unwrap();
    let types: Vec<_> = stats
        .kinds
        .iter()
        .map(crate::inbox::KindStats::event_type)
        .collect();
    assert_eq!(types, [EventKind::CHAT_RATED.into()]);
    let [pause_of] = &stats.pauses[..] else {
        panic!("{stats:?}");
    };
    assert_eq!((&pause_of.of, &*pause_of.note), (&github, "an upgrade"));
    assert!(!stats.is_paused());
    let later = queue.add(at("github", 5)).await;
    assert!(queue.stats().await.unwrap().kinds[1].is_paused);
    assert!(queue.claim(&of, 9, 9).await.unwrap().events.is_empty());

    pause(&github, None).await;
    let taken = queue.claim(&of, 9, 9).await.unwrap().events;
    assert_eq!(ids(&taken), [later]);
    queue.purge_all(DAY).await;
    let left = "SELECT count(*) FROM kinds WHERE name = '' AND route <> ''";
    assert_eq!(queue.sql(left).await, 0);
    let about: Vec<_> = queue.actions(Which::All, None, 9).await.unwrap();
    let about: Vec<_> = about.into_iter().filter_map(|done| done.about).collect();
    assert_eq!(about, ["github/", "github/"]);
}

#[tokio::test]
async fn a_kind_of_one_name_at_two_routes_is_two_types() {
    let desk = Desk::new();
    let queue = desk.open();
    let by = By::default();
    let rated = |name: &str| EventType::new(route(name), EventKind::CHAT_RATED);
    let own = queue.add(event(1)).await;
    let crm = queue.add(at("crm", 2)).await;
    let paused = Scope::from(rated("crm"));
    queue.pause(&paused, Some(""), &by).await.unwrap();
    queue
        .pause(&Scope::Everything, Some(""), &by)
        .await
        .unwrap();

    let stats = queue.stats().await.unwrap();
    let types = stats.kinds.iter();
    let types: Vec<_> = types
        .map(|of| (of.event_type(), of.waiting, of.is_paused))
        .collect();
    let own_type = EventType::from(EventKind::CHAT_RATED);
    assert_eq!(types, [(own_type, 1, false), (rated("crm"), 1, true)]);
    let pauses: Vec<_> = stats.pauses.iter().map(|pause| &pause.of).collect();
    assert_eq!(pauses, [&Scope::Everything, &paused]);
    queue.pause(&Scope::Everything, None, &by).await.unwrap();
    let of = [share("crm", 0, 9), take().into()];
    let claims = queue.claim(&of, 9, 9).await.unwrap();
    assert_eq!(ids(&claims.events), [own]);

    let filter = Filter::default;
    let crm_alone = [route("crm")];
    for (filter, expected) in [
        (filter().kinds([EventKind::CHAT_RATED]), &[own, crm][..]),
        (filter().routes(crm_alone.clone()), &[crm]),
        (
            filter().routes([route("crm"), RouteName::default()]),
            &[own, crm],
        ),
        (
            filter()
                .routes(crm_alone.clone())
                .kinds([EventKind::CHAT_RATED]),
            &[crm],
        ),
        (
            filter()
                .routes(crm_alone.clone())
                .kinds([EventKind::CHAT_OPENED]),
            &[],
        ),
        (
            filter().routes(crm_alone).states([EventState::Waiting]),
            &[crm],
        ),
        (filter().routes([route("billing")]), &[]),
    ] {
        let listed = queue.list(&filter, Page::oldest(9)).await.unwrap().events;
        let found: Vec<_> = listed.iter().map(|event| event.id.0).collect();
        assert_eq!(found, expected, "{filter:?}");
    }
    let record = queue.get(EventId(crm)).await.unwrap().unwrap();
    assert_eq!(record.summary.route, route("crm"));
}
