//! A process of this release beside one of a later release, whose schema it may use.

use super::*;
use crate::inbox::records::Filter;

/// Columns and tables that a later release adds do not disturb a process that has the file open, nor a process that
/// opens it later, as after an image was rolled back.
#[tokio::test]
async fn a_process_works_on_when_a_later_release_upgrades_its_file() {
    let desk = Desk::new();
    let queue = desk.open();
    let before = queue.add_and_take(keyed(1, 1)).await;
    queue.add(keyed(1, 2)).await;

    let mut upgrade = String::from("PRAGMA user_version = 2; CREATE TABLE more (id INTEGER);");
    let later = Connection::open(desk.path()).unwrap();
    let tables = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'
        AND name NOT IN ('more', 'file')";
    let mut tables = later.prepare(tables).unwrap();
    for table in tables.query_map([], |row| row.get::<_, String>(0)).unwrap() {
        let table = table.unwrap();
        upgrade += &format!("ALTER TABLE {table} ADD COLUMN more INTEGER NOT NULL DEFAULT 1;");
    }
    later.execute_batch(&upgrade).unwrap();

    let next = queue.end(&before, Settlement::Handled).await.unwrap();
    queue.end(&next, retry(SECOND, true)).await;
    for (lane, queue) in [(2, queue), (3, desk.open())] {
        desk.wait(SECOND);
        let taken = queue.add_and_take(event(lane)).await;
        queue.end(&taken, Settlement::Ignored).await;
        let duplicate = queue.accept_one(keyed(1, 1), None).await.unwrap();
        assert!(matches!(duplicate, Accepted::Duplicate { .. }));
        let again = queue.take_some(9).await;
        assert_eq!(again.len(), 1);
        queue.end(&again[0], retry(SECOND, true)).await;
        let listed = queue.list(&Filter::default(), Page::oldest(9)).await;
        assert!(listed.unwrap().events.len() >= 3);
        queue.purge(DAY).await.unwrap();
    }
}
