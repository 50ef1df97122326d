//! Where keys and events are kept: the values of `--store` and `--inbox`.

use std::fmt;
#[cfg(feature = "sqlite")]
use std::path::PathBuf;

#[cfg(feature = "postgres")]
use sqlx::postgres::PgConnectOptions;

#[cfg(feature = "postgres")]
use crate::hosts::Hosts;
use crate::store::rebuilt;
use crate::url;

#[derive(Clone)]
pub(crate) enum Place {
    Memory,
    #[cfg(feature = "sqlite")]
    Sqlite(PathBuf),
    #[cfg(feature = "redis")]
    Redis(String),
    #[cfg(feature = "postgres")]
    Postgres(Hosts),
}

impl Place {
    /// Parses the value of `--store`. Errors do not repeat it, because it may contain a password.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        Self::parse_as(
            text,
            true,
            "a store is `memory`, `sqlite:PATH`, `redis://HOST` or `postgres://HOST/DATABASE`; with several servers, \
             `redis://HOST,HOST` is a cluster, `redis+sentinel://HOST,HOST/NAME` what sentinels call NAME, and \
             `postgres://HOST,HOST/DATABASE` a primary with its standbys",
        )
    }

    /// Parses the value of `--inbox`, in the same way.
    pub(crate) fn parse_inbox(text: &str) -> Result<Self, String> {
        Self::parse_as(
            text,
            false,
            "an inbox is `sqlite:PATH` or `postgres://HOST/DATABASE`; with several servers, \
             `postgres://HOST,HOST/DATABASE` is a primary with its standbys",
        )
    }

    fn parse_as(text: &str, is_store: bool, expected: &str) -> Result<Self, String> {
        if let Some(url) = url::of_keywords(text) {
            return postgres_at(&url?);
        }
        // Java writes it in front.
        let text = text.strip_prefix("jdbc:").unwrap_or(text);
        // Python writes a driver behind the scheme, as in `postgresql+asyncpg:`.
        let scheme = text
            .split_once(':')
            .map(|(scheme, _)| scheme.to_lowercase());
        let bare = scheme
            .as_deref()
            .map(|it| it.split('+').next().unwrap_or(it));
        match (scheme.as_deref(), bare) {
            (None, _) if text == "memory" && is_store => Ok(Self::Memory),
            (_, Some("sqlite" | "sqlite3")) => sqlite_at(text),
            (_, Some("postgres" | "postgresql" | "pgsql" | "postgis")) => postgres_at(text),
            (Some(scheme), Some("redis" | "rediss" | "valkey" | "valkeys"))
                if is_store && (!scheme.contains('+') || scheme.ends_with("+sentinel")) =>
            {
                redis_at(text)
            }
            _ => Err(unknown(text, expected)),
        }
    }

    pub(crate) fn is_server(&self) -> bool {
        match self {
            Self::Memory => false,
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => false,
            #[cfg(any(feature = "redis", feature = "postgres"))]
            _ => true,
        }
    }

    /// Two places with the same text are one database.
    pub(crate) fn identity(&self) -> String {
        match self {
            Self::Memory => "memory".to_owned(),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(path) => {
                // The file may not exist yet, unlike its directory.
                let directory = match path.parent() {
                    Some(directory) if !directory.as_os_str().is_empty() => {
                        directory.canonicalize()
                    }
                    _ => std::env::current_dir(),
                };
                let beside = path.file_name().zip(directory.ok());
                let path = match path.canonicalize() {
                    Ok(path) => path,
                    Err(_) => beside.map_or(path.clone(), |(name, at)| at.join(name)),
                };
                path.display().to_string()
            }
            #[cfg(feature = "redis")]
            Self::Redis(url) => url.clone(),
            #[cfg(feature = "postgres")]
            Self::Postgres(hosts) => {
                let it = hosts.common();
                let database = it.get_database().unwrap_or(it.get_username());
                format!("{hosts}/{database} {:?}", it.get_options())
            }
        }
    }
}

/// Names the scheme that came, unless it may be a user, as in `user:password@host`, or has what no scheme has, as the
/// keywords of a connection.
fn unknown(text: &str, expected: &str) -> String {
    let is_scheme = |scheme: &str| {
        let mut bytes = scheme.bytes();
        bytes.all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
    };
    match text.split_once(':') {
        Some((scheme, _)) if is_scheme(scheme) && (!text.contains('@') || text.contains("://")) => {
            format!("`{scheme}:` is none: {expected}")
        }
        _ => expected.to_owned(),
    }
}

/// The name in the log, without a user or a password.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory"),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(path) => write!(f, "the SQLite file `{}`", path.display()),
            #[cfg(feature = "redis")]
            Self::Redis(url) => {
                let what = match url.contains("+sentinel:") {
                    true => "Redis, by its sentinels",
                    false => "Redis",
                };
                let addresses = addresses(url).unwrap_or_default();
                write!(f, "{what} at {}", addresses.join(", "))
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(hosts) => {
                write!(f, "PostgreSQL at {hosts}")?;
                match hosts.common().get_database() {
                    Some(database) => write!(f, ", database `{database}`"),
                    None => Ok(()),
                }
            }
        }
    }
}

#[cfg(feature = "sqlite")]
fn sqlite_at(text: &str) -> Result<Place, String> {
    let (_, path) = text.split_once(':').unwrap_or_default();
    let path = path.strip_prefix("//").unwrap_or(path);
    let (path, parameters) = path.split_once('?').unwrap_or((path, ""));
    for (name, value) in url::pairs(parameters) {
        // A file that is not there is created.
        if (name, value) != ("mode", "rwc") && (name, value) != ("mode", "rw") {
            return Err(url::unknown(name, "sqlite:webhooks.db"));
        }
    }
    match path {
        "" => Err("the database needs a file, such as `sqlite:webhooks.db`".to_owned()),
        ":memory:" => Err("the in-memory store is called `memory`".to_owned()),
        _ => Ok(Place::Sqlite(path.into())),
    }
}

#[cfg(feature = "redis")]
fn redis_at(text: &str) -> Result<Place, String> {
    let url = url::redis(text)?;
    addresses(&url)?;
    Ok(Place::Redis(url))
}

/// The addresses of a URL for Redis.
#[cfg(feature = "redis")]
fn addresses(url: &str) -> Result<Vec<String>, String> {
    let address = |url: String| match redis::Client::open(url) {
        Ok(client) => Ok(client.get_connection_info().addr().to_string()),
        // The crate has no kind for this error, only its text.
        Err(error) if error.to_string().contains("TLS") => Err(rebuilt(
            "TLS to a database",
            "redis,redis/tokio-rustls-comp,rustls/ring",
        )),
        Err(error) => Err(format!(
            "the database's URL is invalid: {error}; use one such as \
             `redis://USER:PASSWORD@HOST:6379`, and percent-encode special characters in a password"
        )),
    };
    url::each_redis(url)?.into_iter().map(address).collect()
}

#[cfg(feature = "postgres")]
fn postgres_at(text: &str) -> Result<Place, String> {
    let hosts = url::postgres(text)?;
    let hosts = hosts.iter().map(|url| url.parse::<PgConnectOptions>());
    match hosts.collect() {
        Ok(hosts) => Ok(Place::Postgres(Hosts(hosts))),
        Err(error) => Err(format!(
            "the database's URL is invalid: {error}; use one such as \
             `postgres://USER@HOST/DATABASE`, and percent-encode special characters in a password"
        )),
    }
}

#[cfg(not(feature = "sqlite"))]
fn sqlite_at(_: &str) -> Result<Place, String> {
    Err(rebuilt("that database", "sqlite"))
}

#[cfg(not(feature = "redis"))]
fn redis_at(_: &str) -> Result<Place, String> {
    Err(rebuilt("that database", "redis"))
}

#[cfg(not(feature = "postgres"))]
fn postgres_at(_: &str) -> Result<Place, String> {
    Err(rebuilt("that database", "postgres"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For any set of features.
    #[test]
    fn store_that_is_not_built_in_is_explained() {
        let stores = [
            ("sqlite", cfg!(feature = "sqlite"), "sqlite:webhooks.db"),
            ("redis", cfg!(feature = "redis"), "redis://:hush@localhost"),
            (
                "postgres",
                cfg!(feature = "postgres"),
                "postgres://user:hush@localhost/database",
            ),
        ];
        for (feature, is_built_in, text) in stores {
            let error = Place::parse(text).err();
            assert_eq!(error.is_none(), is_built_in, "{text}: {error:?}");
            if let Some(error) = error {
                let command =
                    format!("`cargo run -p tower-webhook-receiver --features {feature} -- …`");
                assert!(error.contains(&command), "{error}");
                assert!(!error.contains("hush"), "{error}");
            }
        }
    }

    /// As frameworks, libraries and other programs write them.
    #[cfg(all(feature = "postgres", feature = "redis", feature = "sqlite"))]
    #[test]
    fn connection_strings_of_other_tools_are_understood() {
        for (text, place) in [
            (
                "postgres://u:hush@h1:5,h2/db?target_session_attrs=primary",
                "PostgreSQL at h1:5,h2:5432, database `db`",
            ),
            (
                "postgres:///db?host=h1,h2&port=5,6&password=hush",
                "PostgreSQL at h1:5,h2:6, database `db`",
            ),
            (
                "host=h1,h2 port=5 dbname=db password=hush",
                "PostgreSQL at h1:5,h2:5, database `db`",
            ),
            (
                "postgresql+asyncpg://u:hush@h:5/db",
                "PostgreSQL at h:5, database `db`",
            ),
            ("pgsql://u:hush@h:5/db", "PostgreSQL at h:5, database `db`"),
            (
                "jdbc:postgresql://h:5/db?user=u&password=hush",
                "PostgreSQL at h:5, database `db`",
            ),
            (
                "host=h port=5 dbname=db user=u password='hu sh\\'?&'",
                "PostgreSQL at h:5, database `db`",
            ),
            (
                "dbname = 'a b' host = h",
                "PostgreSQL at h:5432, database `a b`",
            ),
            (
                "postgres://u@h:5/db?sslmode=disable&schema=public&connect_timeout=3&target_session_attrs=read-write",
                "PostgreSQL at h:5, database `db`",
            ),
            ("sqlite3:x.db", "the SQLite file `x.db`"),
            ("jdbc:sqlite:x.db", "the SQLite file `x.db`"),
            ("sqlite:///x.db?mode=rwc", "the SQLite file `/x.db`"),
            ("redis://:hush@h:1/2?protocol=resp3", "Redis at h:1"),
            ("valkey://h?db=2", "Redis at h:6379"),
            ("redis://:hush@h1:1,h2/0", "Redis at h1:1, h2:6379"),
            (
                "redis+sentinel://:hush@h1:1,h2:2/webhooks?db=2",
                "Redis, by its sentinels at h1:1, h2:2",
            ),
        ] {
            let parsed = Place::parse(text);
            assert_eq!(
                parsed.map(|place| place.to_string()).as_deref(),
                Ok(place),
                "{text}"
            );
        }
        let Ok(Place::Postgres(hosts)) = Place::parse("postgres:///db?host=/run/postgresql&user=u")
        else {
            panic!("a socket is a host, too");
        };
        let options = hosts.common();
        assert_eq!(
            options.get_socket().unwrap().to_str(),
            Some("/run/postgresql")
        );
        assert_eq!(options.get_username(), "u");
        let Ok(Place::Redis(url)) = Place::parse("redis://h?db=2") else {
            panic!("the number of a database is a parameter, too");
        };
        assert_eq!(url, "redis://h/2");
    }

    #[cfg(all(feature = "postgres", feature = "redis", feature = "sqlite"))]
    #[test]
    fn what_of_a_connection_string_cannot_be_done_is_named() {
        for (text, part) in [
            ("postgres://u:hush@h1:5,,h2:5/db", "empty"),
            (
                "host=h1,h2 port=5,6,7 password=hush",
                "2 hosts, and 3 values of `port`",
            ),
            ("redis+cluster://:hush@h/0", "`redis+cluster:` is none"),
            (
                "postgres://u:hush@h/db?connection_limit=5",
                "`connection_limit`",
            ),
            ("postgres://u@h/db?sslpassword=hush", "`sslpassword`"),
            ("host=h dbname=db passfile=hush", "`passfile`"),
            ("host=h dbname", "no value"),
            (
                "postgres://u:hush@h/db?target_session_attrs=standby",
                "only as `any` or `primary` or `read-write`",
            ),
            ("postgres://u:hush@h/db?schema=mine", "only as `public`"),
            ("postgres://u:hu?sh=hush@h/db", "percent-encode"),
            ("postgres://u:hush/hush@h/db", "percent-encode"),
            ("postgres://u:hush#hush@h/db", "percent-encode"),
            ("postgres:u:hush@h/db", "lacks `//`"),
            ("redis://:hush@h?ssl_cert_reqs=none", "`ssl_cert_reqs`"),
            ("redis+sentinel://:hush@h", "lacks the name"),
            ("redis+sentinel://:hush@h/name/first", "Invalid database"),
            ("sqlite:x.db?cache=shared", "`cache`"),
            ("jdbc:mysql://u:hush@h/db", "`mysql:` is none"),
        ] {
            let error = Place::parse(text).err().unwrap_or_else(|| panic!("{text}"));
            assert!(error.contains(part), "{text}: {error}");
            assert!(!error.contains("hush"), "{text}: {error}");
        }
        // An inbox is no cache.
        for text in ["memory", "redis://h", "redis+unix://h"] {
            let error = Place::parse_inbox(text).err().unwrap_or_default();
            assert!(
                error.contains("an inbox is `sqlite:PATH`"),
                "{text}: {error}"
            );
        }
    }
}
