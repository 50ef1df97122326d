//! What must be answered, by the table of answers alone.

use std::collections::HashMap;
use std::time::Duration;

use oracle::{hmac, json, parse_signature};

use crate::input::{Config, SECRETS};
use crate::wire::{Request, Step};

/// A handler's run.
#[derive(Debug, PartialEq)]
pub(crate) struct Run {
    pub(crate) kind: String,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) attempt: Option<u32>,
    pub(crate) body: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) replayed: bool,
    pub(crate) run: Option<Run>,
}

impl Answer {
    fn status(status: u16) -> Self {
        Self {
            status,
            replayed: false,
            run: None,
        }
    }
}

/// What was handled, and how often each key was tried.
pub(crate) struct Model<'a> {
    config: &'a Config,
    /// By key: the body with which its event was handled.
    done: HashMap<Vec<u8>, Vec<u8>>,
    /// By body: the key, or none, under which it was handled.
    bodies: HashMap<Vec<u8>, Vec<u8>>,
    attempts: HashMap<Vec<u8>, u32>,
    /// How often the handler of `chat-rated` will still fail.
    failures: usize,
}

/// Of a body, this much does not count against the memory of all bodies.
const UNCOUNTED: usize = 64 * 1024;

/// What is known of a delivery that passed all checks but those that need a memory.
#[derive(Debug)]
pub(crate) struct Authentic {
    pub(crate) body: Vec<u8>,
    pub(crate) kind: String,
    pub(crate) key: Option<Vec<u8>>,
}

impl<'a> Model<'a> {
    pub(crate) fn new(config: &'a Config) -> Self {
        Self {
            config,
            done: HashMap::new(),
            bodies: HashMap::new(),
            attempts: HashMap::new(),
            failures: config.failures,
        }
    }

    pub(crate) fn answer(&mut self, request: &Request) -> Answer {
        match self.check(request) {
            Ok(delivery) => self.deliver(delivery),
            Err(status) => Answer::status(status),
        }
    }

    pub(crate) fn check(&self, request: &Request) -> Result<Authentic, u16> {
        if request.method != "POST" {
            return Err(405);
        }
        if self.config.secrets > 0 && claimed_tag(request).is_none() {
            return Err(401);
        }
        let body = self.receive(request)?;
        if self.config.secrets > 0 && !self.is_signed(request, &body) {
            return Err(401);
        }
        if !is_json(request) {
            return Err(415);
        }
        let kind = match request.all("x-service-event")[..] {
            [kind] if is_token(kind) => String::from_utf8_lossy(kind).into_owned(),
            _ => return Err(400),
        };
        let keys = request.all("idempotency-key");
        if keys.windows(2).any(|pair| pair[0] != pair[1]) {
            return Err(400);
        }
        let key = keys
            .first()
            .filter(|key| !key.is_empty())
            .map(|key| key.to_vec());
        if key.is_none() && self.config.require_key {
            return Err(400);
        }
        Ok(Authentic { body, kind, key })
    }

    fn receive(&self, request: &Request) -> Result<Vec<u8>, u16> {
        let limit = self.config.max_body;
        let declared = declared(request)?;
        let time = self.body_time(declared);
        let known = if request.exact_size_known {
            request.size()
        } else {
            0
        };
        if declared.unwrap_or(0).max(known) > limit {
            return Err(413);
        }

        let mut body = Vec::new();
        let mut waited = Duration::ZERO;
        for step in &request.steps {
            match step {
                Step::Data(data) => body.extend_from_slice(data),
                Step::Wait(time) => waited += *time,
                Step::Trailers => {}
                Step::Break => return Err(400),
            }
            if waited > time {
                return Err(408);
            }
            if body.len() > limit {
                return Err(413);
            }
            if declared.is_some_and(|declared| body.len() > declared) {
                return Err(400);
            }
            if self.config.is_full && body.len() > UNCOUNTED {
                return Err(503);
            }
        }
        match declared {
            Some(declared) if declared != body.len() => Err(400),
            _ => Ok(body),
        }
    }

    /// How long a body may take. One that declares no length may be the largest.
    pub(crate) fn body_time(&self, declared: Option<usize>) -> Duration {
        let length = declared.unwrap_or(self.config.max_body) as u64;
        let at_32_kib_per_s = Duration::from_millis(length.saturating_mul(1000) / (32 * 1024));
        (Duration::from_secs(2) + at_32_kib_per_s).min(Duration::from_secs(10))
    }

    fn is_signed(&self, request: &Request, body: &[u8]) -> bool {
        let mut accepted = SECRETS[..self.config.secrets].iter();
        accepted.any(|secret| Some(hmac(secret.as_bytes(), body)) == claimed_tag(request))
    }

    /// The status of an event for which no handler runs.
    pub(crate) fn unhandled(&self, delivery: &Authentic) -> Option<u16> {
        let kind = &delivery.kind[..];
        let handled = matches!(kind, "chat-rated" | "chat-closed" | "message-created");
        if !handled && !self.config.fallback {
            return Some(match self.config.reject_unhandled {
                true => 404,
                false => 200,
            });
        }
        (!json::is_object(&delivery.body)).then_some(422)
    }

    fn deliver(&mut self, delivery: Authentic) -> Answer {
        let unhandled = self.unhandled(&delivery);
        let Authentic { body, kind, key } = delivery;
        let replay = Answer {
            replayed: true,
            ..Answer::status(200)
        };

        if let Some(handled) = key.as_ref().and_then(|key| self.done.get(key)) {
            let changed = *handled != body;
            return match changed && self.config.reject_changed_bodies {
                true => Answer::status(422),
                false => replay,
            };
        }
        let attempt = key.clone().map(|key| {
            let attempts = self.attempts.entry(key).or_default();
            *attempts += 1;
            *attempts
        });
        let named = key.clone().unwrap_or_default();
        if let Some(handled) = self.bodies.get(&body) {
            return match *handled == named {
                true => replay,
                false => Answer::status(422),
            };
        }

        if let Some(status) = unhandled {
            return Answer::status(status);
        }
        let fails = kind == "chat-rated" && self.failures > 0;
        if fails {
            self.failures -= 1;
        } else {
            if let Some(key) = &key {
                self.done.insert(key.clone(), body.clone());
            }
            if self.config.replay_guard {
                self.bodies.insert(body.clone(), named);
            }
        }
        Answer {
            run: Some(Run {
                kind,
                key,
                attempt,
                body,
            }),
            ..Answer::status(if fails { 500 } else { 200 })
        }
    }
}

/// The length that a request declares for its body, or the status of its refusal.
pub(crate) fn declared(request: &Request) -> Result<Option<usize>, u16> {
    let [first, ref others @ ..] = request.all("content-length")[..] else {
        return Ok(None);
    };
    let digits = !first.is_empty() && first.iter().all(u8::is_ascii_digit);
    if !digits || others.iter().any(|other| *other != first) {
        return Err(400);
    }
    let length = |digits: &[u8]| str::from_utf8(digits).ok()?.parse::<usize>().ok();
    Ok(Some(length(first).unwrap_or(usize::MAX)))
}

fn claimed_tag(request: &Request) -> Option<[u8; 32]> {
    match request.all("x-service-hmac-sha256")[..] {
        [value] => parse_signature(value),
        _ => None,
    }
}

fn is_json(request: &Request) -> bool {
    let [media_type] = request.all("content-type")[..] else {
        return false;
    };
    let end = media_type.iter().position(|&byte| byte == b';');
    let essence = &media_type[..end.unwrap_or(media_type.len())];
    essence
        .trim_ascii()
        .eq_ignore_ascii_case(b"application/json")
        && request.all("content-encoding").is_empty()
}

fn is_token(text: &[u8]) -> bool {
    let is_tchar = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !text.is_empty() && text.iter().all(is_tchar)
}
