//! Jobs: changes of many events that survive a restart.

use std::time::Duration;

use super::actions::{Action, JobLease, JobStep, NewJob};
use super::handle::Inbox;
use super::queue::Queue;
use crate::store::StoreError;

impl<Q: Queue> Inbox<Q> {
    pub(crate) async fn begin_job(&self, job: &NewJob) -> Result<i64, StoreError> {
        let begin = self.shared.queue.begin_job(job, &self.settings.by);
        self.settings.call("begin-job", begin).await
    }

    pub(crate) async fn take_job(
        &self,
        lease: Duration,
    ) -> Result<Option<(JobLease, Action)>, StoreError> {
        let take = self.shared.queue.take_job(lease);
        self.settings.call("take-job", take).await
    }

    pub(crate) async fn step_job(
        &self,
        lease: &JobLease,
        step: &JobStep,
    ) -> Result<bool, StoreError> {
        let done = self.shared.queue.step_job(lease, step);
        let is_held = self.settings.call("step-job", done).await?;
        if !step.events.is_empty() {
            // What was in progress and is discarded has lost its lease.
            if !step.redrives {
                self.shared.workers.check();
            }
            self.shared.workers.wake();
        }
        Ok(is_held)
    }

    pub(crate) async fn cancel_job(&self, number: i64) -> Result<bool, StoreError> {
        let cancel = self.shared.queue.cancel_job(number, &self.settings.by);
        self.settings.call("cancel-job", cancel).await
    }
}
