//! The events in the file go on to the queue, those of a chat in their order.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::{sleep, timeout};

use super::{Shared, event, within};
use crate::error::Chain;
use crate::inbox::actions::{ActionKind, By, Which, chat_digest};
use crate::inbox::event::{
    EventId, EventState, Failure, Kinds, NewEvent, Settlement, Share, Take, TakenEvent,
};
use crate::inbox::queue::{
    Accepted, ChangeEvents, ClaimEvents, CountEvents, ListEvents, PurgeEvents, Settled,
};
use crate::inbox::records::{Filter, Page};
use crate::lock::lock;
use crate::store::StoreError;

/// How often the queue is asked whether it can be reached.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// How many chats are forwarded at once, and how many events of each in a row.
const CHATS: usize = 128;
const TURN: usize = 32;

/// The time limit of an acceptance for which nobody waits.
const LIMIT: Duration = Duration::from_secs(10);

/// Of an event that is being forwarded. No other process has the file, and this one ends the leases that it has left.
const LEASE: Duration = Duration::from_secs(24 * 60 * 60);

/// The rounds in which an event fails while others are accepted, after which they no longer wait for it.
const MOST_REFUSALS: u32 = 10;

/// The result of forwarding what can be forwarded now.
#[derive(Default)]
struct Round {
    accepted: usize,
    failed: Option<(EventId, StoreError)>,
    next_due: Option<Duration>,
}

/// Chats that were forgotten, by their digests, and when.
type ForgottenChats = HashMap<String, SystemTime>;

/// Forwards events for as long as the spool is open.
pub(super) async fn run(shared: Arc<Shared>) {
    let mut refusals = HashMap::new();
    loop {
        if shared.is_due() {
            let _ = shared.measure().await;
        }
        if shared.gate.is_open() {
            sleep(ASK_EVERY).await;
            if let Err(error) = shared.ask().await {
                shared.open_breaker(&error);
                continue;
            }
        } else if !shared.gate.is_busy() {
            let _ = timeout(ASK_EVERY, shared.gate.stored.notified()).await;
            continue;
        }
        let round = match shared.forward(&refusals).await {
            Ok(round) => round,
            Err(error) => {
                tracing::warn!(
                    reason = Chain(&error).to_string(),
                    "the spool cannot be read or written: this is retried each second"
                );
                sleep(ASK_EVERY).await;
                continue;
            }
        };
        match round.failed {
            None => {
                shared.close_breaker();
                refusals.clear();
            }
            Some((id, error)) => {
                if round.accepted > 0 {
                    *refusals.entry(id).or_insert(0) += 1;
                }
                shared.open_breaker(&error);
                continue;
            }
        }
        if round.accepted == 0 && shared.gate.is_busy() {
            let pause = round.next_due.unwrap_or(ASK_EVERY).min(ASK_EVERY);
            let _ = timeout(pause, shared.gate.stored.notified()).await;
        }
    }
}

impl Shared {
    fn is_due(&self) -> bool {
        let at = lock(&self.measured).at;
        at.is_none_or(|at| at.elapsed() >= ASK_EVERY)
    }

    /// Has events tried again that the queue has refused.
    pub(super) async fn retry_refused(&self) -> Result<(), StoreError> {
        let filter = Filter::default().states([EventState::Dead]);
        let refused = self.file.list(&filter, Page::oldest(usize::MAX)).await?;
        let by = by();
        for event in refused.events {
            let redriven =
                self.with_room(|| self.file.change(ActionKind::Redrive, event.id, None, &by));
            redriven.await?;
        }
        Ok(())
    }

    /// Forwards what can be forwarded now. Errors are those of the file.
    async fn forward(&self, refusals: &HashMap<EventId, u32>) -> Result<Round, StoreError> {
        let _forwarding = self.forwarding.lock().await;
        let since = self.gate.quiet();
        if self.holds_leases.swap(true, Ordering::Relaxed) {
            self.with_room(|| self.file.expire_leases()).await?;
        }
        let take = Take {
            lease: LEASE,
            kinds: Kinds::all(),
        };
        let of = [Share::from(take.clone())];
        let claims = self.with_room(|| self.file.claim(&of, CHATS, CHATS));
        let claims = claims.await?;
        let mut round = Round {
            next_due: claims.next_due,
            ..Round::default()
        };
        if claims.events.is_empty() {
            if let Some(since) = since
                && self.file.stats().await?.unsettled() == 0
            {
                // It waits for the disk, so that the settlements before it are there, too.
                let identity = self.identity.load(Ordering::Relaxed);
                self.with_room(|| self.file.set_spool_of(identity)).await?;
                self.gate.empty(since);
                lock(&self.measured).counted = None;
            }
            self.holds_leases.store(false, Ordering::Relaxed);
            return Ok(round);
        }
        let oldest = claims.events.iter().map(event::spooled_at).min();
        let forgotten = match self.forgotten(oldest).await {
            Ok(forgotten) => forgotten,
            Err(error) => {
                round.failed = Some((claims.events[0].lease.id, error));
                return Ok(round);
            }
        };
        let chats = claims.events.into_iter();
        let mut chats: FuturesUnordered<_> = chats
            .map(|first| self.forward_chat(first, &take, &forgotten, refusals))
            .collect();
        while let Some(chat) = chats.next().await {
            let (accepted, failed) = chat?;
            round.accepted += accepted;
            round.failed = round.failed.or(failed);
        }
        drop(chats);
        // Those that could not be forwarded are taken still.
        let is_clean = round.failed.is_none();
        self.holds_leases.store(!is_clean, Ordering::Relaxed);
        while self.with_room(|| self.file.purge(Duration::ZERO)).await? {}
        Ok(round)
    }

    /// Forwards events of a chat, up to one that fails. Returns how many there were.
    async fn forward_chat(
        &self,
        first: TakenEvent,
        take: &Take,
        forgotten: &ForgottenChats,
        refusals: &HashMap<EventId, u32>,
    ) -> Result<(usize, Option<(EventId, StoreError)>), StoreError> {
        let mut next = Some(first);
        let mut accepted = 0;
        while let Some(taken) = next {
            let id = taken.lease.id;
            let is_refused = refusals
                .get(&id)
                .is_some_and(|tries| *tries >= MOST_REFUSALS);
            let event = event::unpack(&taken);
            let keys = event.as_ref().map(event::keys).unwrap_or_default();
            let settlement = match self.forward_one(&taken, event, forgotten).await {
                Ok(settlement) => settlement,
                Err(error) if is_refused => refused(id, &Chain(&error).to_string()),
                Err(error) => return Ok((accepted, Some((id, error)))),
            };
            accepted += 1;
            let next_of_chat = (accepted < TURN).then_some(take);
            let (file, lease) = (&self.file, &taken.lease);
            let settle = || file.forwarded(lease, &settlement, &keys, next_of_chat);
            let settled = self.with_room(settle).await?;
            self.gate.forwarded();
            next = match settled {
                Settled::Ended(next) => next.map(|next| *next),
                Settled::Lost => None,
            };
        }
        Ok((accepted, None))
    }

    /// Has the queue accept an event, if it could be read, and returns what becomes of it in the file.
    async fn forward_one(
        &self,
        taken: &TakenEvent,
        event: Option<NewEvent>,
        forgotten: &ForgottenChats,
    ) -> Result<Settlement, StoreError> {
        let Some(mut event) = event else {
            return Ok(refused(
                taken.lease.id,
                "it is not in the form in which a spool stores events",
            ));
        };
        let is_forgotten = event.chat.as_deref().is_some_and(|chat| {
            let at = forgotten.get(&chat_digest(chat));
            at.is_some_and(|at| *at >= event::spooled_at(taken))
        });
        if is_forgotten {
            // So that no worker takes it meanwhile.
            let reason = "its chat was forgotten while the event was in a spool";
            event.dead = Some(Failure::new("forgotten", reason));
        }
        let (outcome, reason) = match self.accept_late(event.clone()).await? {
            Accepted::InFlight { remaining } => {
                return Ok(Settlement::Retry {
                    after: remaining.clamp(Duration::from_millis(100), ASK_EVERY),
                    failure: None,
                    counts: false,
                    is_probe: false,
                    blocks_lane: true,
                });
            }
            Accepted::Duplicate { same_body: false } if event.rejects_changed_body => (
                "body-changed",
                "its key was accepted before with another body, which was unknown while the event was in a spool",
            ),
            Accepted::BodyReplayed => (
                "body-replayed",
                "its body was accepted before under another key, which was unknown while the event was in a spool",
            ),
            Accepted::Duplicate { same_body: false } => {
                tracing::warn!(
                    "the key of an event in the spool was accepted before, with another body: it counts as the same \
                     event, and the first body is handled"
                );
                return Ok(Settlement::Handled);
            }
            _ => {
                if let Some(chat) = event.chat.as_deref().filter(|_| is_forgotten) {
                    self.forget_late(chat).await?;
                }
                return Ok(Settlement::Handled);
            }
        };
        // Under a key of its own, so that a second try finds it.
        self.accept_late(event::dead_letter(event, outcome, reason))
            .await?;
        Ok(Settlement::Handled)
    }

    async fn accept_late(&self, event: NewEvent) -> Result<Accepted, StoreError> {
        let (key, retain) = (event.key, event.retain);
        let accepted = within(LIMIT, self.queue.accept.accept(event, None)).await?;
        self.note_accepted(key, retain, &accepted).await;
        Ok(accepted)
    }

    async fn forget_late(&self, chat: &str) -> Result<(), StoreError> {
        let (by, mut rest) = (by(), None);
        loop {
            let step = within(LIMIT, self.queue.forget.forget(chat, rest, &by)).await?;
            rest = step.rest;
            if rest.is_none() {
                return Ok(());
            }
        }
    }

    /// The chats that were forgotten since this time.
    async fn forgotten(&self, since: Option<SystemTime>) -> Result<ForgottenChats, StoreError> {
        const PAGE: usize = 200;
        let mut forgotten = ForgottenChats::new();
        let Some(since) = since else {
            return Ok(forgotten);
        };
        let mut before = None;
        loop {
            let page = within(LIMIT, self.queue.list.actions(Which::All, before, PAGE)).await?;
            let is_last = page.len() < PAGE;
            for action in page {
                if action.at < since {
                    return Ok(forgotten);
                }
                before = Some(action.number);
                if let (ActionKind::Forget, Some(chat)) = (action.kind, action.about) {
                    forgotten.entry(chat).or_insert(action.at);
                }
            }
            if is_last {
                return Ok(forgotten);
            }
        }
    }
}

fn by() -> By {
    By::new("spool")
}

/// The event stays in the file, and others no longer wait for it.
fn refused(EventId(event): EventId, reason: &str) -> Settlement {
    tracing::error!(
        event,
        reason,
        "an event in the spool cannot be forwarded: it stays there, and is tried again when the spool is opened"
    );
    Settlement::Dead {
        failure: Failure::new("refused", reason),
        hold_lane: false,
    }
}
