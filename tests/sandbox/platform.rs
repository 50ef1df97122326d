//! The sandbox follows the platform's rules (Spec 2 to 8) and injects faults.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tower::{Service, ServiceExt};
use tower_webhook::event::{
    Attachment, Chat, ChatLifecycle, EventKind, Message, Timestamp, sample,
};
use tower_webhook::sandbox::{
    AttemptId, AttemptResult, Body, EventState, Fault, Faults, Injected, Rating, Sandbox, Settings,
    SimulatedChat, Webhook,
};
use tower_webhook::{Secret, Secrets, Sender, SenderPolicy};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A request as it came, and when.
#[derive(Clone, Debug)]
struct Seen {
    at: Instant,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    /// As far as it came.
    body: Result<Bytes, Bytes>,
}

impl Seen {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    fn is_signed_with(&self, secret: &str) -> bool {
        let secrets = Secrets::from(Secret::new(secret).unwrap());
        let signature = self.header("x-service-hmac-sha256").unwrap();
        let body = self.body.as_ref().unwrap();
        secrets.verify(body, signature.as_bytes()).is_ok()
    }
}

/// Records every request, and responds as configured.
#[derive(Clone)]
struct Recorder {
    seen: Arc<Mutex<Vec<Seen>>>,
    status: Arc<Mutex<StatusCode>>,
    /// How long an answer takes.
    pause: Arc<Mutex<Duration>>,
}

impl Recorder {
    fn answering(status: StatusCode) -> Self {
        Self {
            seen: Arc::default(),
            status: Arc::new(Mutex::new(status)),
            pause: Arc::default(),
        }
    }

    fn answer(&self, status: StatusCode) {
        *self.status.lock().unwrap() = status;
    }

    fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    fn service(
        &self,
    ) -> impl Service<
        Request<Body>,
        Response = Response<Full<Bytes>>,
        Error = Infallible,
        Future: Send,
    > + Clone
    + Send
    + 'static {
        let this = self.clone();
        tower::service_fn(move |request: Request<Body>| {
            let this = this.clone();
            async move { Ok(this.receive(request).await) }
        })
    }

    async fn receive<B>(&self, request: Request<B>) -> Response<Full<Bytes>>
    where
        B: http_body::Body<Data = Bytes> + Unpin,
    {
        let at = Instant::now();
        let (parts, mut body) = request.into_parts();
        let mut bytes = Vec::new();
        let body = loop {
            match body.frame().await {
                None => break Ok(bytes.into()),
                Some(Ok(frame)) => bytes.extend_from_slice(&frame.into_data().unwrap()),
                Some(Err(_)) => break Err(bytes.into()),
            }
        };
        self.seen.lock().unwrap().push(Seen {
            at,
            method: parts.method,
            uri: parts.uri,
            headers: parts.headers,
            body,
        });
        let pause = *self.pause.lock().unwrap();
        if !pause.is_zero() {
            sleep(pause).await;
        }
        let mut response = Response::new(Full::default());
        *response.status_mut() = *self.status.lock().unwrap();
        response
    }
}

fn sandbox(recorder: &Recorder) -> Sandbox {
    sandbox_with(recorder, Settings::default())
}

fn sandbox_with(recorder: &Recorder, settings: Settings) -> Sandbox {
    let sandbox = Sandbox::in_process_with(recorder.service(), settings);
    sandbox.configure_all(&signed());
    sandbox
}

fn signed() -> Webhook {
    Webhook::new("/webhooks").signed(Secret::new("secret").unwrap())
}

fn is_disabled(sandbox: &Sandbox, kind: &EventKind) -> bool {
    let webhooks = sandbox.webhooks();
    webhooks
        .iter()
        .find(|webhook| webhook.kind == *kind)
        .unwrap()
        .disabled
}

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
    chat.send(Message {
        is_user: Some(false),
        text: Some("Here".into()),
        attachment: Some(Attachment {
            url: Some("https://example.com/a.png".into()),
            filename: Some("a.png".into()),
            mimetype: Some("image/png".into()),
        }),
        ..Message::default()
    });
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
async fn undelivered_event_is_retried_every_ten_minutes_for_seven_days() {
    let recorder = Recorder::answering(StatusCode::INTERNAL_SERVER_ERROR);
    let sandbox = sandbox(&recorder);
    sleep(SECOND).await;
    sandbox.chat().assign();
    sandbox.chat().rate(Rating::Good);
    let report = sandbox.finish().await;

    for event in &report.events {
        assert_eq!(event.state, EventState::Lost);
        assert_eq!(event.next_retry, None);
        let times: Vec<_> = event
            .attempts
            .iter()
            .map(|attempt| attempt.at.as_millis())
            .collect();
        let first = event.arose_at.as_millis();
        let expected: Vec<_> = (0..=1_008).map(|retry| first + retry * 600_000).collect();
        assert_eq!(times, expected);
    }
    assert_eq!(report.count(EventState::Lost), 2);
}

#[tokio::test(start_paused = true)]
async fn retries_are_identical_and_keys_are_unique() {
    let recorder = Recorder::answering(StatusCode::SERVICE_UNAVAILABLE);
    let sandbox = sandbox(&recorder);
    let chat = sandbox.chat();
    chat.assign();
    chat.message("🧾");
    sleep(5 * HOUR).await;
    recorder.answer(StatusCode::NO_CONTENT);
    let report = sandbox.finish().await;
    assert!(report.is_all_delivered(), "{report}");

    let seen = recorder.seen();
    assert_eq!(seen.len(), 2 * (5 * 6 + 1));
    for event in &report.events {
        let key = event.key.as_deref();
        let requests: Vec<_> = seen
            .iter()
            .filter(|seen| seen.header("idempotency-key") == key)
            .collect();
        assert_eq!(requests.len(), event.attempts.len());
        for request in requests.iter().skip(1) {
            assert_eq!(request.headers, requests[0].headers);
            assert_eq!(request.body, requests[0].body);
        }
        assert_eq!(requests[0].body.as_ref(), Ok(&event.body));
    }
}

#[tokio::test(start_paused = true)]
async fn undelivered_events_of_a_chat_are_retried_together() {
    let recorder = Recorder::answering(StatusCode::INTERNAL_SERVER_ERROR);
    let sandbox = sandbox(&recorder);
    let [one, other] = [sandbox.chat(), sandbox.chat()];
    one.assign();
    sleep(4 * MINUTE).await;
    one.open();
    other.assign();
    sleep(22 * MINUTE).await;

    let report = sandbox.report();
    let minutes = |event: usize| {
        let start = report.events[0].arose_at.as_millis();
        let minute = |at: Timestamp| (at.as_millis() - start) / 60_000;
        let attempts = report.events[event].attempts.iter();
        let next = report.events[event].next_retry.map(minute);
        (
            attempts
                .map(|attempt| minute(attempt.at))
                .collect::<Vec<_>>(),
            next,
        )
    };
    assert_eq!(minutes(0), (vec![0, 10, 20], Some(30)));
    assert_eq!(minutes(1), (vec![4, 10, 20], Some(30)));
    assert_eq!(minutes(2), (vec![4, 14, 24], Some(34)));
}

#[tokio::test(start_paused = true)]
async fn only_2xx_counts_as_delivered() {
    for (status, delivered) in [
        (200, true),
        (202, true),
        (299, true),
        (199, false),
        (304, false),
        (308, false),
        (400, false),
        (409, false),
        (410, false),
        (500, false),
    ] {
        let recorder = Recorder::answering(StatusCode::from_u16(status).unwrap());
        let sandbox = sandbox(&recorder);
        sandbox.chat().assign();
        sandbox.idle().await;
        let event = &sandbox.report().events[0];
        assert_eq!(event.state == EventState::Delivered, delivered, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn attempt_without_a_response_times_out() {
    let service =
        tower::service_fn(|_: Request<Body>| pending::<Result<Response<()>, Infallible>>());
    let sandbox = Sandbox::in_process(service);
    sandbox.configure_all(&signed());
    sandbox.chat().assign();
    sandbox.idle().await;

    let event = &sandbox.report().events[0];
    assert_eq!(event.attempts[0].result, AttemptResult::TimedOut);
    assert_eq!(event.attempts[0].took, 10 * SECOND);
    assert_eq!(event.state, EventState::Waiting);
}

#[tokio::test(start_paused = true)]
async fn failing_or_panicking_service_is_a_failed_attempt() {
    let calls = Arc::new(Mutex::new(0));
    let service = tower::service_fn(move |_: Request<Body>| {
        let mut calls = calls.lock().unwrap();
        *calls += 1;
        let call = *calls;
        async move {
            match call {
                1 => std::panic::resume_unwind(Box::new("silently")),
                2 => Err("out of order"),
                _ => Ok(Response::new(())),
            }
        }
    });
    let sandbox = Sandbox::in_process(service);
    sandbox.configure_all(&signed());
    sandbox.chat().assign();

    let report = sandbox.finish().await;
    let outcomes: Vec<_> = report
        .attempts()
        .iter()
        .map(|attempt| attempt.result.to_string())
        .collect();
    assert_eq!(outcomes, ["the service panicked", "out of order", "200"]);
}

#[tokio::test(start_paused = true)]
async fn webhook_is_disabled_by_more_than_500_failures() {
    let recorder = Recorder::answering(StatusCode::INTERNAL_SERVER_ERROR);
    let sandbox = sandbox(&recorder);
    let kind = EventKind::CHAT_RATED;
    for _ in 0..500 {
        sandbox.chat().rate(Rating::Bad);
    }
    sandbox.chat().open();
    sandbox.idle().await;
    assert!(!is_disabled(&sandbox, &kind));

    sandbox.chat().rate(Rating::Bad);
    sandbox.idle().await;
    assert!(is_disabled(&sandbox, &kind));
    assert!(!is_disabled(&sandbox, &EventKind::CHAT_OPENED));

    let never_sent = sandbox.chat().rate(Rating::Bad);
    recorder.answer(StatusCode::OK);
    sleep(HOUR).await;
    let report = sandbox.report();
    assert_eq!(
        report.events.last().map(|event| (event.id, event.state)),
        Some((never_sent, EventState::NeverSent))
    );
    assert_eq!(report.count(EventState::Waiting), 501);
    assert_eq!(
        report.count(EventState::Delivered),
        1,
        "the other webhook's event"
    );
    assert_eq!(recorder.seen().len(), 503);

    sandbox.configure(kind.clone(), signed());
    assert!(is_disabled(&sandbox, &kind), "saving it does not enable it");
    sandbox.enable(&kind);
    let report = sandbox.finish().await;
    assert_eq!(report.count(EventState::Delivered), 502);
    assert_eq!(report.count(EventState::NeverSent), 1);
}

#[tokio::test(start_paused = true)]
async fn failures_are_counted_over_a_sliding_hour() {
    // Retries would add failures of their own.
    let policy = SenderPolicy {
        retry_every: 2 * DAY,
        ..SenderPolicy::default()
    };
    for (later, disabled) in [(HOUR - Duration::from_millis(1), true), (HOUR, false)] {
        let recorder = Recorder::answering(StatusCode::INTERNAL_SERVER_ERROR);
        let sandbox = sandbox_with(
            &recorder,
            Settings {
                sender: Sender::chat_platform().with_policy(policy),
                ..Settings::default()
            },
        );
        for _ in 0..500 {
            sandbox.chat().rate(Rating::Bad);
        }
        sandbox.idle().await;
        sleep(later).await;
        sandbox.chat().rate(Rating::Bad);
        sandbox.idle().await;
        assert_eq!(
            is_disabled(&sandbox, &EventKind::CHAT_RATED),
            disabled,
            "after {later:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn seven_days_elapse_while_a_webhook_does_not_deliver() {
    let recorder = Recorder::answering(StatusCode::INTERNAL_SERVER_ERROR);
    let sandbox = sandbox(&recorder);
    sandbox.chat().assign();
    sandbox.idle().await;
    sandbox.configure_all(&Webhook {
        active: false,
        ..signed()
    });
    recorder.answer(StatusCode::OK);
    sleep(6 * DAY).await;
    sandbox.chat().assign();
    assert_eq!(sandbox.report().events[0].state, EventState::Waiting);
    sleep(DAY + MINUTE).await;
    sandbox.configure_all(&signed());

    let report = sandbox.finish().await;
    assert_eq!(report.events[0].state, EventState::Lost);
    assert_eq!(report.events[0].attempts.len(), 1);
    assert_eq!(report.events[1].state, EventState::NeverSent);
}

#[tokio::test(start_paused = true)]
async fn test_event_is_sent_once_without_a_key() {
    let recorder = Recorder::answering(StatusCode::INTERNAL_SERVER_ERROR);
    let sandbox = sandbox(&recorder);
    sandbox.configure_all(&Webhook {
        active: false,
        ..signed()
    });
    assert!(
        sandbox
            .send_test("chat-archived".parse().unwrap())
            .is_none()
    );
    sandbox.send_test(EventKind::CHAT_RATED).unwrap();
    let report = sandbox.finish().await;
    assert_eq!(report.events[0].state, EventState::Lost);
    assert_eq!(report.events[0].attempts.len(), 1);
    assert!(
        sandbox
            .webhooks()
            .iter()
            .all(|webhook| webhook.recent_failures == 0)
    );

    let [seen] = &recorder.seen()[..] else {
        panic!("one request")
    };
    assert_eq!(seen.header("idempotency-key"), None);
    assert_eq!(
        seen.body.as_deref(),
        Ok(sample(&EventKind::CHAT_RATED).unwrap().as_bytes())
    );
    assert!(seen.is_signed_with("secret"));
}

#[tokio::test(start_paused = true)]
async fn test_event_can_have_a_secret_of_its_own() {
    let recorder = Recorder::answering(StatusCode::OK);
    let sandbox = sandbox(&recorder);
    sandbox.configure(EventKind::CHAT_OPENED, Webhook::new("/webhooks"));
    let secret = Secret::new("for tests").unwrap();
    for kind in [EventKind::CHAT_RATED, EventKind::CHAT_OPENED] {
        sandbox.send_test_signed(kind, secret.clone()).unwrap();
    }
    assert!(
        sandbox
            .send_test_signed("x".parse().unwrap(), secret)
            .is_none()
    );
    sandbox.send_test(EventKind::CHAT_RATED).unwrap();
    sandbox.idle().await;

    let [one, unsigned_webhook, own] = &recorder.seen()[..] else {
        panic!("three requests")
    };
    assert!(one.is_signed_with("for tests"));
    assert!(unsigned_webhook.is_signed_with("for tests"));
    assert!(own.is_signed_with("secret"));
}

#[tokio::test(start_paused = true)]
async fn retries_can_be_sent_early_by_hand() {
    let recorder = Recorder::answering(StatusCode::INTERNAL_SERVER_ERROR);
    let sandbox = sandbox(&recorder);
    let mut live = sandbox.attempts();
    let event = sandbox.chat().assign();
    sandbox.idle().await;
    assert_eq!(live.try_recv().unwrap().event, event);

    let event = event.to_string().parse().unwrap();
    assert!(sandbox.retry_now(event));
    sandbox.idle().await;
    assert_eq!(live.try_recv().unwrap().event, event);
    assert_eq!(sandbox.event(event).unwrap().attempts.len(), 2);
    assert!(sandbox.event("7".parse().unwrap()).is_none());

    let began = Instant::now();
    let (shown, retry) = (sandbox.now(), sandbox.latest(1)[0].next_retry.unwrap());
    sandbox.advance(10 * MINUTE);
    assert_eq!(sandbox.now().as_millis() - shown.as_millis(), 600_000);
    sandbox.idle().await;
    assert_eq!(live.try_recv().unwrap().at, retry);
    sandbox.advance(HOUR);
    sandbox.idle().await;
    assert!(live.try_recv().is_ok());
    assert!(
        live.try_recv().is_err(),
        "one retry stands for those that were skipped"
    );
    assert_eq!(began.elapsed(), Duration::ZERO);

    sandbox.set_speed(600);
    sleep(5 * SECOND / 2).await;
    assert_eq!(sandbox.report().events[0].attempts.len(), 6);

    recorder.answer(StatusCode::OK);
    assert!(sandbox.retry_now(event));
    assert!(sandbox.finish().await.is_all_delivered());
    assert!(!sandbox.retry_now(event));

    let waits = sandbox.chat().assign();
    sandbox.advance(8 * DAY);
    sandbox.idle().await;
    assert_eq!(sandbox.latest(1)[0].id, waits);
}

#[tokio::test(start_paused = true)]
async fn advancing_seven_days_loses_waiting_events() {
    let recorder = Recorder::answering(StatusCode::INTERNAL_SERVER_ERROR);
    let sandbox = sandbox(&recorder);
    sandbox.chat().assign();
    sandbox.idle().await;
    sandbox.advance(8 * DAY);
    sandbox.idle().await;
    let event = sandbox.latest(1).remove(0);
    assert_eq!((event.state, event.attempts.len()), (EventState::Lost, 1));
}

#[tokio::test(start_paused = true)]
async fn platform_stops_with_its_last_handle() {
    let recorder = Recorder::answering(StatusCode::INTERNAL_SERVER_ERROR);
    let sandbox = sandbox(&recorder);
    let chat = sandbox.chat();
    chat.assign();
    drop(sandbox);
    sleep(11 * MINUTE).await;
    assert_eq!(recorder.seen().len(), 2);
    drop(chat);
    sleep(HOUR).await;
    assert_eq!(recorder.seen().len(), 2);
}

/// What becomes of one event whose first attempt meets `fault`, at a receiver that answers 200.
async fn meet(fault: Fault) -> (Vec<Seen>, Vec<AttemptResult>) {
    let recorder = Recorder::answering(StatusCode::OK);
    let sandbox = sandbox(&recorder);
    sandbox.inject(fault);
    sandbox.chat().open();
    let report = sandbox.finish().await;
    assert!(report.is_all_delivered(), "{report}");
    assert_eq!(
        report.events[0].attempts[0]
            .fault
            .map(|injected| injected.fault),
        Some(fault)
    );
    let outcomes = report
        .attempts()
        .into_iter()
        .map(|attempt| attempt.result.clone());
    (recorder.seen(), outcomes.collect())
}

const OK: AttemptResult = AttemptResult::Answered(StatusCode::OK);

#[tokio::test(start_paused = true)]
async fn duplicate_is_the_same_request_again() {
    let (seen, outcomes) = meet(Fault::Duplicate).await;
    assert_eq!(outcomes, [OK, OK]);
    assert_eq!(seen[0].headers, seen[1].headers);
    assert_eq!(seen[0].body, seen[1].body);
    assert!(seen[0].at <= seen[1].at);
}

#[tokio::test(start_paused = true)]
async fn some_duplicates_arrive_days_later() {
    let recorder = Recorder::answering(StatusCode::OK);
    let sandbox = sandbox_with(
        &recorder,
        Settings {
            faults: Faults::none().with(Fault::Duplicate, 1.0),
            ..Settings::default()
        },
    );
    for _ in 0..50 {
        sandbox.chat().open();
    }
    let report = sandbox.finish().await;
    assert_eq!(recorder.seen().len(), 100);
    let gaps: Vec<_> = report
        .events
        .iter()
        .map(|event| event.attempts[1].at.as_millis() - event.attempts[0].at.as_millis())
        .collect();
    assert!(gaps.contains(&0));
    assert!(gaps.iter().all(|&gap| gap <= 7 * DAY.as_millis() as i64));
    assert!(gaps.iter().any(|&gap| gap > 5 * DAY.as_millis() as i64));
}

#[tokio::test(start_paused = true)]
async fn concurrent_duplicate_overlaps() {
    let recorder = Recorder::answering(StatusCode::OK);
    *recorder.pause.lock().unwrap() = SECOND;
    let sandbox = sandbox(&recorder);
    sandbox.inject(Fault::ConcurrentDuplicate);
    sandbox.chat().open();
    sandbox.finish().await;
    let seen = recorder.seen();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[0].at, seen[1].at);
    assert_eq!(seen[0].headers, seen[1].headers);
}

#[tokio::test(start_paused = true)]
async fn reordered_event_is_overtaken_by_the_next_of_its_chat() {
    let recorder = Recorder::answering(StatusCode::OK);
    let sandbox = sandbox(&recorder);
    let chat = sandbox.chat();
    sandbox.inject(Fault::Reorder);
    chat.assign();
    sandbox.chat().assign();
    chat.open();
    sandbox.finish().await;
    let kinds: Vec<_> = recorder
        .seen()
        .iter()
        .map(|seen| seen.header("x-service-event").unwrap().to_owned())
        .collect();
    assert_eq!(kinds, ["chat-assigned", "chat-opened", "chat-assigned"]);
    let report = sandbox.report();
    let order: Vec<_> = report
        .attempts()
        .iter()
        .map(|attempt| attempt.event.to_string())
        .collect();
    assert_eq!(order, ["1", "2", "0"]);

    // Without a successor it comes after a minute.
    sandbox.inject(Fault::Reorder);
    let began = Instant::now();
    chat.reopen();
    sandbox.idle().await;
    assert_eq!(recorder.seen()[3].at - began, MINUTE);
}

#[tokio::test(start_paused = true)]
async fn dropped_response_was_sent_by_the_receiver() {
    let (seen, outcomes) = meet(Fault::DropResponse).await;
    assert_eq!(
        outcomes,
        [AttemptResult::Withheld(Some(StatusCode::OK)), OK]
    );
    assert_eq!(seen[1].at - seen[0].at, 10 * MINUTE);
}

#[tokio::test(start_paused = true)]
async fn truncated_body_ends_early() {
    let (seen, outcomes) = meet(Fault::TruncateBody).await;
    let (cut, whole) = (
        seen[0].body.as_ref().unwrap_err(),
        seen[1].body.as_ref().unwrap(),
    );
    assert!(cut.len() < whole.len() && whole.starts_with(cut));
    assert_eq!(
        outcomes,
        [AttemptResult::Withheld(Some(StatusCode::OK)), OK]
    );
}

#[tokio::test(start_paused = true)]
async fn disconnect_drops_the_request_while_it_is_handled() {
    let begun_and_ended = Arc::new(Mutex::new((0, 0)));
    let counts = Arc::clone(&begun_and_ended);
    let sandbox = Sandbox::in_process(tower::service_fn(move |_: Request<Body>| {
        let counts = Arc::clone(&counts);
        async move {
            counts.lock().unwrap().0 += 1;
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            counts.lock().unwrap().1 += 1;
            Ok::<_, Infallible>(Response::new(()))
        }
    }));
    sandbox.configure_all(&signed());
    sandbox.inject(Fault::Disconnect);
    sandbox.chat().open();
    let report = sandbox.finish().await;
    assert_eq!(*begun_and_ended.lock().unwrap(), (2, 1));
    let outcomes: Vec<_> = report
        .attempts()
        .into_iter()
        .map(|attempt| attempt.result.clone())
        .collect();
    assert_eq!(outcomes, [AttemptResult::Withheld(None), OK]);
}

#[tokio::test(start_paused = true)]
async fn delay_postpones_the_first_attempt() {
    let began = Instant::now();
    let (seen, outcomes) = meet(Fault::Delay).await;
    assert_eq!(outcomes, [OK]);
    assert!(seen[0].at > began && seen[0].at <= began + MINUTE);
}

#[tokio::test(start_paused = true)]
async fn tampering_changes_the_body_and_not_the_signature() {
    let (seen, outcomes) = meet(Fault::Tamper).await;
    // This receiver looks at nothing and so takes it.
    assert_eq!(outcomes, [OK]);
    assert!(!seen[0].is_signed_with("secret"));
}

#[tokio::test(start_paused = true)]
async fn wrong_secret_signs_the_genuine_body() {
    let recorder = Recorder::answering(StatusCode::UNAUTHORIZED);
    let sandbox = sandbox(&recorder);
    sandbox.inject(Fault::WrongSecret);
    sandbox.chat().open();
    sandbox.idle().await;
    recorder.answer(StatusCode::OK);
    sandbox.finish().await;
    let seen = recorder.seen();
    assert_eq!(seen[0].body, seen[1].body);
    assert!(!seen[0].is_signed_with("secret"));
    assert!(seen[1].is_signed_with("secret"));
}

#[tokio::test(start_paused = true)]
async fn changed_body_is_signed_under_the_same_key() {
    let (seen, outcomes) = meet(Fault::OtherBody).await;
    assert_eq!(outcomes, [OK, OK]);
    assert_ne!(seen[0].body, seen[1].body);
    assert_eq!(
        seen[0].header("idempotency-key"),
        seen[1].header("idempotency-key")
    );
    assert!(seen.iter().all(|seen| seen.is_signed_with("secret")));
    let other = seen[1].body.as_ref().unwrap();
    serde_json::from_slice::<ChatLifecycle>(other).unwrap();
}

#[tokio::test(start_paused = true)]
async fn nothing_is_forged_without_a_secret() {
    let recorder = Recorder::answering(StatusCode::OK);
    let faults = Faults::none()
        .with(Fault::Tamper, 0.5)
        .with(Fault::WrongSecret, 0.5);
    let sandbox = Sandbox::in_process_with(
        recorder.service(),
        Settings {
            faults,
            ..Settings::default()
        },
    );
    sandbox.configure_all(&Webhook::new("/"));
    for _ in 0..20 {
        sandbox.chat().open();
    }
    let report = sandbox.finish().await;
    assert!(
        report
            .attempts()
            .iter()
            .all(|attempt| attempt.fault.is_none())
    );
}

#[tokio::test(start_paused = true)]
async fn faults_occur_at_their_rates() {
    let recorder = Recorder::answering(StatusCode::OK);
    let faults = Faults::none().with(Fault::Delay, 0.25);
    let sandbox = sandbox_with(
        &recorder,
        Settings {
            faults,
            ..Settings::default()
        },
    );
    for _ in 0..2_000 {
        sandbox.chat().open();
    }
    let report = sandbox.finish().await;
    let delayed = report
        .attempts()
        .iter()
        .filter(|attempt| attempt.fault.is_some())
        .count();
    assert!((400..600).contains(&delayed), "{delayed} of 2000");
}

#[test]
fn faults_parse_as_they_are_printed() {
    assert_eq!("none".parse(), Ok(Faults::none()));
    assert_eq!("all=0.05".parse(), Ok(Faults::all(0.05)));
    for fault in Fault::ALL {
        assert_eq!(
            format!("{fault}=0.5").parse(),
            Ok(Faults::none().with(fault, 0.5))
        );
    }
    for text in [
        "",
        "al",
        "tamper=",
        "tamper=2",
        "tamper=-1",
        "tamper=NaN",
        "tamper;reorder",
    ] {
        let error = text.parse::<Faults>().unwrap_err().to_string();
        assert!(error.contains("drop-response"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn report_is_a_table() {
    let recorder = Recorder::answering(StatusCode::OK);
    let sandbox = sandbox(&recorder);
    sandbox.inject(Fault::DropResponse);
    sandbox.chat().open();
    let report = sandbox.finish().await;
    assert_eq!(
        report.to_string(),
        "\x20event  kind              chat        state       attempts
     0  chat-opened       c-1         delivered   200 withheld [drop-response]; 200;
1 events, 1 delivered, 0 waiting, 0 lost, 0 never sent"
    );
}

#[tokio::test(start_paused = true)]
async fn report_of_a_failing_test_says_why() {
    use tower::Layer;
    use tower_webhook::event::{ChatClosed, ChatOpened, ChatRated};
    use tower_webhook::{Delivery, EventRouter, HandlerError, WebhookLayer};

    let events = EventRouter::new()
        .on::<ChatOpened>(async |delivery: Delivery<ChatOpened>| {
            let id = delivery.payload.id.unwrap_or_default();
            Err(HandlerError::retry(format!("the CRM does not know {id}")))
        })
        .on::<ChatClosed>(async |_: Delivery<ChatClosed>| {
            std::panic::resume_unwind(Box::new("silently"))
        })
        .on::<ChatRated>(async |_: Delivery<ChatRated>| Err(HandlerError::discard("too old")));
    let secret = Secret::new("secret").unwrap();
    let sandbox = Sandbox::in_process(WebhookLayer::new(secret.clone()).layer(events));
    sandbox.configure_all(&Webhook::new("/webhooks").signed(secret));
    let other = Webhook::new("/webhooks").signed(Secret::new("other").unwrap());
    sandbox.configure(EventKind::MESSAGE_CREATED, other);

    let chat = sandbox.chat();
    sandbox.inject(Fault::Tamper);
    chat.open();
    chat.assign();
    chat.message("Hello");
    chat.close();
    chat.rate(Rating::Good);
    let report = sandbox.finish().await;

    let Injected { parameter, .. } = report.events[0].attempts[0].fault.unwrap();
    assert_eq!(
        report.to_string(),
        format!(
            "\x20event  kind              chat        state       attempts
     0  chat-opened       c-1         lost        401 [tamper (byte {parameter})]; 500 ×1008;
        failed: the CRM does not know c-1
     1  chat-assigned     c-1         delivered   200;
     2  message-created   c-1         lost        401 ×1009;
        invalid-signature: the signature is wrong for every secret
     3  chat-closed       c-1         lost        500 ×1009;
        panicked: the handler panicked: silently
     4  chat-rated        c-1         delivered   200;
        discarded: too old
5 events, 2 delivered, 0 waiting, 3 lost, 0 never sent"
        )
    );
    let reason = report.events[0].attempts[0].reason.as_deref().unwrap();
    assert!(reason.starts_with("invalid-signature: "), "{reason}");
}

mod readme {
    use tower_webhook::event::ChatRated;
    use tower_webhook::{Delivery, EventRouter};

    fn my_handlers() -> EventRouter {
        EventRouter::new().on::<ChatRated>(async |_: Delivery<ChatRated>| Ok(()))
    }

    // What the page on testing shows, which no doctest can run.
    #[rustfmt::skip]
    mod shown {
        use super::my_handlers;

use tower_webhook::sandbox::{Fault, Rating, Sandbox, Webhook};
use tower_webhook::{Secret, Webhooks};

#[tokio::test(start_paused = true)]
async fn a_chat_is_handled() {
    let secret = Secret::new("secret").unwrap();
    let (webhooks, _running) = Webhooks::new(secret.clone()).start(my_handlers()).unwrap();
    let sandbox = Sandbox::in_process(webhooks);
    sandbox.configure_all(&Webhook::new("/webhooks").signed(secret));
    sandbox.inject(Fault::DropResponse);
    let chat = sandbox.chat();
    chat.assign();
    chat.message("Where is my parcel?");
    chat.close();
    chat.rate(Rating::Good);
    let report = sandbox.finish().await;
    assert!(report.is_all_delivered(), "{report}");
}
    }

    #[test]
    fn docs_show_this_test() {
        let readme = include_str!("../../src/docs/testing.md");
        let (_, rest) = readme.split_once("```rust,ignore\n").unwrap();
        let (shown, _) = rest.split_once("```").unwrap();
        assert!(shown.lines().count() < 20);
        assert!(include_str!("platform.rs").contains(shown));
    }
}

mod admin_api {
    use super::*;

    const QUERY: &str = r#"{"query":"{ partner { state { chat { isAvailable } } } }"}"#;

    fn request(token: &str) -> http::request::Builder {
        Request::post("/api/graphql")
            .header("content-type", "application/json")
            .header("authorization", format!("Bearer {token}"))
    }

    async fn answer(
        sandbox: &Sandbox,
        request: http::request::Builder,
        body: &str,
    ) -> (StatusCode, Value) {
        let request = request
            .body(Full::new(Bytes::from(body.to_owned())))
            .unwrap();
        let response = sandbox.graphql().oneshot(request).await.unwrap();
        assert_eq!(response.headers()["content-type"], "application/json");
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap())
    }

    fn idle_sandbox() -> Sandbox {
        Sandbox::in_process(Recorder::answering(StatusCode::OK).service())
    }

    #[tokio::test]
    async fn returns_the_availability() {
        let sandbox = idle_sandbox();
        let key = sandbox.create_api_key("CRM");
        for available in [true, false] {
            sandbox.set_available(available);
            let expected =
                json!({"data": {"partner": {"state": {"chat": {"isAvailable": available}}}}});
            assert_eq!(
                answer(&sandbox, request(&key), QUERY).await,
                (StatusCode::OK, expected)
            );
        }
        let keys = sandbox.api_keys();
        assert_eq!(keys[0].description, "CRM");
        assert!(!format!("{keys:?}{sandbox:?}").contains(&key));
    }

    #[tokio::test]
    async fn can_be_mounted_in_an_axum_router() {
        let sandbox = idle_sandbox();
        let key = sandbox.create_api_key("CRM");
        let app = axum::Router::new().route_service("/api/graphql", sandbox.graphql());
        let request = request(&key).body(axum::body::Body::from(QUERY)).unwrap();
        assert_eq!(app.oneshot(request).await.unwrap().status(), StatusCode::OK);
    }

    #[tokio::test]
    async fn requires_an_api_key() {
        let sandbox = idle_sandbox();
        let key = sandbox.create_api_key("CRM");
        assert_ne!(key, sandbox.create_api_key("CRM"));
        let bare = || Request::post("/graphql").header("content-type", "application/json");
        for refused in [
            bare(),
            request(""),
            request("wrong"),
            bare().header("authorization", &key),
            bare().header("authorization", format!("Basic {key}")),
        ] {
            let (status, body) = answer(&sandbox, refused, QUERY).await;
            assert_eq!(status, StatusCode::UNAUTHORIZED);
            assert!(body["errors"][0]["message"].is_string());
        }
    }

    #[tokio::test]
    async fn refuses_requests_that_differ_from_the_spec() {
        let sandbox = idle_sandbox();
        let key = sandbox.create_api_key("CRM");
        let status = async |request, body: &str| answer(&sandbox, request, body).await.0;

        for body in [
            "",
            "[]",
            "{}",
            r#"{"query":1}"#,
            r#"{"query":"{a}","variables":{}}"#,
        ] {
            assert_eq!(
                status(request(&key), body).await,
                StatusCode::BAD_REQUEST,
                "{body}"
            );
        }
        let other = || request(&key);
        assert_eq!(
            status(other().method("GET"), "").await,
            StatusCode::METHOD_NOT_ALLOWED
        );
        assert_eq!(
            status(other().uri("/graph"), QUERY).await,
            StatusCode::NOT_FOUND
        );
        let text = Request::post("/graphql").header("authorization", format!("Bearer {key}"));
        assert_eq!(
            status(text, QUERY).await,
            StatusCode::UNSUPPORTED_MEDIA_TYPE
        );
        let large = format!(r#"{{"query":"{}"}}"#, " ".repeat(1 << 20));
        assert_eq!(status(other(), &large).await, StatusCode::PAYLOAD_TOO_LARGE);
    }

    #[tokio::test]
    async fn variables_may_be_null() {
        let sandbox = idle_sandbox();
        let key = sandbox.create_api_key("CRM");
        let query = QUERY.strip_suffix('}').unwrap();
        let body = format!(r#"{query},"variables":null}}"#);
        let (status, body) = answer(&sandbox, request(&key), &body).await;
        assert_eq!(status, StatusCode::OK, "{body}");
        assert_eq!(
            body["data"]["partner"]["state"]["chat"]["isAvailable"],
            true
        );
    }

    #[tokio::test]
    async fn returns_errors_in_the_graphql_envelope() {
        let sandbox = idle_sandbox();
        let key = sandbox.create_api_key("CRM");
        let body = r#"{"query":"{ partner { name } }"}"#;
        let (status, body) = answer(&sandbox, request(&key), body).await;
        assert_eq!(status, StatusCode::OK);
        assert!(
            body["errors"][0]["message"]
                .as_str()
                .unwrap()
                .contains("name")
        );
        assert_eq!(body["data"], Value::Null);
    }
}

mod over_http {
    use super::*;
    use tokio::net::TcpListener;
    use tower::Layer;
    use tower_webhook::event::ChatOpened;
    use tower_webhook::{Delivery, EventRouter, WebhookLayer};

    async fn serve(app: axum::Router) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        format!("http://{address}/webhooks")
    }

    async fn receiver(recorder: &Recorder) -> String {
        let recorder = recorder.clone();
        let receive = move |request: axum::extract::Request| {
            let recorder = recorder.clone();
            async move { recorder.receive(request).await }
        };
        serve(axum::Router::new().route("/webhooks", axum::routing::post(receive))).await
    }

    fn to(url: &str) -> Sandbox {
        let sandbox = Sandbox::over_http(Settings::default());
        sandbox.configure_all(&Webhook {
            url: url.to_owned(),
            ..signed()
        });
        sandbox
    }

    fn outcomes(sandbox: &Sandbox) -> Vec<AttemptResult> {
        sandbox
            .report()
            .attempts()
            .into_iter()
            .map(|attempt| attempt.result.clone())
            .collect()
    }

    #[tokio::test]
    async fn receiver_gets_every_event_of_a_chat() {
        let opened = Arc::new(Mutex::new(Vec::new()));
        let ids = Arc::clone(&opened);
        let events = EventRouter::new().on::<ChatOpened>(move |delivery: Delivery<ChatOpened>| {
            ids.lock()
                .unwrap()
                .push(delivery.payload.id.clone().unwrap());
            async { Ok(()) }
        });
        let webhooks = WebhookLayer::new(Secret::new("secret").unwrap()).layer(events);
        let url = serve(axum::Router::new().route_service("/webhooks", webhooks)).await;

        let sandbox = to(&url);
        let chat = sandbox.chat();
        chat.assign();
        let event = chat.open();
        chat.message("Hello");
        sandbox.idle().await;
        assert!(sandbox.report().is_all_delivered(), "{}", sandbox.report());

        for fault in [
            Fault::DropResponse,
            Fault::Tamper,
            Fault::WrongSecret,
            Fault::TruncateBody,
        ] {
            sandbox.inject(fault);
            let event = chat.open();
            sandbox.idle().await;
            assert_eq!(sandbox.latest(1)[0].state, EventState::Waiting, "{fault}");
            assert!(sandbox.retry_now(event));
            sandbox.idle().await;
            assert_eq!(sandbox.latest(1)[0].state, EventState::Delivered, "{fault}");
        }
        assert!(!sandbox.retry_now(event));
        assert_eq!(opened.lock().unwrap().len(), 5, "each was handled once");
    }

    #[tokio::test]
    async fn truncated_body_closes_the_connection() {
        let recorder = Recorder::answering(StatusCode::OK);
        let sandbox = to(&receiver(&recorder).await);
        sandbox.inject(Fault::TruncateBody);
        let event = sandbox.chat().open();
        sandbox.idle().await;
        sandbox.retry_now(event);
        sandbox.idle().await;
        let report = sandbox.report();
        let whole = &report.events[0].body;
        assert!(
            matches!(
                outcomes(&sandbox)[..],
                [AttemptResult::Withheld(None), AttemptResult::Answered(_)]
            ),
            "{report}"
        );
        let seen = recorder.seen();
        // What the server saw of it, if it saw any, broke off.
        let (last, cut) = seen.split_last().unwrap();
        assert_eq!(last.body.as_ref(), Ok(whole));
        assert!(cut.iter().all(|seen| seen.body.is_err()), "{cut:?}");
    }

    #[tokio::test]
    async fn unreachable_receiver_is_a_failed_attempt() {
        let closed = TcpListener::bind("127.0.0.1:0")
            .await
            .unwrap()
            .local_addr()
            .unwrap();
        for url in [
            format!("http://{closed}/"),
            "https://localhost/".to_owned(),
            "/webhooks".to_owned(),
            "not a url".to_owned(),
        ] {
            let sandbox = to(&url);
            sandbox.chat().open();
            sandbox.idle().await;
            assert!(
                matches!(&outcomes(&sandbox)[..], [AttemptResult::Failed(_)]),
                "{url}"
            );
            assert_eq!(sandbox.report().events[0].state, EventState::Waiting);
        }
    }

    #[tokio::test]
    async fn hanging_receiver_times_out() {
        let recorder = Recorder::answering(StatusCode::OK);
        *recorder.pause.lock().unwrap() = HOUR;
        let sandbox = Sandbox::over_http(Settings {
            attempt_timeout: Duration::from_millis(100),
            ..Settings::default()
        });
        sandbox.configure_all(&Webhook::new(receiver(&recorder).await));
        sandbox.chat().open();
        sandbox.idle().await;
        assert_eq!(outcomes(&sandbox), [AttemptResult::TimedOut]);
    }
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
