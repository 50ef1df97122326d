//! The scripts, as they are loaded into the server.

use redis::Script;

/// The operations, each of them one script and so one atomic step.
pub(super) struct Scripts {
    pub(super) claim: Script,
    pub(super) peek: Script,
    pub(super) renew: Script,
    pub(super) complete: Script,
    pub(super) release: Script,
}

impl Scripts {
    pub(super) fn new() -> Self {
        macro_rules! script {
            ($flags:literal, $file:literal) => {
                // A script in Redis cannot import another one, so each contains the common part.
                Script::new(concat!(
                    $flags,
                    include_str!("record.lua"),
                    include_str!($file)
                ))
            };
        }
        Self {
            // Without flags, only its write is refused where the server cannot write: duplicates are
            // still answered.
            claim: script!("", "claim.lua"),
            peek: script!("#!lua flags=no-writes\n", "peek.lua"),
            // A server whose memory is full claims nothing more, but what is in flight can end:
            // that takes no more room than it has.
            renew: script!("#!lua flags=allow-oom\n", "renew.lua"),
            complete: script!("#!lua flags=allow-oom\n", "complete.lua"),
            release: script!("#!lua flags=allow-oom\n", "release.lua"),
        }
    }

    pub(super) fn all(&self) -> [&Script; 5] {
        [
            &self.claim,
            &self.peek,
            &self.renew,
            &self.complete,
            &self.release,
        ]
    }
}
