//! Requests at random. Half of them are signed, and most of these are what the platform would send.

use std::time::Duration;

use arbitrary::{Arbitrary, Result, Unstructured};
use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use oracle::{hmac, json, to_hex};
use tower_webhook::event::{EventKind, sample};

use crate::wire::{Request, Step};

pub(crate) const SECRETS: [&str; 3] = ["first", "second", "unknown to the receiver"];

#[derive(Debug)]
pub(crate) struct Input {
    pub(crate) config: Config,
    pub(crate) requests: Vec<Request>,
    /// How they overlap. Without one, each is answered before the next is sent.
    pub(crate) schedule: Option<Schedule>,
}

#[derive(Debug)]
pub(crate) struct Schedule {
    pub(crate) actions: Vec<Action>,
    /// How long the last runs take, the first of them at the end.
    pub(crate) durations: [Duration; 4],
    /// Whether others can go on before and after each step of the store.
    pub(crate) store_yields: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    Poll(usize),
    Disconnect(usize),
    Pass(Duration),
}

#[derive(Debug)]
pub(crate) struct Config {
    /// How many of [`SECRETS`] are accepted. With none, nothing has to be signed.
    pub(crate) secrets: usize,
    pub(crate) max_body: usize,
    pub(crate) require_key: bool,
    pub(crate) reject_changed_bodies: bool,
    pub(crate) replay_guard: bool,
    pub(crate) reject_unhandled: bool,
    pub(crate) fallback: bool,
    /// How many runs of the handler of `chat-rated` fail before one succeeds.
    pub(crate) failures: usize,
    /// Whether there is no memory for more than what does not count of a body.
    pub(crate) is_full: bool,
}

impl<'a> Arbitrary<'a> for Input {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let schedule = match once_in(u, 2)? {
            true => Some(Schedule::arbitrary(u)?),
            false => None,
        };
        let config = Config::arbitrary(u)?;
        // Decided first: short inputs are used up before the last request is made.
        let signed: [bool; 4] = Arbitrary::arbitrary(u)?;
        let count = u.int_in_range(1..=4)?;
        let mut requests: Vec<Request> = Vec::new();
        for &signed in &signed[..count] {
            let request = match requests.last() {
                // Overlaps matter among deliveries of one event.
                Some(last) if schedule.is_some() && once_in(u, 2)? => again(u, last)?,
                _ => request(u, &config, signed)?,
            };
            requests.push(request);
        }
        let mut schedule = schedule;
        for action in schedule.iter_mut().flat_map(|it| &mut it.actions) {
            match action {
                Action::Poll(number) | Action::Disconnect(number) => *number %= count,
                Action::Pass(_) => {}
            }
        }
        Ok(Self {
            config,
            requests,
            schedule,
        })
    }
}

impl<'a> Arbitrary<'a> for Schedule {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let store_yields = once_in(u, 2)?;
        let mut durations = [Duration::ZERO; 4];
        for duration in &mut durations {
            *duration = Duration::from_millis(*u.choose(&[0, 1000, 8000, 20, 0, 40_000])?);
        }
        let codes: [u8; 12] = Arbitrary::arbitrary(u)?;
        let actions = codes.iter().map(|code| {
            let which = usize::from(code / 8);
            match code % 8 {
                0..=4 => Action::Poll(which),
                5 => Action::Disconnect(which),
                _ => Action::Pass(PASSES[which % PASSES.len()]),
            }
        });
        Ok(Self {
            actions: actions.collect(),
            durations,
            store_yields,
        })
    }
}

/// Around the limits: of the store, of waiting for another run, of a body, and of a handler.
const PASSES: [Duration; 8] = [
    Duration::from_millis(1),
    Duration::from_millis(30),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(3),
    Duration::from_secs(6),
    Duration::from_secs(12),
    Duration::from_secs(35),
];

/// The same delivery, or the same body under another key.
fn again(u: &mut Unstructured<'_>, last: &Request) -> Result<Request> {
    let mut again = last.clone();
    if once_in(u, 4)? {
        let headers = again.headers.iter_mut();
        for (_, value) in headers.filter(|(name, _)| name == "idempotency-key") {
            *value = HeaderValue::from_static(u.choose(&["a", "b"])?);
        }
    }
    Ok(again)
}

impl<'a> Arbitrary<'a> for Config {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        Ok(Self {
            secrets: *u.choose(&[1, 1, 1, 2, 2, 2, 2, 0])?,
            max_body: *u.choose(&[1024 * 1024, 1000, 1000, 70_000, 64])?,
            require_key: once_in(u, 4)?,
            reject_changed_bodies: once_in(u, 3)?,
            replay_guard: once_in(u, 3)?,
            reject_unhandled: once_in(u, 3)?,
            fallback: once_in(u, 4)?,
            failures: *u.choose(&[0, 0, 0, 1, 2])?,
            is_full: once_in(u, 4)?,
        })
    }
}

/// False when the input is used up: what is left is then a plain request.
fn once_in(u: &mut Unstructured<'_>, times: u8) -> Result<bool> {
    Ok(u.int_in_range(1..=times)? == times)
}

fn request(u: &mut Unstructured<'_>, config: &Config, signed: bool) -> Result<Request> {
    let plausible = signed && !once_in(u, 5)?;
    // How likely each part is to be odd.
    let odd = |u: &mut Unstructured<'_>| Ok(!plausible && once_in(u, 4)?);

    let body = body(u)?;
    let mut headers = Headers(Vec::new());

    if signed {
        let secret = SECRETS[u.choose_index(config.secrets.max(1))?];
        headers.add(
            "x-service-hmac-sha256",
            to_hex(&hmac(secret.as_bytes(), &body)),
        );
    } else {
        for _ in 0..u.int_in_range(0..=2)? {
            headers.add("x-service-hmac-sha256", doubtful_signature(u, &body)?);
        }
    }

    if odd(u)? {
        for _ in 0..u.int_in_range(0..=2)? {
            headers.add_one_of(
                u,
                "content-type",
                &[
                    "text/plain",
                    "application/json",
                    "application/jsonp",
                    "application",
                    "",
                ],
            )?;
        }
        if once_in(u, 2)? {
            headers.add_one_of(u, "content-encoding", &["gzip", "identity", ""])?;
        }
    } else {
        headers.add_one_of(
            u,
            "content-type",
            &[
                "application/json",
                "application/json; charset=utf-8",
                "Application/JSON ;a=b",
            ],
        )?;
    }

    if odd(u)? {
        for _ in 0..u.int_in_range(0..=2)? {
            headers.add_one_of(
                u,
                "x-service-event",
                &["chat-rated", "chat rated", "", "chat-rated,", "\u{e9}"],
            )?;
        }
    } else {
        headers.add_one_of(
            u,
            "x-service-event",
            &[
                "chat-rated",
                "chat-closed",
                "message-created",
                "chat-opened",
                "Chat-Rated",
                "chat-archived",
            ],
        )?;
    }

    let keys = if odd(u)? {
        u.int_in_range(0..=3)?
    } else {
        *u.choose(&[1, 1, 1, 0])?
    };
    for _ in 0..keys {
        headers.add_one_of(u, "idempotency-key", &["a", "b", "A", ""])?;
    }

    let length = body.len();
    if odd(u)? {
        for _ in 0..u.int_in_range(1..=2)? {
            let near = length
                .saturating_add_signed(u.int_in_range(-2..=2)?)
                .to_string();
            headers.add_one_of(
                u,
                "content-length",
                &[
                    near.as_str(),
                    "10737418240",
                    "99999999999999999999999",
                    "+5",
                    "-1",
                    "",
                    "1 2",
                ],
            )?;
        }
    } else if once_in(u, 2)? {
        headers.add("content-length", length.to_string());
    }

    if odd(u)? {
        for _ in 0..u.int_in_range(1..=3)? {
            let name = HeaderName::from_bytes(Arbitrary::arbitrary(u)?);
            if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(Arbitrary::arbitrary(u)?))
            {
                headers.0.push((name, value));
            }
        }
    }

    let steps = if odd(u)? {
        ragged(u, body)?
    } else {
        pieces(u, body)?
    };
    Ok(Request {
        method: if odd(u)? {
            u.choose(&["GET", "PUT", "post", "HEAD"])?
        } else {
            "POST"
        },
        headers: headers.0,
        steps,
        exact_size_known: bool::arbitrary(u)?,
    })
}

struct Headers(Vec<(HeaderName, HeaderValue)>);

impl Headers {
    fn add(&mut self, name: &'static str, value: impl AsRef<[u8]>) {
        if let Ok(value) = HeaderValue::from_bytes(value.as_ref()) {
            self.0.push((HeaderName::from_static(name), value));
        }
    }

    /// Sometimes it is none of them.
    fn add_one_of(
        &mut self,
        u: &mut Unstructured<'_>,
        name: &'static str,
        values: &[&str],
    ) -> Result<()> {
        if once_in(u, 16)? {
            self.add(name, <&[u8]>::arbitrary(u)?);
        } else {
            self.add(name, u.choose(values)?);
        }
        Ok(())
    }
}

fn body(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let kinds = EventKind::ALL;
    let sample = sample(u.choose(&kinds)?).unwrap_or_default();
    Ok(match u.int_in_range(0..=15)? {
        0..=3 => sample.into(),
        4 | 5 => format!(r#"{{"id":"{}"}}"#, u.int_in_range(0..=1)?).into(),
        6..=9 => json::object(u)?.into(),
        10 => format!("\u{feff}{sample}").into(),
        11 => sample.as_bytes()[..u.choose_index(sample.len().max(1))?].into(),
        12 => format!("[{sample}]").into(),
        // More than is hashed before other tasks get their turn.
        13 => format!("{}{sample}", " ".repeat(u.int_in_range(0..=80_000)?)).into(),
        _ => <&[u8]>::arbitrary(u)?.into(),
    })
}

fn doubtful_signature(u: &mut Unstructured<'_>, body: &[u8]) -> Result<Vec<u8>> {
    let mut value = to_hex(&hmac(u.choose(&SECRETS)?.as_bytes(), body)).into_bytes();
    match u.int_in_range(0..=5)? {
        0 => {}
        1 => value.make_ascii_uppercase(),
        2 => value.truncate(u.choose_index(64)?),
        3 => value.push(u8::arbitrary(u)?),
        4 => value[u.choose_index(64)?] = u8::arbitrary(u)?,
        _ => value = <&[u8]>::arbitrary(u)?.into(),
    }
    Ok(value)
}

/// Cuts a body anywhere, also within a character.
fn pieces(u: &mut Unstructured<'_>, body: Vec<u8>) -> Result<Vec<Step>> {
    let mut rest = Bytes::from(body);
    let mut steps = Vec::new();
    for _ in 0..u.int_in_range(0..=3)? {
        let piece = rest.split_to(u.int_in_range(0..=rest.len())?);
        steps.push(Step::Data(piece));
    }
    steps.push(Step::Data(rest));
    Ok(steps)
}

/// The same with pauses, trailers and a broken connection.
fn ragged(u: &mut Unstructured<'_>, body: Vec<u8>) -> Result<Vec<Step>> {
    let mut steps = Vec::new();
    for piece in pieces(u, body)? {
        steps.push(piece);
        steps.push(match u.int_in_range(0..=5)? {
            0..=3 => match u.int_in_range(0..=4)? {
                0 => continue,
                times => Step::Wait(Duration::from_secs(3 * times)),
            },
            4 => Step::Trailers,
            _ => Step::Break,
        });
    }
    Ok(steps)
}
