//! Runs a command, as a rule for an event.

use std::convert::Infallible;
use std::future::pending;
use std::io::{self, PipeWriter, Write};
use std::os::fd::OwnedFd;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use command_fds::{CommandFdExt, FdMapping};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tower_webhook::RawDelivery;

use crate::credentials;
use crate::event::Failure;
use crate::log;
use crate::text::printable;

/// The exit status of a command that gives the event up: `EX_DATAERR` of `sysexits.h`.
const DISCARD: i32 = 65;

/// The exit status of a command that cannot handle the event now: `EX_TEMPFAIL`.
const LATER: i32 = 75;

/// The exit statuses of `sh` for a command that may not be executed, or is not found.
const NOT_EXECUTABLE: i32 = 126;
const NOT_FOUND: i32 = 127;

/// How much of a line of standard error is logged, in bytes.
const LONGEST_LINE: usize = 4096;

/// How long the rest of standard error may take after the command has ended.
const REST: Duration = Duration::from_millis(100);

/// How many commands may leave processes in the background that hold their standard error, a descriptor each.
const MOST_LEFT: usize = 64;
static LEFT: Semaphore = Semaphore::const_new(MOST_LEFT);

/// Starts a watcher, and then becomes the command.
///
/// The receiver holds the other end of descriptor 3, and writes a line to it when the command has ended. If
/// it dies before, the watcher kills the process group of the command. It is started by a process that ends
/// at once, so that the command has no child that it did not start.
const WATCHED: &str = r#"
(
    { read -r _ <&3 || kill -KILL 0; } </dev/null >/dev/null 2>&1 &
) </dev/null >/dev/null 2>&1
exec sh -c "$1" 3<&-
"#;

pub(crate) struct Exec(String);

impl Exec {
    pub(crate) fn new(command: String) -> Self {
        Self(command)
    }

    /// Runs the command with `line` as its input. If the future is dropped, or this process dies, the
    /// command is killed with all processes of its group.
    pub(crate) async fn run(&self, delivery: &RawDelivery, line: &str) -> Result<(), Failure> {
        let key = delivery.key().map(ToString::to_string);
        match self.attempt(key, line.as_bytes()).await {
            Ok((status, _)) if status.success() => Ok(()),
            Ok((status, last)) => {
                let reason = match last.as_str() {
                    "" => format!("the command failed ({status})"),
                    last => format!("{last} ({status})"),
                };
                Err(match status.code() {
                    Some(DISCARD) => Failure::Discard(reason),
                    // The event is not to blame for a command that is not there.
                    Some(LATER | NOT_EXECUTABLE | NOT_FOUND) => Failure::Later(reason),
                    _ => Failure::Failed(reason),
                })
            }
            // Nor if no process can be started.
            Err(error) => Err(Failure::Later(format!("the command was not run: {error}"))),
        }
    }

    /// Runs the command for no event, within a time limit.
    pub(crate) async fn tell(&self, line: &str, limit: Duration) -> Result<(), String> {
        match timeout(limit, self.attempt(None, line.as_bytes())).await {
            Ok(Ok((status, _))) if status.success() => Ok(()),
            Ok(Ok((status, _))) => Err(status.to_string()),
            Ok(Err(error)) => Err(format!("it was not run: {error}")),
            Err(_) => Err(format!("it was killed after {limit:?}")),
        }
    }

    /// Returns the command's exit status, and the last line that it wrote to standard error.
    async fn attempt(&self, key: Option<String>, line: &[u8]) -> io::Result<(ExitStatus, String)> {
        let (watched, alive) = io::pipe()?;
        let mut command = Command::new("sh");
        command
            .args(["-c", WATCHED, "sh", &self.0])
            .stdin(Stdio::piped())
            // Standard output is reserved for lines of JSON. A log of JSON takes no other line.
            .stdout(match log::is_json() {
                true => Stdio::piped(),
                false => io::stderr().into(),
            })
            .stderr(Stdio::piped())
            .process_group(0)
            .fd_mappings(vec![FdMapping {
                parent_fd: OwnedFd::from(watched),
                child_fd: 3,
            }])
            .map_err(io::Error::other)?;
        for name in credentials::HIDDEN {
            command.env_remove(name);
        }
        let mut child = command.spawn()?;
        drop(command);
        let group = Group {
            id: child.id(),
            alive,
        };
        let mut stdin = child.stdin.take();
        let mut out = child
            .stdout
            .take()
            .map(|stdout| Log::new(stdout, key.clone()));
        let mut log = child.stderr.take().map(|stderr| Log::new(stderr, key));

        // The command may exit before it has read everything, so a broken pipe is no error.
        let feed = async {
            if let Some(mut stdin) = stdin.take()
                && let Err(error) = stdin.write_all(line).await
                && error.kind() != io::ErrorKind::BrokenPipe
            {
                return Err(error);
            }
            pending::<io::Result<Infallible>>().await
        };
        let follow = async {
            let follow = async |log: &mut Option<Log>| match log {
                Some(log) => log.follow().await,
                None => Ok(()),
            };
            tokio::try_join!(follow(&mut log), follow(&mut out))?;
            pending::<io::Result<Infallible>>().await
        };
        let status = tokio::select! {
            status = child.wait() => status?,
            fed = feed => match fed? {},
            followed = follow => match followed? {},
        };
        group.ended();
        if let Some(out) = out {
            out.finish().await;
        }
        let last = match log {
            Some(log) => log.finish().await,
            None => String::new(),
        };
        Ok((status, last))
    }
}

/// The process group of a running command, which is killed when this is dropped.
struct Group {
    id: Option<u32>,
    /// The watcher waits for a line, or the end.
    alive: PipeWriter,
}

impl Group {
    /// The command has ended, and may have left processes in the background.
    fn ended(mut self) {
        self.id = None;
        // The watcher is gone if the command has killed its own group.
        let _ = self.alive.write_all(b"\n");
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            // The command was not waited for, so the operating system has not reused its id.
            let _ = killpg(Pid::from_raw(id.cast_signed()), Signal::SIGKILL);
        }
    }
}

/// An output of a command, which is logged line by line.
struct Log {
    output: Box<dyn AsyncRead + Send + Unpin>,
    line: Vec<u8>,
    /// The last line that was not empty.
    last: String,
    /// The event's key, for lines that come after its span.
    key: Option<String>,
    has_ended: bool,
}

impl Log {
    fn new(output: impl AsyncRead + Send + Unpin + 'static, key: Option<String>) -> Self {
        Self {
            output: Box::new(output),
            line: Vec::new(),
            last: String::new(),
            key,
            has_ended: false,
        }
    }

    /// Logs lines in the span of the event, until there are no more.
    async fn follow(&mut self) -> io::Result<()> {
        while let Some(lines) = self.read().await? {
            for line in &lines {
                tracing::info!(target: "command", "{line}");
            }
        }
        Ok(())
    }

    /// Returns the last line, after the command has ended.
    async fn finish(mut self) -> String {
        let rest = timeout(REST, self.follow()).await;
        let last = self.last.clone();
        if rest.is_err() && !self.has_ended {
            let Ok(place) = LEFT.try_acquire() else {
                tracing::warn!(
                    key = self.key,
                    "the command has left a process in the background that holds its standard error, as {MOST_LEFT} others \
                     do: this one's is closed; redirect it, as in `2>/dev/null &`"
                );
                return last;
            };
            // A process in the background still writes. The event's span must not wait for it.
            tokio::spawn(async move {
                let _place = place;
                while let Ok(Some(lines)) = self.read().await {
                    for line in &lines {
                        tracing::info!(target: "command", key = self.key, "{line}");
                    }
                }
            });
        }
        last
    }

    /// Returns the next complete lines, or `None` at the end. No line is lost when its future is dropped.
    async fn read(&mut self) -> io::Result<Option<Vec<String>>> {
        if self.has_ended {
            return Ok(None);
        }
        let mut chunk = vec![0; 4096];
        let length = self.output.read(&mut chunk).await?;
        let mut lines = Vec::new();
        self.has_ended = length == 0;
        if self.has_ended {
            lines.extend(self.take_line());
        }
        for part in chunk[..length].split_inclusive(|&byte| byte == b'\n') {
            let text = part.strip_suffix(b"\n");
            let added = text.unwrap_or(part);
            let room = LONGEST_LINE - self.line.len();
            self.line.extend_from_slice(&added[..added.len().min(room)]);
            if text.is_some() {
                lines.extend(self.take_line());
            }
        }
        Ok(Some(lines))
    }

    fn take_line(&mut self) -> Option<String> {
        let line = printable(&String::from_utf8_lossy(&self.line));
        self.line.clear();
        if line.is_empty() {
            return None;
        }
        self.last.clone_from(&line);
        Some(line)
    }
}
