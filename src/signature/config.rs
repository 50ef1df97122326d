//! The settings of a layer and its services.

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::Arc;

use http::request::Parts;

use super::buffer::Bounds;
use super::handshake::OnSecret;
use super::verify::Authentication;
use crate::event::EventKind;
use crate::route::RouteName;
use crate::sender::{Batches, Reply, Sender};
use crate::telemetry::{Observers, Throttle};
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
}

impl Config {
    /// Whether a delivery is passed on. One of several events is, whatever its own kind is.
    #[inline]
    pub(super) fn keeps(&self, verified: &Verified) -> bool {
        let kind = verified.delivery().kind();
        let keeps = |kept: &BTreeSet<_>| kept.contains(kind) || self.sender.has_batches();
        self.kept.as_deref().is_none_or(keeps)
    }

    /// Passes on that a delivery may have several events, each of which has a kind.
    #[cold]
    pub(super) fn with_items(&self, verified: Verified, head: &mut Parts) -> Verified {
        let batches = Batches::new(self.sender.clone(), self.kept.clone());
        head.extensions.insert(batches);
        verified.with_items()
    }
}
