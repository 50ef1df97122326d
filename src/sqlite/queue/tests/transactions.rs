//! Calls that share a transaction, and calls that do not.

use super::*;

#[tokio::test]
async fn calls_of_one_transaction_see_each_other() {
    let desk = Desk::new();
    let queue = desk.open();
    let calls = queue.run(Need::Durable, |tx| {
        let kind = Scope::from(keyed(1, 1).delivery.kind().clone());
        let mut events = Vec::new();
        for (key, paused) in [(1, false), (2, true), (2, true), (3, false)] {
            kinds::pause(tx, &kind, paused.then_some(""))?;
            let accepted = accept::accept(tx, &keyed(key, key as u64), &[], Some(&take()))?;
            events.push(match accepted {
                Accepted::New { id, taken } => Some((id.0, taken.is_some())),
                _ => None,
            });
        }
        Ok(events)
    });
    let duplicate = None;
    let expected = [
        Some((1, true)),
        Some((2, false)),
        duplicate,
        Some((3, true)),
    ];
    assert_eq!(calls.await.unwrap(), expected);
    assert_eq!(queue.add(keyed(4, 4)).await, 4);
}

#[tokio::test]
async fn nothing_is_taken_for_a_caller_who_gave_up() {
    let desk = Desk::new();
    let queue = desk.open();
    let taken = queue.add_and_take(event(1)).await;
    assert_eq!(queue.add(event(1)).await, 2);

    // Both calls wait behind another one when they are given up.
    let (start, started) = std::sync::mpsc::channel::<()>();
    let busy = tokio::spawn({
        let queue = queue.clone();
        async move {
            let wait = queue.run(Need::Durable, move |_| {
                let _ = started.recv();
                Ok(())
            });
            wait.await
        }
    });
    tokio::task::yield_now().await;
    let take = take();
    let accept = queue.accept_one(event(3), Some(&take));
    assert!(accept.now_or_never().is_none());
    let settle = queue.settle(&taken.lease, &Settlement::Handled, Some(&take));
    assert!(settle.now_or_never().is_none());
    start.send(()).unwrap();
    busy.await.unwrap().unwrap();
    // A claim does not wait for the disk: in one batch with those calls, it comes before them.
    queue.run(Need::Durable, |_| Ok(())).await.unwrap();
    let claimed = queue.take_some(10).await;
    assert_eq!(ids(&claimed), [2, 3]);
    assert!(claimed.iter().all(|taken| taken.crashes == 0));
}

#[tokio::test]
async fn large_deliveries_do_not_share_a_transaction_and_small_ones_go_first() {
    let desk = Desk::new();
    let queue = desk.open();
    let (start, started) = std::sync::mpsc::channel::<()>();
    let busy = {
        let wait = queue.run(Need::Durable, move |_| {
            let _ = started.recv();
            Ok(())
        });
        let mut wait = Box::pin(wait);
        assert!(wait.as_mut().now_or_never().is_none());
        wait
    };
    let large = |key| {
        let event = keyed(key, key as u64);
        let body = format!(r#"{{"text":"{}"}}"#, "x".repeat(1 << 20));
        let delivery = RawDelivery::new(event.delivery.kind().clone(), body);
        let delivery = delivery.with_key(event.delivery.key().cloned());
        NewEvent { delivery, ..event }
    };
    let accepted = async |event| match queue.accept_one(event, None).await {
        Ok(Accepted::New { id, .. }) => id.0,
        other => panic!("{other:?}"),
    };
    let events = [large(1), large(2), large(3), keyed(4, 4)];
    let mut calls = events.map(|event| Box::pin(accepted(event)));
    for call in &mut calls {
        assert!(call.as_mut().now_or_never().is_none());
    }
    start.send(()).unwrap();
    busy.await.unwrap();
    let numbers = futures_util::future::join_all(calls).await;
    assert_eq!(numbers, [2, 3, 4, 1], "the order of the transactions");
}
