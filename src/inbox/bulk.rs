//! Changes of all events that match. The process that begins a change makes it in steps, beside accepting. Its position is
//! in the queue, where each step moves it on, so that no two processes make the same step.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::actions::{Action, ActionKind, Bulk, BulkState, BulkStep, NewBulk, Which};
use super::event::EventId;
use super::handle::Inbox;
use super::records::{EventSummary, Filter, Page};
use crate::delivery::IdempotencyKey;
use crate::error::Chain;
use crate::store::{StoreError, StoreErrorKind};

/// The longest pause between two steps: much shorter than the time after which a change counts as interrupted.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How often a change notes how far it is, if nothing matches.
const NOTE: Duration = Duration::from_secs(2);

/// The number of events that are read at a time, and for how long they are looked for.
const STEP: usize = 512;
const SEARCH: Duration = Duration::from_millis(40);

/// The number of events that are changed at a time. They share a transaction. Where deliveries wait for it, they have their
/// turn for as long before the next one. Elsewhere a pause would only make a change slower, on a busy machine most of all.
const AT_ONCE: usize = 64;

/// The number up to which a preview counts.
const COUNT_UP_TO: u64 = 10_000;

/// The longest text of a selection, in bytes: it has room for a chat, a key and an error of 1 KiB each, the longest that
/// are stored but for keys of headers. JSON has up to six bytes for one.
const LONGEST: usize = 32 << 10;

/// For how long an answer of the queue is waited for.
const ANSWER: Duration = Duration::from_secs(20);

/// The first and the longest pause after an error of the queue.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(10);

/// What a person has seen: the events up to the newest one, in the states that they had at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Seen {
    /// The newest event.
    pub newest: EventId,
    /// The time, by the clock of the queue.
    pub at: SystemTime,
}

impl Seen {
    /// What was seen at this time, up to this event. A page that asks for confirmation passes both on.
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use tower_webhook::inbox::{EventId, Seen};
    ///
    /// let seen = Seen::new(EventId(17), SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_000_000));
    /// assert_eq!(seen.newest, EventId(17));
    /// ```
    #[must_use]
    pub fn new(newest: EventId, at: SystemTime) -> Self {
        Self { newest, at }
    }

    /// Whether an event was seen as it is now.
    #[must_use]
    pub fn has(&self, event: &EventSummary) -> bool {
        event.id <= self.newest && event.settled_at.is_none_or(|settled| settled <= self.at)
    }
}

/// The events that a change of all that match selects, and what was known of them before it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Selection {
    /// The filter.
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

impl Selection {
    /// Whether no event matched.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.matched == 0 && !self.is_more
    }

    fn text(&self) -> Option<String> {
        let filter = &self.filter;
        let text = Text {
            states: filter.states.iter().map(ToString::to_string).collect(),
            routes: filter.routes.iter().map(ToString::to_string).collect(),
            kinds: filter.kinds.iter().map(ToString::to_string).collect(),
            chat: filter.chat.clone(),
            key: filter.key.as_ref().map(ToString::to_string),
            error: filter.error.clone(),
            accepted_from: filter.accepted_from,
            accepted_until: filter.accepted_until,
            failed_from: filter.failed_from,
            failed_until: filter.failed_until,
            shape: filter.shape.as_ref().map(ToString::to_string),
            changed_by: filter.changed_by,
            newest: self.seen.newest.0,
            at: Some(self.seen.at),
            matched: self.matched,
            is_more: self.is_more,
            oldest: self.oldest.0,
        };
        serde_json::to_string(&text).ok()
    }
}

impl Action {
    /// Returns which events a [`Bulk`] change selects. `None` for other actions, after its chat was forgotten, and if another
    /// release has begun it.
    ///
    /// ```
    /// use tower_webhook::inbox::Action;
    ///
    /// /// How many events a change has looked at, and how many it will.
    /// fn progress(action: &Action) -> Option<(u64, u64)> {
    ///     let skipped = action.bulk.as_ref()?.skipped;
    ///     Some((action.changed + skipped, action.selection()?.matched))
    /// }
    /// ```
    #[must_use]
    pub fn selection(&self) -> Option<Selection> {
        let text: Text = serde_json::from_str(self.about.as_deref()?).ok()?;
        let states: Result<_, _> = text.states.iter().map(|state| state.parse()).collect();
        let routes: Result<_, _> = text.routes.iter().map(|route| route.parse()).collect();
        let kinds: Result<_, _> = text.kinds.iter().map(|kind| kind.parse()).collect();
        let key = text.key.map(|key| key.parse::<IdempotencyKey>());
        let shape = text.shape.map(|shape| shape.parse());
        Some(Selection {
            filter: Filter {
                states: states.ok()?,
                routes: routes.ok()?,
                kinds: kinds.ok()?,
                chat: text.chat,
                key: key.transpose().ok()?,
                accepted_from: text.accepted_from,
                accepted_until: text.accepted_until,
                error: text.error,
                body: None,
                failed_from: text.failed_from,
                failed_until: text.failed_until,
                shape: shape.transpose().ok()?,
                changed_by: text.changed_by,
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

/// A selection in the row of its action.
#[derive(Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct Text {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    states: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    routes: Vec<String>,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    shape: Option<String>,
    changed_by: Option<i64>,
    newest: i64,
    at: Option<SystemTime>,
    matched: u64,
    is_more: bool,
    oldest: i64,
}

fn invalid(reason: impl Into<String>) -> StoreError {
    StoreError::new(StoreErrorKind::Invalid, reason.into())
}

/// Changes of all events that match.
///
/// Each change is an [`Action`] with a number and a position ([`Bulk::reached`]), in steps of at most 64 events. A step
/// changes its events and moves the position on in one transaction, so that a change reaches each event once, whatever
/// fails. It changes events only in the states in which it has listed them. What was accepted, died or was settled after it
/// was [seen](Seen) is left alone.
impl Inbox {
    /// Returns what is seen of the inbox now: all of it. `None` if it is empty.
    ///
    /// # Errors
    ///
    /// When the queue fails.
    pub async fn seen(&self) -> Result<Option<Seen>, StoreError> {
        let page = Page::newest(1).within(SEARCH);
        let listed = self.list(&Filter::default(), page).await?;
        let newest = listed.events.first().map(|event| event.id);
        let Some(newest) = newest.or(listed.searched) else {
            return Ok(None);
        };
        let now = self.shared.queue.count.note_counts(&[]);
        let at = self.shared.call("note-counts", now).await?;
        Ok(Some(Seen::new(newest, at)))
    }

    /// Selects the events that match and were seen, and counts them: up to 10,000, and for up to 40 ms.
    ///
    /// # Errors
    ///
    /// When the queue fails.
    pub async fn select(&self, filter: &Filter, seen: Seen) -> Result<Selection, StoreError> {
        let first = Page::oldest(1).within(SEARCH);
        let first = self.list(&Filter::default(), first).await?;
        let oldest = first.events.first().map(|event| event.id);
        let mut selection = Selection {
            filter: filter.of_stored().into_owned(),
            seen,
            matched: 0,
            is_more: false,
            oldest: oldest.or(first.searched).unwrap_or(seen.newest),
        };
        let began = Instant::now();
        let mut page = Page::oldest(STEP);
        loop {
            let left = SEARCH.saturating_sub(began.elapsed());
            let listed = self.list(filter, page.within(left)).await?;
            let events = listed.events.iter().filter(|event| seen.has(event));
            selection.matched += events.count() as u64;
            page.after = listed.next(STEP).filter(|after| *after < seen.newest);
            selection.is_more = page.after.is_some();
            let is_enough = selection.matched >= COUNT_UP_TO || began.elapsed() >= SEARCH;
            if is_enough || !selection.is_more {
                selection.matched = selection.matched.min(COUNT_UP_TO);
                return Ok(selection);
            }
        }
    }

    /// Begins a change of all events of a selection, and returns the number of its action. With a `rate` other than 0, it
    /// changes at most so many events a second. [`continue_all`](Self::continue_all) makes it.
    ///
    /// ```
    /// use tower_webhook::inbox::{ActionKind, EventState, Filter, Inbox};
    /// use tower_webhook::store::StoreError;
    ///
    /// /// Redrives all dead letters, at most ten a second.
    /// async fn redrive_slowly(inbox: &Inbox) -> Result<(), StoreError> {
    ///     let dead = Filter::default().states([EventState::Dead]);
    ///     if let Some(seen) = inbox.seen().await? {
    ///         let selection = inbox.select(&dead, seen).await?;
    ///         println!("{} dead letters", selection.matched);
    ///         let number = inbox.begin_all(ActionKind::Redrive, &selection, 10).await?;
    ///         inbox.continue_all(number).await?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// When the queue fails. With [`StoreErrorKind::Invalid`], when the kind is neither a redrive nor a discard, or the
    /// filter has a text in the body, or it has more than 32 KiB as JSON.
    pub async fn begin_all(
        &self,
        kind: ActionKind,
        selection: &Selection,
        rate: u32,
    ) -> Result<i64, StoreError> {
        if !matches!(kind, ActionKind::Redrive | ActionKind::Discard) {
            return Err(invalid(format!("a change of events is no {kind}")));
        }
        if selection.filter.body.is_some() {
            let reason = "a change of all that match cannot select by a text in the body";
            return Err(invalid(reason));
        }
        let about = selection.text();
        let about = about.ok_or_else(|| invalid("a time of the filter cannot be written"))?;
        if about.len() > LONGEST {
            let length = about.len();
            return Err(invalid(format!(
                "the filter has {length} bytes, and {LONGEST} at most: select fewer types, or by a shorter text"
            )));
        }
        let bulk = NewBulk {
            kind,
            about,
            chat: selection.filter.chat.clone(),
            rate,
        };
        let begin = self.shared.queue.change.begin(&bulk, &self.settings.by);
        self.shared.call("begin-bulk", begin).await
    }

    /// Makes a change that was begun, from its position on. Returns its action when it is done or cancelled, or when another
    /// caller, of any process, goes on with it.
    ///
    /// If the queue fails, it is tried again until it works. A future that is dropped leaves the change where it is:
    /// it counts as [interrupted](BulkState::Interrupted) after a minute, and can be continued.
    ///
    /// # Errors
    ///
    /// With [`StoreErrorKind::Invalid`], when there is no such change, or another release has begun it.
    pub async fn continue_all(&self, number: i64) -> Result<Action, StoreError> {
        let unknown = || {
            invalid(format!(
                "no change of all that match has the number {number}"
            ))
        };
        let action = self.find(number).await.ok_or_else(unknown)?;
        let bulk = action.bulk.as_ref().ok_or_else(unknown)?;
        if bulk.is_open() {
            let other = || invalid("another release has begun this change: cancel it");
            let selection = action.selection().ok_or_else(other)?;
            self.change_all(&action, bulk, &selection).await;
        }
        self.find(number).await.ok_or_else(unknown)
    }

    /// Redrives all events that match, and that are there now. Returns the action when it has ended, as
    /// [`continue_all`](Self::continue_all) does, or `None` if no event matches. Without a state in the filter, events that
    /// were handled are handled again.
    ///
    /// ```
    /// use tower_webhook::inbox::{Filter, Inbox};
    /// use tower_webhook::store::StoreError;
    ///
    /// async fn redrive_failed(inbox: &Inbox) -> Result<u64, StoreError> {
    ///     let redriven = inbox.redrive_all(&Filter::failed(None, None)).await?;
    ///     Ok(redriven.map_or(0, |action| action.changed))
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`begin_all`](Self::begin_all).
    pub async fn redrive_all(&self, filter: &Filter) -> Result<Option<Action>, StoreError> {
        self.all(ActionKind::Redrive, filter).await
    }

    /// Discards all events that match, and that are there now: see [`redrive_all`](Self::redrive_all).
    ///
    /// ```
    /// use tower_webhook::inbox::{EventState, Filter, Inbox};
    /// use tower_webhook::store::StoreError;
    ///
    /// async fn discard_dead(inbox: &Inbox) -> Result<u64, StoreError> {
    ///     let dead = Filter::default().states([EventState::Dead]);
    ///     let discarded = inbox.discard_all(&dead).await?;
    ///     Ok(discarded.map_or(0, |action| action.changed))
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`begin_all`](Self::begin_all).
    pub async fn discard_all(&self, filter: &Filter) -> Result<Option<Action>, StoreError> {
        self.all(ActionKind::Discard, filter).await
    }

    async fn all(&self, kind: ActionKind, filter: &Filter) -> Result<Option<Action>, StoreError> {
        let Some(seen) = self.seen().await? else {
            return Ok(None);
        };
        let selection = self.select(filter, seen).await?;
        if selection.is_empty() {
            return Ok(None);
        }
        let number = self.begin_all(kind, &selection, 0).await?;
        self.continue_all(number).await.map(Some)
    }

    /// Cancels a change of all that match, and returns whether it was running or interrupted. It changes no event after
    /// that; events that were changed before stay changed.
    ///
    /// ```
    /// use tower_webhook::inbox::{By, Inbox, Which};
    /// use tower_webhook::store::StoreError;
    ///
    /// async fn cancel_all(inbox: &Inbox) -> Result<(), StoreError> {
    ///     let inbox = inbox.clone().by(By::new("ada"));
    ///     for action in inbox.actions(Which::Running, None, 100).await? {
    ///         inbox.cancel(action.number).await?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// When the queue fails.
    pub async fn cancel(&self, number: i64) -> Result<bool, StoreError> {
        let cancel = self.shared.queue.change.cancel(number, &self.settings.by);
        self.shared.call("cancel-bulk", cancel).await
    }

    /// Returns the action with a number, if there is one: see [`actions`](Self::actions).
    ///
    /// # Errors
    ///
    /// When the queue fails.
    pub async fn action(&self, number: i64) -> Result<Option<Action>, StoreError> {
        let found = self.actions(Which::All, number.checked_add(1), 1).await?;
        Ok(found.into_iter().find(|action| action.number == number))
    }

    async fn find(&self, number: i64) -> Option<Action> {
        self.answered(number, || self.action(number)).await
    }

    /// Asks the queue until it answers.
    async fn answered<T, F>(&self, number: i64, ask: impl Fn() -> F) -> T
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let mut pause = FIRST_RETRY;
        loop {
            match within(ask()).await {
                Ok(answer) => return answer,
                Err(error) => pause = wait(number, &error, pause).await,
            }
        }
    }

    /// Changes the events that the person has seen. Those whose state has changed since they were listed are not changed.
    async fn change_all(&self, action: &Action, bulk: &Bulk, selection: &Selection) {
        let (number, newest) = (action.number, selection.seen.newest);
        let step = async |events, from, reached, is_last| {
            let step = BulkStep {
                redrives: action.kind == ActionKind::Redrive,
                events,
                from,
                reached,
                is_last,
            };
            self.step(number, &step).await
        };
        let mut at = bulk.reached;
        // So that it counts as running at once.
        if bulk.state == BulkState::Interrupted && !step(Vec::new(), at, at, false).await {
            return;
        }
        let (limit, at_once) = match bulk.rate as usize {
            0 => (STEP, AT_ONCE),
            // What was listed is at most a second old when it is changed.
            rate => (rate.min(STEP), (rate / 4).clamp(1, AT_ONCE)),
        };
        let mut page = Page::oldest(limit).within(SEARCH);
        page.after = Some(at).filter(|at| *at > EventId(0));
        let (mut noted, mut due) = (Instant::now(), Instant::now());
        loop {
            let list = || self.list(&selection.filter, page);
            let listed = self.answered(number, list).await;
            page.after = listed.next(limit);
            let events = listed.events.iter();
            let events = events.filter(|event| selection.seen.has(event));
            let events: Vec<_> = events.map(|event| (event.id, event.state)).collect();
            for some in events.chunks(at_once) {
                let reached = some.last().map_or(at, |(id, _)| *id);
                let asked = Instant::now();
                if !step(some.to_vec(), at, reached, false).await {
                    return;
                }
                (at, noted) = (reached, Instant::now());
                if self.shared.queue.is_held_by_steps {
                    sleep(asked.elapsed().min(LONGEST_PAUSE)).await;
                }
                // A queue in memory takes no time, and pages are to be answered, too.
                yield_now().await;
                if bulk.rate > 0 {
                    // What was missed while the queue was away is not made up for.
                    let takes = some.len() as f64 / f64::from(bulk.rate);
                    due = due.max(asked) + Duration::from_secs_f64(takes);
                    sleep_until(due).await;
                }
            }
            match page.after.filter(|after| *after < newest) {
                None => {
                    step(Vec::new(), at, newest, true).await;
                    return;
                }
                Some(after) if noted.elapsed() >= NOTE => {
                    if !step(Vec::new(), at, after, false).await {
                        return;
                    }
                    (at, noted) = (after, Instant::now());
                }
                Some(_) => {}
            }
        }
    }

    /// Makes a step, and returns whether it was made. If not, the change has ended, or another caller has moved it on.
    async fn step(&self, number: i64, step: &BulkStep) -> bool {
        let (mut pause, mut is_uncertain) = (FIRST_RETRY, false);
        loop {
            let made = self.shared.queue.change.step(number, step);
            match within(self.shared.call("step-bulk", made)).await {
                Ok(true) => break,
                Ok(false) if !is_uncertain => return false,
                // Perhaps an earlier attempt was made, whose answer was lost.
                Ok(false) => {}
                Err(error) => {
                    is_uncertain = true;
                    pause = wait(number, &error, pause).await;
                }
            }
            let Some(bulk) = self.find(number).await.and_then(|action| action.bulk) else {
                return false;
            };
            let is_as_left = match step.is_last {
                true => bulk.state == BulkState::Done,
                false => bulk.is_open(),
            };
            if is_as_left && bulk.reached == step.reached {
                break;
            }
            if !bulk.is_open() || bulk.reached != step.from {
                return false;
            }
        }
        if !step.events.is_empty() {
            // What was in progress and is discarded has lost its lease.
            if !step.redrives {
                self.shared.workers.check();
            }
            self.shared.workers.wake();
        }
        true
    }
}

/// Waits after an error, and returns the next pause.
async fn wait(number: i64, error: &StoreError, pause: Duration) -> Duration {
    let reason = Chain(error).to_string();
    tracing::warn!(
        number,
        reason,
        "a change of all events that match waits, because the database failed"
    );
    sleep(pause).await;
    (2 * pause).min(LAST_RETRY)
}

async fn within<T>(call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    let answer = timeout(ANSWER, call).await;
    answer.unwrap_or_else(|_| Err(StoreError::timed_out()))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::event::EventKind;

    #[test]
    fn the_longest_texts_of_an_event_have_room() {
        let text = "\u{1}".repeat(1024);
        let key = HeaderValue::from_bytes(&[0xff; 1024]).unwrap();
        let filter = Filter::failed(Some(SystemTime::now()), Some(SystemTime::now()))
            .kinds(EventKind::ALL.iter().cloned())
            .chat(&text)
            .key(IdempotencyKey::new(key).unwrap())
            .error(&text);
        let seen = Seen::new(EventId(i64::MAX), SystemTime::now());
        let selection = Selection {
            filter,
            seen,
            matched: COUNT_UP_TO,
            is_more: true,
            oldest: EventId(i64::MAX),
        };
        let length = selection.text().unwrap().len();
        assert!((LONGEST / 2..LONGEST).contains(&length), "{length}");
    }
}
