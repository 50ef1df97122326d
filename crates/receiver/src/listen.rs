//! The sockets that connections arrive at.

use std::io;
use std::net::{self, SocketAddr};

use anyhow::Context;
use listenfd::ListenFd;
use tokio::net::{TcpListener, TcpSocket};

/// The connections that wait in the system's queue while all are in use. It may have a lower limit.
pub(crate) const BACKLOG: u32 = 4096;

/// Listens on an address. `other` is a flag with another one, in case that it is in use.
pub(crate) fn bind(address: SocketAddr, other: &str) -> anyhow::Result<TcpListener> {
    let bound = || {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    bound().map_err(|error| {
        let hint = match error.kind() {
            io::ErrorKind::AddrInUse => {
                format!("; if another receiver is running, choose another port, such as {other}")
            }
            _ => String::new(),
        };
        anyhow::anyhow!("cannot listen on {address}: {error}{hint}")
    })
}

/// The sockets that systemd has opened and passed in `LISTEN_FDS`. It keeps them while a receiver restarts, so that new
/// connections wait in the queue of the system.
pub(crate) fn lent() -> anyhow::Result<Vec<net::TcpListener>> {
    let mut sockets = ListenFd::from_env();
    let count = sockets.len();
    let take = |index| {
        let socket = sockets.take_tcp_listener(index);
        let socket = socket.ok().flatten().with_context(|| {
            format!(
                "socket {} of `LISTEN_FDS` is none of TCP: write an address with a port behind `ListenStream=` in the unit \
                 of the socket, such as 127.0.0.1:3000",
                index + 1
            )
        })?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    (0..count).map(take).collect()
}

/// Where deliveries arrive.
pub(crate) struct Listeners {
    listeners: Vec<TcpListener>,
    are_lent: bool,
}

impl Listeners {
    /// Those of systemd take the place of the address.
    pub(crate) fn open(lent: Vec<net::TcpListener>, address: SocketAddr) -> anyhow::Result<Self> {
        let are_lent = !lent.is_empty();
        let listeners = match are_lent {
            true => lent
                .into_iter()
                .map(TcpListener::from_std)
                .collect::<io::Result<_>>()?,
            false => vec![bind(address, "--listen 127.0.0.1:3001")?],
        };
        Ok(Self {
            listeners,
            are_lent,
        })
    }

    /// At least one.
    pub(crate) fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.listeners.iter().map(TcpListener::local_addr).collect()
    }

    pub(crate) fn are_lent(&self) -> bool {
        self.are_lent
    }

    pub(crate) fn into_each(self) -> impl Iterator<Item = TcpListener> {
        self.listeners.into_iter()
    }
}
