//! Handles each event: as a line of JSON, which is given to a command or a server, and printed.

use std::future::pending;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use tower_webhook::{HandlerError, HandlerResult, RawDelivery, Sender, SenderPolicy};

use crate::exec::Exec;
use crate::forward::Forward;
use crate::json::{Batch, line_with_payload};
use crate::output::Output;

/// What is done with each event.
pub(crate) enum Action {
    Print,
    Exec(Exec),
    Forward(Forward),
}

/// The limits of an event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// How many commands or requests run at a time.
    pub(crate) concurrency: usize,
    /// The attempt that is the last one.
    pub(crate) max_attempts: Option<NonZeroU32>,
    /// The time limit of the whole handler.
    pub(crate) time: Duration,
}

/// Why a command or a server did not handle an event.
pub(crate) enum Failure {
    /// It never will.
    Discard(String),
    /// The event is not to blame, so that it is never given up.
    Later(String),
    Failed(String),
}

pub(crate) struct Events {
    action: Action,
    limits: Limits,
    permits: Semaphore,
    output: Arc<Output>,
    /// Whether no line is printed of what the command or the server has handled.
    is_quiet: bool,
    /// The path of the route, if the receiver has several.
    route: Option<String>,
    sender: Sender,
}

impl Events {
    pub(crate) fn new(
        action: Action,
        limits: Limits,
        (output, is_quiet): (Arc<Output>, bool),
        route: Option<String>,
        sender: Sender,
    ) -> Self {
        Self {
            action,
            limits,
            permits: Semaphore::new(limits.concurrency),
            output,
            is_quiet,
            route,
            sender,
        }
    }

    pub(crate) async fn handle(&self, delivery: RawDelivery) -> HandlerResult {
        let line = line(&delivery, self.route.as_deref(), &self.sender)?;
        if let Action::Print = self.action {
            return Ok(self.output.print(line).await?);
        }

        let last = self.last_attempt(&delivery);
        let is_stored = delivery.accepted_at().is_some();
        match self.act(&delivery, &line, last.is_some()).await? {
            Ok(()) => {
                if !self.is_quiet {
                    self.output.record(line);
                }
                Ok(())
            }
            Err(Failure::Discard(reason)) => Err(HandlerError::discard(reason)),
            // The receiver's own retries end an outage sooner than that.
            Err(Failure::Later(reason)) if is_stored => Err(HandlerError::retry(reason)),
            Err(Failure::Later(reason)) => {
                let delay = SenderPolicy::default().retry_every;
                Err(HandlerError::retry_after(delay, reason))
            }
            Err(Failure::Failed(reason)) => Err(match last {
                // An inbox keeps the number of attempts beside the reason.
                Some(_) if is_stored => HandlerError::dead_letter(reason),
                Some((attempt, max)) => {
                    HandlerError::discard(format!("attempt {attempt} of {max} failed: {reason}"))
                }
                None => HandlerError::retry(reason),
            }),
        }
    }

    /// Waits for its turn, and gives the event to the command or the server.
    async fn act(
        &self,
        delivery: &RawDelivery,
        line: &str,
        is_last: bool,
    ) -> Result<Result<(), Failure>, HandlerError> {
        // Shortly before the time limit of the layer, after which it drops this future.
        let limit = self.limits.time.mul_f64(0.9);
        let limit = limit.max(self.limits.time.saturating_sub(Duration::from_secs(1)));
        let arrived = Instant::now();
        let (_permit, waited) = match self.permits.try_acquire() {
            Ok(permit) => (permit, false),
            Err(_) => match timeout(limit, self.permits.acquire()).await {
                Ok(permit) => (permit?, true),
                // Too late to start: the layer's time limit ends the attempt.
                Err(_) => pending().await,
            },
        };
        let acting = async {
            match &self.action {
                Action::Print => Ok(()),
                Action::Exec(exec) => exec.run(delivery, line).await,
                Action::Forward(server) => server.post(line).await,
            }
        };
        if !is_last || waited {
            // The layer's time limit holds, after which the event is retried.
            return Ok(acting.await);
        }
        // To be discarded, an event must fail before that.
        let left = limit.saturating_sub(arrived.elapsed());
        let ended = timeout(left, acting).await;
        Ok(ended.unwrap_or_else(|_| Err(Failure::Failed(format!("no result within {limit:?}")))))
    }

    /// The number of the attempt and the limit that it has reached, if it is the last one.
    fn last_attempt(&self, delivery: &RawDelivery) -> Option<(NonZeroU32, NonZeroU32)> {
        let attempt = delivery.attempt()?;
        let max = self.limits.max_attempts?;
        (attempt >= max).then_some((attempt, max))
    }
}

fn line(delivery: &RawDelivery, route: Option<&str>, sender: &Sender) -> anyhow::Result<String> {
    #[derive(Serialize)]
    struct Head<'a> {
        event: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        key: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        attempt: Option<NonZeroU32>,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        redriven: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        route: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        batch: Option<Batch>,
    }

    let head = Head {
        event: delivery.kind().as_str(),
        key: delivery.key().map(ToString::to_string),
        attempt: delivery.attempt(),
        redriven: delivery.is_redriven(),
        route,
        batch: delivery.item().map(|item| Batch::of(item, None)),
    };
    // The object of its fields, of a form.
    let form = sender.form_as_json(delivery.body());
    let payload = match &form {
        Some(object) => object.as_str(),
        None => delivery.json()?,
    };
    Ok(line_with_payload(&head, payload)?)
}
