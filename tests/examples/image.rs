//! The receiver in a root that has nothing else, as in its image, and as the first process of a container. There is no
//! container runtime here: `unshare` and `chroot` make what one would.
//!
//! With `STATIC_RECEIVER`, a static program is tested, as `tests/slow` does. The usual one has its libraries beside it.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::net::UdpSocket;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use axum::Router;
use http::StatusCode;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getuid};
use tempfile::TempDir;

use support::net;
use support::operations::FILES;
use support::program::{Ended, Program, Server, example, run, until};

/// The user of the image.
const USER: u32 = 65532;

/// The address of a server of names, at the only port that programs ask.
const NAMES: &str = "127.0.0.153";

/// A root with the receiver and the names of hosts, and a volume.
struct Root(TempDir);

impl Root {
    fn new() -> Self {
        let root = TempDir::new().unwrap();
        let path = root.path();
        fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
        for dir in ["etc", "data"] {
            fs::create_dir(path.join(dir)).unwrap();
        }
        fs::write(path.join("etc/hosts"), "127.0.0.1 localhost app.of.hosts\n").unwrap();
        fs::write(
            path.join("etc/resolv.conf"),
            format!("nameserver {NAMES}\n"),
        )
        .unwrap();
        let of_image = std::env::var_os("STATIC_RECEIVER").map(PathBuf::from);
        let usual = || PathBuf::from(example("receiver").get_program());
        let program = of_image.clone().unwrap_or_else(usual);
        fs::copy(&program, path.join("receiver")).unwrap();
        let libraries = match of_image {
            // It has to do without.
            Some(_) => Vec::new(),
            None => Command::new("ldd").arg(&program).output().unwrap().stdout,
        };
        let libraries = String::from_utf8(libraries).unwrap();
        let libraries = libraries
            .split_whitespace()
            .filter(|word| word.starts_with('/'));
        for library in libraries {
            let copy = path.join(library.trim_start_matches('/'));
            fs::create_dir_all(copy.parent().unwrap()).unwrap();
            fs::copy(library, copy).unwrap();
        }
        if getuid().is_root() {
            chown(path.join("data"), Some(USER), Some(USER)).unwrap();
        }
        Self(root)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// A receiver in this root, which is read-only, apart from the volume.
    fn receiver(&self, args: &[&str]) -> Command {
        let script = r#"
            set -e
            mount --make-rprivate /
            mount --bind "$1" "$1"
            mount --bind "$1/data" "$1/data"
            mount -o remount,ro,bind "$1"
            cd "$1"
            root=$1 user=$2
            shift 2
            exec chroot $user "$root" /receiver "$@"
        "#;
        let mut command = Command::new("unshare");
        let user = match getuid().is_root() {
            true => format!("--userspec={USER}:{USER}"),
            false => {
                command.args(["--user", "--map-root-user"]);
                "--groups=".to_owned()
            }
        };
        command.args(["--mount", "--pid", "--fork", "sh", "-c", script, "sh"]);
        command.arg(self.path()).arg(user).args(args);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap());
        command
    }

    fn run(&self, args: &[&str]) -> Ended {
        Program::start(&mut self.receiver(args)).finish()
    }
}

/// The process that `unshare` has started.
fn first_process(server: &Server) -> i32 {
    let id = server.program.child.id();
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
    children.trim().parse().expect("one child")
}

fn signal(process: i32, signal: Signal) {
    kill(Pid::from_raw(process), signal).unwrap();
}

/// Answers each question for a name with 127.0.0.1, where this process may listen at the port of names.
fn serve_names() -> bool {
    let Ok(socket) = UdpSocket::bind((NAMES, 53)) else {
        return false;
    };
    thread::spawn(move || {
        let mut question = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut question) {
            let end = 12
                + question[12..length]
                    .iter()
                    .position(|byte| *byte == 0)
                    .unwrap()
                + 5;
            let is_ipv4 = question[end - 3] == 1;
            let mut answer = question[..end].to_vec();
            answer[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, u8::from(is_ipv4), 0, 0, 0, 0]);
            if is_ipv4 {
                answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1]);
            }
            socket.send_to(&answer, from).unwrap();
        }
    });
    true
}

#[tokio::test(flavor = "multi_thread")]
async fn the_receiver_needs_nothing_but_itself_and_a_volume() {
    let root = Root::new();
    let (heard, mut events) = tokio::sync::mpsc::unbounded_channel();
    let app = Router::new().fallback(move |body: String| {
        let heard = heard.clone();
        async move {
            let _ = heard.send(body);
            StatusCode::NO_CONTENT
        }
    });
    let port = net::serve(app).await.port();
    let mut names = vec!["app.of.hosts"];
    if serve_names() {
        names.push("app.of.resolv.conf");
    } else {
        assert!(!getuid().is_root(), "root may listen at {NAMES}:53");
    }
    for name in names {
        let target = format!("http://{name}:{port}/events");
        let inbox = "sqlite:/data/webhooks.db";
        let mut command = root.receiver(&["run", "--inbox", inbox, "--forward", &target]);
        command
            .env("WEBHOOK_SECRET", "s")
            .env("WEBHOOK_LISTEN", "127.0.0.1:0");
        let receiver = Server::listening(Program::start(&mut command));
        assert_eq!(receiver.send("s", &["--key", name]).code, 0);
        let event = tokio::time::timeout(support::program::PATIENCE, events.recv()).await;
        assert!(
            event
                .unwrap()
                .unwrap()
                .contains(&format!("\"key\":\"{name}\""))
        );

        // As the image's health check does.
        for what in ["readyz", "healthz"] {
            let probed = root.run(&["probe", what, "--listen", receiver.address()]);
            assert_eq!(probed.code, 0, "{probed:?}");
        }
        signal(first_process(&receiver), Signal::SIGTERM);
        let ended = receiver.program.finish();
        assert_eq!(ended.code, 0, "{ended:?}");
        assert!(
            !ended.err.contains("WARN") && !ended.err.contains("ERROR"),
            "{}",
            ended.err
        );
    }
    let elsewhere = [
        "check",
        "--demo",
        "--listen",
        "127.0.0.1:0",
        "--inbox",
        "sqlite:/webhooks.db",
    ];
    let refused = root.run(&elsewhere);
    assert_eq!(refused.code, 1, "the root is read-only: {refused:?}");
}

/// Otherwise each command that leaves a job behind would leave an ended process, too.
#[test]
fn the_first_process_of_a_container_is_the_init_of_its_commands() {
    let dir = TempDir::new().unwrap();
    let secrets = dir.path().join("secrets");
    fs::write(&secrets, "s\n").unwrap();
    let exec = "(sleep 0.2; sleep 0) & (sleep 0.1 &) ; tr '\\0' ' ' </proc/1/environ >&2";
    let mut command = Command::new("unshare");
    if !getuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--pid", "--fork", "--mount-proc"]);
    command.arg(example("receiver").get_program());
    command.args(["--exec", exec, "--store", "memory"]);
    command
        .env("WEBHOOK_SECRET", "hush")
        .env("OF_THE_CONTAINER", "1");
    let receiver = Server::start_by(&mut command);
    let sent = receiver.send("hush", &["--count", "5"]);
    assert_eq!(sent.code, 0, "{sent:?}");
    let log = until("the environment of the first process", || {
        let log = receiver.err();
        log.contains("OF_THE_CONTAINER=1").then_some(log)
    });
    assert!(!log.contains("hush") && !log.contains("docker"), "{log}");
    let first = first_process(&receiver);
    let mine = |process: &str| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        let (_, rest) = stat.rsplit_once(") ").unwrap_or_default();
        let mut fields = rest.split(' ').map(str::to_owned);
        let (state, parent) = (fields.next()?, fields.next()?);
        (parent == first.to_string()).then_some(state)
    };
    until("the end of what the commands have left", || {
        let all = fs::read_dir("/proc").unwrap();
        let states = all.filter_map(|it| mine(it.unwrap().file_name().to_str()?));
        let states: Vec<_> = states.collect();
        assert!(!states.is_empty(), "the receiver is its child");
        (states.len() == 1 && states[0] != "Z").then_some(())
    });

    signal(first, Signal::SIGHUP);
    until("the signal", || {
        receiver
            .err()
            .contains("there is no `--secret-file`")
            .then_some(())
    });
    signal(first, Signal::SIGTERM);
    let ended = receiver.program.finish();
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.err.contains("stopped"), "{ended:?}");
}

#[test]
fn an_init_ends_as_its_receiver_does() {
    let mut command = Command::new("unshare");
    if !getuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--pid", "--fork", "--mount-proc"]);
    command.arg(example("receiver").get_program());
    command.args([
        "--demo",
        "--exec",
        "true",
        "--store",
        "sqlite:/nowhere/x.db",
    ]);
    let ended = Program::start(&mut command).finish();
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.err.contains("its directory must exist"), "{ended:?}");
}

fn operations(name: &str) -> String {
    fs::read_to_string(Path::new(FILES).join(name)).unwrap()
}

/// Names that begin with `WEBHOOK_`.
fn variables(text: &str) -> BTreeSet<&str> {
    let words = text.split(|it: char| !it.is_ascii_alphanumeric() && it != '_');
    words.filter(|word| word.starts_with("WEBHOOK_")).collect()
}

#[test]
fn files_for_containers_name_options_that_exist() {
    let help = run("receiver", &["run", "--help"]).out;
    for name in ["Dockerfile", "compose.yml", "kubernetes.yaml"] {
        let text = operations(name);
        let variables = variables(&text);
        assert!(!variables.is_empty(), "{name}");
        // Whoever reads the log of a container reads no payload.
        assert_eq!(
            variables.contains("WEBHOOK_FORWARD"),
            variables.contains("WEBHOOK_QUIET"),
            "{name}"
        );
        for variable in variables {
            assert!(
                help.contains(&format!("[env: {variable}]")),
                "{name}: {variable}"
            );
        }
    }
    let image = operations("Dockerfile");
    let manifest = include_str!("../../crates/receiver/Cargo.toml");
    // The image has all, and `tests/slow` tests the same program.
    let (_, features) = manifest.split_once("\ndefault = [").unwrap();
    let (defaults, features) = features.split_once("]\n").unwrap();
    let (features, _) = features.split_once("\n\n").unwrap();
    let features = features.lines().filter_map(|line| line.split_once(" = ["));
    let named = features.map(|(name, _)| name);
    let named: BTreeSet<_> = named.filter(|it| !defaults.contains(it)).collect();
    assert!(named.contains("public-keys"), "{named:?}");
    for text in [&*image, include_str!("../slow")] {
        let words = text
            .split([' ', '\n'])
            .map(|it| it.trim_start_matches("features="));
        let given = words.filter(|it| it.contains(',') || it.contains('/'));
        let given = given.flat_map(|it| it.split(','));
        let given: BTreeSet<_> = given.collect();
        assert!(named.is_subset(&given), "{named:?}, but {given:?}");
    }
    assert!(image.contains(&format!("USER {USER}:{USER}")) && image.contains("FROM scratch"));
    // The pod is not killed while it still accepts, or waits for events.
    let manifest = operations("kubernetes.yaml");
    let seconds = |before: &str| -> u64 {
        let (_, after) = manifest.split_once(before).expect(before);
        let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().expect(before)
    };
    let needed = seconds("WEBHOOK_DRAIN_DELAY, value: \"") + seconds("WEBHOOK_GRACE, value: \"");
    assert!(seconds("terminationGracePeriodSeconds: ") > needed);
    assert!(manifest.contains("path: /readyz") && manifest.contains("path: /healthz"));
}
