//! A test that becomes several processes.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A test in another process: with the environment it is given, by which it knows what to do. It ends
/// when it is dropped.
pub(crate) struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    pub(crate) fn start<'a>(
        test: &str,
        environment: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .envs(environment)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            stdin: child.stdin.take(),
            lines: BufReader::new(child.stdout.take().unwrap()).lines(),
            child,
        }
    }

    /// Lets go on what waits for a line.
    pub(crate) fn go(&mut self) {
        self.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    }

    /// What comes after a word in the next line that begins with it.
    pub(crate) fn says(&mut self, word: &str) -> String {
        let said = self.lines.find_map(|line| after(word, &line.unwrap()));
        said.unwrap_or_else(|| panic!("the process ended without a line of `{word}`"))
    }

    /// Lets it know by the end of its input that it shall end, and returns what comes after a word
    /// in all lines until then.
    pub(crate) fn end(mut self, word: &str) -> Vec<String> {
        drop(self.stdin.take());
        let lines = self.lines.by_ref().map(Result::unwrap);
        let said = lines.filter_map(|line| after(word, &line)).collect();
        assert!(self.child.wait().unwrap().success(), "the process failed");
        said
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn after(word: &str, line: &str) -> Option<String> {
    Some(line.strip_prefix(word)?.strip_prefix(' ')?.to_owned())
}
