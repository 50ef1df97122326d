//! Failed events by cause: those whose last failures have one shape.
//!
//! The shape stands beside each failure, so that the newest events that have failed, which any queue lists by an index, are
//! grouped at a cost that does not grow with the inbox. Counts by shape in the series of failures would say nothing of chats,
//! would need a list of shapes in each process, and would keep texts of failures after their chat was forgotten. A row for
//! each shape would be what all settlements wait for while everything fails.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, SystemTime};

use super::event::{EventId, Failure, Shape};
use super::handle::Inbox;
use super::records::{EventSummary, Filter, Page};
use crate::event::EventKind;
use crate::route::{EventType, RouteName};
use crate::store::StoreError;

/// How many failed events are looked at: the newest ones.
const NEWEST: usize = 5_000;

/// For how long the oldest event of a cause is searched.
const SEARCH: Duration = Duration::from_millis(40);

/// How many shapes of a type are told apart.
const SHAPES: usize = 200;

/// What an event has that crashed before any attempt of it failed.
const CRASHED: [&str; 2] = ["crashed", "the process died, or the lease expired"];

/// Why events have failed that are retried or are dead letters.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Causes {
    /// The causes of most events, the one of most first.
    pub causes: Vec<Cause>,
    /// How many events have failed for others.
    pub others: u64,
    /// How many failed events were looked at: the newest 5,000 at most.
    pub events: u64,
    /// Whether older ones have failed, too.
    pub is_more: bool,
}

/// What the last failures of events of a type have in common.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Cause {
    /// The route of the events.
    pub route: RouteName,
    /// Their kind.
    pub kind: EventKind,
    /// The shape of their last failures. `None` for all further shapes of the type after 200, and for events that crashed.
    pub shape: Option<Shape>,
    /// The outcome and the reason of the newest event.
    pub outcome: String,
    /// The reason of the newest event.
    pub reason: String,
    /// The number of the events.
    pub events: u64,
    /// The number of their chats.
    pub chats: u64,
    /// When the oldest of the events first failed for it, or any that was looked at last did before that. If more have
    /// failed, the oldest is searched for 40 ms.
    pub first: SystemTime,
    /// When it was seen last.
    pub last: SystemTime,
}

impl Inbox {
    /// Returns why events have failed that are retried or are dead letters: the newest 5,000 of them by the
    /// [shape](Failure::shape) of their last failures, and of these the `most` causes of most events.
    /// [`Filter::shape`] selects the events of a cause.
    ///
    /// ```
    /// # use tower_webhook::inbox::{Inbox, Filter};
    /// # use tower_webhook::store::StoreError;
    /// # async fn example(inbox: &Inbox) -> Result<(), StoreError> {
    /// for cause in inbox.causes(10).await?.causes {
    ///     println!("{} events in {} chats: {}", cause.events, cause.chats, cause.reason);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When the queue fails.
    pub async fn causes(&self, most: usize) -> Result<Causes, StoreError> {
        let failed = Filter::failed(None, None);
        let listed = self.list(&failed, Page::newest(NEWEST)).await?;
        let mut groups = Groups::default();
        for event in &listed.events {
            groups.add(event);
        }
        let mut groups = groups.sorted();
        let others = groups.split_off(most.min(groups.len()));
        let mut causes = Causes {
            causes: Vec::with_capacity(groups.len()),
            others: others.iter().map(|group| group.cause.events).sum(),
            events: listed.events.len() as u64,
            is_more: listed.events.len() == NEWEST,
        };
        for Group {
            mut cause, oldest, ..
        } in groups
        {
            let older = match causes.is_more {
                true => self.oldest(&cause).await?,
                false => None,
            };
            // A summary has the last failure alone, which is a later one with each attempt.
            let record = self.get(older.unwrap_or(oldest)).await?;
            let failures = record.into_iter().flat_map(|record| record.failures);
            let of_cause = failures.filter(|past| Some(past.failure.shape) == cause.shape);
            cause.first = of_cause
                .map(|past| past.at)
                .fold(cause.first, SystemTime::min);
            causes.causes.push(cause);
        }
        Ok(causes)
    }

    /// The oldest event of a cause, if it is found soon.
    async fn oldest(&self, cause: &Cause) -> Result<Option<EventId>, StoreError> {
        let Some(shape) = cause.shape else {
            return Ok(None);
        };
        let filter = Filter::failed(None, None).shape(shape);
        let filter = filter.routes([cause.route.clone()]);
        let filter = filter.kinds([cause.kind.clone()]);
        let listed = self.list(&filter, Page::oldest(1).within(SEARCH)).await?;
        Ok(listed.events.first().map(|event| event.id))
    }
}

/// The events of a cause.
struct Group {
    cause: Cause,
    chats: HashSet<String>,
    oldest: EventId,
}

#[derive(Default)]
struct Groups(HashMap<(EventType, Option<Shape>), Group>);

impl Groups {
    /// Adds an event that is older than those before.
    fn add(&mut self, event: &EventSummary) {
        let last = event.last_failure.as_ref();
        let at = last.map_or(event.accepted_at, |last| last.at);
        let of = EventType::new(event.route.clone(), event.kind.clone());
        let shape = last.map(|last| last.failure.shape);
        let begin = || {
            let [outcome, reason] = CRASHED;
            let crashed = || Failure::new(outcome, reason);
            let failure = last.map_or_else(crashed, |last| last.failure.clone());
            Group {
                cause: Cause {
                    route: event.route.clone(),
                    kind: event.kind.clone(),
                    shape,
                    outcome: failure.outcome,
                    reason: failure.reason,
                    events: 0,
                    chats: 0,
                    first: at,
                    last: at,
                },
                chats: HashSet::new(),
                oldest: event.id,
            }
        };
        let group = self.0.entry((of, shape)).or_insert_with(begin);
        group.join(at, at, 1);
        group.chats.extend(event.chat.clone());
        group.oldest = event.id;
    }

    /// Those of most events first, and of each type the further ones as one.
    fn sorted(self) -> Vec<Group> {
        let mut groups: Vec<_> = self.0.into_values().collect();
        let order = |group: &Group| {
            (
                Reverse(group.cause.events),
                Reverse(group.cause.last),
                group.oldest,
            )
        };
        groups.sort_by_key(order);
        let mut of_types = HashMap::<EventType, usize>::new();
        let mut kept: Vec<Group> = Vec::with_capacity(groups.len());
        let mut rest = HashMap::<EventType, Group>::new();
        for mut group in groups {
            let of = EventType::new(group.cause.route.clone(), group.cause.kind.clone());
            let number = of_types.entry(of.clone()).or_default();
            *number += 1;
            if *number <= SHAPES {
                kept.push(group);
            } else if let Some(rest) = rest.get_mut(&of) {
                let cause = &group.cause;
                rest.join(cause.first, cause.last, cause.events);
                rest.chats.extend(group.chats);
            } else {
                group.cause.shape = None;
                rest.insert(of, group);
            }
        }
        kept.extend(rest.into_values());
        kept.sort_by_key(order);
        for group in &mut kept {
            group.cause.chats = group.chats.len() as u64;
        }
        kept
    }
}

impl Group {
    fn join(&mut self, first: SystemTime, last: SystemTime, events: u64) {
        self.cause.first = self.cause.first.min(first);
        self.cause.last = self.cause.last.max(last);
        self.cause.events += events;
    }
}
