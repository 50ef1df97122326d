//! A run: from the claim on a key to its settlement.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use tower_service::Service;
use tracing::Span;

use super::claims::Claims;
use super::duplicate::{NotClaimed, OtherRun, Refusal};
use super::rules::Rules;
use crate::answer::{Answer, Decision, ResponseBody};
use crate::execution::{Leases, attempt};
use crate::outcome::Outcome;
use crate::store::Store;
use crate::telemetry::AttemptWatch;
use crate::verified::Verified;

/// How a run ended.
pub(super) enum Ended<B, E> {
    /// With a response for the client.
    Answered(Result<Response<ResponseBody<B>>, E>),
    /// Before it began: another run holds the key, and its outcome can be waited for.
    InFlight(OtherRun),
}

/// Claims the delivery's key, calls the inner service, and settles the claim.
///
/// The request is boxed because this future would hold it several times over.
pub(super) async fn run<St, S, B>(
    leases: Arc<Leases<St>>,
    rules: Rules,
    inner: S,
    request: Box<Request<Verified>>,
) -> Ended<B, S::Error>
where
    St: Store,
    S: Service<Request<Verified>, Response = Response<B>>,
{
    let claims = Claims::take(&leases, rules, request.body()).await;
    Ended::Answered(match claims {
        Ok(claims) => {
            let limit = leases.limits.handler_timeout;
            call(claims, inner, request, &leases, limit).await
        }
        Err(NotClaimed::InFlight(other)) => {
            return Ended::InFlight(other.inside_another(request.body().is_claimed()));
        }
        Err(NotClaimed::Ended(outcome)) => Ok(ResponseBody::answer(outcome)),
        Err(NotClaimed::Refused(refusal)) => Ok(refuse(refusal)),
    })
}

/// Logs a refusal, and returns its response.
pub(super) fn refuse<B>(refusal: Refusal) -> Response<ResponseBody<B>> {
    refusal.log(&refusal.row());
    ResponseBody::refuse(refusal)
}

/// Calls the inner service under `claims`, for at most `limit`, and settles them.
///
/// Not a part of [`run`], whose future would have room for this beside the taking of the claims: above
/// 1 KiB, an allocation is much slower.
pub(super) async fn call<St, S, B>(
    mut claims: Claims<St>,
    mut inner: S,
    mut request: Box<Request<Verified>>,
    leases: &Leases<St>,
    limit: Duration,
) -> Result<Response<ResponseBody<B>>, S::Error>
where
    St: Store,
    S: Service<Request<Verified>, Response = Response<B>>,
{
    if let Some(number) = claims.attempt() {
        Span::current().record("attempt", number.get());
    }
    let (number, are_held) = (claims.attempt(), claims.are_held());
    Verified::begin_attempt(&mut request, number, are_held);

    let delivery = request.body().delivery();
    let watch = AttemptWatch::new(&leases.observers, delivery, None);
    let work = async move {
        // Within the time limit: a service that is never ready must not keep the claim.
        poll_fn(|cx| inner.poll_ready(cx)).await?;
        inner.call(*request).await
    };
    let mut attempted = attempt(work, limit, claims.lost()).await;
    // The duration is the handler's, without the settlement.
    let watch = watch.stop();
    let mut completed = completes(&mut attempted);
    let settled = match completed {
        Some(true) => claims.complete().await,
        Some(false) => {
            claims.release().await;
            Ok(())
        }
        // Dropping the claims releases the other one, if there are two.
        None => Ok(()),
    };
    if settled.is_err() {
        // A settlement that failed is not reported as one.
        completed = None;
    }
    // A success that could not be recorded is answered with 503, and the sender tries again.
    let ended = settled.and(attempted);
    if watch.is_observed() {
        let outcome = match &ended {
            Ok(Ok(response)) => Decision::outcome_of(response),
            Ok(Err(_)) => Outcome::failed("the inner service returned an error"),
            Err(outcome) => outcome.clone(),
        };
        let settlement = completed.map(|completed| outcome.settlement_of_claim(completed));
        watch.ended(&outcome, settlement.as_ref());
    }
    match ended {
        Ok(result) => result.map(|response| response.map(ResponseBody::service)),
        Err(outcome) => Ok(ResponseBody::answer(outcome)),
    }
}

/// Whether the claims are completed after an attempt, or released. `None` if they are lost. The outcome is logged if
/// nothing did that.
fn completes<B, E>(attempted: &mut Result<Result<Response<B>, E>, Outcome>) -> Option<bool> {
    let response = match attempted {
        Ok(Ok(response)) => response,
        Err(Outcome::LeaseLost) => return None,
        // Errors and panics too: the next delivery may succeed.
        Ok(Err(_)) | Err(_) => return Some(false),
    };
    Decision::adopt(response);
    let completes = Decision::completes(response);
    if !completes && Decision::of(response).is_none() {
        // The service is not part of this crate, and has logged nothing.
        tracing::warn!(
            status = response.status().as_u16(),
            "the service answered without 2xx; the event is handled on the platform's next retry"
        );
    }
    Some(completes)
}
