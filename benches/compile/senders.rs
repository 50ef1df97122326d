//! A program of `run`: a receiver of four senders, as a user of the library writes it. Their events are in one inbox: in
//! the PostgreSQL database of `DATABASE_URL`, or without it in a file.

use std::env::{self, VarError};
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use serde::Deserialize;
use sqlx::postgres::PgPool;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tower_webhook::event::{ChatClosed, ChatRated, Event, EventKind, MessageCreated};
use tower_webhook::inbox::{Inbox, OnFailure, Retry};
use tower_webhook::postgres::PostgresQueue;
use tower_webhook::sqlite::SqliteQueue;
use tower_webhook::{Delivery, EventRouter, Handler, HandlerError, HandlerResult};
use tower_webhook::{RawDelivery, Secret, Sender, Webhooks};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

// The chat platform. The library has its events and payloads.

async fn rated(delivery: Delivery<ChatRated>) -> HandlerResult {
    let chat = delivery.payload;
    let (Some(id), Some(rating)) = (chat.id, chat.rating) else {
        return Err(HandlerError::discard("a rating without a chat or a value"));
    };
    println!("chat {id} was rated {rating}");
    Ok(())
}

async fn closed(delivery: Delivery<ChatClosed>) -> HandlerResult {
    let chat = delivery.payload;
    let id = chat.id.ok_or("a chat without an id")?;
    let expert = chat.expert.and_then(|expert| expert.name);
    println!("chat {id} was closed by {expert:?}");
    Ok(())
}

fn chats() -> EventRouter {
    EventRouter::new()
        .on::<ChatRated>(rated)
        .on::<ChatClosed>(closed)
        .on::<MessageCreated>(async |message: Delivery<MessageCreated>| {
            println!("message: {:?}", message.payload.text);
            Ok(())
        })
}

// GitHub. The handlers share what they need.

#[derive(Clone)]
struct Desk(mpsc::Sender<String>);

impl Desk {
    async fn write(&self, line: String) -> HandlerResult {
        let limit = Duration::from_secs(5);
        Ok(self.0.send_timeout(line, limit).await?)
    }
}

enum Push {}

impl Event for Push {
    const KIND: EventKind = EventKind::from_static("push");
    type Payload = Pushed;
}

#[derive(Deserialize)]
struct Pushed {
    commits: Vec<Commit>,
    repository: Repository,
}

#[derive(Deserialize)]
struct Commit {
    id: String,
    message: String,
}

#[derive(Deserialize)]
struct Repository {
    full_name: String,
}

impl Handler<Push> for Desk {
    async fn handle(&self, delivery: Delivery<Push>) -> HandlerResult {
        let name = delivery.payload.repository.full_name;
        for Commit { id, message } in delivery.payload.commits {
            self.write(format!("{name}: {id} {message}")).await?;
        }
        Ok(())
    }
}

enum Issues {}

impl Event for Issues {
    const KIND: EventKind = EventKind::from_static("issues");
    type Payload = IssueChanged;
}

#[derive(Deserialize)]
struct IssueChanged {
    action: String,
    issue: Issue,
}

#[derive(Deserialize)]
struct Issue {
    number: u64,
    title: String,
}

impl Handler<Issues> for Desk {
    async fn handle(&self, delivery: Delivery<Issues>) -> HandlerResult {
        let IssueChanged { action, issue } = delivery.payload;
        let Issue { number, title } = issue;
        self.write(format!("#{number} ({title}) was {action}"))
            .await
    }
}

enum Release {}

impl Event for Release {
    const KIND: EventKind = EventKind::from_static("release");
    type Payload = Released;
}

#[derive(Deserialize)]
struct Released {
    action: String,
    release: Tag,
}

#[derive(Deserialize)]
struct Tag {
    tag_name: String,
}

impl Handler<Release> for Desk {
    async fn handle(&self, delivery: Delivery<Release>) -> HandlerResult {
        let Released { action, release } = delivery.payload;
        if action != "published" {
            return Ok(());
        }
        self.write(format!("released {}", release.tag_name)).await
    }
}

fn github(desk: Desk) -> EventRouter {
    EventRouter::new()
        .on::<Push>(desk.clone())
        .on::<Issues>(desk.clone())
        .on::<Release>(desk)
}

/// The events of a repository are handled in order.
fn repository(delivery: &RawDelivery) -> Option<String> {
    #[derive(Deserialize)]
    struct Of {
        repository: Repository,
    }

    let of: Of = delivery.decode().ok()?;
    Some(of.repository.full_name)
}

// Stripe. Each of its events has the object that it is about.

enum InvoicePaid {}
enum InvoicePaymentFailed {}
enum SubscriptionDeleted {}

impl Event for InvoicePaid {
    const KIND: EventKind = EventKind::from_static("invoice.paid");
    type Payload = About<Invoice>;
}

impl Event for InvoicePaymentFailed {
    const KIND: EventKind = EventKind::from_static("invoice.payment_failed");
    type Payload = About<Invoice>;
}

impl Event for SubscriptionDeleted {
    const KIND: EventKind = EventKind::from_static("customer.subscription.deleted");
    type Payload = About<Subscription>;
}

#[derive(Deserialize)]
struct About<T> {
    data: Data<T>,
}

#[derive(Deserialize)]
struct Data<T> {
    object: T,
}

#[derive(Deserialize)]
struct Invoice {
    customer: String,
    amount_due: i64,
    amount_paid: i64,
}

#[derive(Deserialize)]
struct Subscription {
    customer: String,
}

async fn unpaid(delivery: Delivery<InvoicePaymentFailed>) -> HandlerResult {
    let invoice = delivery.payload.data.object;
    let owed = invoice.amount_due - invoice.amount_paid;
    println!("{} owes {owed}", invoice.customer);
    Ok(())
}

fn stripe(desk: Desk) -> EventRouter {
    EventRouter::new()
        .on::<InvoicePaid>(async |paid: Delivery<InvoicePaid>| {
            let invoice = paid.payload.data.object;
            println!("{} paid {}", invoice.customer, invoice.amount_paid);
            Ok(())
        })
        .on::<InvoicePaymentFailed>(unpaid)
        .on::<SubscriptionDeleted>(move |deleted: Delivery<SubscriptionDeleted>| {
            let desk = desk.clone();
            async move {
                let customer = deleted.payload.data.object.customer;
                desk.write(format!("{customer} has left")).await
            }
        })
}

// Shopify.

enum OrderCreated {}
enum OrderPaid {}
enum AppUninstalled {}

impl Event for OrderCreated {
    const KIND: EventKind = EventKind::from_static("orders/create");
    type Payload = Order;
}

impl Event for OrderPaid {
    const KIND: EventKind = EventKind::from_static("orders/paid");
    type Payload = Order;
}

impl Event for AppUninstalled {
    const KIND: EventKind = EventKind::from_static("app/uninstalled");
    type Payload = Shop;
}

#[derive(Deserialize)]
struct Order {
    name: String,
    email: Option<String>,
    total_price: String,
}

#[derive(Deserialize)]
struct Shop {
    domain: String,
}

async fn ordered(delivery: Delivery<OrderCreated>) -> HandlerResult {
    let order = delivery.payload;
    println!("{} for {}", order.name, order.total_price);
    Ok(())
}

async fn paid(delivery: Delivery<OrderPaid>) -> HandlerResult {
    let Order { name, email, .. } = delivery.payload;
    let Some(email) = email else {
        return Err(HandlerError::dead_letter("an order without an address"));
    };
    println!("{email} paid {name}");
    Ok(())
}

fn shopify() -> EventRouter {
    EventRouter::new()
        .on::<OrderCreated>(ordered)
        .on::<OrderPaid>(paid)
        .on::<AppUninstalled>(async |uninstalled: Delivery<AppUninstalled>| {
            println!("{} has left", uninstalled.payload.domain);
            Ok(())
        })
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt::init();
    let inbox: Inbox = match env::var("DATABASE_URL") {
        Ok(url) => PostgresQueue::open(PgPool::connect(&url).await?)
            .await?
            .into(),
        Err(VarError::NotPresent) => SqliteQueue::open("webhooks.db")?.into(),
        Err(error) => return Err(error).context("DATABASE_URL"),
    };
    let inbox = inbox.keep_bodies(2 * DAY).worker(|worker| {
        worker
            .retry(Retry::default().give_up_after(3 * DAY))
            .on_failure_of(EventKind::MESSAGE_CREATED, OnFailure::Skip)
    });
    let (desk, mut lines) = mpsc::channel(100);
    let desk = Desk(desk);
    tokio::spawn(async move {
        while let Some(line) = lines.recv().await {
            println!("{line}");
        }
    });

    let mut routes = inbox.routes();
    let to_chats = Webhooks::new(Secret::from_env("WEBHOOK_SECRET")?);
    let to_chats = routes.add(to_chats, chats())?;
    let to_github = Webhooks::new(Secret::from_env("GITHUB_SECRET")?)
        .sender(Sender::github())
        .lane_by(repository);
    let to_github = routes.add(to_github, github(desk.clone()))?;
    let to_stripe = Webhooks::new(Secret::from_env("STRIPE_SECRET")?).sender(Sender::stripe());
    let to_stripe = routes.add(to_stripe, stripe(desk))?;
    let orders = shopify();
    let to_shopify = Webhooks::new(Secret::from_env("SHOPIFY_SECRET")?)
        .sender(Sender::shopify())
        .keep_handled(&orders);
    let to_shopify = routes.add(to_shopify, orders)?;
    let running = routes.start()?;

    let app = Router::new()
        .route_service("/webhooks", to_chats)
        .route_service("/github", to_github)
        .route_service("/stripe", to_stripe)
        .route_service("/shopify", to_shopify);
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    let server = |stop| axum::serve(listener, app).with_graceful_shutdown(stop);
    let limit = Duration::from_secs(30);
    running
        .serve(tower_webhook::shutdown(), limit, server)
        .await?;
    Ok(())
}
