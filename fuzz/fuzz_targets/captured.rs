//! Captured requests: what is read is read again alike, and each sender explains it.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tower_webhook::signature::Finding;
use tower_webhook::{Secret, Sender};

#[path = "../../crates/receiver/src/captured.rs"]
mod captured;

fuzz_target!(|data: &[u8]| {
    let Ok(captured::Captured { request, notes }) = captured::read(data) else {
        return;
    };
    assert!(request.body().len() <= data.len() && notes.len() <= 1);
    let mut request = request.map(Bytes::from);
    // Of each form of the header, tokens in the body, forms, challenges and handshakes.
    for name in [
        "github",
        "stripe",
        "svix",
        "box",
        "linear",
        "gitlab",
        "meta",
        "discord",
        "workos",
        "persona",
        "docusign",
        "microsoft-graph",
        "figma",
        "slack-commands",
        "asana",
        "notion",
        "retell",
    ] {
        let sender = Sender::named(name, None).expect("a profile");
        let secret =
            Secret::new("d52880e28f61caa4c2a48a82e55f4751a92289a78009ea9f6532270c16ce8abe");
        let secrets = secret.expect("a secret").into();
        let explained = sender.explain(&secrets, &request);
        // Nobody has signed it.
        assert!(!explained.is_signed(), "{name}: {explained:?}");
        let mut steps = explained.steps().iter();
        assert_eq!(
            steps.all(|it| it.finding != Finding::Wrong),
            explained.is_accepted()
        );
        for step in explained.steps() {
            assert!(
                !step.text.contains('\n') && step.text.len() < 2_000,
                "{}",
                step.text
            );
        }
    }

    // Written as `curl -v` and `receiver send` print it.
    request.headers_mut().remove("transfer-encoding");
    let length = request.body().len();
    let headers = request.headers_mut();
    headers.insert("content-length", length.into());
    let target = request.uri().path_and_query().map_or("/", |it| it.as_str());
    let mut text = format!("> {} {target} HTTP/1.1\n", request.method()).into_bytes();
    for (name, value) in request.headers() {
        text.extend_from_slice(
            &[
                b"> ",
                name.as_str().as_bytes(),
                b": ",
                value.as_bytes(),
                b"\n",
            ]
            .concat(),
        );
    }
    text.extend_from_slice(b">\n");
    text.extend_from_slice(request.body());
    let again = captured::read(&text)
        .expect("what was written can be read")
        .request;
    assert_eq!(again.method(), request.method());
    assert_eq!(again.headers(), request.headers());
    assert_eq!(again.body(), &request.body()[..]);
});
