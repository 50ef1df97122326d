//! Which servers the store works with, as far as they report it when it connects.

use std::collections::HashMap;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{Client, IntoConnectionInfo, RedisError, RedisResult};

use super::connection::Connection;
use super::error::{ServerError, is_forbidden};
use super::scripts::Scripts;
use crate::store::OpenError;

/// Checks that the server can keep the store's promises, as far as it reports, and loads the scripts.
pub(super) async fn check(connection: &Connection, scripts: &Scripts) -> Result<(), OpenError> {
    let refused = |error: RedisError| ServerError::from_redis(connection.address(), error);

    let mut line = connection.connect().await.map_err(refused)?;
    let info: RedisResult<String> = redis::cmd("INFO").query_async(&mut line).await;
    let info = match info {
        Ok(info) => info,
        // What is missing then is warned of below.
        Err(error) if is_forbidden(&error) => String::new(),
        Err(error) => return Err(refused(error).into()),
    };
    let info = Info::parse(&info);
    info.check()?;
    if info.is_cluster() {
        let cluster: RedisResult<String> = redis::cmd("CLUSTER")
            .arg("INFO")
            .query_async(&mut line)
            .await;
        match cluster {
            Ok(cluster) => Info::parse(&cluster).check_cluster()?,
            Err(error) if is_forbidden(&error) => tracing::warn!(
                "the Redis server does not report how many servers its cluster has: make sure that \
                 this one has all keys, because events whose keys are elsewhere are answered with 503"
            ),
            Err(error) => return Err(refused(error).into()),
        }
    }
    if info.has_no_log() {
        warn_if_nothing_is_saved(&mut line).await.map_err(refused)?;
    }
    for script in scripts.all() {
        // A server that refuses a script is found at the start, and not by the first delivery.
        script.load_async(&mut line).await.map_err(refused)?;
    }
    Ok(())
}

/// Warns of a server that forgets everything. One that saves from time to time is as documented.
async fn warn_if_nothing_is_saved(line: &mut MultiplexedConnection) -> RedisResult<()> {
    let settings: RedisResult<HashMap<String, String>> = redis::cmd("CONFIG")
        .arg("GET")
        .arg("save")
        .query_async(line)
        .await;
    match settings {
        Ok(settings) if settings.get("save").is_some_and(String::is_empty) => tracing::warn!(
            "the Redis server keeps its data in memory only (`save \"\"`, `appendonly no`): after its restart, each \
             event that was handled before is handled again when it is delivered again; set `appendonly yes`"
        ),
        Ok(_) => {}
        Err(error) if is_forbidden(&error) => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

pub(super) fn client(url: &str) -> Result<Client, OpenError> {
    let bad_url = |source: RedisError| {
        // The crate reports this only in its text.
        match source.to_string().contains("TLS") {
            true => ServerError::NoTls(source),
            false => ServerError::InvalidUrl(source),
        }
    };
    let info = url.into_connection_info().map_err(bad_url)?;
    // Each operation is a small write that is waited for.
    let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
    Ok(Client::open(info).map_err(bad_url)?)
}

/// What the server reports about itself.
struct Info<'a>(HashMap<&'a str, &'a str>);

impl<'a> Info<'a> {
    fn parse(info: &'a str) -> Self {
        Self(
            info.lines()
                .filter_map(|line| line.trim_end().split_once(':'))
                .collect(),
        )
    }

    fn check(&self) -> Result<(), ServerError> {
        // Valkey reports here the Redis that it is compatible with.
        // A missing field refuses nothing: a user without the right to `INFO` sees none.
        if let Some(&version) = self.0.get("redis_version") {
            let major = version.split('.').next().and_then(|part| part.parse().ok());
            if major.is_some_and(|major: u32| major < 7) {
                return Err(ServerError::TooOld {
                    version: version.to_owned(),
                });
            }
        }
        if self.0.get("role").is_some_and(|&role| role != "master") {
            return Err(ServerError::Replica);
        }
        match self.0.get("maxmemory_policy") {
            Some(&"noeviction") => Ok(()),
            Some(&policy) => Err(ServerError::Evicts {
                policy: policy.to_owned(),
            }),
            None => {
                tracing::warn!(
                    "the Redis server does not report whether it evicts keys: make sure that its \
                     `maxmemory-policy` is `noeviction`, because an event whose key was evicted is \
                     handled again"
                );
                Ok(())
            }
        }
    }

    /// Whether the server reports that it keeps no append-only file.
    fn has_no_log(&self) -> bool {
        self.0.get("aof_enabled") == Some(&"0")
    }

    fn is_cluster(&self) -> bool {
        self.0.get("cluster_enabled") == Some(&"1")
    }

    fn check_cluster(&self) -> Result<(), ServerError> {
        match self.0.get("cluster_size") {
            // A cluster of one server has all keys, so it is as good as a single server.
            Some(&size) if size != "1" => Err(ServerError::Sharded {
                size: size.to_owned(),
            }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_judged_by_what_they_report() {
        let check = |info: &str| Info::parse(info).check();
        let redis = "# Server\r\nredis_version:7.0.15\r\n# Replication\r\nrole:master\r\n\
                     # Memory\r\nmaxmemory_policy:noeviction\r\n";
        let valkey = "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.1.3\r\n\
                      role:master\r\nmaxmemory_policy:noeviction\r\n";
        let little = "redis_version:255.255.255\r\n";
        for info in [redis, valkey, little, ""] {
            assert!(check(info).is_ok(), "{info}");
        }

        for version in ["6.2.14", "5.0.14", "2.8"] {
            let error = check(&redis.replace("7.0.15", version)).unwrap_err();
            assert!(matches!(error, ServerError::TooOld { .. }));
            assert!(error.to_string().contains(version), "{error}");
        }
        let error = check(&redis.replace("master", "slave")).unwrap_err();
        assert!(matches!(error, ServerError::Replica));
        let error = check(&valkey.replace("noeviction", "allkeys-lru")).unwrap_err();
        assert!(matches!(error, ServerError::Evicts { .. }));
    }
}
