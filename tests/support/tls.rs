//! A server with TLS, by `openssl`.

use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use super::program::installed;

/// Makes `{name}.crt` and `{name}.key` for 127.0.0.1, and returns their path without the extension.
pub fn certificate(directory: &Path, name: &str) -> String {
    let path = directory.join(name).to_str().unwrap().to_owned();
    #[rustfmt::skip]
    let output = openssl()
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"])
        .args(["-days", "2", "-subj", &format!("/CN={name}")])
        .args(["-addext", "subjectAltName=IP:127.0.0.1"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .args(["-keyout", &format!("{path}.key"), "-out", &format!("{path}.crt")])
        .output();
    let output = installed(output, "openssl", "openssl");
    assert!(output.status.success(), "{output:?}");
    path
}

/// Answers one request over TLS.
pub struct TlsServer {
    pub url: String,
    process: Child,
}

impl TlsServer {
    /// The request is answered when its body has come so far, which ends with a quotation mark.
    pub fn start(certificate: &str, body: &'static str, response: &str) -> Self {
        let process = openssl()
            .args(["s_server", "-accept", "127.0.0.1:0", "-naccept", "1"])
            .args(["-cert", &format!("{certificate}.crt")])
            .args(["-key", &format!("{certificate}.key")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut process = installed(process, "openssl", "openssl");
        let mut stdin = process.stdin.take().unwrap();
        let mut stdout = BufReader::new(process.stdout.take().unwrap());

        let address = loop {
            let mut line = String::new();
            assert_ne!(stdout.read_line(&mut line).unwrap(), 0, "it has ended");
            if let Some(address) = line.trim_end().strip_prefix("ACCEPT ") {
                break address.to_owned();
            }
        };
        let response = response.to_owned();
        thread::spawn(move || {
            let mut printed = Vec::new();
            while !printed.ends_with(body.as_bytes()) {
                if stdout.read_until(b'"', &mut printed).unwrap() == 0 {
                    return;
                }
            }
            // What is written to it goes to the client.
            stdin.write_all(response.as_bytes()).unwrap();
            let _ = io::copy(&mut stdout, &mut io::sink());
        });
        let url = format!("https://{address}");
        Self { url, process }
    }
}

impl Drop for TlsServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn openssl() -> Command {
    Command::new("openssl")
}

pub fn response(status: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}")
}
