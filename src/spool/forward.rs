//! The events in the file go on to the queue, those of a chat in their order.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::{Asked, Shared, event, within};
use crate::delivery::RawDelivery;
use crate::error::Chain;
use crate::inbox::actions::{ActionKind, By, Which, chat_digest};
use crate::inbox::event::{
    EventId, Failure, Kinds, Lane, NewEvent, Settlement, Share, TOO_MANY_KINDS, Take, TakenEvent,
};
use crate::inbox::queue::{Accepted, ClaimEvents, CountEvents, PurgeEvents, Settled};
use crate::inbox::records::AcceptOne;
use crate::lock::lock;
use crate::store::{StoreError, StoreErrorKind};

/// How often the queue is asked whether it can be reached.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// How many chats are forwarded at once, and how many events of each in a row.
const CHATS: usize = 128;
const TURN: usize = 32;

/// The time limit of an acceptance for which nobody waits. It is the limit of the first one, twice as long after each that
/// was not answered, and at most this: an acceptance that is lost with its connection is soon tried again.
const LIMIT: Duration = Duration::from_secs(10);

/// Of an event that is being forwarded. No other process has the file, and this one ends the leases that it has left.
const LEASE: Duration = Duration::from_secs(24 * 60 * 60);

/// After so many failures of an event while others are accepted, its lane goes on without it, and each pause before it is
/// tried again is twice as long as the one before.
const MOST_FAILURES: u32 = 10;
const LONGEST_PAUSE: Duration = Duration::from_secs(10 * 60);

/// How often an event in the file has failed.
#[derive(Default)]
pub(super) struct Failures {
    pub(super) lane: Option<Lane>,
    count: u32,
    /// How often it was not answered in time. It may be locked, for however long.
    timeouts: u32,
    /// How many events had been accepted by the last one.
    accepted: u64,
}

impl Failures {
    pub(super) fn is_refused(&self) -> bool {
        self.count >= MOST_FAILURES
    }
}

/// Chats that were forgotten, by their digests, and when.
type ForgottenChats = HashMap<String, SystemTime>;

/// The chats that are being forwarded, each of which returns whether an event was settled.
type Chats = JoinSet<bool>;

/// Forwards events for as long as the spool is open.
pub(super) async fn run(shared: Arc<Shared>) {
    let mut chats = Chats::new();
    let mut asked: Option<Instant> = None;
    loop {
        if shared.is_due() {
            let _ = shared.measure().await;
        }
        let is_open = shared.gate.is_open();
        if is_open {
            sleep(ASK_EVERY).await;
        }
        let may_ask = asked.is_none_or(|asked| asked.elapsed() >= ASK_EVERY);
        if is_open || may_ask && shared.gate.is_to_be_asked() {
            asked = Some(Instant::now());
            if let Err(error) = shared.ask().await {
                shared.did_not_answer(&error);
                continue;
            }
        }
        let pause = match shared.take(&mut chats, is_open).await {
            Ok(next_due) => next_due.map_or(ASK_EVERY, |due| due.min(ASK_EVERY)),
            Err(error) => {
                warn_of_file(&error);
                if is_open {
                    // The queue has answered, and the file stores nothing.
                    shared.close_breaker();
                }
                sleep(ASK_EVERY).await;
                continue;
            }
        };
        let mut is_settled = false;
        tokio::select! {
            Some(ended) = chats.join_next() => is_settled = matches!(ended, Ok(true)),
            () = shared.gate.stored.notified(), if chats.len() < CHATS => {}
            () = sleep(pause) => {}
        }
        while let Some(ended) = chats.try_join_next() {
            is_settled |= matches!(ended, Ok(true));
        }
        while is_settled {
            // If it fails, the next event that is settled tries it again.
            let purged = shared.with_room(|| shared.file.purge(Duration::ZERO));
            is_settled = purged.await.unwrap_or_default();
        }
    }
}

fn warn_of_file(error: &StoreError) {
    tracing::warn!(
        reason = Chain(error).to_string(),
        "the spool cannot be read or written: this is retried each second"
    );
}

fn what_is_due() -> Take {
    Take {
        lease: LEASE,
        kinds: Kinds::all(),
    }
}

impl Shared {
    fn is_due(&self) -> bool {
        let at = lock(&self.measured).at;
        at.is_none_or(|at| at.elapsed() >= ASK_EVERY)
    }

    /// Begins to forward the chats whose events are due. Returns the time until another one is. The breaker closes if the queue
    /// has answered and there is nothing to try. Errors are those of the file.
    async fn take(
        self: &Arc<Self>,
        chats: &mut Chats,
        has_answered: bool,
    ) -> Result<Option<Duration>, StoreError> {
        let room = CHATS - chats.len();
        let holds_leases = self.holds_leases.load(Ordering::Relaxed);
        if room == 0 || holds_leases && !chats.is_empty() {
            return Ok(None);
        }
        if !self.gate.is_busy() {
            if has_answered {
                self.close_breaker();
            }
            return Ok(None);
        }
        let forwarding = Arc::clone(&self.forwarding).read_owned().await;
        let since = self.gate.quiet();
        if holds_leases {
            // Nobody else sets it, as no chat is being forwarded.
            self.with_room(|| self.file.make_due()).await?;
            self.holds_leases.store(false, Ordering::Relaxed);
        }
        let of = [Share::from(what_is_due())];
        let claimed = self.with_room(|| self.file.claim(&of, room, room)).await;
        let claims = claimed.inspect_err(|_| self.holds_leases.store(true, Ordering::Relaxed))?;
        if claims.events.is_empty() {
            if !chats.is_empty() {
                return Ok(claims.next_due);
            }
            if let Some(since) = since
                && claims.next_due.is_none()
                && self.file.stats().await?.unsettled() == 0
            {
                // It waits for the disk, so that the settlements before it are there, too.
                let identity = self.identity.load(Ordering::Relaxed);
                self.with_room(|| self.file.set_spool_of(identity)).await?;
                self.gate.empty(since);
                self.forget_failures(None);
                lock(&self.measured).counted = None;
            }
            // Otherwise, the failed ones are tried first.
            if has_answered && claims.next_due.is_none_or(|due| due > ASK_EVERY) {
                self.close_breaker();
            }
            return Ok(claims.next_due);
        }
        let oldest = claims.events.iter().map(event::spooled_at).min();
        let forgotten = match self.forgotten(oldest).await {
            Ok(forgotten) => Arc::new(forgotten),
            Err(error) => {
                self.holds_leases.store(true, Ordering::Relaxed);
                tracing::warn!(
                    reason = Chain(&error).to_string(),
                    "the list of forgotten chats cannot be read, so that nothing in the spool is forwarded: this is \
                     retried each second"
                );
                self.gate.doubt();
                if has_answered {
                    self.close_breaker();
                }
                return Ok(None);
            }
        };
        let forwarding = Arc::new(forwarding);
        for first in claims.events {
            let (shared, forgotten) = (Arc::clone(self), Arc::clone(&forgotten));
            let forwarding = Arc::clone(&forwarding);
            chats.spawn(async move {
                let is_settled = shared.forward_chat(first, &forgotten).await;
                drop(forwarding);
                is_settled
            });
        }
        Ok(claims.next_due)
    }

    /// Forwards events of a chat until one fails. Returns whether there were some.
    async fn forward_chat(&self, first: TakenEvent, forgotten: &ForgottenChats) -> bool {
        let take = what_is_due();
        let mut next = Some(first);
        let mut is_settled = false;
        for turn in 1.. {
            let Some(taken) = next else { break };
            let (lease, lane) = (&taken.lease, taken.lane);
            let event = event::unpack(&taken);
            let keys = event.as_ref().map(event::keys).unwrap_or_default();
            let settlement = match self.forward_one(&taken, event, forgotten).await {
                Ok(settlement) => {
                    self.forget_failures(Some(lease.id));
                    settlement
                }
                Err(error) => self.postpone(&taken, &error),
            };
            let before = self.gate.quiet_lane(lane);
            let next_of_chat = (turn < TURN).then_some(&take);
            let settle = || {
                self.file
                    .forwarded(lease, lane, &settlement, &keys, next_of_chat)
            };
            let (settled, is_last) = loop {
                match self.with_room(&settle).await {
                    Ok(settled) => break settled,
                    Err(error) => {
                        // The next event may have been taken.
                        self.holds_leases.store(true, Ordering::Relaxed);
                        warn_of_file(&error);
                        sleep(ASK_EVERY).await;
                    }
                }
            };
            if matches!(settlement, Settlement::Handled) {
                is_settled = true;
                self.gate.forwarded(lane, before.filter(|_| is_last));
            }
            next = match settled {
                Settled::Ended(next) => next.map(|next| *next),
                Settled::Lost => None,
            };
        }
        is_settled
    }

    /// Decides when an event is tried again that the queue did not accept.
    fn postpone(&self, taken: &TakenEvent, error: &StoreError) -> Settlement {
        let again = |after, failure, blocks_lane| Settlement::Retry {
            after,
            failure,
            counts: false,
            is_slowed: false,
            blocks_lane,
        };
        let id = taken.lease.id;
        let accepted = self.accepted.load(Ordering::Relaxed);
        let mut all = lock(&self.failures);
        let failures = all.entry(id).or_insert(Failures {
            lane: taken.lane,
            accepted,
            ..Failures::default()
        });
        if error.kind() == StoreErrorKind::TimedOut {
            failures.timeouts += 1;
            return again(ASK_EVERY, None, true);
        }
        let was_refused = failures.is_refused();
        if was_refused || failures.accepted != accepted {
            failures.count += 1;
        }
        // The file notes what was refused, also by a former process.
        if error.kind() == StoreErrorKind::Invalid || taken.uncounted > 0 {
            failures.count = failures.count.max(MOST_FAILURES);
        }
        failures.accepted = accepted;
        if !failures.is_refused() {
            return again(ASK_EVERY, None, true);
        }
        let doublings = (failures.count - MOST_FAILURES + 1).min(16);
        let pause = (ASK_EVERY * (1 << doublings)).min(LONGEST_PAUSE);
        if was_refused {
            return again(pause, None, false);
        }
        self.note_refused(&all);
        drop(all);
        let reason = Chain(error).to_string();
        tracing::error!(
            event = id.0,
            reason,
            "an event in the spool cannot be forwarded: it is tried again, ever less often, and its chat goes on without it; \
             `receiver inbox flush --drop-refused` removes it"
        );
        again(pause, Some(Failure::new("refused", reason)), false)
    }

    /// Has the queue accept an event, if it could be read, and returns what becomes of it in the file.
    async fn forward_one(
        &self,
        taken: &TakenEvent,
        event: Option<NewEvent>,
        forgotten: &ForgottenChats,
    ) -> Result<Settlement, StoreError> {
        let Some(mut event) = event else {
            let form = "it is not in the form in which a spool stores events";
            return Err(StoreError::new(StoreErrorKind::Invalid, form));
        };
        let is_forgotten = event.chat.as_deref().is_some_and(|chat| {
            let at = forgotten.get(&chat_digest(chat));
            at.is_some_and(|at| *at >= event::spooled_at(taken))
        });
        if is_forgotten {
            // It is stored as a dead letter, so that no worker takes it.
            let reason = "its chat was forgotten while the event was in a spool";
            event.dead = Some(Failure::new("forgotten", reason));
        }
        let timeouts = lock(&self.failures)
            .get(&taken.lease.id)
            .map_or(0, |failures| failures.timeouts);
        let limit = (self.spool.accept_within * (1 << timeouts.min(8))).min(LIMIT);
        let is_dead = event.dead.is_some();
        let (outcome, reason) = match self.accept_late(event.clone(), limit).await? {
            Accepted::DeadLetter { id } if !is_dead => {
                let [_, reason] = TOO_MANY_KINDS;
                self.report_dead(&event.delivery, id, reason);
                return Ok(Settlement::Handled);
            }
            Accepted::InFlight { remaining } => {
                return Ok(Settlement::Retry {
                    after: remaining.clamp(Duration::from_millis(100), ASK_EVERY),
                    failure: None,
                    counts: false,
                    is_slowed: false,
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
        let delivery = event.delivery.clone();
        let dead = event::dead_letter(event, outcome, reason);
        if let Accepted::New { id, .. } = self.accept_late(dead, limit).await? {
            self.report_dead(&delivery, id, reason);
        }
        Ok(Settlement::Handled)
    }

    fn report_dead(&self, delivery: &RawDelivery, id: EventId, reason: &str) {
        let observers = self.queue.observed.observers();
        observers.accepted_dead(delivery.route(), delivery.kind(), id.0, reason);
    }

    async fn accept_late(&self, event: NewEvent, limit: Duration) -> Result<Accepted, StoreError> {
        let it = Asked::of(std::slice::from_ref(&event));
        match within(limit, self.queue.accept.accept_one(event, None)).await {
            Ok(accepted) => {
                self.accepted(&it, std::slice::from_ref(&accepted)).await;
                self.close_breaker();
                Ok(accepted)
            }
            Err(error) => {
                self.did_not_accept(&it, &error);
                Err(error)
            }
        }
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

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;

    use super::*;
    use crate::memory::MemoryQueue;
    use crate::spool::Spool;

    #[tokio::test]
    async fn a_lease_that_a_chat_leaves_while_others_are_taken_is_not_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let spool = Spool::new(directory.path().join("spool.db"));
        let spool = spool.limit(1).on_any_disk();
        let spooled = spool.open(MemoryQueue::new()).await.unwrap();
        spooled._task.0.abort();
        let (shared, mut chats) = (&spooled.shared, Chats::new());
        let holds_leases = || shared.holds_leases.load(Ordering::Relaxed);
        drop(shared.gate.turn(None.into()));
        shared.take(&mut chats, false).await.unwrap();
        assert!(!holds_leases());

        drop(shared.gate.turn(None.into()));
        let mut taking = pin!(shared.take(&mut chats, false));
        assert!(taking.as_mut().now_or_never().is_none());
        // A chat whose event could not be settled.
        shared.holds_leases.store(true, Ordering::Relaxed);
        taking.await.unwrap();
        assert!(holds_leases());
    }
}
