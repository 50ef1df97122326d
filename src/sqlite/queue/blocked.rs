//! The lanes that wait for an event that has failed.

use rusqlite::Result;

use super::kinds::{self, Names};
use super::lanes;
use super::list::{last_failure, summary};
use super::row::{self, Work};
use crate::inbox::event::{EventId, Lane};
use crate::inbox::records::BlockedLane;
use crate::sqlite::engine::Tx;
use crate::sqlite::schema::sql;

const BLOCKING: &str = sql!(concat!(
    "SELECT ",
    row::columns!(),
    " FROM work INDEXED BY work_blocking
    WHERE place < $Behind AND lane IS NOT NULL AND (tried OR crashes > 0) AND seq > ?1 ORDER BY seq"
));
// Most of them need not be counted.
const WAITING: &str =
    sql!("SELECT 1 FROM work INDEXED BY work_line WHERE lane = ?1 AND place = $Behind");

#[cfg(test)]
pub(super) const STATEMENTS: &[&str] = &[BLOCKING, WAITING];

/// The events for which their lanes wait since they failed: those of a step, or those of one chat at all routes.
pub(super) fn lanes(
    tx: &Tx<'_>,
    chat: Option<&str>,
    after: Option<EventId>,
    limit: usize,
) -> Result<Vec<BlockedLane>> {
    let after = after.map_or(i64::MIN, |EventId(seq)| seq);
    let found: Vec<Work> = match chat {
        Some(chat) => {
            let routes = kinds::routes(tx)?.into_iter();
            let first = |route| lanes::first(tx, Lane::at(&route, chat).0).transpose();
            let mut found: Vec<_> = routes.filter_map(first).collect::<Result<_, _>>()?;
            found.retain(|work: &Work| work.is_blocking() && work.seq > after);
            found.sort_unstable_by_key(|work| work.seq);
            found.truncate(limit);
            found
        }
        None => {
            let mut blocking = tx.prepare(BLOCKING)?;
            let blocking = blocking.query_map([after], Work::read)?;
            blocking.take(limit).collect::<Result<_, _>>()?
        }
    };
    let mut names = Names::default();
    let mut blocked = Vec::new();
    for work in found {
        let Some(mut event) = summary(tx, EventId(work.seq), &mut names)? else {
            continue;
        };
        event.last_failure = last_failure(tx, event.id)?;
        let mut waiting = tx.prepare(WAITING)?;
        let mut rows = waiting.query([work.lane])?;
        let mut waiting = 0;
        while waiting < BlockedLane::MOST_WAITING && rows.next()?.is_some() {
            waiting += 1;
        }
        let first_failed = work.first_failed.map_or(event.accepted_at, row::time);
        blocked.push(BlockedLane {
            since: event.settled_at.unwrap_or(first_failed),
            event,
            waiting,
        });
    }
    Ok(blocked)
}
