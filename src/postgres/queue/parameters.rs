//! Parameters that several statements have.

use crate::event::EventKind;
use crate::inbox::event::{EventLease, Failure, Kinds, Share};
use crate::postgres::engine::{Value, micros};

pub(super) fn number(count: usize) -> Value {
    Value::Number(i64::try_from(count).unwrap_or(i64::MAX))
}

pub(super) fn counts(counts: impl Iterator<Item = usize>) -> Value {
    Value::numbers(counts.map(|count| i64::try_from(count).unwrap_or(i64::MAX)))
}

/// The parameters that select kinds of some routes: the routes that are limited to some kinds, and the kinds that are
/// included and excluded, with the names of their routes in front.
pub(super) fn kinds<'a>(of: impl IntoIterator<Item = &'a Kinds>) -> [Value; 3] {
    let (mut limited, mut only, mut except) = (Vec::new(), Vec::new(), Vec::new());
    for kinds in of {
        let name = |kind: &EventKind| format!("{}/{kind}", kinds.route);
        if let Some(included) = kinds.included() {
            limited.push(kinds.route.to_string());
            only.extend(included.iter().map(name));
        }
        except.extend(kinds.excluded().iter().map(name));
    }
    [limited, only, except].map(Value::Texts)
}

/// The parameters that limit the attempts of kinds: the most of any other kind of each route, and the kinds with limits of their
/// own, with their attempts in progress and the most of them.
pub(super) fn kind_shares(of: &[Share]) -> [Value; 4] {
    let (mut names, mut busy, mut most) = (Vec::new(), Vec::new(), Vec::new());
    for share in of {
        for it in &share.kinds {
            names.push(format!("{}/{}", share.take.kinds.route, it.kind));
            busy.push(it.busy);
            most.push(it.most);
        }
    }
    [
        counts(of.iter().map(|share| share.each)),
        Value::Texts(names),
        counts(busy.into_iter()),
        counts(most.into_iter()),
    ]
}

/// The parameters by which events in progress are found.
pub(super) fn handles<'a>(leases: impl Iterator<Item = &'a EventLease> + Clone) -> [Value; 3] {
    [
        Value::numbers(leases.clone().map(|lease| lease.id.0)),
        Value::Ids(leases.clone().map(|lease| Some(lease.fence.0)).collect()),
        Value::numbers(leases.map(|lease| lease.place)),
    ]
}

/// The parameters of failures: outcomes, reasons, durations and shapes.
pub(super) fn failures<'a>(
    failures: impl Iterator<Item = Option<&'a Failure>> + Clone,
) -> [Value; 4] {
    let texts = |text: fn(&Failure) -> &String| {
        let texts = failures.clone();
        some(
            texts.map(|failure| failure.map(|failure| text(failure).clone().into())),
            Value::Blobs,
        )
    };
    [
        texts(|failure| &failure.outcome),
        texts(|failure| &failure.reason),
        some(
            failures.clone().map(|failure| failure?.took.map(micros)),
            Value::Numbers,
        ),
        some(
            failures.clone().map(|failure| Some(failure?.shape.0)),
            Value::Numbers,
        ),
    ]
}

/// The parameter of what few calls have: an array without elements if none has it.
pub(super) fn some<T>(
    each: impl Iterator<Item = Option<T>>,
    value: fn(Vec<Option<T>>) -> Value,
) -> Value {
    let each: Vec<_> = each.collect();
    let has_any = each.iter().any(Option::is_some);
    value(if has_any { each } else { Vec::new() })
}

/// Sorts calls by their lanes, so that no two statements wait for each other, and returns the former positions.
pub(super) fn sort<C, K: Ord>(calls: &mut [C], lane: impl Fn(&C) -> K) -> Vec<usize> {
    let mut order: Vec<_> = (0..calls.len()).collect();
    order.sort_by_key(|at| lane(&calls[*at]));
    calls.sort_by_key(lane);
    order
}

/// Returns results to the positions of their calls.
pub(super) fn unsort<R>(results: Vec<R>, order: &[usize]) -> Vec<R> {
    let mut results: Vec<_> = order.iter().zip(results).collect();
    results.sort_by_key(|(at, _)| **at);
    results.into_iter().map(|(_, result)| result).collect()
}

/// A pattern for a body with a text, as `encode` writes it with `escape`. Each character is as it was received, or one of
/// the escapes of JSON.
pub(super) fn pattern(text: &str) -> String {
    let mut pattern = String::new();
    for char in text.chars() {
        let bytes = char.to_string().into_bytes().into_iter().map(literal);
        let mut ways = vec![bytes.collect::<String>()];
        for case in [char.to_ascii_lowercase(), char.to_ascii_uppercase()] {
            let mut units = [0; 2];
            let units = case.encode_utf16(&mut units).iter();
            ways.push(units.map(|unit| format!(r"\\\\u{unit:04x}")).collect());
        }
        let short = match char {
            '"' => Some(b'"'),
            '\\' => Some(b'\\'),
            '/' => Some(b'/'),
            '\u{8}' => Some(b'b'),
            '\u{c}' => Some(b'f'),
            '\n' => Some(b'n'),
            '\r' => Some(b'r'),
            '\t' => Some(b't'),
            _ => None,
        };
        ways.extend(short.map(|short| format!(r"\\\\{}", literal(short))));
        ways.dedup();
        pattern += &format!("(?:{})", ways.join("|"));
    }
    pattern
}

/// A byte in a pattern.
fn literal(byte: u8) -> String {
    match byte {
        0 | 0x80.. => format!(r"\\{byte:03o}"),
        b'\\' => r"\\\\".to_owned(),
        byte if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        byte => format!(r"\{}", char::from(byte)),
    }
}
