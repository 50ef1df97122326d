//! In place of `keys.rs` without the feature `public-keys`: there are no such keys.

use crate::sender::{Algorithm, Tags};

#[derive(Clone)]
// Without values, so that callers need no `cfg`: the compiler removes what they do with a key.
pub(super) enum Verifying {}

impl Verifying {
    pub(super) fn parse(_: &[u8]) -> Result<Self, &'static str> {
        Err("the feature `public-keys` is needed")
    }

    pub(super) fn is_for(&self, _: Algorithm) -> bool {
        match *self {}
    }

    pub(super) fn begin(&self, _: Algorithm, _: &Tags) -> Option<Verification> {
        match *self {}
    }
}

pub(super) enum Verification {}

impl Verification {
    pub(super) fn update(&mut self, _: &[u8]) {
        match *self {}
    }

    pub(super) fn matches_one(self, _: &Tags, _: [&[u8]; 3]) -> bool {
        match self {}
    }
}

#[derive(Clone)]
pub(super) enum Signing {}

impl Signing {
    pub(super) fn parse(_: &[u8]) -> Option<Self> {
        None
    }

    pub(super) fn sign(&self, _: Algorithm, _: [&[u8]; 3]) -> Option<Vec<u8>> {
        match *self {}
    }
}
