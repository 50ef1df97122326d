//! A cluster, whose servers divide the keys.
//!
//! The redis crate's own client is not used: while it learns where keys are, it answers nobody, and it asks one server
//! after another, so that one silent server stops the work of all. It also repeats requests that must not be repeated.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::{Arc, Mutex as SyncMutex};

use redis::{Client, ConnectionInfo, FromRedisValue, RedisResult};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::call::{Call, Request};
use super::connection::{Connection, GIVEN_UP, PAUSE, Target};
use super::error::{is_answer, is_cut_off};
use super::slots::{self, Range, slot_of};
use super::url::{addresses, at, host};
use crate::lock::lock;

/// How often a call follows a server that says that the key is elsewhere.
const MOVES: usize = 4;

pub(super) struct Cluster {
    /// Those of the URL.
    named: Vec<ConnectionInfo>,
    known: SyncMutex<Known>,
}

/// A server of a cluster, with a connection of its own, so that a silent one delays only the calls for its keys.
pub(super) struct Member {
    host: String,
    pub(super) connection: Connection,
}

#[derive(Default)]
struct Known {
    /// All servers, by their addresses.
    members: HashMap<(String, u16), Arc<Member>>,
    /// The first slot of each range, with the last one and the server that has their keys.
    ranges: BTreeMap<u16, (u16, Arc<Member>)>,
    /// When the servers were asked for the ranges.
    asked: Option<Instant>,
}

impl Known {
    fn primary_of(&self, slot: u16) -> Option<Arc<Member>> {
        let (_, (last, member)) = self.ranges.range(..=slot).next_back()?;
        (slot <= *last).then(|| Arc::clone(member))
    }
}

/// What a server knows of its cluster.
pub(super) struct View {
    /// Whether it can talk to most primaries. If not, they may have decided otherwise.
    pub(super) is_ok: bool,
    pub(super) ranges: Vec<Range>,
}

impl Member {
    pub(super) fn new(info: ConnectionInfo) -> RedisResult<Self> {
        Ok(Self {
            host: host(&info).to_owned(),
            connection: Connection::new(Target::Server(Client::open(info)?)),
        })
    }

    pub(super) async fn view(&self) -> RedisResult<View> {
        let about = redis::cmd("CLUSTER").arg("INFO").take();
        let about: String = self.connection.ask(&Request::Other(&about), true).await?;
        let ranges = redis::cmd("CLUSTER").arg("SLOTS").take();
        let ranges = self.connection.ask(&Request::Other(&ranges), true).await?;
        Ok(View {
            is_ok: slots::fields(&about).get("cluster_state") == Some(&"ok"),
            ranges: slots::parse(ranges, &self.host)?,
        })
    }
}

/// A call, which may be dropped before its answer.
struct Asked<'a> {
    cluster: &'a Arc<Cluster>,
    since: Instant,
    is_answered: bool,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        // The server may have been replaced, although no call lasts until it has failed.
        if !self.is_answered && self.since.elapsed() >= GIVEN_UP {
            self.cluster.look_again();
        }
    }
}

impl Cluster {
    pub(super) fn new(named: Vec<ConnectionInfo>, view: View) -> RedisResult<Self> {
        let cluster = Self {
            named,
            known: SyncMutex::default(),
        };
        cluster.learn(view)?;
        Ok(cluster)
    }

    pub(super) fn address(&self) -> String {
        addresses(&self.named)
    }

    pub(super) fn primaries(&self) -> Vec<Arc<Member>> {
        let known = lock(&self.known);
        let mut primaries: Vec<Arc<Member>> = Vec::new();
        for (_, primary) in known.ranges.values() {
            if !primaries.iter().any(|it| Arc::ptr_eq(it, primary)) {
                primaries.push(Arc::clone(primary));
            }
        }
        primaries
    }

    /// Calls a script on the server that has its key.
    pub(super) async fn invoke<T: FromRedisValue>(
        self: &Arc<Self>,
        call: &Call<'_>,
        repeatable: bool,
    ) -> RedisResult<T> {
        let mut asked = Asked {
            cluster: self,
            since: Instant::now(),
            is_answered: false,
        };
        let answer = self.follow(call, repeatable).await;
        asked.is_answered = true;
        answer
    }

    async fn follow<T: FromRedisValue>(
        self: &Arc<Self>,
        call: &Call<'_>,
        repeatable: bool,
    ) -> RedisResult<T> {
        let mut member = self.primary_of(slot_of(call.key())).await?;
        let mut request = Request::Call(call);
        let mut moves = 0;
        loop {
            let error = match member.connection.ask(&request, repeatable).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            // The server has executed nothing, so even what must not be repeated can go elsewhere.
            let Some((address, _)) = error.redirect_node().filter(|_| moves < MOVES) else {
                if !is_answer(&error) || is_cut_off(&error) || error.is_cluster_error() {
                    self.look_again();
                }
                return Err(error);
            };
            moves += 1;
            member = self.member(&member, address)?;
            request = match error.code() {
                // The key does not exist, and its slot is being moved.
                Some("ASK") => Request::Asking(call),
                _ => {
                    self.look_again();
                    Request::Call(call)
                }
            };
        }
    }

    async fn primary_of(self: &Arc<Self>, slot: u16) -> RedisResult<Arc<Member>> {
        let known = || lock(&self.known).primary_of(slot);
        if let Some(primary) = known() {
            return Ok(primary);
        }
        if self.may_look() {
            self.look().await?;
        }
        known().ok_or_else(|| io::Error::other("no server of the cluster has the key").into())
    }

    /// The server at an address that another one has named, without its host if that is the same.
    fn member(&self, by: &Member, address: &str) -> RedisResult<Arc<Member>> {
        let parts = address.rsplit_once(':');
        let parts = parts.and_then(|(host, port)| Some((host, port.parse().ok()?)));
        // With `?`, the cluster does not know the host either.
        let Some((host, port)) = parts.filter(|(host, _)| *host != "?") else {
            let text = format!("the cluster does not say where its server `{address}` is");
            return Err(io::Error::other(text).into());
        };
        let host = if host.is_empty() { &by.host } else { host };
        self.known_or_new(&mut lock(&self.known), (host.to_owned(), port))
    }

    fn known_or_new(&self, known: &mut Known, address: (String, u16)) -> RedisResult<Arc<Member>> {
        if let Some(member) = known.members.get(&address) {
            return Ok(Arc::clone(member));
        }
        let (host, port) = address.clone();
        let member = Arc::new(Member::new(at(&self.named[0], host, port))?);
        known.members.insert(address, Arc::clone(&member));
        Ok(member)
    }

    fn learn(&self, view: View) -> RedisResult<()> {
        let mut known = lock(&self.known);
        let mut ranges = BTreeMap::new();
        let mut members = HashMap::new();
        for range in view.ranges {
            for (nth, address) in range.servers.into_iter().enumerate() {
                let member = self.known_or_new(&mut known, address.clone())?;
                if nth == 0 {
                    ranges.insert(range.first, (range.last, Arc::clone(&member)));
                }
                members.insert(address, member);
            }
        }
        known.ranges = ranges;
        known.members = members;
        Ok(())
    }

    /// Whether the last look is long enough ago.
    fn may_look(&self) -> bool {
        let asked = &mut lock(&self.known).asked;
        let may = asked.is_none_or(|at| at.elapsed() >= PAUSE);
        if may {
            *asked = Some(Instant::now());
        }
        may
    }

    /// Finds out where the keys are, beside the calls.
    fn look_again(self: &Arc<Self>) {
        if let Ok(runtime) = Handle::try_current()
            && self.may_look()
        {
            let cluster = Arc::clone(self);
            runtime.spawn(async move {
                if let Err(error) = cluster.look().await {
                    tracing::debug!(%error, "the Redis cluster does not say which server has which keys");
                }
            });
        }
    }

    /// Asks the servers that are known. If none is part of the cluster any more, those of the URL, whose names may lead
    /// to others by now.
    async fn look(&self) -> RedisResult<()> {
        let members = lock(&self.known).members.values().cloned().collect();
        let view = match first_view(members).await {
            Ok(view) => view,
            Err(_) => {
                let named = self.named.iter().cloned().map(Member::new);
                let named = named.map(|member| Ok(Arc::new(member?)));
                first_view(named.collect::<RedisResult<_>>()?).await?
            }
        };
        self.learn(view)
    }
}

/// Asks all at the same time. The first that is part of the cluster is believed: if it knows less than another one, the
/// next call is told where its key is.
async fn first_view(members: Vec<Arc<Member>>) -> RedisResult<View> {
    let mut asked = JoinSet::new();
    for member in members {
        asked.spawn(async move { member.view().await });
    }
    let mut failed = io::Error::other("the cluster is down").into();
    while let Some(answer) = asked.join_next().await {
        match answer {
            Ok(Ok(view)) if view.is_ok => return Ok(view),
            Ok(Ok(_)) => {}
            Ok(Err(error)) => failed = error,
            Err(ended) => failed = io::Error::other(ended).into(),
        }
    }
    Err(failed)
}

#[cfg(test)]
mod tests {
    use redis::IntoConnectionInfo;

    use super::*;

    #[test]
    fn a_server_is_known_by_the_host_that_another_one_names() {
        let named = "redis://named:1".into_connection_info().unwrap();
        let by = Member::new(named.clone()).unwrap();
        let view = View {
            is_ok: true,
            ranges: Vec::new(),
        };
        let cluster = Cluster::new(vec![named], view).unwrap();
        for (address, host) in [
            ("10.0.0.1:2", "10.0.0.1"),
            (":2", "named"),
            ("::1:2", "::1"),
        ] {
            let member = cluster.member(&by, address).unwrap();
            assert_eq!(member.host, host);
        }
        for address in ["?:2", "named", "named:"] {
            let error = cluster.member(&by, address).err().unwrap();
            assert!(error.to_string().contains(address), "{error}");
        }
        assert_eq!(lock(&cluster.known).members.len(), 3);
    }
}
