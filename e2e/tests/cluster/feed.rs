//! What the controller knows is what the cluster is, whatever happened to the connections in between.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use jiff::Timestamp;
use kube::Client;
use muster_api::live::{Live, Watched};
use muster_controller::calls::Writer;
use muster_controller::client::{config, connect};
use muster_controller::defaults;
use muster_controller::discovery::discover;
use muster_controller::feed::{Counts, Feed, fetch};
use muster_controller::lease::Lead;
use muster_controller::run::Stop;
use muster_e2e::cluster::{Cluster, Options};
use muster_e2e::proxy::{Faults, Proxy};

use crate::history::History;
use crate::support::{Shared, apply_crds};

const BARE: Options = Options { controller_manager: false, kwok: false };
const KINDS: u64 = Watched::ALL.len() as u64;

async fn client(kubeconfig: &Path) -> Result<Client> {
    connect(config(Some(kubeconfig), None).await?)
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

/// Waits until `done`, or says what is still wrong.
async fn until(patience: Duration, mut wrong: impl AsyncFnMut() -> Result<Option<String>>) -> Result<()> {
    let began = Instant::now();
    while let Some(what) = wrong().await? {
        if began.elapsed() > patience {
            bail!("after {} s: {what}", patience.as_secs());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// On a cluster without our CRDs: discovery names the kinds, and the feed never says that it is ready.
pub(crate) fn says_what_is_missing(shared: &Shared) -> Result<()> {
    let cluster = Cluster::start(shared.tools()?, BARE)?;
    runtime()?.block_on(async {
        let client = client(&cluster.kubeconfig()).await?;
        let server = discover(&client).await?;
        let minor = format!("v1.{}.", server.minor);
        ensure!(server.version.starts_with(&minor) && server.serves("resource.k8s.io/v1"), "{server:?}");
        let ours = [Watched::Queue, Watched::PodGroup, Watched::BindRequest, Watched::SchedulingShard];
        ensure!(server.missing == ours, "{:?}", server.missing);
        let said = server.require_kinds().expect_err("kinds are missing").to_string();
        ensure!(said.contains("Queue, PodGroup") && said.contains("muster crds | kubectl apply"), "{said}");
        let feed = Feed::start(&client, &Live::default());
        until(Duration::from_secs(30), async || {
            let nodes = feed.look(|live| live.count(Watched::PriorityClass));
            Ok((nodes == 0).then(|| "the classes that every server has were not listed".to_owned()))
        })
        .await?;
        let said = feed.load(Timestamp::now()).expect_err("kinds are missing").to_string();
        ensure!(said.contains("Queue was not listed yet"), "{said}");
        apply_crds(&cluster)?;
        discover(&client).await?.require_kinds()?;
        until(Duration::from_secs(30), async || Ok(feed.ready().err().map(|error| error.to_string()))).await
    })
}

/// With the rights of an installation and no others: the defaults are made once, and all kinds can be followed.
pub(crate) fn as_service_account(cluster: &Cluster) -> Result<()> {
    runtime()?.block_on(async {
        let mut config = config(Some(&cluster.kubeconfig()), None).await?;
        config.auth_info.impersonate = Some("system:serviceaccount:muster:muster".to_owned());
        let client = connect(config)?;
        discover(&client).await?.require_kinds()?;
        let (_stopper, stop) = Stop::new();
        let writer = Writer::new(Lead::always(), stop);
        let made = defaults::ensure(&client, &writer).await?;
        ensure!(made == ["default-parent-queue", "default-queue", "default"], "{made:?}");
        ensure!(defaults::ensure(&client, &writer).await?.is_empty(), "defaults are made once");
        let feed = Feed::start(&client, &Live::default());
        until(Duration::from_secs(30), async || Ok(feed.ready().err().map(|error| error.to_string()))).await
    })
}

/// Watches are cut all the time; then the server is out of reach while things happen, its history is forgotten, and it is
/// restarted.
pub(crate) fn equals_a_fresh_list_after_a_random_history(shared: &Shared) -> Result<()> {
    let mut cluster = Cluster::start(shared.tools()?, BARE)?;
    apply_crds(&cluster)?;
    cluster.kubectl(["create", "serviceaccount", "default"])?;
    let (proxy, through_proxy) = cluster.proxy(1)?;
    let runtime = runtime()?;
    let (direct, feed, mut history) = runtime.block_on(async {
        let direct = client(&cluster.kubeconfig()).await?;
        let mut history = History::new(direct.clone(), 42);
        // More than a page.
        history.crowd(520).await?;
        let feed = Feed::start(&client(&through_proxy).await?, &Live::default());
        let said = feed.load(Timestamp::now()).expect_err("nothing was listed yet").to_string();
        ensure!(said.contains("Pod was not listed yet"), "{said}");
        until(Duration::from_secs(60), async || Ok(feed.ready().err().map(|error| error.to_string()))).await?;
        cut_watches(&mut history, &proxy).await?;
        equal(&feed, &direct).await?;
        let counts = feed.counts();
        ensure!(counts.lists == KINDS, "cut watches are resumed, not begun again: {counts:?}");
        ensure!(counts.resumed + counts.lost > 5 * KINDS, "the watches were not cut: {counts:?}, {:?}", proxy.counts());
        proxy.set(Faults { unreachable: true, ..Faults::default() });
        history.go_on(80).await?;
        anyhow::Ok((direct, feed, history))
    })?;
    cluster.compact()?;
    cluster.kill_api_server()?;
    cluster.start_api_server()?;
    proxy.set(Faults::default());
    runtime.block_on(async {
        let before = feed.counts();
        history.go_on(80).await?;
        equal(&feed, &direct).await?;
        let Counts { lists, .. } = feed.counts();
        ensure!(lists > before.lists, "a forgotten position must lead to a new list");
        feed.ready()?;
        Ok(())
    })
}

/// Some hundred changes, with all connections cut every few of them.
async fn cut_watches(history: &mut History, proxy: &Proxy) -> Result<()> {
    for _ in 0..20 {
        history.go_on(15).await?;
        proxy.cut();
        // Long enough for some to be watching again, too short for all to have caught up.
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    Ok(())
}

/// The feed knows what a fresh list says, and makes the same rows of it.
async fn equal(feed: &Feed, direct: &Client) -> Result<()> {
    until(Duration::from_secs(60), async || {
        let fresh = fetch(direct, &Live::default()).await?;
        let differences = feed.look(|live| live.differences(&fresh));
        Ok((!differences.is_empty())
            .then(|| format!("{} differences: {:?}", differences.len(), &differences[..differences.len().min(5)])))
    })
    .await?;
    let now = Timestamp::now();
    let fresh = fetch(direct, &Live::default()).await?.load(now);
    let known = feed.load(now)?;
    ensure!(known == fresh, "equal facts made different rows");
    ensure!(!known.names.pods.is_empty() && !known.names.gangs.is_empty(), "a history without pods or groups shows nothing");
    Ok(())
}
