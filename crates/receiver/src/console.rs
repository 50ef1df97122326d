//! The operator's console of each database, at an address of its own.

use std::future::ready;
use std::net::SocketAddr;

use axum::Router;
use axum::http::header::HOST;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Html;
use axum::routing::get;
use tower_webhook_console::Console;

use crate::activity::Limits;
use crate::args::Options;
use crate::connections::Connections;
use crate::host::is_known;
use crate::listen::bind;
use crate::log::say;
use crate::refusals::Refusals;

/// Serves the console of one database at `/`, and those of several below their names.
pub(crate) fn serve(
    consoles: Vec<(String, Console)>,
    address: SocketAddr,
    args: &Options,
) -> anyhow::Result<()> {
    let listener = bind(address, "--console 127.0.0.1:3002")?;
    let address = listener.local_addr()?;
    say(format_args!("console on http://{address}/"));
    if !address.ip().is_loopback() {
        tracing::warn!(
            "the console does not authenticate anybody: whoever reaches {address} can read and discard events"
        );
    }
    let pages = consoles.into_iter();
    let mut pages: Vec<_> = pages.map(|(name, it)| (name, router(it, args))).collect();
    let app = match pages.len() {
        1 => pages.remove(0).1,
        _ => list(pages, &args.console.console_host),
    };
    let connections = Connections::new(Refusals::new("console"), app, Limits::FEW);
    tokio::spawn(async move { connections.accept(listener, false).await });
    Ok(())
}

fn router(mut console: Console, args: &Options) -> Router {
    if args.console.console_read_only {
        console = console.read_only();
    }
    if args.console.console_hide_payloads {
        console = console.hide_payloads();
    }
    if let Some(header) = &args.console.console_actor {
        console = console.actor_header(header.clone());
    }
    // Otherwise another site could read it, under a name of its own that resolves to this address.
    let names = args.console.console_host.iter().map(String::as_str);
    console.hosts(names.chain(["localhost"])).router()
}

/// A page that links to the others. Their names need no escapes: they have only letters, digits and `-._~+`.
fn list(pages: Vec<(String, Router)>, hosts: &[String]) -> Router {
    let mut app = Router::new();
    let mut links: Vec<String> = Vec::new();
    for (mut name, pages) in pages {
        let link = |name: &str| format!("<li><a href=\"/{name}\">{name}</a></li>");
        // Browsers take dots for other paths.
        while name.is_empty() || name.ends_with('.') || links.contains(&link(&name)) {
            name.push('_');
        }
        links.push(link(&name));
        app = app.nest_service(&format!("/{name}"), pages);
    }
    let page = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>Webhooks</title>\
         <main><h1>Webhooks</h1><ul>{}</ul></main></html>\n",
        links.concat()
    );
    let hosts = hosts.to_vec();
    let answer = move |headers: HeaderMap| {
        let host = headers.get(HOST).and_then(|host| host.to_str().ok());
        ready(match host.is_some_and(|it| is_known(it, &hosts)) {
            true => Ok(Html(page.clone())),
            false => Err(StatusCode::MISDIRECTED_REQUEST),
        })
    };
    app.route("/", get(answer))
}
