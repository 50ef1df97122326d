//! Files of earlier versions of the schema.

#![cfg(test)]

use std::fs;
use std::path::Path;

use super::*;

/// A copy of a file that a release with version 3 of the schema wrote. Its leases and retentions last for 100 years. The
/// kind `chat-rated` is paused, and the events are:
///
/// 1. handled, without its body; 2. handled; 3. ignored; 4. discarded;
/// 5. dead; 6. dead, and holds its lane; 7. retrying; 8. retrying out of order; 9. in progress;
/// 10. to 12. behind 6, 7 and 9; 13. waits; 14. dead since its acceptance, with a guard.
fn of_version_3(directory: &Path) -> PathBuf {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let path = directory.join("webhooks.db");
    fs::copy(fixture.join("sqlite-inbox-v3.db"), &path).unwrap();
    assert_eq!(version(&path), 3);
    path
}

fn version(path: &Path) -> i64 {
    let db = Connection::open(path).unwrap();
    db.query_row("PRAGMA user_version", [], |row| row.get(0))
        .unwrap()
}

/// An event with the key of the fixture's event of that number.
fn of_fixture(number: i64, body: &str) -> NewEvent {
    let key = format!("key-{number}");
    let mut event = event(number);
    event.key = Some(EventKey::new("webhook", key.as_bytes(), body.as_bytes()));
    event.delivery = RawDelivery::new(EventKind::CHAT_CLOSED, body.to_owned());
    event
}

fn body(number: i64) -> String {
    let chat = match number {
        1..=4 => "c-1",
        5 => "c-5",
        6 | 10 => "c-6",
        7 | 11 => "c-7",
        8 => "c-8",
        9 | 12 => "c-9",
        _ => "",
    };
    format!("{{\"id\":\"{chat}\",\"number\":{number}}}")
}

#[tokio::test]
async fn a_file_of_version_3_is_upgraded_and_keeps_its_events() {
    use EventState::{Dead, Discarded, Handled, Ignored, InProgress, Retrying, Waiting};

    let directory = tempfile::tempdir().unwrap();
    let path = of_version_3(directory.path());
    let queue = SqliteQueue::open(&path).unwrap();
    assert_eq!(version(&path), 5);
    let states = [
        Handled, Handled, Ignored, Discarded, Dead, Dead, Retrying, Retrying, InProgress, Waiting,
        Waiting, Waiting, Waiting, Dead,
    ];
    for (number, state) in (1..).zip(states) {
        let event = queue.get(EventId(number)).await.unwrap().unwrap();
        assert_eq!(event.summary.state, state, "{number}");
        let kept = (number > 1).then(|| body(number));
        assert_eq!(event.body.as_deref(), kept.as_deref().map(str::as_bytes));
        let failures = usize::from(matches!(number, 4..=8 | 14));
        assert_eq!(event.failures.len(), failures, "{number}");

        for (body, same) in [(body(number), true), ("{}".to_owned(), false)] {
            let again = queue.accept(of_fixture(number, &body), None).await.unwrap();
            let Accepted::Duplicate { same_body } = again else {
                panic!("{number}: {again:?}");
            };
            assert_eq!(same_body, same, "{number}");
        }
    }
    let mut replayed = of_fixture(99, "{}");
    replayed.guard = Some(EventKey::new("bodies", body(14).as_bytes(), b"key-99"));
    let replayed = queue.accept(replayed, None).await.unwrap();
    assert!(matches!(replayed, Accepted::BodyReplayed), "{replayed:?}");
    let blocked = queue.blocked_lanes(None, None, 10).await.unwrap();
    let blocked: Vec<_> = blocked
        .iter()
        .map(|lane| (lane.event.id.0, lane.waiting))
        .collect();
    assert_eq!(blocked, [(6, 1), (7, 1)]);
    let stats = queue.stats().await.unwrap();
    let paused = stats.kinds.iter().find(|kind| kind.is_paused).unwrap();
    assert_eq!(paused.kind, EventKind::CHAT_RATED);

    // Work goes on.
    let mut taken = queue.take_some(10).await;
    taken.sort_by_key(|event| event.lease.id);
    assert_eq!(ids(&taken), [7, 8, 13]);
    let next = queue.end(&taken[0], Settlement::Handled).await.unwrap();
    assert_eq!(next.lease.id.0, 11);
    assert_eq!(queue.discard(EventId(6), None).await.unwrap(), Change::Made);
    assert_eq!(queue.redrive(EventId(5), None).await.unwrap(), Change::Made);
    assert_eq!(
        queue.redrive(EventId(1), None).await.unwrap(),
        Change::WithoutBody
    );
    let mut taken = queue.take_some(10).await;
    taken.sort_by_key(|event| event.lease.id);
    assert_eq!(ids(&taken), [5, 10]);
    queue.purge_all(Duration::ZERO).await;
    assert_eq!(queue.state(2).await, Handled);
    assert_eq!(queue.add(event(1)).await, 15);
}

/// Of a process that has the file open since before the upgrade.
#[tokio::test]
async fn the_statements_of_version_3_work_on_an_upgraded_file() {
    const NEW_OF_EVENT: &str = "
        INSERT INTO keys (key, body, fence, attempt, done, lease_until, keep_until)
        VALUES (?1, ?2, zeroblob(17), 1, 1, -?3, ?4)
        ON CONFLICT (key) DO NOTHING";
    const BY_KEY: &str = "
        SELECT done, lease_until, keep_until, length(fence) > 16 FROM keys WHERE key = ?1";

    let directory = tempfile::tempdir().unwrap();
    let path = of_version_3(directory.path());
    let old = Connection::open(&path).unwrap();
    let queue = SqliteQueue::open(&path).unwrap();
    let of_new = of_fixture(15, "{}");
    let key = of_new.key.unwrap();
    assert_eq!(queue.add(of_new).await, 15);
    let known: (bool, i64, i64, bool) = old
        .query_row(BY_KEY, [key.key().to_be_bytes()], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
        })
        .unwrap();
    assert_eq!((known.0, known.1, known.3), (true, -15, false));
    for (body, same) in [("{}", true), ("{ }", false)] {
        let again = queue.accept(of_fixture(15, body), None).await.unwrap();
        let Accepted::Duplicate { same_body } = again else {
            panic!("{again:?}");
        };
        assert_eq!(same_body, same);
    }

    let of_old = of_fixture(16, "{}").key.unwrap();
    let row = params![
        of_old.key().to_be_bytes(),
        of_old.body().to_be_bytes(),
        16,
        known.2
    ];
    assert_eq!(old.execute(NEW_OF_EVENT, row).unwrap(), 1);
    assert_eq!(
        old.execute(
            NEW_OF_EVENT,
            params![key.key().to_be_bytes(), [0_u8; 16], 17, known.2]
        )
        .unwrap(),
        0
    );
    for (body, same) in [("{}", true), ("{ }", false)] {
        let again = queue.accept(of_fixture(16, body), None).await.unwrap();
        let Accepted::Duplicate { same_body } = again else {
            panic!("{again:?}");
        };
        assert_eq!(same_body, same);
    }
}

/// Nothing was read before, so the connection of the reader is opened after the upgrade.
#[tokio::test]
async fn a_process_works_on_when_a_later_release_upgrades_its_file() {
    let desk = Desk::new();
    let queue = desk.open();
    let first = queue.add(event(1)).await;
    let later = Connection::open(desk.path()).unwrap();
    later.pragma_update(None, "user_version", 1000).unwrap();

    let second = queue.add(event(2)).await;
    let listed = queue.list(&Filter::default(), Page::oldest(10)).await;
    let ids: Vec<_> = listed
        .unwrap()
        .events
        .iter()
        .map(|event| event.id.0)
        .collect();
    assert_eq!(ids, [first, second]);
    assert_eq!(queue.stats().await.unwrap().unsettled(), 2);
}
