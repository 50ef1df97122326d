//! The service that receives webhooks for an inbox.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use tower_service::Service;

use crate::config::ConfigError;
use crate::error::BoxError;
use crate::inbox::Accept;
use crate::sender::Sender;
use crate::signature::{Secrets, Signature};

/// The service that receives webhooks for an inbox: [`Webhooks::start`](crate::Webhooks::start) returns it.
///
/// It is the same as a [`SignatureLayer`](crate::SignatureLayer) around [`Inbox::accept`](crate::inbox::Inbox::accept), for
/// request bodies of any type, and compiles with this crate instead of with yours.
#[derive(Clone, Debug)]
pub struct Receiver {
    signature: Signature<Accept>,
}

/// A request body of any type.
type AnyBody = UnsyncBoxBody<Bytes, BoxError>;

impl Receiver {
    pub(super) fn new(signature: Signature<Accept>) -> Self {
        Self { signature }
    }

    /// Returns the same service with other secrets and another description of its sender, as
    /// [`Signature::with_sender`] does.
    ///
    /// # Errors
    ///
    /// As for [`Signature::with_sender`].
    pub fn with_sender(
        &self,
        sender: Sender,
        secrets: impl Into<Secrets>,
    ) -> Result<Self, ConfigError> {
        Ok(Self::new(self.signature.with_sender(sender, secrets)?))
    }

    // Neither this nor its future is generic, so that both are compiled with this crate.
    fn receive(&mut self, request: Request<AnyBody>) -> ReceiverFuture {
        let answer = self.signature.call(request);
        ReceiverFuture {
            answer: Box::pin(answer.map(|answer| {
                let Ok(answer) = answer;
                Ok(answer.map(|body| body.into_full(|inner| inner.into_full(|whole| whole))))
            })),
        }
    }
}

impl<B> Service<Request<B>> for Receiver
where
    B: Body<Error: Into<BoxError>> + Send + 'static,
{
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = ReceiverFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> ReceiverFuture {
        self.receive(request.map(|body| body.map_frame(whole).map_err(Into::into).boxed_unsync()))
    }
}

/// A frame whose data is in one piece. It is not copied if it is so already.
fn whole<D: Buf>(frame: Frame<D>) -> Frame<Bytes> {
    frame.map_data(|mut data| data.copy_to_bytes(data.remaining()))
}

/// The response future of [`Receiver`].
#[must_use = "futures do nothing unless polled"]
pub struct ReceiverFuture {
    answer: BoxFuture<'static, Result<Response<Full<Bytes>>, Infallible>>,
}

impl Future for ReceiverFuture {
    type Output = Result<Response<Full<Bytes>>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.answer.as_mut().poll(cx)
    }
}

partial_debug!(ReceiverFuture);
