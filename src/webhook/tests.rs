use std::collections::HashMap;
use std::time::Duration;

use super::Webhooks;
use crate::config::ConfigError;
use crate::event::{EventKind, SenderPolicy};
use crate::idempotency::IdempotencyLayer;
use crate::inbox::Inbox;
use crate::memory::{MemoryQueue, MokaStore};
use crate::route::RouteName;
use crate::router::EventRouter;
use crate::sender::Sender;
use crate::signature::Secret;
use crate::telemetry::FailureBudget;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const MINUTE: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

fn new() -> Webhooks {
    Webhooks::new(Secret::new("secret").unwrap())
}

fn with_store() -> Webhooks<IdempotencyLayer<MokaStore>> {
    new().store(MokaStore::new())
}

fn with_inbox() -> Webhooks<Inbox> {
    new().inbox(MemoryQueue::new())
}

fn inbox() -> Inbox {
    Inbox::new(MemoryQueue::new())
}

/// Starts a receiver with any target.
trait Start {
    fn started(self) -> Result<(), ConfigError>;
}

macro_rules! start {
    ($($target:ty)*) => {$(
        impl Start for Webhooks<$target> {
            fn started(self) -> Result<(), ConfigError> {
                self.start(EventRouter::new()).map(drop)
            }
        }
    )*};
}

start! { () IdempotencyLayer<MokaStore> Inbox }

fn refusal(webhooks: impl Start) -> String {
    webhooks.started().unwrap_err().to_string()
}

#[tokio::test]
async fn invalid_value_is_refused_at_the_start_with_a_store_and_with_an_inbox() {
    type Change = fn(Webhooks) -> Webhooks;
    let cases: [(Change, &str); 6] = [
        (
            |it| it.retention(7 * DAY),
            "a retention of 604800s is too short: the sender retries for 604800s, and an event \
             whose key is forgotten is handled again; choose a longer retention",
        ),
        (
            |it| it.lease(10 * MINUTE),
            "a lease of 600s is too long: the sender retries every 600s, and the first retry after \
             a crash would find the key claimed; choose a shorter lease",
        ),
        (
            |it| it.lease(Duration::from_millis(99)),
            "a lease of 99ms is too short to be renewed in time: choose at least 100 ms",
        ),
        (
            |it| it.store_timeout(Duration::ZERO),
            "`store_timeout` must be more than zero",
        ),
        (
            |it| it.handler_timeout(Duration::ZERO),
            "`handler_timeout` must be more than zero",
        ),
        (
            |it| {
                it.sender(Sender::default().with_policy(SenderPolicy {
                    retry_for: Duration::MAX,
                    ..SenderPolicy::default()
                }))
            },
            "a retention of 18446744073709551615.999999999s is too short: the sender retries for \
             18446744073709551615.999999999s, and an event whose key is forgotten is handled again; \
             choose a longer retention",
        ),
    ];
    for (change, text) in cases {
        assert_eq!(refusal(change(new())), text);
        assert_eq!(refusal(change(new()).store(MokaStore::new())), text);
        assert_eq!(refusal(change(new()).inbox(MemoryQueue::new())), text);
    }
    assert_eq!(
        refusal(with_store().in_flight_wait(MINUTE)),
        "duplicates cannot wait 60s for a run whose lease is 60s: choose a shorter wait, or \
         a longer lease"
    );
}

#[tokio::test]
async fn order_of_setters_does_not_matter_and_the_last_call_counts() {
    let hasty = Sender::default().with_policy(SenderPolicy {
        retry_every: Duration::from_secs(50),
        ..SenderPolicy::default()
    });
    for webhooks in [
        with_store().in_flight_wait(2 * MINUTE).lease(3 * MINUTE),
        with_store().lease(3 * MINUTE).in_flight_wait(2 * MINUTE),
        with_store().sender(hasty.clone()).in_flight_wait(SECOND),
        with_store().in_flight_wait(SECOND).sender(hasty),
        with_store().retention(DAY).retention(14 * DAY),
    ] {
        webhooks.started().unwrap();
    }
    for webhooks in [
        with_inbox()
            .handler_timeout(Duration::ZERO)
            .handler_timeout(SECOND),
        new().lease(SECOND).inbox(MemoryQueue::new()),
    ] {
        webhooks.started().unwrap();
    }
    assert!(
        with_store()
            .retention(14 * DAY)
            .retention(DAY)
            .started()
            .is_err()
    );

    // The joined limits hold what was called last, wherever it was called.
    let (layer, _) = with_store()
        .handler_timeout(MINUTE)
        .handler_timeout(SECOND)
        .into_layer()
        .unwrap();
    assert!(
        format!("{layer:?}").contains("handler_timeout: 1s"),
        "{layer:?}"
    );
}

fn is_refused(webhooks: impl Start, as_is: fn(&ConfigError) -> bool) -> bool {
    webhooks.started().is_err_and(|error| as_is(&error))
}

#[tokio::test]
async fn limits_are_compared_to_the_nanosecond() {
    const NANO: Duration = Duration::from_nanos(1);

    let retention = |error: &_| matches!(error, ConfigError::RetentionTooShort { .. });
    for kept in [7 * DAY + NANO, Duration::MAX] {
        new().retention(kept).started().unwrap();
    }
    for short in [7 * DAY, DAY, Duration::ZERO] {
        assert!(is_refused(new().retention(short), retention));
    }

    new().lease(10 * MINUTE - NANO).started().unwrap();
    for long in [10 * MINUTE, Duration::MAX] {
        let too_long = |error: &_| matches!(error, ConfigError::LeaseTooLong { .. });
        assert!(is_refused(new().lease(long), too_long));
    }
    let wait_none = || with_store().in_flight_wait(Duration::ZERO);
    for short in [Duration::ZERO, NANO, Duration::from_millis(100) - NANO] {
        let too_short = |error: &_| matches!(error, ConfigError::LeaseTooShort { .. });
        assert!(is_refused(wait_none().lease(short), too_short));
    }
    wait_none()
        .lease(Duration::from_millis(100))
        .started()
        .unwrap();

    with_store()
        .in_flight_wait(MINUTE - NANO)
        .started()
        .unwrap();
    new()
        .lease(Duration::from_secs(5) + NANO)
        .started()
        .unwrap();
    let wait = |error: &_| matches!(error, ConfigError::WaitTooLong { .. });
    let both = with_store().lease(3 * MINUTE).in_flight_wait(3 * MINUTE);
    for long in [
        with_store().in_flight_wait(MINUTE),
        with_store().lease(5 * SECOND).in_flight_wait(5 * SECOND),
        both,
    ] {
        assert!(is_refused(long, wait));
    }
    new().store_timeout(NANO).started().unwrap();
    new().handler_timeout(Duration::MAX).started().unwrap();
}

#[test]
fn a_route_keeps_what_its_own_router_handles() {
    let (pushed, rated) = (EventKind::from_static("push"), EventKind::CHAT_RATED);
    let handles = |kind: &EventKind| {
        let handler = async |(): (), _| Ok(());
        EventRouter::new().on_named(kind.as_str(), handler)
    };
    let events = handles(&rated).at("github".parse().unwrap(), handles(&pushed));
    let keeps = |webhooks: Webhooks, kind: &EventKind| {
        let layer = webhooks.keep_handled(&events).into_signature_layer();
        let kept = layer.unwrap().config.kept;
        kept.unwrap().contains(kind)
    };
    let github = || new().sender(Sender::github());
    assert!(keeps(github(), &pushed) && !keeps(github(), &rated));
    assert!(keeps(new(), &rated) && !keeps(new(), &pushed));
}

#[test]
fn routes_made_of_clones_have_limits_of_their_own() {
    let base = new();
    let layers = ["one", "two"].map(|name| {
        let route = base.clone().name(name.parse().unwrap());
        route.into_signature_layer().unwrap().config
    });
    let [one, two] = &layers;
    assert!(!one.bounds.budget.is_of(&two.bounds.budget));
    assert!(one.bounds.budget.is_of(&one.clone().bounds.budget));
}

/// Transactional handlers follow them.
#[test]
fn verification_alone_checks_the_limits() {
    let refused = |webhooks: Webhooks| webhooks.into_signature_layer().unwrap_err();
    let error = refused(new().retention(7 * DAY));
    assert!(matches!(error, ConfigError::RetentionTooShort { .. }));
    for error in [
        refused(new().store_timeout(Duration::ZERO)),
        refused(new().handler_timeout(Duration::ZERO)),
    ] {
        assert!(matches!(error, ConfigError::Zero(_)));
    }
    assert_eq!(
        refused(new().reject_changed_bodies()).to_string(),
        "`reject_changed_bodies` needs a store or an inbox: a verification alone remembers no keys"
    );
    // It needs no lease, so that the wait has no limit.
    let patient = new().in_flight_wait(Duration::MAX);
    let _ = patient.into_signature_layer().unwrap();
}

#[tokio::test]
async fn another_sender_brings_limits_of_its_own() {
    let policy = SenderPolicy {
        retry_every: MINUTE,
        retry_for: 30 * DAY,
        ..SenderPolicy::default()
    };
    let with = |policy| with_store().sender(Sender::default().with_policy(policy));
    with(policy).started().unwrap();
    let retention = |error: &_| matches!(error, ConfigError::RetentionTooShort { .. });
    assert!(is_refused(with(policy).retention(30 * DAY), retention));
    let lease = |error: &_| matches!(error, ConfigError::LeaseTooLong { .. });
    assert!(is_refused(with(policy).lease(MINUTE), lease));
    // However slow the sender is, a lease can be added to any time.
    let slow = SenderPolicy {
        retry_every: Duration::MAX,
        ..SenderPolicy::default()
    };
    assert!(is_refused(with(slow), lease));

    // Its leases of 5 seconds do not leave room for a wait of 5 seconds.
    let hasty = SenderPolicy {
        retry_every: Duration::from_secs(50),
        ..policy
    };
    let wait = |error: &_| matches!(error, ConfigError::WaitTooLong { .. });
    assert!(is_refused(with(hasty).in_flight_wait(5 * SECOND), wait));
    with(hasty).in_flight_wait(4 * SECOND).started().unwrap();
    // Defaults follow from the policy.
    for retry_every in [SECOND, 30 * SECOND] {
        let hasty = Sender::default().with_policy(SenderPolicy {
            retry_every,
            ..policy
        });
        with_store().sender(hasty.clone()).started().unwrap();
        with_inbox().sender(hasty).started().unwrap();
    }
    let never = SenderPolicy {
        retry_for: Duration::MAX,
        ..policy
    };
    assert!(is_refused(with(never), retention));
}

#[tokio::test]
async fn routes_of_one_inbox_have_names_of_their_own() {
    let github = || new().sender(Sender::github());
    let mut routes = inbox().routes();
    let secretless = Webhooks::without_secrets().sender(Sender::github());
    assert!(routes.accept(secretless).is_err(), "its name stays free");
    routes.accept(github()).unwrap();
    routes
        .accept(github().name("europe".parse().unwrap()))
        .unwrap();
    routes
        .handle(Webhooks::without_secrets(), EventRouter::new())
        .unwrap();
    let twice = routes.accept(
        new()
            .sender(Sender::stripe())
            .name("github".parse().unwrap()),
    );
    assert_eq!(
        twice.map(drop).unwrap_err().to_string(),
        "two routes of this inbox are named `github`, of the senders `github` and `stripe`: give one of them another name \
         with `Webhooks::name`"
    );
    let mut digests = HashMap::new();
    let pair = (0..).find_map(|n| {
        let name: RouteName = format!("route-{n}").parse().unwrap();
        let other = digests.insert(name.lanes(), name.clone());
        other.map(|other| [other, name])
    });
    let [one, other] = pair.unwrap();
    routes.accept(github().name(one.clone())).unwrap();
    let shared = routes.accept(github().name(other.clone())).map(drop);
    let expected = format!(
        "the names of the routes `{one}` and `{other}` have the same digest, so that their chats could block"
    );
    let shared = shared.unwrap_err().to_string();
    assert!(shared.starts_with(&expected), "{shared}");
    let running = routes.start().unwrap();
    running.drain(SECOND).await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_started_says_why() {
    let text = |error: ConfigError| error.to_string();
    let none = inbox().routes().start().map(drop);
    assert_eq!(
        text(none.unwrap_err()),
        "there is no route: add one before `start`"
    );

    let unsigned = Webhooks::without_secrets().inbox(inbox());
    assert!(matches!(unsigned.started(), Err(ConfigError::NoSecrets)));

    let mut routes = inbox()
        .worker(|worker| worker.only([EventKind::CHAT_RATED]))
        .routes();
    routes
        .add(new().sender(Sender::github()), EventRouter::new())
        .unwrap();
    assert_eq!(
        text(routes.start().map(drop).unwrap_err()),
        "`only` names the event type `chat-rated` of the route `chat-platform`, and the worker handles [github]: write the \
         type as `route/type`, such as `github/push`"
    );

    let inbox = inbox();
    let mut routes = inbox.routes();
    routes.accept(new()).unwrap();
    for mut routes in [routes, inbox.routes()] {
        let late = new()
            .sender(Sender::github())
            .observer(FailureBudget::default());
        assert_eq!(
            text(routes.accept(late).map(drop).unwrap_err()),
            "`observer` concerns all routes of an inbox, and was set with the route `github`, after another route was added \
             or the inbox had one: set it once, with the first route"
        );
    }
}
