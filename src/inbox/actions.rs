//! What persons did, by whom, and why.

use std::fmt;
use std::time::{Duration, SystemTime};

use super::event::{EventId, EventState};
use crate::event::EventKind;
use crate::store::Fence;

/// Who makes a change, and why. It is recorded with the change, for at most 90 days.
///
/// ```
/// use tower_webhook::inbox::By;
///
/// let by = By::new("ada").because("the CRM is back");
/// assert_eq!((by.who(), by.reason()), ("ada", "the CRM is back"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct By {
    who: String,
    reason: String,
}

impl By {
    /// How long a name or a reason may be, in characters. The rest is left out.
    pub const LONGEST: usize = 200;

    /// Names who makes a change. The default is an empty name: a program, or somebody unknown.
    #[must_use]
    pub fn new(who: &str) -> Self {
        Self {
            who: short(who),
            reason: String::new(),
        }
    }

    /// Says why.
    #[must_use]
    pub fn because(mut self, reason: &str) -> Self {
        self.reason = short(reason);
        self
    }

    /// Returns who makes the change.
    #[must_use]
    pub fn who(&self) -> &str {
        &self.who
    }

    /// Returns why. Empty if nobody said it.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

/// On one line, and without a NUL, which no database but SQLite keeps in a text.
fn short(text: &str) -> String {
    let visible = text.replace(char::is_control, " ");
    let short: String = visible.trim().chars().take(By::LONGEST).collect();
    short.trim_end().to_owned()
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ActionKind {
    /// Events were redriven.
    Redrive,
    /// Events were discarded.
    Discard,
    /// A kind was paused, or everything.
    Pause,
    /// A kind was resumed, or everything.
    Resume,
    /// A chat was forgotten.
    Forget,
    /// A job was cancelled.
    Cancel,
}

impl ActionKind {
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    const ALL: [Self; 6] = [
        Self::Redrive,
        Self::Discard,
        Self::Pause,
        Self::Resume,
        Self::Forget,
        Self::Cancel,
    ];

    /// Returns its name, such as `redrive`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Redrive => "redrive",
            Self::Discard => "discard",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Forget => "forget",
            Self::Cancel => "cancel",
        }
    }

    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl fmt::Display for ActionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What a person did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Action {
    /// Its number. Later actions have larger ones.
    pub number: i64,
    /// When it was done.
    pub at: SystemTime,
    /// By whom, and why.
    pub by: By,
    /// What was done.
    pub kind: ActionKind,
    /// The event that was changed, if it was one. `None` after its chat was forgotten.
    pub event: Option<EventId>,
    /// The kind that was paused or resumed, empty for everything; the start of the SHA-256 of the id of the chat that was
    /// forgotten, in hexadecimal; the filter of a job; or the number of the job that was cancelled.
    pub about: Option<String>,
    /// The number of events that were changed, or of bodies that were deleted.
    pub changed: u64,
    /// How far it is, if it changes all events that match a filter.
    pub job: Option<Job>,
}

/// A change of all events that match a filter. It goes on after a restart, and changes each event once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Its state.
    pub state: JobState,
    /// The number of events that could not be changed.
    pub skipped: u64,
    /// The last event that it has looked at, or 0.
    pub reached: EventId,
    /// How many events it changes in a second at most. 0 without a limit.
    pub rate: u32,
    /// Whether a process works on it, or did some seconds ago. Never if it has ended.
    pub is_held: bool,
}

/// The state of a [`Job`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JobState {
    /// It goes on.
    Running,
    /// It has changed all events that match.
    Done,
    /// A person has cancelled it, or its chat was forgotten.
    Cancelled,
    /// It has ended because of a fault, which the log has.
    Failed,
}

impl JobState {
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    const ALL: [Self; 4] = [Self::Running, Self::Done, Self::Cancelled, Self::Failed];

    /// Returns its name, such as `running`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "done",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
        }
    }

    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}

/// Selects actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Which {
    /// All of them.
    All,
    /// Those that changed this event.
    Of(EventId),
    /// Jobs that are [running](JobState::Running).
    Running,
}

/// A job that begins.
#[derive(Clone, Debug)]
pub struct NewJob {
    /// Redrive or discard.
    pub kind: ActionKind,
    /// The filter, which only those who run the job understand.
    pub filter: String,
    /// The chat that the filter names.
    pub chat: Option<String>,
    /// See [`Job::rate`].
    pub rate: u32,
}

/// The right to work on a job, until another process takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobLease {
    /// The number of the action.
    pub number: i64,
    /// What nobody else has.
    pub fence: Fence,
}

/// The next events of a job, which are changed together, and at once with its state.
#[derive(Clone, Debug)]
pub struct JobStep {
    /// Whether the events are redriven, or discarded.
    pub redrives: bool,
    /// The events, with the states in which they are changed.
    pub events: Vec<(EventId, EventState)>,
    /// See [`Job::reached`].
    pub reached: EventId,
    /// The state after the step.
    pub state: JobState,
    /// For how long the job is leased after the step.
    pub lease: Duration,
}

/// Returns the start of the SHA-256 of a chat's id in hexadecimal, which stays when the chat is forgotten.
pub(crate) fn chat_digest(chat: &str) -> String {
    use sha2::{Digest, Sha256};

    base16ct::lower::encode_string(&Sha256::digest(chat)[..8])
}

/// What a pause of a kind is about, and whether it begins or ends.
pub(crate) fn paused(kind: Option<&EventKind>, note: Option<&str>) -> (String, ActionKind) {
    let kind = kind.map(ToString::to_string);
    let done = match note {
        Some(_) => ActionKind::Pause,
        None => ActionKind::Resume,
    };
    (kind.unwrap_or_default(), done)
}

/// For how long actions are kept.
pub(crate) const KEPT: Duration = Duration::from_secs(90 * 24 * 60 * 60);

/// How many actions are kept.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) const MOST: i64 = 100_000;
