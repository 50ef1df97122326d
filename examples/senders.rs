//! Run with: cargo run --example senders --features signal,sqlite
//!
//! Receives webhooks of GitHub and Stripe beside those of the chat platform: each sender has a route, a secret and
//! handlers of its own. They share one inbox, one worker and one console.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use clap::Parser;
use tokio::net::TcpListener;
use tower_webhook::event::ChatRated;
use tower_webhook::inbox::Inbox;
use tower_webhook::sqlite::SqliteQueue;
use tower_webhook::{Delivery, EventRouter, HandlerResult, RawDelivery, Secret, Sender, Webhooks};
use tower_webhook_console::Console;

/// Receive webhooks with the secrets in WEBHOOK_SECRET, GITHUB_SECRET and STRIPE_SECRET.
#[derive(Parser)]
struct Args {
    #[arg(long, default_value = "127.0.0.1:3000")]
    listen: SocketAddr,
    #[arg(long, default_value = "127.0.0.1:3001")]
    console: SocketAddr,
    #[arg(long, default_value = "webhooks.db")]
    database: String,
}

async fn rated(chat: Delivery<ChatRated>) -> HandlerResult {
    println!("a chat was rated {:?}", chat.payload.rating);
    Ok(())
}

/// GitHub's event `push`, with the fields that are needed here.
#[derive(serde::Deserialize)]
struct Push {
    r#ref: String,
    repository: Repository,
}

#[derive(serde::Deserialize)]
struct Repository {
    full_name: String,
}

async fn pushed(push: Push, _: RawDelivery) -> HandlerResult {
    println!("{} was pushed to {}", push.r#ref, push.repository.full_name);
    Ok(())
}

async fn paid(event: serde_json::Value, _: RawDelivery) -> HandlerResult {
    let invoice = &event["data"]["object"];
    let customer = invoice["customer"].as_str().unwrap_or("somebody");
    println!("{customer} has paid {}", invoice["amount_paid"]);
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr);
    log.init();

    let inbox = Inbox::new(SqliteQueue::open(args.database)?);
    let mut routes = inbox.routes();
    let chats = Webhooks::new(Secret::from_env("WEBHOOK_SECRET")?);
    let chats = routes.add(chats, EventRouter::new().on::<ChatRated>(rated))?;
    let github = Webhooks::new(Secret::from_env("GITHUB_SECRET")?)
        .sender(Sender::github())
        .lane_by(|push| Some(push.decode::<Push>().ok()?.repository.full_name)); // its pushes in order
    let github = routes.add(github, EventRouter::new().on_named("push", pushed))?;
    let stripe = Webhooks::new(Secret::from_env("STRIPE_SECRET")?).sender(Sender::stripe());
    let stripe = routes.add(stripe, EventRouter::new().on_named("invoice.paid", paid))?;
    let running = routes.start()?;

    let console = Console::new().inbox(inbox).hosts(["localhost"]).router();
    let operators = TcpListener::bind(args.console).await?;
    eprintln!("console on http://{}/", operators.local_addr()?);
    tokio::spawn(axum::serve(operators, console).into_future());

    let app = Router::new()
        .route_service("/webhooks", chats)
        .route_service("/github", github)
        .route_service("/stripe", stripe);
    let listener = TcpListener::bind(args.listen).await?;
    eprintln!("listening on http://{}/webhooks", listener.local_addr()?);
    let server = |stop| axum::serve(listener, app).with_graceful_shutdown(stop);
    let serving = running.serve(tower_webhook::shutdown(), Duration::from_secs(30), server);
    Ok(serving.await?)
}
