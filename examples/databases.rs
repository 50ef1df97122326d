//! Run with: cargo run --example databases --features postgres,signal -- --database URL --database URL
//!
//! Divides chats over several databases, for more events than one database takes. Each has a complete inbox, with a
//! worker and a console of its own, so that a chat has its order, its keys and its transactions in one database.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use clap::Parser;
use futures_util::future::try_join_all;
use http::Request;
use serde_json::Value;
use sha2::{Digest, Sha256};
use sqlx::postgres::PgPoolOptions;
use tokio::net::TcpListener;
use tower::{Layer, Service, service_fn};
use tower_webhook::event::ChatRated;
use tower_webhook::inbox::Inbox;
use tower_webhook::postgres::PostgresQueue;
use tower_webhook::{
    Delivery, EventRouter, HandlerResult, Receiver, ReceiverFuture, Secret, SignatureLayer,
    Verified, Webhooks,
};
use tower_webhook_console::Console;

/// Receive the chat platform's webhooks with the secret in WEBHOOK_SECRET.
#[derive(Parser)]
struct Args {
    #[arg(long, default_value = "127.0.0.1:3000")]
    listen: SocketAddr,
    /// The consoles, at `/0/`, `/1/` and so on
    #[arg(long, default_value = "127.0.0.1:3001")]
    console: SocketAddr,
    /// The URL of a database; repeat it for each, always in the same order
    #[arg(long, value_name = "URL", required = true)]
    database: Vec<String>,
}

async fn rated(chat: Delivery<ChatRated>) -> HandlerResult {
    println!("{:?} was rated {:?}", chat.payload.id, chat.payload.rating);
    Ok(())
}

/// Hands a delivery to the inbox of its chat, which verifies it once more.
fn divide(inboxes: &[Receiver], request: Request<Verified>) -> ReceiverFuture {
    let chat = chat(request.body().delivery().body());
    inboxes[place(&chat, inboxes.len())].clone().call(request)
}

/// The chat: `chat.id` of a message, and `id` of other events.
fn chat(body: &[u8]) -> String {
    let event: Value = serde_json::from_slice(body).unwrap_or_default();
    let of_message = event["chat"]["id"].as_str();
    let chat = of_message.or(event["id"].as_str());
    chat.unwrap_or_default().to_owned()
}

/// The database with the highest digest has the chat. One that is added at the end so takes its share of the chats, and
/// no other chat moves.
fn place(chat: &str, databases: usize) -> usize {
    let digest = |at: &usize| Sha256::digest(format!("{at} {chat}"));
    (0..databases).max_by_key(digest).unwrap_or_default()
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr);
    log.init();

    let (mut inboxes, mut workers, mut consoles) = (Vec::new(), Vec::new(), Router::new());
    for (at, url) in args.database.iter().enumerate() {
        let pool = PgPoolOptions::new().max_connections(16).connect(url).await;
        let pool = pool.with_context(|| format!("database {at} cannot be used"))?;
        let inbox = Inbox::new(PostgresQueue::open(pool).await?);
        let mut routes = inbox.routes();
        let webhooks = Webhooks::new(Secret::from_env("WEBHOOK_SECRET")?);
        inboxes.push(routes.add(webhooks, EventRouter::new().on::<ChatRated>(rated))?);
        workers.push(routes.start()?);
        let console = Console::new().inbox(inbox).hosts(["localhost"]);
        consoles = consoles.nest_service(&format!("/{at}"), console.router());
    }

    let operators = TcpListener::bind(args.console).await?;
    eprintln!("consoles on http://{}/0/", operators.local_addr()?);
    tokio::spawn(axum::serve(operators, consoles).into_future());

    // In front of all, the layer refuses what is forged, too large or too slow.
    let verify = SignatureLayer::new(Secret::from_env("WEBHOOK_SECRET")?);
    let inboxes: Arc<[Receiver]> = inboxes.into();
    let webhooks = verify.layer(service_fn(move |request| divide(&inboxes, request)));
    let app = Router::new().route_service("/webhooks", webhooks);
    let listener = TcpListener::bind(args.listen).await?;
    eprintln!("listening on http://{}/webhooks", listener.local_addr()?);
    axum::serve(listener, app)
        .with_graceful_shutdown(tower_webhook::shutdown())
        .await?;
    try_join_all(workers.iter().map(|it| it.drain(Duration::from_secs(30)))).await?;
    Ok(())
}
