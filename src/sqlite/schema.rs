//! The schema of a file, and the numbers that its columns hold. Until 0.1.0 is published, every change goes into version 1.

use rusqlite::ToSql;
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSqlOutput, ValueRef};

use crate::sqlite::engine::{Format, Purpose};

/// Puts the numbers of [`State`] and [`Place`] in the place of their `$Names`, when this is compiled. In the text of a
/// statement, because a partial index serves no statement that binds the values of its condition.
macro_rules! sql {
    ($sql:expr) => {{
        const TEXT: &str = $sql;
        const BYTES: [u8; TEXT.len()] = $crate::sqlite::schema::with_numbers(TEXT);
        const SQL: &str = match std::str::from_utf8(&BYTES) {
            Ok(sql) => sql,
            Err(_) => panic!("names and numbers are ASCII"),
        };
        SQL
    }};
}
pub(in crate::sqlite) use sql;

macro_rules! numbers {
    ($(#[$doc:meta])* $type:ident { $($(#[$of:meta])* $name:ident = $number:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(in crate::sqlite) enum $type {
            $($(#[$of])* $name = $number,)*
        }

        impl $type {
            const NAMES: &[(&str, u8)] = &[$((stringify!($name), $number)),*];
        }

        impl FromSql for $type {
            fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
                match value.as_i64()? {
                    $($number => Ok(Self::$name),)*
                    other => Err(FromSqlError::OutOfRange(other)),
                }
            }
        }

        impl ToSql for $type {
            fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
                Ok(ToSqlOutput::from(*self as u8))
            }
        }
    };
}

// From 2 on: 0 and 1 take no room in a row, which would change its size.
numbers! {
    /// What `events.state` holds.
    State {
        Unsettled = 2,
        Handled = 3,
        Ignored = 4,
        HandledWithoutBody = 5,
        IgnoredWithoutBody = 6,
        Discarded = 7,
        /// Deleted, but its number must not be used again.
        Deleted = 8,
        Dead = 9,
    }
}

numbers! {
    /// What `work.place` holds.
    #[derive(Default)]
    Place {
        #[default]
        Ready = 2,
        /// Ready, and has crashed before.
        Suspect = 3,
        Taken = 4,
        /// A dead letter that holds its lane.
        Holding = 5,
        Behind = 6,
        /// Retried out of order.
        Aside = 7,
    }
}

/// The file's schema, version by version.
pub(in crate::sqlite) const FORMAT: Format = Format {
    migrations: &[sql!(include_str!("schema.sql"))],
    lowest_release: "SELECT lowest_release FROM file",
    highest_time: "SELECT highest_time FROM file",
    set_highest_time: "UPDATE file SET highest_time = ?1",
    purpose: Purpose {
        begin: "",
        is_met: "SELECT spool_of IS NULL FROM file",
        refusal: "is a spool, and was left as it is: pass it to `--spool`, or empty it by `receiver inbox flush`",
    },
};

/// The same, for a spool: a file of events that go on to another database.
pub(in crate::sqlite) const SPOOL: Format = Format {
    purpose: Purpose {
        begin: "
            UPDATE file SET spool_of = 0
            WHERE spool_of IS NULL AND NOT EXISTS (SELECT * FROM events) AND NOT EXISTS (SELECT * FROM keys)",
        is_met: "SELECT spool_of IS NOT NULL FROM file",
        refusal: "is an inbox or a store, not a spool, and was left as it is: choose another path for the spool",
    },
    ..FORMAT
};

/// The text with numbers for names. Spaces follow each number, so that the text keeps its length.
pub(in crate::sqlite) const fn with_numbers<const N: usize>(sql: &str) -> [u8; N] {
    let text = sql.as_bytes();
    let mut result = [b' '; N];
    let mut at = 0;
    while at < N {
        if text[at] != b'$' {
            result[at] = text[at];
            at += 1;
            continue;
        }
        let mut end = at + 1;
        while end < N && text[end].is_ascii_alphabetic() {
            end += 1;
        }
        result[at] = b'0' + number(text, at + 1, end);
        at = end;
    }
    result
}

/// The number for the name in a part of the text.
const fn number(text: &[u8], from: usize, end: usize) -> u8 {
    match (
        find(State::NAMES, text, from, end),
        find(Place::NAMES, text, from, end),
    ) {
        (Some(number), None) | (None, Some(number)) => number,
        _ => panic!("a name after `$` is that of one state or place"),
    }
}

const fn find(names: &[(&str, u8)], text: &[u8], from: usize, end: usize) -> Option<u8> {
    let mut at = 0;
    while at < names.len() {
        let (name, number) = names[at];
        let name = name.as_bytes();
        let mut same = 0;
        while same < name.len() && from + same < end && name[same] == text[from + same] {
            same += 1;
        }
        if same == name.len() && from + same == end {
            assert!(number < 10, "a number is one digit");
            return Some(number);
        }
        at += 1;
    }
    None
}
