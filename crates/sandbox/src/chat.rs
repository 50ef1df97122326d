//! Chats that a test scripts.

use std::fmt;

use bytes::Bytes;
use tower_webhook::event::{ChatLifecycle, EventKind, Message};

use super::invent::invent;
use super::payload::{ChatData, Rating, Step};
use super::platform::Sandbox;
use super::report::EventId;

/// A chat on the simulated platform, created by [`Sandbox::chat`]. Each method causes an event.
///
/// The methods can be called in any order, because the spec shows no table of transitions
/// ([Spec 3](tower_webhook::docs::platform#spec-3)). A chat that was closed or transferred is rated eventually,
/// even if [`rate`](Self::rate) is not called
/// ([rule 1](tower_webhook::docs::platform#spec-3-rule-1); see
/// [`Settings::rate_after`](super::Settings::rate_after)): once, and not if it was reopened before.
///
/// ```
/// # use tower_webhook_sandbox::{Body, Sandbox, Webhook};
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// # let receiver = tower::service_fn(async |_: http::Request<Body>| {
/// #     Ok::<_, std::convert::Infallible>(http::Response::new(()))
/// # });
/// let sandbox = Sandbox::in_process(receiver);
/// sandbox.configure_all(&Webhook::new("/webhooks"));
/// let chat = sandbox.chat();
/// chat.assign();
/// chat.message("Where is my parcel?");
/// chat.close();
///
/// let report = sandbox.finish().await;
/// assert_eq!(report.events.len(), 4, "the customer has rated the chat");
/// # }
/// ```
#[derive(Clone)]
pub struct SimulatedChat {
    sandbox: Sandbox,
    index: usize,
}

impl fmt::Debug for SimulatedChat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimulatedChat")
            .field("index", &self.index)
            .finish_non_exhaustive()
    }
}

impl SimulatedChat {
    pub(super) fn new(sandbox: Sandbox, index: usize) -> Self {
        Self { sandbox, index }
    }

    /// Returns the chat's identifier: [`EventReport::chat`](super::EventReport::chat).
    #[must_use]
    pub fn id(&self) -> String {
        self.sandbox.lock().chats[self.index].data.id()
    }

    /// Returns the chat's data, which the payloads of its events are made from.
    #[must_use]
    pub fn data(&self) -> ChatLifecycle {
        self.sandbox.lock().chats[self.index].data.chat.clone()
    }

    /// Offers the chat to experts: a [`ChatAssigned`](tower_webhook::event::ChatAssigned) event.
    pub fn assign(&self) -> EventId {
        self.step(Step::Assign)
    }

    /// Lets an expert handle the chat: a [`ChatOpened`](tower_webhook::event::ChatOpened) event.
    pub fn open(&self) -> EventId {
        self.step(Step::Open)
    }

    /// Closes the chat as resolved: a [`ChatClosed`](tower_webhook::event::ChatClosed) event.
    pub fn close(&self) -> EventId {
        self.step(Step::Close)
    }

    /// Reopens the chat: a [`ChatReopened`](tower_webhook::event::ChatReopened) event. A rating that has not come
    /// yet does not come before the chat is resolved again.
    pub fn reopen(&self) -> EventId {
        self.step(Step::Reopen)
    }

    /// Hands the chat to a company representative: a
    /// [`ChatTransferred`](tower_webhook::event::ChatTransferred) event.
    pub fn transfer(&self) -> EventId {
        self.step(Step::Transfer)
    }

    /// Rates the chat as the customer: a [`ChatRated`](tower_webhook::event::ChatRated) event. It is sent whether or
    /// not the chat was resolved, and replaces the rating that would come without a script.
    pub fn rate(&self, rating: Rating) -> EventId {
        self.step(Step::Rate(rating))
    }

    /// Sends a text from the customer: a [`MessageCreated`](tower_webhook::event::MessageCreated) event.
    pub fn message(&self, text: impl Into<String>) -> EventId {
        self.send(Message::default().text(text.into()).is_user(true))
    }

    /// Sends a text from the expert: a [`MessageCreated`](tower_webhook::event::MessageCreated) event.
    pub fn reply(&self, text: impl Into<String>) -> EventId {
        self.send(Message::default().text(text.into()).is_user(false))
    }

    /// Sends a message, for instance with an attachment: a
    /// [`MessageCreated`](tower_webhook::event::MessageCreated) event. Fields that are `None` are set, except the text
    /// and the attachment: without a sender, the customer sends it.
    ///
    /// ```
    /// # use tower_webhook::event::{Attachment, Message};
    /// # use tower_webhook_sandbox::{Body, Sandbox, Webhook};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// # let receiver = tower::service_fn(async |_: http::Request<Body>| {
    /// #     Ok::<_, std::convert::Infallible>(http::Response::new(()))
    /// # });
    /// # let sandbox = Sandbox::in_process(receiver);
    /// # sandbox.configure_all(&Webhook::new("/webhooks"));
    /// let receipt = Attachment::default().filename("receipt.pdf".to_owned());
    /// let event = sandbox.chat().send(Message::default().attachment(receipt));
    /// let message: Message = serde_json::from_slice(&sandbox.event(event).unwrap().body).unwrap();
    /// assert!(message.id.is_some());
    /// # }
    /// ```
    pub fn send(&self, message: Message) -> EventId {
        self.step(Step::Message(Box::new(message)))
    }

    /// Sends an event of any kind with any body in this chat, for instance a body that does not decode. For the chat's
    /// rating, the kind alone counts: a rating follows a kind that closes the chat.
    ///
    /// ```
    /// # use tower_webhook::EventKind;
    /// # use tower_webhook_sandbox::{Body, Sandbox, Webhook};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// # let receiver = tower::service_fn(async |_: http::Request<Body>| {
    /// #     Ok::<_, std::convert::Infallible>(http::Response::new(()))
    /// # });
    /// # let sandbox = Sandbox::in_process(receiver);
    /// # sandbox.configure_all(&Webhook::new("/webhooks"));
    /// let chat = sandbox.chat();
    /// chat.emit(EventKind::CHAT_RATED, "not JSON");
    /// chat.emit(EventKind::from_static("chat-archived"), "{}");
    /// # }
    /// ```
    pub fn emit(&self, kind: EventKind, body: impl Into<Bytes>) -> EventId {
        let body = body.into();
        self.sandbox
            .change(|state| state.emit(kind, self.index, body))
    }

    /// Takes a step unless the chat was rated since it was resolved.
    pub(super) fn step_if_unrated(&self, step: Step) -> Option<EventId> {
        self.sandbox.change(|state| {
            let is_unrated = state.chats[self.index].rate_at.is_some();
            is_unrated.then(|| state.step(self.index, step))
        })
    }

    fn step(&self, step: Step) -> EventId {
        self.sandbox.change(|state| state.step(self.index, step))
    }
}

impl Sandbox {
    /// Creates a chat with random contents. It causes no event before a method such as
    /// [`SimulatedChat::assign`] is called.
    #[must_use]
    pub fn chat(&self) -> SimulatedChat {
        let index = self.change(|state| {
            let number = state.chats.len() + 1;
            let now = state.clock.timestamp(state.clock.now());
            let chat = invent(&mut state.rng, number, now);
            state.add_chat(ChatData::new(chat))
        });
        SimulatedChat::new(self.clone(), index)
    }

    /// Creates a chat with the given contents. Fields that are `None` or empty are omitted from payloads.
    ///
    /// ```
    /// # use tower_webhook::event::ChatLifecycle;
    /// # use tower_webhook_sandbox::{Body, Sandbox};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// # let receiver = tower::service_fn(async |_: http::Request<Body>| {
    /// #     Ok::<_, std::convert::Infallible>(http::Response::new(()))
    /// # });
    /// let sandbox = Sandbox::in_process(receiver);
    /// let question = "Where is my parcel?".to_owned();
    /// let chat = sandbox.chat_about(ChatLifecycle::default().id("c-1".to_owned()).question(question));
    /// assert_eq!(chat.id(), "c-1");
    /// # }
    /// ```
    #[must_use]
    pub fn chat_about(&self, chat: ChatLifecycle) -> SimulatedChat {
        let index = self.change(|state| state.add_chat(ChatData::new(chat)));
        SimulatedChat::new(self.clone(), index)
    }
}
