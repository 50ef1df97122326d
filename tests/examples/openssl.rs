//! Signatures as `openssl` computes them.

use std::io::Write;
use std::process::{Command, Stdio};

use tower_webhook::event::{ChatRated, EventKind, sample};
use tower_webhook::{EventRouter, Secret, Webhooks};

use support::Ready;
use support::delivery::{Answered, BODY, Crm, RequestExt, SIGNATURE, delivery, send};
use support::program::installed;

/// Delivers a body with a given signature.
async fn deliver(secret: &Secret, body: &[u8], tag: &str) -> Answered {
    let router = EventRouter::new().on::<ChatRated>(Crm::default());
    let service = Webhooks::new(secret.clone()).layer(router);
    send(&service, delivery(body.to_vec()).with(SIGNATURE, tag)).await
}

/// What `openssl` signs with a secret.
fn openssl(secret: &str, body: &[u8]) -> String {
    let openssl = Command::new("openssl")
        .args(["dgst", "-sha256", "-hmac", secret])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut openssl = installed(openssl, "openssl", "openssl");
    openssl.stdin.take().unwrap().write_all(body).unwrap();
    let output = openssl.wait_with_output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().last().unwrap().to_owned()
}

#[tokio::test]
async fn signatures_of_openssl_verify() {
    let long = format!(r#"{{"question":"{}"}}"#, "🙂".repeat(100_000));
    let samples = EventKind::ALL.map(|kind| sample(&kind).unwrap());
    let decodable = [
        "{}",
        BODY,
        "{\"question\":\"Where is my parcel? 📦🧑🏽‍🚀\"}",
        "\r\n { \"id\" : \"\\u0000\" } \r\n",
        &long,
    ];
    for secret in [
        "s",
        "0f0e0d0c0b0a09080706050403020100fffefdfc",
        "gehëim 🔑",
        " spaces ",
    ] {
        let this = Secret::new(secret).unwrap();
        for body in decodable.iter().chain(&samples) {
            let tag = openssl(secret, body.as_bytes());
            deliver(&this, body.as_bytes(), &tag).await.assert_ok();
        }
        for undecodable in [
            &b""[..],
            b"\xef\xbb\xbf{}",
            b"{\"id\":\"\xff\"}",
            b"\0",
            b"[]",
        ] {
            let tag = openssl(secret, undecodable);
            deliver(&this, undecodable, &tag)
                .await
                .assert_problem(422, "undecodable");
        }
        let tag = openssl(&format!("{secret}x"), BODY.as_bytes());
        deliver(&this, BODY.as_bytes(), &tag)
            .await
            .assert_problem(401, "invalid-signature");
    }
}
