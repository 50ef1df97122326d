//! Changes of all events that match: the loop that makes their steps, whatever the queue answers.

use std::collections::VecDeque;
use std::future::pending;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use async_trait::async_trait;
use futures_util::future::{join, join_all};
use tokio::time::{Instant, sleep};
use tower_webhook::inbox::internal::{self, BulkStep, NewEvent};
use tower_webhook::inbox::{
    Action, ActionKind, BulkState, By, EventId, EventState, Filter, Inbox, Listed, Page, Queue,
    Scope, Seen, Which,
};
use tower_webhook::memory::MemoryQueue;
use tower_webhook::store::{StoreError, StoreErrorKind};
use tower_webhook::{EventKind, IdempotencyKey};

use super::suite::Harness;
#[cfg(feature = "postgres")]
use support::database::Database;
use support::inbox::inbox;
use support::lock;
use support::log::Log;
use support::queue::{Calls, FaultyQueue, failure, new_event};
#[cfg(feature = "sqlite")]
use support::scratch::Scratch;
use support::{DAY, SECOND};
use tracing::Level;

/// What happens in a step.
#[derive(Clone, Debug)]
enum Fault {
    Nothing,
    /// It is not made, with an error.
    Fails,
    /// It takes a second.
    IsSlow,
    /// It is made, and its answer is lost, as are those of the next reads.
    LosesAnswer,
    /// It is made a moment after its error.
    IsLate,
    /// It has no answer, ever.
    Hangs,
    /// Somebody else is quicker, and the step is refused.
    IsOvertaken,
    /// The same, with an error.
    IsOvertakenUnseen,
    /// A person cancels the change, and the step ends with an error.
    IsCancelled,
}

/// A queue with a script for its steps, which notes what they answer.
struct Scripted {
    queue: Queue,
    faults: Mutex<VecDeque<Fault>>,
    steps: Arc<Mutex<Vec<Option<bool>>>>,
    lost_reads: AtomicU32,
}

impl Scripted {
    fn new(queue: Queue, faults: impl IntoIterator<Item = Fault>) -> Self {
        Self {
            queue,
            faults: Mutex::new(faults.into_iter().collect()),
            steps: Arc::default(),
            lost_reads: AtomicU32::new(0),
        }
    }

    async fn scripted(&self, number: i64, step: &BulkStep) -> Result<bool, StoreError> {
        let fault = lock(&self.faults).pop_front();
        let overtake = async || {
            let other = BulkStep {
                events: Vec::new(),
                reached: EventId(step.from.0 + 1),
                is_last: false,
                ..step.clone()
            };
            assert!(self.queue.step(number, &other).await.unwrap());
        };
        match fault.unwrap_or(Fault::Nothing) {
            Fault::Nothing => return self.queue.step(number, step).await,
            Fault::IsSlow => {
                sleep(SECOND).await;
                return self.queue.step(number, step).await;
            }
            Fault::Fails => {}
            Fault::LosesAnswer => {
                assert!(self.queue.step(number, step).await.unwrap());
                self.lost_reads.store(2, Ordering::SeqCst);
            }
            Fault::IsLate => {
                let (queue, step) = (self.queue.clone(), step.clone());
                tokio::spawn(async move {
                    sleep(SECOND / 5).await;
                    queue.step(number, &step).await.unwrap();
                });
            }
            Fault::Hangs => pending().await,
            Fault::IsOvertaken => {
                overtake().await;
                return self.queue.step(number, step).await;
            }
            Fault::IsOvertakenUnseen => overtake().await,
            Fault::IsCancelled => {
                let cancelled = self.queue.cancel(number, &By::new("ada")).await;
                assert!(cancelled.unwrap());
            }
        }
        Err(lost())
    }
}

fn lost() -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, "the connection was lost")
}

#[async_trait]
impl Calls for Scripted {
    fn inner(&self) -> Result<Queue, StoreError> {
        Ok(self.queue.clone())
    }

    async fn step(&self, number: i64, step: &BulkStep) -> Result<bool, StoreError> {
        let made = self.scripted(number, step).await;
        lock(&self.steps).push(made.as_ref().ok().copied());
        made
    }

    async fn actions(
        &self,
        which: Which,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<Action>, StoreError> {
        let is_less = |left: u32| left.checked_sub(1);
        let order = Ordering::SeqCst;
        if self.lost_reads.fetch_update(order, order, is_less).is_ok() {
            return Err(lost());
        }
        self.queue.actions(which, before, limit).await
    }

    /// A search for an error finds nothing, and looks at one event at a time.
    async fn list(&self, filter: &Filter, page: Page) -> Result<Listed, StoreError> {
        if filter.error.is_none() {
            return self.queue.list(filter, page).await;
        }
        sleep(page.within.unwrap()).await;
        let mut listed = Listed::default();
        listed.searched = Some(EventId(page.after.map_or(0, |after| after.0) + 1));
        Ok(listed)
    }
}

/// As many events as three steps change.
const EVENTS: usize = 150;

fn dead_letters() -> Filter {
    Filter::default().states([EventState::Dead])
}

/// Adds dead letters to an inbox, and begins to redrive all of them.
async fn begin(inbox: &Inbox, count: usize, rate: u32) -> i64 {
    let kind = EventKind::CHAT_RATED;
    let events = (0..count).map(|n| NewEvent {
        dead: Some(failure("the CRM is down")),
        ..new_event(kind.clone(), n.to_string())
    });
    let accepts = events.map(|event| internal::queue(inbox).accept_one(event, None));
    assert!(join_all(accepts).await.iter().all(Result::is_ok));
    let seen = inbox.seen().await.unwrap().unwrap();
    let selection = inbox.select(&dead_letters(), seen).await.unwrap();
    assert_eq!(
        (selection.matched, selection.is_more),
        (count as u64, false)
    );
    let begun = inbox.begin_all(ActionKind::Redrive, &selection, rate).await;
    begun.unwrap()
}

/// Asserts that a change has redriven so many events, each of them once.
async fn has_redriven(inbox: &Inbox, number: i64, count: usize) {
    let action = inbox.action(number).await.unwrap().unwrap();
    let skipped = action.bulk.as_ref().unwrap().skipped;
    assert_eq!((action.changed, skipped), (count as u64, 0), "{action:?}");
    let page = Page::oldest(1_000);
    let events = inbox.list(&Filter::default(), page).await.unwrap().events;
    let redriven: Vec<_> = events.iter().filter(|event| event.is_redriven).collect();
    assert_eq!(redriven.len(), count);
    for event in redriven {
        let of = inbox.actions(Which::Of(event.id), None, 10).await.unwrap();
        assert_eq!(of, std::slice::from_ref(&action));
    }
}

/// Makes a change by this script, and returns what its steps answered and how it ended.
async fn scripted<H: Harness>(
    harness: &H,
    faults: impl IntoIterator<Item = Fault>,
    redriven: usize,
) -> (Vec<Option<bool>>, BulkState) {
    let queue = Scripted::new(harness.open().await, faults);
    let steps = Arc::clone(&queue.steps);
    let inbox = Inbox::new(queue.shared());
    let number = begin(&inbox, EVENTS, 0).await;
    let action = inbox.continue_all(number).await.unwrap();
    assert_eq!(action.number, number);
    has_redriven(&inbox, number, redriven).await;
    let steps = lock(&steps).clone();
    (steps, action.bulk.unwrap().state)
}

/// Runs these with a queue in memory, in a file, and in a database. Each gets new ones.
macro_rules! with_each_queue {
    ($($test:ident $in_memory:ident $in_file:ident $in_database:ident)*) => {$(
        #[tokio::test(start_paused = true)]
        async fn $in_memory() {
            $test(async || MemoryQueue::new()).await;
        }

        #[cfg(feature = "sqlite")]
        #[tokio::test]
        async fn $in_file() {
            $test(async || Scratch::new()).await;
        }

        #[cfg(feature = "postgres")]
        #[tokio::test(flavor = "multi_thread")]
        async fn $in_database() {
            $test(async || Database::create().await).await;
        }
    )*};
}

with_each_queue! {
    steps_that_were_made_are_not_repeated
        steps_that_were_made_are_not_repeated_in_memory
        steps_that_were_made_are_not_repeated_in_a_file
        steps_that_were_made_are_not_repeated_in_a_database
    steps_that_were_not_made_are_repeated
        steps_that_were_not_made_are_repeated_in_memory
        steps_that_were_not_made_are_repeated_in_a_file
        steps_that_were_not_made_are_repeated_in_a_database
    overtaken_loops_stop
        overtaken_loops_stop_in_memory
        overtaken_loops_stop_in_a_file
        overtaken_loops_stop_in_a_database
    two_loops_change_each_event_once
        two_loops_change_each_event_once_in_memory
        two_loops_change_each_event_once_in_a_file
        two_loops_change_each_event_once_in_a_database
    cancelled_changes_end_in_all_processes
        cancelled_changes_end_in_all_processes_in_memory
        cancelled_changes_end_in_all_processes_in_a_file
        cancelled_changes_end_in_all_processes_in_a_database
}

async fn steps_that_were_made_are_not_repeated<H: Harness>(open: impl AsyncFn() -> H) {
    let whole = scripted(&open().await, [], EVENTS).await;
    assert_eq!(whole, (vec![Some(true); 4], BulkState::Done));
    for at in 0..4 {
        let mut faults = vec![Fault::Nothing; 4];
        faults[at] = Fault::LosesAnswer;
        let mut expected = whole.clone();
        expected.0[at] = None;
        assert_eq!(scripted(&open().await, faults, EVENTS).await, expected);
    }
}

async fn steps_that_were_not_made_are_repeated<H: Harness>(open: impl AsyncFn() -> H) {
    for at in 0..4 {
        for times in [1, 3] {
            let mut faults = vec![Fault::Nothing; at];
            faults.extend(vec![Fault::Fails; times]);
            let mut expected = vec![Some(true); 4];
            expected.splice(at..at, vec![None; times]);
            let expected = (expected, BulkState::Done);
            assert_eq!(scripted(&open().await, faults, EVENTS).await, expected);
        }
        // It is made at last, between the look at it and its third attempt or so. Of those, one is made.
        let mut faults = vec![Fault::Nothing; at];
        faults.extend([Fault::IsLate, Fault::Fails]);
        let (steps, state) = scripted(&open().await, faults, EVENTS).await;
        assert_eq!(state, BulkState::Done);
        let made = steps.iter().filter(|made| **made == Some(true)).count();
        assert!((3..=4).contains(&made), "{steps:?}");
    }
}

async fn overtaken_loops_stop<H: Harness>(open: impl AsyncFn() -> H) {
    for (fault, answer, state) in [
        (Fault::IsOvertaken, Some(false), BulkState::Running),
        (Fault::IsOvertakenUnseen, None, BulkState::Running),
        (Fault::IsCancelled, None, BulkState::Cancelled),
    ] {
        for at in 0..3 {
            let mut faults = vec![Fault::Nothing; at];
            faults.push(fault.clone());
            let mut expected = vec![Some(true); at];
            expected.push(answer);
            let ended = scripted(&open().await, faults, 64 * at).await;
            assert_eq!(ended, (expected, state), "{fault:?}");
        }
    }
}

async fn two_loops_change_each_event_once<H: Harness>(open: impl AsyncFn() -> H) {
    let harness = open().await;
    let [one, two] = [
        Scripted::new(harness.open().await, []),
        Scripted::new(harness.open().await, []),
    ];
    let steps = [&one, &two].map(|queue| Arc::clone(&queue.steps));
    let (one, two) = (Inbox::new(one.shared()), Inbox::new(two.shared()));
    // The first steps take a second.
    let number = begin(&one, EVENTS, 100).await;
    let (by_one, by_two) = join(one.continue_all(number), two.continue_all(number)).await;
    let mut ends = [by_one, by_two].map(|action| action.unwrap().bulk.unwrap().state.name());
    ends.sort_unstable();
    assert_eq!(ends, ["done", "running"]);
    has_redriven(&one, number, EVENTS).await;
    let steps = steps.map(|steps| lock(&steps).clone());
    let refused = steps.iter().flatten().filter(|made| **made == Some(false));
    assert_eq!(refused.count(), 1, "{steps:?}");
    let stopped = |steps: &Vec<_>| steps.last() == Some(&Some(false));
    assert_eq!(
        steps.iter().filter(|it| stopped(it)).count(),
        1,
        "{steps:?}"
    );
}

async fn cancelled_changes_end_in_all_processes<H: Harness>(open: impl AsyncFn() -> H) {
    let harness = open().await;
    let inbox = Inbox::new(harness.open().await);
    let other = Inbox::new(harness.open().await).by(By::new("grace"));
    let number = begin(&inbox, EVENTS, 100).await;
    let cancel = async {
        while other.action(number).await.unwrap().unwrap().changed < 50 {
            sleep(SECOND / 50).await;
        }
        assert!(other.cancel(number).await.unwrap());
        assert!(!inbox.cancel(number).await.unwrap());
        other.action(number).await.unwrap().unwrap()
    };
    let (ended, cancelled) = join(inbox.continue_all(number), cancel).await;
    let ended = ended.unwrap();
    assert_eq!(ended, cancelled);
    assert_eq!(ended.bulk.unwrap().state, BulkState::Cancelled);
    assert!((50..EVENTS as u64).contains(&ended.changed));
    let again = other.continue_all(number).await.unwrap();
    assert_eq!(again.changed, ended.changed);
    has_redriven(&inbox, number, ended.changed as usize).await;
}

/// Not by the load of the machine twice: for as long as a step takes, and as long again.
#[tokio::test(start_paused = true)]
async fn a_change_pauses_where_deliveries_wait_for_its_steps() {
    for (is_held_by_steps, seconds) in [(true, 6), (false, 3)] {
        let slow = Scripted::new(MemoryQueue::new().into(), vec![Fault::IsSlow; 3]);
        let queue = Queue {
            is_held_by_steps,
            ..slow.shared()
        };
        let inbox = Inbox::new(queue);
        let number = begin(&inbox, EVENTS, 0).await;
        let began = Instant::now();
        inbox.continue_all(number).await.unwrap();
        assert_eq!(began.elapsed().as_secs(), seconds);
        has_redriven(&inbox, number, EVENTS).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_step_without_an_answer_is_repeated() {
    let log = Log::capture(Level::WARN);
    let faults = [Fault::Nothing, Fault::Hangs, Fault::Hangs];
    let (steps, state) = scripted(&MemoryQueue::new(), faults, EVENTS).await;
    assert_eq!((steps, state), (vec![Some(true); 4], BulkState::Done));
    let waits = "a change of all events that match waits, because the database failed";
    assert_eq!(log.count(Level::WARN, waits), 2);
}

#[tokio::test(start_paused = true)]
async fn a_change_without_a_step_for_a_minute_is_interrupted_until_it_is_continued() {
    let inbox = inbox();
    let number = begin(&inbox, EVENTS, 0).await;
    let state = async || {
        let action = inbox.action(number).await.unwrap().unwrap();
        action.bulk.unwrap().state
    };
    sleep(60 * SECOND).await;
    assert_eq!(state().await, BulkState::Running);
    sleep(SECOND).await;
    assert_eq!(state().await, BulkState::Interrupted);
    let running = inbox.actions(Which::Running, None, 10).await.unwrap();
    assert_eq!(running[0].number, number);
    sleep(DAY).await;
    let done = inbox.continue_all(number).await.unwrap();
    assert_eq!(done.bulk.unwrap().state, BulkState::Done);
    has_redriven(&inbox, number, EVENTS).await;
}

#[tokio::test(start_paused = true)]
async fn a_long_search_for_events_is_never_interrupted() {
    let inbox = Inbox::new(Scripted::new(MemoryQueue::new().into(), []).shared());
    // Each search takes 40 ms, and looks at one event.
    let seen = Seen::new(EventId(7_500), SystemTime::UNIX_EPOCH);
    let filter = dead_letters().error("refused");
    let selection = inbox.select(&filter, seen).await.unwrap();
    assert_eq!((selection.matched, selection.is_more), (0, true));
    let begun = inbox.begin_all(ActionKind::Discard, &selection, 0).await;
    let number = begun.unwrap();
    sleep(DAY).await;
    let look = async {
        let mut reached = EventId(0);
        for _ in 0..29 {
            sleep(10 * SECOND).await;
            let bulk = inbox.action(number).await.unwrap().unwrap().bulk.unwrap();
            assert_eq!(bulk.state, BulkState::Running);
            assert!(bulk.reached > reached);
            reached = bulk.reached;
        }
    };
    let (ended, ()) = join(inbox.continue_all(number), look).await;
    let bulk = ended.unwrap().bulk.unwrap();
    assert_eq!((bulk.state, bulk.reached), (BulkState::Done, seen.newest));
}

#[tokio::test(start_paused = true)]
async fn a_change_goes_on_after_an_outage_and_makes_up_for_nothing() {
    let queue = FaultyQueue::new(MemoryQueue::new());
    let faults = Arc::clone(&queue.faults);
    let inbox = Inbox::new(queue);
    let number = begin(&inbox, 500, 10).await;
    let look = async {
        let changed = async || inbox.action(number).await.unwrap().unwrap().changed;
        sleep(10 * SECOND).await;
        let before = changed().await;
        assert!((90..=110).contains(&before), "{before}");
        faults.is_down.store(true, Ordering::SeqCst);
        sleep(100 * SECOND).await;
        faults.is_down.store(false, Ordering::SeqCst);
        // It tries again every ten seconds at last.
        sleep(20 * SECOND).await;
        let after = changed().await - before;
        assert!((90..=210).contains(&after), "{after}");
    };
    let (ended, ()) = join(inbox.continue_all(number), look).await;
    let bulk = ended.unwrap().bulk.unwrap();
    assert_eq!((bulk.state, bulk.skipped), (BulkState::Done, 0));
}

#[tokio::test(start_paused = true)]
async fn all_that_match_are_changed_at_once() {
    let inbox = inbox().by(By::new("ada").because("the CRM is back"));
    let none = [
        inbox.redrive_all(&Filter::default()).await,
        inbox.discard_all(&Filter::default()).await,
    ];
    assert!(none.iter().all(|none| matches!(none, Ok(None))));
    begin(&inbox, 100, 0).await;
    let waiting = Filter::default().states([EventState::Waiting]);
    assert!(inbox.redrive_all(&waiting).await.unwrap().is_none());
    let redriven = inbox.redrive_all(&dead_letters()).await.unwrap().unwrap();
    assert_eq!(
        (redriven.kind, redriven.changed),
        (ActionKind::Redrive, 100)
    );
    assert_eq!(redriven.by.reason(), "the CRM is back");
    assert!(inbox.redrive_all(&dead_letters()).await.unwrap().is_none());
    let key = IdempotencyKey::new("a".parse().unwrap()).unwrap();
    let with_times = Filter::failed(Some(SystemTime::UNIX_EPOCH), Some(SystemTime::now())).key(key);
    assert!(inbox.discard_all(&with_times).await.unwrap().is_none());
    let kinds = Filter::default().kinds([EventKind::CHAT_RATED]);
    let discarded = inbox.discard_all(&kinds).await.unwrap().unwrap();
    assert_eq!(
        (discarded.kind, discarded.changed),
        (ActionKind::Discard, 100)
    );
    let selection = discarded.selection().unwrap();
    assert_eq!(
        (selection.filter.kinds, selection.matched),
        (kinds.kinds, 100)
    );
    assert_eq!(inbox.action(discarded.number + 1).await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn impossible_changes_are_not_begun() {
    let inbox = inbox();
    begin(&inbox, 1, 0).await;
    let seen = inbox.seen().await.unwrap().unwrap();
    let with_text = Filter::default().body("customer");
    let long = Filter::default().error("c".repeat(40_000));
    for (kind, filter, why) in [
        (ActionKind::Pause, Filter::default(), "is no pause"),
        (ActionKind::Redrive, with_text, "a text in the body"),
        (ActionKind::Discard, long, "bytes, and 32768 at most"),
    ] {
        let selection = inbox.select(&filter, seen).await.unwrap();
        let error = inbox.begin_all(kind, &selection, 0).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Invalid);
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains(why), "{source}");
    }
    inbox.pause(Scope::Everything, "maintenance").await.unwrap();
    let actions = inbox.actions(Which::All, None, 10).await.unwrap();
    assert_eq!(actions.len(), 2);
    for number in [actions[0].number, 99, i64::MAX] {
        let error = inbox.continue_all(number).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Invalid);
        assert!(!inbox.cancel(number).await.unwrap());
    }
}
