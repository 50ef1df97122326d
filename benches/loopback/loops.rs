//! Compares the receiver on Redis and Postgres with a bare loop that sends the server the same commands,
//! from the same core and with the same concurrency, and does nothing else.

use std::future::Future;
use std::thread;
use std::time::Instant;

use anyhow::Result;
use tokio::task::JoinSet;

use crate::contest::Effort;
use crate::load::{Deliveries, Pace};
use crate::report::Target::AtLeast;
use crate::report::{Spread, Verdicts};
use crate::{serve, stores};

const AT_ONCE: usize = 64;

/// Claims and completes one key after the other.
trait Client: Clone + Send + 'static {
    fn handle(&mut self, key: u128) -> impl Future<Output = Result<()>> + Send;
}

pub(crate) fn run(effort: &Effort, verdicts: &mut Verdicts) -> Result<()> {
    println!("\n## Bare loops, {AT_ONCE} at a time\n");
    #[cfg(feature = "redis")]
    {
        let store = stores::redis(effort, &[])?;
        let client = || redis::Loop::connect(store.on.url());
        compare("redis", &store.receiver, client, effort, verdicts)?;
    }
    #[cfg(feature = "postgres")]
    {
        let store = stores::postgres(effort)?;
        let statements = postgres::Statements::of(&store, effort)?;
        let client = || postgres::Loop::connect(store.on.url(), statements.clone());
        compare("postgres", &store.receiver, client, effort, verdicts)?;
    }
    Ok(())
}

fn compare<C: Client, F: Future<Output = Result<C>>>(
    name: &str,
    receiver: &crate::child::Receiver,
    client: impl Fn() -> F + Sync,
    effort: &Effort,
    verdicts: &mut Verdicts,
) -> Result<()> {
    let (mut received, mut looped) = (Vec::new(), Vec::new());
    let deliveries = Deliveries::unique();
    for _ in 0..effort.rounds {
        let pace = Pace::ClosedFor(effort.time);
        received.push(effort.measure(receiver, &deliveries, AT_ONCE, pace)?.rate);
        looped.push(rate(&client, effort)?);
    }
    let spread = |rates: &[f64]| Spread::of(rates.iter().copied()).show(0);
    println!(
        "- {name}: {} events/s through the receiver, {} in a bare loop",
        spread(&received),
        spread(&looped)
    );
    let both = received.iter().zip(&looped);
    verdicts.add(
        format!("{name}, of a bare loop of the same"),
        AtLeast(0.5),
        Spread::of(both.map(|(received, looped)| received / looped)),
        2,
    );
    Ok(())
}

/// Returns how many keys per second a loop processes on the receiver's cores.
fn rate<C: Client, F: Future<Output = Result<C>>>(
    client: impl Fn() -> F + Sync,
    effort: &Effort,
) -> Result<f64> {
    let run = || {
        effort.server_cores.pin()?;
        serve::runtime(&effort.server_cores)?.block_on(async {
            let client = client().await?;
            let began = Instant::now();
            let mut tasks = JoinSet::new();
            for _ in 0..AT_ONCE {
                let (mut client, time) = (client.clone(), effort.time);
                tasks.spawn(async move {
                    let mut done = 0;
                    while began.elapsed() < time {
                        client.handle(getrandom()?).await?;
                        done += 1;
                    }
                    anyhow::Ok(done)
                });
            }
            let mut total = 0;
            while let Some(done) = tasks.join_next().await {
                total += done??;
            }
            Ok(f64::from(total) / began.elapsed().as_secs_f64())
        })
    };
    thread::scope(|scope| scope.spawn(run).join().expect("the loop panicked"))
}

fn getrandom() -> Result<u128> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)?;
    Ok(u128::from_ne_bytes(bytes))
}

// The receiver's defaults.
const LEASE_MICROS: i64 = 60_000_000;
const RETAIN_MICROS: i64 = 8 * 24 * 60 * 60 * 1_000_000;

#[cfg(feature = "redis")]
mod redis {
    use anyhow::{Result, ensure};
    use redis::aio::MultiplexedConnection;
    use redis::{Client as Redis, Script, cmd};

    use super::{Client, LEASE_MICROS, RETAIN_MICROS};

    #[derive(Clone)]
    pub(super) struct Loop {
        connection: MultiplexedConnection,
        claim: String,
        complete: String,
    }

    impl Loop {
        pub(super) async fn connect(url: String) -> Result<Self> {
            // By their digests: the server returns an error if the receiver has loaded other scripts.
            macro_rules! digest {
                ($flags:literal, $file:literal) => {
                    Script::new(concat!(
                        $flags,
                        include_str!("../../src/redis/scripts/record.lua"),
                        include_str!(concat!("../../src/redis/scripts/", $file))
                    ))
                    .get_hash()
                    .to_owned()
                };
            }
            Ok(Self {
                connection: Redis::open(url)?.get_multiplexed_async_connection().await?,
                claim: digest!("", "claim.lua"),
                complete: digest!("#!lua flags=allow-oom\n", "complete.lua"),
            })
        }
    }

    impl Client for Loop {
        async fn handle(&mut self, key: u128) -> Result<()> {
            let name = [&b"webhook:"[..], &key.to_be_bytes()].concat();
            let fence = format!("{:032x}", !key);
            let body = (key >> 65) as u64;
            let claimed: Vec<u64> = cmd("EVALSHA")
                .arg(&self.claim)
                .arg(1)
                .arg(&name)
                .arg(&fence)
                .arg(body)
                .arg(LEASE_MICROS)
                .arg(RETAIN_MICROS)
                .query_async(&mut self.connection)
                .await?;
            ensure!(claimed == [0, 1], "a new key was not claimed: {claimed:?}");
            let completed: bool = cmd("EVALSHA")
                .arg(&self.complete)
                .arg(1)
                .arg(&name)
                .arg(&fence)
                .arg(RETAIN_MICROS)
                .query_async(&mut self.connection)
                .await?;
            ensure!(completed, "a claimed key was not completed");
            Ok(())
        }
    }
}

#[cfg(feature = "postgres")]
mod postgres {
    use std::sync::Arc;

    use anyhow::{Context, Result};
    use sqlx::encode::IsNull;
    use sqlx::error::BoxDynError;
    use sqlx::postgres::types::Oid;
    use sqlx::postgres::{PgArgumentBuffer, PgPool, PgTypeInfo, PgValueRef, Postgres};
    use sqlx::{AssertSqlSafe, Connection, Decode, Encode, PgConnection, Row, Type};

    use super::{Client, LEASE_MICROS, RETAIN_MICROS};
    use crate::contest::Effort;
    use crate::load::{Deliveries, Pace};
    use crate::serve;
    use crate::stores::Stored;
    use support::postgres::PostgresServer;

    /// The statements that the server reports to have received, so that this file need not repeat them.
    #[derive(Clone)]
    pub(super) struct Statements {
        claim: Arc<str>,
        complete: Arc<str>,
    }

    impl Statements {
        pub(super) fn of(store: &Stored<PostgresServer>, effort: &Effort) -> Result<Self> {
            let mut load = effort.connect(&store.receiver, 1)?;
            let last = || {
                let runtime = serve::runtime(&effort.load_cores)?;
                runtime.block_on(last_statement(&store.on.url()))
            };
            let delivery = Deliveries::cycling(1);
            load.run(&delivery, Pace::Closed(1))?;
            let complete = last()?;
            load.run(&delivery.replays(), Pace::Closed(1))?;
            let claim = last()?;
            Ok(Self { claim, complete })
        }
    }

    async fn last_statement(url: &str) -> Result<Arc<str>> {
        let mut connection = PgConnection::connect(url).await?;
        let statement: String = sqlx::query_scalar(
            "SELECT query FROM pg_stat_activity
             WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
             ORDER BY query_start DESC LIMIT 1",
        )
        .fetch_one(&mut connection)
        .await
        .context("the server does not report the statements that it received")?;
        connection.close().await?;
        Ok(statement.into())
    }

    #[derive(Clone)]
    pub(super) struct Loop {
        pool: PgPool,
        statements: Statements,
    }

    impl Loop {
        pub(super) async fn connect(url: String, statements: Statements) -> Result<Self> {
            let pool = serve::pool(&url).await?;
            Ok(Self { pool, statements })
        }
    }

    impl Client for Loop {
        async fn handle(&mut self, key: u128) -> Result<()> {
            let Statements { claim, complete } = &self.statements;
            let claimed = sqlx::query(AssertSqlSafe(Arc::clone(claim)))
                .bind(Uuid(key))
                .bind(Uuid(!key))
                .bind(LEASE_MICROS)
                .bind(RETAIN_MICROS)
                .fetch_one(&self.pool)
                .await?;
            let fence: Uuid = claimed.try_get(0).context("a new key was not claimed")?;
            sqlx::query(AssertSqlSafe(Arc::clone(complete)))
                .bind(Uuid(key))
                .bind(fence)
                .bind(RETAIN_MICROS)
                .fetch_one(&self.pool)
                .await
                .context("a claimed key was not completed")?;
            Ok(())
        }
    }

    /// 128 bits as PostgreSQL's `uuid`.
    struct Uuid(u128);

    impl Type<Postgres> for Uuid {
        fn type_info() -> PgTypeInfo {
            PgTypeInfo::with_oid(Oid(2950))
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
            Ok(Self(u128::from_be_bytes(value.as_bytes()?.try_into()?)))
        }
    }
}
