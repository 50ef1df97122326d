//! Receivers over HTTP.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::StatusCode;
use tower_webhook::Secret;
use tower_webhook_sandbox::{AttemptResult, EventState, Fault, Sandbox, Settings, Webhook};

use super::{HOUR, Recorder, signed};

use support::Ready;
use tokio::net::TcpListener;
use tower_webhook::event::ChatOpened;
use tower_webhook::{Delivery, EventRouter, Webhooks};

async fn serve(app: axum::Router) -> String {
    format!("http://{}/webhooks", support::net::serve(app).await)
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
    let webhooks = Webhooks::new(Secret::new("secret").unwrap()).layer(events);
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
