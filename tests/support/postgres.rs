//! A PostgreSQL server for one test, in a temporary directory.

#![allow(dead_code)] // Every test crate uses a part of it.

use std::env;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

/// Runs the server and ends it with the signal that it reads, or when the process that started it ends:
/// then it also removes what is left.
const GUARD: &str = r#"
exec 3<&0
"$0" -D "$DIR/data" "$@" 3<&- >>"$DIR/log" 2>&1 &
server=$!
{
    if read -r signal; then
        kill -s "$signal" $server
        # A fast shutdown in the middle of a recovery may wait forever: that is PostgreSQL's.
        for _ in $(seq 200); do
            kill -0 $server 2>/dev/null || exit
            sleep 0.1
        done
        kill -s QUIT $server
    else
        kill -s QUIT $server
        while kill -0 $server; do sleep 0.1; done
        rm -rf "$DIR"
    fi
} <&3 &
exec 3<&-
wait $server
"#;

/// What a server that must not run as root is run as: `nobody`.
const UNPRIVILEGED: u32 = 65534;

const PATIENCE: Duration = Duration::from_secs(60);

/// How a server ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It breaks off what clients do, and shuts down in order.
    Fast,
    /// It crashes: the next start recovers from its log.
    Immediate,
}

/// A PostgreSQL server on a free port of 127.0.0.1. Its superuser is `postgres`, without a password.
///
/// It is ended when this is dropped, or when the process ends in whatever way.
pub struct PostgresServer {
    dir: TempDir,
    programs: PathBuf,
    as_user: Option<u32>,
    port: u16,
    settings: Vec<String>,
    guard: Option<Child>,
    pooler: Option<Pooler>,
}

/// PgBouncer in front of a server, in mode `transaction`. It is ended when this is dropped, or when the process ends.
pub struct Pooler {
    port: u16,
    guard: Child,
    _dir: TempDir,
}

impl Pooler {
    /// The program that `PGBOUNCER` names, if it is set, in front of a port of this machine.
    pub fn to(server: u16) -> Option<Self> {
        let program = env::var_os("PGBOUNCER")?;
        let (dir, as_user) = directory("pgbouncer-");
        let port = free_port();
        let settings = format!(
            "[databases]\n* = host=127.0.0.1 port={server} \
             connect_query='SET client_connection_check_interval = 1000'\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = trust\nauth_file = users\nauth_user = postgres\n\
             pool_mode = transaction\nmax_prepared_statements = 200\nserver_login_retry = 1\ndefault_pool_size = 50\n\
             max_client_conn = 1000\nadmin_users = postgres\nignore_startup_parameters = extra_float_digits, options\n"
        );
        fs::write(dir.path().join("pgbouncer.ini"), settings).unwrap();
        fs::write(dir.path().join("users"), "\"postgres\" \"\"\n").unwrap();
        let mut guard = command(Path::new("/bin/sh"), dir.path(), as_user);
        guard
            .args([
                "-c",
                r#""$0" pgbouncer.ini >/dev/null 2>&1 & cat; kill -s KILL $!; wait"#,
            ])
            .arg(program)
            .stdin(Stdio::piped());
        let guard = guard.spawn().expect("/bin/sh can be run");
        let give_up = Instant::now() + PATIENCE;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < give_up, "PgBouncer does not start");
            sleep(Duration::from_millis(10));
        }
        Some(Self {
            port,
            guard,
            _dir: dir,
        })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Has it give up its connections, as after a failover.
    pub fn reconnect(&self) {
        let url = format!("postgres://postgres@127.0.0.1:{}/pgbouncer", self.port);
        let mut psql = Command::new(programs().join("psql"));
        run(psql.args([&url, "-c", "RECONNECT"]));
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

impl PostgresServer {
    /// Starts one with an empty database.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts one with settings such as `fsync=off`.
    pub fn start_with(settings: &[&str]) -> Self {
        Self::start_on(settings, |server| {
            let mut initdb = server.command(&server.programs.join("initdb"));
            initdb
                .args(["--username=postgres", "--auth=trust", "--encoding=UTF8"])
                .args(["--locale=C", "--no-sync", "--no-instructions"]);
            initdb
        })
    }

    /// Starts a standby that follows the server behind a port of this machine.
    pub fn follow(port: u16, settings: &[&str]) -> Self {
        Self::start_on(settings, |server| {
            let mut backup = server.command(&server.programs.join("pg_basebackup"));
            backup
                .args(["--dbname", &format!("postgres://postgres@127.0.0.1:{port}")])
                .args(["--write-recovery-conf", "--checkpoint=fast", "--no-sync"]);
            backup
        })
    }

    /// `create` is the command that creates the data in a directory, which is its last argument.
    fn start_on(settings: &[&str], create: impl FnOnce(&Self) -> Command) -> Self {
        let (dir, as_user) = directory("postgres-");
        let mut server = Self {
            dir,
            programs: programs(),
            as_user,
            port: free_port(),
            settings: settings
                .iter()
                .flat_map(|setting| ["-c".to_owned(), (*setting).to_owned()])
                .collect(),
            guard: None,
            pooler: None,
        };
        let mut create = create(&server);
        create.arg("--pgdata").arg(server.data());
        run(&mut create);
        // Somebody else may take the port just now.
        for _ in 0..5 {
            match server.launch() {
                Ok(()) => {
                    server.pooler = Pooler::to(server.port);
                    return server;
                }
                Err(log) if log.contains("could not bind") => server.port = free_port(),
                Err(log) => panic!("PostgreSQL does not start:\n{log}"),
            }
        }
        panic!("PostgreSQL finds no port of its own");
    }

    /// Where it is: its database `postgres`.
    pub fn url(&self) -> String {
        self.url_of("postgres")
    }

    /// Where one of its databases is, through PgBouncer if there is one.
    pub fn url_of(&self, database: &str) -> String {
        let port = self.pooler.as_ref().map_or(self.port, Pooler::port);
        format!("postgres://postgres@127.0.0.1:{port}/{database}")
    }

    /// The port, which it keeps across restarts.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The process id of the server, whose children are the backends.
    pub fn pid(&self) -> u32 {
        let server = self.processes().next().expect("the server runs");
        server.parse().unwrap()
    }

    /// Its processes. First the server itself; those that it has started are looked for when that was seen to. None if
    /// it has ended.
    fn processes(&self) -> impl Iterator<Item = String> {
        let told = fs::read_to_string(self.data().join("postmaster.pid")).unwrap_or_default();
        let server = told.lines().next().map(|pid| pid.trim().to_owned());
        let children = server.clone().into_iter().flat_map(|pid| {
            let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
            let children = children.unwrap_or_default();
            let children = children.split_whitespace().map(str::to_owned);
            children.collect::<Vec<_>>()
        });
        server.into_iter().chain(children)
    }

    /// Limits the length of the files that the server writes, such as `0:unlimited`. Returns whether the server runs.
    pub fn limit_files(&self, limit: &str) -> bool {
        let limited = self.processes().map(|process| {
            let mut prlimit = self.command(Path::new("prlimit"));
            prlimit.args(["--pid", &process, &format!("--fsize={limit}")]);
            let ended = prlimit.stderr(Stdio::null()).status();
            ended
                .expect("`prlimit` can be run: install Debian's `util-linux`")
                .success()
        });
        // Others than the server itself may have ended.
        limited.collect::<Vec<_>>().first() == Some(&true)
    }

    /// Sends a signal to all its processes, such as `SIGSTOP`.
    pub fn signal(&self, signal: Signal) {
        for process in self.processes() {
            // It may have ended.
            let _ = kill(Pid::from_raw(process.parse().unwrap()), signal);
        }
    }

    /// Makes a standby a primary.
    pub fn promote(&self) {
        let mut promote = self.command(&self.programs.join("pg_ctl"));
        promote
            .args(["promote", "--wait", "--pgdata"])
            .arg(self.data());
        run(&mut promote);
    }

    /// What it has logged since it was started last.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// The directory of its files.
    pub fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// Ends the server and waits until it has ended. Its data stay.
    pub fn stop(&mut self, how: Stop) {
        let Some(mut guard) = self.guard.take() else {
            return;
        };
        let signal = match how {
            Stop::Fast => "INT",
            Stop::Immediate => "QUIT",
        };
        let mut stdin = guard.stdin.take().expect("a piped stdin");
        // A server that has ended already needs no signal.
        let _ = writeln!(stdin, "{signal}");
        // One that was frozen ends, too.
        self.signal(Signal::SIGCONT);
        guard.wait().expect("the guard can be waited for");
    }

    /// Starts the server again, stopped or not, on its data and its port.
    pub fn restart(&mut self) {
        self.stop(Stop::Fast);
        if let Err(log) = self.launch() {
            panic!("PostgreSQL does not start again:\n{log}");
        }
    }

    /// Starts the server and waits until it takes connections, or returns its log.
    fn launch(&mut self) -> Result<(), String> {
        let data = self.data();
        let log = self.dir.path().join("log");
        let _ = fs::remove_file(&log);
        // A server that was killed leaves this file, which would look as if it were ready.
        let _ = fs::remove_file(data.join("postmaster.pid"));
        let guard = self
            .command(Path::new("/bin/sh"))
            .env("DIR", self.dir.path())
            .arg("-c")
            .arg(GUARD)
            .arg(self.programs.join("postgres"))
            .args(["-c", "listen_addresses=127.0.0.1"])
            .args(["-c", "unix_socket_directories="])
            .args(["-c", "max_connections=300"])
            .args(["-p", &self.port.to_string()])
            .args(&self.settings)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("/bin/sh can be run");
        let guard = self.guard.insert(guard);

        let give_up = Instant::now() + PATIENCE;
        loop {
            if is_ready(&data) {
                return Ok(());
            }
            let has_ended = guard.try_wait().expect("the guard can be asked").is_some();
            if has_ended || Instant::now() > give_up {
                self.stop(Stop::Immediate);
                return Err(fs::read_to_string(&log).unwrap_or_default());
            }
            sleep(Duration::from_millis(10));
        }
    }

    fn command(&self, program: &Path) -> Command {
        command(program, self.dir.path(), self.as_user)
    }
}

/// A command in a process group of its own, so that whoever ends ours cannot end the guard, and as a user that
/// PostgreSQL accepts.
fn command(program: &Path, dir: &Path, as_user: Option<u32>) -> Command {
    let mut command = Command::new(program);
    command.process_group(0).current_dir(dir);
    if let Some(user) = as_user {
        command.uid(user).gid(user);
    }
    command
}

/// A temporary directory, and the user that it is of, if it must be another one.
fn directory(prefix: &str) -> (TempDir, Option<u32>) {
    let dir = tempfile::Builder::new().prefix(prefix).tempdir();
    let dir = dir.expect("a temporary directory");
    let owner = fs::metadata(dir.path()).unwrap().uid();
    let as_user = (owner == 0).then_some(UNPRIVILEGED);
    if as_user.is_some() {
        chown(dir.path(), as_user, as_user).unwrap();
    }
    (dir, as_user)
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.stop(Stop::Immediate);
    }
}

fn run(command: &mut Command) {
    let output = command.output().expect("PostgreSQL's programs can be run");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed: {error}");
}

/// The eighth line of the file says so, as `pg_ctl` reads it.
fn is_ready(data: &Path) -> bool {
    let told = fs::read_to_string(data.join("postmaster.pid")).unwrap_or_default();
    told.lines()
        .nth(7)
        .is_some_and(|line| line.trim() == "ready")
}

/// The directory of the newest server's programs, which Debian does not put into the `PATH`.
pub fn programs() -> PathBuf {
    let needed = ["postgres", "initdb", "pg_basebackup", "pg_ctl"];
    let has_server = |dir: &PathBuf| needed.iter().all(|name| dir.join(name).is_file());
    let path = env::var_os("PATH").unwrap_or_default();
    let mut debian: Vec<_> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .filter_map(|version| Some(version.ok()?.path().join("bin")))
        .collect();
    debian.sort_by_key(|bin| {
        let version = bin.parent()?.file_name()?.to_str()?;
        version.parse::<u32>().ok()
    });
    env::split_paths(&path)
        .chain(debian.into_iter().rev())
        .find(has_server)
        .expect("`postgres` or a program beside it is missing: install Debian's `postgresql`")
}

/// A free port. Not one of those that the system gives to clients: one of them
/// could take it while the server is stopped.
pub fn free_port() -> u16 {
    (0..1000)
        .map(|n| 10_000 + (RandomState::new().hash_one(n) % 20_000) as u16)
        .find(|&port| TcpListener::bind(("127.0.0.1", port)).is_ok())
        .expect("a free port")
}
