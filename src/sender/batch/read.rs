//! Reads what a description says of an item: its key, event type and order, and what is kept of what is around it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use bytes::Bytes;
use http::HeaderValue;
use sha2::{Digest, Sha256};

use super::cursor::Cursor;
use super::paths::{Around, Batch, Keep, Key, Kind, Path, Reaches};
use super::split::{Frame, Place};
use crate::delivery::{IdempotencyKey, Item, RawDelivery};
use crate::event::EventKind;
use crate::sender::key;
use crate::sender::pointer::{Found, Pointer, Pointers, Unclear};

/// The most that is kept of what is around an item, in bytes.
const MOST_KEPT: usize = 4096;

/// An item of a delivery.
#[derive(Debug)]
pub(crate) struct Part {
    /// A slice of the body that was signed.
    pub(crate) body: Bytes,
    /// Or why the item cannot be read: it is no object, its event type is missing, or its key is none. The reason quotes
    /// nothing of the item.
    pub(crate) kind: Result<EventKind, String>,
    /// Its own. If it has none: the digest of the delivery's key (else of the body), of the item, and of its number among
    /// equal items. Items of one delivery may have equal keys, of which the first counts.
    pub(crate) key: IdempotencyKey,
    /// Whether it is the item's own, which is signed.
    pub(crate) has_own_key: bool,
    /// What it has in common with events that it must not overtake: if its path does not say it, that of the delivery.
    pub(crate) order: Option<String>,
    /// A JSON object of at most 4,096 bytes: what its description keeps of what is around it. Items share it.
    pub(crate) kept: Option<Bytes>,
}

impl Part {
    /// Returns the item as a delivery of its own, with its place in this one. An item that cannot be read has the event
    /// type of the delivery.
    pub(crate) fn delivery(&self, of: &RawDelivery, item: Item) -> RawDelivery {
        let kind = self.kind.as_ref().unwrap_or(of.kind()).clone();
        let item = match &self.kept {
            Some(kept) => item.keep(kept.clone()),
            None => item,
        };
        of.part(kind, self.key.clone(), self.body.clone(), item)
    }
}

/// Reads items in their order. What is around several of them is read once.
pub(super) struct Reader<'a> {
    batch: &'a Batch,
    delivery: &'a RawDelivery,
    json: &'a str,
    frames: &'a [Frame],
    /// What each pointer into what is around items found last, and the frame in which that was.
    found: Vec<Option<(usize, Result<Found<'a>, Unclear>)>>,
    /// The same of what is kept.
    ranges: Vec<Option<(usize, Option<Range<usize>>)>>,
    /// What each path keeps of a frame.
    kept: Vec<Option<(usize, Option<Bytes>)>>,
    has_warned: bool,
    /// That of the delivery.
    order: Option<Cow<'a, str>>,
    /// The digest of the delivery's key or body.
    origin: Option<[u8; 32]>,
    /// How many items without a key of their own had each digest.
    equal: HashMap<[u8; 32], u32>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(
        batch: &'a Batch,
        order: &Pointers,
        delivery: &'a RawDelivery,
        json: &'a str,
        frames: &'a [Frame],
    ) -> Self {
        Self {
            batch,
            delivery,
            json,
            frames,
            found: vec![None; batch.around],
            ranges: vec![None; batch.around],
            kept: vec![None; batch.paths.len()],
            has_warned: false,
            order: order.find_in_delivery(delivery.body()).ok().flatten(),
            origin: None,
            equal: HashMap::new(),
        }
    }

    pub(super) fn part(&mut self, place: &Place) -> Part {
        let item = self.json.get(place.range.clone()).unwrap_or_default();
        let path = place.path.map(|index| &self.batch.paths[index]);
        let own = match path.map(|path| &path.key) {
            Some(Key::Digest) => Ok(Some(key_of(Sha256::digest(item).into()))),
            Some(Key::Parts(parts)) => self.own_key(parts, place, item),
            None | Some(Key::None) => Ok(None),
        };
        let kind = self.kind(path, place, item);
        let (kind, own) = match (kind, own) {
            (_, Err(reason)) => (Err(reason), None),
            (kind, Ok(own)) => (kind, own),
        };
        let order = match path.and_then(|path| path.order.as_ref()) {
            Some(reaches) => self.read(reaches, place, item).ok().flatten(),
            None => self.order.clone(),
        };
        Part {
            body: self.delivery.body().slice(place.range.clone()),
            kind,
            has_own_key: own.is_some(),
            key: own.unwrap_or_else(|| self.made_key(item)),
            order: order.map(Cow::into_owned),
            kept: place.path.and_then(|index| self.kept(index, place.frame)),
        }
    }

    fn kind(
        &mut self,
        path: Option<&'a Path>,
        place: &Place,
        item: &'a str,
    ) -> Result<EventKind, String> {
        // No handler can decode another.
        if !item.starts_with('{') {
            return Err("it is no JSON object".to_owned());
        }
        let found = match path.map(|path| &path.kind) {
            None | Some(Kind::Delivery) => return Ok(self.delivery.kind().clone()),
            Some(Kind::Constant(kind)) => return Ok(kind.clone()),
            Some(Kind::Read(reaches)) => self.read(reaches, place, item),
            Some(Kind::Joined {
                parts,
                with,
                default,
            }) => match (self.joined(parts, with, place, item), default) {
                (Ok(None), Some(default)) => return Ok(default.clone()),
                (found, _) => found,
            },
        };
        let found = found.map_err(|unclear| format!("its event type: {unclear}"))?;
        let kind = found.and_then(|kind| EventKind::from_bytes(kind.as_bytes()).ok());
        kind.ok_or_else(|| {
            "its event type is missing, or not 1 to 128 visible ASCII characters".to_owned()
        })
    }

    /// `None` if one of them is missing.
    fn joined(
        &mut self,
        parts: &'a [Reaches],
        with: &str,
        place: &Place,
        item: &'a str,
    ) -> Result<Option<Cow<'a, str>>, Unclear> {
        let mut texts = Vec::with_capacity(parts.len());
        for part in parts {
            match self.read(part, place, item)? {
                Some(text) if !text.is_empty() => texts.push(text),
                _ => return Ok(None),
            }
        }
        Ok(Some(texts.join(with).into()))
    }

    fn own_key(
        &mut self,
        parts: &'a [Reaches],
        place: &Place,
        item: &'a str,
    ) -> Result<Option<IdempotencyKey>, String> {
        let mut texts = Vec::with_capacity(parts.len());
        for part in parts {
            let found = self.read(part, place, item);
            let found = found.map_err(|unclear| format!("its key: {unclear}"))?;
            match found.filter(|text| !text.is_empty()) {
                Some(text) => texts.push(text),
                // A key of fewer parts could be that of another item.
                None => return Ok(None),
            }
        }
        let key = match <[_; 1]>::try_from(texts) {
            Ok([only]) => only,
            Err(several) => key::joined(&several).into(),
        };
        key::of(&key).map_err(str::to_owned)
    }

    /// The key of an item that has none of its own.
    fn made_key(&mut self, item: &str) -> IdempotencyKey {
        let delivery = self.delivery;
        let origin = *self.origin.get_or_insert_with(|| {
            match delivery.key() {
                // A key and a body never have the same digest.
                Some(key) => Sha256::new_with_prefix(b"key:").chain_update(key.as_bytes()),
                None => Sha256::new_with_prefix(b"body:").chain_update(delivery.body()),
            }
            .finalize()
            .into()
        });
        let digest: [u8; 32] = Sha256::digest(item).into();
        let number = self.equal.entry(digest).or_default();
        *number += 1;
        let key = Sha256::new_with_prefix(b"item:")
            .chain_update(origin)
            .chain_update(digest)
            .chain_update(number.to_be_bytes());
        key_of(key.finalize().into())
    }

    /// The first value of these pointers. It is borrowed of the body, and not of the memory.
    fn read(
        &mut self,
        reaches: &'a Reaches,
        place: &Place,
        item: &'a str,
    ) -> Result<Option<Cow<'a, str>>, Unclear> {
        reaches.pointers.first_in_delivery(|index, pointer| {
            match reaches.around.get(index).copied().flatten() {
                None => pointer.find(item.as_bytes()),
                Some(around) => self.find_around(around, pointer, place),
            }
        })
    }

    /// The last frame of this level around the item.
    fn frame(&self, mut frame: usize, level: usize) -> (usize, &'a str) {
        while self.frames[frame].level > level {
            frame = self.frames[frame].parent;
        }
        let range = self.frames[frame].range.clone();
        (frame, self.json.get(range).unwrap_or_default())
    }

    fn find_around(
        &mut self,
        Around { level, memory }: Around,
        pointer: &Pointer,
        place: &Place,
    ) -> Result<Found<'a>, Unclear> {
        let (frame, json) = self.frame(place.frame, level);
        match &self.found[memory] {
            Some((of, found)) if *of == frame => found.clone(),
            _ => {
                let found = pointer.find(json.as_bytes());
                self.found[memory] = Some((frame, found.clone()));
                found
            }
        }
    }

    /// What the path keeps of what is around its items in this frame.
    fn kept(&mut self, index: usize, frame: usize) -> Option<Bytes> {
        if let Some((of, kept)) = &self.kept[index]
            && *of == frame
        {
            return kept.clone();
        }
        let kept = self.keep(&self.batch.paths[index].keep, frame);
        self.kept[index] = Some((frame, kept.clone()));
        kept
    }

    fn keep(&mut self, list: &'a [Keep], frame: usize) -> Option<Bytes> {
        let mut kept = String::new();
        for keep in list {
            let Some(value) = self.range_around(keep, frame) else {
                continue;
            };
            // The braces, or a comma, and the colon.
            if kept.len() + keep.name.len() + value.len() + 3 > MOST_KEPT {
                if !self.has_warned {
                    self.has_warned = true;
                    tracing::warn!(
                        most = MOST_KEPT,
                        "what is around an item has more bytes than are kept: the item keeps nothing of it; name less in \
                         `keep`"
                    );
                }
                return None;
            }
            kept.push(if kept.is_empty() { '{' } else { ',' });
            kept += &keep.name;
            kept.push(':');
            kept += value;
        }
        (!kept.is_empty()).then(|| (kept + "}").into())
    }

    fn range_around(&mut self, keep: &Keep, frame: usize) -> Option<&'a str> {
        let Around { level, memory } = keep.around;
        let (frame, json) = self.frame(frame, level);
        let range = match &self.ranges[memory] {
            Some((of, range)) if *of == frame => range.clone(),
            _ => {
                let range = Cursor::new(json).find(keep.pointer.names());
                self.ranges[memory] = Some((frame, range.clone()));
                range
            }
        };
        json.get(range?)
    }
}

#[allow(clippy::expect_used, reason = "hex digits are the value of a header")]
fn key_of(digest: [u8; 32]) -> IdempotencyKey {
    let text = base16ct::lower::encode_string(&digest);
    let value = HeaderValue::try_from(text).ok();
    value.and_then(IdempotencyKey::new).expect("hex digits")
}
