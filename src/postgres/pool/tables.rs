//! A schema of the user's database, and the pool of connections to it.

use sqlx::postgres::PgPool;
use sqlx::postgres::PgRow;
use tokio::sync::OnceCell;

use super::{Pool, Schema, error, migrate};
use super::{Value, column};
use crate::config::ConfigError;
use crate::store::engine::Error;

/// The tables in a schema.
pub(crate) struct Tables {
    pub(crate) pool: Pool,
    pub(crate) schema: Schema,
    identity: OnceCell<Option<String>>,
}

impl Tables {
    /// Those in the schema `tower_webhook` of the pool's database.
    pub(crate) fn new(pool: PgPool) -> Self {
        Self::in_schema(Pool::new(pool), Schema::default())
    }

    /// Those in another schema.
    pub(crate) fn with_schema(&self, name: String) -> Result<Self, ConfigError> {
        Ok(Self::in_schema(self.pool.clone(), Schema::new(name)?))
    }

    fn in_schema(pool: Pool, schema: Schema) -> Self {
        Self {
            pool,
            schema,
            identity: OnceCell::new(),
        }
    }

    /// Creates the tables, or upgrades those of an earlier release.
    pub(crate) async fn migrate(&self, migrations: &[&str]) -> Result<(), Error> {
        migrate(self.pool.connections(), &self.schema, migrations).await?;
        self.pool.warn_if_commits_can_be_lost().await;
        Ok(())
    }

    /// Explains an error of a statement on the tables.
    pub(crate) fn error(&self, cause: sqlx::Error) -> Error {
        error(cause, &self.schema)
    }

    /// Whether these are the same tables of the same database, and a transaction of either pool may call the functions
    /// of the inbox. It is looked up once, with a connection for the moment.
    pub(crate) async fn are_those_of(&self, other: &Self) -> Result<bool, Error> {
        let (one, other) = (self.identity().await?, other.identity().await?);
        Ok(one.is_some() && one == other)
    }

    /// What no other tables have, of another server either. `None` where the user lacks
    /// rights on those of the inbox, or transactions have an isolation level that its functions refuse.
    async fn identity(&self) -> Result<Option<&str>, Error> {
        let look = || async {
            let values = [Value::Text(self.schema.name().to_owned())];
            let sql = self.schema.sql(IDENTITY).into();
            let row = self.pool.fetch(&sql, &values).await;
            let row: Option<PgRow> = row.map_err(|cause| self.error(cause))?;
            row.map(|row| column(&row, 0)).transpose()
        };
        let identity = self.identity.get_or_try_init(look).await?;
        Ok(identity.as_deref())
    }
}

/// The numbers of the database, the schema and a table are those of one server, and its clock's microsecond at which
/// the schema was made tells it from others. Only a copy of all of the server's files has the same.
const IDENTITY: &str = "
    SELECT concat_ws(
        ' ',
        (SELECT oid FROM pg_database WHERE datname = current_database()),
        n.oid,
        t.oid,
        (SELECT extract(epoch FROM min(applied_at)) FROM {schema}.migrations)
    )
    FROM pg_namespace AS n JOIN pg_class AS t ON t.relnamespace = n.oid AND t.relname = 'head'
    WHERE n.nspname = $1
        AND current_setting('transaction_isolation') = 'read committed'
        AND 20 = (
            SELECT count(*)
            FROM pg_class AS c
            CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS r (action)
            WHERE c.relnamespace = n.oid
                AND c.relname = ANY (ARRAY['head', 'wait', 'aside', 'ended', 'events'])
                AND has_table_privilege(c.oid, r.action)
        )";
