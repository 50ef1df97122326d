//! Run with: cargo run --example extractor --features axum,signal
//!
//! Receives webhooks with ordinary axum handlers, one URL for each kind of event, behind one layer. Around
//! everything are the layers that most applications have: request ids, tracing and caught panics.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::http::StatusCode;
use axum::routing::{get, post};
use clap::Parser;
use tokio::net::TcpListener;
use tower::ServiceBuilder;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::request_id::{MakeRequestUuid, PropagateRequestIdLayer, SetRequestIdLayer};
use tower_http::trace::{DefaultMakeSpan, TraceLayer};
use tower_webhook::event::{ChatRated, MessageCreated};
use tower_webhook::{Delivery, RawDelivery, Secret, Webhooks};
use tracing::Level;

/// Receive the chat platform's webhooks with axum handlers, and print ratings and messages.
#[derive(Parser)]
#[command(name = "extractor")]
struct Args {
    /// The address to listen on; port 0 picks a free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:3000")]
    listen: SocketAddr,

    /// The secret that is set in the partner portal; by default a random one, which is printed
    #[arg(long, value_name = "SECRET", env = "WEBHOOK_SECRET", hide_env_values = true, value_parser = |text: &str| Secret::new(text))]
    secret: Option<Secret>,
}

async fn rated(chat: Delivery<ChatRated>) -> Result<(), StatusCode> {
    // With any status but 2xx, the platform retries the event.
    let id = chat.payload.id.ok_or(StatusCode::UNPROCESSABLE_ENTITY)?;
    println!("{id} was rated {:?}", chat.payload.rating);
    Ok(())
}

async fn message(message: Delivery<MessageCreated>) {
    println!("new message: {:?}", message.payload.text);
}

/// Takes events of every kind, without decoding them.
async fn any(delivery: RawDelivery) {
    println!("{}: {} bytes", delivery.kind(), delivery.body().len());
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .init();

    let listener = TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("cannot listen on {}", args.listen))?;
    let url = format!("http://{}/chat-rated", listener.local_addr()?);
    eprintln!("listening on {url}, and on /message-created and /any");
    let secret = match args.secret {
        Some(secret) => secret,
        None => random_secret(&url)?,
    };

    let request = DefaultMakeSpan::new().level(Level::INFO);
    let (webhooks, running) = Webhooks::new(secret).into_layer()?;
    let app = Router::new()
        .route("/chat-rated", post(rated))
        .route("/message-created", post(message))
        .route("/any", post(any))
        // Around the routes so far. With `layer`, unknown paths would not be answered with 404.
        .route_layer(webhooks)
        .route(
            "/",
            get(async || "an application that also receives webhooks\n"),
        )
        .layer(
            ServiceBuilder::new() // The first layer is the outermost.
                .layer(SetRequestIdLayer::x_request_id(MakeRequestUuid))
                .layer(TraceLayer::new_for_http().make_span_with(request))
                .layer(PropagateRequestIdLayer::x_request_id())
                .layer(CatchPanicLayer::new()),
        );

    let server = |stop| axum::serve(listener, app).with_graceful_shutdown(stop);
    let limit = Duration::from_secs(30);
    running
        .serve(tower_webhook::shutdown(), limit, server)
        .await?;
    Ok(())
}

fn random_secret(url: &str) -> anyhow::Result<Secret> {
    let mut bytes = [0; 20];
    getrandom::fill(&mut bytes)?;
    let secret = base16ct::lower::encode_string(&bytes);
    eprintln!(
        "send a first event with\n\n  \
         cargo run -p tower-webhook-receiver -- send --url {url} --secret {secret}\n"
    );
    Ok(Secret::new(secret)?)
}
