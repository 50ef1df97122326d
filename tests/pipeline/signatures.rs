//! Only bodies signed with one of the secrets are accepted, however they arrive.

#![cfg(feature = "moka")]

use std::convert::Infallible;

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use http::{HeaderMap, HeaderValue, Request};
use http_body::Frame;
use http_body_util::StreamBody;
use http_body_util::channel::{Channel, Sender};
use proptest::prelude::*;
use tower::Layer;
use tower_webhook::event::ChatRated;
use tower_webhook::memory::MokaStore;
use tower_webhook::signature::SignatureError;
use tower_webhook::{EventRouter, Secret, Secrets, Webhooks};

use support::Ready;
use support::delivery::{Answered, BODY, Crm, RequestExt, SIGNATURE, delivery, secret, send};
use support::log::Log;

fn router(crm: &Crm) -> EventRouter {
    EventRouter::new().on::<ChatRated>(crm.clone())
}

/// Delivers a body with a given signature.
async fn deliver(secrets: impl Into<Secrets>, body: impl Into<Bytes>, tag: &str) -> Answered {
    let service = Webhooks::new(secrets).layer(router(&Crm::default()));
    send(&service, delivery(body).with(SIGNATURE, tag)).await
}

/// The test cases of RFC 4231 for HMAC-SHA-256: key, data and tag. Case 5 truncates the tag, which
/// this platform does not.
#[rustfmt::skip]
fn rfc_4231() -> [(Vec<u8>, Vec<u8>, &'static str); 6] {
    let counting = (1..=25).collect();
    let long: &[u8] = b"This is a test using a larger than block-size key and a larger than \
                        block-size data. The key needs to be hashed before being used by the HMAC \
                        algorithm.";
    [
        (vec![0x0b; 20], b"Hi There".to_vec(),
         "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"),
        (b"Jefe".to_vec(), b"what do ya want for nothing?".to_vec(),
         "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"),
        (vec![0xaa; 20], vec![0xdd; 50],
         "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"),
        (counting, vec![0xcd; 50],
         "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"),
        (vec![0xaa; 131], b"Test Using Larger Than Block-Size Key - Hash Key First".to_vec(),
         "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"),
        (vec![0xaa; 131], long.to_vec(),
         "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2"),
    ]
}

#[tokio::test]
async fn vectors_of_rfc_4231_verify() {
    for (key, data, tag) in rfc_4231() {
        let secret = Secret::new(key).unwrap();
        assert_eq!(secret.sign(&data), tag);
        assert_eq!(
            Secrets::from(secret.clone()).verify(&data, tag.as_bytes()),
            Ok(0)
        );
        // None of them is JSON: authentic, and undecodable.
        deliver(secret, data, tag)
            .await
            .assert_problem(422, "undecodable");
    }
}

#[tokio::test]
async fn signature_must_be_one_header_of_64_lowercase_hex_digits() {
    let crm = Crm::default();
    let service = Webhooks::new(secret()).layer(router(&crm));
    let tag = secret().sign(BODY.as_bytes());
    let upper = tag.to_uppercase();
    let first_upper = format!("{}{}", &upper[..32], &tag[32..]);
    assert!(tag.bytes().any(|digit| digit.is_ascii_lowercase()));

    let malformed = [
        "",
        &upper,
        &first_upper,
        &tag[..63],
        &format!("{tag}0"),
        &format!("{tag}00"),
        &format!(" {tag}"),
        &format!("{tag} "),
        &format!("\t{tag}"),
        &format!("{tag}\t"),
        &format!("sha256={tag}"),
        &format!("0x{tag}"),
        &format!("{tag},{tag}"),
        &format!("\"{tag}\""),
        &tag.replace(|digit: char| digit.is_ascii_digit(), "g"),
        &format!("{}é", &tag[..62]),
        "bm90IGJhc2U2NCBlaXRoZXIsIG5vdCBiYXNlNjQgZWl0aGVyLCBubyBiYXNlNjQh",
    ];
    for signature in malformed {
        let answered = send(&service, delivery(BODY).with(SIGNATURE, signature)).await;
        answered.assert_problem(401, "invalid-signature");
        let verified = Secrets::from(secret()).verify(BODY.as_bytes(), signature.as_bytes());
        assert_eq!(verified, Err(SignatureError::Malformed), "{signature:?}");
    }
    for request in [
        delivery(BODY).without(SIGNATURE),
        delivery(BODY).and(SIGNATURE, &tag),
        delivery(BODY).and(SIGNATURE, ""),
        delivery(BODY).with(SIGNATURE, [0xff; 64]),
    ] {
        send(&service, request)
            .await
            .assert_problem(401, "invalid-signature");
    }
    assert_eq!(crm.runs(), 0);
    send(&service, delivery(BODY).with(SIGNATURE, &tag))
        .await
        .assert_ok();
}

/// A body that has not arrived yet.
fn held_back(
    first: Bytes,
) -> StreamBody<impl futures_util::Stream<Item = Result<Frame<Bytes>, Infallible>>> {
    let first = futures_util::stream::iter([Ok(Frame::data(first))]);
    StreamBody::new(first.chain(futures_util::stream::pending()))
}

#[tokio::test]
async fn a_useless_signature_header_is_refused_before_the_body_is_read() {
    let service = Webhooks::new(secret()).layer(router(&Crm::default()));
    let unread =
        |request: Request<_>| request.map(|_: http_body_util::Full<Bytes>| held_back(Bytes::new()));
    for request in [
        delivery(BODY).without(SIGNATURE),
        delivery(BODY).with(SIGNATURE, "0"),
        delivery(BODY).and(SIGNATURE, "0".repeat(64)),
    ] {
        let answer = send(&service, unread(request)).now_or_never();
        answer
            .expect("the body is not waited for")
            .assert_problem(401, "invalid-signature");
    }
    assert!(
        send(&service, unread(delivery(BODY)))
            .now_or_never()
            .is_none()
    );
}

#[tokio::test]
async fn held_back_bodies_do_not_displace_genuine_deliveries() {
    const MIB: usize = 1024 * 1024;
    let service = Webhooks::new(secret()).layer(router(&Crm::default()));
    // Anonymous, with a signature header that cannot be known to be wrong before the body's end.
    let almost_all = Bytes::from(vec![b' '; MIB - 1]);
    let mut held: Vec<_> = (0..500)
        .map(|_| {
            let request = delivery(BODY)
                .with(SIGNATURE, "0".repeat(64))
                .with("content-length", MIB.to_string())
                .map(|_| held_back(almost_all.clone()));
            Some(Box::pin(send(&service, request)))
        })
        .collect();
    let mut refused = 0;
    // Twice, as a body may be given up for one that comes later.
    for _ in 0..2 {
        for held in &mut held {
            for _ in 0..40 {
                let Some(body) = held else { break };
                if let Some(answered) = body.as_mut().now_or_never() {
                    answered.assert_problem(503, "overloaded");
                    refused += 1;
                    *held = None;
                }
            }
        }
    }
    // The others fill the memory that all bodies share.
    assert_eq!(refused, 500 - 64 * 16 / 15);

    for number in 0..1000 {
        let length = [600, 8_000, 30_000, 64 * 1024][number % 4];
        let body = format!("{BODY}{}", " ".repeat(length - BODY.len()));
        let frames: Vec<_> = body
            .as_bytes()
            .chunks(8 * 1024)
            .map(Bytes::copy_from_slice)
            .collect();
        let frames = frames
            .into_iter()
            .map(|frame| Ok::<_, Infallible>(Frame::data(frame)));
        let body = StreamBody::new(futures_util::stream::iter(frames));
        let tag = secret().sign(format!("{BODY}{}", " ".repeat(length - BODY.len())).as_bytes());
        let request = delivery(BODY)
            .with(SIGNATURE, tag)
            .key(&format!("key-{number}"));
        send(&service, request.map(|_| body)).await.assert_ok();
    }
    drop(held);
}

#[tokio::test]
async fn response_does_not_reveal_why_a_signature_is_invalid() {
    let service = Webhooks::new(secret()).layer(router(&Crm::default()));
    let wrong = "0".repeat(64);
    let expected = send(&service, delivery(BODY).without(SIGNATURE)).await.body;
    for signature in ["", "x", &wrong] {
        let answered = send(&service, delivery(BODY).with(SIGNATURE, signature)).await;
        assert_eq!(answered.body, expected);
    }
}

#[tokio::test]
async fn matching_secret_is_logged() {
    let log = Log::capture(tracing::Level::INFO);
    let new = |secret| Secret::new(secret).unwrap();
    let set = [new("one"), new("two").with_label("next"), new("three")];
    let service = Webhooks::new(Secrets::new(set.clone()).unwrap()).layer(router(&Crm::default()));

    for (secret, shown) in set.iter().zip(["0", "next", "2"]) {
        log.clear();
        let signed = delivery(BODY).with(SIGNATURE, secret.sign(BODY.as_bytes()));
        send(&service, signed).await.assert_ok();
        assert_eq!(log.spans()[0]["secret"], shown);
    }
    log.clear();
    send(&service, delivery(BODY))
        .await
        .assert_problem(401, "invalid-signature");
    assert_eq!(log.spans()[0].get("secret"), None);
}

#[tokio::test]
async fn secrets_can_be_replaced() {
    let [old, new] = ["old", "new"].map(|secret| Secret::new(secret).unwrap());
    let secrets = Secrets::from(old.clone());
    let service = Webhooks::new(secrets.clone()).layer(router(&Crm::default()));
    let accepts = async |secret: &Secret| {
        let signed = delivery(BODY).with(SIGNATURE, secret.sign(BODY.as_bytes()));
        let status = send(&service, signed).await.status;
        assert!(status == 200 || status == 401);
        status == 200
    };
    assert_eq!((accepts(&old).await, accepts(&new).await), (true, false));
    secrets.replace([old.clone(), new.clone()]).unwrap();
    assert_eq!((accepts(&old).await, accepts(&new).await), (true, true));
    secrets.replace([new.clone()]).unwrap();
    assert_eq!((accepts(&old).await, accepts(&new).await), (false, true));
    secrets.replace([]).unwrap_err();
    assert_eq!((accepts(&old).await, accepts(&new).await), (false, true));
}

/// Delivers `BODY`, signed with `signer`, in two halves with something done in between.
async fn halfway(secrets: &Secrets, signer: &Secret, between: impl FnOnce()) -> Answered {
    let (mut sender, body): (Sender<Bytes, Infallible>, _) = Channel::new(1);
    let service = Webhooks::new(secrets.clone()).layer(router(&Crm::default()));
    let request = delivery(BODY).with(SIGNATURE, signer.sign(BODY.as_bytes()));
    let answered = send(&service, request.map(|_| body));
    let (first, rest) = BODY.as_bytes().split_at(BODY.len() / 2);
    let body = async move {
        sender.send_data(Bytes::from_static(first)).await.unwrap();
        // Until the half was received.
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        between();
        sender.send_data(Bytes::from_static(rest)).await.unwrap();
    };
    tokio::join!(answered, body).0
}

#[tokio::test(start_paused = true)]
async fn half_received_body_is_verified_with_the_new_secrets() {
    let [old, new] = ["old", "new"].map(|secret| Secret::new(secret).unwrap());

    let secrets = Secrets::from(old.clone());
    let removed = halfway(&secrets, &old, || secrets.replace([new.clone()]).unwrap()).await;
    removed.assert_problem(401, "invalid-signature");

    let secrets = Secrets::from(old.clone());
    let added = halfway(&secrets, &new, || {
        secrets.replace([old.clone(), new.clone()]).unwrap();
    });
    added.await.assert_ok();

    let secrets = Secrets::from(old.clone());
    let kept = halfway(&secrets, &old, || {
        secrets.replace([new.clone(), old.clone()]).unwrap();
    });
    kept.await.assert_ok();
}

/// A body of these frames, perhaps with trailers.
fn in_frames(
    frames: Vec<Bytes>,
    trailers: bool,
) -> Request<impl http_body::Body<Data = Bytes, Error = Infallible>> {
    let trailers = trailers.then(|| {
        let tag = HeaderValue::from_static("0");
        Ok(Frame::trailers(HeaderMap::from_iter([(
            http::header::ETAG,
            tag,
        )])))
    });
    let whole = frames.concat();
    let data = frames.into_iter().map(|frame| Ok(Frame::data(frame)));
    let stream = futures_util::stream::iter(data.chain(trailers));
    delivery(whole).map(|_| StreamBody::new(stream))
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    runtime.unwrap().block_on(future)
}

proptest! {
    #[test]
    fn body_verifies_however_it_is_split(
        text in ".{0,200}",
        mut cuts in proptest::collection::vec(0_usize..1000, 0..20),
        trailers: bool,
    ) {
        // Cuts fall within characters too, and equal ones make empty frames.
        let body = Bytes::from(serde_json::json!({ "question": text }).to_string());
        cuts.iter_mut().for_each(|cut| *cut %= body.len() + 1);
        cuts.extend([0, body.len()]);
        cuts.sort_unstable();
        let frames: Vec<_> = cuts.windows(2).map(|cut| body.slice(cut[0]..cut[1])).collect();

        let service = Webhooks::new(secret()).store(MokaStore::with_capacity(10)).layer(router(&Crm::default()));
        block_on(async {
            let tag = secret().sign(&body);
            send(&service, in_frames(frames.clone(), trailers).with(SIGNATURE, &tag)).await.assert_ok();
            let other = secret().sign(&[&body, &b" "[..]].concat());
            send(&service, in_frames(frames, trailers).with(SIGNATURE, &other))
                .await
                .assert_problem(401, "invalid-signature");
        });
    }

    #[test]
    fn only_the_signed_bytes_verify(
        body in proptest::collection::vec(any::<u8>(), 1..300),
        key in proptest::collection::vec(any::<u8>(), 1..100),
        at: prop::sample::Index,
        bit in 0_u8..8,
    ) {
        let secret = Secret::new(key).unwrap();
        let mut tag = secret.sign(&body).into_bytes();
        let secrets = Secrets::from(secret);
        prop_assert_eq!(secrets.verify(&body, &tag), Ok(0));

        let mut tampered = body.clone();
        tampered[at.index(body.len())] ^= 1_u8 << bit;
        prop_assert_eq!(secrets.verify(&tampered, &tag), Err(SignatureError::Wrong));
        tag[at.index(64)] ^= 1_u8 << bit;
        prop_assert!(secrets.verify(&body, &tag).is_err());
    }
}

#[tokio::test]
async fn body_or_signature_with_a_flipped_bit_is_refused() {
    let crm = Crm::default();
    let service = Webhooks::new(secret()).layer(router(&crm));
    let tag = secret().sign(BODY.as_bytes());
    for bit in 0..8 * BODY.len() {
        let mut body = BODY.as_bytes().to_vec();
        body[bit / 8] ^= 1 << (bit % 8);
        let tampered = delivery(body).with(SIGNATURE, &tag);
        send(&service, tampered)
            .await
            .assert_problem(401, "invalid-signature");
    }
    let mut sent = 0;
    for bit in 0..8 * tag.len() {
        let mut tag = tag.clone().into_bytes();
        tag[bit / 8] ^= 1 << (bit % 8);
        // Some are no header's value at all.
        if let Ok(value) = HeaderValue::from_bytes(&tag) {
            let forged = delivery(BODY).with(SIGNATURE, value);
            send(&service, forged)
                .await
                .assert_problem(401, "invalid-signature");
            sent += 1;
        }
    }
    assert!(sent > 300, "{sent}");
    assert_eq!(crm.runs(), 0);
}

#[tokio::test]
async fn bodies_in_frames_of_any_size_verify() {
    const MIB: usize = 1024 * 1024;
    let service = Webhooks::new(secret())
        .max_body(4 * MIB)
        .layer(router(&Crm::default()));
    let text = "🙂".repeat(3 * MIB / 4);
    let body = Bytes::from(format!(r#"{{"question":"{text}"}}"#));
    let cut = |size: usize| -> Vec<_> { body.chunks(size).map(Bytes::copy_from_slice).collect() };
    for frames in [
        cut(usize::MAX),
        cut(MIB),
        cut(64 * 1024),
        cut(4095),
        cut(101),
    ] {
        send(&service, in_frames(frames, true)).await.assert_ok();
    }
    let bytes: Vec<_> = BODY
        .bytes()
        .map(|byte| Bytes::copy_from_slice(&[byte]))
        .collect();
    send(&service, in_frames(bytes, false)).await.assert_ok();
}

#[test]
fn debug_output_hides_secrets() {
    const HIDDEN: &str = "do not show me";
    let secret = Secret::new(HIDDEN).unwrap().with_label("label");
    let secrets = Secrets::from(secret.clone());
    let layer = Webhooks::new(secrets.clone()).ready();
    let service = layer.layer(EventRouter::new());
    let shown = format!("{secret:?} {secrets:?} {layer:?} {service:?} {secret:#?} {layer:#?}");
    assert!(shown.contains("label"));
    for hidden in [HIDDEN, "100, 111, 32", "646f206e6f74"] {
        assert!(!shown.contains(hidden), "{shown}");
    }
}
