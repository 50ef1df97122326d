//! Failed events are found and grouped by cause.

use std::time::Duration;

use tokio::time::sleep;

use super::make::chat;
use super::steps::{Trial, ok};
use super::{HELD, Harness, SHORT};
use tower_webhook::inbox::internal::Settlement;
use tower_webhook::inbox::{Cause, EventId, EventState, Failure, Filter, Inbox};

use support::queue::{Calls, dead, page, retry};

/// Has `settlement` another failure.
fn of(mut settlement: Settlement, reason: &str) -> Settlement {
    let new = Failure::new("failed", reason);
    match &mut settlement {
        Settlement::Retry { failure, .. } => *failure = Some(new),
        Settlement::Dead { failure, .. } => *failure = new,
        _ => {}
    }
    settlement
}

/// Events that are retried or dead are grouped by the shape of their last failures, whichever process has settled them, and
/// a list by the shape has the events of a cause, and no others.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn causes_are_grouped<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let other = &trial.handles(harness, 1).await[0];
    let chats = [chat(), chat()];
    let fails = async |at: usize, ends: &[Settlement]| {
        let mut event = trial.event();
        event.chat = chats.get(at).cloned();
        let mut taken = trial.taken(event, HELD).await;
        let id = taken.lease.id;
        for (at, end) in ends.iter().enumerate() {
            if at > 0 {
                taken = trial.claims(id, HELD, "an event that is retried").await;
            }
            trial.settle(&taken, end).await;
            // Times are as exact as milliseconds.
            sleep(SHORT / 8).await;
        }
        id
    };
    let refused = |settlement, order: u32| of(settlement, &format!("order {order} was refused"));
    let first = fails(0, &[refused(dead(false), 17)]).await;
    let second = fails(0, &[refused(dead(false), 18)]).await;
    let again = fails(
        1,
        &[refused(retry(Duration::ZERO), 19), refused(retry(HELD), 20)],
    )
    .await;
    let down = fails(
        1,
        &[
            refused(retry(Duration::ZERO), 21),
            of(retry(HELD), "the CRM is down"),
        ],
    )
    .await;
    let handled = fails(
        0,
        &[refused(retry(Duration::ZERO), 22), Settlement::Handled],
    )
    .await;
    let mut event = trial.event();
    event.dead = Some(Failure::new("failed", "order 23 was refused"));
    let at_once = trial.accept(event).await;

    let inbox = Inbox::new(other.queue.clone());
    let all = ok(inbox.causes(usize::MAX).await, "causes");
    let mut causes = all.causes.into_iter();
    let mut causes: Vec<Cause> = causes
        .by_ref()
        .filter(|cause| cause.kind == trial.kind)
        .collect();
    let smaller = causes.pop();
    let (Some(larger), Some(smaller), true) = (causes.pop(), smaller, causes.is_empty()) else {
        panic!("there are not two causes: {causes:?}")
    };
    assert_eq!((larger.events, larger.chats), (4, 2), "{larger:?}");
    assert_eq!((smaller.events, smaller.chats), (1, 1), "{smaller:?}");
    assert_eq!(larger.reason, "order 23 was refused", "the newest event");
    assert_eq!(smaller.reason, "the CRM is down");
    let failures = async |id| trial.record(id).await.failures;
    assert_eq!(larger.first, failures(first).await[0].at);
    assert_eq!(larger.last, failures(at_once).await[0].at);
    // It failed for another cause before.
    assert_eq!(smaller.first, failures(down).await[1].at);
    for past in failures(down).await {
        assert_eq!(
            past.failure.shape,
            Failure::new("failed", past.failure.reason).shape
        );
    }

    let expect = async |cause: &Cause, states: &[EventState], expected: &[EventId]| {
        let shape = cause.shape.expect("a shape");
        let filter = trial.filter().shape(shape).states(states.to_vec());
        for newest_first in [false, true] {
            for within in [None, Some(HELD)] {
                let mut page = page(10, newest_first);
                page.within = within;
                let listed = ok(other.queue.list(&filter, page).await, "list").events;
                let mut found: Vec<_> = listed.iter().map(|event| event.id).collect();
                if newest_first {
                    found.reverse();
                }
                assert_eq!(found, expected, "the events of {cause:?} in {states:?}");
            }
        }
    };
    let failed = Filter::failed(None, None).states;
    expect(&larger, &failed, &[first, second, again, at_once]).await;
    expect(&larger, &[EventState::Dead], &[first, second, at_once]).await;
    expect(&larger, &[EventState::Retrying], &[again]).await;
    expect(&larger, &[], &[first, second, again, handled, at_once]).await;
    expect(&smaller, &failed, &[down]).await;
    expect(&smaller, &[EventState::Dead], &[]).await;
    let of_chat = trial
        .filter()
        .shape(larger.shape.expect("a shape"))
        .chat(&chats[0]);
    let listed = ok(other.queue.list(&of_chat, page(10, false)).await, "list");
    let found: Vec<_> = listed.events.iter().map(|event| event.id).collect();
    assert_eq!(found, [first, second, handled]);
}
