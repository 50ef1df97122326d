//! Run with: cargo run --example hyper --features signal
//!
//! Receives webhooks with hyper alone, without axum: one service for every path.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tower_webhook::event::{ChatRated, MessageCreated};
use tower_webhook::{Delivery, EventRouter, Handler, HandlerResult, Secret, Webhooks};

/// Receive the chat platform's webhooks with hyper alone, and print ratings and messages.
#[derive(Parser)]
#[command(name = "hyper")]
struct Args {
    /// The address to listen on; port 0 picks a free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:3000")]
    listen: SocketAddr,

    /// The secret that is set in the partner portal; by default a random one, which is printed
    #[arg(long, value_name = "SECRET", env = "WEBHOOK_SECRET", hide_env_values = true, value_parser = |text: &str| Secret::new(text))]
    secret: Option<Secret>,
}

struct Crm;

impl Handler<ChatRated> for Crm {
    async fn handle(&self, chat: Delivery<ChatRated>) -> HandlerResult {
        println!("{:?} was rated {:?}", chat.payload.id, chat.payload.rating);
        Ok(())
    }
}

impl Handler<MessageCreated> for Crm {
    async fn handle(&self, message: Delivery<MessageCreated>) -> HandlerResult {
        println!("new message: {:?}", message.payload.text);
        Ok(())
    }
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
    let url = format!("http://{}/", listener.local_addr()?);
    eprintln!("listening on {url}");
    let secret = match args.secret {
        Some(secret) => secret,
        None => random_secret(&url)?,
    };

    let events = EventRouter::new()
        .on::<ChatRated>(Crm)
        .on::<MessageCreated>(Crm);
    let (webhooks, running) = Webhooks::new(secret).start(events)?;
    let service = TowerToHyperService::new(webhooks);

    let server = |stop| async {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()); // Without a timer, headers have no time limit.
        let connections = GracefulShutdown::new();
        let accept = async {
            loop {
                // For instance, too many open files. Others may be closed after the pause.
                let Ok((stream, _)) = listener.accept().await else {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                };
                let connection = http.serve_connection(TokioIo::new(stream), service.clone());
                tokio::spawn(connections.watch(connection));
            }
        };
        tokio::select! {
            () = accept => {}
            () = stop => {}
        }
        drop(listener);
        connections.shutdown().await;
        Ok::<_, Infallible>(())
    };
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
