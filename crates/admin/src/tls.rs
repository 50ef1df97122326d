//! TLS for clients.

use std::sync::Arc;

use rustls::{ClientConfig, ConfigBuilder, Error, WantsVerifier};
use rustls_platform_verifier::BuilderVerifierExt;

/// Returns a configuration with the operating system's certificates.
pub(super) fn config() -> Result<ClientConfig, Error> {
    Ok(builder()?.with_platform_verifier()?.with_no_client_auth())
}

/// Returns a configuration that trusts no server.
pub(super) fn config_without_certificates() -> Result<ClientConfig, Error> {
    let none = rustls::RootCertStore::empty();
    Ok(builder()?
        .with_root_certificates(none)
        .with_no_client_auth())
}

fn builder() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, Error> {
    // Passed explicitly: a program may depend on several providers and have installed none.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()
}
