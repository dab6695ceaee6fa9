//! What placing plain pods costs the API server in writes (docs/design/writes.md), by its own count, with kwok stopped, so that
//! nobody else writes on pods.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use muster_e2e::cluster::wait;

use crate::scale::pod;
use crate::scale_load::{Load, check_places};
use crate::scheduler::{Muster, PATIENCE, cluster, let_pass};
use crate::support::Shared;
use crate::writes::Writes;

const NODES: usize = 40;
const PODS: u64 = 200;
/// Nothing is written for so long: whoever writes is done.
const QUIET: Duration = Duration::from_secs(3);

/// What may be written for one plain pod, which is in a pod group of its own: at least and at most.
const OF_EACH: [(&str, u64, u64); 7] = [
    // Of whoever submits it.
    ("POST pods", 1, 1),
    ("POST podgroups", 1, 1),
    // The group's name, on the pod.
    ("PATCH pods", 1, 1),
    ("POST pods/binding", 1, 1),
    // When it began to run.
    ("PATCH podgroups", 1, 1),
    // What it asks for, then what it has; in one if it was quick.
    ("PATCH podgroups/status", 1, 3),
    ("POST events", 1, 2),
];
/// Written for all pods together, about once a moment while something changes; and on a slow machine: a pod that
/// is in no group for some seconds is told so.
const OF_ALL: [&str; 3] = ["PATCH queues/status", "POST selfsubjectreviews", "PATCH pods/status"];

/// All roles; pods that come by themselves.
pub(crate) fn of_a_plain_pod(shared: &Shared) -> Result<()> {
    let mut cluster = cluster(shared, NODES)?;
    let muster = Muster::start(&cluster, "muster", &[])?;
    let load = Load::on(&cluster)?;
    let_pass(&cluster, &muster, 2)?;
    cluster.stop_kwok()?;
    let before = Writes::until_now(&cluster)?;
    load.create("pods", (0..PODS).map(|i| pod(&format!("pod-{i}"), None, 1)).collect())?;
    let mut spent = BTreeMap::new();
    wait("all pods to be bound, and the last write to be done", PATIENCE, || {
        let now = Writes::until_now(&cluster)?.since(&before);
        let done = now == spent && now.get("POST pods/binding") >= Some(&PODS);
        spent = now;
        if !done {
            std::thread::sleep(QUIET);
        }
        Ok(done)
    })
    .with_context(|| format!("{spent:?}\n{}", muster.said()))?;
    eprintln!("e2e: writes for {PODS} plain pods: {spent:?}");
    for (of, least, most) in OF_EACH {
        let count = spent.remove(of).unwrap_or(0);
        ensure!((least * PODS..=most * PODS).contains(&count), "{of}: {count} for {PODS} pods\n{}", muster.said());
    }
    for of in OF_ALL {
        let count = spent.remove(of).unwrap_or(0);
        ensure!(count < PODS, "{of}: {count} for {PODS} pods");
    }
    ensure!(spent.is_empty(), "nobody should write {spent:?}");
    check_places(&load.pods()?, 8)?;
    muster.stop()
}
