//! Everything that a queue and a store do, so that the server plans it.

use std::collections::BTreeSet;
use std::slice;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use http::HeaderMap;
use sqlx::postgres::PgPool;

use super::super::PostgresQueue;
use super::super::database::Database;
use crate::delivery::{Item, RawDelivery};
use crate::event::EventKind;
use crate::inbox::actions::{ActionKind, BulkStep, By, NewBulk, Which};
use crate::inbox::event::{
    EventId, EventState, Failure, Kinds, Lane, NewEvent, Settlement, Take, TakenEvent,
};
use crate::inbox::handlers::{NewNote, Retired};
use crate::inbox::queue::{Accepted, Queue};
use crate::inbox::records::AcceptOne;
use crate::inbox::records::{Filter, Page};
use crate::postgres::PostgresStore;
use crate::postgres::engine::Tables;
use crate::postgres::tests::database::execute;
use crate::route::Scope;
use crate::store::{Claim, EventKey, Store};
use crate::telemetry::{Count, CountsOf, Series, minute_of};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(60 * 60);

/// Everything that a queue and a store do.
pub(super) struct Exercise {
    pool: PgPool,
    queue: Queue,
    database: Arc<Database>,
    store: PostgresStore,
    pub(super) round: u64,
}

impl Exercise {
    pub(super) async fn new(pool: PgPool, round: u64) -> Self {
        Self {
            queue: PostgresQueue::new(pool.clone()).into(),
            database: Arc::new(Database::new(Tables::new(pool.clone()))),
            store: PostgresStore::new(pool.clone()),
            pool,
            round,
        }
    }

    fn take(&self) -> Take {
        Take {
            lease: MINUTE,
            kinds: Kinds::all(),
        }
    }

    fn event(&self, number: u64, chat: &str) -> NewEvent {
        let id = self.round * 100 + number;
        NewEvent {
            key: Some(EventKey::new("", &id.to_be_bytes(), b"{}")),
            guard: Some(EventKey::new("guard", &id.to_be_bytes(), b"{}")),
            lane: Some(Lane::of_chat(chat)),
            chat: Some(chat.to_owned()),
            delivery: RawDelivery::new(EventKind::CHAT_RATED, "{}").with_headers(HeaderMap::new()),
            retain: HOUR,
            rejects_changed_body: false,
            dead: None,
        }
    }

    async fn accept(&self, event: NewEvent, take: bool) -> (EventId, Option<TakenEvent>) {
        let take = take.then(|| self.take());
        match self
            .queue
            .accept
            .accept_one(event, take.as_ref())
            .await
            .unwrap()
        {
            Accepted::New { id, taken } => (id, taken.map(|taken| *taken)),
            other => panic!("{other:?}"),
        }
    }

    pub(super) async fn everything(&self) {
        self.events().await;
        self.persons().await;
        self.lists().await;
        self.keys().await;
        self.others().await;
    }

    async fn events(&self) {
        let (queue, take) = (&self.queue, self.take());
        let failure = || Failure::new("no-luck", "no luck");
        let retry = |blocks_lane| Settlement::Retry {
            after: Duration::ZERO,
            failure: Some(failure()),
            counts: true,
            is_slowed: false,
            blocks_lane,
        };
        let dead = |hold_lane| Settlement::Dead {
            failure: failure(),
            hold_lane,
        };
        let ends = [
            Settlement::Handled,
            Settlement::Ignored,
            Settlement::Discarded(failure()),
            Settlement::Released,
            retry(true),
            retry(false),
            dead(false),
            dead(true),
        ];
        for (number, end) in ends.into_iter().enumerate() {
            let chat = format!("{} {number}", self.round);
            let number = number as u64;
            let event = self.event(number, &chat);
            let (_, taken) = self.accept(event.clone(), true).await;
            let again = queue.accept.accept_one(event, Some(&take)).await.unwrap();
            assert!(matches!(again, Accepted::Duplicate { .. }), "{again:?}");
            self.accept(self.event(20 + number, &chat), false).await;
            let lease = taken.unwrap().lease;
            queue.settle.extend(&[lease], MINUTE).await.unwrap();
            queue
                .settle
                .settle(&lease, &end, Some(&take))
                .await
                .unwrap();
        }
        let from_the_start = NewEvent {
            dead: Some(failure()),
            ..self.event(40, "dead")
        };
        self.accept(from_the_start, false).await;
        let item = |number: u32| NewEvent {
            delivery: RawDelivery::new(EventKind::CHAT_RATED, "{}")
                .with_item(Item::new(number, 3).in_delivery(self.round.cast_signed())),
            ..self.event(90 + u64::from(number), "batch")
        };
        // The second time, the guard is known.
        for _ in 0..2 {
            let items: Arc<[_]> = (1..4).map(item).collect();
            let accepted = queue.accept.accept(items, Some(&take)).await.unwrap();
            assert_eq!(accepted.len(), 3, "{accepted:?}");
            if let Accepted::New { id, .. } = accepted[0] {
                let record = queue.list.get(id).await.unwrap().unwrap();
                assert_eq!(record.others.len(), 2);
            }
        }
        let new = NewEvent {
            delivery: RawDelivery::new(format!("kind-{}", self.round).parse().unwrap(), "{}"),
            ..self.event(41, "new")
        };
        self.accept(new, false).await;
        let brief = NewEvent {
            retain: Duration::ZERO,
            ..self.event(43, "brief")
        };
        self.accept(brief.clone(), false).await;
        let again = queue.accept.accept_one(brief, None).await.unwrap();
        assert!(matches!(again, Accepted::Duplicate { .. }), "{again:?}");
        let alone = NewEvent {
            lane: None,
            ..self.event(42, "alone")
        };
        let (alone, _) = self.accept(alone, false).await;
        assert!(queue.claim.take(alone, &take).await.unwrap().is_some());
        let mut claims = queue
            .claim
            .claim(&[take.clone().into()], 4, 2)
            .await
            .unwrap();
        self.accept(self.event(44, "named"), false).await;
        let named = Take {
            kinds: Kinds::only([EventKind::CHAT_RATED]),
            ..take
        };
        let named = queue.claim.claim(&[named.into()], 4, 2).await.unwrap();
        claims.events.extend(named.events);
        let give_up = "SELECT tower_webhook.give_up('{01234567-89ab-cdef}')";
        execute(&self.pool, give_up).await;
        self.database.locked()(BTreeSet::from([(1, 0), (0, alone.0)]))
            .await
            .unwrap();
        for taken in claims.events {
            queue
                .settle
                .settle(&taken.lease, &Settlement::Handled, None)
                .await
                .unwrap();
        }
    }

    async fn persons(&self) {
        let (queue, by) = (&self.queue, By::new("ada").because("why"));
        let mut ids = Vec::new();
        for number in 50..54 {
            let chat = format!("{} {number}", self.round);
            ids.push(self.accept(self.event(number, &chat), false).await.0);
        }
        let change = &queue.change;
        for (kind, id) in [
            ActionKind::Redrive,
            ActionKind::Discard,
            ActionKind::Redrive,
        ]
        .into_iter()
        .zip([ids[0], ids[0], ids[0]])
        {
            change.change(kind, id, None, &by).await.unwrap();
        }
        let scope = Scope::from(EventKind::CHAT_OPENED);
        for note in [Some("why"), None] {
            change.pause(&scope, note, &by).await.unwrap();
        }
        let bulk = NewBulk {
            kind: ActionKind::Redrive,
            about: String::new(),
            chat: Some("chat".to_owned()),
            rate: 0,
        };
        let number = change.begin(&bulk, &by).await.unwrap();
        let step = BulkStep {
            redrives: true,
            events: vec![(ids[1], EventState::Waiting), (ids[2], EventState::Dead)],
            from: EventId(0),
            reached: ids[2],
            is_last: false,
        };
        assert!(change.step(number, &step).await.unwrap());
        queue.list.actions(Which::Running, None, 9).await.unwrap();
        assert!(change.cancel(number, &by).await.unwrap());
        queue.list.actions(Which::All, None, 9).await.unwrap();
        queue
            .list
            .actions(Which::Of(ids[0]), None, 9)
            .await
            .unwrap();
        let chat = format!("{} 53", self.round);
        queue.forget.forget(&chat, None, &by).await.unwrap();
    }

    async fn lists(&self) {
        use EventState::{Dead, Handled, InProgress, Retrying, Waiting};
        let list = &self.queue.list;
        let event = self.event(0, "chat");
        let key = event.key.unwrap().key();
        let id = list.find(key).await.unwrap().unwrap();
        list.get(id).await.unwrap();
        let filter = Filter::default;
        let filters = [
            filter(),
            filter().kinds([EventKind::CHAT_RATED]),
            filter().states([Dead]),
            filter().states([Dead, Retrying]),
            filter().states([Waiting]),
            filter().states([InProgress]),
            filter().states([Handled]),
            filter().chat("other"),
            filter().chat("other").states([Waiting, Retrying]),
            filter().error("error"),
            filter().states([Dead]).error("error"),
            filter().changed_by(1),
            filter().states([Dead]).changed_by(1),
            filter().chat("chat-1").changed_by(1),
            Filter::failed(Some(UNIX_EPOCH), Some(UNIX_EPOCH + HOUR)),
            filter().accepted(Some(UNIX_EPOCH), Some(UNIX_EPOCH + HOUR)),
            filter().body("text"),
        ];
        for filter in filters {
            for page in [Page::oldest(20), Page::newest(20)] {
                list.list(&filter, page.within(HOUR)).await.unwrap();
            }
        }
        for chat in [None, Some("other")] {
            list.blocked_lanes(chat, None, 20).await.unwrap();
        }
    }

    async fn keys(&self) {
        let store = &self.store;
        let key =
            |number: u64| EventKey::new("inline", &(self.round * 10 + number).to_be_bytes(), b"{}");
        for number in 0..2 {
            let claim = store.claim(&key(number), MINUTE, HOUR).await.unwrap();
            let Claim::Acquired(lease) = claim else {
                panic!("{claim:?}");
            };
            store.renew(&lease, MINUTE).await.unwrap();
            store.peek(&key(number)).await.unwrap();
            match number {
                0 => store.complete(&lease, HOUR).await.unwrap(),
                _ => store.release(&lease).await.unwrap(),
            }
        }
        // Of `keys`, which is read in steps of pages.
        store.purge_some().await.unwrap();
        let (_, taken) = self.accept(self.event(60, "transaction"), true).await;
        let mut transaction = self.pool.begin().await.unwrap();
        for _ in 0..2 {
            store
                .insert(&mut transaction, &key(3), HOUR, MINUTE, MINUTE)
                .await
                .unwrap();
        }
        let number = store.number(&mut transaction, MINUTE).await.unwrap();
        let mut delivery = taken.unwrap();
        self.database.lend(&mut delivery);
        let lease = crate::postgres::lease::TransactionalLease::of(&delivery.delivery).unwrap();
        store
            .prepare_commit(&mut transaction, &number, Some(&lease))
            .await
            .unwrap();
        transaction.commit().await.unwrap();
        assert!(store.can_end(&lease).await.unwrap());
    }

    async fn others(&self) {
        let queue = &self.queue;
        queue.count.stats().await.unwrap();
        let now = minute_of(queue.count.note_counts(&[]).await.unwrap());
        let count = Count {
            process: 1,
            outcome: "failed".into(),
            ..Count::new(Series::Refused, now, self.round)
        };
        queue.count.note_counts(&[count]).await.unwrap();
        let note = NewNote {
            of: Scope::from(EventKind::CHAT_RATED),
            is_fallback: false,
            keep: HOUR,
        };
        let notes = slice::from_ref(&note);
        queue.count.note_handlers("worker", notes).await.unwrap();
        let retired = queue
            .count
            .retire(&note.of, Duration::ZERO, &By::new("ada"))
            .await;
        assert_eq!(retired.unwrap(), Retired::Ended);
        let of = CountsOf::new([Series::Refused], now - 60..now + 1);
        queue.count.counts(&of).await.unwrap();
        queue.measure.size().await.unwrap();
        queue.measure.tables().await.unwrap();
        let steady = "UPDATE tower_webhook.clock SET steady_since = 0";
        execute(&self.pool, steady).await;
        queue.purge.purge(HOUR).await.unwrap();
    }
}
