//! What a description says of batches: paths, and the pointers of each.

use std::fmt;

use crate::event::EventKind;
use crate::sender::pointer::{Misses, Pointer, Pointers};

/// Where the items of a delivery are, and what is read of them.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    /// At most [`MOST_PATHS`].
    pub(super) paths: Vec<Path>,
    /// The number of pointers into what is around an item, each of which has a place in the reader's memory.
    pub(super) around: usize,
    /// Deliveries in which no path leads to an array.
    pub(super) misses: Misses,
}

/// The most paths: a set of them is one byte.
pub(super) const MOST_PATHS: usize = 8;

#[derive(Clone, Debug)]
pub(super) struct Path {
    /// The last one is [`Step::Each`].
    pub(super) steps: Vec<Step>,
    pub(super) key: Key,
    pub(super) kind: Kind,
    /// `None` for that of the delivery.
    pub(super) order: Option<Reaches>,
    pub(super) keep: Vec<Keep>,
}

/// As it is written.
impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.steps.iter().try_for_each(|step| match step {
            Step::Name(name) => write!(f, "/{}", name.replace('~', "~0").replace('/', "~1")),
            Step::Each => f.write_str("/*"),
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The value of this name in an object.
    Name(String),
    /// Each element of an array.
    Each,
}

#[derive(Clone, Debug)]
pub(super) enum Key {
    /// One is made of the delivery's key and the item.
    None,
    /// The item's digest.
    Digest,
    /// Several are one key together.
    Parts(Vec<Reaches>),
}

#[derive(Clone, Debug)]
pub(super) enum Kind {
    /// That of the delivery.
    Delivery,
    Constant(EventKind),
    Read(Reaches),
    /// Several texts, with one between them, or if one is missing the default.
    Joined {
        parts: Vec<Reaches>,
        with: String,
        default: Option<EventKind>,
    },
}

/// Pointers of a field: each into the item, or into what is around it.
#[derive(Clone, Debug)]
pub(super) struct Reaches {
    pub(super) pointers: Pointers,
    /// For each of the pointers. `None` for one into the item.
    pub(super) around: Vec<Option<Around>>,
}

/// What a pointer after `^` is read in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Around {
    /// How many arrays of the path are around it: 0 is the body.
    pub(super) level: usize,
    /// Its place in the reader's memory.
    pub(super) memory: usize,
}

/// What is kept of the envelope.
#[derive(Clone, Debug)]
pub(super) struct Keep {
    /// The pointer's last name, as JSON.
    pub(super) name: String,
    pub(super) around: Around,
    pub(super) pointer: Pointer,
}
