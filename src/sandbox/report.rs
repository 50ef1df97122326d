//! What became of every event.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;

use super::fault::Injected;
use crate::event::{EventKind, Timestamp};

/// The number of an event, counted from 0 in the order in which events arose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(pub(super) usize);

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for EventId {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        text.parse().map(Self)
    }
}

/// The number of an attempt, counted over all events in the order in which attempts began.
///
/// A service in process finds it in the extensions of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId(pub(super) u64);

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One request that was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempt {
    /// Its number.
    pub id: AttemptId,
    /// The event that it carried.
    pub event: EventId,
    /// When it began.
    pub at: Timestamp,
    /// How long it took.
    pub took: Duration,
    /// What went wrong with it, on purpose. The duplicates that a fault causes carry it too.
    pub fault: Option<Injected>,
    /// How it ended, as the platform sees it.
    pub outcome: Outcome,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The receiver answered.
    Answered(StatusCode),
    /// A fault kept the answer from the platform. In process, what would have been answered is
    /// known, if it came to that.
    Withheld(Option<StatusCode>),
    /// The receiver did not answer within the time limit.
    TimedOut,
    /// The request could not be sent, or the connection broke: why.
    Failed(String),
}

impl Outcome {
    /// Whether the platform takes the event for delivered: the answer was 2xx.
    #[must_use]
    pub fn is_delivered(&self) -> bool {
        matches!(self, Self::Answered(status) if status.is_success())
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answered(status) => write!(f, "{}", status.as_u16()),
            Self::Withheld(Some(status)) => write!(f, "{} withheld", status.as_u16()),
            Self::Withheld(None) => f.write_str("no answer"),
            Self::TimedOut => f.write_str("timed out"),
            Self::Failed(reason) => f.write_str(reason),
        }
    }
}

/// What became of an event so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventState {
    /// It is still to be delivered.
    Waiting,
    /// The receiver answered 2xx.
    Delivered,
    /// It was given up: 7 days have passed since the first attempt. A test event is given up at
    /// once.
    Lost,
    /// When it arose, its webhook was disabled, inactive, or had no URL.
    NeverSent,
}

impl fmt::Display for EventState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Waiting => "waiting",
            Self::Delivered => "delivered",
            Self::Lost => "lost",
            Self::NeverSent => "never sent",
        })
    }
}

/// An event and all attempts to deliver it.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventReport {
    /// Its number.
    pub id: EventId,
    /// Its kind.
    pub kind: EventKind,
    /// The identifier of its chat. A test event belongs to none.
    pub chat: Option<String>,
    /// Its idempotency key. A test event has none.
    pub key: Option<String>,
    /// When it arose.
    pub arose_at: Timestamp,
    /// Its payload: the body of every attempt that no fault changed.
    pub body: Bytes,
    /// What became of it.
    pub state: EventState,
    /// When it is tried again, while it waits.
    pub next_retry: Option<Timestamp>,
    /// Every attempt that has ended.
    pub attempts: Vec<Attempt>,
}

impl fmt::Debug for EventReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventReport")
            .field("id", &self.id)
            .field("kind", &self.kind)
            .field("chat", &self.chat)
            .field("key", &self.key)
            .field("arose_at", &self.arose_at)
            .field("body", &format_args!("{} bytes", self.body.len()))
            .field("state", &self.state)
            .field("next_retry", &self.next_retry)
            .field("attempts", &self.attempts)
            .finish()
    }
}

impl fmt::Display for EventReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, chat) = (self.kind.as_str(), self.chat.as_deref().unwrap_or("-"));
        write!(
            f,
            "{:>6}  {kind:<16}  {chat:<10}  {:<10} ",
            self.id.0, self.state
        )?;
        for attempt in &self.attempts {
            write!(f, " {}", attempt.outcome)?;
            if let Some(fault) = attempt.fault {
                write!(f, " [{fault}]")?;
            }
            f.write_str(";")?;
        }
        Ok(())
    }
}

/// What became of all events. `Display` is a table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The events in the order in which they arose.
    pub events: Vec<EventReport>,
}

impl Report {
    /// How many events are in this state.
    #[must_use]
    pub fn count(&self, state: EventState) -> usize {
        self.events
            .iter()
            .filter(|event| event.state == state)
            .count()
    }

    /// Whether every event was delivered.
    #[must_use]
    pub fn is_all_delivered(&self) -> bool {
        self.count(EventState::Delivered) == self.events.len()
    }

    /// Every attempt, in the order in which they began.
    #[must_use]
    pub fn attempts(&self) -> Vec<&Attempt> {
        let mut attempts: Vec<_> = self
            .events
            .iter()
            .flat_map(|event| &event.attempts)
            .collect();
        attempts.sort_by_key(|attempt| attempt.id);
        attempts
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            " event  kind              chat        state       attempts"
        )?;
        for event in &self.events {
            writeln!(f, "{event}")?;
        }
        write!(f, "{} events", self.events.len())?;
        for state in [
            EventState::Delivered,
            EventState::Waiting,
            EventState::Lost,
            EventState::NeverSent,
        ] {
            write!(f, ", {} {state}", self.count(state))?;
        }
        Ok(())
    }
}
