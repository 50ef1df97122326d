//! The routes of a program: a request that one of them refuses is tried with the secrets of the others.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use tokio::time::Instant;

use super::secret::Secrets;
use super::verify::Authentication;
use crate::lock::lock;
use crate::route::RouteName;
use crate::sender::{Head, Sender, SignatureError};

/// The routes of a program. When one of them refuses a request for its signature, the others say which of their secrets
/// would have matched: the sender has the URL or the secret of another route.
///
/// At most one refused request a second, of all routes together, is tried with the other secrets, and only if its body has
/// at most 64 KiB. The response stays the same. The log and the console name the secret by
/// its [label](crate::Secret::with_label), as does [`DeliveryEnded::would_match`](crate::telemetry::DeliveryEnded::would_match).
///
/// [`Routes`](crate::Routes) know each other. For other routes, pass one to each:
///
/// ```
/// # fn main() -> Result<(), tower_webhook::ConfigError> {
/// use tower_webhook::signature::Neighbours;
/// use tower_webhook::{EventRouter, Secret, Sender, Webhooks};
///
/// let all = Neighbours::default();
/// let (chats, _) = Webhooks::new(Secret::new("8c1f…")?)
///     .neighbours(&all)
///     .start(EventRouter::new())?;
/// let (pushes, _) = Webhooks::new(Secret::new("d20b…")?)
///     .sender(Sender::github())
///     .neighbours(&all)
///     .start(EventRouter::new())?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Neighbours(Arc<Mutex<All>>);

#[derive(Default)]
struct All {
    /// By number. A route goes with its last layer and service.
    routes: BTreeMap<u64, Weak<Known>>,
    next: u64,
    /// When a request was last tried.
    tried: Option<Instant>,
}

struct Known {
    route: RouteName,
    sender: Sender,
    secrets: Secrets,
}

/// The time for each request that is tried.
const EVERY: Duration = Duration::from_secs(1);

/// The largest body that is tried, since it is hashed under each secret in one go.
pub(super) const LONGEST: usize = 64 * 1024;

/// The most routes that are tried.
const MOST: usize = 64;

/// The longest label in characters.
const LONGEST_LABEL: usize = 64;

impl Neighbours {
    /// Adds a route, whose secrets the others may be tried with if it has some.
    pub(super) fn add(
        &self,
        route: &RouteName,
        sender: &Sender,
        authentication: &Authentication,
    ) -> Neighbour {
        let mut all = lock(&self.0);
        all.routes.retain(|_, known| known.strong_count() > 0);
        let number = all.next;
        all.next += 1;
        drop(all);
        let mut neighbour = Neighbour {
            all: self.clone(),
            number,
            known: None,
        };
        if let Authentication::Signed(secrets) = authentication {
            neighbour.learn(route, sender, secrets);
        }
        neighbour
    }
}

/// A route among the others.
#[derive(Clone)]
pub(crate) struct Neighbour {
    all: Neighbours,
    number: u64,
    known: Option<Arc<Known>>,
}

impl Neighbour {
    /// Replaces what the others know of this route.
    pub(super) fn learn(&mut self, route: &RouteName, sender: &Sender, secrets: &Secrets) {
        let known = Arc::new(Known {
            route: route.clone(),
            sender: sender.clone(),
            secrets: secrets.clone(),
        });
        let mut all = lock(&self.all.0);
        all.routes.insert(self.number, Arc::downgrade(&known));
        drop(all);
        self.known = Some(known);
    }

    /// Whether to receive the body of a request although its head was refused, at most [`LONGEST`] bytes of it: another
    /// route's sender could have sent it, and no other was tried in this second.
    pub(super) fn wants_body(&self, error: SignatureError, head: &Parts) -> bool {
        // First, since a flood of such requests must stay cheap.
        if !is_of_other(error) || !self.is_free() {
            return false;
        }
        let may_be_of = |it: &Arc<Known>| {
            let claim = it.sender.described().claim(of(head), || it.sender.now());
            claim.is_ok()
        };
        self.others().iter().any(may_be_of) && self.take()
    }

    /// Returns which secret of another route would have matched a request that was refused when its body was complete, in
    /// words.
    pub(super) fn of_body(
        &self,
        sender: &Sender,
        error: SignatureError,
        (head, body): (&Parts, &Bytes),
    ) -> Option<String> {
        let may_be_tried = is_of_other(error) && body.len() <= LONGEST && self.is_free();
        // In this order: alone, a route tries nothing.
        let is_tried = may_be_tried && !self.others().is_empty() && self.take();
        is_tried.then(|| self.signer(sender, head, body))?
    }

    /// The same for a request whose body was [wanted](Self::wants_body).
    pub(super) fn signer(&self, sender: &Sender, head: &Parts, body: &Bytes) -> Option<String> {
        self.others().into_iter().find_map(|it| {
            // The sender has the other route's URL, or its secret.
            let senders = [&it.sender, sender].into_iter();
            let mut senders = senders.filter(|it| !it.is_of_verifier());
            let index = senders.find_map(|by| by.verified(&it.secrets, of(head), body).ok())?;
            Some(it.name(index))
        })
    }

    fn others(&self) -> Vec<Arc<Known>> {
        let all = lock(&self.all.0);
        let others = all.routes.iter();
        let others = others.filter(|(number, _)| **number != self.number);
        let others = others.filter_map(|(_, known)| known.upgrade());
        others.take(MOST).collect()
    }

    fn is_free(&self) -> bool {
        let tried = lock(&self.all.0).tried;
        tried.is_none_or(|at| at.elapsed() >= EVERY)
    }

    /// Returns whether this request is the one of the second.
    fn take(&self) -> bool {
        let mut all = lock(&self.all.0);
        let is_free = all.tried.is_none_or(|at| at.elapsed() >= EVERY);
        if is_free {
            all.tried = Some(Instant::now());
        }
        is_free
    }
}

/// Whether another secret could be right, where this one is not.
fn is_of_other(error: SignatureError) -> bool {
    // A stale request was signed for this route, or its signature was not looked at.
    !matches!(error, SignatureError::Stale { .. })
}

fn of(head: &Parts) -> Head<'_> {
    Head::of_post(Some(&head.uri), &head.headers)
}

impl Known {
    /// Names a secret, as the log does.
    fn name(&self, index: usize) -> String {
        let route = &self.route;
        let secrets = self.secrets.current();
        let label = secrets.get(index).and_then(|it| it.label().cloned());
        let label = match label {
            Some(label) => Some(label.chars().take(LONGEST_LABEL).collect()),
            None if secrets.len() > 1 => Some(index.to_string()),
            None => None,
        };
        match label {
            Some(label) => format!("the secret {label} of the route {route}"),
            None => format!("the secret of the route {route}"),
        }
    }
}

partial_debug!(Neighbours);
partial_debug!(Neighbour, |it| number = it.number);
