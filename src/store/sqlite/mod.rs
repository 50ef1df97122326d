mod checkpoint;
mod clock;
mod error;
mod file;
mod keys;
mod writer;

use std::fmt;
use std::path::{self, Path};
use std::sync::Arc;
use std::time::Duration;

use self::checkpoint::Checkpoints;
use self::clock::{Clock, Machine};
use self::error::{Reason, Refused};
use self::keys::Settle;
use self::writer::{Batches, Need, Writer};
use super::{Claim, DeliveryId, KeyState, Lease, SettleError, Store, StoreError};

/// Remembers keys in a file of SQLite: the durable choice for one machine.
#[derive(Clone)]
pub struct SqliteStore {
    path: Arc<Path>,
    writer: Arc<Writer>,
}

impl SqliteStore {
    /// Opens the file, and creates it when there is none. Blocks its thread meanwhile.
    ///
    /// # Errors
    ///
    /// When the file cannot be created, read or written, is no database, another program's, or of a later
    /// release. The error's source says what to do.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::open_by(path.as_ref(), clock::machine())
    }

    fn open_by(path: &Path, machine: Machine) -> Result<Self, StoreError> {
        // SQLite would give other meanings to some relative paths, such as `:memory:`.
        let path: Arc<Path> = match path::absolute(path) {
            Ok(path) => path.into(),
            Err(error) => return Err(Refused::new(&path.into(), Reason::Create(error)).into()),
        };
        let open = || {
            let db = file::open(&path)?;
            let batches = Batches::new(db, Clock::start(machine))?;
            let aside = file::connect_aside(&path)?;
            let checkpoints = Checkpoints::start(&path, aside).map_err(Reason::Thread)?;
            Writer::start(&path, batches, checkpoints).map_err(Reason::Thread)
        };
        match open() {
            Ok(writer) => Ok(Self {
                path: Arc::clone(&path),
                writer: Arc::new(writer),
            }),
            Err(reason) => Err(Refused::new(&path, reason).into()),
        }
    }

    async fn settle(&self, need: Need, lease: &Lease, how: Settle) -> Result<(), SettleError> {
        let (key, fence) = (lease.id().key(), lease.fence());
        let settled = self
            .writer
            .run(need, move |turn| keys::settle(turn, key, fence, how));
        match settled.await? {
            true => Ok(()),
            false => Err(SettleError::Superseded),
        }
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl Store for SqliteStore {
    const LEASES_OUTLIVE_PROCESS: bool = true;

    async fn claim(
        &self,
        id: &DeliveryId,
        lease: Duration,
        retain: Duration,
    ) -> Result<Claim, StoreError> {
        let id = *id;
        self.writer
            .run(Need::Write, move |turn| {
                keys::claim(turn, id, lease, retain)
            })
            .await
    }

    async fn peek(&self, id: &DeliveryId) -> Result<KeyState, StoreError> {
        let key = id.key();
        self.writer
            .run(Need::Read, move |turn| keys::peek(turn, key))
            .await
    }

    async fn renew(&self, lease: &Lease, extend: Duration) -> Result<(), SettleError> {
        self.settle(Need::Write, lease, Settle::Renew(extend)).await
    }

    async fn complete(&self, lease: &Lease, retain: Duration) -> Result<(), SettleError> {
        self.settle(Need::Durable, lease, Settle::Complete(retain))
            .await
    }

    async fn release(&self, lease: &Lease) -> Result<(), SettleError> {
        self.settle(Need::Write, lease, Settle::Release).await
    }
}
