//! Signatures and tokens in the query of the URL.

use super::*;

fn secret() -> Secret {
    Secret::new("secret").unwrap()
}

async fn status(sender: &Sender, request: Request<Full<Bytes>>) -> u16 {
    receive(secret(), sender, request).await.status.as_u16()
}

fn to(target: &str, body: &str) -> Request<Full<Bytes>> {
    let mut request = post(body.to_owned());
    *request.uri_mut() = target.parse().unwrap();
    request
}

#[tokio::test]
async fn a_tag_may_stand_in_the_query() {
    let sender = described(json!({"signature.headers": ["?sign"], "signature.coding": "base64"}));
    let sender = sender.unwrap();
    let delivery = RawDelivery::new("x".parse().unwrap(), BODY);
    let query = sender.sign_query(&secret(), &delivery).unwrap().unwrap();
    let encoded = query.strip_prefix("sign=").unwrap();
    // Each character means itself.
    assert!(
        encoded
            .bytes()
            .all(|it| it == b'%' || it.is_ascii_alphanumeric())
    );
    assert_eq!(
        described(json!({}))
            .unwrap()
            .sign_query(&secret(), &delivery)
            .unwrap(),
        None
    );
    let other = format!("sign={}%3D", "A".repeat(43));
    for (target, accepted) in [
        (format!("/?a=b&{query}&c"), true),
        (format!("/?{query}"), true),
        (format!("/?%73ign={encoded}"), true),
        (format!("/?{query}&{query}"), false),
        (format!("/?{query}&%73ign=a"), false),
        ("/".to_owned(), false),
        ("/?sign".to_owned(), false),
        ("/?sign=".to_owned(), false),
        ("/?sign=%00".to_owned(), false),
        ("/?sign=%".to_owned(), false),
        (format!("/?Sign={encoded}"), false),
        (format!("/?{other}"), false),
        (format!("/?sign={}", "A".repeat(5_000)), false),
    ] {
        let request = to(&target, BODY);
        let at_once = sender.verify_at(
            request.uri(),
            &secret().into(),
            request.headers(),
            BODY.as_bytes(),
        );
        assert_eq!(at_once.is_ok(), accepted, "{target}");
        let status = status(&sender, request).await;
        assert_eq!(status, if accepted { 200 } else { 401 }, "{target}");
        assert_eq!(
            sender.verify(&secret().into(), post(BODY).headers(), BODY.as_bytes()),
            Err(SignatureError::Missing)
        );
    }
    let status = status(&sender, to(&format!("/?{query}"), &BODY.replace('1', "2"))).await;
    assert_eq!(status, 401);
}

#[tokio::test]
async fn a_token_may_stand_in_the_query() {
    let texts = ["secret", "a b&c=d#e%f+g/ü", "b3RoZXI="];
    for (coding, prefix) in [(None, ""), (None, "Bearer "), (Some("base64"), "")] {
        let signature = json!({"headers": ["?the token"], "algorithm": "token", "coding": coding, "prefix": prefix});
        let sender = described(json!({"signature": signature})).unwrap();
        let delivery = RawDelivery::new("x".parse().unwrap(), BODY);
        for text in texts {
            let secret = || Secret::new(text).unwrap();
            let query = sender.token_query(text).unwrap();
            // It is no signature, and no header has it.
            assert_eq!(sender.sign_query(&secret(), &delivery).unwrap(), None);
            assert_eq!(sender.token(text), None);
            let mut request = to(&format!("/?a=b&{query}"), BODY);
            *request.headers_mut() = sender.sign(&secret(), &delivery).unwrap();
            assert_eq!(receive(secret(), &sender, request).await.status, 200);
            for other in texts.iter().filter(|it| **it != text) {
                let query = sender.token_query(other).unwrap();
                let request = to(&format!("/?{query}"), BODY);
                let answered = receive(secret(), &sender, request).await;
                answered.assert_problem(401, "invalid-signature");
            }
        }
    }
    for sender in [described(json!({})).unwrap(), Sender::gitlab()] {
        assert_eq!(sender.token_query("secret"), None);
    }
    let signs = described(json!({"signature.headers": ["?sign"]})).unwrap();
    assert_eq!(signs.token_query("secret"), None);
}

#[tokio::test]
async fn a_token_in_a_sample_is_written_as_its_sender_writes_it() {
    let signature = json!({"headers": ["/token"], "algorithm": "token", "coding": "base64"});
    let sender = described(json!({"signature": signature})).unwrap();
    let sample = sender.sample(&"x".parse().unwrap(), &"1".parse().unwrap());
    let delivery = sender.put_token(sample.unwrap(), "secret");
    assert!(delivery.json().unwrap().contains(r#""token":"c2VjcmV0""#));
    let request = post(delivery.body().clone());
    assert_eq!(status(&sender, request).await, 200);
}
