//! Reads descriptions of senders, and sends what they may receive: nothing panics, what a sender signs is verified, and no
//! byte of it may change.
#![no_main]

use std::convert::Infallible;

use arbitrary::Arbitrary;
use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use libfuzzer_sys::{Corpus, fuzz_target};
use serde_json::{Map, Value, json};
use tower::{Layer, ServiceExt, service_fn};
use tower_webhook::memory::MokaStore;
use tower_webhook::{EventKind, IdempotencyKey, RawDelivery, Secret, Sender, Verified, Webhooks};

#[derive(Arbitrary, Debug)]
struct Input {
    described: Described,
    body: Vec<u8>,
    query: String,
    headers: Vec<(String, Vec<u8>)>,
    method: u8,
    is_signed: bool,
    at: u16,
}

#[derive(Arbitrary, Debug)]
enum Described {
    /// One that is known, or a part of it changed.
    Known {
        profile: u8,
        from: u16,
        to: Vec<u8>,
    },
    Fields(Vec<Field>),
    Text(String),
}

/// A field of a description, or of its signature.
#[derive(Arbitrary, Debug)]
enum Field {
    Header(String),
    Content(String),
    Prefix(String),
    Split(char),
    Lists(char),
    Lenient,
    Algorithm(u8),
    Coding(u8),
    Secret(u8),
    Timestamp {
        at: String,
        unit: u8,
        past: u32,
        ahead: u32,
    },
    Require(String, String),
    Key(Vec<String>),
    Kind(Vec<String>, Option<String>),
    Order(String),
    Form,
    Challenge {
        when: String,
        method: u8,
        pointer: String,
        answer: u8,
        is_signed: bool,
    },
    Success(u16, Option<String>),
    RepeatsFor(u32),
}

const METHODS: [&str; 5] = ["GET", "HEAD", "OPTIONS", "POST", "PUT"];

fn pick<'a>(list: &[&'a str], number: u8) -> &'a str {
    list[usize::from(number) % list.len()]
}

fn described(fields: &[Field]) -> Value {
    let mut signature = json!({"headers": [], "algorithm": "hmac-sha256", "coding": "hex"});
    let mut all = json!({"name": "acme", "challenge": []});
    for field in fields.iter().take(30) {
        match field {
            Field::Header(name) => signature["headers"]
                .as_array_mut()
                .unwrap()
                .push(name.as_str().into()),
            Field::Content(text) => signature["content"] = text.as_str().into(),
            Field::Prefix(text) => signature["prefix"] = text.as_str().into(),
            Field::Split(it) => signature["split"] = it.to_string().into(),
            Field::Lists(it) => signature["lists"] = it.to_string().into(),
            Field::Lenient => signature["lenient"] = true.into(),
            Field::Algorithm(it) => {
                let list = [
                    "hmac-sha256",
                    "hmac-sha1",
                    "hmac-sha512",
                    "token",
                    "ed25519",
                    "ecdsa-p256",
                    "rsa-sha256",
                    "rsa-sha512",
                    "rsa-pss-sha512",
                ];
                signature["algorithm"] = pick(&list, *it).into();
            }
            Field::Coding(it) => {
                let list = ["hex", "hex-any-case", "base64", "base64url"];
                signature["coding"] = pick(&list, *it).into();
            }
            Field::Secret(it) => {
                let list = ["text", "base64", "hex", "text-or-base64"];
                signature["secret"] = pick(&list, *it).into();
            }
            Field::Timestamp {
                at,
                unit,
                past,
                ahead,
            } => {
                let unit = pick(&["seconds", "milliseconds", "rfc3339", "iso8601"], *unit);
                signature["timestamp"] =
                    json!({"at": at, "unit": unit, "past": past, "ahead": ahead});
            }
            Field::Require(name, value) => {
                signature["require"] = Map::from_iter([(name.clone(), value.clone().into())]).into()
            }
            Field::Key(parts) => match &parts[..] {
                [one] => all["key"] = one.as_str().into(),
                parts => all["key"] = json!({"join": parts}),
            },
            Field::Kind(parts, default) => match (&parts[..], default) {
                ([one], None) => all["kind"] = one.as_str().into(),
                ([one], default) => all["kind"] = json!({"at": one, "default": default}),
                (parts, default) => {
                    all["kind"] = json!({"join": parts, "with": ".", "default": default})
                }
            },
            Field::Order(at) => all["order"] = at.as_str().into(),
            Field::Form => {
                all["content-types"] =
                    json!(["application/x-www-form-urlencoded", "application/*+json"])
            }
            Field::Challenge {
                when,
                method,
                pointer,
                answer,
                is_signed,
            } => {
                let answer = match answer % 5 {
                    0 => json!({"raw": pointer}),
                    1 => json!({"json": {"pointer": pointer, "field": "a"}}),
                    2 => json!({"header": {"pointer": pointer, "name": "x-answer"}}),
                    3 => json!({"hmac": {"pointer": pointer, "tag": "a", "coding": "base64"}}),
                    _ => json!({"constant": {"status": 200}}),
                };
                let mut challenge = json!({"when": {}, "answer": answer});
                challenge["when"][when] = true.into();
                if !is_signed {
                    challenge["proof"] = "none".into();
                    challenge["method"] = pick(&METHODS[..4], *method).into();
                }
                all["challenge"].as_array_mut().unwrap().push(challenge);
            }
            Field::Success(status, body) => {
                all["success"] = json!({"status": status, "body": body})
            }
            Field::RepeatsFor(seconds) => all["policy"] = json!({"repeats-for": seconds}),
        }
    }
    all["signature"] = signature;
    all
}

impl Described {
    fn sender(&self) -> Option<Sender> {
        let sender = match self {
            Self::Known { profile, from, to } => {
                let name = pick(Sender::PROFILES, *profile);
                let mut text = Sender::profile(name)
                    .expect("a profile")
                    .as_bytes()
                    .to_vec();
                let from = usize::from(*from) % text.len();
                let end = text.len().min(from + to.len());
                text[from..end].copy_from_slice(&to[..end - from]);
                Sender::from_json(std::str::from_utf8(&text).ok()?)
            }
            Self::Fields(fields) => Sender::from_json(&described(fields).to_string()),
            Self::Text(text) => Sender::from_json(text),
        };
        let sender = sender.ok()?;
        let with_token = sender.clone().with_challenge_token("a token");
        Some(with_token.unwrap_or(sender))
    }
}

fuzz_target!(|input: Input| -> Corpus {
    let Some(sender) = input.described.sender() else {
        return Corpus::Keep;
    };
    let secret = || Secret::new("whsec_c2VjcmV0").expect("it is not empty");
    let layers = Webhooks::new(secret())
        .sender(sender.clone())
        .store(MokaStore::new())
        .into_layers();
    // It may have a public key, or secrets in another form.
    let Ok((layer, _)) = layers else {
        return Corpus::Keep;
    };
    let method = pick(&METHODS, input.method);
    let Ok(mut request) = Request::builder()
        .method(Method::from_bytes(method.as_bytes()).expect("a method"))
        .uri(format!("/?{}", input.query))
        .body(Full::<Bytes>::from(input.body.clone()))
    else {
        return Corpus::Reject;
    };
    let key = IdempotencyKey::new(HeaderValue::from_static("key"));
    let delivery = RawDelivery::new(EventKind::from_static("a"), input.body.clone()).with_key(key);
    let signed = sender.sign(&secret(), &delivery);
    let is_signed = input.is_signed && signed.is_ok();
    if let (true, Ok(signed)) = (is_signed, signed) {
        if sender
            .verify(&secret().into(), &signed, &input.body)
            .is_ok()
            && !input.body.is_empty()
        {
            let mut changed = input.body.clone();
            let at = usize::from(input.at) % changed.len();
            changed[at] ^= 1;
            let verified = sender.verify(&secret().into(), &signed, &changed);
            // A token proves who sent the body, and not what is in it.
            let has_no_tag = signed.iter().all(|(_, value)| value.len() < 27);
            assert!(
                verified.is_err() || has_no_tag,
                "a changed byte is accepted"
            );
        }
        *request.headers_mut() = signed;
    }
    for (name, value) in input.headers.iter().take(20) {
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_bytes(value))
        {
            request.headers_mut().append(name, value);
        }
    }
    let inner = service_fn(async |_: Request<Verified>| {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    });
    let response = layer
        .layer(inner)
        .oneshot(request)
        .now_or_never()
        .expect("the body is there");
    let Ok(response) = response;
    assert_ne!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    Corpus::Keep
});
