//! What a report says.

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
