//! What the tests share: the control plane, the `muster` program, nodes, and waiting.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use muster_e2e::cluster::{Cluster, Options, wait};
use muster_e2e::tools::Tools;
use serde_json::{Value, json};

/// The control plane that most tests use, started when the first one asks.
#[derive(Default)]
pub(crate) struct Shared {
    cluster: OnceLock<Cluster>,
    tools: OnceLock<Tools>,
    crds: OnceLock<()>,
}

impl Shared {
    /// With controller manager and kwok.
    pub(crate) fn cluster(&self) -> Result<&Cluster> {
        if self.cluster.get().is_none() {
            let cluster = Cluster::start(self.tools()?, Options::default())?;
            let _ = self.cluster.set(cluster);
        }
        self.cluster.get().context("it was started")
    }

    /// The same with our CRDs.
    pub(crate) fn with_crds(&self) -> Result<&Cluster> {
        let cluster = self.cluster()?;
        if self.crds.get().is_none() {
            apply_crds(cluster)?;
            let _ = self.crds.set(());
        }
        Ok(cluster)
    }

    /// The binaries, built if they are not.
    pub(crate) fn tools(&self) -> Result<&Tools> {
        if self.tools.get().is_none() {
            let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
            let in_target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../e2e-tools");
            let cache = std::env::var_os("MUSTER_E2E_CACHE").map_or(in_target, PathBuf::from);
            let version = std::env::var("MUSTER_E2E_VERSION").unwrap_or_else(|_| "1.37".to_owned());
            let _ = self.tools.set(Tools::build(&repository, &cache, version.parse()?)?);
        }
        self.tools.get().context("they were built")
    }

    /// After the last test.
    pub(crate) fn end(&mut self) {
        let Some(mut cluster) = self.cluster.take() else { return };
        if std::env::var_os("MUSTER_E2E_KEEP").is_some() {
            match cluster.keep() {
                Ok(how) => println!("\nthe control plane goes on:\n{how}"),
                Err(error) => eprintln!("e2e: it cannot be kept: {error:#}"),
            }
        }
    }
}

/// Our CRDs, established.
pub(crate) fn apply_crds(cluster: &Cluster) -> Result<()> {
    cluster.kubectl_with(&["apply", "--server-side", "-f", "-"], &muster(&["crds"])?)?;
    // kubectl does not wait until their conditions are there at all.
    wait("the CRDs to be established", Duration::from_secs(60), || {
        let waited = cluster.try_kubectl(&["wait", "--for=condition=Established", "--timeout=20s", "crd", "--all"], "")?;
        Ok(waited.status.success())
    })
}

/// What `muster` prints.
pub(crate) fn muster(arguments: &[&str]) -> Result<String> {
    let program = std::env::var_os("MUSTER_E2E_PROGRAM").context("MUSTER_E2E_PROGRAM: run these tests with `cargo xtask e2e`")?;
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().context("cannot start muster")?;
    if !output.status.success() {
        bail!("muster {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// A node that kwok keeps ready.
pub(crate) fn node(name: &str, gpus: u32) -> Value {
    let amounts = json!({"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": gpus.to_string()});
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "nvidia.com/gpu.memory": "81920"},
            "annotations": {"kwok.x-k8s.io/node": "fake"}},
        "status": {"allocatable": amounts, "capacity": amounts},
    })
}

/// A List of objects, as kubectl takes it.
pub(crate) fn list(items: Vec<Value>) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

/// What kubectl knows of one object.
pub(crate) fn get(cluster: &Cluster, arguments: &[&str]) -> Result<Value> {
    let mut all = vec!["get", "-o", "json"];
    all.extend(arguments);
    Ok(serde_json::from_str(&cluster.kubectl_with(&all, "")?)?)
}

/// Checks the control plane itself: what other tests rely on.
pub(crate) fn nodes_are_ready_and_jobs_run(shared: &Shared) -> Result<()> {
    let cluster = shared.cluster()?;
    cluster.kubectl_with(&["create", "-f", "-"], &list((0..4).map(|i| node(&format!("ready-{i}"), 8)).collect()))?;
    let ready = r#"jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}"#;
    wait("4 nodes to be ready", Duration::from_secs(60), || {
        Ok(cluster.kubectl(["get", "nodes", "-o", ready])?.split_whitespace().filter(|status| *status == "True").count() == 4)
    })?;
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "direct", "namespace": "default"}, "spec": {
        "completions": 2, "parallelism": 2, "template": {"spec": {"restartPolicy": "Never", "nodeName": "ready-1",
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "c", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}}}});
    cluster.kubectl_with(&["create", "-f", "-"], &job.to_string())?;
    wait("a job to complete", Duration::from_secs(60), || {
        Ok(cluster.kubectl(["get", "job", "direct", "-o", "jsonpath={.status.succeeded}"])? == "2")
    })?;
    let allocatable = get(cluster, &["node", "ready-1"])?["status"]["allocatable"]["nvidia.com/gpu"].clone();
    ensure!(allocatable == "8", "GPUs of a simulated node: {allocatable}");
    let created = cluster.api_metric("apiserver_request_total", &[r#"resource="pods""#, r#"verb="POST""#])?;
    ensure!(created >= 2.0, "the API server counts {created} pods created");
    std::io::stderr().flush()?;
    Ok(())
}
