//! A receiver is killed while it refuses requests. The next one shows what was refused, but for the last second.

use nix::sys::signal::Signal;
use support::program::{Server, curl, until};
use tempfile::TempDir;

const BEFORE: u64 = 20;
const LAST: u64 = 5;

#[test]
fn a_kill_loses_at_most_the_counts_of_the_last_second() {
    let dir = TempDir::new().unwrap();
    let url = format!("sqlite:{}", dir.path().join("webhooks.db").display());
    let any = "127.0.0.1:0";
    let start = || {
        let args = ["--secret", "s", "--inbox", &url, "--exec", "true"];
        Server::receiver(&[&args[..], &["--console", any, "--metrics", any]].concat())
    };
    let refuse = |receiver: &Server, times| {
        for _ in 0..times {
            // Signed by nobody.
            curl(&[
                "--silent",
                "--request",
                "POST",
                "--header",
                "x-request-id: r-1",
                &receiver.url,
            ]);
        }
    };
    // The requests with one reason, of all minutes.
    let refused = |receiver: &Server| {
        let page = curl(&[
            "--silent",
            &format!("{}refusals", receiver.url_of("console")),
        ]);
        // Behind those by address.
        let (_, rows) = page.split_once("id=\"rows\"").unwrap();
        let rows = rows.split("invalid-signature").skip(1);
        let sum: u64 = rows
            .map(|row| {
                let (_, number) = row.split_once("data-label=\"Times\">").unwrap();
                let number = number.split('<').next().unwrap();
                number.parse::<u64>().unwrap()
            })
            .sum();
        (sum, page)
    };
    let receiver = start();
    refuse(&receiver, BEFORE);
    until("counts", || (refused(&receiver).0 == BEFORE).then_some(()));
    refuse(&receiver, LAST);
    receiver.signal(Signal::SIGKILL);
    drop(receiver);

    let receiver = start();
    let (sum, page) = refused(&receiver);
    assert!((BEFORE..=BEFORE + LAST).contains(&sum), "{sum}");
    assert!(
        page.contains(">127.0.0.1</td>") && page.contains(">r-1</td>"),
        "{page}"
    );

    // A receiver that is stopped loses nothing.
    refuse(&receiver, LAST);
    assert_eq!(receiver.stop(), 0);
    let receiver = start();
    assert_eq!(refused(&receiver).0, sum + LAST);
}
