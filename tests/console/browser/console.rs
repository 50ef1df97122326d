//! The operator's console.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{Html, IntoResponse};
use axum::routing::get;
use serde_json::json;
use tokio::time::sleep;
use tower_webhook::inbox::{EventId, EventState, Scope};

use crate::chromium::{HOSTILE, Page, Window, until};
use crate::desk::{Desk, TRACE_PARENT, TRIP_AFTER, event};
use support::delivery::RequestExt;
use support::net::serve;

const ERROR: &str = "the CRM is down";

/// The dead letters of the kind `chat-closed`, which follow the first five events.
const CLOSED: i64 = 79;

#[tokio::test]
async fn every_action_works_by_mouse_on_a_desktop() {
    tour(Window::new(1280)).await;
}

#[tokio::test]
async fn every_action_works_by_mouse_on_a_phone() {
    tour(Window::new(390)).await;
}

#[tokio::test]
async fn every_action_works_by_keyboard_on_a_desktop() {
    tour(Window::by_keyboard(1280)).await;
}

#[tokio::test]
async fn every_action_works_by_keyboard_on_a_phone() {
    tour(Window::by_keyboard(390)).await;
}

#[tokio::test]
async fn every_action_works_without_scripts_on_a_phone() {
    let window = Window {
        scripts: false,
        ..Window::new(390)
    };
    tour(window).await;
}

async fn tour(window: Window) {
    let desk = Desk::new(ERROR);
    desk.add_five().await;
    for n in 0..CLOSED {
        let closed = event(&format!("dead-{n}"), 1).kind("chat-closed");
        desk.accept(closed).await;
    }
    desk.until(5 + CLOSED, EventState::Dead).await;
    let url = desk.serve(desk.console()).await;
    let test = async |page: Page| {
        page.fits().await;
        lists(&page).await;
        finds(&page).await;
        filters(&page).await;
        redrives_one(&page, &desk).await;
        one_event(&page, &desk).await;
        selected_events(&page, &desk).await;
        all_that_match(&page, &desk).await;
        pauses(&page, &desk).await;
        page.has_no_errors().await;
    };
    window.open(&url, test).await;
}

/// From the overview to the dead letters of a kind, on two pages.
async fn lists(page: &Page) {
    page.follow("#kinds-table a[href*='state=dead'][href*='chat-closed']")
        .await;
    page.until_contains("h1", "Events").await;
    assert_eq!(page.rows().await, 40);
    page.follow("a[rel=next]").await;
    assert_eq!(page.rows().await, CLOSED - 40);
    assert_eq!(page.count("a[rel=next]").await, 0);
    page.follow(".pages a").await;
    assert_eq!(page.rows().await, 40);
}

/// One box on each page, for chats, keys and numbers.
async fn finds(page: &Page) {
    for (wanted, found) in [("stuck", 3), ("dead-1", 2), ("4", 1), ("nothing", 0)] {
        page.set(".find input", wanted).await;
        page.follow(".find button").await;
        page.until_contains("h1", &format!("Find {wanted}")).await;
        assert_eq!(page.count("main tbody tr").await, found, "{wanted}");
    }
}

async fn filters(page: &Page) {
    page.follow(".site a:nth-child(2)").await;
    page.choose("#state", "dead").await;
    page.set("#kind", "chat-rated").await;
    page.set("#chat", "dead").await;
    page.set("#key", "dead-1").await;
    page.set("#error", "CRM").await;
    page.choose("#hours", "24").await;
    page.choose("#order", "oldest").await;
    page.follow(FIND).await;
    assert_eq!(page.rows().await, 1);
    assert_eq!(page.count("#rows a[href='/events/2']").await, 1);
    let chosen = "return ['state', 'kind', 'chat', 'error', 'key', 'hours', 'order'].map(
        (id) => document.getElementById(id).value)";
    let all = json!([
        "dead",
        "chat-rated",
        "dead",
        "CRM",
        "dead-1",
        "24",
        "oldest"
    ]);
    assert_eq!(page.script(chosen).await, Some(all));

    // The keys for a time depend on the language of the browser.
    let long_ago = "const until = document.getElementById('until');
        until.value = '2020-01-01T00:00';
        return until.value";
    let long_ago = page.script(long_ago).await;
    assert_eq!(long_ago, Some(json!("2020-01-01T00:00")));
    page.follow(FIND).await;
    page.until_contains("main", "No event matches.").await;
    let until = "return document.getElementById('until').value";
    assert_eq!(page.script(until).await, long_ago);

    page.set("#chat", HOSTILE).await;
    page.follow(FIND).await;
    page.until_contains("main", "No event matches.").await;
    let chat = "return document.getElementById('chat').value";
    assert_eq!(page.script(chat).await, Some(json!(HOSTILE)));
}

const FIND: &str = "main form[method=get] button";
const YES: &str = "main form button:not([disabled])";
const REDRIVE_ALL: &str = "button[formaction][value=redrive]";
const DISCARD_ALL: &str = "button[formaction][value=discard]";

/// The first event of a lane fails once more, and then succeeds, with those behind it.
async fn redrives_one(page: &Page, desk: &Desk) {
    page.follow(".site a:nth-child(3)").await;
    page.until_contains("#lanes", "stuck").await;
    page.follow("#lanes a[href='/events/3']").await;
    page.until_contains("#state", "retrying").await;
    page.until_contains("#lane", "with 2 events behind it")
        .await;
    page.until_contains("#timeline", "failed after ").await;
    page.until_contains("#redrive-3", "Redrive").await;
    page.follow("#redrive-3").await;
    page.until_reloaded_text("#timeline", |text| text.matches(ERROR).count() == 2)
        .await;
    page.until_reloaded("#waits", "has failed again").await;
    desk.repair();
    page.follow("#redrive-3").await;
    page.until_reloaded("#state", "handled").await;
    desk.until(5, EventState::Handled).await;

    page.follow("dl a").await;
    page.until_contains("h1", "Chat stuck").await;
    assert_eq!(page.rows().await, 3);
    page.until_reloaded_text("#rows", |text| text.matches("handled").count() == 3)
        .await;
    page.follow("#rows a[href='/events/4']").await;
    page.until_contains("#timeline", "handled").await;
    page.follow(".site a:nth-child(3)").await;
    page.until_contains("#lanes", "None.").await;
}

async fn one_event(page: &Page, desk: &Desk) {
    page.follow(".site a:nth-child(2)").await;
    page.choose("#order", "oldest").await;
    page.follow(FIND).await;
    page.follow("#rows a[href='/events/2']").await;
    page.until_contains("#state", "dead").await;
    page.until_contains("#headers", TRACE_PARENT).await;
    if page.window.scripts {
        assert_eq!(page.count(".copy").await, 3, "chat, key and payload");
        page.activate("dl .copy").await;
        page.until_text("dl .copy", |text| text == "Copied").await;
        let title = "const time = document.querySelector('#timeline time');
            time.dispatchEvent(new MouseEvent('mouseover', { bubbles: true }));
            return time.title";
        let title = page.script(title).await.unwrap();
        let title = title.as_str().unwrap();
        assert!(
            title.contains(" ago: ") && title.ends_with(" here"),
            "{title}"
        );
        local_times(page).await;
    }
    page.follow("#discard-2").await;
    page.until_contains("h1", "Discard event 2?").await;
    page.follow(YES).await;
    page.until_contains("#state", "discarded").await;
    page.until_contains("#notice", "Event 2 was discarded.")
        .await;
    assert_eq!(page.count("#discard-2").await, 0);
    page.follow("#redrive-2").await;
    page.until_reloaded("#state", "handled").await;
    page.until_contains("#state", "redriven").await;
    desk.until(2, EventState::Handled).await;
}

/// The zone of the browser is chosen on each page, and remembered.
async fn local_times(page: &Page) {
    const SHOWN: &str = "const time = document.querySelector('#timeline time[datetime]');
        const full = { dateStyle: 'medium', timeStyle: 'medium' };
        const local = new Date(time.dateTime).toLocaleString('en-GB', full);
        return [time.textContent, time.dateTime, local]";
    let times = async || {
        let times = page.script(SHOWN).await.unwrap();
        let times: Vec<_> = times.as_array().unwrap().clone();
        let text = |at: usize| times[at].as_str().unwrap().to_owned();
        (text(0), text(1), text(2))
    };
    let (utc, datetime, _) = times().await;
    assert!(datetime.contains(&utc[utc.len() - 8..]), "{utc} {datetime}");
    page.follow("#zone button").await;
    page.until_contains("#zone", "Times are local").await;
    let (shown, _, local) = times().await;
    assert!(
        local.ends_with(&shown[shown.len() - 8..]),
        "{shown} {local}"
    );
    assert_eq!(shown.len(), utc.len());
    page.follow("#zone button").await;
    page.until_contains("#zone", "UTC").await;
    assert_eq!(times().await.0, utc);
}

async fn selected_events(page: &Page, desk: &Desk) {
    page.follow(".site a:nth-child(2)").await;
    page.choose("#state", "dead").await;
    page.choose("#order", "oldest").await;
    page.follow(FIND).await;
    for id in [6, 7] {
        page.activate(&format!("input[value^='{id}:']")).await;
    }
    page.follow("#selected button[value=redrive]").await;
    for id in [6, 7] {
        desk.until(id, EventState::Handled).await;
    }
    // The same list again.
    page.until_path("/events").await;
    assert_eq!(page.count("#rows a[href='/events/6']").await, 0);
    if page.window.scripts {
        for boxes in [40, 0] {
            page.activate("#all").await;
            assert_eq!(page.count("#rows input:checked").await, boxes);
        }
    }
    page.activate("input[value^='8:']").await;
    page.follow("#selected button[value=discard]").await;
    page.until_contains("h1", "Discard event 8?").await;
    assert_eq!(desk.state(8).await, EventState::Dead);
    page.follow(YES).await;
    page.until_path("/events").await;
    assert_eq!(desk.state(8).await, EventState::Discarded);
    assert_eq!(desk.state(9).await, EventState::Dead);
}

/// The rest, of which the first ones are redriven before the change is cancelled.
async fn all_that_match(page: &Page, desk: &Desk) {
    let left = CLOSED - 3;
    page.follow(DISCARD_ALL).await;
    page.until_contains("h1", &format!("discard {left} events?"))
        .await;
    page.follow("main form a").await;
    page.until_path("/events").await;

    desk.redrives.forget_permits(usize::MAX);
    // Those of its first step.
    desk.redrives.add_permits(64);
    page.follow(REDRIVE_ALL).await;
    page.until_contains("h1", &format!("redrive {left} events?"))
        .await;
    page.follow("main form button").await;
    let some = format!("64 of {left} redriven");
    page.until_reloaded("#change", &some).await;
    page.until_contains("#change", "In progress.").await;
    let progress = "const { value, max } = document.querySelector('progress'); return [value, max]";
    assert_eq!(page.script(progress).await, Some(json!([64, left])));
    page.follow("#cancel").await;
    page.until_contains("#change", "Cancelled.").await;
    // The step that has begun comes too late.
    desk.redrives.add_permits(1_000);
    let dead = left as u64 - 64;
    page.until_contains("#change", &some).await;
    let rest = format!("{dead} of {left} were left as they were.");
    page.until_contains("#change", &rest).await;

    page.follow("#change > p > a").await;
    assert_eq!(page.rows().await as u64, dead);
    page.follow(REDRIVE_ALL).await;
    page.until_contains("h1", &format!("redrive {dead} events?"))
        .await;
    page.follow("main form button").await;
    page.until_reloaded("#change", "Done.").await;
    page.until_contains("#change", &format!("{dead} of {dead} redriven"))
        .await;
    desk.until(5 + CLOSED, EventState::Handled).await;
    let stats = desk.inbox.stats().await.unwrap();
    assert_eq!((stats.dead(), stats.unsettled()), (0, 0));
}

/// All, and one kind. The others are handled meanwhile.
async fn pauses(page: &Page, desk: &Desk) {
    page.follow(".site a").await;
    let mut next = 5 + CLOSED;
    for (button, text) in [("#pause-all", " all"), ("#pause-chat-rated", "")] {
        page.follow(button).await;
        page.until_contains("h1", "Pause ").await;
        page.set("#reason", "the CRM is down").await;
        page.follow("main form button").await;
        page.until_contains("#notice", "was paused").await;
        page.until_contains("#paused", "the CRM is down").await;
        page.until_text(button, |found| found == format!("Resume{text}…"))
            .await;
        page.until_contains("#kinds-table", "paused").await;
        desk.accept(event("fine", 1).key(button)).await;
        next += 1;
        let waiting = next;
        if text.is_empty() {
            let other = event("fine-2", 1).kind("chat-closed");
            desk.accept(other).await;
            next += 1;
            desk.until(next, EventState::Handled).await;
        }
        assert_eq!(desk.state(waiting).await, EventState::Waiting);
        page.follow(button).await;
        page.until_contains("main", "the CRM is down").await;
        page.follow(YES).await;
        page.until_text(button, |found| found == format!("Pause{text}…"))
            .await;
        desk.until(waiting, EventState::Handled).await;
    }
    if page.window.scripts {
        page.activate("#pause").await;
        let is_checked = "return document.getElementById('pause').checked";
        assert_eq!(page.script(is_checked).await, Some(json!(true)));
    }
}

#[tokio::test]
async fn retry_of_what_failed_since_a_time_takes_three_clicks() {
    three_clicks(Window::new(1280)).await;
}

#[tokio::test]
async fn retry_of_what_failed_since_a_time_takes_three_clicks_without_scripts_on_a_phone() {
    let window = Window {
        scripts: false,
        ..Window::new(390)
    };
    three_clicks(window).await;
}

async fn three_clicks(window: Window) {
    let desk = Desk::new("timeout of the CRM");
    desk.add_five().await;
    let url = desk.serve(desk.console()).await;
    let test = async |page: Page| {
        page.clicks();
        page.follow("a[href='/events?state=failed']").await;
        assert_eq!(page.rows().await, 2);
        page.set("#error", "timeout").await;
        let since = "const from = document.getElementById('from');
            from.value = '2020-01-01T02:00';
            return from.value";
        let since = page.script(since).await;
        assert_eq!(since, Some(json!("2020-01-01T02:00")));
        // The whole time can be read.
        let cut = "const { clientWidth, scrollWidth } = document.getElementById('from');
            return [scrollWidth <= clientWidth, clientWidth >= 190]";
        assert_eq!(page.script(cut).await, Some(json!([true, true])));
        page.follow(REDRIVE_ALL).await;
        page.until_contains("h1", "redrive 2 events?").await;
        desk.repair();
        page.follow("main form button").await;
        assert_eq!(page.clicks(), 3);
        page.until_reloaded("#change", "2 of 2 redriven").await;
    };
    window.open(&url, test).await;
    desk.until(2, EventState::Handled).await;
    desk.until(3, EventState::Handled).await;
    let handled = desk.inbox.get(EventId(1)).await.unwrap().unwrap();
    assert!(!handled.summary.is_redriven);
}

/// The tasks of a bad night, each from the overview on, without what is typed.
#[tokio::test]
async fn tasks_take_few_clicks() {
    let desk = Desk::new(ERROR);
    desk.add_five().await;
    let url = desk.serve(desk.console()).await;
    let test = async |page: Page| {
        let done = async |task: &str, clicks: usize| {
            assert_eq!(page.clicks(), clicks, "{task}");
            page.goto(&url).await;
        };
        page.until_contains("#alerts p", "Critical").await;
        done("what is wrong now", 0).await;

        for text in ["stuck", "2 events", ERROR] {
            page.until_contains("#blocked", text).await;
        }
        done("which chat is blocked, and by what", 0).await;

        page.set(".find input", "dead-1").await;
        page.follow(".find button").await;
        page.until_contains("main tbody", "dead-letter").await;
        done("find an event by its chat or its key", 1).await;

        page.follow(".site a:nth-child(2)").await;
        page.set("#payload", "STUCK").await;
        page.follow(FIND).await;
        assert_eq!(page.rows().await, 3);
        done("find events by a text in their payloads", 2).await;

        page.follow("#pause-chat-rated").await;
        page.set("#reason", "the CRM is down").await;
        page.follow("main form button").await;
        page.until_contains("#paused", "the CRM is down").await;
        done("pause a kind", 2).await;
        page.follow("#pause-chat-rated").await;
        page.follow(YES).await;
        done("resume a kind", 2).await;

        page.follow("#kinds-table a[href*='state=dead']").await;
        page.activate("button[formaction='/export'][value=csv]")
            .await;
        done("export dead letters", 2).await;

        desk.redrives.forget_permits(usize::MAX);
        page.follow("#kinds-table a[href*='state=dead']").await;
        page.follow(REDRIVE_ALL).await;
        page.follow("main form button").await;
        page.follow("#cancel").await;
        page.until_contains("#change", "Cancelled.").await;
        done("redrive all, and cancel", 4).await;

        page.follow(".site a:nth-child(4)").await;
        page.until_contains("#rows", "redrive").await;
        page.until_contains("#rows", "cancelled").await;
        done("who did what", 1).await;
    };
    Window::new(1280).open(&url, test).await;
}

#[tokio::test]
async fn why_a_delivery_was_refused_takes_two_clicks() {
    two_clicks(Window::new(1280)).await;
}

#[tokio::test]
async fn why_a_delivery_was_refused_takes_two_clicks_by_keyboard_on_a_tablet() {
    two_clicks(Window::by_keyboard(820)).await;
}

#[tokio::test]
async fn why_a_delivery_was_refused_takes_two_clicks_without_scripts_on_a_phone() {
    let window = Window {
        scripts: false,
        ..Window::new(390)
    };
    two_clicks(window).await;
}

/// The refusals up to a time, and what has changed in a week.
async fn two_clicks(window: Window) {
    let desk = Desk::new(ERROR);
    desk.add_five().await;
    desk.refuse().await;
    desk.refuse().await;
    let url = desk.serve(desk.console()).await;
    let test = async |page: Page| {
        // They are written once a second.
        until("refusals", async || {
            page.goto(&format!("{url}/refusals")).await;
            (page.rows().await > 0).then_some(())
        })
        .await;
        page.goto(&url).await;
        page.follow("a[href='/refusals']").await;
        for text in ["invalid-signature", "not verified", "forged-1"] {
            page.until_contains("#rows", text).await;
        }
        let until = "const until = document.getElementById('until');
            until.value = '2020-01-01T03:12';
            return until.value";
        let until = page.script(until).await;
        assert_eq!(until, Some(json!("2020-01-01T03:12")));
        page.follow("#show").await;
        page.until_contains("#rows", "None.").await;
        page.follow("main form a").await;
        page.until_contains("#rows", "invalid-signature").await;

        page.goto(&url).await;
        page.follow("a[href='/history']").await;
        page.until_contains("h2", "The last 24 hours").await;
        page.follow("a[href='/history?range=7d']").await;
        page.until_contains("h2", "The last 7 days").await;
        // The lag may be less than a millisecond.
        let lines = "main svg[role=img]:not([aria-label^=Longest]) path:not([d=''])";
        assert_eq!(page.count(lines).await, 5);
        page.activate("main summary").await;
        page.until_contains("main details", "Longest wait for a first attempt")
            .await;
        page.fits().await;
        page.has_no_errors().await;
    };
    window.open(&url, test).await;
}

#[tokio::test]
async fn pages_are_accessible_on_a_desktop() {
    accessible(1280).await;
}

/// The script follows the link that others click.
#[tokio::test]
async fn a_search_goes_on_by_itself() {
    let desk = Desk::new(ERROR);
    desk.add_five().await;
    let url = desk.serve(desk.console()).await;
    let read_only = desk.serve(desk.console().read_only()).await;
    let test = async |page: Page| {
        for url in [&url, &read_only] {
            page.goto(&format!("{url}/events")).await;
            page.set("#payload", "STUCK").await;
            page.follow(FIND).await;
            page.until_text("#rest", |text| !text.contains("Continue search"))
                .await;
            assert_eq!(page.rows().await, 3);
            // The figures of the first step do not replace them.
            sleep(Duration::from_secs(2)).await;
            assert_eq!(page.rows().await, 3);
            page.goto(&format!("{url}/events?payload=nothing")).await;
            page.until_contains("#found", "No event matches.").await;
        }
        page.has_no_errors().await;
    };
    Window::new(1280).open(&url, test).await;
}

/// While the inbox is searched, no chat can be selected and nothing deleted. Afterwards, nothing undoes the choice.
#[tokio::test]
async fn chats_of_a_person_are_chosen_after_the_search() {
    let desk = Desk::new(ERROR);
    desk.add_five().await;
    let url = desk.serve(desk.console()).await;
    desk.searches.forget_permits(usize::MAX);
    desk.searches.add_permits(2);
    let test = async |page: Page| {
        page.goto(&format!("{url}/forget?id=rating")).await;
        page.until_contains("#progress", "2 events have the text so far")
            .await;
        page.until_contains("#chats", "dead").await;
        assert_eq!(page.count("#chats input, #forget, #reason").await, 0);
        page.is_accessible().await;
        desk.searches.add_permits(1_000);
        page.until_contains("#progress", "5 events have the text.")
            .await;
        assert_eq!(page.count("#chats input:checked").await, 3);
        page.activate("#chats input[value=stuck]").await;
        // What is replaced no more keeps the choice.
        assert_eq!(page.count("main [data-live]").await, 0);
        assert_eq!(page.count("#chats input:checked").await, 2);
        page.set("#who", "ada").await;
        page.follow("#forget").await;
        page.until_contains("#notice", "The payloads of 2 chats were deleted: 2.")
            .await;
        page.has_no_errors().await;
    };
    Window::new(1280).open(&url, test).await;
    assert_eq!(desk.state(3).await, EventState::Retrying);
}

#[tokio::test]
async fn pages_are_accessible_on_a_tablet() {
    accessible(820).await;
}

#[tokio::test]
async fn pages_are_accessible_on_a_phone() {
    accessible(390).await;
}

/// Pages that are empty, that have contents of all kinds, and that say what is wrong.
async fn accessible(width: u32) {
    let desk = Desk::new(ERROR);
    let url = desk.serve(desk.console()).await;
    let read_only = desk.console().read_only().hide_payloads();
    let read_only = desk.serve(read_only).await;
    let test = async |page: Page| {
        for path in ["", "kinds", "events", "lanes", "history", "refusals"] {
            page.goto(&format!("{url}/{path}")).await;
            page.is_accessible().await;
        }
        desk.add_five().await;
        for n in 0..TRIP_AFTER {
            desk.accept(event(&format!("stuck-{n}"), 1)).await;
            desk.refuse().await;
        }
        page.goto(&format!("{url}/events/3")).await;
        page.until_contains("#waits", "Attempts of its type are slowed down")
            .await;
        desk.inbox
            .pause(Scope::Everything, "ada: maintenance")
            .await
            .unwrap();
        // A change that does not end.
        desk.redrives.forget_permits(usize::MAX);
        page.goto(&format!("{url}/all?action=redrive&state=unsettled"))
            .await;
        page.follow("main form button").await;
        page.goto(&url).await;
        page.until_contains("#alerts", "none succeeds").await;
        page.until_contains("#alerts", "were not verified").await;
        page.until_contains("#alerts", "chat-opened").await;
        sentence_is_seen_at_once(&page).await;
        for path in [
            "",
            "kinds",
            "events?chat=stuck",
            "events?state=discarded",
            "events/2",
            "events/4",
            "lanes",
            "gaps",
            "chat?id=stuck",
            "find?id=stuck",
            "find?id=nowhere",
            "pause?of=chat-rated",
            "resume?of=",
            "forget",
            "forget?id=stuck",
            "all?action=redrive",
            "events/2/discard",
            "events/2?did=redrive:2",
            "events?state=none",
            "all?state=dead&action=discard",
            "actions/2",
            "actions",
            "history",
            "history?range=30d",
            "history?day=2026-11-20",
            "refusals",
            "events/999",
        ] {
            page.goto(&format!("{url}/{path}")).await;
            page.fits().await;
            page.is_accessible().await;
            if !path.starts_with("lanes") {
                // So that no control is replaced meanwhile.
                page.activate("#pause").await;
                let unreachable = page.unreachable_by_keyboard().await;
                assert!(unreachable.is_empty(), "{path}: {unreachable:#?}");
            }
        }
        for path in ["", "events?chat=stuck", "events/2"] {
            page.goto(&format!("{read_only}/{path}")).await;
            page.fits().await;
            page.is_accessible().await;
            page.until_contains("footer", "read-only").await;
            assert_eq!(page.count("form[method=post]").await, 0, "{path}");
            let main = page.until_text("main", |_| true).await;
            assert!(!main.contains(ERROR), "{main}");
            assert!(!main.contains("\"rating\""), "{main}");
        }
    };
    Window::new(width).open(&url, test).await;
}

/// At the widths where a layout ends and another begins.
#[tokio::test]
async fn controls_are_large_and_pages_fit_at_each_width() {
    let desk = Desk::new(ERROR);
    desk.add_five().await;
    let url = desk.serve(desk.console()).await;
    let test = async |page: Page| {
        for width in [1920, 1280, 1152, 1056, 908, 850, 801, 800, 390, 320] {
            page.resize(width, 844).await;
            for path in [
                "",
                "kinds",
                "history",
                "refusals",
                "events",
                "events/3",
                "lanes",
                "actions",
                "forget?id=stuck",
                "events/3/discard",
                "all?state=dead&action=discard",
            ] {
                page.goto(&format!("{url}/{path}")).await;
                let wide = format!("return document.documentElement.scrollWidth <= {width}");
                assert_eq!(
                    page.script(&wide).await,
                    Some(json!(true)),
                    "{path} at {width}"
                );
                let small = "const all = document.querySelectorAll('button, select, summary, nav a, input:not([type=hidden])');
                    const target = (it) => it.closest('label') ?? it;
                    return [...all].filter((it) => it.checkVisibility() && !it.closest('thead')).map((it) => [it.outerHTML, target(it).getBoundingClientRect()])
                        .filter(([, { width, height }]) => width < 24 || height < 24).map(([html]) => html)";
                assert_eq!(
                    page.script(small).await,
                    Some(json!([])),
                    "{path} at {width}"
                );
                // The whole time of a filter can be read.
                let cut = "const all = [...document.querySelectorAll('input[type=datetime-local]')];
                    return all.filter((it) => it.scrollWidth > it.clientWidth || it.clientWidth < 190).length";
                assert_eq!(page.script(cut).await, Some(json!(0)), "{path} at {width}");
                let left = "const all = [...document.querySelectorAll('td.number')];
                    return all.filter((it) => getComputedStyle(it).textAlign != 'right').length";
                assert_eq!(page.script(left).await, Some(json!(0)), "{path} at {width}");
            }
        }
    };
    Window::new(1920).open(&url, test).await;
}

/// What is wrong is on the first screen, and below it the chat that waits and why.
async fn sentence_is_seen_at_once(page: &Page) {
    page.goto(page.client.current_url().await.unwrap().as_str())
        .await;
    let bottom = "const { bottom } = document.querySelector('#alerts p').getBoundingClientRect();
        return [bottom < innerHeight, document.querySelector('#alerts p').textContent.split(':')[0]]";
    assert_eq!(page.script(bottom).await, Some(json!([true, "Critical"])));
    page.until_contains("#blocked", "stuck").await;
    page.until_contains("#blocked", ERROR).await;
}

/// Behind a proxy that fails, or whose login has expired.
#[tokio::test]
async fn page_says_how_old_its_figures_are() {
    let desk = Desk::new(ERROR);
    desk.add_five().await;
    let fault = Arc::new(AtomicU8::new(0));
    let proxy = Arc::clone(&fault);
    let app = desk
        .console()
        .router()
        .layer(from_fn(move |request: Request, next: Next| {
            let fault = proxy.load(Ordering::SeqCst);
            async move {
                match fault {
                    0 => next.run(request).await,
                    1 => StatusCode::BAD_GATEWAY.into_response(),
                    _ => Html("<title>Login</title>").into_response(),
                }
            }
        }));
    let url = format!("http://{}", serve(app).await);
    let test = async |page: Page| {
        for (proxy, why) in [(1, "The answer was 502."), (2, "perhaps to log in")] {
            fault.store(proxy, Ordering::SeqCst);
            page.until_contains("#stale[role=alert]", why).await;
            page.until_text("#stale", |text| text.contains("These figures are 1"))
                .await;
            page.fits().await;
            page.is_accessible().await;
            fault.store(0, Ordering::SeqCst);
            until("new figures", async || {
                (page.count("#stale").await == 0).then_some(())
            })
            .await;
        }
    };
    Window::new(390).open(&url, test).await;
}

#[tokio::test]
async fn script_in_texts_is_shown_and_never_executed() {
    let desk = Desk::new(HOSTILE);
    let dead = format!("dead{HOSTILE}");
    desk.accept(event(&dead, 1).with("tracestate", HOSTILE))
        .await;
    let stuck = format!("stuck{HOSTILE}");
    desk.accept(event(&stuck, 1)).await;
    desk.accept(event(&stuck, 2)).await;
    desk.until(1, EventState::Dead).await;
    desk.until(2, EventState::Retrying).await;
    let url = desk.serve(desk.console()).await;
    let encode =
        |text: &str| -> String { url::form_urlencoded::byte_serialize(text.as_bytes()).collect() };
    let hostile = encode(HOSTILE);
    let test = async |page: Page| {
        for (path, shown) in [
            ("", "#causes"),
            ("events", "#rows"),
            ("events/1", "main dl code"),
            ("events/1", "#timeline"),
            ("events/1", "pre"),
            ("events/1", "#headers"),
            ("lanes", "#lanes"),
            ("gaps", "#rows"),
            (&format!("chat?id={}", encode(&dead)), "h1"),
            (&format!("chat?id={hostile}"), "main"),
            (&format!("events?state={hostile}"), "main"),
            (
                &format!("all?action=redrive&state=dead&kind={hostile}"),
                "#filter",
            ),
            (&format!("events?after={hostile}"), "main"),
            (&format!("events?hours={hostile}"), "main"),
            (&format!("events/{hostile}"), "main"),
            (&format!("all?action={hostile}"), "main"),
        ] {
            page.goto(&format!("{url}/{path}")).await;
            page.until_contains(shown, "window.hacked").await;
            let found = "return [window.hacked, document.querySelectorAll('img, main script, body > script').length]";
            assert_eq!(page.script(found).await, Some(json!([null, 0])), "{path}");
            page.fits().await;
        }
    };
    Window::new(390).open(&url, test).await;
}

/// Another site in the same browser: a link may show the page, and everything else is refused.
#[tokio::test]
async fn other_sites_can_neither_post_nor_read() {
    let desk = Desk::new(ERROR);
    desk.add_five().await;
    let url = desk.serve(desk.console()).await;
    let port = url.rsplit(':').next().unwrap();
    let html = format!(
        "<form method=post action='{url}/events/2/discard'><button id=discard>Win</button></form>
        <form method=post action='{url}/pause'><button id=pause-all>Win</button></form>
        <form method=post action='{url}/all'><input name=action value=discard><button id=all>Win</button></form>
        <iframe src='{url}'></iframe>
        <p id=result></p><a id=link href='{url}/events/2'>a link</a>
        <script>
          const simple = {{ method: 'POST', mode: 'no-cors' }};
          Promise.allSettled([
            fetch('{url}/events/2/discard', simple), fetch('{url}/events/2'), fetch('{url}/', {{ headers: {{ 'x-live': '1' }} }}),
          ]).then(all => {{ result.textContent = all.map(one => one.value?.type ?? one.status).join() }})
        </script>"
    );
    let evil = serve(Router::new().route("/", get(async move || Html(html))))
        .await
        .port();
    let window = Window {
        flags: vec!["--host-resolver-rules=MAP evil.example 127.0.0.1".to_owned()],
        ..Window::new(1280)
    };
    let test = async |page: Page| {
        for host in ["evil.example", "localhost", "127.0.0.1"] {
            let own = format!("http://{host}:{evil}/");
            for button in ["#discard", "#pause-all", "#all"] {
                page.goto(&own).await;
                page.until_text("#result", |text| text == "opaque,rejected,rejected")
                    .await;
                page.activate(button).await;
                page.until_text("body", |text| !text.contains("a link"))
                    .await;
            }
            page.goto(&own).await;
            page.activate("#link").await;
            page.until_contains("h1", "Event 2").await;
        }
        page.goto(&format!("http://evil.example:{port}/events/2"))
            .await;
        page.until_contains("body", "not reachable under this host name")
            .await;
        page.goto(&format!("http://localhost:{port}/events/2"))
            .await;
        page.until_contains("h1", "Event 2").await;
    };
    window.open(&url, test).await;
    assert_eq!(desk.state(2).await, EventState::Dead);
    assert_eq!(desk.state(4).await, EventState::Waiting);
    let stats = desk.inbox.stats().await.unwrap();
    assert!(!stats.is_paused());
}

/// In two browsers, on two consoles over one inbox.
#[tokio::test]
async fn slower_of_two_operators_who_change_an_event_gets_a_conflict() {
    let desk = Desk::new(ERROR);
    for n in 1..=3 {
        desk.accept(event(&format!("dead-{n}"), 1)).await;
    }
    desk.until(3, EventState::Dead).await;
    desk.inbox.pause(Scope::Everything, "").await.unwrap();
    let (ada, bob) = (
        desk.serve(desk.console()).await,
        desk.serve(desk.console()).await,
    );
    let test = async |bobs: Page| {
        let test = async |adas: Page| {
            for id in 1..=3 {
                adas.goto(&format!("{ada}/events/{id}")).await;
                bobs.goto(&format!("{bob}/events/{id}/discard?state=dead"))
                    .await;
                // Otherwise the slower one sees what the other has done, and may change that.
                for page in [&adas, &bobs] {
                    page.script("window.fetch = () => new Promise(() => {})")
                        .await;
                }
                let redrive = format!("#redrive-{id}");
                tokio::join!(adas.follow(&redrive), bobs.follow(YES));
                let told = match desk.state(id).await {
                    EventState::Waiting | EventState::Retrying => &bobs,
                    EventState::Discarded => &adas,
                    other => panic!("{other}"),
                };
                told.until_contains("[role=alert]", "another operator may have changed it")
                    .await;
                // The page is that of the event, which goes on.
                told.until_contains("h1", &format!("Event {id}")).await;
                let state = desk.state(id).await;
                told.until_contains("#state", state.name()).await;
                match state {
                    EventState::Discarded => desk.inbox.redrive(EventId(id), None).await,
                    _ => desk.inbox.discard(EventId(id), None).await,
                }
                .unwrap();
                let state = desk.state(id).await;
                told.until_contains("#state", state.name()).await;
                assert_eq!(told.count("#stale").await, 0);
            }
        };
        Window::new(1280).open(&ada, test).await;
    };
    Window::new(390).open(&bob, test).await;
}

impl Page {
    pub(crate) async fn count(&self, selector: &str) -> i64 {
        let script = format!("return document.querySelectorAll({selector:?}).length");
        self.script(&script).await.unwrap().as_i64().unwrap()
    }

    pub(crate) async fn rows(&self) -> i64 {
        self.count("#rows tbody tr").await
    }
}
