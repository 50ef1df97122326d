//! Searches through all events in the background, whose progress pages show.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout};
use tower_webhook::inbox::{EventId, EventState, EventSummary, Filter, Inbox, Page, Seen};
use tower_webhook::store::StoreError;
use tower_webhook::telemetry::Chain;

use super::lock;
use super::reading::{SEARCH, read};

/// How long a page waits for the end of a scan, so that a small inbox is searched at once.
const WAIT: Duration = Duration::from_millis(100);

/// A scan ends when no page has asked for it for so long.
const UNASKED: Duration = Duration::from_secs(10);

/// How many scans are known, and how many go on at a time.
const MOST: usize = 16;
const AT_ONCE: usize = 2;

/// The number of events that are read at a time.
const STEP: usize = 512;

/// The number of chats that a scan names.
pub(super) const MOST_CHATS: usize = 1_000;

/// What a scan looks for.
#[derive(Clone)]
pub(super) struct Wanted {
    pub(super) filter: Filter,
    /// The last event that is looked at.
    pub(super) newest: EventId,
    /// What a person has seen, if only that is wanted.
    pub(super) seen: Option<Seen>,
}

/// How far a scan is.
#[derive(Clone, Default)]
pub(super) struct Found {
    pub(super) events: u64,
    pub(super) states: BTreeMap<&'static str, u64>,
    /// The events of each chat, up to [`MOST_CHATS`].
    pub(super) chats: BTreeMap<String, u64>,
    /// Events whose chat is not known.
    pub(super) without_chat: u64,
    /// How much of the inbox was searched.
    pub(super) percent: u8,
    pub(super) is_done: bool,
    pub(super) error: Option<String>,
}

/// The scans of a console.
#[derive(Default)]
pub(super) struct Scans(Arc<Mutex<VecDeque<Scan>>>);

struct Scan {
    name: String,
    found: watch::Receiver<Found>,
    began: Instant,
    asked: Arc<Mutex<Instant>>,
}

impl Scans {
    /// Begins a scan, or looks how far it is. What was found is looked for again if that was so long ago.
    pub(super) async fn of(
        &self,
        inbox: &Inbox,
        wanted: &Wanted,
        again: Option<Duration>,
    ) -> Found {
        let name = wanted.name();
        let (mut found, last) = {
            let mut scans = lock(&self.0);
            let known = scans.iter().position(|scan| scan.name == name);
            let known = known.and_then(|at| scans.remove(at));
            let last = known.as_ref().map(|scan| scan.found.borrow().clone());
            let is_over = |scan: &Scan| scan.found.has_changed().is_err();
            let is_old = |scan: &Scan| again.is_some_and(|age| scan.began.elapsed() >= age);
            let known =
                known.filter(|scan| !is_over(scan) || !is_old(scan) && scan.found.borrow().is_done);
            let scan = known.unwrap_or_else(|| Scan::begin(name, inbox.clone(), wanted.clone()));
            *lock(&scan.asked) = Instant::now();
            let found = scan.found.clone();
            scans.push_back(scan);
            if scans.len() > MOST {
                scans.pop_front();
            }
            (found, last)
        };
        let is_done = found.wait_for(|found| found.is_done || found.error.is_some());
        // Otherwise it goes on.
        let _ = timeout(WAIT, is_done).await;
        let found = found.borrow().clone();
        // What was found before is shown until it is found again.
        match last.filter(|last| last.is_done && again.is_some() && !found.is_done) {
            Some(last) => last,
            None => found,
        }
    }

    /// What a scan has found, if it has ended.
    pub(super) fn ended(&self, wanted: &Wanted) -> Option<Found> {
        let (name, scans) = (wanted.name(), lock(&self.0));
        let found = scans.iter().find(|scan| scan.name == name)?.found.borrow();
        Some(found.clone()).filter(|found| found.is_done)
    }
}

impl Wanted {
    fn name(&self) -> String {
        format!("{:?} {} {:?}", self.filter, self.newest, self.seen)
    }

    fn has(&self, event: &EventSummary) -> bool {
        event.id <= self.newest && self.seen.is_none_or(|seen| seen.has(event))
    }
}

impl Scan {
    fn begin(name: String, inbox: Inbox, wanted: Wanted) -> Self {
        static TURNS: Semaphore = Semaphore::const_new(AT_ONCE);
        let (sender, found) = watch::channel(Found::default());
        let asked = Arc::new(Mutex::new(Instant::now()));
        let last = Arc::clone(&asked);
        tokio::spawn(async move {
            let _turn = TURNS.acquire().await;
            let is_asked = || lock(&last).elapsed() < UNASKED;
            if let Err(error) = search(&inbox, &wanted, &sender, is_asked).await {
                let error = Chain(&error).to_string();
                tracing::warn!(reason = error, "the console could not search the inbox");
                sender.send_modify(|found| found.error = Some(error));
            }
        });
        Self {
            name,
            found,
            began: Instant::now(),
            asked,
        }
    }
}

async fn search(
    inbox: &Inbox,
    wanted: &Wanted,
    found: &watch::Sender<Found>,
    is_asked: impl Fn() -> bool,
) -> Result<(), StoreError> {
    let first = Page::oldest(1).within(SEARCH);
    let first = read(inbox.list(&Filter::default(), first)).await?;
    let oldest = first.events.first().map_or(0, |event| event.id.0);
    let mut page = Page::oldest(STEP).within(SEARCH);
    loop {
        let listed = read(inbox.list(&wanted.filter, page)).await?;
        page.after = listed.next(STEP).filter(|after| *after < wanted.newest);
        found.send_modify(|found| {
            for event in listed.events.iter().filter(|event| wanted.has(event)) {
                found.add(event);
            }
            found.is_done = page.after.is_none();
            let reached = page.after.unwrap_or(wanted.newest).0.saturating_sub(oldest);
            let all = wanted.newest.0.saturating_sub(oldest).max(1);
            let percent = (i128::from(reached) * 100 / i128::from(all)).clamp(0, 100);
            found.percent = u8::try_from(percent).unwrap_or(100);
        });
        if page.after.is_none() || !is_asked() {
            return Ok(());
        }
        tokio::task::yield_now().await;
    }
}

impl Found {
    fn add(&mut self, event: &EventSummary) {
        self.events += 1;
        *self.states.entry(event.state.name()).or_default() += 1;
        match &event.chat {
            None => self.without_chat += 1,
            Some(chat) => {
                let is_full = self.chats.len() >= MOST_CHATS;
                match self.chats.get_mut(chat) {
                    Some(events) => *events += 1,
                    None if is_full => {}
                    None => {
                        self.chats.insert(chat.clone(), 1);
                    }
                }
            }
        }
    }

    pub(super) fn of(&self, state: EventState) -> u64 {
        self.states.get(state.name()).copied().unwrap_or_default()
    }
}
