//! smoke
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Full;
use std::sync::Arc;
use tower::{Layer, ServiceExt};
use tower_webhook::event::*;
use tower_webhook::*;

#[derive(Clone)]
struct Crm;
impl Handler<ChatRated> for Crm {
    async fn handle(&self, d: Delivery<ChatRated>) -> HandlerResult {
        println!("{:?}", d.attempt());
        Ok(())
    }
}

async fn f(_: Delivery<ChatClosed>) -> HandlerResult {
    let n: u32 = "x".parse()?;
    let _ = n;
    Ok(())
}

#[tokio::test]
async fn smoke() {
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::DEBUG)
        .init();
    let secret = Secret::new("s").unwrap();
    let n = Arc::new(1);
    let router = EventRouter::new()
        .on::<ChatRated>(Arc::new(Crm))
        .on::<ChatClosed>(f)
        .on::<MessageCreated>(async |_m: Delivery<MessageCreated>| Ok(()))
        .on::<ChatOpened>(move |_m: Delivery<ChatOpened>| {
            let n = n.clone();
            async move {
                println!("{n}");
                Ok(())
            }
        });
    let service = WebhookLayer::new(secret.clone()).layer(router);
    let _app: axum::Router = axum::Router::new().route_service("/", service.clone());
    let send = |kind: &str, key: &str| {
        let body = r#"{"id":"a"}"#;
        let r = Request::post("/")
            .header("content-type", "application/json")
            .header("x-service-event", kind)
            .header("idempotency-key", key)
            .header("x-service-hmac-sha256", secret.sign(body.as_bytes()))
            .body(Full::new(Bytes::from(body)))
            .unwrap();
        service.clone().oneshot(r)
    };
    assert_eq!(
        send("chat-rated", "a").await.unwrap().status(),
        StatusCode::OK
    );
    let r = send("chat-rated", "a").await.unwrap();
    println!("{r:?}");
    println!("{:?}", send("chat-closed", "b").await.unwrap());
    println!("{:?}", send("chat-assigned", "b").await.unwrap());
    println!("{:?}", send("chat assigned", "b").await.unwrap());
}
