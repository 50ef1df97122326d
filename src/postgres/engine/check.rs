//! What the database has to allow: it is asked for at the start, as some statements would fail only later, and others not at
//! all.

use sqlx::postgres::PgPool;
use sqlx::{AssertSqlSafe, Row};

use super::error::{error, is_locked};
use super::migrate::{BEGIN, Migrations};
use super::name::Schema;
use crate::store::{OpenError as Error, OpenErrorKind as ErrorKind};

/// A table, and a column that an update may name.
pub(crate) type Table = (&'static str, &'static str);

/// The shortest `statement_timeout`, in milliseconds: a step of a purge takes up to a second.
const SHORTEST: i64 = 1000;

fn unsuitable(message: String) -> Error {
    Error::new(ErrorKind::Unsuitable, message)
}

/// Refuses settings under which no schema can work.
pub(super) async fn check_settings(pool: &PgPool, schema: &Schema) -> Result<(), Error> {
    let sql = "SELECT current_setting('server_encoding'), setting::bigint FROM pg_settings WHERE name = 'statement_timeout'";
    let settings = sqlx::query_as(sql).fetch_one(pool).await;
    let (encoding, timeout): (String, i64) = settings.map_err(|cause| error(cause, schema))?;
    if !["UTF8", "SQL_ASCII"].contains(&&*encoding) {
        return Err(unsuitable(format!(
            "the encoding of the PostgreSQL database is {encoding}, which lacks characters of UTF-8: create one with \
             `ENCODING 'UTF8'`"
        )));
    }
    if (1..SHORTEST).contains(&timeout) {
        return Err(unsuitable(format!(
            "the `statement_timeout` of the pool's user is {timeout} ms, and some statements take longer: set it to at least \
             {SHORTEST} ms, or to 0, by `ALTER ROLE … SET statement_timeout`"
        )));
    }
    Ok(())
}

/// Refuses tables that the user of the pool cannot change, or of which some rows would be hidden from it: by what it tries,
/// without changing anything. On a server that takes no writes now, it tries nothing. A user who may change none of a
/// queue's tables only lists events, and so needs only the right to read them.
pub(super) async fn check_tables(
    pool: &PgPool,
    schema: &Schema,
    migrations: Migrations,
    tables: &[Table],
) -> Result<(), Error> {
    let failed = |cause| error(cause, schema);
    let mut transaction = pool.begin_with(BEGIN).await.map_err(failed)?;
    let names: Vec<_> = tables.iter().map(|(table, _)| *table).collect();
    let asked = "SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean, (
            SELECT string_agg(c.relname, ', ' ORDER BY c.relname) FROM pg_class AS c
            WHERE c.relnamespace = n.oid AND c.relname = ANY ($2) AND row_security_active(c.oid)
        ), (
            SELECT string_agg(p.proname, ', ' ORDER BY p.proname) FROM pg_proc AS p
            WHERE p.pronamespace = n.oid AND cardinality($2) > 1 AND p.proname = ANY ($3)
                AND NOT has_function_privilege(p.oid, 'EXECUTE')
        ), cardinality($2) > 1 AND NOT EXISTS (
            SELECT FROM pg_class AS c
            WHERE c.relnamespace = n.oid AND c.relname = ANY ($2) AND has_table_privilege(c.oid, 'INSERT, UPDATE, DELETE')
        ) FROM pg_namespace AS n WHERE n.nspname = $1";
    let asked = sqlx::query(asked).bind(schema.name()).bind(names);
    let asked = asked.bind(functions(migrations));
    let row = asked.fetch_one(&mut *transaction).await.map_err(failed)?;
    let (takes_no_writes, hidden): (bool, Option<String>) = (row.get(0), row.get(1));
    let (denied, is_reader): (Option<String>, bool) = (row.get(2), row.get(3));
    if let Some(hidden) = hidden {
        return Err(unsuitable(format!(
            "row security hides rows of tables in the schema `{}` from the user of the pool ({hidden}): disable it for these, \
             or grant the user `BYPASSRLS`",
            schema.name()
        )));
    }
    if let Some(denied) = denied.filter(|_| !is_reader) {
        return Err(Error::new(
            ErrorKind::Denied,
            format!(
                "the user of the pool may not execute functions in the schema `{}`: grant it `EXECUTE` on {denied}",
                schema.name()
            ),
        ));
    }
    if takes_no_writes {
        return Ok(());
    }
    let tries = tables.iter().map(|(table, column)| match is_reader {
        true => format!("SELECT FROM {{schema}}.{table} WHERE false;"),
        false => format!(
            "INSERT INTO {{schema}}.{table} OVERRIDING SYSTEM VALUE SELECT * FROM {{schema}}.{table} WHERE false;
            UPDATE {{schema}}.{table} SET {column} = {column} WHERE false; DELETE FROM {{schema}}.{table} WHERE false;"
        ),
    });
    let tries = schema.sql(&format!(
        "SET LOCAL lock_timeout = '500ms'; {}",
        tries.collect::<String>()
    ));
    let tried = sqlx::raw_sql(AssertSqlSafe(tries))
        .execute(&mut *transaction)
        .await;
    match tried {
        // Somebody has locked a table as a whole, which says nothing about it.
        Err(cause) if !is_locked(&cause) => Err(failed(cause)),
        _ => transaction.rollback().await.map_err(failed),
    }
}

/// The functions that are ours: in the schema of an application are others.
fn functions(migrations: Migrations) -> Vec<&'static str> {
    let created = migrations
        .iter()
        .flat_map(|it| it.sql.split("FUNCTION {schema}.").skip(1));
    created.filter_map(|rest| rest.split('(').next()).collect()
}
