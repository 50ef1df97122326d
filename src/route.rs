//! The names of routes, and of the event types that arrive there.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use twox_hash::XxHash3_128;

use crate::event::EventKind;

/// The name of a route: of one URL at which the webhooks of one sender arrive.
///
/// It is the sender's [name](crate::Sender::name) by default. A second account of a sender has a name of its own:
/// [`Webhooks::name`](crate::Webhooks::name). Keys, lanes, pauses and counts are kept by the names of routes, so a name
/// should not change while the events of its route are unsettled.
///
/// ```
/// use tower_webhook::RouteName;
///
/// let europe: RouteName = "github-europe".parse()?;
/// assert_eq!(europe.as_str(), "github-europe");
/// assert_eq!(RouteName::default().as_str(), "chat-platform");
/// # Ok::<(), tower_webhook::InvalidRouteName>(())
/// ```
///
/// A name has 1 to 64 letters, digits, `-`, `_` and `.`. Clones are cheap.
// `None` is the chat platform, so that its deliveries allocate no name.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteName(Option<Arc<str>>);

/// The name of the chat platform.
pub(crate) const CHAT_PLATFORM: &str = "chat-platform";

impl RouteName {
    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or(CHAT_PLATFORM)
    }

    /// What the digests of its keys and lanes begin with. That of the chat platform is empty.
    pub(crate) fn namespace(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }

    /// How many bits all lanes of a route begin with.
    pub(crate) const LANES: u32 = 20;

    /// These bits, by which no chat of one route can have a lane of another one. Two routes of an inbox differ in them.
    pub(crate) fn lanes(&self) -> u32 {
        let digest = XxHash3_128::oneshot(self.namespace().as_bytes());
        (digest >> (u128::BITS - Self::LANES)) as u32
    }
}

impl FromStr for RouteName {
    type Err = InvalidRouteName;

    fn from_str(name: &str) -> Result<Self, InvalidRouteName> {
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        match name {
            CHAT_PLATFORM => Ok(Self(None)),
            _ if (1..=64).contains(&name.len()) && name.bytes().all(is_word) => {
                Ok(Self(Some(name.into())))
            }
            _ => Err(InvalidRouteName(name.to_owned())),
        }
    }
}

display!(RouteName, |it| it.as_str());

impl fmt::Debug for RouteName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The error for a text that cannot be the name of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidRouteName(String);

errors! {
    InvalidRouteName {
        Self(name) => "`{}` cannot be the name of a route: use 1 to 64 letters, digits, `-`, `_` and `.`",
            name.escape_debug();
    }
}

/// An event type: the kind of an event, and the route at which it arrives. Two senders may have a kind of one name.
///
/// An [`EventKind`] alone is one of the chat platform's. In texts, the name of another route is in front, and so it is
/// before a kind with a slash:
///
/// ```
/// use tower_webhook::{EventKind, EventType};
///
/// let rated = EventType::from(EventKind::CHAT_RATED);
/// assert_eq!(rated.to_string(), "chat-rated");
///
/// let pushed: EventType = "github/push".parse()?;
/// assert_eq!(pushed.route.as_str(), "github");
/// assert_eq!(pushed.kind.as_str(), "push");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventType {
    /// The route.
    pub route: RouteName,
    /// The kind.
    pub kind: EventKind,
}

impl EventType {
    /// Creates the type of the events of a kind at a route.
    #[must_use]
    pub fn new(route: RouteName, kind: EventKind) -> Self {
        Self { route, kind }
    }
}

impl From<EventKind> for EventType {
    fn from(kind: EventKind) -> Self {
        Self::new(RouteName::default(), kind)
    }
}

impl FromStr for EventType {
    type Err = UnknownType;

    fn from_str(text: &str) -> Result<Self, UnknownType> {
        // A kind of the chat platform has no slash, and neither has a route. Other kinds may have some.
        let (route, kind) = match text.split_once('/') {
            Some((route, kind)) => (route.parse().map_err(|_| UnknownType(()))?, kind),
            None => (RouteName::default(), text),
        };
        let kind = kind.parse().map_err(|_| UnknownType(()))?;
        Ok(Self { route, kind })
    }
}

impl fmt::Display for EventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.route != RouteName::default() || self.kind.as_str().contains('/') {
            write!(f, "{}/", self.route)?;
        }
        f.write_str(self.kind.as_str())
    }
}

impl fmt::Debug for EventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// All events, those of a route, or those of a type.
///
/// ```
/// use tower_webhook::EventKind;
/// use tower_webhook::inbox::Scope;
///
/// assert_eq!(Scope::from(EventKind::CHAT_RATED).to_string(), "chat-rated");
/// assert_eq!(Scope::Route("github".parse()?).to_string(), "github/");
/// # Ok::<(), tower_webhook::InvalidRouteName>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Scope {
    /// Everything.
    Everything,
    /// All events of a route.
    Route(RouteName),
    /// The events of a type.
    Type(EventType),
}

impl Scope {
    /// Whether it has the events of a type.
    pub(crate) fn has(&self, route: &RouteName, kind: &EventKind) -> bool {
        match self {
            Self::Everything => true,
            Self::Route(of) => of == route,
            Self::Type(of) => of.route == *route && of.kind == *kind,
        }
    }
}

impl<T: Into<EventType>> From<T> for Scope {
    fn from(of: T) -> Self {
        Self::Type(of.into())
    }
}

/// The empty text is everything, a name with a slash is a route, and any other text is an event type.
impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everything => Ok(()),
            Self::Route(route) => write!(f, "{route}/"),
            Self::Type(of) => of.fmt(f),
        }
    }
}

impl FromStr for Scope {
    type Err = UnknownType;

    fn from_str(text: &str) -> Result<Self, UnknownType> {
        let route = text.strip_suffix('/').map(str::parse);
        match (text, route) {
            ("", _) => Ok(Self::Everything),
            (_, Some(Ok(route))) => Ok(Self::Route(route)),
            (of, _) => of.parse().map(Self::Type),
        }
    }
}

/// The error for a text that is not an event type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownType(());

display!(
    UnknownType,
    |_it| "an event type is the name of an event, such as `chat-rated`, or of a route and an event, \
    such as `github/push`"
);

impl std::error::Error for UnknownType {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_type_is_read_as_it_is_written() {
        for text in [
            "chat-rated",
            "github/push",
            "shopify/orders/create",
            "crm/chat-rated",
        ] {
            let of: EventType = text.parse().unwrap();
            assert_eq!(of.to_string(), text);
        }
        let own: EventType = "chat-platform/chat-rated".parse().unwrap();
        assert_eq!(own, EventKind::CHAT_RATED.into());
        for wrong in ["", "/push", "github/", "git hub/push"] {
            assert!(wrong.parse::<EventType>().is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn every_scope_is_read_as_it_is_written(route in "chat-platform|[a-z.]{1,3}", kind in "[!-~]{1,6}") {
            let of = EventType::new(route.parse().unwrap(), kind.parse().unwrap());
            for scope in [Scope::Route(of.route.clone()), of.clone().into()] {
                prop_assert_eq!(scope.to_string().parse(), Ok(scope));
            }
            prop_assert_eq!(of.to_string().parse(), Ok(of));
        }
    }

    #[test]
    fn names_are_checked() {
        for wrong in ["", "a/b", "a b", "é", &"a".repeat(65)] {
            assert!(wrong.parse::<RouteName>().is_err(), "{wrong}");
        }
        let own: RouteName = CHAT_PLATFORM.parse().unwrap();
        assert_eq!((own.clone(), own.namespace()), (RouteName::default(), ""));
        let other: RouteName = "git_hub.2".parse().unwrap();
        assert_eq!(other.namespace(), "git_hub.2");
    }
}
