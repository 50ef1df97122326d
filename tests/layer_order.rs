//! What must not compile does not: layers in the wrong order, a proof made by hand, a handler that
//! does not handle its event. And the compiler says why in words that help.
//!
//! The programs are in `layer_order/`. They are checked in a package of their own, and of the
//! compiler's output only a phrase is compared: `trybuild` compares all of it, which breaks with
//! every toolchain, and `compile_fail` doctests compare nothing on a stable one, so that a typing
//! error would pass. `correct.rs` shows that it is not the package that does not compile.

#![cfg(feature = "moka")]

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// The programs, with phrases from what the compiler says about them.
const PROGRAMS: [(&str, &[&str]); 10] = [
    ("correct", &[]),
    ("routes_unverified", &["`EventRouter`", "Request<Verified>"]),
    (
        "deduplicates_unverified",
        &["Idempotency<EventRouter", "Request<Verified>"],
    ),
    (
        "deduplicates_before_verifying",
        &["Idempotency<Signature<EventRouter>", "Request<Verified>"],
    ),
    ("forges_the_proof", &["`new` is private"]),
    ("forges_the_proof_by_fields", &["`Verified` are private"]),
    (
        "handles_nothing",
        &[
            "`Crm` does not handle `ChatRated`",
            "not a `Handler<ChatRated>`",
            "async |delivery: Delivery<ChatRated>|",
        ],
    ),
    (
        "handles_another_event",
        &[
            "`Crm` does not handle `ChatRated`",
            "not a `Handler<ChatRated>`",
        ],
    ),
    (
        "closure_takes_another_event",
        &["Delivery<ChatRated>", "Delivery<ChatClosed>"],
    ),
    (
        "stores_nowhere",
        &["`()` is not a store", "use one of `tower_webhook::store`"],
    ),
];

#[test]
fn only_what_is_in_order_compiles() {
    let errors = check_programs();
    for (program, phrases) in PROGRAMS {
        let errors = errors.get(program).map(String::as_str);
        assert_eq!(
            errors.is_none(),
            phrases.is_empty(),
            "{program}: {errors:?}"
        );
        for phrase in phrases {
            let errors = errors.unwrap_or_default();
            assert!(
                errors.contains(phrase),
                "{program}: no {phrase:?} in\n{errors}"
            );
        }
    }
}

/// Lets Cargo check the programs, and returns the errors of each that has any.
fn check_programs() -> HashMap<String, String> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let package = Path::new(env!("CARGO_TARGET_TMPDIR")).join("layer_order");
    fs::create_dir_all(&package).unwrap();
    fs::write(package.join("Cargo.toml"), manifest(here)).unwrap();
    // The versions that were fetched for this test.
    fs::copy(here.join("Cargo.lock"), package.join("Cargo.lock")).unwrap();

    let output = Command::new(env!("CARGO"))
        .args([
            "check",
            "--offline",
            "--keep-going",
            "--message-format=json",
        ])
        .arg("--target-dir")
        .arg(package.join("target"))
        .current_dir(&package)
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);

    let mut errors = HashMap::<String, String>::new();
    let mut correct = false;
    for line in output.stdout.split(|&byte| byte == b'\n') {
        let Ok(message) = serde_json::from_slice::<Value>(line) else {
            continue;
        };
        let target = message["target"]["name"].as_str().unwrap_or_default();
        correct |= message["reason"] == "compiler-artifact" && target == "correct";
        if message["message"]["level"] == "error" {
            let rendered = message["message"]["rendered"].as_str().unwrap();
            errors
                .entry(target.to_owned())
                .or_default()
                .push_str(rendered);
        }
    }
    assert!(correct, "`correct.rs` was not compiled:\n{stderr}");
    errors
}

fn manifest(here: &Path) -> String {
    let mut manifest = format!(
        r#"
[package]
name = "layer-order"
edition = "2024"
publish = false

[workspace]

[dependencies]
axum = {{ version = "0.8", default-features = false }}
tower = {{ version = "0.5", features = ["util"] }}
tower-webhook = {{ path = {here:?} }}
"#
    );
    for (name, _) in PROGRAMS {
        let path = here
            .join("tests/layer_order")
            .join(name)
            .with_extension("rs");
        manifest += &format!("\n[[bin]]\nname = {name:?}\npath = {path:?}\n");
    }
    manifest
}
