//! Finds the items of a body: a walk that knows the paths, and reads nothing in the items.

use std::ops::Range;

use super::cursor::Cursor;
use super::paths::{Path, Step};

/// The most items of a delivery.
pub(super) const MOST_ITEMS: usize = 10_000;

/// Where items stand in a body.
#[derive(Debug)]
pub(super) struct Places {
    /// In the body's order. None is in another.
    pub(super) items: Vec<Place>,
    /// The body, and the elements in which items stand.
    pub(super) frames: Vec<Frame>,
    /// Whether a path leads to an array in which it finds items, if there are any.
    pub(super) has_end: bool,
}

#[derive(Debug)]
pub(super) struct Place {
    pub(super) range: Range<usize>,
    /// The index of its path. `None` for an element in which no path found an item.
    pub(super) path: Option<usize>,
    /// The index of the frame around it.
    pub(super) frame: usize,
}

#[derive(Debug)]
pub(super) struct Frame {
    pub(super) range: Range<usize>,
    /// That of the body is its own.
    pub(super) parent: usize,
    /// How many arrays of a path are around it.
    pub(super) level: usize,
}

/// Why there are no items.
#[derive(Debug)]
pub(super) enum Stop {
    /// There is no array, or a name of a path stands twice, so that two readers could find two batches.
    Whole,
    TooMany,
}

/// Returns where the items are, in a text that is JSON.
pub(super) fn split(json: &str, paths: &[Path]) -> Result<Places, Stop> {
    let body = Frame {
        range: 0..json.len(),
        parent: 0,
        level: 0,
    };
    let mut walk = Walk {
        paths,
        cursor: Cursor::new(json),
        places: Places {
            items: Vec::new(),
            frames: vec![body],
            has_end: false,
        },
        has_array: false,
    };
    walk.value(Set::all(paths), 0, 0)?;
    match walk.has_array {
        true => Ok(walk.places),
        false => Err(Stop::Whole),
    }
}

/// Those of the paths that lead to one place: their first steps are equal.
#[derive(Clone, Copy)]
struct Set(u8);

impl Set {
    fn all(paths: &[Path]) -> Self {
        Self((0..paths.len()).fold(0, |set, index| set | 1 << index))
    }

    fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Those whose step at `depth` is such.
    fn with(self, paths: &[Path], depth: usize, is_it: impl Fn(&Step) -> bool) -> Self {
        let has_it = |path: &Path| path.steps.get(depth).is_some_and(&is_it);
        let all = paths.iter().enumerate();
        let with = all.filter(|(index, path)| self.0 >> index & 1 == 1 && has_it(path));
        Self(with.fold(0, |set, (index, _)| set | 1 << index))
    }

    /// The path that ends at `depth`.
    fn ending(self, paths: &[Path], depth: usize) -> Option<usize> {
        let mut all = paths.iter().enumerate();
        let ending = all.find(|(index, it)| self.0 >> index & 1 == 1 && it.steps.len() == depth);
        ending.map(|(index, _)| index)
    }
}

struct Walk<'a> {
    paths: &'a [Path],
    cursor: Cursor<'a>,
    places: Places,
    has_array: bool,
}

impl Walk<'_> {
    /// Walks through the value to which the first `depth` steps of `set` lead. It recurses once for each step.
    fn value(&mut self, set: Set, depth: usize, frame: usize) -> Result<(), Stop> {
        let begin = self.cursor.peek();
        let is_next = |step: &Step| match step {
            Step::Each => begin == Some(b'['),
            Step::Name(_) => begin == Some(b'{'),
        };
        let set = set.with(self.paths, depth, is_next);
        if set.is_empty() {
            self.cursor.skip();
            return Ok(());
        }
        self.cursor.open();
        match begin {
            Some(b'[') => self.elements(set, depth + 1, frame),
            _ => self.members(set, depth, frame),
        }
    }

    fn members(&mut self, set: Set, depth: usize, frame: usize) -> Result<(), Stop> {
        let mut seen = 0;
        while self.cursor.has_next(b'}') {
            let name = self.cursor.name();
            let is_it = |step: &Step| matches!(step, Step::Name(it) if *it == name);
            let named = set.with(self.paths, depth, is_it);
            if named.0 & seen != 0 {
                return Err(Stop::Whole);
            }
            seen |= named.0;
            match named.is_empty() {
                true => _ = self.cursor.skip(),
                false => self.value(named, depth + 1, frame)?,
            }
        }
        Ok(())
    }

    fn elements(&mut self, set: Set, depth: usize, parent: usize) -> Result<(), Stop> {
        self.has_array = true;
        self.places.has_end |= set.ending(self.paths, depth).is_some();
        while self.cursor.has_next(b']') {
            let (from, items, frame) = (
                self.cursor.at,
                self.places.items.len(),
                self.places.frames.len(),
            );
            self.places.frames.push(Frame {
                range: from..from,
                parent,
                level: self.places.frames[parent].level + 1,
            });
            match self.value(set, depth, frame) {
                // Such an element is not split.
                Err(Stop::Whole) => {
                    self.places.items.truncate(items);
                    self.cursor.at = from;
                    self.cursor.skip();
                }
                walked => walked?,
            }
            let range = from..self.cursor.at;
            if self.places.items.len() > items {
                self.places.frames[frame].range = range;
                continue;
            }
            self.places.frames.truncate(frame);
            if items == MOST_ITEMS {
                return Err(Stop::TooMany);
            }
            self.places.items.push(Place {
                range,
                path: set.ending(self.paths, depth),
                frame: parent,
            });
        }
        Ok(())
    }
}
