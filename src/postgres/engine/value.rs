//! Parameters of statements, and columns of their rows.

use std::time::Duration;

use bytes::Bytes;
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{
    PgArgumentBuffer, PgArguments, PgRow, PgTypeInfo, PgValueFormat, PgValueRef, Postgres,
};
use sqlx::query::Query;
use sqlx::{Decode, Encode, Row, Type};

use super::error::corrupt;
use crate::store::OpenError as Error;

/// A parameter of a statement.
#[derive(Clone)]
pub(crate) enum Value {
    Id(u128),
    Number(i64),
    /// A number that may be NULL.
    Optional(Option<i64>),
    Text(String),
    Bytes(Bytes),
    Ids(Vec<Option<u128>>),
    Numbers(Vec<Option<i64>>),
    Flags(Vec<bool>),
    Texts(Vec<String>),
    Blobs(Vec<Option<Bytes>>),
}

impl Value {
    pub(crate) fn numbers(numbers: impl IntoIterator<Item = i64>) -> Self {
        Self::Numbers(numbers.into_iter().map(Some).collect())
    }

    /// Adds it to a statement.
    pub(super) fn bind<'q>(
        &self,
        query: Query<'q, Postgres, PgArguments>,
    ) -> Query<'q, Postgres, PgArguments> {
        match self {
            Self::Id(id) => query.bind(Uuid(*id)),
            Self::Number(number) => query.bind(*number),
            Self::Optional(number) => query.bind(*number),
            Self::Text(text) => query.bind(text.as_str()),
            Self::Bytes(bytes) => query.bind(bytes.as_ref()),
            Self::Ids(ids) => query.bind(ids.iter().map(|id| id.map(Uuid)).collect::<Vec<_>>()),
            Self::Numbers(numbers) => query.bind(numbers.as_slice()),
            Self::Flags(flags) => query.bind(flags.as_slice()),
            Self::Texts(texts) => query.bind(texts.as_slice()),
            Self::Blobs(blobs) => {
                query.bind(blobs.iter().map(Option::as_deref).collect::<Vec<_>>())
            }
        }
    }
}

/// 128 bits as PostgreSQL's `uuid`.
pub(crate) struct Uuid(pub(crate) u128);

impl Type<Postgres> for Uuid {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(2950))
    }
}

impl sqlx::postgres::PgHasArrayType for Uuid {
    fn array_type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(2951))
    }
}

impl Encode<'_, Postgres> for Uuid {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        buffer.extend_from_slice(&self.0.to_be_bytes());
        Ok(IsNull::No)
    }
}

impl Decode<'_, Postgres> for Uuid {
    fn decode(value: PgValueRef<'_>) -> Result<Self, BoxDynError> {
        match value.format() {
            PgValueFormat::Binary => Ok(Self(u128::from_be_bytes(value.as_bytes()?.try_into()?))),
            PgValueFormat::Text => Err("a uuid as text".into()),
        }
    }
}

/// A time in microseconds, rounded up, which no timestamp overflows with.
pub(crate) fn micros(time: Duration) -> i64 {
    const YEARS_100: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
    let micros = time.min(YEARS_100).as_nanos().div_ceil(1000);
    i64::try_from(micros).unwrap_or(i64::MAX)
}

pub(crate) fn column<'r, T>(row: &'r PgRow, at: usize) -> Result<T, Error>
where
    T: Decode<'r, Postgres> + Type<Postgres>,
{
    row.try_get(at).map_err(corrupt)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_up_and_limited() {
        assert_eq!(micros(Duration::ZERO), 0);
        assert_eq!(micros(Duration::from_nanos(1)), 1);
        assert_eq!(micros(Duration::from_micros(1)), 1);
        assert_eq!(micros(Duration::from_nanos(1_001)), 2);
        assert_eq!(micros(Duration::MAX), 100 * 365 * 24 * 60 * 60 * 1_000_000);
    }
}
