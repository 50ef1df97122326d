//! The deliveries that are sent.

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Full;
use tower_webhook::Secret;

use super::SECRET;

/// Requests and the expected response.
#[derive(Clone)]
pub(crate) struct Deliveries {
    pub(crate) body: Bytes,
    pub(crate) signature: String,
    pub(crate) unique: bool,
    pub(crate) status: StatusCode,
}

impl Deliveries {
    pub(crate) fn of(body: &Bytes) -> Self {
        Self {
            body: body.clone(),
            signature: secret().sign(body),
            unique: true,
            status: StatusCode::OK,
        }
    }

    pub(crate) fn request(&self, number: u64) -> Request<Full<Bytes>> {
        let key = if self.unique { number } else { 0 };
        Request::post("/webhooks")
            .header("content-type", "application/json")
            .header("content-length", self.body.len())
            .header("x-service-event", "chat-closed")
            .header("idempotency-key", format!("evt-{key:032x}"))
            .header("x-service-hmac-sha256", &self.signature)
            .body(self.body.clone().into())
            .expect("the parts of a request")
    }
}

pub(crate) fn secret() -> Secret {
    Secret::new(SECRET).expect("it is not empty")
}
