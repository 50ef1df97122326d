//! What operators change: one event, or all that match.

use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use http::header::HeaderName;
use tokio::time::sleep;
use tower_webhook::inbox::{ActionKind, By, EventId, EventState, Filter, Seen, Which};
use tower_webhook::{EventKind, EventRouter, HandlerError, RawDelivery, Webhooks};
use tower_webhook_console::Console;
use tracing::Level;

use support::delivery::{RequestExt, delivery, secret, send};
use support::inbox::{NotingCrm, Works, accepting, event, inbox, states, webhooks};
use support::log::Log;
use support::{DAY, HOUR, MINUTE, SECOND};

use super::{asked, fields, form, four_events, get, post, request};

#[tokio::test(start_paused = true)]
async fn changes_are_made_and_logged_with_the_operator() {
    let inbox = four_events().await;
    let app = Console::new()
        .inbox(inbox.clone())
        .actor_header(HeaderName::from_static("x-user"))
        .router();
    let log = Log::capture(Level::INFO);
    let redrive = form("/events/2/redrive", "").with("x-user", "ada");
    let redriven = request(&app, redrive).await;
    let location = redriven.is(303).location.as_deref();
    assert_eq!(location, Some("/events/2?did=redrive%3A2"));
    get(&app, location.unwrap())
        .await
        .shows(r#"role="status">Event <a href="/events/2">2</a> was redriven."#);
    let line = log.events().pop().unwrap();
    assert_eq!(
        (&*line["actor"], &*line["action"], &*line["event"]),
        ("ada", "redrive", "2")
    );
    get(&app, "/events/2").await.shows("redriven");

    // The last line of the log has these fields.
    let logged = |fields: &[(&str, &str)]| {
        let line = log.events().pop().unwrap();
        for (field, value) in fields {
            assert_eq!(
                line.get(field).map(String::as_str),
                Some(*value),
                "{line:?}"
            );
        }
    };
    let by_grace = |path: &str, fields: &str| form(path, fields).with("x-user", "grace");
    let forged = by_grace("/events/3/discard", "").and("x-user", "ada");
    request(&app, forged).await.is(400).shows("occurs twice");
    let discard = by_grace("/events/3/discard", "");
    request(&app, discard).await.is(303);
    logged(&[
        ("actor", "grace"),
        ("action", "discard"),
        ("event", "3"),
        ("change", "Made"),
    ]);
    let again = post(&app, "/events/3/discard", "").await;
    // The event, with what has become of it.
    again
        .is(409)
        .shows("an attempt or another operator may have changed it")
        .shows(r#"<a rel="bookmark" href="/events/3">Event 3</a>"#)
        .shows(r#"<span id="state" data-live><span class="badge warn">discarded"#);
    logged(&[
        ("action", "discard"),
        ("event", "3"),
        ("change", "WrongState"),
    ]);
    let selected = post(
        &app,
        "/selected",
        "id=1&id=4&action=redrive&query=state%3Dunsettled",
    )
    .await;
    assert_eq!(
        selected.is(303).location.as_deref(),
        Some("/events?state=unsettled&did=redrive%3A1.4")
    );
    get(&app, selected.location.as_deref().unwrap())
        .await
        .shows(r#"2 events were redriven: <a href="/events/1">1</a> <a href="/events/4">4</a>."#);
    logged(&[("action", "redrive"), ("event", "4"), ("change", "Made")]);
    let stale = post(&app, "/selected", "id=4:dead&action=discard&sure=yes").await;
    // The list, with what was selected.
    stale
        .is(409)
        .shows("0 events were discarded")
        .shows("4.")
        .shows(r#"name="id" checked value="4:"#)
        .shows(r#"name="id" value="3:"#);
    post(&app, "/selected", "id=4:no&action=discard&sure=yes")
        .await
        .is(400);
    let partly = post(&app, "/selected", "id=4&id=3&action=discard&sure=yes").await;
    partly.is(409).shows("1 events were discarded").shows("3.");

    let pause = "of=chat-rated&reason=the+CRM+is+down";
    request(&app, by_grace("/pause", pause)).await.is(303);
    assert!(inbox.stats().await.unwrap().kinds[0].is_paused);
    let pauses = inbox.stats().await.unwrap().pauses;
    assert_eq!(pauses[0].note, "grace: the CRM is down");
    logged(&[("actor", "grace"), ("note", "grace: the CRM is down")]);
    get(&app, "/").await.shows("paused").shows("Resume");
    post(&app, "/resume", "of=chat-rated").await.is(303);
    post(&app, "/pause", "reason=maintenance").await.is(303);
    assert!(inbox.stats().await.unwrap().is_paused());
    post(&app, "/resume", "").await.is(303);
    assert!(!inbox.stats().await.unwrap().is_paused());
    assert_eq!(log.count(Level::INFO, "the console pauses or resumes"), 4);
    logged(&[("is_paused", "false")]);

    let confirmed = fields(&asked(&app, "action=discard&state=dead").await);
    let all = request(&app, by_grace("/all", &confirmed)).await;
    let path = all.is(303).location.clone().unwrap();
    let number = path.strip_prefix("/actions/").unwrap();
    let started = log.events().into_iter().rev();
    let mut started = started.filter(|line| line.contains_key("filter"));
    let started = started.next().unwrap();
    assert_eq!(
        (
            &*started["actor"],
            &*started["action"],
            started["filter"].split('&').next().unwrap(),
            &*started["number"]
        ),
        ("grace", "discard", "state=dead", number)
    );
    sleep(SECOND).await;
    logged(&[
        ("actor", "grace"),
        ("number", number),
        ("changed", "0"),
        ("ended", "done"),
    ]);
    request(&app, by_grace(&format!("{path}/cancel"), ""))
        .await
        .is(303);
    logged(&[("actor", "grace"), ("number", number)]);
    let cancels = "the console cancels a change of all events that match";
    assert_eq!(log.count(Level::INFO, cancels), 1);
}

#[tokio::test(start_paused = true)]
async fn an_event_says_when_it_is_tried_after_a_redrive() {
    let (inbox, crm) = (inbox(), NotingCrm::default());
    crm.down.store(true, Ordering::SeqCst);
    let worker = inbox.work(crm.router()).spawn();
    let webhooks = webhooks(&inbox);
    for n in 0..100 {
        let event = event(&format!("chat-{n}"), 1);
        send(&webhooks, event).await.assert_ok();
    }
    sleep(600 * SECOND).await;
    let app = Console::new().inbox(inbox.clone()).router();
    let when = "The next one begins in ";
    let now = "; after <b>Redrive</b>, it is that of this event.";
    get(&app, "/events/50").await.shows(when).shows(now);
    let read_only = Console::new().inbox(inbox.clone()).read_only().router();
    get(&read_only, "/events/50").await.shows(when).hides(now);
    let overview = get(&app, "/").await;
    overview
        .shows("this process slows down their attempts until one succeeds, and begins the next in ")
        .shows("slowed down here, next in ");

    // A second after an attempt, as one begins in ten seconds.
    let before = crm.attempts();
    while crm.attempts() == before {
        sleep(SECOND).await;
    }
    sleep(SECOND).await;
    let attempts = crm.attempts();
    let retried = post(&app, "/events/50/redrive", "state=retrying").await;
    sleep(SECOND / 2).await;
    assert_eq!(crm.attempts(), attempts + 1);
    let location = retried.is(303).location.clone().unwrap();
    get(&app, &location)
        .await
        .shows("Event <a")
        .shows("was redriven");

    post(&app, "/pause", "of=chat-rated&reason=maintenance")
        .await
        .is(303);
    let retried = post(&app, "/events/50/redrive", "state=retrying").await;
    let location = retried.is(303).location.clone().unwrap();
    sleep(100 * SECOND).await;
    assert_eq!(crm.attempts(), attempts + 1);
    get(&app, &location)
        .await
        .shows("It is paused since <time")
        .shows("it is not tried before somebody resumes chat-rated.")
        .hides(when);
    post(&app, "/resume", "of=chat-rated").await.is(303);
    worker.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn all_that_match_are_changed_after_a_preview() {
    let (inbox, crm) = (inbox(), NotingCrm::default());
    let webhooks = webhooks(&inbox);
    for n in 0..1_200 {
        let dead = delivery(format!("[{n}]")).key(&n.to_string());
        send(&webhooks, dead).await.assert_ok();
    }
    send(&webhooks, event("fine", 1)).await.assert_ok();
    let app = Console::new().inbox(inbox.clone()).router();
    let preview = get(&app, "/all?action=discard&state=dead").await;
    preview
        .is(200)
        .shows("Are you sure that you want to discard 1,200 events?");
    let none = get(&app, "/all?action=discard&state=handled").await;
    none.shows("0 events").shows("disabled");

    let confirmed = fields(&asked(&app, "action=discard&state=dead").await);
    // What dies after the preview was not shown in it: neither a new event is touched, nor one that waited.
    sleep(SECOND).await;
    send(&webhooks, delivery("[]")).await.assert_ok();
    let dies = async |_: RawDelivery| Err(HandlerError::dead_letter("late"));
    let worker = inbox.work(EventRouter::new().fallback(dies)).spawn();
    inbox.finish().await.unwrap();
    worker.drain(SECOND).await.unwrap();
    let started = post(&app, "/all", &confirmed).await;
    assert_eq!(started.is(303).location.as_deref(), Some("/actions/1"));
    let mut page = get(&app, "/actions/1").await;
    for _ in 0..1_000 {
        if page.text.contains("Done.") {
            break;
        }
        sleep(Duration::from_millis(1)).await;
        page = get(&app, "/actions/1").await;
    }
    page.shows("Done.").shows("1,200 discarded").hides("Cancel");
    let stats = inbox.stats().await.unwrap();
    assert_eq!((stats.dead(), stats.unsettled()), (2, 0));
    let unseen = post(&app, "/all", "action=discard&state=dead").await;
    unseen.is(400).shows("the page that asks");
    drop(crm);
}

#[tokio::test(start_paused = true)]
async fn a_stale_page_changes_no_event() {
    let inbox = four_events().await;
    let app = Console::new().inbox(inbox.clone()).router();
    get(&app, "/events/2")
        .await
        .shows(r#"<input type="hidden" name="state" value="dead">"#);
    post(&app, "/events/2/redrive", "state=dead").await.is(303);
    // Another operator, who still sees the dead letter.
    post(&app, "/events/2/redrive", "state=dead").await.is(409);
    let worker = inbox.work(NotingCrm::default().router()).spawn();
    inbox.finish().await.unwrap();
    post(&app, "/events/2/redrive", "state=dead").await.is(409);
    assert_eq!(states(&inbox).await[1], EventState::Handled);
    drop(worker);
}

/// Otherwise one click handled again all that was handled.
#[tokio::test(start_paused = true)]
async fn all_events_of_no_state_are_not_changed() {
    let inbox = four_events().await;
    let before = states(&inbox).await;
    let app = Console::new().inbox(inbox.clone()).router();
    let links = ["Redrive all…", "Discard all…"];
    for query in ["", "?kind=chat-rated", "?state=dead", "?state=unsettled"] {
        let list = get(&app, &format!("/events{query}")).await;
        list.shows(links[0]).shows(links[1]);
    }
    for action in ["redrive", "discard"] {
        let asked = get(&app, &format!("/all?action={action}&kind=chat-rated")).await;
        let dead = format!("/all?state=dead&amp;kind=chat-rated&amp;action={action}\"");
        asked
            .is(200)
            .shows(&format!("Which events do you want to {action}?"))
            .shows(&dead)
            .hides("method=\"post\"");
        let fields = format!("action={action}&newest=9&at=0&state=");
        let confirmed = post(&app, "/all", &fields).await;
        confirmed.is(400).shows("choose a state");
    }
    sleep(SECOND).await;
    assert_eq!(states(&inbox).await, before);
}

#[tokio::test(start_paused = true)]
async fn actions_say_who_did_what_and_why() {
    let inbox = four_events().await;
    let console = || {
        Console::new()
            .inbox(inbox.clone())
            .actor_header(HeaderName::from_static("x-user"))
    };
    let app = console().router();
    get(&app, "/actions").await.is(200).shows("None.");
    let by_ada = |path: &str, fields: &str| form(path, fields).with("x-user", "ada");
    let reason = "reason=%3Cb%3Ethe+customer+called%3C%2Fb%3E";
    request(&app, by_ada("/events/2/redrive", reason))
        .await
        .is(303);
    request(&app, by_ada("/events/2/redrive", "state=dead"))
        .await
        .is(409);
    let selected = "id=3&id=4&action=discard&reason=test+data";
    let asked = request(&app, by_ada("/selected", selected)).await;
    asked
        .is(200)
        .shows("Discard 2 events?")
        .shows(r#"name="reason" value="test data""#);
    assert_eq!(states(&inbox).await[2], EventState::Retrying);
    let sure = format!("{}&reason=test+data", fields(&asked));
    request(&app, by_ada("/selected", &sure)).await.is(303);
    let pause = "of=chat-rated&reason=the+CRM+is+down";
    request(&app, by_ada("/pause", pause)).await.is(303);
    post(&app, "/resume", "of=chat-rated").await.is(303);
    let all = format!(
        "{}&reason=a+clean+slate",
        fields(&super::asked(&app, "action=discard&state=unsettled").await)
    );
    request(&app, by_ada("/all", &all)).await.is(303);
    sleep(SECOND).await;

    let event = get(&app, "/events/2").await;
    event
        .shows("<h2>Actions</h2>")
        .shows("<b>redrive</b> by ada")
        .shows("&lt;b&gt;the customer called&lt;/b&gt;")
        .shows("a clean slate");
    get(&app, "/events/1").await.hides("<h2>Actions</h2>");
    let actions = get(&app, "/actions").await;
    actions
        .is(200)
        .shows("&lt;b&gt;the customer called&lt;/b&gt;")
        .shows("test data")
        .shows("the CRM is down")
        .hides("a program")
        .shows(r#"href="/events/4">event 4</a>"#);
    let kinds: Vec<_> = inbox.actions(Which::All, None, 10).await.unwrap();
    let kinds: Vec<_> = kinds.iter().map(|action| action.kind.name()).collect();
    assert_eq!(
        kinds,
        [
            "discard", "resume", "pause", "discard", "discard", "redrive"
        ]
    );
    let older = get(&app, "/actions?before=2").await;
    older.shows("the customer called").hides("test data");
    get(&app, "/actions?before=x")
        .await
        .is(400)
        .shows("not the number of an action");

    let hidden = console().read_only().hide_payloads().router();
    for page in ["/actions", "/events/2"] {
        get(&hidden, page)
            .await
            .shows("ada")
            .shows("reason hidden")
            .hides("the customer called");
    }
    inbox.forget("dead").await.unwrap();
    get(&app, "/events/2").await.hides("<h2>Actions</h2>");
    get(&app, "/actions")
        .await
        .hides("the customer called")
        .shows("an event of a chat that was forgotten")
        .shows("the chat with the SHA-256 ");
}

#[tokio::test(start_paused = true)]
async fn actions_are_shown_in_pages() {
    let inbox = four_events().await;
    for n in 0..90 {
        let by = By::new(&format!("nr {n}."));
        inbox
            .clone()
            .by(by)
            .redrive(EventId(3), None)
            .await
            .unwrap();
    }
    let app = Console::new().inbox(inbox).router();
    let (mut path, mut seen) = ("/actions".to_owned(), 0);
    loop {
        let page = get(&app, &path).await;
        for n in 0..90 {
            seen += usize::from(page.text.contains(&format!(">nr {n}.<")));
        }
        let Some((_, next)) = page.text.split_once("/actions?before=") else {
            break;
        };
        path = format!("/actions?before={}", next.split('"').next().unwrap());
    }
    assert_eq!(seen, 90);
}

#[tokio::test(start_paused = true)]
async fn a_change_keeps_to_its_rate_though_the_operator_and_the_console_are_gone() {
    let inbox = inbox();
    let webhooks = webhooks(&inbox);
    for n in 0..100 {
        let waits = event(&format!("chat-{n}"), 1);
        send(&webhooks, waits).await.assert_ok();
    }
    let app = Console::new().inbox(inbox.clone()).router();
    let confirmed = fields(&asked(&app, "action=discard&state=waiting&hours=1").await);
    let wrong = post(&app, "/all", &format!("{confirmed}&rate=fast")).await;
    wrong.is(400).shows("not a number of events a second");
    let begun = post(
        &app,
        "/all",
        &format!("{confirmed}&rate=20&reason=test+data"),
    )
    .await;
    let path = begun.is(303).location.clone().unwrap();
    let changed = async || inbox.actions(Which::All, None, 1).await.unwrap()[0].changed;
    sleep(2 * SECOND).await;
    let at = changed().await;
    assert!((35..=45).contains(&at), "{at} in two seconds");
    get(&app, "/")
        .await
        .shows("<h2>Changes of all that match</h2>")
        .shows(&format!(r#"<a href="{path}">action "#))
        .shows("running");
    get(&app, &path)
        .await
        .shows("In progress.")
        .shows("100 events")
        .shows("20 a second")
        .shows("test data")
        .shows("Cancel")
        .hides("Continue");
    let read_only = Console::new().inbox(inbox.clone()).read_only().router();
    get(&read_only, &path).await.is(200).hides("Cancel");

    drop(app);
    sleep(2 * SECOND).await;
    let more = changed().await;
    assert!((at + 35..=at + 45).contains(&more), "{more} after {at}");
    sleep(2 * SECOND).await;
    let page = get(&read_only, &path).await;
    page.shows("Done.")
        .shows("100 of 100 discarded")
        .hides("Cancel");
    assert_eq!(inbox.stats().await.unwrap().unsettled(), 0);
    get(&read_only, "/").await.hides(&path);
    get(&read_only, "/events/1")
        .await
        .shows(&format!(r#"in <a href="{path}">action "#));
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_change_changes_nothing_more() {
    let inbox = inbox();
    let webhooks = webhooks(&inbox);
    for n in 0..100 {
        let waits = event(&format!("chat-{n}"), 1);
        send(&webhooks, waits).await.assert_ok();
    }
    let app = Console::new()
        .inbox(inbox.clone())
        .actor_header(HeaderName::from_static("x-user"))
        .router();
    let confirmed = fields(&asked(&app, "action=discard&state=waiting").await);
    let begun = post(&app, "/all", &format!("{confirmed}&rate=10")).await;
    let path = begun.is(303).location.clone().unwrap();
    sleep(5 * SECOND).await;
    let cancel = form(&format!("{path}/cancel"), "").with("x-user", "grace");
    request(&app, cancel).await.is(303);
    let left = inbox.stats().await.unwrap().unsettled();
    assert!((45..=55).contains(&left), "{left}");
    sleep(DAY).await;
    assert_eq!(inbox.stats().await.unwrap().unsettled(), left);
    get(&app, &path)
        .await
        .shows("Cancelled.")
        .hides("In progress")
        .hides("Continue");
    // Twice is no action.
    post(&app, &format!("{path}/cancel"), "").await.is(303);
    let cancel = &inbox.actions(Which::All, None, 1).await.unwrap()[0];
    assert_eq!((cancel.kind.name(), cancel.by.who()), ("cancel", "grace"));
    get(&app, "/actions")
        .await
        .shows("cancelled")
        .shows("grace");
    for what in ["cancel", "continue"] {
        let unknown = format!("/actions/99/{what}");
        post(&app, &unknown, "").await.is(404);
    }
}

/// As `receiver inbox redrive --all` begins it, and is killed.
#[tokio::test(start_paused = true)]
async fn an_interrupted_change_is_continued_by_a_click() {
    let inbox = inbox();
    let webhooks = webhooks(&inbox);
    for n in 0..20 {
        send(&webhooks, event(&format!("chat-{n}"), 1))
            .await
            .assert_ok();
    }
    let filter = Filter::default()
        .states([EventState::Waiting, EventState::Dead])
        .kinds([EventKind::CHAT_RATED, EventKind::MESSAGE_CREATED])
        .accepted(None, Some(SystemTime::now() + 2 * DAY));
    let seen = Seen::new(EventId(15), inbox.seen().await.unwrap().unwrap().at);
    let selection = inbox.select(&filter, seen).await.unwrap();
    let begun = inbox.begin_all(ActionKind::Discard, &selection, 2).await;
    let path = format!("/actions/{}", begun.unwrap());
    let app = Console::new()
        .inbox(inbox.clone())
        .actor_header(HeaderName::from_static("x-user"))
        .router();
    sleep(59 * SECOND).await;
    get(&app, &path)
        .await
        .shows("In progress.")
        .hides("Continue");
    // No console goes on by itself.
    sleep(DAY).await;
    get(&app, "/").await.shows("interrupted");
    get(&app, "/actions").await.shows("(interrupted)");
    let page = get(&app, &path).await;
    page.shows("Interrupted: ")
        .shows("Continue")
        .shows("Cancel");
    page.shows("0 of 15 discarded").shows("up to event 0 of 15");
    let read_only = Console::new().inbox(inbox.clone()).read_only().router();
    get(&read_only, &path).await.hides("Continue");
    let url = format!("{path}/continue");
    post(&read_only, &url, "").await.is(404);

    let log = Log::capture(Level::INFO);
    let continued = request(&app, form(&url, "").with("x-user", "grace")).await;
    assert_eq!(continued.is(303).location.as_deref(), Some(&*path));
    let line = log.events().pop().unwrap();
    assert_eq!((&*line["actor"], &*line["number"]), ("grace", "1"));
    sleep(SECOND).await;
    get(&app, &path)
        .await
        .shows("In progress.")
        .hides("Continue");
    // A second click, and one after the end.
    post(&app, &url, "").await.is(303);
    sleep(20 * SECOND).await;
    let page = get(&app, &path).await;
    page.shows("Done.")
        .shows("15 discarded")
        .shows("<dd>0</dd>");
    post(&app, &url, "").await.is(303);
    get(&app, &path).await.shows("Done.").shows("15 discarded");

    let back = "/events?state=waiting+dead&amp;kind=chat-rated+message-created&amp;until=";
    page.shows(back);
    let (_, list) = page.text.split_once(back).unwrap();
    let list = format!("{back}{}", list.split('"').next().unwrap()).replace("&amp;", "&");
    get(&app, &list)
        .await
        .is(200)
        .shows("/events/16\"")
        .hides("/events/15\"");
    get(&app, "/actions")
        .await
        .shows("state waiting dead, type chat-rated message-created");

    let long = format!(
        "action=discard&state=dead&newest=9&at=0&error={}",
        "c".repeat(40_000)
    );
    post(&app, "/all", &long)
        .await
        .is(400)
        .shows("That is not possible: the filter has 40")
        .shows(" bytes, and 32768 at most: select fewer types, or by a shorter text.");
}

/// A type that no worker has noted does not hide one whose worker is missed, nor is that away before the workers say so.
#[tokio::test(start_paused = true)]
async fn types_that_wait_are_named_by_their_causes() {
    let inbox = inbox();
    let start = |kind: EventKind| {
        let router =
            EventRouter::new().on_named(kind.as_str(), async |_: serde_json::Value, _| Ok(()));
        inbox.work(router).only([kind]).spawn()
    };
    let (own, other) = (start(EventKind::CHAT_RATED), start(EventKind::CHAT_CLOSED));
    sleep(SECOND).await;
    let webhooks = accepting(&inbox, Webhooks::new(secret()));
    own.drain(SECOND).await.unwrap();
    other.drain(SECOND).await.unwrap();
    sleep(HOUR).await;
    // Both were away: the second one may only be slower to come back.
    let own = start(EventKind::CHAT_RATED);
    for (chat, kind) in [("a", "chat-closed"), ("b", "chat-opened")] {
        let event = delivery(format!(r#"{{"id":"{chat}"}}"#)).kind(kind);
        send(&webhooks, event).await.assert_ok();
    }
    let app = || Console::new().inbox(inbox.clone()).router();
    sleep(5 * MINUTE).await;
    get(&app(), "/")
        .await
        .shows("No attempt is made of <b>chat-closed</b>: ")
        .shows("Nobody handles <b>chat-opened</b>: ")
        .hides("are put off");
    sleep(7 * MINUTE).await;
    get(&app(), "/")
        .await
        .shows("Nobody handles <b>chat-closed</b>: ")
        .shows("are put off")
        .shows("Nobody handles <b>chat-opened</b>: ");
    own.drain(SECOND).await.unwrap();
}

/// The sentence names the worker that is away, and a button ends its note.
#[tokio::test(start_paused = true)]
async fn a_handler_that_is_away_is_retired() {
    let inbox = inbox();
    let start = |kind: &str| {
        let router = EventRouter::new().on_named(kind, async |_: serde_json::Value, _| Ok(()));
        inbox.work(router).spawn()
    };
    let own = start("chat-rated");
    let other = start("chat-closed");
    sleep(SECOND).await;
    other.drain(SECOND).await.unwrap();
    let webhooks = accepting(&inbox, Webhooks::new(secret()));
    let closed = delivery(r#"{"id":"a"}"#).kind("chat-closed");
    send(&webhooks, closed).await.assert_ok();
    let app = || Console::new().inbox(inbox.clone()).router();
    sleep(5 * MINUTE).await;
    get(&app(), "/")
        .await
        .shows("No attempt is made of <b>chat-closed</b>: ")
        .hides("Nobody handles")
        .hides("Retire");
    sleep(HOUR).await;
    let worker = format!(
        ", process {} did, and was last seen 1 h",
        std::process::id()
    );
    get(&app(), "/")
        .await
        .shows("<b>Critical: </b>Nobody handles <b>chat-closed</b>: ")
        .shows(&worker)
        .shows(r#"<input type="hidden" name="of" value="chat-closed">"#)
        .shows(">Retire the handler of chat-closed…</button>");
    // The notice is that of the console which did it.
    let console = app();
    let retired = post(&console, "/retire", "of=chat-closed").await;
    let location = retired.is(303).location.clone();
    assert_eq!(location.as_deref(), Some("/?did=retire%3Achat-closed"));
    get(&console, location.as_deref().unwrap())
        .await
        .shows("The handler of chat-closed was retired.")
        .hides("Retire the handler");
    post(&app(), "/retire", "of=chat-closed").await.is(409);
    post(&app(), "/retire", "of=chat-rated")
        .await
        .is(409)
        .shows("was seen in the last ten minutes. If it is not coming back, retire its handler in 10 min.");
    get(&app(), "/actions")
        .await
        .shows(r#"<td>retire</td><td class="wide">chat-closed</td>"#);
    sleep(15 * MINUTE).await;
    assert_eq!(inbox.stats().await.unwrap().unsettled(), 0);
    own.drain(SECOND).await.unwrap();
}
