//! Programs with mistakes do not compile: layers in the wrong order, a forged proof, a handler of
//! another event. The compiler's message says what is wrong.
//!
//! The programs are in `programs/`. They are compiled against the libraries that were built for this
//! test, and of the compiler's output only a phrase is compared: `trybuild` compares all of it, which
//! breaks with every toolchain, and `compile_fail` doctests compare nothing on a stable one, so that a
//! typing error would pass. `correct.rs` shows that the libraries are found.

#![cfg(feature = "moka")]

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use serde_json::Value;

/// The programs, with phrases from what the compiler says about them.
const PROGRAMS: [(&str, &[&str]); 11] = [
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
        &["`()` is not a store", "use `MokaStore`, `SqliteStore`"],
    ),
    (
        "queues_nowhere",
        &["`From<()>` is not implemented", "`From<MemoryQueue>`"],
    ),
];

#[test]
fn only_correct_programs_compile() {
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

/// Compiles the programs, and returns the errors of each that has any.
fn check_programs() -> HashMap<&'static str, String> {
    let dependencies = dependencies();
    let check = |program: &'static str| {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("pipeline/programs");
        let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into()));
        rustc
            .args(["--edition=2024", "--crate-type=bin", "--emit=metadata"])
            .arg(here.join(program).with_extension("rs"))
            .arg("--out-dir")
            .arg(env!("CARGO_TARGET_TMPDIR"));
        for (name, library) in &dependencies {
            let directory = library.parent().unwrap();
            rustc.arg("-L");
            rustc.arg(format!("dependency={}", directory.display()));
            rustc.arg("--extern");
            rustc.arg(format!("{name}={}", library.display()));
        }
        let output = rustc.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        (!output.status.success()).then_some((program, errors))
    };
    let check_all = |programs: &[(&'static str, _)]| -> Vec<_> {
        programs.iter().filter_map(|(it, _)| check(it)).collect()
    };
    thread::scope(|scope| {
        let halves = PROGRAMS.chunks(PROGRAMS.len() / 2);
        let checks: Vec<_> = halves.map(|half| scope.spawn(|| check_all(half))).collect();
        let errors = checks.into_iter().map(|check| check.join().unwrap());
        errors.flatten().collect()
    })
}

/// The libraries that the programs use, by their names, as they were built for this test.
fn dependencies() -> HashMap<&'static str, PathBuf> {
    const USED: [&str; 3] = ["axum", "tower", "tower_webhook"];

    // Cargo has built all of this already, and only prints where it is.
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args(["test", "--no-run", "--offline", "--test", "pipeline"])
        .args(["--message-format=json", "--no-default-features"])
        .args(["--features", &features()])
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    // Variables that Cargo sets for a test, on which the build script of `ring` depends.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_MANIFEST_") || text.starts_with("CARGO_PKG_") {
            cargo.env_remove(name);
        }
    }
    let output = cargo.output().unwrap();
    let mut libraries = HashMap::new();
    for line in output.stdout.split(|&byte| byte == b'\n') {
        let Ok(message) = serde_json::from_slice::<Value>(line) else {
            continue;
        };
        let name = message["target"]["name"].as_str().unwrap_or_default();
        let name = USED
            .into_iter()
            .find(|used| name.replace('-', "_") == **used);
        if let Some(name) = name
            && message["reason"] == "compiler-artifact"
        {
            let files = message["filenames"].as_array().unwrap();
            let mut files = files.iter().map(|file| file.as_str().unwrap());
            if let Some(library) = files.find(|file| file.ends_with(".rlib")) {
                libraries.insert(name, PathBuf::from(library));
            }
        }
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(libraries.len(), USED.len(), "{libraries:?}\n{stderr}");
    libraries
}

/// The features that this test was built with. With others the libraries would be built once more.
fn features() -> String {
    let features = [
        ("admin", cfg!(feature = "admin")),
        ("axum", cfg!(feature = "axum")),
        ("conformance", cfg!(feature = "conformance")),
        ("console", cfg!(feature = "console")),
        ("default", cfg!(feature = "default")),
        ("metrics", cfg!(feature = "metrics")),
        ("moka", cfg!(feature = "moka")),
        ("postgres", cfg!(feature = "postgres")),
        ("public-keys", cfg!(feature = "public-keys")),
        ("redis", cfg!(feature = "redis")),
        ("sandbox", cfg!(feature = "sandbox")),
        ("signal", cfg!(feature = "signal")),
        ("sqlite", cfg!(feature = "sqlite")),
    ];
    let manifest = include_str!("../../Cargo.toml");
    let (_, declared) = manifest.split_once("\n[features]\n").unwrap();
    let (declared, _) = declared.split_once("\n[").unwrap();
    let declared = declared.lines().filter_map(|line| line.split_once(" = ["));
    for (feature, _) in declared {
        let is_known = features.iter().any(|(known, _)| *known == feature);
        assert!(is_known, "add the feature `{feature}` to this list");
    }
    let on = features.into_iter().filter(|(_, is_on)| *is_on);
    on.map(|(feature, _)| feature).collect::<Vec<_>>().join(",")
}
