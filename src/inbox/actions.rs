//! What persons did, by whom, and why.

use std::fmt;
use std::time::{Duration, SystemTime};

use super::event::EventId;
use crate::event::EventKind;

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
}

impl ActionKind {
    const ALL: [Self; 5] = [
        Self::Redrive,
        Self::Discard,
        Self::Pause,
        Self::Resume,
        Self::Forget,
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
    /// The kind that was paused or resumed, empty for everything; or the start of the SHA-256 of the id of the chat
    /// that was forgotten, in hexadecimal.
    pub about: Option<String>,
    /// The number of events that were changed, or of bodies that were deleted.
    pub changed: u64,
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
