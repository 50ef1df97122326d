//! The file of `--config`, with several routes.

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

use axum::http::Uri;
use serde::de::{self, DeserializeOwned};
use serde::{Deserialize, Deserializer};
use toml::de::DeTable;
use tower_webhook::{EventKind, RouteName, Secrets};

use crate::app;
use crate::args::{self, Options};
use crate::forward;
use crate::place::Place;
use crate::reload::Files;
use crate::route::{Route, default_name, place};
use crate::senders::Which;
use crate::text::chain;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    routes: Vec<Entry>,
}

/// Fields with the names of options mean the same.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Entry {
    #[serde(deserialize_with = "path")]
    path: String,
    sender: Option<String>,
    sender_url: Option<String>,
    sender_token_file: Option<PathBuf>,
    header_prefix: Option<String>,
    secret_file: PathBuf,
    equal_bodies: Option<bool>,
    #[serde(default, deserialize_with = "name")]
    name: Option<RouteName>,
    #[serde(default, deserialize_with = "kinds")]
    keep_only: Vec<EventKind>,
    #[serde(default, deserialize_with = "inbox")]
    inbox: Option<Place>,
    #[serde(default, deserialize_with = "store")]
    store: Option<Place>,
    #[serde(default, deserialize_with = "exec")]
    exec: Option<String>,
    #[serde(default, deserialize_with = "url")]
    forward: Option<Uri>,
}

/// Returns the routes of the file, or what is wrong with it.
pub(crate) fn routes(file: &Path, args: &Options) -> Result<Vec<Route>, String> {
    if std::env::var_os("WEBHOOK_SECRET").is_some() || crate::credentials::secret().is_some() {
        return Err(
            "a receiver with `--config` cannot be used with the environment variable WEBHOOK_SECRET: each route has its \
             `secret-file`"
                .to_owned(),
        );
    }
    let text = fs::read_to_string(file).map_err(|error| format!("it cannot be read: {error}"))?;
    let parsed: File = parse(file, &text)?;
    if parsed.routes.is_empty() {
        return Err("`routes`: there must be at least one".to_owned());
    }
    let routes = parsed.routes.into_iter().enumerate().map(|(index, entry)| {
        let path = entry.path.clone();
        entry.route(args).map_err(|error| {
            // It begins with the field. The line is in front, since it may end with that of a sender's file.
            let field = error.split('`').nth(1).unwrap_or_default();
            let line = match is_toml(file) {
                true => {
                    let start = start_of(&text, &format!("routes[{index}].{field}"));
                    format!("line {}: ", line_and_column(&text, start).0)
                }
                false => String::new(),
            };
            format!("{line}the route `{path}`: {error}")
        })
    });
    routes.collect()
}

/// Reads the text of a file in TOML if it is named so, or else in JSON.
pub(crate) fn parse<T: DeserializeOwned>(file: &Path, text: &str) -> Result<T, String> {
    if !is_toml(file) {
        return serde_json::from_str(text).map_err(|error| error.to_string());
    }
    toml::from_str(text).map_err(|error| {
        let message = error.message();
        // An error of what was read without a mistake begins with the field: `signature.content: …`.
        let start = error.span().map_or_else(
            || start_of(text, message.split(':').next().unwrap_or_default()),
            |span| span.start,
        );
        // Without the line itself, in which a password may stand.
        let (line, column) = line_and_column(text, start);
        format!("{message} at line {line} column {column}")
    })
}

fn is_toml(file: &Path) -> bool {
    file.extension().is_some_and(|it| it == "toml")
}

/// Where a field of a file in TOML stands, such as `challenge[1].answer`, or the last table on the way that is there.
fn start_of(text: &str, field: &str) -> usize {
    let Ok(document) = DeTable::parse(text) else {
        return 0;
    };
    let (mut start, mut within) = (0, Some(document.get_ref()));
    for name in field.split('.') {
        let (name, index) = name.split_once('[').unwrap_or((name, ""));
        let Some(value) = within.and_then(|table| table.get(name)) else {
            break;
        };
        let index = index.trim_end_matches(']').parse::<usize>();
        let item = index.ok().and_then(|index| value.get_ref().get(index));
        let value = item.unwrap_or(value);
        (start, within) = (value.span().start, value.get_ref().as_table());
    }
    start
}

fn line_and_column(text: &str, start: usize) -> (usize, usize) {
    let before = text.get(..start).unwrap_or_default();
    let line = 1 + before.matches('\n').count();
    let column = 1 + before.chars().rev().take_while(|it| *it != '\n').count();
    (line, column)
}

impl Entry {
    fn route(self, args: &Options) -> Result<Route, String> {
        let which = Which {
            sender: self.sender,
            sender_url: self.sender_url,
            sender_token_file: self.sender_token_file,
            header_prefix: self.header_prefix,
        };
        let files = Files::of(Some(&self.secret_file), &which);
        let sender = which
            .read()
            .map_err(|error| format!("`sender`: {}", chain(error.as_ref())))?;
        let secrets = Secrets::from_file(&self.secret_file)
            .map_err(|error| format!("`secret-file`: {}", chain(&error)))?;
        let (place, is_inbox) = match (self.inbox, self.store) {
            (Some(_), Some(_)) => return Err("`inbox` takes the place of `store`".to_owned()),
            (Some(inbox), None) => (inbox, true),
            (None, Some(store)) => (store, false),
            (None, None) => place(args),
        };
        if self.exec.is_some() && self.forward.is_some() {
            return Err("`forward` takes the place of `exec`".to_owned());
        }
        let route = Route {
            path: self.path,
            name: self.name.unwrap_or_else(|| default_name(&sender)),
            keep_only: self.keep_only,
            which,
            sender,
            secrets: Some(secrets),
            secret_file: Some(self.secret_file),
            equal_bodies: self.equal_bodies.unwrap_or(args.secrets.equal_bodies),
            files,
            place,
            is_inbox,
            exec: self.exec,
            forward: self.forward,
        };
        app::check(args, &route).map_err(|error| format!("`sender`: {}", chain(&error)))?;
        Ok(route)
    }
}

// Each refuses its field where it stands, so that the error has the line.

fn path<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    parsed(from, "path", args::path)
}

fn name<'de, D: Deserializer<'de>>(from: D) -> Result<Option<RouteName>, D::Error> {
    parsed(from, "name", str::parse).map(Some)
}

fn kinds<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<EventKind>, D::Error> {
    let refused = |what: &dyn Display| de::Error::custom(format_args!("`keep-only`: {what}"));
    let names = Vec::<String>::deserialize(from)?;
    if names.is_empty() {
        return Err(refused(&"it is empty: leave it out to keep all"));
    }
    let kinds = names.iter().map(|name| {
        let kind = name.parse();
        kind.map_err(|error| refused(&format_args!("`{name}`: {error}")))
    });
    kinds.collect()
}

fn inbox<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Place>, D::Error> {
    parsed(from, "inbox", Place::parse_inbox).map(Some)
}

fn store<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Place>, D::Error> {
    parsed(from, "store", Place::parse).map(Some)
}

fn exec<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    parsed(from, "exec", args::command).map(Some)
}

fn url<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Uri>, D::Error> {
    parsed(from, "forward", forward::url).map(Some)
}

fn parsed<'de, D: Deserializer<'de>, T, E: Display>(
    from: D,
    field: &str,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, D::Error> {
    let text = String::deserialize(from)?;
    parse(&text).map_err(|error| de::Error::custom(format_args!("`{field}`: {error}")))
}
