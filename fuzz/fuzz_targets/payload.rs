//! Payloads: exactly the JSON objects decode, no value is invented, and encoding loses nothing.
#![no_main]

use std::fmt::Debug;

use arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;
use oracle::json;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, to_value};
use tower_webhook::RawDelivery;
use tower_webhook::event::{Chat, ChatLifecycle, EventKind, Message};

fuzz_target!(|data: &[u8]| {
    check(data);
    if let Ok(object) = json::object(&mut Unstructured::new(data)) {
        assert!(json::is_object(object.as_bytes()), "{object}");
        check(object.as_bytes());
    }
});

fn check(body: &[u8]) {
    let raw = RawDelivery::new(EventKind::CHAT_RATED, body.to_vec());
    let is_object = json::is_object(body);
    assert_eq!(raw.json().is_ok(), is_object);
    check_payload::<Chat>(&raw, is_object);
    check_payload::<Message>(&raw, is_object);
    check_payload::<ChatLifecycle>(&raw, is_object);
}

fn check_payload<T>(raw: &RawDelivery, is_object: bool)
where
    T: DeserializeOwned + Serialize + PartialEq + Debug,
{
    let decoded = raw.decode::<T>();
    assert_eq!(decoded.is_ok(), is_object, "{decoded:?}");
    let Ok(payload) = decoded else { return };
    let fields = to_value(&payload).expect("a payload encodes");

    // A repaired body differs from its payload in the replaced tokens.
    if let Ok(sent) = serde_json::from_slice(raw.body()) {
        assert_sent(&fields, &sent);
    }

    let text = serde_json::to_vec(&payload).expect("a payload encodes");
    assert!(json::is_object(&text));
    let again: T = RawDelivery::new(raw.kind().clone(), text)
        .decode()
        .expect("an object");
    let mut fields_again = to_value(&again).expect("a payload encodes");
    if same_rating(&fields, &fields_again) {
        fields_again["rating"] = fields["rating"].clone();
        assert_eq!(fields_again, fields);
    } else {
        assert_eq!(again, payload);
    }
}

/// Without its feature `float_roundtrip`, serde_json rounds several times: the digits, the power of ten (twice
/// where one `f64` cannot hold it), and their product. The result is at most three values of `f64` away.
fn same_rating(one: &Value, other: &Value) -> bool {
    match (
        one.get("rating").map(Value::as_f64),
        other.get("rating").map(Value::as_f64),
    ) {
        (Some(Some(one)), Some(Some(other))) => {
            one.is_sign_negative() == other.is_sign_negative()
                && one.to_bits().abs_diff(other.to_bits()) <= 3
        }
        _ => false,
    }
}

/// Asserts that every field of a payload has the value that was sent. Lists may lack elements that are not
/// strings.
fn assert_sent(field: &Value, sent: &Value) {
    match (field, sent) {
        (Value::Object(fields), Value::Object(sent)) => {
            for (name, field) in fields {
                assert_sent(field, &sent[name]);
            }
        }
        (Value::Array(items), Value::Array(sent)) => {
            assert!(items.iter().eq(sent.iter().filter(|item| item.is_string())));
        }
        (Value::Number(field), Value::Number(sent)) => {
            assert!(
                field == sent || field.as_f64() == sent.as_f64(),
                "{field} {sent}"
            );
        }
        _ => assert_eq!(field, sent),
    }
}
