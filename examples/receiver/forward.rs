//! What becomes of an event: a line of JSON, first for the command, then for standard output.

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
        // Of those that a slow reader holds up, only the one that writes cannot be dropped at its
        // time limit. It must not be: what was written counts as handled.
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

/// Valid JSON without the whitespace between its tokens. Decoding and encoding it would change
/// the text of numbers.
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
    /// Whether the last line may have been written in part.
    torn: bool,
}

impl Output {
    fn write(&mut self, line: &str) -> io::Result<()> {
        // The torn line must not spoil the next.
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

/// Gives `line` to a command. When this is dropped, the command is killed with all that it started.
async fn run(command: &str, line: &[u8]) -> anyhow::Result<()> {
    let mut child = Command::new("sh")
        .args(["-c", command])
        .stdin(Stdio::piped())
        .stdout(io::stderr()) // Ours is for lines of JSON.
        .env_remove("WEBHOOK_SECRET")
        .env_remove("WEBHOOK_STORE")
        .process_group(0)
        .spawn()?;
    let mut group = Group(child.id());
    let mut stdin = child.stdin.take();

    // The command decides when it has read enough.
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
    anyhow::ensure!(status.success(), "the command ended with {status}");
    Ok(())
}

/// The process group of a command that has not ended.
struct Group(Option<u32>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(id) = self.0 {
            // It cannot have ended without our knowledge, so the id is still its own.
            let _ = killpg(Pid::from_raw(id.cast_signed()), Signal::SIGKILL);
        }
    }
}
