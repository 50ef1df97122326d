//! The options of `run`.

use std::net::{SocketAddr, ToSocketAddrs};
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use axum::http::{HeaderName, Uri};
use clap::{ArgGroup, Args, ValueEnum, value_parser};
use tower_webhook::event::EventKind;
use tower_webhook::{EventType, RouteName, Secret, Sender};

use crate::log::Format;
use crate::senders::Which;
use crate::{activity, event, forward, telemetry};

// Clap would show a comment of documentation on one of these as that of the command.
#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten, next_help_heading = "Listening")]
    pub(crate) listening: Listening,
    #[command(flatten, next_help_heading = "Secrets")]
    pub(crate) secrets: Secrets,
    #[command(flatten, next_help_heading = "Where events are kept")]
    pub(crate) kept: Kept,
    #[command(flatten, next_help_heading = "Handling")]
    pub(crate) handling: Handling,
    #[command(flatten, next_help_heading = "Limits")]
    pub(crate) limits: Limits,
    #[command(flatten, next_help_heading = "Console")]
    pub(crate) console: Console,
    #[command(flatten, next_help_heading = "Monitoring")]
    pub(crate) monitoring: Monitoring,
}

#[derive(Args)]
pub(crate) struct Listening {
    /// The address to listen on; port 0 picks a free port
    ///
    /// Sockets that systemd passes (LISTEN_FDS) take its place.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:3000", value_parser = address)]
    pub(crate) listen: SocketAddr,

    /// The path that webhooks are sent to
    #[arg(long, value_name = "PATH", default_value = "/webhooks", value_parser = path)]
    pub(crate) path: String,

    /// A file with several routes, each with a path, a sender and secrets of its own
    ///
    /// In JSON, as in {"routes":[{"path":"/github","sender":"github","secret-file":"github.secret","exec":"./on-github"}]},
    /// or in TOML if it is named so. A route may also have `sender-url`, `sender-token-file`, `header-prefix`, `name`,
    /// `keep-only` (a list), `inbox` or `store`, and `forward` in
    /// place of `exec`, which mean the same as the options. All other options apply to each route, and --inbox or
    /// --store to routes that name none. A change of FILE needs a restart. The files that it names are read again when
    /// they change, and on SIGHUP.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["path", "sender", "sender_url", "sender_token_file", "header_prefix", "secret",
        "secret_file", "demo", "dangerously_unsigned", "name", "keep_only", "exec", "forward"])]
    pub(crate) config: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) which: Which,
}

#[derive(Args)]
pub(crate) struct Secrets {
    /// The secret that is set at the sender, and used for nothing else; repeat it to accept several
    ///
    /// Every user of this machine can read it in the list of processes. Prefer the environment variable
    /// WEBHOOK_SECRET or --secret-file. Without any of the three, the receiver does not start.
    #[arg(long, value_name = "SECRET", value_parser = |text: &str| Secret::new(text))]
    pub(crate) secret: Vec<Secret>,

    /// A file with one secret per line, used without trimming; reloaded when it changes, and on SIGHUP
    ///
    /// Only its owner should be able to read it (mode 600): otherwise, the log has a warning, unless Kubernetes has
    /// written it.
    /// The log shows which secret a delivery was signed with, by a label of four hex digits that is derived
    /// from the secret.
    #[arg(long, value_name = "FILE", conflicts_with = "secret")]
    pub(crate) secret_file: Option<PathBuf>,

    /// Keep a secret that the sender brings in a handshake, such as Asana and Notion: append it to --secret-file, once
    ///
    /// It is a run of its own, without --config. The file may have no secret yet. Whoever reaches the URL can bring one, so that the first is kept, and all others are
    /// refused until a restart: leave this out once the log says that a secret was learned.
    #[arg(long, requires = "secret_file", conflicts_with_all = ["config", "demo", "dangerously_unsigned"])]
    pub(crate) learn_secret: bool,

    /// Use the public secret of `sandbox --demo`, and print the command that sends a first event; for demonstrations only
    #[arg(long, conflicts_with_all = ["secret", "secret_file"])]
    pub(crate) demo: bool,

    /// Verify nothing: anybody who reaches the address can make events up
    ///
    /// For webhooks without a secret, behind a proxy that authenticates the sender.
    #[arg(long, conflicts_with_all = ["secret", "secret_file", "demo"])]
    pub(crate) dangerously_unsigned: bool,

    /// Refuse a body that was handled under another key in the last 8 days, with 422
    ///
    /// A signature does not cover the key, so that whoever captured a body with its signature could have it handled again
    /// under other keys. Two genuine events with the same body are one then.
    #[arg(long)]
    pub(crate) replay_guard: bool,

    /// Handle equal bodies under different keys as different events, although the sender does not sign its keys
    ///
    /// Whoever captured a delivery can then have it handled again under another key. With --config, it is for all routes, and
    /// the field `equal-bodies` is for one.
    #[arg(long, conflicts_with = "replay_guard")]
    pub(crate) equal_bodies: bool,

    /// Refuse a key that was used with another body, with 422, instead of treating it as the same event
    #[arg(long)]
    pub(crate) reject_changed_bodies: bool,

    /// Refuse a delivery without a key, with 400: it would be handled each time that it is sent
    #[arg(long)]
    pub(crate) require_key: bool,
}

#[derive(Args)]
#[command(group = ArgGroup::new("later").args(["inbox", "config"]).multiple(true))]
pub(crate) struct Kept {
    /// The store that remembers keys, so that an event is handled once: `memory`, `sqlite:PATH`,
    /// `redis://HOST` or `postgres://HOST/DATABASE`
    ///
    /// `memory`, the default, is lost when the receiver stops, so events that the platform then retries are handled
    /// again. `sqlite:webhooks.db` is a file that survives a crash, for one machine. Redis and Postgres
    /// are for several receivers that share their work, and may be several servers: `redis://HOST,HOST` is a cluster,
    /// `redis+sentinel://HOST,HOST/NAME` the primary that sentinels call NAME, and `postgres://HOST,HOST/DATABASE` the one of
    /// these servers that takes writes. Every user of this machine can read a password
    /// in the list of processes: pass the URL in the environment variable WEBHOOK_STORE instead. Redis
    /// and Postgres need the feature of their name, as in
    /// `cargo run -p tower-webhook-receiver --features postgres`.
    #[arg(long, value_name = "STORE")]
    pub(crate) store: Option<String>,

    /// Answer each event when it is stored, and handle it later: `sqlite:PATH` or `postgres://HOST/DATABASE`
    ///
    /// Then a failure of the command or the server is retried by the receiver, and the platform does not notice it. The
    /// events of a chat are handled one after another. With `postgres://HOST,HOST/DATABASE`, the receiver uses the one of these
    /// servers that takes writes, and follows it to another one. `receiver inbox` lists, redrives and discards events.
    /// Pass a URL with a password in the environment variable WEBHOOK_INBOX, which `receiver inbox` reads, too. Postgres
    /// needs its feature, as in `cargo run -p tower-webhook-receiver --features postgres`. The environment variable
    /// WEBHOOK_STORE must not be set.
    #[arg(long, value_name = "INBOX")]
    pub(crate) inbox: Option<String>,

    /// Accept events into this file while the database of --inbox cannot be reached
    ///
    /// They are forwarded in their order when it can be. The file, and others beside it, belong to one receiver and one
    /// database, on a disk that outlives the receiver. `receiver inbox flush FILE` forwards what a receiver has left that is
    /// not started again. The receiver needs the features `sqlite` and `postgres`.
    #[arg(long, requires = "inbox", value_name = "FILE")]
    pub(crate) spool: Option<PathBuf>,

    /// The size of the spool, in bytes, beyond which deliveries are answered with 503; its room is reserved at the start
    #[arg(long, requires = "spool", value_name = "BYTES", default_value_t = 1 << 30, value_parser = value_parser!(u64).range(1 << 20..))]
    #[cfg_attr(not(all(feature = "postgres", feature = "sqlite")), allow(dead_code))]
    pub(crate) spool_limit: u64,

    /// Allow a spool on overlayfs or tmpfs, which end with their container or machine and take accepted events with them
    #[arg(long, requires = "spool")]
    #[cfg_attr(not(all(feature = "postgres", feature = "sqlite")), allow(dead_code))]
    pub(crate) spool_on_any_disk: bool,

    /// Keep this header of a delivery with its event, beside `traceparent` and `tracestate`; only with --inbox
    ///
    /// Repeat it for more headers, or separate them by commas. Values of more than 512 bytes are not kept.
    #[arg(long, requires = "later", value_name = "NAME", value_delimiter = ',')]
    #[cfg_attr(not(any(feature = "postgres", feature = "sqlite")), allow(dead_code))]
    pub(crate) keep_header: Vec<HeaderName>,

    /// Keep events of this type only: others are answered with 200, and neither stored, remembered nor handled
    ///
    /// Repeat it for more types, or separate them by commas. By default, all are kept.
    #[arg(long, value_name = "TYPE", value_delimiter = ',')]
    pub(crate) keep_only: Vec<EventKind>,

    /// The name of the route, by which its keys and events are kept; by default, the name of the sender
    ///
    /// Receivers with the same store or inbox and name share their work: an event that one has handled is not
    /// handled by another. A second account of a sender needs another name. Events that are unsettled wait for a
    /// receiver of their name, so do not change the name before they are settled.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<RouteName>,

    /// How long a key stays claimed after its receiver has crashed; at most 599
    ///
    /// The lease of a running event is renewed until the event is finished. It has no effect with
    /// `memory`. With --inbox, an event is tried again when this time has passed after a crash.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = value_parser!(u64).range(1..600))]
    pub(crate) lease: u64,
}

#[derive(Args)]
pub(crate) struct Handling {
    /// A command that is run for each event, by `sh -c`
    ///
    /// It receives the line of JSON on standard input. Exit status 0: the event is handled. 65 (EX_DATAERR):
    /// the event is discarded, because it never will be. 75 (EX_TEMPFAIL): the event is retried later, even
    /// after --max-attempts. Any other: the event has failed, and is retried.
    ///
    /// It does not inherit the credentials in WEBHOOK_SECRET, WEBHOOK_STORE and WEBHOOK_INBOX, nor can it read them in
    /// the environment of the receiver, which starts itself again without them. It runs as the same user, who can read
    /// the file of secrets, arguments, and the environment of the program that started the receiver: for commands that
    /// are not trusted, start them as another user.
    ///
    /// Each line of its standard error is logged with the event's key, as `command` at level INFO; the last
    /// one is the reason in the log if it fails. Its standard output goes to standard error.
    ///
    /// It has a process group of its own. While the command runs, the group is killed at the time limit, when
    /// the receiver stops, and when the receiver dies, even by `kill -9`; only processes that have left the
    /// group go on. Jobs in the background of a command that has ended go on, too.
    #[arg(long, value_name = "COMMAND", value_parser = command)]
    pub(crate) exec: Option<String>,

    /// A local HTTP server, in any language, that each event is posted to
    ///
    /// The body is the line of JSON. Status 2xx: the event is handled. 422: the event is discarded, because it never
    /// will be. 429 or 503, or no connection: the event is retried later, even after --max-attempts. Any other: the
    /// event has failed, and is retried. The first line of the answer is the reason in the log. The server should trust
    /// only this receiver: requests to it are not signed.
    #[arg(long, value_name = "URL", value_parser = forward::url, conflicts_with = "exec")]
    pub(crate) forward: Option<Uri>,

    /// Print no line, which has the payload, for an event that a command or a server has handled
    #[arg(long)]
    pub(crate) quiet: bool,

    /// How many commands or requests run at a time; by default four for each CPU
    ///
    /// While an event waits for its turn, its time limit runs. With --inbox, events wait in the inbox instead, and the
    /// routes of one inbox share the number.
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(1..))]
    pub(crate) concurrency: Option<u16>,

    /// Discard an event whose command or request fails at attempt N or later, with a warning in the log; with --inbox,
    /// it becomes a dead letter
    ///
    /// By default, the platform decides, which retries for 7 days, or with --inbox, --retry-for. Exit status 75 never
    /// discards an event, nor do the statuses 429 and 503, a server that cannot be reached, or a time limit that passed
    /// while the event waited for its turn. Without --inbox, attempts of events without a key are not counted. The time
    /// limit of a last attempt is shorter by a tenth, or by a second if that is less.
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    max_attempts: Option<u32>,

    /// The time limit of an event, after which a command is killed with all processes that it started, or a
    /// request is cancelled
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = value_parser!(u64).range(1..))]
    pub(crate) handler_timeout: u64,

    /// How long an event that fails is retried before it is a dead letter; only with --inbox
    #[arg(long, requires = "later", value_name = "SECONDS", default_value_t = RETRY_FOR, value_parser = value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) retry_for: u64,

    /// Whether the later events of a chat wait when one fails; only with --inbox
    #[arg(long, requires = "later", value_enum, value_name = "CHOICE", default_value_t = OnFailure::Block)]
    pub(crate) on_failure: OnFailure,

    /// How long the receiver still accepts connections when it is stopped, for balancers that learn of it late
    ///
    /// Meanwhile, /readyz is answered with 503, and each response ends its connection.
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = value_parser!(u64).range(..=3_600))]
    pub(crate) drain_delay: u64,

    /// How long the receiver waits for running events when it is stopped
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub(crate) grace: u64,
}

#[derive(Args)]
pub(crate) struct Limits {
    /// The largest body to accept, in bytes: by default, what suits the sender, or 1 MiB
    #[arg(long, value_name = "BYTES", value_parser = value_parser!(u32).range(1..))]
    pub(crate) max_body: Option<u32>,

    /// The memory for all bodies that are being received, in bytes
    ///
    /// Beyond it, the slowest body is refused with 503. At least --max-body.
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20, value_parser = value_parser!(u32).range(1..))]
    pub(crate) max_buffered: u32,

    /// How many connections may be open
    ///
    /// When less than an eighth is free, each new connection closes an old one: the connection without a valid
    /// signature for longest (at least 500 ms), or else the connection idle for longest. A connection at work on a
    /// complete request is never closed. Requests have at most 100 headers, of at most 32 KiB together, so that an
    /// unfinished one takes about 48 KiB of memory; add --max-buffered for bodies. Lowered if the limit of open files
    /// requires it.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = value_parser!(u32).range(1..1_000_000))]
    max_connections: u32,

    /// How long the headers of a request may take
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = value_parser!(u32).range(1..))]
    header_timeout: u32,

    /// How long a connection is kept for its next request: longer than a proxy in front of it keeps it
    #[arg(long, value_name = "SECONDS", default_value_t = 75, value_parser = value_parser!(u32).range(1..))]
    idle_timeout: u32,
}

impl Limits {
    /// The largest body of a sender, and the memory for all bodies, in bytes.
    pub(crate) fn of_bodies(&self, sender: &Sender) -> (usize, usize) {
        let of_sender = || sender.max_body().unwrap_or(1 << 20);
        let max_body = self.max_body.map_or_else(of_sender, |bytes| bytes as usize);
        (max_body, max_body.max(self.max_buffered as usize))
    }
}

#[derive(Args)]
pub(crate) struct Console {
    /// Serve a console at this address: pages that show events to operators, with buttons to redrive, discard and pause
    ///
    /// It does not authenticate anybody: choose an address that only operators reach, such as 127.0.0.1:3001.
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub(crate) console: Option<SocketAddr>,

    /// A host name under which the console may be used, beside IP addresses and `localhost`
    ///
    /// Set that of a proxy in front of the console, which must pass on the header `Host` unchanged. Requests for other
    /// names are refused with 421, because another site could read the console under a name of its own. Repeat it for
    /// more names, or separate them by commas.
    #[arg(long, requires = "console", value_name = "NAME", value_delimiter = ',')]
    #[cfg_attr(not(feature = "console"), allow(dead_code))]
    pub(crate) console_host: Vec<String>,

    /// Remove everything that changes something from the console
    #[arg(long, requires = "console")]
    #[cfg_attr(not(feature = "console"), allow(dead_code))]
    pub(crate) console_read_only: bool,

    /// Hide the payloads of events, and the texts of errors, in the console
    #[arg(long, requires = "console")]
    #[cfg_attr(not(feature = "console"), allow(dead_code))]
    pub(crate) console_hide_payloads: bool,

    /// The header in which a proxy in front of the console passes on the name of the operator; otherwise, operators type it
    ///
    /// Without such a proxy, anybody can set it.
    #[arg(long, requires = "console", value_name = "HEADER")]
    #[cfg_attr(not(feature = "console"), allow(dead_code))]
    pub(crate) console_actor: Option<HeaderName>,
}

#[derive(Args)]
pub(crate) struct Monitoring {
    /// Serve metrics for Prometheus at this address, under /metrics
    ///
    /// Anybody who reaches it can read them, so choose an address of the operator's network. The receiver needs the
    /// feature `metrics`, as in `cargo run -p tower-webhook-receiver --features metrics`.
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub(crate) metrics: Option<SocketAddr>,

    /// A host name under which the metrics may be read, beside IP addresses and `localhost`
    ///
    /// Requests for other names are refused with 421, because another site could read the metrics under a name of its
    /// own. Repeat it for more names, or separate them by commas.
    #[arg(long, requires = "metrics", value_name = "NAME", value_delimiter = ',')]
    #[cfg_attr(not(feature = "metrics"), allow(dead_code))]
    pub(crate) metrics_host: Vec<String>,

    /// Export traces and metrics over OTLP to the collector at this URL, such as http://127.0.0.1:4318
    ///
    /// In JSON over HTTP. The variables OTEL_* of OpenTelemetry set the rest, such as OTEL_SERVICE_NAME,
    /// OTEL_RESOURCE_ATTRIBUTES, OTEL_EXPORTER_OTLP_HEADERS and OTEL_METRIC_EXPORT_INTERVAL. A delivery continues the trace of its header
    /// `traceparent`. The receiver needs the feature `otlp`.
    #[arg(long, value_name = "URL", value_parser = forward::url)]
    pub(crate) otlp: Option<Uri>,

    /// A command that is run when events have become dead letters, by `sh -c`; only with --inbox
    ///
    /// It receives a line of JSON on standard input: `dead_letters`, their number since the last line, and `events`, the
    /// first 100 of them, each with `event`, `route`, `kind`, `outcome` and `reason`. It is run as that of --exec, at most once in
    /// --notify-every, and killed after --handler-timeout. If it fails, that is logged. What is not told when the
    /// receiver stops is lost.
    #[arg(long, requires = "later", value_name = "COMMAND", value_parser = command)]
    pub(crate) on_dead: Option<String>,

    /// A command that is run when alarms begin, become worse or end, by `sh -c`
    ///
    /// It receives a line of JSON on standard input: `alarms`, all of now, and `ended`. Each has `alarm`
    /// (`failure-budget`, `unverified-requests`, `silent`, `slowed`, `waiting`, `cannot-claim`, `spool-full` or `spool-not-flushed`),
    /// `route` and `kind`, and one of now its `severity`, for failures of the last hour `failures`, `limit` and
    /// `disabled_in_seconds`, for a `silent` type `quiet_seconds`, for a `waiting` one `oldest_seconds`, and for a spool `events` and
    /// `full_in_seconds`. A type is `silent` if this process, whatever others get, was delivered none of its events for too
    /// long. It is run as that of --on-dead.
    #[arg(long, value_name = "COMMAND", value_parser = command)]
    pub(crate) on_alarm: Option<String>,

    /// The shortest time between two runs of the command of --on-dead, or of --on-alarm
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = value_parser!(u32).range(1..))]
    pub(crate) notify_every: u32,

    /// The format of the log, on standard error
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Format::Text)]
    pub(crate) log_format: Format,

    /// Log an error when no event of a type is delivered for so many hours, because its webhook may have been disabled
    ///
    /// A type is that of an event, such as `chat-rated`, and at another route than the chat platform's, with the name of the
    /// route in front, such as `github/push`. Repeat it for several types, or separate them by commas. Choose more hours
    /// than a night or a weekend without events, at most 8760. For other types, the receiver learns the longest time between two events, and logs an error after twice that time, at least
    /// one hour. It learns for a week after each start.
    #[arg(long, value_name = "TYPE=HOURS", value_delimiter = ',', value_parser = telemetry::expected)]
    pub(crate) expect: Vec<(EventType, Duration)>,
}

/// The default of `--retry-for`.
pub(crate) const RETRY_FOR: u64 = 604_800;

#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub(crate) enum OnFailure {
    /// They wait, so that the order is kept
    Block,
    /// They are handled without waiting
    Skip,
}

impl Options {
    pub(crate) fn may_run_commands(&self) -> bool {
        let monitoring = &self.monitoring;
        self.handling.exec.is_some()
            // Of a file, any route may have a command.
            || self.listening.config.is_some()
            || monitoring.on_dead.is_some()
            || monitoring.on_alarm.is_some()
    }
}

impl Limits {
    pub(crate) fn of_connections(&self) -> activity::Limits {
        activity::Limits {
            max_connections: self.max_connections as usize,
            head: Duration::from_secs(self.header_timeout.into()),
            // Longer than that of the layers, which answer.
            body: Duration::from_secs(15),
            idle: Duration::from_secs(self.idle_timeout.into()),
        }
    }
}

impl Handling {
    pub(crate) fn of_events(&self) -> event::Limits {
        let cpus = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        event::Limits {
            concurrency: self.concurrency.map_or(4 * cpus, usize::from),
            max_attempts: self.max_attempts.and_then(NonZeroU32::new),
            time: Duration::from_secs(self.handler_timeout),
        }
    }
}

pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    text.to_socket_addrs()
        .ok()
        .and_then(|mut addresses| addresses.next())
        .ok_or_else(|| "use an address and a port, such as 127.0.0.1:3000".to_owned())
}

pub(crate) fn path(text: &str) -> Result<String, &'static str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte);
    match text {
        "/healthz" | "/readyz" => Err("this path is used by the health check"),
        _ if !text.starts_with('/') => Err("a path starts with `/`"),
        _ if !text.bytes().all(is_plain) => Err("use letters, digits and `/-._~`"),
        _ => Ok(text.to_owned()),
    }
}

pub(crate) fn command(text: &str) -> Result<String, &'static str> {
    match text.trim() {
        "" => Err("the command is empty"),
        _ => Ok(text.to_owned()),
    }
}
