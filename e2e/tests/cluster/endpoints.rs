//! What is served to whom: tenants' objects to those only whom the API server lets, beyond loopback; and a snapshot that
//! `muster plan` reads.

use std::fs;
use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use muster_e2e::cluster::{Cluster, wait};
use muster_e2e::http::Endpoint;
use serde_json::{Value, json};

use crate::scheduler::{Muster, PATIENCE, await_bound, cluster, create, group};
use crate::support::{Shared, muster};

const GUARDED: [&str; 3] = ["/explain", "/get-snapshot", "/get-job-order"];

/// Answers beyond loopback take a token of somebody who may see them.
pub(crate) fn ask_for_a_token(shared: &Shared) -> Result<()> {
    let cluster = cluster(shared, 1)?;
    // On all interfaces, which is beyond loopback, though nobody but this test asks.
    let everywhere = format!("--inspect-address=0.0.0.0:{}", free_port()?);
    let port = everywhere.rsplit_once(':').context("a port")?.1.parse()?;
    let flags = ["--roles=scheduler", everywhere.as_str(), "--enable-profiler"];
    let process = Muster::start(&cluster, "muster", &flags)?;
    create(&cluster, group("waits", "default-queue", "", 1, 9, true))?;
    let endpoint = Endpoint::plain(SocketAddr::from(([127, 0, 0, 1], port)));
    let status = |path: &str, token: Option<&str>| -> Result<u16> {
        let asks = token.map_or_else(|| endpoint.clone(), |token| endpoint.with_token(token));
        Ok(asks.get(path)?.status)
    };
    let all = || GUARDED.into_iter().chain(["/debug/pprof/profile?seconds=1"]);
    let (nobody, reader) = (account(&cluster, "nobody")?, account(&cluster, "reader")?);
    for path in all() {
        ensure!(status(path, None)? == 401, "{path} without a token");
        ensure!(status(path, Some("made-up"))? == 401, "{path} with a token that is none");
        ensure!(status(path, Some(&nobody))? == 403, "{path} with a token of somebody who may not");
    }
    let urls: Vec<_> = GUARDED.into_iter().chain(["/debug/pprof/profile"]).collect();
    create(
        &cluster,
        vec![
            json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "reads-muster"},
                "rules": [{"nonResourceURLs": urls, "verbs": ["get"]}]}),
            json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
                "metadata": {"name": "reads-muster"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reads-muster"},
                "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": "default"}]}),
        ],
    )?;
    // The API server learns of rights a moment later.
    wait("the reader's rights", PATIENCE, || Ok(status("/get-job-order", Some(&reader))? == 200))
        .with_context(|| process.said())?;
    for path in all() {
        ensure!(status(path, Some(&reader))? == 200, "{path} with a token of somebody who may");
        ensure!(status(path, Some(&nobody))? == 403, "{path}: others still may not");
    }
    process.stop()
}

/// Without the option there is no profile; on loopback no token; the snapshot is one that `muster plan` decides on as the live
/// scheduler did.
pub(crate) fn give_a_snapshot(shared: &Shared) -> Result<()> {
    let cluster = cluster(shared, 2)?;
    let process = Muster::start(&cluster, "muster", &["--roles=scheduler"])?;
    let endpoint = Endpoint::plain(process.inspect);
    create(&cluster, group("runs", "default-queue", "", 4, 2, true))?;
    await_bound(&cluster, &process, "runs", 4)?;
    create(&cluster, group("waits", "default-queue", "", 3, 8, true))?;
    wait("the gang to wait", PATIENCE, || Ok(endpoint.get("/explain")?.body.contains("\"podGroup\": \"waits\"")))
        .with_context(|| process.said())?;
    let answer = endpoint.get("/get-snapshot")?;
    ensure!(answer.status == 200, "{}", answer.body);
    let path = cluster.folder().join("snapshot.zip");
    fs::write(&path, &answer.bytes)?;
    let path = path.to_str().context("a path")?;
    let planned: Value = serde_json::from_str(&muster(&["plan", path, "--output", "json"])?)?;
    let explained: Value = serde_json::from_str(&muster(&["explain", path, "default/waits", "--output", "json"])?)?;
    let live: Value = serde_json::from_str(&endpoint.get("/explain?podgroup=default/waits")?.body)?;
    let code = live["podGroups"][0]["reasons"][0]["code"].as_str().context("a reason")?.to_owned();
    ensure!(explained.to_string().contains(&format!("\"{code}\"")), "live {code}, from the snapshot {explained}");
    ensure!(!planned.to_string().contains("\"runs-0\""), "who runs is not decided about: {planned}");
    ensure!(endpoint.get("/debug/pprof/profile?seconds=1")?.status == 404, "profiles are off unless asked for");
    ensure!(endpoint.request("POST", "/get-snapshot", "")?.status == 405, "only GET");
    process.stop()?;
    let process = Muster::start(&cluster, "profiled", &["--roles=scheduler", "--enable-profiler"])?;
    let profile = Endpoint::plain(process.inspect).get("/debug/pprof/profile?seconds=1")?;
    ensure!(profile.status == 200 && !profile.bytes.is_empty(), "{}", profile.body);
    process.stop()
}

fn account(cluster: &Cluster, name: &str) -> Result<String> {
    cluster.kubectl(["create", "serviceaccount", "-n", "default", name])?;
    Ok(cluster.kubectl(["create", "token", "-n", "default", name])?.trim().to_owned())
}

fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind(SocketAddr::from(([0, 0, 0, 0], 0)))?.local_addr()?.port())
}
