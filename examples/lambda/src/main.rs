//! Build with: cargo lambda build --release --manifest-path examples/lambda/Cargo.toml
//!
//! A function of AWS Lambda that accepts webhooks into an inbox in PostgreSQL, behind API Gateway, a function URL or a load
//! balancer. WEBHOOK_SECRET is the secret, and DATABASE_URL the database.
//!
//! A function is frozen when it has answered, so it handles no events. The worker runs elsewhere on the same database, as
//! `receiver run --inbox postgres://… --forward http://…` in a container or on a machine. Start it first: it makes the
//! tables.

use std::env;
use std::time::Duration;

use lambda_http::{Error, run, tracing};
use sqlx::postgres::PgPoolOptions;
use tower_webhook::inbox::Inbox;
use tower_webhook::postgres::PostgresQueue;
use tower_webhook::{Secret, Webhooks};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    tracing::init_default_subscriber();
    // An instance of a function has one request at a time. Without the database, the response is 503.
    let pool = PgPoolOptions::new()
        .max_connections(2)
        .acquire_timeout(Duration::from_secs(3))
        .connect_lazy(&env::var("DATABASE_URL")?)?;
    let inbox = Inbox::new(PostgresQueue::new(pool));
    let secret = Secret::from_env("WEBHOOK_SECRET")?;
    // Of another sender than the chat platform, add `.sender(…)`. The worker's route has the same name.
    let webhooks = inbox.routes().accept(Webhooks::new(secret))?;
    run(webhooks).await
}
