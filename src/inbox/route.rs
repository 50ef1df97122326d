//! A route as its inbox and worker see it: how its events are accepted and handled.

use std::time::Duration;

use super::lane::LaneOf;
use crate::execution::{Defaults, Limits};
use crate::route::RouteName;

/// The settings of a route, which a builder has checked.
#[derive(Clone)]
pub(crate) struct Route {
    pub(crate) name: RouteName,
    pub(crate) limits: Limits,
    pub(crate) lane_of: LaneOf,
    pub(crate) reject_changed_bodies: bool,
    pub(crate) replay_guard: bool,
}

/// In which the limits of a route with an inbox differ from those of one with a store.
pub(crate) const DEFAULTS: Defaults = Defaults {
    store_timeout: Duration::from_secs(2),
    in_flight_wait: Duration::ZERO,
    lease: Some(|_| Duration::from_secs(30)),
};

impl Default for Route {
    fn default() -> Self {
        Self {
            name: RouteName::default(),
            limits: Limits::new(DEFAULTS),
            lane_of: LaneOf::default(),
            reject_changed_bodies: false,
            replay_guard: false,
        }
    }
}

partial_debug!(Route, |it| name = it.name, limits = it.limits);
