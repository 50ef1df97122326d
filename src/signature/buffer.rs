//! Receives a body into memory, hashes it as it arrives, and verifies it, within limits on its size, its time,
//! and the memory of all bodies together.

use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use futures_util::FutureExt;
use http_body::Body;
use pin_project_lite::pin_project;
use tokio::time::Instant;

use super::refusal::Refusal;
use super::verify::{Found, Hashing};
use crate::deadline::Deadline;
use crate::error::BoxError;
use crate::lock::lock;

/// Bytes hashed before the task yields: about 50 µs of work.
const SLICE: usize = 64 * 1024;

/// The least that a frame counts, so that a body of tiny frames yields too.
const FRAME_COST: usize = 256;

/// The first bytes of each body, which do not count against the [`Budget`]. Anybody can open connections that
/// hold back their last byte, and genuine deliveries are smaller than this.
const UNCOUNTED: usize = 64 * 1024;

/// The default of the [`Budget`], in bytes.
pub(crate) const MAX_BUFFERED: usize = 64 * 1024 * 1024;

/// The memory limit of all bodies that are being received. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    large: Arc<Mutex<Large>>,
    uncounted: usize,
    pub(crate) limit: usize,
    /// The `Retry-After` of the refusal when the limit is exceeded.
    pub(super) retry_after: Duration,
}

/// The bodies that count.
#[derive(Debug, Default)]
struct Large {
    bodies: BTreeMap<u64, Counted>,
    next: u64,
    /// The memory of the bodies that go on.
    used: usize,
    /// The memory of the bodies that were given up and have not ended.
    ending: usize,
}

#[derive(Debug)]
struct Counted {
    /// How many times [`STEP`] was received, and when the last of them was complete.
    steps: usize,
    since: Instant,
    taken: usize,
    is_given_up: bool,
    waker: Waker,
}

impl Counted {
    // Whole steps, so that a byte now and then does not make a body fast.
    fn note(&mut self, length: usize) {
        if length / STEP > self.steps {
            self.steps = length / STEP;
            self.since = Instant::now();
        }
    }

    /// What it holds, for as long as its present step takes. If that is the same, the longer time costs more.
    fn cost(&self, now: Instant) -> (u128, Duration) {
        let time = now.saturating_duration_since(self.since);
        (self.taken as u128 * time.max(QUICK).as_micros(), time)
    }
}

/// The bytes that a body must receive again and again, or it is the slowest.
const STEP: usize = 64 * 1024;

/// What a step counts at least: shorter times say more of this machine than of a sender.
const QUICK: Duration = Duration::from_millis(100);

impl Large {
    /// Makes room for `more` bytes of a body: gives up the slowest for its size. To displace a body, all others that fit
    /// must be as fast, of which each costs an attacker its first [`STEP`] at least. Returns whether there is room.
    fn make_room(&mut self, more: usize, number: u64, limit: usize) -> bool {
        let now = Instant::now();
        while self.used + more > limit {
            // A body that holds nothing frees nothing. This body competes, too, or it would displace faster ones.
            let could_end = self
                .bodies
                .iter_mut()
                .filter(|(other, body)| **other == number || body.taken > 0 && !body.is_given_up);
            // `max_by_key` takes the last of equals: reversed, that is the oldest body.
            match could_end.rev().max_by_key(|(_, body)| body.cost(now)) {
                Some((slowest, body)) if *slowest != number => {
                    body.is_given_up = true;
                    // Its task answers with 503 and frees the memory, although its sender stays silent.
                    body.waker.wake_by_ref();
                    self.used -= body.taken;
                    self.ending += body.taken;
                }
                _ => return false,
            }
        }
        true
    }
}

impl Budget {
    pub(super) fn new(limit: usize, retry_after: Duration) -> Self {
        Self {
            large: Arc::default(),
            uncounted: UNCOUNTED,
            limit,
            retry_after,
        }
    }

    #[cfg(all(test, feature = "moka"))]
    pub(crate) fn is_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.large, &other.large)
    }

    pub(super) fn used(&self) -> usize {
        let large = lock(&self.large);
        // What was given up takes memory until its task has run.
        large.used + large.ending
    }

    fn overloaded(&self) -> Refusal {
        Refusal::Overloaded {
            retry_after: self.retry_after,
        }
    }
}

/// One body's part of the budget, returned on drop.
pub(super) struct Share {
    budget: Budget,
    taken: usize,
    /// None while it does not count.
    number: Option<u64>,
}

impl Share {
    /// Notes how much was received. An error if the body was given up.
    pub(super) fn check(&self, length: usize, cx: &Context<'_>) -> Result<(), Refusal> {
        let Some(number) = self.number else {
            return Ok(());
        };
        let mut large = lock(&self.budget.large);
        match large.bodies.get_mut(&number) {
            Some(body) if !body.is_given_up => {
                body.note(length);
                body.waker.clone_from(cx.waker());
                Ok(())
            }
            _ => Err(self.budget.overloaded()),
        }
    }

    /// Counts a body of `length` that takes `bytes` of memory now.
    fn grow(&mut self, bytes: usize, length: usize, cx: &Context<'_>) -> Result<(), Refusal> {
        let Budget {
            uncounted, limit, ..
        } = self.budget;
        let counted = bytes.saturating_sub(uncounted);
        let more = counted.saturating_sub(self.taken);
        // Small bodies, the usual ones, take no lock.
        if more == 0 {
            return Ok(());
        }
        let mut large = lock(&self.budget.large);
        // Numbers grow, so the map has the bodies in the order in which they began to count.
        let number = *self.number.get_or_insert(large.next);
        large.next = large.next.max(number + 1);
        let body = large.bodies.entry(number).or_insert_with(|| Counted {
            steps: 0,
            since: Instant::now(),
            taken: 0,
            is_given_up: false,
            waker: cx.waker().clone(),
        });
        // By another thread, since it was checked.
        if body.is_given_up {
            return Err(self.budget.overloaded());
        }
        body.note(length);
        // A new body does not wait until given-up bodies have ended, because a waiting body takes memory, too.
        if counted > limit || large.ending > limit || !large.make_room(more, number, limit) {
            return Err(self.budget.overloaded());
        }
        large.used += more;
        self.taken += more;
        if let Some(body) = large.bodies.get_mut(&number) {
            body.taken = self.taken;
        }
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let mut large = lock(&self.budget.large);
        match large.bodies.remove(&number) {
            Some(body) if body.is_given_up => large.ending -= body.taken,
            Some(body) => large.used -= body.taken,
            None => {}
        }
    }
}

/// The limits of a body.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    pub(crate) max_body: usize,
    pub(crate) timeout: Duration,
    pub(crate) budget: Budget,
}

/// The time that each body has, and the bytes per second for which it has more.
const LEAST_TIME: Duration = Duration::from_secs(2);
const PACE: u64 = 32 * 1024;

/// A large body has a second more for each of these after the first. They must have arrived: a length that is claimed, or
/// bytes that drip, buy no time.
const LARGE: usize = 1024 * 1024;

/// What a body has earned by what has arrived.
fn more_time(received: usize) -> Duration {
    let large = received.saturating_sub(LARGE) as u64;
    Duration::from_millis(large.saturating_mul(1000) / LARGE as u64)
}

impl Bounds {
    /// The time limit of a body. A body of unknown length may be the largest one.
    fn time(&self, declared: Option<u64>) -> Duration {
        let length = declared.unwrap_or(self.max_body as u64);
        let time = LEAST_TIME + Duration::from_millis(length.saturating_mul(1000) / PACE);
        // With a larger `max_body`, a claimed length alone would buy time: 1 GiB is 9 hours.
        time.min(self.timeout)
    }
}

pin_project! {
    /// Receives a body and verifies it. Returns its bytes and what proved it, or the refusal.
    pub(super) struct Receive<B> {
        #[pin]
        body: B,
        ended: bool,
        // Taken when the body is complete.
        content: Option<Content>,
        limit: Deadline,
        // All time that it had until the limit, and what it had earned of it.
        time: Duration,
        earned: Duration,
    }
}

impl<B: Body<Error: Into<BoxError>>> Receive<B> {
    /// Refuses a body whose declared length is too large, before any of it is read.
    #[inline]
    pub(super) fn new(
        body: B,
        declared: Option<u64>,
        bounds: &Bounds,
        hashing: Hashing,
    ) -> Result<Self, Refusal> {
        // Header and body can disagree where a layer outside has replaced the body.
        if declared.unwrap_or(0).max(body.size_hint().lower()) > bounds.max_body as u64 {
            return Err(Refusal::BodyTooLarge {
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
                taken: 0,
                number: None,
            },
        };
        let time = bounds.time(declared);
        Ok(Self {
            body,
            ended: false,
            content: Some(content),
            limit: Deadline::new(time),
            time,
            earned: Duration::ZERO,
        })
    }
}

impl<B: Body<Error: Into<BoxError>>> Future for Receive<B> {
    type Output = Result<(Bytes, Found), Refusal>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let mut slice = SLICE;
        if let Some(content) = this.content {
            // First, so that a body that was given up is not hashed on.
            content.share.check(content.bytes.len(), cx)?;
        }
        while let Some(content) = this.content {
            if slice == 0 {
                cx.waker().wake_by_ref();
                break;
            }
            // Hashed before the next frame is taken, so that no more than a slice is done at a time.
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
                    // Trailers are dropped, since no sender signs them.
                    if let Ok(mut data) = frame.into_data() {
                        content.push(data.copy_to_bytes(data.remaining()), cx)?;
                    }
                    slice = slice.saturating_sub(FRAME_COST);
                }
                Poll::Ready(Some(Err(error))) => {
                    return Poll::Ready(Err(Refusal::malformed(error)));
                }
                Poll::Ready(None) => *this.ended = true,
                Poll::Pending => break,
            }
        }

        // Also after a slice: a body that always has a next frame must end in time, too.
        loop {
            ready!(this.limit.poll_unpin(cx));
            let received = this.content.as_ref().map_or(0, |it| it.bytes.len());
            let earned = more_time(received);
            let more = earned.saturating_sub(*this.earned);
            if more.is_zero() {
                return Poll::Ready(Err(Refusal::BodyTimeout { limit: *this.time }));
            }
            (*this.earned, *this.time) = (earned, *this.time + more);
            *this.limit = Deadline::new(more);
        }
    }
}

/// The bytes received so far, and how many of them were hashed.
struct Content {
    bytes: Joined,
    hashed: usize,
    hashing: Hashing,
    declared: Option<u64>,
    max_body: usize,
    share: Share,
}

/// Most bodies are a single frame, which is kept without copying.
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
    fn push(&mut self, frame: Bytes, cx: &Context<'_>) -> Result<(), Refusal> {
        let length = self.bytes.len() + frame.len();
        if length > self.max_body {
            return Err(Refusal::BodyTooLarge {
                limit: self.max_body,
            });
        }
        if self
            .declared
            .is_some_and(|declared| length as u64 > declared)
        {
            return Err(Refusal::malformed("it is longer than its `Content-Length`"));
        }
        if self.bytes.is_empty() {
            // The server has allocated this frame already: it counts as much as it has bytes.
            self.share.grow(length, length, cx)?;
            self.bytes = Joined::Frame(frame);
            return Ok(());
        }
        let room = self.room(length);
        match &mut self.bytes {
            Joined::Frames(frames) if length <= frames.capacity() => {
                frames.extend_from_slice(&frame);
            }
            full => {
                // Counted before it is allocated.
                self.share.grow(room, length, cx)?;
                let mut frames = BytesMut::with_capacity(room);
                frames.extend_from_slice(full);
                frames.extend_from_slice(&frame);
                *full = Joined::Frames(frames);
            }
        }
        Ok(())
    }

    /// Returns how much memory to take for `length` bytes and the bytes that may follow.
    fn room(&self, length: usize) -> usize {
        let declared = self.declared.and_then(|bytes| usize::try_from(bytes).ok());
        let most = declared.unwrap_or(self.max_body).min(self.max_body);
        // A body counts only once it is really larger than the part that does not. Then it takes what it declares: it
        // needs to find room only once, and blocks of a few sizes fragment less memory.
        let uncounted = self.share.budget.uncounted;
        match declared {
            _ if length <= uncounted => (2 * length).min(most).min(uncounted),
            Some(_) => most,
            None => (2 * length).min(most),
        }
    }

    /// Hashes the next part, of at most `limit` bytes, and returns its length.
    fn hash(&mut self, limit: usize) -> usize {
        let part = &self.bytes[self.hashed..];
        let part = &part[..part.len().min(limit)];
        self.hashing.update(part);
        self.hashed += part.len();
        part.len()
    }

    fn finish(self) -> Result<(Bytes, Found), Refusal> {
        let bytes = match self.bytes {
            Joined::Frame(frame) => frame,
            Joined::Frames(frames) => frames.freeze(),
        };
        if self
            .declared
            .is_some_and(|declared| declared != bytes.len() as u64)
        {
            return Err(Refusal::malformed(
                "it is shorter than its `Content-Length`",
            ));
        }
        // The length is checked first: a body that broke off is malformed (400), and not forged (401).
        let found = self.hashing.verify(&bytes, self.share);
        Ok((bytes, found))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use futures_util::FutureExt;
    use http_body::{Frame, SizeHint};
    use http_body_util::Full;
    use http_body_util::channel::Channel;
    use tokio::time::{Interval, advance, interval};

    use super::*;

    fn bounds(max_body: usize, budget: usize) -> Bounds {
        Bounds {
            max_body,
            timeout: Duration::from_secs(10),
            budget: Budget {
                uncounted: 0,
                ..Budget::new(budget, Duration::from_secs(600))
            },
        }
    }

    fn receive<B: Body<Error: Into<BoxError>>>(
        body: B,
        declared: Option<u64>,
        bounds: &Bounds,
    ) -> Result<Receive<B>, Refusal> {
        let hashing = Hashing::Unsigned;
        Receive::new(body, declared, bounds, hashing)
    }

    impl Bounds {
        fn used(&self) -> usize {
            self.budget.used()
        }
    }

    async fn complete<B: Body<Error: Into<BoxError>>>(
        body: B,
        declared: Option<u64>,
        bounds: &Bounds,
    ) -> Result<Bytes, Refusal> {
        receive(body, declared, bounds)?.await.map(|(body, _)| body)
    }

    /// These frames, and then an end, an error or nothing.
    struct Frames {
        frames: VecDeque<Bytes>,
        end: Poll<Option<&'static str>>,
    }

    fn frames(
        frames: impl IntoIterator<Item = &'static [u8]>,
        end: Poll<Option<&'static str>>,
    ) -> Frames {
        let frames = frames.into_iter().map(Bytes::from_static).collect();
        Frames { frames, end }
    }

    impl Body for Frames {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            match self.frames.pop_front() {
                Some(frame) => Poll::Ready(Some(Ok(Frame::data(frame)))),
                None => self.end.map(|error| error.map(|error| Err(error.into()))),
            }
        }
    }

    const END: Poll<Option<&str>> = Poll::Ready(None);

    struct Untouchable(SizeHint);

    impl Body for Untouchable {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            panic!("a body that is too large must not be read")
        }

        fn size_hint(&self) -> SizeHint {
            self.0
        }
    }

    #[test]
    fn a_length_that_is_too_large_is_refused_without_reading() {
        let bounds = bounds(1024, 1024);
        let huge = 10 << 30;
        for (declared, hint) in [
            (Some(huge), SizeHint::default()),
            (Some(u64::MAX), SizeHint::default()),
            (Some(1025), SizeHint::default()),
            (Some(1), SizeHint::with_exact(huge)),
            (None, SizeHint::with_exact(1025)),
        ] {
            let refused = receive(Untouchable(hint), declared, &bounds).map(drop);
            assert!(matches!(
                refused,
                Err(Refusal::BodyTooLarge { limit: 1024 })
            ));
        }
        assert_eq!(bounds.used(), 0);
        let fits = receive(Untouchable(SizeHint::with_exact(1024)), Some(1024), &bounds);
        assert!(fits.is_ok());
    }

    #[tokio::test]
    async fn a_body_that_grows_too_large_is_not_read_on() {
        let bounds = bounds(6, 1024);
        let fits = frames([&b"abc"[..], b"", b"def"], END);
        assert_eq!(complete(fits, None, &bounds).await.unwrap(), "abcdef");

        let mut large = frames([&b"abc"[..], b"def", b"g", b"never read"], END);
        let refused = receive(&mut large, None, &bounds).unwrap().await.map(drop);
        assert!(matches!(refused, Err(Refusal::BodyTooLarge { limit: 6 })));
        assert_eq!(large.frames, ["never read"]);
        assert_eq!(bounds.used(), 0);
    }

    #[tokio::test]
    async fn a_body_of_another_length_than_declared_is_broken() {
        let bounds = bounds(1024, 1024);
        for (declared, text) in [
            (7, "it is shorter than its `Content-Length`"),
            (5, "it is longer than its `Content-Length`"),
            (0, "it is longer than its `Content-Length`"),
        ] {
            let body = frames([&b"abc"[..], b"def"], END);
            match complete(body, Some(declared), &bounds).await {
                Err(Refusal::MalformedBody(error)) => assert_eq!(error.to_string(), text),
                other => panic!("{other:?}"),
            }
        }
        let body = frames([&b"abc"[..], b"def"], END);
        assert!(complete(body, Some(6), &bounds).await.is_ok());
        assert!(complete(frames([], END), Some(0), &bounds).await.is_ok());
        assert_eq!(bounds.used(), 0);
    }

    #[tokio::test]
    async fn a_body_that_breaks_off_is_broken() {
        let bounds = bounds(1024, 1024);
        let body = frames([&b"abc"[..]], Poll::Ready(Some("connection reset")));
        match complete(body, None, &bounds).await {
            Err(Refusal::MalformedBody(error)) => assert_eq!(error.to_string(), "connection reset"),
            other => panic!("{other:?}"),
        }
        assert_eq!(bounds.used(), 0);
    }

    /// This part at each tick, so many times.
    struct Drip(Interval, usize, &'static [u8]);

    impl Body for Drip {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            if self.1 == 0 {
                return Poll::Ready(None);
            }
            std::task::ready!(self.0.poll_tick(cx));
            self.1 -= 1;
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(self.2)))))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_must_be_complete_in_time_however_steadily_it_drips() {
        let bounds = bounds(1 << 20, 1 << 20);
        let drip = |bytes| Drip(interval(Duration::from_secs(1)), bytes, b"x");
        assert_eq!(complete(drip(10), None, &bounds).await.unwrap().len(), 10);

        let start = Instant::now();
        let refused = complete(drip(1000), None, &bounds).await;
        assert!(matches!(refused, Err(Refusal::BodyTimeout { limit }) if limit == bounds.timeout));
        let elapsed = start.elapsed();
        assert!(elapsed >= bounds.timeout && elapsed < bounds.timeout + Duration::from_secs(1));
        assert_eq!(bounds.used(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_body_takes_is_given_back_whatever_becomes_of_it() {
        let bounds = bounds(100, 64);
        let stays = |part| frames([part], Poll::Pending);

        let mut held = Box::pin(receive(stays(&[0; 40]), None, &bounds).unwrap());
        assert!((&mut held).now_or_never().is_none());
        assert_eq!(bounds.used(), 40);
        // Clones share the budget.
        let full = complete(frames([&[0; 65][..]], END), None, &bounds.clone()).await;
        assert!(
            matches!(full, Err(Refusal::Overloaded { retry_after }) if retry_after.as_secs() == 600)
        );
        assert_eq!(bounds.used(), 40);
        assert!(
            complete(frames([&[0; 24][..]], END), None, &bounds)
                .await
                .is_ok()
        );
        assert_eq!(bounds.used(), 40);
        // Both fitted exactly.
        assert!((&mut held).now_or_never().is_none());
        drop(held);
        assert_eq!(bounds.used(), 0);

        assert!(
            complete(stays(&[0; 64]), None, &bounds).await.is_err(),
            "slow"
        );
        assert_eq!(bounds.used(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_slowest_body_is_given_up_for_another() {
        let bounds = bounds(100, 64);
        let stays = |part: &'static [u8]| receive(frames([part], Poll::Pending), None, &bounds);
        let mut slow = Box::pin(stays(&[0; 20]).unwrap());
        assert!((&mut slow).now_or_never().is_none());
        advance(Duration::from_millis(500)).await;
        let mut fast = Box::pin(stays(&[0; 30]).unwrap());
        assert!((&mut fast).now_or_never().is_none());
        advance(Duration::from_millis(500)).await;

        let mut new = Box::pin(stays(&[0; 34]).unwrap());
        assert!((&mut new).now_or_never().is_none());
        // The memory of the slow one is in use until it has ended.
        assert_eq!(bounds.used(), 20 + 30 + 34);
        let wakes = Arc::new(CountWakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let poll = fast.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(poll.is_pending());
        assert_eq!(wakes.0.load(Ordering::Relaxed), 0);

        // It gives up all others, and then so much was given up that the next one is refused.
        let mut last = Box::pin(stays(&[0; 64]).unwrap());
        assert!((&mut last).now_or_never().is_none());
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
        let next = stays(&[0; 1]).unwrap().now_or_never();
        assert!(matches!(next, Some(Err(Refusal::Overloaded { .. }))));
        for given_up in [slow, fast, new] {
            let given_up = given_up.now_or_never();
            assert!(matches!(given_up, Some(Err(Refusal::Overloaded { .. }))));
        }
        assert!((&mut last).now_or_never().is_none());
        assert_eq!(bounds.used(), 64);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_costs_its_memory_for_its_time() {
        let bounds = bounds(100, 64);
        let stays = |part: &'static [u8]| receive(frames([part], Poll::Pending), None, &bounds);
        let mut small = Box::pin(stays(&[0; 10]).unwrap());
        assert!((&mut small).now_or_never().is_none());
        advance(Duration::from_millis(300)).await;
        let mut large = Box::pin(stays(&[0; 40]).unwrap());
        assert!((&mut large).now_or_never().is_none());
        advance(Duration::from_millis(200)).await;

        // 40 bytes for 200 ms are more than 10 for 500 ms.
        let mut new = Box::pin(stays(&[0; 20]).unwrap());
        assert!((&mut new).now_or_never().is_none());
        let given_up = large.now_or_never();
        assert!(matches!(given_up, Some(Err(Refusal::Overloaded { .. }))));
        assert!((&mut small).now_or_never().is_none());
        assert_eq!(bounds.used(), 10 + 20);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_is_not_slow_before_a_tenth_of_a_second() {
        let bounds = bounds(100, 64);
        let stays = |part: &'static [u8]| receive(frames([part], Poll::Pending), None, &bounds);
        let mut small = Box::pin(stays(&[0; 20]).unwrap());
        assert!((&mut small).now_or_never().is_none());
        advance(Duration::from_millis(90)).await;
        let mut large = Box::pin(stays(&[0; 40]).unwrap());
        assert!((&mut large).now_or_never().is_none());
        advance(Duration::from_millis(10)).await;

        let mut new = Box::pin(stays(&[0; 20]).unwrap());
        assert!((&mut new).now_or_never().is_none());
        assert!((&mut small).now_or_never().is_none());
        let given_up = large.now_or_never();
        assert!(matches!(given_up, Some(Err(Refusal::Overloaded { .. }))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_is_the_slowest_itself_is_refused() {
        let bounds = bounds(100, 64);
        let slow = Drip(interval(Duration::from_millis(50)), 40, b"x");
        let mut slow = Box::pin(receive(slow, None, &bounds).unwrap());
        assert!((&mut slow).now_or_never().is_none());
        advance(Duration::from_millis(700)).await;
        let other = frames([&[0; 40][..]], Poll::Pending);
        let mut other = Box::pin(receive(other, None, &bounds).unwrap());
        assert!((&mut other).now_or_never().is_none());
        let refused = slow.await.map(drop);
        assert!(matches!(refused, Err(Refusal::Overloaded { .. })));
        assert_eq!(bounds.used(), 40);
        assert!(other.now_or_never().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_goes_on_is_not_the_slowest() {
        static PART: [u8; STEP] = [7; STEP];
        let bounds = bounds(4 * STEP, 4 * STEP);
        let (mut more, body) = Channel::<Bytes, BoxError>::new(2);
        let mut goes_on = Box::pin(receive(body, Some(2 * STEP as u64), &bounds).unwrap());
        let held = frames([&PART[..]; 2], Poll::Pending);
        let mut held = Box::pin(receive(held, Some(2 * STEP as u64), &bounds).unwrap());
        // Long bodies yield, so they are polled several times.
        for goes_on_with in [Some(&PART), None, None, Some(&PART)] {
            if let Some(part) = goes_on_with {
                more.send_data(Bytes::from_static(part)).await.unwrap();
            }
            assert!((&mut goes_on).now_or_never().is_none());
            assert!((&mut held).now_or_never().is_none());
            advance(Duration::from_millis(10)).await;
        }
        assert_eq!(bounds.used(), 4 * STEP);
        let new = frames([&PART[..]], Poll::Pending);
        let mut new = Box::pin(receive(new, None, &bounds).unwrap());
        assert!((&mut new).now_or_never().is_none());
        assert!((&mut goes_on).now_or_never().is_none());
        let given_up = held.now_or_never();
        assert!(matches!(given_up, Some(Err(Refusal::Overloaded { .. }))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_has_time_by_its_length() {
        let bounds = Bounds {
            timeout: Duration::from_secs(10),
            ..bounds(1 << 20, 1 << 20)
        };
        for (declared, seconds) in [
            (Some(0), 2),
            (Some(96 * 1024), 5),
            (Some(1 << 20), 10),
            (None, 10),
        ] {
            let start = Instant::now();
            let slow = complete(frames([], Poll::Pending), declared, &bounds).await;
            let time = Duration::from_secs(seconds);
            assert!(matches!(slow, Err(Refusal::BodyTimeout { limit }) if limit == time));
            assert_eq!(start.elapsed().as_secs(), seconds);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_body_has_time_by_what_has_arrived() {
        let bounds = bounds(25 << 20, 64 << 20);
        static MEBIBYTE: [u8; 1 << 20] = [7; 1 << 20];
        let parts = |millis| Drip(interval(Duration::from_millis(millis)), 25, &MEBIBYTE);
        let start = Instant::now();
        for declared in [None, Some(25 << 20)] {
            let body = complete(parts(1_200), declared, &bounds).await;
            assert_eq!(body.unwrap().len(), 25 << 20, "{declared:?}");
        }
        assert!(start.elapsed() > Duration::from_secs(2 * 28));

        // Half a MiB a second is too slow, and a claimed length buys no time.
        for (body, seconds) in [(parts(2_000), 19..=20), (parts(60_000), 10..=10)] {
            let start = Instant::now();
            let slow = complete(body, Some(25 << 20), &bounds).await;
            let Err(Refusal::BodyTimeout { limit }) = slow else {
                panic!("{slow:?}");
            };
            assert!(seconds.contains(&start.elapsed().as_secs()), "{limit:?}");
            assert!(start.elapsed() >= limit && limit >= bounds.timeout);
        }
        let small = self::bounds(1 << 20, 1 << 20);
        let start = Instant::now();
        let slow = complete(parts(60_000), None, &small).await;
        assert!(matches!(slow, Err(Refusal::BodyTimeout { limit }) if limit == small.timeout));
        assert_eq!(start.elapsed().as_secs(), 10);
        assert_eq!(bounds.used() + small.used(), 0);
    }

    #[tokio::test]
    async fn a_body_in_frames_pays_for_the_room_that_it_grows_into() {
        let bounds = bounds(1 << 20, 1 << 20);
        let part: &[u8] = &[7; 1000];
        let mut body = Box::pin(receive(frames([part; 50], Poll::Pending), None, &bounds).unwrap());
        assert!((&mut body).now_or_never().is_none());
        let content = body.content.as_ref().unwrap();
        let Joined::Frames(buffer) = &content.bytes else {
            panic!("there were several frames");
        };
        assert_eq!(buffer.len(), 50_000);
        assert!(buffer.capacity() <= bounds.used(), "{}", buffer.capacity());
        assert!(bounds.used() < 4 * buffer.len(), "{}", bounds.used());
    }

    #[tokio::test]
    async fn the_first_bytes_of_each_body_do_not_count() {
        let bounds = Bounds {
            max_body: 10 * UNCOUNTED,
            timeout: Duration::from_secs(10),
            budget: Budget::new(2 * UNCOUNTED, Duration::from_secs(600)),
        };
        let part: &[u8] = &[7; 1024];
        let of_parts = |parts| frames(vec![part; parts], Poll::Pending);
        let small = UNCOUNTED / part.len();
        let mut held: Vec<_> = (0..100)
            .map(|_| Box::pin(receive(of_parts(small), None, &bounds).unwrap()))
            .collect();
        // Long bodies yield, so they are polled several times.
        for body in &mut held {
            for _ in 0..4 {
                assert!(body.now_or_never().is_none());
            }
        }
        assert_eq!(held[0].content.as_ref().unwrap().bytes.len(), UNCOUNTED);
        assert_eq!(bounds.used(), 0);

        let mut large = Box::pin(receive(of_parts(small + 1), None, &bounds).unwrap());
        for _ in 0..4 {
            assert!((&mut large).now_or_never().is_none());
        }
        // Twice its size, for the bytes that follow.
        assert_eq!(bounds.used(), UNCOUNTED + 2 * part.len());
        drop((held, large));
        assert_eq!(bounds.used(), 0);
    }

    #[tokio::test]
    async fn a_declared_length_is_the_most_memory_that_a_body_takes() {
        let bounds = bounds(1 << 20, 1 << 20);
        let declared = frames([&[7; 600][..], &[7; 300]], Poll::Pending);
        let mut body = Box::pin(receive(declared, Some(1000), &bounds).unwrap());
        assert!((&mut body).now_or_never().is_none());
        assert_eq!(bounds.used(), 1000);
    }

    #[derive(Default)]
    struct CountWakes(AtomicUsize);

    impl Wake for CountWakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How often a body that is there already must be polled.
    fn polls<B: Body<Error: Into<BoxError>>>(body: B) -> usize {
        let bounds = bounds(1 << 30, 1 << 30);
        let mut receive = std::pin::pin!(receive(body, None, &bounds).unwrap());
        let wakes = Arc::new(CountWakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut cx = Context::from_waker(&waker);
        for polls in 1.. {
            match receive.as_mut().poll(&mut cx) {
                Poll::Ready(result) => {
                    result.map(drop).unwrap();
                    return polls;
                }
                Poll::Pending => assert_eq!(wakes.0.load(Ordering::Relaxed), polls),
            }
        }
        unreachable!()
    }

    #[tokio::test]
    async fn large_bodies_let_other_tasks_have_their_turn() {
        assert_eq!(polls(Full::new(Bytes::from_static(b"{}"))), 1);
        let large = Bytes::from(vec![0; 16 * SLICE]);
        assert!((16..=18).contains(&polls(Full::new(large))));
        let tiny: &[u8] = b"x";
        let expected = 10_000 * FRAME_COST / SLICE;
        assert!(polls(frames([tiny; 10_000], END)) >= expected);
        assert!(polls(frames([&[][..]; 10_000], END)) >= expected);
    }
}
