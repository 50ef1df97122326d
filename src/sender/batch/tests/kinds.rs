//! Event types that are joined, and bodies that are made up.

use super::*;

#[test]
fn a_type_is_joined_of_texts_in_the_item_and_around_it() {
    let join = |more: Value| {
        let mut kind = json!({ "join": ["^/a/*/of", "/name", "/action"] });
        let fields = more.as_object().cloned().unwrap_or_default();
        kind.as_object_mut().unwrap().extend(fields);
        sender(json!({ "path": "/a/*/b/*", "kind": kind }))
    };
    let body = |item: &str| format!(r#"{{"a":[{{"of":"x","b":[{item}]}}]}}"#);
    let kind = |sender: &Sender, item: &str| items(sender, &body(item)).remove(0).1;
    let right = r#"{"name":"Invoice","action":7}"#;
    assert_eq!(kind(&join(json!({})), right), "x.Invoice.7");
    assert_eq!(kind(&join(json!({"with": "/"})), right), "x/Invoice/7");
    assert_eq!(kind(&join(json!({"with": ""})), right), "xInvoice7");
    let with_default = join(json!({"default": "other"}));
    for missing in [
        r#"{"name":"Invoice"}"#,
        r#"{"name":"Invoice","action":null}"#,
        r#"{"name":"Invoice","action":""}"#,
        "{}",
    ] {
        let reason = kind(&join(json!({})), missing);
        assert!(
            reason.starts_with("! its event type is missing"),
            "{reason}"
        );
        assert_eq!(kind(&with_default, missing), "other");
    }
    for (wrong, reason) in [
        (
            r#"{"name":"Invoice","action":[]}"#,
            "! its event type: `/action` is an array",
        ),
        (
            r#"{"name":"a","name":"b","action":"c"}"#,
            "! its event type: ",
        ),
        (
            r#"{"name":"a b","action":"c"}"#,
            "! its event type is missing, or not",
        ),
    ] {
        for sender in [&join(json!({})), &with_default] {
            let found = kind(sender, wrong);
            assert!(found.starts_with(reason), "{found}");
        }
    }
}

#[test]
fn types_of_profiles_are_joined() {
    for (name, body, kind) in [
        (
            "gocardless",
            r#"{"events":[{"id":"1","resource_type":"payments","action":"confirmed"}]}"#,
            "payments.confirmed",
        ),
        (
            "xero",
            r#"{"events":[{"eventCategory":"INVOICE","eventType":"UPDATE"}]}"#,
            "INVOICE.UPDATE",
        ),
        (
            "intuit",
            r#"{"eventNotifications":[{"realmId":"1","dataChangeEvent":{"entities":[{"name":"Customer","operation":"Create"}]}}]}"#,
            "Customer.Create",
        ),
        (
            "asana",
            r#"{"events":[{"action":"changed","resource":{"gid":"1","resource_type":"task"}}]}"#,
            "task.changed",
        ),
    ] {
        let sender = Sender::named(name, None).unwrap();
        assert_eq!(items(&sender, body)[0].1, kind, "{name}");
    }
}

/// Of Messenger, another app may have the conversation: its events are beside those of this one.
#[test]
fn an_element_of_meta_with_several_arrays_loses_none() {
    let meta = Sender::meta();
    let body = r#"{"object":"page","entry":[{"id":"1","messaging":[{"a":1}],"standby":[{"b":1},{"b":2}],
        "changes":[{"field":"feed","value":{}}]},{"id":"2","standby":[{"b":3}]}]}"#;
    let found = items(&meta, body);
    let found: Vec<_> = found
        .iter()
        .map(|(text, kind)| (text.as_str(), kind.as_str()))
        .collect();
    assert_eq!(
        found,
        [
            (r#"{"a":1}"#, "messaging"),
            (r#"{"b":1}"#, "standby"),
            (r#"{"b":2}"#, "standby"),
            (r#"{"field":"feed","value":{}}"#, "feed"),
            (r#"{"b":3}"#, "standby"),
        ]
    );
    let body = r#"{"object":"whatsapp_business_account","entry":[{"id":"1","changes":[{"field":"messages","value":{
        "messages":[{"id":"m"}],"statuses":[{"id":"s","status":"sent"}],"errors":[{"code":1}]}}]}]}"#;
    let kinds: Vec<_> = items(&meta, body)
        .into_iter()
        .map(|(_, kind)| kind)
        .collect();
    assert_eq!(kinds, ["messages", "statuses", "errors"]);
}

#[test]
fn a_sample_of_each_sender_has_an_item() {
    let mut count = 0;
    for name in Sender::PROFILES {
        let url = Some("https://example.com");
        let sender = Sender::named(name, None).or_else(|_| Sender::named(name, url));
        let sender = sender.unwrap();
        let Some(batch) = sender.described().batch.as_deref() else {
            continue;
        };
        count += 1;
        let constants = batch.paths.iter().filter_map(|it| match &it.kind {
            super::super::paths::Kind::Constant(kind) => Some(kind.clone()),
            _ => None,
        });
        for kind in constants.chain([EventKind::from_static("one.two")]) {
            let keys = ["a", "b"].map(|key| {
                let key: IdempotencyKey = key.parse().unwrap();
                let sample = sender.sample(&kind, &key).unwrap();
                let Parts::Items(parts) = sender.parts(&sample) else {
                    panic!("{name}: {sample:?}");
                };
                let [part] = &parts[..] else {
                    panic!("{name}: {parts:?}");
                };
                assert_eq!(part.kind.as_ref(), Ok(&kind), "{name}");
                part.key.clone()
            });
            assert_ne!(keys[0], keys[1], "{name}");
        }
    }
    assert!(count >= 14 || cfg!(not(feature = "public-keys")), "{count}");
    // Parts that are not there.
    let kind = EventKind::from_static("one");
    let xero = Sender::named("xero", None).unwrap();
    let error = xero.sample(&kind, &"a".parse().unwrap()).unwrap_err();
    assert!(
        error.to_string().contains("has all of its parts"),
        "{error}"
    );
}
