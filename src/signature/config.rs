//! The settings of a layer and its services.

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http_body::Body;

use super::buffer::{Bounds, Receive};
use super::handshake::OnSecret;
use super::headers::declared_length;
use super::neighbours::{LONGEST, Neighbour};
use super::verify::{Authentication, Hashing};
use crate::error::BoxError;
use crate::event::EventKind;
use crate::route::RouteName;
use crate::sender::{Batches, Reply, Sender, SignatureError};
use crate::telemetry::{DeliveryWatch, Observers, Throttle};
use crate::verified::Verified;

#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(super) authentication: Authentication,
    pub(crate) route: RouteName,
    pub(crate) sender: Sender,
    pub(crate) bounds: Bounds,
    pub(crate) require_key: bool,
    /// The kinds that are passed on. `None` is all.
    pub(crate) kept: Option<Arc<BTreeSet<EventKind>>>,
    // All services of the layer share it: a flood is one flood, however many there are.
    pub(super) throttle: Arc<Throttle>,
    pub(crate) observers: Observers,
    /// What the route lends to its handlers: nothing of a layer with the defaults.
    pub(crate) lent: Option<Arc<dyn Any + Send + Sync>>,
    /// What a success is answered with in place of an empty body.
    pub(super) success: Option<Arc<Reply>>,
    /// Keeps a secret that the sender brings.
    pub(crate) on_secret: Option<OnSecret>,
    /// The other routes of the program.
    pub(super) neighbour: Option<Neighbour>,
}

impl Config {
    /// Whether a delivery is passed on. One of several events is, whatever its own kind is.
    #[inline]
    pub(super) fn keeps(&self, verified: &Verified) -> bool {
        let kind = verified.delivery().kind();
        let keeps = |kept: &BTreeSet<_>| kept.contains(kind) || self.sender.has_batches();
        self.kept.as_deref().is_none_or(keeps)
    }

    /// Receives the body of a request whose head was refused, to try it with the secrets of other routes.
    #[cold]
    pub(super) fn tried<B>(
        &self,
        error: SignatureError,
        head: &Parts,
        body: B,
    ) -> Option<Box<Receive<B>>>
    where
        B: Body<Error: Into<BoxError>>,
    {
        let neighbour = self.neighbour.as_ref()?;
        let declared = declared_length(&head.headers).ok()?;
        let bounds = Bounds {
            max_body: LONGEST,
            ..self.bounds.clone()
        };
        let receive = Receive::new(body, declared, &bounds, Hashing::Unsigned);
        // Last, since it takes the only try of this second.
        let receive = receive.ok().filter(|_| neighbour.wants_body(error, head))?;
        Some(Box::new(receive))
    }

    /// Which secret of another route would have matched a request that this one refuses, in words.
    #[cold]
    pub(super) fn would_match(
        &self,
        error: SignatureError,
        head: &Parts,
        body: &Bytes,
    ) -> Option<String> {
        let neighbour = self.neighbour.as_ref()?;
        neighbour.of_body(&self.sender, error, (head, body))
    }

    /// The same for a request of which [`tried`](Self::tried) has received the body.
    pub(super) fn other(&self, head: &Parts, body: &Bytes) -> Option<String> {
        let neighbour = self.neighbour.as_ref()?;
        neighbour.signer(&self.sender, head, body)
    }

    /// Passes on that a delivery may have several events, each of which has a kind.
    #[cold]
    pub(super) fn with_items(
        &self,
        verified: Verified,
        head: &mut Parts,
        watch: &mut DeliveryWatch,
    ) -> Verified {
        let batches = Batches::new(self.sender.clone(), self.kept.clone(), watch.items());
        head.extensions.insert(batches);
        verified.with_items()
    }
}
