//! The payloads of a chat's events.

use bytes::Bytes;
use serde::Serialize;
use tower_webhook::event::{
    Chat as ChatPayload, ChatLifecycle, EventKind, Message, Reference, Timestamp,
};

/// A customer's rating of a chat ([Spec 2.3](tower_webhook::docs::platform#spec-2-3)). See
/// [`SimulatedChat::rate`](super::SimulatedChat::rate).
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
    pub(super) chat: ChatLifecycle,
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
        ChatPayload::default()
            .id(chat.id.clone())
            .requested_experts(self.requested_experts.clone())
            .category(chat.category.clone())
            .user(chat.user.clone())
            .question(chat.question.clone())
            .language_code(chat.language_code.clone())
            .created_at(chat.created_at)
            .referer(chat.referer.clone())
            .custom_meta(chat.custom_meta.clone())
            .assigned_at(now)
    }

    fn complete(&mut self, mut message: Message, now: Timestamp) -> Message {
        self.messages += 1;
        let chat = &self.chat;
        // Someone who is named is the sender. If both are, or nobody, it is the customer.
        let is_named = message.user.is_some() || message.expert.is_none();
        let is_user = message.is_user.unwrap_or(is_named);
        let sender = |id: Option<String>, wrote: bool| {
            wrote
                .then_some(id)
                .flatten()
                .map(|id| Reference::default().id(id))
        };
        let user = chat.user.as_ref().and_then(|user| user.id.clone());
        let expert = chat.expert.as_ref().and_then(|expert| expert.id.clone());
        let number = format!("{}-m-{}", self.id(), self.messages);
        message
            .chat
            .get_or_insert_with(|| Reference::default().id(chat.id.clone()));
        message.id.get_or_insert(number);
        message.user = message.user.or_else(|| sender(user, is_user));
        message.expert = message.expert.or_else(|| sender(expert, !is_user));
        message.is_user = Some(is_user);
        message.kind.get_or_insert_with(|| "message".to_owned());
        message.hide_for_user.get_or_insert(false);
        message.hide_for_expert.get_or_insert(false);
        message.created_at.get_or_insert(now);
        message
    }
}

fn to_json(payload: &impl Serialize) -> Bytes {
    // It cannot fail: payloads have string keys, and a rating is a finite number.
    serde_json::to_vec(payload).unwrap_or_default().into()
}
