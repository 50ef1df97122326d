//! A second sender at the platform's route. It sends events of the platform's chats, several in a delivery, and each until
//! it is answered with 200: the same delivery, or one that is cut in another way.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};
use tower_webhook::{EventKind, IdempotencyKey, RawDelivery, RouteName, Sender, Webhooks};
use tower_webhook_sandbox::SimulatedChat;

use super::day::{AnyBody, Cluster, SENDER_WAITS, secret};
use support::history::{Entry, digest};
use support::lock;

/// Where the balancer gets its deliveries.
pub(crate) const PATH: &str = "/batches";
const KINDS: [EventKind; 3] = [
    EventKind::MESSAGE_CREATED,
    EventKind::CHAT_CLOSED,
    EventKind::CHAT_RATED,
];

/// What the sender knows.
#[derive(Default)]
pub(crate) struct Batches {
    /// The items, by their number.
    made: Vec<String>,
    /// The items of each delivery.
    sent: Vec<Vec<usize>>,
    /// The items that no answer of 200 was for.
    pub(crate) open: BTreeSet<usize>,
    /// How many deliveries are not done.
    pub(crate) waiting: usize,
    pub(crate) attempts: usize,
    /// The attempts without an answer of 200.
    pub(crate) failures: Vec<Failure>,
    /// The items that a handler got with other bytes than were sent.
    pub(crate) changed: Vec<String>,
}

pub(crate) struct Failure {
    pub(crate) began: Instant,
    pub(crate) ended: Instant,
    pub(crate) text: String,
}

impl Batches {
    pub(crate) fn items(&self) -> usize {
        self.made.len()
    }

    /// Notes what a handler got.
    pub(crate) fn handles(&mut self, delivery: &RawDelivery) {
        let Some(item) = delivery.item() else { return };
        let made = delivery.key().and_then(|key| {
            let key = key.to_string();
            let number: usize = key.strip_prefix("item-")?.parse().ok()?;
            self.made.get(number)
        });
        if made.is_none_or(|made| made.as_bytes() != delivery.body()) {
            let body = String::from_utf8_lossy(delivery.body());
            self.changed.push(format!("{item}: {body}, not {made:?}"));
        }
    }

    fn request(&self, items: &[usize], number: usize) -> Request<AnyBody> {
        let items: Vec<_> = items.iter().map(|item| &*self.made[*item]).collect();
        let body = Bytes::from(format!(r#"{{"events":[{}]}}"#, items.join(", ")));
        let key = IdempotencyKey::new(number.into());
        let kind = EventKind::from_static("batch");
        let delivery = RawDelivery::new(kind, body.clone()).with_key(key);
        let body = Full::new(body)
            .map_err(|error| match error {})
            .boxed_unsync();
        let request = Request::post(PATH).body(body);
        let mut request = request.expect("a valid request");
        let headers = sender().sign(&secret(), &delivery);
        *request.headers_mut() = headers.expect("its sender can sign");
        request
    }
}

fn sender() -> Sender {
    let description = json!({
        "name": "batches",
        "key": "x-delivery",
        "batch": {"path": "/events/*", "key": "/key", "kind": "/kind", "order": "/chat"},
        "signature": {"headers": ["x-tag"], "algorithm": "hmac-sha256", "coding": "hex"},
    });
    serde_json::from_value(description).expect("a valid description")
}

/// The route has the platform's name, so that both senders share its keys and lanes.
pub(crate) fn route() -> Webhooks {
    Webhooks::new(secret())
        .sender(sender())
        .name(RouteName::default())
}

impl Cluster {
    /// Some events happen in a few chats, and are sent together.
    pub(crate) fn batch(self: &Arc<Self>, chats: &[SimulatedChat]) {
        let of: Vec<_> = self.draw(|random| {
            let few = [(); 3].map(|()| random.usize(..chats.len()));
            let number = random.usize(2..=8);
            let item = |_| (few[random.usize(..3)], random.usize(..KINDS.len()));
            (0..number).map(item).collect()
        });
        let items: Vec<_> = {
            let mut batches = lock(&self.batches);
            batches.waiting += 1;
            let first = batches.made.len();
            for (number, (chat, kind)) in (first..).zip(of) {
                let (chat, kind) = (chats[chat].id(), &KINDS[kind]);
                let item =
                    json!({"key": format!("item-{number}"), "kind": kind.as_str(), "chat": chat});
                batches.made.push(item.to_string());
                batches.open.insert(number);
            }
            (first..batches.made.len()).collect()
        };
        let cluster = Arc::clone(self);
        tokio::spawn(async move {
            cluster.deliver(items).await;
            lock(&cluster.batches).waiting -= 1;
        });
    }

    /// Sends a delivery, or others with its items, until each is answered with 200. Some come again later.
    async fn deliver(&self, items: Vec<usize>) {
        let mut left = vec![items];
        while let Some(items) = left.pop() {
            let is_done = match self.draw(|random| random.u8(..10)) {
                // Twice at once, as after an answer that was lost.
                0 => {
                    let (first, second) = join(self.attempt(&items), self.attempt(&items)).await;
                    first || second
                }
                _ => self.attempt(&items).await,
            };
            if is_done && self.draw(|random| random.u8(..5)) > 0 {
                continue;
            }
            sleep(self.seconds(60)).await;
            match self.draw(|random| random.u8(..3)) {
                0 => left.extend(self.cut(&items)),
                _ => left.push(items),
            }
        }
    }

    /// Has two deliveries exchange items.
    fn cut(&self, items: &[usize]) -> impl Iterator<Item = Vec<usize>> + use<> {
        let batches = lock(&self.batches);
        let (other, at, at_other) = self.draw(|random| {
            let other = &batches.sent[random.usize(..batches.sent.len())];
            let [at, at_other] = [items, other].map(|it| random.usize(..=it.len()));
            (other, at, at_other)
        });
        let ((one, two), (three, four)) = (items.split_at(at), other.split_at(at_other));
        let cut = [[one, four].concat(), [three, two].concat()];
        cut.into_iter().filter(|items| !items.is_empty())
    }

    /// Sends a delivery once. Returns whether it is answered with 200 before the sender gives up.
    async fn attempt(&self, items: &[usize]) -> bool {
        let request = {
            let mut batches = lock(&self.batches);
            batches.attempts += 1;
            batches.sent.push(items.to_vec());
            batches.request(items, batches.attempts)
        };
        let began = Instant::now();
        let status = timeout(SENDER_WAITS, self.balance(request)).await;
        let mut batches = lock(&self.batches);
        if status == Ok(StatusCode::OK) {
            for item in items {
                let key = digest(format!("item-{item}").as_bytes());
                self.history.write(Entry::Answered { key });
                batches.open.remove(item);
            }
            return true;
        }
        let ended = Instant::now();
        let text = format!("{status:?} to the items {items:?}");
        batches.failures.push(Failure { began, ended, text });
        false
    }
}
