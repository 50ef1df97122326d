//! The example `availability` as a process.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::thread;

use tempfile::TempDir;

use support::program::example;
use support::tls::{TlsServer, certificate, response};

const TOKEN: &str = "hunter2-abcdef";
const URL: &str = "--base-url=https://a.example";

#[test]
fn prints_one_word() {
    for (answer, word) in [("true", "available\n"), ("false", "unavailable\n")] {
        let server = Server::start(&response("200 OK", &answer_with(answer)));

        let output = run(availability().args(["--base-url", &server.url()]));

        assert_eq!((code(&output), out(&output)), (0, word), "{output:?}");
        assert_eq!(err(&output), "");
        let seen = server.seen();
        assert!(seen.starts_with("POST /graphql HTTP/1.1\r\n"), "{seen}");
        assert!(
            seen.contains(&format!("authorization: Bearer {TOKEN}\r\n")),
            "{seen}"
        );
    }
}

#[test]
fn token_is_read_from_the_environment_or_a_file() {
    let server = Server::start(&response("200 OK", &answer_with("true")));
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("token");
    std::fs::write(&file, "from-file\n").unwrap();

    let output = run(availability()
        .env("ADMIN_BASE_URL", server.url())
        .arg("--token-file")
        .arg(&file));

    assert_eq!(
        (code(&output), out(&output)),
        (0, "available\n"),
        "{output:?}"
    );
    assert!(server.seen().contains("authorization: Bearer from-file"));
}

#[test]
fn failure_shows_the_request_and_the_response() {
    let server = Server::start(&response("401 Unauthorized", &format!("no {TOKEN}\n")));

    let output = run(availability().args(["--base-url", &server.url()]));

    assert_eq!((code(&output), out(&output)), (1, ""));
    let expected = format!(
        "error: asking {}/graphql: the Admin API answered 401 Unauthorized: no [redacted]\n",
        server.url()
    );
    assert_eq!(err(&output), expected);
}

#[test]
fn refused_connection_is_explained() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);

    let output = run(availability().args(["--base-url", &url]));

    assert_eq!(code(&output), 1);
    assert!(
        err(&output).contains("could not be reached: "),
        "{output:?}"
    );
    assert!(err(&output).contains("refused"), "{output:?}");
}

#[test]
fn wrong_usage_is_explained() {
    let file = "--token-file=/no/such";
    for (token, args, says) in [
        (Some(TOKEN), &[][..], "--base-url <URL>"),
        (
            Some(TOKEN),
            &["--base-url=a.example"],
            "use an absolute one",
        ),
        (Some(TOKEN), &["--base-url=http://a.example"], "use https"),
        (Some(TOKEN), &[URL, file], "`/no/such` cannot be read"),
        (None, &[URL], "`ADMIN_TOKEN` holds no access token"),
        (Some(""), &[URL], "token is empty"),
        (Some("hunter2 x"), &[URL], "without spaces"),
    ] {
        let mut command = availability();
        command.env_remove("ADMIN_TOKEN").args(args);
        if let Some(token) = token {
            command.env("ADMIN_TOKEN", token);
        }
        let output = run(&mut command);
        assert_eq!((code(&output), out(&output)), (2, ""), "{output:?}");
        assert!(err(&output).contains(says), "{says}: {}", err(&output));
    }
}

#[test]
fn help_hides_values_of_the_environment() {
    let output = run(availability()
        .env("ADMIN_BASE_URL", "https://hunter2.example")
        .arg("--help"));

    assert_eq!(code(&output), 0);
    assert!(out(&output).contains("ADMIN_TOKEN"), "{output:?}");
}

/// A proxy would get the token in plain text, and could not reach this machine.
#[test]
fn localhost_is_reached_without_a_proxy() {
    for scheme in ["http", "https"] {
        let server = Server::start(&response("200 OK", &answer_with("true")));
        let proxy = Server::start(&response("200 OK", &answer_with("false")));
        let mut command = availability();
        for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
            command.env(name, proxy.url());
            command.env(name.to_lowercase(), proxy.url());
        }
        let url = server.url().replace("http", scheme);

        let output = run(command.env_remove("NO_PROXY").args(["--base-url", &url]));

        assert_eq!(proxy.seen(), "");
        let code_and_word = (code(&output), out(&output));
        match scheme {
            "http" => assert_eq!(code_and_word, (0, "available\n"), "{output:?}"),
            _ => assert_eq!(code_and_word, (1, ""), "{output:?}"),
        }
    }
}

const QUERY_END: &str = r#"isAvailable } } } }""#;

#[test]
fn tls_trusts_the_certificates_of_the_system() {
    let directory = TempDir::new().unwrap();
    let trusted = certificate(directory.path(), "trusted");
    let other = certificate(directory.path(), "other");

    let server = TlsServer::start(
        &trusted,
        QUERY_END,
        &response("200 OK", &answer_with("true")),
    );
    let output = run(availability()
        .env("SSL_CERT_FILE", format!("{trusted}.crt"))
        .args(["--base-url", &server.url]));
    assert_eq!(
        (code(&output), out(&output)),
        (0, "available\n"),
        "{output:?}"
    );

    let server = TlsServer::start(
        &trusted,
        QUERY_END,
        &response("200 OK", &answer_with("true")),
    );
    let output = run(availability()
        .env("SSL_CERT_FILE", format!("{other}.crt"))
        .args(["--base-url", &server.url]));
    assert_eq!((code(&output), out(&output)), (1, ""), "{output:?}");
    assert!(err(&output).contains("certificate"), "{output:?}");
}

#[test]
fn missing_certificates_matter_only_for_https() {
    let directory = TempDir::new().unwrap();
    let empty = directory.path().join("empty.crt");
    std::fs::write(&empty, "").unwrap();
    let server = Server::start(&response("200 OK", &answer_with("true")));

    let output = run(availability()
        .env("SSL_CERT_FILE", &empty)
        .args(["--base-url", &server.url()]));
    assert_eq!(code(&output), 0, "{output:?}");

    let output = run(availability()
        .env("SSL_CERT_FILE", &empty)
        .args(["--base-url", "https://127.0.0.1:1"]));
    assert_eq!(code(&output), 1, "{output:?}");
    assert!(err(&output).contains("`ca-certificates`"), "{output:?}");
}

fn availability() -> Command {
    let mut command = example("availability");
    command.env_remove("SSL_CERT_DIR").env("ADMIN_TOKEN", TOKEN);
    command
}

/// Whatever happens, neither the token nor what may be one is shown.
fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(!out(&output).contains("hunter2"), "{output:?}");
    assert!(!err(&output).contains("hunter2"), "{output:?}");
    output
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn out(output: &Output) -> &str {
    str::from_utf8(&output.stdout).unwrap()
}

fn err(output: &Output) -> &str {
    str::from_utf8(&output.stderr).unwrap()
}

fn answer_with(is_available: &str) -> String {
    format!(r#"{{"data":{{"partner":{{"state":{{"chat":{{"isAvailable":{is_available}}}}}}}}}}}"#)
}

/// Answers every connection alike, and keeps what came.
struct Server {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl Server {
    fn start(response: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        thread::spawn({
            let (seen, response) = (seen.clone(), response.to_owned());
            move || {
                for socket in listener.incoming() {
                    let mut socket = socket.unwrap();
                    let mut buffer = [0; 4096];
                    let mut request = Vec::new();
                    // What is no HTTP, such as TLS, is answered at once.
                    while !request.ends_with(b"}\"}") && !request.starts_with(&[0x16]) {
                        let length = socket.read(&mut buffer).unwrap_or(0);
                        if length == 0 {
                            break;
                        }
                        request.extend_from_slice(&buffer[..length]);
                    }
                    seen.lock().unwrap().extend_from_slice(&request);
                    // The client may have left.
                    let _ = socket.write_all(response.as_bytes());
                }
            }
        });
        Self { address, seen }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn seen(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().unwrap()).into_owned()
    }
}
