//! A POST without a signature that brings the secret, in a header (Asana) or in the body (Notion).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::*;

const BROUGHT: &str = "secret_tMrlL1qK5vuQAh1b6cZGhFChZTSYJlce98V0pYn7yBl";

fn of(name: &str) -> Sender {
    Sender::named(name, None).unwrap()
}

/// What a layer answers whose handler must not be called, and what was brought.
struct Asked {
    kept: Arc<Mutex<Vec<String>>>,
    webhooks: Webhooks,
}

impl Asked {
    /// Keeps the first alone.
    fn new(sender: Sender) -> Self {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let brought = Arc::clone(&kept);
        let webhooks = Webhooks::new(Secret::new("nobody's").unwrap())
            .sender(sender)
            .on_secret(move |secret| {
                let mut kept = brought.lock().unwrap();
                kept.push(secret.to_owned());
                kept.len() == 1
            });
        Self { kept, webhooks }
    }

    async fn asked(&self, request: Request<Full<Bytes>>) -> Answered {
        let layer = self.webhooks.clone().into_signature_layer().unwrap();
        send(&layer.layer(service_fn(unreached)), request).await
    }

    fn kept(&self) -> Vec<String> {
        self.kept.lock().unwrap().clone()
    }
}

async fn unreached(request: Request<Verified>) -> Result<Response<Full<Bytes>>, Infallible> {
    panic!("{:?} reached the handler", request.body().delivery().kind())
}

fn asana(secret: &str) -> Request<Full<Bytes>> {
    post("{}").with("x-hook-secret", secret)
}

fn notion(body: &str) -> Request<Full<Bytes>> {
    post(body.to_owned()).with("content-length", body.len().to_string())
}

fn token(value: &str) -> String {
    format!(r#"{{"verification_token":{value}}}"#)
}

#[tokio::test]
async fn a_secret_in_a_header_is_kept_once_and_echoed() {
    let asked = Asked::new(of("asana"));
    let answered = asked.asked(asana(BROUGHT)).await;
    assert_eq!((answered.status.as_u16(), answered.body.len()), (200, 0));
    assert_eq!(answered.header("x-hook-secret"), Some(BROUGHT));
    // Twice, and another one.
    for secret in [BROUGHT, "another"] {
        let answered = asked.asked(asana(secret)).await;
        answered.assert_problem(403, "invalid-challenge");
        assert_eq!(answered.header("x-hook-secret"), None);
    }
    assert_eq!(asked.kept(), [BROUGHT, BROUGHT, "another"]);
}

#[tokio::test]
async fn a_secret_in_a_body_is_kept_once() {
    let asked = Asked::new(of("notion"));
    let body = token(&format!("\"{BROUGHT}\""));
    let answered = asked.asked(notion(&body)).await;
    assert_eq!((answered.status.as_u16(), answered.body.len()), (200, 0));
    let answered = asked.asked(notion(&body)).await;
    answered.assert_problem(403, "invalid-challenge");
    assert_eq!(asked.kept(), [BROUGHT, BROUGHT]);
}

#[tokio::test]
async fn nobody_asks_for_a_secret_by_default() {
    for (sender, request) in [
        (of("asana"), asana(BROUGHT)),
        (of("asana"), asana("")),
        (of("notion"), notion(&token("\"a\""))),
        (of("notion"), notion(&token("7.5"))),
    ] {
        let answered = receive(Secret::new("s").unwrap(), &sender, request).await;
        answered.assert_problem(403, "invalid-challenge");
    }
    // A sender that brings none has no handshake.
    let refused = Webhooks::new(Secret::new("s").unwrap())
        .sender(Sender::github())
        .on_secret(|_| true)
        .into_signature_layer();
    let Err(ConfigError::Sender { name, reason }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(name, "github");
    assert!(
        reason.starts_with("it brings no secret in a handshake"),
        "{reason}"
    );
    assert!(of("asana").brings_secret() && !Sender::github().brings_secret());
}

#[tokio::test]
async fn what_brings_no_clear_secret_is_refused() {
    let long = "x".repeat(513);
    let asked = Asked::new(of("asana"));
    for secret in ["", " ", "a b", "\u{fc}", &long] {
        let answered = asked.asked(asana(secret)).await;
        answered.assert_problem(403, "invalid-challenge");
    }
    let answered = asked.asked(asana("a").and("x-hook-secret", "a")).await;
    answered.assert_problem(403, "invalid-challenge");
    let mut get = asana("a");
    *get.method_mut() = http::Method::GET;
    asked
        .asked(get)
        .await
        .assert_problem(405, "method-not-allowed");
    // With a signature, it is a delivery.
    let signed = asana("a").with("x-hook-signature", "0".repeat(64));
    asked
        .asked(signed)
        .await
        .assert_problem(401, "invalid-signature");
    let malformed = asana("a").with("x-hook-signature", "");
    asked
        .asked(malformed)
        .await
        .assert_problem(401, "invalid-signature");
    assert_eq!(asked.kept(), [] as [&str; 0]);

    let asked = Asked::new(of("notion"));
    for value in [
        "7",
        "true",
        "{}",
        "[\"a\"]",
        "\"\"",
        "\"a b\"",
        "\"\\u0000\"",
        "\"\\u00fc\"",
        &format!("\"{long}\""),
    ] {
        // A number is a text of digits, for every pointer.
        let status = if value == "7" { 200 } else { 403 };
        assert_eq!(
            asked.asked(notion(&token(value))).await.status,
            status,
            "{value}"
        );
    }
    let asked = Asked::new(of("notion"));
    let padded = format!(
        r#"{{"a":"{}","verification_token":"a"}}"#,
        "x".repeat(4_096)
    );
    for body in [
        "{}",
        "",
        "[]",
        "{",
        "\"verification_token\"",
        r#"{"verification_token":null}"#,
        r#"{"id":"1","type":"page.created"}"#,
        r#"{"verification_token":"a","verification_token":"a"}"#,
        r#"{"a":{"verification_token":"a"}}"#,
        r#"{"verification_token":"a"} {}"#,
        &padded,
    ] {
        let answered = asked.asked(notion(body)).await;
        answered.assert_problem(401, "invalid-signature");
    }
    // Its length is not known before, or it is not that.
    let body = token("\"a\"");
    let unknown = post(body.clone()).with("transfer-encoding", "chunked");
    asked
        .asked(unknown)
        .await
        .assert_problem(401, "invalid-signature");
    let short = post(body.clone()).with("content-length", "5");
    asked
        .asked(short)
        .await
        .assert_problem(400, "malformed-body");
    assert_eq!(asked.kept(), [] as [&str; 0]);
}

#[tokio::test]
async fn what_keeps_a_secret_may_panic() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let layer = Webhooks::new(Secret::new("s").unwrap())
        .sender(of("asana"))
        .on_secret(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            panic!("no disk")
        })
        .into_signature_layer()
        .unwrap();
    for _ in 0..2 {
        let answered = send(&layer.layer(service_fn(unreached)), asana("a")).await;
        answered.assert_problem(403, "invalid-challenge");
    }
    assert_eq!(calls.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn a_secret_that_was_brought_verifies_the_next_delivery() {
    let secrets = Secrets::from(Secret::new("nobody's").unwrap());
    let known = secrets.clone();
    let layer = Webhooks::new(secrets)
        .sender(of("asana"))
        .on_secret(move |secret| known.replace([Secret::new(secret).unwrap()]).is_ok())
        .into_signature_layer()
        .unwrap();
    let service = layer.layer(service_fn(event));
    // An empty delivery follows at once.
    let body = r#"{"events":[]}"#;
    let request = || signed(&of("asana"), &Secret::new(BROUGHT).unwrap(), body);
    send(&service, request())
        .await
        .assert_problem(401, "invalid-signature");
    assert_eq!(send(&service, asana(BROUGHT)).await.status, 200);
    assert_eq!(send(&service, request()).await.status, 200);
}

#[tokio::test]
async fn a_secret_is_in_no_log() {
    let log = Log::capture(Level::TRACE);
    let asked = Asked::new(of("asana"));
    for _ in 0..2 {
        asked.asked(asana(BROUGHT)).await;
    }
    let asked = Asked::new(of("notion"));
    for _ in 0..2 {
        asked.asked(notion(&token(&format!("\"{BROUGHT}\"")))).await;
    }
    let lines = format!("{:?}", log.events());
    assert!(!lines.contains(BROUGHT), "{lines}");
    assert!(
        lines.contains("a handshake brought a secret that was not kept"),
        "{lines}"
    );
}

#[test]
fn a_handshake_that_is_wrong_names_the_field() {
    for (changes, reason) in [
        (
            json!({"handshake": "a b"}),
            "handshake: \"a b\" cannot be the name of a header",
        ),
        (
            json!({"handshake": "/a~"}),
            "handshake: \"/a~\" has a `~` in a name",
        ),
        (
            json!({"handshake": ""}),
            "handshake: \"\" cannot be the name of a header",
        ),
        (
            json!({"handshake": "/a", "signature": {"headers": ["x-tag"], "algorithm": "token"}}),
            "handshake: it brings a secret that signs",
        ),
    ] {
        let error = described(changes).unwrap_err();
        assert!(error.contains(reason), "{error}");
    }
}
