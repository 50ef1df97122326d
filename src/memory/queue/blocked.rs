//! The lanes that wait for an event that has failed.

use std::collections::BTreeSet;

use super::{Place, State};
use crate::inbox::event::{EventId, Lane};
use crate::inbox::records::BlockedLane;

impl State {
    /// The events for which their lanes wait since they failed, and these lanes.
    pub(super) fn blocking(&self) -> impl Iterator<Item = (i64, Lane)> {
        self.lanes.iter().filter_map(|(lane, line)| {
            // The busy event first: an event that returned to the line before it waits for it, too.
            let id = self.busy.get(lane).or_else(|| line.first())?;
            let event = self.events.get(id)?;
            let has_failed = !event.past.is_empty() || event.crashes > 0;
            has_failed.then_some((*id, *lane))
        })
    }

    pub(super) fn blocked_lanes(
        &self,
        chat: Option<&str>,
        after: Option<EventId>,
        limit: usize,
    ) -> Vec<BlockedLane> {
        let mut blocking: Vec<_> = self
            .blocking()
            .filter(|(id, lane)| {
                let route = self.events.get(id).map(|event| &event.of.route);
                // A chat has a lane at each route.
                chat.is_none_or(|chat| route.is_some_and(|route| Lane::at(route, chat) == *lane))
            })
            .filter(|(id, _)| after.is_none_or(|after| EventId(*id) > after))
            .collect();
        // By number, since `after` continues a list by number, and the lanes are in a hash map.
        blocking.sort_unstable();
        let blocked = |(id, lane): (i64, Lane)| {
            let event = self.events.get(&id)?;
            let since = match event.place {
                Place::Holding { at } => at,
                _ => event.first_failed.unwrap_or(event.accepted),
            };
            let line = self.lanes.get(&lane).map_or(0, BTreeSet::len);
            Some(BlockedLane {
                event: self.summary(id, event),
                since: self.time_of_day(since),
                waiting: (line.saturating_sub(1) as u64).min(BlockedLane::MOST_WAITING),
            })
        };
        blocking
            .into_iter()
            .filter_map(blocked)
            .take(limit)
            .collect()
    }
}
