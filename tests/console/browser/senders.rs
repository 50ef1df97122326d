//! One console over the inboxes of several senders, in one file.

use std::fs;

use crate::chromium::{Page, Window, until};
use support::program::Server;

const ROUTES: &str = r#"
[[routes]]
path = "/webhooks"
secret-file = "DIR/secret"

[[routes]]
path = "/github"
sender = "github"
secret-file = "DIR/secret"

# Fails until the file exists.
[[routes]]
path = "/stripe"
sender = "stripe"
secret-file = "DIR/secret"
exec = "test -e 'DIR/ledger' || { echo 'the ledger is closed' >&2; exit 1; }"
"#;

/// Deliveries of three senders with one key.
#[rustfmt::skip]
const DELIVERIES: [(&str, &[&str], &str); 3] = [
    ("/webhooks", &["--event", "chat-rated", "--key", "key-1"], r#"{"id":"chat-1","rating":1}"#),
    ("/github", &["--sender", "github", "--event", "push", "--key", "key-1"], r#"{"ref":"main"}"#),
    ("/stripe", &["--sender", "stripe", "--no-key"], r#"{"id":"key-1","type":"invoice.paid"}"#),
];

#[tokio::test]
async fn one_console_shows_the_events_of_all_senders() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    file("secret", "a secret of three");
    let config = file(
        "routes.toml",
        &ROUTES.replace("DIR", dir.path().to_str().unwrap()),
    );
    let inbox = format!("sqlite:{}", dir.path().join("webhooks.db").display());
    #[rustfmt::skip]
    let receiver = Server::receiver(&[
        "--config", &config, "--inbox", &inbox, "--console", "127.0.0.1:0", "--max-attempts", "1",
    ]);
    for (path, args, body) in DELIVERIES {
        let body = file("body.json", body);
        let args = [&["--body", &body], args].concat();
        let sent = receiver.send_to(path, "a secret of three", &args);
        assert_eq!(sent.code, 0, "{path}: {sent:?}");
    }
    let test = async |page: Page| {
        // All kinds, of which that of Stripe has a dead letter.
        page.until_text("#kinds-table a[href*='state=dead']", |dead| dead == "1")
            .await;
        for kind in ["chat-rated", "push", "invoice.paid"] {
            page.until_contains("#kinds-table", kind).await;
        }

        page.follow(".site a:nth-child(2)").await;
        page.set("#key", "key-1").await;
        page.follow("main form[method=get] button").await;
        assert_eq!(page.rows().await, 3);
        page.follow("#rows tr:has(.bad) a[href^='/events/']").await;
        page.until_contains("#state", "dead").await;
        page.until_contains("main", "invoice.paid").await;
        page.until_contains("#timeline", "the ledger is closed")
            .await;

        file("ledger", "");
        page.follow("button[id^=redrive-]").await;
        page.until_reloaded("#state", "handled").await;
        page.is_accessible().await;
        page.has_no_errors().await;
    };
    Window::new(1280)
        .open(&receiver.url_of("console"), test)
        .await;
    until("the events of the others", async || {
        let out = receiver.out();
        (out.contains("chat-rated") && out.contains("push")).then_some(())
    })
    .await;
    assert_eq!(receiver.stop(), 0);
}
