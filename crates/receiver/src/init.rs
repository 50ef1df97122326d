//! The first process of a container, where ended processes without a parent are its own: it starts the receiver as a
//! child, passes signals on, and waits for all that end.

use std::env;
use std::os::unix::process::CommandExt;
use std::process::{self, Command, ExitCode};

use anyhow::Context;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tokio::runtime;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::Options;
use crate::credentials;

/// The number of the process that the sockets of `LISTEN_FDS` are for.
const LISTENER: &str = "LISTEN_PID";

/// Whether this process is the first one, and has commands, which may leave others behind.
pub(crate) fn is_needed(args: &Options) -> bool {
    args.may_run_commands() && process::id() == 1
}

/// Returns the exit code of the receiver.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("the runtime cannot be started")?;
    runtime.block_on(async {
        let mut ended = signal(SignalKind::child())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let mut command = Command::new(env::current_exe()?);
        // A terminal would send it each signal a second time.
        command.args(env::args_os().skip(1)).process_group(0);
        credentials::pass_on(&mut command)?;
        // Sockets of systemd are for the receiver, whose number nobody knows before.
        if env::var(LISTENER).is_ok_and(|it| it == process::id().to_string()) {
            command.env_remove(LISTENER);
        }
        let child = command.spawn().context("the receiver cannot be started")?;
        let child = Pid::from_raw(child.id().cast_signed());
        loop {
            let passed_on = tokio::select! {
                _ = ended.recv() => {
                    if let Some(code) = take_leave(child) {
                        return Ok(code);
                    }
                    continue;
                }
                _ = terminate.recv() => Signal::SIGTERM,
                _ = interrupt.recv() => Signal::SIGINT,
                _ = hangup.recv() => Signal::SIGHUP,
            };
            // It may have ended just now.
            let _ = kill(child, passed_on);
        }
    })
}

/// Waits for all that have ended, and returns the exit code of the child, if it has.
fn take_leave(child: Pid) -> Option<ExitCode> {
    let code = |code: i32| ExitCode::from(u8::try_from(code).unwrap_or(1));
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(ended, status)) if ended == child => return Some(code(status)),
            Ok(WaitStatus::Signaled(ended, signal, _)) if ended == child => {
                return Some(code(128 + signal as i32));
            }
            Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return None,
            Ok(_) | Err(_) => {}
        }
    }
}
