//! Every profile is read, verifies what it signs and what its documentation signs, and refuses anything else.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use super::*;

/// Where a description has a text.
fn described_as(name: &str) -> Value {
    serde_json::from_str(Sender::profile(name).unwrap()).unwrap()
}

fn named(name: &str) -> Sender {
    let sender = Sender::named(name, None).or_else(|_| Sender::named(name, Some(URL)));
    let sender = sender.unwrap();
    let with_token = sender.clone().with_challenge_token("token");
    with_token.unwrap_or(sender)
}

/// What signs, and what verifies.
fn keys(algorithm: &str) -> [&'static str; 2] {
    match algorithm {
        "ed25519" => [
            "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==",
            "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=",
        ],
        "ecdsa-p256" => [
            "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgcXBpZF2oQdli2pV4KF3dYLvn9/SrhDkR75DCK5jnrdKhRANCAASTtNKsOrHb2MZfRAYBfCR9ztK4QBptpUrYJVCEch2f8/6axU4BijNbaMYvxRQO0fEUFhiRWkA3YDI9aMH3I/Wr",
            "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEk7TSrDqx29jGX0QGAXwkfc7SuEAabaVK2CVQhHIdn/P+msVOAYozW2jGL8UUDtHxFBYYkVpAN2AyPWjB9yP1qw==",
        ],
        "rsa-sha256" => rsa(),
        _ => ["whsec_c2VjcmV0"; 2],
    }
}

/// The keys of a file that several tests have.
fn rsa() -> [&'static str; 2] {
    let file = include_str!("../../fixtures/rsa.json");
    let mut texts = file.split('"').filter(|it| it.len() > 100);
    [texts.next().unwrap(), texts.next().unwrap()]
}

#[test]
fn every_profile_verifies_what_it_signs() {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis();
    for name in Sender::PROFILES {
        let sender = named(name);
        let signature = &described_as(name)["signature"];
        let algorithm = signature["algorithm"].as_str().unwrap();
        let [signing, verifying] = keys(algorithm).map(|it| Secret::new(it).unwrap());
        // Linear's timestamp stands in the body, and the token of Figma and Microsoft Graph.
        let token = keys(algorithm)[0];
        let body = format!(
            r#"{{"id":"1","webhookTimestamp":{now},"passcode":"{token}","value":[{{"clientState":"{token}"}}]}}"#
        );
        let key = IdempotencyKey::new(HeaderValue::from_static("key-1"));
        let delivery = RawDelivery::new(EventKind::from_static("a"), body.clone()).with_key(key);
        let mut headers = sender.sign(&signing, &delivery).unwrap();
        // A token is the secret itself, which only the caller has.
        let place = signature["headers"][0].as_str().unwrap();
        let is_token = algorithm == "token";
        if is_token && !place.starts_with('/') {
            let token = match signature["coding"].as_str() {
                Some("base64") => BASE64_STANDARD.encode(token),
                _ => token.to_owned(),
            };
            let prefix = signature["prefix"].as_str().unwrap_or_default();
            let header: HeaderName = place.parse().unwrap();
            headers.insert(header, format!("{prefix}{token}").parse().unwrap());
        }
        let secrets = Secrets::from(verifying);
        let verify = |body: &[u8]| sender.verify(&secrets, &headers, body);
        assert_eq!(verify(body.as_bytes()), Ok(0), "{name}");
        let other = verify(body.replace("id", "is").as_bytes());
        assert_eq!(other.is_ok(), is_token, "{name}");
    }
}

/// A delivery that `tests/senders/record/documented.mjs` has signed.
#[derive(Deserialize)]
struct Documented {
    name: String,
    secret: String,
    url: Option<String>,
    now: u64,
    r#type: String,
    key: Option<String>,
    headers: BTreeMap<String, String>,
    body: String,
}

impl Documented {
    fn all() -> Vec<Self> {
        let text = include_str!("../../fixtures/senders/documented.json");
        let mut all: Vec<Self> = serde_json::from_str(text).unwrap();
        all.retain(|it| Sender::PROFILES.contains(&&*it.name));
        all
    }

    fn sender_at(&self, seconds: u64) -> Sender {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let sender = Sender::named(&self.name, self.url.as_deref());
        sender.unwrap().with_clock(move || now)
    }

    fn request(&self, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
        let headers = self.headers.iter();
        headers.fold(post(body), |request, (name, value)| {
            request.with(name, value)
        })
    }

    fn is_token(&self) -> bool {
        described_as(&self.name)["signature"]["algorithm"] == "token"
    }
}

#[test]
fn every_line_of_the_profiles_has_a_documented_delivery() {
    let is_line = |name: &&&str| {
        let text = Sender::profile(name).unwrap();
        !text.trim().contains('\n') || **name == "gitlab-signed"
    };
    let lines: BTreeSet<_> = Sender::PROFILES.iter().filter(is_line).copied().collect();
    let all = Documented::all();
    let signed: BTreeSet<_> = all.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(lines, signed);
    assert!(Sender::PROFILES.len() >= 84 || cfg!(not(feature = "public-keys")));
}

#[tokio::test]
async fn documented_deliveries_of_every_line_are_verified() {
    for it in Documented::all() {
        let (name, sender) = (&it.name, it.sender_at(it.now));
        let secret = || Secret::new(it.secret.as_str()).unwrap();
        let answered = receive(secret(), &sender, it.request(it.body.clone())).await;
        assert_eq!(answered.status, 200, "{name}: {answered:?}");
        let event: Event = serde_json::from_slice(&answered.body).unwrap();
        assert_eq!(event, (it.r#type.clone(), it.key.clone()), "{name}");

        // Each byte counts.
        let request = it.request(it.body.clone());
        let verify = |body: &[u8]| {
            let secrets = Secrets::from(secret());
            sender.verify_at(request.uri(), &secrets, request.headers(), body)
        };
        let mut body = it.body.clone().into_bytes();
        for at in (0..body.len()).filter(|_| !it.is_token()) {
            body[at] ^= 1;
            assert!(verify(&body).is_err(), "{name}: byte {at}");
            body[at] ^= 1;
        }
        let is_in_body = ["figma", "microsoft-graph"].contains(&name.as_str());
        assert!(verify(&body).is_ok() && verify(b"").is_err() != (it.is_token() && !is_in_body));
        // Another secret, and none.
        let stranger = match described_as(name)["signature"]["algorithm"]
            .as_str()
            .unwrap()
        {
            algorithm @ ("ed25519" | "rsa-sha256") => keys(algorithm)[1],
            "ecdsa-p256" => continue,
            _ => "whsec_b3RoZXI=",
        };
        if stranger != it.secret {
            let stranger = Secret::new(stranger).unwrap();
            let answered = receive(stranger, &sender, it.request(it.body.clone())).await;
            assert_eq!(answered.status, 401, "{name}");
        }
        let bare = post(r#"{"id":"1"}"#);
        assert_eq!(receive(secret(), &sender, bare).await.status, 401, "{name}");
    }
}

#[test]
fn documented_deliveries_that_are_too_old_or_too_new_are_refused() {
    let mut timed = 0;
    for it in Documented::all() {
        let description = described_as(&it.name);
        let time = &description["signature"]["timestamp"];
        let [Some(past), Some(ahead)] = [&time["past"], &time["ahead"]].map(Value::as_u64) else {
            continue;
        };
        timed += 1;
        for (seconds, is_fresh) in [
            (it.now + past, true),
            (it.now + past + 1, false),
            (it.now - ahead, true),
            (it.now - ahead - 1, false),
        ] {
            let secrets = Secrets::from(Secret::new(it.secret.as_str()).unwrap());
            let request = it.request(it.body.clone());
            let sender = it.sender_at(seconds);
            let verified = sender.verify(&secrets, request.headers(), it.body.as_bytes());
            match is_fresh {
                true => assert_eq!(verified, Ok(0), "{}", it.name),
                false => assert!(
                    matches!(verified, Err(SignatureError::Stale { .. })),
                    "{}: {verified:?}",
                    it.name
                ),
            }
        }
    }
    assert!(timed > 20, "{timed}");
}

/// What a query, a header, or a body in another form does to each of them.
#[tokio::test]
async fn odd_requests_to_every_line_are_answered_and_cause_no_panic() {
    for it in Documented::all() {
        let (name, sender) = (&it.name, it.sender_at(it.now));
        let secret = || Secret::new(it.secret.as_str()).unwrap();
        let fields = "a=1&".repeat(5_000);
        for body in [
            "",
            "null",
            "[]",
            "{}",
            "\"x\"",
            "a=1&a=2",
            "%00",
            "{\"passcode\":{}}",
            &fields,
        ] {
            let answered = receive(secret(), &sender, it.request(body.to_owned())).await;
            let may_be = if it.is_token() {
                &[200, 400, 401][..]
            } else {
                &[401]
            };
            assert!(
                may_be.contains(&answered.status.as_u16()),
                "{name}: {answered:?}"
            );
        }
        for header in it
            .headers
            .keys()
            .filter(|it| it.contains("sign") || it.contains("authorization"))
        {
            let value = it.headers[header].clone();
            let double = it.request(it.body.clone()).and(header, &value);
            // Of several headers, one is another's.
            let is_signed = header.contains("hub") && name != "intercom"
                || header.contains("-docusign-signature-1");
            let answered = receive(secret(), &sender, double).await;
            assert!(
                is_signed || answered.status == 401 || name == "workos",
                "{name}: {header} twice"
            );
            for wrong in [
                "",
                "x",
                &value[1..],
                &value[..value.len() - 1],
                &value.repeat(300),
            ] {
                let request = it.request(it.body.clone()).with(header, wrong);
                let answered = receive(secret(), &sender, request).await;
                // Of a list, the rest is right.
                let is_rest = value.contains(',') && wrong == &value[1..];
                let is_ok = answered.status == 200 && !is_rest;
                assert!(!is_ok || is_signed, "{name}: {header} is {wrong:?}");
            }
        }
        for target in [
            "/?challenge=1",
            "/?crc_token=%7B%7D",
            "/?challengeCode=a&challengeCode=b",
            "/?a=%",
        ] {
            for method in ["GET", "HEAD", "OPTIONS", "PUT"] {
                let request = Request::builder()
                    .method(method)
                    .uri(target)
                    .body(Full::default());
                let answered = receive(secret(), &sender, request.unwrap()).await;
                let status = answered.status.as_u16();
                assert!([200, 403, 405].contains(&status), "{name}: {status}");
            }
        }
    }
}

/// Profiles whose key stands in a header that is not signed, and whose equal bodies under other keys are refused all the
/// same, with the reason.
#[cfg(feature = "moka")]
const ONE_EVENT: [(&str, &str); 2] = [
    (
        "linear",
        "the body has a time, so that equal bodies are one event",
    ),
    (
        "zerohash",
        "a time is signed, and no source says that bodies repeat",
    ),
];

/// A body with the event type `a`, a time, and the token of those that have one there.
#[cfg(feature = "moka")]
fn body_of(description: &Value, token: &str) -> String {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis();
    let mut body = json!({"id": "1", "webhookTimestamp": now, "passcode": token});
    let kind = &description["kind"];
    let mut places = [kind, &kind["at"], &kind[0]].into_iter();
    let kind = places.find_map(Value::as_str).unwrap_or_default();
    if let Some(pointer) = kind.strip_prefix('/') {
        let at = pointer.split('/').fold(&mut body, |at, name| &mut at[name]);
        *at = json!("a");
    }
    body.to_string()
}

/// What becomes of deliveries of one body: the status, and whether it was handled.
#[cfg(feature = "moka")]
async fn deliver_equal_bodies(name: &str, of: &[Option<&'static str>]) -> Vec<(u16, bool)> {
    let (description, sender) = (described_as(name), named(name));
    let signature = &description["signature"];
    let algorithm = signature["algorithm"].as_str().unwrap();
    let token = keys(algorithm)[0];
    let [signing, verifying] = keys(algorithm).map(|it| Secret::new(it).unwrap());
    let webhooks = Webhooks::new(verifying).sender(sender.clone());
    let (service, _) = webhooks.start(service_fn(event)).unwrap();
    let body = body_of(&description, token);
    let place = signature["headers"][0].as_str().unwrap();
    let mut ends = Vec::new();
    for key in of {
        let key = key.and_then(|key| IdempotencyKey::new(HeaderValue::from_static(key)));
        let delivery = RawDelivery::new(EventKind::from_static("a"), body.clone()).with_key(key);
        let mut request = post(body.clone());
        *request.headers_mut() = sender.sign(&signing, &delivery).unwrap();
        if algorithm == "token" && !place.starts_with('/') {
            let token = match signature["coding"].as_str() {
                Some("base64") => BASE64_STANDARD.encode(token),
                _ => token.to_owned(),
            };
            let prefix = signature["prefix"].as_str().unwrap_or_default();
            let header: HeaderName = place.parse().unwrap();
            let value = format!("{prefix}{token}").parse().unwrap();
            request.headers_mut().insert(header, value);
        }
        let answered = send(&service, request).await;
        let is_new = answered.header("idempotent-replayed").is_none();
        let status = answered.status.as_u16();
        ends.push((status, status == 200 && is_new));
    }
    ends
}

/// An event that is lost is worse than one that somebody who has read it sends again.
#[cfg(feature = "moka")]
#[tokio::test]
async fn equal_bodies_under_other_keys_are_handled_unless_a_profile_has_a_reason() {
    let mut refused = Vec::new();
    let mut keyed = 0;
    for name in Sender::PROFILES {
        let description = described_as(name);
        if description["key"]
            .as_str()
            .is_none_or(|key| key.starts_with('/'))
        {
            continue;
        }
        keyed += 1;
        let (one, other) = (Some("key-a"), Some("key-b"));
        let ends = deliver_equal_bodies(name, &[one, one, other]).await;
        assert_eq!(ends[..2], [(200, true), (200, false)], "{name}");
        let is_refused = ends[2] == (422, false);
        assert!(is_refused || ends[2] == (200, true), "{name}: {ends:?}");
        refused.extend(is_refused.then_some(*name));
        let sender = named(name);
        // A signed key cannot be changed by others.
        let says_so = sender.has_equal_bodies() || sender.covers_key();
        assert_ne!(says_so, is_refused, "{name}");
    }
    let expected: Vec<_> = ONE_EVENT.iter().map(|(name, _)| *name).collect();
    assert_eq!(refused, expected);
    assert!(keyed > 20, "{keyed}");
}

#[cfg(feature = "moka")]
#[tokio::test]
async fn equal_bodies_without_a_key_are_one_event_unless_the_profile_says_otherwise() {
    let mut different = Vec::new();
    for name in Sender::PROFILES {
        let description = described_as(name);
        if description["key"] != Value::Null || description["batch"] != Value::Null {
            continue;
        }
        let ends = deliver_equal_bodies(name, &[None, None]).await;
        assert_eq!(ends[0], (200, true), "{name}");
        assert_eq!(ends[1], (200, named(name).has_equal_bodies()), "{name}");
        different.extend(ends[1].1.then_some(*name));
    }
    // Of a token, no replay is known: whoever has it can send any body.
    let tokens = ["alertmanager", "figma", "huggingface", "postmark"];
    let others: Vec<_> = different.iter().filter(|it| !tokens.contains(it)).collect();
    assert_eq!(others, [&"dropbox", &"grafana", &"grafana-timestamp"]);
    assert_eq!(different.len() - others.len(), tokens.len());
}

/// Senders whose retries have a new time, as they or their libraries say: these refuse old ones, sooner than retries end.
const NEW_TIME: [&str; 5] = ["svix", "stripe", "slack", "paddle", "calendly"];

#[test]
fn windows_last_as_long_as_retries_may_repeat_the_same_time() {
    let (mut with_retries, mut repeating) = (0, 0);
    for name in Sender::PROFILES {
        let description = described_as(name);
        let (time, policy) = (
            &description["signature"]["timestamp"],
            &description["policy"],
        );
        let (retries, repeats) = (policy["retry-for"].as_u64(), policy["repeats-for"].as_u64());
        let Some(past) = time["past"].as_u64() else {
            assert_eq!(repeats, None, "{name}: without a time, there is no window");
            continue;
        };
        if let Some(repeats) = repeats {
            repeating += 1;
            assert!(past >= repeats && retries >= Some(repeats), "{name}");
        }
        if let Some(retries) = retries {
            with_retries += 1;
            assert_ne!(past >= retries, NEW_TIME.contains(name), "{name}");
        }
    }
    // Without the feature `public-keys`, there are fewer.
    assert!(
        with_retries >= 15 && repeating >= 5,
        "{with_retries}, {repeating}"
    );
}

/// Those that take a captured delivery again for as long as its time counts, because its key is not signed, and equal
/// bodies are different events.
const TAKEN_AGAIN: [(&str, u64); 3] = [
    ("grafana-timestamp", 300),
    ("sanity", 300),
    ("zendesk", 86_400),
];

#[test]
fn within_a_window_a_captured_delivery_is_a_duplicate() {
    let mut again = Vec::new();
    for name in Sender::PROFILES {
        let description = described_as(name);
        let Some(past) = description["signature"]["timestamp"]["past"].as_u64() else {
            continue;
        };
        if !named(name).covers_key() && description["equal-bodies"] == true {
            again.push((*name, past));
        }
    }
    assert_eq!(again, TAKEN_AGAIN);
}

/// Without such a limit, what is larger than 1 MiB is refused, and sent again in vain.
#[tokio::test]
async fn bodies_may_be_as_large_as_their_senders_say() {
    let mib = |count: usize| Some(count * 1024 * 1024);
    let expected = [
        ("github", mib(25)),
        ("meta", mib(3)),
        ("gitlab", mib(25)),
        ("gitlab-signed", mib(25)),
        ("postmark", mib(50)),
    ];
    let limits = Sender::PROFILES
        .iter()
        .map(|name| (*name, named(name).max_body()));
    let limits: Vec<_> = limits.filter(|(_, limit)| limit.is_some()).collect();
    assert_eq!(limits, expected);

    let mail = Documented::all()
        .into_iter()
        .find(|it| it.r#type == "Inbound")
        .unwrap();
    let attached = mail
        .body
        .replace("VGhpcyBpcyBhdH", &"A".repeat(2 * 1024 * 1024));
    assert!(attached.len() > 2 * 1024 * 1024);
    let secret = Secret::new(mail.secret.as_str()).unwrap();
    let answered = receive(secret, &mail.sender_at(mail.now), mail.request(attached)).await;
    assert_eq!(answered.status, 200, "{answered:?}");
}
