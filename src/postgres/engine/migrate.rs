//! A versioned schema, which is created and upgraded in place.
//!
//! All steps are done in one transaction: a crash leaves the schema as it was, and of several processes that
//! start at once, one upgrades it. Processes of an earlier release continue with their own statements. So a migration
//! keeps every table and column that these name, and gives new columns a default, or it names a lowest release that is
//! higher than theirs.

use std::time::Duration;

use sqlx::postgres::{PgPool, PgTransaction};
use sqlx::{AssertSqlSafe, PgExecutor};
use tokio::time::{Instant, sleep};

use super::error::{error, has_another_owner, is_locked, is_missing, was_idle};
use super::name::Schema;
use crate::store::{OpenError as Error, OpenErrorKind as ErrorKind};

/// How each version of a schema is made of the one before. The first one is version 1.
pub(crate) type Migrations = &'static [Migration];

/// A version of a schema.
#[derive(Clone, Copy)]
pub(crate) struct Migration {
    /// The lowest release that can use the schema from this version on.
    pub(crate) lowest_release: &'static str,
    /// The statements that make it, in which `{schema}` is replaced.
    pub(crate) sql: &'static str,
}

/// This release.
const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// What others committed while a lock was waited for has to be seen. A process that stands still must not keep the lock of
/// migrations: the server ends its transaction.
pub(super) const BEGIN: &str =
    "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL idle_in_transaction_session_timeout = '2s'";

/// How long a migration keeps statements on its tables waiting while it waits for those before it. Below the
/// time that callers give an operation.
const LOCK_TIMEOUT: &str = "SET LOCAL lock_timeout = '500ms'";

/// How long it leaves them alone before it tries again, and for how long it tries: transactions that use the
/// tables may take 30 seconds each.
const PAUSE: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(90);

/// Creates a schema, or brings it up to date. One of a later release is left as it is, and can be used if that release
/// allows it: an older replica may restart during a rollout, and an image may be rolled back.
pub(crate) async fn migrate(
    pool: &PgPool,
    schema: &Schema,
    migrations: Migrations,
) -> Result<(), Error> {
    // Needs no right to change anything, and no lock.
    match versions(pool, schema).await {
        Ok(versions) if pending(&versions, schema, migrations)?.is_empty() => return Ok(()),
        Ok(_) => {}
        Err(cause) if is_missing(&cause) => {}
        Err(cause) => return Err(error(cause, schema)),
    }

    let give_up = Instant::now() + PATIENCE;
    loop {
        match upgrade(pool, schema, migrations).await {
            Err(Failure::Sqlx(cause))
                if (is_locked(&cause) || was_idle(&cause)) && Instant::now() < give_up =>
            {
                sleep(PAUSE).await;
            }
            Err(Failure::Sqlx(cause)) if has_another_owner(&cause) => {
                return Err(foreign(
                    schema,
                    "has tables or functions of another program with the names of ours: use another schema",
                ));
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

/// The versions that a schema has had, with the lowest release that could use each.
async fn versions(
    executor: impl PgExecutor<'_>,
    schema: &Schema,
) -> sqlx::Result<Vec<(i32, String)>> {
    let sql = schema.sql("SELECT version, lowest_release FROM {schema}.schema_versions ORDER BY 1");
    let versions = sqlx::query_as(AssertSqlSafe(sql));
    versions.fetch_all(executor).await
}

fn foreign(schema: &Schema, what: &str) -> Error {
    let message = format!("the schema `{}` {what}", schema.name());
    Error::new(ErrorKind::Foreign, message)
}

async fn upgrade(pool: &PgPool, schema: &Schema, migrations: Migrations) -> Result<(), Failure> {
    let mut transaction = pool.begin_with(BEGIN).await?;
    // Unlike a lock of the session, this one works behind PgBouncer too.
    sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended('tower_webhook ' || $1, 0))")
        .bind(schema.name())
        .execute(&mut *transaction)
        .await?;
    execute(&mut transaction, LOCK_TIMEOUT).await?;
    let exists = "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)";
    let exists = sqlx::query_scalar(exists).bind(schema.name());
    // Only where there is none: to create one needs a right, even with `IF NOT EXISTS`.
    if !exists.fetch_one(&mut *transaction).await? {
        execute(&mut transaction, &schema.sql("CREATE SCHEMA {schema}")).await?;
    }
    let table = schema.sql(
        "CREATE TABLE IF NOT EXISTS {schema}.schema_versions (
            version integer PRIMARY KEY,
            lowest_release text NOT NULL,
            applied_at timestamptz NOT NULL DEFAULT now()
        )",
    );
    execute(&mut transaction, &table).await?;
    let before = versions(&mut *transaction, schema).await?;
    let pending = pending(&before, schema, migrations).map_err(Failure::Newer)?;
    let before = before.last().map_or(0, |(version, _)| *version);
    for (version, migration) in (before + 1..).zip(pending) {
        execute(&mut transaction, &schema.sql(migration.sql)).await?;
        let record = schema
            .sql("INSERT INTO {schema}.schema_versions (version, lowest_release) VALUES ($1, $2)");
        sqlx::query(AssertSqlSafe(record))
            .bind(version)
            .bind(migration.lowest_release)
            .execute(&mut *transaction)
            .await?;
    }
    transaction.commit().await?;
    if before > 0 && !pending.is_empty() {
        tracing::info!(
            schema = schema.name(),
            before,
            now = migrations.len(),
            "the PostgreSQL schema was upgraded"
        );
    }
    Ok(())
}

async fn execute(transaction: &mut PgTransaction<'_>, sql: &str) -> sqlx::Result<()> {
    let sql = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
    sql.execute(&mut **transaction).await?;
    Ok(())
}

/// The migrations that a schema of these versions still lacks. Refuses one whose later release does not let this one use
/// it.
fn pending(
    versions: &[(i32, String)],
    schema: &Schema,
    migrations: Migrations,
) -> Result<Migrations, Error> {
    let number = |version: i32| usize::try_from(version).unwrap_or(0);
    let newest = versions.last().map_or(0, |(version, _)| number(*version));
    if let Some(pending) = migrations.get(newest..) {
        return Ok(pending);
    }
    let later = versions
        .iter()
        .filter(|(version, _)| number(*version) > migrations.len());
    let mut needs = later.map(|(_, lowest)| lowest);
    let refuses = |lowest: &&String| {
        let lowest = release(lowest);
        lowest.is_none() || lowest > release(RELEASE)
    };
    match needs.find(refuses) {
        None => {
            tracing::info!(
                schema = schema.name(),
                version = newest,
                "the PostgreSQL schema is of a later release, which lets this one use it"
            );
            Ok(&[])
        }
        Some(lowest) => Err(Error::new(
            ErrorKind::NewerSchema,
            format!(
                "the schema `{}` is of version {newest}, which only release {lowest} of tower-webhook or a later one \
                 can use, and this is release {RELEASE}: deploy the later release, or use another schema",
                schema.name(),
            ),
        )),
    }
}

/// The numbers of a release, by which releases compare.
fn release(text: &str) -> Option<[u64; 3]> {
    let numbers = text.split(['-', '+']).next()?;
    let numbers = numbers.split('.').map(|number| number.parse().ok());
    numbers.collect::<Option<Vec<_>>>()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_compare_by_their_numbers() {
        assert!(release("0.10.0") > release("0.9.12"));
        assert!(release("1.0.0") > release("0.99.0"));
        assert_eq!(release("0.1.0-rc.1"), release("0.1.0"));
        assert!(release(RELEASE).is_some());
        for text in ["", "1", "0.1", "0.1.0.0", "0.1.x", "later"] {
            assert_eq!(release(text), None, "{text}");
        }
    }
}
