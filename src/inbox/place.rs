//! The place of an event in its lane, and the event for which it waits.

use std::time::{Duration, SystemTime};

use super::event::{EventId, EventState};
use super::handle::Inbox;
use super::records::{BlockedLane, EventSummary, Filter, Page};
use super::text::in_words;
use crate::store::StoreError;

/// The place of an event in the lane of its chat: see [`Inbox::place_of`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Place {
    /// The first 100 unsettled events of its chat, if the event is one of them or the lane waits for it.
    pub unsettled: Vec<EventSummary>,
    /// Whether there may be more of them.
    pub is_cut: bool,
    /// The lane, if it waits for an event that has failed.
    pub blocked: Option<BlockedLane>,
}

/// How many unsettled events of a chat are read, and for how long they are searched.
const MOST: usize = 100;
const SEARCH: Duration = Duration::from_millis(40);

/// More than an inbox has.
const ROUTES: usize = 1_000;

impl Inbox {
    /// Returns the place of an event in its lane, which says for which event of the same chat it waits.
    ///
    /// ```
    /// # use tower_webhook::inbox::{EventId, Inbox};
    /// # use tower_webhook::store::StoreError;
    /// # async fn example(inbox: &Inbox, id: EventId) -> Result<(), StoreError> {
    /// if let Some(record) = inbox.get(id).await? {
    ///     let place = inbox.place_of(&record.summary).await?;
    ///     if let Some(ahead) = place.ahead(&record.summary) {
    ///         println!("event {id} waits for event {}, which {}", ahead.id, ahead.why_unsettled());
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When the queue fails.
    pub async fn place_of(&self, event: &EventSummary) -> Result<Place, StoreError> {
        let mut place = Place::default();
        let Some(chat) = &event.chat else {
            return Ok(place);
        };
        let is_unsettled = event.state.is_unsettled();
        // A dead letter may hold its lane. One that does not waits for nothing.
        if is_unsettled || event.state == EventState::Dead {
            // A chat with this id has a lane at each route.
            let blocked = self.blocked_lanes(Some(chat), None, ROUTES).await?;
            let own = blocked.into_iter().find(|it| it.event.route == event.route);
            place.blocked = own.filter(|it| is_unsettled || it.event.id == event.id);
        }
        if is_unsettled || place.is_held_by(event.id) {
            let states = EventState::ALL.into_iter().filter(|it| it.is_unsettled());
            let filter = Filter::default().states(states).chat(chat);
            let filter = filter.routes([event.route.clone()]);
            let listed = self.list(&filter, Page::oldest(MOST).within(SEARCH));
            let listed = listed.await?;
            place.is_cut = listed.next(MOST).is_some();
            place.unsettled = listed.events;
        }
        Ok(place)
    }
}

impl Place {
    /// Returns the event of the same chat for which the event waits. To redrive the event changes nothing before.
    #[must_use]
    pub fn ahead(&self, event: &EventSummary) -> Option<&EventSummary> {
        let blocked = self.blocked.as_ref().map(|blocked| &blocked.event);
        let first = match (blocked, event.state) {
            _ if event.is_redriven || !event.state.is_unsettled() => None,
            (Some(blocked), _) => Some(blocked),
            (None, EventState::Waiting) => {
                let mut unsettled = self.unsettled.iter();
                unsettled.find(|it| it.id == event.id || it.is_in_line())
            }
            (None, _) => None,
        };
        first.filter(|first| first.id < event.id)
    }

    /// Whether the lane waits for this event.
    #[must_use]
    pub fn is_held_by(&self, id: EventId) -> bool {
        let blocked = self.blocked.as_ref();
        blocked.is_some_and(|blocked| blocked.event.id == id)
    }
}

impl EventSummary {
    /// Whether it stands in the line of its lane, which has the order of the numbers. Other events that are retried or
    /// redriven stand in none.
    #[must_use]
    pub fn is_in_line(&self) -> bool {
        !self.is_redriven && self.state != EventState::Retrying
    }

    /// Returns why later events of its chat have to wait for it, in words that follow "which", such as `has failed, and is
    /// tried again in 5 min`.
    #[must_use]
    pub fn why_unsettled(&self) -> String {
        match (self.state, self.due_at) {
            (EventState::Dead, _) => "is a dead letter that holds the chat: redrive or discard it",
            (EventState::InProgress, _) => "is handled now",
            (EventState::Retrying, Some(due)) => {
                let next = match due.duration_since(SystemTime::now()) {
                    Ok(left) => format!("in {}", in_words(left)),
                    Err(_) => "now".to_owned(),
                };
                return format!("has failed, and is tried again {next}");
            }
            (EventState::Retrying, None) => {
                "has failed, and is tried again as soon as a worker is free"
            }
            _ => "is first",
        }
        .to_owned()
    }
}
