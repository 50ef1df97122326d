//! The rows of the table of responses.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use http::StatusCode;
use http::header::{HeaderMap, RETRY_AFTER};

/// A row of the table of responses.
pub(crate) struct Row {
    /// The row's name, in the log and in the problem's type.
    pub(crate) name: &'static str,
    pub(crate) status: StatusCode,
    /// A sentence that describes the situation.
    pub(crate) detail: &'static str,
    /// The problem document, made at compile time. Empty for a success.
    pub(crate) problem: &'static str,
}

macro_rules! row {
    ($name:literal, OK) => {
        $crate::answer::Row {
            name: $name,
            status: ::http::StatusCode::OK,
            detail: "",
            problem: "",
        }
    };
    ($name:literal, $status:ident $code:literal $title:literal, $detail:literal) => {
        $crate::answer::Row {
            name: $name,
            status: ::http::StatusCode::$status,
            detail: $detail,
            // `concat!` takes only literals, so each row spells out code and title. A test compares them.
            problem: concat!(
                r#"{"type":"https://docs.rs/tower-webhook/latest/tower_webhook/docs/responses/#"#,
                $name,
                r#"","title":""#,
                $title,
                r#"","status":"#,
                $code,
                r#","detail":""#,
                $detail,
                r#""}"#
            ),
        }
    };
}
pub(crate) use row;

/// Says how an outcome or a refusal is answered and logged.
pub(crate) trait Answer {
    fn row(&self) -> Row;

    /// Adds the headers of the row.
    fn headers(&self, _: &mut HeaderMap) {}

    /// Logs the answer; `row` is its row.
    fn log(&self, row: &Row) {
        log_refusal(row.name, &row.detail);
    }

    /// An equal value that needs no allocation, for refusals that a flood of requests can cause.
    fn constant(&self) -> Option<&'static SharedError> {
        None
    }
}

/// An error that a [`Decision`](super::Decision) holds.
pub(crate) type SharedError = dyn Error + Send + Sync;

pub(crate) fn log_refusal(outcome: &'static str, reason: &dyn fmt::Display) {
    tracing::warn!(
        outcome,
        // As a string, which the log quotes and escapes: a reason may quote the request.
        reason = reason.to_string(),
        "the delivery was refused"
    );
}

pub(crate) fn insert_retry_after(headers: &mut HeaderMap, delay: Duration) {
    // Rounded up, so that no retry comes too early.
    let part = u64::from(delay.subsec_nanos() > 0);
    let seconds = delay.as_secs().saturating_add(part);
    // 0 would ask for a retry at once.
    headers.insert(RETRY_AFTER, seconds.max(1).into());
}
