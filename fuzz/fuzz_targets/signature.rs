//! Compares the verification of signatures with RFC 2104 and hex digits that are parsed by hand.
#![no_main]

use std::convert::Infallible;

use arbitrary::Arbitrary;
use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use libfuzzer_sys::{Corpus, fuzz_target};
use oracle::{hmac, parse_signature, to_hex};
use tower::{Layer, ServiceExt, service_fn};
use tower_webhook::signature::SignatureError;
use tower_webhook::{Secret, Secrets, SignatureLayer, Verified};

#[derive(Arbitrary, Debug)]
struct Input {
    secrets: Vec<Vec<u8>>,
    body: Vec<u8>,
    headers: Vec<Header>,
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
    if !(1..=3).contains(&input.secrets.len()) || input.secrets.iter().any(Vec::is_empty) {
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
    Corpus::Keep
});

fn through_the_layer(secrets: Secrets, body: &[u8], values: Vec<HeaderValue>) -> StatusCode {
    let inner = service_fn(async |_: Request<Verified>| {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    });
    let mut request = Request::post("/")
        .header("content-type", "application/json")
        .header("x-service-event", "chat-rated")
        .body(Full::new(Bytes::copy_from_slice(body)))
        .expect("the parts of a request");
    for value in values {
        request.headers_mut().append("x-service-hmac-sha256", value);
    }
    let response = SignatureLayer::new(secrets).layer(inner).oneshot(request);
    let Ok(response) = response.now_or_never().expect("the body is there");
    response.status()
}
