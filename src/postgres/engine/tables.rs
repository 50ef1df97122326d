//! A schema of the user's database, and the pool of connections to it.

use futures_util::future::BoxFuture;
use sqlx::postgres::PgPool;

use super::check::{Table, check_settings, check_tables};
use super::connections::Pool;
use super::error::error;
use super::migrate::{Migrations, migrate};
use super::name::Schema;
use crate::config::ConfigError;
use crate::store::OpenError as Error;

/// The tables in a schema.
pub(crate) struct Tables {
    pub(crate) pool: Pool,
    pub(crate) schema: Schema,
}

impl Tables {
    /// Those in the schema `tower_webhook` of the pool's database.
    pub(crate) fn new(pool: PgPool) -> Self {
        Self {
            pool: Pool::new(pool),
            schema: Schema::default(),
        }
    }

    /// Those in another schema.
    pub(crate) fn with_schema(&self, name: String) -> Result<Self, ConfigError> {
        Ok(Self {
            pool: self.pool.clone(),
            schema: Schema::new(name)?,
        })
    }

    /// Creates the tables, or upgrades those of an earlier release. Refuses a database in which these ones cannot be used.
    // A box that this crate makes, so that the program of a user does not compile it.
    pub(crate) fn migrate(
        &self,
        migrations: Migrations,
        used: &'static [Table],
    ) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let pool = self.pool.connections();
            check_settings(pool, &self.schema).await?;
            migrate(pool, &self.schema, migrations).await?;
            check_tables(pool, &self.schema, migrations, used).await?;
            self.pool.warn_if_commits_can_be_lost().await;
            Ok(())
        })
    }

    /// Explains an error of a statement on the tables.
    pub(crate) fn error(&self, cause: sqlx::Error) -> Error {
        error(cause, &self.schema)
    }
}
