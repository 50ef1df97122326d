//! What is signed, and yet refused or read in one way only: times, tags and secrets in other forms, joined keys.

use super::*;

fn instant(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

const NOW: u64 = 1_790_000_000;

#[tokio::test]
async fn a_time_in_another_form_is_refused_though_it_is_signed() {
    let secret = Secret::new("secret").unwrap();
    let digits = "1".repeat(30);
    for (unit, right, wrong) in [
        (
            "seconds",
            "1790000000",
            &["1790000000000", "1790000000000000", "2026-09-21T14:13:20Z"][..],
        ),
        (
            "milliseconds",
            "1790000000000",
            &["1790000000", "1790000000000000", "2026-09-21T14:13:20Z"],
        ),
        (
            "rfc3339",
            "2026-09-21T14:13:20Z",
            &[
                "1790000000",
                "2026-09-21T14:13:20",
                "2026-09-21 14:13:20Z",
                "2026-09-21",
            ],
        ),
        (
            "iso8601",
            "2026-09-21T14:13:20",
            &[
                "1790000000",
                "2026-09-21 14:13:20",
                "2026-09-21",
                "2026-09-21T14:13:20z",
            ],
        ),
    ] {
        let time = json!({"at": "x-time", "unit": unit, "past": 300, "ahead": 300});
        let sender =
            described(json!({"signature.content": "{x-time}.{body}", "signature.timestamp": time}));
        let sender = sender.unwrap().with_clock(|| instant(NOW));
        let signs = ["-", "+", "0", ".", " "].map(|sign| format!("{sign}{right}"));
        let wrong = wrong
            .iter()
            .copied()
            .chain(signs.iter().map(String::as_str));
        for (text, status) in [(right, 200)]
            .into_iter()
            .chain(wrong.map(|text| (text, 401)))
            .chain([(digits.as_str(), 401), ("now", 401)])
        {
            let head = HeaderMap::from_iter([(
                HeaderName::from_static("x-time"),
                HeaderValue::from_str(text).unwrap(),
            )]);
            let delivery = RawDelivery::new(EventKind::from_static("x"), BODY).with_headers(head);
            let mut request = post(BODY);
            *request.headers_mut() = sender.sign(&secret, &delivery).unwrap();
            let answered = receive(secret.clone(), &sender, request).await;
            assert_eq!(answered.status, status, "{unit}: {text:?}");
        }
    }
}

#[tokio::test]
async fn a_tag_of_another_algorithm_is_refused() {
    let secret = Secret::new("secret").unwrap();
    for coding in ["hex", "base64"] {
        let [sha256, sha1] = ["hmac-sha256", "hmac-sha1"].map(|algorithm| {
            described(json!({"signature.algorithm": algorithm, "signature.coding": coding}))
                .unwrap()
        });
        for (signed_by, read_by) in [(&sha1, &sha256), (&sha256, &sha1)] {
            let request = signed(signed_by, &secret, BODY);
            receive(secret.clone(), read_by, request)
                .await
                .assert_problem(401, "invalid-signature");
        }
        // As long as one of SHA-512.
        let tag = if coding == "hex" {
            "0".repeat(128)
        } else {
            format!("{}==", "A".repeat(86))
        };
        for sender in [&sha256, &sha1] {
            receive(secret.clone(), sender, post(BODY).with("x-tag", &tag))
                .await
                .assert_problem(401, "invalid-signature");
        }
    }
}

#[tokio::test]
async fn a_challenge_that_is_replayed_is_refused() {
    let secret = Secret::new("secret").unwrap();
    for (sender, body) in [
        (
            Sender::slack(),
            r#"{"type":"url_verification","challenge":"3eZbrw1aB"}"#,
        ),
        (
            Sender::zoom(),
            r#"{"event":"endpoint.url_validation","payload":{"plainToken":"qgg8vlvZ"}}"#,
        ),
    ] {
        let sender = sender.with_clock(|| instant(NOW));
        let captured = || signed(&sender, &secret, body);
        let answered = receive(secret.clone(), &sender, captured()).await;
        assert_eq!(answered.status, 200);
        let later = sender.clone().with_clock(|| instant(NOW + 7_201));
        receive(secret.clone(), &later, captured())
            .await
            .assert_problem(401, "invalid-signature");
    }
}

#[tokio::test]
async fn secrets_are_decoded_as_the_sender_writes_them() {
    let text = described(json!({})).unwrap();
    for (form, written, bytes) in [
        ("hex", "6b6579", &b"key"[..]),
        ("hex", "6B6579", b"key"),
        ("hex", "00ff", b"\x00\xff"),
        ("base64", "a2V5", b"key"),
        ("base64", "whsec_a2V5", b"key"),
        // Without padding, as tests of Standard Webhooks for Python have them.
        ("base64", "whsec_a2V5cw", b"keys"),
        ("base64", "a2V5cw==", b"keys"),
    ] {
        let decoding = described(json!({"signature.secret": form})).unwrap();
        let (written, plain) = (Secret::new(written), Secret::new(bytes));
        let (written, plain) = (written.unwrap(), plain.unwrap());
        let answered = receive(written.clone(), &decoding, signed(&text, &plain, BODY)).await;
        assert_eq!(answered.status, 200, "{form}: {bytes:?}");
        let answered = receive(plain, &text, signed(&decoding, &written, BODY)).await;
        assert_eq!(answered.status, 200, "{form}: {bytes:?}");
        receive(written.clone(), &decoding, signed(&text, &written, BODY))
            .await
            .assert_problem(401, "invalid-signature");
    }
    for (form, written) in [
        ("hex", "6b657"),
        ("hex", "6b 65"),
        ("hex", "key"),
        ("base64", "whsec_"),
        ("base64", "a2V5c"),
    ] {
        let sender = described(json!({"signature.secret": form})).unwrap();
        let refused = Webhooks::new(Secret::new(written).unwrap())
            .sender(sender)
            .into_signature_layer();
        let error = refused.unwrap_err().to_string();
        assert!(
            error.contains("not written in its form"),
            "{written}: {error}"
        );
    }
}

#[tokio::test]
async fn a_key_is_joined_of_several() {
    let secret = Secret::new("secret").unwrap();
    let changes = json!({"key": {"join": ["/envelope/id", "/event", "x-part"]}});
    let sender = described(changes).unwrap();
    assert!(!sender.covers_key());
    let long = "x".repeat(1_024);
    for (id, event, part, expected) in [
        (
            json!("e-1"),
            json!("sent"),
            "1",
            Ok(Some(r#"["e-1","sent","1"]"#)),
        ),
        (json!(7), json!("ü"), "1", Ok(Some(r#"["7","ü","1"]"#))),
        // The boundary cannot be moved.
        (
            json!("a\",\"b"),
            json!("c"),
            "1",
            Ok(Some(r#"["a\",\"b","c","1"]"#)),
        ),
        (json!(""), json!("sent"), "1", Ok(None)),
        (json!("e-1"), json!("sent"), "", Ok(None)),
        (json!(null), json!("sent"), "1", Ok(None)),
        (json!(["e-1"]), json!("sent"), "1", Err(())),
        (json!(long), json!("sent"), "1", Err(())),
    ] {
        let body = json!({"type": "x", "envelope": {"id": id}, "event": event}).to_string();
        let request = signed(&sender, &secret, &body).and("x-part", part);
        let answered = receive(secret.clone(), &sender, request).await;
        match expected {
            Ok(key) => {
                let read: Event = serde_json::from_slice(&answered.body).unwrap();
                let key = key.map(|key| key.replace('\\', r"\\"));
                assert_eq!(read, ("x".to_owned(), key));
            }
            Err(()) => answered.assert_problem(400, "unreadable-event"),
        }
    }
    // A part that is missing, and one that stands twice.
    let body = r#"{"type":"x","event":"sent"}"#;
    let request = || signed(&sender, &secret, body).and("x-part", "1");
    let answered = receive(secret.clone(), &sender, request()).await;
    assert_eq!(answered.body, r#"["x",null]"#);
    let body = r#"{"type":"x","envelope":{"id":"1"},"event":"sent"}"#;
    let request = signed(&sender, &secret, body).and("x-part", "1");
    receive(secret.clone(), &sender, request.and("x-part", "2"))
        .await
        .assert_problem(400, "conflicting-keys");

    for (content, covers) in [("{body}", false), ("{x-part}.{body}", true)] {
        let changes = json!({"key": {"join": ["/id", "x-part"]}, "signature.content": content});
        assert_eq!(described(changes).unwrap().covers_key(), covers);
    }
}

/// Slack says so in a body without `event`, and asks again until it is acknowledged.
#[tokio::test]
async fn the_first_event_type_that_is_there_counts() {
    let secret = Secret::new("secret").unwrap();
    for (body, event) in [
        (
            r#"{"type":"app_rate_limited","team_id":"T1"}"#,
            r#"["app_rate_limited",null]"#,
        ),
        (
            r#"{"type":"event_callback","event_id":"Ev1","event":{"type":"message"}}"#,
            r#"["message","Ev1"]"#,
        ),
        // What leads to no text leads on.
        (r#"{"type":"a","event":{"type":["b"]}}"#, r#"["a",null]"#),
        (r#"{"type":"a","event":{"type":null}}"#, r#"["a",null]"#),
        (r#"{"type":"a","event":"b"}"#, r#"["a",null]"#),
        (r#"{"type":"a","event":null}"#, r#"["a",null]"#),
        (r#"{"type":"a","event":[]}"#, r#"["a",null]"#),
    ] {
        let slack = Sender::slack();
        let answered = receive(secret.clone(), &slack, signed(&slack, &secret, body)).await;
        assert_eq!(answered.body, event);
    }
    for body in [
        r#"{"type":["a"],"event":{"type":["b"]}}"#,
        r#"{"type":null,"event":{"type":null}}"#,
        r#"{"event":"b"}"#,
        r#"{"type":"a","event":{"type":"b"},"event":{}}"#,
        r#"{"event":{}}"#,
    ] {
        let slack = Sender::slack();
        let answered = receive(secret.clone(), &slack, signed(&slack, &secret, body)).await;
        answered.assert_problem(400, "unreadable-event");
    }
    let error = described(json!({"kind": ["/a", "x-b"]})).unwrap_err();
    assert!(
        error.contains("kind: \"x-b\" is no JSON pointer"),
        "{error}"
    );
    let error = described(json!({"kind": 7})).unwrap_err();
    assert!(error.contains("a list of JSON pointers"), "{error}");
}

#[tokio::test]
async fn a_refusal_says_what_was_expected_and_what_came() {
    let log = Log::capture(Level::WARN);
    let secret = Secret::new("c2VjcmV0").unwrap(); // As Svix writes it.
    let later = |sender: Sender, seconds: i64| {
        let now = NOW.checked_add_signed(seconds).unwrap();
        sender.with_clock(move || instant(now))
    };
    let linear = Sender::linear().with_clock(|| instant(NOW));
    let in_body = |unit| format!(r#"{{"type":"a","webhookTimestamp":{}}}"#, NOW * unit);
    let stripe = |body: &str| signed(&later(Sender::stripe(), 0), &secret, body);
    let github = || signed(&Sender::github(), &secret, BODY);
    let json = r#"{"id":"1"}"#;
    let typed = Sender::slack().with_clock(|| instant(NOW));
    for (sender, request, reason) in [
        (
            Sender::svix(),
            post(BODY),
            "the signature header is missing: expected `svix-signature` or `webhook-signature`",
        ),
        (
            Sender::stripe(),
            post(BODY).with("stripe-signature", "v1=ab,t=1"),
            r#"the signature is not in the sender's form, by default 64 lowercase hex digits: expected `stripe-signature` with "v1=" and 64 lowercase hex digits, `t=…`, separated by ','"#,
        ),
        (
            later(Sender::stripe(), 301),
            stripe(BODY),
            "the timestamp is 301 s old, and 300 s at most are accepted",
        ),
        (
            later(Sender::stripe(), -3600),
            stripe(BODY),
            "the timestamp is 3600 s ahead of this machine's clock, and 300 s at most are accepted",
        ),
        (
            later(Sender::stripe(), 0),
            post(BODY).with(
                "stripe-signature",
                format!("t={NOW}000,v1={}", "0".repeat(64)),
            ),
            "the timestamp is in milliseconds, and not in seconds",
        ),
        (
            later(Sender::stripe(), 0),
            post(BODY).with("stripe-signature", format!("t=now,v1={}", "0".repeat(64))),
            "the timestamp is missing or not in the sender's form: expected `t=…` in `stripe-signature` with seconds since 1970, as digits alone",
        ),
        (
            later(Sender::linear(), 28_801),
            signed(&linear, &secret, &in_body(1000)),
            "the timestamp is 28801 s old, and 28800 s at most are accepted",
        ),
        (
            linear.clone(),
            signed(
                &linear,
                &secret,
                &in_body(1000).replace(&format!("{NOW}000"), &format!("\"{NOW}000\"")),
            ),
            "the timestamp is missing or not in the sender's form: expected `/webhookTimestamp` of the body with a number",
        ),
        (
            Sender::svix(),
            post(BODY).with("webhook-signature", format!("v1,{}=", "A".repeat(43))),
            "the timestamp is missing or not in the sender's form: expected `webhook-timestamp` with seconds since 1970, as digits alone",
        ),
        (
            Sender::box_com(),
            post(BODY).with("box-signature-primary", format!("{}=", "A".repeat(43))),
            "a header that the sender signs is missing, empty or repeated: expected `box-signature-algorithm: HmacSHA256` or `box-signature-version: 1` or `box-delivery-timestamp`",
        ),
        (
            Sender::github(),
            github().with("content-type", "application/x-www-form-urlencoded"),
            "A delivery is `application/json` without a content encoding: `content-type` is `application/x-www-form-urlencoded`",
        ),
        (
            Sender::github(),
            github().with("content-encoding", "gzip"),
            "A delivery is `application/json` without a content encoding: `content-encoding` is `gzip`",
        ),
        (
            Sender::github(),
            github().without("x-github-event"),
            "The event header must occur exactly once and be a token of at most 128 bytes: there is no `x-github-event`",
        ),
        (
            Sender::github(),
            github().with("x-github-event", "a b"),
            "The event header must occur exactly once and be a token of at most 128 bytes: `x-github-event` is another text of 3 bytes",
        ),
        (
            later(Sender::stripe(), 0),
            stripe(json),
            "its event type is missing, or not 1 to 128 visible ASCII characters: expected in `/type` of the body",
        ),
        (
            typed.clone(),
            signed(&typed, &secret, json),
            "its event type is missing, or not 1 to 128 visible ASCII characters: expected in `/event/type`, else `/type` of the body",
        ),
    ] {
        log.clear();
        receive(secret.clone(), &sender, request).await;
        let events = log.events();
        assert_eq!(events[0]["reason"], reason, "{events:?}");
    }
}
