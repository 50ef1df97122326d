//! Requests that are verified by code: of Twilio and Mailgun, and of an application.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{FutureExt, stream};
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response};
use http_body::Frame;
use http_body_util::{Full, StreamBody};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};
use tower::{Layer, ServiceExt, service_fn};
use tower_webhook::inbox::{Filter, Inbox, Page};
use tower_webhook::memory::MemoryQueue;
use tower_webhook::signature::{
    Mailgun, Proof, Refusal, Reply, SignatureError, Twilio, Verdict, Verifier, VerifierError,
};
use tower_webhook::{
    ConfigError, Decision, EventKind, EventRouter, IdempotencyKey, RawDelivery, Secret, Secrets,
    Sender, SenderPolicy, Verified, Webhooks,
};
use tracing::Level;

use support::delivery::{Answered, RequestExt, send};
use support::log::Log;
use support::{SECOND, chain};

const URL: &str = "https://mycompany.com/myapp.php?foo=1&bar=2";
/// Published with Twilio's libraries: the token, the form, its signature; the JSON, its digest, its signature.
const AUTH_TOKEN: &str = "12345";
const FORM: &str = "To=%2B18005551212&Digits=1234&CallSid=CA1234567890ABCDE&From=%2B14158675309&Caller=%2B14158675309";
const SIGNED: &str = "RSOYDt4T1cUTdK1PDd93/VVr8B8=";
const JSON: &str = r#"{"property": "value", "boolean": true}"#;
const DIGEST: &str = "0a1ff7634d9ab3b95db5c9a2dfe9416e41502b283a80c7cf19632632f96e6620";
const SIGNED_JSON: &str = "a9nBmqA0ju/hNViExpshrM61xv4=";
/// By another implementation of HMAC-SHA256, of what is signed otherwise by HMAC-SHA1.
const SIGNED_256: &str = "033hgUJA9M/hXIZsYjwkerEP/DBm35nEri5FhCYjA5s=";
const SIGNED_JSON_256: &str = "+UOCWf84gdgo/5Hpg4m5/EgKnJA2/TbOw5sPNVr3bPk=";

const TAG: &str = "x-twilio-signature";
const TOKEN: &str = "i-twilio-idempotency-token";

fn twilio(url: &str) -> Twilio {
    Twilio::new(url, Secret::new(AUTH_TOKEN).unwrap()).unwrap()
}

fn form(body: impl Into<Bytes>, tag: &str) -> Request<Full<Bytes>> {
    Request::post("/myapp.php?foo=1&bar=2")
        .header(
            "content-type",
            "application/x-www-form-urlencoded; charset=UTF-8",
        )
        .header(TAG, tag)
        .body(Full::new(body.into()))
        .unwrap()
}

fn json_at(query: &str, body: &'static str, tag: &str) -> Request<Full<Bytes>> {
    Request::post(format!("/myapp.php?{query}"))
        .header("content-type", "application/json")
        .header(TAG, tag)
        .body(Full::from(body))
        .unwrap()
}

/// What reaches a handler: type, key and body.
async fn event(request: Request<Verified>) -> Result<Response<Full<Bytes>>, Infallible> {
    let delivery = request.body().delivery();
    let key = delivery.key().map(ToString::to_string);
    let body = str::from_utf8(delivery.body()).unwrap();
    let event = json!([delivery.kind().as_str(), key, body]).to_string();
    Ok(Response::new(Full::from(event)))
}

async fn receive<B>(verifier: impl Verifier, request: Request<B>) -> Answered
where
    B: http_body::Body<Data = Bytes, Error = Infallible>,
{
    let webhooks = Webhooks::verified_by(verifier).unwrap();
    let layer = webhooks.into_signature_layer().unwrap();
    send(&layer.layer(service_fn(event)), request).await
}

#[track_caller]
fn received(answered: &Answered) -> [Value; 3] {
    assert_eq!(answered.status, 200, "{answered:?}");
    serde_json::from_slice(&answered.body).unwrap()
}

#[tokio::test]
async fn forms_of_twilio_are_those_that_its_library_signs() {
    for (verifier, tag) in [(twilio(URL), SIGNED), (twilio(URL).sha256(), SIGNED_256)] {
        let request = form(FORM, tag).with(TOKEN, "token-1");
        let [kind, key, body] = received(&receive(verifier, request).await);
        assert_eq!((kind, key), ("twilio".into(), "token-1".into()));
        let body: Value = serde_json::from_str(body.as_str().unwrap()).unwrap();
        let fields = json!({
            "CallSid": "CA1234567890ABCDE", "Caller": "+14158675309", "Digits": "1234",
            "From": "+14158675309", "To": "+18005551212",
        });
        assert_eq!(body, fields);
    }
    // Its order is not signed, and values that are repeated count once.
    let url = "https://example.com/t";
    for body in [
        "MediaUrl=b&MediaUrl=a&MediaUrl=b&Body=%C3%BC+%26+%3D%2B",
        "&Body=%c3%bc%20%26%20=%2b&MediaUrl=a&&MediaUrl=b&",
    ] {
        let verifier = twilio(url).typed_by("Body");
        let [kind, key, body] =
            received(&receive(verifier, form(body, "W9uK/EsPxlon2hNCzX8wHJ34ecc=")).await);
        let expected = json!({ "Body": "ü & =+", "MediaUrl": ["a", "b"] }).to_string();
        // The field has no text that can be a type.
        assert_eq!(
            [kind, key, body],
            ["twilio".into(), Value::Null, expected.into()]
        );
    }
    // With a port and without one, whichever is configured.
    for (tag, urls) in [
        (
            "TCIyNt4626hQ0s+wgG2cBcb7fKw=",
            ["https://example.com/t", "https://example.com:8443/t#rc=2"],
        ),
        (
            "pzcU1liKn8jzTmITAGHDZyo992w=",
            ["https://example.com/t", "https://example.com:443/t"],
        ),
    ] {
        for url in urls {
            let typed = twilio(url).typed_by("a");
            let [kind, ..] = received(&receive(typed, form("a=1", tag)).await);
            assert_eq!(kind, "1", "{url}");
        }
    }
}

#[tokio::test]
async fn json_of_twilio_is_signed_by_its_digest_in_the_url() {
    let query = format!("foo=1&bar=2&bodySHA256={DIGEST}");
    for (verifier, tag) in [
        (twilio(URL), SIGNED_JSON),
        (twilio(URL).sha256(), SIGNED_JSON_256),
    ] {
        let answered = receive(verifier, json_at(&query, JSON, tag)).await;
        assert_eq!(
            received(&answered),
            ["twilio".into(), Value::Null, JSON.into()]
        );
    }
    let typed = twilio(URL).typed_by("property");
    let [kind, ..] = received(&receive(typed, json_at(&query, JSON, SIGNED_JSON)).await);
    assert_eq!(kind, "value");
    for (query, body) in [
        (query.clone(), r#"{"property": "other", "boolean": true}"#),
        ("foo=1&bar=2".to_owned(), JSON),
        (format!("{query}&bodySHA256={DIGEST}"), JSON),
        (format!("bar=2&foo=1&bodySHA256={DIGEST}"), JSON),
        (format!("foo=1&bar=2&bodysha256={DIGEST}"), JSON),
        ("foo=1&bar=2&bodySHA256=".to_owned(), JSON),
        (String::new(), JSON),
    ] {
        let answered = receive(twilio(URL), json_at(&query, body, SIGNED_JSON)).await;
        answered.assert_problem(401, "invalid-signature");
    }
}

#[tokio::test]
async fn what_twilio_has_not_signed_is_refused() {
    let plain = || form(FORM, SIGNED);
    let many = "a=1&".repeat(1_001);
    for (request, why) in [
        (plain().without(TAG), "missing"),
        (plain().and(TAG, SIGNED), "doubled"),
        (plain().with(TAG, ""), "empty"),
        (plain().with(TAG, &SIGNED[..27]), "without padding"),
        (plain().with(TAG, &SIGNED[4..]), "cut"),
        (
            plain().with(TAG, "45239837be13d5c51375ad4f0c3dddf5556bf01f"),
            "hex",
        ),
        (plain().with(TAG, SIGNED_256), "by the other algorithm"),
        // The header that names an algorithm is signed by nobody.
        (
            plain().with(TAG, SIGNED_256).with(
                "x-twilio-webhooks-signature-settings",
                "key=k,algorithm=HMAC_SHA256",
            ),
            "the algorithm of a header",
        ),
        (
            form(FORM.replace("1234&", "1235&"), SIGNED),
            "another value",
        ),
        (form(format!("{FORM}&Z=1"), SIGNED), "another field"),
        (form(format!("{FORM}&To=%2B1"), SIGNED), "a field twice"),
        (form(format!("{FORM}&%zz"), SIGNED), "no percent-encoding"),
        (form(format!("{FORM}&Z=%00"), SIGNED), "a NUL"),
        (form("", SIGNED), "no body"),
        (form(many, SIGNED), "many fields"),
        (form(&b"a=\xff"[..], SIGNED), "no text"),
        (plain().with("content-type", "application/json"), "JSON"),
        (plain().without("content-type"), "neither"),
    ] {
        let answered = receive(twilio(URL), request).await;
        assert_eq!(answered.status, 401, "{why}");
        answered.assert_problem(401, "invalid-signature");
    }
    let elsewhere = receive(twilio("https://mycompany.com/myapp.php"), plain()).await;
    elsewhere.assert_problem(401, "invalid-signature");
    let sha256 = receive(twilio(URL).sha256(), plain()).await;
    sha256.assert_problem(401, "invalid-signature");
    // Signed, but no event: two keys, and bytes that are no text (by another implementation).
    let two = plain().and(TOKEN, "a").and(TOKEN, "b");
    receive(twilio(URL), two)
        .await
        .assert_problem(400, "unreadable-event");
    for wrong in [
        "mycompany.com",
        "ftp://a/b",
        "https://",
        "https:///a",
        "https://a:/b",
        "https://a b/c",
        "https://a:b/c",
    ] {
        let error = Twilio::new(wrong, Secret::new("a").unwrap()).unwrap_err();
        assert!(matches!(error, ConfigError::Sender { .. }), "{wrong}");
    }
}

#[cfg(feature = "moka")]
#[tokio::test]
async fn a_key_of_twilio_decides_and_equal_bodies_do_not() {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let router = EventRouter::new().fallback(move |_: RawDelivery| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { Ok(()) }
    });
    let (service, _running) = Webhooks::verified_by(twilio(URL))
        .unwrap()
        .start(router)
        .unwrap();
    for (token, replayed, expected) in [("1", false, 1), ("1", true, 1), ("2", false, 2)] {
        let answered = send(&service, form(FORM, SIGNED).with(TOKEN, token)).await;
        assert_eq!(
            (answered.status.as_u16(), answered.is_replay()),
            (200, replayed)
        );
        // TwiML, since an empty answer would be none.
        assert_eq!(answered.header("content-type"), Some("text/xml"));
        assert_eq!(answered.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answered.body, "<Response/>");
        assert_eq!(runs.load(Ordering::SeqCst), expected);
    }
}

const MAILGUN: &str = r#"{"signature":{"timestamp":"1770920772","token":"e0b5477167110d68991efc6b9f89f0a11066af27834600e123","signature":"61be8aa1e78911cfafa3d1428a8239bfb7000883980452c4a3e82428e5c3a584"},"event-data":{"event":"delivered","id":"a"}}"#;

fn mailgun(after: i64) -> Mailgun {
    let now = Duration::from_secs(1_770_920_772_u64.checked_add_signed(after).unwrap());
    let mailgun = Mailgun::new(Secret::new("key-1").unwrap());
    mailgun.with_clock(move || SystemTime::UNIX_EPOCH + now)
}

fn posted(body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    let request = Request::post("/").header("content-type", "application/json");
    request.body(Full::new(body.into())).unwrap()
}

#[tokio::test]
async fn a_token_of_mailgun_is_the_key() {
    let day = 24 * 60 * 60;
    for after in [0, -300, day - 300] {
        let [kind, key, body] = received(&receive(mailgun(after), posted(MAILGUN)).await);
        assert_eq!(kind, "delivered");
        assert_eq!(key, "e0b5477167110d68991efc6b9f89f0a11066af27834600e123");
        assert_eq!(body, MAILGUN);
    }
    for after in [-301, day - 299] {
        let answered = receive(mailgun(after), posted(MAILGUN)).await;
        answered.assert_problem(401, "invalid-signature");
    }
    let with = |from: &str, to: &str| {
        assert!(MAILGUN.contains(from));
        MAILGUN.replace(from, to)
    };
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    for body in [
        with("a584", "a585"),
        with("a584", "A584"),
        with("a584", ""),
        with("e0b5", "e0b6"),
        // The boundary between time and token.
        with("2\",\"token\":\"", "\",\"token\":\"2"),
        with("\",\"token\":\"e", "e\",\"token\":\""),
        with("\"1770920772\"", "1770920772"),
        with("\"1770920772\"", "\"+1770920772\""),
        with("\"token\"", "\"token\":\"\",\"token\""),
        with(
            "\"event-data\"",
            "\"event-data\":{\"event\":\"a\"},\"event-data\"",
        ),
        with("\"signature\":{", "\"signature\":[],\"signature\":{"),
        with("\"event\":", "\"type\":"),
        with(
            "\"e0b5477167110d68991efc6b9f89f0a11066af27834600e123\"",
            "{}",
        ),
        deep,
        String::new(),
    ] {
        let answered = receive(mailgun(0), posted(body.clone())).await;
        assert_eq!(answered.status, 401, "{body:.200}");
    }
    let untyped = with("\"delivered\"", "\"\"");
    receive(mailgun(0), posted(untyped))
        .await
        .assert_problem(400, "unreadable-event");
}

#[cfg(feature = "moka")]
#[tokio::test]
async fn a_token_of_mailgun_is_accepted_once_whatever_the_body() {
    let router = || EventRouter::new().fallback(async |_: RawDelivery| Ok(()));
    let (service, _running) = Webhooks::verified_by(mailgun(0))
        .unwrap()
        .start(router())
        .unwrap();
    send(&service, posted(MAILGUN)).await.assert_ok();
    let other = MAILGUN.replace("delivered", "unsubscribed");
    send(&service, posted(other)).await.assert_replayed();
    // A token is remembered for longer than its time is accepted.
    let short = Duration::from_secs(24 * 60 * 60);
    let webhooks = Webhooks::verified_by(mailgun(0)).unwrap().retention(short);
    let error = webhooks.start(router()).unwrap_err();
    assert!(
        matches!(error, ConfigError::RetentionTooShort { .. }),
        "{error}"
    );
}

/// What a verifier of an application does with a body that says so.
#[derive(Clone, Default)]
struct Acme {
    /// The futures that have begun and not ended.
    running: Arc<AtomicUsize>,
    calls: Arc<AtomicUsize>,
    success: Option<Reply>,
    name: Option<&'static str>,
}

struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[async_trait]
impl Verifier for Acme {
    fn name(&self) -> &str {
        self.name.unwrap_or("acme")
    }

    fn policy(&self) -> SenderPolicy {
        SenderPolicy::new(60 * SECOND, 3_600 * SECOND)
    }

    fn needs_replay_guard(&self) -> bool {
        false
    }

    fn admit(&self, head: &Parts) -> Result<(), SignatureError> {
        match head.headers.get("x-head").map(HeaderValue::as_bytes) {
            Some(b"refuse") => Err(SignatureError::Other("the head says so")),
            Some(b"panic") => panic!("no CRM"),
            _ => Ok(()),
        }
    }

    fn greet(&self, head: &Parts) -> Option<Reply> {
        match head.uri.query() {
            Some("panic") => panic!("no CRM"),
            query => query.map(|it| Reply::text(it.to_owned())),
        }
    }

    async fn verify(&self, request: &Request<Bytes>) -> Result<Verdict, VerifierError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.running.fetch_add(1, Ordering::SeqCst);
        let _running = Running(Arc::clone(&self.running));
        let text = str::from_utf8(request.body()).map_err(VerifierError::unreadable)?;
        let (does, rest) = text.split_once(' ').unwrap_or((text, ""));
        let proof = Proof::new(EventKind::from_static("paid"));
        match does {
            "event" => Ok(proof.key(rest.parse::<IdempotencyKey>().ok()).into()),
            "object" => {
                let proof = proof.key(rest.parse::<IdempotencyKey>().ok());
                Ok(proof.body("{}").into())
            }
            "order" => Ok(proof.order(rest).body(r#"{"a":1}"#).into()),
            "signed" => {
                let secrets = Secrets::from(Secret::new("a").unwrap().with_label("of May"));
                Ok(proof.signed_by(&secrets, 0).into())
            }
            "challenge" => Ok(Verdict::Challenge(Reply::json(r#"{"ok":true}"#))),
            "refuse" => Err(SignatureError::Wrong.into()),
            "other" => Err(SignatureError::Other("the certificate is not of acme.com").into()),
            "unreadable" => Err(VerifierError::unreadable("there is no type")),
            "unavailable" => Err(VerifierError::unavailable("the keys cannot be fetched")),
            "panic" => panic!("no CRM"),
            "later" => {
                sleep(SECOND).await;
                panic!("no CRM")
            }
            "slow" => {
                sleep(9 * SECOND).await;
                Ok(proof.into())
            }
            _ => pending().await,
        }
    }

    fn success(&self) -> Option<Reply> {
        self.success.clone()
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_verifier_says_is_answered_as_documented() {
    let log = Log::capture(Level::WARN);
    for (body, status, name, reason) in [
        (
            "refuse",
            401,
            "invalid-signature",
            "the signature is wrong for every secret",
        ),
        (
            "other",
            401,
            "invalid-signature",
            "the certificate is not of acme.com",
        ),
        ("unreadable", 400, "unreadable-event", "there is no type"),
        (
            "unavailable",
            503,
            "verifier-failed",
            "the keys cannot be fetched",
        ),
        (
            "panic",
            503,
            "verifier-failed",
            "the verifier panicked: no CRM (tests/pipeline/verifiers.rs",
        ),
        (
            "later",
            503,
            "verifier-failed",
            "the verifier panicked: no CRM",
        ),
        ("pending", 503, "verifier-failed", "it took longer than 10s"),
    ] {
        log.clear();
        let acme = Acme::default();
        let began = Instant::now();
        let answered = receive(acme.clone(), posted(body)).await;
        answered.assert_problem(status, name);
        let took = began.elapsed();
        assert!(
            took < 10 * SECOND || body == "pending" && took < 11 * SECOND,
            "{took:?}"
        );
        assert_eq!(answered.retry_after(), (status == 503).then_some(60));
        assert_eq!(acme.running.load(Ordering::SeqCst), 0, "{body}");
        assert!(!str::from_utf8(&answered.body).unwrap().contains(reason));
        let text = log.text();
        assert!(
            text.contains(reason) && text.contains(name),
            "{body}: {text}"
        );
    }
    let slow = receive(Acme::default(), posted("slow")).await;
    assert_eq!(received(&slow), ["paid".into(), Value::Null, "slow".into()]);
}

#[tokio::test]
async fn the_time_limit_is_that_of_a_body() {
    tokio::time::pause();
    let layer = Webhooks::verified_by(Acme::default())
        .unwrap()
        .body_timeout(3 * SECOND);
    let service = layer
        .into_signature_layer()
        .unwrap()
        .layer(service_fn(event));
    let began = Instant::now();
    send(&service, posted("pending"))
        .await
        .assert_problem(503, "verifier-failed");
    assert!((3 * SECOND..4 * SECOND).contains(&began.elapsed()));
    // Counted from the last byte, which comes late here.
    let late = stream::once(async {
        sleep(2 * SECOND).await;
        Ok::<_, Infallible>(Frame::data(Bytes::from("pending")))
    });
    let request = Request::post("/")
        .body(StreamBody::new(Box::pin(late)))
        .unwrap();
    let began = Instant::now();
    send(&service, request)
        .await
        .assert_problem(503, "verifier-failed");
    assert!((5 * SECOND..6 * SECOND).contains(&began.elapsed()));
}

#[tokio::test]
async fn the_decision_says_what_was_verified() {
    let layer = Webhooks::verified_by(Acme::default())
        .unwrap()
        .into_signature_layer();
    let service = layer.unwrap().layer(service_fn(event));
    for (body, is_verified) in [
        ("event 1", true),
        ("challenge", true),
        ("unreadable", true),
        ("refuse", false),
        ("unavailable", false),
    ] {
        let response = service.clone().oneshot(posted(body)).await.unwrap();
        let decision = Decision::of(&response).unwrap();
        assert_eq!(decision.is_verified(), is_verified, "{body}");
        if body == "unavailable" {
            let refusal = decision.refusal().unwrap();
            assert!(matches!(
                refusal.downcast_ref(),
                Some(Refusal::VerifierFailed { .. })
            ));
            assert!(chain(refusal).ends_with("the keys cannot be fetched"));
        }
    }
}

#[tokio::test]
async fn a_head_is_refused_before_the_body_is_received() {
    let acme = Acme::default();
    let unread = || {
        let frames = stream::pending::<Result<Frame<Bytes>, Infallible>>();
        Request::post("/").body(StreamBody::new(frames)).unwrap()
    };
    let refused = receive(acme.clone(), unread().with("x-head", "refuse")).now_or_never();
    refused.unwrap().assert_problem(401, "invalid-signature");
    let panicked = receive(acme.clone(), unread().with("x-head", "panic")).now_or_never();
    panicked.unwrap().assert_problem(503, "verifier-failed");
    assert_eq!(acme.calls.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn limits_of_the_body_come_before_the_verifier() {
    let acme = Acme::default();
    let webhooks = Webhooks::verified_by(acme.clone()).unwrap().max_body(10);
    let service = webhooks
        .into_signature_layer()
        .unwrap()
        .layer(service_fn(event));
    send(&service, posted("event 12345"))
        .await
        .assert_problem(413, "body-too-large");
    let long = posted("event 1").with("content-length", "8");
    send(&service, long)
        .await
        .assert_problem(400, "malformed-body");
    let coded = posted("event 1").with("transfer-encoding", "gzip");
    send(&service, coded)
        .await
        .assert_problem(400, "malformed-body");
    assert_eq!(acme.calls.load(Ordering::SeqCst), 0);
    assert_eq!(send(&service, posted("event 1")).await.status, 200);
    assert_eq!(acme.calls.load(Ordering::SeqCst), 1);
}

/// Who sends many bodies while the keys cannot be fetched takes no more memory than other bodies.
#[tokio::test(start_paused = true)]
async fn a_body_counts_until_it_is_verified() {
    let acme = Acme::default();
    let webhooks = Webhooks::verified_by(acme.clone())
        .unwrap()
        .max_buffered(300 * 1024);
    let layer = webhooks.into_signature_layer().unwrap();
    let service = layer.layer(service_fn(event));
    let large = || posted(format!("pending {}", "x".repeat(264 * 1024)));
    let first = tokio::spawn({
        let service = service.clone();
        async move { send(&service, large()).await }
    });
    sleep(SECOND).await;
    assert!(layer.buffered() > 200 * 1024, "{}", layer.buffered());
    assert_eq!(acme.running.load(Ordering::SeqCst), 1);
    // It has been there for longer, so it is given up.
    let second = tokio::spawn(async move { send(&service, large()).await });
    let answered = timeout(SECOND, first).await.unwrap().unwrap();
    answered.assert_problem(503, "overloaded");
    second.await.unwrap().assert_problem(503, "verifier-failed");
    assert_eq!(
        (layer.buffered(), acme.running.load(Ordering::SeqCst)),
        (0, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn a_client_that_disconnects_ends_the_verification() {
    let acme = Acme::default();
    let gone = timeout(SECOND, receive(acme.clone(), posted("pending"))).await;
    assert!(gone.is_err());
    assert_eq!(acme.calls.load(Ordering::SeqCst), 1);
    assert_eq!(acme.running.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn challenges_are_answered_and_reach_no_handler() {
    let answered = receive(Acme::default(), posted("challenge")).await;
    assert_eq!(
        (answered.status.as_u16(), &answered.body[..]),
        (200, &br#"{"ok":true}"#[..])
    );
    assert_eq!(answered.header("content-type"), Some("application/json"));
    for method in [Method::GET, Method::HEAD, Method::OPTIONS] {
        let ask = |uri: &str| {
            let request = Request::builder().method(method.clone()).uri(uri);
            receive(Acme::default(), request.body(Full::default()).unwrap())
        };
        let greeted = ask("/?who").await;
        assert_eq!(
            (greeted.status.as_u16(), &greeted.body[..]),
            (200, &b"who"[..])
        );
        assert_eq!(greeted.header("x-content-type-options"), Some("nosniff"));
        ask("/").await.assert_problem(405, "method-not-allowed");
        ask("/?panic").await.assert_problem(503, "verifier-failed");
    }
    // Whatever else is wrong with a POST, it is no challenge.
    let wrong = posted("event").with("content-length", "x");
    receive(Acme::default(), wrong)
        .await
        .assert_problem(400, "malformed-body");
}

#[cfg(feature = "moka")]
#[tokio::test]
async fn a_success_is_answered_as_the_verifier_says() {
    let acme = Acme {
        success: Some(Reply::new(202, Some("text/plain"), "[accepted]")),
        ..Acme::default()
    };
    let router = EventRouter::new().fallback(async |delivery: RawDelivery| {
        match delivery.key().map(ToString::to_string).as_deref() {
            Some("wrong") => Err("no CRM".into()),
            _ => Ok(()),
        }
    });
    let webhooks = || Webhooks::verified_by(acme.clone()).unwrap();
    let (service, _running) = webhooks().start(router.clone()).unwrap();
    let accepted = |answered: &Answered| {
        (answered.status.as_u16(), answered.body.clone()) == (202, "[accepted]".into())
    };
    let first = send(&service, posted("object 1")).await;
    assert!(accepted(&first) && !first.is_replay(), "{first:?}");
    let again = send(&service, posted("object 1")).await;
    assert!(accepted(&again) && again.is_replay(), "{again:?}");
    send(&service, posted("object wrong"))
        .await
        .assert_problem(500, "failed");
    let answered = send(&service, posted("challenge")).await;
    assert_eq!(answered.body, r#"{"ok":true}"#);

    let (filtering, _running) = webhooks().keep_only([]).start(router).unwrap();
    assert!(accepted(&send(&filtering, posted("object 2")).await));
    // A service of the application's own has the last word.
    let (own, _running) = webhooks().start(service_fn(event)).unwrap();
    assert_eq!(received(&send(&own, posted("event 3")).await)[1], "3");

    let wrong = Acme {
        success: Some(Reply::new(302, None, "")),
        ..Acme::default()
    };
    let error = Webhooks::verified_by(wrong)
        .unwrap()
        .into_signature_layer()
        .unwrap_err();
    assert!(error.to_string().contains("200 to 299"), "{error}");
}

#[cfg(feature = "moka")]
#[tokio::test]
async fn settings_of_keys_and_types_hold() {
    let router = || EventRouter::new().fallback(async |_: RawDelivery| Ok(()));
    let webhooks = || Webhooks::verified_by(Acme::default()).unwrap();
    let (service, _running) = webhooks().require_key().start(router()).unwrap();
    send(&service, posted("object"))
        .await
        .assert_problem(400, "missing-key");
    send(&service, posted("object 1")).await.assert_ok();
    send(&service, posted("object 1")).await.assert_replayed();

    let error = webhooks()
        .sender(Sender::github())
        .start(router())
        .unwrap_err();
    assert!(
        error.to_string().contains("leave out `Webhooks::sender`"),
        "{error}"
    );
    let secret = || Secret::new("a").unwrap();
    let error = service.with_sender(Sender::github(), secret()).unwrap_err();
    assert!(matches!(error, ConfigError::Sender { .. }), "{error}");
    for name in ["", "a b", "a/b"] {
        let acme = Acme {
            name: Some(name),
            ..Acme::default()
        };
        let error = Webhooks::verified_by(acme).unwrap_err();
        assert!(chain(&error).contains("use 1 to 64 letters"), "{error}");
    }
}

#[tokio::test]
async fn the_span_shows_which_secret_it_was() {
    let log = Log::capture(Level::INFO);
    receive(Acme::default(), posted("signed")).await;
    let spans = format!("{:?}", log.spans());
    assert!(
        spans.contains("of May") && spans.contains("acme"),
        "{spans}"
    );
}

#[tokio::test]
async fn an_inbox_handles_events_of_one_order_in_order() {
    let inbox = Inbox::new(MemoryQueue::new());
    let webhooks = Webhooks::verified_by(Acme::default()).unwrap();
    let mut routes = inbox.routes();
    let receiver = routes.accept(webhooks).unwrap();
    let _running = routes.start().unwrap();
    for body in ["order customer-1", "order customer-2"] {
        send(&receiver, posted(body)).await.assert_ok();
    }
    let events = inbox
        .list(&Filter::default(), Page::oldest(10))
        .await
        .unwrap();
    let mut chats: Vec<_> = events
        .events
        .iter()
        .map(|it| it.chat.clone().unwrap())
        .collect();
    chats.sort();
    assert_eq!(chats, ["customer-1", "customer-2"]);
}
