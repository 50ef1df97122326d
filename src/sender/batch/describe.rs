//! A batch as it is described, and what is wrong with a description.

use std::slice;

use serde::Deserialize;

use super::paths::{Around, Batch, Keep, Key, Kind, MOST_PATHS, Path, Reaches, Step};
use crate::event::EventKind;
use crate::sender::pointer::{Misses, Pointer, Pointers};

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "use a path such as `/events/*`, a table with `path`, `key`, `kind`, `order` and `keep`, or a list of these"
)]
pub(in crate::sender) enum BatchDescription {
    // First, since serde also reads a table from a list of its values.
    Several(Vec<PathField>),
    One(PathField),
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "use a path such as `/events/*`, or a table with `path`, `key`, `kind`, `order` and `keep`"
)]
pub(in crate::sender) enum PathField {
    Path(String),
    Described(PathDescription),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::sender) struct PathDescription {
    path: String,
    key: Option<KeyField>,
    kind: Option<KindField>,
    order: Option<First>,
    #[serde(default)]
    keep: Vec<String>,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "use a JSON pointer, `digest`, or `{ join = [...] }` with several pointers"
)]
enum KeyField {
    One(String),
    Joined(Joined),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Joined {
    join: Vec<String>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "use a JSON pointer, or a list of them")]
enum First {
    One(String),
    Several(Vec<String>),
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "use a JSON pointer, a list of them, `{ constant = \"…\" }`, or `{ join = [...], with = \".\" }`"
)]
enum KindField {
    Found(First),
    Constant(Constant),
    Joined(JoinedKind),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JoinedKind {
    join: Vec<String>,
    with: Option<String>,
    default: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Constant {
    constant: String,
}

impl BatchDescription {
    pub(in crate::sender) fn batch(&self) -> Result<Batch, String> {
        let (fields, one) = match self {
            Self::One(field) => (slice::from_ref(field), true),
            Self::Several(fields) => (&fields[..], false),
        };
        if fields.is_empty() || fields.len() > MOST_PATHS {
            return Err(format!("batch: name 1 to {MOST_PATHS} paths"));
        }
        let mut around = 0;
        let mut paths: Vec<Path> = Vec::new();
        for (index, field) in fields.iter().enumerate() {
            let path = field.path(&mut around).map_err(|error| match one {
                true => format!("batch.{error}"),
                // Several have the same fields, so the message says which one is meant.
                false => format!("batch[{index}].{error}"),
            })?;
            if paths.iter().any(|other| other.steps == path.steps) {
                return Err(format!("batch[{index}].path: it stands twice"));
            }
            paths.push(path);
        }
        let misses = Misses::default();
        Ok(Batch {
            paths,
            around,
            misses,
        })
    }
}

impl PathField {
    /// Returns the path, or what is wrong, with the name of the field. `around` counts pointers after `^`.
    fn path(&self, around: &mut usize) -> Result<Path, String> {
        let mut reading = Reading {
            steps: Vec::new(),
            around,
        };
        let it = match self {
            Self::Path(text) => {
                return Ok(Path {
                    steps: steps(text)?,
                    key: Key::None,
                    kind: Kind::Delivery,
                    order: None,
                    keep: Vec::new(),
                });
            }
            Self::Described(it) => it,
        };
        reading.steps = steps(&it.path)?;
        let key = match &it.key {
            None => Key::None,
            Some(KeyField::One(text)) if text == "digest" => Key::Digest,
            Some(KeyField::One(text)) => {
                Key::Parts(vec![reading.reaches("key", slice::from_ref(text))?])
            }
            Some(KeyField::Joined(it)) if !(2..=8).contains(&it.join.len()) => {
                return Err("key.join: name 2 to 8 JSON pointers".to_owned());
            }
            Some(KeyField::Joined(it)) => {
                let parts = it.join.iter().map(slice::from_ref);
                let parts = parts.map(|part| reading.reaches("key.join", part));
                Key::Parts(parts.collect::<Result<_, _>>()?)
            }
        };
        let kind = match &it.kind {
            None => Kind::Delivery,
            Some(KindField::Found(first)) => Kind::Read(reading.first("kind", first)?),
            Some(KindField::Constant(it)) => Kind::Constant(constant("constant", &it.constant)?),
            Some(KindField::Joined(it)) if !(2..=8).contains(&it.join.len()) => {
                return Err("kind.join: name 2 to 8 JSON pointers".to_owned());
            }
            Some(KindField::Joined(it)) => {
                let parts = it.join.iter().map(slice::from_ref);
                let parts = parts.map(|part| reading.reaches("kind.join", part));
                let default = it.default.as_deref().map(|it| constant("default", it));
                Kind::Joined {
                    parts: parts.collect::<Result<_, _>>()?,
                    with: it.with.clone().unwrap_or_else(|| ".".to_owned()),
                    default: default.transpose()?,
                }
            }
        };
        let order = it.order.as_ref().map(|it| reading.first("order", it));
        let order = order.transpose()?;
        let mut keep: Vec<Keep> = Vec::new();
        for text in &it.keep {
            let kept = reading.keep(text)?;
            if keep.iter().any(|other| other.name == kept.name) {
                return Err(format!(
                    "keep: {text:?} ends with the same name as another, under which it is kept"
                ));
            }
            keep.push(kept);
        }
        Ok(Path {
            key,
            kind,
            order,
            keep,
            steps: reading.steps,
        })
    }
}

/// Reads the pointers of a path.
struct Reading<'a> {
    steps: Vec<Step>,
    around: &'a mut usize,
}

impl Reading<'_> {
    fn first(&mut self, field: &'static str, first: &First) -> Result<Reaches, String> {
        match first {
            First::One(text) => self.reaches(field, slice::from_ref(text)),
            First::Several(list) => self.reaches(field, list),
        }
    }

    fn reaches(&mut self, field: &'static str, list: &[String]) -> Result<Reaches, String> {
        let read = list.iter().map(|text| self.reach(field, text));
        let read: Vec<_> = read.collect::<Result<_, _>>()?;
        let (pointers, around) = read.into_iter().unzip();
        Ok(Reaches {
            pointers: Pointers::new(field, pointers),
            around,
        })
    }

    fn keep(&mut self, text: &str) -> Result<Keep, String> {
        match self.reach("keep", text)? {
            (pointer, Some(around)) => Ok(Keep {
                // It has at least one.
                name: serde_json::to_string(&pointer.names().last())
                    .map_err(|error| format!("keep: {text:?}: {error}"))?,
                around,
                pointer,
            }),
            (_, None) => Err(format!(
                "keep: {text:?} is in the item, which its handler has: begin with `^`, such as `^/id`"
            )),
        }
    }

    /// A pointer and what it is read in, which is the item if there is no `^`.
    fn reach(&mut self, field: &str, text: &str) -> Result<(Pointer, Option<Around>), String> {
        let Some(after) = text.strip_prefix('^') else {
            let pointer = pointer(field, text, text)?;
            if pointer.names().iter().any(|name| name == "*") {
                return Err(format!(
                    "{field}: {text:?} has a `*`, which stands only after `^`"
                ));
            }
            return Ok((pointer, None));
        };
        let pointer = pointer(field, text, after)?;
        let names: Vec<_> = pointer.names().iter().map(|name| step(name)).collect();
        if names.starts_with(&self.steps) {
            return Err(format!(
                "{field}: {text:?} is in the item: write what stands after the path, without `^`"
            ));
        }
        if self.steps.starts_with(&names) {
            return Err(format!(
                "{field}: {text:?} contains the item: name a field beside it"
            ));
        }
        let starred = names.iter().rposition(|name| *name == Step::Each);
        let first = starred.map_or(0, |last| last + 1);
        if names[..first] != self.steps[..first.min(self.steps.len())] {
            return Err(format!(
                "{field}: {text:?} has a `*` where its path has none: after `^`, it begins as the path does up to its \
                 last `*`"
            ));
        }
        let memory = *self.around;
        *self.around += 1;
        let level = names.iter().filter(|name| **name == Step::Each).count();
        let around = Around { level, memory };
        Ok((pointer.without(first), Some(around)))
    }
}

fn constant(field: &str, text: &str) -> Result<EventKind, String> {
    let kind = EventKind::from_bytes(text.as_bytes());
    kind.map_err(|_| format!("kind.{field}: use 1 to 128 visible ASCII characters"))
}

fn steps(text: &str) -> Result<Vec<Step>, String> {
    let pointer = pointer("path", text, text)?;
    let steps: Vec<_> = pointer.names().iter().map(|name| step(name)).collect();
    if steps.last() != Some(&Step::Each) {
        return Err(format!(
            "path: {text:?} does not end with `/*`, such as `/events/*`: it stands for each element of an array"
        ));
    }
    Ok(steps)
}

fn step(name: &str) -> Step {
    match name {
        "*" => Step::Each,
        name => Step::Name(name.to_owned()),
    }
}

fn pointer(field: &str, text: &str, pointer: &str) -> Result<Pointer, String> {
    Pointer::parse(pointer).map_err(|reason| format!("{field}: {text:?} {reason}"))
}
