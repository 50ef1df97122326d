//! The router, what became of the run, and the number of its attempt.

use tokio::time::Instant;
use tower_webhook::RawDelivery;
use tower_webhook::memory::MokaStore;
use tower_webhook::store::{EventKey, KeyState};

use support::DAY;
use support::Ready;
use support::delivery::{BODY, Crm, HANDLER_ERROR, RequestExt, Step, delivery, send};
use support::store::{Operation, StoreExt, TestStore};

use super::{SECOND, layer, router};

#[tokio::test]
async fn unhandled_event_is_ignored_by_default() {
    let (store, crm) = (MokaStore::new(), Crm::default());
    let lenient = layer(&store).layer(router(&crm));
    let strict = layer(&store).layer(router(&crm).reject_unhandled());
    for kind in ["chat-opened", "chat-archived"] {
        for _ in 0..2 {
            send(&lenient, delivery(BODY).key(kind).kind(kind))
                .await
                .assert_ok();
            assert_eq!(store.state(kind).await, KeyState::Free);
            let answered = send(&strict, delivery(BODY).key(kind).kind(kind)).await;
            answered.assert_problem(404, "unhandled");
            assert_eq!(store.state(kind).await, KeyState::Free);
        }
    }
    // It does not matter whether the body could be decoded, nor whether a handler comes later.
    send(&lenient, delivery("\u{feff}").kind("chat-opened"))
        .await
        .assert_ok();
    send(&strict, delivery(BODY).key("chat-opened"))
        .await
        .assert_ok();
    assert_eq!(crm.runs(), 1);
}

#[tokio::test]
async fn fallback_receives_events_without_a_handler() {
    let crm = Crm::default();
    let kinds = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = kinds.clone();
    let fallback = move |raw: RawDelivery| {
        seen.lock()
            .unwrap()
            .push((raw.kind().to_string(), raw.body().clone()));
        async { Ok(()) }
    };
    let router = router(&crm).fallback(fallback).reject_unhandled();
    let service = layer(&MokaStore::new()).layer(router);

    send(&service, delivery(BODY).key("a").kind("chat-archived"))
        .await
        .assert_ok();
    send(&service, delivery(BODY).key("a").kind("chat-archived"))
        .await
        .assert_replayed();
    send(&service, delivery(BODY).key("b")).await.assert_ok();
    send(&service, delivery("[]").kind("chat-archived"))
        .await
        .assert_problem(422, "undecodable");
    assert_eq!(crm.runs(), 1);
    assert_eq!(
        *kinds.lock().unwrap(),
        [("chat-archived".to_owned(), BODY.into())]
    );
}

const UNDECODABLE: [&[u8]; 10] = [
    b"",
    b"null",
    b"[]",
    b"\"text\"",
    b"7",
    b"{",
    br#"{"id":"a"} x"#,
    b"\xef\xbb\xbf{}", // a byte order mark
    b"{\"id\":\"\xff\"}",
    b"{\"id\":\"\xed\xa0\xbd\"}", // half a surrogate pair
];

#[tokio::test]
async fn undecodable_body_is_refused_and_its_key_released() {
    let (store, crm) = (MokaStore::new(), Crm::default());
    let service = layer(&store).layer(router(&crm));
    for body in UNDECODABLE {
        send(&service, delivery(body).key("a"))
            .await
            .assert_problem(422, "undecodable");
        assert_eq!(store.state("a").await, KeyState::Free);
    }
    send(&service, delivery(BODY).key("a")).await.assert_ok();
    assert_eq!(crm.runs(), 1);
}

#[tokio::test]
async fn undecodable_bodies_can_be_handled() {
    let (store, crm) = (MokaStore::new(), Crm::default());
    let take = |raw: RawDelivery, error: tower_webhook::DecodeError| async move {
        assert!(!error.to_string().is_empty());
        match raw.body().first() {
            Some(b'[') => Ok(()),
            Some(b'{') => panic!("{HANDLER_ERROR}"),
            _ => Err(HANDLER_ERROR.into()),
        }
    };
    let service = layer(&store).layer(router(&crm).on_undecodable(take));

    send(&service, delivery("[1]").key("a")).await.assert_ok();
    send(&service, delivery("[1]").key("a"))
        .await
        .assert_replayed();
    send(&service, delivery("").key("b"))
        .await
        .assert_problem(500, "failed");
    assert_eq!(store.state("b").await, KeyState::Free);
    send(&service, delivery("{").key("c"))
        .await
        .assert_problem(500, "panicked");
    assert_eq!(store.state("c").await, KeyState::Free);
    assert_eq!(crm.runs(), 0);
}

#[tokio::test]
async fn handled_event_is_completed_before_the_response() {
    let (store, crm) = (MokaStore::new(), Crm::default());
    let service = layer(&store).layer(router(&crm));
    send(&service, delivery(BODY).key("a")).await.assert_ok();
    assert_eq!(store.state("a").await, KeyState::Done);
    send(&service, delivery(BODY).key("a"))
        .await
        .assert_replayed();
    assert_eq!(crm.attempts(), [Some(1)]);
}

#[tokio::test(start_paused = true)]
async fn completed_key_is_retained_longer_than_the_sender_retries() {
    let crm = Crm::default();
    let service = layer(&MokaStore::new()).layer(router(&crm));
    send(&service, delivery(BODY).key("a")).await.assert_ok();
    tokio::time::advance(7 * DAY + DAY / 2).await;
    send(&service, delivery(BODY).key("a"))
        .await
        .assert_replayed();
    tokio::time::advance(DAY).await;
    send(&service, delivery(BODY).key("a")).await.assert_ok();
    assert_eq!(crm.attempts(), [Some(1), Some(1)]);
}

#[tokio::test(start_paused = true)]
async fn success_that_cannot_be_recorded_is_not_acknowledged() {
    async fn check<const OUTLIVES: bool>() {
        let (store, crm) = (TestStore::<OUTLIVES>::default(), Crm::default());
        let service = layer(&store).layer(router(&crm));

        store.fail([Operation::Complete]);
        let start = Instant::now();
        let answered = send(&service, delivery(BODY).key("a")).await;
        answered.assert_problem(503, "not-recorded");
        assert!(
            start.elapsed() > 45 * SECOND,
            "it is retried while the lease lasts"
        );

        // The key stays taken until the lease ends, and is then handled again.
        store.fail([]);
        tokio::time::sleep(60 * SECOND).await;
        send(&service, delivery(BODY).key("a")).await.assert_ok();
        assert_eq!(crm.attempts(), [Some(1), Some(2)]);
    }
    check::<false>().await;
    check::<true>().await;
}

#[tokio::test(start_paused = true)]
async fn success_that_is_recorded_late_is_acknowledged() {
    let (store, crm) = (TestStore::<false>::default(), Crm::default());
    let service = layer(&store).layer(router(&crm));
    store.fail([Operation::Complete]);
    let (answered, ()) = tokio::join!(send(&service, delivery(BODY).key("a")), async {
        tokio::time::sleep(20 * SECOND).await;
        assert!(matches!(store.state("a").await, KeyState::InFlight { .. }));
        store.fail([]);
    });
    answered.assert_ok();
    send(&service, delivery(BODY).key("a"))
        .await
        .assert_replayed();
    assert_eq!(crm.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn handler_determines_the_response_and_the_claim() {
    for (step, expected, done) in [
        (Step::Succeed, None, true),
        (Step::Discard, None, true),
        (Step::Fail, Some((500, "failed")), false),
        (Step::Panic, Some((500, "panicked")), false),
        (Step::PanicAfterAwait, Some((500, "panicked")), false),
        (Step::Hang, Some((503, "handler-timeout")), false),
    ] {
        let (store, crm) = (MokaStore::new(), Crm::new([step]));
        let service = layer(&store).layer(router(&crm));

        let answered = send(&service, delivery(BODY).key("a")).await;
        match expected {
            Some((status, name)) => answered.assert_problem(status, name),
            None => answered.assert_ok(),
        }
        assert_eq!(store.state("a").await == KeyState::Done, done, "{step:?}");

        let again = send(&service, delivery(BODY).key("a")).await;
        if done {
            again.assert_replayed();
        } else {
            again.assert_ok();
        }
        assert_eq!(crm.runs(), if done { 1 } else { 2 }, "{step:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn handler_timeout_defaults_to_30_seconds_with_or_without_a_key() {
    let store = MokaStore::new();
    for (layer, limit) in [
        (layer(&store), 30 * SECOND),
        (layer(&store).handler_timeout(SECOND), SECOND),
    ] {
        for request in [delivery(BODY), delivery(BODY).key("a")] {
            let crm = Crm::new([Step::Hang]);
            let service = layer.clone().layer(router(&crm));
            let start = Instant::now();
            send(&service, request)
                .await
                .assert_problem(503, "handler-timeout");
            assert!((limit..limit + SECOND / 10).contains(&start.elapsed()));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn run_that_loses_its_lease_is_cancelled() {
    let (store, crm) = (
        TestStore::<true>::default(),
        Crm::new([Step::SucceedAfter(90 * SECOND)]),
    );
    let service = layer(&store)
        .handler_timeout(120 * SECOND)
        .layer(router(&crm));

    store.fail([Operation::Renew]);
    let start = Instant::now();
    send(&service, delivery(BODY).key("a"))
        .await
        .assert_problem(503, "lease-lost");
    assert!((60 * SECOND..61 * SECOND).contains(&start.elapsed()));

    send(&service, delivery(BODY).key("a")).await.assert_ok();
    send(&service, delivery(BODY).key("a"))
        .await
        .assert_replayed();
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!((crm.runs(), crm.successes()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn every_claim_is_settled_once_and_the_key_after_the_body() {
    use Operation::{Claim, Complete, Release};
    for (step, settled) in [
        (Step::Succeed, Complete),
        (Step::Discard, Complete),
        (Step::Fail, Release),
        (Step::Panic, Release),
        (Step::Hang, Release),
    ] {
        let store = TestStore::<false>::default();
        let service = layer(&store)
            .replay_guard()
            .layer(router(&Crm::new([step])));
        send(&service, delivery(BODY).key("a")).await;
        tokio::time::sleep(SECOND).await;

        let operations = store.changes();
        let key = EventKey::new("", b"a", b"").key();
        let [(Claim, first), (Claim, body), one, other] = operations[..] else {
            panic!("{step:?}: {operations:?}");
        };
        assert!(first == key && body != key);
        // A crash between the two leaves an event that was handled and whose body is known.
        assert_eq!([one, other], [(settled, body), (settled, key)]);
    }

    // Another run may have claimed the key since.
    let store = TestStore::<true>::default();
    store.fail([Operation::Renew]);
    let service = layer(&store)
        .handler_timeout(120 * SECOND)
        .layer(router(&Crm::new([Step::Hang])));
    let answered = send(&service, delivery(BODY).key("a")).await;
    answered.assert_problem(503, "lease-lost");
    tokio::time::sleep(SECOND).await;
    let settles = store.changes();
    assert!(
        !settles
            .iter()
            .any(|(operation, _)| [Complete, Release].contains(operation))
    );
}

#[tokio::test(start_paused = true)]
async fn attempts_are_counted_until_one_succeeds() {
    for step in [Step::Fail, Step::Panic, Step::PanicAfterAwait, Step::Hang] {
        let crm = Crm::new([step; 2]);
        let service = layer(&MokaStore::new()).layer(router(&crm));
        for _ in 0..2 {
            let status = send(&service, delivery(BODY).key("a")).await.status;
            assert!(status.is_server_error());
            tokio::time::advance(600 * SECOND).await;
        }
        send(&service, delivery(BODY).key("a")).await.assert_ok();
        for _ in 0..3 {
            send(&service, delivery(BODY).key("a"))
                .await
                .assert_replayed();
        }
        assert_eq!(crm.attempts(), [Some(1), Some(2), Some(3)], "{step:?}");
    }
}
