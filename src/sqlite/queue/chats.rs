//! The events of a chat, found without a search.
//!
//! Numbers are divided into runs. The acceptance of the first event of a run writes the run before it into the table
//! `chats`, sorted by lane, in the same transaction. So whatever happens, the runs before that of the last number are
//! there, and its own is read whole. Ten million events are 610 runs, with a look-up in each.

use std::ops::RangeInclusive;

use rusqlite::{OptionalExtension, params};

use crate::inbox::event::Lane;
use crate::sqlite::engine::{Tx, is_damage};

/// The numbers of a run. It is a part of the file's format. A larger one would take less time to find, and more to read
/// and to write at once: this one is written in some 15 milliseconds.
pub(super) const RUN: i64 = 16_384;

// Two chats may have the same lane.
const IN_RUN: [&str; 2] = [
    "SELECT c.seq FROM chats c CROSS JOIN events e ON e.seq = c.seq
    WHERE c.run = ?1 AND c.lane = ?2 AND c.seq BETWEEN ?3 AND ?4 AND e.chat = ?5 ORDER BY c.seq",
    "SELECT c.seq FROM chats c CROSS JOIN events e ON e.seq = c.seq
    WHERE c.run = ?1 AND c.lane = ?2 AND c.seq BETWEEN ?3 AND ?4 AND e.chat = ?5
    ORDER BY c.seq DESC",
];
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
const INSERT: &str = "INSERT INTO chats (run, lane, seq) VALUES (?1, ?2, ?3)";
const CHAT: &str = "SELECT chat FROM events WHERE seq = ?1 AND chat IS NOT NULL";
const DELETE: &str = "DELETE FROM chats WHERE run = ?1 AND lane = ?2 AND seq = ?3";

#[cfg(test)]
pub(super) const STATEMENTS: [&str; 10] = [
    IN_RUN[0],
    IN_RUN[1],
    IN_LAST_RUN[0],
    IN_LAST_RUN[1],
    NEXT_RUN[0],
    NEXT_RUN[1],
    CHATS,
    INSERT,
    CHAT,
    DELETE,
];

/// Writes a run, when its last number was given before this one.
pub(super) fn accepted(tx: &Tx<'_>, seq: i64) -> rusqlite::Result<()> {
    if seq % RUN != 0 {
        return Ok(());
    }
    let mut events = lanes(tx, seq - RUN, seq - 1)?;
    events.sort_unstable();
    let mut insert = tx.prepare(INSERT)?;
    for (lane, event) in events {
        insert.execute([event / RUN, lane, event])?;
    }
    Ok(())
}

/// The lanes of the chats of events, and their numbers. Without those on damaged pages, which must not keep others from
/// being accepted.
fn lanes(tx: &Tx<'_>, first: i64, last: i64) -> rusqlite::Result<Vec<(i64, i64)>> {
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
) -> rusqlite::Result<Vec<i64>> {
    let order = usize::from(newest_first);
    let (from, to) = (*range.start(), *range.end().min(&last));
    let begin_of_last = last - last % RUN;
    let mut found = Vec::new();
    let mut add = |sql, values: &[&dyn rusqlite::ToSql]| {
        let mut events = tx.prepare(sql)?;
        let events = events.query_map(values, |row| row.get(0))?;
        for seq in events.take(most - found.len()) {
            found.push(seq?);
        }
        Ok::<_, rusqlite::Error>(found.len() == most)
    };
    let in_last = params![from.max(begin_of_last), to, chat];
    if newest_first && add(IN_LAST_RUN[order], in_last)? {
        return Ok(found);
    }
    let lane = Lane::of_chat(chat).0;
    let mut next_run = tx.prepare(NEXT_RUN[order])?;
    let mut next = match newest_first {
        true => to.div_euclid(RUN),
        false => from.div_euclid(RUN),
    };
    while let Some(run) = next_run
        .query_row([next], |row| row.get::<_, i64>(0))
        .optional()?
    {
        let is_past = match newest_first {
            true => run < from.div_euclid(RUN),
            false => run > to.div_euclid(RUN),
        };
        if is_past {
            break;
        }
        if add(IN_RUN[order], params![run, lane, from, to, chat])? {
            return Ok(found);
        }
        next = if newest_first { run - 1 } else { run + 1 };
    }
    if !newest_first {
        add(IN_LAST_RUN[order], in_last)?;
    }
    Ok(found)
}

/// Removes events that are about to be deleted, which are written if they are in another run than the last number.
pub(super) fn remove(tx: &Tx<'_>, events: &[i64], last: i64) -> rusqlite::Result<()> {
    let mut chat = tx.prepare(CHAT)?;
    let mut delete = tx.prepare(DELETE)?;
    let mut written = Vec::new();
    for seq in events {
        if seq / RUN < last / RUN
            && let Some(Some(lane)) = chat
                .query_row([seq], |row| {
                    let chat = row.get_ref(0)?.as_str().ok();
                    Ok(chat.map(|chat| Lane::of_chat(chat).0))
                })
                .optional()?
        {
            written.push((seq / RUN, lane, *seq));
        }
    }
    // Neighbours are on the same page.
    written.sort_unstable();
    for (run, lane, seq) in written {
        delete.execute([run, lane, seq])?;
    }
    Ok(())
}
