//! Observers, the failure budget, and the silence watch.

#![cfg(feature = "moka")]

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Full;
use http_body_util::channel::Channel;
use tokio::time::{advance, sleep};
use tower::{Layer, Service, ServiceExt};
use tower_webhook::event::{ChatRated, EventKind};
use tower_webhook::memory::MokaStore;
use tower_webhook::telemetry::{FailureBudget, Observation, Observer, Recent, Silence};
use tower_webhook::{EventRouter, EventType, RouteName, Sender, SenderPolicy, Verified, Webhooks};
use tracing::Level;

use support::Ready;
use support::delivery::{
    BODY, Crm, EVENT, HANDLER_ERROR, KEY, RequestExt, SIGNATURE, Step, delivery, secret, send,
};
use support::log::Log;
use support::observer::Notes;
use support::store::{Operation, TestStore};
use support::{DAY, HOUR, MINUTE, SECOND};

fn router(steps: impl IntoIterator<Item = Step>) -> EventRouter {
    EventRouter::new().on::<ChatRated>(Crm::new(steps))
}

#[tokio::test(start_paused = true)]
async fn each_delivery_and_its_attempt_are_observed() {
    let notes = Notes::default();
    let steps = [
        Step::SucceedAfter(SECOND),
        Step::Fail,
        Step::Hang,
        Step::Panic,
    ];
    let service = Webhooks::new(secret())
        .observer(notes.clone())
        .layer(router(steps).reject_unhandled());
    let keyed = |key| delivery(BODY).key(key);
    for (request, expected) in [
        (
            keyed("a"),
            vec![
                "attempt 1 handled inline 1000 ms, settled: -".to_owned(),
                "delivery handled 200 chat-rated a verified 1000 ms: -".into(),
            ],
        ),
        (
            keyed("a"),
            vec!["delivery replayed 200 chat-rated a verified 0 ms: -".into()],
        ),
        (
            keyed("b"),
            vec![
                format!("attempt 1 failed inline 0 ms, released: {HANDLER_ERROR}"),
                format!("delivery failed 500 chat-rated b verified 0 ms: {HANDLER_ERROR}"),
            ],
        ),
        (
            keyed("b"),
            vec![
                "attempt 2 handler-timeout inline 30000 ms, released: -".into(),
                "delivery handler-timeout 503 chat-rated b verified 30000 ms: -".into(),
            ],
        ),
        (
            keyed("c"),
            vec![
                "attempt 1 panicked inline 0 ms, released: as the handler".into(),
                "delivery panicked 500 chat-rated c verified 0 ms: as the handler".into(),
            ],
        ),
        (
            keyed("d").kind("chat-archived"),
            vec![
                "attempt 1 unhandled inline 0 ms, released: -".into(),
                "delivery unhandled 404 chat-archived d verified 0 ms: -".into(),
            ],
        ),
    ] {
        send(&service, request).await;
        let ends = notes.take_ends().into_iter();
        let ends = ends.map(|end| match end.split_once("the handler panicked: ") {
            Some((end, why)) => {
                assert!(
                    why.contains(HANDLER_ERROR) && why.contains("delivery.rs:"),
                    "{why}"
                );
                format!("{end}as the handler")
            }
            None => end,
        });
        assert_eq!(ends.collect::<Vec<_>>(), expected);
    }
}

/// What is reported is what became of the claim.
#[tokio::test(start_paused = true)]
async fn a_failure_that_a_layer_acknowledges_is_reported_as_settled() {
    let notes = Notes::default();
    let acknowledged = ServiceExt::<Request<Verified>>::map_response(
        router([Step::Fail]),
        |mut response: http::Response<_>| {
            *response.status_mut() = StatusCode::OK;
            response
        },
    );
    let webhooks = Webhooks::new(secret()).observer(notes.clone());
    let service = webhooks.layer(acknowledged);
    send(&service, delivery(BODY).key("a")).await;
    let ends = notes.take_ends();
    assert_eq!(
        ends[0],
        format!("attempt 1 failed inline 0 ms, settled: {HANDLER_ERROR}")
    );
    send(&service, delivery(BODY).key("a")).await;
    let ends = notes.take_ends();
    assert!(ends[0].starts_with("delivery replayed 200"), "{ends:?}");
}

#[tokio::test]
async fn refusals_are_observed_also_before_verification() {
    let notes = Notes::default();
    let service = Webhooks::new(secret())
        .require_key()
        .observer(notes.clone())
        .layer(router([]));
    let ok = || delivery(BODY).key("a");
    let get = Request::get("/").body(Full::<Bytes>::default()).unwrap();
    for (request, expected) in [
        (get, "method-not-allowed 405 - - unverified"),
        (
            ok().without(SIGNATURE),
            "invalid-signature 401 chat-rated - unverified",
        ),
        (
            ok().with(SIGNATURE, "0".repeat(64)),
            "invalid-signature 401 chat-rated - unverified",
        ),
        (
            ok().kind("forged").with(SIGNATURE, "0"),
            "invalid-signature 401 forged - unverified",
        ),
        (
            ok().with("content-length", "9000000"),
            "body-too-large 413 chat-rated - unverified",
        ),
        (
            ok().with("content-type", "text/plain"),
            "unsupported-media-type 415 chat-rated - verified",
        ),
        (ok().without(EVENT), "invalid-event-header 400 - - verified"),
        (
            ok().and(KEY, "b"),
            "conflicting-keys 400 chat-rated - verified",
        ),
        (ok().without(KEY), "missing-key 400 chat-rated - verified"),
    ] {
        send(&service, request).await;
        let seen = notes.take();
        assert_eq!(seen.len(), 1, "{seen:?}");
        assert!(
            seen[0].starts_with(&format!("delivery {expected} ")),
            "{seen:?}"
        );
        assert!(
            !seen[0].ends_with(": -"),
            "every refusal has a reason: {seen:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn bodies_that_do_not_arrive_are_observed() {
    let notes = Notes::default();
    let layer = || Webhooks::new(secret()).observer(notes.clone());
    let service = layer().layer(router([]));
    let (_waits, slow) = Channel::<Bytes, Infallible>::new(1);
    send(&service, delivery(BODY).map(|_| slow)).await;
    let (breaks, broken) = Channel::<Bytes, io::Error>::new(1);
    breaks.abort(io::ErrorKind::ConnectionReset.into());
    send(&service, delivery(BODY).map(|_| broken)).await;
    let full = layer().max_buffered(1).layer(router([]));
    send(&full, delivery(" ".repeat(100_000))).await;
    let unsigned = Webhooks::dangerously_unsigned().observer(notes.clone());
    let unsigned = unsigned.layer(router([]));
    send(&unsigned, delivery(BODY).without(SIGNATURE)).await;
    let seen = notes.take_ends();
    let starts = [
        "delivery body-timeout 408 chat-rated - unverified ",
        "delivery malformed-body 400 chat-rated - unverified ",
        "delivery overloaded 503 chat-rated - unverified ",
        "delivery handled 200 chat-rated - verified ",
    ];
    let deliveries = seen.iter().filter(|line| line.starts_with("delivery"));
    let deliveries: Vec<_> = deliveries.collect();
    assert_eq!(deliveries.len(), starts.len(), "{seen:?}");
    for (line, start) in deliveries.iter().zip(starts) {
        assert!(line.starts_with(start), "{line}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_gives_up_is_observed_and_its_attempt_too() {
    let notes = Notes::default();
    let layer = Webhooks::new(secret()).observer(notes.clone());
    let mut service = layer.layer(router([Step::SucceedAfter(SECOND)]));
    {
        let mut answer = pin!(service.call(delivery(BODY).key("a")));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(matches!(answer.as_mut().poll(&mut cx), Poll::Pending));
    }
    sleep(2 * SECOND).await;
    let mut seen = notes.take_ends();
    seen.sort();
    assert_eq!(
        seen,
        [
            "attempt 1 handled inline 1000 ms, settled: -",
            "delivery disconnected - chat-rated a verified 0 ms: -",
            "detached",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn calls_of_the_store_are_observed_with_their_errors() {
    let notes = Notes::default();
    let store = TestStore::<true>::default();
    let service = Webhooks::new(secret())
        .store(store.clone())
        .observer(notes.clone())
        .layer(router([
            Step::Succeed,
            Step::SucceedAfter(25 * SECOND),
            Step::Fail,
        ]));
    let calls = |notes: &Notes| {
        let mut calls = notes.take();
        calls.retain(|line| line.starts_with("call"));
        calls
    };
    send(&service, delivery(BODY).key("a")).await.assert_ok();
    assert_eq!(
        calls(&notes),
        ["call store claim: ok", "call store complete: ok"]
    );

    send(&service, delivery(BODY).key("b")).await.assert_ok();
    let renewed = calls(&notes);
    assert!(
        renewed.contains(&"call store renew: ok".to_owned()),
        "{renewed:?}"
    );

    store.fail([Operation::Release]);
    send(&service, delivery(BODY).key("c")).await;
    let released = calls(&notes);
    assert_eq!(released[0], "call store claim: ok");
    assert!(
        released[1].starts_with("call store release: "),
        "{released:?}"
    );
    assert!(!released[1].ends_with("ok"), "{released:?}");

    store.fail([Operation::Claim]);
    send(&service, delivery(BODY).key("d"))
        .await
        .assert_problem(503, "database-unavailable");
    let failed = calls(&notes);
    assert!(
        failed
            .iter()
            .any(|call| call.starts_with("call store claim: ") && !call.ends_with("ok")),
        "{failed:?}"
    );
}

#[tokio::test]
async fn an_observer_that_panics_disturbs_nothing() {
    struct Panics;
    impl Observer for Panics {
        fn observe(&self, _: &Observation<'_>) {
            panic!("observed");
        }
    }
    let log = Log::capture(Level::ERROR);
    let notes = Notes::default();
    let observers = (Panics, notes.clone());
    let service = Webhooks::new(secret())
        .observer(observers)
        .layer(router([]));
    send(&service, delivery(BODY).key("a")).await.assert_ok();
    send(&service, delivery(BODY).key("a"))
        .await
        .assert_replayed();
    let panics = log.count(Level::ERROR, "an observer panicked");
    // The one beside it is told of the same.
    assert!(panics >= 3 && notes.take().len() == panics, "{panics}");
}

/// A receiver whose handlers all fail, and its budget.
fn failing(
    budget: &FailureBudget,
) -> impl Service<
    Request<Full<Bytes>>,
    Response = http::Response<impl http_body::Body<Data = Bytes, Error: std::fmt::Debug>>,
    Error = std::convert::Infallible,
    Future: Send,
> + Clone {
    failing_at(budget, SenderPolicy::default())
}

/// The same, of a sender with this policy.
fn failing_at(
    budget: &FailureBudget,
    policy: SenderPolicy,
) -> impl Service<
    Request<Full<Bytes>>,
    Response = http::Response<impl http_body::Body<Data = Bytes, Error: std::fmt::Debug>>,
    Error = std::convert::Infallible,
    Future: Send,
> + Clone {
    let fails = std::iter::repeat_n(Step::Fail, 10_000);
    let sender = Sender::chat_platform().with_policy(policy);
    let webhooks = Webhooks::new(secret()).sender(sender);
    let layer = webhooks.observer(budget.clone()).into_signature_layer();
    layer.unwrap().layer(router(fails))
}

async fn fail<S, B>(service: &S, times: usize)
where
    S: Service<Request<Full<Bytes>>, Response = http::Response<B>, Error: std::fmt::Debug> + Clone,
    B: http_body::Body<Data = Bytes, Error: std::fmt::Debug>,
{
    for _ in 0..times {
        send(service, delivery(BODY)).await;
    }
}

const KIND: EventKind = EventKind::CHAT_RATED;

#[tokio::test(start_paused = true)]
async fn the_budget_is_logged_at_a_fifth_a_half_four_fifths_and_above_the_limit() {
    let budget = FailureBudget::default();
    let service = failing(&budget);
    let log = Log::capture(Level::WARN);
    let lines = || {
        let lines = |level, text| log.count(level, text);
        (
            lines(Level::WARN, "20 % of the failure budget"),
            lines(Level::ERROR, "50 % of the failure budget"),
            lines(Level::ERROR, "80 % of the failure budget"),
            lines(Level::ERROR, "the failure budget is exceeded"),
        )
    };
    for (until, expected) in [
        (99, (0, 0, 0, 0)),
        (100, (1, 0, 0, 0)),
        (249, (1, 0, 0, 0)),
        (250, (1, 1, 0, 0)),
        (399, (1, 1, 0, 0)),
        (400, (1, 1, 1, 0)),
        (500, (1, 1, 1, 0)),
        (501, (1, 1, 1, 1)),
        (600, (1, 1, 1, 1)),
    ] {
        let spent = budget.spent_by(KIND).failures as usize;
        fail(&service, until - spent).await;
        assert_eq!(budget.spent_by(KIND).failures as usize, until);
        assert_eq!(budget.spent_by(KIND).is_exceeded(), until > 500);
        assert_eq!(lines(), expected, "at {until}");
    }
    let events = log.events();
    let lines: Vec<_> = events
        .iter()
        .filter(|line| line.contains_key("reasons"))
        .collect();
    // Within the hour at this rate, and at once when the budget is exceeded.
    let hour = SystemTime::now() + Duration::from_secs(60 * 60);
    for (line, (level, failures)) in lines.iter().zip([
        ("WARN", 100),
        ("ERROR", 250),
        ("ERROR", 400),
        ("ERROR", 501),
    ]) {
        assert_eq!(line["level"], level);
        let names = ["route", "sender", "kind"].map(|name| line[name].as_str());
        assert_eq!(names, ["chat-platform", "chat-platform", "chat-rated"]);
        assert!(line["message"].starts_with("chat-rated: "), "{line:?}");
        assert_eq!(line["failures"], failures.to_string());
        assert_eq!(line["limit"], "500");
        assert_eq!(line["reasons"], format!("{failures} failed"));
        let disabled_at = httpdate::parse_http_date(&line["disabled_at"]).unwrap();
        assert!(disabled_at < hour, "{line:?}");
    }
    assert_eq!(lines.len(), 4);
    assert_eq!(
        budget.spent_by(KIND).to_string(),
        "chat-rated: 600 of 500 failures in the last hour (120 %)"
    );
    assert_eq!(budget.spent_by(EventKind::CHAT_CLOSED).failures, 0);
}

#[tokio::test(start_paused = true)]
async fn failures_count_for_an_hour() {
    let budget = FailureBudget::default();
    let service = failing(&budget);
    let log = Log::capture(Level::WARN);
    let warnings = || log.count(Level::WARN, "20 % of the failure budget");
    fail(&service, 90).await;
    advance(30 * MINUTE).await;
    fail(&service, 60).await;
    assert_eq!((budget.spent_by(KIND).failures, warnings()), (150, 1));
    advance(30 * MINUTE - SECOND).await;
    assert_eq!(budget.spent_by(KIND).failures, 150, "just within the hour");
    advance(11 * SECOND).await;
    assert_eq!(budget.spent_by(KIND).failures, 60);
    fail(&service, 60).await;
    assert_eq!(
        (budget.spent_by(KIND).failures, warnings()),
        (120, 2),
        "it had fallen below 75"
    );
    advance(2 * HOUR).await;
    assert_eq!(budget.spent_by(KIND).failures, 0);
    assert!(budget.spent().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_time_until_the_webhook_is_disabled_follows_from_the_rate() {
    let budget = FailureBudget::new();
    let service = failing_at(&budget, SenderPolicy::default().disable_after(60));
    assert_eq!(budget.spent_by(KIND).disabled_in, None);
    // One in ten seconds, as long as it takes.
    for _ in 0..31 {
        fail(&service, 1).await;
        advance(10 * SECOND).await;
    }
    let spent = budget.spent_by(KIND);
    let left = spent.disabled_in.unwrap();
    assert!(left > 250 * SECOND && left < 330 * SECOND, "{left:?}");

    // At a rate that stays below the limit, it never is.
    advance(2 * HOUR).await;
    for _ in 0..5 {
        fail(&service, 1).await;
        advance(80 * SECOND).await;
    }
    assert_eq!(budget.spent_by(KIND).disabled_in, None);
    fail(&service, 61).await;
    assert_eq!(budget.spent_by(KIND).disabled_in, Some(Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn the_forecast_ends_when_failures_have_stopped() {
    let budget = FailureBudget::new();
    let service = failing_at(&budget, SenderPolicy::default().disable_after(60));
    for _ in 0..31 {
        fail(&service, 1).await;
        advance(10 * SECOND).await;
    }
    let forecast = || budget.spent_by(KIND).disabled_in;
    let first = forecast().unwrap();
    // The rate falls while nothing fails, so the time does not stand still, nor does it run out.
    advance(40 * SECOND).await;
    let later = forecast().unwrap();
    assert!(later > first + 20 * SECOND, "{first:?}, {later:?}");
    advance(20 * SECOND).await;
    assert_eq!(forecast(), None);
    assert_eq!(budget.spent_by(KIND).failures, 31);
    fail(&service, 1).await;
    assert!(forecast().is_some());
}

#[tokio::test(start_paused = true)]
async fn without_a_rule_failures_are_only_counted() {
    let budget = FailureBudget::new();
    let service = failing_at(&budget, Sender::github().policy());
    let log = Log::capture(Level::WARN);
    fail(&service, 600).await;
    let spent = budget.spent_by(KIND);
    assert_eq!(
        spent.to_string(),
        "chat-rated: 600 failures in the last hour"
    );
    assert_eq!((spent.limit, spent.share()), (None, 0.0));
    assert_eq!((spent.is_exceeded(), spent.disabled_in), (false, None));
    let lines = log.events();
    assert!(lines.iter().all(|line| !line.contains_key("reasons")));
}

#[tokio::test(start_paused = true)]
async fn requests_without_proof_are_counted_apart() {
    let (budget, own) = (FailureBudget::default(), RouteName::default());
    let service = failing(&budget);
    let log = Log::capture(Level::WARN);
    for number in 0..120 {
        let forged = delivery(BODY).kind(&format!("forged-{number}"));
        send(&service, forged.with(SIGNATURE, "0".repeat(64))).await;
    }
    assert_eq!(budget.unverified(&own).failures, 120);
    assert_eq!(
        budget.unverified(&own).reasons,
        [("invalid-signature", 120)]
    );
    assert_eq!(budget.spent().len(), 1);
    assert_eq!(
        log.count(
            Level::WARN,
            "20 % of the failure budget is reached by requests"
        ),
        1
    );
    assert_eq!(
        budget.unverified(&own).to_string(),
        "unverified: 120 of 500 failures in the last hour (24 %)"
    );
    for (until, share) in [(250, "50 %"), (400, "80 %"), (501, "more than 100 %")] {
        for _ in budget.unverified(&own).failures..until {
            send(&service, delivery(BODY).with(SIGNATURE, "0".repeat(64))).await;
        }
        let text = format!("{share} of the failure budget is reached by requests");
        assert_eq!(log.count(Level::ERROR, &text), 1, "{share}");
    }
}

#[tokio::test(start_paused = true)]
async fn forged_kinds_of_one_authentic_body_are_bounded() {
    let budget = FailureBudget::default();
    let layer = Webhooks::new(secret())
        .observer(budget.clone())
        .into_signature_layer();
    let service = layer
        .unwrap()
        .layer(router([Step::Fail]).reject_unhandled());
    for number in 0..100 {
        send(&service, delivery(BODY).kind(&format!("forged-{number}"))).await;
    }
    send(&service, delivery(BODY)).await;
    let spent = budget.spent();
    assert_eq!(
        spent.len(),
        34,
        "32 others, `other`, and the platform's own"
    );
    let other = spent
        .iter()
        .find(|spent| spent.kind.as_ref().unwrap().as_str() == "other");
    assert_eq!(other.unwrap().failures, 68);
    assert_eq!(budget.spent_by(KIND).failures, 1);
}

fn listening(
    silence: &Silence,
) -> impl Service<
    Request<Full<Bytes>>,
    Response = http::Response<impl http_body::Body<Data = Bytes, Error: std::fmt::Debug>>,
    Error = std::convert::Infallible,
> + Clone {
    Webhooks::new(secret())
        .store(MokaStore::new())
        .observer(silence.clone())
        .layer(EventRouter::new())
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_expected_is_silent_when_it_does_not_come() {
    let silence = Silence::new().expect(KIND, 4 * HOUR);
    let service = listening(&silence);
    let log = Log::capture(Level::INFO);
    let watch = tokio::spawn(silence.clone().watch());
    let lines = || {
        (
            log.count(Level::ERROR, "no event of chat-rated was delivered"),
            log.count(Level::INFO, "are delivered again"),
        )
    };
    sleep(4 * HOUR).await;
    assert!(silence.silent().is_empty());
    sleep(2 * MINUTE).await;
    let silent = silence.silent();
    assert_eq!(silent[0].kind, KIND);
    assert!(silent[0].quiet_for >= 4 * HOUR && silent[0].expected_within == 4 * HOUR);
    assert_eq!(lines(), (1, 0));
    sleep(DAY).await;
    assert_eq!(lines(), (1, 0), "once");

    // A forged request is no sign of life.
    send(&service, delivery(BODY).with(SIGNATURE, "0".repeat(64))).await;
    assert_eq!(silence.silent().len(), 1);
    send(&service, delivery(BODY)).await;
    assert!(silence.silent().is_empty());
    sleep(2 * MINUTE).await;
    assert_eq!(lines(), (1, 1));
    sleep(5 * HOUR).await;
    assert_eq!(lines(), (2, 1));
    watch.abort();
}

#[tokio::test(start_paused = true)]
async fn the_rhythm_of_a_kind_is_learned_in_a_week() {
    let silence = Silence::new().learn();
    let service = listening(&silence);
    // By day only, every two hours.
    for _ in 0..8 {
        for _ in 0..6 {
            send(&service, delivery(BODY)).await;
            assert!(silence.silent().is_empty());
            advance(2 * HOUR).await;
        }
        advance(12 * HOUR).await;
        assert!(silence.silent().is_empty(), "a night is no silence");
    }
    send(&service, delivery(BODY)).await;
    advance(27 * HOUR).await;
    assert!(silence.silent().is_empty());
    advance(2 * HOUR).await;
    assert_eq!(silence.silent()[0].kind, KIND);
    assert_eq!(silence.silent()[0].expected_within, 28 * HOUR);
}

#[tokio::test(start_paused = true)]
async fn recent_problems_are_kept_once_each_and_bounded() {
    let recent = Recent::new();
    let steps = [Step::Fail, Step::Fail, Step::Discard, Step::Hang];
    let service = Webhooks::new(secret())
        .observer(recent.clone())
        .layer(router(steps).reject_unhandled());
    for key in ["a", "b", "c", "d", "e"] {
        send(&service, delivery(BODY).key(key)).await;
    }
    let problems = recent.problems();
    let seen: Vec<_> = problems
        .iter()
        .map(|it| (it.count, it.outcome, it.reason.as_str(), it.key.as_deref()))
        .collect();
    assert_eq!(
        seen,
        [
            (1, "handler-timeout", "", Some("d")),
            (1, "discarded", HANDLER_ERROR, Some("c")),
            (2, "failed", HANDLER_ERROR, Some("b")),
        ]
    );

    // Forged requests replace no others, and neither do forged kinds without end.
    for number in 0..500 {
        let kind = format!("forged-{number}");
        let forged = delivery(BODY).kind(&kind).with(SIGNATURE, "0".repeat(64));
        send(&service, forged).await;
        send(&service, delivery(BODY).kind(&kind)).await;
    }
    let problems = recent.problems();
    let count = |outcome| problems.iter().filter(|it| it.outcome == outcome).count();
    assert_eq!((count("invalid-signature"), count("unhandled")), (1, 33));
    assert_eq!((count("failed"), count("discarded")), (1, 1));
    assert!(
        problems
            .iter()
            .all(|it| it.kind.is_some() == (it.outcome != "invalid-signature"))
    );
}

#[tokio::test(start_paused = true)]
async fn events_are_counted_by_the_minute() {
    // The minutes are those of the time of day: a new one has just begun.
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let recent = Recent::new();
    advance(MINUTE - Duration::from_secs(now.as_secs() % 60)).await;
    let steps = [Step::Succeed, Step::Fail, Step::Succeed, Step::Succeed];
    let service = Webhooks::new(secret())
        .observer(recent.clone())
        .layer(router(steps));
    for (key, pause) in [
        ("a", SECOND),
        ("b", MINUTE),
        ("c", 30 * MINUTE),
        ("d", SECOND),
    ] {
        send(&service, delivery(BODY).key(key)).await;
        advance(pause).await;
    }
    let minutes = recent.minutes()[&KIND.into()];
    let seen = |ago: usize| {
        (
            minutes[59 - ago].handled,
            minutes[59 - ago].failed_deliveries,
        )
    };
    assert_eq!(
        [seen(31), seen(30), seen(0), seen(1)],
        [(1, 1), (1, 0), (1, 0), (0, 0)]
    );
    advance(29 * MINUTE).await;
    assert_eq!(recent.minutes()[&KIND.into()][59 - 29].handled, 1);
    advance(60 * MINUTE).await;
    assert!(
        recent.minutes()[&KIND.into()]
            .iter()
            .all(|minute| minute.handled == 0)
    );
}

#[tokio::test(start_paused = true)]
async fn a_threshold_is_not_logged_again_because_a_higher_one_was_left() {
    let budget = FailureBudget::default();
    let service = failing(&budget);
    let log = Log::capture(Level::ERROR);
    let lines = || {
        (
            log.count(Level::ERROR, "50 % of the failure budget"),
            log.count(Level::ERROR, "80 % of the failure budget"),
        )
    };
    fail(&service, 120).await;
    advance(30 * MINUTE).await;
    fail(&service, 280).await;
    assert_eq!(lines(), (1, 1));
    advance(31 * MINUTE).await;
    fail(&service, 10).await;
    assert_eq!((budget.spent_by(KIND).failures, lines()), (290, (1, 1)));
    fail(&service, 110).await;
    assert_eq!(lines(), (1, 2), "it had fallen below 300");
}

#[tokio::test(start_paused = true)]
async fn verified_deliveries_without_a_kind_are_no_unverified_requests() {
    let (budget, own) = (FailureBudget::default(), RouteName::default());
    let service = failing(&budget);
    for _ in 0..3 {
        send(&service, delivery(BODY).without(EVENT)).await;
    }
    assert_eq!(budget.unverified(&own).failures, 0);
    let spent = budget.spent();
    let seen: Vec<_> = spent
        .iter()
        .map(|it| (it.kind.as_ref().unwrap().as_str(), it.failures))
        .collect();
    assert_eq!(seen, [("unknown", 3)]);
}

#[tokio::test(start_paused = true)]
async fn two_deliveries_at_once_are_no_rhythm() {
    let silence = Silence::new().learn();
    let service = listening(&silence);
    for _ in 0..2 {
        send(&service, delivery(BODY)).await;
        advance(SECOND).await;
    }
    advance(30 * DAY).await;
    assert!(silence.silent().is_empty());
}

/// A receiver for GitHub whose handlers all fail.
fn github(
    observer: impl Observer,
    policy: SenderPolicy,
) -> impl Service<
    Request<Full<Bytes>>,
    Response = http::Response<impl http_body::Body<Data = Bytes, Error: std::fmt::Debug>>,
    Error = std::convert::Infallible,
    Future: Send,
> + Clone {
    let sender = Sender::github().with_policy(policy);
    let webhooks = Webhooks::dangerously_unsigned().sender(sender);
    let layer = webhooks.observer(observer).into_signature_layer().unwrap();
    layer.layer(router(std::iter::repeat_n(Step::Fail, 10_000)))
}

/// One of a name that the chat platform has, too.
fn from_github() -> Request<Full<Bytes>> {
    let delivery = delivery(BODY).with("x-github-event", "chat-rated");
    delivery.with("x-github-delivery", "1")
}

#[tokio::test]
async fn each_observation_names_its_route_and_sender() {
    #[derive(Default)]
    struct Names(std::sync::Mutex<Vec<String>>);

    impl Observer for Names {
        fn observe(&self, observation: &Observation<'_>) {
            let name = match observation {
                Observation::Delivery(it) => format!("{} {}", it.route, it.sender.name()),
                Observation::Attempt(it) => format!("attempt {}", it.route),
                _ => return,
            };
            self.0.lock().unwrap().push(name);
        }
    }

    let names = std::sync::Arc::new(Names::default());
    let own = Webhooks::new(secret())
        .observer(names.clone())
        .layer(router([]));
    send(&own, delivery(BODY).key("a")).await.assert_ok();
    let signed = Webhooks::new(secret()).sender(Sender::github());
    let other = signed
        .observer(names.clone())
        .into_signature_layer()
        .unwrap();
    let other = other.layer(router([]));
    // Without a signature, it is refused.
    assert_eq!(send(&other, from_github()).await.status, 401);
    let other = github(names.clone(), Sender::github().policy());
    send(&other, from_github()).await;
    assert_eq!(
        *names.0.lock().unwrap(),
        [
            "attempt chat-platform",
            "chat-platform chat-platform",
            "github github",
            "github github",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn each_route_has_a_budget_of_its_own() {
    let budget = FailureBudget::new();
    let own = failing(&budget);
    let other = github(budget.clone(), Sender::github().policy().disable_after(10));
    let log = Log::capture(Level::WARN);
    fail(&own, 99).await;
    // The kind has a limit at each route: 2 of 10 are logged, and 99 of 500 are not.
    let of: EventType = "github/chat-rated".parse().unwrap();
    for (failures, text) in [
        (2, "github/chat-rated: 20 % of the failure budget"),
        (5, "github/chat-rated: 50 % of the failure budget"),
        (11, "github/chat-rated: the failure budget is exceeded"),
    ] {
        while budget.spent_by(of.clone()).failures < failures {
            send(&other, from_github()).await;
        }
        let lines = log.events();
        let last = lines.iter().rfind(|line| line.contains_key("reasons"));
        let last = last.unwrap();
        assert!(last["message"].starts_with(text), "{last:?}");
        let names = ["route", "sender", "kind"].map(|name| last[name].as_str());
        assert_eq!(names, ["github", "github", "chat-rated"]);
    }
    assert_eq!(log.count(Level::WARN, "20 % of the failure budget"), 1);

    let unsigned = Webhooks::new(secret()).sender(Sender::github());
    let unsigned = unsigned
        .observer(budget.clone())
        .into_signature_layer()
        .unwrap();
    send(&unsigned.layer(router([])), from_github()).await;
    let spent: Vec<_> = budget.spent().iter().map(ToString::to_string).collect();
    assert_eq!(
        spent,
        [
            "chat-rated: 99 of 500 failures in the last hour (20 %)",
            "github/unverified: 1 of 10 failures in the last hour (10 %)",
            "github/chat-rated: 11 of 10 failures in the last hour (110 %)",
        ]
    );
    assert_eq!(budget.unverified(&of.route).failures, 1);
    assert_eq!(budget.unverified(&RouteName::default()).failures, 0);
    // Nobody has asked a route of this name, so it has no limit.
    let unseen = budget.spent_by("gitlab/push".parse::<EventType>().unwrap());
    assert_eq!((unseen.failures, unseen.limit), (0, None));
}

#[tokio::test(start_paused = true)]
async fn a_type_is_silent_although_its_kind_arrives_at_another_route() {
    let of: EventType = "github/chat-rated".parse().unwrap();
    let silence = Silence::new().expect(of.clone(), HOUR).expect(KIND, HOUR);
    let own = listening(&silence);
    let other = github(silence.clone(), Sender::github().policy());
    let log = Log::capture(Level::INFO);
    let watch = tokio::spawn(silence.clone().watch());
    let silent = || {
        let silent = silence.silent().into_iter();
        let types = silent.map(|it| EventType::new(it.route, it.kind).to_string());
        types.collect::<Vec<_>>()
    };
    sleep(HOUR + 2 * MINUTE).await;
    assert_eq!(silent(), ["chat-rated", "github/chat-rated"]);
    send(&own, delivery(BODY)).await;
    assert_eq!(silent(), ["github/chat-rated"]);
    send(&other, from_github()).await;
    assert!(silent().is_empty());
    sleep(2 * MINUTE).await;
    let lines = log.events();
    let line = |text: &str| lines.iter().find(|line| line["message"].starts_with(text));
    // Who sends is known from the first request on.
    let first = line("no event of github/chat-rated was delivered").unwrap();
    assert_eq!(
        (&*first["route"], &*first["kind"]),
        ("github", "chat-rated")
    );
    assert_eq!(first.get("sender"), None);
    let again = line("events of github/chat-rated are delivered again").unwrap();
    assert_eq!(again["sender"], "github");
    watch.abort();
}

/// One delivery fails at the chat platform's route, and two at GitHub's.
async fn fail_at_two_routes(observer: impl Observer + Clone) {
    let own = Webhooks::new(secret()).observer(observer.clone());
    let own = own.into_signature_layer().unwrap();
    send(&own.layer(router([Step::Fail])), delivery(BODY)).await;
    let other = github(observer, Sender::github().policy());
    for _ in 0..2 {
        send(&other, from_github()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn problems_and_minutes_are_kept_by_route() {
    let recent = Recent::new();
    fail_at_two_routes(recent.clone()).await;
    let problems = recent.problems().into_iter();
    let mut problems: Vec<_> = problems
        .map(|it| (it.route.to_string(), it.kind, it.count))
        .collect();
    problems.sort();
    assert_eq!(
        problems,
        [
            ("chat-platform".to_owned(), Some(KIND), 1),
            ("github".to_owned(), Some(KIND), 2),
        ]
    );
    let minutes = recent.minutes().into_iter();
    let failed = minutes.map(|(of, minutes)| {
        let failed = minutes.iter().map(|minute| minute.failed_deliveries);
        (of.to_string(), failed.sum())
    });
    assert_eq!(
        failed.collect::<Vec<(_, u32)>>(),
        [
            ("chat-rated".to_owned(), 1),
            ("github/chat-rated".to_owned(), 2)
        ]
    );
}

/// A kind of one name at two routes is two series of a metric.
#[cfg(feature = "metrics")]
#[tokio::test(start_paused = true)]
async fn metrics_are_recorded_by_route() {
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};
    use tower_webhook::telemetry::Metrics;

    let recorder = DebuggingRecorder::new();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let budget = FailureBudget::new();
    let observer = std::sync::Arc::new((Metrics::new(), budget.clone()));
    fail_at_two_routes(observer.clone()).await;
    let unsigned = Webhooks::new(secret()).sender(Sender::github());
    let unsigned = unsigned.observer(observer).into_signature_layer().unwrap();
    send(&unsigned.layer(router([])), from_github()).await;
    budget.record_metrics();

    let mut seen = Vec::new();
    for (key, _, _, value) in recorder.snapshotter().snapshot().into_vec() {
        let (_, key) = key.into_parts();
        let labels: Vec<_> = key.labels().map(metrics::Label::value).collect();
        let value = match value {
            DebugValue::Counter(count) => count as f64,
            DebugValue::Gauge(value) if value != 0.0 => value.into_inner(),
            _ => continue,
        };
        seen.push(format!("{} {}: {value}", key.name(), labels.join(" ")));
    }
    seen.sort();
    assert_eq!(
        seen,
        [
            "webhook_deliveries_total failed chat-platform chat-rated chat-platform: 1",
            "webhook_deliveries_total failed github chat-rated github: 2",
            "webhook_deliveries_total invalid-signature github unverified github: 1",
            "webhook_failure_budget_limit chat-platform: 500",
            "webhook_failure_budget_limit github: inf",
            "webhook_failure_budget_spent chat-platform chat-rated: 1",
            "webhook_failure_budget_spent github chat-rated: 2",
            "webhook_unverified_failures github: 1",
        ]
    );
}
