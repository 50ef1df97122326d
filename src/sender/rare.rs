//! What few schemes have.

use super::pointer::{Pointer, Pointers};

#[derive(Clone, Debug, Default)]
pub(crate) struct Rare {
    /// Where a tag stands that is in no header.
    pub(super) elsewhere: Vec<Elsewhere>,
    /// Blanks around elements are no part of them, and several lines of a header are one list.
    pub(super) is_lenient: bool,
    /// What stands between lists of elements, of which each has its own tag and time.
    pub(super) lists: Option<u8>,
    /// The SHA-256 of the body in hex is signed in its place.
    pub(super) signs_digest: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Elsewhere {
    Query(String),
    /// Of a token only: a signature does not sign itself.
    Body(Pointers),
    /// Of a token only, which each element of an array has.
    Each {
        array: Pointer,
        token: Pointer,
    },
}

impl Rare {
    /// `None` if it is as for other senders.
    pub(super) fn boxed(self) -> Option<Box<Self>> {
        let is_any = !self.elsewhere.is_empty()
            || self.is_lenient
            || self.lists.is_some()
            || self.signs_digest;
        is_any.then(|| Box::new(self))
    }
}
