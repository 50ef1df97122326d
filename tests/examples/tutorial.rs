//! The tutorial, as its reader follows it: each command is run, each change is made, and what should be seen is seen.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::postgres::free_port;
use support::program::{Program, curl, example, until};
use tempfile::TempDir;

const ADDRESS: &str = "127.0.0.1:3000";

/// With what a line begins that a handler prints.
const HANDLED: [&str; 2] = ["rated:", "pushed to"];

/// The blocks of the page with their languages, and what is written between them.
fn blocks(page: &str) -> Vec<(&str, &str)> {
    let mut blocks = Vec::new();
    let mut rest = page;
    while let Some((before, after)) = rest.split_once("```") {
        let (language, after) = after.split_once('\n').unwrap();
        let (text, after) = after.split_once("```\n").unwrap();
        blocks.extend([("prose", before), (language, text)]);
        rest = after;
    }
    blocks
}

fn handled(text: &str) -> Vec<String> {
    let is_handled = |line: &&str| HANDLED.iter().any(|it| line.starts_with(it));
    text.lines().filter(is_handled).map(str::to_owned).collect()
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
    /// How much of its output and of its log was there before the last commands.
    read: (usize, usize),
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
            read: (0, 0),
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

    /// What is seen from now on comes from these.
    fn type_all(&mut self, lines: &str) {
        let running = self.running.as_ref();
        self.read = running.map_or((0, 0), |it| (it.out().len(), it.err().len()));
        self.printed.clear();
        lines.lines().for_each(|line| self.type_in(line));
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
        self.read = (0, 0);
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

    /// What the program has printed since the last commands: its output and its log.
    fn terminal(&self) -> (String, String) {
        let Some(running) = &self.running else {
            return Default::default();
        };
        let (out, err) = self.read;
        (
            running.out()[out..].to_owned(),
            running.err()[err..].to_owned(),
        )
    }

    /// All lines are seen, and handlers have printed no others.
    fn see_all(&self, lines: &str) {
        lines.lines().for_each(|line| self.see(line));
        let (out, _) = self.terminal();
        assert_eq!(handled(&out), handled(lines), "after {}", self.printed);
    }

    /// Waits for a new line in either terminal that has the parts of `expected`, which `…` divides.
    fn see(&self, expected: &str) {
        let is_seen = || {
            let (out, err) = self.terminal();
            let has = |line: &str| {
                let mut rest = Some(line);
                for part in expected.split('…').map(str::trim) {
                    rest = rest.and_then(|it| it.split_once(part)).map(|it| it.1);
                }
                rest.is_some()
            };
            [&out, &err, &self.printed]
                .iter()
                .any(|it| it.lines().any(has))
        };
        let printed = self.printed.lines().next();
        let what = format!("`{expected}`, in the program's terminal or after {printed:?},");
        until(&what, || is_seen().then_some(()));
    }

    /// The console's first page.
    fn open(&self, url: &str) {
        until(url, || {
            let page = curl(&[url]);
            let reason = "No such file or directory";
            (page.contains("chat-rated") && page.contains(reason)).then_some(())
        });
    }
}

#[test]
fn the_tutorial_is_followed_as_it_stands() {
    let page = include_str!("../../src/docs/getting_started.md");
    let address = format!("127.0.0.1:{}", free_port());
    let page = page.replace(ADDRESS, &address);
    let mut reader = Reader::new(&address);
    let (mut seen, mut opened) = (0, 0);
    for (language, text) in blocks(&page) {
        match language {
            "prose" => {
                let urls = text.split('<').skip(1);
                let urls = urls.filter_map(|rest| rest.split_once('>').map(|it| it.0));
                for url in urls.filter(|url| url.starts_with("http://")) {
                    reader.open(url);
                    opened += 1;
                }
            }
            "sh" => reader.type_all(text),
            "rust,no_run" => fs::write(reader.directory.join("src/main.rs"), text).unwrap(),
            "diff" => reader.change(text),
            "text" => {
                reader.see_all(text);
                seen += text.lines().count();
            }
            other => panic!("nobody knows what to do with {other}"),
        }
    }
    assert!(seen > 10 && opened == 1, "{seen} lines and {opened} pages");
}
