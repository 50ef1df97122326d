//! Changes of all events that match, in the background.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use futures_util::FutureExt;
use futures_util::stream::{self, StreamExt};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::yield_now;
use tokio::time::{Instant, timeout};

use super::operations::{Operations, SEARCH, next};
use crate::error::Chain;
use crate::inbox::{Change, EventId, EventState, EventSummary, Filter, KindStats, Page};
use crate::lock::lock;
use crate::store::StoreError;

/// A change of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Redrive,
    Discard,
}

impl Action {
    pub(super) fn parse(name: &str) -> Option<Self> {
        match name {
            "redrive" => Some(Self::Redrive),
            "discard" => Some(Self::Discard),
            _ => None,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Redrive => "redrive",
            Self::Discard => "discard",
        }
    }

    /// The past tense, for a notice.
    pub(super) fn past(self) -> &'static str {
        match self {
            Self::Redrive => "redriven",
            Self::Discard => "discarded",
        }
    }

    /// Changes an event, with `from` only if it is in this state.
    pub(super) async fn apply(
        self,
        inbox: &dyn Operations,
        id: EventId,
        from: Option<EventState>,
    ) -> Result<Change, StoreError> {
        match self {
            Self::Redrive => inbox.redrive(id, from).await,
            Self::Discard => inbox.discard(id, from).await,
        }
    }
}

/// The jobs since the console was created.
pub(super) struct Jobs {
    all: Mutex<BTreeMap<u64, Arc<Job>>>,
    turns: Arc<Semaphore>,
    previews: Semaphore,
    exports: Arc<Semaphore>,
}

/// The number of jobs that run at a time, of previews, and of exports. Others wait, because more would slow deliveries down.
const TURNS: usize = 4;

impl Default for Jobs {
    fn default() -> Self {
        Self {
            all: Mutex::default(),
            turns: Arc::new(Semaphore::new(TURNS)),
            previews: Semaphore::new(TURNS),
            exports: Arc::new(Semaphore::new(TURNS)),
        }
    }
}

/// The number of jobs that are kept, beside those in progress.
const MOST: usize = 50;

/// A change of all events that match a filter.
pub(super) struct Job {
    pub(super) number: u64,
    pub(super) action: Action,
    /// The filter, as the query of the list.
    pub(super) query: String,
    /// The number of events that matched at first, and whether there were more.
    pub(super) matched: Counted,
    pub(super) searched: Searched,
    pub(super) changed: AtomicU64,
    /// Events whose state did not allow the change.
    pub(super) skipped: AtomicU64,
    pub(super) is_waiting: AtomicBool,
    pub(super) is_cancelled: AtomicBool,
    cancelled: Notify,
    pub(super) ended: Mutex<Option<Ended>>,
}

/// The events among which a job searches, and the one that it has reached.
pub(super) struct Searched {
    oldest: EventId,
    newest: EventId,
    reached: AtomicI64,
}

impl Searched {
    fn new(oldest: EventId, newest: EventId) -> Self {
        Self {
            oldest,
            newest,
            reached: AtomicI64::new(oldest.0),
        }
    }

    fn reach(&self, event: EventId) {
        let event = event.min(self.newest);
        self.reached.store(event.0, Ordering::Relaxed);
    }

    /// The event that was reached, and the newest one.
    pub(super) fn until(&self) -> (EventId, EventId) {
        (EventId(self.reached.load(Ordering::Relaxed)), self.newest)
    }

    /// The share that was searched, in percent.
    pub(super) fn percent(&self) -> i64 {
        let of = |to: i64| i128::from(to) - i128::from(self.oldest.0);
        let (reached, all) = (of(self.reached.load(Ordering::Relaxed)), of(self.newest.0));
        let percent = (100 * reached).checked_div(all).unwrap_or(100);
        i64::try_from(percent).unwrap_or(100)
    }
}

#[derive(Clone, Debug)]
pub(super) enum Ended {
    Done,
    Cancelled,
    Failed(String),
    Panicked,
}

/// A number of events, counted up to a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) events: usize,
    pub(super) is_more: bool,
}

/// The number up to which events are counted for a preview.
const COUNT_UP_TO: usize = 10_000;

/// The number of events that are read at a time.
const STEP: usize = 512;

/// The number of events that are changed at a time. They share a transaction, for which deliveries wait.
const AT_ONCE: usize = 32;

/// What a preview has seen: no event after the newest one, and none that died or was settled later.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) newest: EventId,
    /// By the clock of the queue.
    pub(super) at: SystemTime,
}

impl Seen {
    /// `None` without any event.
    pub(super) async fn now(inbox: &dyn Operations) -> Result<Option<Self>, StoreError> {
        let (stats, age) = inbox.stats().await?;
        let at = stats.at + age;
        let newest = first(inbox, Page::newest(1)).await?;
        Ok(newest.map(|newest| Self { newest, at }))
    }

    /// The time since 1970.
    pub(super) fn nanos(&self) -> u128 {
        let since = self.at.duration_since(SystemTime::UNIX_EPOCH);
        since.unwrap_or_default().as_nanos()
    }

    fn has(&self, event: &EventSummary) -> bool {
        event.id <= self.newest && event.settled_at.is_none_or(|settled| settled <= self.at)
    }
}

async fn preview(
    inbox: &dyn Operations,
    filter: &Filter,
    seen: Option<Seen>,
) -> Result<Counted, StoreError> {
    if let Some(counted) = by_stats(inbox, filter).await {
        return Ok(counted);
    }
    let began = Instant::now();
    let mut page = Page::oldest(STEP).within(SEARCH);
    let mut events = 0;
    loop {
        let listed = inbox.list(filter, page).await?;
        let has = |event: &&EventSummary| seen.is_none_or(|seen| seen.has(event));
        events += listed.events.iter().filter(has).count();
        page.after = next(&listed, STEP);
        let is_more = page.after.is_some();
        if !is_more || events >= COUNT_UP_TO || began.elapsed() >= SEARCH {
            return Ok(Counted {
                events: events.min(COUNT_UP_TO),
                is_more,
            });
        }
    }
}

/// The number of events, if the counts of the queue have it.
async fn by_stats(inbox: &dyn Operations, filter: &Filter) -> Option<Counted> {
    let count = |kind: &KindStats, state: &EventState| match state {
        EventState::Waiting => kind.waiting,
        EventState::InProgress => kind.in_progress,
        EventState::Retrying => kind.retrying,
        EventState::Dead => kind.dead,
        _ => 0,
    };
    let is_counted = |state: &EventState| state.is_unsettled() || *state == EventState::Dead;
    let Filter {
        states,
        kinds,
        chat: None,
        key: None,
        accepted_from: None,
        accepted_until: None,
        error: None,
        body: None,
        failed_from: None,
        failed_until: None,
    } = filter
    else {
        return None;
    };
    if states.is_empty() || !states.iter().all(is_counted) {
        return None;
    }
    let (stats, age) = timeout(SEARCH, inbox.stats()).await.ok()?.ok()?;
    let of_kinds = stats.kinds.iter();
    let of_kinds = of_kinds.filter(|it| kinds.is_empty() || kinds.contains(&it.kind));
    let events: u64 = of_kinds
        .flat_map(|kind| states.iter().map(move |state| count(kind, state)))
        .sum();
    let is_new = age < Duration::from_secs(10);
    is_new.then_some(Counted {
        events: usize::try_from(events).ok()?,
        is_more: false,
    })
}

/// Returns the first event of a page of all events, or one before it.
pub(super) async fn first(
    inbox: &dyn Operations,
    page: Page,
) -> Result<Option<EventId>, StoreError> {
    let listed = inbox.list(&Filter::default(), page.within(SEARCH)).await?;
    let first = listed.events.first().map(|event| event.id);
    Ok(first.or(listed.searched))
}

impl Jobs {
    pub(super) fn get(&self, number: u64) -> Option<Arc<Job>> {
        lock(&self.all).get(&number).cloned()
    }

    pub(super) async fn turn_of_export(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.exports).acquire_owned().await.ok()
    }

    /// Counts the events that match.
    pub(super) async fn preview(
        &self,
        inbox: &dyn Operations,
        filter: &Filter,
        seen: Option<Seen>,
    ) -> Result<Counted, StoreError> {
        let _turn = self.previews.acquire().await;
        preview(inbox, filter, seen).await
    }

    /// Starts to change all events that match and that the operator has seen.
    pub(super) async fn start(
        &self,
        inbox: Arc<dyn Operations>,
        action: Action,
        (filter, seen): (Filter, Seen),
        query: String,
        actor: Option<String>,
    ) -> Result<Arc<Job>, StoreError> {
        let matched = self.preview(&*inbox, &filter, Some(seen)).await?;
        let oldest = first(&*inbox, Page::oldest(1)).await?;
        let searched = Searched::new(oldest.unwrap_or(seen.newest), seen.newest);
        let mut all = lock(&self.all);
        let number = all.last_key_value().map_or(1, |(number, _)| number + 1);
        let job = Arc::new(Job {
            number,
            action,
            query,
            matched,
            searched,
            changed: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            is_waiting: AtomicBool::new(true),
            is_cancelled: AtomicBool::new(false),
            cancelled: Notify::new(),
            ended: Mutex::default(),
        });
        all.insert(number, Arc::clone(&job));
        let ended = all.iter().filter(|(_, job)| job.end().is_some());
        let too_many: Vec<_> = ended
            .map(|(number, _)| *number)
            .take(all.len().saturating_sub(MOST))
            .collect();
        for number in too_many {
            all.remove(&number);
        }
        drop(all);
        tracing::info!(
            actor,
            action = action.name(),
            filter = job.query,
            job = number,
            "the console changes all events that match"
        );
        let turns = Arc::clone(&self.turns);
        tokio::spawn(Arc::clone(&job).run(inbox, filter, seen, actor, turns));
        Ok(job)
    }
}

impl Job {
    pub(super) fn end(&self) -> Option<Ended> {
        lock(&self.ended).clone()
    }

    pub(super) fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
        self.cancelled.notify_one();
    }

    async fn run(
        self: Arc<Self>,
        inbox: Arc<dyn Operations>,
        filter: Filter,
        seen: Seen,
        actor: Option<String>,
        turns: Arc<Semaphore>,
    ) {
        let turn = tokio::select! {
            turn = turns.acquire() => turn.ok(),
            () = self.cancelled.notified() => None,
        };
        self.is_waiting.store(false, Ordering::Relaxed);
        let changes = AssertUnwindSafe(self.change_all(&*inbox, &filter, seen));
        let ended = match changes.catch_unwind().await {
            Ok(Ok(())) if self.is_cancelled.load(Ordering::Relaxed) => Ended::Cancelled,
            Ok(Ok(())) => Ended::Done,
            Ok(Err(error)) => Ended::Failed(Chain(&error).to_string()),
            Err(_) => Ended::Panicked,
        };
        drop(turn);
        tracing::info!(
            actor,
            action = self.action.name(),
            job = self.number,
            changed = self.changed.load(Ordering::Relaxed),
            skipped = self.skipped.load(Ordering::Relaxed),
            ?ended,
            "the console has ended a change of all events that match"
        );
        *lock(&self.ended) = Some(ended);
    }

    /// Changes the events that the operator has seen. Those whose state has changed since they were listed are not
    /// changed.
    async fn change_all(
        &self,
        inbox: &dyn Operations,
        filter: &Filter,
        seen: Seen,
    ) -> Result<(), StoreError> {
        let mut page = Page::oldest(STEP).within(SEARCH);
        while !self.is_cancelled.load(Ordering::Relaxed) {
            let listed = inbox.list(filter, page).await?;
            page.after = next(&listed, STEP);
            let is_last = page.after.is_none_or(|after| after >= seen.newest);
            let events = listed.events.into_iter();
            let mut changes = stream::iter(events.filter(|event| seen.has(event)))
                .map(|event| self.change(inbox, event.id, event.state))
                .buffer_unordered(AT_ONCE);
            let mut failed = Ok(());
            while let Some(changed) = changes.next().await {
                failed = failed.and(changed);
            }
            // Not before all changes have ended, so that each of them is counted.
            failed?;
            self.searched.reach(page.after.unwrap_or(seen.newest));
            if is_last {
                break;
            }
        }
        Ok(())
    }

    async fn change(
        &self,
        inbox: &dyn Operations,
        id: EventId,
        listed: EventState,
    ) -> Result<(), StoreError> {
        if self.is_cancelled.load(Ordering::Relaxed) {
            return Ok(());
        }
        let count = match self.action.apply(inbox, id, Some(listed)).await? {
            Change::Made => &self.changed,
            Change::NotFound | Change::WrongState | Change::WithoutBody => &self.skipped,
        };
        count.fetch_add(1, Ordering::Relaxed);
        // A queue in memory never waits, and pages are to be answered meanwhile.
        yield_now().await;
        Ok(())
    }
}
