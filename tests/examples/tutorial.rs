//! The tutorial, as its reader follows it: each command is run, each change is made, and what should be seen is seen.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::postgres::free_port;
use support::program::{Program, example, until};
use tempfile::TempDir;

const ADDRESS: &str = "127.0.0.1:3000";

/// A block of the page: its language and its text.
fn blocks(page: &str) -> Vec<(&str, String)> {
    let mut blocks = Vec::new();
    let mut rest = page;
    while let Some((_, after)) = rest.split_once("```") {
        let (language, after) = after.split_once('\n').unwrap();
        let (text, after) = after.split_once("```\n").unwrap();
        blocks.push((language, text.to_owned()));
        rest = after;
    }
    blocks
}

/// A reader of a page whose port is another, with two terminals in one directory.
struct Reader {
    address: String,
    /// The directory that contains the clone.
    _scratch: TempDir,
    directory: PathBuf,
    /// What they exported.
    variables: BTreeMap<String, String>,
    /// The first terminal.
    running: Option<Program>,
    /// What the last command printed in the second one.
    printed: String,
}

impl Reader {
    fn new(address: &str) -> Self {
        let scratch = TempDir::new().unwrap();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        symlink(root, scratch.path().join("tower-webhook")).unwrap();
        let directory = scratch.path().to_owned();
        let receiver = PathBuf::from(example("receiver").get_program());
        let path = format!(
            "{}:{}",
            receiver.parent().unwrap().display(),
            std::env::var("PATH").unwrap()
        );
        let target = receiver.parent().unwrap().join("tutorial");
        let variables = [
            ("PATH", path),
            ("CARGO_TARGET_DIR", target.display().to_string()),
            ("CARGO_TERM_COLOR", "never".to_owned()),
            ("NO_COLOR", "1".to_owned()),
        ];
        Self {
            address: address.to_owned(),
            _scratch: scratch,
            directory,
            variables: variables
                .map(|(name, value)| (name.to_owned(), value))
                .into(),
            running: None,
            printed: String::new(),
        }
    }

    fn command(&self, line: &str) -> Command {
        // Where it sends to by default.
        let send = format!("receiver send --url http://{}/webhooks", self.address);
        let line = match line.contains("--url") {
            true => line.to_owned(),
            false => line.replace("receiver send", &send),
        };
        let mut command = Command::new("sh");
        command.args(["-c", &line]).current_dir(&self.directory);
        command.envs(&self.variables);
        command
    }

    fn type_in(&mut self, line: &str) {
        let words: Vec<_> = line.split_whitespace().collect();
        match words[..] {
            // The programs are installed from their packages in a rehearsal of a release.
            ["cargo", "install", ..] => {}
            ["cd", directory] => self.directory.push(directory),
            ["export", variable] => {
                let (name, value) = variable.split_once('=').unwrap();
                self.variables.insert(name.to_owned(), value.to_owned());
            }
            ["cargo", "run"] => self.start(),
            _ => {
                let output = self.command(line).output().unwrap();
                let text = [output.stdout, output.stderr].concat();
                self.printed = String::from_utf8(text).unwrap();
                // The answer to an event is on the page, which has the refused ones, too.
                let is_seen = words[..2] == ["receiver", "send"];
                let printed = &self.printed;
                assert!(is_seen || output.status.success(), "{line}: {printed}");
            }
        }
    }

    /// Stops the program in the first terminal, and starts it again.
    fn start(&mut self) {
        if let Some(running) = self.running.take() {
            let process = Pid::from_raw(running.child.id().cast_signed());
            kill(process, Signal::SIGINT).unwrap();
            assert_eq!(running.finish().code, 0);
        }
        self.type_in("cargo build --quiet");
        let running = Program::start(&mut self.command("exec cargo run --quiet"));
        until("the program", || {
            running.out().contains("listening on").then_some(())
        });
        self.running = Some(running);
    }

    fn change(&self, change: &str) {
        let side = |of: char| {
            let lines = change.lines();
            let lines = lines.filter(|line| line.is_empty() || line.starts_with([' ', of]));
            let lines = lines.map(|line| format!("{}\n", line.get(1..).unwrap_or_default()));
            lines.collect::<String>()
        };
        let file = self.directory.join("src/main.rs");
        let program = fs::read_to_string(&file).unwrap();
        let (before, after) = (side('-'), side('+'));
        assert_eq!(
            program.matches(&before).count(),
            1,
            "{before}\nin\n{program}"
        );
        fs::write(file, program.replace(&before, &after)).unwrap();
    }

    /// Waits for a line in either terminal that has the parts of `expected`, which `…` divides.
    fn see(&self, expected: &str) {
        let is_seen = || {
            let running = self.running.as_ref();
            let terminal = running.map_or_else(String::new, |it| it.out() + &it.err());
            let has = |line: &str| {
                let mut rest = Some(line);
                for part in expected.split('…').map(str::trim) {
                    rest = rest.and_then(|it| it.split_once(part)).map(|it| it.1);
                }
                rest.is_some()
            };
            [&terminal, &self.printed]
                .iter()
                .any(|it| it.lines().any(has))
        };
        let printed = self.printed.lines().next();
        let what = format!("`{expected}`, in the program's terminal or after {printed:?},");
        until(&what, || is_seen().then_some(()));
    }
}

#[test]
fn the_tutorial_is_followed_as_it_stands() {
    let page = include_str!("../../src/docs/getting_started.md");
    let address = format!("127.0.0.1:{}", free_port());
    let page = page.replace(ADDRESS, &address);
    let mut reader = Reader::new(&address);
    let mut seen = 0;
    for (language, text) in blocks(&page) {
        match language {
            "sh" => text.lines().for_each(|line| reader.type_in(line)),
            "rust,no_run" => fs::write(reader.directory.join("src/main.rs"), text).unwrap(),
            "diff" => reader.change(&text),
            "text" => {
                text.lines().for_each(|line| reader.see(line));
                seen += text.lines().count();
            }
            other => panic!("nobody knows what to do with {other}"),
        }
    }
    assert!(seen > 10, "{seen}");
}
