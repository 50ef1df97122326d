//! Credentials in the environment. A command could read them in `/proc` as long as this process has them
//! there, so that it starts itself again without them.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, ensure};
use command_fds::{CommandFdExt, FdMapping};

const SECRET: &str = "WEBHOOK_SECRET";

/// The options whose variables may contain a password.
const URLS: [(&str, &str); 2] = [("--store", "WEBHOOK_STORE"), ("--inbox", "WEBHOOK_INBOX")];

/// In the environment, the descriptor that the credentials are in.
const PASSED: &str = "WEBHOOK_PASSED";

/// What a pipe holds before anybody reads.
const MOST: usize = 4 * 1024;

/// The variables that were passed, with their values.
static RECEIVED: OnceLock<Vec<(String, String)>> = OnceLock::new();

/// The variables that no command inherits.
pub(crate) const HIDDEN: [&str; 7] = [
    SECRET,
    URLS[0].1,
    URLS[1].1,
    PASSED,
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
    "LISTEN_PID",
];

/// The descriptor that no other is passed in: those of systemd's sockets begin with 3.
fn descriptor() -> i32 {
    let sockets = env::var("LISTEN_FDS").ok();
    3 + sockets
        .and_then(|count| count.parse::<u16>().ok())
        .map_or(0, i32::from)
}

fn received(name: &str) -> Option<&'static str> {
    let mut variables = RECEIVED.get().into_iter().flatten();
    let variable = variables.find(|variable| variable.0 == name)?;
    Some(variable.1.as_str())
}

/// Returns the secret, if it was passed.
pub(crate) fn secret() -> Option<&'static str> {
    received(SECRET)
}

/// Adds to the arguments the options that were received, unless the arguments have them already.
pub(crate) fn add_to(arguments: &mut Vec<OsString>) {
    for (option, name) in URLS {
        let with_value = format!("{option}=");
        let is_given = arguments.iter().any(|argument| {
            let argument = argument.as_encoded_bytes();
            argument == option.as_bytes() || argument.starts_with(with_value.as_bytes())
        });
        if let Some(value) = received(name)
            && !is_given
        {
            arguments.push(format!("{option}={value}").into());
        }
    }
}

/// Reads what [`hide`] has passed, if it has started this process.
pub(crate) fn receive() -> anyhow::Result<()> {
    let Some(descriptor) = env::var(PASSED).ok().and_then(|it| it.parse::<i32>().ok()) else {
        return Ok(());
    };
    let passed = fs::read_to_string(format!("/dev/fd/{descriptor}"))
        .context("the credentials cannot be read")?;
    nix::unistd::close(descriptor)?;
    let variables = passed.split_terminator('\0');
    let variables = variables.filter_map(|variable| variable.split_once('='));
    let owned = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let _ = RECEIVED.set(owned.collect());
    Ok(())
}

/// Starts this program again, in this process, if there are credentials in its environment.
pub(crate) fn hide() -> anyhow::Result<()> {
    let mut passed = String::new();
    for name in [SECRET, URLS[0].1, URLS[1].1] {
        match env::var(name) {
            Ok(value) => passed += &format!("{name}={value}\0"),
            Err(env::VarError::NotPresent) => {}
            // Whoever needs it refuses it.
            Err(env::VarError::NotUnicode(_)) => return Ok(()),
        }
    }
    if passed.is_empty() {
        return Ok(());
    }
    let mut arguments = env::args_os();
    let mut command = Command::new(env::current_exe()?);
    command
        .arg0(arguments.next().unwrap_or("receiver".into()))
        .args(arguments);
    pass(&mut command, &passed)?;
    let error = command.exec();
    Err(error).context("the program cannot be started again without its credentials")
}

/// Passes on to a child what was passed to this process.
pub(crate) fn pass_on(command: &mut Command) -> anyhow::Result<()> {
    let received = RECEIVED.get().into_iter().flatten();
    let passed: String = received
        .map(|(name, value)| format!("{name}={value}\0"))
        .collect();
    match passed.as_str() {
        "" => Ok(()),
        passed => pass(command, passed),
    }
}

fn pass(command: &mut Command, passed: &str) -> anyhow::Result<()> {
    ensure!(
        passed.len() <= MOST,
        "the credentials in the environment have more than {MOST} bytes: pass the secret with `--secret-file`"
    );
    let (reader, mut writer) = io::pipe()?;
    writer.write_all(passed.as_bytes())?;
    let descriptor = descriptor();
    command.env(PASSED, descriptor.to_string());
    for name in [SECRET, URLS[0].1, URLS[1].1] {
        command.env_remove(name);
    }
    command.fd_mappings(vec![FdMapping {
        parent_fd: OwnedFd::from(reader),
        child_fd: descriptor,
    }])?;
    Ok(())
}
