//! The number of events by type and state.

use std::collections::BTreeMap;

use super::search::FIRST;
use super::{handlers, kinds, row};
use crate::inbox::records::{KindStats, Stats};
use crate::route::{EventType, Scope};
use crate::sqlite::engine::Tx;
use crate::sqlite::schema::{Place, sql};

const WORK: &str = "
    SELECT seq, kind, place, tried OR crashes > 0, due, lane IS NOT NULL
    FROM work WHERE seq > ?1 ORDER BY seq";
const DEAD: &str = sql!(
    "
    SELECT seq, kind FROM events INDEXED BY events_dead
    WHERE state = $Dead AND seq > ?1 ORDER BY seq"
);
#[cfg(test)]
pub(super) const STATEMENTS: &[&str] = &[WORK, DEAD];

/// How many events a step counts, which takes less time than a commit.
const COUNTED: usize = 1000;

/// The number of events of a type.
#[derive(Clone, Copy, Default)]
pub(super) struct Count {
    waiting: u64,
    ready: u64,
    in_progress: u64,
    retrying: u64,
    dead: u64,
    blocking: u64,
    oldest: Option<i64>,
}

/// Events that were counted, by the number of their kind.
#[derive(Clone, Default)]
pub(super) struct Counts {
    kinds: BTreeMap<i64, Count>,
    /// Up to which number, of unsettled events and of dead letters.
    seen: [Option<i64>; 2],
    /// Whether that is all.
    done: [bool; 2],
}

impl Counts {
    pub(super) fn is_complete(&self) -> bool {
        self.done == [true; 2]
    }

    /// Counts some events more.
    pub(super) fn step(&mut self, tx: &Tx<'_>) -> rusqlite::Result<()> {
        if !self.done[0] {
            self.count_work(tx)
        } else {
            self.count_dead(tx)
        }
    }

    fn count_work(&mut self, tx: &Tx<'_>) -> rusqlite::Result<()> {
        let mut work = tx.prepare(WORK)?;
        let mut rows = work.query([self.seen[0].unwrap_or(i64::MIN)])?;
        for _ in 0..COUNTED {
            let Some(row) = rows.next()? else {
                self.done[0] = true;
                return Ok(());
            };
            let seq = row.get(0)?;
            self.seen[0] = Some(seq);
            let count = self.kinds.entry(row.get(1)?).or_default();
            let (place, has_failed): (_, bool) = (row.get(2)?, row.get(3)?);
            if has_failed && place < Place::Behind && row.get(5)? {
                count.blocking += 1;
            }
            match place {
                Place::Holding => continue,
                Place::Taken if row.get::<_, i64>(4)? > tx.now => count.in_progress += 1,
                Place::Taken => count.retrying += 1,
                _ if has_failed => count.retrying += 1,
                _ => {
                    count.waiting += 1;
                    count.ready += u64::from(place < Place::Behind);
                }
            }
            if count.oldest.is_none() {
                let mut first = tx.prepare(FIRST)?;
                count.oldest = Some(first.query_row([seq], |row| row.get(1))?);
            }
        }
        Ok(())
    }

    fn count_dead(&mut self, tx: &Tx<'_>) -> rusqlite::Result<()> {
        let mut dead = tx.prepare(DEAD)?;
        let mut rows = dead.query([self.seen[1].unwrap_or(i64::MIN)])?;
        for _ in 0..COUNTED {
            let Some(row) = rows.next()? else {
                self.done[1] = true;
                return Ok(());
            };
            self.seen[1] = Some(row.get(0)?);
            self.kinds.entry(row.get(1)?).or_default().dead += 1;
        }
        Ok(())
    }

    pub(super) fn stats(&self, tx: &Tx<'_>) -> rusqlite::Result<Stats> {
        let (mut types, mut pauses) = kinds::all(tx)?;
        types.sort_unstable_by(|(_, a), (_, b)| a.cmp(b));
        pauses.sort_unstable_by(|a, b| a.of.cmp(&b.of));
        let mut stats = Stats {
            kinds: Vec::new(),
            at: row::time(tx.now),
            pauses,
            handlers: handlers::all(tx)?,
        };
        for (id, EventType { route, kind }) in types {
            let count = self.kinds.get(&id).copied().unwrap_or_default();
            let pauses = stats.pauses.iter();
            let mut pauses = pauses.filter(|pause| pause.of != Scope::Everything);
            stats.kinds.push(KindStats {
                is_paused: pauses.any(|pause| pause.of.has(&route, &kind)),
                route,
                kind,
                waiting: count.waiting,
                ready: count.ready,
                in_progress: count.in_progress,
                retrying: count.retrying,
                dead: count.dead,
                blocking: count.blocking,
                oldest: count.oldest.map(row::time),
            });
        }
        Ok(stats)
    }
}
