//! A run: from the claim on a key to its settlement.

use std::future::poll_fn;
use std::sync::Arc;

use http::{Request, Response};
use tower_service::Service;
use tracing::Span;

use super::claims::Claims;
use super::duplicate::{NotClaimed, OtherRun, Refusal};
use super::layer::Rules;
use crate::answer::{Answer, Decision, ResponseBody};
use crate::execution::{Leases, attempt};
use crate::outcome::Outcome;
use crate::store::Store;
use crate::telemetry::{AttemptEnd, AttemptWatch};
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
        Ok(claims) => call(claims, inner, request, &leases).await,
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

/// Calls the inner service under `claims`, and settles them.
///
/// Not a part of [`run`], whose future would have room for this beside the taking of the claims: above
/// 1 KiB, an allocation is much slower.
async fn call<St, S, B>(
    mut claims: Claims<St>,
    mut inner: S,
    mut request: Box<Request<Verified>>,
    leases: &Leases<St>,
) -> Result<Response<ResponseBody<B>>, S::Error>
where
    St: Store,
    S: Service<Request<Verified>, Response = Response<B>>,
{
    if let Some(number) = claims.attempt() {
        Span::current().record("attempt", number.get());
    }
    if claims.are_held() {
        Verified::set_claimed(&mut request, claims.attempt());
    }

    let watch = AttemptWatch::new(
        &leases.observers,
        request.body().delivery(),
        claims.attempt(),
    );
    if watch.is_observed() {
        Verified::set_observed(&mut request);
    }
    let work = async move {
        poll_fn(|cx| inner.poll_ready(cx)).await?;
        inner.call(*request).await
    };
    let mut attempted = attempt(work, leases.limits.handler_timeout, claims.lost()).await;
    let watch = watch.stop();
    let (settled, end) = match settlement(&mut attempted) {
        Settlement::Complete => match claims.complete().await {
            Ok(()) => (Ok(()), AttemptEnd::Settled),
            Err(outcome) => (Err(outcome), AttemptEnd::Retry { after: None }),
        },
        Settlement::Release => {
            claims.release().await;
            (Ok(()), AttemptEnd::Retry { after: None })
        }
        // Dropping the claims releases the other one, if there are two.
        Settlement::Lost => (Ok(()), AttemptEnd::Lost),
    };
    let ended = settled.and(attempted);
    if watch.is_observed() {
        report(watch, end, &ended);
    }
    match ended {
        Ok(result) => result.map(|response| response.map(ResponseBody::service)),
        Err(outcome) => Ok(ResponseBody::answer(outcome)),
    }
}

/// Reports an attempt to the observer.
fn report<B, E>(
    watch: AttemptWatch,
    end: AttemptEnd,
    ended: &Result<Result<Response<B>, E>, Outcome>,
) {
    match ended {
        Ok(Ok(response)) => {
            let reason = Decision::of(response).and_then(Decision::reason);
            watch.ended(Decision::name_of(response), end, reason);
        }
        Ok(Err(_)) => watch.ended(Decision::FAILED, end, None),
        Err(outcome) => watch.ended(outcome.name(), end, outcome.reason()),
    }
}

/// How the claims of a run are settled.
enum Settlement {
    Complete,
    Release,
    Lost,
}

/// How the claims are settled after an attempt, the outcome of which is logged if nothing did that.
fn settlement<B, E>(attempted: &mut Result<Result<Response<B>, E>, Outcome>) -> Settlement {
    let response = match attempted {
        Ok(Ok(response)) => response,
        Err(Outcome::LeaseLost) => return Settlement::Lost,
        Ok(Err(_)) | Err(_) => return Settlement::Release,
    };
    Decision::adopt(response);
    if Decision::completes(response) {
        return Settlement::Complete;
    }
    let status = response.status();
    if Decision::of(response).is_none() {
        // The service is not part of this crate, and has logged nothing.
        tracing::warn!(
            status = status.as_u16(),
            "the service answered without 2xx; the event is handled on the platform's next retry"
        );
    }
    Settlement::Release
}
