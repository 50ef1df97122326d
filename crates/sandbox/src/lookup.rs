//! Looks up events, attempts and chats, and sends a delivered event again.

use tower_webhook::event::EventKind;

use super::chat::SimulatedChat;
use super::platform::Sandbox;
use super::report::{Attempt, EventId, EventReport, EventState, Report};
use super::state::{Due, EventRecord, State, Why};

/// Selects the events that have all values which are not `None`. By default all events.
///
/// ```
/// # use tower_webhook_sandbox::{Body, Sandbox, Webhook};
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// # let receiver = tower::service_fn(async |_: http::Request<Body>| {
/// #     Ok::<_, std::convert::Infallible>(http::Response::new(()))
/// # });
/// use tower_webhook_sandbox::{EventFilter, EventState};
///
/// let sandbox = Sandbox::in_process(receiver);
/// sandbox.configure_all(&Webhook::new("/webhooks"));
/// let event = sandbox.chat().assign();
/// let waiting = EventFilter { state: Some(EventState::Waiting), ..EventFilter::default() };
/// assert_eq!(sandbox.oldest(&waiting, None, 10)[0].id, event);
///
/// sandbox.idle().await;
/// assert_eq!(sandbox.count(&waiting), 0);
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// The kind of the event.
    pub kind: Option<EventKind>,
    /// The identifier of the event's chat.
    pub chat: Option<String>,
    /// The state of the event.
    pub state: Option<EventState>,
}

impl EventFilter {
    /// Returns whether it selects an event.
    #[must_use]
    pub fn matches(&self, event: &EventReport) -> bool {
        self.kind.as_ref().is_none_or(|kind| *kind == event.kind)
            && (self.chat.is_none() || self.chat == event.chat)
            && self.state.is_none_or(|state| state == event.state)
    }
}

impl Sandbox {
    /// Returns the report on every event so far.
    #[must_use]
    pub fn report(&self) -> Report {
        Report {
            events: self.oldest(&EventFilter::default(), None, usize::MAX),
        }
    }

    /// Returns the report on one event, or `None` if no event has this number.
    #[must_use]
    pub fn event(&self, id: EventId) -> Option<EventReport> {
        let state = self.lock();
        state.events.get(id.0).map(|event| state.report(event))
    }

    /// Returns the reports on the latest `most` events, newest first.
    #[must_use]
    pub fn latest(&self, most: usize) -> Vec<EventReport> {
        self.newest(&EventFilter::default(), None, most)
    }

    /// Returns the number of events that a filter selects.
    #[must_use]
    pub fn count(&self, filter: &EventFilter) -> usize {
        self.lock().select(filter).count()
    }

    /// Returns the reports on the oldest `most` events that a filter selects, oldest first, leaving out events created
    /// up to `after`.
    #[must_use]
    pub fn oldest(
        &self,
        filter: &EventFilter,
        after: Option<EventId>,
        most: usize,
    ) -> Vec<EventReport> {
        let state = self.lock();
        let events = state.select(filter);
        let events = events.filter(|it| after.is_none_or(|after| it.report.id > after));
        events.map(|it| state.report(it)).take(most).collect()
    }

    /// Returns the reports on the newest `most` events that a filter selects, newest first, leaving out events created
    /// from `before` on.
    #[must_use]
    pub fn newest(
        &self,
        filter: &EventFilter,
        before: Option<EventId>,
        most: usize,
    ) -> Vec<EventReport> {
        let state = self.lock();
        let events = state.select(filter).rev();
        let events = events.filter(|it| before.is_none_or(|before| it.report.id < before));
        events.map(|it| state.report(it)).take(most).collect()
    }

    /// Returns the latest `most` attempts that have ended, latest first, at most 1,000.
    #[must_use]
    pub fn latest_attempts(&self, most: usize) -> Vec<Attempt> {
        let state = self.lock();
        let latest = state.recent.iter().rev().take(most);
        latest
            .filter_map(|&(event, at)| state.events.get(event)?.report.attempts.get(at).cloned())
            .collect()
    }

    /// Sends a [delivered](EventState::Delivered) event once more, with the same key, as the platform may
    /// ([Spec 6, rule 1](tower_webhook::docs::platform#spec-6-rule-1)). Returns whether it does so: `false` if the
    /// event is not delivered or is being sent, or its webhook does not deliver.
    ///
    /// The event stays delivered, however the attempt ends. One that fails counts against the webhook.
    ///
    /// ```
    /// # use tower_webhook_sandbox::{Body, Sandbox, Webhook};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// # let receiver = tower::service_fn(async |_: http::Request<Body>| {
    /// #     Ok::<_, std::convert::Infallible>(http::Response::new(()))
    /// # });
    /// # let sandbox = Sandbox::in_process(receiver);
    /// # sandbox.configure_all(&Webhook::new("/webhooks"));
    /// let event = sandbox.chat().assign();
    /// sandbox.idle().await;
    ///
    /// assert!(sandbox.resend(event));
    /// sandbox.idle().await;
    /// assert_eq!(sandbox.event(event).unwrap().attempts.len(), 2);
    /// # }
    /// ```
    pub fn resend(&self, event: EventId) -> bool {
        self.change(|state| state.resend(event))
    }

    /// Returns the chat with this identifier, or `None` if there is none. If there are several, it is the oldest.
    #[must_use]
    pub fn find_chat(&self, id: &str) -> Option<SimulatedChat> {
        let index = self
            .lock()
            .chats
            .iter()
            .position(|chat| chat.data.id() == id)?;
        Some(SimulatedChat::new(self.clone(), index))
    }

    /// Returns the latest `most` chats, newest first.
    #[must_use]
    pub fn latest_chats(&self, most: usize) -> Vec<SimulatedChat> {
        let chats = self.lock().chats.len();
        let latest = (0..chats).rev().take(most);
        latest
            .map(|index| SimulatedChat::new(self.clone(), index))
            .collect()
    }
}

impl State {
    fn select(&self, filter: &EventFilter) -> impl DoubleEndedIterator<Item = &EventRecord> {
        let events = self.events.iter();
        events.filter(|event| filter.matches(&event.report))
    }

    fn resend(&mut self, EventId(id): EventId) -> bool {
        let can_be_sent = self.events.get(id).is_some_and(|event| {
            let has_webhook = self.webhook_of(event).is_some();
            event.report.state == EventState::Delivered && !event.in_flight && has_webhook
        });
        if can_be_sent && !self.due.iter().any(|due| due.0 == id) {
            self.due.push_back(Due(id, Why::Resend));
        }
        can_be_sent
    }
}
