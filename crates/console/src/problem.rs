//! Why a request has no page.

use std::error::Error;

use axum::Extension;
use axum::extract::rejection::{BytesRejection, FormRejection, PathRejection, QueryRejection};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use maud::Markup;
use tower_webhook::store::{StoreError, StoreErrorKind};
use tower_webhook::telemetry::Chain;

use super::page::{View, problem};
use super::settings::Console;

/// Why a request has no page. As a response, it is for [`guard`](super::guard::guard), which makes a page of it.
#[derive(Clone)]
pub(super) struct Problem {
    status: StatusCode,
    reason: String,
    /// Whether the reason has the text of an error.
    has_error: bool,
}

impl Problem {
    pub(super) fn new(status: StatusCode, reason: impl Into<String>) -> Self {
        Self {
            status,
            reason: reason.into(),
            has_error: false,
        }
    }

    pub(super) fn bad(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, reason)
    }

    pub(super) fn not_found(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, reason)
    }

    /// Adds a sentence to the reason.
    pub(super) fn add(&mut self, sentence: &str) {
        self.reason.push(' ');
        self.reason.push_str(sentence);
    }

    /// What a page says of it.
    pub(super) fn reason(&self, console: &Console) -> &str {
        match self.has_error && console.hides_payloads {
            true => "The database failed. The log has the reason.",
            false => &self.reason,
        }
    }

    pub(super) fn page(self, view: &View) -> Response {
        let page = problem(view, self.status, self.reason(&view.console));
        self.on(page)
    }

    /// A page that has the reason.
    pub(super) fn on(self, page: Markup) -> Response {
        (self.status, page).into_response()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        (self.status, Extension(self)).into_response()
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        Self::from(&error)
    }
}

impl From<&StoreError> for Problem {
    fn from(error: &StoreError) -> Self {
        // The operator has asked for it, and the queue works: the answer is 400, and the log has no line.
        if let (StoreErrorKind::Invalid, Some(reason)) = (error.kind(), error.source()) {
            return Self::bad(format!("That is not possible: {reason}."));
        }
        let reason = Chain(error);
        tracing::warn!(
            reason = reason.to_string(),
            "the console could not ask the database"
        );
        Self {
            has_error: true,
            ..Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                format!("The database failed: {reason}."),
            )
        }
    }
}

/// The request is not what the page needs.
macro_rules! rejections {
    ($($Rejection:ident),+) => {$(
        impl From<$Rejection> for Problem {
            fn from(rejection: $Rejection) -> Self {
                Self::new(rejection.status(), rejection.body_text())
            }
        }
    )+};
}

rejections!(BytesRejection, FormRejection, PathRejection, QueryRejection);
