//! A text of a sender comes out of each page, form and file as it went in.

use http::HeaderValue;
use proptest::prelude::*;
use serde_json::{Value, json};
use tower_webhook::inbox::{EventId, EventState, Filter, Inbox, Page, Which, unescaped};
use tower_webhook::{EventRouter, HandlerError, IdempotencyKey, RawDelivery};
use tower_webhook_console::Console;

use support::SECOND;
use support::delivery::{delivery, send};
use support::inbox::{Works, inbox, states, webhooks};

use super::{Seen, get, post};

/// Accepts a dead letter for each chat and key. Its body has the reason, too.
async fn dead(events: &[(String, Vec<u8>)], reason: &str) -> Inbox {
    let inbox = inbox();
    let webhooks = webhooks(&inbox);
    for (chat, key) in events {
        let mut request = delivery(json!({"id": chat, "reason": reason}).to_string());
        let key = HeaderValue::from_bytes(key).unwrap();
        request.headers_mut().insert("idempotency-key", key);
        send(&webhooks, request).await.assert_ok();
    }
    let events = EventRouter::new().fallback(async |delivery: RawDelivery| {
        let body: Value = delivery.decode().unwrap();
        let reason = body["reason"].as_str().unwrap().to_owned();
        Err(HandlerError::dead_letter(reason))
    });
    let worker = inbox.work(events).spawn();
    tokio::time::sleep(SECOND).await;
    worker.drain(SECOND).await.unwrap();
    inbox
}

/// The value of an attribute, as a browser reads it.
fn html(text: &str) -> String {
    let text = text.replace("&lt;", "<").replace("&gt;", ">");
    text.replace("&quot;", "\"").replace("&amp;", "&")
}

/// The fields of the form of this path, as a browser sends them: without line ends in visible fields, and with CR LF in
/// others.
fn form(page: &Seen, path: &str) -> String {
    let (_, rest) = page
        .text
        .split_once(&format!("action=\"{path}\">"))
        .unwrap();
    let (inputs, _) = rest.split_once("</form>").unwrap();
    let mut form = form_urlencoded::Serializer::new(String::new());
    for input in inputs.split("<input ").skip(1) {
        let (input, _) = input.split_once('>').unwrap();
        let attribute = |name: &str| {
            let (_, rest) = input.split_once(&format!("{name}=\""))?;
            Some(html(rest.split_once('"').unwrap().0))
        };
        let (Some(name), Some(value)) = (attribute("name"), attribute("value")) else {
            continue;
        };
        // As HTML is read.
        let value = value.replace('\0', "\u{fffd}").replace("\r\n", "\n");
        let value = value.replace('\r', "\n");
        let end = match input.contains("type=\"hidden\"") {
            true => "\r\n",
            false => "",
        };
        form.append_pair(&name, &value.replace('\n', end));
    }
    form.finish()
}

/// The links of a page that begin so.
fn link(page: &Seen, start: &str) -> String {
    let (_, rest) = page.text.split_once(&format!("href=\"{start}")).unwrap();
    format!("{start}{}", html(rest.split_once('"').unwrap().0))
}

fn query(fields: &[(&str, &str)]) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(fields);
    query.finish()
}

/// The numbers of the events in a list.
fn listed(page: &Seen) -> Vec<u64> {
    let rows = page.is(200).text.split("<td><a href=\"/events/").skip(1);
    let number = |row: &str| row.split_once('"').unwrap().0.parse().unwrap();
    rows.map(number).collect()
}

/// The second event has the texts, and the first and the third have what they could be taken for.
async fn comes_out_as_it_went_in(chat: &str, key: &[u8], reason: &str) {
    let own = IdempotencyKey::new(HeaderValue::from_bytes(key).unwrap()).unwrap();
    let shown = own.to_string();
    let other = |before: &str| format!("{before}{}", chat.escape_default());
    let mut key_as_shown = shown.clone().into_bytes();
    key_as_shown.push(b'.');
    let events = [
        (other("a"), key_as_shown),
        (chat.to_owned(), key.to_vec()),
        (format!("{chat}."), [key, b"\\"].concat()),
    ];
    let inbox = dead(&events, reason).await;
    let app = Console::new().inbox(inbox.clone()).router();
    // On one line, as it is noted.
    let record = inbox.get(EventId(2)).await.unwrap().unwrap();
    let reason = record.failures[0].failure.reason.as_str();

    // JSON.
    let export = get(&app, "/export?format=jsonl").await;
    let lines = export
        .text
        .lines()
        .map(|it| serde_json::from_str(it).unwrap());
    let lines: Vec<Value> = lines.collect();
    let line = lines.iter().find(|line| line["id"] == 2).unwrap();
    assert_eq!(line["chat"], chat);
    assert_eq!(line["failures"][0]["reason"], reason);
    let text = line["key"].as_str().unwrap();
    assert_eq!(text.parse().as_ref(), Ok(&own));

    // URLs and forms, also after the page has written them once more.
    let event = get(&app, "/events/2").await;
    let of_chat = get(&app, &link(&event, "/chat?id=")).await;
    assert_eq!(listed(&of_chat), [2]);
    for (name, value) in [("chat", chat), ("key", &shown), ("error", reason)] {
        let value = tower_webhook::inbox::escaped(value);
        let page = get(&app, &format!("/events?{}", query(&[(name, &value)]))).await;
        let again = get(&app, &format!("/events?{}", form(&page, "/events"))).await;
        for page in [page, again] {
            let expected = if name == "error" {
                vec![3, 2, 1]
            } else {
                vec![2]
            };
            assert_eq!(listed(&page), expected, "{name}: {value}");
        }
        if name != "error" {
            let found = get(&app, &format!("/find?{}", query(&[("id", &value)]))).await;
            assert!(listed(&found).contains(&2), "{value}");
        }
    }

    // All that match: the question, its form, the change, and its way back to the list.
    for (name, value) in [("chat", chat), ("key", &shown)] {
        let value = tower_webhook::inbox::escaped(value);
        let fields = query(&[("action", "redrive"), ("state", "dead"), (name, &value)]);
        let asked = get(&app, &format!("/all?{fields}")).await;
        asked.is(200).shows("redrive 1 event?");
        let begun = post(&app, "/all", &form(&asked, "/all")).await;
        let action = begun.is(303).location.clone().unwrap();
        tokio::time::sleep(SECOND).await;
        let expected = [EventState::Dead, EventState::Retrying, EventState::Dead];
        assert_eq!(states(&inbox).await, expected, "{name}: {value}");
        let done = get(&app, &action).await;
        done.is(200).shows("Done.");
        let list = link(&done, "/events?state=dead&").replace("state=dead", "state=retrying");
        assert_eq!(listed(&get(&app, &list).await), [2]);
        // What is stored of the change.
        let done = inbox.actions(Which::Running, None, 1).await.unwrap();
        assert!(done.is_empty());
        let back = inbox.work(
            EventRouter::new()
                .fallback(async |_: RawDelivery| Err(HandlerError::dead_letter("again"))),
        );
        let worker = back.spawn();
        tokio::time::sleep(SECOND).await;
        worker.drain(SECOND).await.unwrap();
    }
    let stored = inbox.actions(Which::All, None, 2).await.unwrap();
    let filters: Vec<Filter> = stored
        .iter()
        .map(|it| it.selection().unwrap().filter)
        .collect();
    assert_eq!(filters[0].key.as_ref(), Some(&own));
    assert_eq!(filters[1].chat.as_deref(), Some(chat));

    // Forgetting.
    assert_eq!(inbox.forget(chat).await.unwrap(), 1);
    let page = Page::oldest(10);
    let left = inbox.list(&Filter::failed(None, None), page).await.unwrap();
    assert_eq!(left.events.len(), 2);
}

fn check(chat: &str, key: &[u8], reason: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(comes_out_as_it_went_in(chat, key, reason));
}

#[test]
fn odd_texts_come_out_as_they_went_in() {
    for (chat, key, reason) in [
        (r"a\b", &br"a\b"[..], r"C:\b"),
        (r"a\\b", br"a\\b", r"\\"),
        ("a\nb\r\nc\rd\0e\t", b"\xff\\xff", "two\nlines"),
        (" a ", b"caf\xc3\xa9", " a "),
        (r"a\u{a}b", br"caf\xe9", r"\n"),
        ("'\"<&>+%2B/?#", b"'\"<&>+%2B/?#", "&amp;"),
        ("\u{202e}abc", b"caf\xe9 \\t\tb", "é"),
    ] {
        check(chat, key, reason);
    }
    // Four characters are shown for each byte.
    let (chat, key) = ("\u{1}".repeat(650), b"\xff\\".repeat(400));
    check(&chat, &key, &"\u{1}".repeat(650));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn texts_come_out_as_they_went_in(
        chat in r#"[ -~]{1,6}|[\\u{}a0 \n\r\x00<&"']{1,6}|\PC{1,6}"#,
        key in prop::collection::vec(prop_oneof![32_u8..127, 128_u8..=255, Just(b'\\'), Just(b'\t')], 1..8),
        reason in r#"[ -~]{1,6}|[\\n\n\r\x00"]{1,6}"#,
    ) {
        // The server removes white space around a header's value, and a filter without a text is none.
        prop_assume!(key.trim_ascii() == key && !unescaped(&reason).trim().is_empty());
        prop_assume!(!"again".contains(&reason.to_ascii_lowercase()));
        check(&chat, &key, &reason);
    }
}
