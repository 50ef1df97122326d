//! The lines in which the events of a chat wait.

use std::collections::BTreeSet;

use super::{Place, State};

impl State {
    /// Puts an event in line, and returns whether it is the first one.
    pub(super) fn join_line(&mut self, id: i64) -> bool {
        let Some(lane) = self.event(id).lane else {
            self.set_ready(id);
            return true;
        };
        let line = self.lanes.entry(lane).or_default();
        let was_first = line.first().copied();
        line.insert(id);
        match was_first {
            None => {
                self.set_ready(id);
                true
            }
            // Only an event that returns to its line can be before the first one.
            Some(first) if id < first => {
                self.unset_ready(first);
                self.set_ready(id);
                true
            }
            Some(_) => false,
        }
    }

    /// Removes an event from its line, and returns the event that is first now.
    pub(super) fn leave_line(&mut self, id: i64) -> Option<i64> {
        let lane = self.event(id).lane?;
        let line = self.lanes.get_mut(&lane)?;
        line.remove(&id);
        let first = line.first().copied();
        match first {
            Some(first) => self.promote(first),
            // Each chat is a lane, so empty lines would pile up.
            None => drop(self.lanes.remove(&lane)),
        }
        first
    }

    /// Makes the first event of a line ready. One that waited for another one until now is due from now on.
    fn promote(&mut self, id: i64) {
        let now = self.now;
        if self.is_first(id) && !self.is_ready(id) {
            if let Place::Line { due } = &mut self.event(id).place {
                *due = now.max(*due);
            }
            self.set_ready(id);
        }
    }

    fn is_ready(&self, id: i64) -> bool {
        let Some(event) = self.events.get(&id) else {
            return false;
        };
        let Place::Line { due } = event.place else {
            return false;
        };
        [&self.ready, &self.suspects].iter().any(|ready| {
            let events = ready.get(&event.of);
            events.is_some_and(|events| events.contains(&(due, id)))
        })
    }

    /// Makes an event ready, unless its lane waits for another one.
    fn set_ready(&mut self, id: i64) {
        let event = self.event(id);
        let Place::Line { due } = event.place else {
            return;
        };
        let lane = event.lane;
        if lane.is_some_and(|lane| self.busy.contains_key(&lane)) {
            return;
        }
        let event = self.event(id);
        let (of, is_suspect) = (event.of.clone(), event.crashes > 0);
        let ready = match is_suspect {
            // Apart, since a claim takes only a few of them at a time: each may crash its process again.
            true => &mut self.suspects,
            false => &mut self.ready,
        };
        ready.entry(of).or_default().insert((due, id));
    }

    pub(super) fn unset_ready(&mut self, id: i64) {
        let event = self.event(id);
        let Place::Line { due } = event.place else {
            return;
        };
        let of = event.of.clone();
        for ready in [&mut self.ready, &mut self.suspects] {
            if let Some(events) = ready.get_mut(&of) {
                events.remove(&(due, id));
                // The header that names a kind is not signed, so forged kinds must leave nothing behind.
                if events.is_empty() {
                    ready.remove(&of);
                }
            }
        }
    }

    /// Lets events return to their lines whose lease has expired, or which were put aside until now.
    pub(super) fn return_to_lines(&mut self) {
        while let Some(&(until, id)) = self.taken.first()
            && until <= self.now
        {
            self.taken.pop_first();
            let event = self.event(id);
            if let Place::Taken { fence, .. } = event.place {
                event.expired = Some(fence);
            }
            event.crashes = event.crashes.saturating_add(1);
            // Due since the lease expired, so it comes before events that have waited for less long.
            event.place = Place::Line { due: until };
            self.set_free(id);
            self.set_first_ready(id);
        }
        while let Some(&(due, id)) = self.aside.first()
            && due <= self.now
        {
            self.aside.pop_first();
            self.event(id).place = Place::Line { due };
            self.join_line(id);
        }
    }

    /// Whether an event that stands in line is the first one, and its lane waits for no other.
    pub(super) fn is_first(&self, id: i64) -> bool {
        let lane = self.events.get(&id).and_then(|event| event.lane);
        lane.is_none_or(|lane| {
            let first = self.lanes.get(&lane).and_then(BTreeSet::first);
            first == Some(&id) && !self.busy.contains_key(&lane)
        })
    }

    /// Ends the wait of a lane for an event.
    pub(super) fn set_free(&mut self, id: i64) {
        if let Some(lane) = self.event(id).lane
            && self.busy.get(&lane) == Some(&id)
        {
            self.busy.remove(&lane);
        }
    }

    /// Makes an event ready that stays in its line. If another one now comes before it, that one is made ready.
    pub(super) fn set_first_ready(&mut self, id: i64) {
        let lane = self.event(id).lane;
        let line = lane.and_then(|lane| self.lanes.get(&lane));
        let first = line.and_then(|line| line.first().copied()).unwrap_or(id);
        self.set_ready(first);
    }

    /// Removes an unsettled or held event from every index.
    pub(super) fn remove(&mut self, id: i64) {
        self.set_free(id);
        let event = self.event(id);
        match event.place {
            Place::Line { .. } => self.unset_ready(id),
            Place::Aside { due } => {
                self.aside.remove(&(due, id));
                return;
            }
            Place::Taken { until, .. } => {
                self.taken.remove(&(until, id));
            }
            Place::Holding { .. } => {}
            Place::Ended { .. } => return,
        }
        self.leave_line(id);
    }
}
