//! A row for each sender, with its deliveries as it signs them.

use std::convert::Infallible;
use std::hint::black_box;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::Full;
use serde_json::{Value, json};
use tower::{Layer, ServiceExt, service_fn};
use tower_webhook::event::EventKind;
use tower_webhook::memory::MokaStore;
use tower_webhook::{
    IdempotencyKey, PublicKey, RawDelivery, Secret, Secrets, Sender, Verified, Webhooks,
};
use webhook_verify::Encoding::{Base64, Hex};
use webhook_verify::Provider;

use super::measure::{Row, Verify};
use super::{BODY, Delivery, peers};

const SECRET: &str = "1f0c7a2e9b5d4836a1c0ffee5eed00d15ea5e123";
const WHSEC: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
const URL: &str = "https://example.com/webhooks";

/// Private keys, and their public ones.
const ED25519: [&str; 2] = [
    "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==",
    "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=",
];
const P256: [&str; 2] = [
    "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgcXBpZF2oQdli2pV4KF3dYLvn9/SrhDkR75DCK5jnrdKhRANCAASTtNKsOrHb2MZfRAYBfCR9ztK4QBptpUrYJVCEch2f8/6axU4BijNbaMYvxRQO0fEUFhiRWkA3YDI9aMH3I/Wr",
    "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEk7TSrDqx29jGX0QGAXwkfc7SuEAabaVK2CVQhHIdn/P+msVOAYozW2jGL8UUDtHxFBYYkVpAN2AyPWjB9yP1qw==",
];

const STANDARDWEBHOOKS: &str = "`standardwebhooks`";
const AXUM_GITHUB: &str = "`axum-github-webhook-extract`";
const WEBHOOK_VERIFY: &str = "`webhook-verify`";
const AND_TIME: &str = "`webhook-verify`, `serde_json` for the time";
const CUSTOM: &str = "`webhook-verify`, own scheme";
const CUSTOM_AND_TIME: &str = "`webhook-verify`, own scheme, `humantime` for the time";
const UNTIMED: &str = "`webhook-verify`, own scheme, time unchecked";
const BARE_ED25519: &str = "bare `ed25519-dalek`";
const BARE_P256: &str = "bare `p256`";
const BARE_RSA: &str = "bare `ring`";

pub(crate) fn all() -> Vec<Row> {
    let listed = |provider| peers::provider(provider, SECRET);
    let standard = || peers::provider(Provider::StandardWebhooks, WHSEC);
    let body_only = |header, prefix, coding| {
        peers::custom(SECRET, header, prefix, coding, |_, body| body.to_vec())
    };
    let [hub, hub_256] = ["x-hub-signature", "x-hub-signature-256"];
    let meta = Sender::meta().with_challenge_token("a token");
    vec![
        hmac(Sender::chat_platform(), SECRET)
            .beside(CUSTOM, body_only("x-service-hmac-sha256", None, Hex)),
        hmac(Sender::standard_webhooks(), WHSEC)
            .beside(STANDARDWEBHOOKS, peers::standardwebhooks(WHSEC))
            .beside(WEBHOOK_VERIFY, standard()),
        hmac(Sender::svix(), WHSEC),
        hmac(Sender::openai(), WHSEC)
            .beside(STANDARDWEBHOOKS, peers::standardwebhooks(WHSEC))
            .beside(WEBHOOK_VERIFY, standard()),
        hmac(Sender::github(), SECRET)
            .beside(AXUM_GITHUB, peers::axum_github(SECRET))
            .beside(WEBHOOK_VERIFY, listed(Provider::GitHub)),
        hmac(meta.expect("a token"), SECRET)
            .beside(CUSTOM, body_only(hub_256, Some("sha256="), Hex)),
        hmac(Sender::bitbucket(), SECRET).beside(CUSTOM, body_only(hub, Some("sha256="), Hex)),
        hmac(Sender::jira(), SECRET).beside(CUSTOM, body_only(hub, Some("sha256="), Hex)),
        hmac(Sender::stripe(), SECRET).beside(WEBHOOK_VERIFY, listed(Provider::Stripe)),
        hmac(Sender::slack(), SECRET).beside(WEBHOOK_VERIFY, listed(Provider::Slack)),
        hmac(Sender::shopify(), SECRET).beside(WEBHOOK_VERIFY, listed(Provider::Shopify)),
        hmac(Sender::square(URL), SECRET).beside(
            WEBHOOK_VERIFY,
            peers::with_url(Provider::Square, SECRET, URL),
        ),
        hmac(Sender::hubspot_v3(URL), SECRET),
        hmac(Sender::paddle(), SECRET),
        hmac(Sender::linear(), SECRET).beside(AND_TIME, peers::linear(SECRET)),
        hmac(Sender::box_com(), SECRET).beside(CUSTOM_AND_TIME, peers::box_com(SECRET)),
        hmac(Sender::zoom(), SECRET).beside(WEBHOOK_VERIFY, listed(Provider::Zoom)),
        hmac(Sender::line(), SECRET).beside(CUSTOM, body_only("x-line-signature", None, Base64)),
        hmac(Sender::webflow(), SECRET).beside(
            UNTIMED,
            peers::custom(SECRET, "x-webflow-signature", None, Hex, |head, body| {
                let time = head.get("x-webflow-timestamp").unwrap_or_default();
                [time.as_bytes(), b":", body].concat()
            }),
        ),
        hmac(Sender::twitch(), SECRET).beside(
            UNTIMED,
            peers::custom(
                SECRET,
                "twitch-eventsub-message-signature",
                Some("sha256="),
                Hex,
                |head, body| {
                    let id = head.get("twitch-eventsub-message-id");
                    let time = head.get("twitch-eventsub-message-timestamp");
                    let [id, time] = [id, time].map(|it| it.unwrap_or_default().as_bytes());
                    [id, time, body].concat()
                },
            ),
        ),
        token(Sender::gitlab(), "x-gitlab-token"),
        hmac(Sender::gitlab_signed(), WHSEC)
            .beside(STANDARDWEBHOOKS, peers::standardwebhooks(WHSEC)),
        token(Sender::telegram(), "x-telegram-bot-api-secret-token"),
        standard_webhooks_v1a(),
        discord(),
        sendgrid(),
        wise(),
    ]
}

fn hmac(sender: Sender, secret: &str) -> Row {
    let secret = Secret::new(secret).expect("it is not empty");
    let sender = timed(sender);
    let delivery = Delivery::new(signed(&sender, &secret));
    row(sender, secret.into(), delivery)
}

fn token(sender: Sender, header: &'static str) -> Row {
    let secret = Secret::new(SECRET).expect("it is not empty");
    let sender = timed(sender);
    let delivery = Delivery::with_token(signed(&sender, &secret), header, SECRET);
    row(sender, secret.into(), delivery)
}

fn standard_webhooks_v1a() -> Row {
    let (row, request) = asymmetric(Sender::standard_webhooks_v1a(), ED25519);
    let text = |name| text(&request, name);
    let tag = base64(text("webhook-signature").trim_start_matches("v1a,"));
    let before = format!("{}.{}.", text("webhook-id"), text("webhook-timestamp"));
    let key = base64(ED25519[1].trim_start_matches("whpk_"));
    row.beside(BARE_ED25519, peers::ed25519(&key, before.into(), &tag))
}

fn discord() -> Row {
    let (row, request) = asymmetric(Sender::discord(), ED25519);
    let tag = hex::decode(text(&request, "x-signature-ed25519")).expect("hex");
    let before = text(&request, "x-signature-timestamp");
    let key = base64(ED25519[1].trim_start_matches("whpk_"));
    row.beside(BARE_ED25519, peers::ed25519(&key, before.into(), &tag))
        .beside(
            WEBHOOK_VERIFY,
            peers::provider(Provider::Discord, &hex::encode(&key)),
        )
}

fn sendgrid() -> Row {
    let (row, request) = asymmetric(Sender::sendgrid(), P256);
    let text = |name| text(&request, name);
    let tag = base64(&text("x-twilio-email-event-webhook-signature"));
    let before = text("x-twilio-email-event-webhook-timestamp");
    let key = base64(P256[1]);
    row.beside(BARE_P256, peers::p256(&key, before.into(), &tag))
        .beside(WEBHOOK_VERIFY, peers::with_key(Provider::SendGrid, key))
}

/// With RSA-2048.
fn wise() -> Row {
    let file: Value = serde_json::from_str(include_str!("../../tests/fixtures/rsa.json"))
        .expect("a file of JSON");
    let [private, public] = ["private", "secret"].map(|it| file[it].as_str().expect("a text"));
    let wise = Sender::named("wise", None).expect("a profile");
    let (row, request) = asymmetric(wise, [private, public]);
    let tag = base64(&text(&request, "x-signature-sha256"));
    // What is around the key in `SubjectPublicKeyInfo` is constant.
    row.beside(BARE_RSA, peers::rsa(base64(public)[24..].to_vec(), tag))
}

fn asymmetric(sender: Sender, [private, public]: [&str; 2]) -> (Row, Request<Bytes>) {
    let private = Secret::new(private).expect("it is not empty");
    let public = PublicKey::new(public).expect("a public key");
    let sender = timed(sender);
    let request = signed(&sender, &private);
    let row = row(sender, public.into(), Delivery::new(request.clone()));
    (row, request)
}

fn text(request: &Request<Bytes>, name: &str) -> String {
    let text = request.headers()[name].to_str();
    text.expect("ASCII").to_owned()
}

fn base64(text: &str) -> Vec<u8> {
    BASE64_STANDARD.decode(text).expect("base64")
}

/// Reads the system's clock as without this, but does not move on: some deliveries are valid for seconds.
fn timed(sender: Sender) -> Sender {
    let start = SystemTime::now();
    sender.with_clock(move || {
        black_box(SystemTime::now());
        start
    })
}

/// A delivery as it arrives, with the fields of all senders in its body.
fn signed(sender: &Sender, secret: &Secret) -> Request<Bytes> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or_default().as_millis() as u64;
    let event = match sender.name() {
        "zoom" => json!("meeting.started"),
        _ => json!({"type": "message"}),
    };
    let mut body = json!({
        "id": "0f9a7c3e", "event_id": "0f9a7c3e", "update_id": 7,
        "type": "invoice.paid", "event": event, "event_type": "invoice.paid", "object_kind": "invoice",
        "object": "page", "trigger": "PAID", "triggerType": "paid", "webhookEvent": "paid",
        "subscription": {"type": "stream.online"}, "webhookTimestamp": now, "z": "",
    });
    let length = body.to_string().len();
    body["z"] = Value::from("x".repeat(BODY - length));
    let body = Bytes::from(body.to_string());

    let kind = EventKind::from_static("invoice.paid");
    let key = IdempotencyKey::new(HeaderValue::from_static(
        "0f9a7c3e-5b1d-4c6f-9a52-6a0c1e7d2b44",
    ));
    let delivery = RawDelivery::new(kind, body.clone())
        .with_key(key)
        .with_headers(usual());
    let headers = sender
        .sign(secret, &delivery)
        .expect("a secret of the sender");
    let mut request = Request::post("/webhooks").body(body).expect("a path");
    *request.headers_mut() = headers;
    request
}

fn usual() -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("host", "example.com"),
        ("user-agent", "Webhooks/1.0 (+https://example.com/webhooks)"),
        ("accept", "*/*"),
        ("content-length", "600"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers
}

fn row(sender: Sender, secrets: Secrets, delivery: Delivery) -> Row {
    let name = sender.name().to_owned();
    let profile = Sender::profile(&name).map(serde_json::from_str::<Value>);
    let algorithm = match profile {
        Some(Ok(profile)) => profile["signature"]["algorithm"]
            .as_str()
            .map(str::to_owned),
        _ => None,
    };
    let layer = layer(sender.clone(), secrets.clone());
    let verdict =
        peers::function(move |headers, body| sender.verify(&secrets, headers, body).is_ok());
    let algorithm = algorithm.unwrap_or_else(|| "hmac-sha256".to_owned());
    Row::new(&name, algorithm, delivery, [verdict, layer])
}

/// It also receives the body within limits, reads event type and key, and answers.
fn layer(sender: Sender, secrets: Secrets) -> Verify {
    let nothing = service_fn(async |verified: Request<Verified>| {
        black_box(verified);
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    });
    let layers = Webhooks::new(secrets)
        .sender(sender)
        .store(MokaStore::new())
        .into_layers();
    let (signature, _) = layers.expect("a secret of the sender");
    let service = signature.layer(nothing);
    peers::awaited(move |request| {
        let service = service.clone();
        async move {
            let Ok(response) = service.oneshot(request.map(Full::<Bytes>::new)).await;
            response.status().is_success()
        }
    })
}
