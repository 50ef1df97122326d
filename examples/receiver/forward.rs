//! Forwards each event as a line of JSON: first to the command, then to standard output.

use std::convert::Infallible;
use std::future::pending;
use std::io::{self, Write};
use std::num::NonZeroU32;
use std::process::Stdio;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::Serialize;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::sync::Mutex;
use tokio::task::block_in_place;
use tower_webhook::{HandlerResult, RawDelivery};

pub(crate) struct Forward {
    command: Option<String>,
    output: Mutex<Output>,
}

impl Forward {
    pub(crate) fn new(command: Option<String>) -> Self {
        Self {
            command,
            output: Mutex::new(Output { torn: false }),
        }
    }

    pub(crate) async fn event(&self, delivery: RawDelivery) -> HandlerResult {
        let line = line(&delivery)?;
        if let Some(command) = &self.command {
            run(command, line.as_bytes()).await?;
        }
        // A slow reader can block this write beyond the handler's time limit. `block_in_place` cannot be
        // cancelled there, and must not be: an event whose line was written is handled. Events that
        // wait for the lock are still cancelled.
        let mut output = self.output.lock().await;
        block_in_place(|| output.write(&line))?;
        Ok(())
    }
}

fn line(delivery: &RawDelivery) -> anyhow::Result<String> {
    #[derive(Serialize)]
    struct Head<'a> {
        event: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        key: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        attempt: Option<NonZeroU32>,
    }

    let head = serde_json::to_string(&Head {
        event: delivery.kind().as_str(),
        key: delivery.key().map(ToString::to_string),
        attempt: delivery.attempt(),
    })?;
    let payload = minify(delivery.json()?);
    Ok(format!(
        "{},\"payload\":{payload}}}\n",
        head.trim_end_matches('}')
    ))
}

/// Removes the whitespace between the tokens of valid JSON. Decoding and encoding it again would change
/// numbers such as `1.50`.
fn minify(json: &str) -> String {
    let mut in_string = false;
    let mut escaped = false;
    let is_kept = |char: &char| {
        match char {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => in_string = !in_string,
            ' ' | '\t' | '\r' | '\n' => return in_string,
            _ => {}
        }
        true
    };
    json.chars().filter(is_kept).collect()
}

struct Output {
    /// Whether the last line may be incomplete.
    torn: bool,
}

impl Output {
    fn write(&mut self, line: &str) -> io::Result<()> {
        // An incomplete line must not corrupt the next one.
        let line = match self.torn {
            true => format!("\n{line}"),
            false => line.to_owned(),
        };
        self.torn = true;
        let mut stdout = io::stdout().lock();
        stdout.write_all(line.as_bytes())?;
        stdout.flush()?;
        self.torn = false;
        Ok(())
    }
}

/// Runs a command with `line` as its input. If the future is dropped, the command is killed with all
/// processes that it started.
async fn run(command: &str, line: &[u8]) -> anyhow::Result<()> {
    let mut child = Command::new("sh")
        .args(["-c", command])
        .stdin(Stdio::piped())
        .stdout(io::stderr()) // Standard output is reserved for lines of JSON.
        .env_remove("WEBHOOK_SECRET")
        .env_remove("WEBHOOK_STORE")
        .process_group(0)
        .spawn()?;
    let mut group = Group(child.id());
    let mut stdin = child.stdin.take();

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
    let status = tokio::select! {
        status = child.wait() => status?,
        fed = feed => match fed? {},
    };
    group.0 = None;
    anyhow::ensure!(status.success(), "the command failed: {status}");
    Ok(())
}

/// The process group of a running command.
struct Group(Option<u32>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(id) = self.0 {
            // The command was not waited for, so the operating system has not reused its id.
            let _ = killpg(Pid::from_raw(id.cast_signed()), Signal::SIGKILL);
        }
    }
}
