//! Sentinels, which know the primary.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redis::{Client, ConnectionInfo, ErrorKind, RedisConnectionInfo, RedisError, RedisResult};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::call::Request;
use super::connection::{Connection, Target};
use super::error::is_unauthenticated;
use super::url::{addresses, at};

/// How long the others are waited for after one has answered.
const LIMIT: Duration = Duration::from_millis(500);

pub(super) struct Sentinels {
    /// Their addresses, with the user, the password and the database of the primary.
    named: Vec<ConnectionInfo>,
    each: Vec<Arc<Sentinel>>,
    primary: String,
}

/// Its two connections. Most sentinels have no password, and refuse one.
struct Sentinel {
    open: Connection,
    with_login: Connection,
}

impl Sentinels {
    pub(super) fn new(named: Vec<ConnectionInfo>, primary: String) -> RedisResult<Self> {
        let sentinel = |info: &ConnectionInfo| {
            let login = info.redis_settings().clone().set_db(0);
            let nobody = RedisConnectionInfo::default().set_protocol(login.protocol());
            let connection = |settings| {
                let client = Client::open(info.clone().set_redis_settings(settings))?;
                RedisResult::Ok(Connection::new(Target::Server(client)))
            };
            Ok(Arc::new(Sentinel {
                open: connection(nobody)?,
                with_login: connection(login)?,
            }))
        };
        Ok(Self {
            each: named.iter().map(sentinel).collect::<RedisResult<_>>()?,
            named,
            primary,
        })
    }

    pub(super) fn address(&self) -> String {
        let (name, named) = (&self.primary, addresses(&self.named));
        format!("`{name}` of the sentinels {named}")
    }

    /// The primary as the sentinels know it, or nothing while they replace it: what it still records then is lost.
    ///
    /// A sentinel that is cut off from the others knows an older one, which has a lower epoch.
    pub(super) fn primary(
        &self,
    ) -> Pin<Box<dyn Future<Output = RedisResult<Option<Client>>> + Send + '_>> {
        // Boxed, because a connection to the primary asks for it, and the sentinels have connections.
        Box::pin(self.ask_all())
    }

    async fn ask_all(&self) -> RedisResult<Option<Client>> {
        let mut asked = JoinSet::new();
        for sentinel in &self.each {
            let (sentinel, name) = (Arc::clone(sentinel), self.primary.clone());
            asked.spawn(async move { sentinel.ask(&name).await });
        }
        let give_up = Instant::now() + LIMIT;
        let mut known = Vec::new();
        let mut failed = None;
        loop {
            let next = asked.join_next();
            let next = match known.is_empty() {
                true => next.await,
                false => timeout_at(give_up, next).await.unwrap_or_default(),
            };
            match next {
                None => break,
                Some(Ok(Ok(primary))) => known.push(primary),
                Some(Ok(Err(error))) => failed = telling(failed, error),
                // A panic or the end of the runtime.
                Some(Err(ended)) => failed = telling(failed, io::Error::other(ended).into()),
            }
        }
        // Only the sentinel that leads a failover knows of it.
        let newest = known.into_iter();
        match newest.max_by_key(|it| (it.epoch, it.is_in_failover)) {
            Some(primary) if primary.is_in_failover => Ok(None),
            Some(Primary { host, port, .. }) => {
                Client::open(at(&self.named[0], host, port)).map(Some)
            }
            None => Err(failed.unwrap_or_else(incomplete)),
        }
    }
}

/// The error that says more: an answer, instead of a sentinel that gives none.
fn telling(one: Option<RedisError>, other: RedisError) -> Option<RedisError> {
    Some(match one {
        Some(one) if !one.is_io_error() || other.is_io_error() => one,
        _ => other,
    })
}

fn incomplete() -> RedisError {
    let kind = ErrorKind::UnexpectedReturnType;
    (kind, "a sentinel does not say where the primary is").into()
}

struct Primary {
    epoch: u64,
    is_in_failover: bool,
    host: String,
    port: u16,
}

impl Sentinel {
    async fn ask(&self, name: &str) -> RedisResult<Primary> {
        let about = redis::cmd("SENTINEL").arg("MASTER").arg(name).take();
        let about = Request::Other(&about);
        let reply: HashMap<String, String> = match self.open.ask(&about, true).await {
            Err(error) if is_unauthenticated(&error) => self.with_login.ask(&about, true).await?,
            reply => reply?,
        };
        let primary = || {
            Some(Primary {
                epoch: reply.get("config-epoch")?.parse().ok()?,
                is_in_failover: reply.get("flags")?.contains("failover_in_progress"),
                host: reply.get("ip")?.clone(),
                port: reply.get("port")?.parse().ok()?,
            })
        };
        primary().ok_or_else(incomplete)
    }
}
