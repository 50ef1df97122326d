//! The second layer: the claim.

use std::time::Duration;

use tokio::time::Instant;
use tower_webhook::Webhooks;
use tower_webhook::memory::MokaStore;
use tower_webhook::store::KeyState;

use support::Ready;
use support::delivery::{BODY, Crm, RequestExt, SIGNATURE, Step, delivery, send};
use support::store::{Operation, StoreExt, TestStore};

use super::{SECOND, layer, router};

#[tokio::test(start_paused = true)]
async fn unavailable_store_returns_503_and_nothing_runs() {
    let (store, crm) = (TestStore::<false>::default(), Crm::default());
    let service = layer(&store).layer(router(&crm));

    store.fail([Operation::Claim]);
    let answered = send(&service, delivery(BODY).key("a")).await;
    answered.assert_problem(503, "database-unavailable");
    assert_eq!(answered.header("retry-after"), Some("600"));
    assert_eq!(crm.runs(), 0);
    // It is not asked where there is no key.
    send(&service, delivery(BODY)).await.assert_ok();

    store.fail([]);
    send(&service, delivery(BODY).key("a")).await.assert_ok();
    assert_eq!(crm.attempts(), [None, Some(1)]);
}

#[tokio::test]
async fn events_can_be_handled_without_an_unavailable_store() {
    let (store, crm) = (TestStore::<false>::default(), Crm::default());
    let service = layer(&store)
        .dangerously_handle_without_store()
        .layer(router(&crm));

    store.fail([Operation::Claim]);
    for _ in 0..2 {
        send(&service, delivery(BODY).key("a")).await.assert_ok();
    }
    store.fail([]);
    send(&service, delivery(BODY).key("a")).await.assert_ok();
    send(&service, delivery(BODY).key("a"))
        .await
        .assert_replayed();
    assert_eq!(crm.attempts(), [None, None, Some(1)]);
}

#[tokio::test(start_paused = true)]
async fn duplicate_waits_for_the_run_in_flight() {
    let crm = Crm::new([Step::SucceedAfter(3 * SECOND)]);
    let service = layer(&MokaStore::new()).layer(router(&crm));

    let start = Instant::now();
    let first = send(&service, delivery(BODY).key("a"));
    let second = async {
        let answered = send(&service, delivery(BODY).key("a")).await;
        (answered, start.elapsed())
    };
    let (first, (second, elapsed)) = tokio::join!(first, second);

    first.assert_ok();
    second.assert_replayed();
    assert!(elapsed >= 3 * SECOND && elapsed < 5 * SECOND, "{elapsed:?}");
    assert_eq!(crm.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn duplicate_conflicts_when_the_run_takes_too_long() {
    async fn check<const OUTLIVES: bool>(wait: Option<Duration>, retry_after: &str) {
        let crm = Crm::new([Step::SucceedAfter(20 * SECOND)]);
        let mut layer = layer(&TestStore::<OUTLIVES>::default());
        if let Some(wait) = wait {
            layer = layer.in_flight_wait(wait);
        }
        let service = layer.layer(router(&crm));

        let start = Instant::now();
        let first = send(&service, delivery(BODY).key("a"));
        let second = async {
            let answered = send(&service, delivery(BODY).key("a")).await;
            (answered, start.elapsed())
        };
        let (first, (second, elapsed)) = tokio::join!(first, second);

        first.assert_ok();
        second.assert_problem(409, "in-flight");
        assert_eq!(second.header("retry-after"), Some(retry_after));
        let wait = wait.unwrap_or(5 * SECOND);
        assert!((wait..wait + SECOND / 10).contains(&elapsed), "{elapsed:?}");
        assert_eq!(crm.runs(), 1);
    }
    // A lease of 60 seconds, less the time that was waited.
    check::<true>(None, "55").await;
    check::<true>(Some(Duration::ZERO), "60").await;
    check::<true>(Some(12 * SECOND), "48").await;
    // A volatile claim is not that long, whatever the store was asked for.
    check::<false>(None, "60").await;
}

#[tokio::test(start_paused = true)]
async fn waiting_duplicate_conflicts_when_the_run_fails() {
    let crm = Crm::new([Step::FailAfter(SECOND)]);
    let service = layer(&MokaStore::new()).layer(router(&crm));

    let start = Instant::now();
    let (first, second) = tokio::join!(
        send(&service, delivery(BODY).key("a")),
        send(&service, delivery(BODY).key("a"))
    );
    first.assert_problem(500, "failed");
    second.assert_problem(409, "in-flight");
    assert_eq!(second.header("retry-after"), Some("1"));
    assert!(start.elapsed() < 2 * SECOND);

    send(&service, delivery(BODY).key("a")).await.assert_ok();
    assert_eq!(crm.attempts(), [Some(1), Some(2)]);
}

#[tokio::test(start_paused = true)]
async fn changed_body_is_replayed_by_default() {
    const CHANGED: &str = r#"{"id":"chat-2"}"#;
    let crm = Crm::new([Step::SucceedAfter(SECOND)]);
    let store = MokaStore::new();
    let lenient = layer(&store).layer(router(&crm));
    let strict = layer(&store).reject_changed_bodies().layer(router(&crm));

    let start = Instant::now();
    let rejected = async {
        let answered = send(&strict, delivery(CHANGED).key("a")).await;
        // However the run ends.
        assert!(start.elapsed() < SECOND);
        answered
    };
    let (first, in_flight, rejected) = tokio::join!(
        send(&lenient, delivery(BODY).key("a")),
        send(&lenient, delivery(CHANGED).key("a")),
        rejected,
    );
    first.assert_ok();
    in_flight.assert_replayed();
    rejected.assert_problem(422, "body-changed");

    send(&lenient, delivery(CHANGED).key("a"))
        .await
        .assert_replayed();
    send(&strict, delivery(CHANGED).key("a"))
        .await
        .assert_problem(422, "body-changed");
    send(&strict, delivery(BODY).key("a"))
        .await
        .assert_replayed();
    assert_eq!(crm.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn replay_guard_refuses_a_body_under_another_key() {
    let crm = Crm::new([Step::SucceedAfter(SECOND)]);
    let store = MokaStore::new();
    let service = layer(&store).replay_guard().layer(router(&crm));

    let (first, other, same) = tokio::join!(
        send(&service, delivery(BODY).key("a")),
        send(&service, delivery(BODY).key("b")),
        send(&service, delivery(BODY).key("a")),
    );
    first.assert_ok();
    other.assert_problem(422, "body-replayed");
    same.assert_replayed();

    for replay in [
        delivery(BODY).key("b"),
        delivery(BODY),
        delivery(BODY).key("b").kind("chat-closed"),
    ] {
        send(&service, replay)
            .await
            .assert_problem(422, "body-replayed");
    }
    assert_eq!(store.state("b").await, KeyState::Free);
    send(&service, delivery(BODY).key("a"))
        .await
        .assert_replayed();
    assert_eq!(crm.runs(), 1);

    // Another body is another event; without a key, the body is what counts.
    send(&service, delivery("{}")).await.assert_ok();
    send(&service, delivery("{}")).await.assert_replayed();
    send(&service, delivery("{}").key("c"))
        .await
        .assert_problem(422, "body-replayed");
    assert_eq!(crm.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn replay_guard_waits_no_longer_than_a_duplicate() {
    let crm = Crm::new([Step::SucceedAfter(20 * SECOND)]);
    let store = MokaStore::new();
    let service = layer(&store).replay_guard().layer(router(&crm));
    let (first, other) = tokio::join!(
        send(&service, delivery(BODY).key("a")),
        send(&service, delivery(BODY).key("b")),
    );
    first.assert_ok();
    other.assert_problem(409, "in-flight");
    assert_eq!(store.state("b").await, KeyState::Free);
}

#[tokio::test(start_paused = true)]
async fn failed_run_releases_the_body_of_the_replay_guard() {
    for step in [Step::Fail, Step::Panic, Step::PanicAfterAwait, Step::Hang] {
        let crm = Crm::new([step]);
        let store = MokaStore::new();
        let service = layer(&store).replay_guard().layer(router(&crm));
        assert!(
            !send(&service, delivery(BODY).key("a"))
                .await
                .status
                .is_success()
        );
        assert_eq!(store.state("a").await, KeyState::Free);
        send(&service, delivery(BODY).key("b")).await.assert_ok();
        assert_eq!(crm.runs(), 2, "{step:?}");
    }
}

#[tokio::test]
async fn routes_have_keys_and_bodies_of_their_own() {
    let (store, crm) = (MokaStore::new(), Crm::default());
    let service = |name: &str| {
        layer(&store)
            .name(name.parse().unwrap())
            .replay_guard()
            .layer(router(&crm))
    };
    let services = ["chat-platform", "one", "two"].map(service);
    for service in &services {
        send(service, delivery(BODY).key("a")).await.assert_ok();
    }
    for service in &services {
        send(service, delivery(BODY).key("a"))
            .await
            .assert_replayed();
    }
    assert_eq!(crm.runs(), 3);
}

#[tokio::test]
async fn several_layers_share_one_store() {
    let (store, crm) = (MokaStore::new(), Crm::default());
    let other_secret = tower_webhook::Secret::new("another").unwrap();
    let one = layer(&store).layer(router(&crm));
    let two = Webhooks::new(other_secret.clone())
        .store(store)
        .layer(router(&crm));
    let for_two = || {
        delivery(BODY)
            .key("a")
            .with(SIGNATURE, other_secret.sign(BODY.as_bytes()))
    };

    send(&one, delivery(BODY).key("a")).await.assert_ok();
    send(&two, for_two()).await.assert_replayed();
    send(&two, delivery(BODY).key("a"))
        .await
        .assert_problem(401, "invalid-signature");
    send(&one, for_two())
        .await
        .assert_problem(401, "invalid-signature");
    assert_eq!(crm.runs(), 1);
}
