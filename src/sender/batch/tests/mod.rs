//! What the items of a body are, by each rule of a description.

mod foreign;
mod kinds;
mod properties;

use bytes::Bytes;
use serde_json::{Value, json};

use super::*;
use crate::delivery::IdempotencyKey;
use crate::event::EventKind;
use crate::sender::Sender;

/// A sender with this `batch`, and these fields beside it.
fn described(batch: &Value, beside: &Value) -> Result<Sender, String> {
    let mut sender = json!({
        "name": "acme",
        "batch": batch,
        "signature": { "headers": ["x-tag"], "algorithm": "hmac-sha256", "coding": "hex" },
    });
    let fields = beside.as_object().cloned().unwrap_or_default();
    sender.as_object_mut().unwrap().extend(fields);
    serde_json::from_value(sender).map_err(|error| error.to_string())
}

fn sender(batch: Value) -> Sender {
    described(&batch, &Value::Null).unwrap()
}

fn delivery(body: impl Into<Bytes>) -> RawDelivery {
    RawDelivery::new(EventKind::from_static("whole"), body)
}

/// The items: each as its text, its event type, or why it is not read.
fn items(sender: &Sender, body: &str) -> Vec<(String, String)> {
    let read = |part: &Part| match &part.kind {
        Ok(kind) => kind.to_string(),
        Err(reason) => format!("! {reason}"),
    };
    parts(sender, body)
        .iter()
        .map(|part| (String::from_utf8(part.body.to_vec()).unwrap(), read(part)))
        .collect()
}

fn parts(sender: &Sender, body: &str) -> Vec<Part> {
    match sender.parts(&delivery(body.to_owned())) {
        Parts::Items(parts) => parts,
        other => panic!("{other:?}"),
    }
}

fn texts(sender: &Sender, body: &str) -> Vec<String> {
    items(sender, body)
        .into_iter()
        .map(|(text, _)| text)
        .collect()
}

fn keys(sender: &Sender, body: &str) -> Vec<String> {
    let parts = parts(sender, body);
    parts.iter().map(|part| part.key.to_string()).collect()
}

fn is_whole(sender: &Sender, body: impl Into<Bytes>) -> bool {
    matches!(sender.parts(&delivery(body)), Parts::Whole)
}

#[test]
fn items_are_the_elements_as_they_were_signed() {
    let events = sender(json!("/events/*"));
    let body = r#" { "to" : "x" , "events" : [ { "a" : 1 } ,{"b":[ 1, "]" ]}
        , {} ] } "#;
    assert_eq!(
        texts(&events, body),
        [r#"{ "a" : 1 }"#, r#"{"b":[ 1, "]" ]}"#, "{}"]
    );
    let root = sender(json!("/*"));
    assert_eq!(texts(&root, r#"[{"a":1},{"a":1}]"#), [r#"{"a":1}"#; 2]);
    let nested = sender(json!("/*/*"));
    assert_eq!(
        texts(&nested, r#"[[{"a":1}],[{},{"b":2}]]"#),
        [r#"{"a":1}"#, "{}", r#"{"b":2}"#]
    );
    // A name is that of an object, with or without escapes.
    let escaped = sender(json!("/a~1b/*"));
    assert_eq!(texts(&escaped, r#"{"\u0061/b":[{}],"a":[{},{}]}"#), ["{}"]);
    let digits = sender(json!("/0/*"));
    assert_eq!(texts(&digits, r#"{"0":[{}]}"#), ["{}"]);
    assert!(is_whole(&digits, "[[{}]]"));
}

#[test]
fn a_body_without_the_array_is_one_event() {
    let events = sender(json!(["/events/*", "/data/all/*"]));
    for body in [
        "{}",
        "[]",
        "7",
        "null",
        r#""events""#,
        r#"{"events":null}"#,
        r#"{"events":{}}"#,
        r#"{"events":"[]"}"#,
        r#"{"data":{}}"#,
        r#"{"data":[{"all":[{}]}]}"#,
        r#"[{"events":[{}]}]"#,
        // No JSON.
        "",
        "{",
        r#"{"events":[{}]"#,
        r#"{"events":[{}]} x"#,
        r#"{"events":[{}],}"#,
        "\u{feff}{\"events\":[{}]}",
        // Two readers could find two batches.
        r#"{"events":[{}],"events":[]}"#,
        r#"{"events":[{}],"\u0065vents":[{"a":1}]}"#,
    ] {
        assert!(is_whole(&events, body), "{body}");
    }
    assert!(is_whole(&events, &b"{\"events\":[{\"a\":\"\xff\"}]}"[..]));
    // A sender without batches.
    assert!(!Sender::github().has_batches());
    assert!(is_whole(&Sender::github(), r#"{"events":[{}]}"#));
}

#[test]
fn an_array_without_elements_is_an_empty_batch() {
    let events = sender(json!(["/events/*", "/all/*/of/*"]));
    for body in [
        r#"{"events":[]}"#,
        r#"{"events":[ ],"all":[]}"#,
        r#"{"all":[],"other":[{}]}"#,
    ] {
        assert!(texts(&events, body).is_empty(), "{body}");
    }
    assert_eq!(
        texts(&events, r#"{"events":[],"all":[{"of":[{"a":1}]}]}"#),
        [r#"{"a":1}"#]
    );
}

/// Nothing vanishes.
#[test]
fn an_element_in_which_no_path_finds_an_item_is_an_item() {
    let meta = sender(json!([
        { "path": "/entry/*/changes/*/value/messages/*", "kind": { "constant": "message" } },
        "/entry/*/changes/*/value/statuses/*",
    ]));
    let body = r#"{"entry":[
        {"changes":[{"value":{"messages":[{"a":1},{"a":2}],"statuses":[{"s":1}]}},{"value":{"errors":[7]}},
            {"value":{"messages":[]}},{"value":{"messages":{}}},{"value":null}]},
        {"changes":[]},{"id":1},null,[{"changes":[]}],
        {"changes":[{"value":{"statuses":[{"s":2}],"messages":[null]}}]}]}"#;
    let (message, other, none) = ("message", "whole", "! it is no JSON object");
    let found = items(&meta, body);
    let found: Vec<_> = found
        .iter()
        .map(|(text, kind)| (text.as_str(), kind.as_str()))
        .collect();
    assert_eq!(
        found,
        [
            (r#"{"a":1}"#, message),
            (r#"{"a":2}"#, message),
            (r#"{"s":1}"#, other),
            (r#"{"value":{"errors":[7]}}"#, other),
            (r#"{"value":{"messages":[]}}"#, other),
            (r#"{"value":{"messages":{}}}"#, other),
            (r#"{"value":null}"#, other),
            (r#"{"changes":[]}"#, other),
            (r#"{"id":1}"#, other),
            ("null", none),
            (r#"[{"changes":[]}]"#, none),
            (r#"{"s":2}"#, other),
            ("null", none),
        ]
    );
    // One that is unclear is not split.
    let unclear =
        r#"{"entry":[{"changes":[{"value":{"messages":[{"a":1}],"messages":[]}}]},{"id":1}]}"#;
    let whole = r#"{"value":{"messages":[{"a":1}],"messages":[]}}"#;
    assert_eq!(texts(&meta, unclear), [whole, r#"{"id":1}"#]);
}

#[test]
fn the_longest_path_that_finds_an_item_counts() {
    let both = sender(json!([
        { "path": "/a/*", "kind": "/k" },
        { "path": "/a/*/b/*", "kind": { "constant": "inner" } },
    ]));
    let body = r#"{"a":[{"b":[{"k":"x"}],"k":"y"},{"b":[],"k":"z"},{"k":"w"}]}"#;
    let found = items(&both, body);
    let kinds: Vec<_> = found.iter().map(|(_, kind)| kind.as_str()).collect();
    assert_eq!(kinds, ["inner", "z", "w"]);
}

#[test]
fn more_than_ten_thousand_items_are_not_split() {
    let root = sender(json!(["/*", "/all/*/of/*"]));
    let body = |count: usize| format!("[{}{{}}]", "{},".repeat(count - 1));
    assert_eq!(parts(&root, &body(MOST_ITEMS)).len(), MOST_ITEMS);
    assert!(matches!(
        root.parts(&delivery(body(MOST_ITEMS + 1))),
        Parts::TooMany
    ));
    let of = format!(r#"{{"of":{}}}"#, body(100));
    let nested = |more: &str| format!(r#"{{"all":[{}{of}{more}]}}"#, format!("{of},").repeat(99));
    assert_eq!(parts(&root, &nested("")).len(), MOST_ITEMS);
    assert!(matches!(
        root.parts(&delivery(nested(",7"))),
        Parts::TooMany
    ));
}

#[test]
fn pointers_are_read_in_the_item_and_after_a_caret_around_it() {
    let nested = sender(json!({
        "path": "/a/*/b/*",
        "key": { "join": ["/id", "^/a/*/id", "^/id"] },
        "kind": ["/kind", "^/a/*/kind"],
        "order": ["/none", "^/a/*/c/0/id"],
        "keep": ["^/id", "^/a/*/c", "^/a/*/none"],
    }));
    let body = r#"{"id":"root","a":[{"kind":"k1","b":[{"id":1},{"id":2,"kind":"own"}],"id":10,"c":[{"id":"lane"}]},
        {"b":[{"id":1}],"id":20,"kind":"k2","c":null}]}"#;
    let found: Vec<_> = parts(&nested, body)
        .into_iter()
        .map(|it| {
            (
                it.key.to_string(),
                it.kind.unwrap(),
                it.order,
                it.kept.unwrap(),
            )
        })
        .collect();
    let kind = EventKind::from_static;
    let row = |key: &str, kind, order: Option<&str>, kept: &'static str| {
        (
            key.to_owned(),
            kind,
            order.map(str::to_owned),
            Bytes::from_static(kept.as_bytes()),
        )
    };
    let kept = r#"{"id":"root","c":[{"id":"lane"}]}"#;
    assert_eq!(
        found,
        [
            row(r#"["1","10","root"]"#, kind("k1"), Some("lane"), kept),
            row(r#"["2","10","root"]"#, kind("own"), Some("lane"), kept),
            row(r#"["1","20","root"]"#, kind("k2"), None, r#"{"id":"root"}"#),
        ]
    );
}

#[test]
fn what_is_kept_is_limited() {
    let events = sender(json!({ "path": "/e/*", "keep": ["^/a", "^/b"] }));
    let kept = |a: usize, more: &str| {
        let body = format!(r#"{{"a":"{}","e":[{{}},{{}}]{more}}}"#, "x".repeat(a));
        let mut parts = parts(&events, &body).into_iter().map(|part| part.kept);
        let (first, second) = (parts.next().unwrap(), parts.next().unwrap());
        assert_eq!(first, second);
        // It is not copied for each.
        let at = |it: &Option<Bytes>| it.as_ref().map(|it| it.as_ptr());
        assert_eq!(at(&first), at(&second));
        first
    };
    // {"a":""} has 8 bytes.
    assert_eq!(kept(4088, "").unwrap().len(), 4096);
    assert_eq!(kept(4089, ""), None);
    assert_eq!(
        kept(1, r#","b":{ "c": 1 }"#).unwrap(),
        r#"{"a":"x","b":{ "c": 1 }}"#
    );
    assert_eq!(kept(4080, r#","b":{"c":1}"#), None);
    let nothing = parts(&events, r#"{"a":null,"e":[{}]}"#);
    assert_eq!(nothing[0].kept, None);
}

#[test]
fn an_item_without_a_key_has_one_of_its_delivery() {
    let events = sender(json!({ "path": "/e/*", "key": "/id" }));
    let body = r#"{"e":[{"id":"x"},{"a":1},{"a":1},{"id":""},{"id":null},{"id":"x"}]}"#;
    let found = keys(&events, body);
    assert_eq!((found[0].as_str(), found[5].as_str()), ("x", "x"));
    let made = &found[1..5];
    assert!(made.iter().all(|key| key.len() == 64));
    assert_eq!(
        made.iter().collect::<std::collections::HashSet<_>>().len(),
        4
    );
    // The same bytes have the same keys, and other bytes around an item another one.
    assert_eq!(keys(&events, body), found);
    let longer = keys(&events, &body.replace("]}", "],\"n\":1}"));
    assert!(longer[1..5].iter().all(|key| !made.contains(key)));
    // With a key of its own, the delivery may have another body.
    let keyed = |key: &'static str, body: &str| {
        let key = IdempotencyKey::new(http::HeaderValue::from_static(key));
        let Parts::Items(parts) = events.parts(&delivery(body.to_owned()).with_key(key)) else {
            panic!("it is split")
        };
        parts
            .into_iter()
            .map(|part| part.key.to_string())
            .collect::<Vec<_>>()
    };
    let (one, other) = (keyed("d-1", body), keyed("d-1", r#"{"e":[{"a":1}],"n":2}"#));
    assert_eq!(one[1], other[0]);
    assert_ne!(one[1], made[0]);
    assert_ne!(keyed("d-2", body)[1], one[1]);
    // Stores keep what is made of them: they are the same in every release.
    assert_eq!(
        one[1],
        "e639add7d05b1df2cf7c85978494532afd9953caca99eee36c6310022f276c36"
    );
}

#[test]
fn the_digest_of_an_item_can_be_its_key() {
    let root = sender(json!({ "path": "/*", "key": "digest" }));
    let empty = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";
    assert_eq!(keys(&root, r#"[{},{"a":1},{}]"#)[0], empty);
    assert_eq!(keys(&root, "[{}, {}]"), [empty; 2]);
}

#[test]
fn an_item_that_cannot_be_read_says_why() {
    let root = sender(json!({ "path": "/*", "key": "/id", "kind": "/kind" }));
    let long = "x".repeat(1025);
    for (item, reason) in [
        ("7", "it is no JSON object"),
        ("[{}]", "it is no JSON object"),
        (r#""{}""#, "it is no JSON object"),
        ("{}", "its event type is missing"),
        (r#"{"kind":null}"#, "its event type is missing"),
        (
            r#"{"kind":""}"#,
            "its event type is missing, or not 1 to 128",
        ),
        (
            r#"{"kind":"ü"}"#,
            "its event type is missing, or not 1 to 128",
        ),
        (r#"{"kind":{}}"#, "its event type: `/kind` is an object"),
        (
            r#"{"kind":"a","kind":"b"}"#,
            "its event type: the body is no JSON, or a name stands twice",
        ),
        (
            r#"{"kind":"a","id":"\n"}"#,
            "its key has control characters",
        ),
        (r#"{"kind":"a","id":["x"]}"#, "its key: `/id` is an array"),
        (
            r#"{"kind":"a","id":1,"id":1}"#,
            "its key: the body is no JSON, or a name stands twice",
        ),
        (
            &format!(r#"{{"kind":"a","id":"{long}"}}"#),
            "its key has more than 1,024 bytes",
        ),
    ] {
        let body = format!(r#"[{{"kind":"a","id":1}},{item},{{"kind":"b"}}]"#);
        let found = items(&root, &body);
        assert_eq!((found[0].1.as_str(), found[2].1.as_str()), ("a", "b"));
        assert!(
            found[1].1.starts_with(&format!("! {reason}")),
            "{item}: {}",
            found[1].1
        );
        assert!(!found[1].1.contains(&long));
    }
    // An order that is unclear is none.
    let ordered = sender(json!({ "path": "/*", "order": "/o" }));
    assert_eq!(parts(&ordered, r#"[{"o":[]}]"#)[0].order, None);
}

#[test]
fn an_item_has_the_order_of_its_delivery_if_its_path_has_none() {
    let batch = json!(["/e/*", { "path": "/f/*", "order": "/o" }]);
    let events = described(&batch, &json!({ "order": "/customer" })).unwrap();
    let parts = parts(
        &events,
        r#"{"customer":"c","e":[{"o":"x"}],"f":[{"o":"y"},{}]}"#,
    );
    let orders: Vec<_> = parts.iter().map(|part| part.order.as_deref()).collect();
    assert_eq!(orders, [Some("c"), Some("y"), None]);
}

#[test]
fn a_mistake_in_a_batch_is_named() {
    let path = |field: &str, value: Value| json!({ "path": "/e/*/f/*", field: value });
    for (batch, reason) in [
        (
            json!("events/*"),
            "batch.path: \"events/*\" is no JSON pointer",
        ),
        (json!("/a~b/*"), "batch.path: \"/a~b/*\" has a `~`"),
        (
            json!("/events"),
            "batch.path: \"/events\" does not end with `/*`",
        ),
        (json!("/events/*/id"), "does not end with `/*`"),
        (json!([]), "batch: name 1 to 8 paths"),
        (json!(vec!["/a/*"; 9]), "batch: name 1 to 8 paths"),
        (
            json!(["/a/*", { "path": "/a/*" }]),
            "batch[1].path: it stands twice",
        ),
        (json!(7), "use a path such as `/events/*`"),
        (json!({ "key": "/id" }), "use a path such as `/events/*`"),
        (
            path("key", json!("x-header")),
            "batch.key: \"x-header\" is no JSON pointer",
        ),
        (
            path("key", json!({ "join": ["/a"] })),
            "batch.key.join: name 2 to 8 JSON pointers",
        ),
        (
            path("key", json!({ "join": ["/a", "b"] })),
            "batch.key.join: \"b\" is no JSON pointer",
        ),
        (
            path("kind", json!("/*/id")),
            "batch.kind: \"/*/id\" has a `*`, which stands only after `^`",
        ),
        (
            path("kind", json!({ "constant": "" })),
            "batch.kind.constant: use 1 to 128",
        ),
        (
            path("kind", json!({ "join": ["/a"] })),
            "batch.kind.join: name 2 to 8 JSON pointers",
        ),
        (
            path("kind", json!({ "join": ["/a", "b"] })),
            "batch.kind.join: \"b\" is no JSON pointer",
        ),
        (
            path("kind", json!({ "join": ["/a", "/b"], "default": "" })),
            "batch.kind.default: use 1 to 128",
        ),
        (
            path("kind", json!("^id")),
            "batch.kind: \"^id\" is no JSON pointer",
        ),
        (
            path("kind", json!("^")),
            "batch.kind: \"^\" is no JSON pointer",
        ),
        (
            path("kind", json!("^/e/*/g/*/id")),
            "has a `*` where its path has none",
        ),
        (
            path("kind", json!("^/*/id")),
            "has a `*` where its path has none",
        ),
        (
            path("kind", json!("^/e/*/f/*/id")),
            "is in the item: write what stands after the path",
        ),
        (
            path("order", json!(["/a", "^/e/*"])),
            "batch.order: \"^/e/*\" contains the item",
        ),
        (
            path("keep", json!(["^/e"])),
            "batch.keep: \"^/e\" contains the item",
        ),
        (
            path("keep", json!(["^/e/*/f/*"])),
            "batch.keep: \"^/e/*/f/*\" is in the item",
        ),
        (
            path("keep", json!(["/id"])),
            "batch.keep: \"/id\" is in the item, which its handler has",
        ),
        (
            path("keep", json!(["^/id", "^/e/*/id"])),
            "ends with the same name as another",
        ),
    ] {
        let error = described(&batch, &Value::Null).unwrap_err();
        assert!(error.contains(reason), "{batch}: {error}");
    }
}

/// What it costs is in proportion to the body, and to the items: not to items times body, nor to nesting.
#[test]
fn splitting_costs_what_the_body_is() {
    let meta = Sender::meta();
    let change = r#"{"field":"messages","value":{"metadata":{"id":1},"messages":[{"id":"a"}]}}"#;
    let entry = format!(r#"{{"id":"e","changes":[{change}]}}"#);
    let padding = "x".repeat(2 << 20);
    let entries = format!("{entry},").repeat(9_999);
    let body = format!(r#"{{"object":"o","pad":"{padding}","entry":[{entries}{entry}]}}"#);
    let began = std::time::Instant::now();
    assert_eq!(parts(&meta, &body).len(), 10_000);
    // If 10,000 items read 3 MiB each, it takes 30 s or more.
    assert!(
        began.elapsed() < std::time::Duration::from_secs(10),
        "{:?}",
        began.elapsed()
    );
    let (open, close) = ("[".repeat(1 << 20), "]".repeat(1 << 20));
    let body =
        format!(r#"{{"object":"o","deep":{open}{close},"entry":[{{"deep":{open}{close}}}]}}"#);
    assert_eq!(parts(&meta, &body).len(), 1);
}
