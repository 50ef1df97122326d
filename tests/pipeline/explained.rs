//! A captured request is explained: for each known sender a right one, and each kind of wrong one.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request};
use serde_json::{Value, json};
use tower_webhook::signature::{Explanation, Finding};
use tower_webhook::{EventKind, IdempotencyKey, RawDelivery, Secret, Secrets, Sender};

/// A sender, what signs in its place, and what verifies.
struct Known {
    sender: Sender,
    signs: String,
    secrets: Secrets,
    described: Value,
}

const URL: &str = "https://example.com/hook";
const NOW: Duration = Duration::from_secs(1_790_000_000);

fn clock() -> SystemTime {
    SystemTime::UNIX_EPOCH + NOW
}

/// The private and the public key of a file.
fn pair(file: &'static str) -> (&'static str, &'static str) {
    let text = |name: &str| {
        let (_, rest) = file.split_once(&format!("\"{name}\":")).unwrap();
        rest.split('"').nth(1).unwrap()
    };
    (text("private"), text("secret"))
}

impl Known {
    fn new(name: &str) -> Self {
        let described: Value = serde_json::from_str(Sender::profile(name).unwrap()).unwrap();
        let signature = &described["signature"];
        let (signs, verifies) = match (
            signature["algorithm"].as_str().unwrap(),
            signature["secret"].as_str(),
        ) {
            ("ed25519", _) => (
                "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==",
                "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=",
            ),
            ("ecdsa-p256", _) => pair(include_str!("../fixtures/senders/sendgrid.json")),
            ("rsa-sha256", _) => pair(include_str!("../fixtures/rsa.json")),
            (_, Some("base64")) => ("whsec_c2VjcmV0IG9mIHRlc3Rz", "whsec_c2VjcmV0IG9mIHRlc3Rz"),
            (_, Some("hex")) => ("5ec2e7", "5ec2e7"),
            _ => ("correct-horse", "correct-horse"),
        };
        let sender = Sender::named(name, None).or_else(|_| Sender::named(name, Some(URL)));
        Self {
            sender: sender.unwrap().with_clock(clock),
            signs: signs.to_owned(),
            secrets: Secret::new(verifies).unwrap().into(),
            described,
        }
    }

    fn all() -> impl Iterator<Item = Self> {
        Sender::PROFILES.iter().map(|it| Self::new(it))
    }

    fn request(&self) -> Request<Bytes> {
        let key: IdempotencyKey = "key-1".parse().unwrap();
        let delivery = self.sender.sample(&self.kind(), &key).unwrap();
        let delivery = self.sender.put_token(delivery, &self.signs);
        let mut request = Request::post("/hook")
            .body(delivery.body().clone())
            .unwrap();
        let secret = Secret::new(self.signs.as_str()).unwrap();
        *request.headers_mut() = self.sender.sign(&secret, &delivery).unwrap();
        request.headers_mut().extend(self.sender.token(&self.signs));
        request
    }

    fn explain(&self, request: &Request<Bytes>) -> Explanation {
        let explained = self.sender.explain(&self.secrets, request);
        for step in explained.steps() {
            assert!(!step.text.contains(&self.signs), "{explained:?}");
            assert!(!step.text.contains(":\"key-1\""), "{explained:?}");
            assert!(!step.text.contains('\n'), "{explained:?}");
        }
        explained
    }

    /// That of the signature. `None` if a token stands in the body.
    fn header(&self, request: &Request<Bytes>) -> Option<HeaderName> {
        let family = self.described["families"][0].as_str().unwrap_or_default();
        let headers = self.described["signature"]["headers"].as_array().unwrap();
        let names = headers
            .iter()
            .map(|it| it.as_str().unwrap().replace('*', family));
        let names = names.map(|it| it.replace("{1..100}", "1"));
        let mut names = names.filter_map(|it| HeaderName::try_from(it).ok());
        names.find(|it| request.headers().contains_key(it))
    }

    /// Of two texts, where it is joined of as many.
    fn kind(&self) -> EventKind {
        EventKind::from_static("push.made")
    }

    fn is_token(&self) -> bool {
        self.described["signature"]["algorithm"] == "token"
    }

    fn is_hmac(&self) -> bool {
        let algorithm = self.described["signature"]["algorithm"].as_str().unwrap();
        algorithm.starts_with("hmac-")
    }

    fn name(&self) -> &str {
        self.sender.name()
    }
}

#[track_caller]
fn assert_wrong(name: &str, explained: &Explanation, text: &str) {
    let mut steps = explained.steps().iter();
    let found = steps.any(|it| it.finding == Finding::Wrong && it.text.contains(text));
    assert!(found, "{name}, {text}: {explained:#?}");
}

#[track_caller]
fn assert_noted(name: &str, explained: &Explanation, text: &str) {
    let mut steps = explained.steps().iter();
    let found = steps.any(|it| it.finding == Finding::Note && it.text.contains(text));
    assert!(found, "{name}, {text}: {explained:#?}");
}

#[test]
fn a_right_request_of_each_sender_is_accepted() {
    let mut count = 0;
    for known in Known::all() {
        let request = known.request();
        let explained = known.explain(&request);
        assert!(
            explained.is_accepted() && explained.is_signed(),
            "{}: {explained:#?}",
            known.name()
        );
        let last = &explained.steps().last().unwrap().text;
        let described = &known.described;
        let kind = if described["kind"].is_null() {
            known.name()
        } else {
            "push.made"
        };
        assert!(
            last.contains(&format!("its event type is `{kind}`")),
            "{last}"
        );
        let has_key = !described["key"].is_null();
        let is_joined = described["key"].is_object();
        assert_eq!(
            last.contains("its key is `key-1`"),
            has_key && !is_joined,
            "{last}"
        );
        assert_eq!(last.contains("its key is `["), is_joined, "{last}");
        // As the layer judges it.
        let verified = known
            .sender
            .verify(&known.secrets, request.headers(), request.body());
        assert_eq!(verified, Ok(0));
        count += 1;
    }
    assert_eq!(count, Sender::PROFILES.len());
}

#[test]
fn a_sample_of_each_key_has_a_body_of_its_own() {
    for known in Known::all().filter(|it| it.name() != "chat-platform") {
        let kind = known.kind();
        let is_form = known.name().starts_with("slack-");
        let body = |key: &str| {
            let sample = known.sender.sample(&kind, &key.parse().unwrap()).unwrap();
            let json = serde_json::from_slice::<Value>(sample.body());
            assert_eq!(json.is_ok(), !is_form, "{}", known.name());
            sample.body().clone()
        };
        assert_ne!(body("key-1"), body("key-2"), "{}", known.name());
    }
    let clash = json!({
        "name": "acme", "key": "/a/b", "kind": "/a",
        "signature": { "headers": ["x-tag"], "algorithm": "hmac-sha256", "coding": "hex" },
    });
    let clash: Sender = serde_json::from_value(clash).unwrap();
    let sample = clash.sample(&EventKind::from_static("push"), &"key-1".parse().unwrap());
    assert!(
        sample
            .unwrap_err()
            .to_string()
            .contains("leads through another")
    );
}

#[test]
fn what_is_wrong_with_the_signature_header_is_named() {
    for known in Known::all() {
        let (name, right) = (known.name(), known.request());
        let Some(header) = known.header(&right) else {
            let mut request = right;
            *request.body_mut() = "{}".into();
            assert_wrong(name, &known.explain(&request), "of the body");
            continue;
        };
        let with = |change: &dyn Fn(&mut Request<Bytes>)| {
            let mut request = right.clone();
            change(&mut request);
            known.explain(&request)
        };
        let missing = with(&|it| drop(it.headers_mut().remove(&header)));
        assert_wrong(name, &missing, &format!("expected `{header}`"));
        assert!(!missing.is_signed());
        let value = right.headers()[&header].clone();
        let doubled = with(&|it| _ = it.headers_mut().append(&header, value.clone()));
        // Lines of a lenient header are one list, with an element twice.
        let twice = match known.described["signature"]["lenient"] == true {
            true => "there are several".to_owned(),
            false => format!("`{header}` is there 2 times, and not once"),
        };
        assert_wrong(name, &doubled, &twice);
        if known.is_token() {
            continue;
        }
        let text = value.to_str().unwrap();
        let set = |text: &str| {
            let value = HeaderValue::from_str(text).unwrap();
            with(&|it| drop(it.headers_mut().insert(&header, value.clone())))
        };
        for (text, form) in [
            (text[..text.len() - 3].to_owned(), "expected"),
            (String::new(), ""),
            ("hello".to_owned(), ""),
        ] {
            let explained = set(&text);
            assert!(
                !explained.is_accepted() && !explained.is_signed(),
                "{name} {text}: {explained:#?}"
            );
            assert_wrong(name, &explained, form);
        }
        // Cut anywhere, such as within the name of an element.
        for end in 0..text.len() - 3 {
            let explained = set(&text[..end]);
            assert!(!explained.is_signed(), "{name} {end}: {explained:#?}");
        }
    }
}

#[test]
fn an_element_without_a_value_is_named() {
    let sender = Sender::named("stripe", None).unwrap();
    let request = Request::post("/hook").header("stripe-signature", "t, v1=00");
    let secrets = Secret::new("correct-horse").unwrap().into();
    let explained = sender.explain(&secrets, &request.body(Bytes::new()).unwrap());
    assert_wrong(
        "stripe",
        &explained,
        "its element `t` has no value: expected `t=`",
    );
}

#[test]
fn what_is_wrong_with_a_tag_is_said() {
    let known = Known::new("github");
    let right = known.request();
    let value = right.headers()["x-hub-signature-256"]
        .to_str()
        .unwrap()
        .to_owned();
    let tag = value.strip_prefix("sha256=").unwrap();
    for (value, reason) in [
        (tag.to_owned(), "and not with `sha256=`"),
        (format!("sha1={}", &tag[..40]), "and not with `sha256=`"),
        (
            format!("sha256={}", &tag[..40]),
            "40 hex digits, as of SHA-1: expected \"sha256=\" and 64 lowercase hex digits",
        ),
        (
            format!("sha256={tag}{tag}"),
            "128 hex digits, as of SHA-512",
        ),
        (format!("sha256={}", tag.to_uppercase()), "in uppercase"),
        (format!("sha256=\"{tag}\""), "in quotes"),
        (format!("sha256= {tag}"), "with blanks around it"),
        ("sha256=".to_owned(), "empty"),
        (
            "sha256=c2VjcmV0IG9mIHRlc3Rz".to_owned(),
            "bytes of another form",
        ),
    ] {
        let mut request = right.clone();
        request
            .headers_mut()
            .insert("x-hub-signature-256", value.parse().unwrap());
        assert_wrong("github", &known.explain(&request), reason);
    }
    let known = Known::new("stripe");
    let right = known.request();
    let value = right.headers()["stripe-signature"]
        .to_str()
        .unwrap()
        .to_owned();
    for (value, reason) in [
        (
            value.replace("v1=", "v0="),
            "has no element that begins with `v1=`",
        ),
        (value.replace("t=", "s="), "the timestamp is missing"),
        (value.replace("t=", "t=0"), "is not in its form"),
        (value.replace("t=", "t=1,t="), "there are several"),
    ] {
        let mut request = right.clone();
        request
            .headers_mut()
            .insert("stripe-signature", value.parse().unwrap());
        assert_wrong("stripe", &known.explain(&request), reason);
    }
    let known = Known::new("shopify");
    let mut request = known.request();
    let url_safe = "-_".repeat(21) + "A=";
    request
        .headers_mut()
        .insert("x-shopify-hmac-sha256", url_safe.parse().unwrap());
    assert_wrong("shopify", &known.explain(&request), "base64 for URLs");
}

#[test]
fn what_would_have_been_right_is_said() {
    for known in Known::all() {
        let (name, right) = (known.name(), known.request());
        let other = match known.is_hmac() || known.is_token() {
            true => Secret::new("whsec_b3RoZXI=").unwrap().into(),
            // The key of RFC 8032, section 7.1, test 1.
            false if known.described["signature"]["algorithm"] == "ed25519" => {
                Secret::new("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
                    .unwrap()
                    .into()
            }
            false => continue,
        };
        let explained = known.sender.explain(&other, &right);
        assert!(!explained.is_accepted() && !explained.is_signed(), "{name}");
        if known.is_token() {
            continue;
        }
        let changed = |body: Vec<u8>| {
            let explained = known.explain(&right.clone().map(|_| Bytes::from(body)));
            assert!(!explained.is_accepted() && !explained.is_signed(), "{name}");
            assert_wrong(name, &explained, "the signature is wrong for every secret");
            explained
        };
        let longer = changed([right.body(), &b"\n"[..]].concat());
        changed([&b" "[..], right.body()].concat());
        if known.is_hmac() {
            assert_noted(
                name,
                &longer,
                "the signature is right without the line end after the body",
            );
            let cut = changed([&b"\xef\xbb\xbf"[..], right.body()].concat());
            assert_noted(name, &cut, "without the byte order mark");
            assert_noted(name, &cut, "the signature would be `");
        }
    }
    let signed = |sender: &Sender, secret: &str, body: &str| {
        let delivery = RawDelivery::new(EventKind::from_static("push"), body.to_owned());
        let mut request = Request::post("/")
            .body(Bytes::from(body.to_owned()))
            .unwrap();
        let key: IdempotencyKey = "key-1".parse().unwrap();
        let delivery = delivery.with_key(key);
        *request.headers_mut() = sender
            .sign(&Secret::new(secret).unwrap(), &delivery)
            .unwrap();
        request
    };
    let text = r#"{"name":"svix","key":"svix-id","signature":{"headers":["svix-signature"],"split":" ","prefix":"v1,","algorithm":"hmac-sha256","coding":"base64","content":"{svix-id}.{body}"}}"#;
    let as_text = Sender::from_json(text).unwrap();
    let as_base64 =
        Sender::from_json(&text.replace("\"split\"", "\"secret\":\"base64\",\"split\"")).unwrap();
    let secret = || Secrets::from(Secret::new("c2VjcmV0").unwrap());
    for (signs, judges, hint) in [
        (
            &as_text,
            &as_base64,
            "right, with the secret's text as it is",
        ),
        (&as_base64, &as_text, "right, with the secret as base64"),
    ] {
        let explained = judges.explain(&secret(), &signed(signs, "c2VjcmV0", "{}"));
        assert_noted("svix", &explained, hint);
    }
    let alone = Sender::from_json(&text.replace("{svix-id}.", "")).unwrap();
    let explained = as_text.explain(&secret(), &signed(&alone, "c2VjcmV0", "{}"));
    assert_noted("svix", &explained, "of the body alone");
    let lines = as_text.explain(
        &secret(),
        &signed(&as_text, "c2VjcmV0", "{\r\n}").map(|_| "{\n}".into()),
    );
    assert_noted("svix", &lines, "with the line ends CR LF in place of LF");
    let square = |url: &str| Sender::named("square", Some(url)).unwrap();
    let request = signed(&square(URL), "c2VjcmV0", "{}");
    let explained = square("http://example.com/hook").explain(&secret(), &request);
    assert_noted(
        "square",
        &explained,
        "with `https` in place of `http` in the URL",
    );
    assert_noted("square", &explained, "the text `http://example.com/hook`");
}

#[test]
fn how_far_a_time_is_off_is_said() {
    let mut count = 0;
    for known in Known::all() {
        let right = known.request();
        let Some(time) = known.described["signature"].get("timestamp") else {
            continue;
        };
        count += 1;
        let off = Duration::from_secs(40 * 86_400);
        for (then, side) in [(clock() + off, "behind"), (clock() - off, "ahead of")] {
            let late = Known {
                sender: known.sender.clone().with_clock(move || then),
                signs: known.signs.clone(),
                secrets: known.secrets.clone(),
                described: known.described.clone(),
            };
            let explained = late.explain(&right);
            let expected = format!("3456000s {side} this machine's clock");
            assert_wrong(known.name(), &explained, &expected);
            // The signature is another question.
            assert!(explained.is_signed(), "{}: {explained:#?}", known.name());
        }
        assert!(!time.is_null());
    }
    assert!(count >= 12, "{count}");
    // Milliseconds where seconds are expected.
    let known = Known::new("slack");
    let mut request = known.request();
    let millis = NOW.as_millis().to_string();
    request
        .headers_mut()
        .insert("x-slack-request-timestamp", millis.parse().unwrap());
    assert_wrong(
        "slack",
        &known.explain(&request),
        "it is in milliseconds, and not in seconds",
    );
}

#[test]
fn what_is_wrong_beside_the_signature_is_said() {
    let known = Known::new("github");
    let with = |name: &'static str, value: &'static str| {
        let mut request = known.request();
        request
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
        known.explain(&request)
    };
    let typed = with("content-type", "application/x-www-form-urlencoded");
    assert_wrong("github", &typed, "unsupported-media-type");
    assert!(typed.is_signed());
    assert_wrong(
        "github",
        &with("content-length", "7"),
        "`Content-Length` is 7, and the body has",
    );
    assert_wrong(
        "github",
        &with("transfer-encoding", "gzip"),
        "malformed-body",
    );
    assert_wrong(
        "github",
        &with("x-github-event", "a b"),
        "invalid-event-header",
    );
    let mut moved = known.request();
    *moved.method_mut() = Method::PUT;
    assert_wrong("github", &known.explain(&moved), "the method is PUT");
    // Not written as the sender writes its secrets.
    let svix = Known::new("svix");
    let secrets = Secret::new("no base64!").unwrap().into();
    let explained = svix.sender.explain(&secrets, &svix.request());
    assert_wrong(
        "svix",
        &explained,
        "a secret is not written in its form: base64",
    );

    let twitch = Known::new("twitch");
    let mut request = twitch.request();
    request.headers_mut().remove("twitch-eventsub-message-id");
    assert_wrong(
        "twitch",
        &twitch.explain(&request),
        "expected `twitch-eventsub-message-id`",
    );
}

#[test]
fn challenges_are_explained() {
    let meta = Known::new("meta");
    let ask = |query: &str| {
        let request = Request::get(format!("/?{query}"))
            .body(Bytes::new())
            .unwrap();
        let sender = meta.sender.clone().with_challenge_token("token").unwrap();
        sender.explain(&meta.secrets, &request)
    };
    let asked = ask("hub.mode=subscribe&hub.verify_token=token&hub.challenge=1");
    assert!(asked.is_accepted() && asked.steps()[0].text.contains("it is a challenge"));
    let other = ask("hub.mode=subscribe&hub.verify_token=other&hub.challenge=1");
    assert_wrong("meta", &other, "the challenge carries another token");
    assert_wrong(
        "meta",
        &ask("a=1"),
        "it is no challenge that the description names",
    );

    let slack = Known::new("slack");
    let body = r#"{"type":"url_verification","challenge":"abc"}"#;
    let delivery = RawDelivery::new(EventKind::from_static("push"), body);
    let mut request = Request::post("/").body(Bytes::from(body)).unwrap();
    let secret = Secret::new("correct-horse").unwrap();
    *request.headers_mut() = slack.sender.sign(&secret, &delivery).unwrap();
    let explained = slack.sender.explain(&slack.secrets, &request);
    assert!(explained.is_accepted(), "{explained:#?}");
    assert!(
        explained
            .steps()
            .last()
            .unwrap()
            .text
            .contains("it is a challenge")
    );
}

#[test]
fn a_handshake_is_named() {
    let bodies = ["{}", r#"{"verification_token":"a"}"#];
    for (name, body) in ["asana", "notion"].into_iter().zip(bodies) {
        let known = Known::new(name);
        let request = Request::post("/").header("x-hook-secret", "a");
        let explained = known.explain(&request.body(Bytes::from(body)).unwrap());
        assert_wrong(name, &explained, "the signature header is missing");
        assert_noted(name, &explained, "it brings a secret in a handshake");
    }
}

#[test]
fn a_challenge_without_a_token_that_is_set_says_so() {
    let meta = Known::new("meta");
    let query = "/?hub.mode=subscribe&hub.verify_token=token&hub.challenge=1";
    let request = Request::get(query).body(Bytes::new()).unwrap();
    assert_wrong("meta", &meta.explain(&request), "--sender-token-file");
}

#[test]
fn lists_are_explained_as_they_are_read() {
    let secrets = || Secrets::from(Secret::new("correct-horse").unwrap());
    let explain = |name: &str, lines: &[&str]| {
        let mut request = Request::post("/hook");
        for line in lines {
            request = request.header(format!("{name}-signature"), *line);
        }
        let sender = Sender::named(name, None).unwrap().with_clock(clock);
        sender.explain(&secrets(), &request.body(Bytes::new()).unwrap())
    };
    let tag = "0".repeat(64);
    // Decades ago, in milliseconds.
    let old = explain("workos", &["t=1000000000000", &format!(" v1={tag}")]);
    assert_wrong(
        "workos",
        &old,
        "the timestamp `1000000000000` is 790000000s behind",
    );
    let mut steps = old.steps().iter();
    let lines = "the header `workos-signature` is there 2 times, as one list";
    assert!(
        steps.any(|it| it.finding == Finding::Right && it.text == lines),
        "{old:#?}"
    );
    let two = format!("t=1790000000,v1={tag} t=1000000000,v1={tag}");
    let two = explain("persona", &[&two]);
    assert_wrong(
        "persona",
        &two,
        "the timestamp `1000000000` is 790000000s behind",
    );
    let mut steps = two.steps().iter();
    assert!(
        steps.any(
            |it| it.finding == Finding::Right && it.text.contains("the timestamp `1790000000`")
        )
    );
    // Each list has its own tag.
    let one = explain("persona", &[&format!("t=1790000000,v1={tag} t=1790000000")]);
    assert_wrong("persona", &one, "has no element that begins with `v1=`");
    // An element that is there again with a value is no fault.
    let again = explain("stripe", &[&format!("t,t=1790000000,v1={tag}")]);
    assert_noted("stripe", &again, "its element `t` has no value");
}

#[test]
fn of_a_signature_only_the_start_is_shown() {
    let hex = "68d8".repeat(16);
    let base64 = format!("{}=", "Zg4A".repeat(10) + "Zg4");
    for (name, header, value) in [
        ("stripe", "stripe-signature", hex.clone()),
        (
            "stripe",
            "stripe-signature",
            format!("t={hex},v1={hex},v0={hex}"),
        ),
        ("stripe", "stripe-signature", format!("{hex}=1")),
        (
            "stripe",
            "stripe-signature",
            format!("t=1790000000,v1{hex}"),
        ),
        (
            "svix",
            "svix-signature",
            format!("v1a,{base64} v2,{base64}"),
        ),
        ("svix", "svix-timestamp", base64.clone()),
        ("github", "x-hub-signature-256", hex.clone()),
        ("github", "x-hub-signature-256", format!("sha1={hex}")),
    ] {
        let known = Known::new(name);
        let mut request = known.request();
        let header: HeaderName = header.parse().unwrap();
        request.headers_mut().insert(header, value.parse().unwrap());
        let explained = known.explain(&request);
        assert!(!explained.is_accepted());
        for tag in [&hex, &base64] {
            let start = &tag[..37];
            let mut steps = explained.steps().iter();
            assert!(
                steps.all(|it| !it.text.contains(start)),
                "{value}: {explained:#?}"
            );
        }
        if name != "github" && !value.contains("v1=") && value != base64 {
            assert_noted(name, &explained, "… is skipped".replace('…', "…`").as_str());
        }
    }
}

#[test]
fn odd_requests_are_explained_too() {
    let long = "a=1,".repeat(2_000);
    for known in Known::all() {
        let right = known.request();
        let Some(header) = known.header(&right) else {
            continue;
        };
        for value in [
            &b"\xff\xff"[..],
            b",,,;; =",
            b"=",
            long.as_bytes(),
            b"v1=,t=,s=",
        ] {
            let mut request = right.clone();
            let value = HeaderValue::from_bytes(value).unwrap();
            request.headers_mut().insert(&header, value);
            let explained = known.explain(&request);
            assert!(!explained.is_accepted(), "{}", known.name());
            let most = explained
                .steps()
                .iter()
                .map(|it| it.text.len())
                .max()
                .unwrap();
            assert!(most < 1_000, "{}: {most}", known.name());
        }
        let mut empty = right.clone();
        *empty.body_mut() = Bytes::new();
        known.explain(&empty);
    }
}
