//! A body that is received into memory: bounded in size, in time and together with all others, and
//! hashed as it arrives.

use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http_body::Body;
use pin_project_lite::pin_project;
use tokio::time::Sleep;

use super::verify::Hashing;
use crate::answer::{Answer, BoxError};

/// How much is hashed before other tasks get their turn: about 50 µs of work.
const SLICE: usize = 64 * 1024;

/// What a frame costs of a slice at least, so that a body of tiny frames yields too.
const FRAME_COST: usize = 256;

/// The memory that all bodies being received may take together. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    used: Arc<AtomicUsize>,
    pub(super) limit: usize,
    /// Answered in `Retry-After` when the limit is exceeded.
    pub(super) retry_after: Duration,
}

impl Budget {
    pub(super) fn new(limit: usize, retry_after: Duration) -> Self {
        Self {
            used: Arc::default(),
            limit,
            retry_after,
        }
    }
}

/// One body's part of the budget, given back when it is dropped.
struct Share {
    budget: Budget,
    bytes: usize,
}

impl Share {
    fn grow(&mut self, bytes: usize) -> Result<(), Answer> {
        let more = bytes.saturating_sub(self.bytes);
        let used = self.budget.used.fetch_add(more, Ordering::Relaxed);
        self.bytes += more;
        if used.saturating_add(more) > self.budget.limit {
            return Err(Answer::BuffersFull {
                retry_after: self.budget.retry_after,
            });
        }
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The bounds of a body.
#[derive(Clone, Debug)]
pub(super) struct Bounds {
    pub(super) max_body: usize,
    pub(super) timeout: Duration,
    pub(super) budget: Budget,
}

pin_project! {
    /// Receives a body. Ends with its bytes and what was hashed, or with the answer that refuses it.
    pub(super) struct Receive<B> {
        #[pin]
        body: B,
        ended: bool,
        // Taken when the body is complete.
        content: Option<Content>,
        // Most bodies are there before they are waited for, and need no timer.
        #[pin]
        deadline: Option<Sleep>,
        timeout: Duration,
    }
}

impl<B: Body<Error: Into<BoxError>>> Receive<B> {
    /// Refuses a body whose length is known to be too large, before anything of it is read.
    pub(super) fn new(
        body: B,
        declared: Option<u64>,
        bounds: &Bounds,
        hashing: Hashing,
    ) -> Result<Self, Answer> {
        if declared.unwrap_or(0).max(body.size_hint().lower()) > bounds.max_body as u64 {
            return Err(Answer::BodyTooLarge {
                limit: bounds.max_body,
            });
        }
        let content = Content {
            bytes: Joined::Frame(Bytes::new()),
            hashed: 0,
            hashing,
            declared,
            max_body: bounds.max_body,
            share: Share {
                budget: bounds.budget.clone(),
                bytes: 0,
            },
        };
        let timeout = bounds.timeout;
        Ok(Self {
            body,
            ended: false,
            content: Some(content),
            deadline: None,
            timeout,
        })
    }
}

impl<B: Body<Error: Into<BoxError>>> Future for Receive<B> {
    type Output = Result<(Bytes, Hashing), Answer>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let mut slice = SLICE;
        while let Some(content) = this.content {
            if slice == 0 {
                cx.waker().wake_by_ref();
                break;
            }
            let hashed = content.hash(slice);
            slice -= hashed;
            if hashed > 0 {
                continue;
            }
            if *this.ended {
                let complete = this.content.take().map(Content::finish);
                return complete.map_or(Poll::Pending, Poll::Ready);
            }
            match this.body.as_mut().poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    if let Ok(mut data) = frame.into_data() {
                        content.push(data.copy_to_bytes(data.remaining()))?;
                    }
                    slice = slice.saturating_sub(FRAME_COST);
                }
                Poll::Ready(Some(Err(error))) => {
                    return Poll::Ready(Err(Answer::BodyBroken(error.into())));
                }
                Poll::Ready(None) => *this.ended = true,
                Poll::Pending => break,
            }
        }

        if this.deadline.is_none() {
            this.deadline.set(Some(tokio::time::sleep(*this.timeout)));
        }
        let slow = Answer::BodySlow {
            limit: *this.timeout,
        };
        this.deadline
            .as_pin_mut()
            .map_or(Poll::Pending, |deadline| deadline.poll(cx))
            .map(|()| Err(slow))
    }
}

/// A body's bytes so far, and how many of them were hashed.
struct Content {
    bytes: Joined,
    hashed: usize,
    hashing: Hashing,
    declared: Option<u64>,
    max_body: usize,
    share: Share,
}

/// Most bodies are one frame, which is kept as it came.
enum Joined {
    Frame(Bytes),
    Frames(BytesMut),
}

impl Deref for Joined {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Frame(frame) => frame,
            Self::Frames(frames) => frames,
        }
    }
}

impl Content {
    fn push(&mut self, frame: Bytes) -> Result<(), Answer> {
        let length = self.bytes.len() + frame.len();
        if length > self.max_body {
            return Err(Answer::BodyTooLarge {
                limit: self.max_body,
            });
        }
        if self
            .declared
            .is_some_and(|declared| length as u64 > declared)
        {
            return Err(Answer::BodyBroken(
                "it is longer than its `Content-Length`".into(),
            ));
        }
        match &mut self.bytes {
            Joined::Frame(first) if first.is_empty() => {
                self.share.grow(length)?;
                self.bytes = Joined::Frame(frame);
            }
            Joined::Frame(first) => {
                self.share.grow(2 * length)?;
                let mut frames = BytesMut::with_capacity(2 * length);
                frames.extend_from_slice(first);
                frames.extend_from_slice(&frame);
                self.bytes = Joined::Frames(frames);
            }
            Joined::Frames(frames) => {
                if length > frames.capacity() {
                    self.share.grow(2 * length)?;
                    frames.reserve(2 * length - frames.len());
                }
                frames.extend_from_slice(&frame);
            }
        }
        Ok(())
    }

    /// Hashes the next part, of at most `limit` bytes, and tells its length.
    fn hash(&mut self, limit: usize) -> usize {
        let part = &self.bytes[self.hashed..];
        let part = &part[..part.len().min(limit)];
        self.hashing.update(part);
        self.hashed += part.len();
        part.len()
    }

    fn finish(self) -> Result<(Bytes, Hashing), Answer> {
        let bytes = match self.bytes {
            Joined::Frame(frame) => frame,
            Joined::Frames(frames) => frames.freeze(),
        };
        match self.declared {
            Some(declared) if declared != bytes.len() as u64 => Err(Answer::BodyBroken(
                "it is shorter than its `Content-Length`".into(),
            )),
            _ => Ok((bytes, self.hashing)),
        }
    }
}
