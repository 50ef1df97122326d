//! Users of Redis with the rights that the page on stores lists, and no more.

use support::redis::RedisServer;

const PAGE: &str = include_str!("../../src/docs/stores.md");

/// Without these, nothing works.
pub(crate) fn for_all() -> String {
    format!("-@all {}", listed(0))
}

/// In addition, in a cluster.
pub(crate) fn for_cluster() -> &'static str {
    listed(2)
}

/// One of the lists: for all, for a database, for a cluster.
fn listed(nth: usize) -> &'static str {
    let (_, behind) = PAGE
        .split_once("A user with limited rights needs ")
        .unwrap();
    let lists = behind.split('`').skip(1).step_by(2);
    let mut lists = lists.filter(|it| it.contains('+'));
    lists.nth(nth).unwrap()
}

/// Makes a user with these rights, and returns its URL.
pub(crate) fn user_of(server: &RedisServer, rights: &str) -> String {
    let acl = format!("ACL SETUSER webhooks reset on >hunter2 {rights}");
    let answer = server.command(&acl.split(' ').collect::<Vec<_>>());
    assert!(answer.starts_with("+OK"), "{answer}");
    format!("redis://webhooks:hunter2@{}/", server.address())
}
