//! Other crates, and bare verification with a public key.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::extract::FromRequest;
use axum_github_webhook_extract::{GithubEvent, GithubToken};
use bytes::Bytes;
use ed25519_dalek::{Signature, Verifier, VerifyingKey};
use http::{HeaderMap, Request};
use p256::pkcs8::DecodePublicKey;
use ring::signature::{RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::runtime::{Builder, Runtime};
use webhook_verify::{
    CustomScheme, Encoding, HashAlg, Provider, Secret, VerifyOptions, VerifyingKeyMaterial, verify,
};

use super::measure::Verify;

/// A function of headers and bytes.
pub(crate) fn function(accepts: impl Fn(&HeaderMap, &Bytes) -> bool + 'static) -> Verify {
    Box::new(move |requests| {
        let accepted = requests
            .iter()
            .filter(|request| black_box(accepts(request.headers(), request.body())));
        accepted.count()
    })
}

/// A function of requests that is awaited.
pub(crate) fn awaited<F: Future<Output = bool>>(
    accepts: impl Fn(Request<Bytes>) -> F + 'static,
) -> Verify {
    let runtime = runtime();
    Box::new(move |requests| {
        runtime.block_on(async {
            let mut accepted = 0;
            for request in requests {
                accepted += usize::from(accepts(request).await);
            }
            accepted
        })
    })
}

fn runtime() -> Runtime {
    let runtime = Builder::new_current_thread().enable_time().build();
    runtime.expect("a runtime without I/O")
}

pub(crate) fn standardwebhooks(secret: &str) -> Verify {
    let webhook = standardwebhooks::Webhook::new(secret).expect("a secret in base64");
    function(move |headers, body| webhook.verify(body, headers).is_ok())
}

pub(crate) fn axum_github(secret: &str) -> Verify {
    let token = GithubToken(Arc::new(secret.to_owned()));
    awaited(move |request| {
        let token = token.clone();
        async move {
            let request = request.map(Body::from);
            GithubEvent::<IgnoredAny>::from_request(request, &token)
                .await
                .is_ok()
        }
    })
}

/// Of `webhook-verify`.
pub(crate) fn provider(provider: Provider, secret: &str) -> Verify {
    with_options(provider, secret, VerifyOptions::default())
}

/// Of `webhook-verify`, with the timestamp in the body, which it does not check.
pub(crate) fn linear(secret: &str) -> Verify {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Timed {
        webhook_timestamp: u64,
    }
    let secret = Secret::new(secret);
    function(move |headers, body| {
        let options = VerifyOptions::default();
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default().as_millis() as u64;
        verify(Provider::Linear, headers, body, &secret, options).is_ok()
            && serde_json::from_slice::<Timed>(body)
                .is_ok_and(|it| it.webhook_timestamp.abs_diff(now) <= 60_000)
    })
}

/// Of `webhook-verify`, with Box's timestamp and its constant headers, which it does not check.
pub(crate) fn box_com(secret: &str) -> Verify {
    let scheme = custom_scheme(
        "box-signature-primary",
        None,
        Encoding::Base64,
        |head, body| {
            let time = head.get("box-delivery-timestamp").unwrap_or_default();
            [body, time.as_bytes()].concat()
        },
    );
    let secret = Secret::new(secret);
    function(move |headers, body| {
        let is = |name, value| headers.get(name).is_some_and(|it| it == value);
        let time = headers.get("box-delivery-timestamp");
        let time = time.and_then(|time| humantime::parse_rfc3339(time.to_str().ok()?).ok());
        let age = time.and_then(|time| SystemTime::now().duration_since(time).ok());
        is("box-signature-version", "1")
            && is("box-signature-algorithm", "HmacSHA256")
            && age.is_some_and(|age| age.as_secs() <= 600)
            && verify(scheme, headers, body, &secret, VerifyOptions::default()).is_ok()
    })
}

/// Of `webhook-verify`, for a sender that signs its URL.
pub(crate) fn with_url(listed: Provider, secret: &str, url: &str) -> Verify {
    with_options(
        listed,
        secret,
        VerifyOptions::default().with_request_url(url),
    )
}

/// Of `webhook-verify`, with a public key of P-256.
pub(crate) fn with_key(listed: Provider, key: Vec<u8>) -> Verify {
    let key = VerifyingKeyMaterial::EcdsaP256PublicKey(key);
    let options = VerifyOptions::default().with_verifying_material(key);
    with_options(listed, "", options)
}

fn with_options(provider: Provider, secret: &str, options: VerifyOptions) -> Verify {
    let secret = Secret::new(secret);
    function(move |headers, body| verify(provider, headers, body, &secret, options.clone()).is_ok())
}

/// Of `webhook-verify`, for a sender that it does not list. It has no timestamps in other units than seconds.
pub(crate) fn custom(
    secret: &str,
    signature_header: &'static str,
    prefix: Option<&'static str>,
    encoding: Encoding,
    signed_string: SignedString,
) -> Verify {
    let scheme = custom_scheme(signature_header, prefix, encoding, signed_string);
    provider(scheme, secret)
}

type SignedString = fn(&dyn webhook_verify::HeaderMap, &[u8]) -> Vec<u8>;

fn custom_scheme(
    signature_header: &'static str,
    prefix: Option<&'static str>,
    encoding: Encoding,
    signed_string: SignedString,
) -> Provider {
    Provider::Custom(CustomScheme {
        hash: HashAlg::Sha256,
        signature_header,
        timestamp_header: None,
        encoding,
        prefix,
        signed_string,
    })
}

/// Verifies a decoded signature of what stands before the body, and the body.
pub(crate) fn ed25519(key: &[u8], before: Vec<u8>, tag: &[u8]) -> Verify {
    let key = <&[u8; 32]>::try_from(key).ok();
    let key = key.and_then(|key| VerifyingKey::from_bytes(key).ok());
    let key = key.expect("a public key of Ed25519");
    let tag = Signature::from_slice(tag).expect("a signature of Ed25519");
    function(move |_, body| key.verify(&[&before, &body[..]].concat(), &tag).is_ok())
}

/// As [`ed25519`], with a key of PKCS#1.
pub(crate) fn rsa(key: Vec<u8>, tag: Vec<u8>) -> Verify {
    let key = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, key);
    function(move |_, body| key.verify(body, &tag).is_ok())
}

/// As [`ed25519`].
pub(crate) fn p256(key: &[u8], before: Vec<u8>, tag: &[u8]) -> Verify {
    let key = p256::ecdsa::VerifyingKey::from_public_key_der(key).expect("a public key of P-256");
    let tag = p256::ecdsa::Signature::from_der(tag).expect("a signature of P-256");
    function(move |_, body| key.verify(&[&before, &body[..]].concat(), &tag).is_ok())
}
