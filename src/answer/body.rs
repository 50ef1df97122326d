//! The body of a response.

use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http::header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use pin_project_lite::pin_project;

use super::respond::{refuse, respond_with};
use super::row::Answer;
use crate::event::EventKind;
use crate::outcome::Outcome;
use crate::sender::Reply;

pin_project! {
    /// The body of a response: of an answer of this crate, or of the inner service.
    pub struct ResponseBody<B> {
        #[pin]
        inner: Inner<B>,
    }
}

pin_project! {
    #[project = InnerProj]
    enum Inner<B> {
        Answer { body: Full<Bytes> },
        Service { #[pin] body: B },
    }
}

impl<B> ResponseBody<B> {
    /// Logs an outcome, and returns its response.
    pub(crate) fn answer(outcome: Outcome) -> Response<Self> {
        respond_with(outcome).map(Self::of_this_crate)
    }

    /// The response for a refusal of a verified delivery. The caller logs it.
    pub(crate) fn refuse<R>(refusal: R) -> Response<Self>
    where
        R: Answer + Error + Send + Sync + 'static,
    {
        Self::refuse_request(refusal, None, true, HeaderMap::new())
    }

    /// The response for a refusal of a request for an event of `kind`, if that is known. `headers` is an empty map. The
    /// caller logs it.
    pub(crate) fn refuse_request<R>(
        refusal: R,
        kind: Option<EventKind>,
        is_verified: bool,
        headers: HeaderMap,
    ) -> Response<Self>
    where
        R: Answer + Error + Send + Sync + 'static,
    {
        refuse(refusal, kind, is_verified, headers).map(Self::of_this_crate)
    }

    /// A response of this crate that is no row of the table, and that no browser takes for something else.
    pub(crate) fn plain(
        status: StatusCode,
        content_type: Option<&'static str>,
        body: Bytes,
    ) -> Response<Self> {
        let mut response = Response::new(Self::of_this_crate(Full::from(body)));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        if let Some(content_type) = content_type {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        }
        // An echoed text comes from the request. Without this header, a browser could take it for HTML.
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        response
    }

    /// The response with another status and body. Its headers and its decision stay.
    pub(crate) fn instead<R>(response: Response<R>, reply: &Reply) -> Response<Self> {
        let (head, _) = response.into_parts();
        let mut response = Self::plain(reply.status, reply.content_type, reply.body.clone());
        let headers = std::mem::replace(response.headers_mut(), head.headers);
        response.headers_mut().extend(headers);
        *response.extensions_mut() = head.extensions;
        response
    }

    /// Returns the answer as one whole. `whole` does so for that of a service.
    pub(crate) fn into_full(self, whole: impl FnOnce(B) -> Full<Bytes>) -> Full<Bytes> {
        match self.inner {
            Inner::Answer { body } => body,
            Inner::Service { body } => whole(body),
        }
    }

    fn of_this_crate(body: Full<Bytes>) -> Self {
        Self {
            inner: Inner::Answer { body },
        }
    }

    pub(crate) fn service(body: B) -> Self {
        Self {
            inner: Inner::Service { body },
        }
    }
}

/// Empty, as for tower-http's `TimeoutLayer` around the layers of this crate.
impl<B> Default for ResponseBody<B> {
    fn default() -> Self {
        Self::of_this_crate(Full::default())
    }
}

partial_debug!([B] ResponseBody<B>);

impl<B: Body<Data: Buf + From<Bytes>>> Body for ResponseBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        match self.project().inner.project() {
            InnerProj::Answer { body } => Pin::new(body)
                .poll_frame(cx)
                .map(|frame| frame.map(|Ok(frame)| Ok(frame.map_data(B::Data::from)))),
            InnerProj::Service { body } => body.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Inner::Answer { body } => body.is_end_stream(),
            Inner::Service { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            // An exact size lets hyper send `Content-Length`, and not chunks.
            Inner::Answer { body } => body.size_hint(),
            Inner::Service { body } => body.size_hint(),
        }
    }
}
