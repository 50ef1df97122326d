//! Payloads: every field of the spec's tables is read and written as the platform writes it, and no
//! JSON object is refused.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tower_webhook::event::{
    Chat, ChatLifecycle, ChatRated, Event, EventKind, Message, Reference, Timestamp, User, sample,
};
use tower_webhook::{DecodeError, Delivery, EventRouter, RawDelivery};
use tracing::Level;

use support::log::Log;

/// Typed from table 2.1.
const CHAT: &str = r#"{
    "id": "chat-1",
    "requestedExperts": ["expert-1", "expert-2"],
    "category": {"id": "category-1", "title": "Returns"},
    "user": {"id": "user-1", "name": "Zoë Ångström", "email": "zoe@example.test", "locale": "SE"},
    "question": "Where is my parcel? 📦",
    "languageCode": "sv",
    "createdAt": 1700000000001,
    "referer": "https://example.test/help",
    "customMeta": {"plan": "gold", "team": "north"},
    "assignedAt": 1700000000002
}"#;

/// Typed from table 2.2.
const MESSAGE: &str = r#"{
    "chat": {"id": "chat-1"},
    "id": "message-1",
    "user": {"id": "user-1"},
    "expert": {"id": "expert-1"},
    "isUser": true,
    "text": "Hello 👋🏽",
    "type": "text",
    "hideForUser": false,
    "hideForExpert": true,
    "createdAt": 1700000000003,
    "attachment": {"url": "https://example.test/a.png", "filename": "a.png", "mimetype": "image/png"}
}"#;

/// Typed from table 2.3.
const LIFECYCLE: &str = r#"{
    "id": "chat-1",
    "user": {"id": "user-1", "name": "Zoë Ångström", "email": "zoe@example.test", "locale": "SE"},
    "expert": {"id": "expert-1", "name": "Bo", "email": "bo@example.test"},
    "category": {"id": "category-1", "title": "Returns"},
    "question": "Where is my parcel? 📦",
    "languageCode": "sv",
    "status": "rated",
    "rating": 1,
    "transcriptURL": "https://example.test/transcripts/chat-1",
    "createdAt": 1700000000001,
    "acceptedAt": 1700000000002,
    "closedAt": 1700000000003,
    "ratedAt": 1700000000004,
    "lastOpenedAt": 1700000000005,
    "referer": "https://example.test/help",
    "customMeta": {"plan": "gold", "team": "north"}
}"#;

fn decode<T: DeserializeOwned>(json: &str) -> T {
    serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {json}"))
}

/// Encodes to text and reads it back, because a receiver would.
fn encode<T: Serialize>(payload: &T) -> Value {
    decode(&serde_json::to_string(payload).unwrap())
}

fn text(value: &str) -> Option<String> {
    Some(value.to_owned())
}

fn at(millis: i64) -> Option<Timestamp> {
    Some(Timestamp::from_millis(millis))
}

fn meta() -> BTreeMap<String, String> {
    [("plan", "gold"), ("team", "north")]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .into()
}

#[test]
fn chat_keeps_every_field() {
    let chat: Chat = decode(CHAT);

    assert_eq!(chat.id, text("chat-1"));
    assert_eq!(chat.requested_experts, ["expert-1", "expert-2"]);
    let category = chat.category.clone().unwrap();
    assert_eq!(category.id, text("category-1"));
    assert_eq!(category.title, text("Returns"));
    let user = chat.user.clone().unwrap();
    assert_eq!(user.id, text("user-1"));
    assert_eq!(user.name, text("Zoë Ångström"));
    assert_eq!(user.email, text("zoe@example.test"));
    assert_eq!(user.locale, text("SE"));
    assert_eq!(chat.question, text("Where is my parcel? 📦"));
    assert_eq!(chat.language_code, text("sv"));
    assert_eq!(chat.created_at, at(1_700_000_000_001));
    assert_eq!(chat.referer, text("https://example.test/help"));
    assert_eq!(chat.custom_meta, meta());
    assert_eq!(chat.assigned_at, at(1_700_000_000_002));

    assert_eq!(encode(&chat), decode::<Value>(CHAT));
}

#[test]
fn message_keeps_every_field() {
    let message: Message = decode(MESSAGE);

    assert_eq!(message.chat, Some(Reference::default().id(text("chat-1"))));
    assert_eq!(message.id, text("message-1"));
    assert_eq!(message.user, Some(Reference::default().id(text("user-1"))));
    assert_eq!(
        message.expert,
        Some(Reference::default().id(text("expert-1")))
    );
    assert_eq!(message.is_user, Some(true));
    assert_eq!(message.text, text("Hello 👋🏽"));
    assert_eq!(message.kind, text("text"));
    assert_eq!(message.hide_for_user, Some(false));
    assert_eq!(message.hide_for_expert, Some(true));
    assert_eq!(message.created_at, at(1_700_000_000_003));
    let attachment = message.attachment.clone().unwrap();
    assert_eq!(attachment.url, text("https://example.test/a.png"));
    assert_eq!(attachment.filename, text("a.png"));
    assert_eq!(attachment.mimetype, text("image/png"));

    assert_eq!(encode(&message), decode::<Value>(MESSAGE));
}

#[test]
fn chat_lifecycle_keeps_every_field() {
    let chat: ChatLifecycle = decode(LIFECYCLE);

    assert_eq!(chat.id, text("chat-1"));
    let user = chat.user.clone().unwrap();
    assert_eq!(user.id, text("user-1"));
    assert_eq!(user.name, text("Zoë Ångström"));
    assert_eq!(user.email, text("zoe@example.test"));
    assert_eq!(user.locale, text("SE"));
    let expert = chat.expert.clone().unwrap();
    assert_eq!(expert.id, text("expert-1"));
    assert_eq!(expert.name, text("Bo"));
    assert_eq!(expert.email, text("bo@example.test"));
    let category = chat.category.clone().unwrap();
    assert_eq!(category.id, text("category-1"));
    assert_eq!(category.title, text("Returns"));
    assert_eq!(chat.question, text("Where is my parcel? 📦"));
    assert_eq!(chat.language_code, text("sv"));
    assert_eq!(chat.status, text("rated"));
    assert_eq!(chat.rating, Some(1.0));
    assert_eq!(
        chat.transcript_url,
        text("https://example.test/transcripts/chat-1")
    );
    assert_eq!(chat.created_at, at(1_700_000_000_001));
    assert_eq!(chat.accepted_at, at(1_700_000_000_002));
    assert_eq!(chat.closed_at, at(1_700_000_000_003));
    assert_eq!(chat.rated_at, at(1_700_000_000_004));
    assert_eq!(chat.last_opened_at, at(1_700_000_000_005));
    assert_eq!(chat.referer, text("https://example.test/help"));
    assert_eq!(chat.custom_meta, meta());

    assert_eq!(encode(&chat), decode::<Value>(LIFECYCLE));
}

#[test]
fn field_of_another_type_is_omitted_with_a_warning() {
    check_fields::<Chat>(CHAT, 10 + 2 + 4);
    check_fields::<Message>(MESSAGE, 11 + 1 + 1 + 1 + 3);
    check_fields::<ChatLifecycle>(LIFECYCLE, 16 + 4 + 3 + 2);
}

/// Puts every other JSON type in the place of each field, nested ones included.
fn check_fields<T>(json: &str, count: usize)
where
    T: DeserializeOwned + Debug + PartialEq,
{
    let full: Value = decode(json);
    let pointers = pointers(&full);
    assert_eq!(pointers.len(), count);

    for pointer in pointers {
        let field = full.pointer(&pointer).unwrap();
        let path = pointer[1..].replace('/', ".");
        let without: T = decode(&remove(&full, &pointer).to_string());
        assert_ne!(without, decode::<T>(json), "{path}");

        for other in [
            Value::Null,
            json!(true),
            json!(70_001),
            json!(0.25),
            json!("secret"),
            json!(["secret", {"id": "secret"}]),
            json!({"secret": "secret", "deep": [[{}]]}),
        ] {
            let is_of_the_type = json_type(&other) == json_type(field);
            let is_fraction_of_milliseconds = other.is_f64() && path.ends_with("At");
            if is_of_the_type && !is_fraction_of_milliseconds {
                continue;
            }

            let mut changed = full.clone();
            *changed.pointer_mut(&pointer).unwrap() = other.clone();
            let (payload, warnings) = warnings_of(|| decode::<T>(&changed.to_string()));

            assert_eq!(payload, without, "{path}: {other}");
            if other.is_null() {
                assert_eq!(warnings, [], "{path}");
            } else {
                let expected = if path.ends_with("At") {
                    "whole milliseconds"
                } else {
                    json_type(field)
                };
                assert_eq!(warnings, [Warning::new(&path, expected, json_type(&other))]);
            }
        }
    }
}

/// A pointer to each field; what stands in `customMeta` and `requestedExperts` are no fields.
fn pointers(payload: &Value) -> Vec<String> {
    let mut pointers = Vec::new();
    for (name, value) in payload.as_object().unwrap() {
        pointers.push(format!("/{name}"));
        if let Value::Object(fields) = value
            && name != "customMeta"
        {
            pointers.extend(fields.keys().map(|nested| format!("/{name}/{nested}")));
        }
    }
    pointers
}

fn remove(payload: &Value, pointer: &str) -> Value {
    let mut payload = payload.clone();
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    payload
        .pointer_mut(parent)
        .unwrap()
        .as_object_mut()
        .unwrap()
        .remove(name);
    payload
}

fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[test]
fn collections_drop_values_other_than_strings() {
    let json = r#"{
        "requestedExperts": ["a", null, 1, "b", ["c"], {"d": "e"}],
        "customMeta": {"a": "1", "b": 2, "c": null, "d": {"e": "f"}, "g": "h", "a": null}
    }"#;

    let (chat, warnings) = warnings_of(|| decode::<Chat>(json));

    assert_eq!(chat.requested_experts, ["a", "b"]);
    assert_eq!(
        chat.custom_meta,
        BTreeMap::from([("g".to_owned(), "h".to_owned())])
    );
    assert_eq!(
        warnings,
        [
            Warning::dropped("requestedExperts", 3),
            Warning::dropped("customMeta", 2),
        ]
    );
}

#[test]
fn dropped_values_cause_one_warning() {
    let json = format!(
        r#"{{"customMeta": {{{} "a": "1"}}}}"#,
        r#""":0,"#.repeat(10_000)
    );

    let (chat, warnings) = warnings_of(|| decode::<Chat>(&json));

    assert_eq!(chat.custom_meta.len(), 1);
    assert_eq!(warnings, [Warning::dropped("customMeta", 10_000)]);
}

#[test]
fn last_of_several_equal_fields_wins() {
    let json = r#"{
        "id": "first", "id": "last",
        "question": "first", "question": null,
        "referer": "first", "referer": 1,
        "status": 1, "status": "last",
        "user": {"id": "first", "name": "first"}, "user": {"id": "last"},
        "createdAt": 1, "createdAt": 2
    }"#;

    let chat: ChatLifecycle = decode(json);

    let expected = ChatLifecycle::default()
        .id(text("last"))
        .status(text("last"))
        .user(User::default().id(text("last")))
        .created_at(at(2));
    assert_eq!(chat, expected);
}

#[test]
fn unknown_fields_are_ignored() {
    let json =
        r#"{"ID": "x", "": 1, "created_at": 1, "id": "c", "user": {"age": 7, "id": "u"}, "é": {}}"#;

    let (chat, warnings) = warnings_of(|| decode::<Chat>(json));

    assert_eq!(encode(&chat), json!({"id": "c", "user": {"id": "u"}}));
    assert_eq!(warnings, []);
}

#[test]
fn payload_must_be_an_object() {
    for json in [
        "",
        "null",
        "true",
        "1",
        "\"{}\"",
        "[]",
        "[{}]",
        "{",
        "{}{}",
        "{\"id\":}",
        "{'id':1}",
    ] {
        assert!(serde_json::from_str::<Chat>(json).is_err(), "{json}");
        assert!(serde_json::from_str::<Message>(json).is_err(), "{json}");
        assert!(
            serde_json::from_str::<ChatLifecycle>(json).is_err(),
            "{json}"
        );
    }
    assert_eq!(decode::<Chat>(" {\n} "), Chat::default());
    assert_eq!(encode(&Chat::default()), json!({}));
    assert_eq!(encode(&Message::default()), json!({}));
    assert_eq!(encode(&ChatLifecycle::default()), json!({}));
}

#[test]
fn deeply_nested_payload_decodes() {
    let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
    for field in [
        "id",
        "user",
        "requestedExperts",
        "customMeta",
        "createdAt",
        "unknown",
    ] {
        let json = format!(r#"{{"{field}":{deep},"question":"why"}}"#);
        let chat: Chat = decode(&json);
        assert_eq!(chat, Chat::default().question(text("why")));
    }
    let json = format!(r#"{{"user":{{"id":{deep},"name":"Zoë"}},"customMeta":{{"a":{deep}}}}}"#);
    assert_eq!(
        encode(&decode::<Chat>(&json)),
        json!({"user": {"name": "Zoë"}})
    );
}

#[test]
fn timestamps_at_their_limits_decode() {
    for (json, millis) in [
        ("0", 0),
        ("-0", 0),
        ("-1", -1),
        ("1700000000000", 1_700_000_000_000),
        ("1700000000000.0", 1_700_000_000_000),
        ("1.7e12", 1_700_000_000_000),
        ("1.700000000123E+12", 1_700_000_000_123),
        ("17000000000000000e-4", 1_700_000_000_000),
        ("9223372036854775807", i64::MAX),
        ("-9223372036854775808", i64::MIN),
        ("-9.223372036854775808e18", i64::MIN),
    ] {
        let (chat, warnings) =
            warnings_of(|| decode::<Chat>(&format!(r#"{{"createdAt":{json}}}"#)));
        assert_eq!(chat.created_at, at(millis), "{json}");
        assert_eq!(encode(&chat), json!({ "createdAt": millis }));
        assert_eq!(warnings, []);
        assert_eq!(decode::<Timestamp>(json), Timestamp::from_millis(millis));
    }

    for json in [
        "0.5",
        "1.7e-1",
        "1700000000000.5",
        "9223372036854775808",
        "9.3e18",
        "-9.3e18",
        "1e300",
    ] {
        let (chat, warnings) =
            warnings_of(|| decode::<Chat>(&format!(r#"{{"createdAt":{json}}}"#)));
        assert_eq!(chat, Chat::default(), "{json}");
        assert_eq!(
            warnings,
            [Warning::new("createdAt", "whole milliseconds", "number")]
        );
        assert!(serde_json::from_str::<Timestamp>(json).is_err(), "{json}");
    }
}

#[test]
fn timestamps_convert_to_system_time() {
    let epoch = SystemTime::UNIX_EPOCH;
    let second = Duration::from_secs(1);

    assert_eq!(Timestamp::from_millis(0).to_system_time(), Some(epoch));
    assert_eq!(
        Timestamp::from_millis(1_000).to_system_time(),
        Some(epoch + second)
    );
    assert_eq!(
        Timestamp::from_millis(-1_000).to_system_time(),
        Some(epoch - second)
    );
    for millis in [i64::MIN, i64::MAX] {
        let timestamp = Timestamp::from_millis(millis);
        let _ = timestamp.to_system_time();
        assert_eq!(timestamp.as_millis(), millis);
        assert_eq!(timestamp.to_string(), millis.to_string());
    }
    assert!(Timestamp::from_millis(1) < Timestamp::from_millis(2));
}

#[test]
fn ratings_at_their_limits_decode() {
    for (json, rating) in [
        ("0", 0.0),
        ("0.5", 0.5),
        ("1", 1.0),
        ("-1", -1.0),
        ("5", 5.0),
        ("4.25", 4.25),
        ("9007199254740992", 9_007_199_254_740_992.0),
        ("1e300", 1e300),
        ("1.7976931348623157e308", f64::MAX),
        ("5e-324", 5e-324),
    ] {
        let json = format!(r#"{{"rating":{json}}}"#);
        let chat: ChatLifecycle = decode(&json);
        assert_eq!(chat.rating, Some(rating), "{json}");
        assert_eq!(encode(&chat), decode::<Value>(&json));
    }

    let whole: ChatLifecycle = decode(r#"{"rating":1.0}"#);
    assert_eq!(serde_json::to_string(&whole).unwrap(), r#"{"rating":1}"#);
    let negative_zero: ChatLifecycle = decode(r#"{"rating":-0}"#);
    assert_eq!(
        serde_json::to_string(&negative_zero).unwrap(),
        r#"{"rating":-0.0}"#
    );
    let largest = ChatLifecycle::default().rating(2f64.powi(63));
    assert_eq!(
        decode::<ChatLifecycle>(&encode(&largest).to_string()),
        largest
    );
}

/// The objects that serde_json makes of numbers with its feature `arbitrary_precision`.
#[test]
fn numbers_of_arbitrary_precision_decode() {
    let number = |digits: Value| json!({"$serde_json::private::Number": digits});
    let json = json!({
        "rating": number(json!("0.5")),
        "createdAt": number(json!("1.7e+12")),
        "closedAt": number(json!("0.5")),
        "ratedAt": number(json!("1e+999")),
        "acceptedAt": number(json!(["1"])),
        "status": number(json!("1")),
    });

    let chat: ChatLifecycle = decode(&json.to_string());

    let expected = ChatLifecycle::default()
        .rating(0.5)
        .created_at(at(1_700_000_000_000));
    assert_eq!(chat, expected);
}

#[test]
fn samples_are_complete() {
    check_sample::<Chat>(&EventKind::CHAT_ASSIGNED, fields(CHAT));
    check_sample::<Message>(&EventKind::MESSAGE_CREATED, fields(MESSAGE));
    check_sample::<ChatLifecycle>(&EventKind::CHAT_RATED, fields(LIFECYCLE));

    let lifecycle = |omitted: &[&str]| {
        let mut fields = fields(LIFECYCLE);
        fields.retain(|field| !omitted.contains(&&field[1..]));
        fields
    };
    let open = lifecycle(&["rating", "transcriptURL", "closedAt", "ratedAt"]);
    let closed = lifecycle(&["rating", "ratedAt"]);
    check_sample::<ChatLifecycle>(&EventKind::CHAT_OPENED, open.clone());
    check_sample::<ChatLifecycle>(&EventKind::CHAT_REOPENED, open);
    check_sample::<ChatLifecycle>(&EventKind::CHAT_CLOSED, closed.clone());
    check_sample::<ChatLifecycle>(&EventKind::CHAT_TRANSFERRED, closed);

    assert_eq!(sample(&EventKind::from_static("chat-archived")), None);
}

fn fields(json: &str) -> Vec<String> {
    pointers(&decode(json))
}

fn check_sample<T: DeserializeOwned + Serialize>(kind: &EventKind, fields: Vec<String>) {
    let json = sample(kind).unwrap();
    let (payload, warnings) = warnings_of(|| decode::<T>(json));

    assert_eq!(warnings, [], "{kind}");
    let value: Value = decode(json);
    assert_eq!(encode(&payload), value, "{kind}");
    assert_eq!(pointers(&value), fields, "{kind}");
    assert_eq!(json.len(), value.to_string().len(), "{kind} is minified");
}

proptest! {
    #[test]
    fn any_object_decodes_into_each_payload(object in object()) {
        let json = Value::Object(object).to_string();
        check_round_trip::<Chat>(&json);
        check_round_trip::<Message>(&json);
        check_round_trip::<ChatLifecycle>(&json);
    }
}

fn check_round_trip<T>(json: &str)
where
    T: DeserializeOwned + Serialize + Debug + PartialEq,
{
    let payload: T = decode(json);
    // Not by text: without its feature `float_roundtrip`, serde_json reads a long fraction back
    // with an error in the last digit.
    let encoded = serde_json::to_value(&payload).unwrap();
    assert_eq!(
        serde_json::from_value::<T>(encoded).unwrap(),
        payload,
        "{json}"
    );
}

fn object() -> impl Strategy<Value = Map<String, Value>> {
    let scalar = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    let value = scalar.prop_recursive(3, 24, 6, |value| {
        prop_oneof![
            prop::collection::vec(value.clone(), 0..6).prop_map(Value::from),
            fields_of(value).prop_map(Value::from),
        ]
    });
    fields_of(value)
}

fn fields_of(value: impl Strategy<Value = Value>) -> impl Strategy<Value = Map<String, Value>> {
    let names: Vec<String> = [CHAT, MESSAGE, LIFECYCLE]
        .iter()
        .flat_map(|json| fields(json))
        .map(|pointer| pointer.rsplit('/').next().unwrap().to_owned())
        .collect();
    let name = prop_oneof![4 => prop::sample::select(names), 1 => any::<String>()];
    prop::collection::vec((name, value), 0..12).prop_map(|fields| fields.into_iter().collect())
}

/// What a warning says besides its message.
#[derive(Debug, Default, PartialEq)]
struct Warning(BTreeMap<&'static str, String>);

/// A payload type of a user that takes anything.
enum Anything {}

impl Event for Anything {
    const KIND: EventKind = EventKind::CHAT_RATED;
    type Payload = Value;
}

/// A field may stand in a body as often as it has room.
#[test]
fn a_payload_is_warned_of_16_times_at_most() {
    let fields = r#""rating":"x","user":{"name":7},"requestedExperts":[1],"#;
    let body = format!(
        r#"{{{}"id":"chat-1"}}"#,
        fields.repeat((1 << 20) / fields.len())
    );
    let raw = RawDelivery::new(EventKind::CHAT_RATED, body);
    let (rated, warnings) = warnings_of(|| Delivery::<ChatRated>::decode(raw).unwrap());
    assert_eq!(rated.payload.id.as_deref(), Some("chat-1"));
    assert_eq!(warnings.len(), 16);
}

#[tokio::test]
async fn value_refuses_json_of_more_than_127_levels() {
    let nested = |levels: usize| {
        let (open, close) = ("[".repeat(levels - 1), "]".repeat(levels - 1));
        RawDelivery::new(EventKind::CHAT_RATED, format!(r#"{{"id":{open}{close}}}"#))
    };
    let own = EventRouter::new().on::<Anything>(async |_: Delivery<Anything>| Ok(()));
    assert_eq!(own.handle(nested(127)).await.name(), "handled");
    assert_eq!(own.handle(nested(128)).await.name(), "undecodable");

    let caught = own.on_undecodable(async |_: RawDelivery, _: DecodeError| Ok(()));
    assert_eq!(caught.handle(nested(128)).await.name(), "handled");
    // The types of this crate do not recurse.
    let rated = EventRouter::new().on::<ChatRated>(async |_: Delivery<ChatRated>| Ok(()));
    assert_eq!(rated.handle(nested(100_000)).await.name(), "handled");
}

impl Warning {
    fn new(field: &str, expected: &str, found: &str) -> Self {
        let message = "a field has an unexpected shape and is read as omitted";
        let fields = [
            ("message", message),
            ("field", field),
            ("expected", expected),
            ("found", found),
        ];
        Self(fields.map(|(name, value)| (name, value.to_owned())).into())
    }
}

impl Warning {
    fn dropped(field: &str, dropped: usize) -> Self {
        let message = "parts of a field have an unexpected shape and were dropped";
        let fields = [
            ("message", message.to_owned()),
            ("field", field.to_owned()),
            ("expected", "string".to_owned()),
            ("dropped", dropped.to_string()),
        ];
        Self(fields.into())
    }
}

/// Runs something, and returns its result and the warnings that it logged. It logs nothing else.
fn warnings_of<T>(run: impl FnOnce() -> T) -> (T, Vec<Warning>) {
    let log = Log::capture(Level::TRACE);
    let result = run();
    let warnings = log.events().into_iter().map(|mut event| {
        assert_eq!(event["level"], "WARN");
        for name in ["level", "name", "target"] {
            event.remove(name);
        }
        Warning(event.into_iter().collect())
    });
    (result, warnings.collect())
}
