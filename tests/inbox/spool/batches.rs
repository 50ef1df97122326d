//! Deliveries of several events: one goes to the file whole, or to the queue whole.

use super::*;

/// A delivery of events of chats, each with its number.
fn batch(items: &[(&str, usize)]) -> Arc<[NewEvent]> {
    let delivery = fastrand::i64(..);
    let items = items.iter().zip(1..).map(|((chat, n), number)| {
        let key = format!("{chat} {n}");
        let body = format!(r#"{{"id":"{chat}","rating":{n}}}"#);
        let item = internal::in_delivery(Item::new(number, items.len() as u32), delivery);
        let event = new_event(EventKind::CHAT_RATED, body.clone());
        NewEvent {
            delivery: event.delivery.with_item(item.keep(r#"{"a":1}"#)),
            key: Some(EventKey::new("", key.as_bytes(), body.as_bytes())),
            chat: Some((*chat).to_owned()),
            lane: Some(Lane::of_chat(chat)),
            ..event
        }
    });
    items.collect()
}

impl Desk {
    async fn accept(&self, items: &[(&str, usize)]) -> Vec<Accepted> {
        let queue = internal::queue(&self.inbox);
        queue.accept.accept(batch(items), None).await.unwrap()
    }

    /// Accepts events that are in the file after that.
    async fn spooled(&self, items: &[(&str, usize)]) {
        let accepted = self.accept(items).await;
        assert_eq!(accepted.len(), items.len());
        let is_spooled = |it: &Accepted| matches!(it, Accepted::Spooled);
        assert!(accepted.iter().all(is_spooled), "{accepted:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn items_are_spooled_and_come_out_as_they_went_in() {
    let desk = Desk::open().await;
    desk.remote.down(true);
    desk.spooled(&[("a", 1), ("b", 1), ("a", 2)]).await;
    let again = desk.accept(&[("a", 2), ("b", 1)]).await;
    let is_duplicate = |it: &Accepted| matches!(it, Accepted::Duplicate { same_body: true });
    assert!(again.iter().all(is_duplicate), "{again:?}");
    desk.spooled(&[("b", 2)]).await;
    desk.remote.down(false);
    desk.flushed().await;
    let all = desk.handled(4).await;
    assert_eq!(of(&all, "a"), [&seen("a", 1, true), &seen("a", 2, true)]);
    assert_eq!(of(&all, "b"), [&seen("b", 1, true), &seen("b", 2, true)]);
    let mut numbers = Vec::new();
    for event in desk.events().await {
        let record = desk.inbox.get(event.id).await.unwrap().unwrap();
        let item = record.item.unwrap();
        assert_eq!(item.kept(), Some(r#"{"a":1}"#));
        numbers.push((item.number(), item.count(), record.others.len()));
    }
    numbers.sort_unstable();
    assert_eq!(numbers, [(1, 1, 0), (1, 3, 2), (2, 3, 2), (3, 3, 2)]);
}

/// As those without keys of their own: they have the guard of their delivery.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn items_of_one_guard_are_all_spooled_and_forwarded() {
    let desk = Desk::open().await;
    desk.remote.down(true);
    let guard = EventKey::new("", b"the body of the delivery", b"its key");
    let guarded = |event: &NewEvent| NewEvent {
        guard: Some(guard),
        ..event.clone()
    };
    let items = batch(&[("a", 1), ("b", 1), ("a", 2)]);
    let items: Arc<[_]> = items.iter().map(guarded).collect();
    let accept = async |items: &Arc<[NewEvent]>| {
        let queue = internal::queue(&desk.inbox);
        queue.accept.accept(Arc::clone(items), None).await.unwrap()
    };
    let accepted = accept(&items).await;
    let is_spooled = |it: &Accepted| matches!(it, Accepted::Spooled);
    assert!(accepted.iter().all(is_spooled), "{accepted:?}");
    let again = accept(&items).await;
    let is_duplicate = |it: &Accepted| matches!(it, Accepted::Duplicate { same_body: true });
    assert!(again.iter().all(is_duplicate), "{again:?}");
    // Its body under another key.
    let replayed = NewEvent {
        key: Some(EventKey::new("", b"another key", b"")),
        guard: Some(EventKey::new(
            "",
            b"the body of the delivery",
            b"another key",
        )),
        ..items[0].clone()
    };
    let replayed = accept(&[replayed].into()).await;
    assert!(
        matches!(replayed[..], [Accepted::BodyReplayed]),
        "{replayed:?}"
    );
    desk.remote.down(false);
    desk.flushed().await;
    let all = desk.handled(3).await;
    assert_eq!(of(&all, "a"), [&seen("a", 1, true), &seen("a", 2, true)]);
    assert_eq!(of(&all, "b"), [&seen("b", 1, true)]);
    assert_eq!(desk.events().await.len(), 3);
}

/// The others of its lanes are behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_goes_behind_the_events_of_one_of_its_lanes() {
    let desk = Desk::open().await;
    desk.remote.lock(&["a"]);
    desk.spooled(&[("a", 1)]).await;
    desk.spooled(&[("b", 1), ("a", 2), ("c", 1)]).await;
    // What is forwarded leaves the way free.
    assert_eq!(desk.accept(&[("c", 2), ("d", 1)]).await.len(), 2);
    // No lane of this one is there.
    let direct = desk.accept(&[("e", 1), ("f", 1)]).await;
    let is_new = |it: &Accepted| matches!(it, Accepted::New { .. });
    assert!(direct.iter().all(is_new), "{direct:?}");
    desk.remote.lock(&[]);
    desk.flushed().await;
    let all = desk.handled(8).await;
    assert_eq!(of(&all, "a"), [&seen("a", 1, true), &seen("a", 2, true)]);
    let numbers: Vec<_> = of(&all, "c").iter().map(|it| it.1).collect();
    assert_eq!(numbers, [1, 2]);
    assert_eq!(desk.events().await.len(), 8);
}

/// Each is forwarded alone, so that one that the queue refuses keeps no other one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_item_that_the_queue_refuses_stays_and_the_others_go_on() {
    let desk = Desk::open().await;
    desk.remote.down(true);
    desk.spooled(&[("a", 1), (REFUSED, 1), ("b", 1)]).await;
    desk.remote.down(false);
    let all = desk.handled(2).await;
    assert_eq!((of(&all, "a").len(), of(&all, "b").len()), (1, 1));
    assert!(of(&all, REFUSED).is_empty());
}
