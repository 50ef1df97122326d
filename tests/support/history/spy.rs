//! A queue that writes its history, and the mistakes that it could make.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tower_webhook::inbox::internal::{
    Accepted, Claims, EventLease, Forgotten, Kinds, NewEvent, Settled, Settlement, Share, Take,
    TakenEvent,
};
use tower_webhook::inbox::{
    ActionKind, By, Change, EventId, EventState, Filter, Page, Queue, Scope,
};
use tower_webhook::memory::MemoryQueue;
use tower_webhook::store::StoreError;
use tower_webhook::{EventType, RawDelivery};

use super::{Console, Entry, History, How, Process};
use crate::queue::Calls;
use crate::{DAY, SECOND, lock};

/// A queue that writes the history.
#[derive(Clone)]
pub struct Spy {
    queue: Arc<Mistaken>,
    by: Process,
    history: Arc<History>,
}

impl Spy {
    pub fn new(history: &Arc<History>, mistake: Mistake) -> Self {
        Self {
            queue: Arc::new(Mistaken {
                inner: MemoryQueue::new(),
                mistake,
                calls: Mutex::default(),
                current: Mutex::default(),
            }),
            by: Process::Worker(0),
            history: Arc::clone(history),
        }
    }

    /// The same queue, as another process uses it.
    pub fn of(&self, by: Process) -> Self {
        Self { by, ..self.clone() }
    }

    /// Lets the queue's clock jump, as far as leases show it: this is left of each then.
    pub async fn jump(&self, left: Duration) -> Result<(), StoreError> {
        let current: Vec<_> = lock(&self.queue.current).values().copied().collect();
        for held in current {
            self.extend(&[held], left).await?;
        }
        self.history.write(Entry::Jumped { by: Duration::ZERO });
        Ok(())
    }

    /// Notes what is in the queue at the end.
    pub async fn note_left(&self) -> Result<(), StoreError> {
        let page = Page::oldest(usize::MAX);
        for event in self.list(&Filter::default(), page).await?.events {
            let record = self.get(event.id).await?;
            self.history.write(Entry::Left {
                event: event.id,
                state: event.state,
                has_body: record.is_some_and(|record| record.body.is_some()),
            });
        }
        Ok(())
    }

    fn taken(&self, event: &TakenEvent, lease: Duration) {
        self.history.write(Entry::Taken {
            event: event.lease.id,
            fence: event.lease.fence,
            attempt: event.delivery.attempt().map_or(0, Into::into),
            by: self.by,
            lease,
        });
    }
}

fn type_of(delivery: &RawDelivery) -> EventType {
    EventType::new(delivery.route().clone(), delivery.kind().clone())
}

#[async_trait]
impl Calls for Spy {
    fn inner(&self) -> Result<Queue, StoreError> {
        self.queue.inner.inner()
    }

    async fn accept(
        &self,
        events: Arc<[NewEvent]>,
        take: Option<&Take>,
    ) -> Result<Vec<Accepted>, StoreError> {
        let accepted = self.queue.accept(Arc::clone(&events), take).await?;
        for (event, accepted) in events.iter().zip(&accepted) {
            if let Accepted::New { id, taken } = accepted {
                self.history.write(Entry::Stored {
                    event: *id,
                    key: event.key.unwrap().key(),
                    of: type_of(&event.delivery),
                    lane: event.lane,
                });
                if let (Some(taken), Some(take)) = (taken, take) {
                    self.taken(taken, take.lease);
                }
            }
        }
        Ok(accepted)
    }

    async fn claim(
        &self,
        of: &[Share],
        limit: usize,
        suspects: usize,
    ) -> Result<Claims, StoreError> {
        let claims = self.queue.claim(of, limit, suspects).await?;
        for event in &claims.events {
            let route = event.delivery.route();
            let share = of.iter().find(|share| {
                let kinds = &share.take.kinds;
                kinds.clone().at(route.clone()) == *kinds
            });
            self.taken(event, share.expect("a share of its route").take.lease);
        }
        Ok(claims)
    }

    async fn take(&self, id: EventId, take: &Take) -> Result<Option<TakenEvent>, StoreError> {
        let taken = self.queue.take(id, take).await?;
        if let Some(event) = &taken {
            self.taken(event, take.lease);
        }
        Ok(taken)
    }

    async fn extend(
        &self,
        leases: &[EventLease],
        lease: Duration,
    ) -> Result<Vec<Option<bool>>, StoreError> {
        let extended = self.queue.extend(leases, lease).await?;
        for (held, _) in leases
            .iter()
            .zip(&extended)
            .filter(|(_, is_held)| **is_held == Some(true))
        {
            self.history.write(Entry::Extended {
                fence: held.fence,
                lease,
            });
        }
        Ok(extended)
    }

    async fn settle(
        &self,
        lease: &EventLease,
        settlement: &Settlement,
        next: Option<&Take>,
    ) -> Result<Settled, StoreError> {
        let settled = self.queue.settle(lease, settlement, next).await?;
        self.history.write(Entry::Ended {
            event: lease.id,
            fence: lease.fence,
            how: match settlement {
                Settlement::Handled => How::Settled(EventState::Handled),
                Settlement::Ignored => How::Settled(EventState::Ignored),
                Settlement::Discarded(_) => How::Settled(EventState::Discarded),
                Settlement::Dead { .. } => How::Settled(EventState::Dead),
                Settlement::Retry {
                    after,
                    counts,
                    blocks_lane,
                    ..
                } => How::Retry {
                    after: *after,
                    counts: *counts,
                    blocks: *blocks_lane,
                },
                _ => How::Released,
            },
            recorded: matches!(settled, Settled::Ended(_)),
        });
        if let (Settled::Ended(Some(event)), Some(take)) = (&settled, next) {
            self.taken(event, take.lease);
        }
        Ok(settled)
    }

    async fn change(
        &self,
        kind: ActionKind,
        id: EventId,
        from: Option<EventState>,
        by: &By,
    ) -> Result<Change, StoreError> {
        let change = self.queue.change(kind, id, from, by).await?;
        if change == Change::Made {
            let by = match kind {
                ActionKind::Redrive => Console::Redrive,
                _ => Console::Discard,
            };
            self.history.write(Entry::Changed { event: id, by });
        }
        Ok(change)
    }

    async fn pause(&self, of: &Scope, note: Option<&str>, by: &By) -> Result<(), StoreError> {
        self.queue.inner.pause(of, note, by).await?;
        self.history.write(Entry::Paused {
            of: of.clone(),
            is_paused: note.is_some(),
        });
        Ok(())
    }

    async fn forget(
        &self,
        chat: &str,
        events: Option<RangeInclusive<EventId>>,
        by: &By,
    ) -> Result<Forgotten, StoreError> {
        let of_chat = Filter::default().chat(chat);
        // Nothing comes between: the queue in memory never waits.
        let before = self.list(&of_chat, Page::oldest(usize::MAX)).await?.events;
        let forgotten = self.queue.forget(chat, events.clone(), by).await?;
        for event in before {
            if events
                .as_ref()
                .is_some_and(|events| !events.contains(&event.id))
            {
                continue;
            }
            let event_id = event.id;
            self.history.write(Entry::Forgotten { event: event_id });
            if event.state.is_unsettled() || event.state == EventState::Dead {
                let by = Console::Discard;
                self.history.write(Entry::Changed {
                    event: event_id,
                    by,
                });
            }
        }
        Ok(forgotten)
    }
}

/// A mistake that a queue could make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    None,
    SettlesWithoutFence,
    ClaimSkipsTheHead,
    PurgesTooEarly,
    ShutdownCounts,
    TakesTwice,
    CrashIsNotCounted,
    LeaseNeverExpires,
    SettlementIsNotStored,
    AcceptsWithoutStoring,
    DropsDeadLetters,
    HandOverIgnoresPause,
    RetriesAtOnce,
    NeverBlocks,
    RedrivesInProgress,
    IgnoresKinds,
    ForgetsFailures,
    ReusesFences,
    ExtendsWhatIsLost,
    ExtensionIsNotStored,
    ForgetsTheKey,
    ForgetIsNotDone,
    KeepsForgottenBodies,
    DiscardIsNotStored,
    RedriveIsNotStored,
    TakesWhatIsPaused,
    LosesTheNextEvent,
    ReleaseIsNotStored,
    RetryCountsAsHandled,
    ReversesBatches,
    StoresTheFirstItem,
}

impl Mistake {
    pub const ALL: [Self; 30] = [
        Self::SettlesWithoutFence,
        Self::ClaimSkipsTheHead,
        Self::PurgesTooEarly,
        Self::ShutdownCounts,
        Self::TakesTwice,
        Self::CrashIsNotCounted,
        Self::LeaseNeverExpires,
        Self::SettlementIsNotStored,
        Self::AcceptsWithoutStoring,
        Self::DropsDeadLetters,
        Self::HandOverIgnoresPause,
        Self::RetriesAtOnce,
        Self::NeverBlocks,
        Self::RedrivesInProgress,
        Self::IgnoresKinds,
        Self::ForgetsFailures,
        Self::ReusesFences,
        Self::ExtendsWhatIsLost,
        Self::ExtensionIsNotStored,
        Self::ForgetsTheKey,
        Self::ForgetIsNotDone,
        Self::KeepsForgottenBodies,
        Self::DiscardIsNotStored,
        Self::RedriveIsNotStored,
        Self::TakesWhatIsPaused,
        Self::LosesTheNextEvent,
        Self::ReleaseIsNotStored,
        Self::RetryCountsAsHandled,
        Self::ReversesBatches,
        Self::StoresTheFirstItem,
    ];
}

/// The queue in memory, with a mistake.
struct Mistaken {
    inner: MemoryQueue,
    mistake: Mistake,
    calls: Mutex<u64>,
    current: Mutex<BTreeMap<EventId, EventLease>>,
}

impl Mistaken {
    fn makes(&self, mistake: Mistake) -> bool {
        self.mistake == mistake
    }

    /// Whether the mistake is made this time.
    fn every(&self, mistake: Mistake, times: u64) -> bool {
        let mut calls = lock(&self.calls);
        *calls += 1;
        self.makes(mistake) && calls.is_multiple_of(times)
    }

    fn note(&self, mut event: TakenEvent) -> TakenEvent {
        lock(&self.current).insert(event.lease.id, event.lease);
        if self.makes(Mistake::CrashIsNotCounted) {
            event.crashes = 0;
        }
        if self.makes(Mistake::ForgetsFailures) {
            event.delivery = event.delivery.with_attempt(NonZeroU32::MIN);
        }
        event
    }

    async fn accept(
        &self,
        events: Arc<[NewEvent]>,
        take: Option<&Take>,
    ) -> Result<Vec<Accepted>, StoreError> {
        if self.every(Mistake::AcceptsWithoutStoring, 7) {
            let id = EventId(1_000_000 + *lock(&self.calls) as i64);
            let new = |_: &NewEvent| Accepted::New { id, taken: None };
            return Ok(events.iter().map(new).collect());
        }
        let mut events = events.to_vec();
        for event in &mut events {
            if self.every(Mistake::ForgetsTheKey, 5) {
                event.key = None;
            }
            if self.every(Mistake::ClaimSkipsTheHead, 2) {
                event.lane = None;
            }
            if self.makes(Mistake::PurgesTooEarly) {
                event.retain = SECOND;
            }
        }
        let number = events.len();
        if self.makes(Mistake::ReversesBatches) {
            events.reverse();
        }
        if self.makes(Mistake::StoresTheFirstItem) {
            events.truncate(1);
        }
        let mut accepted = self.inner.accept(events.into(), take).await?;
        if self.makes(Mistake::ReversesBatches) {
            accepted.reverse();
        }
        if self.makes(Mistake::StoresTheFirstItem) {
            let stored = || Accepted::Duplicate { same_body: true };
            accepted.resize_with(number, stored);
        }
        let accepted = accepted.into_iter().map(|accepted| match accepted {
            Accepted::New { id, taken } => Accepted::New {
                id,
                taken: taken.map(|event| Box::new(self.note(*event))),
            },
            other => other,
        });
        Ok(accepted.collect())
    }

    async fn claim(
        &self,
        of: &[Share],
        limit: usize,
        suspects: usize,
    ) -> Result<Claims, StoreError> {
        let mut of = of.to_vec();
        for share in &mut of {
            let take = Arc::make_mut(&mut share.take);
            if self.makes(Mistake::LeaseNeverExpires) {
                take.lease = 365 * DAY;
            }
            if self.makes(Mistake::IgnoresKinds) {
                take.kinds = Kinds::all();
            }
        }
        let pauses = match self.makes(Mistake::TakesWhatIsPaused) {
            true => self.inner.stats().await?.pauses,
            false => Vec::new(),
        };
        let by = By::default();
        for pause in &pauses {
            self.inner.pause(&pause.of, None, &by).await?;
        }
        let mut claims = self.inner.claim(&of, limit, suspects).await?;
        for pause in &pauses {
            let note = Some(&*pause.note);
            self.inner.pause(&pause.of, note, &by).await?;
        }
        claims.events = claims
            .events
            .into_iter()
            .map(|event| self.note(event))
            .collect();
        if self.makes(Mistake::TakesTwice) && claims.events.len() < limit {
            // Of two suspects, the worker gives one back, and so both.
            let first = claims.events.iter().find(|event| event.crashes == 0);
            claims.events.extend(first.cloned());
        }
        Ok(claims)
    }

    async fn take(&self, id: EventId, take: &Take) -> Result<Option<TakenEvent>, StoreError> {
        let taken = self.inner.take(id, take).await?;
        Ok(taken.map(|event| self.note(event)))
    }

    async fn extend(
        &self,
        leases: &[EventLease],
        lease: Duration,
    ) -> Result<Vec<Option<bool>>, StoreError> {
        if self.makes(Mistake::ExtensionIsNotStored) {
            return Ok(vec![Some(true); leases.len()]);
        }
        let mut extended = self.inner.extend(leases, lease).await?;
        if self.makes(Mistake::ExtendsWhatIsLost) {
            extended.fill(Some(true));
        }
        Ok(extended)
    }

    async fn settle(
        &self,
        lease: &EventLease,
        settlement: &Settlement,
        next: Option<&Take>,
    ) -> Result<Settled, StoreError> {
        let mut settlement = settlement.clone();
        match (&mut settlement, self.mistake) {
            (released @ Settlement::Released, Mistake::ShutdownCounts) => {
                *released = Settlement::Retry {
                    after: Duration::ZERO,
                    failure: None,
                    counts: true,
                    is_slowed: false,
                    blocks_lane: true,
                };
            }
            (Settlement::Handled, _) if self.every(Mistake::SettlementIsNotStored, 5) => {
                return Ok(Settled::Ended(None));
            }
            (Settlement::Released, Mistake::ReleaseIsNotStored) => return Ok(Settled::Ended(None)),
            (retry @ Settlement::Retry { .. }, Mistake::RetryCountsAsHandled) => {
                *retry = Settlement::Handled;
            }
            (dead @ Settlement::Dead { .. }, Mistake::DropsDeadLetters) => {
                *dead = Settlement::Handled;
            }
            (Settlement::Retry { after, .. }, Mistake::RetriesAtOnce) => *after = Duration::ZERO,
            (Settlement::Retry { blocks_lane, .. }, Mistake::NeverBlocks) => *blocks_lane = false,
            _ => {}
        }
        let ignores_pause =
            self.makes(Mistake::HandOverIgnoresPause) && self.inner.stats().await?.is_paused();
        if ignores_pause {
            self.inner
                .pause(&Scope::Everything, None, &By::default())
                .await?;
        }
        let mut settled = self.inner.settle(lease, &settlement, next).await?;
        if ignores_pause {
            self.inner
                .pause(&Scope::Everything, Some(""), &By::default())
                .await?;
        }
        if self.makes(Mistake::SettlesWithoutFence) && matches!(settled, Settled::Lost) {
            let current = lock(&self.current).get(&lease.id).copied();
            if let Some(current) = current {
                settled = self.inner.settle(&current, &settlement, next).await?;
            }
        }
        Ok(match settled {
            Settled::Ended(Some(_)) if self.makes(Mistake::LosesTheNextEvent) => {
                Settled::Ended(None)
            }
            Settled::Ended(next) => Settled::Ended(next.map(|event| Box::new(self.note(*event)))),
            // As if the late lease were the same as the current one.
            Settled::Lost if self.makes(Mistake::ReusesFences) => Settled::Ended(None),
            Settled::Lost => Settled::Lost,
        })
    }

    async fn change(
        &self,
        kind: ActionKind,
        id: EventId,
        from: Option<EventState>,
        by: &By,
    ) -> Result<Change, StoreError> {
        let is_redrive = kind == ActionKind::Redrive;
        let is_not_stored = match is_redrive {
            true => Mistake::RedriveIsNotStored,
            false => Mistake::DiscardIsNotStored,
        };
        if self.makes(is_not_stored) {
            let record = self.inner.get(id).await?;
            return Ok(record.map_or(Change::NotFound, |_| Change::Made));
        }
        let change = self.inner.change(kind, id, from, by).await?;
        let is_in_progress = is_redrive && change == Change::WrongState;
        if is_in_progress && self.makes(Mistake::RedrivesInProgress) {
            self.inner.discard(id, None, by).await?;
            return self.inner.redrive(id, None, by).await;
        }
        Ok(change)
    }

    async fn forget(
        &self,
        chat: &str,
        events: Option<RangeInclusive<EventId>>,
        by: &By,
    ) -> Result<Forgotten, StoreError> {
        let nothing = Forgotten {
            bodies: 0,
            rest: None,
        };
        match self.mistake {
            Mistake::ForgetIsNotDone => Ok(nothing),
            Mistake::KeepsForgottenBodies => {
                let of_chat = Filter::default().chat(chat);
                let listed = self.inner.list(&of_chat, Page::oldest(usize::MAX)).await?;
                for event in listed.events {
                    self.inner.discard(event.id, None, by).await?;
                }
                Ok(nothing)
            }
            _ => self.inner.forget(chat, events, by).await,
        }
    }
}
