//! What is read before anything is proved beyond a description: public keys, and the forms, URLs and JSON of verifiers. Nothing
//! panics, what was signed by hand is accepted, and nothing else is.
#![no_main]

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::{Duration, SystemTime};

use arbitrary::Arbitrary;
use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::Full;
use libfuzzer_sys::fuzz_target;
use oracle::{base64, hmac, to_hex};
use serde_json::json;
use sha2::{Digest, Sha256};
use tower::{Layer, ServiceExt, service_fn};
use tower_webhook::signature::{Mailgun, SignatureLayer, Twilio};
use tower_webhook::{PublicKey, Secret, Secrets, Sender, Verified, Webhooks};

const SECRET: &str = "a secret";
const NOW: u64 = 1_790_000_000;

#[derive(Arbitrary, Debug)]
enum Input {
    Key(Key, Vec<u8>, Vec<u8>),
    /// The fields of a form.
    Form(String, Vec<(Vec<u8>, Vec<u8>)>, Option<u16>),
    /// Another body, in another query.
    Json(String, String, Vec<u8>, Option<u16>),
    /// Nobody has signed it.
    Any {
        url: String,
        query: String,
        content_type: String,
        tag: Vec<u8>,
        body: Vec<u8>,
    },
    Mailgun {
        offset: i32,
        token: String,
        event: String,
        changed: Option<u16>,
    },
    AnyMailgun(Vec<u8>),
}

#[derive(Arbitrary, Debug)]
enum Key {
    Text(String),
    Der(Vec<u8>),
    /// One that is right, with a part of it changed.
    Changed {
        key: u8,
        from: u16,
        to: Vec<u8>,
    },
}

/// Of RSA, P-256 and Ed25519.
const KEYS: [&str; 3] = [
    include_str!("../../tests/fixtures/rsa.json"),
    "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEk7TSrDqx29jGX0QGAXwkfc7SuEAabaVK2CVQhHIdn/P+msVOAYozW2jGL8UUDtHxFBYYkVpAN2AyPWjB9yP1qw==",
    "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=",
];

impl Key {
    fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Der(der) => base64(der),
            Self::Changed { key, from, to } => {
                let right = KEYS[usize::from(*key) % KEYS.len()];
                let of_file = right.split("\"secret\": \"").nth(1);
                let right = of_file.map_or(right, |it| it.split('"').next().unwrap_or_default());
                let mut text = right.as_bytes().to_vec();
                let from = usize::from(*from) % text.len();
                let end = text.len().min(from + to.len());
                text[from..end].copy_from_slice(&to[..end - from]);
                String::from_utf8_lossy(&text).into_owned()
            }
        }
    }
}

/// Nobody has its private key.
fn check_key(key: &Key, tag: &[u8], body: &[u8]) {
    let text = key.text();
    let Ok(read) = PublicKey::new(&text) else {
        return;
    };
    let label = |key: PublicKey| Secrets::from(key).labels();
    let again = PublicKey::new(&text).expect("it was read before");
    assert_eq!(label(read.clone()), label(again));
    let headers = HeaderMap::from_iter([(
        http::HeaderName::from_static("x-tag"),
        HeaderValue::from_str(&to_hex(tag)).expect("hex digits"),
    )]);
    for algorithm in [
        "ed25519",
        "ecdsa-p256",
        "rsa-sha256",
        "rsa-sha512",
        "rsa-pss-sha512",
        "hmac-sha256",
    ] {
        let signature = json!({"headers": ["x-tag"], "algorithm": algorithm, "coding": "hex"});
        let sender = json!({"name": "acme", "signature": signature});
        let sender = Sender::from_json(&sender.to_string()).expect("a description");
        let verified = sender.verify(&read.clone().into(), &headers, body);
        assert!(verified.is_err(), "{algorithm}: {text}");
    }
}

fn secret() -> Secret {
    Secret::new(SECRET).expect("it is not empty")
}

fn status(layer: &SignatureLayer, request: Request<Full<Bytes>>) -> u16 {
    let inner = service_fn(async |_: Request<Verified>| {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    });
    let answered = layer.layer(inner).oneshot(request).now_or_never();
    let Ok(answered) = answered.expect("the body is there");
    answered.status().as_u16()
}

fn twilio(url: &str) -> Option<SignatureLayer> {
    let twilio = Twilio::new(url, secret()).ok()?.sha256().typed_by("a");
    let layer = Webhooks::verified_by(twilio).ok()?.into_signature_layer();
    Some(layer.expect("a layer"))
}

fn request(query: &str, content_type: &str, body: Vec<u8>) -> Option<Request<Full<Bytes>>> {
    let request = Request::post(format!("/twilio?{query}")).header("content-type", content_type);
    request.body(Full::from(body)).ok()
}

fn signed(
    mut request: Request<Full<Bytes>>,
    content: &[u8],
    changed: Option<u16>,
) -> Request<Full<Bytes>> {
    let mut tag = hmac(SECRET.as_bytes(), content);
    change(&mut tag, changed);
    let tag = HeaderValue::from_str(&base64(&tag)).expect("base64");
    request.headers_mut().insert("x-twilio-signature", tag);
    request
}

/// Changes one bit.
fn change(tag: &mut [u8], at: Option<u16>) {
    if let Some(at) = at {
        tag[usize::from(at) / 8 % 32] ^= 1 << (at % 8);
    }
}

/// As the page of Twilio says: the URL, and the names and values of the form, sorted, each once.
fn check_form(url: &str, fields: &[(Vec<u8>, Vec<u8>)], changed: Option<u16>) {
    let Some(layer) = twilio(url) else {
        return;
    };
    let encoded =
        |bytes: &[u8]| -> String { bytes.iter().map(|byte| format!("%{byte:02x}")).collect() };
    let body = fields
        .iter()
        .map(|(name, value)| format!("{}={}", encoded(name), encoded(value)));
    let body = body.collect::<Vec<_>>().join("&").into_bytes();
    let mut content = url
        .split('#')
        .next()
        .unwrap_or_default()
        .as_bytes()
        .to_vec();
    for (name, value) in fields.iter().collect::<BTreeSet<_>>() {
        content.extend_from_slice(name);
        content.extend_from_slice(value);
    }
    let form = request("", "application/x-www-form-urlencoded", body).expect("a request");
    let is_text = |it: &[u8]| std::str::from_utf8(it).is_ok();
    let are_texts = fields
        .iter()
        .all(|(name, value)| is_text(name) && is_text(value));
    let expected = match (changed, are_texts) {
        (Some(_), _) => 401,
        (None, true) => 200,
        (None, false) => 400,
    };
    let expected = if fields.len() > 1_000 { 401 } else { expected };
    assert_eq!(status(&layer, signed(form, &content, changed)), expected);
}

fn check_json(url: &str, query: &str, body: Vec<u8>, changed: Option<u16>) {
    let is_digest = |pair: &str| pair.starts_with("bodySHA256=");
    let digest = to_hex(&Sha256::digest(&body));
    let all = format!("{query}&bodySHA256={digest}");
    let (Some(layer), Some(json)) = (twilio(url), request(&all, "application/json", body)) else {
        return;
    };
    // A parser of URLs may have cut it.
    let is_whole = json.uri().query() == Some(all.as_str());
    let url = url.split(['#', '?']).next().unwrap_or_default();
    let request = signed(json, format!("{url}?{all}").as_bytes(), changed);
    let is_right = changed.is_none() && is_whole && !query.split('&').any(is_digest);
    assert_eq!(status(&layer, request), if is_right { 200 } else { 401 });
}

fn mailgun(body: Vec<u8>) -> u16 {
    let now = || SystemTime::UNIX_EPOCH + Duration::from_secs(NOW);
    let webhooks = Webhooks::verified_by(Mailgun::new(secret()).with_clock(now));
    let layer = webhooks.and_then(Webhooks::into_signature_layer);
    let request = request("", "application/json", body).expect("a request");
    status(&layer.expect("a layer"), request)
}

fn check_mailgun(offset: i32, token: &str, event: &str, changed: Option<u16>) {
    let timestamp = NOW.saturating_add_signed(offset.into()).to_string();
    let mut tag = hmac(SECRET.as_bytes(), format!("{timestamp}{token}").as_bytes());
    change(&mut tag, changed);
    let signature = json!({"timestamp": timestamp, "token": token, "signature": to_hex(&tag)});
    let body = json!({"signature": signature, "event-data": {"event": event}});
    let status = mailgun(body.to_string().into_bytes());
    let is_plain = |text: &str| {
        (1..=128).contains(&text.len()) && text.bytes().all(|it| it.is_ascii_alphanumeric())
    };
    // Up to 5 minutes less than a day old, and 5 minutes ahead.
    let is_fresh = (-(86_400 - 300)..=300).contains(&offset);
    match changed.is_none() && is_fresh {
        true if is_plain(token) && is_plain(event) => assert_eq!(status, 200),
        true => assert!(matches!(status, 200 | 400 | 401), "{status}"),
        false => assert_eq!(status, 401),
    }
}

fuzz_target!(|input: Input| {
    match input {
        Input::Key(key, tag, body) => check_key(&key, &tag, &body),
        Input::Form(url, fields, changed) => check_form(&url, &fields, changed),
        Input::Json(url, query, body, changed) => check_json(&url, &query, body, changed),
        Input::Any {
            url,
            query,
            content_type,
            tag,
            body,
        } => {
            let layer = twilio(&url).or_else(|| twilio("https://example.com/twilio"));
            let request = request(&query, &content_type, body);
            let (Some(layer), Some(mut request), Ok(tag)) =
                (layer, request, HeaderValue::from_bytes(&tag))
            else {
                return;
            };
            request.headers_mut().insert("x-twilio-signature", tag);
            assert_eq!(status(&layer, request), 401);
        }
        Input::Mailgun {
            offset,
            token,
            event,
            changed,
        } => check_mailgun(offset, &token, &event, changed),
        Input::AnyMailgun(body) => assert_eq!(mailgun(body), 401),
    }
});
