//! What a URL names.

use redis::io::tcp::TcpSettings;
use redis::{ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo, RedisResult};

/// A server, some servers of a cluster, or the sentinels that know the primary.
pub(super) struct Named {
    /// At least one.
    pub(super) servers: Vec<ConnectionInfo>,
    /// The name of the primary, if the servers are sentinels.
    pub(super) primary: Option<String>,
}

impl Named {
    /// Each host is that of a URL for it alone, with the same scheme, user, password, path and parameters.
    pub(super) fn parse(url: &str) -> RedisResult<Self> {
        let Some((scheme, rest)) = url.split_once("://") else {
            return Ok(Self::from(vec![info(url)?]));
        };
        let (authority, behind) = split_at_first(rest, &['/', '?', '#']);
        let (login, hosts) = match authority.rfind('@') {
            Some(at) => authority.split_at(at + 1),
            None => ("", authority),
        };
        let each = |scheme: &str, port: &str, behind: &str| {
            let of = |host: &str| {
                let port = if has_port(host) { "" } else { port };
                info(&format!("{scheme}://{login}{host}{port}{behind}"))
            };
            hosts.split(',').map(of).collect::<RedisResult<Vec<_>>>()
        };
        let Some(scheme) = scheme.strip_suffix("+sentinel") else {
            return Ok(Self::from(each(scheme, "", behind)?));
        };
        let (name, behind) = split_at_first(behind.trim_start_matches('/'), &['/', '?', '#']);
        if name.is_empty() {
            return Err((
                ErrorKind::InvalidClientConfig,
                "the name by which the sentinels know the primary is missing behind their addresses",
            )
                .into());
        }
        Ok(Self {
            servers: each(scheme, ":26379", behind)?,
            primary: Some(name.to_owned()),
        })
    }
}

impl From<Vec<ConnectionInfo>> for Named {
    fn from(servers: Vec<ConnectionInfo>) -> Self {
        Self {
            servers,
            primary: None,
        }
    }
}

fn split_at_first<'a>(text: &'a str, chars: &[char]) -> (&'a str, &'a str) {
    text.split_at(text.find(chars).unwrap_or(text.len()))
}

fn has_port(host: &str) -> bool {
    // An address of IPv6 has colons in brackets.
    host.rfind(':') > host.rfind(']')
}

fn info(url: &str) -> RedisResult<ConnectionInfo> {
    // Each operation is a small write that is waited for.
    let tcp = TcpSettings::default().set_nodelay(true);
    Ok(url.into_connection_info()?.set_tcp_settings(tcp))
}

/// The same connection to another server.
pub(super) fn at(info: &ConnectionInfo, host: String, port: u16) -> ConnectionInfo {
    let address = match info.addr().clone() {
        ConnectionAddr::TcpTls {
            insecure,
            tls_params,
            ..
        } => ConnectionAddr::TcpTls {
            host,
            port,
            insecure,
            tls_params,
        },
        _ => ConnectionAddr::Tcp(host, port),
    };
    info.clone().set_addr(address)
}

pub(super) fn host(info: &ConnectionInfo) -> &str {
    match info.addr() {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host,
        // The server does not say where it is, so it is on this machine.
        _ => "localhost",
    }
}

/// The addresses of all, without their passwords.
pub(super) fn addresses(servers: &[ConnectionInfo]) -> String {
    let addresses: Vec<_> = servers.iter().map(|it| it.addr().to_string()).collect();
    addresses.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_hosts_share_the_rest_of_the_url() {
        let named = |url: &str| Named::parse(url).unwrap();
        let all = |url: &str| addresses(&named(url).servers);
        assert_eq!(all("redis://a"), "a:6379");
        assert_eq!(
            all("redis://a:1,b,[::1]:2,[::1]"),
            "a:1,b:6379,::1:2,::1:6379"
        );
        assert_eq!(all("unix:/run/redis.sock"), "/run/redis.sock");
        assert!(named("valkey://a,b/").primary.is_none());

        let sentinels = named("redis+sentinel://u:p%40@a,b:1/webhooks/3?protocol=resp3");
        assert_eq!(addresses(&sentinels.servers), "a:26379,b:1");
        assert_eq!(sentinels.primary.as_deref(), Some("webhooks"));
        for server in &sentinels.servers {
            let settings = server.redis_settings();
            assert_eq!(settings.username(), Some("u"));
            assert_eq!(settings.password(), Some("p@"));
            assert_eq!(settings.db(), 3);
        }
        assert_eq!(named("valkey+sentinel://a/m").primary.as_deref(), Some("m"));

        for url in [
            "redis://",
            "redis://a,",
            "redis+cluster://a",
            "redis+sentinel://a",
            "redis+sentinel://a/",
            "redis+sentinel://a/m/first",
            "redis+sentinel:///m",
        ] {
            assert!(Named::parse(url).is_err(), "{url}");
        }
    }
}
