//! A schema of the user's database, and the pool of connections to it.

use sqlx::postgres::PgPool;

use super::{Pool, Schema, error, migrate};
use crate::config::ConfigError;
use crate::storage::Error;

/// The tables in a schema.
pub(crate) struct Tables {
    pub(crate) pool: Pool,
    pub(crate) schema: Schema,
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
        Self { pool, schema }
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
}
