//! A server of the release binary, its metrics, and its use of memory, threads and descriptors.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufReader, Read},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};
use bitnet_client::Client;
use bitnet_tests::served_at;

/// Maximum silence; no answer takes this long, so a server that is silent longer hangs.
const SILENCE: Duration = Duration::from_secs(90);
/// Maximum time for a server to become idle.
const IDLE: Duration = Duration::from_secs(60);

/// `bitnet serve demo`, ended when it is dropped.
pub(super) struct Server {
    process: Child,
    pub address: SocketAddr,
}

impl Server {
    /// Starts it on a free port.
    pub fn start(binary: &Path, flags: &[&str]) -> Result<Server> {
        let mut command = Command::new(binary);
        command.args(["serve", "demo", "--device", "cpu", "--port", "0", "--log", "off"]).args(flags);
        let mut process = command.stderr(Stdio::piped()).spawn().context("starting the server")?;
        let mut said = BufReader::new(process.stderr.take().context("the server's words")?);
        let address = served_at(&mut said).map_err(|all| anyhow!("the server did not start: {all}"))?;
        // Later output must not fill a pipe that nobody reads.
        thread::spawn(move || said.read_to_end(&mut Vec::new()));
        Ok(Server { process, address: address.parse()? })
    }

    /// A client with a connection of its own.
    pub fn client(&self) -> Client {
        Client::new(&format!("http://{}", self.address), SILENCE)
    }

    /// Reads `/metrics`.
    pub fn metrics(&self) -> Result<Metrics> {
        let reply = self.client().get("/metrics").context("asking for metrics")?;
        Ok(Metrics::parse(&String::from_utf8_lossy(&reply.rest()?)))
    }

    /// Waits until nothing runs or waits and no client is connected, then returns the metrics.
    pub fn idle(&self, descriptors: usize) -> Result<Metrics> {
        let begun = Instant::now();
        loop {
            let metrics = self.metrics()?;
            let busy: f64 = ["bitnet_requests_running", "bitnet_requests_waiting", "bitnet_kv_blocks_used"]
                .map(|name| metrics.sum(name, ""))
                .iter()
                .sum();
            let open = self.usage().map_or(0, |usage| usage.descriptors);
            if busy == 0.0 && open <= descriptors {
                return Ok(metrics);
            }
            if begun.elapsed() > IDLE {
                bail!("after {IDLE:?}, {busy} requests and blocks are left, and {open} descriptors are open");
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns what the process uses, or `None` if the system does not report it.
    pub fn usage(&self) -> Option<Usage> {
        let folder = Path::new("/proc").join(self.process.id().to_string());
        let status = fs::read_to_string(folder.join("status")).ok()?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        let descriptors = fs::read_dir(folder.join("fd")).ok()?.count();
        Some(Usage {
            resident: field("VmRSS:")? as f64 / 1024.0,
            threads: field("Threads:")? as usize,
            descriptors,
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Resources of a process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Usage {
    /// Resident memory in MiB.
    pub resident: f64,
    pub threads: usize,
    pub descriptors: usize,
}

/// Prometheus metrics, by name and labels.
#[derive(Debug, Default)]
pub(super) struct Metrics(BTreeMap<String, f64>);

impl Metrics {
    pub fn parse(text: &str) -> Self {
        let rows = text.lines().filter(|line| !line.starts_with('#'));
        let row = |line: &str| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        Metrics(rows.filter_map(row).collect())
    }

    /// The sum over all labels, or over those that have this value.
    pub fn sum(&self, name: &str, label: &str) -> f64 {
        let of = |key: &str| {
            let labels = key.strip_prefix(name)?;
            let own = labels.is_empty() || labels.starts_with('{');
            (own && (label.is_empty() || labels.contains(&format!("=\"{label}\"")))).then_some(())
        };
        self.0.iter().filter(|(key, _)| of(key).is_some()).map(|(_, value)| value).sum()
    }
}
