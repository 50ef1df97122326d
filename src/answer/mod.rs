//! The response to a delivery: a row of the table of answers, as a problem document (RFC 9457).
//!
//! Each room says how its refusals are answered by implementing [`Answer`].

mod body;
mod decision;
#[cfg(feature = "axum")]
mod extract;
mod outcome;
mod router;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::Full;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use self::body::ResponseBody;
pub use self::decision::Decision;
use self::decision::Refused;
#[cfg(feature = "axum")]
pub use self::extract::DeliveryRejection;
pub use self::router::RouterResponseFuture;
use crate::event::EventKind;
use crate::outcome::Outcome;

/// A row of the table of answers.
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
            problem: concat!(
                r#"{"type":"https://docs.rs/tower-webhook/latest/tower_webhook/docs/answers/#"#,
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

/// An error that a [`Decision`] holds.
pub(crate) type SharedError = dyn Error + Send + Sync;

pub(crate) fn log_refusal(outcome: &'static str, reason: &dyn fmt::Display) {
    tracing::warn!(outcome, %reason, "the delivery was refused");
}

pub(crate) fn insert_retry_after(headers: &mut HeaderMap, delay: Duration) {
    // Rounded up, so that no retry comes too early.
    let part = u64::from(delay.subsec_nanos() > 0);
    let seconds = delay.as_secs().saturating_add(part);
    headers.insert(RETRY_AFTER, seconds.max(1).into());
}

/// Makes the response without its decision, with an empty map for its headers.
fn respond(answer: &impl Answer, row: &Row, mut headers: HeaderMap) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(row.problem));
    *response.status_mut() = row.status;
    if row.status != StatusCode::OK {
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
    }
    answer.headers(&mut headers);
    *response.headers_mut() = headers;
    response
}

/// Logs an outcome, and makes the response.
fn respond_with(outcome: Outcome) -> Response<Full<Bytes>> {
    let row = outcome.row();
    outcome.log(&row);
    let mut response = respond(&outcome, &row, HeaderMap::new());
    // A response without a decision is decided by its status.
    if !matches!(outcome, Outcome::Handled) {
        response.extensions_mut().insert(Decision::ended(outcome));
    }
    response
}

/// Makes the response to a refusal, with an empty map for its headers. The caller logs it.
fn refuse<R>(
    refusal: R,
    kind: Option<EventKind>,
    is_verified: bool,
    headers: HeaderMap,
) -> Response<Full<Bytes>>
where
    R: Answer + Error + Send + Sync + 'static,
{
    let row = refusal.row();
    let mut response = respond(&refusal, &row, headers);
    let refusal = match refusal.constant() {
        Some(refusal) => Refused::Constant(refusal),
        None => Refused::Shared(Arc::new(refusal)),
    };
    let decision = Decision::refused(row.name, refusal, kind, is_verified);
    response.extensions_mut().insert(decision);
    response
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::HashMap;

    use http_body_util::BodyExt;

    use super::*;

    pub(crate) const SECOND: Duration = Duration::from_secs(1);
    /// Part of errors, which only the log may show.
    pub(crate) const CONFIDENTIAL: &str = "what only the log may tell";

    /// A row as it is documented: status, name, and a header besides the content type.
    pub(crate) type Documented = (u16, &'static str, Option<(&'static str, &'static str)>);

    /// Asserts that a refusal is answered as the table says.
    pub(crate) async fn assert_refused<R>(refusal: R, documented: Documented)
    where
        R: Answer + Error + Send + Sync + 'static,
    {
        let detail = refusal.row().detail;
        let response = refuse(refusal, None, false, HeaderMap::new());
        let decision = Decision::of(&response).unwrap();
        assert!(decision.outcome().is_none());
        assert!(decision.refusal().unwrap().is::<R>());
        assert_eq!(decision.name(), documented.1);
        assert_row(response, documented, detail).await;
    }

    /// Asserts that a response is what the table says.
    pub(super) async fn assert_row(
        response: Response<Full<Bytes>>,
        (status, name, header): Documented,
        detail: &str,
    ) {
        assert_eq!(response.status(), status, "{name}");

        let mut expected: HashMap<_, _> = header.into_iter().collect();
        if status != 200 {
            expected.insert("content-type", "application/problem+json");
        }
        let found = response.headers().iter();
        let found: HashMap<_, _> = found
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
            .collect();
        assert_eq!(found, expected, "{name}");

        let title = response.status().canonical_reason().unwrap();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        if status == 200 {
            assert!(body.is_empty(), "{name}");
            return;
        }
        let text = str::from_utf8(&body).unwrap();
        assert!(!text.contains(CONFIDENTIAL), "{text}");
        let problem: HashMap<String, serde_json::Value> = serde_json::from_str(text).unwrap();
        assert_eq!(problem.len(), 4, "{text}");
        assert_eq!(problem["status"], status);
        assert!(
            problem["type"]
                .as_str()
                .unwrap()
                .ends_with(&format!("#{name}"))
        );
        assert_eq!(problem["title"], title);
        assert_eq!(problem["detail"], detail);
        assert!(detail.ends_with('.'));
    }

    #[test]
    fn retry_after_is_rounded_up_to_a_second_at_least() {
        for (remaining, expected) in [
            (Duration::ZERO, "1"),
            (Duration::from_nanos(1), "1"),
            (SECOND, "1"),
            (SECOND + Duration::from_nanos(1), "2"),
            (Duration::MAX, "18446744073709551615"),
        ] {
            let response = respond_with(Outcome::InFlight { remaining });
            assert_eq!(response.headers()[RETRY_AFTER], expected);
        }
    }
}
