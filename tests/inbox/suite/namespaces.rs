//! Namespaces: workers take the events of their own.

use tokio::time::sleep;

use super::make::chat;
use super::steps::{Trial, ok};
use super::{DRIFT, HELD, Harness, SHORT};
use tower_webhook::inbox::internal::{Lane, Namespace, NewEvent, Settlement};
use tower_webhook::inbox::{By, Change, Filter, Page};

use support::queue::{Calls, retry};

/// Two namespaces have events of the same kind and chat. None is taken for the other one: not by an acceptance, by a
/// claim, nor as the next event of a lane. They do not wait for each other. A person sees both.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn namespaces_are_apart<H: Harness>(harness: &H) {
    let one = Trial::open(harness).await;
    let crm = Namespace::of("crm");
    let two = one.handles(harness, 1).await[0].taking(one.kinds.clone().within(crm));
    let (chat, foreign) = (chat(), "it is of another namespace");
    let event = |namespace| NewEvent {
        namespace,
        chat: Some(chat.clone()),
        ..one.in_lane(Lane::of_chat(&chat).within(namespace))
    };
    let of_one = || event(Namespace::default());
    let of_two = || event(crm);

    let second = one.not_taken(of_two(), foreign).await;
    one.nothing(foreign).await;
    let first = one.taken(of_one(), SHORT).await;
    let after_first = two.not_taken(of_one(), foreign).await;
    let second = two.claims(second, HELD, "an event of the namespace").await;
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
    for (filter, expected) in [
        (one.filter(), &ids[..]),
        (in_chat(&chat, &[]), &ids),
        (in_chat(&chat, &["retrying"]), &ids[2..4]),
        (in_chat(&chat, &["waiting"]), &ids[4..]),
    ] {
        let listed = ok(one.queue.list(&filter, Page::oldest(10)).await, "list");
        let listed: Vec<_> = listed.events.iter().map(|event| event.id).collect();
        assert_eq!(listed, expected, "{filter:?}");
    }
    let stats = ok(one.queue.stats().await, "stats").kinds.into_iter();
    let counts = stats.filter(|stats| stats.kind == one.kind);
    let counts: Vec<_> = counts
        .map(|of| (of.waiting, of.in_progress, of.retrying, of.blocking))
        .collect();
    assert_eq!(counts, [(1, 2, 2, 2)]);
    assert_eq!(
        ok(one.queue.forget_all(&chat, &By::default()).await, "forget"),
        5
    );
}

fn in_chat(chat: &str, states: &[&str]) -> Filter {
    Filter::default()
        .chat(chat)
        .states(states.iter().map(|state| state.parse().unwrap()))
}

/// A pause is for all namespaces, also for one that appears later.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn pauses_are_for_all_namespaces<H: Harness>(harness: &H) {
    let one = Trial::open(harness).await;
    let paused = "its kind is paused";
    for (at, name) in ["crm", "billing"].into_iter().enumerate() {
        let namespace = Namespace::of(name);
        let trial = one.taking(one.kinds.clone().within(namespace));
        let event = || NewEvent {
            namespace,
            ..one.event()
        };
        if at == 0 {
            trial.taken(event(), HELD).await;
            ok(
                one.queue
                    .pause(Some(&one.kind), Some(""), &By::default())
                    .await,
                "pause",
            );
        }
        trial.not_taken(event(), paused).await;
        trial.nothing(paused).await;
        if at == 1 {
            ok(
                one.queue.pause(Some(&one.kind), None, &By::default()).await,
                "resume",
            );
            trial
                .claimed(HELD, "an event of a kind that was paused")
                .await;
        }
    }
}
