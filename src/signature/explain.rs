//! Why a request is accepted or refused, step by step, for a person who looks for the reason.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{Method, Request};

use super::checked::{How, Keyed, add_token, decided, signer};
use super::headers::{declared_length, kind_and_key};
use super::refusal::Refusal;
use super::secret::{Secret, Secrets};
use super::sign::check;
use crate::delivery::RawDelivery;
use crate::error::Chain;
use crate::sender::{
    Claim, Finding, Handshake, Head, Scheme, Sender, SignatureError, Step, digest_of, start_of,
};

/// Why a request is accepted or refused.
#[derive(Clone, Debug)]
pub struct Explanation {
    steps: Vec<Step>,
    is_signed: bool,
}

impl Explanation {
    /// Returns the steps, in their order. If one is wrong, the request is refused.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Whether nothing is wrong with the request.
    #[must_use]
    pub fn is_accepted(&self) -> bool {
        self.steps.iter().all(|it| it.finding != Finding::Wrong)
    }

    /// Whether a secret signed it, however old it is, and whatever else is wrong.
    #[must_use]
    pub fn is_signed(&self) -> bool {
        self.is_signed
    }
}

impl Sender {
    /// Judges a request that was captured, as [`SignatureLayer`](crate::SignatureLayer) does, and says why: which header has what,
    /// what was signed, how far the time is off. If the signature is wrong, it says what would have been right: another form of the
    /// secret, a changed line end, the body alone.
    ///
    /// The steps have no secret and no payload. It is for people who look for a reason, and costs up to a hundred verifications.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use http::Request;
    /// use tower_webhook::{Secret, Sender};
    ///
    /// let (sender, secret) = (Sender::github(), Secret::new("8c1f…")?);
    /// let delivery = sender.sample(&"push".parse()?, &"key-1".parse()?)?;
    /// let mut request = Request::post("/").body(delivery.body().clone())?;
    /// *request.headers_mut() = sender.sign(&secret, &delivery)?;
    ///
    /// let explained = sender.explain(&secret.into(), &request);
    /// assert!(explained.is_accepted());
    /// for step in explained.steps() {
    ///     println!("{:?} {}", step.finding, step.text);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn explain(&self, secrets: &Secrets, request: &Request<Bytes>) -> Explanation {
        let mut steps = Vec::new();
        let is_signed = match request.method() {
            &Method::POST => self.explain_post(secrets, request, &mut steps),
            &Method::GET | &Method::HEAD | &Method::OPTIONS => {
                steps.push(self.explain_greeting(request).unwrap_or_else(|| {
                    Step::wrong("it is no challenge that the description names, and deliveries are sent with POST")
                }));
                false
            }
            method => {
                let text = format!("the method is {method}: deliveries are sent with POST");
                steps.push(Step::wrong(text));
                false
            }
        };
        Explanation { steps, is_signed }
    }

    fn explain_post(
        &self,
        secrets: &Secrets,
        request: &Request<Bytes>,
        steps: &mut Vec<Step>,
    ) -> bool {
        let (headers, body) = (request.headers(), request.body());
        let head = Head::of_post(Some(request.uri()), headers);
        let now = self.now();
        let mut claim = self.described().claim(head, || now);
        let declared = declared_length(headers);
        let handshake = self.described().handshake();
        let brings_secret = matches!(claim, Err(SignatureError::Missing))
            && handshake.is_some_and(|it| it.in_head(headers).is_some());
        // As in the layer: a challenge without a signature is looked for after a refusal.
        if (claim.is_err() || declared.is_err())
            && !brings_secret
            && let Some(greeting) = self.explain_greeting(request)
        {
            steps.push(greeting);
            return false;
        }
        match declared {
            Ok(Some(length)) if length != body.len() as u64 => {
                let text = format!(
                    "`Content-Length` is {length}, and the body has {} bytes",
                    body.len()
                );
                steps.push(Step::wrong(text));
            }
            Err(refusal) => steps.push(Step::wrong(reason(&refusal))),
            Ok(_) => {}
        }
        if let Err(error) = check(self, secrets) {
            steps.push(Step::wrong(Chain(&error).to_string()));
        }
        let scheme = self.described().scheme(headers);
        let found = scheme.explain(head);
        let is_in_form = found.iter().all(|it| it.finding != Finding::Wrong);
        steps.extend(found);
        steps.extend(scheme.explain_time(head, now));
        if let Err(SignatureError::Stale { age, .. }) = claim {
            // As when it was sent: whether the signature is right is another question.
            if let Some(then) = when(now, age) {
                claim = self.described().claim(head, || then);
            }
        }
        let claim = claim.and_then(|(scheme, mut claim)| {
            add_token(&mut claim, scheme, self, body)?;
            Ok((scheme, claim))
        });
        let (scheme, claim) = match claim {
            Ok(claim) => claim,
            Err(error) => {
                // The step of a malformed tag says more.
                if is_in_form || error != SignatureError::Malformed {
                    let expected = self.described().expected(error, headers);
                    let expected = expected.map(|it| format!(": expected {it}"));
                    steps.push(Step::wrong(format!(
                        "{error}{}",
                        expected.unwrap_or_default()
                    )));
                }
                let is_one =
                    |it: &Handshake| it.in_head(headers).is_some() || it.in_body(body).is_some();
                if error == SignatureError::Missing && handshake.is_some_and(is_one) {
                    steps.push(Step::note(
                        "it brings a secret in a handshake, which is kept only while somebody asks for one",
                    ));
                }
                return false;
            }
        };
        let is_signed = self.explain_signature(secrets, scheme, &claim, body, steps);
        if let (Some(time), true) = (scheme.body_time(), is_signed) {
            steps.push(match time.text_in(body) {
                Some(text) => time.explain(text.as_bytes(), now),
                None => Step::wrong(format!("{}", SignatureError::Timestamp)),
            });
        }
        if is_signed {
            self.explain_event(request, steps);
        }
        is_signed
    }

    /// What the layer answers to a request that proves nothing, if it is a challenge.
    fn explain_greeting(&self, request: &Request<Bytes>) -> Option<Step> {
        let head = request.clone().into_parts().0;
        Some(match self.greeted(&head, |_| Some(Vec::new()))? {
            Ok(reply) => Step::right(format!("it is a challenge, answered with {}", reply.status)),
            Err(reason) => Step::wrong(match self.check() {
                Ok(()) => reason.to_owned(),
                Err(error) => Chain(&error).to_string(),
            }),
        })
    }

    fn explain_signature(
        &self,
        secrets: &Secrets,
        scheme: &Scheme,
        claim: &Claim,
        body: &[u8],
        steps: &mut Vec<Step>,
    ) -> bool {
        let (set, how) = (secrets.current(), How::of(scheme));
        let index = signer(&set, how, claim, body);
        let index = decided(index, (&set, how), claim, body);
        let digest = scheme.digest(body);
        let hashed = digest.as_ref().map_or(body, |it| it.as_bytes());
        if scheme.is_token() {
            steps.push(Step::note(
                "nothing is signed: the token is compared with each secret",
            ));
        } else {
            steps.push(Step::note(format!(
                "signed is {}",
                scheme.explain_content(body)
            )));
            if !(claim.before().is_empty() && claim.after().is_empty()) {
                let all = [claim.before(), hashed, claim.after()].concat();
                steps.push(Step::note(format!("together, that is {}", digest_of(&all))));
            }
        }
        let labels = secrets.labels();
        for (secret, label) in set.iter().zip(&labels) {
            let own = tag(secret, scheme, [claim.before(), hashed, claim.after()]);
            if let Some(own) = own.filter(|_| index.is_none()) {
                let text = format!(
                    "with the secret {label}, the signature would be {}",
                    start_of(own.as_bytes())
                );
                steps.push(Step::note(text));
            }
        }
        match index {
            Some(index) => {
                steps.push(Step::right(format!(
                    "the secret {} signed it",
                    labels[index]
                )));
                true
            }
            None => {
                let count = set.len();
                steps.push(Step::wrong(format!(
                    "{}, of which there are {count}",
                    SignatureError::Wrong
                )));
                let hints = hints(&set, scheme, claim, body);
                steps.extend(hints.into_iter().map(Step::note));
                false
            }
        }
    }

    /// What the event of a verified request is.
    fn explain_event(&self, request: &Request<Bytes>, steps: &mut Vec<Step>) {
        let (headers, body) = (request.headers(), request.body());
        let challenge = self
            .described()
            .challenge(headers, body, |_| Some(Vec::new()));
        if let Some(reply) = challenge {
            return steps.push(match reply {
                Some(_) => Step::right("it is a challenge, which the layer answers"),
                None => {
                    Step::wrong("it is a challenge, and there is nothing in it that may be echoed")
                }
            });
        }
        match kind_and_key(headers, body, self, false) {
            Ok((kind, key)) => {
                // The layer passes it on, and what is behind it does not handle it.
                if let Err(error) = RawDelivery::new(kind.clone(), body.clone()).json() {
                    let text =
                        format!("no handler gets it, as by `undecodable`: {}", Chain(&error));
                    steps.push(Step::note(text));
                }
                let key = key.map_or("it has no key".to_owned(), |it| {
                    format!("its key is `{it}`")
                });
                steps.push(Step::right(format!(
                    "its event type is `{kind}`, and {key}"
                )));
            }
            Err(refusal) => steps.push(Step::wrong(reason(&refusal))),
        }
    }
}

/// The time at which a timestamp is in its window that is so old now. Ages are rounded away from zero.
fn when(now: SystemTime, age: i64) -> Option<SystemTime> {
    let off = Duration::from_secs(age.unsigned_abs());
    match age {
        1.. => now.checked_sub(off.saturating_sub(Duration::from_secs(1))),
        _ => now.checked_add(off),
    }
}

fn reason(refusal: &Refusal) -> String {
    let text = Chain(refusal).to_string();
    format!("{}: {}", refusal.name(), text.trim_end_matches('.'))
}

/// The tag as the header has it, of a sender whose signature is one of a secret.
fn tag(secret: &Secret, scheme: &Scheme, pieces: [&[u8]; 3]) -> Option<String> {
    if scheme.is_token() {
        return None;
    }
    let keyed = Keyed::new(secret, scheme.algorithm, scheme.secret)?;
    scheme.written(&keyed.tag(pieces))
}

/// The body as something on its way may have changed it, and what undoes that.
fn bodies(body: &[u8]) -> Vec<(&'static str, Cow<'_, [u8]>)> {
    let text = String::from_utf8_lossy(body);
    let as_bytes = |text: String| Cow::Owned(text.into_bytes());
    let end = body
        .strip_suffix(b"\n")
        .map(|it| it.strip_suffix(b"\r").unwrap_or(it));
    let start = body.strip_prefix(b"\xef\xbb\xbf");
    let mut bodies = vec![
        ("", Cow::Borrowed(body)),
        (
            " with a line end (LF) after the body",
            Cow::Owned([body, b"\n"].concat()),
        ),
        (
            " with a line end (CR LF) after the body",
            Cow::Owned([body, b"\r\n"].concat()),
        ),
        (
            " with the line ends LF in place of CR LF",
            as_bytes(text.replace("\r\n", "\n")),
        ),
        (
            " with the line ends CR LF in place of LF",
            as_bytes(text.replace("\r\n", "\n").replace('\n', "\r\n")),
        ),
        (" with an empty body", Cow::Borrowed(&b""[..])),
    ];
    bodies.extend(end.map(|it| (" without the line end after the body", Cow::Borrowed(it))));
    bodies.extend(start.map(|it| {
        (
            " without the byte order mark before the body",
            Cow::Borrowed(it),
        )
    }));
    bodies
}

/// The most secrets of a set with which other contents are tried.
const MOST: usize = 4;

/// What would have been right in place of what is wrong.
fn hints(set: &[Secret], scheme: &Scheme, claim: &Claim, body: &[u8]) -> Vec<String> {
    if scheme.is_token() || scheme.algorithm.is_asymmetric() {
        return Vec::new();
    }
    let swap = |from: &str, to: &str| {
        let swapped = |part: &[u8]| String::from_utf8_lossy(part).replace(from, to).into_bytes();
        (swapped(claim.before()), swapped(claim.after()))
    };
    let (before, after) = (claim.before().to_vec(), claim.after().to_vec());
    let around = [
        ("", (before, after)),
        (", of the body alone", (Vec::new(), Vec::new())),
        (
            ", with `http` in place of `https` in the URL",
            swap("https://", "http://"),
        ),
        (
            ", with `https` in place of `http` in the URL",
            swap("http://", "https://"),
        ),
    ];
    let mut hints = Vec::new();
    for (what_body, body) in bodies(body) {
        for (what_around, (before, after)) in &around {
            for (what_secret, how) in How::others(scheme) {
                let claim = claim.around(before.clone(), after.clone());
                let is_it = signer(&set[..set.len().min(MOST)], how, &claim, &body).is_some();
                if is_it {
                    hints.push(format!(
                        "the signature is right{what_secret}{what_body}{what_around}"
                    ));
                }
            }
        }
    }
    // Some changes change nothing, so that one cause has several names.
    hints.truncate(3);
    hints
}
