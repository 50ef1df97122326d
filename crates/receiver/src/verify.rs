//! Judges a captured request, and says why it is accepted or refused.

use std::fs;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use axum::body::Bytes;
use clap::Args;
use http::Request;
use tower_webhook::signature::{Explanation, Finding, Step};
use tower_webhook::{Secret, Secrets, Sender};

use crate::captured::{self, Captured};
use crate::cli::misused;
use crate::senders::Which;
use crate::text::{chain, printable};

#[derive(Args)]
pub(crate) struct Options {
    /// A name that `receiver senders` lists, or a file such as ./acme.toml
    name: String,

    /// The request: a header a line, an empty line, and the body; `-` is standard input
    ///
    /// The first line may be the request line, and lines may end with LF alone. What `nc -l` writes is such a file, and what
    /// `curl -v` prints, in which the lines of the head begin with `> `.
    file: String,

    /// A file with the body, if the request's file has the head alone, as of `curl -v`
    #[arg(long, value_name = "FILE")]
    body: Option<PathBuf>,

    /// A secret that is configured at the sender
    ///
    /// Every user of this machine can read it in the list of processes: pass a secret that matters in the
    /// environment variable or by --secret-file.
    #[arg(
        long,
        value_name = "SECRET",
        env = "WEBHOOK_SECRET",
        hide_env_values = true
    )]
    secret: Option<String>,

    /// A file with a secret in each line, such as that of `run --secret-file`; it takes the place of --secret
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,

    /// The URL as it is configured at a sender that signs it, such as Square
    #[arg(
        long,
        value_name = "URL",
        env = "WEBHOOK_SENDER_URL",
        hide_env_values = true
    )]
    sender_url: Option<String>,

    /// A file with the token by which the sender proves its challenges, such as Meta's verify token
    #[arg(
        long,
        value_name = "FILE",
        env = "WEBHOOK_SENDER_TOKEN_FILE",
        hide_env_values = true
    )]
    sender_token_file: Option<PathBuf>,

    /// The brand in the header names of the chat platform
    #[arg(
        long,
        value_name = "BRAND",
        env = "WEBHOOK_HEADER_PREFIX",
        hide_env_values = true
    )]
    header_prefix: Option<String>,

    /// The time with which timestamps are compared, in seconds since 1970 or as in the header `Date`; by default it is now
    #[arg(long, value_name = "TIME", value_parser = time)]
    at: Option<SystemTime>,

    /// Print the body, too
    #[arg(long)]
    show_body: bool,
}

/// Succeeds if the request is accepted.
pub(crate) fn verify(options: Options) -> anyhow::Result<ExitCode> {
    let texts = secrets(&options).unwrap_or_else(|error| misused(chain(error.as_ref())));
    let captured = read(&options).unwrap_or_else(|error| misused(chain(error.as_ref())));
    let which = Which {
        sender: Some(options.name),
        sender_url: options.sender_url,
        sender_token_file: options.sender_token_file,
        header_prefix: options.header_prefix,
    };
    let mut sender = which.sender();
    if let Some(at) = options.at {
        sender = sender.with_clock(move || at);
    }
    let Captured { request, notes } = captured;
    let request = request.map(Into::into);
    let explained = sender.explain(&texts.set, &request);

    let mut out = io::stdout().lock();
    for note in notes {
        say(&mut out, Finding::Note, &note)?;
    }
    for Step { finding, text, .. } in explained.steps() {
        say(&mut out, *finding, text)?;
    }
    for hint in hints(&sender, &texts, &request, &explained) {
        say(&mut out, Finding::Note, &hint)?;
    }
    if options.show_body {
        let body = String::from_utf8_lossy(request.body());
        say(&mut out, Finding::Note, &format!("the body is {body:?}"))?;
    }
    let is_accepted = explained.is_accepted();
    let result = match (is_accepted, explained.is_signed()) {
        (true, _) => "accepted",
        (false, true) => "refused, although a secret signed it",
        (false, false) => "refused",
    };
    writeln!(out, "{result}")?;
    Ok(match is_accepted {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn say(out: &mut impl Write, finding: Finding, text: &str) -> io::Result<()> {
    let finding = match finding {
        Finding::Right => "ok",
        Finding::Wrong => "WRONG",
        _ => "note",
    };
    writeln!(out, "{finding:5}  {}", printable(text))
}

/// The secrets, and their texts.
struct Texts {
    set: Secrets,
    texts: Vec<String>,
}

fn secrets(options: &Options) -> anyhow::Result<Texts> {
    let texts = match (&options.secret_file, &options.secret) {
        (Some(file), _) => {
            let name = file.display();
            let text =
                fs::read_to_string(file).with_context(|| format!("`{name}` cannot be read"))?;
            let lines = text.trim_start_matches('\u{feff}').lines();
            lines
                .filter(|it| !it.is_empty())
                .map(str::to_owned)
                .collect()
        }
        (None, Some(secret)) => vec![secret.clone()],
        (None, None) => anyhow::bail!(
            "pass --secret or --secret-file, or set the environment variable WEBHOOK_SECRET"
        ),
    };
    // One by one, so that the explanation names them by their place in the file.
    let secrets: Result<Vec<_>, _> = texts.iter().map(|it| Secret::new(it.as_str())).collect();
    let set = Secrets::new(secrets?)?;
    Ok(Texts { set, texts })
}

fn read(options: &Options) -> anyhow::Result<Captured> {
    let name = &options.file;
    let text = match name.as_str() {
        "-" => {
            let mut text = Vec::new();
            io::stdin().read_to_end(&mut text).map(|_| text)
        }
        _ => fs::read(name),
    };
    let text = text.with_context(|| format!("`{name}` cannot be read"))?;
    let captured = captured::read(&text);
    let mut captured = captured.with_context(|| format!("`{name}` is no request"))?;
    if let Some(file) = &options.body {
        let name = file.display();
        let body = fs::read(file).with_context(|| format!("`{name}` cannot be read"))?;
        anyhow::ensure!(
            captured.request.body().trim_ascii().is_empty(),
            "the request has a body beside --body: remove one of them"
        );
        *captured.request.body_mut() = body;
        captured.notes.clear();
    }
    Ok(captured)
}

/// What would have been right with a secret that is written otherwise.
fn hints(
    sender: &Sender,
    secrets: &Texts,
    request: &Request<Bytes>,
    explained: &Explanation,
) -> Vec<String> {
    if explained.is_signed() {
        return Vec::new();
    }
    let signs = |text: &str| {
        let secret = Secret::new(text).ok();
        secret.is_some_and(|it| sender.explain(&it.into(), request).is_signed())
    };
    let all = secrets.texts.iter().zip(secrets.set.labels());
    let hints = all.flat_map(|(text, label)| {
        let forms = [
            ("the blanks around it", Some(text.trim())),
            ("the quotes around it", unquoted(text)),
            ("its `whsec_`", text.strip_prefix("whsec_")),
            (
                "its name and `=` before it",
                text.split_once('=').map(|(_, value)| value),
            ),
        ];
        let others = forms
            .into_iter()
            .filter(|(_, form)| form.is_some_and(|it| it != text && signs(it)));
        let hint = move |(what, _)| format!("without {what}, the secret {label} signed it");
        others.map(hint).collect::<Vec<_>>()
    });
    hints.collect()
}

fn unquoted(text: &str) -> Option<&str> {
    let text = text.trim();
    ['"', '\'']
        .into_iter()
        .find_map(|quote| text.strip_prefix(quote)?.strip_suffix(quote))
}

fn time(text: &str) -> Result<SystemTime, String> {
    let seconds = text
        .parse()
        .ok()
        .and_then(|seconds| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds)));
    let time = seconds.or_else(|| httpdate::parse_http_date(text).ok());
    time.ok_or_else(|| {
        "write seconds since 1970, as `date +%s` prints them, or the value of a header `Date`"
            .to_owned()
    })
}
