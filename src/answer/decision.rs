//! The decision about a delivery, for layers outside.

use std::error::Error;
use std::sync::Arc;

use http::{Response, StatusCode};

use super::row::{Answer, SharedError};
use crate::event::EventKind;
use crate::outcome::{Outcome, name};

/// The decision about a delivery: its outcome, or the reason for its refusal.
///
/// Every response of [`SignatureLayer`](crate::SignatureLayer) and
/// [`WebhookLayer`](crate::WebhookLayer) carries one in its extensions. A layer around them can count or
/// log it:
///
/// ```
/// use http::{Response, StatusCode};
/// use tower_webhook::Decision;
/// use tower_webhook::signature::Refusal;
///
/// fn count<B>(response: &Response<B>) {
///     let Some(decision) = Decision::of(response) else {
///         return;
///     };
///     // The client chooses the event header. Without verification, it proves nothing.
///     let kind = decision.kind().filter(|_| decision.is_verified());
///     println!("{} of kind {kind:?}", decision.name());
///
///     if let Some(refusal) = decision.refusal()
///         && let Some(Refusal::InvalidSignature(error)) = refusal.downcast_ref()
///     {
///         println!("not authentic: {error}");
///     }
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Decision {
    what: What,
    kind: Option<EventKind>,
    is_verified: bool,
    /// Whether a service of another crate inserted the outcome, whatever status it chose.
    is_inserted: bool,
}

#[derive(Clone, Debug)]
enum What {
    Ended(Outcome),
    // The name is beside the refusal, whose type is erased: rooms above have their own types.
    Refused(&'static str, Refused),
}

#[derive(Clone, Debug)]
pub(super) enum Refused {
    Constant(&'static SharedError),
    Shared(Arc<SharedError>),
}

impl Decision {
    /// Returns the decision about the delivery that `response` answers.
    #[must_use]
    pub fn of<B>(response: &Response<B>) -> Option<&Self> {
        response.extensions().get()
    }

    /// Returns the name of the answer, as in the [table of responses](crate::docs::responses): `handled`, or
    /// `invalid-signature`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match &self.what {
            What::Ended(outcome) => outcome.name(),
            What::Refused(name, _) => name,
        }
    }

    /// Returns the outcome, unless the delivery was refused.
    #[must_use]
    pub fn outcome(&self) -> Option<&Outcome> {
        match &self.what {
            What::Ended(outcome) => Some(outcome),
            What::Refused(..) => None,
        }
    }

    /// Returns why the delivery was refused: a [`signature::Refusal`](crate::signature::Refusal) or an
    /// [`idempotency::Refusal`](crate::idempotency::Refusal). Use `downcast_ref` to get it.
    #[must_use]
    pub fn refusal(&self) -> Option<&(dyn Error + Send + Sync + 'static)> {
        match &self.what {
            What::Ended(_) => None,
            What::Refused(_, Refused::Constant(refusal)) => Some(*refusal),
            What::Refused(_, Refused::Shared(refusal)) => Some(refusal.as_ref()),
        }
    }

    /// Returns the error that led to the answer: that of the outcome, or the refusal.
    pub(crate) fn reason(&self) -> Option<&(dyn Error + 'static)> {
        match self.refusal() {
            Some(refusal) => Some(refusal),
            None => self.outcome()?.reason(),
        }
    }

    /// Returns the value of the event header, if the request has exactly one and it is valid.
    #[must_use]
    pub fn kind(&self) -> Option<&EventKind> {
        self.kind.as_ref()
    }

    /// Whether the delivery was verified. If it was not, anybody may have sent it, and may have chosen its
    /// [`kind`](Self::kind).
    #[must_use]
    pub fn is_verified(&self) -> bool {
        self.is_verified
    }

    pub(super) fn ended(outcome: Outcome) -> Self {
        Self {
            what: What::Ended(outcome),
            // The signature's layer fills in kind and verification later, in `sent_as`.
            kind: None,
            is_verified: false,
            is_inserted: false,
        }
    }

    pub(super) fn refused(
        name: &'static str,
        refusal: Refused,
        kind: Option<EventKind>,
        is_verified: bool,
    ) -> Self {
        Self {
            what: What::Refused(name, refusal),
            kind,
            is_verified,
            is_inserted: false,
        }
    }

    /// Turns an outcome that a service of another crate inserted into a decision, and logs it.
    pub(crate) fn adopt<B>(response: &mut Response<B>) {
        if let Some(outcome) = response.extensions_mut().remove::<Outcome>() {
            // The service inserted it without the log line that answers of this crate have.
            outcome.log(&outcome.row());
            let decision = Self {
                is_inserted: true,
                ..Self::ended(outcome)
            };
            response.extensions_mut().insert(decision);
        }
    }

    /// Whether the response completes the claim on its key: by the outcome that a service inserted, else by its
    /// status, but for an answer of this crate that acknowledges an event which was not handled.
    pub(crate) fn completes<B>(response: &Response<B>) -> bool {
        let status = response.status();
        match Self::of(response).map(|decision| (decision, &decision.what)) {
            // A layer that rewrote the status has the last word: the sender acts on that, not on the outcome.
            Some((decision, What::Ended(outcome)))
                if decision.is_inserted || outcome.row().status == status =>
            {
                outcome.completes()
            }
            // The sender retries after any other status, so the key must be free then.
            _ => status.is_success(),
        }
    }

    /// Completes the decision of the response to a verified delivery, and returns its name. A response without a
    /// decision is decided by its status.
    pub(crate) fn sent_as<B>(response: &mut Response<B>, kind: EventKind) -> &'static str {
        Self::adopt(response);
        let status = response.status();
        let extensions = response.extensions_mut();
        if let Some(decision) = extensions.get_mut::<Self>() {
            decision.kind = Some(kind);
            decision.is_verified = true;
            return decision.name();
        }
        let outcome = outcome_by(status);
        let name = outcome.name();
        extensions.insert(Self {
            kind: Some(kind),
            is_verified: true,
            ..Self::ended(outcome)
        });
        name
    }

    /// Whether this crate answered with an outcome. [`sent_as`](Self::sent_as) decides about the responses of others.
    pub(crate) fn is_own<B>(response: &Response<B>) -> bool {
        let decision = Self::of(response);
        decision.is_some_and(|it| !it.is_inserted && matches!(it.what, What::Ended(_)))
    }

    /// Returns the name of a response that may have no decision yet.
    pub(crate) fn name_of<B>(response: &Response<B>) -> &'static str {
        match Self::of(response) {
            Some(decision) => decision.name(),
            None if response.status().is_success() => name::HANDLED,
            None => Self::FAILED,
        }
    }

    /// Returns the outcome of a response that may have no decision yet.
    pub(crate) fn outcome_of<B>(response: &Response<B>) -> Outcome {
        match Self::of(response).map(|decision| &decision.what) {
            Some(What::Ended(outcome)) => outcome.clone(),
            // An inner layer of this crate refused it: for an observer, the attempt failed.
            Some(What::Refused(name, _)) => Outcome::failed(*name),
            None => outcome_by(response.status()),
        }
    }

    /// The name of a run that ended with an error instead of a response.
    pub(crate) const FAILED: &'static str = name::FAILED;
}

/// The outcome of a service that answers by its status alone.
fn outcome_by(status: StatusCode) -> Outcome {
    match status.is_success() {
        true => Outcome::Handled,
        false => Outcome::failed(format!("the service answered with status {status}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent_as<B>(response: &mut Response<B>) -> &'static str {
        Decision::sent_as(response, EventKind::CHAT_RATED)
    }

    #[test]
    fn a_response_without_an_outcome_is_decided_by_its_status() {
        for (status, outcome) in [
            (200, "handled"),
            (204, "handled"),
            (302, "failed"),
            (500, "failed"),
        ] {
            let mut response = Response::builder().status(status).body(()).unwrap();
            assert_eq!(Decision::name_of(&response), outcome);
            assert_eq!(Decision::completes(&response), outcome == "handled");
            assert_eq!(sent_as(&mut response), outcome);
            let decision = Decision::of(&response).unwrap();
            assert_eq!(decision.name(), outcome);
            assert_eq!(decision.kind(), Some(&EventKind::CHAT_RATED));
            assert!(decision.is_verified());
        }
    }

    #[test]
    fn an_outcome_that_a_service_inserted_decides() {
        let mut response = Response::builder().status(202).body(()).unwrap();
        response.extensions_mut().insert(Outcome::Ignored);
        Decision::adopt(&mut response);

        assert_eq!(Decision::name_of(&response), "ignored");
        assert!(!Decision::completes(&response));
        assert_eq!(sent_as(&mut response), "ignored");
        let outcome = Decision::of(&response).unwrap().outcome();
        assert!(matches!(outcome, Some(Outcome::Ignored)));
    }

    #[test]
    fn a_status_that_a_layer_changed_decides_over_an_answer_of_this_crate() {
        let mut rewritten = super::super::respond::respond_with(Outcome::failed("no disk"));
        assert!(!Decision::completes(&rewritten));
        *rewritten.status_mut() = http::StatusCode::OK;
        assert!(Decision::completes(&rewritten));

        let mut rewritten = super::super::respond::respond_with(Outcome::Replayed);
        assert!(Decision::completes(&rewritten));
        *rewritten.status_mut() = http::StatusCode::SERVICE_UNAVAILABLE;
        assert!(!Decision::completes(&rewritten));
    }
}
