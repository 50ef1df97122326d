//! The senders that a receiver can verify.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, iter};

use anyhow::Context;
use clap::{Args, Subcommand};
use tower_webhook::{Sender, SenderPolicy};

use crate::cli::misused;
use crate::config;
use crate::inbox::print::write_rows;
use crate::text::chain;

#[derive(Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Print the description of a sender, as the start of one of your own
    Show {
        /// One of the names that `receiver senders` lists, or a file such as ./acme.toml, which is checked
        name: String,
    },
    /// Judge a captured request, and say step by step what is right and what is not
    ///
    /// Names the header and the element, says what was signed, how far the time is off, and if the signature is wrong, what
    /// would have been right: another form of the secret, a changed line end. No secret is printed, of a signature only the start,
    /// and of the body only its length and digest.
    ///
    /// The exit code is 0 if the request is accepted, 1 if it is refused, and 2 if the arguments are invalid, or the
    /// request or a secret cannot be read.
    Verify(crate::verify::Options),
}

/// The sender that a command is for.
#[derive(Args, Clone)]
pub(crate) struct Which {
    /// The sender, if it is not the chat platform: a name that `receiver senders` lists, or a file such as ./acme.toml
    ///
    /// The file has a description in TOML if its name ends with `.toml`, or else in JSON, as `receiver senders show` prints
    /// it.
    #[arg(
        long,
        value_name = "SENDER",
        env = "WEBHOOK_SENDER",
        hide_env_values = true
    )]
    pub(crate) sender: Option<String>,

    /// The URL as it is configured at a sender that signs it, such as Square
    #[arg(
        long,
        value_name = "URL",
        env = "WEBHOOK_SENDER_URL",
        hide_env_values = true,
        requires = "sender"
    )]
    pub(crate) sender_url: Option<String>,

    /// A file with the token by which the sender proves its challenges, such as Meta's verify token
    #[arg(
        long,
        value_name = "FILE",
        env = "WEBHOOK_SENDER_TOKEN_FILE",
        hide_env_values = true,
        requires = "sender"
    )]
    pub(crate) sender_token_file: Option<PathBuf>,

    /// The brand in the header names of the chat platform: `acme` is X-Acme-Event instead of X-Service-Event
    #[arg(
        long,
        value_name = "BRAND",
        env = "WEBHOOK_HEADER_PREFIX",
        hide_env_values = true,
        conflicts_with = "sender"
    )]
    pub(crate) header_prefix: Option<String>,
}

impl Which {
    /// Returns the sender, or exits if there is none of this name.
    pub(crate) fn sender(&self) -> Sender {
        let sender = self.read();
        sender.unwrap_or_else(|error| misused(chain(error.as_ref())))
    }

    /// Returns the sender, whose description may stand in a file.
    pub(crate) fn read(&self) -> anyhow::Result<Sender> {
        let platform = Sender::chat_platform();
        anyhow::ensure!(
            self.sender_url.is_none() || self.named().is_some(),
            "the chat platform signs no URL, so `sender-url` needs a `sender`"
        );
        let sender = match (self.named(), &self.header_prefix) {
            (Some(name), Some(_)) => {
                anyhow::bail!("`{name}` has no brand: only the chat platform has one")
            }
            (Some(file), None) if self.is_file() => {
                anyhow::ensure!(
                    self.sender_url.is_none(),
                    "`{file}` has the field `url` in place of --sender-url"
                );
                described(Path::new(file))?.0
            }
            (Some(name), None) => Sender::named(name, self.sender_url.as_deref())?,
            (None, Some(brand)) => platform.branded(brand)?,
            (None, None) => platform,
        };
        match &self.sender_token_file {
            Some(file) => Ok(sender.with_challenge_token(first_line(file)?)?),
            None => Ok(sender),
        }
    }

    fn is_file(&self) -> bool {
        self.named().is_some_and(|name| name.contains('/'))
    }

    /// Whether its description or its token stands in a file, which may change.
    pub(crate) fn is_reread(&self) -> bool {
        self.is_file() || self.sender_token_file.is_some()
    }

    /// The files of its description and its token.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        let description = self.named().filter(|_| self.is_file()).map(Path::new);
        description
            .into_iter()
            .chain(self.sender_token_file.as_deref())
    }

    pub(crate) fn is_platform(&self) -> bool {
        self.named().is_none()
    }

    /// The sender that is not the chat platform.
    fn named(&self) -> Option<&str> {
        let named = self.sender.as_deref();
        named.filter(|name| *name != Sender::chat_platform().name())
    }

    /// The options as they are passed to another command.
    pub(crate) fn options(&self) -> String {
        let token_file = self.sender_token_file.as_ref();
        let token_file = token_file.map(|file| file.display().to_string());
        let options = [
            ("sender", &self.sender),
            ("sender-url", &self.sender_url),
            ("sender-token-file", &token_file),
            ("header-prefix", &self.header_prefix),
        ];
        let given = options
            .into_iter()
            .filter_map(|(name, value)| Some((name, value.as_ref()?)));
        given
            .map(|(name, value)| format!(" --{name} {value}"))
            .collect()
    }
}

/// The sender that a file describes, and its text.
fn described(file: &Path) -> anyhow::Result<(Sender, String)> {
    let name = file.display();
    let text = fs::read_to_string(file).with_context(|| format!("`{name}` cannot be read"))?;
    let described = config::parse(file, &text).map_err(anyhow::Error::msg);
    let sender = described.with_context(|| format!("`{name}` describes no sender"))?;
    Ok((sender, text))
}

pub(crate) fn first_line(file: &Path) -> anyhow::Result<String> {
    let name = file.display();
    let text = fs::read_to_string(file).with_context(|| format!("`{name}` cannot be read"))?;
    let line = text
        .trim_start_matches('\u{feff}')
        .lines()
        .next()
        .unwrap_or_default();
    anyhow::ensure!(!line.is_empty(), "the first line of `{name}` is empty");
    Ok(line.to_owned())
}

pub(crate) fn run(options: Options) -> anyhow::Result<ExitCode> {
    match options.command {
        Some(Command::Show { name }) => show(&name),
        Some(Command::Verify(options)) => crate::verify::verify(options),
        None => print(),
    }
}

fn show(name: &str) -> anyhow::Result<ExitCode> {
    if name.contains('/') {
        let (_, text) = described(Path::new(name))?;
        writeln!(io::stdout(), "{}", text.trim_end())?;
        return Ok(ExitCode::SUCCESS);
    }
    let Some(profile) = Sender::profile(name) else {
        let error = Sender::named(name, None).err();
        misused(error.map(|it| chain(&it)).unwrap_or_default());
    };
    writeln!(io::stdout(), "{}", profile.trim_end())?;
    Ok(ExitCode::SUCCESS)
}

fn print() -> anyhow::Result<ExitCode> {
    let policy = SenderPolicy::default();
    let platform = format!(
        "x-service-event, x-service-hmac-sha256, idempotency-key; retries every {} min for {} days, and disables after {} \
         failures within an hour",
        policy.retry_every.as_secs() / 60,
        policy.retry_for.as_secs() / (24 * 60 * 60),
        policy.disable_after.unwrap_or_default()
    );
    let row = |name: &str, about: &str| [name.to_owned(), about.to_owned()];
    let profiles = Sender::PROFILES.iter().map(|name| {
        let (sender, needs_url) = match Sender::named(name, None) {
            Ok(sender) => (sender, false),
            Err(_) => (Sender::named(name, Some("https://example.com"))?, true),
        };
        let mut about = match sender.covers_key() {
            _ if sender.name() == Sender::chat_platform().name() => platform.clone(),
            true => "signs its key".to_owned(),
            false => "does not sign a key".to_owned(),
        };
        if sender.has_equal_bodies() {
            about += "; equal bodies are different events";
        }
        if sender.is_as_documented() {
            about += "; as documented, not judged by its maker's library";
        }
        if let Some(judge) = sender.judge() {
            about += &format!("; judged by {judge}");
        }
        if needs_url {
            about += "; signs the URL: pass --sender-url";
        }
        if sender.with_challenge_token("any").is_ok() {
            about += "; asks with a token: pass --sender-token-file";
        }
        anyhow::Ok(row(name, &about))
    });
    let rows = iter::once(Ok(row("SENDER", "ABOUT"))).chain(profiles);
    write_rows(&mut io::stdout().lock(), rows.collect::<Result<_, _>>()?)?;
    Ok(ExitCode::SUCCESS)
}
