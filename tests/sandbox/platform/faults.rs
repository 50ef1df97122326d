//! Each fault that the sandbox injects.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http::{Request, Response, StatusCode};
use tokio::time::Instant;
use tower_webhook::event::ChatLifecycle;
use tower_webhook_sandbox::{AttemptResult, Body, Fault, Faults, Sandbox, Settings, Webhook};

use super::{DAY, MINUTE, Recorder, SECOND, Seen, sandbox, sandbox_with, signed};

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
