//! The name of a schema of the user's database.

use crate::config::ConfigError;

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
