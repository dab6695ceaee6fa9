//! `muster manifests | kubectl apply -f -` installs, and may be said again; the service account may do what its roles need, no
//! more.

use anyhow::{Result, ensure};
use muster_e2e::cluster::{Cluster, Options};

use crate::support::{Shared, get, muster};

const ACCOUNT: &str = "--as=system:serviceaccount:muster:muster";

/// On a cluster that knows nothing of us.
pub(crate) fn install_and_install_again(shared: &Shared) -> Result<()> {
    let cluster = Cluster::start(shared.tools()?, Options { controller_manager: true, kwok: false })?;
    let manifests = muster(&["manifests"])?;
    cluster.kubectl_with(&["apply", "-f", "-"], &manifests)?;
    let again = cluster.kubectl_with(&["apply", "-f", "-"], &manifests)?;
    let changed: Vec<_> = again.lines().filter(|line| !line.ends_with(" unchanged")).collect();
    ensure!(changed.is_empty(), "the second time changed something: {changed:?}");
    crate::feed::as_service_account(&cluster)?;
    let queue = get(&cluster, &["queue", "default-queue"])?;
    ensure!(queue["spec"]["parentQueue"] == "default-parent-queue", "{queue}");
    let classes =
        cluster.kubectl(["get", "priorityclasses", "-o", "jsonpath={range .items[*]}{.metadata.name}={.value} {end}"])?;
    for class in ["train=50", "build-preemptible=75", "build=100", "inference=125"] {
        ensure!(classes.split_whitespace().any(|found| found == class), "{class} is not in {classes}");
    }
    let again = cluster.kubectl_with(&["apply", "-f", "-"], &muster(&["manifests", "--defaults"])?)?;
    ensure!(again.lines().count() == 3, "the default queues and the default shard: {again}");
    // Server-side, as GitOps tools do, and with validation of every field.
    cluster.kubectl_with(&["apply", "--server-side", "--force-conflicts", "--validate=strict", "-f", "-"], &manifests)?;
    Ok(())
}

/// What each role may and may not do.
pub(crate) fn rights_are_the_roles(shared: &Shared) -> Result<()> {
    let cluster = Cluster::start(shared.tools()?, Options { controller_manager: false, kwok: false })?;
    let may = |verb: &str, resource: &str, namespace: &str| -> Result<bool> {
        let (resource, part) = resource.split_once('/').unwrap_or((resource, ""));
        let part = format!("--subresource={part}");
        let output = cluster.try_kubectl(&["auth", "can-i", verb, resource, &part, "-n", namespace, ACCOUNT], "")?;
        Ok(String::from_utf8_lossy(&output.stdout).trim() == "yes")
    };
    cluster.kubectl_with(&["apply", "--server-side", "-f", "-"], &muster(&["crds"])?)?;
    cluster.kubectl(["wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"])?;
    cluster.kubectl_with(&["apply", "-f", "-"], &muster(&["manifests", "--roles", "queue-controller"])?)?;
    for (verb, resource, namespace, expected) in [
        ("patch", "queues.scheduling.run.ai/status", "default", true),
        ("list", "podgroups.scheduling.run.ai", "default", true),
        ("create", "leases.coordination.k8s.io", "muster", true),
        ("list", "pods", "default", false),
        ("patch", "queues.scheduling.run.ai", "default", false),
        ("create", "leases.coordination.k8s.io", "default", false),
    ] {
        ensure!(may(verb, resource, namespace)? == expected, "queue-controller alone: {verb} {resource} in {namespace}");
    }
    cluster.kubectl_with(&["apply", "-f", "-"], &muster(&["manifests"])?)?;
    for (verb, resource, namespace, expected) in [
        ("create", "pods/binding", "default", true),
        ("create", "pods/eviction", "default", true),
        ("delete", "pods", "default", true),
        ("patch", "pods/status", "default", true),
        ("create", "bindrequests.scheduling.run.ai", "default", true),
        ("create", "podgroups.scheduling.run.ai", "default", true),
        ("watch", "poddisruptionbudgets.policy", "default", true),
        ("create", "tokenreviews.authentication.k8s.io", "default", true),
        ("create", "subjectaccessreviews.authorization.k8s.io", "default", true),
        ("create", "pods", "kai-resource-reservation", true),
        ("create", "pods", "default", false),
        ("get", "secrets", "default", false),
        ("list", "secrets", "muster", false),
        ("delete", "podgroups.scheduling.run.ai", "default", false),
        ("delete", "nodes", "default", false),
        ("patch", "nodes", "default", false),
        ("create", "clusterrolebindings.rbac.authorization.k8s.io", "default", false),
    ] {
        ensure!(may(verb, resource, namespace)? == expected, "all roles: {verb} {resource} in {namespace}");
    }
    Ok(())
}
