//! What goes wrong between the platform and a receiver.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use fastrand::Rng;

use crate::event::SenderPolicy;

/// Something that goes wrong with an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// The event is delivered once more: at once, or after [`Injected::parameter`] milliseconds if
    /// it was delivered by then.
    Duplicate,
    /// The event is delivered twice at the same time.
    ConcurrentDuplicate,
    /// The attempt is held back until a later event of its chat has overtaken it, or for a minute.
    Reorder,
    /// The receiver answered, and the answer does not reach the platform.
    DropResponse,
    /// The connection breaks within the request's body, before byte [`Injected::parameter`].
    TruncateBody,
    /// The request arrives, and the connection breaks while the receiver works on it: in process,
    /// its future is dropped after it was polled [`Injected::parameter`] times.
    Disconnect,
    /// The attempt begins [`Injected::parameter`] milliseconds late.
    Delay,
    /// Byte [`Injected::parameter`] of the body is changed after it was signed.
    Tamper,
    /// The body is signed with another secret.
    WrongSecret,
    /// Once delivered, another body with a genuine signature follows under the same key.
    OtherBody,
}

impl Fault {
    /// All of them.
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

    /// Its name, as [`Faults`] reads it.
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

    /// Whether only a signature can tell.
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
            Self::Duplicate if rng.bool() => rng.u64(1..=millis(policy.retry_for).max(1)),
            Self::TruncateBody | Self::Tamper => rng.u64(0..body.max(1) as u64),
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

/// A fault that was put into an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Injected {
    /// What went wrong.
    pub fault: Fault,
    /// When or where: see [`Fault`].
    pub parameter: u64,
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

/// How often each fault happens: a share of all attempts. None unless set.
///
/// An attempt has one fault at most, and which one follows from the sandbox's seed. Tampering and
/// wrong secrets happen only where there is a secret.
///
/// ```
/// use tower_webhook::sandbox::{Fault, Faults};
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
    /// Nothing goes wrong.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Every fault happens to this share of the attempts, so a tenth is the most.
    #[must_use]
    pub fn all(share: f64) -> Self {
        Self([share; Fault::ALL.len()])
    }

    /// Changes the share of one fault.
    #[must_use]
    pub fn with(mut self, fault: Fault, share: f64) -> Self {
        self.0[fault as usize] = share;
        self
    }

    pub(super) fn draw(&self, rng: &mut Rng, signed: bool) -> Option<Fault> {
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

    /// `none`, `all`, `all=0.05`, or a list such as `cut=0.1,tamper=0.01`.
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

/// The text does not say how often which fault happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidFaults(String);

impl fmt::Display for InvalidFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` names no faults: write `none`, `all`, `all=0.05` or a list such as `cut=0.1,",
            self.0
        )?;
        f.write_str("tamper=0.01`, of")?;
        Fault::ALL
            .iter()
            .try_for_each(|fault| write!(f, " {fault}"))
    }
}

impl std::error::Error for InvalidFaults {}

/// The source of all chance in one attempt: it depends on nothing but these numbers, so that a run
/// with the same seed meets the same faults.
pub(super) fn chance(seed: u64, event: u64, attempt: u64) -> Rng {
    let mixed = [seed, event, attempt]
        .into_iter()
        .fold(0, |state, part| Rng::with_seed(state ^ part).u64(..));
    Rng::with_seed(mixed)
}
