//! The tasks of an operator, each from the overview on.

use tower_webhook::inbox::EventState;

use crate::chromium::{Page, Window, until};
use crate::desk::{Desk, event};

/// The clicks that a task may take, beside typing.
const MOST: usize = 4;

/// Dead letters, each of a chat of its own.
const DEAD: usize = 100;

/// The failures of requests that nobody has signed.
const REFUSED: usize = 120;

const YES: &str = "main form button:not([disabled])";

/// Where the tasks are done.
struct Site<'a> {
    url: &'a str,
    page: &'a Page,
}

impl Site<'_> {
    async fn task(&self, name: &str, task: impl AsyncFnOnce(&Page)) {
        self.page.goto(self.url).await;
        self.page.clicks();
        task(self.page).await;
        let clicks = self.page.clicks();
        assert!(clicks <= MOST, "{name}: {clicks} clicks");
    }
}

#[tokio::test]
async fn each_task_of_an_operator_takes_at_most_four_clicks() {
    let desk = Desk::new("timeout of the CRM");
    desk.add_five().await;
    for n in 0..DEAD {
        desk.accept(event(&format!("dead-{n}"), 1)).await;
    }
    let last = i64::try_from(5 + DEAD).unwrap();
    desk.until(last, EventState::Dead).await;
    for _ in 0..REFUSED {
        desk.refuse().await;
    }
    let url = desk.serve(desk.console()).await;
    let test = async |page: Page| {
        let site = Site {
            url: &url,
            page: &page,
        };
        what_is_wrong(&site).await;
        whom_it_concerns(&site).await;
        repairs(&site, &desk).await;
        what_was_done(&site).await;
        after_an_outage(&site).await;
        forgets(&site, &desk).await;
        page.has_no_errors().await;
    };
    Window::new(1280).open(&url, test).await;
}

async fn what_is_wrong(site: &Site<'_>) {
    site.task("what fails, and since when", async |page| {
        page.until_contains("#problems", "timeout of the CRM").await;
    })
    .await;
    site.task("how near the limit of the sender is", async |page| {
        let failures = format!("{REFUSED} requests were not verified in the last hour");
        page.until_contains("#alerts", &failures).await;
        page.until_contains("#alerts", "after 500 in an hour").await;
    })
    .await;
    site.task(
        "wrong signatures: since when, and from where",
        async |page| {
            page.follow(".site a[href='/refusals']").await;
            for text in ["203.0.113.9", "invalid-signature", "First", "Last"] {
                page.until_contains("#origins", text).await;
            }
            page.until_contains("#origins", &REFUSED.to_string()).await;
        },
    )
    .await;
}

async fn whom_it_concerns(site: &Site<'_>) {
    for (what, text, rows) in [
        ("chat", "stuck", 3),
        ("key", "stuck-2", 1),
        ("text", "\"rating\":3", 1),
    ] {
        let name = format!("the events of a customer, by {what}");
        site.task(&name, async |page| {
            page.set(".find input", text).await;
            page.follow(".find button").await;
            if what == "text" {
                // Of a large inbox, the newest payloads alone are searched at once.
                page.follow("#text").await;
            }
            until(&name, async || {
                (page.count("main tbody tr").await == rows).then_some(())
            })
            .await;
        })
        .await;
    }
    site.task("who blocks a chat, and since when", async |page| {
        page.follow("#blocked a[href='/chat?id=stuck']").await;
        page.until_contains("#blocked", "Blocked by event 3 for ")
            .await;
        page.until_contains("#blocked", "timeout of the CRM").await;
    })
    .await;
}

async fn repairs(site: &Site<'_>, desk: &Desk) {
    site.task(
        "redrive by reason and time, and cancel half-way",
        async |page| {
            page.follow("a[href='/events?state=failed']").await;
            page.set("#error", "timeout").await;
            page.script("document.getElementById('from').value = '2020-01-01T02:00'")
                .await;
            page.follow("button[formaction][value=redrive]").await;
            // Those of its first step.
            desk.redrives.forget_permits(usize::MAX);
            desk.redrives.add_permits(64);
            let all = DEAD + 2;
            page.until_contains("h1", &format!("redrive {all} events?"))
                .await;
            page.follow(YES).await;
            page.until_contains("#change", &format!("64 of {all} redriven"))
                .await;
            page.follow("#cancel").await;
            let left = format!("{} of {all} were left as they were.", all - 64);
            page.until_contains("#change", &left).await;
            desk.redrives.add_permits(1_000);
        },
    )
    .await;
    site.task("discard an event with a note", async |page| {
        page.set(".find input", "dead-90-1").await;
        page.follow(".find button").await;
        page.follow("main tbody a[href^='/events/']").await;
        page.set("#reason", "test data").await;
        page.follow("[id^='discard-']").await;
        page.follow(YES).await;
        page.until_contains("#state", "discarded").await;
        page.until_contains("#done", "discard by ada").await;
        page.until_contains("#done", "test data").await;
    })
    .await;
    site.task("pause a type", async |page| {
        page.follow("#pause-chat-rated").await;
        page.set("#reason", "the CRM is down").await;
        page.follow(YES).await;
        page.until_contains("#paused", "chat-rated is paused").await;
    })
    .await;
    site.task("resume it", async |page| {
        page.follow("#pause-chat-rated").await;
        page.follow(YES).await;
        page.until_contains("#notice", "chat-rated was resumed.")
            .await;
    })
    .await;
}

async fn what_was_done(site: &Site<'_>) {
    site.task("who did what today, and yesterday", async |page| {
        page.follow(".site a[href='/actions']").await;
        // Links of the form: today, yesterday, all.
        page.follow("main form a:nth-of-type(1)").await;
        for text in ["ada", "redrive", "cancel", "discard", "test data", "pause"] {
            page.until_contains("#rows", text).await;
        }
        page.follow("main form a:nth-of-type(2)").await;
        page.until_contains("#rows", "None.").await;
    })
    .await;
}

async fn after_an_outage(site: &Site<'_>) {
    site.task("what the sender has given up", async |page| {
        page.follow(".site a[href='/gaps']").await;
        page.until_contains("#rows", "stuck").await;
        page.script("document.getElementById('from').value = '2999-01-01T02:00'")
            .await;
        page.follow("main form button").await;
        page.until_contains("main", "No chat is incomplete.").await;
    })
    .await;
}

async fn forgets(site: &Site<'_>, desk: &Desk) {
    site.task("forget a person", async |page| {
        page.follow(".site a[href='/forget']").await;
        page.set("#person", "\"dead-7\"").await;
        page.follow("#search").await;
        page.until_contains("#progress", "1 event has the text.")
            .await;
        page.set("#reason", "her wish").await;
        page.follow("#forget").await;
        page.until_contains("#notice", "The payloads of 1 chat were deleted: 1.")
            .await;
    })
    .await;
    assert_eq!(desk.state(13).await, EventState::Discarded);
}
