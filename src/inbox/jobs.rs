//! Jobs: changes of all events that match. A job is a row of the queue: whoever holds its lease continues after the last
//! step that was made, also after a restart.

use std::time::{Duration, SystemTime};

use http::HeaderValue;
use serde::{Deserialize, Serialize};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, sleep_until};

use super::actions::{Action, ActionKind, JobLease, JobState, JobStep, NewJob};
use super::event::EventId;
use super::handle::Inbox;
use super::queue::Queue;
use super::records::{EventSummary, Filter, Page};
use crate::delivery::IdempotencyKey;
use crate::store::StoreError;

/// For how long a job is held. Another process continues it at most so long after its last step.
const LEASE: Duration = Duration::from_secs(10);

/// The longest pause between two steps: much shorter than the lease.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How often a job notes how far it is, if nothing matches.
const NOTE: Duration = Duration::from_secs(2);

/// The number of events that are read at a time, and for how long they are looked for.
const STEP: usize = 512;
const SEARCH: Duration = Duration::from_millis(40);

/// The number of events that are changed at a time. They share a transaction, for which deliveries wait. Before the next
/// one, they have their turn for as long as it took.
const AT_ONCE: usize = 64;

/// The longest text of a scope, in bytes.
const LONGEST: usize = 4_000;

/// What a person has seen: no event after the newest one, and none that died or was settled later.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// The newest event.
    pub newest: EventId,
    /// By the clock of the queue.
    pub at: SystemTime,
}

impl Seen {
    /// The time since 1970.
    pub fn nanos(&self) -> u128 {
        let since = self.at.duration_since(SystemTime::UNIX_EPOCH);
        since.unwrap_or_default().as_nanos()
    }

    pub fn has(&self, event: &EventSummary) -> bool {
        event.id <= self.newest && event.settled_at.is_none_or(|settled| settled <= self.at)
    }
}

/// The events that a job changes, and what was known of them at its beginning.
#[derive(Clone, Debug)]
pub struct Scope {
    /// Without a text in the body.
    pub filter: Filter,
    /// What the person has seen.
    pub seen: Seen,
    /// How many events matched.
    pub matched: u64,
    /// Whether more may have matched.
    pub is_more: bool,
    /// The oldest event of the queue.
    pub oldest: EventId,
}

/// A scope in the row of its job.
#[derive(Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct Text {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    states: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kinds: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    chat: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    accepted_from: Option<SystemTime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    accepted_until: Option<SystemTime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failed_from: Option<SystemTime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failed_until: Option<SystemTime>,
    newest: i64,
    at: Option<SystemTime>,
    matched: u64,
    is_more: bool,
    oldest: i64,
}

impl Scope {
    /// Returns the job that makes the change. `None` if the filter is too long.
    #[must_use]
    pub fn job(&self, kind: ActionKind, rate: u32) -> Option<NewJob> {
        let filter = self.text()?;
        (filter.len() <= LONGEST).then(|| NewJob {
            kind,
            filter,
            chat: self.filter.chat.clone(),
            rate,
        })
    }

    fn text(&self) -> Option<String> {
        let filter = &self.filter;
        let text = Text {
            states: filter.states.iter().map(ToString::to_string).collect(),
            kinds: filter.kinds.iter().map(ToString::to_string).collect(),
            chat: filter.chat.clone(),
            key: filter.key.as_ref().map(ToString::to_string),
            error: filter.error.clone(),
            accepted_from: filter.accepted_from,
            accepted_until: filter.accepted_until,
            failed_from: filter.failed_from,
            failed_until: filter.failed_until,
            newest: self.seen.newest.0,
            at: Some(self.seen.at),
            matched: self.matched,
            is_more: self.is_more,
            oldest: self.oldest.0,
        };
        serde_json::to_string(&text).ok()
    }

    /// Returns the scope of a job.
    #[must_use]
    pub fn of(action: &Action) -> Option<Self> {
        let text: Text = serde_json::from_str(action.about.as_deref()?).ok()?;
        let states: Result<_, _> = text.states.iter().map(|state| state.parse()).collect();
        let kinds: Result<_, _> = text.kinds.iter().map(|kind| kind.parse()).collect();
        let key = |key: String| IdempotencyKey::new(HeaderValue::try_from(key).ok()?);
        Some(Self {
            filter: Filter {
                states: states.ok()?,
                kinds: kinds.ok()?,
                chat: text.chat,
                key: match text.key {
                    Some(text) => Some(key(text)?),
                    None => None,
                },
                accepted_from: text.accepted_from,
                accepted_until: text.accepted_until,
                error: text.error,
                body: None,
                failed_from: text.failed_from,
                failed_until: text.failed_until,
            },
            seen: Seen {
                newest: EventId(text.newest),
                at: text.at?,
            },
            matched: text.matched,
            is_more: text.is_more,
            oldest: EventId(text.oldest),
        })
    }
}

/// Why a job stops before its end.
enum Stop {
    /// It is cancelled, or another process has it.
    Lost,
    Failed(StoreError),
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        Self::Failed(error)
    }
}

// Hidden: what the console and the example receiver have in common.
#[doc(hidden)]
impl<Q: Queue> Inbox<Q> {
    pub async fn begin_job(&self, job: &NewJob) -> Result<i64, StoreError> {
        let begin = self.shared.queue.begin_job(job, &self.settings.by);
        self.settings.call("begin-job", begin).await
    }

    /// Takes the oldest job that nobody holds.
    pub async fn take_job(&self) -> Result<Option<(JobLease, Action)>, StoreError> {
        let take = self.shared.queue.take_job(LEASE);
        self.settings.call("take-job", take).await
    }

    /// Works on a job until it has ended, or is cancelled, or another process has it. After an error, it is continued when
    /// its lease has ended.
    pub async fn run_job(&self, lease: &JobLease, action: &Action) -> Result<(), StoreError> {
        let (Some(job), Some(scope)) = (&action.job, Scope::of(action)) else {
            let job = lease.number;
            tracing::error!(job, "the filter of a job is that of another release");
            return self.fail_job(lease, action).await;
        };
        let redrives = action.kind == ActionKind::Redrive;
        match self
            .change_all(lease, redrives, &scope, (job.rate, job.reached))
            .await
        {
            Ok(()) | Err(Stop::Lost) => Ok(()),
            Err(Stop::Failed(error)) => Err(error),
        }
    }

    /// Ends a job that cannot be continued.
    pub async fn fail_job(&self, lease: &JobLease, action: &Action) -> Result<(), StoreError> {
        let failed = JobStep {
            redrives: false,
            events: Vec::new(),
            reached: action.job.as_ref().map_or(EventId(0), |job| job.reached),
            state: JobState::Failed,
            lease: LEASE,
        };
        self.step_job(lease, &failed).await.map(|_| ())
    }

    pub async fn cancel_job(&self, number: i64) -> Result<bool, StoreError> {
        let cancel = self.shared.queue.cancel_job(number, &self.settings.by);
        self.settings.call("cancel-job", cancel).await
    }

    async fn step_job(&self, lease: &JobLease, step: &JobStep) -> Result<bool, StoreError> {
        let done = self.shared.queue.step_job(lease, step);
        let is_held = self.settings.call("step-job", done).await?;
        if !step.events.is_empty() {
            // What was in progress and is discarded has lost its lease.
            if !step.redrives {
                self.shared.workers.check();
            }
            self.shared.workers.wake();
        }
        Ok(is_held)
    }

    /// Changes the events that the person has seen. Those whose state has changed since they were listed are not changed.
    async fn change_all(
        &self,
        lease: &JobLease,
        redrives: bool,
        scope: &Scope,
        (rate, reached): (u32, EventId),
    ) -> Result<(), Stop> {
        let step = async |events, reached, state| {
            let step = JobStep {
                redrives,
                events,
                reached,
                state,
                lease: LEASE,
            };
            match self.step_job(lease, &step).await? {
                true => Ok(()),
                false => Err(Stop::Lost),
            }
        };
        let (limit, at_once) = match rate as usize {
            0 => (STEP, AT_ONCE),
            // What was listed is at most a second old when it is changed.
            rate => (rate.min(STEP), (rate / 4).clamp(1, AT_ONCE)),
        };
        let mut page = Page::oldest(limit).within(SEARCH);
        page.after = Some(reached).filter(|reached| *reached > EventId(0));
        let (began, mut tried, mut noted) = (Instant::now(), 0, Instant::now());
        loop {
            let listed = self.list(&scope.filter, page).await?;
            page.after = listed.next(limit);
            let events = listed.events.iter().filter(|event| scope.seen.has(event));
            let events: Vec<_> = events.map(|event| (event.id, event.state)).collect();
            for some in events.chunks(at_once) {
                let reached = some.last().map_or(reached, |(id, _)| *id);
                let asked = Instant::now();
                step(some.to_vec(), reached, JobState::Running).await?;
                noted = Instant::now();
                tried += some.len();
                sleep(asked.elapsed().min(LONGEST_PAUSE)).await;
                // A queue in memory takes no time, and pages are to be answered meanwhile.
                yield_now().await;
                if rate > 0 {
                    sleep_until(began + Duration::from_secs_f64(tried as f64 / f64::from(rate)))
                        .await;
                }
            }
            match page.after.filter(|after| *after < scope.seen.newest) {
                None => return step(Vec::new(), scope.seen.newest, JobState::Done).await,
                Some(after) if noted.elapsed() >= NOTE => {
                    step(Vec::new(), after, JobState::Running).await?;
                    noted = Instant::now();
                }
                Some(_) => {}
            }
        }
    }
}
