//! Signs deliveries like the platform and sends them to a receiver.

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
use serde_json::json;
use tokio::time::timeout;
use tower_webhook::event::sample;
use tower_webhook::{EventKind, IdempotencyKey, RawDelivery, Secret, Sender};

use crate::cli::misused;
use crate::senders::{Which, first_line};
use crate::text::chain;

#[derive(Args)]
pub(crate) struct Options {
    /// The receiver's URL
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:3000/webhooks", value_parser = url)]
    url: Uri,

    /// The receiver's secret
    ///
    /// Every user of this machine can read it in the list of processes: pass a secret that matters in the
    /// environment variable or by --secret-file.
    #[arg(long, value_name = "SECRET", env = "WEBHOOK_SECRET", hide_env_values = true, value_parser = |text: &str| Secret::new(text))]
    secret: Option<Secret>,

    /// A file whose first line is the receiver's secret, such as that of `run --secret-file`
    ///
    /// It takes the place of --secret and WEBHOOK_SECRET.
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,

    /// The kind of event; the platform's kinds have a complete sample payload
    #[arg(long, value_name = "KIND", default_value = "chat-rated")]
    event: EventKind,

    /// Send this file instead of a sample; `-` is standard input
    ///
    /// The sample of another kind or sender is {"id":…,"type":…} with the key and the kind: where a sender has them
    /// elsewhere in the body, it is refused.
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

    /// Print a line for every delivery, not only for the first 20
    #[arg(short, long)]
    verbose: bool,
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
            writeln!(io::stdout(), "{answer}")?;
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
    /// The request without headers.
    request: Request<Full<Bytes>>,
    sender: Sender,
    secret: Secret,
    /// What is signed, without the key.
    delivery: RawDelivery,
    key: Key,
    timeout: Duration,
}

enum Key {
    None,
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
        let secret = match (&args.secret_file, args.secret) {
            (Some(file), _) => first_line(file).and_then(|line| Ok(Secret::new(line)?)),
            (None, Some(secret)) => Ok(secret),
            (None, None) => misused(
                "the following required argument was not provided:\n  --secret <SECRET>\n\n\
                 The environment variable WEBHOOK_SECRET, or a --secret-file, may contain it instead.",
            ),
        };
        let secret = secret.unwrap_or_else(|error| misused(chain(error.as_ref())));
        if args.which.is_platform() && !EventKind::ALL.contains(&args.event) {
            let known = EventKind::ALL;
            let known: Vec<_> = known.iter().map(EventKind::as_str).collect();
            eprintln!(
                "warning: `{}` is not a kind of the platform, which has {}",
                args.event,
                known.join(", ")
            );
        }
        let random = random()?;
        let mut body = match &args.body {
            None => match sample(&args.event).filter(|_| args.which.is_platform()) {
                Some(sample) => sample.to_owned(),
                None => {
                    let id = args.key.as_ref().and_then(|key| key.to_str().ok());
                    let id = id.unwrap_or(&random);
                    json!({ "id": id, "type": args.event.as_str() }).to_string()
                }
            }
            .into_bytes(),
            Some(file) => read(file).unwrap_or_else(|error| {
                let message = format!("the body `{file}` cannot be read: {error}");
                misused(message)
            }),
        };
        let delivery = RawDelivery::new(args.event, body.clone());
        if args.tamper {
            body.push(b' ');
        }

        let key = match args.key {
            _ if args.no_key => Key::None,
            Some(key) => Key::Same(key),
            None => Key::Each(random),
        };
        let request = Request::post(args.url).body(Full::from(body))?;
        Ok(Self {
            client: Client::builder(TokioExecutor::new()).build_http(),
            request,
            sender: args.which.sender(),
            secret,
            delivery,
            key,
            timeout: Duration::from_secs(args.timeout),
        })
    }

    async fn deliver(&self, number: u64) -> Answer {
        let mut request = self.request.clone();
        let key = match &self.key {
            Key::None => None,
            Key::Same(key) => Some(Ok(key.clone())),
            Key::Each(start) => Some(HeaderValue::try_from(format!("{start}-{number}"))),
        };
        let key = key.and_then(Result::ok).and_then(IdempotencyKey::new);
        let delivery = self.delivery.clone().with_key(key);
        let started = Instant::now();
        let outcome = match self.sender.sign(&self.secret, &delivery) {
            Ok(headers) => {
                *request.headers_mut() = headers;
                let answered = timeout(self.timeout, self.exchange(request)).await;
                answered.unwrap_or_else(|_| {
                    Err(anyhow::anyhow!("no response within {:?}", self.timeout))
                })
            }
            Err(error) => Err(error.into()),
        };
        Answer {
            number,
            outcome: outcome.map_err(|error| format!("{error:#}")),
            took: started.elapsed(),
        }
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

struct Answer {
    number: u64,
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
