//! The example receiver's error for a store whose feature is off, for any set of features.

#[allow(dead_code)]
#[path = "../../crates/receiver/src/store.rs"]
mod store;

#[test]
fn store_that_is_not_built_in_is_explained() {
    let stores = [
        ("sqlite", cfg!(feature = "sqlite"), "sqlite:webhooks.db"),
        ("redis", cfg!(feature = "redis"), "redis://:hush@localhost"),
        (
            "postgres",
            cfg!(feature = "postgres"),
            "postgres://user:hush@localhost/database",
        ),
    ];
    for (feature, is_built_in, text) in stores {
        let error = store::Place::parse(text).err();
        assert_eq!(error.is_none(), is_built_in, "{text}: {error:?}");
        if let Some(error) = error {
            let command = format!("`cargo run --features {feature} --example receiver -- …`");
            assert!(error.contains(&command), "{error}");
            assert!(!error.contains("hush"), "{error}");
        }
    }
}
