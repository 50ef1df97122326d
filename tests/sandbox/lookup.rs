//! Events, attempts and chats that are looked up, and the responses of attempts over HTTP.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::http::HeaderName;
use http::{Request, Response, StatusCode};
use support::net::serve;
use tokio::net::TcpListener;
use tower_webhook::event::EventKind;
use tower_webhook_sandbox::{
    AttemptResponse, AttemptResult, Body, EventFilter, EventState, Sandbox, Settings,
    SimulatedChat, Webhook,
};

/// A platform that delivers into a service which answers with a status that the test sets.
fn platform(status: u16) -> (Sandbox, Arc<AtomicU16>) {
    let status = Arc::new(AtomicU16::new(status));
    let answers = Arc::clone(&status);
    let sandbox = Sandbox::in_process(tower::service_fn(move |_: Request<Body>| {
        let status = StatusCode::from_u16(answers.load(Ordering::Relaxed)).unwrap();
        let mut response = Response::new(());
        *response.status_mut() = status;
        async { Ok::<_, Infallible>(response) }
    }));
    sandbox.configure_all(&Webhook::new("/webhooks"));
    (sandbox, status)
}

#[tokio::test(start_paused = true)]
async fn delivered_event_is_sent_again() {
    let (sandbox, status) = platform(500);
    let event = sandbox.chat().assign();
    sandbox.idle().await;
    assert!(!sandbox.resend(event), "it is not delivered");
    status.store(200, Ordering::Relaxed);
    assert!(sandbox.retry_now(event));
    sandbox.idle().await;

    status.store(503, Ordering::Relaxed);
    assert!(sandbox.resend(event));
    assert!(sandbox.resend(event), "it is sent once");
    sandbox.idle().await;
    let report = sandbox.event(event).unwrap();
    assert_eq!(report.state, EventState::Delivered);
    assert_eq!(report.attempts.len(), 3);
    let webhooks = sandbox.webhooks();
    let failures: usize = webhooks.iter().map(|webhook| webhook.recent_failures).sum();
    assert_eq!(failures, 2, "the one that was sent again counts");

    let test = sandbox.send_test(EventKind::CHAT_RATED).unwrap();
    sandbox.idle().await;
    assert!(!sandbox.resend(test), "it is lost");
    sandbox.configure_all(&Webhook::default());
    assert!(!sandbox.resend(event), "the webhook has no URL");
    assert!(!sandbox.resend("99".parse().unwrap()));
}

#[tokio::test(start_paused = true)]
async fn events_are_selected_by_kind_chat_and_state() {
    let (sandbox, status) = platform(200);
    let chat = sandbox.chat();
    let events = [chat.assign(), chat.open(), sandbox.chat().assign()];
    sandbox.idle().await;
    status.store(500, Ordering::Relaxed);
    let waits = [chat.message("one"), chat.message("two")];
    sandbox.idle().await;

    let all = EventFilter::default();
    let waiting = EventFilter {
        state: Some(EventState::Waiting),
        ..all.clone()
    };
    let assigned = EventFilter {
        kind: Some(EventKind::CHAT_ASSIGNED),
        ..all.clone()
    };
    let both = EventFilter {
        chat: Some(chat.id()),
        ..assigned.clone()
    };
    let counts = [&all, &waiting, &assigned, &both].map(|filter| sandbox.count(filter));
    assert_eq!(counts, [5, 2, 2, 1]);

    let ids = |events: Vec<tower_webhook_sandbox::EventReport>| -> Vec<_> {
        events.into_iter().map(|event| event.id).collect()
    };
    assert_eq!(ids(sandbox.oldest(&waiting, None, 10)), waits);
    assert_eq!(
        ids(sandbox.oldest(&waiting, Some(waits[0]), 10)),
        [waits[1]]
    );
    assert!(sandbox.oldest(&waiting, None, 1)[0].next_retry.is_some());
    assert_eq!(
        ids(sandbox.newest(&assigned, None, 10)),
        [events[2], events[0]]
    );
    assert_eq!(
        ids(sandbox.newest(&assigned, Some(events[2]), 10)),
        [events[0]]
    );
    assert!(sandbox.newest(&all, Some(events[0]), 10).is_empty());

    let attempts = sandbox.latest_attempts(2);
    assert_eq!(attempts.len(), 2);
    assert!(
        attempts
            .iter()
            .all(|attempt| waits.contains(&attempt.event))
    );
    assert_eq!(sandbox.latest_attempts(100).len(), 5);
}

#[tokio::test(start_paused = true)]
async fn chats_are_found_by_their_identifier() {
    let (sandbox, _) = platform(200);
    let chats = [sandbox.chat(), sandbox.chat()];
    let found = sandbox.find_chat(&chats[1].id()).unwrap();
    found.close();
    assert_eq!(chats[1].data().status.as_deref(), Some("closed"));
    assert_eq!(chats[0].data().status, None);
    assert!(sandbox.find_chat("c-3").is_none());
    let latest: Vec<_> = sandbox
        .latest_chats(5)
        .iter()
        .map(SimulatedChat::id)
        .collect();
    assert_eq!(latest, [chats[1].id(), chats[0].id()]);
}

#[tokio::test(start_paused = true)]
async fn disabled_webhook_says_since_when_and_why() {
    let (sandbox, _) = platform(500);
    let status = |sandbox: &Sandbox| {
        let webhooks = sandbox.webhooks();
        let webhook = webhooks
            .into_iter()
            .find(|webhook| webhook.kind == EventKind::CHAT_ASSIGNED);
        webhook
            .map(|webhook| (webhook.disabled_at, webhook.last_failure))
            .unwrap()
    };
    let answered = Some(AttemptResult::Answered(StatusCode::INTERNAL_SERVER_ERROR));
    (0..500).for_each(|_| _ = sandbox.chat().assign());
    sandbox.idle().await;
    assert_eq!(status(&sandbox), (None, answered.clone()));

    sandbox.advance(Duration::from_secs(60));
    let at = sandbox.now();
    sandbox.chat().assign();
    sandbox.idle().await;
    sandbox.advance(Duration::from_secs(7_200));
    assert_eq!(status(&sandbox), (Some(at), answered));
    sandbox.enable(&EventKind::CHAT_ASSIGNED);
    assert_eq!(status(&sandbox), (None, None));
}

/// Delivers one event over HTTP to a receiver with this answer.
async fn answer(
    headers: [(&'static str, String); 1],
    body: impl Into<axum::body::Body>,
) -> AttemptResponse {
    let [(name, value)] = headers;
    let answer = (
        StatusCode::IM_A_TEAPOT,
        [(HeaderName::from_static(name), value)],
        body.into(),
    );
    let answer = Arc::new(Mutex::new(Some(answer)));
    let app = Router::new().fallback(move || {
        let answer = answer.lock().unwrap().take();
        async { answer.unwrap() }
    });
    let url = format!("http://{}/", serve(app).await);

    let sandbox = Sandbox::over_http(Settings::default());
    sandbox.configure_all(&Webhook::new(url));
    let event = sandbox.chat().assign();
    sandbox.idle().await;
    let attempts = sandbox.event(event).unwrap().attempts;
    assert_eq!(
        attempts[0].result,
        AttemptResult::Answered(StatusCode::IM_A_TEAPOT)
    );
    AttemptResponse::clone(attempts[0].response.as_ref().unwrap())
}

#[tokio::test]
async fn response_is_kept_with_headers_and_body() {
    let response = answer([("x-why", "no tea".into())], "short and stout").await;
    assert_eq!(response.status, StatusCode::IM_A_TEAPOT);
    assert_eq!(response.headers["x-why"], "no tea");
    assert_eq!(response.body, "short and stout");
    assert!(response.is_whole);
}

#[tokio::test]
async fn large_response_is_cut() {
    let response = answer([("x-large", "x".repeat(10_000))], "x".repeat(100_000)).await;
    assert!(response.headers.is_empty());
    assert_eq!(response.body, "x".repeat(4096));
    assert!(!response.is_whole);
}

#[tokio::test]
async fn body_that_never_ends_does_not_change_the_result() {
    let (sender, body) = http_body_util::channel::Channel::<bytes::Bytes, Infallible>::new(1);
    let response = answer([("x-why", "slow".into())], axum::body::Body::new(body)).await;
    assert!(!response.is_whole);
    drop(sender);
}

#[tokio::test]
async fn failed_request_is_explained_in_words() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = closed.local_addr().unwrap();
    drop(closed);
    let mute = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mute_at = mute.local_addr().unwrap();
    tokio::spawn(async move { while mute.accept().await.is_ok() {} });

    for (url, words) in [
        (format!("http://{address}/"), "connection refused"),
        (format!("http://{mute_at}/"), "connection"),
        (format!("https://{mute_at}/"), "tls handshake"),
        ("http://no-such-host.invalid/".to_owned(), "host not found"),
    ] {
        let sandbox = Sandbox::over_http(Settings::default());
        sandbox.configure_all(&Webhook::new(&url));
        sandbox.chat().open();
        sandbox.idle().await;
        let result = sandbox.latest_attempts(1)[0].result.to_string();
        assert!(result.starts_with(words), "{url}: {result}");
        assert!(!result.contains("os error"), "{url}: {result}");
    }
}

#[tokio::test]
async fn responses_of_the_latest_thousand_attempts_are_kept() {
    let url = format!(
        "http://{}/",
        serve(Router::new().fallback(|| async {})).await
    );
    let sandbox = Sandbox::over_http(Settings::default());
    sandbox.configure_all(&Webhook::new(url));
    for _ in 0..11 {
        (0..100).for_each(|_| _ = sandbox.chat().assign());
        sandbox.idle().await;
    }
    let report = sandbox.report();
    let kept = report
        .attempts()
        .iter()
        .filter(|attempt| attempt.response.is_some())
        .count();
    assert_eq!((report.attempts().len(), kept), (1_100, 1_000));
    assert!(
        sandbox
            .latest_attempts(2_000)
            .iter()
            .all(|attempt| attempt.response.is_some())
    );
}
