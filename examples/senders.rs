//! Run with: cargo run --example senders --features console,signal,sqlite
//!
//! Receives webhooks of GitHub and Stripe beside those of the chat platform: each sender has a route, a secret and
//! handlers of its own. Their events are in one database, and one console shows them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use clap::Parser;
use serde::Deserialize;
use tokio::net::TcpListener;
use tower_webhook::event::{ChatRated, Event, EventKind};
use tower_webhook::inbox::Inbox;
use tower_webhook::sqlite::SqliteQueue;
use tower_webhook::{Delivery, EventRouter, RawDelivery, Secret, Sender, Webhooks};
use tower_webhook_console::Console;

/// Receive webhooks of the chat platform, GitHub and Stripe, and print ratings, pushes and payments.
///
/// The secrets are those in the environment variables WEBHOOK_SECRET, GITHUB_SECRET and STRIPE_SECRET.
#[derive(Parser)]
#[command(name = "senders")]
struct Args {
    /// The address to listen on; port 0 picks a free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:3000")]
    listen: SocketAddr,

    /// The address of the console, for operators alone
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:3001")]
    console: SocketAddr,

    /// The file of the inbox
    #[arg(long, value_name = "FILE", default_value = "webhooks.db")]
    database: PathBuf,
}

/// GitHub's event `push`. A payload has the fields that a handler needs.
enum Push {}

#[derive(Deserialize)]
struct Pushed {
    r#ref: String,
    repository: Repository,
}

#[derive(Deserialize)]
struct Repository {
    full_name: String,
}

impl Event for Push {
    const KIND: EventKind = EventKind::from_static("push");
    type Payload = Pushed;
}

/// Stripe's event `invoice.paid`.
enum InvoicePaid {}

#[derive(Deserialize)]
struct Paid {
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    object: Invoice,
}

#[derive(Deserialize)]
struct Invoice {
    customer: String,
    amount_paid: i64,
}

impl Event for InvoicePaid {
    const KIND: EventKind = EventKind::from_static("invoice.paid");
    type Payload = Paid;
}

/// The pushes to a repository are handled in order, as the events of a chat are.
fn repository(delivery: &RawDelivery) -> Option<String> {
    let pushed: Pushed = delivery.decode().ok()?;
    Some(pushed.repository.full_name)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .init();

    // Clones share the database. The namespace of each sender is its name.
    let inbox = Inbox::new(SqliteQueue::open(args.database)?);

    let events = EventRouter::new().on::<ChatRated>(async |chat: Delivery<ChatRated>| {
        println!("a chat was rated {:?}", chat.payload.rating);
        Ok(())
    });
    let (chats, of_chats) = Webhooks::new(Secret::from_env("WEBHOOK_SECRET")?)
        .inbox(inbox.clone())
        .start(events)?;

    let events = EventRouter::new().on::<Push>(async |push: Delivery<Push>| {
        let Pushed { r#ref, repository } = push.payload;
        println!("{} was pushed to {}", r#ref, repository.full_name);
        Ok(())
    });
    let (github, of_github) = Webhooks::new(Secret::from_env("GITHUB_SECRET")?)
        .sender(Sender::github())
        .inbox(inbox.clone().chat_by(repository))
        .start(events)?;

    let events = EventRouter::new().on::<InvoicePaid>(async |paid: Delivery<InvoicePaid>| {
        let invoice = paid.payload.data.object;
        println!("{} has paid {}", invoice.customer, invoice.amount_paid);
        Ok(())
    });
    let (stripe, of_stripe) = Webhooks::new(Secret::from_env("STRIPE_SECRET")?)
        .sender(Sender::stripe())
        .inbox(inbox.clone())
        .start(events)?;

    let console = Console::new().inbox(inbox).hosts(["localhost"]).router();
    let operators = bind(args.console).await?;
    eprintln!("console on http://{}/", operators.local_addr()?);
    tokio::spawn(axum::serve(operators, console).into_future());

    let app = Router::new()
        .route_service("/webhooks", chats)
        .route_service("/github", github)
        .route_service("/stripe", stripe);
    let listener = bind(args.listen).await?;
    let url = format!("http://{}/webhooks", listener.local_addr()?);
    eprintln!("listening on {url}, and on /github and /stripe");
    axum::serve(listener, app)
        .with_graceful_shutdown(tower_webhook::shutdown())
        .await?;
    let limit = Duration::from_secs(30);
    tokio::try_join!(
        of_chats.drain(limit),
        of_github.drain(limit),
        of_stripe.drain(limit)
    )?;
    Ok(())
}

async fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(address).await;
    listener.with_context(|| format!("cannot listen on {address}"))
}
