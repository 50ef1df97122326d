//! What is wrong between a sender and this receiver: failed deliveries, signatures, silence.

use std::time::SystemTime;

use maud::{Markup, html};
use tower_webhook::RouteName;
use tower_webhook::telemetry::{Silent, Spent};

use super::super::lately::Lately;
use super::causes::{Cause, Level, names};
use super::overview::Observed;
use super::text::{clip, clock, count, long, name};
use super::view::View;

/// The share of a limit, or of the requests of a route, from which on failures are a cause.
const SHARE: f64 = 0.2;

/// The number of refused requests from which on they are a cause at a route whose sender has no limit.
const SOME_REFUSED: u64 = 5;

/// The webhook that is closest to being disabled.
pub(super) fn budget(observed: &Observed) -> Option<Cause> {
    let spent = observed.spent.iter();
    let mut spent: Vec<_> = spent
        .filter_map(|spent| Some((spent, name(&spent.route, spent.kind.as_ref()?))))
        .filter(|(spent, _)| spent.share() >= SHARE)
        .collect();
    spent.sort_by(|(a, _), (b, _)| b.share().total_cmp(&a.share()));
    let ((worst, name), others) = spent.split_first()?;
    // At 20 % and 50 %, where `FailureBudget` logs at `WARN` and at `ERROR`.
    let level = match worst.share() >= 0.5 || worst.disabled_in.is_some() {
        true => Level::Critical,
        false => Level::Warning,
    };
    let text = html! {
        b { (name) } ": " (worst.failures)
        @if let Some(limit) = worst.limit { " of " (limit) }
        " failures in an hour. "
        (forecast(worst))
        @if !others.is_empty() { " Also " (names(others.iter().map(|(_, name)| name.clone()))) "." }
    };
    Some(Cause::new(level, text))
}

fn forecast(spent: &Spent) -> Markup {
    html! {
        @match spent.disabled_in {
            Some(left) if left.is_zero() => "The sender has probably disabled the webhook: enable it there when the cause is fixed.",
            Some(left) => {
                "It is not disabled yet. If deliveries go on failing like this, the sender disables the webhook in " (long(left))
                @if let Some(at) = SystemTime::now().checked_add(left) { ", at " (clock(at)) }
                "."
            },
            None => "Failures have stopped, or are too slow to reach the limit.",
        }
    }
}

pub(super) fn unverified(view: &View, observed: &Observed) -> Option<Cause> {
    let spent = observed.spent.iter().filter(|spent| spent.kind.is_none());
    let mut spent: Vec<_> = spent.filter(|spent| spent.share() >= SHARE).collect();
    spent.sort_by(|a, b| b.share().total_cmp(&a.share()));
    let (spent, others) = spent.split_first()?;
    let level = match spent.share() >= 0.5 {
        true => Level::Critical,
        false => Level::Warning,
    };
    let text = html! {
        (count(spent.failures.into())) " requests"
        @if spent.route != RouteName::default() { " to " b { (spent.route) } }
        " were not verified in the last hour"
        @if let Some((reason, number)) = spent.reasons.first() {
            ", "
            @if *number == spent.failures { "all" } @else { (count((*number).into())) " of them" }
            " " (reason)
        }
        ". If the sender sent them, they count as failures of its webhooks"
        @if let Some(limit) = spent.limit { " (after " (limit) " in an hour, it disables one)" }
        ", and they are lost unless it sends them again: "
        "compare the secret of the webhook at the sender with the receiver's."
        @if !others.is_empty() { " Also at " (names(others.iter().map(|it| it.route.to_string()))) "." }
    };
    Some(Cause::new(level, text).link(view.url("/refusals"), "Refusals"))
}

/// Requests that a secret of another route would have accepted.
pub(super) fn swapped(view: &View, lately: &Lately) -> Option<Cause> {
    let mut swapped: Vec<_> = lately.swapped.iter().collect();
    swapped.sort_by_key(|(_, last)| std::cmp::Reverse(**last));
    let (((route, secret), last), others) = swapped.split_first()?;
    let text = html! {
        "Requests to " b { (route) } " are refused, and would match " b { (clip(secret, 200)) } ", the last at "
        (clock(super::history::start(**last)))
        ": their sender has the URL or the secret of the other route. They are lost unless it sends them again: correct its webhook."
        @if !others.is_empty() { " Also at " (names(others.iter().map(|((route, _), _)| route.to_string()))) "." }
    };
    Some(Cause::new(Level::Critical, text).link(view.url("/refusals"), "Refusals"))
}

/// Requests that no secret matches, at a route of whose sender no limit is known.
pub(super) fn unmatched(view: &View, observed: &Observed, lately: &Lately) -> Option<Cause> {
    let is_said = |route: &RouteName| {
        let mut unverified = observed.spent.iter().filter(|it| it.kind.is_none());
        unverified.any(|it| it.route == *route && it.share() >= SHARE)
            || lately.swapped.keys().any(|(at, _)| at == route)
    };
    let routes = lately.routes.iter().filter(|(route, requests)| {
        let share = requests.unmatched as f64 / requests.all.max(1) as f64;
        requests.unmatched >= SOME_REFUSED && share >= SHARE && !is_said(route)
    });
    let mut routes: Vec<_> = routes.collect();
    routes.sort_by_key(|(_, requests)| std::cmp::Reverse(requests.unmatched));
    let ((route, requests), others) = routes.split_first()?;
    let text = html! {
        (count(requests.unmatched)) " of " (count(requests.all)) " requests to " b { (route) }
        " in the last hour had no signature that matches a secret. If the sender sent them, they are lost unless it sends them again: "
        "compare the secret of the webhook at the sender with the receiver's."
        @if !others.is_empty() { " Also at " (names(others.iter().map(|(route, _)| route.to_string()))) "." }
    };
    Some(Cause::new(Level::Warning, text).link(view.url("/refusals"), "Refusals"))
}

pub(super) fn silent(silent: &[Silent], lately: &Lately) -> Option<Cause> {
    let (first, others) = silent.split_first()?;
    let text = html! {
        "No " b { (name(&first.route, &first.kind)) } " event was delivered" @if lately.is_own { " to this process" } " for " (long(first.quiet_for)) "; one was expected within "
        (long(first.expected_within)) ". "
        @if !others.is_empty() { "Also " (names(others.iter().map(|it| name(&it.route, &it.kind)))) ". " }
        "Check at the sender that the webhook is active."
    };
    Some(Cause::new(Level::Critical, text))
}
