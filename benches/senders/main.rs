//! Measures how long the verification of a delivery takes for each sender, beside other crates.
//!
//! Run with: cargo bench --workspace --bench senders --features peers

mod measure;
mod peers;
mod rows;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request};
use tower_webhook::Sender;

use self::measure::{Effort, print};

const BODY: usize = 600;

fn main() {
    // `cargo test` does not pass `--bench`, and only checks that this works.
    let arguments: Vec<String> = std::env::args().collect();
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    if has("--list") {
        return;
    }
    let effort = if has("--bench") {
        Effort::FULL
    } else {
        Effort::SMOKE
    };
    let mut rows = rows::all();
    let measured: Vec<_> = rows.iter().map(|row| row.sender.as_str()).collect();
    // Those of one line sign as one of these does.
    let is_long = |name: &&&str| Sender::profile(name).is_some_and(|it| it.trim().contains('\n'));
    for name in Sender::PROFILES.iter().filter(is_long) {
        assert!(measured.contains(name), "there is no row for {name}");
    }
    let chosen: Vec<_> = arguments[1..]
        .iter()
        .filter(|it| !it.starts_with('-'))
        .collect();
    rows.retain(|row| chosen.is_empty() || chosen.contains(&&row.sender));
    for row in &mut rows {
        row.check();
        row.measure(effort);
    }
    println!(
        "\nVerification of {BODY} bytes, {} rounds of {} deliveries\n",
        effort.rounds, effort.deliveries
    );
    print(&rows);
}

/// A delivery with its changed form, which nobody may accept.
#[derive(Clone)]
pub(crate) struct Delivery {
    genuine: Request<Bytes>,
    changed: Request<Bytes>,
}

impl Delivery {
    fn new(genuine: Request<Bytes>) -> Self {
        let mut body = genuine.body().to_vec();
        body[BODY - 3] ^= 1;
        let changed = genuine.clone().map(|_| body.into());
        Self { genuine, changed }
    }

    /// A token does not depend on the body.
    fn with_token(mut genuine: Request<Bytes>, name: &'static str, token: &'static str) -> Self {
        let name = HeaderName::from_static(name);
        let mut changed = genuine.clone();
        let headers = genuine.headers_mut();
        headers.insert(name.clone(), HeaderValue::from_static(token));
        let headers = changed.headers_mut();
        headers.insert(name, HeaderValue::from_static("another"));
        Self { genuine, changed }
    }
}
