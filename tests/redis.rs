//! The Redis store, against real servers.

#[path = "servers/redis.rs"]
mod servers;

use servers::RedisServer;

#[test]
fn a_server_keeps_its_data_and_port_when_it_is_restarted() {
    let mut server = RedisServer::durable();
    let url = server.url();
    assert!(server.command(&["SET", "key", "value"]).starts_with("+OK"));
    server.kill();
    server.restart();
    assert_eq!(server.url(), url);
    assert!(server.command(&["GET", "key"]).contains("value"));
}
