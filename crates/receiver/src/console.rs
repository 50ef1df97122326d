//! The operator's console, at an address of its own.

use std::net::SocketAddr;

use tower_webhook_console::Console;

use crate::activity::Limits;
use crate::args::Options;
use crate::connections::{Connections, bind};

pub(crate) async fn serve(
    mut console: Console,
    address: SocketAddr,
    args: &Options,
) -> anyhow::Result<()> {
    if args.console.console_read_only {
        console = console.read_only();
    }
    if args.console.console_hide_payloads {
        console = console.hide_payloads();
    }
    if let Some(header) = &args.console.console_actor {
        console = console.actor_header(header.clone());
    }
    let listener = bind(address, "--console 127.0.0.1:3002")?;
    let address = listener.local_addr()?;
    eprintln!("console on http://{address}/");
    if !address.ip().is_loopback() {
        tracing::warn!(
            "the console does not authenticate anybody: whoever reaches {address} can read and discard events"
        );
    }
    // Otherwise another site could read it, under a name of its own that resolves to this address.
    let names = args.console.console_host.iter().map(String::as_str);
    let app = console.hosts(names.chain(["localhost"])).router();
    let connections = Connections::new("console", app, Limits::FEW);
    tokio::spawn(async move { connections.accept(&listener).await });
    Ok(())
}
