//! Reads descriptions of senders, and sends what they may receive: nothing panics, what a sender signs is verified, and no
//! byte of it may change.
#![no_main]

use std::convert::Infallible;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use arbitrary::Arbitrary;
use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use libfuzzer_sys::{Corpus, fuzz_target};
use serde_json::{Map, Value, json};
use tower::{Layer, ServiceExt, service_fn};
use tower_webhook::memory::MokaStore;
use tower_webhook::{
    EventKind, IdempotencyKey, RawDelivery, Secret, Secrets, Sender, Verified, Webhooks,
};

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
    Handshake(String),
    Batch {
        path: String,
        key: Option<String>,
        kind: Option<String>,
        order: Option<String>,
    },
    Families(Vec<String>),
    Url(String),
    EqualBodies,
    MaxBody(u32),
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
            Field::Handshake(at) => all["handshake"] = at.as_str().into(),
            Field::Batch {
                path,
                key,
                kind,
                order,
            } => {
                let mut batch = json!({"path": path});
                let places = [("key", key), ("kind", kind), ("order", order)];
                for (name, at) in places {
                    if let Some(at) = at {
                        batch[name] = at.as_str().into();
                    }
                }
                all["batch"] = batch;
            }
            Field::Families(names) => all["families"] = json!(names),
            Field::Url(url) => all["url"] = url.as_str().into(),
            Field::EqualBodies => all["equal-bodies"] = true.into(),
            Field::MaxBody(bytes) => all["max-body"] = (*bytes).into(),
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
        let now = || SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000);
        let sender = sender.ok()?.with_clock(now);
        let with_token = sender.clone().with_challenge_token("a token");
        Some(with_token.unwrap_or(sender))
    }
}

/// What signs, and what verifies: secrets, and keys of Ed25519, P-256 and RSA.
static KEYS: LazyLock<Vec<[String; 2]>> = LazyLock::new(|| {
    let pair = |file: &str| {
        let file: Value = serde_json::from_str(file).expect("JSON");
        ["private", "secret"].map(|it| file[it].as_str().expect("a key").to_owned())
    };
    vec![
        ["whsec_c2VjcmV0"; 2].map(str::to_owned),
        ["5ec2e75ec2e7"; 2].map(str::to_owned),
        [
            "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==",
            "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=",
        ]
        .map(str::to_owned),
        pair(include_str!("../../tests/fixtures/senders/sendgrid.json")),
        pair(include_str!("../../tests/fixtures/rsa.json")),
    ]
});

fuzz_target!(|input: Input| -> Corpus {
    let Some(sender) = input.described.sender() else {
        return Corpus::Keep;
    };
    let read = |text: &str| Secret::new(text).expect("it is not empty");
    let suited = KEYS.iter().find_map(|[signs, verifies]| {
        let layers = Webhooks::new(read(verifies))
            .sender(sender.clone())
            .store(MokaStore::new())
            .into_layers();
        Some((signs, verifies, layers.ok()?.0))
    });
    // It may be wrong in other ways.
    let Some((signs, verifies, layer)) = suited else {
        return Corpus::Keep;
    };
    let secrets = || Secrets::from(read(verifies));
    let key = IdempotencyKey::new(HeaderValue::from_static("key"));
    let delivery = RawDelivery::new(EventKind::from_static("a"), input.body.clone()).with_key(key);
    let signed = sender.sign(&read(signs), &delivery);
    let in_query = match sender.token_query(signs) {
        None => sender.sign_query(&read(signs), &delivery).ok().flatten(),
        token => token,
    };
    let query = match in_query.filter(|_| input.is_signed) {
        Some(it) => format!("{}&{it}", input.query),
        None => input.query.clone(),
    };
    let method = pick(&METHODS, input.method);
    let Ok(mut request) = Request::builder()
        .method(Method::from_bytes(method.as_bytes()).expect("a method"))
        .uri(format!("/?{}", query))
        .body(Full::<Bytes>::from(input.body.clone()))
    else {
        return Corpus::Reject;
    };
    let is_signed = input.is_signed && signed.is_ok();
    if let (true, Ok(signed)) = (is_signed, signed) {
        if sender.verify(&secrets(), &signed, &input.body).is_ok() && !input.body.is_empty() {
            let mut changed = input.body.clone();
            let at = usize::from(input.at) % changed.len();
            changed[at] ^= 1;
            let verified = sender.verify(&secrets(), &signed, &changed);
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
    let explained = sender.explain(
        &secrets(),
        &request.clone().map(|_| input.body.clone().into()),
    );
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
    // The explanation knows no limit on the size.
    let is_long = response.status() == StatusCode::PAYLOAD_TOO_LARGE;
    assert!(
        is_long || explained.is_accepted() == response.status().is_success(),
        "{}: {explained:?}",
        response.status()
    );
    Corpus::Keep
});
