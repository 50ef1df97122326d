//! Examples, other programs, and tests as processes.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

/// How long something that must happen may take, on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A program or an example, which has no settings but those that a test gives it.
pub fn example(name: &str) -> Command {
    let test = std::env::current_exe().unwrap();
    let target = test.parent().and_then(Path::parent).unwrap();
    let places = [target.join(name), target.join("examples").join(name)];
    let program = places.into_iter().find(|place| place.exists());
    let program = program.expect("the program is not built: `bash tests/run` builds it");
    let mut command = Command::new(program);
    command.stdin(Stdio::null());
    for name in ["ADMIN_BASE_URL", "DATABASE_URL", "RUST_LOG"] {
        command.env_remove(name);
    }
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"WEBHOOK_") {
            command.env_remove(name);
        }
    }
    command
}

/// The result of starting a program that a Debian package contains.
pub fn installed<T>(started: std::io::Result<T>, program: &str, package: &str) -> T {
    match started {
        Ok(started) => started,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            panic!("`{program}` is missing: install it (Debian's package is `{package}`)")
        }
        Err(error) => panic!("`{program}` cannot be started: {error}"),
    }
}

/// Runs a program of the Debian package of the same name, and returns its output.
pub fn tool(name: &str, args: &[&str]) -> String {
    let output = installed(Command::new(name).args(args).output(), name, name);
    assert!(output.status.success(), "{name}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a program in a directory, and returns all that it wrote.
#[track_caller]
pub fn check(program: &str, package: &str, dir: &Path, args: &[&str]) -> String {
    let output = Command::new(program).args(args).current_dir(dir).output();
    let output = installed(output, program, package);
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(output.status.success(), "{program} {args:?}:\n{text}");
    text
}

/// Asks until there is an answer, and fails after [`PATIENCE`].
pub fn until<T>(what: &str, ask: impl FnMut() -> Option<T>) -> T {
    until_every(Duration::from_millis(5), what, ask)
}

/// The same with another pause between the questions.
pub fn until_every<T>(pause: Duration, what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "{what} did not come");
        thread::sleep(pause);
    }
}

/// A process whose output goes to files. It is killed when this is dropped.
pub struct Program {
    pub child: Child,
    pub dir: TempDir,
}

/// How a process ended.
#[derive(Debug)]
pub struct Ended {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Program {
    pub fn start(command: &mut Command) -> Self {
        let dir = TempDir::new().unwrap();
        Self::spawn(command.stdout(append(&dir.path().join("out"))), dir)
    }

    /// Leaves standard output as the command has it.
    pub fn spawn(command: &mut Command, dir: TempDir) -> Self {
        let child = command.stderr(append(&dir.path().join("err"))).spawn();
        let child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self { child, dir }
    }

    pub fn out(&self) -> String {
        self.read("out")
    }

    pub fn err(&self) -> String {
        self.read("err")
    }

    fn read(&self, name: &str) -> String {
        // A character may be written in part.
        let bytes = fs::read(self.dir.path().join(name)).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits for the URL that an example logs when it listens.
    pub fn url(&mut self) -> String {
        until("the address", || {
            let err = self.err();
            let ended = self.child.try_wait().unwrap();
            assert_eq!(ended, None, "{err}");
            let (_, url) = err.split_once("listening on ")?;
            let (url, _) = url.split_once([',', '\n', '"'])?;
            Some(url.to_owned())
        })
    }

    /// Waits until it ends.
    pub fn finish(mut self) -> Ended {
        let status = until("the end of a program", || self.child.try_wait().unwrap());
        Ended {
            code: status.code().unwrap_or(-1),
            out: self.out(),
            err: self.err(),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An example that listens on a port of its own.
pub struct Server {
    pub program: Program,
    pub url: String,
}

impl Server {
    pub fn start(name: &str, args: &[&str]) -> Self {
        Self::start_by(example(name).args(args))
    }

    pub fn receiver(args: &[&str]) -> Self {
        Self::start("receiver", args)
    }

    pub fn start_by(command: &mut Command) -> Self {
        Self::listening(Program::start(command.args(["--listen", "127.0.0.1:0"])))
    }

    pub fn listening(mut program: Program) -> Self {
        let url = program.url();
        Self { program, url }
    }

    pub fn out(&self) -> String {
        self.program.out()
    }

    pub fn err(&self) -> String {
        self.program.err()
    }

    pub fn address(&self) -> &str {
        self.url.split('/').nth(2).unwrap()
    }

    pub fn connect(&self) -> Option<TcpStream> {
        TcpStream::connect(self.address()).ok()
    }

    /// The URL of another listener, such as `metrics`.
    pub fn url_of(&self, what: &str) -> String {
        until("the address", || {
            let err = self.err();
            let (_, url) = err.split_once(&format!("{what} on "))?;
            url.split_once('\n').map(|(url, _)| url.to_owned())
        })
    }

    pub fn start_send(&self, secret: &str, args: &[&str]) -> Program {
        let to = ["send", "--url", &self.url, "--secret", secret];
        Program::start(example("receiver").args(to).args(args))
    }

    pub fn send(&self, secret: &str, args: &[&str]) -> Ended {
        self.start_send(secret, args).finish()
    }

    /// Sends to another path than that of `url`.
    pub fn send_to(&self, path: &str, secret: &str, args: &[&str]) -> Ended {
        let url = format!("http://{}{path}", self.address());
        let to = ["send", "--url", &url, "--secret", secret];
        run("receiver", &[&to, args].concat())
    }

    /// Sends a form to the sandbox, as its page does.
    pub fn post(&self, path: &str, form: &str) {
        let origin = format!("Origin: {}", self.url.trim_end_matches('/'));
        let url = format!("{}{path}", self.url);
        let body = format!("@{}", self.file("form", form));
        #[rustfmt::skip]
        let status = curl(&["-o", "/dev/null", "-w", "%{http_code}", "-d", &body, "-H", &origin, &url]);
        assert_eq!(status, "303", "{path} {form:.100}");
    }

    /// A size of its memory in KiB, such as `VmRSS` in Linux's `/proc/self/status`.
    pub fn memory(&self, size: &str) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.program.child.id()));
        let status = status.unwrap();
        let (_, size) = status.split_once(&format!("{size}:")).unwrap();
        size.split_whitespace().next().unwrap().parse().unwrap()
    }

    /// A file that is deleted with the server.
    pub fn file(&self, name: &str, text: &str) -> String {
        let path = self.program.dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.program.child.id().cast_signed());
        kill(pid, signal).unwrap();
    }

    /// Limits the length of the files that it writes, such as `0:unlimited`, as if the disk were full.
    pub fn limit_files(&self, limit: &str) {
        let mut prlimit = Command::new("prlimit");
        prlimit.args(["--pid", &self.program.child.id().to_string()]);
        prlimit.arg(format!("--fsize={limit}"));
        let ended = installed(prlimit.output(), "prlimit", "util-linux");
        assert!(ended.status.success(), "{ended:?}");
    }

    pub fn stop(self) -> i32 {
        self.signal(Signal::SIGTERM);
        self.program.finish().code
    }
}

/// Runs an example until it ends.
pub fn run(name: &str, args: &[&str]) -> Ended {
    Program::start(example(name).args(args)).finish()
}

/// A command whose child would outlive it, and how to find that child.
pub struct Lingering {
    dir: TempDir,
}

impl Lingering {
    pub fn new() -> Self {
        let dir = TempDir::new().unwrap();
        Self { dir }
    }

    pub fn command(&self) -> String {
        let dir = self.dir.path().display();
        format!("sleep 1000 & echo $! > '{dir}/new' && mv '{dir}/new' '{dir}/pid'; wait")
    }

    pub fn pid(&self) -> String {
        let pid = until("the command's child", || {
            fs::read_to_string(self.dir.path().join("pid")).ok()
        });
        pid.trim().to_owned()
    }

    /// Whether the process runs. Without a parent that waits for it, it becomes a zombie.
    pub fn is_running(pid: &str) -> bool {
        fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
    }
}

/// The library that shifts the clock of a process.
pub fn faketime() -> String {
    let mut command = Command::new("faketime");
    command.args(["-f", "+0d", "printenv", "LD_PRELOAD"]);
    let output = installed(command.output(), "faketime", "faketime");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

pub fn curl(args: &[&str]) -> String {
    tool("curl", &[&["-sS"], args].concat())
}

fn append(path: &Path) -> File {
    let mut options = File::options();
    options.create(true).append(true).open(path).unwrap()
}

/// Another process that runs the same test, as a part of it. It is killed when this is dropped.
pub struct Peer {
    child: Child,
    input: Option<ChildStdin>,
    said: mpsc::Receiver<String>,
}

/// In the environment of a peer: its argument.
const ARGUMENT: &str = "TOWER_WEBHOOK_TEST_ARGUMENT";

/// What a peer says follows this, among the output of the test harness.
const SAYS: &str = "peer says: ";

impl Peer {
    /// The argument, if this process is a peer.
    pub fn argument() -> Option<String> {
        std::env::var(ARGUMENT).ok()
    }

    /// The command for a peer of a test in a module, which is `module_path!()`.
    pub fn command(module: &str, test: &str, argument: impl AsRef<OsStr>) -> Command {
        let module = module.split_once("::").map(|(_, module)| module);
        let test = module.map_or(test.to_owned(), |module| format!("{module}::{test}"));
        let mut command = match cfg!(target_os = "linux") {
            // By this name, because another user may not see where the program is.
            true => Command::new("/proc/self/exe"),
            false => Command::new(std::env::current_exe().unwrap()),
        };
        command
            .args(["--exact", &test, "--nocapture"])
            .env(ARGUMENT, argument)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        command
    }

    pub fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let (sender, said) = mpsc::channel();
        thread::spawn(move || {
            let mut line = String::new();
            while output.read_line(&mut line).unwrap() > 0 {
                // A line that was cut off by the end of the process says nothing.
                if let Some((_, says)) = line.split_once(SAYS)
                    && let Some(says) = says.strip_suffix('\n')
                {
                    let _ = sender.send(says.to_owned());
                }
                line.clear();
            }
        });
        Self {
            input: child.stdin.take(),
            child,
            said,
        }
    }

    /// The next line that it says, or `None` when it has ended.
    #[track_caller]
    pub fn line(&mut self) -> Option<String> {
        match self.said.recv_timeout(PATIENCE) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("the other process says nothing"),
        }
    }

    /// The next line that it says.
    #[track_caller]
    pub fn hear(&mut self) -> String {
        self.line().expect("the other process has failed")
    }

    /// Writes a line to its standard input.
    pub fn tell(&mut self, what: impl ToString) {
        let input = self.input.as_mut().unwrap();
        writeln!(input, "{}", what.to_string()).unwrap();
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    /// Sends it a signal, such as `SIGSTOP`.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    /// Closes its standard input, waits until it succeeds, and returns the rest of what it said.
    #[track_caller]
    pub fn end(mut self) -> Vec<String> {
        drop(self.input.take());
        let said = std::iter::from_fn(|| self.line()).collect();
        assert!(self.child.wait().unwrap().success(), "the process failed");
        said
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Says a line to the process that started this one.
pub fn say(what: impl ToString) {
    println!("{SAYS}{}", what.to_string());
}
