//! Challenges are answered by the layer, with the proof that they need.

use super::*;

const TOKEN: &str = "a token";

fn meta() -> Sender {
    Sender::meta().with_challenge_token(TOKEN).unwrap()
}

/// As Dropbox asks.
fn unproven() -> Sender {
    with_challenge(json!({"proof": "none", "answer": {"raw": "?challenge"}})).unwrap()
}

fn with_challenge(challenge: Value) -> Result<Sender, String> {
    described(json!({"challenge": [challenge]}))
}

async fn unreached(request: Request<Verified>) -> Result<Response<Full<Bytes>>, Infallible> {
    panic!("{:?} reached the handler", request.body().delivery().kind())
}

/// The answer of a layer whose handler must not be called.
async fn asked(sender: &Sender, request: Request<Full<Bytes>>) -> Answered {
    let webhooks = Webhooks::new(Secret::new("secret").unwrap());
    let layer = webhooks
        .sender(sender.clone())
        .into_signature_layer()
        .unwrap();
    send(&layer.layer(service_fn(unreached)), request).await
}

async fn get(sender: &Sender, query: &str) -> Answered {
    let request = Request::get(format!("/hook?{query}")).body(Full::default());
    asked(sender, request.unwrap()).await
}

fn assert_echoed(answered: &Answered, text: &str) {
    assert_eq!(answered.status, 200, "{text}");
    assert_eq!(answered.body, text);
    assert_eq!(answered.header("content-type"), Some("text/plain"));
    assert_eq!(answered.header("x-content-type-options"), Some("nosniff"));
}

#[tokio::test]
async fn a_get_is_answered_as_the_maker_answers_it() {
    let recorded = Recorded::of("meta");
    for asked in recorded.queries.unwrap() {
        let answered = get(&meta(), &asked.query).await;
        match asked.status {
            200 => assert_echoed(&answered, &asked.body),
            _ => assert!(
                matches!(answered.status.as_u16(), 403 | 405),
                "{}",
                asked.query
            ),
        }
    }
}

#[tokio::test]
async fn a_get_with_another_token_or_nothing_to_echo_is_refused() {
    let long = format!("hub.challenge={}", "1".repeat(513));
    let token = "hub.verify_token=a+token";
    for (token, challenge) in [
        ("", "hub.challenge=1"),
        ("hub.verify_token=", "hub.challenge=1"),
        ("hub.verify_token", "hub.challenge=1"),
        ("hub.verify_token=another", "hub.challenge=1"),
        ("hub.verify_token=a+toke", "hub.challenge=1"),
        ("hub.verify_token=a+token%00", "hub.challenge=1"),
        ("hub.verify_token=a+token+", "hub.challenge=1"),
        ("hub.verify_token=A+TOKEN", "hub.challenge=1"),
        (
            "hub.verify_token=a+token&hub.verify_token=a+token",
            "hub.challenge=1",
        ),
        (
            "hub.verify_token=a+token&hub%2Everify_token=b",
            "hub.challenge=1",
        ),
        ("hub.verify_token=%ff", "hub.challenge=1"),
        ("hub.verify_token=a+token%", "hub.challenge=1"),
        ("HUB.VERIFY_TOKEN=a+token", "hub.challenge=1"),
        (token, ""),
        (token, "hub.challenge"),
        (token, "hub.challenge="),
        (token, "hub.challenge=1&hub.challenge=1"),
        (token, long.as_str()),
        (token, "hub.challenge=a+b"),
        (token, "hub.challenge=a%20b"),
        (token, "hub.challenge=%c3%bc"),
        (token, "hub.challenge=%ff"),
        (token, "hub.challenge=%00"),
        (token, "hub.challenge=%0d%0aset-cookie:a"),
        (token, "hub.challenge=%7f"),
        (token, "hub.challenge=%"),
        (token, "hub.challenge=%1"),
        (token, "hub.challenge=%zz"),
    ] {
        let query = format!("hub.mode=subscribe&{token}&{challenge}");
        let answered = get(&meta(), &query).await;
        answered.assert_problem(403, "invalid-challenge");
    }
    let long = "1".repeat(512);
    let query = format!("hub.mode=subscribe&hub.challenge={long}&{token}");
    assert_echoed(&get(&meta(), &query).await, &long);
}

#[tokio::test]
async fn without_a_proof_visible_ascii_is_echoed_as_text() {
    let sender = unproven();
    // No browser takes it for HTML.
    for (query, text) in [
        ("challenge=abc-123", "abc-123"),
        (
            "x=1&challenge=%3Cscript%3Ealert(1)%3C/script%3E",
            "<script>alert(1)</script>",
        ),
        ("challenge=%2B%26%3D%25", "+&=%"),
    ] {
        assert_echoed(&get(&sender, query).await, text);
    }
    for query in [
        "challenge=",
        "challenge",
        "challenge=1&challenge=1",
        "challenge=%0d%0aa",
        "challenge=%",
    ] {
        get(&sender, query)
            .await
            .assert_problem(403, "invalid-challenge");
    }
}

#[tokio::test]
async fn what_is_no_challenge_is_answered_as_before() {
    let chat = Sender::chat_platform();
    for (sender, query) in [
        (&chat, "hub.mode=subscribe&challenge=1"),
        (&Sender::github(), "challenge=1"),
        (&Sender::slack(), "challenge=1&type=url_verification"),
        (&meta(), ""),
        (
            &meta(),
            "hub.mode=other&hub.challenge=1&hub.verify_token=a+token",
        ),
        (
            &meta(),
            "hub.mode=subscribe&hub.mode=subscribe&hub.challenge=1&hub.verify_token=a+token",
        ),
        (
            &meta(),
            "hub.mode=%&hub.challenge=1&hub.verify_token=a+token",
        ),
        (&unproven(), "other=1"),
        (&unproven(), "%=1&&=&Challenge=1"),
    ] {
        let answered = get(sender, query).await;
        answered.assert_problem(405, "method-not-allowed");
    }
    // Nor is another method, nor a POST that is not signed.
    let query = "/?hub.mode=subscribe&hub.challenge=1&hub.verify_token=a+token";
    for method in ["HEAD", "PUT", "OPTIONS", "DELETE"] {
        let request = Request::builder()
            .method(method)
            .uri(query)
            .body(Full::default());
        asked(&meta(), request.unwrap())
            .await
            .assert_problem(405, "method-not-allowed");
    }
    let request = Request::post(query).body(Full::default()).unwrap();
    asked(&meta(), request)
        .await
        .assert_problem(401, "invalid-signature");
}

#[tokio::test]
async fn a_challenge_is_signed_under_the_decoded_secret() {
    const CHALLENGE: &str = r#"{"id":"1","type":"ping","plain":"abc"}"#;
    let sender = described(json!({
        "signature.secret": "base64",
        "challenge": [{
            "when": {"/type": "ping"},
            "answer": {"hmac": {"pointer": "/plain", "plain": "plain", "tag": "tag"}},
        }],
    }));
    let (sender, secret) = (sender.unwrap(), Secret::new("whsec_c2VjcmV0").unwrap());
    let request = signed(&sender, &secret, CHALLENGE);
    let answered = receive(secret, &sender, request).await;
    let tag = Secret::new("secret").unwrap().sign(b"abc");
    let answer: Value = serde_json::from_slice(&answered.body).unwrap();
    assert_eq!(answer, json!({"plain": "abc", "tag": tag}));
}

#[test]
fn a_token_that_is_missing_is_an_error_at_the_start() {
    let secret = || Secret::new("secret").unwrap();
    for webhooks in [Webhooks::new(secret()), Webhooks::dangerously_unsigned()] {
        let error = webhooks
            .sender(Sender::meta())
            .into_signature_layer()
            .unwrap_err();
        let error = error.to_string();
        assert!(error.contains("with_challenge_token"), "{error}");
    }
    let error = Sender::meta().with_challenge_token("").unwrap_err();
    let empty = "the sender `meta`: the token of its challenges is empty";
    assert!(error.to_string().starts_with(empty), "{error}");
    for sender in [Sender::chat_platform(), Sender::slack(), unproven()] {
        let error = sender.with_challenge_token(TOKEN).unwrap_err();
        assert!(error.to_string().contains("no token"), "{error}");
    }
    assert!(!format!("{:?}", meta()).contains(TOKEN));
}

/// The token is in the query, which nothing may log.
#[tokio::test]
async fn a_challenge_leaves_no_token_in_the_log() {
    let log = Log::capture(Level::TRACE);
    for token in ["a+token", "another"] {
        get(
            &meta(),
            &format!("hub.mode=subscribe&hub.challenge=1&hub.verify_token={token}"),
        )
        .await;
    }
    let lines = format!("{:?}", log.events());
    assert!(lines.contains("another token, or none"), "{lines}");
    assert!(
        !lines.contains("a+token") && !lines.contains("verify_token"),
        "{lines}"
    );
}

fn twitch_at(seconds: u64) -> Sender {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    Sender::twitch().with_clock(move || now)
}

/// A delivery of Twitch with this message type.
fn of_twitch(body: &str, kind: &'static str) -> Request<Full<Bytes>> {
    let delivery = RawDelivery::new(EventKind::from_static("x"), body.to_owned())
        .with_key(IdempotencyKey::new(HeaderValue::from_static("e76c6bd4")));
    let mut request = post(body.to_owned());
    let sender = twitch_at(1_790_000_000);
    *request.headers_mut() = sender
        .sign(&Secret::new("secret").unwrap(), &delivery)
        .unwrap();
    request.with("twitch-eventsub-message-type", kind)
}

#[tokio::test]
async fn a_header_decides_that_a_delivery_is_a_challenge() {
    const ASKS: &str = "webhook_callback_verification";
    const BODY: &str = r#"{"challenge":"pogchamp-kappa-360noscope-vohiyo","subscription":{"type":"channel.follow"}}"#;
    let twitch = twitch_at(1_790_000_000);
    let answered = asked(&twitch, of_twitch(BODY, ASKS)).await;
    let recorded = Recorded::of("twitch").challenge.unwrap();
    assert_echoed(&answered, recorded.as_str().unwrap());

    // Unsigned, with another body, or replayed later.
    let mut unsigned = of_twitch(BODY, ASKS);
    unsigned
        .headers_mut()
        .remove("twitch-eventsub-message-signature");
    asked(&twitch, unsigned)
        .await
        .assert_problem(401, "invalid-signature");
    let mut forged = of_twitch(BODY, ASKS);
    *forged.body_mut() = Full::from(BODY.replace("kappa", "other"));
    asked(&twitch, forged)
        .await
        .assert_problem(401, "invalid-signature");
    let later = twitch_at(1_790_000_601);
    asked(&later, of_twitch(BODY, ASKS))
        .await
        .assert_problem(401, "invalid-signature");
    // A notification has nothing to echo, whatever its header says: that is not signed.
    let event = r#"{"subscription":{"type":"channel.follow"},"event":{}}"#;
    asked(&twitch, of_twitch(event, ASKS))
        .await
        .assert_problem(400, "unreadable-event");
    let secret = Secret::new("secret").unwrap();
    let twice = of_twitch(BODY, ASKS).and("twitch-eventsub-message-type", ASKS);
    for request in [of_twitch(event, "notification"), twice] {
        let answered = receive(secret.clone(), &twitch, request).await;
        assert_eq!(answered.body, r#"["channel.follow","e76c6bd4"]"#);
    }
    // The boundary between id, time and body cannot be moved.
    let time = "2026-09-21T14:13:20Z";
    for (id, time) in [
        ("e76c6bd42", &time[1..]),
        ("e76c6bd", "42026-09-21T14:13:20Z"),
        ("", time),
    ] {
        let request = of_twitch(event, "notification")
            .with("twitch-eventsub-message-id", id)
            .with("twitch-eventsub-message-timestamp", time);
        receive(secret.clone(), &twitch, request)
            .await
            .assert_problem(401, "invalid-signature");
    }
}

#[tokio::test]
async fn a_signed_challenge_is_answered_with_a_constant_or_a_field() {
    for (answer, status, content_type, text) in [
        (
            json!({"constant": {"body": {"type": 1}}}),
            200,
            Some("application/json"),
            r#"{"type":1}"#,
        ),
        (
            json!({"constant": {"status": 202, "body": 7}}),
            202,
            Some("application/json"),
            "7",
        ),
        (json!({"constant": {}}), 204, None, ""),
        (json!({"constant": {"status": 200}}), 200, None, ""),
        (
            json!({"json": {"pointer": "/id", "field": "a"}}),
            200,
            Some("application/json"),
            r#"{"a":"1"}"#,
        ),
        (
            json!({"raw": "content-type"}),
            200,
            Some("text/plain"),
            "application/json",
        ),
    ] {
        let challenge = json!({"when": {"/type": "1"}, "answer": answer});
        let sender = with_challenge(challenge).unwrap();
        let secret = Secret::new("secret").unwrap();
        let answered = asked(&sender, signed(&sender, &secret, r#"{"id":"1","type":1}"#)).await;
        assert_eq!(answered.status, status, "{answer}");
        assert_eq!(answered.header("content-type"), content_type, "{answer}");
        assert_eq!(answered.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answered.body, text, "{answer}");
        // Another delivery is none.
        let answered = receive(secret.clone(), &sender, signed(&sender, &secret, BODY)).await;
        assert_eq!(answered.body, r#"["orders/create","1"]"#);
    }
}

#[test]
fn a_challenge_that_is_wrong_names_the_field_and_what_is_allowed() {
    let raw = json!({"raw": "/a"});
    for (challenge, text) in [
        (
            json!({"answer": raw}),
            "challenge[0].when: without a condition, every delivery",
        ),
        (
            json!({"when": {"?a": "b"}, "answer": raw}),
            "challenge[0].when: \"?a\" is not signed",
        ),
        (
            json!({"when": {"/a": "b"}, "answer": {"raw": "?a"}}),
            "challenge[0].answer: \"?a\" is not signed",
        ),
        (
            json!({"proof": "none", "answer": raw}),
            "challenge[0].answer: \"/a\" is no query parameter",
        ),
        (
            json!({"proof": {"token": "x-token"}, "answer": {"raw": "?a"}}),
            "challenge[0].proof: \"x-token\" is no",
        ),
        (
            json!({"proof": "maybe", "answer": raw}),
            "unknown variant `maybe`, expected one of `signature`, `token`",
        ),
        (
            json!({"proof": "none", "method": "OPTIONS", "answer": {"hmac": {"pointer": "?a", "tag": "b"}}}),
            "challenge[0].answer: without a signature, only a GET has an `hmac`",
        ),
        (
            json!({"proof": "none", "answer": {"hmac": {"pointer": "?a", "tag": "b", "coding": "hex-any-case"}}}),
            "challenge[0].answer: write the `hmac` in `hex`",
        ),
        (
            json!({"when": {"/a": "b"}, "method": "GET", "answer": raw}),
            "challenge[0].method: a challenge that is signed is a POST",
        ),
        (
            json!({"proof": "none", "method": "POST", "answer": {"raw": "?a"}}),
            "challenge[0].when: without a condition, every empty POST",
        ),
        (
            json!({"proof": "none", "method": "PATCH", "answer": {"raw": "?a"}}),
            "unknown variant `PATCH`, expected one of `GET`",
        ),
        (
            json!({"proof": "none", "when": {"x-a": ""}, "answer": {"raw": "?a"}}),
            "challenge[0].when: \"x-a\" is never empty: use `true`",
        ),
        (
            json!({"proof": "none", "when": {"x-a": false}, "answer": {"raw": "?a"}}),
            "challenge[0].when: use a text, or `true` for any",
        ),
        (
            json!({"proof": "none", "answer": {"constant": {}}}),
            "challenge[0].when: without a condition, every GET",
        ),
        (
            json!({"when": {"/a": "b"}, "answer": {"constant": {"status": 302}}}),
            "challenge[0].answer: use a status of 200 to 299",
        ),
        (
            json!({"when": {"/a": "b"}, "answer": {"constant": {"status": 204, "body": 1}}}),
            "and 204 without a body",
        ),
    ] {
        let error = with_challenge(challenge).unwrap_err();
        assert!(error.contains(text), "{error}");
    }
}

#[test]
fn a_challenge_behind_one_that_answers_first_is_refused() {
    let get = |when: Value| json!({"proof": "none", "when": when, "answer": {"raw": "?a"}});
    let head = json!({"proof": "none", "method": "HEAD", "answer": {"constant": {"status": 200}}});
    for (first, second, is_hidden) in [
        (get(json!({})), get(json!({})), true),
        (get(json!({})), get(json!({"?b": "1"})), true),
        (get(json!({"?b": true})), get(json!({"?b": "1"})), true),
        (get(json!({"?b": "1"})), get(json!({"?b": true})), false),
        (get(json!({"?b": "1"})), get(json!({"?b": "2"})), false),
        (
            get(json!({"?b": "1"})),
            get(json!({"?b": "1", "?c": "2"})),
            true,
        ),
        (head.clone(), head.clone(), true),
        (head, get(json!({})), false),
    ] {
        let read = described(json!({"challenge": [first, second]}));
        match (read, is_hidden) {
            (Ok(_), false) => {}
            (Err(error), true) => {
                let text = "challenge[1].when: it is never asked, since challenge[0] answers";
                assert!(error.contains(text), "{error}");
            }
            (read, _) => panic!("{read:?}"),
        }
    }
}
