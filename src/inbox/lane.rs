//! The chat of an event, and the number of its lane. Whether a new event waits behind others is decided by each queue, in
//! its `lanes`; whether a lane waits after a failure, in `decide.rs`.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::event::Lane;
use crate::delivery::{DecodeError, RawDelivery};
use crate::event::{EventKind, chat_id};
use crate::route::RouteName;
use crate::sender::Sender;

/// Finds the chat of an event.
#[derive(Clone, Default)]
pub(crate) enum LaneOf {
    /// As the chat platform says.
    #[default]
    Platform,
    /// As the description of another sender says. Many say nothing.
    Sender(Sender),
    /// As the application says, for kinds that are not the chat platform's.
    Application {
        is_platform: bool,
        sends_forms: bool,
        chat: Arc<ChatOf>,
    },
}

pub(crate) type ChatOf = dyn Fn(&RawDelivery) -> Option<String> + Send + Sync;

impl LaneOf {
    /// A function of the application takes the place of the sender's description.
    pub(crate) fn new(sender: &Sender, chat: Option<Arc<ChatOf>>) -> Self {
        let is_platform = sender.is_chat_platform();
        match chat {
            Some(chat) => Self::Application {
                is_platform,
                sends_forms: sender.sends_forms(),
                chat,
            },
            None if is_platform => Self::Platform,
            None => Self::Sender(sender.clone()),
        }
    }

    /// Whether bodies may be forms.
    pub(crate) fn sends_forms(&self) -> bool {
        match self {
            Self::Platform => false,
            Self::Sender(sender) => sender.sends_forms(),
            Self::Application { sends_forms, .. } => *sends_forms,
        }
    }

    /// Returns the id of the event's chat as it is [stored](stored_chat), if there is one, or why the body is no JSON object.
    pub(crate) fn chat(&self, delivery: &RawDelivery) -> Result<Option<String>, DecodeError> {
        let chat = self.whole_chat(delivery)?;
        Ok(chat.map(|chat| stored_chat(chat).into_owned()))
    }

    /// The same of an item of a batch, whose description says the order.
    pub(crate) fn chat_of_item(
        &self,
        item: &RawDelivery,
        order: Option<String>,
    ) -> Result<Option<String>, DecodeError> {
        match self {
            Self::Application { .. } => self.chat(item),
            _ => Ok(order.map(|order| stored_chat(order).into_owned())),
        }
    }

    fn whole_chat<'a>(
        &self,
        delivery: &'a RawDelivery,
    ) -> Result<Option<Cow<'a, str>>, DecodeError> {
        match self {
            Self::Sender(sender) => {
                if !sender.sends_forms() {
                    delivery.json()?;
                }
                let order = delivery.order().map(Cow::Borrowed);
                Ok(order.or_else(|| sender.order_of(delivery.body())))
            }
            Self::Application {
                is_platform,
                sends_forms,
                chat,
            } if !is_platform || !EventKind::ALL.contains(delivery.kind()) => {
                if !sends_forms {
                    delivery.json()?;
                }
                let chat = catch_unwind(AssertUnwindSafe(|| chat(delivery)));
                let chat = chat.unwrap_or_else(|_| {
                    tracing::error!(
                        route = %delivery.route(),
                        kind = %delivery.kind(),
                        "the function of `lane_by` panicked: the event is stored as one without a chat"
                    );
                    None
                });
                Ok(chat.map(Cow::Owned))
            }
            _ => {
                let chat = chat_id(delivery.kind(), delivery.body());
                // To find the chat, all of the body was parsed, though not decoded.
                match chat {
                    Some(_) => delivery.text()?,
                    None => delivery.json()?,
                };
                Ok(chat.map(Cow::Owned))
            }
        }
    }
}

/// The longest id of a chat in bytes, as that of a key in a body: each event of the chat has it in its row.
const LONGEST: usize = 1024;

/// Returns the id of a chat as events have it. A longer one is cut, and the SHA-256 of all of it is put behind: refusing it
/// would lose an authentic event, and without a chat, the event would overtake others and never be forgotten.
pub(crate) fn stored_chat<'a>(chat: impl Into<Cow<'a, str>>) -> Cow<'a, str> {
    let chat = chat.into();
    if chat.len() <= LONGEST {
        return chat;
    }
    let digest = base16ct::lower::encode_string(&Sha256::digest(chat.as_bytes()));
    let room = LONGEST - "…".len() - digest.len();
    let end = (0..=room).rfind(|end| chat.is_char_boundary(*end));
    format!("{}…{digest}", &chat[..end.unwrap_or_default()]).into()
}

impl Lane {
    /// Returns the lane of a chat of the chat platform. The chats of this id at all routes are found by it, too.
    ///
    /// ```
    /// use tower_webhook::inbox::internal::Lane;
    ///
    /// assert_eq!(Lane::of_chat("chat-1"), Lane::of_chat("chat-1"));
    /// assert_ne!(Lane::of_chat("chat-1"), Lane::of_chat("chat-2"));
    /// ```
    #[must_use]
    pub fn of_chat(id: &str) -> Self {
        Self::at(&RouteName::default(), id)
    }

    /// Returns the lane of a chat at a route. It is the same in every process and release.
    #[must_use]
    pub fn at(route: &RouteName, id: &str) -> Self {
        let mut digest = Sha256::new();
        for part in [route.namespace(), id] {
            // The length in front keeps (`a`, `bc`) apart from (`ab`, `c`).
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        }
        let digest: [u8; 32] = digest.finalize().into();
        let of_chat = u64::from_be_bytes(std::array::from_fn(|at| digest[at]));
        let of_route = u64::from(route.lanes()) << (64 - RouteName::LANES);
        Self((of_route | of_chat >> RouteName::LANES).cast_signed())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_chat_is_found_in_json_objects_alone() {
        let bodies = [
            &br#"{"id":"c-1"}"#[..],
            br#" {"id":"c-1","a":["\ud800",1e999]} "#,
            br#"{"id":7}"#,
            br#"{"id":null,"id":"c-1"}"#,
            br#"{"a":1}"#,
            b"{\"id\":\"c-1\",\"a\":\"\xff\"}",
            b"{\"id\":\"c-\xff\"}",
            br#"{"id":"c-1"} {}"#,
            br#"{"id":"c-1""#,
            br#"{"id":"c-1","a":tru}"#,
            br#"["c-1"]"#,
            br#""c-1""#,
            b"\x0c{\"id\":\"c-1\"}",
            b"\xef\xbb\xbf{\"id\":\"c-1\"}",
            b"",
        ];
        let mut objects = 0;
        for kind in [EventKind::CHAT_RATED, EventKind::MESSAGE_CREATED] {
            for body in bodies {
                let delivery = RawDelivery::new(kind.clone(), body);
                let found = LaneOf::default().chat(&delivery);
                match (delivery.json(), found) {
                    (Ok(_), Ok(chat)) => assert_eq!(chat, chat_id(&kind, body)),
                    (Err(error), Err(found)) => assert_eq!(error.to_string(), found.to_string()),
                    (json, found) => panic!("{body:?}: {json:?}, {found:?}"),
                }
                objects += usize::from(delivery.json().is_ok());
            }
        }
        assert_eq!(objects, 10);
    }

    #[test]
    fn a_long_id_keeps_its_start_and_a_digest_of_all() {
        for short in ["", "c-1", &"é".repeat(LONGEST / 2)] {
            assert_eq!(stored_chat(short), short);
        }
        let long = "é".repeat(LONGEST / 2 + 1);
        let stored = stored_chat(&*long);
        let digest = "085638aad30c4fc3";
        assert!(stored.starts_with(&"é".repeat(478)), "{stored}");
        assert!(stored.contains(digest), "{stored}");
        // At most as long as the longest one, so that storing it again changes nothing.
        assert!(stored.len() <= LONGEST, "{}", stored.len());
        assert_eq!(stored_chat(&*stored), stored);
        // Chats that differ in their last byte only have lanes of their own.
        let other = stored_chat(format!("{}a", &long[..LONGEST]));
        assert_ne!(Lane::of_chat(&other), Lane::of_chat(&stored));
    }

    // Literals, because queues persist these numbers: they must be the same in every release.
    #[test]
    fn lanes_never_change() {
        assert_eq!(Lane::of_chat(""), Lane(-7_374_077_641_226_190_985));
        let lane = Lane::of_chat("chat-1");
        assert_eq!(lane, Lane(-7_374_075_804_599_084_824));
        assert_eq!(Lane::at(&RouteName::default(), "chat-1"), lane);
        assert_eq!(
            Lane::at(&route("crm"), "chat-1"),
            Lane(8_968_112_666_843_080_333)
        );
    }

    fn route(name: &str) -> RouteName {
        name.parse().unwrap()
    }

    #[test]
    fn lanes_of_a_route_begin_with_its_bits() {
        for name in ["chat-platform", "crm", "github"] {
            let name = route(name);
            let lanes: HashSet<_> = (0..1_000)
                .map(|chat| Lane::at(&name, &chat.to_string()))
                .collect();
            assert_eq!(lanes.len(), 1_000);
            let begin = |lane: &Lane| (lane.0.cast_unsigned() >> 44) as u32;
            assert!(lanes.iter().all(|lane| begin(lane) == name.lanes()));
        }
    }
}
