//! What persons did, by whom, and why.

use std::fmt;
use std::time::{Duration, SystemTime};

use super::event::{EventId, EventState};

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
    /// An event type was paused, a route, or everything.
    Pause,
    /// It was resumed.
    Resume,
    /// The note on a handler was ended: see [`Inbox::retire`](super::Inbox::retire).
    Retire,
    /// A chat was forgotten.
    Forget,
    /// A [`Bulk`] change was cancelled.
    Cancel,
}

impl ActionKind {
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    const ALL: [Self; 7] = [
        Self::Redrive,
        Self::Discard,
        Self::Pause,
        Self::Resume,
        Self::Retire,
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
            Self::Retire => "retire",
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
#[non_exhaustive]
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
    /// The [scope](super::Scope) that was paused, resumed or retired; the start of the SHA-256 of the id of the chat that was
    /// forgotten, in hexadecimal; what a bulk change [selects](Self::selection); or the number of a cancelled bulk change.
    pub about: Option<String>,
    /// The number of events that were changed, or of bodies that were deleted.
    pub changed: u64,
    /// How far it is, if it changes all events that match a filter.
    pub bulk: Option<Bulk>,
}

/// How far a change of all events that match a filter is: see [`Inbox::redrive_all`](super::Inbox::redrive_all).
///
/// ```
/// use tower_webhook::inbox::{Action, BulkState};
///
/// /// Whether nobody works on it any more, and events are left.
/// fn is_left(action: &Action) -> bool {
///     let bulk = action.bulk.as_ref();
///     bulk.is_some_and(|bulk| bulk.state == BulkState::Interrupted)
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bulk {
    /// Its state.
    pub state: BulkState,
    /// The number of events that could not be changed.
    pub skipped: u64,
    /// The last event that it has looked at, or 0. The next step begins after it.
    pub reached: EventId,
    /// How many events it changes in a second at most. 0 without a limit.
    pub rate: u32,
}

impl Bulk {
    /// Whether events may be left, on which somebody works or not.
    ///
    /// ```
    /// use tower_webhook::inbox::{Action, Inbox};
    /// use tower_webhook::store::StoreError;
    ///
    /// /// Waits for a change that another process makes.
    /// async fn has_ended(inbox: &Inbox, number: i64) -> Result<bool, StoreError> {
    ///     let action = inbox.action(number).await?;
    ///     Ok(action.and_then(|action| action.bulk).is_none_or(|bulk| !bulk.is_open()))
    /// }
    /// ```
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(self.state, BulkState::Running | BulkState::Interrupted)
    }
}

/// The state of a [`Bulk`] change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BulkState {
    /// A process works on it.
    Running,
    /// It has made no step for a minute: the process that worked on it has ended, or cannot reach the queue. It goes on when
    /// a person [continues](super::Inbox::continue_all) it.
    Interrupted,
    /// It has changed all events that match.
    Done,
    /// A person has cancelled it, or its chat was forgotten.
    Cancelled,
}

impl BulkState {
    /// Returns its name, such as `running`.
    ///
    /// ```
    /// use tower_webhook::inbox::BulkState;
    ///
    /// assert_eq!(BulkState::Interrupted.name(), "interrupted");
    /// ```
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Interrupted => "interrupted",
            Self::Done => "done",
            Self::Cancelled => "cancelled",
        }
    }

    /// The state by its name in a queue, and by whether its last step is [long ago](INTERRUPTED_AFTER).
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn parse(name: &str, is_late: bool) -> Option<Self> {
        match name {
            "running" if is_late => Some(Self::Interrupted),
            "running" => Some(Self::Running),
            "done" => Some(Self::Done),
            "cancelled" => Some(Self::Cancelled),
            _ => None,
        }
    }
}

/// The time without a step after which a change counts as interrupted.
pub(crate) const INTERRUPTED_AFTER: Duration = Duration::from_secs(60);

/// Selects actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Which {
    /// All of them.
    All,
    /// Those that changed this event.
    Of(EventId),
    /// Bulk changes that are [open](Bulk::is_open): running or interrupted.
    Running,
}

/// A bulk change that begins.
#[derive(Clone, Debug)]
pub struct NewBulk {
    /// Redrive or discard.
    pub kind: ActionKind,
    /// What it selects, which only the inbox understands.
    pub about: String,
    /// The chat that the filter names.
    pub chat: Option<String>,
    /// See [`Bulk::rate`].
    pub rate: u32,
}

/// The next events of a bulk change. They are changed together, and at once with its position.
#[derive(Clone, Debug)]
pub struct BulkStep {
    /// Whether the events are redriven, or discarded.
    pub redrives: bool,
    /// The events, with the states in which they are changed.
    pub events: Vec<(EventId, EventState)>,
    /// The position from which this step leads on. The step is made only there, so that no other one leads on from there.
    pub from: EventId,
    /// The position after it: see [`Bulk::reached`]. It is behind `from` if there are events.
    pub reached: EventId,
    /// Whether the change is done then.
    pub is_last: bool,
}

/// Returns the start of the SHA-256 of a chat's id in hexadecimal, which stays when the chat is forgotten.
pub(crate) fn chat_digest(chat: &str) -> String {
    use sha2::{Digest, Sha256};

    base16ct::lower::encode_string(&Sha256::digest(chat)[..8])
}

/// Whether a pause begins or ends.
pub(crate) fn paused(note: Option<&str>) -> ActionKind {
    match note {
        Some(_) => ActionKind::Pause,
        None => ActionKind::Resume,
    }
}

/// For how long actions are kept.
pub(crate) const KEPT: Duration = Duration::from_secs(90 * 24 * 60 * 60);

/// How many actions are kept.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) const MOST: i64 = 100_000;
