//! The commands, and the variables of their options.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::process;

use clap::builder::BoolishValueParser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, CommandFactory, FromArgMatches, Parser, Subcommand};
use tracing::Level;

use crate::{args, credentials, inbox, log, probe, send, senders};

/// Receive the chat platform's webhooks without writing Rust, and see to what was received.
#[derive(Parser)]
#[command(
    name = "receiver",
    version,
    after_help = "Without a command, it is `run`, whose options `receiver run --help` shows."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
#[allow(clippy::large_enum_variant, reason = "there is one")]
pub(crate) enum Command {
    /// Receive webhooks, and print one line of JSON for each event; the default
    ///
    /// The line is {"event":…,"key":…,"attempt":…,"payload":…}, without key and attempt if there are none, and with
    /// "redriven":true if a person redrove the event in an inbox, with the path as "route" if it came by --config, and with
    /// "batch":{"item":…,"items":…,"kept":…} if it came in a batch.
    /// An event that could not be handled is answered with an error, so that the platform retries it. With --inbox,
    /// an event is answered when it is stored, and the receiver handles it later and retries it.
    /// GET /healthz is answered with 200, and GET /readyz with 200 if a delivery would be stored now, or else with 503.
    ///
    /// By default, an event is handled when its line is printed, and fails if standard output is closed or its
    /// disk is full; a reader that has stopped leaves one delivery unanswered, even beyond --handler-timeout. With
    /// --exec or --forward, it is handled when the command or the server has succeeded: its line is only a record of
    /// that. Then standard output may be closed, or blocked by a reader that has stopped: the event stays handled, and a warning in the log says that its line is lost.
    ///
    /// SIGTERM and Ctrl-C stop the receiver after the running events have finished, and a second signal stops
    /// it at once. The files of secrets, senders and tokens are reloaded when they change, and on SIGHUP. The exit code is 0 after a signal, even if events
    /// were still running; 1 if the receiver could not start; and 2 if the arguments are invalid.
    ///
    /// Each option is also an environment variable, which an argument takes the place of: --secret-file is
    /// WEBHOOK_SECRET_FILE, and so on. That of an option without a value is true or false.
    Run(args::Options),
    /// Sign a sample event like the chat platform or another sender, and send it to a receiver
    ///
    /// Prints what it sent, and the status and latency of each delivery: of the first one, all of the request as `receiver
    /// senders verify` reads it, without a token. The exit code is 0 if all were accepted, and 1 if any
    /// was refused or failed.
    Send(send::Options),
    /// List the senders whose deliveries a receiver can verify, show how one is described, or judge a captured request
    Senders(senders::Options),
    /// Ask the receiver on this machine how it is, as a probe in an image without a shell
    ///
    /// Asks GET /readyz, or with `healthz` GET /healthz, at --listen or WEBHOOK_LISTEN, and prints the status. The exit code
    /// is 0 for 200, 1 for any other status or no answer, and 2 if the arguments are invalid.
    Probe(probe::Options),
    /// Open everything that `run` would open with the same options and variables, and exit
    ///
    /// Reads the secrets, opens the store or the inbox, listens at each address, and handles nothing. Like `run`, it
    /// creates a SQLite file that does not exist, and updates the tables of an earlier release. Beside a running
    /// receiver, its addresses are in use. The exit code is 0 if the receiver could start, 1 if not, and 2 if the
    /// arguments are invalid.
    Check(args::Options),
    /// Show and change an inbox: list events, see why they failed, redrive or discard them
    ///
    /// It works on the file or the database of the inbox, whether or not the receiver is running. Ages are written as
    /// `90s`, `15m`, `2h` or `7d`. Times in JSON are milliseconds since 1970.
    ///
    /// The exit code is 0 on success, 1 if something failed or was not found, and 2 if the arguments are invalid.
    Inbox(inbox::args::Options),
}

/// Reads the command line, or exits.
pub(crate) fn parse() -> Command {
    if asks_for_json() {
        log::use_json();
    }
    let parsed = command().try_get_matches_from(arguments());
    match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli.command,
        Err(error) => {
            let mut more = String::new();
            let variables = variables();
            if error.use_stderr() && !variables.is_empty() {
                more = format!(
                    "\nThese variables of the environment count as options: {}",
                    variables.join(", ")
                );
            }
            exit(&error, &more)
        }
    }
}

/// Warns of variables that look like an option and are none: their option has its default.
pub(crate) fn warn_of_variables() {
    let cli = command();
    let of_all = cli.get_subcommands().flat_map(clap::Command::get_arguments);
    let known: Vec<_> = of_all.filter_map(Arg::get_env).collect();
    for (name, value) in env::vars_os() {
        let is_known =
            known.contains(&name.as_os_str()) || credentials::HIDDEN.iter().any(|it| name == *it);
        let Some(rest) = name.to_str().and_then(|name| name.strip_prefix("WEBHOOK_")) else {
            continue;
        };
        if is_known || is_of_kubernetes(rest, &value.to_string_lossy()) {
            continue;
        }
        let variable = format!("WEBHOOK_{rest}");
        match similar(rest) {
            Some(similar) => tracing::warn!(
                variable,
                "this environment variable is none of the receiver's: is it `{similar}`?"
            ),
            None => tracing::warn!(
                variable,
                "this environment variable is none of the receiver's: `receiver run --help` lists those"
            ),
        }
    }
}

/// Whether Kubernetes sets a variable, here without `WEBHOOK_`, in all pods, for a service whose name begins with `webhook`.
fn is_of_kubernetes(rest: &str, value: &str) -> bool {
    let is_of_protocol = || ["_TCP", "_UDP", "_SCTP"].iter().any(|it| rest.contains(it));
    rest.ends_with("SERVICE_HOST")
        || rest.contains("SERVICE_PORT")
        || rest.contains("PORT_") && is_of_protocol()
        || rest.ends_with("PORT") && value.contains("://")
}

/// The variable of the option that clap suggests in place of this one, without `WEBHOOK_`.
fn similar(rest: &str) -> Option<String> {
    let option = format!("--{}", rest.to_lowercase().replace('_', "-"));
    let unknown = command().try_get_matches_from(["receiver", "run", &option]);
    match unknown.err()?.get(ContextKind::SuggestedArg)? {
        ContextValue::String(option) => {
            let name = option.trim_start_matches('-').replace('-', "_");
            Some(format!("WEBHOOK_{}", name.to_uppercase()))
        }
        _ => None,
    }
}

/// Exits like clap does for an invalid argument of the command.
pub(crate) fn misused(error: impl fmt::Display) -> ! {
    let mut cli = command();
    cli.build();
    let error = match cli.find_subcommand_mut(&arguments()[1]) {
        Some(command) => command.error(ErrorKind::ValueValidation, error),
        None => cli.error(ErrorKind::ValueValidation, error),
    };
    exit(&error, "")
}

/// Prints an error of the command line, as a line of JSON in such a log, and exits.
fn exit(error: &clap::Error, more: &str) -> ! {
    if log::is_json() && error.use_stderr() {
        let text = format!("{}{more}", error.render());
        log::say_at(Level::ERROR, text.trim_end());
    } else {
        let _ = error.print();
        if !more.is_empty() {
            eprintln!("{more}");
        }
    }
    process::exit(error.exit_code())
}

/// Whether the command line asks for a log of JSON, in which an error in it is written, too.
fn asks_for_json() -> bool {
    let arguments = arguments();
    if !["run", "check"]
        .iter()
        .any(|command| arguments[1] == *command)
    {
        return false;
    }
    let mut given = None;
    for (at, argument) in arguments.iter().enumerate() {
        let argument = argument.to_string_lossy();
        if argument == "--log-format" {
            given = arguments
                .get(at + 1)
                .map(|it| it.to_string_lossy().into_owned());
        } else if let Some(format) = argument.strip_prefix("--log-format=") {
            given = Some(format.to_owned());
        }
    }
    given
        .or_else(|| env::var("WEBHOOK_LOG_FORMAT").ok())
        .as_deref()
        == Some("json")
}

/// The command line, which always names a command.
fn arguments() -> Vec<OsString> {
    let mut arguments: Vec<_> = env::args_os().collect();
    arguments.resize(arguments.len().max(1), "receiver".into());
    let is_of_all = ["-h", "--help", "-V", "--version"];
    let names_command = arguments.get(1).is_some_and(|first| {
        is_of_all.iter().any(|option| first == option)
            || !first.as_encoded_bytes().starts_with(b"-")
    });
    if !names_command {
        arguments.insert(1, "run".into());
    }
    credentials::add_to(&mut arguments);
    arguments
}

fn command() -> clap::Command {
    let with_variables = |command: clap::Command| command.mut_args(with_variable);
    Cli::command()
        .mut_subcommand("run", with_variables)
        .mut_subcommand("check", with_variables)
}

/// A variable counts as given, so that one of a flag is left out if it is false.
fn with_variable(option: Arg) -> Arg {
    // The secret's is read only without a file, which clap would refuse beside it.
    let long = option.get_long().filter(|long| *long != "secret");
    let Some(long) = long else {
        return option;
    };
    let name = format!("WEBHOOK_{}", long.replace('-', "_").to_uppercase());
    let is_flag = matches!(option.get_action(), ArgAction::SetTrue);
    let value = env::var(&name).map(|value| value.to_lowercase());
    let is_false = |value| ["", "0", "f", "false", "n", "no", "off"].contains(&value);
    match value {
        Ok(value) if is_flag && is_false(value.as_str()) => option,
        _ if is_flag => option
            .env(&*name.leak())
            .value_parser(BoolishValueParser::new()),
        _ => option.env(&*name.leak()),
    }
    .hide_env_values(true)
}

/// The variables that are set, of the command's options.
fn variables() -> Vec<String> {
    let cli = command();
    let command = cli.find_subcommand(&arguments()[1]);
    let names = command
        .into_iter()
        .flat_map(clap::Command::get_arguments)
        .filter_map(Arg::get_env);
    names
        .filter(|name| env::var_os(name).is_some())
        .map(|name| name.to_string_lossy().into_owned())
        .collect()
}
