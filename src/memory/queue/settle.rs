//! How attempts end, and their leases are extended.

use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use super::{Event, FOREVER, MemoryQueue, Place, State};
use crate::inbox::event::{EventLease, EventState, Failure, Settlement, Take, uncounted};
use crate::inbox::queue::{SettleEvents, Settled};
use crate::store::StoreError;

#[async_trait]
impl SettleEvents for MemoryQueue {
    async fn settle(
        &self,
        lease: &EventLease,
        settlement: &Settlement,
        next: Option<&Take>,
    ) -> Result<Settled, StoreError> {
        Ok(self.lock().settle(lease, settlement, next))
    }

    async fn extend(
        &self,
        leases: &[EventLease],
        lease: Duration,
    ) -> Result<Vec<Option<bool>>, StoreError> {
        let mut state = self.lock();
        Ok(leases
            .iter()
            // `None` is the answer of a database in which somebody else has locked the event.
            .map(|held| Some(state.extend(held, lease)))
            .collect())
    }
}

impl State {
    /// The event of a lease that is held, and the end of that lease. One that expired is held again, unless another
    /// event of the lane comes first now.
    fn held(&mut self, lease: &EventLease) -> Option<(i64, Instant)> {
        let (id, fence) = (lease.id.0, lease.fence.0);
        let event = self.events.get(&id)?;
        match event.place {
            Place::Taken { until, fence: held } if held == fence => Some((id, until)),
            // The process was slow, and nobody has taken the event since: the crash is taken back.
            Place::Line { .. } if event.expired == Some(fence) && self.is_first(id) => {
                // It is not in `taken`, since the caller extends or settles it in the same operation.
                let until = self.now;
                self.unset_ready(id);
                let event = self.event(id);
                event.expired = None;
                event.crashes -= 1;
                event.place = Place::Taken { until, fence };
                let lane = event.lane;
                self.busy.extend(lane.map(|lane| (lane, id)));
                Some((id, until))
            }
            _ => None,
        }
    }

    fn extend(&mut self, lease: &EventLease, by: Duration) -> bool {
        let Some((id, until)) = self.held(lease) else {
            return false;
        };
        self.taken.remove(&(until, id));
        let until = self.now + by.min(FOREVER);
        self.taken.insert((until, id));
        self.event(id).place = Place::Taken {
            until,
            fence: lease.fence.0,
        };
        true
    }

    pub(super) fn settle(
        &mut self,
        lease: &EventLease,
        settlement: &Settlement,
        take: Option<&Take>,
    ) -> Settled {
        let Some((id, until)) = self.held(lease) else {
            return Settled::Lost;
        };
        self.taken.remove(&(until, id));
        let holds = matches!(
            settlement,
            Settlement::Dead {
                hold_lane: true,
                ..
            }
        );
        // A dead letter that holds its lane keeps it busy, so no later event of the chat is ready.
        if !holds {
            self.set_free(id);
        }
        let now = self.now;
        let event = self.event(id);
        let leaves = event.settle(settlement, now);
        if let Place::Aside { due } = event.place {
            self.aside.insert((due, id));
        }
        // The body of a discarded event is kept as long as its key, since a person may redrive it.
        if matches!(settlement, Settlement::Handled | Settlement::Ignored) {
            self.with_body.insert((now, id));
        }
        if !leaves {
            self.set_first_ready(id);
            return Settled::Ended(None);
        }
        let next = self.leave_line(id);
        let next = next.zip(take).filter(|(id, take)| self.may_take(take, *id));
        Settled::Ended(next.map(|(id, take)| Box::new(self.take(id, take))))
    }
}

impl Event {
    /// Moves to the place of a settlement, and returns whether it leaves its line.
    fn settle(&mut self, settlement: &Settlement, now: Instant) -> bool {
        // A shutdown proves nothing: the event may still be what crashes its process.
        if !matches!(settlement, Settlement::Released) {
            self.crashes = 0;
        }
        let ended = |state| Place::Ended { state, at: now };
        self.place = match settlement {
            Settlement::Handled => ended(EventState::Handled),
            Settlement::Ignored => ended(EventState::Ignored),
            Settlement::Discarded(failure) => {
                self.fail(failure, now);
                ended(EventState::Discarded)
            }
            Settlement::Dead { failure, hold_lane } => {
                self.fail(failure, now);
                self.failures = self.failures.saturating_add(1);
                match *hold_lane && self.lane.is_some() {
                    true => Place::Holding { at: now },
                    false => ended(EventState::Dead),
                }
            }
            Settlement::Retry {
                after,
                failure,
                counts,
                is_slowed,
                blocks_lane,
            } => {
                // It was the time of a snooze, from which failures are not counted.
                if self.is_snoozed() {
                    self.first_failed = None;
                }
                if let Some(failure) = failure {
                    self.fail(failure, now);
                }
                if *counts {
                    // The first failure that counts begins the time after which the event is given up.
                    self.first_failed = self.first_failed.filter(|_| self.failures > 0);
                    self.failures = self.failures.saturating_add(1);
                } else if failure.is_some() {
                    self.uncounted = self.uncounted.saturating_add(uncounted(*is_slowed));
                }
                // A failure while attempts of the type are slowed down does not begin this time, as the outage is not the event's fault.
                if *counts || failure.is_some() && !is_slowed || self.past.is_empty() {
                    self.first_failed.get_or_insert(now);
                }
                let due = now + (*after).min(FOREVER);
                match !blocks_lane && self.lane.is_some() {
                    true => Place::Aside { due },
                    false => Place::Line { due },
                }
            }
            Settlement::Released => Place::Line { due: now },
        };
        matches!(self.place, Place::Ended { .. } | Place::Aside { .. })
    }

    pub(super) fn fail(&mut self, failure: &Failure, now: Instant) {
        if self.past.len() == PAST {
            self.past.remove(0);
        }
        self.past.push((now, failure.clone()));
    }
}

/// How many failures of an event are kept.
const PAST: usize = 100;
