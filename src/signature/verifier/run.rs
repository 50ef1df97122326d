//! Runs a verifier within the limits of a body: its time, its memory, and without its panics.

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::FutureExt;
use http::Request;
use http::request::Parts;

use super::super::buffer::Share;
use super::super::config::Config;
use super::super::refusal::Refusal;
use super::{Shared, Verdict, VerifierError};
use crate::deadline::Deadline;
use crate::error::{CatchPanic, Panic};
use crate::sender::Reply;

/// The verification of a body that is complete.
pub(in crate::signature) struct Verifying {
    /// Taken when it has ended, which frees its request.
    run: Option<Pin<Box<Run>>>,
    request: Option<Arc<Request<Bytes>>>,
    /// The memory of the body, which counts until it is verified.
    share: Share,
    limit: Deadline,
}

type Run = dyn Future<Output = Result<Result<Verdict, VerifierError>, Panic>> + Send;

impl Verifying {
    pub(in crate::signature) fn new(
        verifier: &Shared,
        head: Parts,
        body: Bytes,
        share: Share,
        config: &Config,
    ) -> Self {
        let verifier = Arc::clone(&verifier.0);
        let request = Arc::new(Request::from_parts(head, body));
        let lent = Arc::clone(&request);
        let run = async move { verifier.verify(&lent).await };
        Self {
            run: Some(Box::pin(CatchPanic::new(run))),
            request: Some(request),
            share,
            limit: Deadline::new(config.bounds.timeout),
        }
    }

    /// Returns what the verifier says, and the request.
    pub(in crate::signature) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        config: &Config,
    ) -> Poll<(Result<Verdict, Refusal>, Request<Bytes>)> {
        // It is polled after its end.
        let Some(length) = self.request.as_ref().map(|it| it.body().len()) else {
            return Poll::Pending;
        };
        let decided = ready!(self.decide(length, cx, config));
        self.run = None;
        match self.request.take() {
            // It is the only one left, and is not copied.
            Some(request) => Poll::Ready((decided, Arc::unwrap_or_clone(request))),
            None => Poll::Pending,
        }
    }

    fn decide(
        &mut self,
        length: usize,
        cx: &mut Context<'_>,
        config: &Config,
    ) -> Poll<Result<Verdict, Refusal>> {
        // First, so that a body that was given up costs no more.
        self.share.check(length, cx)?;
        if let Some(run) = &mut self.run
            && let Poll::Ready(ended) = run.as_mut().poll(cx)
        {
            return Poll::Ready(match ended {
                Ok(Ok(verdict)) => Ok(verdict),
                Ok(Err(VerifierError::Refused(error))) => Err(Refusal::InvalidSignature(error)),
                Ok(Err(VerifierError::Unreadable(error))) => Err(Refusal::unreadable(error)),
                Ok(Err(VerifierError::Unavailable(error))) => Err(failed(error, config)),
                Err(panic) => Err(failed(panic.of("the verifier"), config)),
            });
        }
        ready!(self.limit.poll_unpin(cx));
        let error = format!("it took longer than {:?}", self.limit.duration());
        Poll::Ready(Err(failed(error, config)))
    }
}

/// Refuses a request by its head.
#[cold]
pub(in crate::signature) fn admits(
    verifier: &Shared,
    head: &Parts,
    config: &Config,
) -> Result<(), Refusal> {
    match Panic::catch(|| verifier.0.admit(head)) {
        Ok(admitted) => admitted.map_err(Refusal::InvalidSignature),
        Err(panic) => Err(failed(panic.of("the verifier"), config)),
    }
}

/// The answer to a request that is no POST if it is a challenge.
#[cold]
pub(in crate::signature) fn greeted(
    verifier: &Shared,
    head: &Parts,
    config: &Config,
) -> Option<Result<Reply, Refusal>> {
    match Panic::catch(|| verifier.0.greet(head)) {
        Ok(reply) => reply.map(Ok),
        Err(panic) => Some(Err(failed(panic.of("the verifier"), config))),
    }
}

fn failed(error: impl Into<Box<dyn Error + Send + Sync>>, config: &Config) -> Refusal {
    Refusal::VerifierFailed {
        error: error.into().into(),
        retry_after: config.bounds.budget.retry_after,
    }
}
