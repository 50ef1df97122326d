//! How an attempt ends, and how its lease is extended.

use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{OptionalExtension, Result, params};

use super::row::{self, Work};
use super::{SqliteQueue, lanes};
use crate::inbox::event::{EventLease, Settlement, Take, uncounted};
use crate::inbox::queue::{SettleEvents, Settled};
use crate::sqlite::engine::{Need, Tx};
use crate::sqlite::schema::{Place, State, sql};
use crate::store::StoreError;

// Of a lease that is held. An event that is behind another one since its lease expired is not. Not by `RETURNING`,
// which opens a table of its own for each row.
const HELD: &str = sql!(concat!(
    "SELECT ",
    row::columns!(),
    " FROM work WHERE seq = ?1 AND fence = ?2 AND place <= $Taken"
));
// The row of most events that are settled, of which nothing else is needed.
const REMOVE_FIRST: &str = sql!(
    "
    DELETE FROM work
    WHERE seq = ?1 AND fence = ?2 AND place = $Taken AND lane = ?3 AND failures = 0"
);

// A lease that has expired takes the event back, which was counted as crashed.
const EXTEND: &str = sql!(
    "
    UPDATE work SET place = $Taken, due = ?3, crashes = crashes - (place <> $Taken)
    WHERE seq = ?1 AND fence = ?2 AND place <= $Taken"
);

#[cfg(test)]
pub(super) const STATEMENTS: &[&str] = &[HELD, REMOVE_FIRST, EXTEND];

#[async_trait]
impl SettleEvents for SqliteQueue {
    async fn settle(
        &self,
        lease: &EventLease,
        settlement: &Settlement,
        next: Option<&Take>,
    ) -> Result<Settled, StoreError> {
        let (lease, settlement, next) = (*lease, settlement.clone(), next.cloned());
        self.run_for(Need::Durable, move |tx, is_awaited| {
            let next = next.as_ref().filter(|_| is_awaited);
            settle(tx, &lease, &settlement, next)
        })
        .await
    }

    async fn extend(
        &self,
        leases: &[EventLease],
        lease: Duration,
    ) -> Result<Vec<Option<bool>>, StoreError> {
        let leases = leases.to_vec();
        self.run(Need::Write, move |tx| extend(tx, &leases, lease))
            .await
    }
}

pub(super) fn settle(
    tx: &mut Tx<'_>,
    lease: &EventLease,
    settlement: &Settlement,
    next: Option<&Take>,
) -> Result<Settled> {
    let (seq, fence) = (lease.id.0, lease.fence.0.to_be_bytes());
    let state = match settlement {
        Settlement::Handled => Some(State::Handled),
        Settlement::Ignored => Some(State::Ignored),
        _ => None,
    };
    if let (Some(state), Some(lane)) = (state, lanes::of_first_attempt(lease)) {
        let removed = tx
            .prepare(REMOVE_FIRST)?
            .execute(params![seq, fence, lane])?;
        if removed == 1 {
            row::end(tx, seq, state, 0)?;
            let next = lanes::advance(tx, Some(lane), next)?;
            return Ok(Settled::Ended(next.map(Box::new)));
        }
    }
    let mut held = tx.prepare(HELD)?;
    let held = held.query_row(params![seq, fence], Work::read);
    let Some(mut work) = held.optional()? else {
        return Ok(Settled::Lost);
    };
    if matches!(settlement, Settlement::Dead { .. }) {
        work.failures = work.failures.saturating_add(1);
    }
    let (end, failure) = match settlement {
        Settlement::Handled => (State::Handled, None),
        Settlement::Ignored => (State::Ignored, None),
        Settlement::Discarded(failure) => (State::Discarded, Some(failure)),
        Settlement::Dead { failure, hold_lane } if !hold_lane || work.lane.is_none() => {
            (State::Dead, Some(failure))
        }
        _ => return put_back(tx, work, settlement, next),
    };
    if let Some(failure) = failure {
        row::fail(tx, seq, failure)?;
    }
    Work::remove(tx, seq)?;
    row::end(tx, seq, end, work.failures)?;
    let next = lanes::advance(tx, work.lane, next)?;
    Ok(Settled::Ended(next.map(Box::new)))
}

/// Ends the attempt of an event that stays unsettled, or holds its lane.
fn put_back(
    tx: &mut Tx<'_>,
    mut work: Work,
    settlement: &Settlement,
    next: Option<&Take>,
) -> Result<Settled> {
    if work.place != Place::Taken {
        // Its lease expired, but it did not crash.
        work.crashes = work.crashes.saturating_sub(1);
    }
    match settlement {
        Settlement::Released => {
            work.due = tx.now;
            lanes::stand(tx, &mut work)?;
        }
        Settlement::Retry {
            after,
            failure,
            counts,
            is_slowed,
            blocks_lane,
        } => {
            work.crashes = 0;
            if work.is_snoozed() {
                work.first_failed = None;
            }
            if let Some(failure) = failure {
                row::fail(tx, work.seq, failure)?;
                work.tried = true;
            }
            if *counts {
                work.first_failed = work.first_failed.filter(|_| work.failures > 0);
                work.failures = work.failures.saturating_add(1);
            } else if failure.is_some() {
                work.uncounted = work.uncounted.saturating_add(uncounted(*is_slowed));
            }
            if *counts || failure.is_some() && !is_slowed || !work.tried {
                work.first_failed.get_or_insert(tx.now);
            }
            work.due = row::after(tx.now, *after);
            if let Some(lane) = work.lane.filter(|_| !blocks_lane) {
                // Before it is one of them, so that without a delay the next event is another one.
                lanes::return_now(tx, lane)?;
                work.place = Place::Aside;
                work.update(tx)?;
                let next = lanes::take_first(tx, lane, next)?;
                return Ok(Settled::Ended(next.map(Box::new)));
            }
            lanes::stand(tx, &mut work)?;
        }
        Settlement::Dead { failure, .. } => {
            row::fail(tx, work.seq, failure)?;
            row::end(tx, work.seq, State::Dead, work.failures)?;
            work.crashes = 0;
            work.tried = true;
            work.place = Place::Holding;
            work.update(tx)?;
        }
        Settlement::Handled | Settlement::Ignored | Settlement::Discarded(_) => {}
    }
    Ok(Settled::Ended(None))
}

fn extend(tx: &Tx<'_>, leases: &[EventLease], lease: Duration) -> Result<Vec<Option<bool>>> {
    let until = row::lease_end(tx.now, lease);
    let mut extend = tx.prepare(EXTEND)?;
    leases
        .iter()
        .map(|held| {
            let fence = held.fence.0.to_be_bytes();
            Ok(Some(extend.execute(params![held.id.0, fence, until])? == 1))
        })
        .collect()
}
