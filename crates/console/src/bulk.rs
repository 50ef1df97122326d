//! Changes of all events that match, in the background.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::runtime::Handle;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tower_webhook::inbox::internal::{JobLease, Scope, Seen};
use tower_webhook::inbox::{
    Action as Done, ActionKind, By, Change, EventId, EventState, EventSummary, Filter, JobState,
    KindStats, Page, Stats, Which,
};
use tower_webhook::store::StoreError;
use tower_webhook::telemetry::Chain;

use super::guard::known;
use super::operations::{Operations, SEARCH};
use super::problem::Problem;
use super::request::Search;
use super::task::AbortOnDrop;

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

    pub(super) fn kind(self) -> ActionKind {
        match self {
            Self::Redrive => ActionKind::Redrive,
            Self::Discard => ActionKind::Discard,
        }
    }

    /// Changes an event, with `from` only if it is in this state.
    pub(super) async fn apply(
        self,
        inbox: &dyn Operations,
        id: EventId,
        from: Option<EventState>,
        by: By,
    ) -> Result<Change, StoreError> {
        match self {
            Self::Redrive => inbox.redrive(id, from, by).await,
            Self::Discard => inbox.discard(id, from, by).await,
        }
    }
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

/// The counts of the queue, and their age.
pub(super) type Aged = (Stats, Duration);

/// What a person sees from now on, without any event `None`, and the counts of what is seen.
pub(super) async fn seen_now(inbox: &dyn Operations) -> Result<(Option<Seen>, Aged), StoreError> {
    let newest = first(inbox, Page::newest(1)).await?;
    let (stats, age) = inbox.stats().await?;
    let at = stats.at + age;
    Ok((newest.map(|newest| Seen { newest, at }), (stats, age)))
}

/// The number of events, if the counts of the queue have it.
fn by_stats((stats, age): &Aged, filter: &Filter) -> Option<Counted> {
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
    let of_kinds = stats.kinds.iter();
    let of_kinds = of_kinds.filter(|it| kinds.is_empty() || kinds.contains(&it.kind));
    let events: u64 = of_kinds
        .flat_map(|kind| states.iter().map(move |state| count(kind, state)))
        .sum();
    let is_new = *age < Duration::from_secs(10);
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

/// What a console does in the background.
pub(super) struct Jobs {
    previews: Semaphore,
    exports: Arc<Semaphore>,
    begun: Arc<Notify>,
    runner: OnceLock<AbortOnDrop>,
}

/// The number of jobs that run at a time, of previews, and of exports. Others wait, because more would slow deliveries down.
const TURNS: usize = 4;

impl Default for Jobs {
    fn default() -> Self {
        Self {
            previews: Semaphore::new(TURNS),
            exports: Arc::new(Semaphore::new(TURNS)),
            begun: Arc::default(),
            runner: OnceLock::new(),
        }
    }
}

impl Jobs {
    pub(super) async fn turn_of_export(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.exports).acquire_owned().await.ok()
    }

    /// Counts the events that match.
    pub(super) async fn preview(
        &self,
        inbox: &dyn Operations,
        filter: &Filter,
        seen: Option<Seen>,
        stats: Option<&Aged>,
    ) -> Result<Counted, StoreError> {
        let _turn = self.previews.acquire().await;
        if let Some(counted) = stats.and_then(|stats| by_stats(stats, filter)) {
            return Ok(counted);
        }
        let began = Instant::now();
        let mut page = Page::oldest(STEP);
        let mut events = 0;
        loop {
            let left = SEARCH.saturating_sub(began.elapsed());
            let listed = inbox.list(filter, page.within(left)).await?;
            let has = |event: &&EventSummary| seen.is_none_or(|seen| seen.has(event));
            events += listed.events.iter().filter(has).count();
            page.after = listed.next(STEP);
            let is_more = page.after.is_some();
            if !is_more || events >= COUNT_UP_TO || began.elapsed() >= SEARCH {
                return Ok(Counted {
                    events: events.min(COUNT_UP_TO),
                    is_more,
                });
            }
        }
    }

    /// Runs the jobs of the queue from now on, also those that another process has begun.
    pub(super) fn run(&self, inbox: &Arc<dyn Operations>) {
        if let (None, Ok(runtime)) = (self.runner.get(), Handle::try_current()) {
            let run = run_all(Arc::downgrade(inbox), Arc::clone(&self.begun));
            self.runner
                .get_or_init(|| AbortOnDrop(runtime.spawn(run).abort_handle()));
        }
    }

    /// Begins to change all events that match and that the operator has seen. Returns the number of the job.
    pub(super) async fn begin(
        &self,
        inbox: &dyn Operations,
        action: Action,
        search: &Search,
        by: By,
    ) -> Result<i64, Problem> {
        let (filter, seen) = (search.any_filter()?, search.seen()?);
        let stats = timeout(SEARCH, inbox.stats()).await;
        let stats = stats.ok().and_then(Result::ok);
        let matched = self.preview(inbox, &filter, Some(seen), stats.as_ref());
        let matched = matched.await?;
        let oldest = first(inbox, Page::oldest(1)).await?;
        let scope = Scope {
            filter,
            seen,
            matched: matched.events as u64,
            is_more: matched.is_more,
            oldest: oldest.unwrap_or(seen.newest),
        };
        let job = scope.job(action.kind(), search.rate()?);
        let job = job.ok_or_else(|| Problem::bad("The filter is too long."))?;
        let number = inbox.begin_job(job, by.clone()).await?;
        let filter = search.logged();
        tracing::info!(
            actor = known(by.who()),
            action = action.name(),
            filter,
            job = number,
            "the console changes all events that match"
        );
        self.begun.notify_one();
        Ok(number)
    }
}

/// How often jobs are looked for that nobody holds.
const POLL: Duration = Duration::from_secs(5);

/// How many of the jobs that are running are looked at.
pub(super) const MANY: usize = 100;

/// Runs jobs until the console is gone, which alone keeps the queue open.
async fn run_all(inbox: Weak<dyn Operations>, begun: Arc<Notify>) {
    let mut running = JoinSet::new();
    while let Some(inbox) = inbox.upgrade() {
        while running.try_join_next().is_some() {}
        if running.len() < TURNS
            && let Some((lease, action)) = take(&*inbox).await
        {
            running.spawn(run(inbox, lease, action));
            continue;
        }
        drop(inbox);
        tokio::select! {
            () = begun.notified() => {}
            Some(_) = running.join_next() => {}
            () = sleep(POLL) => {}
        }
    }
}

/// Takes a job that nobody holds.
async fn take(inbox: &dyn Operations) -> Option<(JobLease, Done)> {
    // That there is none is read without a transaction that writes.
    let running = inbox.actions(Which::Running, None, MANY).await.ok()?;
    let mut jobs = running.iter().filter_map(|action| action.job.as_ref());
    match jobs.all(|job| job.is_held) {
        true => None,
        false => inbox.take_job().await.ok()?,
    }
}

async fn run(inbox: Arc<dyn Operations>, lease: JobLease, action: Done) {
    let job = lease.number;
    let changes = AssertUnwindSafe(inbox.run_job(&lease, &action)).catch_unwind();
    match changes.await {
        Ok(Ok(())) => {}
        // When its lease has ended, it is continued after the last step that was made.
        Ok(Err(error)) => {
            let reason = Chain(&error).to_string();
            tracing::warn!(job, reason, "a job waits, because the queue failed");
        }
        Err(_) => {
            tracing::error!(job, "a job has panicked");
            let _ = inbox.fail_job(&lease, &action).await;
        }
    }
    let Ok(Some(ended)) = find(&*inbox, job).await else {
        return;
    };
    if let Some(of) = ended.job.filter(|of| of.state != JobState::Running) {
        tracing::info!(
            actor = known(ended.by.who()),
            action = ended.kind.name(),
            job,
            changed = ended.changed,
            skipped = of.skipped,
            ended = of.state.name(),
            "the console has ended a change of all events that match"
        );
    }
}

/// Finds a job.
pub(super) async fn find(inbox: &dyn Operations, number: i64) -> Result<Option<Done>, StoreError> {
    let Some(before) = number.checked_add(1) else {
        return Ok(None);
    };
    let found = inbox.actions(Which::All, Some(before), 1).await?;
    let mut found = found.into_iter();
    Ok(found.find(|it| it.number == number && it.job.is_some()))
}
