//! Programs that a test starts, and ends.

use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tokio::time::sleep;

/// How long something that must happen may take, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// A program, which is killed when this is dropped.
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a program in a directory, in which it leaves its log.
    pub fn start(command: &mut Command, name: &str, dir: &Path, install: &str) -> Self {
        let log = dir.join(format!("{name}.log"));
        let file = OpenOptions::new().create(true).append(true).open(&log);
        let file = file.unwrap();
        command.stdin(Stdio::null()).current_dir(dir);
        command.stdout(file.try_clone().unwrap()).stderr(file);
        let child = installed(command.spawn(), command, install);
        Self { child, log }
    }

    /// Waits until it listens on a port.
    pub async fn listens(&mut self, port: u16) {
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let ended = self.child.try_wait().unwrap();
            assert!(
                ended.is_none() && began.elapsed() < PATIENCE,
                "it does not listen: {ended:?}\n{}",
                fs::read_to_string(&self.log).unwrap()
            );
            sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The result of starting a program, which may be missing.
pub fn installed<T>(started: std::io::Result<T>, command: &Command, install: &str) -> T {
    let program = command.get_program();
    match started {
        Ok(started) => started,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            panic!("{program:?} is missing: install it with `{install}`")
        }
        Err(error) => panic!("{program:?} cannot be started: {error}"),
    }
}

pub fn free_ports<const N: usize>() -> [u16; N] {
    let listeners = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|it| it.local_addr().unwrap().port())
}

/// Asks until there is an answer, and fails if there is none for very long.
pub async fn eventually<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(began.elapsed() < PATIENCE, "{what} did not come");
        sleep(Duration::from_millis(20)).await;
    }
}
