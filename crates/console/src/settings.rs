//! What a console shows, and which changes it lets operators make.

use std::fmt;
use std::time::SystemTime;

use http::HeaderName;
use tower_webhook::inbox::{Causes, Inbox};
#[cfg(feature = "sqlite")]
use tower_webhook::spool::Spooled;
use tower_webhook::telemetry::{Count, FailureBudget, Recent, Silence};

use super::bulk::Turns;
use super::counts::Counts;
use super::request::Done;
use super::scan::Scans;

/// A console for operators, over an inbox and observers. Each of them is optional: a page leaves out what is missing.
///
/// See the [module](super) for an example.
#[derive(Default)]
#[must_use]
pub struct Console {
    pub(super) inbox: Option<Inbox>,
    pub(super) counts: Counts,
    pub(super) lately: Counts<Vec<Count>>,
    pub(super) delivered: Counts<Vec<Count>>,
    pub(super) causes: Counts<Causes>,
    pub(super) budget: Option<FailureBudget>,
    pub(super) silence: Option<Silence>,
    pub(super) recent: Option<Recent>,
    #[cfg(feature = "sqlite")]
    pub(super) spool: Option<Spooled>,
    pub(super) is_read_only: bool,
    pub(super) hides_payloads: bool,
    pub(super) actor: Option<HeaderName>,
    pub(super) hosts: Option<Vec<String>>,
    pub(super) turns: Turns,
    pub(super) done: Done,
    pub(super) scans: Scans,
}

impl Console {
    /// Creates a console that shows nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Shows the events of an inbox, and lets operators redrive, discard, pause and resume them.
    pub fn inbox(mut self, inbox: Inbox) -> Self {
        self.inbox = Some(inbox);
        self
    }

    /// Shows the failed deliveries of the last hour, against the limit of their sender.
    pub fn budget(mut self, budget: FailureBudget) -> Self {
        self.budget = Some(budget);
        self
    }

    /// Shows which event types are silent.
    pub fn silence(mut self, silence: Silence) -> Self {
        self.silence = Some(silence);
        self
    }

    /// Shows the last problems, the events of each minute, the answers of the last hour, and how long attempts took.
    pub fn recent(mut self, recent: Recent) -> Self {
        self.recent = Some(recent);
        self
    }

    /// Shows what is in the file of a spool.
    #[cfg(feature = "sqlite")]
    pub fn spool(mut self, spool: Spooled) -> Self {
        self.spool = Some(spool);
        self
    }

    /// Removes everything that changes something.
    pub fn read_only(mut self) -> Self {
        self.is_read_only = true;
        self
    }

    /// Hides the payloads of events, and the texts of errors and the reasons of actions, which may repeat parts of them.
    pub fn hide_payloads(mut self) -> Self {
        self.hides_payloads = true;
        self
    }

    /// Names the header in which a proxy passes on the name of the operator, for the log and the actions. Without such a proxy, anybody
    /// can set it. A request with two such headers is answered with 400, and so is a change without one. By default, operators
    /// type their names.
    pub fn actor_header(mut self, header: HeaderName) -> Self {
        self.actor = Some(header);
        self
    }

    /// Accepts only requests for these host names, without ports, and for IP addresses. Requests for others are answered
    /// with 421. This prevents DNS rebinding: another site cannot read the pages under a name that resolves to the
    /// console's address. Set it if the console has no authentication. By default, all host names are accepted.
    ///
    /// ```
    /// # use tower_webhook_console::Console;
    /// let console = Console::new().hosts(["localhost", "ops.example.com"]);
    /// ```
    pub fn hosts<H: Into<String>>(mut self, hosts: impl IntoIterator<Item = H>) -> Self {
        self.hosts = Some(hosts.into_iter().map(Into::into).collect());
        self
    }

    /// The time by the clock that counts.
    pub(super) fn now(&self) -> SystemTime {
        let recent = self.recent.as_ref();
        recent.map_or_else(SystemTime::now, Recent::now)
    }
}

impl fmt::Debug for Console {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Console")
            .field("is_read_only", &self.is_read_only)
            .field("hides_payloads", &self.hides_payloads)
            .finish_non_exhaustive()
    }
}
