//! Redis servers for one test: one, a cluster, or one with replicas and sentinels.

mod sets;

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

pub use self::sets::{Failing, RedisCluster, SentinelSet};

/// The file of a sentinel, which it rewrites.
const SENTINEL: &str = "sentinel.conf";

/// A `redis-server` on a free port, with its data in a temporary directory. Both end when it is
/// dropped, also in a panic.
pub struct RedisServer {
    args: Vec<String>,
    dir: TempDir,
    port: u16,
    child: Option<Child>,
}

impl RedisServer {
    /// A server as it is without a configuration: it saves its data when it is stopped, and loses
    /// what is new when it is killed.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// One whose every answer is on disk.
    pub fn durable() -> Self {
        Self::start_with(&["--appendonly", "yes", "--appendfsync", "always"])
    }

    /// A server with more settings, such as `--requirepass` and a password.
    pub fn start_with(args: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), args)
    }

    /// A sentinel, with what its file says.
    pub fn sentinel(config: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(SENTINEL), config).unwrap();
        Self::start_in(dir, &[])
    }

    fn start_in(dir: TempDir, args: &[&str]) -> Self {
        let mut server = Self {
            args: args.iter().map(|&arg| arg.to_owned()).collect(),
            dir,
            port: 0,
            child: None,
        };
        for _ in 0..20 {
            server.port = free_port();
            if server.launch() {
                return server;
            }
        }
        panic!("the server does not start: {}", server.log());
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn url(&self) -> String {
        format!("redis://{}/", self.address())
    }

    /// Where its data is.
    pub fn directory(&self) -> &Path {
        self.dir.path()
    }

    /// Ends it as an operator does (SIGTERM).
    pub fn stop(&mut self) {
        self.end(Signal::SIGTERM);
    }

    /// Ends it as a crash does (SIGKILL).
    pub fn kill(&mut self) {
        self.end(Signal::SIGKILL);
    }

    /// Starts it again, on the same port and with the data that it has on disk.
    pub fn restart(&mut self) {
        self.stop();
        assert!(self.launch(), "it does not start again: {}", self.log());
    }

    /// The same, with more settings from then on.
    pub fn restart_with(&mut self, args: &[&str]) {
        self.args.extend(args.iter().map(|&arg| arg.to_owned()));
        self.restart();
    }

    /// Suspends it (SIGSTOP): connections stay open without responses.
    pub fn freeze(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Resumes it (SIGCONT).
    pub fn thaw(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Sends one command and returns the answer as it comes over the wire.
    pub fn command(&self, words: &[&str]) -> String {
        let answer = self.ask(words);
        answer.unwrap_or_else(|error| panic!("no answer to {words:?}: {error}"))
    }

    pub fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// The same, empty if the server is away, or ends its connections as a sentinel has told it to.
    fn try_command(&self, words: &[&str]) -> String {
        self.ask(words).unwrap_or_default()
    }

    fn is_sentinel(&self) -> bool {
        self.dir.path().join(SENTINEL).exists()
    }

    fn ask(&self, words: &[&str]) -> std::io::Result<String> {
        ask(self.port, self.is_sentinel(), words)
    }

    /// Whether it came up.
    fn launch(&mut self) -> bool {
        let (port, is_sentinel) = (self.port, self.is_sentinel());
        let child = Command::new("redis-server")
            .args(
                is_sentinel
                    .then_some([SENTINEL, "--sentinel"])
                    .iter()
                    .flatten(),
            )
            .args(["--port", &self.port.to_string()])
            .args(["--bind", "127.0.0.1", "--logfile", "redis.log"])
            .args(&self.args)
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let child = match child {
            Ok(child) => self.child.insert(child),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                panic!("`redis-server` is missing: install it (Debian's package is `redis-server`)")
            }
            Err(error) => panic!("`redis-server` cannot be started: {error}"),
        };
        let give_up = Instant::now() + Duration::from_secs(30);
        while Instant::now() < give_up {
            if child.try_wait().unwrap().is_some() {
                self.child = None;
                return false;
            }
            let info = ask(port, is_sentinel, &["INFO"]).unwrap_or_default();
            // Not the server of another test, which took the port first.
            let is_ours = info.contains(&format!("\nprocess_id:{}\r", child.id()));
            let is_ready = is_sentinel || info.contains("\nloading:0\r");
            if is_ours && is_ready || info.starts_with("-NOAUTH") {
                return true;
            }
            thread::sleep(Duration::from_millis(5));
        }
        false
    }

    fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().expect("the server is not running");
        kill(Pid::from_raw(child.id().try_into().unwrap()), signal).unwrap();
    }

    fn end(&mut self, signal: Signal) {
        if self.child.is_some() {
            self.signal(signal);
        }
        if let Some(mut child) = self.child.take() {
            child.wait().unwrap();
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("redis.log")).unwrap_or_default()
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A port below those that the system gives to connections, so that it is still free for a server
/// that starts again.
fn free_port() -> u16 {
    loop {
        let port = 20_000 + (RandomState::new().hash_one(0) % 10_000) as u16;
        // The second is where it would talk to other members of a cluster.
        let is_free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if is_free(port) && is_free(port + 10_000) {
            return port;
        }
    }
}

fn ask(port: u16, is_sentinel: bool, words: &[&str]) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut command = format!("*{}\r\n", words.len());
    for word in words {
        command += &format!("${}\r\n{word}\r\n", word.len());
    }
    // After its answers the server ends the connection.
    if !is_sentinel {
        command += "*1\r\n$4\r\nQUIT\r\n";
    }
    stream.write_all(command.as_bytes())?;
    // A sentinel knows no `QUIT`, and answers at once: a server drops a command that has to wait when this ends.
    if is_sentinel {
        stream.shutdown(Shutdown::Write)?;
    }
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
