//! A store whose every answer waits for the replicas: what the store itself does not do, for comparison.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisError, RedisResult};
use support::lock;
use tower_webhook::redis::RedisStore;
use tower_webhook::store::{
    Claim, EventKey, KeyState, Lease, SettleError, Store, StoreError, StoreErrorKind,
};

/// Writes the key once more, unchanged, so that this connection waits for the replicas to have it.
const TOUCH: &str = "local left = redis.call('PTTL', KEYS[1])
    if left > 0 then redis.call('PEXPIRE', KEYS[1], left) end
    return redis.call('GET', KEYS[1]) or ''";

/// How long the replicas have, in milliseconds.
const PATIENCE: usize = 100;

#[derive(Clone)]
pub(super) struct Replicated {
    store: RedisStore,
    addresses: Vec<String>,
    replicas: usize,
    /// Which server has the keys of a slot.
    primaries: Arc<Mutex<HashMap<u16, String>>>,
    connections: Arc<Mutex<HashMap<String, MultiplexedConnection>>>,
}

impl Replicated {
    /// With all servers that may be a primary, and how many replicas each primary has.
    pub(super) fn new(store: RedisStore, addresses: Vec<String>, replicas: usize) -> Self {
        Self {
            store,
            addresses,
            replicas,
            primaries: Arc::default(),
            connections: Arc::default(),
        }
    }

    /// Whether all replicas have a record of the key: that of this claim, or of a success.
    async fn is_replicated(&self, id: &EventKey, claim: Option<&Lease>) -> Result<(), StoreError> {
        let claim = claim.map(|lease| format!(" {:032x} ", lease.fence().0));
        let is_it = |record: &str| match &claim {
            Some(fence) => record.contains(fence),
            None => !record.is_empty() && record.bytes().all(|byte| byte.is_ascii_digit()),
        };
        let key = [b"webhook:".as_slice(), &id.key().to_be_bytes()].concat();
        let slot = slot_of(&key);
        let known = lock(&self.primaries).get(&slot).cloned();
        let mut address = known.unwrap_or_else(|| self.addresses[0].clone());
        // Each server may be away, and may say where the key is.
        for _ in 0..2 * self.addresses.len() {
            match self.touch(&address, &key).await {
                Ok((record, replicas)) if is_it(&record) && replicas >= self.replicas => {
                    lock(&self.primaries).insert(slot, address);
                    return Ok(());
                }
                Ok((record, replicas)) if is_it(&record) => {
                    return Err(unavailable(format!("{replicas} replicas have it")));
                }
                Err(error) if error.redirect_node().is_some() => {
                    address = error.redirect_node().unwrap().0.to_owned();
                }
                Ok(_) | Err(_) => {
                    let at = self.addresses.iter().position(|it| *it == address);
                    let next = at.map_or(0, |at| (at + 1) % self.addresses.len());
                    address = self.addresses[next].clone();
                }
            }
        }
        Err(unavailable("no server has it".to_owned()))
    }

    /// The record of the key, and how many replicas have it.
    async fn touch(&self, address: &str, key: &[u8]) -> RedisResult<(String, usize)> {
        let mut connection = self.connection(address).await?;
        let mut both = redis::pipe();
        both.cmd("EVAL").arg(TOUCH).arg(1).arg(key);
        both.cmd("WAIT").arg(self.replicas).arg(PATIENCE);
        both.ignore_errors();
        type Answers = (RedisResult<String>, RedisResult<usize>);
        let answers: RedisResult<Answers> = both.query_async(&mut connection).await;
        match answers {
            Ok((record, replicas)) => Ok((record?, replicas?)),
            Err(error) => {
                lock(&self.connections).remove(address);
                Err(error)
            }
        }
    }

    async fn connection(&self, address: &str) -> Result<MultiplexedConnection, RedisError> {
        if let Some(known) = lock(&self.connections).get(address) {
            return Ok(known.clone());
        }
        let limit = Some(Duration::from_millis(500));
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(limit)
            .set_response_timeout(limit);
        let client = Client::open(format!("redis://{address}"))?;
        let new = client
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        lock(&self.connections).insert(address.to_owned(), new.clone());
        Ok(new)
    }
}

fn unavailable(reason: String) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, reason)
}

fn slot_of(key: &[u8]) -> u16 {
    let open = key.iter().position(|&byte| byte == b'{');
    let tag = open.and_then(|open| {
        let close = key[open + 1..].iter().position(|&byte| byte == b'}')?;
        (close > 0).then(|| &key[open + 1..=open + close])
    });
    let sum = tag.unwrap_or(key).iter().fold(0u16, |sum, &byte| {
        (0..8).fold(sum ^ u16::from(byte) << 8, |sum, _| {
            sum << 1 ^ if sum & 0x8000 == 0 { 0 } else { 0x1021 }
        })
    });
    sum % 16_384
}

impl Store for Replicated {
    const DURABLE_LEASES: bool = true;

    async fn claim(
        &self,
        id: &EventKey,
        lease: Duration,
        retain: Duration,
    ) -> Result<Claim, StoreError> {
        let claim = self.store.claim(id, lease, retain).await?;
        let replicated = match &claim {
            Claim::Acquired(lease) => self.is_replicated(id, Some(lease)).await,
            Claim::Done { .. } => self.is_replicated(id, None).await,
            Claim::InFlight { .. } => Ok(()),
        };
        if let (Err(_), Claim::Acquired(lease)) = (&replicated, &claim) {
            let _ = self.store.release(lease).await;
        }
        replicated.map(|()| claim)
    }

    async fn peek(&self, id: &EventKey) -> Result<KeyState, StoreError> {
        let state = self.store.peek(id).await?;
        if state == KeyState::Done {
            self.is_replicated(id, None).await?;
        }
        Ok(state)
    }

    async fn renew(&self, lease: &Lease, extend: Duration) -> Result<(), SettleError> {
        self.store.renew(lease, extend).await
    }

    async fn complete(&self, lease: &Lease, retain: Duration) -> Result<(), SettleError> {
        self.store.complete(lease, retain).await?;
        Ok(self.is_replicated(lease.id(), None).await?)
    }

    async fn release(&self, lease: &Lease) -> Result<(), SettleError> {
        self.store.release(lease).await
    }
}
