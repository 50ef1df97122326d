//! What the sandbox sends: headers, payloads and the order of events (Spec 2 to 5).

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tower_webhook::Sender;
use tower_webhook::event::{Attachment, Chat, ChatLifecycle, EventKind, Message, Timestamp};
use tower_webhook_sandbox::{
    AttemptId, Body, EventState, Rating, Sandbox, Settings, SimulatedChat, Webhook,
};

use super::{HOUR, MINUTE, Recorder, SECOND, sandbox, sandbox_with, signed};

#[tokio::test(start_paused = true)]
async fn delivery_is_what_the_spec_says() {
    let recorder = Recorder::answering(StatusCode::OK);
    let sandbox = sandbox(&recorder);
    let chat = sandbox.chat();
    chat.assign();
    sandbox.idle().await;

    let [seen] = &recorder.seen()[..] else {
        panic!("one request")
    };
    assert_eq!(seen.method, Method::POST);
    assert_eq!(seen.uri, "/webhooks");
    assert_eq!(seen.header("content-type"), Some("application/json"));
    assert_eq!(seen.header("x-service-event"), Some("chat-assigned"));
    assert_eq!(seen.header("idempotency-key").map(str::len), Some(32));
    assert!(seen.is_signed_with("secret"));
    assert_eq!(seen.headers.len(), 4);

    sandbox.configure(EventKind::CHAT_OPENED, Webhook::new("/open"));
    chat.open();
    sandbox.idle().await;
    let seen = recorder.seen().pop().unwrap();
    assert_eq!(seen.uri, "/open");
    assert_eq!(
        seen.header("x-service-hmac-sha256"),
        None,
        "there is no secret"
    );
}

#[tokio::test(start_paused = true)]
async fn header_prefix_can_be_changed() {
    let recorder = Recorder::answering(StatusCode::OK);
    let sandbox = sandbox_with(
        &recorder,
        Settings {
            sender: Sender::chat_platform().branded("acme").unwrap(),
            ..Settings::default()
        },
    );
    sandbox.chat().assign();
    sandbox.idle().await;

    let seen = recorder.seen().pop().unwrap();
    assert_eq!(seen.header("x-acme-event"), Some("chat-assigned"));
    assert!(seen.header("x-acme-hmac-sha256").is_some());
}

#[tokio::test(start_paused = true)]
async fn payloads_contain_known_fields_and_omit_the_rest() {
    let recorder = Recorder::answering(StatusCode::OK);
    let sandbox = sandbox_with(
        &recorder,
        Settings {
            start: Timestamp::from_millis(1_000_000),
            ..Settings::default()
        },
    );
    let about: ChatLifecycle = serde_json::from_value(json!({
        "id": "c-1",
        "user": {"id": "u-1", "name": "Ada", "locale": "DK"},
        "expert": {"id": "e-1"},
        "question": "Why? 🤔",
        "customMeta": {"plan": "gold"},
        "createdAt": 900_000,
    }))
    .unwrap();
    let chat = sandbox.chat_about(about);

    chat.assign();
    sleep(SECOND).await;
    chat.open();
    chat.message("Hello");
    let picture = Attachment::default()
        .url("https://example.com/a.png".to_owned())
        .filename("a.png".to_owned())
        .mimetype("image/png".to_owned());
    let message = Message::default().is_user(false).text("Here".to_owned());
    chat.send(message.attachment(picture));
    sleep(SECOND).await;
    chat.close();
    sleep(SECOND).await;
    chat.reopen();
    chat.transfer();
    sleep(SECOND).await;
    chat.rate(Rating::Fair);

    let report = sandbox.finish().await;
    let bodies: Vec<(String, Value)> = report
        .events
        .iter()
        .map(|event| {
            (
                event.kind.to_string(),
                serde_json::from_slice(&event.body).unwrap(),
            )
        })
        .collect();
    let common = json!({
        "id": "c-1", "user": {"id": "u-1", "name": "Ada", "locale": "DK"}, "question": "Why? 🤔",
        "customMeta": {"plan": "gold"}, "createdAt": 900_000,
    });
    let with = |more: Value| {
        let mut all = common.clone();
        all.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        all
    };
    let lifecycle = |more: Value| {
        let mut all = with(json!({"expert": {"id": "e-1"}, "acceptedAt": 1_001_000}));
        all.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        all
    };
    let transcript = "https://chat.example.com/transcripts/c-1";
    let expected = [
        (
            "chat-assigned",
            with(json!({"requestedExperts": ["e-1"], "assignedAt": 1_000_000})),
        ),
        (
            "chat-opened",
            lifecycle(json!({"status": "opened", "lastOpenedAt": 1_001_000})),
        ),
        (
            "message-created",
            json!({
                "chat": {"id": "c-1"}, "id": "c-1-m-1", "user": {"id": "u-1"}, "isUser": true,
                "text": "Hello", "type": "message", "hideForUser": false, "hideForExpert": false,
                "createdAt": 1_001_000,
            }),
        ),
        (
            "message-created",
            json!({
                "chat": {"id": "c-1"}, "id": "c-1-m-2", "expert": {"id": "e-1"}, "isUser": false,
                "text": "Here", "type": "message", "hideForUser": false, "hideForExpert": false,
                "createdAt": 1_001_000,
                "attachment": {
                    "url": "https://example.com/a.png", "filename": "a.png", "mimetype": "image/png",
                },
            }),
        ),
        (
            "chat-closed",
            lifecycle(json!({
                "status": "closed", "lastOpenedAt": 1_001_000, "closedAt": 1_002_000,
                "transcriptURL": transcript,
            })),
        ),
        (
            "chat-reopened",
            lifecycle(json!({"status": "reopened", "lastOpenedAt": 1_003_000})),
        ),
        (
            "chat-transferred",
            lifecycle(json!({
                "status": "transferred", "lastOpenedAt": 1_003_000, "closedAt": 1_003_000,
                "transcriptURL": transcript,
            })),
        ),
        (
            "chat-rated",
            lifecycle(json!({
                "status": "rated", "lastOpenedAt": 1_003_000, "closedAt": 1_003_000,
                "transcriptURL": transcript, "rating": 0.5, "ratedAt": 1_004_000,
            })),
        ),
    ];
    assert_eq!(bodies, expected.map(|(kind, body)| (kind.to_owned(), body)));
}

#[tokio::test(start_paused = true)]
async fn closed_or_transferred_chat_is_rated_once() {
    let recorder = Recorder::answering(StatusCode::OK);
    let sandbox = sandbox(&recorder);
    let began = Instant::now();
    let closed = sandbox.chat();
    closed.close();
    let transferred = sandbox.chat();
    transferred.transfer();
    let reopened = sandbox.chat();
    reopened.close();
    let resolved_again = sandbox.chat();
    resolved_again.transfer();
    let both = sandbox.chat();
    both.close();
    both.transfer();
    let busy = sandbox.chat();
    busy.close();
    let scripted = sandbox.chat();
    scripted.close();
    scripted.rate(Rating::Good);
    let opened = sandbox.chat();
    opened.open();
    let emitted = ["chat-closed", "chat-transferred"].map(|kind| {
        let chat = sandbox.chat();
        chat.emit(kind.parse().unwrap(), "{}");
        chat
    });
    let [emitted_rating, emitted_reopening] = ["chat-rated", "chat-reopened"].map(|kind| {
        let chat = sandbox.chat();
        chat.close();
        chat.emit(kind.parse().unwrap(), "{}");
        chat
    });
    sleep(HOUR / 2).await;
    reopened.reopen();
    resolved_again.reopen();
    busy.message("Thank you");
    sleep(HOUR).await;
    resolved_again.close();

    let report = sandbox.finish().await;
    let ratings = |chat: &SimulatedChat| {
        let chat = chat.id();
        let rated = report.events.iter().filter(|event| {
            event.kind == EventKind::CHAT_RATED && event.chat.as_ref() == Some(&chat)
        });
        rated
            .map(|event| event.arose_at.as_millis())
            .collect::<Vec<_>>()
    };
    let start = report.events[0].arose_at.as_millis();
    let hour = HOUR.as_millis() as i64;
    for chat in [&closed, &transferred, &both, &emitted[0], &emitted[1]] {
        assert_eq!(ratings(chat), [start + hour]);
    }
    assert_eq!(ratings(&reopened), [0; 0]);
    assert_eq!(ratings(&resolved_again), [start + 2 * hour + hour / 2]);
    assert_eq!(ratings(&busy), [start + hour + hour / 2]);
    assert_eq!(ratings(&scripted), [start]);
    assert_eq!(ratings(&opened), [0; 0]);
    assert_eq!(ratings(&emitted_rating), [start]);
    assert_eq!(ratings(&emitted_reopening), [0; 0]);
    assert_eq!(began.elapsed().as_millis() as i64, 2 * hour + hour / 2);
}

/// Also if so much time passes that chats are rated before the generator does it.
#[tokio::test(start_paused = true)]
async fn generated_chat_has_no_more_ratings_than_resolutions() {
    for pause in [Duration::ZERO, 10 * MINUTE, HOUR] {
        let recorder = Recorder::answering(StatusCode::OK);
        let sandbox = sandbox(&recorder);
        let mut generator = sandbox.generator();
        for _ in 0..500 {
            generator.step();
            sleep(pause).await;
        }
        let report = sandbox.finish().await;

        let mut unrated = BTreeMap::new();
        for event in &report.events {
            let waits: &mut bool = unrated.entry(event.chat.clone()).or_default();
            match event.kind.as_str() {
                "chat-closed" | "chat-transferred" => *waits = true,
                "chat-reopened" => *waits = false,
                "chat-rated" => assert!(std::mem::take(waits), "{pause:?}: {event}"),
                _ => {}
            }
        }
        assert!(unrated.values().all(|waits| !waits), "{pause:?}: {report}");
        assert!(report.events.len() >= 500);
    }
}

#[tokio::test(start_paused = true)]
async fn sent_message_keeps_what_it_has() {
    let recorder = Recorder::answering(StatusCode::OK);
    let sandbox = sandbox(&recorder);
    let chat = sandbox.chat();
    let sent = |message: Value| {
        let event = chat.send(serde_json::from_value(message).unwrap());
        serde_json::from_slice::<Value>(&sandbox.event(event).unwrap().body).unwrap()
    };
    let whole = json!({
        "chat": {"id": "c-7"}, "id": "m-7", "user": {"id": "u-7"}, "expert": {"id": "e-7"},
        "isUser": false, "text": "Here", "type": "card", "hideForUser": true, "hideForExpert": true,
        "createdAt": 7, "attachment": {"url": "https://example.com/a.png"},
    });
    assert_eq!(sent(whole.clone()), whole);

    let by_expert = sent(json!({"expert": {"id": "e-7"}}));
    assert_eq!(by_expert["expert"]["id"], "e-7");
    assert_eq!(by_expert["isUser"], false);
    assert_eq!(by_expert.get("user"), None);
    assert_eq!(by_expert["chat"]["id"], chat.id());
    let by_user = sent(json!({"user": {"id": "u-7"}}));
    assert_eq!(
        (&by_user["isUser"], by_user.get("expert")),
        (&json!(true), None)
    );
    let by_nobody = sent(json!({}));
    assert_eq!(by_nobody["isUser"], true);
    assert!(by_nobody["user"]["id"].is_string(), "{by_nobody}");
}

#[tokio::test(start_paused = true)]
async fn seed_reproduces_the_same_valid_chats() {
    let generate = async |seed| {
        let recorder = Recorder::answering(StatusCode::OK);
        let start = Timestamp::from_millis(0);
        let sandbox = sandbox_with(
            &recorder,
            Settings {
                seed,
                start,
                ..Settings::default()
            },
        );
        let mut generator = sandbox.generator();
        for _ in 0..300 {
            generator.step();
            sandbox.idle().await;
        }
        sandbox.finish().await
    };
    let report = generate(1).await;
    assert!(report.is_all_delivered());
    assert_eq!(report, generate(1).await);
    assert_ne!(report, generate(2).await);

    let kinds: BTreeSet<_> = report
        .events
        .iter()
        .map(|event| event.kind.clone())
        .collect();
    assert_eq!(kinds, BTreeSet::from(EventKind::ALL));
    for event in &report.events {
        let known = match event.kind.as_str() {
            "chat-assigned" => {
                serde_json::from_slice::<Chat>(&event.body).map(serde_json::to_value)
            }
            "message-created" => {
                serde_json::from_slice::<Message>(&event.body).map(serde_json::to_value)
            }
            _ => serde_json::from_slice::<ChatLifecycle>(&event.body).map(serde_json::to_value),
        };
        let raw: Value = serde_json::from_slice(&event.body).unwrap();
        assert_eq!(known.unwrap().unwrap(), raw);
        assert!(!event.body.windows(4).any(|window| window == b"null"));
    }
}

#[tokio::test(start_paused = true)]
async fn inactive_webhook_or_one_without_a_url_sends_nothing() {
    let recorder = Recorder::answering(StatusCode::OK);
    let sandbox = Sandbox::in_process(recorder.service());
    let chat = sandbox.chat();
    chat.assign(); // never configured
    sandbox.configure_all(&Webhook {
        active: false,
        ..signed()
    });
    chat.open();
    sandbox.configure_all(&Webhook {
        url: String::new(),
        ..signed()
    });
    chat.reopen();
    sandbox.configure_all(&signed());
    chat.message("now");

    let report = sandbox.finish().await;
    let states: Vec<_> = report.events.iter().map(|event| event.state).collect();
    use EventState::{Delivered, NeverSent};
    assert_eq!(states, [NeverSent, NeverSent, NeverSent, Delivered]);
    assert_eq!(recorder.seen().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn in_process_service_knows_its_attempt() {
    let ids = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&ids);
    let sandbox = Sandbox::in_process(tower::service_fn(move |request: Request<Body>| {
        seen.lock()
            .unwrap()
            .push(*request.extensions().get::<AttemptId>().unwrap());
        async { Ok::<_, Infallible>(Response::new(())) }
    }));
    sandbox.configure_all(&signed());
    let chat = sandbox.chat();
    chat.assign();
    chat.emit("chat-archived".parse().unwrap(), "{}");
    chat.open();
    let report = sandbox.finish().await;
    let reported: Vec<_> = report.attempts().iter().map(|attempt| attempt.id).collect();
    assert_eq!(*ids.lock().unwrap(), reported);
    assert_eq!(reported.len(), 2, "nobody configured the unknown kind");
}
