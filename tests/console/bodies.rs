//! A body costs a page what the page shows of it, whatever the body is.

use allocation_counter::measure;
use tokio::runtime::Builder;
use tower_webhook_console::Console;

use support::delivery::{delivery, send};
use support::inbox::{inbox, webhooks};
use support::{bodies, delivery::RequestExt};

use super::get;

const MIB: u64 = 1 << 20;

#[test]
fn a_page_costs_what_it_shows_of_a_body() {
    for (name, body) in bodies::odd("chat-1") {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let inbox = inbox();
        let app = Console::new().inbox(inbox.clone()).router();
        let size = body.len() as u64;
        runtime.block_on(async {
            let request = delivery(body).key("key-1");
            send(&webhooks(&inbox), request).await.assert_ok();
        });
        // Of this text, the body has the beginning at each of its bytes.
        let text = match name {
            "nesting" => "[".repeat(199) + "]",
            "commas" => ",1".repeat(99) + ",2",
            _ => "x".repeat(199) + "y",
        };
        // They return all of it.
        let exports = ["/export?format=jsonl", "/export?format=csv"];
        for path in [
            "/events/1",
            "/events",
            "/chat?id=chat-1",
            "/find?id=key-1",
            &format!("/events?payload={text}"),
        ]
        .into_iter()
        .chain(exports)
        {
            // The first one makes what is made once.
            runtime.block_on(super::answer(&app, path));
            let mut answer = None;
            let info = measure(|| answer = Some(runtime.block_on(super::answer(&app, path))));
            let (status, written) = answer.unwrap();
            assert_eq!(status, 200, "{path}");
            println!(
                "{name} {path}: {} bytes in all, {} at once, {written} written",
                info.bytes_total, info.bytes_max
            );
            let most = match exports.contains(&path) {
                true => 3 * written,
                false => MIB,
            };
            assert!(info.bytes_total <= most, "{name} {path}: {info:?}");
        }
        let page = runtime.block_on(get(&app, "/events/1"));
        page.shows(&format!("This is the beginning of {size} bytes."));
    }
}
