//! What persons did is recorded with what they changed.

use super::make::chat;
use super::steps::{Trial, ok};
use super::{HELD, Harness};
use tower_webhook::inbox::internal::{FORGET_STEP, NewEvent};
use tower_webhook::inbox::{Action, ActionKind, By, Change, EventId, EventState, Queue, Which};

use support::queue::{Calls, dead};

async fn of(queue: &Queue, event: EventId) -> Vec<Action> {
    ok(queue.actions(Which::Of(event), None, 10).await, "actions")
}

/// Each change leaves an action on its event, and one that was not made leaves none.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn changes_are_recorded<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let other = &trial.handles(harness, 1).await[0].queue;
    let taken = trial.taken(trial.event(), HELD).await;
    trial.settle(&taken, &dead(false)).await;
    let id = taken.lease.id;
    let (ada, grace) = (
        By::new("ada").because("the CRM\nis back\0"),
        By::new("grace"),
    );
    let waiting = Some(EventState::Waiting);
    let change = ok(other.redrive(id, waiting, &ada).await, "redrive");
    assert_eq!(change, Change::WrongState);
    assert_eq!(of(&trial.queue, id).await, [], "of what was not changed");

    let change = ok(other.redrive(id, None, &ada).await, "redrive");
    assert_eq!(change, Change::Made);
    let change = ok(other.discard(id, None, &grace).await, "discard");
    assert_eq!(change, Change::Made);
    let done = of(&trial.queue, id).await;
    let [discarded, redriven] = &done[..] else {
        panic!("two changes are {done:?}");
    };
    assert_eq!(
        (redriven.by.who(), redriven.by.reason(), redriven.kind),
        ("ada", "the CRM is back", ActionKind::Redrive)
    );
    assert_eq!(
        (discarded.by.who(), discarded.by.reason(), discarded.kind),
        ("grace", "", ActionKind::Discard)
    );
    for action in [redriven, discarded] {
        assert_eq!((action.event, action.changed), (Some(id), 1), "{action:?}");
        assert_eq!(action.about, None, "{action:?}");
    }
    assert!(redriven.number < discarded.number && redriven.at <= discarded.at);
    let settled = trial.record(id).await.summary.settled_at.unwrap();
    let apart = settled
        .duration_since(discarded.at)
        .unwrap_or_else(|error| error.duration());
    assert!(
        apart < HELD,
        "discarded {settled:?}, recorded {discarded:?}"
    );

    let older = trial
        .queue
        .actions(Which::Of(id), Some(discarded.number), 10);
    assert_eq!(ok(older.await, "actions"), std::slice::from_ref(redriven));
    let newest = trial.queue.actions(Which::Of(id), None, 1);
    assert_eq!(ok(newest.await, "actions"), std::slice::from_ref(discarded));
}

/// Pauses are actions, and so is what ends them.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn pauses_are_recorded<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let by = By::new("ada").because("maintenance");
    let of = trial.kind.clone().into();
    for note in [Some("x"), None] {
        ok(trial.queue.pause(&of, note, &by).await, "pause");
    }
    let all = ok(
        trial.queue.actions(Which::All, None, 1_000).await,
        "actions",
    );
    let mut of_kind = all
        .iter()
        .filter(|it| it.about.as_deref() == Some(trial.kind.as_str()));
    for kind in [ActionKind::Resume, ActionKind::Pause] {
        let action = of_kind.next().expect("a pause is an action");
        assert_eq!((action.kind, &action.by), (kind, &by));
        assert_eq!((action.event, action.changed), (None, 0));
    }
    assert_eq!(of_kind.next(), None);
    // In pages, without one that is missing or twice.
    let (mut pages, mut before) = (Vec::new(), None);
    loop {
        let page = ok(trial.queue.actions(Which::All, before, 7).await, "actions");
        let Some(last) = page.last() else { break };
        before = Some(last.number);
        pages.extend(page);
    }
    let oldest = all.last().map(|action| action.number);
    pages.retain(|action| Some(action.number) >= oldest);
    // Other rules do something meanwhile.
    let newest = all.first().map(|action| action.number);
    pages.retain(|action| Some(action.number) <= newest);
    let number = |action: &Action| action.number;
    assert_eq!(
        pages.iter().map(number).collect::<Vec<_>>(),
        all.iter().map(number).collect::<Vec<_>>()
    );
}

/// When a chat is forgotten, the actions on its events stay, without the events and the reasons. Those of other chats
/// stay as they are.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn actions_are_forgotten<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let (forgotten, kept) = (chat(), chat());
    let add = async |chat: &str| {
        let event = NewEvent {
            chat: Some(chat.to_owned()),
            ..trial.event()
        };
        trial.accept(event).await
    };
    let mut ids = Vec::new();
    for _ in 0..=FORGET_STEP {
        ids.push(add(&forgotten).await);
    }
    let other = add(&kept).await;
    let by = By::new("ada").because("Ms Lovelace called");
    for id in [ids[0], ids[FORGET_STEP], other] {
        assert_eq!(
            ok(trial.queue.discard(id, None, &by).await, "discard"),
            Change::Made
        );
    }
    let mut expected = of(&trial.queue, ids[0]).await.remove(0);
    let of_other = of(&trial.queue, other).await;
    let bodies = ok(
        trial.queue.forget_all(&forgotten, &By::new("grace")).await,
        "forget",
    );
    assert_eq!(bodies, FORGET_STEP as u64 + 1);

    assert_eq!(of(&trial.queue, ids[0]).await, []);
    assert_eq!(of(&trial.queue, ids[FORGET_STEP]).await, []);
    assert_eq!(of(&trial.queue, other).await, of_other);
    let all = ok(
        trial.queue.actions(Which::All, None, 1_000).await,
        "actions",
    );
    let after = all.iter().find(|action| action.number == expected.number);
    (expected.event, expected.by) = (None, By::new("ada"));
    assert_eq!(after, Some(&expected));
    // It took two steps.
    let steps = all
        .iter()
        .filter(|it| it.kind == ActionKind::Forget && it.by.who() == "grace");
    let steps: Vec<_> = steps.collect();
    assert_eq!(steps.iter().map(|it| it.changed).sum::<u64>(), bodies);
    assert_eq!(steps.len(), 2);
    for step in steps {
        let about = step.about.as_deref().unwrap_or_default();
        assert!(about.len() == 16 && !about.contains(&forgotten), "{step:?}");
    }
}
