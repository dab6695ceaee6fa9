//! A control plane: started, waited for, disturbed, stopped.
//!
//! Everything is on 127.0.0.1, on ports that were free, and in one temporary folder; nothing of it outlives the [`Cluster`].

use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::http::Endpoint;
use crate::process::Process;
use crate::proxy::Proxy;
use crate::tools::Tools;
use crate::{files, leftover};

/// How long a program may take until it is ready. On a busy machine the API server needs half a minute.
const START_PATIENCE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(50);

/// What runs beside etcd and the API server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// kube-controller-manager: jobs, deployments, garbage collection, service accounts.
    pub controller_manager: bool,
    /// kwok: every node is ready, every bound pod runs.
    pub kwok: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { controller_manager: true, kwok: true }
    }
}

/// A running control plane.
pub struct Cluster {
    folder: PathBuf,
    tools: Tools,
    etcd_address: SocketAddr,
    address: SocketAddr,
    authority: String,
    token: String,
    kwok: Option<Process>,
    controller_manager: Option<Process>,
    api_server: Option<Process>,
    etcd: Option<Process>,
    keep: bool,
}

impl Cluster {
    /// Where runs have their folders.
    #[must_use]
    pub fn runs() -> PathBuf {
        std::env::temp_dir().join("muster-e2e")
    }

    /// Starts a control plane and waits until it is ready. Says on standard error what it waits for.
    ///
    /// # Errors
    /// If a program cannot be started, ends, or is not ready in time; the message names its log.
    pub fn start(tools: &Tools, options: Options) -> Result<Self> {
        let began = Instant::now();
        let runs = Self::runs();
        for folder in leftover::clear_all(&runs)? {
            eprintln!("e2e: cleared {} of a run that was killed", folder.display());
        }
        let folder = leftover::own_folder(&runs)?;
        let token = random_token()?;
        let [etcd_client, etcd_peer, secure] = free_ports()?;
        let authority = files::write_secrets(&folder, &token)?;
        let mut cluster = Self {
            etcd_address: etcd_client,
            address: secure,
            authority,
            token,
            kwok: None,
            controller_manager: None,
            api_server: None,
            etcd: None,
            keep: false,
            tools: tools.clone(),
            folder,
        };
        files::write_kubeconfig(&cluster.kubeconfig(), secure, Some(&cluster.folder.join("ca.crt")), &cluster.token)?;
        cluster.start_etcd(etcd_peer)?;
        cluster.start_api_server()?;
        if options.controller_manager {
            cluster.start_controller_manager()?;
        }
        if options.kwok {
            cluster.start_kwok()?;
        }
        if options.controller_manager {
            cluster.await_service_account("default")?;
        }
        let version = tools.version();
        eprintln!("e2e: Kubernetes {version} is up after {:.1} s in {}", began.elapsed().as_secs_f64(), cluster.folder.display());
        Ok(cluster)
    }

    /// Where everything of this run is.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Of the user `admin`, who may do everything.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.join("kubeconfig")
    }

    /// The API server, as the user `admin`.
    ///
    /// # Errors
    /// None in practice: the certificate is ours.
    pub fn endpoint(&self) -> Result<Endpoint> {
        Endpoint::tls(self.address, &self.authority, &self.token)
    }

    /// A proxy before the API server, and a kubeconfig that leads through it.
    ///
    /// # Errors
    /// If no port is free.
    pub fn proxy(&self, seed: u64) -> Result<(Proxy, PathBuf)> {
        let proxy = Proxy::start(self.endpoint()?, seed)?;
        let path = self.folder.join(format!("kubeconfig-{}", proxy.address().port()));
        files::write_kubeconfig(&path, proxy.address(), None, &self.token)?;
        Ok((proxy, path))
    }

    /// Runs kubectl as `admin` and returns what it prints.
    ///
    /// # Errors
    /// If it does not exit with 0, with what it says.
    pub fn kubectl<const N: usize>(&self, arguments: [&str; N]) -> Result<String> {
        self.kubectl_with(&arguments, "")
    }

    /// [`Cluster::kubectl`] with standard input.
    ///
    /// # Errors
    /// As there.
    pub fn kubectl_with(&self, arguments: &[&str], input: &str) -> Result<String> {
        let output = self.try_kubectl(arguments, input)?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("kubectl {}: {}: {}", arguments.join(" "), output.status, said.trim());
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Runs kubectl as `admin`, whatever comes of it.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn try_kubectl(&self, arguments: &[&str], input: &str) -> Result<Output> {
        use std::io::Write as _;

        let mut command = Command::new(self.tools.program("kubectl"));
        command.arg("--kubeconfig").arg(self.kubeconfig()).arg("--cache-dir").arg(self.folder.join("kubectl")).args(arguments);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let mut stdin = child.stdin.take().context("standard input was asked for")?;
        let input = input.to_owned();
        // In a thread of its own: kubectl may fill its output before it has read all.
        let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
        let output = child.wait_with_output()?;
        // It need not read what it was given.
        let _ = writer.join();
        Ok(output)
    }

    /// Waits until pods can be made in a namespace: the controller manager makes its service account.
    ///
    /// # Errors
    /// If it does not come.
    pub fn await_service_account(&self, namespace: &str) -> Result<()> {
        let endpoint = self.endpoint()?;
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/default");
        wait(&format!("the service account of namespace {namespace}"), START_PATIENCE, || {
            Ok(endpoint.get(&path).is_ok_and(|answer| answer.status == 200))
        })
    }

    /// Kills the API server, as a crash would. Clients see their connections end.
    ///
    /// # Errors
    /// If it does not run.
    pub fn kill_api_server(&mut self) -> Result<()> {
        self.api_server.take().context("the API server does not run")?.kill()
    }

    /// Starts the API server again, on the same port and data.
    ///
    /// # Errors
    /// As [`Cluster::start`].
    pub fn start_api_server(&mut self) -> Result<()> {
        let mut command = self.program("kube-apiserver");
        let file = |name: &str| self.folder.join(name).display().to_string();
        command.arg(format!("--etcd-servers=http://{}", self.etcd_address));
        command.args(["--bind-address=127.0.0.1".into(), format!("--secure-port={}", self.address.port())]);
        command.arg(format!("--tls-cert-file={}", file("server.crt")));
        command.arg(format!("--tls-private-key-file={}", file("server.key")));
        command.arg("--service-account-issuer=https://kubernetes.default.svc");
        command.arg(format!("--service-account-key-file={}", file("accounts.pub")));
        command.arg(format!("--service-account-signing-key-file={}", file("accounts.key")));
        command.arg(format!("--token-auth-file={}", file("tokens.csv")));
        command.args(["--authorization-mode=RBAC", "--service-cluster-ip-range=10.0.0.0/24", "--endpoint-reconciler-type=none"]);
        let process = self.start_process("kube-apiserver", &mut command)?;
        self.api_server = Some(process);
        let endpoint = self.endpoint()?;
        self.await_ready(
            "kube-apiserver",
            |cluster| &mut cluster.api_server,
            || endpoint.get("/readyz").is_ok_and(|answer| answer.status == 200),
        )
    }

    /// The API server's process, to freeze and thaw it.
    #[must_use]
    pub fn api_server(&self) -> Option<&Process> {
        self.api_server.as_ref()
    }

    /// Starts kwok.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_kwok(&mut self) -> Result<()> {
        self.start_kwok_with(&self.tools.stages())
    }

    /// Starts kwok so that pods of Jobs go on running; else they end as soon as they run.
    ///
    /// # Errors
    /// As [`Cluster::start_kwok`].
    pub fn start_kwok_with_lasting_jobs(&mut self) -> Result<()> {
        const ENDS: &str = "\n  name: pod-complete\n";
        let stages = fs::read_to_string(self.tools.stages())?;
        let lasting: Vec<_> = stages.split("\n---\n").filter(|stage| !stage.contains(ENDS)).collect();
        let path = self.folder.join("lasting-stages.yaml");
        fs::write(&path, lasting.join("\n---\n"))?;
        self.start_kwok_with(&path)
    }

    fn start_kwok_with(&mut self, stages: &Path) -> Result<()> {
        let mut command = self.program("kwok");
        command.arg("--kubeconfig").arg(self.kubeconfig()).arg("--config").arg(stages);
        // An address for each pod of the largest test.
        command.args(["--manage-all-nodes=true", "--node-lease-duration-seconds=40", "--cidr=10.64.0.0/10"]);
        self.kwok = Some(self.start_process("kwok", &mut command)?);
        Ok(())
    }

    /// Ends kwok: bound pods stay pending from now on.
    ///
    /// # Errors
    /// If it does not run.
    pub fn stop_kwok(&mut self) -> Result<()> {
        self.kwok.take().context("kwok does not run")?.kill()
    }

    /// Forgets the history of etcd up to now: a watch that asks for older events is told that they are gone, once the API
    /// server's own memory does not hold them either (it is empty after a restart).
    ///
    /// # Errors
    /// If etcd does not answer.
    pub fn compact(&self) -> Result<()> {
        let etcd = Endpoint::plain(self.etcd_address);
        let status = etcd.request("POST", "/v3/maintenance/status", "{}")?;
        let status: Value = serde_json::from_str(&status.body).context("status of etcd")?;
        let revision = status["header"]["revision"].as_str().context("a revision of etcd")?;
        let wish = json!({"revision": revision, "physical": true}).to_string();
        let answer = etcd.request("POST", "/v3/kv/compaction", &wish)?;
        if answer.status != 200 {
            bail!("etcd does not compact: {}", answer.body);
        }
        Ok(())
    }

    /// Sum of a counter of the API server over all its series whose labels contain each of `labels` (e.g. `resource="pods"`).
    ///
    /// # Errors
    /// If the API server does not answer.
    pub fn api_metric(&self, name: &str, labels: &[&str]) -> Result<f64> {
        let text = self.endpoint()?.get("/metrics")?.body;
        let series = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('{')?.rsplit_once("} "));
        Ok(series
            .filter(|(found, _)| labels.iter().all(|label| found.contains(label)))
            .filter_map(|(_, n)| n.parse::<f64>().ok())
            .sum())
    }

    /// Leaves everything running when this is dropped, and says how to stop it.
    ///
    /// # Errors
    /// If the mark cannot be written.
    pub fn keep(&mut self) -> Result<String> {
        leftover::keep(&self.folder)?;
        self.keep = true;
        let (kubeconfig, kubectl) = (self.kubeconfig(), self.tools.program("kubectl"));
        let folder = kubectl.parent().unwrap_or(Path::new("")).display();
        let mut text = format!("export KUBECONFIG={}\nexport PATH={folder}:$PATH\n", kubeconfig.display());
        let ids: Vec<_> = self.processes().map(|process| process.id().to_string()).collect();
        let _ = write!(text, "# to stop it: kill -9 {}; rm -r {}", ids.join(" "), self.folder.display());
        Ok(text)
    }

    /// What runs of it, to see what it costs.
    pub fn processes(&self) -> impl Iterator<Item = &Process> {
        [&self.kwok, &self.controller_manager, &self.api_server, &self.etcd].into_iter().flatten()
    }

    fn start_etcd(&mut self, peer: SocketAddr) -> Result<()> {
        let mut command = self.program("etcd");
        command.arg("--data-dir").arg(self.folder.join("etcd"));
        for (flag, address) in [("client", self.etcd_address), ("peer", peer)] {
            command.arg(format!("--listen-{flag}-urls=http://{address}"));
        }
        command.arg(format!("--advertise-client-urls=http://{}", self.etcd_address));
        command.arg(format!("--initial-advertise-peer-urls=http://{peer}"));
        // Nothing here has to survive a power cut.
        command.args([&format!("--initial-cluster=default=http://{peer}"), "--unsafe-no-fsync", "--log-level=warn"]);
        self.etcd = Some(self.start_process("etcd", &mut command)?);
        let endpoint = Endpoint::plain(self.etcd_address);
        self.await_ready(
            "etcd",
            |cluster| &mut cluster.etcd,
            || endpoint.get("/health").is_ok_and(|answer| answer.body.contains("true")),
        )
    }

    fn start_controller_manager(&mut self) -> Result<()> {
        let mut command = self.program("kube-controller-manager");
        command.arg("--kubeconfig").arg(self.kubeconfig());
        command.arg("--service-account-private-key-file").arg(self.folder.join("accounts.key"));
        command.arg("--root-ca-file").arg(self.folder.join("ca.crt"));
        // Fast enough to make thousands of pods; and a stopped kwok must not make all nodes fail within a test.
        command.args(["--kube-api-qps=500", "--kube-api-burst=1000", "--node-monitor-grace-period=5m"]);
        command.args(["--leader-elect=false", "--secure-port=0", "--use-service-account-credentials=true"]);
        self.controller_manager = Some(self.start_process("kube-controller-manager", &mut command)?);
        Ok(())
    }

    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.tools.program(name));
        command.current_dir(&self.folder);
        command
    }

    fn start_process(&self, name: &str, command: &mut Command) -> Result<Process> {
        Process::start(name, command, &self.folder.join(format!("{name}.log")))
    }

    fn await_ready(
        &mut self,
        name: &str,
        process: impl Fn(&mut Self) -> &mut Option<Process>,
        ready: impl Fn() -> bool,
    ) -> Result<()> {
        let log = self.folder.join(format!("{name}.log"));
        wait(name, START_PATIENCE, || {
            if let Some(status) = process(self).as_mut().context("it was started")?.ended()? {
                bail!("{name} ended with {status}");
            }
            Ok(ready())
        })
        .with_context(|| format!("{name} did not become ready; its log is {}, which ends in:\n{}", log.display(), tail(&log)))
        .inspect_err(|_| self.keep_logs())
    }

    /// After a failure its logs are worth more than a clean folder.
    fn keep_logs(&self) {
        let _ = leftover::keep(&self.folder);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let parts = [&mut self.kwok, &mut self.controller_manager, &mut self.api_server, &mut self.etcd];
        let running = parts.into_iter().filter_map(Option::take);
        if self.keep {
            running.for_each(Process::leave_running);
            return;
        }
        running.for_each(drop);
        // A test that failed has shown what it saw; the logs of the servers help where that is not enough.
        if std::thread::panicking() || self.folder.join("kept").exists() {
            eprintln!("e2e: logs are in {}", self.folder.display());
        } else if let Err(error) = fs::remove_dir_all(&self.folder) {
            eprintln!("e2e: cannot remove {}: {error}", self.folder.display());
        }
    }
}

/// Waits until `done` says so, with a line on standard error every ten seconds.
///
/// # Errors
/// If it takes longer than `patience`, or as `done`.
pub fn wait(what: &str, patience: Duration, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let began = Instant::now();
    let mut said = began;
    while !done()? {
        if began.elapsed() > patience {
            bail!("waited {} s for {what}", patience.as_secs());
        }
        if said.elapsed() > Duration::from_secs(10) {
            said = Instant::now();
            eprintln!("e2e: waiting for {what} ({:.0} s) …", began.elapsed().as_secs_f64());
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

/// Ports that nobody listens on. All are taken before one is given back, so that they differ.
fn free_ports<const N: usize>() -> Result<[SocketAddr; N]> {
    let mut listeners = Vec::new();
    let mut ports = [SocketAddr::from((Ipv4Addr::LOCALHOST, 0)); N];
    for port in &mut ports {
        let listener = TcpListener::bind(*port).context("no free port")?;
        *port = listener.local_addr()?;
        listeners.push(listener);
    }
    Ok(ports)
}

/// The end of a log.
fn tail(log: &Path) -> String {
    const LINES: usize = 15;
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

/// Something that cannot be guessed.
fn random_token() -> Result<String> {
    use std::io::Read as _;

    let mut bytes = [0_u8; 16];
    fs::File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut bytes)).context("no random numbers")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
