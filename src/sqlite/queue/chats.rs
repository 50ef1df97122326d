//! The events of a chat, found without a search.
//!
//! Numbers are divided into runs. The acceptance of the first event of a run writes the run before it into the table
//! `chats`, sorted by lane, in the same transaction. So whatever happens, the runs before that of the last number are
//! there, and its own is read whole. Ten million events are 610 runs, with a look-up in each.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use rusqlite::{OptionalExtension, Result, params};

use crate::inbox::event::Lane;
use crate::sqlite::engine::{Tx, is_damage};

/// The numbers of a run. It is a part of the file's format. A larger one would take less time to find, and more to read
/// and to write at once.
pub(super) const RUN: i64 = 16_384;

const IN_RUN: &str = "SELECT events FROM chats WHERE run = ?1 AND lane = ?2";
// Two chats may have the same lane.
const IS_OF_CHAT: &str = "SELECT 1 FROM events WHERE seq = ?1 AND chat = ?2";
const IN_LAST_RUN: [&str; 2] = [
    "SELECT seq FROM events WHERE seq BETWEEN ?1 AND ?2 AND chat = ?3 ORDER BY seq",
    "SELECT seq FROM events WHERE seq BETWEEN ?1 AND ?2 AND chat = ?3 ORDER BY seq DESC",
];
// Where all events of a run were deleted, or have no chat, it is passed over.
const NEXT_RUN: [&str; 2] = [
    "SELECT run FROM chats WHERE run >= ?1 ORDER BY run",
    "SELECT run FROM chats WHERE run <= ?1 ORDER BY run DESC",
];
const CHATS: &str = "SELECT seq, chat FROM events WHERE seq BETWEEN ?1 AND ?2 ORDER BY seq";
const INSERT: &str = "INSERT INTO chats (run, lane, events) VALUES (?1, ?2, ?3)";
const CHAT: &str = "SELECT chat FROM events WHERE seq = ?1 AND chat IS NOT NULL";
const UPDATE: &str = "UPDATE chats SET events = ?3 WHERE run = ?1 AND lane = ?2";
const DELETE: &str = "DELETE FROM chats WHERE run = ?1 AND lane = ?2";

#[cfg(test)]
pub(super) const STATEMENTS: &[&str] = &[
    IN_RUN,
    IS_OF_CHAT,
    IN_LAST_RUN[0],
    IN_LAST_RUN[1],
    NEXT_RUN[0],
    NEXT_RUN[1],
    CHATS,
    INSERT,
    CHAT,
    UPDATE,
    DELETE,
];

/// The events of a lane in a run: their places in it, each as two bytes.
struct Events(Vec<u8>);

impl Events {
    fn of(seqs: impl Iterator<Item = i64>) -> Self {
        let place = |seq: i64| u16::try_from(seq % RUN).unwrap_or_default();
        Self(seqs.flat_map(|seq| place(seq).to_be_bytes()).collect())
    }

    fn find(tx: &Tx<'_>, run: i64, lane: i64) -> Result<Option<Self>> {
        let mut in_run = tx.prepare(IN_RUN)?;
        let events = in_run.query_row([run, lane], |row| row.get(0));
        Ok(events.optional()?.map(Self))
    }

    fn seqs(&self, run: i64) -> impl Iterator<Item = i64> {
        let (places, _) = self.0.as_chunks::<2>();
        let places = places.iter();
        places.map(move |place| run * RUN + i64::from(u16::from_be_bytes(*place)))
    }
}

/// Writes a run, when its last number was given before this one.
pub(super) fn accepted(tx: &Tx<'_>, seq: i64) -> Result<()> {
    if seq % RUN != 0 {
        return Ok(());
    }
    let mut events = lanes(tx, seq - RUN, seq - 1)?;
    events.sort_unstable();
    let mut insert = tx.prepare(INSERT)?;
    for of_lane in events.chunk_by(|(a, _), (b, _)| a == b) {
        let events = Events::of(of_lane.iter().map(|(_, seq)| *seq));
        insert.execute(params![seq / RUN - 1, of_lane[0].0, events.0])?;
    }
    Ok(())
}

/// The lanes of the chats of events, and their numbers. Without those on damaged pages, which must not keep others from
/// being accepted.
fn lanes(tx: &Tx<'_>, first: i64, last: i64) -> Result<Vec<(i64, i64)>> {
    /// About as many events as a page has.
    const PAGE: i64 = 32;

    let mut events = Vec::new();
    let mut from = first;
    let mut read = |from: &mut i64| {
        let mut chats = tx.prepare(CHATS)?;
        let mut chats = chats.query([*from, last])?;
        while let Some(row) = chats.next()? {
            let seq = row.get(0)?;
            if let Some(chat) = row.get_ref(1)?.as_str_or_null()? {
                events.push((Lane::of_chat(chat).0, seq));
            }
            *from = seq + 1;
        }
        Ok(())
    };
    while from <= last {
        match read(&mut from) {
            Ok(()) => break,
            Err(error) if is_damage(&error) => from += PAGE,
            Err(error) => return Err(error),
        }
    }
    Ok(events)
}

/// The numbers of the first events of a chat in this range and order, at most so many.
pub(super) fn find(
    tx: &Tx<'_>,
    chat: &str,
    range: &RangeInclusive<i64>,
    last: i64,
    newest_first: bool,
    most: usize,
) -> Result<Vec<i64>> {
    let order = usize::from(newest_first);
    let (from, to) = (*range.start(), *range.end().min(&last));
    let begin_of_last = last - last % RUN;
    let mut found = Vec::new();
    let add_last_run = |found: &mut Vec<i64>| {
        let mut events = tx.prepare(IN_LAST_RUN[order])?;
        let events =
            events.query_map(params![from.max(begin_of_last), to, chat], |row| row.get(0))?;
        for seq in events.take(most - found.len()) {
            found.push(seq?);
        }
        Ok::<_, rusqlite::Error>(())
    };
    if newest_first {
        add_last_run(&mut found)?;
    }
    let lane = Lane::of_chat(chat).0;
    let mut is_of_chat = tx.prepare(IS_OF_CHAT)?;
    let mut next_run = tx.prepare(NEXT_RUN[order])?;
    let runs = from.div_euclid(RUN)..=to.div_euclid(RUN);
    let mut next = if newest_first {
        *runs.end()
    } else {
        *runs.start()
    };
    while found.len() < most {
        let run = next_run.query_row([next], |row| row.get(0)).optional()?;
        let Some(run) = run.filter(|run| runs.contains(run)) else {
            break;
        };
        next = if newest_first { run - 1 } else { run + 1 };
        let Some(events) = Events::find(tx, run, lane)? else {
            continue;
        };
        let mut seqs: Vec<_> = events
            .seqs(run)
            .filter(|seq| (from..=to).contains(seq))
            .collect();
        if newest_first {
            seqs.reverse();
        }
        for seq in seqs {
            if found.len() < most && is_of_chat.exists(params![seq, chat])? {
                found.push(seq);
            }
        }
    }
    if !newest_first {
        add_last_run(&mut found)?;
    }
    Ok(found)
}

/// Removes events that are about to be deleted, which are written if they are in another run than the last number.
pub(super) fn remove(tx: &Tx<'_>, events: &[i64], last: i64) -> Result<()> {
    let mut chat = tx.prepare(CHAT)?;
    // Neighbours are on the same page.
    let mut lanes: BTreeMap<_, BTreeSet<i64>> = BTreeMap::new();
    for seq in events {
        if seq / RUN < last / RUN
            && let Some(Some(lane)) = chat
                .query_row([seq], |row| {
                    let chat = row.get_ref(0)?.as_str().ok();
                    Ok(chat.map(|chat| Lane::of_chat(chat).0))
                })
                .optional()?
        {
            lanes.entry((seq / RUN, lane)).or_default().insert(*seq);
        }
    }
    for ((run, lane), removed) in lanes {
        let Some(events) = Events::find(tx, run, lane)? else {
            continue;
        };
        let left = Events::of(events.seqs(run).filter(|seq| !removed.contains(seq)));
        match left.0.is_empty() {
            true => tx.prepare(DELETE)?.execute([run, lane])?,
            false => tx.prepare(UPDATE)?.execute(params![run, lane, left.0])?,
        };
    }
    Ok(())
}
