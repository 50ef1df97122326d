//! Which server of a cluster has a key.

use std::collections::HashMap;

use redis::{FromRedisValue, RedisResult, Value, from_redis_value};

/// How many slots the keys of a cluster are divided into.
pub(super) const SLOTS: u16 = 16_384;

/// The slot of a key: the checksum of what is in its first braces, or of the whole key.
pub(super) fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|&byte| byte == b'{').and_then(|open| {
        let behind = &key[open + 1..];
        let close = behind.iter().position(|&byte| byte == b'}')?;
        (close > 0).then(|| &behind[..close])
    });
    crc16(tag.unwrap_or(key)) % SLOTS
}

/// CRC-16/XMODEM, as [the specification](https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/)
/// has it.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |sum, &byte| {
        (0..8).fold(sum ^ u16::from(byte) << 8, |sum, _| {
            let shifted = sum << 1;
            if sum & 0x8000 == 0 {
                shifted
            } else {
                shifted ^ 0x1021
            }
        })
    })
}

/// A range of slots, and the addresses of the servers that have their keys: first the primary.
pub(super) struct Range {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) servers: Vec<(String, u16)>,
}

/// Reads the answer to `CLUSTER SLOTS` of the server at `host`.
pub(super) fn parse(answer: Vec<Vec<Value>>, host: &str) -> RedisResult<Vec<Range>> {
    let range = |range: Vec<Value>| {
        let mut parts = range.into_iter();
        let mut slot = || from_redis_value(parts.next().unwrap_or(Value::Nil));
        let (first, last) = (slot()?, slot()?);
        let servers = parts
            .map(|server| address(server, host))
            .filter_map(RedisResult::transpose)
            .collect::<RedisResult<_>>()?;
        Ok(Range {
            first,
            last,
            servers,
        })
    };
    answer.into_iter().map(range).collect()
}

/// The address of a server, if the cluster knows it.
fn address(server: Value, asked: &str) -> RedisResult<Option<(String, u16)>> {
    let mut parts = Vec::<Value>::from_redis_value(server)?.into_iter();
    let mut part = || parts.next().unwrap_or(Value::Nil);
    let host: Option<String> = from_redis_value(part())?;
    let port = from_redis_value(part())?;
    Ok(match host.as_deref() {
        Some("?") => None,
        None | Some("") => Some((asked.to_owned(), port)),
        Some(host) => Some((host.to_owned(), port)),
    })
}

/// The lines `NAME:VALUE` of a report.
pub(super) fn fields(report: &str) -> HashMap<&str, &str> {
    report
        .lines()
        .filter_map(|line| line.trim_end().split_once(':'))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot_of(b"{user1000}.following"), slot_of(b"user1000"));
        // Empty braces and unclosed braces are part of the key.
        assert_eq!(slot_of(b"foo{}{bar}"), crc16(b"foo{}{bar}") % SLOTS);
        assert_eq!(slot_of(b"foo{bar"), crc16(b"foo{bar") % SLOTS);
        assert_eq!(slot_of(b"foo{{bar}}zap"), slot_of(b"{bar"));
        assert_eq!(slot_of(b"foo{bar}{zap}"), slot_of(b"bar"));
    }

    #[test]
    fn servers_without_a_host_are_where_the_answer_came_from() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let server = |host| Value::Array(vec![host, Value::Int(7000), text("id")]);
        let answer = vec![vec![
            Value::Int(0),
            Value::Int(SLOTS as i64 - 1),
            server(Value::Nil),
            server(text("")),
            server(text("?")),
            server(text("10.0.0.1")),
        ]];
        let ranges = parse(answer, "h").unwrap();
        let [range] = &ranges[..] else {
            panic!("{} ranges", ranges.len());
        };
        assert_eq!((range.first, range.last), (0, SLOTS - 1));
        let hosts: Vec<_> = range.servers.iter().map(|(host, _)| &host[..]).collect();
        assert_eq!(hosts, ["h", "h", "10.0.0.1"]);
        assert!(parse(vec![vec![Value::Int(0)]], "h").is_err());
    }
}
