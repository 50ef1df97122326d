//! What persons did, and jobs.

use std::time::Duration;

use tokio::time::Instant;

use super::{FOREVER, State};
use crate::inbox::actions::{
    Action, ActionKind, By, Job, JobLease, JobState, JobStep, KEPT, NewJob, Which,
};
use crate::inbox::event::{EventId, EventState};
use crate::inbox::records::Change;
use crate::store::Fence;

/// What a person did.
pub(super) struct Done {
    pub(super) at: Instant,
    pub(super) action: Action,
    /// The chat that the filter of a job names.
    pub(super) chat: Option<String>,
    fence: u128,
    lease_until: Instant,
}

/// How many actions are kept.
const MOST: i64 = 1_000;

impl State {
    /// Records what a person did, and returns the number of the action.
    pub(super) fn note(
        &mut self,
        by: &By,
        kind: ActionKind,
        event: Option<i64>,
        about: Option<String>,
        changed: u64,
    ) -> i64 {
        let number = self.last_action + 1;
        self.last_action = number;
        let action = Action {
            number,
            at: self.time_of_day(self.now),
            by: by.clone(),
            kind,
            event: event.map(EventId),
            about,
            changed,
            job: None,
        };
        self.actions.insert(
            number,
            Done {
                at: self.now,
                action,
                chat: None,
                fence: 0,
                lease_until: self.now,
            },
        );
        if let Some(event) = event {
            self.event(event).actions.push(number);
        }
        // A job that is running is kept.
        while let Some((&first, done)) = self.actions.iter().find(|(_, done)| !done.is_running())
            && (self.now.saturating_duration_since(done.at) > KEPT || first + MOST <= number)
        {
            self.actions.remove(&first);
        }
        number
    }

    /// Redrives or discards an event, and records who did it.
    pub(super) fn change_by(
        &mut self,
        kind: ActionKind,
        id: EventId,
        from: Option<EventState>,
        by: &By,
    ) -> Change {
        let change = self.change(kind == ActionKind::Redrive, id, from);
        if change == Change::Made {
            self.note(by, kind, Some(id.0), None, 1);
        }
        change
    }

    fn change(&mut self, redrives: bool, id: EventId, from: Option<EventState>) -> Change {
        match redrives {
            true => self.redrive(id, from),
            false => self.discard(id, from),
        }
    }

    pub(super) fn actions(&self, which: Which, before: Option<i64>, limit: usize) -> Vec<Action> {
        let of: Option<&[i64]> = match which {
            Which::Of(id) => Some(self.events.get(&id.0).map_or(&[], |event| &event.actions)),
            _ => None,
        };
        let all = self.actions.range(..before.unwrap_or(i64::MAX)).rev();
        let some = all.filter(|(number, done)| match (which, of) {
            (_, Some(of)) => of.contains(number),
            (Which::Running, _) => done.is_running(),
            _ => true,
        });
        some.map(|(_, done)| done.action(self.now))
            .take(limit)
            .collect()
    }

    /// Deletes what actions have of an event whose chat is forgotten.
    pub(super) fn forget_actions(&mut self, id: i64) {
        for number in std::mem::take(&mut self.event(id).actions) {
            let done = self.actions.get_mut(&number);
            if let Some(done) = done.filter(|done| done.action.event == Some(EventId(id))) {
                done.action.event = None;
                done.action.by = By::new(done.action.by.who());
            }
        }
    }

    /// Deletes what jobs have of a chat that is forgotten.
    pub(super) fn forget_jobs(&mut self, chat: &str) {
        for done in self
            .actions
            .values_mut()
            .filter(|done| done.chat.as_deref() == Some(chat))
        {
            done.chat = None;
            done.action.about = None;
            done.action.by = By::new(done.action.by.who());
            done.end(JobState::Cancelled);
        }
    }

    pub(super) fn begin_job(&mut self, job: &NewJob, by: &By) -> i64 {
        let number = self.note(by, job.kind, None, Some(job.filter.clone()), 0);
        if let Some(done) = self.actions.get_mut(&number) {
            done.chat.clone_from(&job.chat);
            done.action.job = Some(Job {
                state: JobState::Running,
                skipped: 0,
                reached: EventId(0),
                rate: job.rate,
                is_held: false,
            });
        }
        number
    }

    pub(super) fn take_job(&mut self, lease: Duration) -> Option<(JobLease, Action)> {
        let now = self.now;
        let mut jobs = self.actions.values_mut();
        let done = jobs.find(|done| done.is_running() && done.lease_until <= now)?;
        self.last_fence += 1;
        done.fence = self.last_fence;
        done.lease_until = now + lease.min(FOREVER);
        let lease = JobLease {
            number: done.action.number,
            fence: Fence(done.fence),
        };
        Some((lease, done.action(now)))
    }

    pub(super) fn step_job(&mut self, lease: &JobLease, step: &JobStep) -> bool {
        let holds = |done: &Done| done.is_running() && done.fence == lease.fence.0;
        if !self.actions.get(&lease.number).is_some_and(holds) {
            return false;
        }
        let (mut changed, mut skipped) = (0, 0);
        for (id, from) in &step.events {
            if self.change(step.redrives, *id, Some(*from)) == Change::Made {
                self.event(id.0).actions.push(lease.number);
                changed += 1;
            } else {
                skipped += 1;
            }
        }
        let until = self.now + step.lease.min(FOREVER);
        if let Some(done) = self.actions.get_mut(&lease.number) {
            done.lease_until = until;
            done.action.changed += changed;
            if let Some(job) = &mut done.action.job {
                job.skipped += skipped;
                job.reached = step.reached;
                job.state = step.state;
            }
        }
        true
    }

    pub(super) fn cancel_job(&mut self, number: i64, by: &By) -> bool {
        let is_running = self.actions.get(&number).is_some_and(Done::is_running);
        if is_running {
            self.note(by, ActionKind::Cancel, None, Some(number.to_string()), 0);
            if let Some(done) = self.actions.get_mut(&number) {
                done.end(JobState::Cancelled);
            }
        }
        is_running
    }
}

impl Done {
    fn is_running(&self) -> bool {
        let job = self.action.job.as_ref();
        job.is_some_and(|job| job.state == JobState::Running)
    }

    fn end(&mut self, state: JobState) {
        if self.is_running()
            && let Some(job) = &mut self.action.job
        {
            job.state = state;
        }
    }

    fn action(&self, now: Instant) -> Action {
        let mut action = self.action.clone();
        if let Some(job) = &mut action.job {
            job.is_held = job.state == JobState::Running && self.lease_until > now;
        }
        action
    }
}
