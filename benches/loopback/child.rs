//! A receiver in its own process, seen from the outside.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::time::ClockId;
use nix::unistd::Pid;

use crate::machine::{Cores, cpu_time};

/// A receiver process, which is stopped on drop.
pub(crate) struct Receiver {
    process: Child,
    address: SocketAddr,
    has_inbox: bool,
}

impl Receiver {
    /// Starts this program again as the receiver `what`.
    pub(crate) fn start(what: &str, cores: &Cores) -> Result<Self> {
        let mut process = Command::new(env::current_exe()?)
            .args(["serve", what, "--cores", &cores.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a receiver")?;
        let mut line = String::new();
        let output = process.stdout.take().context("its output")?;
        let mut receiver = Self {
            process,
            address: (Ipv4Addr::LOCALHOST, 0).into(),
            has_inbox: what.starts_with("handle:"),
        };
        BufReader::new(output).read_line(&mut line)?;
        let port = line.trim().parse();
        let port = port.with_context(|| format!("the receiver `{what}` did not start"))?;
        receiver.address.set_port(port);
        Ok(receiver)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the processor time that the receiver has used.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        cpu_time(ClockId::pid_cpu_clock_id(self.pid())?)
    }

    /// Returns the resident memory in bytes.
    pub(crate) fn memory(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let kilobytes = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"))
            .context("no VmRSS")?;
        Ok(kilobytes.parse::<u64>()? * 1024)
    }

    /// Waits until a receiver with an inbox has settled all events. Returns how long that took, and how many it has
    /// handled.
    pub(crate) fn settle(&self) -> Result<(Duration, u64)> {
        if !self.has_inbox {
            return Ok((Duration::ZERO, 0));
        }
        let began = Instant::now();
        let mut stream = TcpStream::connect(self.address)?;
        stream
            .write_all(b"GET /settled HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let handled = match answer.split_once("\r\n\r\n") {
            Some((head, handled)) if head.starts_with("HTTP/1.1 200 ") => handled.parse()?,
            _ => bail!("the receiver has not settled its events: {answer}"),
        };
        Ok((began.elapsed(), handled))
    }

    /// Asks the receiver to exit, and waits for it.
    pub(crate) fn stop(mut self) -> Result<()> {
        drop(self.process.stdin.take());
        let deadline = Instant::now() + Duration::from_secs(20);
        while Instant::now() < deadline {
            if let Some(status) = self.process.try_wait()? {
                if !status.success() {
                    bail!("the receiver exited with {status}");
                }
                return Ok(());
            }
            thread::sleep(Duration::from_millis(5));
        }
        bail!("the receiver does not exit");
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.process.id() as i32)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
