//! The service that stores a verified delivery, and then answers 200.

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::header::HeaderMap;
use http::{Request, Response};
use http_body_util::Full;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tower_service::Service;
use tracing::Instrument;

use super::event::{Failure, Lane, NewEvent, TOO_MANY_KINDS};
use super::handle::{Inbox, Shared};
use super::headers;
use super::queue::Accepted;
use super::route::Route;
use crate::answer::{Answer, ResponseBody, Row, insert_retry_after, row};
use crate::deadline::Deadline;
use crate::delivery::{Item, RawDelivery};
use crate::execution::time_for;
use crate::idempotency;
use crate::outcome::{Outcome, name};
use crate::sender::{Batches, Part, Parts};
use crate::store::{EventKey, Identity, StoreError};
use crate::task::AbortOnDrop;
use crate::telemetry::Kept;
use crate::verified::Verified;

/// The service that accepts verified deliveries, made by [`Inbox::accept`].
///
/// It answers 200 when the event is stored, or was stored before. See the
/// [table of responses](crate::docs::responses#inbox).
#[derive(Clone, Debug)]
pub struct Accept {
    inbox: Inbox,
    route: Arc<Route>,
    counting: Arc<Counting>,
}

/// What observers count is kept by the workers of a process, or in one without a worker by this task.
#[derive(Debug)]
struct Counting {
    kept: Vec<Kept>,
    task: OnceLock<AbortOnDrop>,
}

impl Counting {
    fn start(self: &Arc<Self>, inbox: &Inbox) {
        if self.kept.is_empty() {
            return;
        }
        self.task.get_or_init(|| {
            let (inbox, kept) = (inbox.clone(), self.kept.clone());
            let count = async move { inbox.shared.keep_counts(&kept).await };
            AbortOnDrop(tokio::spawn(count).abort_handle())
        });
    }
}

impl Inbox {
    /// Returns the service that accepts verified deliveries of the chat platform with the defaults. It is the inner service
    /// of a [`SignatureLayer`](crate::SignatureLayer). [`Routes::accept_in_halves`](crate::Routes::accept_in_halves) returns
    /// both with other settings.
    pub fn accept(&self) -> Accept {
        self.accept_at(Arc::default())
    }

    pub(crate) fn accept_at(&self, route: Arc<Route>) -> Accept {
        self.shared.note_route(&route.name, true);
        let counting = Arc::new(Counting {
            kept: self.shared.observers().kept(),
            task: OnceLock::new(),
        });
        // Otherwise it begins with the first delivery that is verified.
        if Handle::try_current().is_ok() {
            counting.start(self);
        }
        Accept {
            inbox: self.clone(),
            route,
            counting,
        }
    }
}

/// A body that waits for the queue, which may hang for longer than its sender waits.
struct Waits {
    inbox: Inbox,
    bytes: usize,
}

impl Waits {
    /// `None` if there are `most` bytes already.
    fn begin(inbox: &Inbox, bytes: usize, most: usize) -> Option<Self> {
        let waiting = &inbox.shared.waiting;
        // One alone has room, however large. What has none counts for nobody.
        let more = |before: usize| {
            let more = before.saturating_add(bytes);
            (before == 0 || more <= most).then_some(more)
        };
        let begun = waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        begun.ok().map(|_| Self {
            inbox: inbox.clone(),
            bytes,
        })
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        let waiting = &self.inbox.shared.waiting;
        waiting.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The body of the answers of [`Accept`].
type Body = ResponseBody<Full<Bytes>>;

impl Service<Request<Verified>> for Accept {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = AcceptFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Verified>) -> AcceptFuture {
        self.counting.start(&self.inbox);
        let limits = &self.route.limits;
        let retry_after = limits.policy.retry_every;
        let (answer, answered) = oneshot::channel();
        let headers = headers::kept(request.headers(), &self.inbox.settings.keep_headers);
        let batches = Batches::of(&request);
        let mut delivery = request.into_body().into_delivery();
        if !headers.is_empty() {
            delivery = delivery.with_headers(headers);
        }
        let limit = limits.store_timeout + time_for(delivery.body().len());
        match Waits::begin(&self.inbox, delivery.body().len(), self.route.max_waiting) {
            Some(waits) => {
                let route = Arc::clone(&self.route);
                // Boxed, because a task is copied several times.
                let inbox = self.inbox.clone();
                let accepting = Box::pin(accept(inbox, route, delivery, batches, answer, waits));
                // A task, because an event that was taken must be handled even if the client disconnects.
                tokio::spawn(accepting.in_current_span());
            }
            None => {
                let reason = "bodies wait for the inbox, of as many bytes as `max_buffered` allows";
                let _ = answer.send(Ok(Outcome::unavailable(reason, retry_after)));
            }
        }
        AcceptFuture {
            answered,
            limit: Deadline::new(limit),
            retry_after,
        }
    }
}

/// The response future of [`Accept`].
#[must_use = "futures do nothing unless polled"]
pub struct AcceptFuture {
    answered: oneshot::Receiver<Answered>,
    limit: Deadline,
    retry_after: Duration,
}

type Answered = Result<Outcome, Refused>;

impl Future for AcceptFuture {
    type Output = Result<Response<Body>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answered = match self.answered.poll_unpin(cx) {
            Poll::Ready(Ok(answered)) => answered,
            Poll::Ready(Err(_)) => Ok(Outcome::unavailable(
                "the task that stores the event has ended, because its runtime ended or it panicked",
                self.retry_after,
            )),
            Poll::Pending => {
                ready!(self.limit.poll_unpin(cx));
                Ok(Outcome::unavailable(
                    StoreError::timed_out(),
                    self.retry_after,
                ))
            }
        };
        Poll::Ready(Ok(match answered {
            Ok(outcome) => ResponseBody::answer(outcome),
            Err(Refused::Inbox(refusal)) => refuse(refusal),
            Err(Refused::Duplicate(refusal)) => refuse(refusal),
        }))
    }
}

partial_debug!(AcceptFuture);

fn refuse<R: Answer + Error + Send + Sync + 'static>(refusal: R) -> Response<Body> {
    refusal.log(&refusal.row());
    ResponseBody::refuse(refusal)
}

/// The reason why a delivery is not accepted.
enum Refused {
    Inbox(Refusal),
    Duplicate(idempotency::Refusal),
}

/// The reason why the inbox refuses a delivery.
///
/// It is the error of [`Decision::refusal`](crate::Decision::refusal).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The queue has reached its [`backlog_limit`](Inbox::backlog_limit).
    BacklogFull {
        /// The limit in bytes.
        limit: u64,
        /// The answer's `Retry-After`.
        retry_after: Duration,
    },
}

impl Answer for Refusal {
    #[rustfmt::skip]
    fn row(&self) -> Row {
        match self {
            Self::BacklogFull { .. } => row!("backlog-full", SERVICE_UNAVAILABLE 503 "Service Unavailable", "The inbox has no room for another event."),
        }
    }

    fn headers(&self, headers: &mut HeaderMap) {
        match self {
            Self::BacklogFull { retry_after, .. } => insert_retry_after(headers, *retry_after),
        }
    }
}

display!(Refusal, |it| it.row().detail);

impl Error for Refusal {}

/// Stores a delivery, answers it, and handles the event if it was taken in the same step.
async fn accept(
    inbox: Inbox,
    route: Arc<Route>,
    delivery: RawDelivery,
    batches: Option<Batches>,
    answer: oneshot::Sender<Answered>,
    waits: Waits,
) {
    let Inbox { shared, settings } = &inbox;
    let limits = &route.limits;
    let events = match events(delivery, batches.as_ref(), &route) {
        Ok(events) => events,
        Err(outcome) => {
            let _ = answer.send(Ok(outcome));
            return;
        }
    };
    if let Err(refusal) = shared.check_backlog(settings.backlog_limit, limits).await
        && !shared.has_all(&events, limits.store_timeout).await
    {
        let _ = answer.send(Err(Refused::Inbox(refusal)));
        return;
    }
    let room = shared.workers.room_for(&events);
    let asked = Instant::now();
    let take = room.as_ref().map(|room| &*room.take);
    let accepting = shared.queue.accept.accept(Arc::clone(&events), take);
    // Longer than the client waits: what takes effect late is handled here, too.
    let accepting = shared.call_within(limits.lease(), "accept", accepting);
    let result = accepting.await;
    drop(waits);
    let (answered, taken) = match result {
        Ok(mut accepted) => {
            note_dead(shared, &events, &accepted);
            let taken = accepted.iter_mut().find_map(|accepted| match accepted {
                Accepted::New { taken, .. } => taken.take(),
                _ => None,
            });
            (answer_to(&accepted, &events), taken)
        }
        Err(error) => {
            let unavailable = Outcome::unavailable(error, limits.policy.retry_every);
            (Ok(unavailable), None)
        }
    };
    let is_new = matches!(answered, Ok(Outcome::Accepted));
    let is_more = events.len() > 1;
    drop(events);
    let _ = answer.send(answered);
    if is_new && (taken.is_none() || is_more) {
        // All workers were busy, and one of them may be free by now; or there are events that nobody was offered.
        shared.workers.wake();
    }
    if let (Some(event), Some(room)) = (taken, room) {
        (room.start)(*event, asked).await;
    }
}

/// Tells observers which events are dead letters from the start.
fn note_dead(shared: &Shared, events: &[NewEvent], accepted: &[Accepted]) {
    for (event, accepted) in events.iter().zip(accepted) {
        let [_, one_kind_more] = TOO_MANY_KINDS;
        let (id, reason) = match accepted {
            Accepted::DeadLetter { id } => (id.0, Some(one_kind_more)),
            Accepted::New { id, .. } => (id.0, None),
            Accepted::Spooled => (0, None),
            _ => continue,
        };
        let reason = reason.or_else(|| Some(&*event.dead.as_ref()?.reason));
        if let Some(reason) = reason {
            let (route, kind) = (event.delivery.route(), event.delivery.kind());
            shared.observers().accepted_dead(route, kind, id, reason);
        }
    }
}

/// The answer to a delivery, by what became of its events.
fn answer_to(accepted: &[Accepted], events: &[NewEvent]) -> Answered {
    let mut is_new = false;
    for (accepted, event) in accepted.iter().zip(events) {
        match accepted {
            Accepted::InFlight { remaining } => {
                let remaining = *remaining;
                return Ok(Outcome::InFlight { remaining });
            }
            Accepted::BodyReplayed => {
                return Err(Refused::Duplicate(idempotency::Refusal::BodyReplayed));
            }
            Accepted::Duplicate { same_body: false } if event.rejects_changed_body => {
                return Err(Refused::Duplicate(idempotency::Refusal::BodyChanged));
            }
            Accepted::Duplicate { same_body: false } => tracing::warn!(
                "the key was accepted before, with another body: the delivery counts as the same event, and the first \
                 body is handled"
            ),
            Accepted::Duplicate { same_body: true } => {}
            Accepted::New { .. } | Accepted::DeadLetter { .. } | Accepted::Spooled => is_new = true,
        }
    }
    Ok(match is_new {
        true => Outcome::Accepted,
        false => Outcome::Replayed,
    })
}

/// The events of a delivery: one, unless it is a batch. If there is none, how it ends.
fn events(
    delivery: RawDelivery,
    batches: Option<&Batches>,
    route: &Route,
) -> Result<Arc<[NewEvent]>, Outcome> {
    let Some(batches) = batches else {
        return Ok([new_event(delivery, route)].into());
    };
    let parts = match batches.parts(&delivery) {
        Parts::Items(parts) if parts.is_empty() => return Err(Outcome::Accepted),
        Parts::Items(parts) => parts,
        Parts::Whole if !batches.keeps(delivery.kind()) => return Err(Outcome::Filtered),
        Parts::Whole => return Ok([new_event(delivery, route)].into()),
        Parts::TooMany => {
            let reason = "the delivery has more than 10,000 items, which are not taken apart";
            let dead = NewEvent {
                dead: Some(Failure::new(name::UNDECODABLE, reason)),
                ..new_event(delivery, route)
            };
            return Ok([dead].into());
        }
    };
    let count = u32::try_from(parts.len()).unwrap_or(u32::MAX);
    let number = fastrand::i64(..);
    // The body of the delivery is guarded, under a key that is not signed.
    let guard = Identity::of(&delivery, route.replay_guard).guard;
    let kept = (1..)
        .zip(parts)
        .filter(|(_, part)| batches.keeps_part(part));
    let event = |(at, part)| {
        let item = Item::new(at, count).in_delivery(number);
        item_event(part, &delivery, item, guard, route)
    };
    let events: Arc<[_]> = kept.map(event).collect();
    match events.is_empty() {
        true => Err(Outcome::Filtered),
        false => Ok(events),
    }
}

fn item_event(
    part: Part,
    of: &RawDelivery,
    item: Item,
    guard: Option<EventKey>,
    route: &Route,
) -> NewEvent {
    let delivery = part.delivery(of, item);
    let chat = match part.kind {
        Ok(_) => route
            .lane_of
            .chat_of_item(&delivery, part.order)
            .map_err(|error| error.to_string()),
        Err(reason) => Err(reason),
    };
    let dead = chat
        .as_ref()
        .err()
        .map(|reason| Failure::new(name::UNDECODABLE, reason));
    NewEvent {
        guard: guard.filter(|_| !part.has_own_key),
        rejects_changed_body: false,
        ..event(delivery, chat.unwrap_or_default(), dead, route)
    }
}

fn new_event(delivery: RawDelivery, route: &Route) -> NewEvent {
    let (chat, dead) = match route.lane_of.chat(&delivery) {
        Ok(chat) => (chat, None),
        Err(error) => (None, Some(Outcome::Undecodable(error).failure(None))),
    };
    event(delivery, chat, dead, route)
}

fn event(
    delivery: RawDelivery,
    chat: Option<String>,
    dead: Option<Failure>,
    route: &Route,
) -> NewEvent {
    let is_guarded = route.replay_guard && delivery.item().is_none();
    let Identity { key, guard } = Identity::of(&delivery, is_guarded);
    NewEvent {
        lane: chat.as_deref().map(|chat| Lane::at(&route.name, chat)),
        chat,
        key,
        guard,
        rejects_changed_body: route.reject_changed_bodies,
        retain: route.limits.retention,
        dead,
        delivery,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::tests::{SECOND, assert_refused};

    #[tokio::test]
    async fn full_backlog_is_answered_as_documented() {
        let refusal = Refusal::BacklogFull {
            limit: 1,
            retry_after: 600 * SECOND,
        };
        let documented = (503, "backlog-full", Some(("retry-after", "600")));
        assert_refused(refusal, documented).await;
    }
}
