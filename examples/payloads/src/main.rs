//! Receives webhooks of GitHub, Slack and Stripe in one inbox, with the payloads of octocrab, slack-morphism and async-stripe.

use std::time::Duration;

use axum::Router;
use octocrab::models::webhook_events::payload::{
    IssuesWebhookEventPayload, PushWebhookEventPayload,
};
use serde::Deserialize;
use slack_morphism::prelude::{SlackEventCallbackBody, SlackPushEventCallback};
use stripe_shared::Invoice;
use tokio::net::TcpListener;
use tower_webhook::inbox::Inbox;
use tower_webhook::sqlite::SqliteQueue;
use tower_webhook::{EventRouter, RawDelivery, Secret, Sender, Webhooks};

/// An event of Stripe's whose object is a `T`.
#[derive(Deserialize)]
struct Event<T> {
    data: Data<T>,
}

#[derive(Deserialize)]
struct Data<T> {
    object: T,
}

fn github() -> EventRouter {
    EventRouter::new()
        .on_named("push", async |push: PushWebhookEventPayload, _| {
            println!(
                "{} commits were pushed to {}",
                push.commits.len(),
                push.r#ref
            );
            Ok(())
        })
        .on_named("issues", async |issue: IssuesWebhookEventPayload, _| {
            println!("an issue was {:?}", issue.action);
            Ok(())
        })
        .fallback(async |other: RawDelivery| {
            println!("another event of GitHub: {}", other.kind());
            Ok(())
        })
}

fn slack() -> EventRouter {
    // The event type of a delivery is that of the event within it. Slack sends those that the app subscribes to.
    EventRouter::new().on_named("app_mention", async |mention: SlackPushEventCallback, _| {
        if let SlackEventCallbackBody::AppMention(mention) = mention.event {
            println!("{} mentions the app in {}", mention.user, mention.channel);
        }
        Ok(())
    })
}

fn stripe() -> EventRouter {
    EventRouter::new().on_named("invoice.paid", async |paid: Event<Invoice>, _| {
        let Invoice {
            amount_paid,
            currency,
            ..
        } = paid.data.object;
        println!("an invoice of {amount_paid} {currency} was paid");
        Ok(())
    })
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .init();
    let mut routes = Inbox::new(SqliteQueue::open("webhooks.db")?).routes();
    let secret = |name| Ok::<_, tower_webhook::ConfigError>(Webhooks::new(Secret::from_env(name)?));
    let app = Router::new()
        .route_service(
            "/github",
            routes.add(secret("GITHUB_SECRET")?.sender(Sender::github()), github())?,
        )
        .route_service(
            "/slack",
            routes.add(secret("SLACK_SECRET")?.sender(Sender::slack()), slack())?,
        )
        .route_service(
            "/stripe",
            routes.add(secret("STRIPE_SECRET")?.sender(Sender::stripe()), stripe())?,
        );
    let running = routes.start()?;
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on http://{}", listener.local_addr()?);
    let server = |stop| axum::serve(listener, app).with_graceful_shutdown(stop);
    running
        .serve(tower_webhook::shutdown(), Duration::from_secs(30), server)
        .await?;
    Ok(())
}
