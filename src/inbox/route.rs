//! A route as its inbox and worker see it: how its events are accepted and handled.

use super::lane::LaneOf;
use crate::execution::{Defaults, Given, Limits};
use crate::route::RouteName;
use crate::signature::MAX_BUFFERED;

/// The settings of a route, which a builder has checked.
#[derive(Clone)]
pub(crate) struct Route {
    pub(crate) name: RouteName,
    pub(crate) given: Given,
    pub(crate) limits: Limits,
    pub(crate) lane_of: LaneOf,
    pub(crate) reject_changed_bodies: bool,
    pub(crate) replay_guard: bool,
    /// The most bytes of bodies that may wait for the queue.
    pub(crate) max_waiting: usize,
}

impl Default for Route {
    fn default() -> Self {
        Self {
            name: RouteName::default(),
            given: Given::default(),
            limits: Limits::unchecked(&Given::default(), Defaults::INBOX),
            lane_of: LaneOf::default(),
            reject_changed_bodies: false,
            replay_guard: false,
            max_waiting: MAX_BUFFERED,
        }
    }
}

partial_debug!(Route, |it| name = it.name, limits = it.limits);
