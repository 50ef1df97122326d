//! The table of responses: the status code and the log line of each [`Outcome`].

use http::header::HeaderMap;
use http::{HeaderName, HeaderValue};

use super::row::{Answer, Row, insert_retry_after, log_refusal, row};
use crate::error::Chain;
use crate::outcome::Outcome;

const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

impl Answer for Outcome {
    #[rustfmt::skip]
    fn row(&self) -> Row {
        match self {
            Self::Handled             => row!("handled", OK),
            Self::Accepted            => row!("accepted", OK),
            Self::Replayed            => row!("replayed", OK),
            Self::Ignored             => row!("ignored", OK),
            Self::Filtered            => row!("filtered", OK),
            Self::Discarded(_)        => row!("discarded", OK),
            Self::DeadLetter(_)       => row!("dead-letter", OK),
            // `reject_unhandled` and a wrong URL want a retry, so the status is not 2xx.
            Self::Unhandled           => row!("unhandled", NOT_FOUND 404 "Not Found", "This receiver does not handle this kind of event."),
            Self::Undecodable(_)      => row!("undecodable", UNPROCESSABLE_ENTITY 422 "Unprocessable Entity", "The body is not the JSON object that this event should carry."),
            Self::Failed { .. }       => row!("failed", INTERNAL_SERVER_ERROR 500 "Internal Server Error", "The event could not be handled."),
            Self::Snoozed { .. }      => row!("snoozed", SERVICE_UNAVAILABLE 503 "Service Unavailable", "The handler asked for a later delivery."),
            Self::Panicked(_)         => row!("panicked", INTERNAL_SERVER_ERROR 500 "Internal Server Error", "The event could not be handled."),
            Self::TimedOut { .. }     => row!("handler-timeout", SERVICE_UNAVAILABLE 503 "Service Unavailable", "The event was not handled in time."),
            Self::LeaseLost           => row!("lease-lost", SERVICE_UNAVAILABLE 503 "Service Unavailable", "The claim on the event was lost while it was handled."),
            // Only a worker's attempts end like this and the next: they have rows because every outcome has one.
            Self::Crashed { .. }      => row!("crashed", SERVICE_UNAVAILABLE 503 "Service Unavailable", "The event could not be handled."),
            Self::Interrupted         => row!("interrupted", SERVICE_UNAVAILABLE 503 "Service Unavailable", "This receiver stops."),
            // Not 200: the run in progress may still fail, and then only a retry handles the event.
            Self::InFlight { .. }     => row!("in-flight", CONFLICT 409 "Conflict", "A delivery of this event is being handled."),
            Self::Incomplete { .. }   => row!("incomplete", SERVICE_UNAVAILABLE 503 "Service Unavailable", "Some events of the delivery were not handled."),
            Self::Unavailable { .. }  => row!("database-unavailable", SERVICE_UNAVAILABLE 503 "Service Unavailable", "The database of this receiver is unavailable."),
            Self::NotRecorded(_)      => row!("not-recorded", SERVICE_UNAVAILABLE 503 "Service Unavailable", "The event was handled, but that could not be recorded."),
            Self::NotCommitted { .. } => row!("not-committed", SERVICE_UNAVAILABLE 503 "Service Unavailable", "The event was handled, but its transaction may not have been committed."),
        }
    }

    fn headers(&self, headers: &mut HeaderMap) {
        match self {
            Self::Replayed => {
                headers.insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
            }
            Self::Failed {
                retry_after: Some(delay),
                ..
            }
            | Self::Unavailable {
                retry_after: delay, ..
            }
            | Self::NotCommitted {
                retry_after: delay, ..
            }
            | Self::InFlight { remaining: delay }
            | Self::Snoozed { delay } => insert_retry_after(headers, *delay),
            _ => {}
        }
    }

    fn log(&self, row: &Row) {
        let outcome = row.name;
        match self {
            Self::Handled => tracing::debug!(outcome, "the event was handled"),
            Self::Accepted => tracing::debug!(outcome, "the event was accepted"),
            Self::Replayed => tracing::debug!(outcome, "the event had been handled before"),
            // The router says so.
            Self::Ignored => {}
            Self::Filtered => tracing::debug!(outcome, "this kind of event is not kept"),
            Self::Discarded(reason) => tracing::warn!(
                outcome,
                reason = Chain(reason.as_ref()).to_string(),
                "the handler gave the event up; it is not handled again"
            ),
            Self::DeadLetter(reason) => tracing::warn!(
                outcome,
                reason = Chain(reason.as_ref()).to_string(),
                "the handler returned a dead letter, which only an inbox keeps: the event is not handled again"
            ),
            Self::Failed { reason, .. } => tracing::error!(
                outcome,
                reason = Chain(reason.as_ref()).to_string(),
                "the handler failed; the event is handled on the platform's next retry"
            ),
            // The handler asked for it, so it is neither a warning nor an error.
            Self::Snoozed { delay } => tracing::info!(
                outcome,
                ?delay,
                "the handler snoozed the event; it is handled on the platform's next retry"
            ),
            Self::Panicked(reason) => tracing::error!(
                outcome,
                reason = Chain(reason.as_ref()).to_string(),
                "the handler panicked; the event is handled on the platform's next retry"
            ),
            Self::TimedOut { limit } => tracing::error!(
                outcome,
                ?limit,
                "the handler exceeded its time limit and was dropped; the event is handled on the \
                 platform's next retry"
            ),
            Self::LeaseLost => tracing::error!(
                outcome,
                "the lease on the key was lost and the handler was dropped: the database was unavailable for \
                 longer than the lease, or another process has taken over"
            ),
            Self::NotRecorded(error) => tracing::error!(
                outcome,
                reason = Chain(error.as_ref()).to_string(),
                "the event was handled, but that could not be recorded: it will be handled again"
            ),
            Self::NotCommitted { reason, .. } => tracing::error!(
                outcome,
                reason = Chain(reason.as_ref()).to_string(),
                "the event was handled, but its transaction may not have been committed; the \
                 platform's next retry finds out"
            ),
            Self::Incomplete { left, count } => tracing::warn!(
                outcome,
                left,
                count,
                "some items of the delivery were not handled; the platform's next retry handles only these"
            ),
            Self::Unavailable { reason, .. } => log_refusal(outcome, &Chain(reason.as_ref())),
            Self::Undecodable(error) => log_refusal(outcome, error),
            Self::Crashed { .. } | Self::Interrupted | Self::InFlight { .. } | Self::Unhandled => {
                log_refusal(outcome, &row.detail);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::decision::Decision;
    use super::super::respond::respond_with;
    use super::super::tests::{CONFIDENTIAL, Documented, SECOND, assert_row};
    use super::*;
    use crate::delivery::RawDelivery;
    use crate::error::BoxError;
    use crate::event::EventKind;

    fn every_outcome() -> Vec<Outcome> {
        let reason = || Arc::from(BoxError::from(CONFIDENTIAL));
        let raw = RawDelivery::new(EventKind::CHAT_RATED, "{what only the log may tell");
        vec![
            Outcome::Handled,
            Outcome::Accepted,
            Outcome::Replayed,
            Outcome::Ignored,
            Outcome::Filtered,
            Outcome::Discarded(reason()),
            Outcome::DeadLetter(reason()),
            Outcome::Unhandled,
            Outcome::Undecodable(raw.json().unwrap_err()),
            Outcome::failed(CONFIDENTIAL),
            Outcome::Failed {
                reason: reason(),
                retry_after: Some(60 * SECOND),
            },
            Outcome::Snoozed { delay: 90 * SECOND },
            Outcome::Panicked(BoxError::from(CONFIDENTIAL).into()),
            Outcome::TimedOut { limit: SECOND },
            Outcome::LeaseLost,
            Outcome::InFlight {
                remaining: 42 * SECOND,
            },
            Outcome::Incomplete { left: 2, count: 17 },
            Outcome::unavailable(CONFIDENTIAL, 600 * SECOND),
            Outcome::NotRecorded(reason()),
            Outcome::NotCommitted {
                reason: reason(),
                retry_after: 600 * SECOND,
            },
        ]
    }

    /// The rows of outcomes, as they are documented.
    #[rustfmt::skip]
    const TABLE: [Documented; 20] = [
        (200, "handled", None),
        (200, "accepted", None),
        (200, "replayed", Some(("idempotent-replayed", "true"))),
        (200, "ignored", None),
        (200, "filtered", None),
        (200, "discarded", None),
        (200, "dead-letter", None),
        (404, "unhandled", None),
        (422, "undecodable", None),
        (500, "failed", None),
        (500, "failed", Some(("retry-after", "60"))),
        (503, "snoozed", Some(("retry-after", "90"))),
        (500, "panicked", None),
        (503, "handler-timeout", None),
        (503, "lease-lost", None),
        (409, "in-flight", Some(("retry-after", "42"))),
        (503, "incomplete", None),
        (503, "database-unavailable", Some(("retry-after", "600"))),
        (503, "not-recorded", None),
        (503, "not-committed", Some(("retry-after", "600"))),
    ];

    #[tokio::test]
    async fn every_outcome_is_answered_as_documented() {
        let outcomes = every_outcome();
        assert_eq!(outcomes.len(), TABLE.len());
        for (outcome, documented) in outcomes.into_iter().zip(TABLE) {
            let (detail, name) = (outcome.row().detail, outcome.name());
            let completes = outcome.completes();
            let response = respond_with(outcome);

            assert_eq!(name, documented.1);
            assert_eq!(Decision::name_of(&response), name);
            assert_eq!(Decision::completes(&response), completes, "{name}");
            assert_row(response, documented, detail).await;
        }
    }

    #[test]
    fn a_claim_is_completed_where_the_event_needs_no_other_attempt() {
        let completing: Vec<_> = every_outcome()
            .iter()
            .filter(|outcome| outcome.completes())
            .map(Outcome::name)
            .collect();
        assert_eq!(
            completing,
            [
                "handled",
                "accepted",
                "replayed",
                "discarded",
                "dead-letter"
            ]
        );
    }
}
