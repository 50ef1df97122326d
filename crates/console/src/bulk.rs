//! Changes of all events that match, each in a task.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tower_webhook::inbox::{
    ActionKind, Change, EventId, EventState, Filter, Inbox, KindStats, Seen, Selection, Stats,
};
use tower_webhook::store::StoreError;
use tower_webhook::telemetry::Chain;

use super::counts::Counts;
use super::problem::Problem;
use super::reading::read;

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
        inbox: &Inbox,
        id: EventId,
        from: Option<EventState>,
    ) -> Result<Change, StoreError> {
        match self {
            Self::Redrive => inbox.redrive(id, from).await,
            Self::Discard => inbox.discard(id, from).await,
        }
    }
}

/// The number of events, if the counts of the queue have it.
fn by_stats(stats: &Stats, filter: &Filter) -> Option<u64> {
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
        routes,
        kinds,
        ..
    } = filter;
    // The counts know nothing of its other fields.
    let counted = Filter::default()
        .states(states.clone())
        .routes(routes.clone())
        .kinds(kinds.clone());
    if *filter != counted {
        return None;
    }
    // The counts have no settled events, so their sum would be too small.
    if states.is_empty() || !states.iter().all(is_counted) {
        return None;
    }
    let matches = |it: &&KindStats| {
        (routes.is_empty() || routes.contains(&it.route))
            && (kinds.is_empty() || kinds.contains(&it.kind))
    };
    let of_types = stats.kinds.iter().filter(matches);
    let counts = of_types.flat_map(|kind| states.iter().map(move |state| count(kind, state)));
    Some(counts.sum())
}

/// What a console does at a time.
pub(super) struct Turns {
    previews: Semaphore,
    exports: Arc<Semaphore>,
    changes: Arc<Semaphore>,
}

/// The number of previews and of exports at a time. Others wait, because more would slow deliveries down. As many changes of
/// all that match are made at a time, and others are refused.
const TURNS: usize = 4;

impl Default for Turns {
    fn default() -> Self {
        Self {
            previews: Semaphore::new(TURNS),
            exports: Arc::new(Semaphore::new(TURNS)),
            changes: Arc::new(Semaphore::new(TURNS)),
        }
    }
}

/// How long a preview waits for the counts of the queue, and the age up to which they are its own.
const COUNTS: Duration = Duration::from_secs(1);
const OLDEST: Duration = Duration::from_secs(10);

impl Turns {
    pub(super) async fn of_export(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.exports).acquire_owned().await.ok()
    }

    pub(super) fn of_change(&self) -> Result<OwnedSemaphorePermit, Problem> {
        let full = |_| {
            let reason = format!(
                "A console makes {TURNS} changes of all that match at a time. Wait for the end of one, or cancel it."
            );
            Problem::new(StatusCode::CONFLICT, reason)
        };
        Arc::clone(&self.changes).try_acquire_owned().map_err(full)
    }

    /// Selects the events that match. The queue has counted them, perhaps, if they are too many to count now.
    pub(super) async fn select(
        &self,
        inbox: &Inbox,
        counts: &Counts,
        filter: &Filter,
        seen: Seen,
    ) -> Result<Selection, StoreError> {
        let _turn = self.previews.acquire().await;
        let mut selection = read(inbox.select(filter, seen)).await?;
        // After the search, so that the counts are not older than what the preview has seen.
        if selection.is_more
            && let Ok(Ok((stats, age))) = timeout(COUNTS, counts.of(inbox)).await
            && age < OLDEST
            && let Some(matched) = by_stats(&stats, filter)
        {
            selection.matched = matched;
            selection.is_more = false;
        }
        Ok(selection)
    }
}

/// Makes a change that was begun, in a task, since the operator may disconnect.
pub(super) fn spawn(inbox: Inbox, number: i64, turn: OwnedSemaphorePermit) {
    tokio::spawn(async move {
        let _turn = turn;
        let ended = AssertUnwindSafe(inbox.continue_all(number)).catch_unwind();
        let action = match ended.await {
            Ok(Ok(action)) => action,
            Ok(Err(error)) => {
                let reason = Chain(&error).to_string();
                tracing::warn!(
                    number,
                    reason,
                    "a change of all events that match cannot go on"
                );
                return;
            }
            // Without a step, it is shown as interrupted after a minute.
            Err(_) => {
                tracing::error!(number, "a change of all events that match has panicked");
                return;
            }
        };
        if let Some(bulk) = action.bulk.filter(|bulk| !bulk.is_open()) {
            tracing::info!(
                actor = action.by.who(),
                action = action.kind.name(),
                number,
                changed = action.changed,
                skipped = bulk.skipped,
                ended = bulk.state.name(),
                "the console has ended a change of all events that match"
            );
        }
    });
}
