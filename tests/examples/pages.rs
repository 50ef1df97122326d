//! The commands of README and pages: each names an example and features that exist, its options are valid, and the
//! requests by hand work as they stand. So does the test that takes a PostgreSQL.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sqlx::PgPool;
use tower_webhook::transactional::TransactionalHandler;

use support::database::connect;
use support::postgres::PostgresServer;
use support::program::{Server, check, example, installed};
use support::transactional::{Step, TransactionalCrm, create_effects};

fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// README and pages, with their names.
fn pages() -> Vec<(String, String)> {
    let mut files = vec![root().join("README.md"), root().join("examples/README.md")];
    let pages = fs::read_dir(root().join("src/docs")).unwrap();
    files.extend(pages.map(|entry| entry.unwrap().path()));
    let products = fs::read_dir(root().join("crates")).unwrap();
    files.extend(products.map(|entry| entry.unwrap().path().join("README.md")));
    files.retain(|path| path.extension().is_some_and(|it| it == "md"));
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        (path.display().to_string(), text)
    };
    files.into_iter().map(read).collect()
}

/// The commands that start with `cargo`, in fences and in backticks, with their lines joined.
fn cargo_commands(text: &str) -> Vec<String> {
    let text = text.replace("\\\n", " ");
    let lines = text.lines().map(str::trim);
    let quoted = text.split('`').skip(1).step_by(2);
    let commands = lines.chain(quoted).filter_map(|line| {
        let at = line.find("cargo ")?;
        // Variables may stand before it.
        let is_command = line[..at].split_whitespace().all(|word| word.contains('='));
        let command = line[at..].split(" #").next()?;
        is_command.then(|| command.split('|').next().unwrap_or(command).to_owned())
    });
    commands.collect()
}

/// The words that a shell makes of a command, with what stands in capitals replaced.
fn words(command: &str) -> Vec<String> {
    let script = format!("set -- {command}\nprintf '%s\\n' \"$@\"");
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert!(output.status.success(), "{command}");
    let words = String::from_utf8(output.stdout).unwrap();
    words.lines().map(str::to_owned).collect()
}

/// The manifest of a package, without one that of the library.
fn manifest_of(package: Option<&str>) -> String {
    let directory = match package {
        None | Some("tower-webhook") => String::new(),
        Some("tower-webhook-tests") => "tests/".to_owned(),
        Some(package) => format!("crates/{}/", package.trim_start_matches("tower-webhook-")),
    };
    let path = root().join(format!("{directory}Cargo.toml"));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{package:?}: {error}"))
}

fn after<'a>(words: &'a [String], option: &str) -> Option<&'a str> {
    let at = words.iter().position(|word| word == option)?;
    words.get(at + 1).map(String::as_str)
}

#[test]
fn every_command_names_what_exists_and_has_valid_options() {
    let mut checked = BTreeSet::new();
    for (page, text) in pages() {
        for command in cargo_commands(&text) {
            let words = words(&command);
            let package = after(&words, "-p").or_else(|| after(&words, "--package"));
            let (name, declared) = match (after(&words, "--example"), package) {
                (Some(name), _) => (name, format!("[[example]]\nname = \"{name}\"\n")),
                (None, Some(package)) => {
                    let name = package.trim_start_matches("tower-webhook-");
                    (name, format!("[[bin]]\nname = \"{name}\"\n"))
                }
                (None, None) => continue,
            };
            let manifest = manifest_of(package);
            if package == Some("tower-webhook-admin") {
                // Its example is found without an entry.
                continue;
            }
            assert!(
                manifest.contains(&declared),
                "{page}: {command}: no such program"
            );
            let features = after(&words, "--features").unwrap_or_default();
            let own: Vec<&str> = features.split(',').filter(|it| !it.is_empty()).collect();
            for feature in &own {
                let declared = match feature.split_once('/') {
                    Some((dependency, _)) => format!("\n{dependency} = {{"),
                    None => format!("\n{feature} = ["),
                };
                let is_declared = manifest.contains(&declared);
                assert!(is_declared, "{page}: {command}: no feature {feature}");
            }
            let (_, defaults) = manifest.split_once("\ndefault = ").unwrap();
            let defaults = defaults.lines().next().unwrap();
            let (_, entry) = manifest.split_once(&declared).unwrap();
            let entry = entry.split("\n[").next().unwrap();
            let required = entry
                .split("required-features = [")
                .nth(1)
                .unwrap_or_default();
            for required in required.split('"').skip(1).step_by(2) {
                assert!(
                    defaults.contains(required) || own.contains(&required),
                    "{page}: {command}: needs the feature {required}"
                );
            }
            if let Some(end) = words.iter().position(|word| word == "--") {
                let args = words[end + 1..].iter().map(|word| match word.as_str() {
                    "ID" => "1",
                    "…" => "--help",
                    word => word,
                });
                // The help is printed if all that stands before it is valid.
                let output = example(name).args(args).arg("--help").output().unwrap();
                let told = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{page}: {command}: {told}");
            }
            checked.insert(command);
        }
    }
    assert!(checked.len() > 15, "{checked:?}");
}

/// The commands in the first column of the table of `receiver inbox`.
fn of_the_table(page: &str) -> Vec<String> {
    let rows = page.split("| command | effect |\n|---|---|\n").nth(1);
    let rows = rows.unwrap_or_default().split("\n\n").next().unwrap();
    let cells = rows.lines().filter_map(|row| row.split('|').nth(1));
    let quoted = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    quoted.map(|it| format!("receiver inbox {it}")).collect()
}

/// The options of `receiver` in lines without `cargo`.
#[test]
fn commands_of_the_receiver_have_valid_options() {
    let mut checked = 0;
    for (page, text) in pages() {
        let text = text.replace("\\\n", " ");
        let fenced = text.split("```sh\n").skip(1);
        let fenced = fenced.flat_map(|block| block.split("```").next().unwrap_or_default().lines());
        let quoted = text.split('`').skip(1).step_by(2);
        let quoted = quoted.filter(|it| it.starts_with("receiver "));
        let commands = fenced.chain(quoted).map(str::to_owned);
        for command in commands.chain(of_the_table(&text)) {
            let command = command.trim().trim_start_matches("target/release/");
            let Some(args) = command.strip_prefix("receiver ") else {
                continue;
            };
            let args = words(args.split(" #").next().unwrap());
            let args = args.iter().map(|word| match word.as_str() {
                "ID" => "1",
                "…" => "--help",
                word => word,
            });
            let output = example("receiver")
                .args(args)
                .arg("--help")
                .output()
                .unwrap();
            let told = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{page}: {command}: {told}");
            checked += 1;
        }
    }
    assert!(checked > 40, "{checked}");
}

/// Spec 6, rule 5, with the page's own lines.
#[test]
fn the_request_by_hand_works_as_it_stands() {
    let page = fs::read_to_string(root().join("src/docs/testing.md")).unwrap();
    let blocks = page.split("```sh\n").skip(1);
    let mut blocks = blocks.map(|block| block.split("```").next().unwrap_or_default());
    let request = blocks.find(|block| block.contains("curl -i")).unwrap();
    let receiver = Server::receiver(&["--secret", "my-secret"]);
    let page_url = "http://127.0.0.1:3000/webhooks";
    assert!(request.contains(page_url));
    let request = request.replace(page_url, &receiver.url);
    let send = || {
        let output = Command::new("sh").args(["-c", &request]).output();
        String::from_utf8(installed(output, "sh", "dash").stdout)
            .unwrap()
            .to_lowercase()
    };
    let first = send();
    assert!(
        first.starts_with("http/1.1 200") && !first.contains("replayed"),
        "{first}"
    );
    let second = send();
    assert!(second.contains("idempotent-replayed: true"), "{second}");
    assert_eq!(receiver.out().lines().count(), 1);
}

/// The page has these lines. They are here, because rustdoc has no PostgreSQL to run them with.
async fn test_of_a_transactional_handler(
    pool: PgPool,
    crm: impl TransactionalHandler<tower_webhook::event::ChatRated>,
) -> anyhow::Result<()> {
    use std::time::UNIX_EPOCH;

    use tower_webhook::event::{ChatLifecycle, ChatRated};
    use tower_webhook::postgres::PostgresStore;
    use tower_webhook::transactional::Transactions;
    use tower_webhook::{EventRouter, IdempotencyKey, Outcome, RawDelivery};

    let name = format!("test_{}", UNIX_EPOCH.elapsed()?.as_micros());
    let store = PostgresStore::new(pool.clone()).with_schema(&name)?;
    store.migrate().await?;
    let events = EventRouter::new().on::<ChatRated>(Transactions::new(store).handler(crm));
    let chat = ChatLifecycle::default().id(name).rating(0.5);
    let delivery =
        RawDelivery::of::<ChatRated>(&chat)?.with_key("event-1".parse::<IdempotencyKey>()?);
    assert!(matches!(
        events.handle(delivery.clone()).await,
        Outcome::Handled
    ));
    assert!(matches!(events.handle(delivery).await, Outcome::Replayed));
    let sql = "SELECT count(*) FROM effects WHERE chat = $1"; // where `crm` writes
    let rows: i64 = sqlx::query_scalar(sql)
        .bind(chat.id)
        .fetch_one(&pool)
        .await?;
    assert_eq!(rows, 1);
    Ok(())
}

#[tokio::test]
async fn the_test_of_a_transactional_handler_works_as_it_stands() {
    let page = fs::read_to_string(root().join("src/docs/testing.md")).unwrap();
    let blocks = page.split("```rust,no_run\n").skip(1);
    let mut blocks = blocks.map(|block| block.split("```").next().unwrap_or_default());
    let shown = blocks.find(|block| block.contains("Transactions")).unwrap();
    let shown = shown.lines().filter(|line| !line.starts_with("# "));
    let bare = |text: &str| text.split_whitespace().collect::<String>();
    assert!(bare(include_str!("pages.rs")).contains(&shown.map(bare).collect::<String>()));

    let server = PostgresServer::start();
    let pool = connect(&server.url(), 4).await;
    create_effects(&pool).await;
    // Again, as on the next day: nothing is left of the first run that this one would see.
    for _ in 0..2 {
        let crm = TransactionalCrm::default();
        let passed = test_of_a_transactional_handler(pool.clone(), crm.clone()).await;
        assert!(passed.is_ok(), "{passed:?}");
        assert_eq!(crm.runs(), 1);
    }
    // It sees that a handler fails.
    let fails = TransactionalCrm::new([Step::Fail]);
    let test = test_of_a_transactional_handler(pool, fails);
    assert!(tokio::spawn(test).await.unwrap_err().is_panic());
}

/// Queries of the page are valid.
#[test]
fn queries_of_the_page_are_valid() {
    let page = include_str!("../../src/docs/troubleshooting.md");
    let fenced = page.split("```text\n").skip(1);
    let fenced = fenced.map(|block| block.split("```").next().unwrap_or_default());
    let quoted = page.split('`').skip(1).step_by(2);
    let quoted = quoted.filter(|text| !text.starts_with("text\n"));
    let queries = fenced
        .chain(quoted)
        .filter(|it| it.contains("webhook_") && it.contains('('));
    let dir = tempfile::tempdir().unwrap();
    let mut rules = String::from("groups:\n  - name: page\n    rules:\n");
    let mut count = 0;
    for query in queries {
        let query = query.split_whitespace().collect::<Vec<_>>().join(" ");
        rules += &format!("      - record: page:query:{count}\n        expr: {query:?}\n");
        count += 1;
    }
    assert!(count >= 2, "{rules}");
    fs::write(dir.path().join("rules.yml"), rules).unwrap();
    let args = ["check", "rules", "rules.yml"];
    check("promtool", "prometheus", Path::new(dir.path()), &args);
}
