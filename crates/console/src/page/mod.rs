//! The pages. `maud` escapes all texts in them.

mod actions;
mod ask;
mod causes;
mod event;
mod events;
mod forget;
mod gaps;
mod history;
mod kinds;
mod overview;
mod parts;
mod payload;
mod text;
mod view;
mod webhooks;

pub(super) use self::actions::{actions, bulk};
pub(super) use self::ask::{
    Asked, confirm, confirm_pause, confirm_resume, confirm_retire, discard, discard_selected,
    nanos, which_state,
};
pub(super) use self::event::{chat, event, found};
pub(super) use self::events::{Wrong, events, lanes};
pub(super) use self::forget::forget;
pub(super) use self::gaps::gaps;
pub(super) use self::history::{history, refusals, start};
pub(super) use self::kinds::kinds;
pub(super) use self::overview::overview;
pub(super) use self::text::clamped;
pub(super) use self::view::{View, problem};

pub(super) fn style() -> String {
    let style = concat!(include_str!("../style.css"), include_str!("../console.css"));
    let spaces = [
        (": ", ":"),
        ("; ", ";"),
        (" {", "{"),
        ("{ ", "{"),
        (" }", "}"),
        (", ", ","),
        // Each line ends with a brace, a comma or a semicolon.
        ("\n", ""),
        (";}", "}"),
    ];
    let small = small(style);
    spaces
        .iter()
        .fold(small, |text, (from, to)| text.replace(from, to))
}

/// The mark beside the name of the pages.
pub(super) const ICON: &str = r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><circle cx="8" cy="8" r="6" fill="#1c57cf"/></svg>"##;

pub(super) fn script() -> String {
    small(concat!(
        include_str!("../live.js"),
        include_str!("../console.js")
    ))
}

/// Without comments and indentation, which no browser needs.
fn small(text: &str) -> String {
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| !line.starts_with("//") && !line.starts_with("/*"));
    lines.collect::<Vec<_>>().join("\n")
}
