//! An observer that notes what it sees, in words.

use std::sync::{Arc, Mutex};

use tower_webhook::telemetry::{End, Observation, Observer};
use tower_webhook::{EventKind, EventType, RouteName};

use super::lock;

/// Notes a line for each observation.
#[derive(Clone, Default)]
pub struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    /// Returns the lines since the last call.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.0))
    }

    /// The same, but without calls.
    pub fn take_ends(&self) -> Vec<String> {
        let mut lines = self.take();
        lines.retain(|line| !line.starts_with("call"));
        lines
    }
}

impl Observer for Notes {
    fn observe(&self, observation: &Observation<'_>) {
        lock(&self.0).push(describe(observation));
    }
}

fn describe(observation: &Observation<'_>) -> String {
    match observation {
        Observation::Delivery(ended) => {
            let status = ended.status.map_or("-".into(), |status| status.to_string());
            let kind = ended.kind.map_or("-", |kind| kind.as_str());
            let key = ended.delivery.and_then(|delivery| delivery.key());
            let key = key.map_or("-".into(), |key| {
                format!("{}", key.as_bytes().escape_ascii())
            });
            let proof = if ended.is_verified {
                "verified"
            } else {
                "unverified"
            };
            let reason = ended.reason.map_or("-".into(), ToString::to_string);
            let (outcome, millis) = (ended.outcome, ended.duration.as_millis());
            let status = status.split(' ').next().unwrap_or_default().to_owned();
            format!("delivery {outcome} {status} {kind} {key} {proof} {millis} ms: {reason}")
        }
        Observation::Attempt(ended) => {
            let number = ended.number.map_or("-".into(), |number| number.to_string());
            let outcome = ended.outcome;
            let end = match ended.end() {
                Some(End::Retried { after, .. }) => format!("retry in {} s", after.as_secs()),
                Some(End::Handled | End::Ignored | End::Discarded) => "settled".into(),
                Some(End::Dead) => "dead".into(),
                Some(End::Released) => "released".into(),
                Some(other) => format!("{other:?}"),
                None => "lost".into(),
            };
            let reason = outcome.reason().map_or("-".into(), ToString::to_string);
            let millis = ended.duration.as_millis();
            let place = if ended.is_from_inbox() {
                "inbox"
            } else {
                "inline"
            };
            format!("attempt {number} {outcome} {place} {millis} ms, {end}: {reason}")
        }
        Observation::Call(ended) => {
            let error = ended.error.map_or("ok".into(), ToString::to_string);
            format!("call {} {}: {error}", ended.target.name(), ended.operation)
        }
        Observation::AcceptedDead {
            route,
            kind,
            event,
            reason,
        } => format!("accepted dead {} {event}: {reason}", of(route, kind)),
        Observation::Detached => "detached".into(),
        Observation::Slowed {
            route,
            kind,
            is_slowed,
        } => format!("slowed {} {is_slowed}", of(route, kind)),
        other => format!("{other:?}"),
    }
}

fn of(route: &RouteName, kind: &EventKind) -> EventType {
    EventType::new(route.clone(), kind.clone())
}
