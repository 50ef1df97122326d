//! What workers note that they handle is kept, and ended.

use std::time::{Duration, SystemTime};

use tokio::time::sleep;

use super::make::{kind, route};
use super::steps::{Trial, ok};
use super::{HELD, Harness, SHORT};
use tower_webhook::inbox::internal::NewNote;
use tower_webhook::inbox::{Action, ActionKind, By, HandlerNote, Queue, Retired, Scope, Which};
use tower_webhook::{EventType, RouteName};

use support::queue::Calls;

fn new(of: &Scope, is_fallback: bool, keep: Duration) -> NewNote {
    NewNote {
        of: of.clone(),
        is_fallback,
        keep,
    }
}

/// Those of a route, and the time.
async fn noted(
    queue: &Queue,
    route: &RouteName,
    worker: &str,
    notes: &[NewNote],
) -> (Vec<HandlerNote>, SystemTime) {
    let noted = queue.note_handlers(worker, notes).await;
    let (mut notes, at) = ok(noted, "note_handlers");
    notes.retain(|note| is_at(note, route));
    notes.sort_by(|a, b| (&a.of, a.is_fallback).cmp(&(&b.of, b.is_fallback)));
    (notes, at)
}

fn is_at(note: &HandlerNote, route: &RouteName) -> bool {
    match &note.of {
        Scope::Route(of) => of == route,
        Scope::Type(of) => of.route == *route,
        _ => false,
    }
}

/// A note is kept for its time after its worker was last seen, replaces that of another worker on the same events, and is
/// listed beside the counts. To read them writes nothing.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn handlers_are_noted<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let other = &trial.handles(harness, 1).await[0].queue;
    let at = route();
    let named = Scope::from(EventType::new(at.clone(), kind()));
    let odd = EventType::new(at.clone(), r"a/\'%_$1".parse().unwrap()).into();
    let all = Scope::Route(at.clone());
    assert_eq!(noted(&trial.queue, &at, "nobody", &[]).await.0, []);
    let notes = [
        new(&all, true, Duration::MAX),
        new(&named, true, HELD),
        new(&named, false, HELD),
        new(&odd, false, HELD),
    ];
    let (first, then) = noted(&trial.queue, &at, "crm", &notes).await;
    let said: Vec<_> = first.iter().map(|it| (&it.of, it.is_fallback)).collect();
    let mut expected: Vec<_> = notes.iter().map(|it| (&it.of, it.is_fallback)).collect();
    expected.sort();
    assert_eq!(said, expected);
    assert!(first.iter().all(|it| it.worker == "crm" && it.seen <= then));

    sleep(SHORT).await;
    assert_eq!(noted(other, &at, "desk", &[]).await.0, first);
    let (second, now) = noted(other, &at, "desk", &[new(&named, false, SHORT)]).await;
    for (before, after) in first.iter().zip(&second) {
        let is_it = after.of == named && !after.is_fallback;
        assert_eq!(before != after, is_it, "{before:?}, {after:?}");
        if is_it {
            assert_eq!(after.worker, "desk");
            assert!(before.seen < after.seen && after.seen <= now);
        }
    }
    let mut listed = ok(trial.queue.stats().await, "stats").handlers;
    listed.retain(|note| is_at(note, &at));
    listed.sort_by(|a, b| (&a.of, a.is_fallback).cmp(&(&b.of, b.is_fallback)));
    assert_eq!(listed, second);

    sleep(2 * SHORT).await;
    let (kept, _) = noted(&trial.queue, &at, "nobody", &[]).await;
    assert_eq!(kept.len(), 3, "one has expired: {kept:?}");
    assert!(kept.iter().all(|it| it.of != named || it.is_fallback));
}

/// Since when others are missed: their own time, or that since when a worker has been there without an end.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn absence_is_counted_while_others_are_there<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let other = &trial.handles(harness, 1).await[0].queue;
    let at = route();
    let named = Scope::from(EventType::new(at.clone(), kind()));
    let any = |keep| [new(&Scope::Everything, true, keep)];
    let missed = async || {
        let (notes, _) = noted(other, &at, "nobody", &[]).await;
        let [note] = &notes[..] else {
            panic!("one note is {notes:?}");
        };
        note.missed_since
    };
    // That of an earlier trial.
    let (_, then) = noted(&trial.queue, &at, "crm", &any(Duration::ZERO)).await;
    let (first, _) = noted(&trial.queue, &at, "crm", &[new(&named, false, HELD)]).await;
    sleep(SHORT).await;
    assert_eq!(missed().await, None, "nobody is there");
    noted(&trial.queue, &at, "desk", &any(HELD)).await;
    let since = missed().await.unwrap();
    assert!(since > then && since > first[0].seen, "{since:?}");
    sleep(SHORT).await;
    noted(&trial.queue, &at, "another", &any(HELD)).await;
    assert_eq!(missed().await, Some(since), "it was there all the time");
    let (seen, _) = noted(&trial.queue, &at, "crm", &[new(&named, false, HELD)]).await;
    assert_eq!(missed().await, Some(seen[0].seen));
    let listed = ok(trial.queue.stats().await, "stats").handlers;
    assert!(listed.iter().all(|note| note.of != Scope::Everything));
}

/// A person ends the notes on one type, or on the others of a route, if their workers were not seen for so long. An action says so
/// if there were any.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn handlers_are_retired<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let at = route();
    let named = Scope::from(EventType::new(at.clone(), kind()));
    let all = Scope::Route(at.clone());
    let notes = [
        new(&named, false, HELD),
        new(&named, true, HELD),
        new(&all, true, HELD),
    ];
    noted(&trial.queue, &at, "crm", &notes).await;
    let by = By::new("ada").because("it moved");
    let actions = async || -> Vec<Action> {
        let actions = ok(trial.queue.actions(Which::All, None, 9).await, "actions");
        let mut actions = actions.into_iter();
        let is_own = |it: &Action| it.about.as_deref() == Some(&named.to_string());
        actions.by_ref().filter(is_own).collect()
    };
    let retire = async |of: &Scope, unseen| ok(trial.queue.retire(of, unseen, &by).await, "retire");
    let (before, _) = noted(&trial.queue, &at, "nobody", &[]).await;
    let newest = before
        .iter()
        .filter(|note| note.of == named)
        .map(|it| it.seen);
    let until = newest.max().unwrap() + HELD;
    assert_eq!(retire(&named, HELD).await, Retired::Kept { until });
    assert_eq!(noted(&trial.queue, &at, "nobody", &[]).await.0, before);
    assert!(actions().await.is_empty(), "nothing was done");
    assert_eq!(retire(&named, Duration::ZERO).await, Retired::Ended);
    let (left, _) = noted(&trial.queue, &at, "nobody", &[]).await;
    assert_eq!(left.iter().map(|it| &it.of).collect::<Vec<_>>(), [&all]);
    let done = actions().await;
    let [action] = &done[..] else {
        panic!("one retirement is {done:?}");
    };
    assert_eq!((action.kind, &action.by), (ActionKind::Retire, &by));
    assert_eq!((action.event, action.changed), (None, 0));
    assert_eq!(retire(&named, Duration::ZERO).await, Retired::NotNoted);
    assert_eq!(actions().await.len(), 1, "nothing was done");
    assert_eq!(retire(&all, Duration::ZERO).await, Retired::Ended);
    assert_eq!(noted(&trial.queue, &at, "nobody", &[]).await.0, []);
    // The worker runs.
    noted(&trial.queue, &at, "crm", &notes).await;
    assert_eq!(noted(&trial.queue, &at, "nobody", &[]).await.0.len(), 3);
}
