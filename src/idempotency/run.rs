//! A run: from the claim on a key to its settlement, whether or not the client is still there.

use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use http::{Request, Response};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tower_service::Service;
use tracing::{Instrument, Span};

use super::layer::Config;
use super::renewal::{Renewal, Renewals};
use crate::answer::{Answer, Outcome, ResponseBody, Settle};
use crate::delivery::Verified;
use crate::error::Chain;
use crate::limit::Limit;
use crate::store::{Claim, EventKey, KeyState, Lease, SettleError, Store, StoreError};
use crate::trace::DeliverySpan;

/// How a run ended.
pub(super) enum Ended<B, E> {
    /// With a response for the client.
    Answered(Result<Response<ResponseBody<B>>, E>),
    /// Before it began: another run has the key, and its outcome can be waited for.
    InFlight(OtherRun),
}

/// Claims the delivery's key, calls the inner service, and settles the claim.
///
/// The request is boxed because this future would hold it several times over.
pub(super) async fn run<St, S, B>(
    config: Arc<Config<St>>,
    mut inner: S,
    mut request: Box<Request<Verified>>,
) -> Ended<B, S::Error>
where
    St: Store,
    S: Service<Request<Verified>, Response = Response<B>>,
{
    let mut claims = match Claims::take(&config, request.body()).await {
        Ok(claims) => claims,
        Err(NotTaken::InFlight(other)) => return Ended::InFlight(other),
        Err(NotTaken::Answer(answer)) => return Ended::Answered(Ok(ResponseBody::answer(answer))),
    };
    claims.number(&mut request);

    let handling = AssertUnwindSafe(async move {
        poll_fn(|cx| inner.poll_ready(cx)).await?;
        inner.call(*request).await
    })
    .catch_unwind();
    let handled = tokio::select! {
        // First, so that a run whose lease is lost does not win by being ready as well.
        biased;
        () = claims.lost() => {
            return Ended::Answered(Ok(ResponseBody::answer(Answer::LeaseLost)));
        }
        handled = handling => handled.map_err(|_panic| Answer::Panicked),
        () = Limit::new(config.handler_timeout) => Err(Answer::TimedOut {
            limit: config.handler_timeout,
        }),
    };

    let completes = match &handled {
        Ok(Ok(response)) => {
            warn_of_failure(response);
            settlement(response) == Settle::Complete
        }
        _ => false,
    };
    let settled = if completes {
        claims.complete().await
    } else {
        claims.release().await
    };
    Ended::Answered(match settled.and(handled) {
        Ok(result) => result.map(|response| response.map(ResponseBody::service)),
        Err(answer) => Ok(ResponseBody::answer(answer)),
    })
}

/// A service that is not of this crate leaves no word in the log.
fn warn_of_failure<B>(response: &Response<B>) {
    if !response.status().is_success() && !Outcome::is_told(response) {
        tracing::warn!(
            status = response.status().as_u16(),
            "the service refused the event; it is handled again when the sender retries"
        );
    }
}

fn settlement<B>(response: &Response<B>) -> Settle {
    let by_status = if response.status().is_success() {
        Settle::Complete
    } else {
        Settle::Release
    };
    response.extensions().get().copied().unwrap_or(by_status)
}

/// What one run has claimed: the event's key and, with `replay_guard`, its body.
struct Claims<St: Store> {
    key: Option<HeldLease<St>>,
    body: Option<Box<HeldLease<St>>>,
}

enum NotTaken {
    InFlight(OtherRun),
    Answer(Answer),
}

impl<St: Store> Claims<St> {
    async fn take(config: &Arc<Config<St>>, delivery: &Verified) -> Result<Self, NotTaken> {
        let body = delivery.body_digest();
        let key = delivery.delivery().key().map(|key| key.as_bytes());

        let mut claims = Self {
            key: None,
            body: None,
        };
        if let Some(key) = key {
            let id = EventKey::with_body_digest(&config.namespace, key, body);
            claims.key = HeldLease::take(config, id, Identity::Key).await?;
        }
        if config.replay_guard {
            // The body is claimed as if it were a key, so that "another body" means another key.
            let namespace = format!("{} bodies", config.namespace);
            let id = EventKey::new(&namespace, body, key.unwrap_or_default());
            match HeldLease::take(config, id, Identity::Body).await {
                Ok(held) => claims.body = held.map(Box::new),
                Err(not_taken) => {
                    let _ = claims.release().await;
                    return Err(not_taken);
                }
            }
        }
        Ok(claims)
    }

    /// Tells the inner service which attempt this is.
    fn number(&self, request: &mut Request<Verified>) {
        let Some(held) = &self.key else { return };
        let attempt = held.lease.attempt();
        Span::current().record("attempt", attempt.get());
        request.body_mut().set_attempt(attempt);
        #[cfg(feature = "axum")]
        crate::extract::offer_attempt(attempt, request);
    }

    /// Ends when a lease is lost, which is never for a store whose leases die with the process. There is
    /// nothing left to settle of that one.
    fn lost(&mut self) -> impl Future<Output = ()> {
        poll_fn(|cx| {
            let lost = self.held().find(|held| held.poll_lost(cx).is_ready());
            match lost {
                Some(held) => {
                    held.settled = true;
                    Poll::Ready(())
                }
                None => Poll::Pending,
            }
        })
    }

    async fn complete(&mut self) -> Result<(), Answer> {
        let mut result = Ok(());
        for held in self.held() {
            result = result.and(held.complete().await);
        }
        result
    }

    async fn release(&mut self) -> Result<(), Answer> {
        for held in self.held() {
            held.release().await;
        }
        Ok(())
    }

    /// The body comes first: a crash between the two leaves an event that was handled, and whose
    /// key is free; its next delivery then meets its own body.
    fn held(&mut self) -> impl Iterator<Item = &mut HeldLease<St>> {
        self.body.as_deref_mut().into_iter().chain(&mut self.key)
    }
}

/// What a claim is made on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Identity {
    Key,
    Body,
}

/// A lease that is held, and renewed where it has to be. Dropped, it is released by a task.
struct HeldLease<St: Store> {
    lease: Lease,
    config: Arc<Config<St>>,
    renewal: Option<Renewal<St>>,
    settled: bool,
}

impl<St: Store> HeldLease<St> {
    /// Claims `id`. `None` when the store fails and the delivery is to be handled all the same.
    async fn take(
        config: &Arc<Config<St>>,
        id: EventKey,
        identity: Identity,
    ) -> Result<Option<Self>, NotTaken> {
        let lease = config.claimed_lease();
        let asked = St::DURABLE_LEASES.then(Instant::now);
        let claim = config
            .within_limit(config.store.claim(&id, lease, config.retention))
            .await;
        let held = |lease| Self {
            lease,
            config: Arc::clone(config),
            renewal: None,
            settled: false,
        };
        let claim = match claim {
            Ok(Claim::Acquired(lease))
                if asked.is_some_and(|asked| asked.elapsed() >= config.lease) =>
            {
                // Somebody else may have the key by now. If not, it is released.
                drop(held(lease));
                Err(StoreError::timed_out())
            }
            claim => claim,
        };
        match claim {
            Ok(Claim::Acquired(lease)) => {
                let mut held = held(lease);
                if let Some(asked) = asked {
                    // In a box, since it would make every run larger.
                    let renewal = Box::pin(Renewals::begin(config, held.lease.clone(), asked));
                    held.renewal = Some(renewal.await);
                }
                Ok(Some(held))
            }
            Ok(Claim::InFlight {
                remaining,
                same_body,
            }) => match config.conflict(identity, same_body) {
                Some(answer) if identity == Identity::Key => Err(NotTaken::Answer(answer)),
                conflict => Err(NotTaken::InFlight(OtherRun {
                    id,
                    remaining,
                    when_done: conflict.unwrap_or(Answer::Replayed),
                })),
            },
            Ok(Claim::Done { same_body }) => {
                let conflict = config.conflict(identity, same_body);
                Err(NotTaken::Answer(conflict.unwrap_or(Answer::Replayed)))
            }
            Err(error) if config.handle_without_store => {
                tracing::warn!(
                    reason = %Chain(&error),
                    "the event is handled without deduplication, because the store failed"
                );
                Ok(None)
            }
            Err(error) => {
                let retry_after = config.policy.retry_every;
                Err(NotTaken::Answer(Answer::StoreUnavailable {
                    error,
                    retry_after,
                }))
            }
        }
    }

    fn poll_lost(&self, cx: &mut Context<'_>) -> Poll<()> {
        match &self.renewal {
            Some(renewal) => renewal.poll_lost(cx),
            None => Poll::Pending,
        }
    }

    /// Records the success, and tries again for as long as the lease lasts.
    async fn complete(&mut self) -> Result<(), Answer> {
        let mut valid_until = self.renewal.take().map(|renewal| renewal.valid_until());
        let mut pause = Duration::from_millis(50);
        let mut retried = false;
        loop {
            let config = &self.config;
            let completion = config.store.complete(&self.lease, config.retention);
            let error = match config.within_limit(completion).await {
                Ok(()) => {
                    self.settled = true;
                    return Ok(());
                }
                Err(SettleError::LeaseExpired) => {
                    self.settled = true;
                    // A try whose answer was lost may have ended the lease itself.
                    let state = config.within_limit(config.store.peek(self.lease.id()));
                    return match retried && matches!(state.await, Ok(KeyState::Done)) {
                        true => Ok(()),
                        false => Err(Answer::NotRecorded(SettleError::LeaseExpired)),
                    };
                }
                Err(error) => error,
            };
            retried = true;
            let now = Instant::now();
            if now + pause >= *valid_until.get_or_insert(now + self.config.lease) {
                // A lease that no crash would end has to be given up.
                self.settled = St::DURABLE_LEASES;
                return Err(Answer::NotRecorded(error));
            }
            tracing::warn!(
                reason = %Chain(&error),
                "the event was handled, but that could not be recorded yet"
            );
            sleep(pause).await;
            pause = (2 * pause).min(Duration::from_secs(5));
        }
    }

    async fn release(&mut self) {
        let released = release(&self.config, &self.lease).await;
        // Where no crash would end the lease, only another try does.
        self.settled = released || St::DURABLE_LEASES;
    }
}

impl<St: Store> Drop for HeldLease<St> {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        if !St::DURABLE_LEASES {
            // Memory does it at once, even when the runtime is about to end.
            let released = self.config.store.release(&self.lease).now_or_never();
            if let Some(Ok(()) | Err(SettleError::LeaseExpired)) = released {
                return;
            }
        }
        let (config, lease) = (Arc::clone(&self.config), self.lease.clone());
        match Handle::try_current() {
            Ok(runtime) => {
                let place = Place::to_release(&config.runs);
                let released = async move {
                    release_later(config, lease).await;
                    drop(place);
                };
                runtime.spawn(released.in_current_span());
            }
            Err(_) => {
                tracing::error!("a run was dropped outside a runtime: its lease has to expire")
            }
        }
    }
}

/// Releases a lease that nobody waits for. One that no crash would end is tried for a while.
async fn release_later<St: Store>(config: Arc<Config<St>>, lease: Lease) {
    let give_up = Instant::now() + config.lease;
    let mut pause = Duration::from_millis(50);
    while !release(&config, &lease).await && !St::DURABLE_LEASES && Instant::now() + pause < give_up
    {
        sleep(pause).await;
        pause = (2 * pause).min(Duration::from_secs(5));
    }
}

/// Whether the lease has ended.
async fn release<St: Store>(config: &Config<St>, lease: &Lease) -> bool {
    match config.within_limit(config.store.release(lease)).await {
        Ok(()) => true,
        Err(SettleError::LeaseExpired) => {
            tracing::debug!("the lease had ended before its release");
            true
        }
        Err(error) => {
            tracing::warn!(
                reason = %Chain(&error),
                "the key could not be released: it stays claimed until its lease ends"
            );
            false
        }
    }
}

/// The run that has a key which another delivery asked for.
pub(super) struct OtherRun {
    id: EventKey,
    remaining: Duration,
    when_done: Answer,
}

impl OtherRun {
    /// Waits for its outcome, up to a limit.
    pub(super) async fn outcome<St: Store>(self, config: Arc<Config<St>>) -> Answer {
        let give_up = Instant::now() + config.in_flight_wait;
        let mut remaining = self.remaining;
        let mut pause = Duration::from_millis(5);
        while Instant::now() < give_up {
            sleep_until(give_up.min(Instant::now() + pause)).await;
            pause = (2 * pause).min(Duration::from_millis(250));
            match config.within_limit(config.store.peek(&self.id)).await {
                Ok(KeyState::Done) => return self.when_done,
                Ok(KeyState::Free) => {
                    remaining = Duration::ZERO;
                    break;
                }
                Ok(KeyState::InFlight { remaining: left }) => remaining = left,
                Err(error) => {
                    tracing::debug!(reason = %Chain(&error), "the key's state is unknown")
                }
            }
        }
        // A store whose leases die with the process claims for much longer than a run takes.
        Answer::InFlight {
            remaining: remaining.min(config.lease),
        }
    }
}

impl<St: Store> Config<St> {
    /// For how long a key is claimed.
    fn claimed_lease(&self) -> Duration {
        if St::DURABLE_LEASES {
            self.lease
        } else {
            self.retention
        }
    }

    pub(super) async fn within_limit<T, E: From<StoreError>>(
        &self,
        operation: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        tokio::select! {
            biased;
            result = operation => result,
            () = Limit::new(self.store_timeout) => Err(StoreError::timed_out().into()),
        }
    }

    /// What is answered when a key came with another body, or a body with another key.
    fn conflict(&self, identity: Identity, same: bool) -> Option<Answer> {
        match identity {
            _ if same => None,
            Identity::Body => Some(Answer::BodyReplayed),
            Identity::Key if self.reject_changed_bodies => Some(Answer::BodyChanged),
            Identity::Key => {
                tracing::warn!(
                    "the key was used before, with another body or under another secret: the \
                     delivery counts as the same event"
                );
                None
            }
        }
    }
}

/// The runs that go on after their client left: bounded in number, and to be waited for at
/// shutdown. Clones are handles to the same runs.
///
/// ```no_run
/// # async fn serve() -> std::io::Result<()> { Ok(()) }
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use tower_webhook::{Secret, WebhookLayer};
///
/// let layer = WebhookLayer::new(Secret::from_env("WEBHOOK_SECRET")?);
/// let runs = layer.runs();
///
/// serve().await?; // with graceful shutdown, which does not know these runs
/// if let Err(timeout) = runs.drain(Duration::from_secs(30)).await {
///     eprintln!("{timeout}");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Runs {
    count: Arc<watch::Sender<Count>>,
    limit: Arc<AtomicUsize>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    /// Runs that go on without their client.
    detached: usize,
    /// Claims of runs that were dropped, on their way to be released.
    releases: usize,
}

impl Count {
    fn all(self) -> usize {
        self.detached + self.releases
    }
}

impl Runs {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            count: Arc::default(),
            limit: Arc::new(AtomicUsize::new(limit)),
        }
    }

    pub(super) fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// How many runs go on without their client now.
    #[must_use]
    pub fn detached(&self) -> usize {
        self.count.borrow().detached
    }

    /// Waits until none goes on without its client, and what was claimed by those that were dropped is
    /// released, or for `deadline`.
    ///
    /// # Errors
    ///
    /// When the deadline passed before that. Those that remain end with the process: their events
    /// are handled again when the sender retries.
    pub async fn drain(&self, deadline: Duration) -> Result<(), DrainTimeout> {
        let mut count = self.count.subscribe();
        match timeout(deadline, count.wait_for(|count| count.all() == 0)).await {
            Ok(_) => Ok(()),
            Err(_) => Err(DrainTimeout(self.count.borrow().all())),
        }
    }

    /// Lets a run go on whose client has left. One too many is dropped, and its claim released.
    pub(super) fn adopt<B: 'static, E: 'static>(
        &self,
        run: Pin<Box<dyn Future<Output = Ended<B, E>> + Send>>,
        span: &DeliverySpan,
    ) {
        let _entered = span.enter();
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let Some(place) = Place::to_run(self) else {
            tracing::error!(
                limit = self.limit.load(Ordering::Relaxed),
                "the client left, and too many runs go on without theirs: this one was dropped; \
                 the event is handled again when the sender retries"
            );
            return;
        };
        tracing::debug!("the client left; the run goes on");
        let span = span.clone();
        runtime.spawn(
            async move {
                if let Ended::Answered(result) = run.await {
                    span.finish(&result);
                }
                drop(place);
            }
            .in_current_span(),
        );
    }
}

/// One of those that are waited for at shutdown, until it is dropped.
struct Place {
    count: Arc<watch::Sender<Count>>,
    of: fn(&mut Count) -> &mut usize,
}

impl Place {
    /// For a run whose client has left, if there are not too many.
    fn to_run(runs: &Runs) -> Option<Self> {
        let limit = runs.limit.load(Ordering::Relaxed);
        let taken = runs.count.send_if_modified(|count| {
            let is_free = count.detached < limit;
            count.detached += usize::from(is_free);
            is_free
        });
        taken.then(|| Self {
            count: Arc::clone(&runs.count),
            of: |count| &mut count.detached,
        })
    }

    /// For the release of a claim whose run was dropped.
    fn to_release(runs: &Runs) -> Self {
        runs.count.send_modify(|count| count.releases += 1);
        Self {
            count: Arc::clone(&runs.count),
            of: |count| &mut count.releases,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.count.send_modify(|count| *(self.of)(count) -= 1);
    }
}

/// Runs were still going on when the deadline passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainTimeout(usize);

impl DrainTimeout {
    /// How many there were, together with the claims that were still to be released.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0
    }
}

impl fmt::Display for DrainTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} runs were still going on when the deadline passed",
            self.0
        )
    }
}

impl std::error::Error for DrainTimeout {}
