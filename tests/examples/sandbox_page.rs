//! The example `sandbox` without a browser: `tests/console/browser` tests its page.

#[cfg(feature = "admin")]
use tempfile::TempDir;

use support::program::{Server, curl, example};

/// Nobody listens there.
const NOWHERE: &str = "http://127.0.0.1:1/";

/// Other sites in the same browser must not use it.
#[test]
fn requests_of_other_origins_are_refused() {
    let sandbox = Server::start("sandbox", &["--demo", "--rate", "0"]);
    let own = format!("Origin: {}", sandbox.url.trim_end_matches('/'));
    let chats = format!("{}chats", sandbox.url);
    let status = |args: &[&str]| {
        let quiet = ["-o", "/dev/null", "-w", "%{http_code}"];
        curl(&[&quiet, args].concat())
    };

    assert_eq!(status(&["-d", "text=", "-H", &own, &chats]), "303");
    for origin in ["Origin: http://evil.example", "Origin: null", "Origin:"] {
        assert_eq!(status(&["-d", "text=", "-H", origin, &chats]), "403");
    }
    let rebound = ["-H", "Host: evil.example", sandbox.url.as_str()];
    assert_eq!(status(&rebound), "403");
    let page = curl(&["-i", &sandbox.url]);
    assert!(
        page.contains("content-security-policy: default-src 'none'"),
        "{page}"
    );
    assert!(page.contains("<b>1</b> events"), "{page}");
}

/// An `<img>` of another site, for instance, which loads the page without showing it.
#[test]
fn other_sites_do_not_use_up_a_new_key() {
    let sandbox = Server::start("sandbox", &["--demo", "--rate", "0"]);
    let own = format!("Origin: {}", sandbox.url.trim_end_matches('/'));
    let keys = format!("{}keys", sandbox.url);
    let page = |site: &str, dest: &str| {
        let (site, dest) = (
            format!("Sec-Fetch-Site: {site}"),
            format!("Sec-Fetch-Dest: {dest}"),
        );
        curl(&["-i", "-H", &site, "-H", &dest, &sandbox.url])
    };
    for own_site in ["same-origin", "none"] {
        curl(&["-d", "description=CRM", "-H", &own, &keys]);
        for site in ["cross-site", "same-site"] {
            for dest in ["image", "iframe", "empty"] {
                assert!(
                    page(site, dest).starts_with("HTTP/1.1 403"),
                    "{site} {dest}"
                );
            }
            let link = page(site, "document");
            assert!(link.starts_with("HTTP/1.1 200"), "{link}");
            assert!(!link.contains("new-key"), "{link}");
        }
        assert!(page(own_site, "document").contains("new-key"));
        assert!(!page(own_site, "document").contains("new-key"));
    }
}

#[test]
fn client_without_fetch_metadata_sees_a_new_key() {
    let sandbox = Server::start("sandbox", &["--demo", "--rate", "0"]);
    let own = format!("Origin: {}", sandbox.url.trim_end_matches('/'));
    let keys = format!("{}keys", sandbox.url);
    let page = curl(&["-L", "-d", "description=CRM", "-H", &own, &keys]);
    assert!(page.contains("new-key"), "{page}");
}

#[cfg(feature = "admin")]
#[tokio::test]
async fn target_may_use_tls() {
    use tower_webhook::event::{EventKind, sample};

    use support::tls::{TlsServer, certificate, response};

    let directory = TempDir::new().unwrap();
    let trusted = certificate(directory.path(), "trusted");
    let other = certificate(directory.path(), "other");
    let body = sample(&EventKind::CHAT_RATED).unwrap();
    let body_end = &body[..=body.rfind('"').unwrap()];
    for (certificates, outcome) in [(&trusted, ">1</b> delivered"), (&other, ">1</b> lost")] {
        let receiver = TlsServer::start(&trusted, body_end, &response("200 OK", ""));
        let mut command = example("sandbox");
        command
            .env_remove("SSL_CERT_DIR")
            .env("SSL_CERT_FILE", format!("{certificates}.crt"));
        let target = format!("{}/webhooks", receiver.url);
        command.args(["--demo", "--rate", "0", "--target", &target]);
        let sandbox = Server::start_by(&mut command);

        let own = format!("Origin: {}", sandbox.url.trim_end_matches('/'));
        let test = format!("{}webhooks/chat-rated/test", sandbox.url);
        curl(&["-X", "POST", "-H", &own, &test]);
        support::eventually(outcome, async || {
            curl(&[&sandbox.url]).contains(outcome).then_some(())
        })
        .await;
    }
}

#[test]
fn footer_names_what_is_invented() {
    for flags in [
        &["--demo", "--rate", "0"][..],
        &["--demo", "--rate", "0", "--strict"],
    ] {
        let sandbox = Server::start("sandbox", flags);
        let page = curl(&[&sandbox.url]);
        let (_, footer) = page.split_once("<footer").unwrap();
        for invented in [
            "GraphQL types",
            "introspection",
            "<code>status</code>",
            "Send test",
            "resume after a webhook was enabled again",
            "one secret per webhook",
        ] {
            assert!(footer.contains(invented), "{invented}: {footer}");
        }
        assert_eq!(footer.contains("Strict mode"), flags.len() == 4, "{footer}");
    }
}

#[cfg(feature = "admin")]
#[tokio::test]
async fn strict_mode_is_harder_on_clients() {
    use tower_webhook_admin::{AccessToken, AdminClient};

    let args = ["--demo", "--rate", "0", "--seed", "1", "--strict"];
    let sandbox = Server::start("sandbox", &args);
    let own = format!("Origin: {}", sandbox.url.trim_end_matches('/'));
    let keys = format!("{}keys", sandbox.url);
    let page = curl(&["-L", "-d", "description=CRM", "-H", &own, &keys]);
    let (_, key) = page.split_once("id=\"new-key\">").unwrap();
    let token = AccessToken::new(&key[..32]).unwrap();
    let admin = AdminClient::new(&sandbox.url, token).unwrap();

    let mut failures = 0;
    for _ in 0..10 {
        failures += usize::from(admin.chat_is_available().await.is_err());
    }
    assert!((1..10).contains(&failures), "{failures} of 10");
}

/// Those that wait are listed oldest first, all others newest first.
#[test]
fn list_of_events_has_an_order_and_pages() {
    let sandbox = Server::start("sandbox", &["--demo", "--rate", "0", "--target", NOWHERE]);
    let own = format!("Origin: {}", sandbox.url.trim_end_matches('/'));
    for _ in 0..20 {
        curl(&[
            "-d",
            "text=Hello",
            "-H",
            &own,
            &format!("{}chats", sandbox.url),
        ]);
    }
    let ids = |path: &str| -> Vec<usize> {
        let page = curl(&[&format!("{}{path}", sandbox.url)]);
        let parts = page.split("<td><a id=\"");
        let id = |part: &str| {
            part.split_once("href=\"/events/")?
                .1
                .split_once('"')?
                .0
                .parse()
                .ok()
        };
        parts.skip(1).filter_map(id).collect()
    };
    assert_eq!(ids("events"), (10..40).rev().collect::<Vec<_>>());
    assert_eq!(ids("events?after=10"), (0..10).rev().collect::<Vec<_>>());
    assert_eq!(ids("events?state=waiting"), (0..30).collect::<Vec<_>>());
    assert_eq!(
        ids("events?state=waiting&after=29"),
        (30..40).collect::<Vec<_>>()
    );
    assert_eq!(ids("events?kind=message-created&chat=c-2"), [3]);
    assert!(ids("events?state=lost").is_empty());
}

/// A page says what is wrong, and nothing is changed.
#[test]
fn bad_requests_are_refused_with_a_reason() {
    let sandbox = Server::start("sandbox", &["--demo", "--rate", "0"]);
    let own = format!("Origin: {}", sandbox.url.trim_end_matches('/'));
    let start = format!("{}chats", sandbox.url);
    curl(&["-d", "text=", "-H", &own, &start]);
    for (args, path, status, reason) in [
        (&[][..], "nowhere", "404 Not Found", "There is no such page"),
        (&[], "events/1", "404 Not Found", "There is no event `1`"),
        (&[], "events/x", "404 Not Found", "There is no event `x`"),
        (
            &[],
            "events/-1/payload",
            "404 Not Found",
            "There is no event",
        ),
        (
            &[],
            "events/0?attempt=x",
            "400 Bad Request",
            "number of an attempt",
        ),
        (
            &[],
            "events/0?before=-1",
            "400 Bad Request",
            "number of an attempt",
        ),
        (
            &[],
            "events?after=x",
            "400 Bad Request",
            "number of an event",
        ),
        (&[], "events?kind=x", "400 Bad Request", "There is no kind"),
        (
            &[],
            "events?state=x",
            "400 Bad Request",
            "There is no state",
        ),
        (&[], "chats/c-9", "404 Not Found", "There is no chat"),
        (&[], "chats", "405 Method Not Allowed", "does not support"),
        (
            &[],
            "events/0/retry",
            "405 Method Not Allowed",
            "does not support",
        ),
        (
            &["-X", "POST"],
            "",
            "405 Method Not Allowed",
            "does not support",
        ),
        (
            &["-X", "POST"],
            "events/1/resend",
            "404 Not Found",
            "no event",
        ),
        (
            &["-X", "POST"],
            "events/x/retry",
            "404 Not Found",
            "no event",
        ),
        (
            &["-X", "POST"],
            "chats/c-1/explode",
            "404 Not Found",
            "no step",
        ),
        (
            &["-X", "POST"],
            "chats/c-9/close",
            "404 Not Found",
            "no chat",
        ),
        (
            &["-X", "POST"],
            "webhooks/x/enable",
            "404 Not Found",
            "no webhook",
        ),
        (
            &["-d", "rating=great"],
            "chats/c-1/rate",
            "422 Unprocessable Entity",
            "A rating is",
        ),
        (
            &["-d", "text=a&from=x"],
            "chats/c-1/message",
            "422 Unprocessable Entity",
            "from",
        ),
        (
            &["-d", "rate=many"],
            "rate",
            "422 Unprocessable Entity",
            "rate",
        ),
        (
            &["-d", "x=y"],
            "keys",
            "422 Unprocessable Entity",
            "description",
        ),
    ] {
        let url = format!("{}{path}", sandbox.url);
        let answer = curl(&[args, &["-i", "-H", &own, &url]].concat());
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{path}: {answer}"
        );
        assert!(
            answer.contains("<h1>") && answer.contains(reason),
            "{path}: {answer}"
        );
    }
    assert!(curl(&[&sandbox.url]).contains("<b>1</b> events"));
}

/// After an action, the browser goes back to the page of the form, and never to another host.
#[test]
fn action_leads_back_to_its_page() {
    let sandbox = Server::start("sandbox", &["--demo", "--rate", "0"]);
    let own = format!("Origin: {}", sandbox.url.trim_end_matches('/'));
    curl(&["-d", "text=", "-H", &own, &format!("{}chats", sandbox.url)]);
    let location = |referer: &str| {
        let (referer, url) = (
            format!("Referer: {referer}"),
            format!("{}events/0/retry", sandbox.url),
        );
        let args = ["-o", "/dev/null", "-w", "%header{location}", "-X", "POST"];
        curl(&[&args[..], &["-H", &own, "-H", &referer, &url]].concat())
    };
    let own_page = |path: &str| format!("{}{path}", sandbox.url);
    assert_eq!(
        location(&own_page("events?state=waiting")),
        "/events?state=waiting"
    );
    assert_eq!(location(&own_page("/evil.example/")), "/");
    assert_eq!(location("http://evil.example/events"), "/");
    assert_eq!(location("nonsense"), "/");
    assert_eq!(location(""), "/");
}

#[test]
fn port_in_use_is_reported() {
    let sandbox = Server::start("sandbox", &["--demo"]);
    let address = sandbox.url.split('/').nth(2).unwrap();

    let second = example("sandbox")
        .args(["--demo", "--listen", address])
        .output()
        .unwrap();

    assert_eq!(second.status.code(), Some(1));
    let err = String::from_utf8(second.stderr).unwrap();
    assert!(
        err.contains(&format!("cannot listen on {address}")),
        "{err}"
    );
}
