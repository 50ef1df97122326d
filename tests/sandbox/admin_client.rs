//! The Admin API client against the sandbox's endpoint over a real socket.

use std::net::SocketAddr;

use axum::Router;
use support::net;
use tower_webhook_admin::{AccessToken, AdminClient, AdminErrorKind};
use tower_webhook_sandbox::{Sandbox, Settings};

#[tokio::test]
async fn created_api_key_is_accepted() {
    let (sandbox, address) = serve().await;
    let admin = client(address, &sandbox.create_api_key("CRM"));

    assert!(admin.chat_is_available().await.unwrap());
    sandbox.set_available(false);
    assert!(!admin.chat_is_available().await.unwrap());
    sandbox.set_available(true);
    assert!(admin.chat_is_available().await.unwrap());
}

#[tokio::test]
async fn unknown_api_key_is_refused() {
    let (sandbox, address) = serve().await;
    let _ = sandbox.create_api_key("CRM");

    let error = client(address, "0123456789abcdef")
        .chat_is_available()
        .await
        .unwrap_err();

    let AdminErrorKind::Status { status, .. } = error.kind() else {
        panic!("{error:?}");
    };
    assert_eq!(status.as_u16(), 401);
    assert!(!error.is_retryable());
    assert!(!format!("{error:?} {error}").contains("0123456789abcdef"));
}

#[tokio::test]
async fn field_outside_the_schema_is_a_graphql_error() {
    let (sandbox, address) = serve().await;
    let admin = client(address, &sandbox.create_api_key("CRM"));

    let error = admin
        .query::<serde_json::Value>("{ partner { weather } }")
        .await
        .unwrap_err();

    assert!(!error.graphql_errors().is_empty(), "{error:?}");
}

async fn serve() -> (Sandbox, SocketAddr) {
    let sandbox = Sandbox::over_http(Settings::default());
    let app = Router::new().route_service("/graphql", sandbox.graphql());
    (sandbox, net::serve(app).await)
}

fn client(address: SocketAddr, key: &str) -> AdminClient {
    let token = AccessToken::new(key).unwrap();
    AdminClient::new(format!("http://{address}").as_str(), token).unwrap()
}
