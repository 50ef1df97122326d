//! The proof that a delivery is authentic: the body of a request that was verified.

use std::convert::Infallible;
use std::fmt;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Request;
use http::request::Parts;
use http_body::{Body, Frame, SizeHint};

use crate::delivery::RawDelivery;

/// The body of a request whose signature was verified.
///
/// Only [`SignatureLayer`](crate::SignatureLayer) makes one, so nothing else can call a service of
/// `Request<Verified>`. It implements [`http_body::Body`], so that any service over bodies, such as an
/// axum `Router`, can be the inner service of the layers.
///
/// ```
/// use http::{Request, Response};
/// use tower_webhook::Verified;
///
/// // An inner service that is a function.
/// async fn receive(request: Request<Verified>) -> Result<Response<String>, std::io::Error> {
///     let delivery = request.body().delivery();
///     println!("{} of {} bytes", delivery.kind(), delivery.body().len());
///     Ok(Response::new(String::new()))
/// }
/// ```
#[derive(Clone)]
pub struct Verified {
    raw: RawDelivery,
    read: bool,
    /// Whether a layer outside holds a claim for this delivery.
    claimed: bool,
    /// Whether it may have several events, which no layer has taken apart.
    may_have_items: bool,
}

impl Verified {
    pub(crate) fn new(raw: RawDelivery) -> Self {
        Self {
            raw,
            read: false,
            claimed: false,
            may_have_items: false,
        }
    }

    /// Notes that its sender sends several events in a delivery.
    pub(crate) fn with_items(self) -> Self {
        Self {
            may_have_items: true,
            ..self
        }
    }

    #[inline]
    pub(crate) fn may_have_items(&self) -> bool {
        self.may_have_items
    }

    /// Returns the delivery: kind, key, attempt and raw bytes.
    #[must_use]
    pub fn delivery(&self) -> &RawDelivery {
        &self.raw
    }

    /// Returns the delivery without the proof.
    #[must_use]
    pub fn into_delivery(self) -> RawDelivery {
        self.raw
    }

    /// The request for the next service.
    pub(crate) fn into_request(self, head: Parts) -> Request<Self> {
        let mut request = Request::from_parts(head, self);
        share(&mut request);
        request
    }

    /// Notes that a layer makes the attempt, its number if it is known, and whether the layer holds a claim.
    pub(crate) fn begin_attempt(
        request: &mut Request<Self>,
        number: Option<NonZeroU32>,
        claimed: bool,
    ) {
        let this = request.body_mut();
        this.claimed = claimed;
        this.raw.begin_attempt(number);
        share(request);
    }

    /// Whether a layer outside holds a claim for this delivery.
    pub(crate) fn is_claimed(&self) -> bool {
        self.claimed
    }
}

/// Puts a copy where the extractors find it behind services that box the body, such as an axum `Router`.
#[cfg(feature = "axum")]
fn share(request: &mut Request<Verified>) {
    let verified = request.body().clone();
    match request.extensions_mut().get_mut::<Verified>() {
        Some(copy) => *copy = verified,
        None => drop(request.extensions_mut().insert(verified)),
    }
}

/// Nothing else reads the copy.
#[cfg(not(feature = "axum"))]
fn share(_: &mut Request<Verified>) {}

impl fmt::Debug for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Verified").field(&self.raw).finish()
    }
}

impl Body for Verified {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.is_end_stream() {
            return Poll::Ready(None);
        }
        self.read = true;
        Poll::Ready(Some(Ok(Frame::data(self.raw.body().clone()))))
    }

    fn is_end_stream(&self) -> bool {
        self.read || self.raw.body().is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        let left = if self.read { 0 } else { self.raw.body().len() };
        SizeHint::with_exact(left as u64)
    }
}
