//! For tests of size: objects made many at a time, and figures: what processes cost, what histograms say.

use std::io::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use futures::StreamExt as _;
use kube::api::{DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use kube::{Api, Client};
use muster_controller::client::{config, connect};
use muster_e2e::cluster::Cluster;
use muster_e2e::process::Process;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// Requests under way at once.
const AT_ONCE: usize = 32;

/// A client that makes many objects at once: kubectl would be slower than what is measured.
pub(crate) struct Load {
    runtime: Runtime,
    client: Client,
}

impl Load {
    pub(crate) fn on(cluster: &Cluster) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let client = runtime.block_on(async { connect(config(Some(&cluster.kubeconfig()), None).await?) })?;
        Ok(Self { runtime, client })
    }

    fn api(&self, object: &Value) -> Result<Api<DynamicObject>> {
        let text = |field: &str| object[field].as_str().with_context(|| format!("{field} of {object}"));
        let (version, kind) = (text("apiVersion")?, text("kind")?);
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        Ok(match object["metadata"]["namespace"].as_str() {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        })
    }

    /// Calls `each` for all of `items`, many at a time, and says how far it is.
    fn all<T, F>(&self, what: &str, items: Vec<T>, each: impl Fn(T) -> F) -> Result<()>
    where
        F: Future<Output = Result<()>>,
    {
        let (began, count) = (Instant::now(), items.len());
        self.runtime.block_on(async {
            let mut ended = futures::stream::iter(items.into_iter().map(each)).buffer_unordered(AT_ONCE);
            let (mut done, mut said) = (0, began);
            while let Some(end) = ended.next().await {
                end?;
                done += 1;
                if said.elapsed() > Duration::from_secs(5) {
                    said = Instant::now();
                    eprintln!("e2e: {what}: {done} of {count} ({:.0} s) …", began.elapsed().as_secs_f64());
                }
            }
            Ok(())
        })
    }

    /// Makes objects; in order only as far as one call ends before the next.
    pub(crate) fn create(&self, what: &str, objects: Vec<Value>) -> Result<()> {
        let mut calls = Vec::with_capacity(objects.len());
        for object in objects {
            calls.push((self.api(&object)?, serde_json::from_value::<DynamicObject>(object)?));
        }
        self.all(what, calls, |(api, object)| async move {
            api.create(&PostParams::default(), &object).await.map(drop).with_context(|| format!("{:?}", object.metadata.name))
        })
    }

    /// Binds pods of namespace `default` without deciding anything: what the server itself can do.
    pub(crate) fn bind(&self, places: Vec<(String, String)>) -> Result<()> {
        let api = self.api(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "default"}}))?;
        self.all("plain binds", places, |(pod, node)| {
            let api = api.clone();
            async move {
                let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod, "namespace": "default"},
                    "target": {"apiVersion": "v1", "kind": "Node", "name": node}});
                let sent = api.create_subresource::<_, Value>("binding", &pod, &PostParams::default(), &binding).await;
                sent.map(drop).with_context(|| format!("bind {pod} to {node}"))
            }
        })
    }

    /// A change of a node that may matter to a scheduler.
    pub(crate) fn touch_node(&self, name: &str, value: &str) -> Result<()> {
        let api = self.api(&json!({"apiVersion": "v1", "kind": "Node"}))?;
        let patch = Patch::Merge(json!({"metadata": {"labels": {"touched": value}}}));
        self.runtime.block_on(api.patch_metadata(name, &PatchParams::default(), &patch))?;
        Ok(())
    }

    /// All pods of namespace `default`, in pages: node and phase of each.
    pub(crate) fn pods(&self) -> Result<Vec<Placed>> {
        let api = self.api(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "default"}}))?;
        self.runtime.block_on(async {
            let (mut found, mut parameters) = (Vec::new(), ListParams::default().limit(500));
            loop {
                let page = api.list(&parameters).await?;
                found.extend(page.items.iter().map(|pod| Placed {
                    node: pod.data["spec"]["nodeName"].as_str().map(str::to_owned),
                    runs: pod.data["status"]["phase"] == "Running",
                }));
                match page.metadata.continue_.filter(|token| !token.is_empty()) {
                    Some(token) => parameters = parameters.continue_token(&token),
                    None => return Ok(found),
                }
            }
        })
    }
}

/// Of a pod.
pub(crate) struct Placed {
    pub(crate) node: Option<String>,
    pub(crate) runs: bool,
}

/// Figures of one scenario, shown as a table, and kept as a line of JSON for `cargo xtask live-bench`.
pub(crate) struct Figures {
    scenario: &'static str,
    all: Vec<(String, f64, &'static str)>,
}

impl Figures {
    pub(crate) fn of(scenario: &'static str) -> Self {
        Self { scenario, all: Vec::new() }
    }

    pub(crate) fn add(&mut self, name: impl Into<String>, value: f64, unit: &'static str) {
        let name = name.into();
        eprintln!("e2e: {}: {name}: {value:.3} {unit}", self.scenario);
        self.all.push((name, value, unit));
    }

    /// What each process has used of the processor since `before`, in percent of one core.
    pub(crate) fn add_processors(&mut self, before: &Usage, now: &Usage) {
        let wall = now.at.duration_since(before.at).as_secs_f64();
        for ((name, before), (_, now)) in before.all.iter().zip(&now.all) {
            let used = now.saturating_sub(*before).as_secs_f64();
            self.add(format!("processor, {name}"), 100.0 * used / wall, "% of a core");
        }
    }

    /// Mean, and bounds on the median and the 99th percentile.
    pub(crate) fn add_histogram(&mut self, name: &str, metrics: &str, metric: &str) {
        let value = |suffix: &str| {
            let line = metrics.lines().find_map(|line| line.strip_prefix(metric)?.strip_prefix(suffix)?.strip_prefix(' '));
            line.and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0)
        };
        let (sum, count) = (value("_sum"), value("_count"));
        self.add(format!("{name}, number"), count, "");
        self.add(format!("{name}, mean"), 1e3 * sum / count.max(1.0), "ms");
        let buckets = metrics.lines().filter_map(|line| {
            let (bound, up_to) = line.strip_prefix(metric)?.strip_prefix("_bucket{le=\"")?.split_once("\"} ")?;
            Some((bound.parse::<f64>().unwrap_or(f64::INFINITY), up_to.parse::<f64>().ok()?))
        });
        let buckets: Vec<_> = buckets.collect();
        for (share, title) in [(0.5, "median at most"), (0.99, "99 % at most")] {
            if let Some((bound, _)) = buckets.iter().find(|(_, up_to)| *up_to >= share * count) {
                self.add(format!("{name}, {title}"), 1e3 * bound, "ms");
            }
        }
    }

    pub(crate) fn tell(self) -> Result<()> {
        let Some(path) = std::env::var_os("MUSTER_E2E_FIGURES") else { return Ok(()) };
        let figures: Vec<_> =
            self.all.iter().map(|(name, value, unit)| json!({"name": name, "value": value, "unit": unit})).collect();
        let mut file = std::fs::File::options().create(true).append(true).open(path)?;
        writeln!(file, "{}", json!({"scenario": self.scenario, "figures": figures}))?;
        Ok(())
    }
}

/// What the processor has done for each process up to a moment.
pub(crate) struct Usage {
    at: Instant,
    all: Vec<(String, Duration)>,
}

impl Usage {
    pub(crate) fn now<'a>(processes: impl IntoIterator<Item = &'a Process>) -> Result<Self> {
        let all = processes.into_iter().map(|process| Ok((process.name().to_owned(), process.processor_time()?)));
        Ok(Self { at: Instant::now(), all: all.collect::<Result<_>>()? })
    }
}

/// A number from the environment.
pub(crate) fn setting(name: &str, default: usize) -> Result<usize> {
    match std::env::var(name) {
        Err(_) => Ok(default),
        Ok(text) => match text.parse() {
            Ok(number) if number > 0 => Ok(number),
            _ => bail!("{name}={text}: expected a number from 1"),
        },
    }
}

/// Fails if a node has more than `most` of these pods, or one has no place.
pub(crate) fn check_places(pods: &[Placed], most: usize) -> Result<()> {
    let mut counts = std::collections::BTreeMap::<&str, usize>::new();
    for pod in pods {
        *counts.entry(pod.node.as_deref().context("a pod has no node")?).or_default() += 1;
    }
    let (node, count) = counts.iter().max_by_key(|(_, count)| **count).context("no pods")?;
    ensure!(*count <= most, "{count} pods on {node}, which has room for {most}");
    Ok(())
}
