//! A versioned schema, which is created and upgraded in place.
//!
//! All steps are done in one transaction: a crash leaves the schema as it was, and of several processes that
//! start at once, one upgrades it. Processes of an earlier release continue with their own statements
//! meanwhile. So a migration keeps every table and column that those name, and gives new columns a default.

use std::time::Duration;

use sqlx::AssertSqlSafe;
use sqlx::postgres::PgPool;
use tokio::time::{Instant, sleep};

use super::error::{error, is_locked, is_missing};
use crate::config::ConfigError;
use crate::store::engine::{Error, ErrorKind};

/// How long a migration keeps statements on its tables waiting while it waits for those before it. Below the
/// time that callers give an operation.
const LOCK_TIMEOUT: &str = "SET LOCAL lock_timeout = '500ms'";

/// How long it leaves them alone before it tries again, and for how long it tries: transactions that use the
/// tables may take 30 seconds each.
const PAUSE: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(90);

/// Brings the schema up to date by `migrations`, each of which brings it from the version before to the next
/// one, the first of which is 1. In their SQL, `{schema}` is replaced.
pub(crate) async fn migrate(
    pool: &PgPool,
    schema: &Schema,
    migrations: &[&str],
) -> Result<(), Error> {
    // Needs no right to change anything, and no lock.
    let sql = schema.sql("SELECT max(version) FROM {schema}.migrations");
    let version: sqlx::Result<Option<i32>> =
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(pool).await;
    match version {
        Ok(version) if pending(version, schema, migrations)?.is_empty() => return Ok(()),
        Ok(_) => {}
        Err(cause) if is_missing(&cause) => {}
        Err(cause) => return Err(error(cause, schema)),
    }

    let give_up = Instant::now() + PATIENCE;
    loop {
        match upgrade(pool, schema, migrations).await {
            Err(Failure::Sqlx(cause)) if is_locked(&cause) && Instant::now() < give_up => {
                sleep(PAUSE).await;
            }
            Err(Failure::Sqlx(cause)) => return Err(error(cause, schema)),
            Err(Failure::Newer(error)) => return Err(error),
            Ok(()) => return Ok(()),
        }
    }
}

enum Failure {
    Sqlx(sqlx::Error),
    Newer(Error),
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        Self::Sqlx(error)
    }
}

async fn upgrade(pool: &PgPool, schema: &Schema, migrations: &[&str]) -> Result<(), Failure> {
    // What was committed while the lock was waited for has to be seen.
    let mut transaction = pool
        .begin_with("BEGIN ISOLATION LEVEL READ COMMITTED")
        .await?;
    // Unlike a lock of the session, this one works behind PgBouncer too.
    sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended('tower_webhook ' || $1, 0))")
        .bind(&schema.name)
        .execute(&mut *transaction)
        .await?;
    let exists: bool =
        sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)")
            .bind(&schema.name)
            .fetch_one(&mut *transaction)
            .await?;
    let mut steps = Vec::new();
    if !exists {
        steps.push(schema.sql("CREATE SCHEMA {schema}"));
    }
    steps.push(schema.sql(
        "CREATE TABLE IF NOT EXISTS {schema}.migrations (
            version integer PRIMARY KEY,
            applied_at timestamptz NOT NULL DEFAULT now()
        )",
    ));
    steps.push(LOCK_TIMEOUT.to_owned());
    for step in steps {
        sqlx::raw_sql(AssertSqlSafe(step))
            .execute(&mut *transaction)
            .await?;
    }
    let sql = schema.sql("SELECT max(version) FROM {schema}.migrations");
    let before: Option<i32> = sqlx::query_scalar(AssertSqlSafe(sql))
        .fetch_one(&mut *transaction)
        .await?;
    let pending = pending(before, schema, migrations).map_err(Failure::Newer)?;
    for (version, migration) in (before.unwrap_or(0) + 1..).zip(pending) {
        sqlx::raw_sql(AssertSqlSafe(schema.sql(migration)))
            .execute(&mut *transaction)
            .await?;
        let record = schema.sql("INSERT INTO {schema}.migrations (version) VALUES ($1)");
        sqlx::query(AssertSqlSafe(record))
            .bind(version)
            .execute(&mut *transaction)
            .await?;
    }
    transaction.commit().await?;
    if let Some(before) = before
        && !pending.is_empty()
    {
        tracing::info!(
            schema = schema.name,
            before,
            now = migrations.len(),
            "the PostgreSQL schema was upgraded"
        );
    }
    Ok(())
}

/// The migrations that a schema of this version still lacks. Refuses the version of a later release.
fn pending<'a>(
    version: Option<i32>,
    schema: &Schema,
    migrations: &'a [&'a str],
) -> Result<&'a [&'a str], Error> {
    let version = usize::try_from(version.unwrap_or(0)).unwrap_or(0);
    migrations.get(version..).ok_or_else(|| {
        Error::new(
            ErrorKind::NewerSchema,
            format!(
                "the schema `{}` is of version {version}, which a later release of tower-webhook \
                 made, and this one knows up to version {}: deploy the later release, or use another \
                 schema",
                schema.name,
                migrations.len()
            ),
        )
    })
}

/// The schema that holds the tables.
pub(crate) struct Schema {
    name: String,
    quoted: String,
}

impl Schema {
    pub(crate) fn new(name: String) -> Result<Self, ConfigError> {
        /// Longer names would be cut.
        const LONGEST: usize = 63;

        let is_valid =
            (1..=LONGEST).contains(&name.len()) && !name.contains('\0') && !name.starts_with("pg_");
        match is_valid {
            true => Ok(Self {
                quoted: format!("\"{}\"", name.replace('"', "\"\"")),
                name,
            }),
            false => Err(ConfigError::SchemaName(name)),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Replaces `{schema}` in SQL.
    pub(crate) fn sql(&self, sql: &str) -> String {
        sql.replace("{schema}", &self.quoted)
    }

    /// The name of a table in it, as it is written in SQL.
    pub(crate) fn table(&self, table: &str) -> String {
        format!("{}.{table}", self.quoted)
    }
}

impl Default for Schema {
    fn default() -> Self {
        let name = "tower_webhook";
        Self {
            name: name.to_owned(),
            quoted: format!("\"{name}\""),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted() {
        let quoted = |name: &str| Schema::new(name.to_owned()).unwrap().sql("{schema}.keys");
        assert_eq!(quoted("Hooks"), r#""Hooks".keys"#);
        assert_eq!(quoted(r#"a"b"#), r#""a""b".keys"#);
        assert_eq!(quoted("\""), "\"\"\"\".keys");
        assert_eq!(quoted("{schema}"), r#""{schema}".keys"#);
        assert_eq!(
            Schema::default().sql("{schema}"),
            quoted("tower_webhook").replace(".keys", "")
        );
    }
}
