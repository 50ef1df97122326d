//! The parts of the pipeline that every delivery needs, and nothing around them.

use std::convert::Infallible;
use std::fmt::Debug;
use std::hint::black_box;
use std::time::Duration;

use bytes::Bytes;
use hmac::{Hmac, Mac};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use sha2::Sha256;
use tower::{Service, service_fn};
use tower_webhook::event::{ChatClosed, Event};
use tower_webhook::memory::MokaStore;
use tower_webhook::store::{Claim, EventKey, Store};

use super::by_hand;

/// Collects the body, verifies, claims, decodes, completes.
pub(crate) fn service<B>(
    store: MokaStore,
) -> impl Service<
    Request<B>,
    Response = Response<Full<Bytes>>,
    Error = Infallible,
    Future: Send + 'static,
> + Clone
+ Send
+ Sync
+ 'static
where
    B: Body<Data: Send, Error: Debug> + Send + 'static,
{
    let keyed = by_hand::keyed();
    service_fn(move |request: Request<B>| {
        let (mac, store) = (keyed.clone(), store.clone());
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.expect("a whole body").to_bytes();
            if !is_authentic(mac, &head.headers, &body) {
                return Ok(answer(StatusCode::UNAUTHORIZED));
            }
            // A digest of no body is one that the pipeline does not make.
            let id = EventKey::new("", head.headers["idempotency-key"].as_bytes(), &[]);
            let lease = match store.claim(&id, RETENTION, RETENTION).await {
                Ok(Claim::Acquired(lease)) => lease,
                Ok(Claim::Done { .. }) => return Ok(replayed()),
                claim => panic!("the key is new: {claim:?}"),
            };
            let text = str::from_utf8(&body).unwrap_or_default();
            let chat: Result<<ChatClosed as Event>::Payload, _> = serde_json::from_str(text);
            let handled =
                black_box(chat).is_ok() && store.complete(&lease, RETENTION).await.is_ok();
            Ok(answer(match handled {
                true => StatusCode::OK,
                false => StatusCode::INTERNAL_SERVER_ERROR,
            }))
        }
    })
}

const RETENTION: Duration = Duration::from_secs(8 * 24 * 60 * 60);

pub(crate) fn is_authentic(mac: Hmac<Sha256>, headers: &HeaderMap, body: &[u8]) -> bool {
    let mut tag = [0; 32];
    hex::decode_to_slice(&headers["x-service-hmac-sha256"], &mut tag).is_ok()
        && mac.chain_update(body).verify_slice(&tag).is_ok()
}

pub(crate) fn answer(status: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::default();
    *response.status_mut() = status;
    response
}

fn replayed() -> Response<Full<Bytes>> {
    let mut response = Response::default();
    let headers = response.headers_mut();
    headers.insert("idempotent-replayed", HeaderValue::from_static("true"));
    response
}
