//! Chats whose events are incomplete, as far as an inbox shows. After an outage, they are what the sender gave up.

use futures_util::future::try_join_all;
use tokio::time::Instant;

use super::event::EventId;
use super::handle::Inbox;
use super::records::{EventSummary, Filter, Listed, Page};
use crate::event::EventKind;
use crate::store::StoreError;

/// Returns the kinds of which a chat with an event of this kind is expected to have one, too: after a chat was closed or
/// transferred, a rating (Spec 3, rule 1), which may take days; before it was opened, reopened or rated, what the meaning
/// of these events presupposes (Spec 3, rule 2). Other kinds expect none.
///
/// ```
/// use tower_webhook::EventKind;
/// use tower_webhook::inbox::expected;
///
/// assert_eq!(expected(&EventKind::CHAT_CLOSED), [EventKind::CHAT_RATED]);
/// assert!(expected(&EventKind::MESSAGE_CREATED).is_empty());
/// ```
#[must_use]
pub fn expected(kind: &EventKind) -> &'static [EventKind] {
    const RATED: &[EventKind] = &[EventKind::CHAT_RATED];
    const ASSIGNED: &[EventKind] = &[EventKind::CHAT_ASSIGNED];
    if ENDS.contains(kind) {
        RATED
    } else if *kind == EventKind::CHAT_OPENED {
        ASSIGNED
    } else if [EventKind::CHAT_REOPENED, EventKind::CHAT_RATED].contains(kind) {
        ENDS
    } else {
        &[]
    }
}

/// The ends of a chat.
const ENDS: &[EventKind] = &[EventKind::CHAT_CLOSED, EventKind::CHAT_TRANSFERRED];

/// The number of events whose chats are looked at together.
const AT_ONCE: usize = 4;

/// The number of events of a chat that are looked at, its newest ones.
const OF_CHAT: usize = 500;

impl Inbox {
    /// Returns a page of the events that match and whose chats lack the event that is [`expected`] with them. A chat's last
    /// end is listed until the chat is rated or reopened, and of the other kinds its first event.
    ///
    /// An event that is missing here was not accepted by this inbox, or was deleted after its retention. An event that is
    /// not missing may have been accepted before or after the other one. A chat without any event is not found: the
    /// platform's API does not list chats.
    ///
    /// ```
    /// # use tower_webhook::inbox::{Filter, Inbox, Page, expected};
    /// # use tower_webhook::store::StoreError;
    /// use std::time::{Duration, SystemTime};
    ///
    /// # async fn example(inbox: &Inbox) -> Result<(), StoreError> {
    /// let a_day_ago = SystemTime::now().checked_sub(Duration::from_secs(24 * 60 * 60));
    /// let yesterday = Filter::default().accepted(None, a_day_ago);
    /// for event in inbox.gaps(&yesterday, Page::newest(100)).await?.events {
    ///     println!("{:?}: {} without {:?}", event.chat, event.kind, expected(&event.kind));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When the queue fails.
    pub async fn gaps(&self, filter: &Filter, page: Page) -> Result<Listed, StoreError> {
        let began = Instant::now();
        let mut filter = filter.clone();
        if filter.kinds.is_empty() {
            filter.kinds = EventKind::ALL.to_vec();
        }
        filter.kinds.retain(|kind| !expected(kind).is_empty());
        let mut found = Listed::default();
        if filter.kinds.is_empty() {
            return Ok(found);
        }
        let mut next = Page {
            limit: AT_ONCE,
            ..page
        };
        loop {
            next.within = page
                .within
                .map(|within| within.saturating_sub(began.elapsed()));
            let listed = self.list(&filter, next).await?;
            let last = listed.events.last().map(|event| event.id);
            let is_last = listed.searched.is_none() && listed.events.len() < AT_ONCE;
            let lacking = listed.events.into_iter().map(async |event| {
                let lacks = self.lacks(&event).await?;
                Ok::<_, StoreError>(lacks.then_some(event))
            });
            found
                .events
                .extend(try_join_all(lacking).await?.into_iter().flatten());
            if found.events.len() >= page.limit {
                found.events.truncate(page.limit);
                return Ok(found);
            }
            next.after = listed.searched.or(last);
            if is_last {
                return Ok(found);
            }
            if page.within.is_some_and(|within| began.elapsed() >= within) {
                found.searched = next.after;
                return Ok(found);
            }
        }
    }

    /// Whether an event is the one by which its chat is listed, and the expected one is missing.
    async fn lacks(&self, event: &EventSummary) -> Result<bool, StoreError> {
        let Some(chat) = &event.chat else {
            return Ok(false);
        };
        let mut kinds = EventKind::ALL.to_vec();
        // There may be any number of messages.
        kinds.retain(|kind| *kind != EventKind::MESSAGE_CREATED);
        let filter = Filter {
            routes: vec![event.route.clone()],
            kinds,
            chat: Some(chat.clone()),
            ..Filter::default()
        };
        let listed = self.list(&filter, Page::newest(OF_CHAT)).await?;
        Ok(lacks(event, &listed.events))
    }
}

fn lacks(event: &EventSummary, chat: &[EventSummary]) -> bool {
    let expected = expected(&event.kind);
    if !ENDS.contains(&event.kind) {
        let is_first = |other: &EventSummary| other.kind != event.kind || other.id >= event.id;
        return chat.iter().all(is_first) && !chat.iter().any(|it| expected.contains(&it.kind));
    }
    let reopened = |other: &&EventSummary| other.kind == EventKind::CHAT_REOPENED;
    let reopened = chat.iter().filter(reopened).map(|other| other.id);
    // Since when the chat has been handled last.
    let since = reopened.max().unwrap_or(EventId(0));
    since < event.id
        && chat.iter().filter(|other| other.id > since).all(|other| {
            !expected.contains(&other.kind) && (!ENDS.contains(&other.kind) || other.id <= event.id)
        })
}
