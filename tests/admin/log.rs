//! The log of the Admin API client.

use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::thread;

use tower_webhook_admin::{AccessToken, AdminClient};
use tracing_subscriber::filter::LevelFilter;

use support::program::{Peer, say};

const TOKEN: &str = "hunter2/abc+def==";

#[tokio::test]
async fn no_part_of_the_token_is_logged() {
    // In a process of its own, because the subscriber captures every thread.
    if Peer::argument().is_none() {
        let test = "no_part_of_the_token_is_logged";
        let mut peer = Peer::start(Peer::command(module_path!(), test, ""));
        assert_eq!(peer.hear(), "passed");
        peer.end();
        return;
    }
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_max_level(LevelFilter::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::set_global_default(subscriber).unwrap();

    let available = r#"{"data":{"partner":{"state":{"chat":{"isAvailable":true}}}}}"#;
    for (status, body, logged) in [
        (200, available, "the Admin API answered"),
        (200, TOKEN, "cannot be decoded"),
        (200, r#"{"errors":[{"message":"no TOKEN"}]}"#, "errors=1"),
        (401, "<p>TOKEN</p>", "<p>[redacted]</p>"),
    ] {
        let body = body.replace("TOKEN", TOKEN);
        let url = serve(format!(
            "HTTP/1.1 {status} x\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ));
        let admin = AdminClient::new(url, AccessToken::new(TOKEN).unwrap()).unwrap();
        let _ = admin.chat_is_available().await;
        assert!(log.text().contains(logged), "{logged}: {}", log.text());
    }

    let log = log.text();
    for part in [TOKEN, "hunter2", "abc+def"] {
        assert!(!log.contains(part), "{log}");
    }
    say("passed");
}

/// Answers the first request, and returns the URL for it.
fn serve(answer: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\"}") {
            let mut byte = [0];
            socket.read_exact(&mut byte).unwrap();
            request.push(byte[0]);
        }
        socket.write_all(answer.as_bytes()).unwrap();
    });
    url
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
