//! Jobs change each event once, whoever works on them.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::sleep;

use super::make::chat;
use super::steps::{Trial, ok};
use super::{HELD, Harness, SHORT};
use tower_webhook::inbox::internal::{JobLease, JobStep, NewJob, Work, forget_all};
use tower_webhook::inbox::{
    Action, ActionKind, By, EventId, EventState, Job, JobState, Queue, Records, Which,
};

use support::queue::dead;

fn discards(chat: Option<&str>) -> NewJob {
    NewJob {
        kind: ActionKind::Discard,
        filter: "state=dead".to_owned(),
        chat: chat.map(str::to_owned),
        rate: 200,
    }
}

fn step(events: &[EventId], lease: Duration) -> JobStep {
    JobStep {
        redrives: false,
        events: events.iter().map(|id| (*id, EventState::Dead)).collect(),
        reached: events.last().copied().unwrap_or(EventId(0)),
        state: JobState::Running,
        lease,
    }
}

async fn take<Q: Queue>(queue: &Q, lease: Duration) -> Option<(JobLease, Action)> {
    ok(queue.take_job(lease).await, "take a job")
}

async fn action<Q: Queue>(queue: &Q, number: i64) -> (Action, Job) {
    let found = ok(
        queue.actions(Which::All, Some(number + 1), 1).await,
        "actions",
    );
    let action = found.into_iter().next().expect("a job is an action");
    assert_eq!(action.number, number);
    let job = action.job.clone().expect("it is a job");
    (action, job)
}

/// Adds dead letters.
async fn die<Q: Queue>(trial: &Trial<Q>, count: usize) -> Vec<EventId> {
    let mut ids = Vec::new();
    for _ in 0..count {
        let taken = trial.taken(trial.event(), HELD).await;
        trial.settle(&taken, &dead(false)).await;
        ids.push(taken.lease.id);
    }
    ids
}

/// One process holds a job at a time. Another one takes it when its lease has ended, and goes on after the last step.
/// Whoever comes late changes nothing.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn jobs_are_held_by_one<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let other = &trial.handles(harness, 1).await[0].queue;
    let ids = die(&trial, 4).await;
    let by = By::new("ada").because("test data");
    let number = ok(trial.queue.begin_job(&discards(None), &by).await, "begin");
    let (begun, job) = action(&**other, number).await;
    assert_eq!((begun.kind, &begun.by), (ActionKind::Discard, &by));
    assert_eq!(begun.about.as_deref(), Some("state=dead"));
    assert_eq!((begun.event, begun.changed), (None, 0));
    let expected = Job {
        state: JobState::Running,
        skipped: 0,
        reached: EventId(0),
        rate: 200,
        is_held: false,
    };
    assert_eq!(job, expected);

    // Of many, one takes it.
    let takes = join_all((0..8).map(|_| take(&*trial.queue, SHORT))).await;
    let mut takes = takes.into_iter().flatten();
    let (first, taken) = takes.next().expect("a job that is free is taken");
    assert_eq!((taken.number, first.number), (number, number));
    assert!(takes.next().is_none(), "a job has two holders");
    let done = other.step_job(&first, &step(&ids[..2], SHORT)).await;
    assert!(ok(done, "step"));
    let (_, job) = action(&**other, number).await;
    assert!(job.is_held);
    let running = ok(other.actions(Which::Running, None, 100).await, "actions");
    assert!(running.iter().any(|action| action.number == number));

    // Its holder is away for longer than its lease.
    sleep(2 * SHORT).await;
    let (second, taken) = take(&**other, HELD).await.expect("its lease has ended");
    assert_eq!(taken.changed, 2);
    assert_eq!(taken.job.map(|job| job.reached), Some(ids[1]));
    let late = trial.queue.step_job(&first, &step(&ids[2..], HELD)).await;
    assert!(!ok(late, "step"), "a fence does not protect");
    trial
        .is(ids[2], EventState::Dead, "an event of a late step")
        .await;
    assert!(take(&*trial.queue, HELD).await.is_none());

    // One of them is not as it was listed.
    trial
        .redrive(ids[3], tower_webhook::inbox::Change::Made, "a dead letter")
        .await;
    let end = JobStep {
        state: JobState::Done,
        ..step(&ids[2..], HELD)
    };
    assert!(ok(other.step_job(&second, &end).await, "step"));
    let again = ok(other.step_job(&second, &end).await, "step");
    assert!(!again, "a job that is done goes on");
    let (ended, job) = action(&*trial.queue, number).await;
    assert_eq!((ended.changed, job.skipped), (3, 1));
    assert_eq!((job.state, job.reached), (JobState::Done, ids[3]));
    for id in &ids[..3] {
        trial
            .is(*id, EventState::Discarded, "an event of a job")
            .await;
        let of = ok(
            trial.queue.actions(Which::Of(*id), None, 10).await,
            "actions",
        );
        assert_eq!(of, std::slice::from_ref(&ended));
    }
    trial
        .is(ids[3], EventState::Retrying, "an event that changed")
        .await;
    let cancelled = ok(trial.queue.cancel_job(number, &by).await, "cancel");
    assert!(!cancelled, "a job that is done is cancelled");
}

/// After a job is cancelled, or its chat is forgotten, it changes nothing.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn jobs_are_cancelled<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let ids = die(&trial, 2).await;
    let by = By::new("grace");
    let chat = chat();
    for is_forgotten in [false, true] {
        let job = discards(is_forgotten.then_some(&*chat));
        let number = ok(trial.queue.begin_job(&job, &by).await, "begin");
        let (lease, _) = take(&*trial.queue, HELD).await.expect("it is free");
        assert!(ok(
            trial.queue.step_job(&lease, &step(&[], HELD)).await,
            "step"
        ));
        match is_forgotten {
            true => {
                ok(forget_all(&trial.queue, &chat, &by).await, "forget");
            }
            false => {
                assert!(ok(trial.queue.cancel_job(number, &by).await, "cancel"));
                assert!(!ok(trial.queue.cancel_job(number, &by).await, "cancel"));
            }
        }
        let done = trial.queue.step_job(&lease, &step(&ids, HELD)).await;
        assert!(!ok(done, "step"), "a cancelled job goes on");
        let (cancelled, job) = action(&*trial.queue, number).await;
        assert_eq!(job.state, JobState::Cancelled);
        assert_eq!(cancelled.about.is_none(), is_forgotten, "{cancelled:?}");
        assert!(take(&*trial.queue, HELD).await.is_none());
        for id in &ids {
            trial
                .is(*id, EventState::Dead, "an event of a cancelled job")
                .await;
        }
    }
    let all = ok(trial.queue.actions(Which::All, None, 100).await, "actions");
    let cancels = all
        .iter()
        .filter(|it| it.kind == ActionKind::Cancel && it.by == by);
    assert_eq!(cancels.count(), 1);
}
