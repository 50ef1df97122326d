//! What a report says, and the test that the page on testing shows.

use http::StatusCode;
use tower_webhook::Secret;
use tower_webhook::event::EventKind;
use tower_webhook_sandbox::{Fault, Injected, Rating, Sandbox, Webhook};

use super::{Recorder, sandbox};

#[tokio::test(start_paused = true)]
async fn report_is_a_table() {
    let recorder = Recorder::answering(StatusCode::OK);
    let sandbox = sandbox(&recorder);
    sandbox.inject(Fault::DropResponse);
    sandbox.chat().open();
    let report = sandbox.finish().await;
    assert_eq!(
        report.to_string(),
        "\x20event  kind              chat        state       attempts
     0  chat-opened       c-1         delivered   200 withheld [drop-response]; 200;
1 events, 1 delivered, 0 waiting, 0 lost, 0 never sent"
    );
}

#[tokio::test(start_paused = true)]
async fn report_of_a_failing_test_says_why() {
    use support::Ready;
    use tower_webhook::event::{ChatClosed, ChatOpened, ChatRated};
    use tower_webhook::{Delivery, EventRouter, HandlerError, Webhooks};

    let events = EventRouter::new()
        .on::<ChatOpened>(async |delivery: Delivery<ChatOpened>| {
            let id = delivery.payload.id.unwrap_or_default();
            Err(HandlerError::retry(format!("the CRM does not know {id}")))
        })
        .on::<ChatClosed>(async |_: Delivery<ChatClosed>| {
            std::panic::resume_unwind(Box::new("silently"))
        })
        .on::<ChatRated>(async |_: Delivery<ChatRated>| Err(HandlerError::discard("too old")));
    let secret = Secret::new("secret").unwrap();
    let sandbox = Sandbox::in_process(Webhooks::new(secret.clone()).layer(events));
    sandbox.configure_all(&Webhook::new("/webhooks").signed(secret));
    let other = Webhook::new("/webhooks").signed(Secret::new("other").unwrap());
    sandbox.configure(EventKind::MESSAGE_CREATED, other);

    let chat = sandbox.chat();
    sandbox.inject(Fault::Tamper);
    chat.open();
    chat.assign();
    chat.message("Hello");
    chat.close();
    chat.rate(Rating::Good);
    let report = sandbox.finish().await;

    let Injected { parameter, .. } = report.events[0].attempts[0].fault.unwrap();
    assert_eq!(
        report.to_string(),
        format!(
            "\x20event  kind              chat        state       attempts
     0  chat-opened       c-1         lost        401 [tamper (byte {parameter})]; 500 ×1008;
        failed: the CRM does not know c-1
     1  chat-assigned     c-1         delivered   200;
     2  message-created   c-1         lost        401 ×1009;
        invalid-signature: the signature is wrong for every secret
     3  chat-closed       c-1         lost        500 ×1009;
        panicked: the handler panicked: silently
     4  chat-rated        c-1         delivered   200;
        discarded: too old
5 events, 2 delivered, 0 waiting, 3 lost, 0 never sent"
        )
    );
    let reason = report.events[0].attempts[0].reason.as_deref().unwrap();
    assert!(reason.starts_with("invalid-signature: "), "{reason}");
}

mod readme {
    use tower_webhook::event::ChatRated;
    use tower_webhook::{Delivery, EventRouter};

    fn my_handlers() -> EventRouter {
        EventRouter::new().on::<ChatRated>(async |_: Delivery<ChatRated>| Ok(()))
    }

    // What the page on testing shows, which no doctest can run.
    #[rustfmt::skip]
    mod shown {
        use super::my_handlers;

use tower_webhook_sandbox::{Fault, Rating, Sandbox, Webhook};
use tower_webhook::{Secret, Webhooks};

#[tokio::test(start_paused = true)]
async fn a_chat_is_handled() {
    let secret = Secret::new("secret").unwrap();
    let (webhooks, _running) = Webhooks::new(secret.clone()).start(my_handlers()).unwrap();
    let sandbox = Sandbox::in_process(webhooks);
    sandbox.configure_all(&Webhook::new("/webhooks").signed(secret));
    sandbox.inject(Fault::DropResponse);
    let chat = sandbox.chat();
    chat.assign();
    chat.message("Where is my parcel?");
    chat.close();
    chat.rate(Rating::Good);
    let report = sandbox.finish().await;
    assert!(report.is_all_delivered(), "{report}");
}
    }

    #[test]
    fn docs_show_this_test() {
        let readme = include_str!("../../../src/docs/testing.md");
        let (_, rest) = readme.split_once("```rust,ignore\n").unwrap();
        let (shown, _) = rest.split_once("```").unwrap();
        assert!(shown.lines().count() < 20);
        assert!(include_str!("report.rs").contains(shown));
    }
}
