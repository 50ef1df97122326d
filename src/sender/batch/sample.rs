//! Makes up an item, in the arrays and objects that are around one.

use serde_json::{Map, Value, json};

use super::paths::{Batch, Key, Kind, Path, Reaches, Step};
use crate::event::EventKind;

impl Batch {
    /// A body with one item, which has this event type and key where its path has them. `None` if it cannot have both.
    pub(in crate::sender) fn sample(&self, kind: &EventKind, key: &str) -> Option<Value> {
        let is_of = |path: &&Path| matches!(&path.kind, Kind::Constant(it) if it == kind);
        let is_read = |path: &&Path| matches!(path.kind, Kind::Read(_) | Kind::Joined { .. });
        let mut paths = self.paths.iter();
        let path = paths
            .find(is_of)
            .or_else(|| self.paths.iter().find(is_read));
        path.or(self.paths.first())?.sample(kind, key)
    }
}

impl Path {
    fn sample(&self, kind: &EventKind, key: &str) -> Option<Value> {
        let arrays = self.steps.iter().filter(|it| **it == Step::Each).count();
        // What stands in the body, in each element around the item, and in the item, which is the last.
        let mut levels = vec![Value::Object(Map::new()); arrays + 1];
        let mut put = |reaches: &Reaches, text: &str| {
            let around = reaches.around.first().copied().flatten();
            let level = around.map_or(arrays, |it| it.level);
            reaches.pointers.put(&mut levels[level], json!(text))
        };
        match &self.kind {
            Kind::Delivery | Kind::Constant(_) => {}
            Kind::Read(reaches) => put(reaches, kind.as_str())?,
            Kind::Joined { parts, with, .. } => {
                let texts: Vec<_> = match &**with {
                    "" => vec![kind.as_str()],
                    with => kind.as_str().splitn(parts.len(), with).collect(),
                };
                if texts.len() < parts.len() {
                    return None;
                }
                let mut each = parts.iter().zip(texts);
                each.try_for_each(|(part, text)| put(part, text))?;
            }
        }
        if let Key::Parts(parts) = &self.key {
            parts.iter().try_for_each(|part| put(part, key))?;
        }
        let mut item = levels.pop()?;
        let fields = item.as_object_mut()?;
        // Equal items without a key are one event.
        fields.entry("id").or_insert_with(|| json!(key));
        fields.entry("type").or_insert_with(|| json!(kind.as_str()));
        self.wrapped(item, levels)
    }

    /// The item in its arrays, of which each stands at the end of the names before it.
    fn wrapped(&self, item: Value, mut levels: Vec<Value>) -> Option<Value> {
        let mut value = item;
        for steps in self.steps.split_inclusive(|it| *it == Step::Each).rev() {
            let mut around = levels.pop()?;
            value = json!([value]);
            let mut names = steps.iter().filter_map(|it| match it {
                Step::Name(name) => Some(name.as_str()),
                Step::Each => None,
            });
            let mut place = &mut around;
            let Some(first) = names.next() else {
                // An array in an array, or as the body, has no other field.
                continue;
            };
            for name in std::iter::once(first).chain(names) {
                place = place
                    .as_object_mut()?
                    .entry(name)
                    .or_insert_with(|| Value::Object(Map::new()));
            }
            *place = value;
            value = around;
        }
        Some(value)
    }
}
