//! The control: a handwritten receiver in one axum handler.

use std::collections::HashMap;
use std::hint::black_box;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, StatusCode};
use moka::sync::Cache;
use serde::Deserialize;
use sha2::Sha256;

use super::{SECRET, STORE_CAPACITY};

pub(crate) fn router() -> Router {
    let receiver = Receiver {
        keyed: keyed(),
        seen: Cache::builder()
            .max_capacity(STORE_CAPACITY)
            .time_to_live(Duration::from_secs(8 * 24 * 60 * 60))
            .build(),
    };
    Router::new()
        .route("/webhooks", post(receive))
        .with_state(receiver)
}

/// Hashes the secret once; the state is cloned for each request.
pub(crate) fn keyed() -> Hmac<Sha256> {
    Hmac::new_from_slice(SECRET.as_bytes()).expect("HMAC takes keys of any length")
}

#[derive(Clone)]
struct Receiver {
    keyed: Hmac<Sha256>,
    seen: Cache<String, ()>,
}

async fn receive(
    State(receiver): State<Receiver>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<(), StatusCode> {
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok());

    let signature = header("x-service-hmac-sha256").ok_or(StatusCode::UNAUTHORIZED)?;
    let tag = hex::decode(signature).map_err(|_| StatusCode::UNAUTHORIZED)?;
    let mac = receiver.keyed.clone().chain_update(&body);
    mac.verify_slice(&tag)
        .map_err(|_| StatusCode::UNAUTHORIZED)?;

    let key = header("idempotency-key").ok_or(StatusCode::BAD_REQUEST)?;
    if receiver.seen.get(key).is_some() {
        return Ok(());
    }
    match header("x-service-event").ok_or(StatusCode::BAD_REQUEST)? {
        "chat-closed" => {
            let chat: Chat =
                serde_json::from_slice(&body).map_err(|_| StatusCode::UNPROCESSABLE_ENTITY)?;
            black_box(chat);
        }
        _ => return Ok(()),
    }
    receiver.seen.insert(key.to_owned(), ());
    Ok(())
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(dead_code, reason = "the fields are decoded and not read")]
struct Chat {
    id: Option<String>,
    user: Option<Person>,
    expert: Option<Person>,
    category: Option<Category>,
    question: Option<String>,
    language_code: Option<String>,
    status: Option<String>,
    rating: Option<f64>,
    #[serde(rename = "transcriptURL")]
    transcript_url: Option<String>,
    created_at: Option<i64>,
    accepted_at: Option<i64>,
    closed_at: Option<i64>,
    rated_at: Option<i64>,
    last_opened_at: Option<i64>,
    referer: Option<String>,
    #[serde(default)]
    custom_meta: HashMap<String, String>,
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "the fields are decoded and not read")]
struct Person {
    id: Option<String>,
    name: Option<String>,
    email: Option<String>,
    locale: Option<String>,
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "the fields are decoded and not read")]
struct Category {
    id: Option<String>,
    title: Option<String>,
}
