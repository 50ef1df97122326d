//! The control of `run`: a route that decodes JSON and prints a field, on axum alone.

use axum::routing::post;
use axum::{Json, Router};
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

#[derive(Deserialize)]
struct Chat {
    id: String,
    rating: Option<f64>,
}

async fn rated(Json(chat): Json<Chat>) {
    println!("chat {} was rated {:?}", chat.id, chat.rating);
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt::init();
    let app = Router::new().route("/webhooks", post(rated));
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    let mut terminate = signal(SignalKind::terminate())?;
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    };
    axum::serve(listener, app)
        .with_graceful_shutdown(stop)
        .await?;
    Ok(())
}
