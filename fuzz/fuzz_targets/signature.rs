//! Compares the verification of signatures with RFC 2104 and hex digits that are parsed by hand. Of other senders,
//! whatever was not signed is refused, and nothing panics.
#![no_main]

use std::convert::Infallible;

use arbitrary::Arbitrary;
use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use libfuzzer_sys::{Corpus, fuzz_target};
use oracle::{hmac, parse_signature, to_hex};
use tower::{Layer, ServiceExt, service_fn};
use tower_webhook::memory::MokaStore;
use tower_webhook::signature::SignatureError;
use tower_webhook::{
    EventKind, IdempotencyKey, RawDelivery, ResponseBody, Secret, Secrets, Sender, SignatureLayer,
    Verified, Webhooks,
};

#[derive(Arbitrary, Debug)]
struct Input {
    secrets: Vec<Vec<u8>>,
    body: Vec<u8>,
    headers: Vec<Header>,
    other: Other,
}

/// A delivery of another sender: what it signs, or nothing, with these headers. And a challenge.
#[derive(Arbitrary, Debug)]
struct Other {
    profile: u8,
    is_signed: bool,
    headers: Vec<(u8, Vec<u8>)>,
    query: String,
}

#[derive(Arbitrary, Debug)]
enum Header {
    Right { secret: u8 },
    Uppercase { secret: u8 },
    OtherBody { secret: u8 },
    Changed { secret: u8, at: u8, to: u8 },
    Cut { secret: u8, length: u8 },
    Longer { secret: u8, by: Vec<u8> },
    Any(Vec<u8>),
}

impl Header {
    fn value(&self, input: &Input) -> Vec<u8> {
        let sign = |secret: u8, body: &[u8]| {
            let secret = &input.secrets[usize::from(secret) % input.secrets.len()];
            to_hex(&hmac(secret, body)).into_bytes()
        };
        match *self {
            Self::Right { secret } => sign(secret, &input.body),
            Self::Uppercase { secret } => sign(secret, &input.body).to_ascii_uppercase(),
            Self::OtherBody { secret } => sign(secret, &[&input.body[..], b" "].concat()),
            Self::Changed { secret, at, to } => {
                let mut value = sign(secret, &input.body);
                value[usize::from(at) % 64] = to;
                value
            }
            Self::Cut { secret, length } => {
                let mut value = sign(secret, &input.body);
                value.truncate(length.into());
                value
            }
            Self::Longer { secret, ref by } => [&sign(secret, &input.body)[..], by].concat(),
            Self::Any(ref value) => value.clone(),
        }
    }
}

/// Returns the position of the first secret that verifies the body.
fn expected(input: &Input, value: &[u8]) -> Result<usize, SignatureError> {
    let claimed = parse_signature(value).ok_or(SignatureError::Malformed)?;
    let mut secrets = input.secrets.iter();
    secrets
        .position(|secret| hmac(secret, &input.body) == claimed)
        .ok_or(SignatureError::Wrong)
}

fuzz_target!(|input: Input| -> Corpus {
    // With a public key in place of a secret, nothing is verified.
    let is_none = |secret: &Vec<u8>| secret.is_empty() || secret.starts_with(b"whpk_");
    if !(1..=3).contains(&input.secrets.len()) || input.secrets.iter().any(is_none) {
        return Corpus::Reject;
    }
    let set: Vec<_> = input
        .secrets
        .iter()
        .map(|secret| Secret::new(secret.clone()).expect("it is not empty"))
        .collect();
    for (secret, ours) in input.secrets.iter().zip(&set) {
        assert_eq!(ours.sign(&input.body), to_hex(&hmac(secret, &input.body)));
    }
    let secrets = Secrets::new(set).expect("there is one at least");

    let values: Vec<_> = input
        .headers
        .iter()
        .take(3)
        .map(|header| header.value(&input))
        .collect();
    for value in &values {
        assert_eq!(secrets.verify(&input.body, value), expected(&input, value));
    }

    // A value that is no valid header value never arrives.
    let values: Vec<_> = values
        .iter()
        .filter_map(|value| HeaderValue::from_bytes(value).ok())
        .collect();
    let authentic = matches!(&values[..], [value] if expected(&input, value.as_bytes()).is_ok());
    let status = through_the_layer(secrets, &input.body, values);
    assert_eq!(status == StatusCode::OK, authentic);
    assert!(authentic || status == StatusCode::UNAUTHORIZED);
    let status = from_another(&input.other, &input.body);
    assert!(input.other.is_signed || status != StatusCode::OK);
    asked(&input.other.query);
    Corpus::Keep
});

/// All headers that a profile reads.
const HEADERS: [&str; 51] = [
    "box-delivery-timestamp",
    "box-signature-algorithm",
    "box-signature-primary",
    "box-signature-secondary",
    "box-signature-version",
    "content-type",
    "idempotency-key",
    "linear-delivery",
    "linear-event",
    "linear-signature",
    "paddle-signature",
    "shopify-hmac-sha256",
    "shopify-topic",
    "shopify-webhook-id",
    "stripe-signature",
    "svix-id",
    "svix-signature",
    "svix-timestamp",
    "twitch-eventsub-message-id",
    "twitch-eventsub-message-signature",
    "twitch-eventsub-message-timestamp",
    "twitch-eventsub-message-type",
    "webhook-id",
    "webhook-signature",
    "webhook-timestamp",
    "x-atlassian-webhook-identifier",
    "x-event-key",
    "x-github-delivery",
    "x-github-event",
    "x-gitlab-token",
    "x-hub-signature",
    "x-hub-signature-256",
    "x-hubspot-request-timestamp",
    "x-hubspot-signature-v3",
    "x-line-signature",
    "x-request-uuid",
    "x-shopify-hmac-sha256",
    "x-shopify-topic",
    "x-shopify-webhook-id",
    "x-signature-ed25519",
    "x-signature-timestamp",
    "x-slack-request-timestamp",
    "x-slack-signature",
    "x-square-hmacsha256-signature",
    "x-telegram-bot-api-secret-token",
    "x-twilio-email-event-webhook-signature",
    "x-twilio-email-event-webhook-timestamp",
    "x-webflow-signature",
    "x-webflow-timestamp",
    "x-zm-request-timestamp",
    "x-zm-signature",
];

/// What signs, and what verifies.
type Keys = [&'static str; 2];

const SECRET: Keys = ["whsec_c2VjcmV0"; 2];
const ED25519: Keys = [
    "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==",
    "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=",
];
const P256: Keys = [
    "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgcXBpZF2oQdli2pV4KF3dYLvn9/SrhDkR75DCK5jnrdKhRANCAASTtNKsOrHb2MZfRAYBfCR9ztK4QBptpUrYJVCEch2f8/6axU4BijNbaMYvxRQO0fEUFhiRWkA3YDI9aMH3I/Wr",
    "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEk7TSrDqx29jGX0QGAXwkfc7SuEAabaVK2CVQhHIdn/P+msVOAYozW2jGL8UUDtHxFBYYkVpAN2AyPWjB9yP1qw==",
];

fn from_another(other: &Other, body: &[u8]) -> StatusCode {
    let profiles: [(fn() -> Sender, Keys); 24] = [
        (Sender::standard_webhooks, SECRET),
        (Sender::svix, SECRET),
        (Sender::openai, SECRET),
        (Sender::github, SECRET),
        (Sender::stripe, SECRET),
        (Sender::slack, SECRET),
        (Sender::shopify, SECRET),
        (|| Sender::square("https://example.com/"), SECRET),
        (Sender::paddle, SECRET),
        (Sender::linear, SECRET),
        (Sender::box_com, SECRET),
        (Sender::zoom, SECRET),
        (Sender::line, SECRET),
        (Sender::webflow, SECRET),
        (Sender::standard_webhooks_v1a, ED25519),
        (Sender::discord, ED25519),
        (Sender::sendgrid, P256),
        (Sender::twitch, SECRET),
        (meta, SECRET),
        (Sender::gitlab, SECRET),
        (Sender::bitbucket, SECRET),
        (Sender::jira, SECRET),
        (Sender::telegram, SECRET),
        (|| Sender::hubspot_v3("https://example.com/"), SECRET),
    ];
    let (sender, keys) = profiles[usize::from(other.profile) % profiles.len()];
    let sender = sender();
    let [signing, verifying] = keys.map(|text| Secret::new(text).expect("it is not empty"));
    let mut request = Request::post("/")
        .header("content-type", "application/json")
        .body(Full::new(Bytes::copy_from_slice(body)))
        .expect("the parts of a request");
    if other.is_signed {
        let key = IdempotencyKey::new(HeaderValue::from_static("key"));
        let delivery = RawDelivery::new(EventKind::CHAT_RATED, body.to_vec()).with_key(key);
        *request.headers_mut() = sender
            .sign(&signing, &delivery)
            .expect("a secret of every form");
    }
    for (name, value) in &other.headers {
        let name = HEADERS[usize::from(*name) % HEADERS.len()];
        if let Ok(value) = HeaderValue::from_bytes(value) {
            request.headers_mut().append(name, value);
        }
    }
    answer(layer_of(verifying, sender), request)
}

fn meta() -> Sender {
    let sender = Sender::meta().with_challenge_token("a token");
    sender.expect("it is not empty")
}

/// Whatever is echoed is visible ASCII.
fn asked(query: &str) {
    let Ok(request) = Request::get(format!("/?{query}")).body(Full::default()) else {
        return;
    };
    let secret = Secret::new("secret").expect("it is not empty");
    let response = respond(layer_of(secret, meta()), request);
    if response.status() == StatusCode::OK {
        let body = response.into_body().collect().now_or_never();
        let body = body.expect("the body is there").expect("it is whole");
        let body = body.to_bytes();
        assert!((1..=512).contains(&body.len()));
        assert!(body.iter().all(u8::is_ascii_graphic));
    }
}

fn through_the_layer(secrets: Secrets, body: &[u8], values: Vec<HeaderValue>) -> StatusCode {
    let mut request = Request::post("/")
        .header("content-type", "application/json")
        .header("x-service-event", "chat-rated")
        .body(Full::new(Bytes::copy_from_slice(body)))
        .expect("the parts of a request");
    for value in values {
        request.headers_mut().append("x-service-hmac-sha256", value);
    }
    answer(SignatureLayer::new(secrets), request)
}

fn layer_of(secrets: impl Into<Secrets>, sender: Sender) -> SignatureLayer {
    let layers = Webhooks::new(secrets)
        .sender(sender)
        .store(MokaStore::new())
        .into_layers();
    layers.expect("a secret of every form").0
}

fn answer(layer: SignatureLayer, request: Request<Full<Bytes>>) -> StatusCode {
    respond(layer, request).status()
}

fn respond(
    layer: SignatureLayer,
    request: Request<Full<Bytes>>,
) -> Response<ResponseBody<Full<Bytes>>> {
    let inner = service_fn(async |_: Request<Verified>| {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    });
    let response = layer.layer(inner).oneshot(request);
    let Ok(response) = response.now_or_never().expect("the body is there");
    response
}
