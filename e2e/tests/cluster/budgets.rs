//! With `--eviction-api` PodDisruptionBudgets are kept: in the choice of victims, and by the API server when they go.

use anyhow::{Context as _, Result, ensure};
use muster_e2e::cluster::{Cluster, wait};
use muster_e2e::http::Endpoint;
use serde_json::{Value, json};

use crate::scheduler::{Muster, PATIENCE, await_bound, cluster, create, group, let_pass, places, priority, queue};
use crate::support::{Shared, get};

fn budget(name: &str, group: &str, least: u32) -> Value {
    json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name, "namespace": "default"},
        "spec": {"minAvailable": least, "selector": {"matchLabels": {"group": group}}}})
}

/// Waits until a budget says how many more may go.
fn allows(cluster: &Cluster, name: &str, expected: i64) -> Result<()> {
    wait(&format!("budget {name} to allow {expected}"), PATIENCE, || {
        let budget = get(cluster, &["pdb", "-n", "default", name])?;
        let current = budget["status"]["observedGeneration"] == budget["metadata"]["generation"];
        Ok(current && budget["status"]["disruptionsAllowed"] == expected)
    })
}

fn counted(cluster: &Cluster, labels: &[&str]) -> Result<f64> {
    let mut all = vec![r#"resource="pods""#, r#"subresource="eviction""#];
    all.extend(labels);
    cluster.api_metric("apiserver_request_total", &all)
}

/// Whoever would go first is kept by a budget, so others go; once nobody may, the asker waits and is told why.
pub(crate) fn are_kept_in_the_choice(shared: &Shared) -> Result<()> {
    let cluster = cluster(shared, 2)?;
    let mut objects = vec![priority("lowest", 5), priority("low", 10), queue("all", None, 16, -1)];
    objects.extend([queue("a", Some("all"), 4, -1), queue("b", Some("all"), 12, -1)]);
    objects.extend([budget("one-may-go", "first", 7), budget("nobody-may-go", "whole", 4)]);
    create(&cluster, objects)?;
    let muster = Muster::start(&cluster, "muster", &["--roles=scheduler", "--eviction-api"])?;
    // In the order in which they would go without budgets: `first` (lowest priority), then `whole`, then `others`.
    create(&cluster, group("others", "a", "low", 4, 1, false))?;
    await_bound(&cluster, &muster, "others", 4)?;
    create(&cluster, group("whole", "a", "low", 4, 1, true))?;
    await_bound(&cluster, &muster, "whole", 4)?;
    create(&cluster, group("first", "a", "lowest", 8, 1, false))?;
    await_bound(&cluster, &muster, "first", 8)?;
    allows(&cluster, "one-may-go", 1)?;
    allows(&cluster, "nobody-may-go", 0)?;

    create(&cluster, group("b-one", "b", "low", 4, 1, true))?;
    await_bound(&cluster, &muster, "b-one", 4)?;
    let left = |name: &str| places(&cluster, name).map(|places| places.len());
    ensure!((left("first")?, left("whole")?, left("others")?) == (7, 4, 1), "{:?}", muster.evictions()?);
    let taken = muster.evictions()?;
    ensure!(taken.iter().all(|record| record["what"] == "evict" && record["action"] == "reclaim"), "{taken:?}");
    // Each was asked for twice, all of them first without effect, and none was refused; nobody was simply deleted.
    let (dry, done) = (counted(&cluster, &[r#"dry_run="All""#])?, counted(&cluster, &[r#"dry_run="""#, r#"code="201""#])?);
    ensure!((dry, done) == (4.0, 4.0), "{dry} evictions were tried, {done} were done");
    ensure!(counted(&cluster, &[r#"code="429""#])? < 0.5, "budgets are counted before anybody is asked to go");

    // Nobody above a minimum may go now, and the budgets keep all others.
    allows(&cluster, "one-may-go", 0)?;
    create(&cluster, vec![budget("nor-others", "others", 1)])?;
    allows(&cluster, "nor-others", 0)?;
    create(&cluster, group("b-two", "b", "low", 2, 1, true))?;
    let explained = || -> Result<String> { Ok(Endpoint::plain(muster.inspect).get("/explain?podgroup=default/b-two")?.body) };
    wait("the asker to be told", PATIENCE, || Ok(explained()?.contains("reclaim-disruption-budget")))
        .with_context(|| explained().unwrap_or_default())?;
    let_pass(&cluster, &muster, 3)?;
    ensure!(muster.evictions()?.len() == 4 && places(&cluster, "b-two")?.is_empty(), "{:?}", muster.evictions()?);
    ensure!(counted(&cluster, &[r#"code="429""#])? < 0.5, "who is kept is not even asked");

    // A budget that lets two go, and it goes on.
    cluster.kubectl(["patch", "pdb", "one-may-go", "--type=merge", "-p", r#"{"spec":{"minAvailable":5}}"#])?;
    await_bound(&cluster, &muster, "b-two", 2)?;
    ensure!((left("first")?, left("whole")?, left("others")?) == (5, 4, 1), "{:?}", muster.evictions()?);
    muster.stop()
}
