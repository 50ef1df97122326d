//! Senders that sign with a private key.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use tower_webhook::event::Event as TypedEvent;
use tower_webhook::{Delivery, EventRouter, PublicKey, SignatureLayer};

use super::*;

const PROFILES: [Profile; 3] = [
    |_| Sender::discord(),
    |_| Sender::sendgrid(),
    |_| Sender::standard_webhooks_v1a(),
];

/// A delivery that the maker has published.
#[derive(Deserialize)]
pub(super) struct Published {
    /// The public key.
    secret: String,
    headers: std::collections::BTreeMap<String, String>,
    body: String,
    accepted: bool,
}

/// Of senders described here: a private key, and its public one.
const ED25519: [&str; 2] = [
    "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==",
    "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=",
];
const P256: [&str; 2] = [
    "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgcXBpZF2oQdli2pV4KF3dYLvn9/SrhDkR75DCK5jnrdKhRANCAASTtNKsOrHb2MZfRAYBfCR9ztK4QBptpUrYJVCEch2f8/6axU4BijNbaMYvxRQO0fEUFhiRWkA3YDI9aMH3I/Wr",
    "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEk7TSrDqx29jGX0QGAXwkfc7SuEAabaVK2CVQhHIdn/P+msVOAYozW2jGL8UUDtHxFBYYkVpAN2AyPWjB9yP1qw==",
];

fn ed25519() -> Sender {
    described(json!({"signature.algorithm": "ed25519", "signature.split": ","})).unwrap()
}

fn p256() -> Sender {
    described(json!({"signature.algorithm": "ecdsa-p256"})).unwrap()
}

fn public([_, public]: [&str; 2]) -> PublicKey {
    PublicKey::new(public).unwrap()
}

/// The tag of `BODY`.
fn tag(sender: &Sender, [private, _]: [&str; 2]) -> Vec<u8> {
    let request = signed(sender, &Secret::new(private).unwrap(), BODY);
    hex::decode(request.headers()["x-tag"].as_bytes()).unwrap()
}

async fn status(sender: &Sender, keys: impl Into<Secrets>, tag: &str) -> u16 {
    let answered = receive(keys, sender, post(BODY).with("x-tag", tag)).await;
    if answered.status != 200 {
        answered.assert_problem(401, "invalid-signature");
    }
    answered.status.as_u16()
}

#[tokio::test]
async fn deliveries_are_verified_as_their_makers_do() {
    verify_as_makers_do(&PROFILES).await;
}

#[tokio::test]
async fn heads_of_every_profile_are_clear_or_refused() {
    assert_clear_or_refused(&PROFILES).await;
}

#[tokio::test]
async fn deliveries_that_makers_published_are_verified() {
    let mut counts = [0, 0];
    for profile in PROFILES {
        let recorded = Recorded::of(profile(URL).name());
        for Published {
            secret,
            headers,
            body,
            accepted,
        } in recorded.published
        {
            let time = headers.iter().find(|(name, _)| name.ends_with("timestamp"));
            let time = time.unwrap().1.parse().unwrap_or_default();
            let now = SystemTime::UNIX_EPOCH + Duration::from_secs(time);
            let sender = profile("").with_clock(move || now);
            let name = sender.name().to_owned();
            let case = Case {
                name,
                headers,
                body,
                accepted,
            };
            let key = PublicKey::new(secret).unwrap();
            let answered = receive(key, &sender, request(&case).unwrap()).await;
            // The body of Svix's has no event type.
            assert_eq!(answered.status != 401, accepted, "{sender:?}");
            counts[usize::from(accepted)] += 1;
        }
    }
    assert_eq!(counts, [4, 3]);
}

#[tokio::test]
async fn deliveries_are_signed_as_their_makers_do() {
    for profile in PROFILES {
        let name = profile(URL).name().to_owned();
        let recorded = Recorded::of(&name);
        let sender = recorded.sender(profile);
        let private = Secret::new(recorded.private.as_deref().unwrap()).unwrap();
        let kind: EventKind = recorded.r#type.parse().unwrap();
        let key = recorded.key.as_deref().map(|key| key.parse().unwrap());
        for case in &recorded.cases[..2] {
            let delivery = RawDelivery::new(kind.clone(), case.body.clone())
                .with_key(key.clone().and_then(IdempotencyKey::new));
            let signed = sender.sign(&private, &delivery).unwrap();
            for (header, value) in &signed {
                let expected = headers(case).unwrap().remove(header);
                assert_eq!(expected.as_ref(), Some(value), "{name}: {header}");
            }
            let mut request = post(case.body.clone());
            *request.headers_mut() = signed;
            let public = PublicKey::new(&recorded.secret).unwrap();
            assert_eq!(
                receive(public, &sender, request).await.status,
                200,
                "{name}"
            );
        }
    }
}

#[tokio::test]
async fn signatures_in_another_form_are_refused() {
    let right = hex::encode(tag(&ed25519(), ED25519));
    assert_eq!(status(&ed25519(), public(ED25519), &right).await, 200);
    let zeros = "0".repeat(64);
    for wrong in [
        String::new(),
        right[2..].to_owned(),
        format!("{right}00"),
        right.to_uppercase(),
        right.replacen(&right[..1], "g", 1),
        zeros.repeat(2),
        // The neutral element, with any scalar.
        format!("01{}{}", &zeros[2..], &right[64..]),
        format!("{}{zeros}", &right[..64]),
        "f".repeat(128),
    ] {
        assert_eq!(
            status(&ed25519(), public(ED25519), &wrong).await,
            401,
            "{wrong}"
        );
    }
    let right = hex::encode(tag(&p256(), P256));
    assert_eq!(status(&p256(), public(P256), &right).await, 200);
    for wrong in [
        right[2..].to_owned(),
        right[..right.len() - 2].to_owned(),
        format!("{right}00"),
        // The length in two bytes; r and s of zero, and above the order; numbers without DER.
        format!("3081{}", &right[2..]),
        "3006020100020100".to_owned(),
        format!("30460221{0}0221{0}", format_args!("00{}", "f".repeat(64))),
        "01".repeat(64),
        "30".repeat(72),
    ] {
        assert_eq!(status(&p256(), public(P256), &wrong).await, 401, "{wrong}");
    }
}

/// Adds two numbers of 32 bytes, the least first.
fn add(number: &[u8], other: &[u8]) -> Vec<u8> {
    let mut carry = 0;
    let add = |(a, b): (&u8, &u8)| {
        let sum = u16::from(*a) + u16::from(*b) + carry;
        carry = sum >> 8;
        sum as u8
    };
    number.iter().zip(other).map(add).collect()
}

#[tokio::test]
async fn only_ecdsa_has_a_second_signature_that_is_accepted() {
    // S and S + L, the order of the group.
    let order =
        hex::decode("edd3f55c1a631258d69cf7a2def9de1400000000000000000000000000000010").unwrap();
    let right = tag(&ed25519(), ED25519);
    let second = [&right[..32], &add(&right[32..], &order)].concat();
    assert_eq!(
        status(&ed25519(), public(ED25519), &hex::encode(second)).await,
        401
    );

    // s and n - s, which no maker refuses: of what SendGrid published, one has s in the upper half.
    let published = Recorded::of("sendgrid").published;
    let published = published.iter().filter(|it| it.accepted);
    let is_high = published.map(|it| {
        let tag = &it.headers["x-twilio-email-event-webhook-signature"];
        let der = BASE64_STANDARD.decode(tag).unwrap();
        let s = &der[4 + usize::from(der[3])..];
        s[1] == 33 && s[3] >= 0x80
    });
    let is_high: Vec<_> = is_high.collect();
    assert!(is_high.contains(&true) && is_high.len() >= 2, "{is_high:?}");
}

#[tokio::test]
async fn every_bit_counts() {
    for (sender, keys) in [(ed25519(), ED25519), (p256(), P256)] {
        let right = tag(&sender, keys);
        for bit in (0..right.len() * 8).step_by(5) {
            let mut wrong = right.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(
                status(&sender, public(keys), &hex::encode(wrong)).await,
                401,
                "{bit}"
            );
        }
        for bit in 0..BODY.len() * 8 {
            let mut body = BODY.as_bytes().to_vec();
            body[bit / 8] ^= 1 << (bit % 8);
            let request = post(body).with("x-tag", hex::encode(&right));
            assert_eq!(receive(public(keys), &sender, request).await.status, 401);
        }
    }
}

#[test]
fn keys_are_read_as_senders_show_them() {
    let spki = "MCowBQYDK2VwAyEA0+5r8NG4lm5E0Yi8n8sHnpP/4qSuIRK3IUJixZrEm0s=";
    let hex = "d3ee6bf0d1b8966e44d188bc9fcb079e93ffe2a4ae2112b7214262c59ac49b4b";
    for key in [spki, hex, &hex.to_uppercase(), ED25519[1], P256[1]] {
        assert!(PublicKey::new(key).is_ok(), "{key}");
    }
    let weak = [
        "0100000000000000000000000000000000000000000000000000000000000000",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "0000000000000000000000000000000000000000000000000000000000000080",
        "0000000000000000000000000000000000000000000000000000000000000000",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
        // Not in their canonical form.
        "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    ];
    let off_the_curve = "02".to_owned() + &"0".repeat(62);
    let (cut, pem) = (&spki[..56], format!("-----BEGIN PUBLIC KEY-----\n{spki}"));
    let not_p256 = P256[1].replace("qw==", "rw==");
    // The head of an uncompressed point, and a compressed one, whose first byte says whether y is odd.
    let mut compressed = BASE64_STANDARD.decode(P256[1]).unwrap();
    compressed[26] = 2 + compressed[90] % 2;
    compressed.truncate(26 + 33);
    let compressed = BASE64_STANDARD.encode(compressed);
    for (key, reason) in [
        ("", "write it as 64 hex digits"),
        ("secret", "write it as 64 hex digits"),
        (&hex[2..], "write it as 64 hex digits"),
        (cut, "a key of Ed25519 has 32 bytes"),
        (pem.as_str(), "write it as 64 hex digits"),
        (ED25519[0], "write it as 64 hex digits"),
        (P256[0], "write it as 64 hex digits"),
        ("whpk_AAAA", "a key of Ed25519 has 32 bytes"),
        (
            off_the_curve.as_str(),
            "it is no point of the curve of Ed25519",
        ),
        (not_p256.as_str(), "it is no point of P-256"),
        (compressed.as_str(), "write it as 64 hex digits"),
    ]
    .into_iter()
    .chain(weak.map(|key| (key, "it is weak: of small order")))
    {
        let error = PublicKey::new(key).unwrap_err();
        assert!(
            matches!(&error, ConfigError::PublicKey { reason: it } if it.starts_with(reason)),
            "{key}: {error}"
        );
    }
    let shown = format!("{:?}", PublicKey::new(hex).unwrap().with_label("new"));
    assert_eq!(shown, r#"PublicKey { label: Some("new"), .. }"#);
}

#[test]
fn a_key_that_does_not_suit_the_sender_is_refused_at_the_start() {
    let refused = |secrets: Secrets, sender| match Webhooks::new(secrets)
        .sender(sender)
        .into_signature_layer()
    {
        Err(ConfigError::Sender { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    let secret = |text: &str| Secret::new(text).unwrap().into();
    for (secrets, sender, reason) in [
        (
            public(P256).into(),
            Sender::discord(),
            "its public key of Ed25519 is needed",
        ),
        (
            public(ED25519).into(),
            Sender::sendgrid(),
            "its public key of P-256 is needed",
        ),
        (
            secret("secret"),
            Sender::discord(),
            "its public key of Ed25519 is needed",
        ),
        (
            secret(ED25519[0]),
            Sender::discord(),
            "its public key of Ed25519 is needed",
        ),
        (
            public(ED25519).into(),
            Sender::stripe(),
            "it signs with a secret",
        ),
        (
            public(ED25519).into(),
            Sender::svix(),
            "a secret is not written in its form",
        ),
        (
            public(ED25519).into(),
            Sender::chat_platform(),
            "it signs with a secret",
        ),
    ] {
        let found = refused(secrets, sender);
        assert!(found.starts_with(reason), "{found}");
    }
    #[cfg(feature = "moka")]
    assert!(
        tower_webhook::Webhooks::new(public(ED25519))
            .into_layer()
            .is_err()
    );
    // The text of a file of secrets.
    assert!(
        Webhooks::new(Secret::new(ED25519[1]).unwrap())
            .sender(Sender::discord())
            .into_signature_layer()
            .is_ok()
    );

    let delivery = RawDelivery::new(EventKind::from_static("x"), BODY);
    for (sender, key) in [
        (ed25519(), ED25519[1]),
        (ed25519(), P256[0]),
        (p256(), ED25519[0]),
        (p256(), "secret"),
    ] {
        let error = sender
            .sign(&Secret::new(key).unwrap(), &delivery)
            .unwrap_err();
        assert!(error.to_string().contains("a private key of"), "{error}");
    }
}

/// Who knows the public key could otherwise sign.
#[tokio::test]
async fn a_public_key_is_never_used_as_a_secret() {
    let text = ED25519[1];
    let own: Secret = public(ED25519).into();
    for guess in [Secret::new(text).unwrap(), public(ED25519).into()] {
        assert_ne!(guess.sign(b"{}"), own.sign(b"{}"));
    }
    let guess = Secret::new(text).unwrap();
    assert!(
        Sender::chat_platform()
            .sign(&guess, &RawDelivery::new(EventKind::CHAT_RATED, "{}"))
            .is_err()
    );
    // These are not checked before, as those of a layer with a sender are.
    for secrets in [public(ED25519).into(), Secrets::from(guess.clone())] {
        let tag = guess.sign(BODY.as_bytes());
        let request = post(BODY)
            .kind("chat-rated")
            .with("x-service-hmac-sha256", tag);
        let answered = send(
            &SignatureLayer::new(secrets).layer(service_fn(event)),
            request,
        )
        .await;
        answered.assert_problem(401, "invalid-signature");
    }
}

#[tokio::test]
async fn keys_are_replaced_and_candidates_limited() {
    let sender = ed25519();
    let [wrong, right] = [
        tag(
            &sender,
            ["whsk_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", ""],
        ),
        tag(&sender, ED25519),
    ]
    .map(hex::encode);
    let other =
        PublicKey::new("d3ee6bf0d1b8966e44d188bc9fcb079e93ffe2a4ae2112b7214262c59ac49b4b").unwrap();
    let keys = Secrets::new([
        other.clone().with_label("old").into(),
        public(ED25519).into(),
    ])
    .unwrap();
    assert_eq!(keys.labels(), ["old", "1"]);
    let eight = [&[wrong.as_str(); 7][..], &[&right]].concat().join(",");
    assert_eq!(status(&sender, keys.clone(), &eight).await, 200);
    assert_eq!(
        status(&sender, keys.clone(), &format!("{wrong},{eight}")).await,
        401
    );
    assert_eq!(status(&sender, keys.clone(), &wrong).await, 401);
    keys.replace([other.into()]).unwrap();
    assert_eq!(status(&sender, keys, &right).await, 401);
}

#[tokio::test]
async fn a_ping_of_discord_is_answered() {
    let recorded = Recorded::of("discord");
    let discord = recorded.sender(|_| Sender::discord());
    let private = Secret::new(recorded.private.unwrap()).unwrap();
    let public = PublicKey::new(recorded.secret).unwrap();
    let body = r#"{"id":"1","type":1,"version":1}"#;
    let answered = receive(public.clone(), &discord, signed(&discord, &private, body)).await;
    assert_eq!(answered.status, 200);
    let answer: Value = serde_json::from_slice(&answered.body).unwrap();
    assert_eq!(Some(answer), recorded.challenge);
    // Discord tests an endpoint with forged ones.
    let mut forged = signed(&discord, &private, body);
    *forged.body_mut() = Full::from(body.replace("\"1\"", "\"2\""));
    receive(public, &discord, forged)
        .await
        .assert_problem(401, "invalid-signature");
}

/// The events of one delivery.
enum Mails {}

impl TypedEvent for Mails {
    const KIND: EventKind = EventKind::from_static("sendgrid");
    type Payload = Vec<Value>;
}

#[tokio::test]
async fn an_array_reaches_a_service_and_no_router() {
    let recorded = Recorded::of("sendgrid");
    let sendgrid = recorded.sender(|_| Sender::sendgrid());
    let key = PublicKey::new(recorded.secret.as_str()).unwrap();
    let genuine = || request(&recorded.cases[0]).unwrap();
    let answered = receive(key.clone(), &sendgrid, genuine()).await;
    assert_eq!(answered.status, 200);
    let events = EventRouter::new().on::<Mails>(async |_: Delivery<Mails>| Ok(()));
    let layer = Webhooks::new(key)
        .sender(sendgrid)
        .into_signature_layer()
        .unwrap();
    let answered = send(&layer.layer(events), genuine()).await;
    answered.assert_problem(422, "undecodable");
}
