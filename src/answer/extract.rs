//! The extractors for ordinary axum handlers behind the layers.

use axum_core::extract::{FromRequest, FromRequestParts, Request};
use axum_core::response::{IntoResponse, Response};
use http::HeaderMap;
use http::request::Parts;

use super::decision::Decision;
use super::respond::{respond, respond_with};
use super::row::{Answer, Row, log_refusal};
use crate::delivery::{DecodeError, Delivery, RawDelivery};
use crate::event::{Event, EventKind};
use crate::outcome::Outcome;
use crate::telemetry::Short;
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
        // Nothing outside this crate can make a `Verified`, so an extension is proof enough.
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
/// - 404 when the delivery is of another kind, because the webhook's URL at the sender leads to the wrong
///   handler; a warning with both kinds is also logged;
/// - 422 when the body is not what the event should carry.
impl<E: Event, S: Sync> FromRequest<S> for Delivery<E> {
    type Rejection = DeliveryRejection;

    async fn from_request(request: Request, state: &S) -> Result<Self, DeliveryRejection> {
        // The verified bytes are in the extensions, so the body is not read again.
        let (mut parts, _) = request.into_parts();
        let raw = RawDelivery::from_request_parts(&mut parts, state).await?;
        // An acknowledgement would lose the event: the right handler never gets it.
        if *raw.kind() != E::KIND {
            return Err(DeliveryRejection(Reason::AnotherKind(AnotherKind {
                delivered: raw.kind().clone(),
                handled: E::KIND,
            })));
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
    AnotherKind(AnotherKind),
    Undecodable(DecodeError),
}

/// A delivery that reached the handler of another kind.
#[derive(Debug)]
struct AnotherKind {
    delivered: EventKind,
    handled: EventKind,
}

impl Answer for AnotherKind {
    fn row(&self) -> Row {
        Outcome::Unhandled.row()
    }

    fn log(&self, row: &Row) {
        let Self { delivered, handled } = self;
        let reason = format_args!(
            "the event is `{}`, and the handler at this URL takes `{handled}`: \
             change the webhook's URL at the sender",
            // The text is the sender's, and may be long.
            Short(delivered)
        );
        log_refusal(row.name, &reason);
    }
}

impl IntoResponse for DeliveryRejection {
    fn into_response(self) -> Response {
        let outcome = match self.0 {
            Reason::AnotherKind(other) => {
                let row = other.row();
                other.log(&row);
                let mut response = respond(&other, &row, HeaderMap::new());
                let decision = Decision::ended(Outcome::Unhandled);
                response.extensions_mut().insert(decision);
                return response.map(axum_core::body::Body::new);
            }
            Reason::Undecodable(error) => Outcome::Undecodable(error),
            Reason::NotVerified => Outcome::failed(
                "a `Delivery` can only be extracted behind `WebhookLayer` or `SignatureLayer`: \
                 nothing was verified here",
            ),
        };
        respond_with(outcome).map(axum_core::body::Body::new)
    }
}
