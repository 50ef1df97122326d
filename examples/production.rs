//! Run with: WEBHOOK_SECRET=one GITHUB_SECRET=two CONSOLE_LOGIN=ada:password cargo run --example production --features
//! metrics,signal,sqlite
//!
//! An application as it runs in production: webhooks of two senders with one inbox, readiness, metrics for Prometheus, a log in
//! JSON, and the console behind a login. Several machines share a database: `PostgresQueue::open(pool).await?` in place of
//! `SqliteQueue::open(file)?`.

use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use base64::prelude::{BASE64_STANDARD, Engine};
use clap::Parser;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tower_webhook::event::ChatRated;
use tower_webhook::inbox::Inbox;
use tower_webhook::sqlite::SqliteQueue;
use tower_webhook::telemetry::{FailureBudget, Metrics, Recent, Silence};
use tower_webhook::{Delivery, EventRouter, RawDelivery, Running, Secret, Sender, Webhooks};
use tower_webhook_console::Console;
use tracing_subscriber::EnvFilter;

/// The header that tells the console who is logged in.
const OPERATOR: HeaderName = HeaderName::from_static("x-operator");

/// Receive webhooks with the secrets in WEBHOOK_SECRET and GITHUB_SECRET.
#[derive(Parser)]
struct Args {
    /// Webhooks, behind a proxy that terminates TLS
    #[arg(long, env, default_value = "127.0.0.1:3000")]
    listen: SocketAddr,
    /// Console and metrics, for a private network
    #[arg(long, env, default_value = "127.0.0.1:3001")]
    operators: SocketAddr,
    #[arg(long, env, default_value = "webhooks.db")]
    database: String,
    /// The name and password of an operator, such as `ada:correct-horse`: as an argument, other users of the machine see it
    #[arg(long, env, hide_env_values = true)]
    console_login: Login,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    // The spans of the library, which have route, type and key, are at `info`.
    let filter = EnvFilter::try_from_default_env();
    let filter = filter.unwrap_or_else(|_| EnvFilter::new("warn,tower_webhook=info"));
    let log = tracing_subscriber::fmt()
        .json()
        .with_writer(std::io::stderr);
    log.with_env_filter(filter).init();

    let prometheus = PrometheusBuilder::new()
        .set_buckets(&[0.001, 0.01, 0.1, 1.0, 10.0])? // without buckets, it renders summaries
        .install_recorder()?;

    // The first route has the observer of all routes and of the worker.
    let (budget, silence, recent) = (
        FailureBudget::default(),
        Silence::new().learn(),
        Recent::new(),
    );
    tokio::spawn(silence.clone().watch()); // logs an error when an event type is no longer delivered
    let inbox = Inbox::new(SqliteQueue::open(args.database)?);
    let mut routes = inbox.routes();
    let chats = Webhooks::new(Secret::from_env("WEBHOOK_SECRET")?).observer((
        Metrics::new(),
        budget.clone(),
        silence.clone(),
        recent.clone(),
    ));
    let chats = routes.add(chats, chat_events())?;
    let github = Webhooks::new(Secret::from_env("GITHUB_SECRET")?).sender(Sender::github());
    let github = routes.add(github, github_events())?;
    let running = Arc::new(routes.start()?);

    let console = Console::new()
        .inbox(inbox.clone())
        .budget(budget.clone())
        .silence(silence.clone())
        .recent(recent)
        .actor_header(OPERATOR)
        .router();
    let login = args.console_login;
    let console = console.layer(from_fn(move |request, next| {
        login.clone().check(request, next)
    }));
    let metrics = MetricsPage {
        budget,
        silence,
        running: Arc::clone(&running),
        prometheus,
    };
    let operators = Router::new()
        .route("/metrics", get(move || metrics.clone().render()))
        .fallback_service(console);
    let listener = TcpListener::bind(args.operators).await?;
    eprintln!("console on http://{}/", listener.local_addr()?);
    tokio::spawn(axum::serve(listener, operators).into_future());

    let app = Router::new()
        .route_service("/webhooks", chats)
        .route_service("/github", github)
        .route("/healthz", get(StatusCode::OK)) // the process runs
        .route("/readyz", get(move || readiness(inbox.clone())));
    let listener = TcpListener::bind(args.listen).await?;
    eprintln!("listening on http://{}/webhooks", listener.local_addr()?);
    let server = |stop| axum::serve(listener, app).with_graceful_shutdown(stop);
    let limit = Duration::from_secs(30); // shorter than the time after which the supervisor kills
    Ok(running
        .serve(tower_webhook::shutdown(), limit, server)
        .await?)
}

fn chat_events() -> EventRouter {
    EventRouter::new().on::<ChatRated>(async |chat: Delivery<ChatRated>| {
        println!("a chat was rated {:?}", chat.payload.rating);
        Ok(())
    })
}

fn github_events() -> EventRouter {
    EventRouter::new().on_named("push", async |push: serde_json::Value, _: RawDelivery| {
        println!("{} was pushed", push["ref"]);
        Ok(())
    })
}

/// Whether a delivery would be stored now: a balancer takes the machine out while it would not.
async fn readiness(inbox: Inbox) -> StatusCode {
    match inbox.is_ready().await {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    }
}

#[derive(Clone)]
struct MetricsPage {
    budget: FailureBudget,
    silence: Silence,
    running: Arc<Running>,
    prometheus: PrometheusHandle,
}

impl MetricsPage {
    async fn render(self) -> String {
        self.budget.record_metrics();
        self.silence.record_metrics();
        let _ = self.running.record_metrics().await; // an error is a metric, too
        self.prometheus.run_upkeep();
        self.prometheus.render()
    }
}

/// One operator with a password. For more, put a proxy in front that passes on the name of who is logged in.
#[derive(Clone)]
struct Login {
    name: HeaderValue,
    digest: [u8; 32],
}

impl FromStr for Login {
    type Err = &'static str;

    fn from_str(login: &str) -> Result<Self, Self::Err> {
        let parts = login.split_once(':');
        let parts = parts.filter(|(name, password)| !name.is_empty() && !password.is_empty());
        let (name, _) = parts.ok_or("expected NAME:PASSWORD")?;
        let header = format!("Basic {}", BASE64_STANDARD.encode(login));
        Ok(Self {
            name: HeaderValue::from_str(name).map_err(|_| "the name is not ASCII")?,
            digest: Sha256::digest(header).into(),
        })
    }
}

impl Login {
    async fn check(self, mut request: Request, next: Next) -> Response {
        let given = request
            .headers()
            .get(AUTHORIZATION)
            .map_or(&[][..], HeaderValue::as_bytes);
        // Digests are compared, so that the time does not tell how much of a password is right.
        if self.digest[..] != Sha256::digest(given)[..] {
            let ask = [(WWW_AUTHENTICATE, r#"Basic realm="console""#)];
            return (StatusCode::UNAUTHORIZED, ask).into_response();
        }
        // In place of what the client may have sent.
        request.headers_mut().insert(OPERATOR, self.name);
        next.run(request).await
    }
}
