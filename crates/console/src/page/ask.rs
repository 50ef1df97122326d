//! Questions before something is changed.

use std::time::SystemTime;

use maud::{Markup, html};
use tower_webhook::inbox::{By, EventId, EventState, EventSummary, Scope, Selection};

use super::super::bulk::Action;
use super::super::request::Search;
use super::super::scan::Found;
use super::events::{Columns, counted, label, table};
use super::parts::who_field;
use super::text::{clip, count, scope};
use super::view::View;

/// What a change of all that match reaches, as far as it is known.
pub(in super::super) struct Asked<'a> {
    /// Nothing is selected in an empty inbox.
    pub(in super::super) selection: Option<&'a Selection>,
    /// How far it is counted, if that takes longer than the page waited.
    pub(in super::super) found: Option<&'a Found>,
    /// The first events, with their last failures.
    pub(in super::super) sample: &'a [EventSummary],
}

impl Asked<'_> {
    /// The number of events, in a sentence and on a button.
    fn number(&self) -> String {
        match (self.found, self.selection) {
            (Some(found), _) => format!("{} events so far", count(found.events)),
            (None, Some(selection)) => counted(selection),
            (None, None) => "0 events".to_owned(),
        }
    }

    fn is_empty(&self) -> bool {
        self.found.is_none() && self.selection.is_none_or(Selection::is_empty)
    }
}

/// Asks before all events that match are changed.
pub(in super::super) fn confirm(
    view: &View,
    action: Action,
    search: &Search,
    asked: &Asked<'_>,
) -> Markup {
    let name = action.name();
    let number = asked.number();
    let effect = match action {
        Action::Redrive => {
            "Unsettled events are due now, and keep their places in their lanes. Dead and settled events, handled events included, are handled again, out of order. Events in progress, and events without a body, are skipped."
        }
        Action::Discard => {
            "Each of them is given up: it is not handled any more. Events that are settled (handled, ignored or discarded) are skipped."
        }
    };
    let class = if action == Action::Discard {
        "danger"
    } else {
        "main"
    };
    let content = html! {
        section {
            div #question data-live[asked.found.is_some()] {
                h1 { "Are you sure that you want to " (name) " " (number) "?" }
                @if let Some(found) = asked.found { (counting(found)) }
            }
            dl #filter {
                @for (field, value) in search.filled() { @if field != "order" { dt { (label(field)) } dd { (clip(value, 200)) } } }
            }
            p { (effect) }
            form method="post" action=(view.url("/all")) {
                input type="hidden" name="action" value=(name);
                @for (field, value) in search.filled() { input type="hidden" name=(field) value=(value); }
                // What the preview has seen, since events that change after the question are not meant.
                @if let Some(Selection { seen, .. }) = asked.selection {
                    input type="hidden" name="newest" value=(seen.newest);
                    input type="hidden" name="at" value=(nanos(seen.at));
                }
                div.row {
                    div {
                        label for="rate" { "Events a second (optional)" }
                        input #rate name="rate" type="number" min="1" max="100000" autocomplete="off";
                    }
                    (who_field(view))
                    div.grow {
                        label for="reason" { "Reason, for the list of actions (optional)" }
                        input #reason name="reason" maxlength=(By::LONGEST) autocomplete="off";
                    }
                }
                div.row.middle {
                    div #sure data-live[asked.found.is_some()] {
                        button class=(class) disabled[asked.is_empty()] {
                            "Yes, " (name) " "
                            @if asked.found.is_some() { "all that match: " }
                            (number)
                        }
                    }
                    a href=(view.url(format_args!("/events?{}", search.query()))) { "No, back to the list" }
                }
            }
            @if !asked.sample.is_empty() {
                h2 { "The first of them" }
                div #sample { (table(view, asked.sample, Columns::All)) }
            }
        }
    };
    view.page("Confirm", "/events", &content)
}

/// How far a count is.
pub(super) fn counting(found: &Found) -> Markup {
    html! {
        p role="status" {
            @match &found.error {
                Some(error) => { "The count has stopped: " (clip(error, 300)) },
                None => { "More may match: " (found.percent) " % of the inbox was searched." },
            }
        }
        progress value=(found.percent) max="100" aria-label="Counted" {}
    }
}

/// The time since 1970.
pub(in super::super) fn nanos(at: SystemTime) -> u128 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_nanos()
}

/// Asks for a state, without which a change would reach what was handled, too.
pub(in super::super) fn which_state(view: &View, action: Action, search: &Search) -> Markup {
    let states = [
        ("failed", "events that have failed: retrying or dead"),
        ("dead", "dead letters"),
        ("retrying", "events that are tried again"),
        ("waiting", "events that wait"),
        ("handled", "events that were handled"),
    ];
    let states = states.into_iter();
    let states = states.filter(|(state, _)| action == Action::Redrive || *state != "handled");
    let content = html! {
        section {
            h1 { "Which events do you want to " (action.name()) "?" }
            ul {
                @for (state, text) in states {
                    @let search = Search { state: state.to_owned(), ..search.clone() };
                    li { a href=(view.url(format_args!("/all?{}&action={}", search.query(), action.name()))) { (text) } }
                }
            }
            p { a href=(view.url(format_args!("/events?{}", search.query()))) { "Back to the list" } }
        }
    };
    view.page("Confirm", "/events", &content)
}

/// A question with a form for who answers it, and why.
struct Question<'a> {
    title: String,
    text: &'a str,
    /// The fields of the form that are known.
    fields: Vec<(&'static str, String)>,
    /// The label of the reason, and whether there has to be one.
    reason: Option<(&'static str, bool)>,
    given: &'a str,
    yes: String,
    post: String,
    /// Where "no" leads, and what that is called.
    back: (String, &'static str),
    is_danger: bool,
}

impl Question<'_> {
    fn page(&self, view: &View, title: &str, link: &str) -> Markup {
        let class = if self.is_danger { "danger" } else { "main" };
        let content = html! {
            section {
                h1 { (self.title) }
                p { (self.text) }
                form method="post" action=(view.url(&self.post)) {
                    @for (name, value) in &self.fields { input type="hidden" name=(name) value=(value); }
                    div.row {
                        (who_field(view))
                        @if let Some((label, is_required)) = self.reason {
                            div.grow {
                                label for="reason" { (label) }
                                input #reason name="reason" value=(self.given) required[is_required] maxlength=(By::LONGEST) autocomplete="off";
                            }
                        }
                    }
                    div.row.middle {
                        button class=(class) { (self.yes) }
                        a href=(view.url(&self.back.0)) { "No, back to " (self.back.1) }
                    }
                }
            }
        };
        view.page(title, link, &content)
    }
}

const DISCARDED: &str = "An event that is discarded is given up: it is not handled any more, and later events of its chat do not wait for it.";
const REASON: Option<(&str, bool)> = Some(("Reason, for the list of actions (optional)", false));

/// Asks before an event is discarded.
pub(in super::super) fn discard(view: &View, event: &EventSummary, given: &str) -> Markup {
    Question {
        title: format!("Discard event {}?", event.id),
        text: DISCARDED,
        fields: vec![("state", event.state.to_string())],
        reason: REASON,
        given,
        yes: format!("Yes, discard event {}", event.id),
        post: format!("/events/{}/discard", event.id),
        back: (format!("/events/{}", event.id), "the event"),
        is_danger: true,
    }
    .page(view, "Discard", "/events")
}

/// Asks before events that are selected in a list are discarded.
pub(in super::super) fn discard_selected(
    view: &View,
    ids: &[(EventId, Option<EventState>)],
    query: &str,
    given: &str,
) -> Markup {
    let of = match ids {
        [(id, _)] => format!("event {id}"),
        ids => format!("{} events", ids.len()),
    };
    let ids = ids.iter().map(|(id, state)| match state {
        Some(state) => ("id", format!("{id}:{state}")),
        None => ("id", id.to_string()),
    });
    let others = [
        ("action", Action::Discard.name()),
        ("query", query),
        ("sure", "yes"),
    ];
    let others = others.map(|(name, value)| (name, value.to_owned()));
    Question {
        title: format!("Discard {of}?"),
        text: DISCARDED,
        fields: ids.chain(others).collect(),
        reason: REASON,
        given,
        yes: format!("Yes, discard {of}"),
        post: "/selected".to_owned(),
        back: (format!("/events?{query}"), "the list"),
        is_danger: true,
    }
    .page(view, "Discard", "/events")
}

/// Asks before an event type, a route or everything is paused, and for the reason.
pub(in super::super) fn confirm_pause(view: &View, paused: &Scope) -> Markup {
    let name = scope(paused);
    Question {
        title: format!("Pause {name}?"),
        text: "No process begins to handle these events any more, until somebody resumes them. Deliveries are still accepted.",
        fields: vec![("of", paused.to_string())],
        reason: Some(("Reason, which all pages show", true)),
        given: "",
        yes: format!("Yes, pause {name}"),
        post: "/pause".to_owned(),
        back: ("/".to_owned(), "the overview"),
        is_danger: true,
    }
    .page(view, "Pause", "/")
}

/// Asks before a pause ends, as whoever has paused it had a reason.
pub(in super::super) fn confirm_resume(view: &View, paused: &Scope) -> Markup {
    let name = scope(paused);
    let pause = view.pauses().iter().find(|pause| pause.of == *paused);
    let note = pause.map_or("", |pause| &pause.note);
    let text = match note {
        "" => "The events that have waited are tried at once.".to_owned(),
        note => format!(
            "The events that have waited are tried at once. It was paused with this note: {}",
            clip(note, 300)
        ),
    };
    Question {
        title: format!("Resume {name}?"),
        text: &text,
        fields: vec![("of", paused.to_string())],
        reason: REASON,
        given: "",
        yes: format!("Yes, resume {name}"),
        post: "/resume".to_owned(),
        back: ("/".to_owned(), "the overview"),
        is_danger: false,
    }
    .page(view, "Resume", "/")
}

/// Asks before the note on a handler ends.
pub(in super::super) fn confirm_retire(view: &View, of: &Scope) -> Markup {
    let name = scope(of);
    Question {
        title: format!("Retire the handler of {name}?"),
        text: "Do it if its worker is not coming back. Its events are then ignored, as those of other types that nobody handles.",
        fields: vec![("of", of.to_string())],
        reason: REASON,
        given: "",
        yes: format!("Yes, retire the handler of {name}"),
        post: "/retire".to_owned(),
        back: ("/".to_owned(), "the overview"),
        is_danger: true,
    }
    .page(view, "Retire", "/")
}
