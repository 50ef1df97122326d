//! Makes responses of rows.

use std::error::Error;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::Full;

use super::decision::{Decision, Refused};
use super::row::{Answer, Row};
use crate::event::EventKind;
use crate::outcome::Outcome;

/// Makes the response without its decision, with an empty map for its headers.
pub(super) fn respond(
    answer: &impl Answer,
    row: &Row,
    mut headers: HeaderMap,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(row.problem));
    *response.status_mut() = row.status;
    // A success has an empty body, and so no type.
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
pub(super) fn respond_with(outcome: Outcome) -> Response<Full<Bytes>> {
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
pub(super) fn refuse<R>(
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
    // A flood of refusals makes no `Arc`.
    let refusal = match refusal.constant() {
        Some(refusal) => Refused::Constant(refusal),
        None => Refused::Shared(Arc::new(refusal)),
    };
    let decision = Decision::refused(row.name, refusal, kind, is_verified);
    response.extensions_mut().insert(decision);
    response
}
