//! The Redis store, against real servers.

#[path = "servers/redis.rs"]
mod servers;

use tower_webhook::store::RedisStore;
use tower_webhook::store::conformance::{self, Harness};

use servers::RedisServer;

impl Harness for RedisServer {
    type Store = RedisStore;

    async fn open(&self) -> RedisStore {
        connect(self).await
    }
}

async fn connect(server: &RedisServer) -> RedisStore {
    RedisStore::connect(&server.url()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn conforms() {
    conformance::run(&RedisServer::start()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn conforms_when_every_write_is_on_disk() {
    conformance::run(&RedisServer::durable()).await;
}
