//! The names under which pages and metrics may be read that have no authentication.

use std::net::IpAddr;

use axum::http::uri::Authority;

/// Whether a request's host is an address, `localhost`, or one of these names. Another site could read what is served
/// under a name of its own that resolves to this machine, but under no address.
pub(crate) fn is_known(host: &str, names: &[String]) -> bool {
    let Ok(authority) = host.parse::<Authority>() else {
        return false;
    };
    let name = authority.host();
    let address = name.trim_start_matches('[').trim_end_matches(']');
    let mut names = names.iter().map(String::as_str).chain(["localhost"]);
    address.parse::<IpAddr>().is_ok() || names.any(|known| known.eq_ignore_ascii_case(name))
}
