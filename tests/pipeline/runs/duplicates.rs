//! Two deliveries at one time.

use std::time::Duration;

use http::StatusCode;
use tokio::time::{Instant, sleep};

use support::Ready;
use support::delivery::{Answered, deliver};
use support::store::{Operation, TestStore};

use super::{Receiver, Work, fails, layer, receiver, seconds, succeeds};

/// The answers to two deliveries of a key, the second of them a second after the first; and how
/// long the second one waited, in milliseconds.
async fn second_after<const DURABLE: bool>(
    service: &Receiver<DURABLE>,
) -> (Answered, Answered, u128) {
    let (first, (second, waited)) = tokio::join!(deliver(service, "k"), async {
        sleep(seconds(1)).await;
        let start = Instant::now();
        let answered = deliver(service, "k").await;
        (answered, start.elapsed().as_millis())
    });
    (first, second, waited)
}

#[tokio::test(start_paused = true)]
async fn duplicate_waits_for_the_success_of_the_run_in_flight() {
    let store = TestStore::<true>::default();
    let work = Work::new(|_| succeeds(seconds(4)));
    let (first, second, waited) = second_after(&receiver(&store, &work)).await;
    first.assert_ok();
    second.assert_replayed();
    assert!((3_000..=3_250).contains(&waited), "it waited {waited} ms");
    assert_eq!(work.attempts(), [Some(1)]);
}

#[tokio::test(start_paused = true)]
async fn duplicate_conflicts_when_the_run_in_flight_fails() {
    let store = TestStore::<true>::default();
    let work = Work::new(|_| fails(seconds(4)));
    let (first, second, waited) = second_after(&receiver(&store, &work)).await;
    assert_eq!(first.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(second.status, StatusCode::CONFLICT);
    assert_eq!(second.retry_after(), Some(1), "the key is free");
    assert!((3_000..=3_250).contains(&waited), "it waited {waited} ms");
    assert_eq!(
        work.attempts(),
        [Some(1)],
        "a waiting delivery is not handled"
    );
}

#[tokio::test(start_paused = true)]
async fn duplicate_conflicts_when_the_run_in_flight_takes_long() {
    let store = TestStore::<true>::default();
    let work = Work::new(|_| succeeds(seconds(15)));
    let (first, second, waited) = second_after(&receiver(&store, &work)).await;
    first.assert_ok();
    assert_eq!(second.status, StatusCode::CONFLICT);
    assert_eq!(waited, 5_000);
    assert_eq!(
        second.retry_after(),
        Some(54),
        "what remains of 60 s after 6 s"
    );

    // In memory a key is claimed for days, which is not how long the sender should stay away.
    let store = TestStore::<false>::default();
    let work = Work::new(|_| succeeds(seconds(15)));
    let (_, second, _) = second_after(&receiver(&store, &work)).await;
    assert_eq!(second.retry_after(), Some(60));
}

#[tokio::test(start_paused = true)]
async fn duplicate_conflicts_at_once_without_a_wait() {
    let store = TestStore::<true>::default();
    let work = Work::new(|_| succeeds(seconds(4)));
    let service = layer(&store)
        .in_flight_wait(Duration::ZERO)
        .layer(work.router());
    let (first, second, waited) = second_after(&service).await;
    first.assert_ok();
    assert_eq!(second.status, StatusCode::CONFLICT);
    assert_eq!(second.retry_after(), Some(59));
    assert_eq!(waited, 0);
    assert!(store.calls(Operation::Peek).is_empty());
}
