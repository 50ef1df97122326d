//! What few senders need: other algorithms and codings, tags beyond headers, lists in other forms, forms, joined types,
//! challenges of other shapes, answers of one's own.

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE, BASE64_URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256, Sha512};

use super::*;

const SECRET: &str = "secret";

fn secret() -> Secret {
    Secret::new(SECRET).unwrap()
}

fn hmac(content: impl AsRef<[u8]>) -> Vec<u8> {
    let hash = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).unwrap();
    hash.chain_update(content).finalize().into_bytes().to_vec()
}

fn at(seconds: u64) -> impl Fn() -> SystemTime {
    move || SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

async fn status(sender: &Sender, request: Request<Full<Bytes>>) -> u16 {
    receive(secret(), sender, request).await.status.as_u16()
}

#[tokio::test]
async fn sha_512_is_compared_in_full() {
    let changes = json!({"signature.algorithm": "hmac-sha512"});
    let sender = described(changes).unwrap();
    // As `openssl dgst -sha512 -hmac secret` signs it.
    let tag = "82fadfa2b2a294d589bb0599993fef30689bc8b783d77004ee7cee6c427fca596d76d6c1ecdf3c7dc7efa75f25d2d96cfc677f367d542d80f7d475ef4a01d872";
    let hash = Hmac::<Sha512>::new_from_slice(SECRET.as_bytes()).unwrap();
    assert_eq!(
        tag,
        hex::encode(hash.chain_update(BODY).finalize().into_bytes())
    );
    let signed = sender.sign(&secret(), &RawDelivery::new("x".parse().unwrap(), BODY));
    assert_eq!(signed.unwrap()["x-tag"], tag);
    for (tag, accepted) in [
        (tag, true),
        (&tag[..126], false),
        (&tag[..64], false),
        (&format!("{tag}00"), false),
        (&tag.to_uppercase(), false),
        (&tag.replace('8', "9"), false),
        ("", false),
    ] {
        let status = status(&sender, post(BODY).with("x-tag", tag)).await;
        assert_eq!(status, if accepted { 200 } else { 401 }, "{tag}");
    }
    let error = described(json!({"signature.algorithm": "hmac-sha512", "signature.secret": "hex"}));
    assert!(error.unwrap_err().contains("only `text` is allowed"));
}

#[tokio::test]
async fn base64_of_urls_may_lack_its_padding() {
    let sender = described(json!({"signature.coding": "base64url"})).unwrap();
    // A body whose tag has a character that only one alphabet has.
    let bodies = (0..99).map(|number| format!(r#"{{"id":"{number}","type":"a"}}"#));
    let mut bodies = bodies.filter(|body| BASE64_STANDARD.encode(hmac(body)).contains('/'));
    let body = bodies.next().unwrap();
    let tag = hmac(&body);
    let plain = BASE64_URL_SAFE_NO_PAD.encode(&tag);
    for (text, accepted) in [
        (BASE64_URL_SAFE.encode(&tag), true),
        (plain.clone(), true),
        (BASE64_STANDARD.encode(&tag), false),
        (format!("{plain}=="), false),
        (plain[1..].to_owned(), false),
        (format!("{plain}A"), false),
        (hex::encode(&tag), false),
    ] {
        let status = status(&sender, post(body.clone()).with("x-tag", &text)).await;
        assert_eq!(status, if accepted { 200 } else { 401 }, "{text}");
    }
}

#[tokio::test]
async fn basic_auth_is_a_token_in_base64() {
    let sender = described(json!({"signature": {
        "headers": ["authorization"], "algorithm": "token", "coding": "base64", "prefix": "Basic ",
    }}));
    let sender = sender.unwrap();
    let password = || Secret::new("user:pa:ss").unwrap();
    let long = BASE64_STANDARD.encode("x".repeat(5_000));
    for (value, accepted) in [
        (
            format!("Basic {}", BASE64_STANDARD.encode("user:pa:ss")),
            true,
        ),
        ("Basic user:pa:ss".to_owned(), false),
        (
            format!("Basic {}", BASE64_STANDARD.encode("user:pa")),
            false,
        ),
        (
            format!("Basic {}", BASE64_STANDARD.encode("user:pa:ss\0")),
            false,
        ),
        (
            format!("Bearer {}", BASE64_STANDARD.encode("user:pa:ss")),
            false,
        ),
        ("Basic ".to_owned(), false),
        ("Basic ====".to_owned(), false),
        (format!("Basic {long}"), false),
    ] {
        let request = post(BODY).with("authorization", &value);
        let answered = receive(password(), &sender, request).await;
        assert_eq!(answered.status == 200, accepted, "{value}");
    }
}

#[tokio::test]
async fn a_secret_may_be_read_in_two_codings() {
    let sender = described(json!({"signature.secret": "text-or-base64"})).unwrap();
    let written = || Secret::new("whsec_c2VjcmV0").unwrap();
    let tag = |key: &[u8]| {
        let hash = Hmac::<Sha256>::new_from_slice(key).unwrap();
        hex::encode(hash.chain_update(BODY).finalize().into_bytes())
    };
    for (key, accepted) in [
        (&b"whsec_c2VjcmV0"[..], true),
        (b"secret", true),
        (b"c2VjcmV0", false),
        (b"another", false),
    ] {
        let request = || post(BODY).with("x-tag", tag(key));
        let answered = receive(written(), &sender, request()).await;
        assert_eq!(answered.status == 200, accepted);
        let at_once = sender.verify(&written().into(), request().headers(), BODY.as_bytes());
        assert_eq!(at_once.is_ok(), accepted);
    }
    // One that is no base64 is a text.
    let request = signed(&sender, &Secret::new("no base64!").unwrap(), BODY);
    let answered = receive(Secret::new("no base64!").unwrap(), &sender, request).await;
    assert_eq!(answered.status, 200);
}

#[tokio::test]
async fn a_token_may_stand_in_the_body() {
    let token = json!({"headers": ["/auth/token"], "algorithm": "token"});
    let sender = described(json!({"signature": token})).unwrap();
    let with = |token: &str| format!(r#"{{"type":"a","auth":{{"token":{token}}}}}"#);
    let long = format!("\"{}\"", "x".repeat(100_000));
    for (body, accepted) in [
        (with("\"secret\""), true),
        (with("\"secre\""), false),
        (with("\"secret \""), false),
        (with("\"\""), false),
        (with("null"), false),
        (with("{}"), false),
        (with("[\"secret\"]"), false),
        (with("7"), false),
        (with(&long), false),
        (with("\"secret\",\"token\":\"secret\""), false),
        (r#"{"type":"a"}"#.to_owned(), false),
        ("\"secret\"".to_owned(), false),
        (String::new(), false),
        ("{".repeat(10_000), false),
        ("auth=secret".to_owned(), false),
    ] {
        let at_once = sender.verify(&secret().into(), post(BODY).headers(), body.as_bytes());
        assert_eq!(at_once.is_ok(), accepted, "{at_once:?}");
        let status = status(&sender, post(body)).await;
        assert_eq!(status, if accepted { 200 } else { 401 });
    }
    let described = |headers: Value, algorithm: &str| {
        let mut signature = json!({"headers": headers, "algorithm": algorithm});
        if algorithm != "token" {
            signature["coding"] = "hex".into();
        }
        described(json!({"signature": signature})).unwrap_err()
    };
    let error = described(json!(["/tag"]), "hmac-sha256");
    assert!(error.contains("only a token may stand there"), "{error}");
    let error = described(json!(["?a", "?b"]), "token");
    assert!(
        error.contains("`?b` is the second query parameter"),
        "{error}"
    );
    let error = described(json!(["?"]), "token");
    assert!(error.contains("`?` needs the name"), "{error}");
}

#[tokio::test]
async fn the_digest_of_a_body_may_be_signed() {
    let sender = described(json!({"signature.content": "{x-time}:{body sha256}:end"})).unwrap();
    let digest = hex::encode(Sha256::digest(BODY));
    let tag = hex::encode(hmac(format!("7:{digest}:end")));
    let head = HeaderMap::from_iter([("x-time".parse().unwrap(), HeaderValue::from_static("7"))]);
    let delivery = RawDelivery::new("x".parse().unwrap(), BODY).with_headers(head);
    assert_eq!(sender.sign(&secret(), &delivery).unwrap()["x-tag"], tag);
    for (body, time, accepted) in [
        (BODY, "7", true),
        (BODY, "8", false),
        ("{}", "7", false),
        (digest.as_str(), "7", false),
    ] {
        let request = post(body.to_owned())
            .with("x-tag", &tag)
            .with("x-time", time);
        let at_once = sender.verify(&secret().into(), request.headers(), body.as_bytes());
        assert_eq!(at_once.is_ok(), accepted, "{body}");
        assert_eq!(status(&sender, request).await == 200, accepted, "{body}");
    }
    for content in ["{body}{body sha256}", "{body sha256}{body sha256}"] {
        let error = described(json!({"signature.content": content})).unwrap_err();
        assert!(
            error.contains("exactly once") || error.contains("cannot be the name"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_tag_may_stand_in_one_of_a_hundred_headers() {
    let sender = described(json!({"signature.headers": ["x-tag-{1..100}"]})).unwrap();
    let tag = hex::encode(hmac(BODY));
    for number in [1, 9, 100] {
        let mut request = post(BODY).with(&format!("x-tag-{number}"), &tag);
        assert_eq!(status(&sender, request).await, 200);
        request = post(BODY)
            .with(&format!("x-tag-{number}"), &tag)
            .and(&format!("x-tag-{number}"), &tag);
        assert_eq!(status(&sender, request).await, 401);
    }
    let all = (1..=100).fold(post(BODY), |request, number| {
        let tag = if number == 77 {
            tag.clone()
        } else {
            "0".repeat(64)
        };
        request.with(&format!("x-tag-{number}"), tag)
    });
    assert_eq!(status(&sender, all).await, 200);
    for number in ["0", "101"] {
        let request = post(BODY).with(&format!("x-tag-{number}"), &tag);
        assert_eq!(status(&sender, request).await, 401);
    }
    for name in [
        "x-{1..101}",
        "x-{2..1}",
        "x-{1..}",
        "x-{a..b}",
        "x-{1..2",
        "x-{0..0}",
    ] {
        let error = described(json!({"signature.headers": [name]})).unwrap_err();
        assert!(error.contains("no range of numbers up to 100"), "{error}");
    }
    let error = described(json!({"signature.headers": ["x-{1..99}", "y-{1..2}"]})).unwrap_err();
    assert!(error.contains("name 1 to 100 headers"), "{error}");
}

fn of_pairs(more: Value) -> Result<Sender, String> {
    let mut changes = json!({
        "signature.split": ",", "signature.prefix": "v1=", "signature.content": "{element t}.{body}",
        "signature.timestamp": {"at": "element t", "unit": "seconds", "past": 300, "ahead": 300},
    });
    for (name, value) in more.as_object().unwrap() {
        changes[name] = value.clone();
    }
    Ok(described(changes)?.with_clock(at(1_790_000_000)))
}

#[tokio::test]
async fn blanks_and_lines_may_stand_in_a_list() {
    let strict = of_pairs(json!({})).unwrap();
    let lenient = of_pairs(json!({"signature.lenient": true})).unwrap();
    let tag = hex::encode(hmac(format!("1790000000.{BODY}")));
    let (time, tag) = ("t=1790000000", format!("v1={tag}"));
    let wrong = format!("v1={}", "0".repeat(64));
    for (lines, of_strict, of_lenient) in [
        (vec![format!("{time},{tag}")], true, true),
        (vec![format!("{time}, {tag}")], false, true),
        (vec![format!(" {time} ,\t{tag} ")], false, true),
        (vec![time.to_owned(), tag.clone()], false, true),
        (vec![format!("{time},{wrong}"), tag.clone()], false, true),
        (
            vec![format!("{time}, {tag}"), time.to_owned()],
            false,
            false,
        ),
        (vec![format!("{time}, {tag} x")], false, false),
        (
            vec![format!("{time}, {}", [tag.as_str(); 9].join(", "))],
            false,
            false,
        ),
        (vec![tag.clone()], false, false),
        (vec![String::new()], false, false),
    ] {
        for (sender, accepted) in [(&strict, of_strict), (&lenient, of_lenient)] {
            let lines = lines.iter();
            let request = lines.fold(post(BODY), |request, line| request.and("x-tag", line));
            assert_eq!(status(sender, request).await == 200, accepted);
        }
    }
    let error = described(json!({"signature.lenient": true})).unwrap_err();
    assert!(
        error.contains("signature.lenient: without a `split`"),
        "{error}"
    );
}

#[tokio::test]
async fn of_two_lists_one_is_enough() {
    let sender = of_pairs(json!({"signature.lists": " "})).unwrap();
    let pair = |time: u64| {
        format!(
            "t={time},v1={}",
            hex::encode(hmac(format!("{time}.{BODY}")))
        )
    };
    let (now, earlier) = (pair(1_790_000_000), pair(1_789_999_999));
    let wrong = format!("t=1790000000,v1={}", "0".repeat(64));
    for (value, accepted) in [
        (now.clone(), true),
        (format!("{now} {earlier}"), true),
        (format!("{wrong} {now}"), true),
        (format!("{now} {wrong}"), true),
        (format!("{earlier}  {wrong}"), true),
        (format!("{wrong} {wrong}"), false),
        (format!("{now} {now} {now}"), false),
        // The time of one does not belong to the tag of the other.
        (format!("t=1789999999,{} {wrong}", &now[13..]), false),
        (format!("{now} {}", pair(1_780_000_000)), false),
        (format!("{now} t=1"), false),
        (format!("{now},{earlier}"), false),
        (" ".to_owned(), false),
        (" ".repeat(10_000), false),
    ] {
        let request = || post(BODY).with("x-tag", &value);
        let at_once = sender.verify(&secret().into(), request().headers(), BODY.as_bytes());
        assert_eq!(at_once.is_ok(), accepted, "{value}");
        assert_eq!(status(&sender, request()).await == 200, accepted, "{value}");
    }
    for lists in [",", "|"] {
        let error = of_pairs(json!({"signature.lists": lists})).unwrap_err();
        assert!(
            error.contains("signature.lists: use a space, `,` or `;`, beside"),
            "{error}"
        );
    }
    let error = of_pairs(json!({"signature.lists": " ", "signature.headers": ["a", "b"]}));
    assert!(error.unwrap_err().contains("they stand in one header"));
}

#[tokio::test]
async fn a_type_may_be_joined_or_missing() {
    let joined = json!({"join": ["x-event", "/action"], "with": "."});
    let of_body = json!({"at": ["/type", "/kind"], "default": "other"});
    let both = json!({"join": ["/object", "/action"], "default": "other"});
    for (kind, body, event) in [
        (&joined, r#"{"action":"opened"}"#, Some("issues.opened")),
        (&joined, r#"{"action":7}"#, Some("issues.7")),
        (&joined, r#"{"action":""}"#, None),
        (&joined, r#"{"action":null}"#, None),
        (&joined, "{}", None),
        (&joined, r#"{"action":"a b"}"#, None),
        (&of_body, r#"{"kind":"a"}"#, Some("a")),
        (&of_body, "{}", Some("other")),
        (&of_body, "[]", Some("other")),
        (&of_body, r#"[{"type":"a"}]"#, Some("other")),
        (&of_body, r#"{"type":["a"]}"#, None),
        (&of_body, "no JSON", None),
        (&both, r#"{"object":"a","action":"b"}"#, Some("a.b")),
        (&both, r#"{"object":"a"}"#, Some("other")),
    ] {
        let sender = described(json!({"kind": kind, "key": "x-key"})).unwrap();
        let request = signed(&sender, &secret(), body).with("x-event", "issues");
        let answered = receive(secret(), &sender, request).await;
        match event {
            Some(event) => assert_eq!(answered.body, format!("[\"{event}\",null]")),
            None => answered.assert_problem(400, "unreadable-event"),
        }
    }
    let sender = described(json!({"kind": joined})).unwrap();
    let twice = signed(&sender, &secret(), r#"{"action":"a"}"#)
        .with("x-event", "a")
        .and("x-event", "b");
    receive(secret(), &sender, twice)
        .await
        .assert_problem(400, "invalid-event-header");
    for (kind, text) in [
        (json!({"join": ["/a"]}), "kind: use `join` with 2 to 8"),
        (json!({"at": "/a"}), "kind: use `join` with 2 to 8"),
        (
            json!({"at": "/a", "join": ["/a", "/b"], "default": "x"}),
            "kind: use `join` with 2 to 8",
        ),
        (
            json!({"at": "/a", "default": "a b"}),
            "kind.default: use 1 to 128 visible",
        ),
        (json!({"join": ["/a", "/~"]}), "kind.join: \"/~\" has a `~`"),
    ] {
        let error = described(json!({"kind": kind})).unwrap_err();
        assert!(error.contains(text), "{error}");
    }
}

#[tokio::test]
async fn pointers_reach_the_fields_of_a_form() {
    const FORM: &str = "application/x-www-form-urlencoded";
    let sender =
        described(json!({"content-types": [FORM, "application/json"], "order": "/team"})).unwrap();
    let nested =
        described(json!({"content-types": [FORM], "kind": "/payload/type", "key": "/payload/id"}))
            .unwrap();
    let many = format!("type=a&{}", "b=c&".repeat(5_000));
    for (sender, body, event) in [
        (
            &sender,
            "type=%2Fdeploy&id=1.2&text=a+b",
            Some(r#"["/deploy","1.2"]"#),
        ),
        (&sender, BODY, Some(r#"["orders/create","1"]"#)),
        (&sender, "type=a", Some(r#"["a",null]"#)),
        (&sender, "type=a&x=1&x=2", Some(r#"["a",null]"#)),
        (&sender, "type=a&type=b", None),
        (&sender, "type=a&id=1&%69d=2", None),
        (&sender, "type=a%00", None),
        (&sender, "type=a&id=%00", None),
        (&sender, "type=a&id=%", None),
        (&sender, "type=a&id=%ff", None),
        (&sender, "", None),
        (&sender, &many, None),
        (
            &nested,
            "payload=%7B%22type%22%3A%22x%22%2C%22id%22%3A%221%22%7D",
            Some(r#"["x","1"]"#),
        ),
        (&nested, "payload=%7B%22type%22", None),
        (&nested, "payload=x", None),
    ] {
        let request = signed(sender, &secret(), body).with("content-type", FORM);
        let answered = receive(secret(), sender, request).await;
        match event {
            Some(event) => assert_eq!(answered.body, event, "{body}"),
            None => answered.assert_problem(400, "unreadable-event"),
        }
    }
    for content_type in [
        "text/plain",
        "multipart/form-data",
        "application/x-www-form-urlencodedx",
        "",
    ] {
        let request = signed(&sender, &secret(), "type=a").with("content-type", content_type);
        receive(secret(), &sender, request)
            .await
            .assert_problem(415, "unsupported-media-type");
    }
    // The bytes are signed as they arrive.
    let mut changed = signed(&sender, &secret(), "type=a&id=1");
    *changed.body_mut() = Full::from("id=1&type=a");
    assert_eq!(status(&sender, changed).await, 401);
}

#[tokio::test]
async fn other_content_types_are_accepted_where_a_description_says_so() {
    let all = ["application/json", "application/*+json", "text/plain"];
    for (types, content_type, accepted) in [
        (&all[..1], "application/json", true),
        (&all[1..2], "application/json", false),
        (&all[1..2], "application/cloudevents+json", true),
        (&all[1..2], "Application/Webhook+JSON; charset=utf-8", true),
        (&all[1..2], "application/+json", false),
        (&all[1..2], "text/x+json", false),
        (&all[2..], "text/plain; charset=UTF-8", true),
        (&all[2..], "text/html", false),
        (&all[..], "application/json", true),
    ] {
        let sender = described(json!({"content-types": types})).unwrap();
        let request = signed(&sender, &secret(), BODY).with("content-type", content_type);
        let expected = if accepted { 200 } else { 415 };
        assert_eq!(status(&sender, request).await, expected, "{content_type}");
    }
    for (types, text) in [
        (json!(["text/html"]), "unknown variant `text/html`"),
        (
            json!(["text/plain", "text/plain"]),
            "content-types: one of them stands twice",
        ),
    ] {
        let error = described(json!({"content-types": types})).unwrap_err();
        assert!(error.contains(text), "{error}");
    }
}

async fn asked(sender: &Sender, request: http::request::Builder, body: &'static str) -> Answered {
    receive(secret(), sender, request.body(Full::from(body)).unwrap()).await
}

#[tokio::test]
async fn challenges_have_other_methods_and_places() {
    let of = |challenge: Value| described(json!({"challenge": [challenge]})).unwrap();
    let constant = json!({"constant": {"status": 200}});
    let head = of(json!({"proof": "none", "method": "HEAD", "answer": constant}));
    let origin =
        json!({"header": {"pointer": "webhook-request-origin", "name": "webhook-allowed-origin"}});
    let options = of(json!({"proof": "none", "method": "OPTIONS", "answer": origin}));
    let okta = json!({"json": {"pointer": "x-challenge", "field": "verification"}});
    let okta = of(json!({"proof": "none", "answer": okta}));

    assert_eq!(asked(&head, Request::head("/"), "").await.status, 200);
    asked(&head, Request::get("/"), "")
        .await
        .assert_problem(405, "method-not-allowed");
    let answered = asked(
        &options,
        Request::options("/").header("webhook-request-origin", "example.com"),
        "",
    )
    .await;
    assert_eq!(
        (
            answered.status.as_u16(),
            answered.header("webhook-allowed-origin")
        ),
        (200, Some("example.com"))
    );
    asked(&options, Request::options("/"), "")
        .await
        .assert_problem(405, "method-not-allowed");
    let twice = Request::options("/")
        .header("webhook-request-origin", "a")
        .header("webhook-request-origin", "b");
    asked(&options, twice, "")
        .await
        .assert_problem(403, "invalid-challenge");
    let answered = asked(&okta, Request::get("/").header("x-challenge", "abc_1"), "").await;
    assert_eq!(answered.body, r#"{"verification":"abc_1"}"#);
    for text in ["a\"b", "<b>", "{}", "", "a b", &"x".repeat(513)] {
        let request = Request::get("/").header("x-challenge", text);
        asked(&okta, request, "")
            .await
            .assert_problem(403, "invalid-challenge");
    }
}

/// As Microsoft Graph asks.
#[tokio::test]
async fn a_post_that_proves_nothing_is_a_challenge_only_without_a_body() {
    let sender = described(json!({"challenge": [{
        "proof": "none", "method": "POST", "when": {"?validationToken": true}, "answer": {"raw": "?validationToken"},
    }]}));
    let sender = sender.unwrap();
    let target = "/?validationToken=Validation%3A+a%2Bb";
    let post = |target: &'static str, length: &'static str| {
        Request::post(target).header("content-length", length)
    };
    for (target, text) in [
        ("/?validationToken=a%2Bb&x", "a+b"),
        ("/?validationToken=a-b", "a-b"),
        (target, "Validation: a+b"),
    ] {
        let answered = asked(&sender, post(target, "0"), "").await;
        assert_eq!(
            (answered.status.as_u16(), &answered.body[..]),
            (200, text.as_bytes())
        );
        assert_eq!(answered.header("content-type"), Some("text/plain"));
    }
    let twice = "/?validationToken=a&validationToken=b";
    asked(&sender, post(twice, "0"), "")
        .await
        .assert_problem(403, "invalid-challenge");
    // With an event, it is a delivery that is not signed.
    for request in [
        post("/?validationToken=a", "2"),
        post("/?validationToken=a", "00"),
        Request::post("/?validationToken=a").header("transfer-encoding", "chunked"),
        Request::post("/?validationToken=a"),
        post("/?other=a", "0"),
        post("/", "0"),
    ] {
        asked(&sender, request, "{}")
            .await
            .assert_problem(401, "invalid-signature");
    }
}

/// As X asks.
#[tokio::test]
async fn a_get_is_answered_with_an_hmac_only_for_a_plain_token() {
    let hmac_of = |answer: Value| {
        described(json!({"challenge": [{"proof": "none", "answer": {"hmac": answer}}]})).unwrap()
    };
    let x = hmac_of(
        json!({"pointer": "?crc_token", "tag": "response_token", "coding": "base64", "prefix": "sha256="}),
    );
    let linkedin = hmac_of(json!({"pointer": "?code", "plain": "code", "tag": "response"}));
    let tag = hmac("a_Z/0+=-");
    let answered = asked(&x, Request::get("/?crc_token=a_Z/0%2B%3D-"), "").await;
    let expected = format!("sha256={}", BASE64_STANDARD.encode(&tag));
    assert_eq!(
        answered.body,
        json!({"response_token": expected}).to_string()
    );
    let answered = asked(&linkedin, Request::get("/?code=a_Z/0%2B%3D-"), "").await;
    assert_eq!(
        answered.body,
        json!({"code": "a_Z/0+=-", "response": hex::encode(&tag)}).to_string()
    );
    // No body can be signed by it.
    for token in [
        "%7B%7D",
        "%5B%5D",
        "1.2",
        "a%20b",
        "hmacsha256%3A",
        "%22a%22",
        "",
        "%",
        "a&crc_token=b",
        "a&code=b",
    ] {
        for (sender, name) in [(&x, "crc_token"), (&linkedin, "code")] {
            if token.contains("&") && !token.contains(name) {
                continue;
            }
            let answered = asked(sender, Request::get(format!("/?{name}={token}")), "").await;
            answered.assert_problem(403, "invalid-challenge");
        }
    }
    asked(&x, Request::get("/"), "")
        .await
        .assert_problem(405, "method-not-allowed");
    asked(
        &x,
        Request::post("/?crc_token=a").header("content-length", "0"),
        "",
    )
    .await
    .assert_problem(401, "invalid-signature");
}

#[tokio::test]
async fn a_signed_challenge_may_be_answered_with_the_hmac_alone() {
    let sender = described(json!({"challenge": [{
        "when": {"/type": "VERIFY"},
        "answer": {"hmac": {"pointer": "/challenge", "tag": "challenge"}},
    }]}));
    let sender = sender.unwrap();
    let request = signed(
        &sender,
        &secret(),
        r#"{"type":"VERIFY","challenge":"{no-token}"}"#,
    );
    let answered = receive(secret(), &sender, request).await;
    let expected = json!({"challenge": hex::encode(hmac("{no-token}"))});
    assert_eq!(answered.body, expected.to_string());
}

#[cfg(feature = "moka")]
#[tokio::test]
async fn a_success_has_the_status_and_body_that_its_sender_wants() {
    use tower_webhook::EventRouter;

    for (success, status, content_type, body) in [
        (
            json!({"body": "[accepted]"}),
            200,
            Some("text/plain"),
            "[accepted]",
        ),
        (json!({"status": 202}), 202, None, ""),
        (
            json!({"status": 201, "body": {"code": "200"}}),
            201,
            Some("application/json"),
            r#"{"code":"200"}"#,
        ),
    ] {
        let sender = described(json!({"success": success, "key": "/id", "kind": "/type"})).unwrap();
        let webhooks = Webhooks::new(secret()).sender(sender.clone());
        let (service, _) = webhooks.start(EventRouter::new()).unwrap();
        let answered = send(&service, signed(&sender, &secret(), BODY)).await;
        assert_eq!(answered.status, status);
        assert_eq!(answered.header("content-type"), content_type);
        assert_eq!(answered.body, body);
        // So is what is sent again, and no refusal.
        let again = send(&service, signed(&sender, &secret(), BODY)).await;
        assert_eq!(
            (again.status.as_u16(), &again.body[..]),
            (status, body.as_bytes())
        );
        // A service that answers itself keeps its answer.
        let layer = Webhooks::new(secret())
            .sender(sender.clone())
            .into_signature_layer();
        let service_of_one = layer.unwrap().layer(service_fn(event));
        let own = send(&service_of_one, signed(&sender, &secret(), BODY)).await;
        assert_eq!(
            (own.status.as_u16(), &own.body[..]),
            (200, &br#"["orders/create","1"]"#[..])
        );
        send(&service, post(BODY))
            .await
            .assert_problem(401, "invalid-signature");
        send(&service, signed(&sender, &secret(), "{}"))
            .await
            .assert_problem(400, "unreadable-event");
    }
    for (success, text) in [
        (
            json!({"status": 404}),
            "success: use a status of 200 to 299",
        ),
        (
            json!({"status": 204, "body": "x"}),
            "and 204 without a body",
        ),
        (json!({"text": "x"}), "unknown field `text`"),
    ] {
        let error = described(json!({"success": success})).unwrap_err();
        assert!(error.contains(text), "{error}");
    }
}

#[cfg(feature = "moka")]
#[tokio::test]
async fn a_success_is_that_of_the_sender_that_was_read_last() {
    use tower_webhook::EventRouter;

    let sender = |success: Value| {
        described(json!({"success": success, "key": "/id", "kind": "/type"})).unwrap()
    };
    for first in [Value::Null, json!({"status": 202})] {
        let webhooks = Webhooks::new(secret()).sender(sender(first));
        let (mut service, _) = webhooks.start(EventRouter::new()).unwrap();
        for (next, status, body) in [
            (json!({"status": 202}), 202, ""),
            (json!({"body": "[accepted]"}), 200, "[accepted]"),
            (Value::Null, 200, ""),
        ] {
            service = service.with_sender(sender(next), secret()).unwrap();
            let request = signed(&sender(Value::Null), &secret(), BODY);
            let answered = send(&service, request).await;
            assert_eq!(
                (answered.status.as_u16(), &answered.body[..]),
                (status, body.as_bytes())
            );
        }
    }
}

#[tokio::test]
async fn a_sender_of_large_bodies_has_its_own_limit() {
    let sender = described(json!({"max-body": 2 << 20, "kind": null, "key": null})).unwrap();
    assert_eq!(sender.max_body(), Some(2 << 20));
    let body = |bytes: usize| format!("{{}}{}", " ".repeat(bytes - 2));
    for (limit, bytes, expected) in [
        (None, 2 << 20, 200),
        (None, (2 << 20) + 1, 413),
        (Some(1000), 1001, 413),
        (Some(3 << 20), 3 << 20, 200),
    ] {
        let mut webhooks = Webhooks::new(secret());
        if let Some(limit) = limit {
            webhooks = webhooks.max_body(limit);
        }
        let layer = webhooks
            .sender(sender.clone())
            .into_signature_layer()
            .unwrap();
        let request = signed(&sender, &secret(), &body(bytes));
        let answered = send(&layer.layer(service_fn(event)), request).await;
        assert_eq!(answered.status, expected);
    }
}

#[tokio::test]
async fn what_was_copied_with_too_much_is_said_at_the_start() {
    let log = Log::capture(Level::WARN);
    for (text, mistake) in [
        ("secret\n", Some("a line end")),
        ("sec\rret", Some("a line end")),
        (" secret", Some("a blank at its beginning or end")),
        ("\"secret\"", Some("quotes around it")),
        ("'secret'", Some("quotes around it")),
        ("'", None),
        ("se cret", None),
        ("secret", None),
    ] {
        log.clear();
        let webhooks = Webhooks::new(Secret::new(text).unwrap().with_label("since May"));
        let layer = webhooks.sender(Sender::github()).into_signature_layer();
        drop(layer.unwrap());
        let lines = format!("{:?}", log.events());
        match mistake {
            Some(mistake) => assert!(
                lines.contains(mistake) && lines.contains("since May"),
                "{lines}"
            ),
            None => assert_eq!(lines, "[]"),
        }
        assert!(!lines.contains("secret\\n\""), "{lines}");
    }
}

#[test]
fn a_url_that_no_sender_can_have_is_refused() {
    for url in [
        "",
        "example.com/hooks",
        "/hooks",
        "ftp://example.com",
        "https://example.com/#a",
        "https://",
        "https://a b/",
        " https://example.com/",
    ] {
        let error = described(json!({"url": url})).unwrap_err();
        assert!(
            error.contains("is no URL as it is configured"),
            "{url}: {error}"
        );
        assert!(Sender::named("square", Some(url)).is_err(), "{url}");
    }
    for url in ["https://example.com", "http://localhost:3000/hooks?a=b"] {
        assert!(described(json!({"url": url})).is_ok(), "{url}");
    }
}

#[test]
fn a_window_that_ends_before_the_retries_do_is_refused() {
    let time = |past: u32| json!({"at": "/time", "unit": "seconds", "past": past, "ahead": 5});
    for (past, policy, text) in [
        (300, json!({"repeats-for": 300}), None),
        (
            300,
            json!({"repeats-for": 301}),
            Some("use at least 301, the time of `policy.repeats-for`"),
        ),
        (300, json!({}), None),
        (691_200, json!({}), None),
        (
            691_201,
            json!({}),
            Some("use at most 691200, a day more than `policy.retry-for`"),
        ),
        (86_401, json!({"retry-for": 0}), Some("use at most 86400")),
    ] {
        let read = described(json!({"signature.timestamp": time(past), "policy": policy}));
        match text {
            None => assert!(read.is_ok(), "{read:?}"),
            Some(text) => assert!(read.as_ref().is_err_and(|it| it.contains(text)), "{read:?}"),
        }
    }
}

#[cfg(feature = "moka")]
#[tokio::test]
async fn a_route_decides_what_equal_bodies_are() {
    let sender = described(json!({"key": "x-key"})).unwrap();
    let under = |key: &'static str| signed(&sender, &secret(), BODY).with("x-key", key);
    for (set, expected) in [
        (&[][..], 422),
        (&["equal"][..], 200),
        (&["equal", "guard"], 422),
        (&["guard", "equal"], 200),
    ] {
        let webhooks = Webhooks::new(secret()).sender(sender.clone());
        let webhooks = set.iter().fold(webhooks, |webhooks, it| match *it {
            "equal" => webhooks.equal_bodies(),
            _ => webhooks.replay_guard(),
        });
        let (service, _) = webhooks.start(service_fn(event)).unwrap();
        assert_eq!(send(&service, under("a")).await.status, 200);
        assert_eq!(send(&service, under("b")).await.status, expected, "{set:?}");
    }
}

#[cfg(feature = "moka")]
#[tokio::test]
async fn a_handler_that_outlasts_the_deadline_is_warned_of() {
    let log = Log::capture(Level::WARN);
    for (deadline, timeout, warns) in [
        (Some(3), None, true),
        (Some(3), Some(2), false),
        (Some(30), None, false),
        (None, None, false),
    ] {
        log.clear();
        let sender = described(json!({"policy": {"deadline": deadline}})).unwrap();
        let mut webhooks = Webhooks::new(secret()).sender(sender);
        if let Some(seconds) = timeout {
            webhooks = webhooks.handler_timeout(Duration::from_secs(seconds));
        }
        drop(webhooks.start(service_fn(event)).unwrap());
        let lines = format!("{:?}", log.events());
        assert_eq!(lines.contains("stops waiting"), warns, "{lines}");
    }
}

/// X asks with a GET, for the HMAC of a text that anybody may choose.
#[tokio::test]
async fn what_anybody_may_have_signed_is_no_delivery() {
    let sender = Sender::named("twitter", None).unwrap();
    for (body, accepted) in [
        ("12345", false),
        ("true", false),
        ("abc", false),
        ("{}", true),
    ] {
        let delivery = RawDelivery::new(EventKind::from_static("twitter"), body);
        let mut request = post(body);
        *request.headers_mut() = sender.sign(&secret(), &delivery).unwrap();
        let answered = receive(secret(), &sender, request).await;
        assert_eq!(answered.status == 200, accepted, "{body}: {answered:?}");
    }
    let form = json!({
        "content-types": ["application/x-www-form-urlencoded"],
        "challenge": [{"proof": "none", "answer": {"hmac": {"pointer": "?t", "tag": "tag", "coding": "hex"}}}],
    });
    let error = described(form).unwrap_err();
    assert!(error.contains("signs texts for anybody"), "{error}");
}
