//! Reads what few senders have: tags beyond headers, lists that are written in other ways, a digest in place of the body.

use std::time::SystemTime;

use base16ct::lower;
use sha2::{Digest, Sha256};

use super::challenge::is_empty;
use super::error::SignatureError;
use super::query::{Query, encode};
use super::rare::{Elsewhere, Rare};
use super::scheme::{Claim, Elements, Head, Scheme};
use super::tag::{MOST_TAGS, Tag};

/// The most lists of elements, each of which hashes the body again: those of two secrets.
const MOST_LISTS: usize = 2;

impl Scheme {
    /// The SHA-256 of a body in hex, if that is signed in its place.
    pub(crate) fn digest(&self, body: &[u8]) -> Option<String> {
        let signs_digest = self.rare.as_ref().is_some_and(|it| it.signs_digest);
        signs_digest.then(|| lower::encode_string(&Sha256::digest(body)))
    }

    pub(crate) fn signs_digest(&self) -> bool {
        self.rare.as_ref().is_some_and(|it| it.signs_digest)
    }

    /// The name of the query parameter that has the tag.
    pub(crate) fn parameter(&self) -> Option<&str> {
        self.elsewhere().find_map(|it| match it {
            Elsewhere::Query(name) => Some(name.as_str()),
            Elsewhere::Body(_) | Elsewhere::Each { .. } => None,
        })
    }

    /// The query parameter with a tag, such as `signature=…`. `None` if it stands elsewhere.
    pub(crate) fn in_query(&self, tag: &[u8]) -> Option<String> {
        let (name, tag) = (encode(self.parameter()?), self.written(tag)?);
        Some(format!(
            "{name}={}",
            encode(&format!("{}{tag}", self.prefix))
        ))
    }

    /// Whether a token stands in the body.
    #[inline]
    pub(crate) fn has_token_in_body(&self) -> bool {
        self.rare.is_some()
            && self
                .elsewhere()
                .any(|it| !matches!(it, Elsewhere::Query(_)))
    }

    pub(super) fn elsewhere(&self) -> impl Iterator<Item = &Elsewhere> {
        self.rare.iter().flat_map(|it| &it.elsewhere)
    }

    /// Reads what stands in the body, as JSON: all of these tags must be right.
    pub(crate) fn tokens_in(&self, body: &[u8]) -> Result<Vec<Tag>, SignatureError> {
        let mut found = Vec::new();
        for place in self.elsewhere() {
            // Not JSON, or no text: nothing was proved.
            match place {
                Elsewhere::Query(_) => {}
                Elsewhere::Body(pointers) => {
                    let text = pointers.find(body).map_err(|_| SignatureError::Malformed)?;
                    if let Some(text) = text {
                        found = vec![self.tag_of(text.as_bytes())?];
                    }
                }
                // An element without it would be an event that nobody sent.
                Elsewhere::Each { array, token } => {
                    let texts = token.find_each(array, body, MOST_TAGS);
                    let texts = texts.map_err(|_| SignatureError::Malformed)?;
                    let tags = texts.iter().flatten().map(|it| self.tag_of(it.as_bytes()));
                    found.append(&mut tags.collect::<Result<_, _>>()?);
                }
            }
        }
        Ok(found)
    }

    fn tag_of(&self, text: &[u8]) -> Result<Tag, SignatureError> {
        let tag = text.strip_prefix(self.prefix.as_bytes());
        let tag = tag.and_then(|tag| Tag::decode(tag, self.algorithm, self.coding));
        tag.ok_or(SignatureError::Malformed)
    }

    /// As [`claim`](Self::claim), for what is rare.
    #[inline(never)]
    pub(super) fn rare_claim(
        &self,
        rare: &Rare,
        head: Head<'_>,
        now: &impl Fn() -> SystemTime,
    ) -> Result<Claim, SignatureError> {
        let lists = self.lists_of(rare, head)?.into_iter();
        let claims = lists.map(|list| self.claim_of(list, head, now));
        let mut claims = claims.collect::<Result<Vec<_>, _>>()?;
        let others = claims.split_off(1);
        let first = claims.pop().ok_or(SignatureError::Missing)?;
        Ok(if others.is_empty() {
            first
        } else {
            first.with_others(others)
        })
    }

    /// What the signature headers of a request hold, by which it is verified: one list at least.
    pub(super) fn lists<'a>(&self, head: Head<'a>) -> Result<Vec<Elements<'a>>, SignatureError> {
        match &self.rare {
            None => Ok(vec![self.elements_of(head.headers)?]),
            Some(rare) => self.lists_of(rare, head),
        }
    }

    /// Whether several lines of a header are one list.
    pub(super) fn is_lenient(&self) -> bool {
        self.rare.as_ref().is_some_and(|it| it.is_lenient)
    }

    /// The lists in a line: the line itself, unless several may stand there.
    pub(super) fn lists_in<'a>(&self, line: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        let between = self.rare.as_ref().and_then(|it| it.lists);
        let lists = line.split(move |&byte| Some(byte) == between);
        lists.filter(move |it| between.is_none() || !it.is_empty())
    }

    /// The elements of a list.
    pub(super) fn elements_in<'a>(&self, list: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        let (split, is_lenient) = (self.split, self.is_lenient());
        let elements = list.split(move |&byte| Some(byte) == split);
        elements.map(move |it| if is_lenient { it.trim_ascii() } else { it })
    }

    fn lists_of<'a>(
        &self,
        rare: &Rare,
        head: Head<'a>,
    ) -> Result<Vec<Elements<'a>>, SignatureError> {
        let mut lists = vec![Elements::default()];
        let mut is_missing = true;
        for name in &self.headers {
            let mut count = 0;
            for line in head.headers.get_all(name) {
                (is_missing, count) = (false, count + 1);
                if count > 1 && !rare.is_lenient {
                    return Err(SignatureError::Doubled);
                }
                self.read_line(rare, line.as_bytes(), &mut lists)?;
            }
        }
        let query = head.uri.and_then(http::Uri::query).unwrap_or_default();
        if let Some(name) = self.parameter()
            && Query(query).has(name)
        {
            is_missing = false;
            // Which of two counts depends on the parser, so neither does.
            let text = Query(query).only(name).ok_or(SignatureError::Doubled)?;
            lists[0].tags.push(self.tag_of(&text)?, 1)?;
        }
        if is_missing && self.has_token_in_body() {
            // The body has not arrived yet, and `tokens_in` follows, unless there is none.
            return match is_empty(head.headers) {
                true => Err(SignatureError::Missing),
                false => Ok(lists),
            };
        }
        let has_none = |list: &Elements<'_>| list.tags.iter().next().is_none();
        match lists.iter().any(has_none) {
            true if is_missing => Err(SignatureError::Missing),
            true => Err(SignatureError::Malformed),
            false => Ok(lists),
        }
    }

    fn read_line<'a>(
        &self,
        rare: &Rare,
        line: &'a [u8],
        lists: &mut Vec<Elements<'a>>,
    ) -> Result<(), SignatureError> {
        let each = |list: &'a [u8], read: &mut Elements<'a>| {
            let mut elements = self.elements_in(list);
            elements.try_for_each(|element| self.element(element, read))
        };
        if rare.lists.is_none() {
            return each(line, &mut lists[0]);
        }
        let parts: Vec<_> = self.lists_in(line).take(MOST_LISTS + 1).collect();
        if !(1..=MOST_LISTS).contains(&parts.len()) {
            return Err(SignatureError::Malformed);
        }
        lists.resize_with(parts.len(), Elements::default);
        let mut pairs = parts.into_iter().zip(lists);
        pairs.try_for_each(|(part, list)| each(part, list))
    }
}
