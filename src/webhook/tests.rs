use std::time::Duration;

use super::Webhooks;
use crate::config::ConfigError;
use crate::event::SenderPolicy;
use crate::idempotency::IdempotencyLayer;
use crate::inbox::{Inbox, Worker};
use crate::memory::{MemoryQueue, MokaStore};
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

fn with_inbox() -> Webhooks<Worker> {
    new().inbox(MemoryQueue::new())
}

fn idempotency() -> IdempotencyLayer<MokaStore> {
    IdempotencyLayer::new(MokaStore::new())
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

start! { () IdempotencyLayer<MokaStore> Worker }

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
        "duplicates cannot wait 60s for a run whose lease is 60s: choose a shorter wait, or set \
         a longer lease first"
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
        with_store().in_flight_wait(MINUTE).store(MokaStore::new()),
    ] {
        webhooks.started().unwrap();
    }
    for webhooks in [
        with_inbox()
            .handler_timeout(Duration::ZERO)
            .handler_timeout(SECOND),
        with_store()
            .in_flight_wait(MINUTE)
            .inbox(MemoryQueue::new()),
        new()
            .lease(SECOND)
            .inbox(MemoryQueue::new())
            .worker(|it| it.concurrency(1)),
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

#[tokio::test]
async fn value_here_and_another_on_a_piece_are_refused_with_both() {
    let both = |setting: &str, here: &str, there: &str, piece: &str| {
        format!(
            "`{setting}` is {here} on `Webhooks` and {there} on `{piece}`: set it on one of them"
        )
    };

    let piece = || idempotency().retention(10 * DAY).unwrap();
    assert_eq!(
        refusal(new().idempotency(piece()).retention(14 * DAY)),
        both("retention", "1209600s", "864000s", "IdempotencyLayer")
    );
    assert_eq!(
        refusal(new().namespace("").inbox(inbox().namespace("crm"))),
        both("namespace", r#""""#, r#""crm""#, "Inbox")
    );
    let piece = inbox().store_timeout(SECOND).unwrap();
    assert_eq!(
        refusal(new().inbox(piece).store_timeout(MINUTE)),
        both("store_timeout", "60s", "1s", "Inbox")
    );
    let worker = || with_inbox().worker(|it| it.lease(SECOND).unwrap());
    assert_eq!(
        refusal(worker().lease(MINUTE)),
        both("lease", "60s", "1s", "Worker")
    );
    let worker = || with_inbox().worker(|it| it.handler_timeout(SECOND).unwrap());
    assert_eq!(
        refusal(worker().handler_timeout(MINUTE)),
        both("handler_timeout", "60s", "1s", "Worker")
    );
    let policy = SenderPolicy {
        disable_after: Some(1),
        ..SenderPolicy::default()
    };
    let piece = inbox().sender_policy(policy).unwrap();
    let refused = new().inbox(piece).sender(Sender::default()).started();
    assert!(matches!(
        refused,
        Err(ConfigError::SetTwice {
            setting: "sender_policy",
            piece: "Inbox",
            values: Some(_)
        })
    ));

    // An observer cannot be compared.
    let budget = FailureBudget::default();
    let text =
        |piece| format!("`observer` is set on `Webhooks` and on `{piece}`: set it on one of them");
    assert_eq!(
        refusal(
            new()
                .observer(budget.clone())
                .inbox(inbox().observer(budget.clone()))
        ),
        text("Inbox")
    );
    assert_eq!(
        refusal(
            new()
                .idempotency(idempotency().observer(budget.clone()))
                .observer(budget)
        ),
        text("IdempotencyLayer")
    );
}

#[tokio::test]
async fn equal_values_and_values_that_only_a_piece_has_are_kept() {
    new()
        .retention(10 * DAY)
        .idempotency(idempotency().retention(10 * DAY).unwrap())
        .started()
        .unwrap();
    // The defaults of a piece are nobody's values.
    let worker = with_inbox().worker(|it| it.handler_timeout(SECOND).unwrap());
    worker.lease(MINUTE).namespace("crm").started().unwrap();

    let piece = idempotency().handler_timeout(SECOND).unwrap();
    let (layer, _) = new()
        .idempotency(piece)
        .lease(20 * SECOND)
        .into_layer()
        .unwrap();
    let shown = format!("{layer:?}");
    assert!(shown.contains("handler_timeout: 1s"), "{shown}");
    assert!(shown.contains("lease: Some(20s)"), "{shown}");

    // What follows from both is checked, too.
    let piece = idempotency().in_flight_wait(30 * SECOND).unwrap();
    let refused = new().idempotency(piece).lease(20 * SECOND).started();
    assert!(matches!(refused, Err(ConfigError::WaitTooLong { .. })));
}
