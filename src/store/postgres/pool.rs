//! Connections of the user's pool, which a caller may leave before it has one.

use std::future::{Future, pending};
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgPool, Postgres};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// How long a connection may take to open after its caller has left. One that does not live any more is
/// asked for as long, if the server does not say so.
const OPENING: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub(super) struct Pool {
    connections: PgPool,
    /// How many callers may leave what they began, at the same time.
    places: Arc<Semaphore>,
}

impl Pool {
    pub(super) fn new(connections: PgPool) -> Self {
        let most = connections.options().get_max_connections();
        Self {
            connections,
            places: Arc::new(Semaphore::new(most as usize)),
        }
    }

    pub(super) fn connections(&self) -> &PgPool {
        &self.connections
    }

    /// A connection that is idle, or a new one.
    ///
    /// sqlx opens it in the future of the caller who waited longest, and so has the least time left. Under
    /// load after an outage, none would ever be opened if it were given up with its caller.
    pub(super) async fn acquire(&self) -> sqlx::Result<PoolConnection<Postgres>> {
        let mut acquiring = Acquiring {
            connection: Box::pin(self.connections.acquire()),
            places: &self.places,
            has_ended: false,
        };
        let connection = acquiring.connection.as_mut().await;
        acquiring.has_ended = true;
        connection
    }
}

/// Goes on for a while when it is dropped, and leaves the connection to the pool.
struct Acquiring<'a> {
    connection: Pin<Box<dyn Future<Output = sqlx::Result<PoolConnection<Postgres>>> + Send>>,
    places: &'a Arc<Semaphore>,
    has_ended: bool,
}

impl Drop for Acquiring<'_> {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        // Those who waited longest leave first, and have a connection to open if anybody has: the others
        // find no place.
        if let Ok(runtime) = Handle::try_current()
            && let Ok(place) = Arc::clone(self.places).try_acquire_owned()
        {
            let connection = mem::replace(&mut self.connection, Box::pin(pending()));
            runtime.spawn(async move {
                let _ = timeout(OPENING, connection).await;
                drop(place);
            });
        }
    }
}
