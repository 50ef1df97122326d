//! A process accepts deliveries of three items, and single events beside them, and handles them. It is killed and started
//! again and again. Of each delivery, all items are stored, or none; what was acknowledged is handled, not again after its
//! settlement, and what is in one lane in its order. Of the deliveries that were not acknowledged, some come again, alone
//! or together with the one before.
//!
//! The control: a queue that stores the items of a delivery one after another is found.
//!
//! `BATCH_KILLS=500` sets the number of kills for each queue, which defaults to 6.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use fastrand::Rng;
use futures_util::future::{join, join_all};
use http::HeaderValue;
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgPoolOptions;
use tokio::time::{Instant, sleep};
use tower_webhook::inbox::internal::{
    Accepted, Lane, NewEvent, Settled, Settlement, Take, TakenEvent, in_delivery,
};
use tower_webhook::inbox::{EventState, Filter, Page, Queue};
use tower_webhook::postgres::PostgresQueue;
use tower_webhook::spool::{Spool, Spooled};
use tower_webhook::sqlite::SqliteQueue;
use tower_webhook::store::{EventKey, StoreError};
use tower_webhook::{EventKind, IdempotencyKey, Item};

use support::SECOND;
use support::postgres::{PostgresServer, Stop};
use support::program::{Peer, say};
use support::queue::{Calls, FaultyQueue, new_event, take};
use support::scratch::memory;

/// Senders, each of which sends one delivery after another.
const SENDERS: usize = 5;
const LEASE: Duration = Duration::from_millis(400);
/// After so many deliveries, a sender and its shared items go on in other lanes, so that few wait for a lease.
const LANE: usize = 12;

#[tokio::test(flavor = "multi_thread")]
async fn killed_processes_store_deliveries_whole_with_sqlite() {
    const TEST: &str = "killed_processes_store_deliveries_whole_with_sqlite";
    let open = |place: &str| SqliteQueue::open(format!("{place}/webhooks.db")).unwrap();
    if let Some(life) = Life::of_this_process() {
        return life.live(open(&life.place).into(), None).await;
    }
    let dir = memory();
    let mut parent = Parent::new(TEST, dir.path().to_str().unwrap());
    parent.kill(kills(), async |_| {}).await;
    parent.expect_none(&open(&parent.place).into()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_processes_store_deliveries_whole_with_postgres() {
    const TEST: &str = "killed_processes_store_deliveries_whole_with_postgres";
    let open = |place: &str| PostgresQueue::new(PgPoolOptions::new().connect_lazy(place).unwrap());
    if let Some(life) = Life::of_this_process() {
        return life.live(open(&life.place).into(), None).await;
    }
    // Only processes end.
    let mut server = PostgresServer::start_with(&["fsync=off"]);
    let mut parent = Parent::new(TEST, &server.url());
    let queue = open(&parent.place);
    queue.migrate().await.unwrap();
    let restart = async |number| {
        if number % 8 == 3 {
            server.stop(Stop::Immediate);
            server.restart();
        }
    };
    parent.kill(kills(), restart).await;
    parent.expect_none(&queue.into()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_processes_store_deliveries_whole_with_a_spool() {
    const TEST: &str = "killed_processes_store_deliveries_whole_with_a_spool";
    let open = |place: &str| SqliteQueue::open(format!("{place}/webhooks.db")).unwrap();
    if let Some(life) = Life::of_this_process() {
        let database = FaultyQueue::new(open(&life.place));
        let spool = Spool::new(format!("{}/spool.db", life.place)).on_any_disk();
        let spooled = spool.open(database.clone()).await.unwrap();
        let queue = spooled.clone().into();
        return life.live(queue, Some((spooled, database))).await;
    }
    let dir = memory();
    let mut parent = Parent::new(TEST, dir.path().to_str().unwrap());
    parent.kill(kills(), async |_| {}).await;
    assert!(parent.spooled > 0, "nothing went to the file");
    parent.expect_none(&open(&parent.place).into()).await;
}

/// It stores the items of a delivery in transactions of their own.
#[derive(Clone)]
struct OneByOne(SqliteQueue);

#[async_trait]
impl Calls for OneByOne {
    fn inner(&self) -> Result<Queue, StoreError> {
        Ok(self.0.clone().into())
    }

    async fn accept(
        &self,
        events: Arc<[NewEvent]>,
        take: Option<&Take>,
    ) -> Result<Vec<Accepted>, StoreError> {
        let mut accepted = Vec::new();
        for event in &*events {
            accepted.push(self.0.accept_one(event.clone(), take).await?);
        }
        Ok(accepted)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn items_that_are_stored_one_by_one_are_found() {
    const TEST: &str = "items_that_are_stored_one_by_one_are_found";
    let open = |place: &str| SqliteQueue::open(format!("{place}/webhooks.db")).unwrap();
    if let Some(life) = Life::of_this_process() {
        return life.live(OneByOne(open(&life.place)).shared(), None).await;
    }
    let dir = memory();
    let mut parent = Parent::new(TEST, dir.path().to_str().unwrap());
    for _ in 0..20 {
        parent.kill(3, async |_| {}).await;
        let violations = parent.violations(&open(&parent.place).into()).await;
        if violations.iter().any(|it| it.contains("in part")) {
            return;
        }
        assert!(violations.is_empty(), "{violations:#?}");
    }
    panic!("it was not found");
}

fn kills() -> usize {
    std::env::var("BATCH_KILLS").map_or(6, |kills| kills.parse().unwrap())
}

/// An event: its sender, the number of its delivery, and its place in it.
type Number = (usize, usize, usize);

fn key_of((sender, delivery, place): Number) -> String {
    format!("{sender}-{delivery}-{place}")
}

fn number_of(key: &str) -> Option<Number> {
    let mut numbers = key.split('-').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??, numbers.next()??))
}

/// Every fourth delivery is a single event.
fn count_of(delivery: usize) -> usize {
    if delivery % 4 == 3 { 1 } else { 3 }
}

/// The second item is in a lane of all senders.
fn chat_of((sender, delivery, place): Number) -> String {
    let part = delivery / LANE;
    match place {
        1 => format!("shared-{part}"),
        _ => format!("{sender}-{part}"),
    }
}

fn event_of(number: Number) -> NewEvent {
    let (key, chat) = (key_of(number), chat_of(number));
    let body = format!(r#"{{"chat":"{chat}","key":"{key}"}}"#);
    let event = new_event(EventKind::CHAT_RATED, body.clone());
    let raw = IdempotencyKey::new(HeaderValue::from_str(&key).unwrap());
    let mut delivery = event.delivery.with_key(raw);
    let count = count_of(number.1) as u32;
    if count > 1 {
        let item = Item::new(number.2 as u32 + 1, count);
        let of = number.0 * 1_000_000 + number.1;
        delivery = delivery.with_item(in_delivery(item, of as i64));
    }
    NewEvent {
        delivery,
        key: Some(EventKey::new("", key.as_bytes(), body.as_bytes())),
        lane: Some(Lane::of_chat(&chat)),
        chat: Some(chat),
        ..event
    }
}

fn numbers_of(sender: usize, delivery: usize) -> impl Iterator<Item = Number> {
    (0..count_of(delivery)).map(move |place| (sender, delivery, place))
}

/// What the process that is killed is to do.
#[derive(Serialize, Deserialize)]
struct Life {
    place: String,
    /// By sender.
    next: Vec<Next>,
    /// It sends nothing else, and ends when all is handled.
    is_last: bool,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
struct Next {
    delivery: usize,
    /// It has been sent before, without an answer.
    is_sent: bool,
}

impl Life {
    fn of_this_process() -> Option<Self> {
        Some(serde_json::from_str(&Peer::argument()?).unwrap())
    }

    async fn live(&self, queue: Queue, spool: Option<(Spooled, FaultyQueue)>) {
        say("lives");
        let senders = (0..SENDERS).map(|sender| self.send(&queue, sender));
        let handlers = (0..3).map(|_| self.handle(&queue, spool.as_ref().map(|(it, _)| it)));
        let goes_away = async {
            let Some((_, database)) = spool.as_ref().filter(|_| !self.is_last) else {
                return;
            };
            for is_down in [false, true].into_iter().cycle() {
                database.faults.is_down.store(is_down, Ordering::SeqCst);
                sleep(Duration::from_millis(fastrand::u64(..400))).await;
            }
        };
        let work = join(join_all(senders), join_all(handlers));
        join(work, goes_away).await;
    }

    async fn send(&self, queue: &Queue, sender: usize) {
        let mut next = self.next[sender];
        while next.is_sent || !self.is_last {
            let delivery = next.delivery;
            let mut numbers: Vec<_> = numbers_of(sender, delivery).collect();
            if next.is_sent && delivery > 0 && fastrand::bool() {
                numbers.splice(..0, numbers_of(sender, delivery - 1));
            }
            let events: Arc<[_]> = numbers.iter().copied().map(event_of).collect();
            let take = fastrand::bool().then(|| take(LEASE));
            say(format!("sends {sender} {delivery}"));
            let (accepted, asked) = loop {
                let asked = Instant::now();
                match queue.accept(Arc::clone(&events), take.as_ref()).await {
                    Ok(accepted) => break (accepted, asked),
                    Err(_) => sleep(Duration::from_millis(5)).await,
                }
            };
            if accepted.len() != numbers.len() {
                say(format!("wrong {numbers:?}: {accepted:?}"));
            }
            let mut taken = None;
            for accepted in accepted {
                match accepted {
                    Accepted::New { taken: it, .. } => taken = taken.or(it),
                    Accepted::Spooled => say("spooled"),
                    Accepted::Duplicate { same_body: true } => {}
                    other => say(format!("wrong {numbers:?}: {other:?}")),
                }
            }
            say(format!("stored {sender} {delivery}"));
            if let Some(taken) = taken {
                attempt(queue, *taken, asked).await;
            }
            next = Next {
                delivery: delivery + 1,
                is_sent: false,
            };
            sleep(Duration::from_millis(fastrand::u64(..60))).await;
        }
    }

    async fn handle(&self, queue: &Queue, spooled: Option<&Spooled>) {
        loop {
            let asked = Instant::now();
            let claims = queue.claim_of(&take(LEASE), 8, 8).await;
            let events = claims.map_or_else(|_| Vec::new(), |claims| claims.events);
            if events.is_empty() {
                if self.is_last && self.is_done(queue, spooled).await {
                    return;
                }
                sleep(Duration::from_millis(5)).await;
            }
            for event in events {
                attempt(queue, event, asked).await;
            }
        }
    }

    async fn is_done(&self, queue: &Queue, spooled: Option<&Spooled>) -> bool {
        if let Some(spooled) = spooled
            && spooled.flush(SECOND).await > 0
        {
            return false;
        }
        let stats = queue.stats().await;
        stats.is_ok_and(|stats| stats.unsettled() == 0)
    }
}

/// Handles an event, and those that are next in its lane.
async fn attempt(queue: &Queue, mut event: TakenEvent, mut asked: Instant) {
    // Another attempt may have begun since.
    while asked.elapsed() < LEASE / 2 {
        let key = event.delivery.key().unwrap().to_string();
        let expected = event_of(number_of(&key).unwrap()).delivery;
        if event.delivery.body() != expected.body() || event.delivery.item() != expected.item() {
            say(format!("wrong {:?}, not {expected:?}", event.delivery));
        }
        say(format!("starts {key}"));
        asked = Instant::now();
        let next = fastrand::bool().then(|| take(LEASE));
        let settled = queue.settle(&event.lease, &Settlement::Handled, next.as_ref());
        let Ok(Settled::Ended(next)) = settled.await else {
            return;
        };
        say(format!("settled {key}"));
        match next {
            Some(next) => event = *next,
            None => return,
        }
    }
}

/// The process that kills, and what it has heard.
struct Parent {
    test: &'static str,
    place: String,
    random: Rng,
    kills: usize,
    /// By sender, which deliveries were acknowledged.
    sent: [Vec<bool>; SENDERS],
    spooled: usize,
    starts: Vec<Number>,
    settled: HashSet<Number>,
    found: Vec<String>,
}

impl Parent {
    fn new(test: &'static str, place: &str) -> Self {
        Self {
            test,
            place: place.to_owned(),
            random: Rng::new(),
            kills: 0,
            sent: Default::default(),
            spooled: 0,
            starts: Vec::new(),
            settled: HashSet::new(),
            found: Vec::new(),
        }
    }

    /// Kills processes, and lets the last one handle what is left.
    async fn kill(&mut self, kills: usize, mut meanwhile: impl AsyncFnMut(usize)) {
        for number in 0..kills {
            let mut peer = self.start(false);
            while peer.hear() != "lives" {}
            let lives = Duration::from_millis(self.random.u64(50..700));
            let began = Instant::now();
            meanwhile(number).await;
            // While a delivery is on its way.
            loop {
                let line = peer.hear();
                self.hear(&line);
                if began.elapsed() > lives && line.starts_with("sends") {
                    break;
                }
            }
            sleep(Duration::from_micros(self.random.u64(..2_000))).await;
            peer.kill();
            while let Some(line) = peer.line() {
                self.hear(&line);
            }
        }
        self.kills += kills;
        for line in self.start(true).end() {
            self.hear(&line);
        }
    }

    fn start(&mut self, is_last: bool) -> Peer {
        let mut next = Vec::new();
        for sent in &self.sent {
            // Half of those without an answer never come again.
            let is_sent = sent.last() == Some(&false) && self.random.bool();
            let delivery = sent.len() - usize::from(is_sent);
            next.push(Next { delivery, is_sent });
        }
        let life = Life {
            place: self.place.clone(),
            next,
            is_last,
        };
        let argument = serde_json::to_string(&life).unwrap();
        Peer::start(Peer::command(module_path!(), self.test, argument))
    }

    fn hear(&mut self, line: &str) {
        let (what, of) = line.split_once(' ').unwrap_or((line, ""));
        let delivery = || {
            let (sender, delivery) = of.split_once(' ').unwrap();
            let sender: usize = sender.parse().unwrap();
            (sender, delivery.parse::<usize>().unwrap())
        };
        match what {
            "sends" => {
                let (sender, delivery) = delivery();
                let sent = &mut self.sent[sender];
                if sent.len() == delivery {
                    sent.push(false);
                }
            }
            "stored" => {
                let (sender, delivery) = delivery();
                self.sent[sender][delivery] = true;
            }
            "starts" => {
                let number = number_of(of).unwrap();
                if self.settled.contains(&number) {
                    let again = format!("{of} was handled again after its settlement");
                    self.found.push(again);
                }
                self.starts.push(number);
            }
            "settled" => drop(self.settled.insert(number_of(of).unwrap())),
            "spooled" => self.spooled += 1,
            "lives" => {}
            _ => self.found.push(line.to_owned()),
        }
    }

    async fn violations(&self, queue: &Queue) -> Vec<String> {
        let mut found = self.found.clone();
        let page = Page::oldest(1_000_000);
        let listed = queue.list(&Filter::default(), page).await.unwrap();
        // By number, the place in the order of acceptance.
        let mut stored = HashMap::new();
        for (at, event) in listed.events.iter().enumerate() {
            let key = event.key.as_ref().unwrap().to_string();
            let number = number_of(&key).unwrap();
            if stored.insert(number, at).is_some() {
                found.push(format!("{key} was stored twice"));
            }
            if event.state != EventState::Handled {
                found.push(format!("{key} is {}", event.state));
            }
            if self.sent[number.0].len() <= number.1 {
                found.push(format!("{key} was never sent"));
            }
        }
        let (mut acknowledged, mut unknown) = (0, [0; 2]);
        for (sender, sent) in self.sent.iter().enumerate() {
            // By lane, the last event of the deliveries before.
            let mut last = HashMap::new();
            for (delivery, is_acknowledged) in sent.iter().enumerate() {
                let places = numbers_of(sender, delivery).map(|it| stored.get(&it).copied());
                let places: Vec<_> = places.collect();
                let there = places.iter().flatten().count();
                match is_acknowledged {
                    true if there < places.len() => found.push(format!(
                        "{sender}-{delivery} was acknowledged, and is stored in part or not at all: {places:?}"
                    )),
                    true => acknowledged += 1,
                    false if there == 0 || there == places.len() => {
                        unknown[usize::from(there > 0)] += 1;
                    }
                    false => found.push(format!("{sender}-{delivery} is stored in part: {places:?}")),
                }
                // They are in one lane.
                if places.first() > places.last() {
                    found.push(format!(
                        "{sender}-{delivery} is in another order: {places:?}"
                    ));
                }
                // A server may still store one whose sender was killed, beside the next one.
                let numbers = numbers_of(sender, delivery).filter(|_| *is_acknowledged);
                for (number, place) in numbers.zip(&places) {
                    let before = last.insert(chat_of(number), *place).flatten();
                    if before > *place {
                        found.push(format!("{} is before what was sent first", key_of(number)));
                    }
                }
            }
        }
        let mut last = HashMap::new();
        for number in &self.starts {
            let place = stored.get(number).copied();
            let before = last.insert(chat_of(*number), place).flatten();
            if place.is_none() || before > place {
                found.push(format!(
                    "{} started late: {before:?}, {place:?}",
                    key_of(*number)
                ));
            }
        }
        let started: HashSet<_> = self.starts.iter().collect();
        let never = stored.keys().filter(|number| !started.contains(number));
        found.extend(never.map(|number| format!("{} was never handled", key_of(*number))));
        println!(
            "{} kills: {acknowledged} deliveries acknowledged, {} others stored whole and {} not at all; {} events, {} \
             attempts, {} spooled",
            self.kills,
            unknown[1],
            unknown[0],
            stored.len(),
            self.starts.len(),
            self.spooled,
        );
        found
    }

    async fn expect_none(&self, queue: &Queue) {
        let violations = self.violations(queue).await;
        let number = violations.len();
        let first = &violations[..number.min(20)];
        assert!(violations.is_empty(), "{number} violations: {first:#?}");
        let acknowledged = self.sent.iter().flatten().filter(|it| **it).count();
        assert!(
            acknowledged > 5 * self.kills,
            "there was no load: {acknowledged}"
        );
    }
}
