//! Signatures of RSA, which `openssl` has made.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use tower_webhook::PublicKey;

use super::*;

const PRIVATE: &str = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQDK1A1URgqhL/JdzSpDLIJkl5CFtXgbk9QIauoQiJECh3Cy2RFcRBSBKYRBDQq4MLAnG8Gr4DS8ntvs6bDBSbPFqmRMmM0M4TBIM3CyH6YWi1TOD/zY2ODz8KBGj+e7XoQmULKyykYEaRq24HCyOfnRNY+y5tTORR9nosS3hLQyLAfo4T/3jxrWbrPzWD/9tYSXRe9NOOa2ZWoXCBWML5EI3NEurFkJaEQOlHTZYJlIKi+Vmp0PKUWJfOkaNUmj6RdIOUphioddHUBqh3ueh35jhKHPfbwdD8E2cztok61Vx6VSKMDzrF5cPz4OrTclGjXSvEojStlhMkqx5aMt0QxRAgMBAAECggEAARMv9uW1d2E6VvDta78NTzHWcZRNTKgd6ZAs1BBFOc7fSV4JJNoKLx0PNwu1+3/r5GkrP5lH7kVRQ7zWqPpBBP0q3D+7ESRoYxmSsVRQRwekrWrm8NHwGfAz3paIqIo5smefFX9+Riu1w95bT+Eqx8cRjzsrSY89jrO4Iy4wM6ExsZtKO2rq7MBL8bI9pwHE5kA00cDKDvDmCMT22CGCaV4WK1l7xglD1V0HZCmsEIxKuTVhILDKSTy/uSkEKYZyrnz7MRpapSEbJ2Zy5iPUwch7mGxFnqViNE0LRptyy5Nk9QpYOMmONHPJix8AhgDUo4oGeu3O0ckuf2LLrDyjoQKBgQDqqbwQAPGKH7KVgS1b0RGoTilJSTse80lv4AXTxwDIWt95Lb+nu26GuPDcyOL6EEKULrY07wFeSAsP+hILlHpoqd7jcxyxz0sQF6+j9jkG8Jr1i8FbXbHaf8A9IL5OUtmGrCJ6CKleXwQgP8XkDQuZQIVw1R0p5rw6eHFGFiS7TQKBgQDdRUydgc5y/Bl07liTp2pwqZY1hf/ifpiOXBuZ5lWxbjyUXY6BgUtm4gZLBl79ZdR9Tj+NaudOa+v7GLaoxz5gSxHqjfccMxo12MlfVLpljYPtcIwxZDdwhxmCOQzYHVLymMftJaXkd5YFjaRFFhOLGdUNq1M25w0xtcyFHVbrFQKBgQDaHt1s7sOVRPNlXkZAIyxLiiN8OHKYyUEImW4xNLf4g+dXJvwPt/v7hCp2vs+j6rtIK8c3mrVl4odN2X8uflvtr4A7YQNaD7nRAoNDX5oQZlNTTA11lLi9xaN17lqWSRJiyNvfHO/5hU47f6u815dhYwTmJWHPUebCXrPDls+bvQKBgFx/7OBndGujMe0s+oB3W0rPykiDxQ3lSFcy8CLtJGOxJsgLOFixOVlAIctZVXpvCF59yJmQ2DNzcEoe8bUq3cuZdlrskCIMxuc9wikFHYr4lu86vpCjSX3ULHjA6rqpv5RFBEcCFxCkYWXe6Y4sBW2AFg3J0lbATka6rk3zjvNlAoGAQ3TC/WgDdX3NTN22aGreX2Aj2fh5gn0svXDnCQMzV7j+3xrYo6r5b0Csq8t1yGj206/fgsz7jHiDUJTe20Fq+MOpLQ2ubHCG1ObQ+T911ixXS33l79iuUbC8ulUNJ1uQ25VD2Hwyl8lFiA6fF32eW2EN9nHf/TRzByJZHYIfxl4=";
const PUBLIC: &str = "MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAytQNVEYKoS/yXc0qQyyCZJeQhbV4G5PUCGrqEIiRAodwstkRXEQUgSmEQQ0KuDCwJxvBq+A0vJ7b7OmwwUmzxapkTJjNDOEwSDNwsh+mFotUzg/82Njg8/CgRo/nu16EJlCysspGBGkatuBwsjn50TWPsubUzkUfZ6LEt4S0MiwH6OE/948a1m6z81g//bWEl0XvTTjmtmVqFwgVjC+RCNzRLqxZCWhEDpR02WCZSCovlZqdDylFiXzpGjVJo+kXSDlKYYqHXR1Aaod7nod+Y4Shz328HQ/BNnM7aJOtVcelUijA86xeXD8+Dq03JRo10rxKI0rZYTJKseWjLdEMUQIDAQAB";
/// Of 4,096, 1,024 and 512 bits, and one that is for PSS alone.
const LARGE: &str = "MIICIjANBgkqhkiG9w0BAQEFAAOCAg8AMIICCgKCAgEAwh6fDVgX66I3d0hW1vgalx9ErZ8vkxsKaY3o+CNpYnwcbo9q9ykUjvq95D2djE/fW6tOXRZZZtas88FPLKCe4gRnxdK4PrWb0xk+XfeNnXZDWhbU69BF8hO442KKHNH680+xl57dbTR4SbneQX5VYSfqlD30sxVjHWy8W1mrPFFXfbldceJ0OdTxNnaNwdrKWXsVtMschkYWHbGZfP4U2y/KOkloDJwFg0RxN3KtEhyhqs0TzMi1eguzQLzdEYDrp2IOwwkRbJ4ORJBo6luk/WsT8KKmC1tZApv+yjolDXa7mPph+CLTHOtGlLfnWc6RBqs+9Z4UAwdwrnAaFCfZEQu5uV0moErKjut+Na7WEbIfNnHzfTmlzqmyA8Z7aiTDNpdqhKUYN2H3JAdCwwfR2NVRbNfYAf7mmj/2B3ZvD9PHxHGThFCqIcme+p/P37GPgW0QUfSM0zf15BA1lgYJnaWdstYTx17ky9nwwiRxNmOplJa/vntnQIKdiGhogCKxUmhOcrr9bFftESfmpX54Ye4mje+WZadutFuJTXCaTSuqxwEUDwDkHAiR6HeUem3QtN6aOGJYHqmhi+CjaoYwgA2Cx8VlJnmj4yBWveN8fp7HRyzchE6DLtn/21RY4nh4j2dVpcbH4vAfYQE07WPWt/mFwAdhB590WsQyulnf3xECAwEAAQ==";
const SHORT: &str = "MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQDbS7JYHcMfCZgrHpzeb5xFaN3vb+jovn3Jg3AebMkBsO6Iv6XGe/9NuY3crjVu+ebdIcRfx0k2siimDrAkhQxIFZowZPWR9VxKXR4NSLhU4OZNqxVTJCVpinKjxJpBL1qR1zgmd/dnYrpb/13rOOo+LSxRo3FuZVuUhPoMSJlmwQIDAQAB";
const TINY: &str = "MFwwDQYJKoZIhvcNAQEBBQADSwAwSAJBAK3fPyHVdIY7q2kBPJvnXg4mRK2Jzb6b3XEd99bJWbqdLGTROKwYSMBYrj34b/4xREnv8pAyFoFD6cZt5P290+MCAwEAAQ==";
const FOR_PSS: &str = "MIIBIDALBgkqhkiG9w0BAQoDggEPADCCAQoCggEBAODZWq3uP517p5QlCW1kd7EIdBZ7ljoa6PANeZqeq8LHfS4jOX2NWJ4WqbMS9cpfSLt2SJ88AE02iySUP9m59VQOdcfkHfzOgL5e81fWvpevqVZvOGdwdtNrY0Cw4cS2wlNlTkHqT3aghXDuHu6EfApopNiwBhVqIrFcfNO/xN1PRaEzOXorvpHhsJtMBP8tkLmPyJ/WlZOWDAH1pelsoLSA4ILDf+ojXIUOMH3/HhYtrMfx5H1gpzVJ7EEa9hZYieARpvWTajTa9BAkp/kDgI//vFL529GhbHXbLal033br+9lyiuqjfrSvu0Kgih90lQpVswn057jLMzyDv7y3GsECAwEAAQ==";

const SHA256: &str = "OxAASeWy1GVKv8ZzEghp2CugvlroYM9QvddHNUkGqox9Cg57bGhkQcmZq71S99c2KEpcfYm5vNMfQyw4BptCe/IH6JanP0YnwyryTFmrQ2Dty4pnu1FcbS/V1JQiUP5kGuXLqIzZP5+RIpvRi1SCLrIfjsPf5ED6qjG/KFDI450DmHMXsch3/FZUxIpf9C+3ChVgTXDqUC4MXmPEORX7QK1MjAZUuJ4NaaMfmlHy0rDx3ECNqml8HmMNj7tCP99GJ28s4Y/ytUAUb4UbMqHZrU2BYO+4kfb0fT/kCpd3ckH8kOpooe5dwAdcIfZl4XTCnz+zAg2DKLjaRXcMEMB+NQ==";
const SHA512: &str = "Jn4Lz9oH9hmqOpTtBIvX4IIFIcM7eIeiUj4i9iN/F8YAbvymYd48/gfgU/kHK/zBrVqEObPpWDZGB760+e3FtDNhVOWvqg3bT8ZccjOXTFLwtSl8cZ2ilwmYzF/WoaE6XXqw03eq+pEKQ+7LfPiik7x7rT8uGAkurEv5Jdmkt9pK0DDEY14ZUF/qBfodztBNuz8lVjhp/lsrVyerafFIGQgvzlmK3N+JCbr0BpqSWeZiF5hC9xgGu6mbTt4493q1KIJigbTKgwoHernmMrhvXo1Bcju9o4K8MLI1y+K7fprEZDUkuL5gk8pQdH6naUsnLv53nuUb+W9uZNUMk+6k9A==";
/// With a salt as long as the hash, and with none.
const PSS: &str = "J1BVzDYIRVHS/OA4JYiYvqNXDc6QnT281fv+2iWg+WGQfcXW79kBmeZm+T5S+SrXQw9a73SriLLeMWGZUn3oW8I3THvGI3Hou7y+0Que4wPIhYB/+RPvvtTc0/AzskJoZSo2TqwQOafayC7MiGkP0SMlmi0P6LFCKovfDOZr6qrt2k5j77dP/B04x0P1c0dUWeRpZcS8hWEIR8GLtt5Tv8ue86NJTjPJwISJPloRca5PrCxM2jg7mJSm4jmecubp5ygRgeHmwKMpqzicof64L0/meEvgPhKoSOR6t9TFl7FjBEnAG2rYHiRZfJHij1Z9BOx4P6WsRunnM7CnA7AArQ==";
const PSS_WITHOUT_SALT: &str = "bQqAuYJRnvFVK9RvbV8TX6jHDrjBWEEqo6q2GQd1blpoWLK1sJAg6WB3C1fP37jcJAKZ4ICL4U1L0Zfi0ErVsKGiufBYqtr+1aCFn6imTruJPh5+FQJvzQsh0X2dXHJgMadiIyW6JOQ7G1UcjwxM/maNl3ZyojUiQRmB5H9W0WuofvfkRwzDlaaXc3F8iKnitWtNgAmkbTc2nDK+sy93nCyx3bc4QZS2zXXw0cUnyhbhYQ9QWlsbLBQWDE3bssjVhN163galWWuQYJoiW25c0sshUmGj4404oGQYRAfkn5TJ2vsDKdxfK8heJVh2zjNyHTlggLwllH6UJwfd1nXDSA==";
const SHA1: &str = "mPt+s0yYEMrkDKGaBer2iSmtqrEvbmzPndYUdCyxjrRp0i1Uk3AYi6rRvU0+jeNE1jQgpZVx02VUiqLAXSRvgAwd0XOG19hc6EmHaEYgIkwfNytlQpTBHQ1r1tQ9SGkOXY48c0Yh8ECryQAiu2hkliZ09eGG/G/z6FN3W6c8hYkg83Zcl0MbGrzVMEPOu2maBG5hPO54I64YimWPe5vh0EgpQlrmWu39R6N2qWwv2WQDEaooozzGuaRetgNc/V3naB57QlP5CNyTGnDeme4NfY6MbfBDYj52uOyEseRqftGP31RvXQUEdyg/WEFXj+BXsMrORyTp7lN4Zi4zZlau3Q==";

fn rsa(algorithm: &str) -> Sender {
    described(json!({"signature.algorithm": algorithm, "signature.coding": "base64"})).unwrap()
}

fn key(text: &str) -> PublicKey {
    PublicKey::new(text).unwrap()
}

#[tokio::test]
async fn signatures_of_openssl_are_verified() {
    for (algorithm, right) in [
        ("rsa-sha256", SHA256),
        ("rsa-sha512", SHA512),
        ("rsa-pss-sha512", PSS),
    ] {
        let sender = rsa(algorithm);
        for tag in [SHA256, SHA512, PSS, PSS_WITHOUT_SALT, SHA1] {
            let request = || post(BODY).with("x-tag", tag);
            let answered = receive(key(PUBLIC), &sender, request()).await;
            assert_eq!(answered.status == 200, tag == right, "{algorithm}");
            let at_once = sender.verify(&key(PUBLIC).into(), request().headers(), BODY.as_bytes());
            assert_eq!(at_once.is_ok(), tag == right, "{algorithm}");
            let answered = receive(key(LARGE), &sender, request()).await;
            assert_eq!(answered.status, 401);
        }
        let other = post(BODY.replace('1', "2")).with("x-tag", right);
        assert_eq!(receive(key(PUBLIC), &sender, other).await.status, 401);
        // Of several keys, whichever has signed.
        let keys = Secrets::new([key(LARGE).into(), key(PUBLIC).into()]).unwrap();
        let answered = receive(keys, &sender, post(BODY).with("x-tag", right)).await;
        assert_eq!(answered.status, 200);
        // A private key signs in tests.
        let private = Secret::new(PRIVATE).unwrap();
        let request = signed(&sender, &private, BODY);
        assert_eq!(receive(key(PUBLIC), &sender, request).await.status, 200);
        if algorithm != "rsa-pss-sha512" {
            assert_eq!(signed(&sender, &private, BODY).headers()["x-tag"], right);
        }
    }
}

#[tokio::test]
async fn tags_in_another_form_are_refused() {
    let sender = rsa("rsa-sha256");
    let zeros = |length: usize| BASE64_STANDARD.encode(vec![0; length]);
    for tag in [
        "".to_owned(),
        SHA256[1..].to_owned(),
        format!("{SHA256}AAAA"),
        SHA256.replace("==", ""),
        SHA256.to_lowercase(),
        zeros(0),
        zeros(32),
        zeros(255),
        zeros(256),
        zeros(257),
        zeros(1024),
        zeros(1025),
        zeros(100_000),
        format!("{SHA256},{SHA256}"),
    ] {
        let request = post(BODY).with("x-tag", &tag);
        receive(key(PUBLIC), &sender, request)
            .await
            .assert_problem(401, "invalid-signature");
    }
    let twice = post(BODY).with("x-tag", SHA256).and("x-tag", SHA256);
    receive(key(PUBLIC), &sender, twice)
        .await
        .assert_problem(401, "invalid-signature");
}

#[tokio::test]
async fn content_around_the_body_and_its_digest_are_signed() {
    let time = json!({"at": "x-time", "unit": "seconds", "past": 5, "ahead": 5});
    for content in [
        "{x-time}.{body}",
        "{body}.{x-time}",
        "{x-time}.{body sha256}",
    ] {
        let sender = described(json!({
            "signature.algorithm": "rsa-sha256", "signature.coding": "base64",
            "signature.content": content, "signature.timestamp": time,
        }));
        let sender = sender.unwrap();
        let private = Secret::new(PRIVATE).unwrap();
        let request = || signed(&sender, &private, BODY);
        assert_eq!(
            receive(key(PUBLIC), &sender, request()).await.status,
            200,
            "{content}"
        );
        let mut other = request();
        *other.body_mut() = Full::from("{}");
        assert_eq!(
            receive(key(PUBLIC), &sender, other).await.status,
            401,
            "{content}"
        );
    }
}

#[test]
fn keys_that_are_short_or_of_another_algorithm_are_refused() {
    for text in [SHORT, TINY] {
        let error = PublicKey::new(text).unwrap_err().to_string();
        assert!(error.contains("2,048 to 8,192 bits"), "{error}");
    }
    let der = BASE64_STANDARD.decode(PUBLIC).unwrap();
    let mut wrong = vec![
        FOR_PSS.to_owned(),
        PRIVATE.to_owned(),
        PUBLIC[..PUBLIC.len() - 4].to_owned(),
    ];
    // The exponent 65,537 is the last of it: even, or 1.
    for end in [
        &[0x02, 0x03, 0x01, 0x00, 0x00][..],
        &[0x02, 0x03, 0x00, 0x00, 0x01],
    ] {
        let changed = [&der[..der.len() - 5], end].concat();
        wrong.push(BASE64_STANDARD.encode(changed));
    }
    wrong.extend((1..der.len()).map(|length| BASE64_STANDARD.encode(&der[..length])));
    // 32 bytes are a key of Ed25519, or none.
    for text in wrong.iter().filter(|text| text.len() != 44) {
        assert!(PublicKey::new(text).is_err(), "{text}");
    }
    let ed25519 = "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=";
    for (text, algorithm) in [
        (ed25519, "rsa-sha256"),
        (PUBLIC, "ed25519"),
        (PUBLIC, "ecdsa-p256"),
    ] {
        let webhooks = Webhooks::new(key(text)).sender(rsa(algorithm));
        let error = webhooks.into_signature_layer().unwrap_err().to_string();
        assert!(error.contains("its public key of"), "{error}");
    }
    let error = Webhooks::new(key(PUBLIC))
        .sender(Sender::github())
        .into_signature_layer();
    assert!(
        error
            .unwrap_err()
            .to_string()
            .contains("not with a public key")
    );
    for form in ["hex", "base64", "text-or-base64"] {
        let error =
            described(json!({"signature.algorithm": "rsa-sha256", "signature.secret": form}));
        assert!(error.unwrap_err().contains("a public key has none"));
    }
}

/// As Telnyx shows it.
#[test]
fn a_key_of_ed25519_is_read_in_plain_base64() {
    let text = "1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=";
    let sender =
        described(json!({"signature.algorithm": "ed25519", "signature.coding": "base64"})).unwrap();
    assert!(
        Webhooks::new(key(text))
            .sender(sender)
            .into_signature_layer()
            .is_ok()
    );
    assert!(PublicKey::new(&text[..43]).is_err());
    assert!(PublicKey::new(format!("{}=", "A".repeat(43))).is_err());
}
