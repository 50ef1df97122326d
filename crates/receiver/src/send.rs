//! Signs deliveries like the platform or another sender, and sends them to a receiver.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use axum::body::Bytes;
use axum::http::header::HeaderValue;
use axum::http::{Request, StatusCode, Uri};
use clap::{Args, value_parser};
use futures_util::{StreamExt, stream};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::time::timeout;
use tower_webhook::{ConfigError, EventKind, IdempotencyKey, RawDelivery, Secret, Sender};

use crate::cli::misused;
use crate::senders::{Which, first_line};
use crate::text::{chain, is_control, printable};

#[derive(Args)]
pub(crate) struct Options {
    /// The receiver's URL
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:3000/webhooks", value_parser = url)]
    url: Uri,

    /// The receiver's secret
    ///
    /// Every user of this machine can read it in the list of processes: pass a secret that matters in the
    /// environment variable or by --secret-file.
    #[arg(long, value_name = "SECRET", env = "WEBHOOK_SECRET", hide_env_values = true, value_parser = Given::new)]
    secret: Option<Given>,

    /// A file whose first line is the receiver's secret, such as that of `run --secret-file`
    ///
    /// It takes the place of --secret and WEBHOOK_SECRET.
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,

    /// The type of event; the platform's types have a complete sample payload
    #[arg(long, value_name = "TYPE", default_value = "chat-rated")]
    event: EventKind,

    /// Send this file instead of a sample; `-` is standard input
    ///
    /// The sample of another kind or sender is an object with the key and the kind where that sender has them, and another
    /// one for each key.
    #[arg(long, value_name = "FILE")]
    body: Option<String>,

    /// The idempotency key of all deliveries; by default each delivery has a random one
    #[arg(long, value_name = "KEY", value_parser = |text: &str| HeaderValue::from_bytes(text.as_bytes()))]
    key: Option<HeaderValue>,

    /// Send no idempotency key
    #[arg(long, conflicts_with = "key")]
    no_key: bool,

    /// The number of deliveries to send
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u64).range(1..))]
    count: u64,

    /// The number of concurrent deliveries
    #[arg(long, value_name = "C", default_value_t = 1, value_parser = value_parser!(u16).range(1..))]
    concurrency: u16,

    /// Change the body after signing it, so that the receiver must refuse it
    #[arg(long)]
    tamper: bool,

    #[command(flatten)]
    which: Which,

    /// The time limit of a response
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = value_parser!(u64).range(1..))]
    timeout: u64,

    /// Print a line for each delivery, not only for the first 20
    #[arg(short, long)]
    verbose: bool,
}

/// A secret and its text, which some senders send.
#[derive(Clone)]
struct Given {
    text: String,
    secret: Secret,
}

impl Given {
    fn new(text: &str) -> Result<Self, ConfigError> {
        let (text, secret) = (text.to_owned(), Secret::new(text)?);
        Ok(Self { text, secret })
    }
}

/// How many deliveries are printed by default.
const LINES: u64 = 20;

/// Succeeds if all deliveries were accepted.
pub(crate) async fn send(args: Options) -> anyhow::Result<ExitCode> {
    let (count, all_lines) = (args.count, args.verbose);
    let concurrency = args.concurrency.into();
    let client = Sending::new(args)?;
    let started = Instant::now();
    let mut answers = stream::iter(1..=count)
        .map(|number| client.deliver(number))
        .buffer_unordered(concurrency);
    let mut summary = Summary::default();
    while let Some(answer) = answers.next().await {
        if answer.number <= LINES || all_lines {
            write!(io::stdout(), "{answer}\n{}", answer.sent)?;
        }
        summary.add(answer);
    }
    if count > 1 {
        summary.print(&mut io::stdout().lock(), started.elapsed())?;
    }
    Ok(match summary.refused {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

struct Sending {
    client: Client<HttpConnector, Full<Bytes>>,
    url: Uri,
    sender: Sender,
    given: Given,
    kind: EventKind,
    /// In place of a sample.
    body: Option<Bytes>,
    key: Key,
    tamper: bool,
    timeout: Duration,
}

enum Key {
    /// A sample has it nevertheless where its sender has it in the body.
    None(String),
    Same(HeaderValue),
    /// This prefix and the number of the delivery.
    Each(String),
}

fn random() -> anyhow::Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).context("the system returned no random bytes")?;
    Ok(base16ct::lower::encode_string(&bytes))
}

impl Sending {
    fn new(args: Options) -> anyhow::Result<Self> {
        let given = match (&args.secret_file, args.secret) {
            (Some(file), _) => first_line(file).and_then(|line| Ok(Given::new(&line)?)),
            (None, Some(given)) => Ok(given),
            (None, None) => misused(
                "the following required argument was not provided:\n  --secret <SECRET>\n\n\
                 The environment variable WEBHOOK_SECRET, or a --secret-file, may contain it instead.",
            ),
        };
        let given = given.unwrap_or_else(|error| misused(chain(error.as_ref())));
        if args.which.is_platform() && !EventKind::ALL.contains(&args.event) {
            let known = EventKind::ALL;
            let known: Vec<_> = known.iter().map(EventKind::as_str).collect();
            eprintln!(
                "warning: the platform has no event type `{}`, only {}",
                args.event,
                known.join(", ")
            );
        }
        let body = args.body.as_deref().map(|file| {
            let body = read(file).unwrap_or_else(|error| {
                misused(format!("the body `{file}` cannot be read: {error}"))
            });
            Bytes::from(body)
        });
        let key = match args.key {
            _ if args.no_key => Key::None(random()?),
            Some(key) => Key::Same(key),
            None => Key::Each(random()?),
        };
        Ok(Self {
            client: Client::builder(TokioExecutor::new()).build_http(),
            url: args.url,
            sender: args.which.sender(),
            given,
            kind: args.event,
            body,
            key,
            tamper: args.tamper,
            timeout: Duration::from_secs(args.timeout),
        })
    }

    async fn deliver(&self, number: u64) -> Answer {
        let signed = self.signed(number);
        let started = Instant::now();
        let mut sent = String::new();
        let outcome = match signed {
            Ok(request) => {
                sent = self.shown(&request, number);
                let request = request.map(Full::from);
                let answered = timeout(self.timeout, self.exchange(request)).await;
                answered.unwrap_or_else(|_| {
                    Err(anyhow::anyhow!("no response within {:?}", self.timeout))
                })
            }
            Err(error) => Err(error),
        };
        Answer {
            number,
            sent,
            outcome: outcome.map_err(|error| format!("{error:#}")),
            took: started.elapsed(),
        }
    }

    /// The request of a delivery.
    fn signed(&self, number: u64) -> anyhow::Result<Request<Bytes>> {
        let key = match &self.key {
            Key::Same(key) => key.clone(),
            Key::None(start) | Key::Each(start) => format!("{start}-{number}").try_into()?,
        };
        let key = IdempotencyKey::new(key).context("the key is empty")?;
        let delivery = match &self.body {
            Some(body) => RawDelivery::new(self.kind.clone(), body.clone()).with_key(key),
            None => {
                let sample = self.sender.sample(&self.kind, &key)?;
                self.sender.put_token(sample, &self.given.text)
            }
        };
        let delivery = match self.key {
            Key::None(_) => delivery.with_key(None),
            _ => delivery,
        };
        let mut headers = self.sender.sign(&self.given.secret, &delivery)?;
        headers.extend(self.sender.token(&self.given.text));
        let query = match self.sender.token_query(&self.given.text) {
            None => self.sender.sign_query(&self.given.secret, &delivery)?,
            token => token,
        };
        let mut body = delivery.body().to_vec();
        if self.tamper {
            body.push(b' ');
        }
        let url = match query {
            None => self.url.clone(),
            Some(query) => with_query(&self.url, &query)?,
        };
        let mut request = Request::post(url).body(body.into())?;
        *request.headers_mut() = headers;
        Ok(request)
    }

    /// What is printed of a request: all of the first one, as `senders verify` reads it, but no token.
    fn shown(&self, request: &Request<Bytes>, number: u64) -> String {
        let (headers, body) = (request.headers(), request.body());
        let length = body.len();
        let has_token = self.sender.has_token_in_body();
        let token = self.sender.token_query(&self.given.text);
        let target = match token.as_deref().and_then(|it| it.split_once('=')) {
            None => request.uri().path_and_query().map_or("/", |it| it.as_str()),
            Some((name, _)) => &target(&self.url, &format!("{name}=…")),
        };
        if number > 1 {
            return format!("> {} {target} with {length} bytes\n", request.method());
        }
        let mut shown = format!("> {} {target} HTTP/1.1\n", request.method());
        for (name, value) in headers {
            let value = match value.is_sensitive() {
                true => "…".into(),
                false => String::from_utf8_lossy(value.as_bytes()),
            };
            shown += &format!("> {name}: {}\n", printable(&value));
        }
        shown += &format!("> content-length: {length}\n>\n");
        let is_shown = |it: &&str| {
            !has_token && length <= LONGEST && !it.contains(|char| char != '\n' && is_control(char))
        };
        let text = str::from_utf8(body).ok().filter(is_shown);
        shown + text.unwrap_or("(a body that is not printed)") + "\n"
    }

    /// Returns the status and detail of the response.
    async fn exchange(
        &self,
        request: Request<Full<Bytes>>,
    ) -> anyhow::Result<(StatusCode, String)> {
        let response = self.client.request(request).await?;
        let status = response.status();
        let is_replay = response.headers().contains_key("idempotent-replayed");
        let body = Limited::new(response.into_body(), 64 * 1024)
            .collect()
            .await
            .map_err(|error| anyhow::anyhow!("the response is incomplete: {error}"))?
            .to_bytes();
        let problem: Option<Problem> = serde_json::from_slice(&body).ok();
        let detail = match problem {
            Some(problem) => problem.detail,
            None if is_replay => "it had been accepted or handled before".to_owned(),
            None => String::new(),
        };
        Ok((status, detail))
    }
}

/// The part of a problem document (RFC 9457) that is printed.
#[derive(serde::Deserialize)]
struct Problem {
    detail: String,
}

/// The longest body that is printed.
const LONGEST: usize = 4096;

/// The path of a URL with one more parameter.
fn target(url: &Uri, parameter: &str) -> String {
    let separator = if url.query().is_some() { '&' } else { '?' };
    let target = url.path_and_query().map_or("/", |it| it.as_str());
    format!("{target}{separator}{parameter}")
}

fn with_query(url: &Uri, parameter: &str) -> anyhow::Result<Uri> {
    let mut parts = url.clone().into_parts();
    parts.path_and_query = Some(target(url, parameter).try_into()?);
    Ok(Uri::from_parts(parts)?)
}

struct Answer {
    number: u64,
    /// What is printed of its request, in lines.
    sent: String,
    outcome: Result<(StatusCode, String), String>,
    took: Duration,
}

impl Answer {
    fn status(&self) -> String {
        match &self.outcome {
            Ok((status, _)) => status.to_string(),
            Err(_) => "no answer".to_owned(),
        }
    }

    fn detail(&self) -> &str {
        match &self.outcome {
            Ok((_, detail)) => detail,
            Err(error) => error,
        }
    }
}

impl std::fmt::Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (number, status, took) = (self.number, self.status(), self.took);
        write!(f, "#{number} {status} in {took:.1?}")?;
        match self.detail() {
            "" => Ok(()),
            detail => write!(f, ": {detail}"),
        }
    }
}

#[derive(Default)]
struct Summary {
    /// The number of responses with each status and detail.
    counts: BTreeMap<(String, String), u64>,
    times: Vec<Duration>,
    refused: u64,
}

impl Summary {
    fn add(&mut self, answer: Answer) {
        let is_accepted = matches!(&answer.outcome, Ok((status, _)) if status.is_success());
        self.refused += u64::from(!is_accepted);
        self.times.push(answer.took);
        let row = (answer.status(), answer.detail().to_owned());
        *self.counts.entry(row).or_default() += 1;
    }

    fn print(&mut self, out: &mut impl Write, elapsed: Duration) -> io::Result<()> {
        let count = self.times.len();
        let rate = count as f64 / elapsed.as_secs_f64();
        writeln!(
            out,
            "\n{count} deliveries in {elapsed:.1?}, {rate:.0} a second"
        )?;
        for ((status, detail), count) in &self.counts {
            let colon = if detail.is_empty() { "" } else { ": " };
            writeln!(out, "{count:>9} {status}{colon}{detail}")?;
        }
        self.times.sort_unstable();
        let at = |part: f64| self.times[((count - 1) as f64 * part).ceil() as usize];
        let (min, median, p99, max) = (at(0.0), at(0.5), at(0.99), at(1.0));
        writeln!(
            out,
            "latency: min {min:.1?}, median {median:.1?}, p99 {p99:.1?}, max {max:.1?}"
        )
    }
}

fn read(file: &str) -> io::Result<Vec<u8>> {
    match file {
        "-" => {
            let mut body = Vec::new();
            io::stdin().read_to_end(&mut body)?;
            Ok(body)
        }
        _ => fs::read(file),
    }
}

fn url(text: &str) -> Result<Uri, String> {
    let uri: Uri = text.parse().map_err(|error| format!("{error}"))?;
    match (uri.scheme_str(), uri.host()) {
        (Some("http"), Some(_)) => Ok(uri),
        (Some("https"), _) => Err("TLS is not supported: use an http:// URL".to_owned()),
        _ => Err("use an absolute URL, such as http://127.0.0.1:3000/webhooks".to_owned()),
    }
}
