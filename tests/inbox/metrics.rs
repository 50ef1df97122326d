//! The metrics that are recorded, compared with the table in the documentation.

use std::collections::{BTreeMap, BTreeSet};
use std::task::{Context, Waker};
use std::time::SystemTime;

use metrics_util::MetricKind;
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use tempfile::TempDir;
use tokio::time::sleep;
use tower::Service;
use tower_webhook::event::{ChatRated, EventKind};
use tower_webhook::memory::MemoryQueue;
use tower_webhook::memory::MokaStore;
use tower_webhook::spool::Spool;
use tower_webhook::telemetry::{FailureBudget, Metrics, Silence};
use tower_webhook::{Delivery, EventRouter, HandlerError, Webhooks};

use support::Ready;
use support::delivery::{RequestExt, SIGNATURE, delivery, secret, send};
use support::inbox::{Works, accepting, event, inbox};
use support::store::{Operation, TestStore};
use support::{DAY, MINUTE, SECOND};

/// A metric's type and the names of its labels.
type Shape = (String, BTreeSet<String>);

/// The metrics in the tables of the documentation.
fn documented() -> BTreeMap<String, Shape> {
    let page = include_str!("../../src/docs/metrics.md");
    let mut metrics = BTreeMap::new();
    for line in page.lines().filter(|line| line.starts_with("| `webhook_")) {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let labels = cells[3].split(", ").filter(|label| !label.is_empty());
        let labels = labels.map(|label| label.trim_matches('`').to_owned());
        let name = cells[1].trim_matches('`').to_owned();
        let before = metrics.insert(name, (cells[2].to_owned(), labels.collect()));
        assert_eq!(before, None, "twice: {line}");
    }
    metrics
}

struct Recorded {
    metrics: BTreeMap<String, Shape>,
    values: BTreeMap<String, f64>,
    described: BTreeSet<String>,
}

fn recorded(snapshotter: &Snapshotter) -> Recorded {
    let mut recorded = Recorded {
        metrics: BTreeMap::new(),
        values: BTreeMap::new(),
        described: BTreeSet::new(),
    };
    for (key, unit, description, value) in snapshotter.snapshot().into_vec() {
        let (kind, key) = key.into_parts();
        let kind = match kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        };
        let name = key.name().to_owned();
        let labels = key.labels().map(|label| label.key().to_owned()).collect();
        let shape = (kind.to_owned(), labels);
        let before = recorded.metrics.insert(name.clone(), shape.clone());
        assert!(
            before.is_none_or(|before| before == shape),
            "{name}: other labels"
        );
        if unit.is_some() && description.is_some() {
            recorded.described.insert(name.clone());
        }
        let labels = key
            .labels()
            .map(|label| format!("{}={}", label.key(), label.value()));
        let labels = labels.collect::<Vec<_>>().join(",");
        let value = match value {
            DebugValue::Counter(count) => count as f64,
            DebugValue::Gauge(value) => value.into_inner(),
            DebugValue::Histogram(values) => values.len() as f64,
        };
        recorded.values.insert(format!("{name}{{{labels}}}"), value);
    }
    recorded
}

#[tokio::test(start_paused = true)]
async fn recorded_metrics_are_those_of_the_table() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _guard = metrics::set_default_local_recorder(&recorder);

    let budget = FailureBudget::default();
    let silence = Silence::new().expect(EventKind::CHAT_CLOSED, DAY);
    let observer = std::sync::Arc::new((Metrics::new(), budget.clone(), silence.clone()));

    // An inbox: handled, failed, dead, and a lease that is lost.
    let inbox = inbox();
    let webhooks = Webhooks::new(secret()).observer(observer.clone());
    let webhooks = accepting(&inbox, webhooks);
    let events = EventRouter::new().on::<ChatRated>(async |delivery: Delivery<ChatRated>| {
        match delivery.payload.id.as_deref() {
            Some("fails") => Err(HandlerError::retry("down")),
            Some("dead") => Err(HandlerError::dead_letter("no such customer")),
            Some("slow") => {
                sleep(MINUTE / 3).await;
                Ok(())
            }
            _ => Ok(()),
        }
    });
    let worker = inbox.work(events.clone()).credit(1).spawn();
    for chat in ["fine", "slow", "dead", "fails"] {
        send(&webhooks, event(chat, 1)).await.assert_ok();
    }
    // A dead letter without an attempt.
    send(&webhooks, delivery("[]")).await.assert_ok();
    sleep(SECOND).await;
    inbox.forget("slow").await.unwrap();
    sleep(MINUTE).await;
    inbox.record_metrics().await.unwrap();

    // Inline: handled, a forged request, and a client that disconnects. The store forgets keys.
    let store = MokaStore::with_capacity(1);
    let (mut service, running) = Webhooks::new(secret())
        .store(store.clone())
        .observer(observer)
        .start(events)
        .unwrap();
    for number in 0..2_000 {
        send(&service, event("fine", number)).await.assert_ok();
    }
    for number in 0..200 {
        let forged = delivery("{}").kind(&format!("forged-{number}"));
        send(&service, forged.with(SIGNATURE, "0".repeat(64))).await;
    }
    let mut slow = Box::pin(service.call(event("slow", 1)));
    assert!(
        slow.as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_pending()
    );
    drop(slow);
    sleep(2 * DAY).await;

    let down = TestStore::<true>::default();
    down.fail([Operation::Claim]);
    let down = Webhooks::new(secret())
        .store(down)
        .observer(Metrics::new())
        .layer(EventRouter::new());
    send(&down, event("fine", 1))
        .await
        .assert_problem(503, "database-unavailable");
    running.record_metrics().await.unwrap();
    store.record_metrics();
    budget.record_metrics();
    silence.record_metrics();
    let dir = TempDir::new().unwrap();
    let spool = Spool::new(dir.path().join("spool.db")).limit(1 << 20);
    let spooled = spool.on_any_disk().open(MemoryQueue::new()).await.unwrap();
    spooled.record_metrics();
    drop(worker);

    let recorded = recorded(&snapshotter);
    assert_eq!(recorded.metrics, documented());
    let missing: Vec<_> = recorded
        .metrics
        .keys()
        .filter(|name| !recorded.described.contains(*name))
        .collect();
    assert!(
        missing.is_empty(),
        "without a description or unit: {missing:?}"
    );
    for (metric, expected) in [
        (
            "webhook_deliveries_total{outcome=handled,route=chat-platform,kind=chat-rated,sender=chat-platform}",
            2_000.0,
        ),
        (
            "webhook_deliveries_total{outcome=accepted,route=chat-platform,kind=chat-rated,sender=chat-platform}",
            5.0,
        ),
        (
            "webhook_deliveries_total{outcome=disconnected,route=chat-platform,kind=chat-rated,sender=chat-platform}",
            1.0,
        ),
        (
            "webhook_deliveries_total{outcome=invalid-signature,route=chat-platform,kind=unverified,sender=chat-platform}",
            200.0,
        ),
        (
            "webhook_call_errors_total{target=store,operation=claim}",
            1.0,
        ),
        (
            "webhook_dead_letters_total{route=chat-platform,kind=chat-rated}",
            2.0,
        ),
        (
            "webhook_leases_lost_total{route=chat-platform,kind=chat-rated}",
            1.0,
        ),
        ("webhook_detached_total{}", 1.0),
        (
            "webhook_inbox_slowed{route=chat-platform,kind=chat-rated}",
            1.0,
        ),
        (
            "webhook_inbox_retrying{route=chat-platform,kind=chat-rated}",
            1.0,
        ),
        (
            "webhook_inbox_dead_letters{route=chat-platform,kind=chat-rated}",
            2.0,
        ),
        (
            "webhook_inbox_dead_letters{route=chat-platform,kind=chat-closed}",
            0.0,
        ),
        ("webhook_silent{route=chat-platform,kind=chat-closed}", 1.0),
        ("webhook_silent{route=chat-platform,kind=chat-rated}", 0.0),
        (
            "webhook_expected_within_seconds{route=chat-platform,kind=chat-closed}",
            86_400.0,
        ),
        ("webhook_failure_budget_limit{route=chat-platform}", 500.0),
    ] {
        assert_eq!(recorded.values.get(metric), Some(&expected), "{metric}");
    }
    let oldest =
        recorded.values["webhook_inbox_oldest_seconds{route=chat-platform,kind=chat-rated}"];
    assert!(oldest >= 0.0, "{oldest}");
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
    let last = recorded.values["webhook_last_delivery_timestamp_seconds{route=chat-platform,kind=chat-rated}"];
    let age = now - last - (2 * DAY).as_secs_f64();
    assert!((0.0..3_600.0).contains(&age), "{age}");
    let evictions = recorded.values["webhook_evictions_total{}"];
    assert!(evictions > 0.0);
}

#[tokio::test(start_paused = true)]
async fn expectations_are_recorded_as_they_change() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _guard = metrics::set_default_local_recorder(&recorder);

    const ORDERED: EventKind = EventKind::from_static("order-placed");
    let silence = Silence::new().expect(ORDERED, 4 * MINUTE).learn();
    let (service, _) = Webhooks::new(secret())
        .observer(silence.clone())
        .start(EventRouter::new())
        .unwrap();
    let expected = || {
        silence.record_metrics();
        let values = recorded(&snapshotter).values;
        let expected = values.into_iter().filter_map(|(name, value)| {
            let kind =
                name.strip_prefix("webhook_expected_within_seconds{route=chat-platform,kind=")?;
            Some((kind.strip_suffix("}")?.to_owned(), value))
        });
        expected.collect::<BTreeMap<_, _>>()
    };
    let of = |kinds: &[(&str, f64)]| {
        let kinds = kinds.iter();
        kinds
            .map(|(kind, within)| ((*kind).to_owned(), *within))
            .collect::<BTreeMap<_, _>>()
    };
    assert_eq!(expected(), of(&[("order-placed", 240.0)]));

    // Chats are closed every hour for a week. Forged kinds do not displace one that is expected.
    for number in 0..=168 {
        let chat = delivery(format!(r#"{{"id":"chat-{number}"}}"#)).kind("chat-closed");
        send(&service, chat).await;
        send(&service, delivery("{}").kind(&format!("forged-{number}"))).await;
        sleep(60 * MINUTE).await;
    }
    assert_eq!(silence.silent()[0].kind, ORDERED);
    send(&service, delivery("{}").kind("order-placed")).await;
    assert!(silence.silent().is_empty());
    assert_eq!(
        expected(),
        of(&[("chat-closed", 7_200.0), ("order-placed", 240.0)])
    );
}

#[tokio::test(start_paused = true)]
async fn gauges_return_to_zero_and_kinds_are_bounded() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _guard = metrics::set_default_local_recorder(&recorder);

    let inbox = inbox();
    let webhooks = accepting(&inbox, Webhooks::new(secret()).observer(Metrics::new()));
    for number in 0..100 {
        let forged = delivery("{}").kind(&format!("forged-{number}"));
        send(&webhooks, forged).await.assert_ok();
    }
    inbox.record_metrics().await.unwrap();
    let before = recorded(&snapshotter).values;
    let waiting = |values: &BTreeMap<String, f64>| {
        let waiting = values
            .iter()
            .filter(|(name, _)| name.starts_with("webhook_inbox_waiting"));
        (
            waiting.clone().count(),
            waiting.map(|(_, value)| value).sum::<f64>(),
        )
    };
    assert_eq!(waiting(&before), (40, 100.0));
    let kinds = before
        .keys()
        .filter(|name| name.starts_with("webhook_deliveries_total"));
    assert_eq!(kinds.count(), 33, "32 kinds and `other`");

    let worker = inbox.work(EventRouter::new()).spawn();
    inbox.finish().await.unwrap();
    inbox.record_metrics().await.unwrap();
    assert_eq!(waiting(&recorded(&snapshotter).values), (40, 0.0));
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_is_away_is_recorded() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _guard = metrics::set_default_local_recorder(&recorder);

    let inbox = inbox();
    let start = |kind: &str| {
        let router = EventRouter::new().on_named(kind, async |_: serde_json::Value, _| Ok(()));
        inbox.work(router).spawn()
    };
    let (own, other) = (start("chat-rated"), start("chat-closed"));
    sleep(SECOND).await;
    other.drain(SECOND).await.unwrap();
    let webhooks = accepting(&inbox, Webhooks::new(secret()));
    send(&webhooks, delivery("{}").kind("chat-closed"))
        .await
        .assert_ok();
    let is_away = async || {
        inbox.record_metrics().await.unwrap();
        let values = recorded(&snapshotter).values;
        values["webhook_inbox_handler_away{route=chat-platform,kind=chat-closed}"] > 0.0
    };
    sleep(9 * MINUTE).await;
    assert!(!is_away().await);
    sleep(2 * MINUTE).await;
    assert!(is_away().await);
    let other = start("chat-closed");
    sleep(11 * MINUTE).await;
    assert!(!is_away().await);
    own.drain(SECOND).await.unwrap();
    other.drain(SECOND).await.unwrap();
}
