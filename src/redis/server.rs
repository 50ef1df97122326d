//! Which servers the store works with, as far as they report it when it connects.

use std::collections::HashMap;
use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{ConnectionInfo, RedisError, RedisResult};

use super::Servers;
use super::cluster::{Cluster, Member, View};
use super::connection::{Connection, Target};
use super::error::{ServerError, is_forbidden};
use super::scripts::Scripts;
use super::sentinel::Sentinels;
use super::slots::{SLOTS, fields};
use super::url::{Named, addresses};
use crate::store::OpenError;

/// Connects to what the URL names, checks that it can keep the store's promises, as far as it reports, and loads the
/// scripts.
pub(super) async fn open(url: &str, scripts: &Scripts) -> Result<Servers, OpenError> {
    let Named { servers, primary } = Named::parse(url).map_err(ServerError::from_url)?;
    if let Some(primary) = primary {
        let sentinels = Sentinels::new(servers, primary).map_err(ServerError::from_url)?;
        let connection = Connection::new(Target::Primary(Arc::new(sentinels)));
        let report = Report::of(&connection).await;
        let report = report.map_err(ServerError::behind_sentinels)?;
        check(&connection, report, scripts).await?;
        return Ok(Servers::One(connection.into()));
    }
    let mut refused = Vec::new();
    for server in &servers {
        match first_contact(server).await {
            Ok(Contact::Single(connection, report)) if servers.len() == 1 => {
                check(&connection, report, scripts).await?;
                return Ok(Servers::One(connection));
            }
            Ok(Contact::Single(connection, _)) => {
                return Err(ServerError::NoCluster(connection.address()).into());
            }
            Ok(Contact::Cluster(view)) => {
                let at = addresses(&servers);
                let cluster = Cluster::new(servers, view);
                let cluster = cluster.map_err(|error| ServerError::from_redis(at, error))?;
                check_all(&cluster, scripts).await?;
                return Ok(Servers::Cluster(Arc::new(cluster)));
            }
            Err(error) => refused.push(error),
        }
    }
    Err(ServerError::of_all(refused).into())
}

enum Contact {
    Single(Box<Connection>, Report),
    Cluster(View),
}

/// Finds out what the server is.
async fn first_contact(server: &ConnectionInfo) -> Result<Contact, ServerError> {
    let member = Member::new(server.clone()).map_err(ServerError::from_url)?;
    let report = Report::of(&member.connection).await?;
    let info = report.info();
    if let Some(name) = info.sentinel_of() {
        let at = member.connection.address();
        return Err(ServerError::Sentinel { at, name });
    }
    let is_cluster = info.is_cluster();
    if is_cluster == Some(false) {
        return Ok(Contact::Single(member.connection.into(), report));
    }
    let view = match member.view().await {
        Ok(view) => view,
        // A single server refuses to answer.
        Err(_) if is_cluster.is_none() => {
            return Ok(Contact::Single(member.connection.into(), report));
        }
        Err(error) => return Err(ServerError::from_redis(member.connection.address(), error)),
    };
    let slots = view.ranges.iter().map(|range| range.last - range.first + 1);
    match slots.sum() {
        SLOTS => Ok(Contact::Cluster(view)),
        slots => Err(ServerError::Uncovered {
            at: member.connection.address(),
            slots,
        }),
    }
}

/// Checks each server that has keys. One that is away just now, as in a failover, stops only its own keys.
async fn check_all(cluster: &Cluster, scripts: &Scripts) -> Result<(), ServerError> {
    for primary in cluster.primaries() {
        let connection = &primary.connection;
        let checked = match Report::of(connection).await {
            Ok(report) => check(connection, report, scripts).await,
            Err(error) => Err(error),
        };
        match checked {
            Err(error @ ServerError::Unreachable(..)) => tracing::warn!(
                error = %crate::error::Chain(&error),
                "a server of the Redis cluster was not checked, and events whose keys it has are answered with 503"
            ),
            // It was the primary, and the cluster has not told the others yet.
            Err(ServerError::Replica) | Ok(()) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

async fn check(
    connection: &Connection,
    report: Report,
    scripts: &Scripts,
) -> Result<(), ServerError> {
    let refused = |error: RedisError| ServerError::from_redis(connection.address(), error);

    let info = report.info();
    info.check()?;
    let mut line = connection.connect().await.map_err(refused)?;
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

/// The text in which a server reports about itself: nothing, if the user may not ask.
struct Report(String);

impl Report {
    async fn of(connection: &Connection) -> Result<Self, ServerError> {
        let refused = |error: RedisError| ServerError::from_redis(connection.address(), error);
        let mut line = connection.connect().await.map_err(refused)?;
        let info: RedisResult<String> = redis::cmd("INFO").query_async(&mut line).await;
        match info {
            Ok(info) => Ok(Self(info)),
            // What is missing then is warned of later.
            Err(error) if is_forbidden(&error) => Ok(Self(String::new())),
            Err(error) => Err(refused(error)),
        }
    }

    fn info(&self) -> Info<'_> {
        Info(fields(&self.0))
    }
}

/// What a server reports about itself.
struct Info<'a>(HashMap<&'a str, &'a str>);

impl Info<'_> {
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

    fn is_cluster(&self) -> Option<bool> {
        Some(*self.0.get("cluster_enabled")? == "1")
    }

    /// The names of the primaries that it watches, if it is a sentinel.
    fn sentinel_of(&self) -> Option<String> {
        // Valkey has the second name.
        let mode = self.0.get("redis_mode").or(self.0.get("server_mode"));
        if mode != Some(&"sentinel") {
            return None;
        }
        // `master0:name=webhooks,status=ok,…`
        let watched = self.0.iter().filter(|(key, _)| key.starts_with("master"));
        let mut names: Vec<&str> = watched
            .filter_map(|(_, fields)| fields.split(',').next()?.strip_prefix("name="))
            .collect();
        names.sort_unstable();
        Some(names.join("|"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_judged_by_what_they_report() {
        let check = |info: &str| Info(fields(info)).check();
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
