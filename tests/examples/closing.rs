//! Which connection the example receiver closes when there are too many.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, advance};

use self::activity::{Activity, Entry, LEAST_AGE, Open};

#[allow(dead_code)]
#[path = "../../crates/receiver/src/activity.rs"]
mod activity;

/// Accepts a connection, a moment after the one before.
async fn accept(open: &Arc<Open>, number: u16) -> (Arc<Activity>, Entry) {
    advance(Duration::from_millis(10)).await;
    let activity = Arc::new(Activity::new(peer(number)));
    let entry = open.enter(&activity);
    (activity, entry)
}

fn peer(number: u16) -> SocketAddr {
    ([127, 0, 0, 1], number).into()
}

#[tokio::test(start_paused = true)]
async fn a_sender_has_half_a_second() {
    assert_eq!(LEAST_AGE, Duration::from_millis(500));
    let open = Arc::new(Open::default());
    let (_, _old) = accept(&open, 1).await;
    let accepted = Instant::now();
    let (_, _young) = accept(&open, 2).await;
    advance(Duration::from_millis(489)).await;
    let at = Some(accepted + LEAST_AGE);
    assert_eq!(open.close_one(LEAST_AGE), Err(at));
    advance(Duration::from_millis(1)).await;
    assert_eq!(open.close_one(LEAST_AGE), Ok(peer(1)));
    assert!(matches!(open.close_one(LEAST_AGE), Err(Some(_))));
    // Where a file must be freed at once.
    assert_eq!(open.close_one(Duration::ZERO), Ok(peer(2)));
    assert_eq!(open.close_one(Duration::ZERO), Err(None));
}

#[tokio::test(start_paused = true)]
async fn one_that_was_verified_is_closed_after_all_that_have_proved_nothing() {
    let open = Arc::new(Open::default());
    let (verified, _one) = accept(&open, 1).await;
    let exchange = verified.begin(true);
    verified.answered(true);
    drop(exchange);
    let (_, _two) = accept(&open, 2).await;
    let (refused, _three) = accept(&open, 3).await;
    let exchange = refused.begin(true);
    refused.answered(false);
    drop(exchange);
    advance(LEAST_AGE).await;
    for number in [2, 3, 1] {
        assert_eq!(open.close_one(LEAST_AGE), Ok(peer(number)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_makes_progress_is_not_the_next() {
    let open = Arc::new(Open::default());
    let (large, _one) = accept(&open, 1).await;
    let _body = large.begin(false);
    let (held_back, _two) = accept(&open, 2).await;
    let _held_back = held_back.begin(false);
    advance(LEAST_AGE).await;
    large.progress();
    advance(LEAST_AGE).await;
    assert_eq!(open.close_one(LEAST_AGE), Ok(peer(2)));
    assert_eq!(open.close_one(LEAST_AGE), Ok(peer(1)));
}

#[tokio::test(start_paused = true)]
async fn one_at_work_on_a_complete_request_is_never_closed() {
    let open = Arc::new(Open::default());
    let (busy, _one) = accept(&open, 1).await;
    let _exchange = busy.begin(false);
    busy.received();
    advance(LEAST_AGE).await;
    assert_eq!(open.close_one(LEAST_AGE), Err(None));
}
