//! What a worker and the others of its queue handle: it notes its own, reads theirs, and leaves them their events.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use super::super::actions::By;
use super::super::handlers::{Duty, HandlerNote, NOTE_EVERY, NewNote, Noted, Own, PUT_OFF};
use super::pool::Pool;
use crate::delivery::RawDelivery;
use crate::lock::lock;
use crate::route::Scope;
use crate::store::StoreError;
use crate::throttle::Throttle;

/// The time limit of a call, and the pause after one that failed.
const LIMIT: Duration = Duration::from_secs(5);

/// How often the log tells of a type whose worker is away, in seconds.
const MINUTE: u64 = 60;

/// What the others have noted.
#[derive(Default)]
pub(super) struct Others {
    /// As it was read last. `None` before the first time.
    noted: Mutex<Option<Arc<Noted>>>,
    /// The number of looks that have begun, and the last of those that have ended.
    begun: AtomicU64,
    ended: tokio::sync::Mutex<u64>,
    told: Throttle<MINUTE>,
}

impl Others {
    pub(super) fn noted(&self) -> Option<Arc<Noted>> {
        lock(&self.noted).clone()
    }
}

/// The task that notes the handlers of a worker.
pub(super) async fn note(pool: Arc<Pool>) {
    let notes: Vec<_> = (pool.routes.iter())
        .flat_map(|place| {
            let taken = pool.rules().kinds(&place.route.name);
            place.handles.notes(&taken, place.route.limits.retention)
        })
        .collect();
    let mut told = BTreeSet::new();
    loop {
        let next = Instant::now() + NOTE_EVERY;
        // An error is reported by other calls.
        if pool.read_notes(&notes).await.is_err() {
            sleep(LIMIT).await;
            continue;
        }
        for place in &pool.routes {
            let route = &place.route.name;
            let kinds = pool.rules().kinds(route);
            let noted = pool.others.noted();
            let left = noted
                .as_ref()
                .map(|noted| noted.left(&kinds, &place.handles));
            let left = left.unwrap_or_default();
            if let Some(first) = left.first()
                && told.insert(route)
            {
                tracing::warn!(
                    %route,
                    types = names(&left),
                    worker = first.worker,
                    "another worker of this route handles types that this one does not: their events are left to it; give both \
                     the same handlers, or their routes different names"
                );
            }
        }
        sleep_until(next).await;
    }
}

fn names(notes: &[&HandlerNote]) -> String {
    let name = |note: &&HandlerNote| match &note.of {
        Scope::Type(of) => of.kind.to_string(),
        _ => "all others".to_owned(),
    };
    notes.iter().map(name).collect::<Vec<_>>().join(", ")
}

impl Pool {
    /// What to do with an event of a type that has no handler of its own here.
    pub(super) async fn duty(&self, own: Own, delivery: &RawDelivery) -> Result<Duty, StoreError> {
        let (route, kind) = (delivery.route(), delivery.kind());
        let noted = self.others.noted();
        let known = noted.map(|noted| (noted.duty(own, route, kind), noted));
        let (duty, noted) = match known {
            // Nobody handles it, or a worker that was started just now.
            None | Some((Duty::Ignore, _)) => {
                let noted = Box::pin(self.look()).await?;
                (noted.duty(own, route, kind), noted)
            }
            Some(known) => known,
        };
        if duty == Duty::PutOff
            && let Some(note) = noted.of(route, kind)
            && let Some(left_out) = self.others.told.admit(&format!("{route}/{kind}"))
        {
            tracing::warn!(
                %route, %kind,
                worker = note.worker,
                unseen_for = ?noted.unseen(note),
                left_out = (left_out > 0).then_some(left_out),
                "nobody handles this type, as the worker that did is away: its events are put off by {PUT_OFF:?} at a time, and \
                 their chats go on without them; start that worker, or retire its handler if it is not coming back"
            );
        }
        Ok(duty)
    }

    /// Reads the notes, unless somebody has begun to do so since this was called.
    async fn look(&self) -> Result<Arc<Noted>, StoreError> {
        let Others { begun, ended, .. } = &self.others;
        let before = begun.load(Ordering::Relaxed);
        let mut ended = ended.lock().await;
        if *ended > before
            && let Some(noted) = self.others.noted()
        {
            return Ok(noted);
        }
        let this = begun.fetch_add(1, Ordering::Relaxed) + 1;
        let noted = self.read_notes(&[]).await?;
        *ended = this;
        Ok(noted)
    }

    /// Notes handlers, and reads what all workers have noted.
    async fn read_notes(&self, own: &[NewNote]) -> Result<Arc<Noted>, StoreError> {
        let call = self.shared.queue.count.note_handlers(&PROGRAM, own);
        let call = self.shared.call_within(LIMIT, "note-handlers", call);
        let (notes, at) = call.await?;
        let mut last = lock(&self.others.noted);
        let noted = Arc::new(Noted::new(notes, at, last.as_deref()));
        *last = Some(Arc::clone(&noted));
        drop(last);
        if self.set_kinds() {
            self.ask_now();
        }
        Ok(noted)
    }
}

/// This program, by which a person finds it.
static PROGRAM: LazyLock<String> = LazyLock::new(|| {
    let path = std::env::current_exe().ok();
    let name = path.as_ref().and_then(|path| path.file_stem());
    let name = name.map_or("a worker".into(), |name| name.to_string_lossy());
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = match host.trim() {
        "" => String::new(),
        host => format!(" on {host}"),
    };
    // On one line, and not too long.
    let text = By::new(&format!("{name}{host}, process {}", std::process::id()));
    text.who().to_owned()
});
