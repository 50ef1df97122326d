//! Sentinels, which know the primary.

use std::collections::HashMap;
use std::time::Duration;

use redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, ErrorKind, RedisConnectionInfo, RedisError,
    RedisResult,
};
use tokio::task::JoinSet;

use super::error::is_unauthenticated;
use super::url::{addresses, at};

/// A sentinel that does not answer in this time is left out. The rest of an operation's time is for the primary.
const LIMIT: Duration = Duration::from_millis(500);

#[derive(Clone)]
pub(super) struct Sentinels {
    /// Their addresses, with the user, the password and the database of the primary.
    pub(super) each: Vec<ConnectionInfo>,
    pub(super) primary: String,
}

impl Sentinels {
    pub(super) fn address(&self) -> String {
        let (name, each) = (&self.primary, addresses(&self.each));
        format!("`{name}` of the sentinels {each}")
    }

    /// The primary, as more than half of the sentinels know it, or as many as answer.
    ///
    /// A sentinel that is cut off from the others knows an older one, which has a lower epoch.
    pub(super) async fn primary(&self) -> RedisResult<Client> {
        let mut asked = JoinSet::new();
        for sentinel in &self.each {
            asked.spawn(ask(sentinel.clone(), self.primary.clone()));
        }
        let mut known = Vec::new();
        let mut failed = None;
        while let Some(answer) = asked.join_next().await {
            match answer {
                Ok(Ok(primary)) => known.push(primary),
                Ok(Err(error)) => failed = worse(failed, error),
                // A panic or the end of the runtime.
                Err(ended) => failed = worse(failed, std::io::Error::other(ended).into()),
            }
            if known.len() * 2 > self.each.len() {
                break;
            }
        }
        match known.into_iter().max_by_key(|it| it.epoch) {
            Some(Primary { host, port, .. }) => Client::open(at(&self.each[0], host, port)),
            None => Err(failed.unwrap_or_else(incomplete)),
        }
    }
}

/// The error that says more: an answer, instead of a sentinel that gives none.
fn worse(one: Option<RedisError>, other: RedisError) -> Option<RedisError> {
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
    host: String,
    port: u16,
}

async fn ask(sentinel: ConnectionInfo, name: String) -> RedisResult<Primary> {
    let login = sentinel.redis_settings().clone().set_db(0);
    let nobody = RedisConnectionInfo::default().set_protocol(login.protocol());
    let reply = match fields(sentinel.clone().set_redis_settings(nobody), &name).await {
        // Most have no password, and refuse one.
        Err(error) if is_unauthenticated(&error) => {
            fields(sentinel.set_redis_settings(login), &name).await?
        }
        reply => reply?,
    };
    let number = |field: &str| reply.get(field)?.parse().ok();
    let primary = || {
        Some(Primary {
            epoch: number("config-epoch")?,
            host: reply.get("ip")?.clone(),
            port: number("port")?.try_into().ok()?,
        })
    };
    primary().ok_or_else(incomplete)
}

async fn fields(sentinel: ConnectionInfo, name: &str) -> RedisResult<HashMap<String, String>> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(LIMIT))
        .set_response_timeout(Some(LIMIT));
    let client = Client::open(sentinel)?;
    let mut connection = client
        .get_multiplexed_async_connection_with_config(&config)
        .await?;
    redis::cmd("SENTINEL")
        .arg("MASTER")
        .arg(name)
        .query_async(&mut connection)
        .await
}
