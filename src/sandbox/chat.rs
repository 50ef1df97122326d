//! Chats: scripted by a test, or generated from a seed.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use serde::Serialize;

use super::Sandbox;
use super::report::EventId;
use super::sender::State;
use crate::event::{
    Attachment, Category, Chat as ChatPayload, ChatLifecycle, EventKind, Expert, Message,
    Reference, Timestamp, User,
};

/// A chat on the platform. Each method makes something happen, and so causes an event.
///
/// The order is yours: the spec shows no table of transitions. A chat that was closed or
/// transferred is rated by its customer in the end, whether or not you call [`rate`](Self::rate)
/// (Spec 3, rule 1; see [`Settings::rate_after`](super::Settings::rate_after)).
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

/// How a customer rates a chat (Spec 2.3: one of 0, 0.5, 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rating {
    /// 0
    Bad,
    /// 0.5
    Fair,
    /// 1
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

    /// The chat's identifier.
    #[must_use]
    pub fn id(&self) -> String {
        self.sandbox.lock().chats[self.index].id()
    }

    /// The chat is offered to experts: `chat-assigned`.
    pub fn assign(&self) -> EventId {
        self.step(Step::Assign)
    }

    /// An expert handles the chat: `chat-opened`.
    pub fn open(&self) -> EventId {
        self.step(Step::Open)
    }

    /// The chat counts as resolved: `chat-closed`.
    pub fn close(&self) -> EventId {
        self.step(Step::Close)
    }

    /// It is opened again: `chat-reopened`.
    pub fn reopen(&self) -> EventId {
        self.step(Step::Reopen)
    }

    /// It is handed to a company representative: `chat-transferred`.
    pub fn transfer(&self) -> EventId {
        self.step(Step::Transfer)
    }

    /// The customer rates it: `chat-rated`.
    pub fn rate(&self, rating: Rating) -> EventId {
        self.step(Step::Rate(rating))
    }

    /// The customer writes: `message-created`.
    pub fn message(&self, text: impl Into<String>) -> EventId {
        self.send(Message {
            text: Some(text.into()),
            is_user: Some(true),
            ..Message::default()
        })
    }

    /// The expert writes: `message-created`.
    pub fn reply(&self, text: impl Into<String>) -> EventId {
        self.send(Message {
            text: Some(text.into()),
            is_user: Some(false),
            ..Message::default()
        })
    }

    /// A message of your making, for instance with an attachment: `message-created`. What it does
    /// not say of chat, identifier, sender and time is added.
    pub fn send(&self, message: Message) -> EventId {
        self.step(Step::Message(Box::new(message)))
    }

    /// An event of any kind with a body of your making, in this chat.
    pub fn emit(&self, kind: EventKind, body: impl Into<Bytes>) -> EventId {
        let body = body.into();
        self.sandbox
            .change(|state| state.emit(kind, self.index, body))
    }

    fn step(&self, step: Step) -> EventId {
        self.sandbox.change(|state| state.advance(self.index, step))
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

/// What is known of a chat. A field that is not available is `None` or empty, and omitted.
pub(super) struct Facts {
    chat: ChatLifecycle,
    requested_experts: Vec<String>,
    messages: u64,
}

impl Facts {
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

    /// What changes with `step`, and the event that tells it.
    pub(super) fn advance(&mut self, step: Step, now: Timestamp) -> (EventKind, Bytes) {
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
        let is_user = message.is_user.unwrap_or(true);
        let sender = |id: Option<String>, wrote: bool| {
            wrote
                .then_some(id)
                .flatten()
                .map(|id| Reference { id: Some(id) })
        };
        let user = chat.user.as_ref().and_then(|user| user.id.clone());
        let expert = chat.expert.as_ref().and_then(|expert| expert.id.clone());
        Message {
            chat: Some(Reference {
                id: chat.id.clone(),
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

/// These types cannot fail to serialize.
fn to_json(payload: &impl Serialize) -> Bytes {
    serde_json::to_vec(payload).unwrap_or_default().into()
}

impl State {
    fn advance(&mut self, index: usize, step: Step) -> EventId {
        let now = self.clock.now();
        let rate_after = self.rate_after;
        let due = match (&step, self.chats[index].rate_at) {
            (Step::Rate(_), _) => None,
            (Step::Close | Step::Transfer, _) | (_, Some(_)) => {
                Some(now.saturating_add(rate_after))
            }
            _ => None,
        };
        self.schedule_rating(index, due);
        let timestamp = self.clock.timestamp(now);
        let (kind, body) = self.chats[index].facts.advance(step, timestamp);
        self.emit(kind, index, body)
    }

    /// The customer remembers to rate the chat.
    pub(super) fn rate_by_itself(&mut self, index: usize) {
        let rating = self.rng.choice([Rating::Bad, Rating::Fair, Rating::Good]);
        self.advance(index, Step::Rate(rating.unwrap_or(Rating::Good)));
    }
}

/// What a new chat is about, by chance: some chats have less to tell than others.
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
    let tells = |rng: &mut Rng, text: &str| rng.bool().then(|| text.to_owned());
    ChatLifecycle {
        id: Some(format!("c-{number}")),
        user: Some(User {
            id: Some(format!("u-{}", rng.u32(10_000..100_000))),
            name: Some(name.to_owned()),
            email: tells(rng, "customer@example.com"),
            locale: Some(locale.to_owned()),
        }),
        expert: Some(Expert {
            id: Some(expert.to_owned()),
            name: Some(expert_name.to_owned()),
            email: tells(rng, "expert@example.com"),
        }),
        category: rng.bool().then(|| Category {
            id: Some(category.to_owned()),
            title: Some(title.to_owned()),
        }),
        question: Some(question.to_owned()),
        language_code: Some(language.to_owned()),
        created_at: Some(created_at),
        referer: tells(rng, "https://shop.example.com/checkout"),
        custom_meta: tells(rng, "premium")
            .map(|plan| ("plan".to_owned(), plan))
            .into_iter()
            .collect(),
        ..ChatLifecycle::default()
    }
}

fn pick<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.usize(..from.len())]
}

/// Lets chats live by chance, one event at a time. See [`Sandbox::generator`].
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

    /// Lets the next thing happen: a new chat, or something in one that is not finished.
    pub fn step(&mut self) -> EventId {
        let rng = &mut self.rng;
        if self.chats.is_empty() || rng.u8(..6) == 0 {
            let chat = self.sandbox.chat();
            let event = chat.assign();
            self.chats.push((chat, Phase::Assigned));
            return event;
        }
        let index = rng.usize(..self.chats.len());
        let (chat, phase) = &mut self.chats[index];
        match phase {
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
            Phase::Resolved if rng.u8(..4) == 0 => {
                *phase = Phase::Open;
                chat.reopen()
            }
            Phase::Resolved => {
                let rating = pick(rng, &[Rating::Bad, Rating::Fair, Rating::Good]);
                let event = chat.rate(rating);
                self.chats.swap_remove(index);
                event
            }
        }
    }
}

/// When the customer rates a chat unasked.
pub(super) const RATE_AFTER: Duration = Duration::from_secs(60 * 60);
