//! The state that the page shows and controls, besides the sandbox itself.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tower_webhook_sandbox::{Sandbox, Settings};

/// The highest number of generated events per minute.
pub(crate) const MAX_RATE: u32 = 60_000;
/// The clock is advanced in steps of one round of retries, so that no round is skipped.
pub(crate) const STEP: Duration = Duration::from_secs(600);

const MAX_STEPS: u32 = 30 * 144;

#[derive(Clone)]
pub(crate) struct Desk(Arc<Shared>);

struct Shared {
    sandbox: Sandbox,
    is_strict: bool,
    /// How many failed attempts within an hour a webhook may have.
    disable_after: usize,
    notice: Mutex<Option<Notice>>,
    rate: watch::Sender<u32>,
    /// How many steps the clock is still to be advanced.
    steps: watch::Sender<u32>,
}

/// A message that the next page shows once.
pub(crate) enum Notice {
    Done(String),
    /// This chat is started.
    Chat(String),
    Refused(String),
    NewKey(String),
}

impl Desk {
    pub(crate) fn new(sandbox: Sandbox, rate: u32, is_strict: bool) -> Self {
        let desk = Self(Arc::new(Shared {
            sandbox,
            is_strict,
            disable_after: match Settings::default().sender.policy().disable_after {
                Some(most) => most as usize,
                None => usize::MAX,
            },
            notice: Mutex::default(),
            rate: watch::Sender::new(rate),
            steps: watch::Sender::new(0),
        }));
        tokio::spawn(desk.clone().generate());
        tokio::spawn(desk.clone().advance());
        desk
    }

    pub(crate) fn sandbox(&self) -> &Sandbox {
        &self.0.sandbox
    }

    pub(crate) fn is_strict(&self) -> bool {
        self.0.is_strict
    }

    pub(crate) fn disable_after(&self) -> usize {
        self.0.disable_after
    }

    pub(crate) fn say(&self, notice: Notice) {
        *lock(&self.0.notice) = Some(notice);
    }

    pub(crate) fn take_notice(&self) -> Option<Notice> {
        lock(&self.0.notice).take()
    }

    pub(crate) fn rate(&self) -> u32 {
        *self.0.rate.borrow()
    }

    pub(crate) fn set_rate(&self, rate: u32) {
        self.0.rate.send_replace(rate.min(MAX_RATE));
    }

    pub(crate) fn steps_ahead(&self) -> u32 {
        *self.0.steps.borrow()
    }

    pub(crate) fn forward(&self, by: u32) {
        let add = |steps: &mut u32| *steps = steps.saturating_add(by).min(MAX_STEPS);
        self.0.steps.send_modify(add);
    }

    async fn generate(self) {
        let mut generator = self.sandbox().generator();
        let mut rate = self.0.rate.subscribe();
        loop {
            let per_minute = *rate.borrow_and_update();
            let next = async {
                match per_minute {
                    0 => std::future::pending().await,
                    _ => sleep(Duration::from_secs(60) / per_minute).await,
                }
            };
            tokio::select! {
                () = next => {
                    generator.step();
                }
                _ = rate.changed() => {}
            }
        }
    }

    async fn advance(self) {
        let mut steps = self.0.steps.subscribe();
        while steps.wait_for(|steps| *steps > 0).await.is_ok() {
            self.sandbox().advance(STEP);
            // Longer than the timeout of an attempt. At a high rate the sandbox is never idle.
            let _ = timeout(Duration::from_secs(11), self.sandbox().idle()).await;
            self.0.steps.send_modify(|steps| *steps -= 1);
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
