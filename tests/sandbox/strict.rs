//! Strict mode: the harder of what the spec leaves open.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use serde_json::Value;
use tokio::time::sleep;
use tower_webhook::Secret;
use tower_webhook::event::{ChatLifecycle, EventKind, Message};
use tower_webhook_sandbox::{AttemptResult, Body, EventState, Rating, Sandbox, Webhook};

/// A sandbox whose receiver answers with the status, which can be changed.
fn sandbox(status: u16) -> (Sandbox, Arc<Mutex<u16>>) {
    let status = Arc::new(Mutex::new(status));
    let current = status.clone();
    let receiver = tower::service_fn(move |_: Request<Body>| {
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::from_u16(*current.lock().unwrap()).unwrap();
        async { Ok::<_, Infallible>(response) }
    });
    let sandbox = Sandbox::in_process(receiver);
    let secret = Secret::new("secret").unwrap();
    sandbox.configure_all(&Webhook::new("/webhooks").signed(secret));
    (sandbox, status)
}

#[tokio::test(start_paused = true)]
async fn only_200_counts_as_delivered() {
    for status in [201, 202, 204, 299] {
        let (sandbox, current) = sandbox(status);
        let sandbox = sandbox.strict();
        sandbox.chat().assign();
        sandbox.idle().await;
        *current.lock().unwrap() = 200;

        let report = sandbox.finish().await;
        assert!(report.is_all_delivered());
        let [first, second] = &report.events[0].attempts[..] else {
            panic!("{report}")
        };
        let code = StatusCode::from_u16(status).unwrap();
        assert_eq!(first.result, AttemptResult::NotAccepted(code));
        assert!(!first.result.is_delivered());
        assert_eq!(second.result, AttemptResult::Answered(StatusCode::OK));
        assert!(
            report
                .to_string()
                .contains(&format!("{status} instead of 200;"))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn disabling_a_webhook_loses_its_waiting_events() {
    for is_strict in [false, true] {
        let (sandbox, status) = sandbox(500);
        let sandbox = match is_strict {
            true => sandbox.strict(),
            false => sandbox,
        };
        let other = sandbox.chat().assign();
        sandbox.idle().await;
        for _ in 0..501 {
            sandbox.chat().rate(Rating::Bad);
        }
        sandbox.idle().await;
        sleep(Duration::from_secs(3_600)).await;
        *status.lock().unwrap() = 200;
        sandbox.enable(&EventKind::CHAT_RATED);

        let report = sandbox.finish().await;
        let lost = if is_strict { 501 } else { 0 };
        assert_eq!(report.count(EventState::Lost), lost);
        assert_eq!(report.count(EventState::Delivered), 502 - lost);
        let other = sandbox.event(other).unwrap();
        assert_eq!(other.state, EventState::Delivered, "of another webhook");
        assert!(sandbox.webhooks().iter().all(|webhook| !webhook.disabled));
    }
}

#[tokio::test(start_paused = true)]
async fn failures_of_test_events_count() {
    let (sandbox, _) = sandbox(500);
    let sandbox = sandbox.strict();
    let kind = EventKind::CHAT_RATED;
    let status = |sandbox: &Sandbox| {
        let webhooks = sandbox.webhooks();
        let webhook = webhooks.into_iter().find(|webhook| webhook.kind == kind);
        webhook.map(|webhook| (webhook.recent_failures, webhook.disabled))
    };
    let waiting = sandbox.chat().rate(Rating::Good);
    for _ in 0..499 {
        sandbox.send_test(kind.clone());
    }
    sandbox.idle().await;
    assert_eq!(status(&sandbox), Some((500, false)));
    assert_eq!(sandbox.event(waiting).unwrap().state, EventState::Waiting);

    sandbox.send_test(kind.clone());
    sandbox.idle().await;
    assert_eq!(status(&sandbox), Some((501, true)));
    assert_eq!(sandbox.event(waiting).unwrap().state, EventState::Lost);
}

#[tokio::test(start_paused = true)]
async fn payloads_have_unknown_words_and_nulls() {
    let generate = async |is_strict| {
        let (sandbox, _) = sandbox(200);
        let sandbox = match is_strict {
            true => sandbox.strict(),
            false => sandbox,
        };
        let mut generator = sandbox.generator();
        for _ in 0..200 {
            generator.step();
        }
        sandbox.finish().await
    };
    let words = |report: &tower_webhook_sandbox::Report| {
        let (mut words, mut nulls) = (BTreeSet::new(), BTreeSet::new());
        for event in &report.events {
            let payload: Value = serde_json::from_slice(&event.body).unwrap();
            for (name, value) in payload.as_object().unwrap() {
                match name.as_str() {
                    "status" | "type" if value.is_string() => _ = words.insert(value.to_string()),
                    _ if value.is_null() => _ = nulls.insert(name.clone()),
                    _ => {}
                }
            }
        }
        (words, nulls)
    };
    let (known, no_nulls) = words(&generate(false).await);
    assert!(known.contains("\"closed\"") && no_nulls.is_empty());

    let report = generate(true).await;
    assert!(report.is_all_delivered());
    let (unknown, nulls) = words(&report);
    assert!(unknown.len() >= 4, "{unknown:?}");
    assert!(unknown.is_disjoint(&known), "{unknown:?}");
    for name in [
        "category",
        "referer",
        "customMeta",
        "closedAt",
        "expert",
        "attachment",
    ] {
        assert!(nulls.contains(name), "{name} of {nulls:?}");
    }
    // The crate's own types read them as omitted.
    for event in &report.events {
        match event.kind.as_str() {
            "message-created" => _ = serde_json::from_slice::<Message>(&event.body).unwrap(),
            _ => _ = serde_json::from_slice::<ChatLifecycle>(&event.body).unwrap(),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn contents_of_a_script_are_kept() {
    let (sandbox, _) = sandbox(200);
    let sandbox = sandbox.strict();
    let chat = sandbox.chat();
    let payload =
        |event| -> Value { serde_json::from_slice(&sandbox.event(event).unwrap().body).unwrap() };
    let message = Message::default()
        .kind("card".to_owned())
        .text("Hello".to_owned());
    let message = payload(chat.send(message));
    assert_eq!(
        (&message["type"], &message["text"]),
        (&"card".into(), &"Hello".into())
    );
    assert_eq!(
        payload(chat.emit(EventKind::CHAT_CLOSED, r#"{"status":"x"}"#))["status"],
        "x"
    );
    assert_eq!(payload(chat.rate(Rating::Fair))["rating"], 0.5);
}

#[cfg(feature = "admin")]
mod admin_api {
    use tokio::time::Instant;
    use tower_webhook_admin::{AccessToken, AdminClient, AdminErrorKind};
    use tower_webhook_sandbox::{ApiFault, Settings};

    use super::*;

    fn client(sandbox: &Sandbox) -> AdminClient {
        let token = AccessToken::new(sandbox.create_api_key("CRM")).unwrap();
        AdminClient::with_service("https://api.example", token, sandbox.graphql()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn every_fault_can_be_injected() {
        let (sandbox, _) = sandbox(200);
        let admin = client(&sandbox);
        for (fault, status) in [
            (ApiFault::TooManyRequests, 429),
            (ApiFault::Unavailable, 503),
            (ApiFault::ServerError, 500),
        ] {
            sandbox.inject_api(fault);
            let error = admin.chat_is_available().await.unwrap_err();
            let AdminErrorKind::Status { status: was, .. } = error.kind() else {
                panic!("{error:?}")
            };
            assert_eq!(was.as_u16(), status);
            assert!(error.is_retryable());
            let retry_after = (status != 500).then_some(Duration::from_secs(30));
            assert_eq!(error.retry_after(), retry_after);
            assert_eq!(error.graphql_errors().is_empty(), status == 500);
        }

        sandbox.inject_api(ApiFault::Slow);
        let began = Instant::now();
        assert!(admin.chat_is_available().await.unwrap());
        assert_eq!(began.elapsed(), Duration::from_secs(5));

        sandbox.inject_api(ApiFault::PartialErrors);
        let query = "{ partner { state { chat { isAvailable } } } }";
        let response = admin.execute(query).await.unwrap();
        let data = r#"{"partner":{"state":{"chat":{"isAvailable":null}}}}"#;
        assert_eq!(response.data.unwrap().to_string(), data);
        assert_eq!(
            response.errors[0].to_string(),
            "The availability is unknown. (at partner.state.chat.isAvailable)"
        );

        let mut answers = BTreeSet::new();
        for _ in 0..40 {
            sandbox.inject_api(ApiFault::Null);
            let response = admin.execute(query).await.unwrap();
            assert!(response.errors.is_empty());
            answers.insert(response.data.unwrap().to_string());
        }
        let answers: Vec<_> = answers.iter().map(String::as_str).collect();
        assert_eq!(
            answers,
            [
                r#"{"partner":null}"#,
                r#"{"partner":{"state":null}}"#,
                r#"{"partner":{"state":{"chat":null}}}"#,
                data,
            ]
        );
        assert!(admin.chat_is_available().await.unwrap(), "nothing is left");
    }

    #[tokio::test(start_paused = true)]
    async fn half_of_the_queries_have_faults_in_strict_mode() {
        let run = async |seed| {
            let settings = Settings {
                seed,
                ..Settings::default()
            };
            let sandbox = Sandbox::over_http(settings).strict();
            let admin = client(&sandbox);
            let mut results = Vec::new();
            for _ in 0..400 {
                let began = Instant::now();
                results.push(match admin.chat_is_available().await {
                    Ok(available) => format!("{available} {:?}", began.elapsed()),
                    Err(error) => error.to_string(),
                });
            }
            results
        };
        let results = run(1).await;
        let good = results
            .iter()
            .filter(|result| *result == "true 0ns")
            .count();
        assert!((150..250).contains(&good), "{good} of 400");
        let different: BTreeSet<_> = results.iter().collect();
        // Good, slow, three statuses, partial errors, and nulls, which do not decode.
        assert_eq!(different.len(), 7, "{different:?}");
        assert_eq!(results, run(1).await);
        assert_ne!(results, run(2).await);
    }

    #[tokio::test]
    async fn every_field_of_the_schema_is_nullable() {
        let (sandbox, _) = sandbox(200);
        let data: Value = client(&sandbox)
            .query("{ __schema { types { name fields { name type { kind } } } } }")
            .await
            .unwrap();
        let types = data["__schema"]["types"].as_array().unwrap();
        let own = |name: &str| !name.starts_with("__");
        let mut fields = 0;
        for object in types.iter().filter(|of| own(of["name"].as_str().unwrap())) {
            for field in object["fields"].as_array().into_iter().flatten() {
                assert_ne!(field["type"]["kind"], "NON_NULL", "{object}");
                fields += 1;
            }
        }
        assert_eq!(fields, 4);
    }
}
