//! What a worker and the others of its queue handle: it notes its own, reads theirs, and leaves them their events.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::super::actions::By;
use super::super::handlers::{Duty, HandlerNote, NOTE_EVERY, NewNote, Noted, Own, PUT_OFF};
use super::pool::Pool;
use crate::delivery::RawDelivery;
use crate::lock::lock;
use crate::route::Scope;
use crate::store::StoreError;
use crate::throttle::Throttle;

/// The time limit of a call, and the pause after a failed call.
const LIMIT: Duration = Duration::from_secs(5);

/// How often the log tells of a type whose worker is away, in seconds.
const MINUTE: u64 = 60;

/// For how long what is known of the others counts, before a fallback handles an event or it is put off: a worker with a handler
/// may have been started just now. So an event waits for a short read, but a busy worker makes one a second, however many
/// events it has. Nothing is ignored without a look.
const FRESH: Duration = Duration::from_secs(1);

/// What the others have noted.
#[derive(Default)]
pub(super) struct Others {
    /// As it was read last, and when that began. `None` before the first time.
    noted: Mutex<Option<(Instant, Arc<Noted>)>>,
    /// Held while somebody looks.
    looks: tokio::sync::Mutex<()>,
    told: Throttle<MINUTE>,
}

impl Others {
    pub(super) fn noted(&self) -> Option<Arc<Noted>> {
        let noted = lock(&self.noted);
        noted.as_ref().map(|(_, noted)| Arc::clone(noted))
    }

    /// What was read after this time, or so shortly before it that it still counts.
    fn fresh(&self, asked: Instant, counts_for: Duration) -> Option<Arc<Noted>> {
        let noted = lock(&self.noted);
        let fresh = noted
            .as_ref()
            .filter(|(began, _)| *began + counts_for > asked);
        fresh.map(|(_, noted)| Arc::clone(noted))
    }
}

/// The task that notes the handlers of a worker.
pub(super) async fn note(pool: Arc<Pool>) {
    let mut notes = vec![NewNote::any()];
    for place in &pool.routes {
        let taken = pool.rules().kinds(&place.route.name);
        notes.extend(place.handles.notes(&taken, place.route.limits.retention));
    }
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
        let known = self.others.noted();
        let known = known.map(|noted| (noted.duty(own, route, kind), noted));
        let noted = match known {
            // Events of the type are not taken any more.
            Some((Duty::Leave, noted)) => noted,
            // What was so a minute ago is probably still so: the event does not wait for long.
            Some((Duty::Handle | Duty::PutOff, noted)) => {
                let looked = timeout(FRESH, self.look(FRESH)).await;
                looked.ok().and_then(Result::ok).unwrap_or(noted)
            }
            None | Some((Duty::Ignore, _)) => self.look(Duration::ZERO).await?,
        };
        let duty = noted.duty(own, route, kind);
        if duty == Duty::PutOff
            && let Some(note) = noted.of(route, kind)
            && let Some(left_out) = self.others.told.admit(&format!("{route}/{kind}"))
        {
            tracing::warn!(
                %route, %kind,
                worker = note.worker,
                unseen_for = ?note.unseen(noted.at),
                left_out = (left_out > 0).then_some(left_out),
                "nobody handles this type, as the worker that did is away: its events are put off by {PUT_OFF:?} at a time, and \
                 their chats go on without them; start that worker, or retire its handler if it is not coming back"
            );
        }
        Ok(duty)
    }

    /// Reads the notes, unless somebody has begun to do so since this was called, or so shortly before.
    async fn look(&self, counts_for: Duration) -> Result<Arc<Noted>, StoreError> {
        let asked = Instant::now();
        if let Some(noted) = self.others.fresh(asked, counts_for) {
            return Ok(noted);
        }
        // Boxed, because few events need it.
        Box::pin(async {
            let _one = self.others.looks.lock().await;
            match self.others.fresh(asked, counts_for) {
                Some(noted) => Ok(noted),
                None => self.read_notes(&[]).await,
            }
        })
        .await
    }

    /// Notes handlers, and reads what all workers have noted.
    async fn read_notes(&self, own: &[NewNote]) -> Result<Arc<Noted>, StoreError> {
        let began = Instant::now();
        let call = self.shared.queue.count.note_handlers(&PROGRAM, own);
        let call = self.shared.call_within(LIMIT, "note-handlers", call);
        let (notes, at) = call.await?;
        let noted = Arc::new(Noted { notes, at });
        let mut last = lock(&self.others.noted);
        if last.as_ref().is_none_or(|(before, _)| *before <= began) {
            *last = Some((began, Arc::clone(&noted)));
        }
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
