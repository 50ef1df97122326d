//! Faults between the platform and a receiver.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use fastrand::Rng;
use tower_webhook::event::SenderPolicy;

/// A fault of an [`Attempt`](super::Attempt), set by [`Sandbox::inject`](super::Sandbox::inject) or
/// drawn from the [`Faults`] of the [`Settings`](super::Settings).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// The event is sent once more ([Spec 6, rule 1](tower_webhook::docs::platform#spec-6-rule-1)): at once, or,
    /// after it was delivered, [`Injected::parameter`] milliseconds after its first attempt.
    Duplicate,
    /// The event is sent twice at the same time.
    ConcurrentDuplicate,
    /// The attempt is held back until another attempt of its chat has ended, for at most a minute.
    Reorder,
    /// The receiver's response does not reach the platform.
    DropResponse,
    /// The request's body ends with an error before byte [`Injected::parameter`]: a
    /// [`BodyTruncated`](super::BodyTruncated) in process.
    TruncateBody,
    /// The client disconnects while the receiver handles the request: the future of the request is
    /// dropped after [`Injected::parameter`] polls.
    Disconnect,
    /// The attempt begins [`Injected::parameter`] milliseconds late.
    Delay,
    /// Byte [`Injected::parameter`] of the body is changed after it was signed.
    Tamper,
    /// The signature is not one of the body with the webhook's secret.
    WrongSecret,
    /// After the event was delivered, another body with a valid signature is sent with the same key.
    OtherBody,
}

impl Fault {
    /// All faults.
    pub const ALL: [Self; 10] = [
        Self::Duplicate,
        Self::ConcurrentDuplicate,
        Self::Reorder,
        Self::DropResponse,
        Self::TruncateBody,
        Self::Disconnect,
        Self::Delay,
        Self::Tamper,
        Self::WrongSecret,
        Self::OtherBody,
    ];

    /// Returns the name that [`Faults`] is parsed from.
    ///
    /// ```
    /// use tower_webhook_sandbox::Fault;
    ///
    /// assert_eq!(Fault::DropResponse.name(), "drop-response");
    /// ```
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Duplicate => "duplicate",
            Self::ConcurrentDuplicate => "concurrent-duplicate",
            Self::Reorder => "reorder",
            Self::DropResponse => "drop-response",
            Self::TruncateBody => "truncate-body",
            Self::Disconnect => "disconnect",
            Self::Delay => "delay",
            Self::Tamper => "tamper",
            Self::WrongSecret => "wrong-secret",
            Self::OtherBody => "other-body",
        }
    }

    /// Whether the fault needs a signature to be detected: without one, the receiver would accept it.
    fn needs_secret(self) -> bool {
        matches!(self, Self::Tamper | Self::WrongSecret)
    }

    pub(super) fn with_parameter(
        self,
        rng: &mut Rng,
        body: usize,
        policy: &SenderPolicy,
    ) -> Injected {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let parameter = match self {
            // Half of the duplicates come at once, the others at any time while retries may come.
            Self::Duplicate if rng.bool() => rng.u64(1..=millis(policy.retry_for).max(1)),
            Self::TruncateBody | Self::Tamper => rng.u64(0..body.max(1) as u64),
            // Few polls: most handlers return within them, and a fault that comes later has no effect.
            Self::Disconnect => rng.u64(1..=4),
            Self::Delay => rng.u64(1..=60_000),
            _ => 0,
        };
        Injected {
            fault: self,
            parameter,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The [`Fault`] of an [`Attempt`](super::Attempt), with its parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Injected {
    /// The fault.
    pub fault: Fault,
    /// The time, byte or number of polls that the [`Fault`] documents, else 0.
    pub parameter: u64,
}

impl Injected {
    pub(super) fn parts(self) -> (Fault, u64) {
        (self.fault, self.parameter)
    }
}

impl fmt::Display for Injected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fault, parameter } = self;
        match fault {
            Fault::Duplicate | Fault::Delay => write!(f, "{fault} ({parameter} ms)"),
            Fault::TruncateBody | Fault::Tamper => write!(f, "{fault} (byte {parameter})"),
            Fault::Disconnect => write!(f, "{fault} ({parameter} polls)"),
            _ => fault.fmt(f),
        }
    }
}

/// How often each [`Fault`] happens, as a share of all attempts. [`Settings::faults`] takes it; by default
/// no fault happens.
///
/// An attempt has at most one fault, chosen by the sandbox's [seed]. [`Fault::Tamper`] and
/// [`Fault::WrongSecret`] happen only to webhooks with a secret.
///
/// [`Settings::faults`]: super::Settings::faults
/// [seed]: super::Settings::seed
///
/// ```
/// use tower_webhook_sandbox::{Fault, Faults};
///
/// let faults = Faults::all(0.02).with(Fault::Delay, 0.0);
/// assert_eq!("drop-response=0.1,truncate-body=0.05".parse(), Ok(
///     Faults::none().with(Fault::DropResponse, 0.1).with(Fault::TruncateBody, 0.05),
/// ));
/// assert_eq!("all".parse(), Ok(Faults::all(0.02)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Faults([f64; Fault::ALL.len()]);

impl Faults {
    /// Returns shares without any fault.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Returns the same share for each of the ten faults, so that 0.1 makes every attempt faulty. To
    /// exclude one, set its share to 0 with [`with`](Self::with).
    #[must_use]
    pub fn all(share: f64) -> Self {
        Self([share; Fault::ALL.len()])
    }

    /// Sets the share of one fault.
    #[must_use]
    pub fn with(mut self, fault: Fault, share: f64) -> Self {
        self.0[fault as usize] = share;
        self
    }

    pub(super) fn draw(&self, rng: &mut Rng, signed: bool) -> Option<Fault> {
        // The shares divide the range from 0 to 1; the draw falls into one of them, or behind all.
        let mut point = rng.f64();
        Fault::ALL
            .into_iter()
            .find(|&fault| {
                point -= self.0[fault as usize];
                point < 0.0
            })
            .filter(|fault| signed || !fault.needs_secret())
    }
}

impl FromStr for Faults {
    type Err = InvalidFaults;

    /// Parses `none`, `all`, `all=0.05`, or a list such as `truncate-body=0.1,tamper=0.01`. The share
    /// defaults to 0.02.
    fn from_str(text: &str) -> Result<Self, InvalidFaults> {
        let invalid = || InvalidFaults(text.to_owned());
        let mut faults = Self::none();
        for part in text.split(',').map(str::trim) {
            let (name, share) = part.split_once('=').unwrap_or((part, "0.02"));
            let share = share.parse().map_err(|_| invalid())?;
            if !(0.0..=1.0).contains(&share) {
                return Err(invalid());
            }
            faults = match name {
                "none" => Self::none(),
                "all" => Self::all(share),
                _ => {
                    let known = Fault::ALL.into_iter().find(|fault| fault.name() == name);
                    faults.with(known.ok_or_else(invalid)?, share)
                }
            };
        }
        Ok(faults)
    }
}

/// The error of parsing [`Faults`]; it lists the names of all faults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidFaults(String);

impl fmt::Display for InvalidFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is not a list of faults: use `none`, `all`, `all=0.05` or a list such as \
             `truncate-body=0.1,tamper=0.01`, of",
            self.0
        )?;
        Fault::ALL
            .iter()
            .try_for_each(|fault| write!(f, " {fault}"))
    }
}

impl std::error::Error for InvalidFaults {}

/// Returns the random numbers of one attempt. They depend on nothing but the arguments, so a run with the
/// same seed has the same faults even if attempts end in another order.
pub(super) fn chance(seed: u64, event: u64, attempt: u64) -> Rng {
    let mixed = [seed, event, attempt]
        .into_iter()
        .fold(0, |state, part| Rng::with_seed(state ^ part).u64(..));
    Rng::with_seed(mixed)
}
