//! The extractors for ordinary axum handlers behind the layers.

use axum_core::extract::{FromRequest, FromRequestParts, Request};
use axum_core::response::{IntoResponse, Response};
use http::request::Parts;

use super::respond_with;
use crate::delivery::{DecodeError, Delivery, RawDelivery};
use crate::event::Event;
use crate::outcome::Outcome;
use crate::verified::Verified;

/// Extracts a delivery of any kind.
///
/// # Rejections
///
/// 500 when the handler is not behind a [`SignatureLayer`](crate::SignatureLayer); an error is also
/// logged.
impl<S: Sync> FromRequestParts<S> for RawDelivery {
    type Rejection = DeliveryRejection;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, DeliveryRejection> {
        match parts.extensions.get::<Verified>() {
            Some(verified) => Ok(verified.delivery().clone()),
            None => Err(DeliveryRejection(Reason::NotVerified)),
        }
    }
}

/// Extracts the decoded delivery of an event `E`.
///
/// # Rejections
///
/// - 500 when the handler is not behind a [`SignatureLayer`](crate::SignatureLayer); an error is also
///   logged;
/// - 200 when the delivery is of another kind: it is ignored, and not remembered;
/// - 422 when the body is not what the event should carry.
impl<E: Event, S: Sync> FromRequest<S> for Delivery<E> {
    type Rejection = DeliveryRejection;

    async fn from_request(request: Request, state: &S) -> Result<Self, DeliveryRejection> {
        let (mut parts, _) = request.into_parts();
        let raw = RawDelivery::from_request_parts(&mut parts, state).await?;
        if *raw.kind() != E::KIND {
            return Err(DeliveryRejection(Reason::AnotherKind));
        }
        Delivery::decode(raw).map_err(|(_, error)| DeliveryRejection(Reason::Undecodable(error)))
    }
}

/// The rejection of the extractors [`Delivery`] and [`RawDelivery`].
#[derive(Debug)]
pub struct DeliveryRejection(Reason);

#[derive(Debug)]
enum Reason {
    NotVerified,
    AnotherKind,
    Undecodable(DecodeError),
}

impl IntoResponse for DeliveryRejection {
    fn into_response(self) -> Response {
        let outcome = match self.0 {
            Reason::AnotherKind => Outcome::Ignored,
            Reason::Undecodable(error) => Outcome::Undecodable(error),
            Reason::NotVerified => Outcome::failed(
                "a `Delivery` can only be extracted behind `WebhookLayer` or `SignatureLayer`: \
                 nothing was verified here",
            ),
        };
        respond_with(outcome).map(axum_core::body::Body::new)
    }
}
