//! Chats: scripted by a test, or generated from a seed.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use serde::Serialize;

use super::Sandbox;
use super::report::EventId;
use super::state::State;
use super::strict;
use crate::event::{
    Attachment, Category, Chat as ChatPayload, ChatLifecycle, EventKind, Expert, Message,
    Reference, Timestamp, User,
};

/// A chat on the simulated platform, created by [`Sandbox::chat`]. Each method causes an event.
///
/// The methods can be called in any order, because the spec shows no table of transitions
/// ([Spec 3](crate::docs::platform#spec-3)). A chat that was closed or transferred is rated eventually,
/// even if [`rate`](Self::rate) is not called
/// ([rule 1](crate::docs::platform#spec-3-rule-1); see
/// [`Settings::rate_after`](super::Settings::rate_after)): once, and not if it was reopened before.
///
/// ```
/// # use tower_webhook::sandbox::{Body, Sandbox, Webhook};
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

/// A customer's rating of a chat ([Spec 2.3](crate::docs::platform#spec-2-3)). See
/// [`SimulatedChat::rate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rating {
    /// 0 on the wire.
    Bad,
    /// 0.5 on the wire.
    Fair,
    /// 1 on the wire.
    Good,
}

impl Rating {
    fn value(self) -> f64 {
        match self {
            Self::Bad => 0.0,
            Self::Fair => 0.5,
            Self::Good => 1.0,
        }
    }
}

impl SimulatedChat {
    pub(super) fn new(sandbox: Sandbox, index: usize) -> Self {
        Self { sandbox, index }
    }

    /// Returns the chat's identifier: [`EventReport::chat`](super::EventReport::chat).
    #[must_use]
    pub fn id(&self) -> String {
        self.sandbox.lock().chats[self.index].id()
    }

    /// Returns the chat's data, which the payloads of its events are made from.
    #[must_use]
    pub fn data(&self) -> ChatLifecycle {
        self.sandbox.lock().chats[self.index].data.chat.clone()
    }

    /// Offers the chat to experts: a [`ChatAssigned`](crate::event::ChatAssigned) event.
    pub fn assign(&self) -> EventId {
        self.step(Step::Assign)
    }

    /// Lets an expert handle the chat: a [`ChatOpened`](crate::event::ChatOpened) event.
    pub fn open(&self) -> EventId {
        self.step(Step::Open)
    }

    /// Closes the chat as resolved: a [`ChatClosed`](crate::event::ChatClosed) event.
    pub fn close(&self) -> EventId {
        self.step(Step::Close)
    }

    /// Reopens the chat: a [`ChatReopened`](crate::event::ChatReopened) event. A rating that has not come
    /// yet does not come before the chat is resolved again.
    pub fn reopen(&self) -> EventId {
        self.step(Step::Reopen)
    }

    /// Hands the chat to a company representative: a
    /// [`ChatTransferred`](crate::event::ChatTransferred) event.
    pub fn transfer(&self) -> EventId {
        self.step(Step::Transfer)
    }

    /// Rates the chat as the customer: a [`ChatRated`](crate::event::ChatRated) event. It is sent whether or
    /// not the chat was resolved, and replaces the rating that would come without a script.
    pub fn rate(&self, rating: Rating) -> EventId {
        self.step(Step::Rate(rating))
    }

    /// Sends a text from the customer: a [`MessageCreated`](crate::event::MessageCreated) event.
    pub fn message(&self, text: impl Into<String>) -> EventId {
        self.send(Message {
            text: Some(text.into()),
            is_user: Some(true),
            ..Message::default()
        })
    }

    /// Sends a text from the expert: a [`MessageCreated`](crate::event::MessageCreated) event.
    pub fn reply(&self, text: impl Into<String>) -> EventId {
        self.send(Message {
            text: Some(text.into()),
            is_user: Some(false),
            ..Message::default()
        })
    }

    /// Sends a message, for instance with an attachment: a
    /// [`MessageCreated`](crate::event::MessageCreated) event. Of its fields, only those that are `None` are
    /// set, except the text and the attachment: without a sender, the customer sends it.
    ///
    /// ```
    /// # use tower_webhook::event::{Attachment, Message};
    /// # use tower_webhook::sandbox::{Body, Sandbox, Webhook};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// # let receiver = tower::service_fn(async |_: http::Request<Body>| {
    /// #     Ok::<_, std::convert::Infallible>(http::Response::new(()))
    /// # });
    /// # let sandbox = Sandbox::in_process(receiver);
    /// # sandbox.configure_all(&Webhook::new("/webhooks"));
    /// let event = sandbox.chat().send(Message {
    ///     attachment: Some(Attachment {
    ///         filename: Some("receipt.pdf".into()),
    ///         ..Attachment::default()
    ///     }),
    ///     ..Message::default()
    /// });
    /// let message: Message = serde_json::from_slice(&sandbox.event(event).unwrap().body).unwrap();
    /// assert!(message.id.is_some());
    /// # }
    /// ```
    pub fn send(&self, message: Message) -> EventId {
        self.step(Step::Message(Box::new(message)))
    }

    /// Sends an event of any kind with any body in this chat, for instance one that does not decode. For
    /// the chat's rating, the kind alone counts: one that closes the chat is followed by a rating.
    ///
    /// ```
    /// # use tower_webhook::EventKind;
    /// # use tower_webhook::sandbox::{Body, Sandbox, Webhook};
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
    fn step_if_unrated(&self, step: Step) -> Option<EventId> {
        self.sandbox.change(|state| {
            let is_unrated = state.chats[self.index].rate_at.is_some();
            is_unrated.then(|| state.step(self.index, step))
        })
    }

    fn step(&self, step: Step) -> EventId {
        self.sandbox.change(|state| state.step(self.index, step))
    }
}

pub(super) enum Step {
    Assign,
    Open,
    Message(Box<Message>),
    Transfer,
    Close,
    Reopen,
    Rate(Rating),
}

/// The data of a chat, from which the payloads of its events are made.
pub(super) struct ChatData {
    chat: ChatLifecycle,
    requested_experts: Vec<String>,
    messages: u64,
}

impl ChatData {
    pub(super) fn new(chat: ChatLifecycle) -> Self {
        let expert = chat.expert.as_ref().and_then(|expert| expert.id.clone());
        Self {
            chat,
            requested_experts: expert.into_iter().collect(),
            messages: 0,
        }
    }

    pub(super) fn id(&self) -> String {
        self.chat.id.clone().unwrap_or_default()
    }

    /// Applies a step, and returns the kind and body of its event.
    pub(super) fn apply(&mut self, step: Step, now: Timestamp) -> (EventKind, Bytes) {
        let chat = &mut self.chat;
        let (kind, status) = match step {
            Step::Assign => return (EventKind::CHAT_ASSIGNED, to_json(&self.assigned(now))),
            Step::Message(message) => {
                let message = self.complete(*message, now);
                return (EventKind::MESSAGE_CREATED, to_json(&message));
            }
            Step::Open => {
                chat.accepted_at.get_or_insert(now);
                chat.last_opened_at = Some(now);
                (EventKind::CHAT_OPENED, "opened")
            }
            Step::Reopen => {
                chat.last_opened_at = Some(now);
                chat.closed_at = None;
                chat.transcript_url = None;
                (EventKind::CHAT_REOPENED, "reopened")
            }
            Step::Close | Step::Transfer => {
                chat.closed_at = Some(now);
                let id = chat.id.as_deref().unwrap_or_default();
                chat.transcript_url = Some(format!("https://chat.example.com/transcripts/{id}"));
                match step {
                    Step::Close => (EventKind::CHAT_CLOSED, "closed"),
                    _ => (EventKind::CHAT_TRANSFERRED, "transferred"),
                }
            }
            Step::Rate(rating) => {
                chat.rating = Some(rating.value());
                chat.rated_at = Some(now);
                (EventKind::CHAT_RATED, "rated")
            }
        };
        chat.status = Some(status.to_owned());
        (kind, to_json(chat))
    }

    fn assigned(&self, now: Timestamp) -> ChatPayload {
        let chat = &self.chat;
        ChatPayload {
            id: chat.id.clone(),
            requested_experts: self.requested_experts.clone(),
            category: chat.category.clone(),
            user: chat.user.clone(),
            question: chat.question.clone(),
            language_code: chat.language_code.clone(),
            created_at: chat.created_at,
            referer: chat.referer.clone(),
            custom_meta: chat.custom_meta.clone(),
            assigned_at: Some(now),
        }
    }

    fn complete(&mut self, message: Message, now: Timestamp) -> Message {
        self.messages += 1;
        let chat = &self.chat;
        // Someone who is named is the sender. If both are, or nobody, it is the customer.
        let is_named = message.user.is_some() || message.expert.is_none();
        let is_user = message.is_user.unwrap_or(is_named);
        let sender = |id: Option<String>, wrote: bool| {
            wrote
                .then_some(id)
                .flatten()
                .map(|id| Reference { id: Some(id) })
        };
        let user = chat.user.as_ref().and_then(|user| user.id.clone());
        let expert = chat.expert.as_ref().and_then(|expert| expert.id.clone());
        Message {
            chat: message.chat.or_else(|| {
                Some(Reference {
                    id: chat.id.clone(),
                })
            }),
            id: message
                .id
                .or_else(|| Some(format!("{}-m-{}", self.id(), self.messages))),
            user: message.user.or_else(|| sender(user, is_user)),
            expert: message.expert.or_else(|| sender(expert, !is_user)),
            is_user: Some(is_user),
            kind: message.kind.or_else(|| Some("message".to_owned())),
            hide_for_user: message.hide_for_user.or(Some(false)),
            hide_for_expert: message.hide_for_expert.or(Some(false)),
            created_at: message.created_at.or(Some(now)),
            text: message.text,
            attachment: message.attachment,
        }
    }
}

fn to_json(payload: &impl Serialize) -> Bytes {
    // It cannot fail: payloads have string keys, and a rating is a finite number.
    serde_json::to_vec(payload).unwrap_or_default().into()
}

impl State {
    fn step(&mut self, index: usize, mut step: Step) -> EventId {
        let now = self.clock.now();
        let timestamp = self.clock.timestamp(now);
        if let (true, Step::Message(message)) = (self.strict, &mut step) {
            let word = strict::unknown_word(&mut self.rng);
            message.kind.get_or_insert(word);
        }
        let (kind, mut body) = self.chats[index].data.apply(step, timestamp);
        if self.strict {
            body = strict::harden(&mut self.rng, &kind, body);
        }
        self.emit(kind, index, body)
    }

    /// Schedules or cancels the rating that follows from an event of `kind` (Spec 3, rule 1): one for each
    /// resolution that is neither reopened nor rated by a script.
    pub(super) fn plan_rating(&mut self, index: usize, kind: &EventKind) {
        let is = |other: EventKind| *kind == other;
        let is_pending = self.chats[index].rate_at.is_some();
        let resolves = is(EventKind::CHAT_CLOSED) || is(EventKind::CHAT_TRANSFERRED);
        let ends = is(EventKind::CHAT_RATED) || is(EventKind::CHAT_REOPENED);
        // Anything else that happens in a chat that waits for its rating puts the rating off.
        let at = (resolves || (is_pending && !ends))
            .then(|| self.clock.now().saturating_add(self.rate_after));
        self.schedule_rating(index, at);
    }

    /// Rates a chat that no script rates (Spec 3, rule 1).
    pub(super) fn rate_automatically(&mut self, index: usize) {
        let rating = self.rng.choice([Rating::Bad, Rating::Fair, Rating::Good]);
        self.step(index, Step::Rate(rating.unwrap_or(Rating::Good)));
    }
}

/// Returns a random chat. Some fields are omitted at random, because the spec omits those that are not
/// available.
pub(super) fn invent(rng: &mut Rng, number: usize, created_at: Timestamp) -> ChatLifecycle {
    let (name, locale, language) = pick(
        rng,
        &[
            ("Ada Jensen", "DK", "en"),
            ("Zoë Ångström", "SE", "sv"),
            ("Mateus Oliveira", "BR", "pt"),
            ("伊藤 葵", "JP", "ja"),
        ],
    );
    let (category, title) = pick(
        rng,
        &[
            ("billing", "Billing"),
            ("returns", "Returns"),
            ("tech", "Technical help"),
        ],
    );
    let question = pick(
        rng,
        &[
            "Why was my card charged twice for my last order?",
            "Where is my parcel? 📦",
            "The app says \"try again later\". How much later?",
        ],
    );
    let (expert, expert_name) = pick(
        rng,
        &[("e-1042", "Noor Haddad"), ("e-2077", "Bo Lindqvist")],
    );
    let maybe = |rng: &mut Rng, text: &str| rng.bool().then(|| text.to_owned());
    ChatLifecycle {
        id: Some(format!("c-{number}")),
        user: Some(User {
            id: Some(format!("u-{}", rng.u32(10_000..100_000))),
            name: Some(name.to_owned()),
            email: maybe(rng, "customer@example.com"),
            locale: Some(locale.to_owned()),
        }),
        expert: Some(Expert {
            id: Some(expert.to_owned()),
            name: Some(expert_name.to_owned()),
            email: maybe(rng, "expert@example.com"),
        }),
        category: rng.bool().then(|| Category {
            id: Some(category.to_owned()),
            title: Some(title.to_owned()),
        }),
        question: Some(question.to_owned()),
        language_code: Some(language.to_owned()),
        created_at: Some(created_at),
        referer: maybe(rng, "https://shop.example.com/checkout"),
        custom_meta: maybe(rng, "premium")
            .map(|plan| ("plan".to_owned(), plan))
            .into_iter()
            .collect(),
        ..ChatLifecycle::default()
    }
}

fn pick<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.usize(..from.len())]
}

/// Creates random chats and events, one event at a time. See [`Sandbox::generator`].
#[derive(Debug)]
pub struct Generator {
    sandbox: Sandbox,
    rng: Rng,
    chats: Vec<(SimulatedChat, Phase)>,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Assigned,
    Open,
    Resolved,
}

impl Generator {
    pub(super) fn new(sandbox: Sandbox, seed: u64) -> Self {
        Self {
            sandbox,
            rng: Rng::with_seed(seed),
            chats: Vec::new(),
        }
    }

    /// Creates the next event: in a new chat, or in one that is not rated yet.
    pub fn step(&mut self) -> EventId {
        loop {
            if let Some(event) = self.try_step() {
                return event;
            }
        }
    }

    /// Returns `None` if it chose a chat that was rated in the meantime, which it then forgets.
    fn try_step(&mut self) -> Option<EventId> {
        let rng = &mut self.rng;
        if self.chats.is_empty() || rng.u8(..6) == 0 {
            let chat = self.sandbox.chat();
            let event = chat.assign();
            self.chats.push((chat, Phase::Assigned));
            return Some(event);
        }
        let index = rng.usize(..self.chats.len());
        let (chat, phase) = &mut self.chats[index];
        Some(match phase {
            Phase::Assigned => {
                *phase = Phase::Open;
                chat.open()
            }
            Phase::Open => match rng.u8(..8) {
                0 => {
                    *phase = Phase::Resolved;
                    chat.transfer()
                }
                1 | 2 => {
                    *phase = Phase::Resolved;
                    chat.close()
                }
                3 => chat.send(Message {
                    text: Some("Here is the receipt 🧾".to_owned()),
                    attachment: Some(Attachment {
                        url: Some("https://files.example.com/receipt.pdf".to_owned()),
                        filename: Some("receipt.pdf".to_owned()),
                        mimetype: Some("application/pdf".to_owned()),
                    }),
                    ..Message::default()
                }),
                4 | 5 => chat.message("And when will that be?"),
                _ => chat.reply("I am looking into it."),
            },
            Phase::Resolved => {
                let reopens = rng.u8(..4) == 0;
                let step = match reopens {
                    true => Step::Reopen,
                    false => Step::Rate(pick(rng, &[Rating::Bad, Rating::Fair, Rating::Good])),
                };
                let event = chat.step_if_unrated(step);
                if reopens && event.is_some() {
                    *phase = Phase::Open;
                } else {
                    self.chats.swap_remove(index);
                }
                return event;
            }
        })
    }
}

/// The default of [`Settings::rate_after`](super::Settings::rate_after).
pub(super) const RATE_AFTER: Duration = Duration::from_secs(60 * 60);
