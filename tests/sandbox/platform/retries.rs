//! Retries, failures and disabled webhooks (Spec 6), test events, and time that is skipped.

use std::convert::Infallible;
use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use tokio::time::{Instant, sleep};
use tower_webhook::event::{EventKind, Timestamp, sample};
use tower_webhook::{Secret, Sender, SenderPolicy};
use tower_webhook_sandbox::{AttemptResult, Body, EventState, Rating, Sandbox, Settings, Webhook};

use super::{DAY, HOUR, MINUTE, Recorder, SECOND, is_disabled, sandbox, sandbox_with, signed};

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
    let mut policy = SenderPolicy::default();
    policy.retry_every = 2 * DAY;
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
