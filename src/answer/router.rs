//! An [`EventRouter`] as the innermost service of the layers.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tower_service::Service;

use super::decision::Decision;
use super::respond::respond_with;
use crate::delivery::RawDelivery;
use crate::outcome::Outcome;
use crate::router::{EventRouter, RouterFuture};
use crate::verified::Verified;

impl Service<Request<Verified>> for EventRouter {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = RouterResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Verified>) -> RouterResponseFuture {
        let delivery = request.into_body().into_delivery();
        RouterResponseFuture {
            is_decided: delivery.has_own_success(),
            outcome: Service::<RawDelivery>::call(self, delivery),
        }
    }
}

/// The response future of [`EventRouter`] as a service of HTTP requests.
#[must_use = "futures do nothing unless polled"]
pub struct RouterResponseFuture {
    outcome: RouterFuture,
    /// Whether a verifier has an answer for a success, so that it must be known for one.
    is_decided: bool,
}

impl Future for RouterResponseFuture {
    type Output = Result<Response<Full<Bytes>>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Ok(outcome) = ready!(Pin::new(&mut self.outcome).poll(cx));
        let is_noted = self.is_decided && matches!(outcome, Outcome::Handled);
        let mut response = respond_with(outcome);
        if is_noted {
            let decision = Decision::ended(Outcome::Handled);
            response.extensions_mut().insert(decision);
        }
        Poll::Ready(Ok(response))
    }
}

partial_debug!(RouterResponseFuture);
