//! The role that decides: follows the shards, and runs a thread of cycles for each of them.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use muster_api::crds::shard::SchedulingShardSpec;
use muster_api::live::{Live, Watched};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use crate::calls::{Writer, read};
use crate::commit::{Committer, Ledger, lock};
use crate::cycle_thread::{Cycles, LastCycle};
use crate::defaults;
use crate::events::Events;
use crate::feed::Feed;
use crate::journal::Journal;
use crate::mishap::Dumps;
use crate::run::{Context, Stop, Stopper};
use crate::shard::{Shard, Steering};
use crate::status::Status;
use crate::watch::{Told, follow};

/// From this minor version on `pods/binding` copies labels as well as annotations.
const BINDING_COPIES_LABELS: u32 = 37;
/// Shards change rarely; several changes at once are one.
const SHARD_QUIET: Duration = Duration::from_millis(100);

/// The shards that run, for whoever asks about them.
#[derive(Clone, Debug, Default)]
pub struct Running(Arc<Mutex<Shards>>);

#[derive(Debug, Default)]
struct Shards {
    all: BTreeMap<String, RunningShard>,
    /// There will be some, and are none yet.
    begins: bool,
}

/// One of them.
#[derive(Clone)]
pub struct RunningShard {
    /// What is known.
    pub feed: Arc<Feed>,
    /// Its last cycle.
    pub last: LastCycle,
    /// Its settings.
    pub shard: Arc<Shard>,
}

impl std::fmt::Debug for RunningShard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunningShard").field("shard", &self.shard).finish_non_exhaustive()
    }
}

impl Running {
    /// All of them, by name.
    #[must_use]
    pub fn all(&self) -> BTreeMap<String, RunningShard> {
        lock(&self.0).all.clone()
    }

    /// There will be shards: until they are there this process is not ready.
    pub fn begin(&self) {
        lock(&self.0).begins = true;
    }

    /// What runs now is all there is.
    fn begun(&self) {
        lock(&self.0).begins = false;
    }

    /// Why one of them cannot decide, if any cannot.
    #[must_use]
    pub fn unready(&self) -> Option<String> {
        let shards = lock(&self.0);
        if shards.begins {
            return Some("the scheduler has not begun yet".to_owned());
        }
        shards.all.iter().find_map(|(name, running)| Some(format!("shard {name}: {}", running.feed.ready().err()?)))
    }
}

/// Runs until told to stop.
///
/// # Errors
/// If it may not begin, or a shard ends.
pub async fn run(context: Context) -> Result<()> {
    context.running.begin();
    context.server.require_kinds()?;
    let writer = Writer::new(context.lead.clone(), context.stop.clone());
    if !context.options.observe {
        refuse_beside_kai(&context).await?;
        let made = defaults::ensure(&context.client, &writer).await?;
        if !made.is_empty() {
            tracing::info!(objects = made.join(", "), "made the defaults of a fresh installation");
        }
    }
    let journal = Arc::new(Journal::open(context.options.journal.as_deref())?);
    let mut tasks = JoinSet::new();
    let events = Events::start(context.client.clone(), &context.options.scheduler_name, &writer, &mut tasks);
    let roster = Roster { journal, writer, events, context: context.clone(), running: BTreeMap::new(), ledgers: HashMap::new() };
    roster.follow().await
}

/// Two schedulers for one kind of pods would fight.
async fn refuse_beside_kai(context: &Context) -> Result<()> {
    if context.options.beside_kai {
        return Ok(());
    }
    let pods: Api<Pod> = Api::all(context.client.clone());
    // KAI's operator names a scheduler's deployment, and its pods' label app, <scheduler name>-<shard>.
    let name = &context.options.scheduler_name;
    let listed = read(pods.list_metadata(&ListParams::default().labels("app"))).await.context("pods with label app")?;
    let of_kai = listed.items.into_iter().find(|pod| {
        let app = pod.metadata.labels.iter().flatten().find(|(key, _)| *key == "app").map(|(_, app)| app.as_str());
        let ending = pod.metadata.deletion_timestamp.is_some();
        !ending && app.is_some_and(|app| app.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('-')))
    });
    if let Some(pod) = of_kai {
        let metadata = pod.metadata;
        let (namespace, pod) = (metadata.namespace.unwrap_or_default(), metadata.name.unwrap_or_default());
        bail!(
            "pod {namespace}/{pod} looks like KAI's scheduler for the same pods (schedulerName {name}): two schedulers would \
             fight. Stop that one first; or run with --observe, which writes nothing; or with --beside-kai if it is not what it \
             looks like"
        );
    }
    Ok(())
}

/// What is known of the shards.
type Specs = BTreeMap<String, SchedulingShardSpec>;

/// The shards that run.
struct Roster {
    context: Context,
    journal: Arc<Journal>,
    writer: Writer,
    events: Events,
    running: BTreeMap<String, Worker>,
    /// What was assumed outlives a shard that begins anew.
    ledgers: HashMap<String, Ledger>,
}

/// One shard at work.
struct Worker {
    shard: Arc<Shard>,
    steering: watch::Sender<Steering>,
    stopper: Stopper,
    ended: oneshot::Receiver<Result<()>>,
    _writers: JoinSet<()>,
}

impl Roster {
    async fn follow(mut self) -> Result<()> {
        let (sender, mut specs) = watch::channel(None::<Specs>);
        let mut follower = JoinSet::new();
        let client = self.context.client.clone();
        follower.spawn(async move {
            let (mut live, mut listed) = (Live::default(), false);
            let tell = move |told| {
                match told {
                    Told::ListBegins => live.begin(Watched::SchedulingShard),
                    Told::ListEnds => {
                        live.finish(Watched::SchedulingShard);
                        listed = true;
                    }
                    Told::Put(seen) => drop(Some(live.put(seen))),
                    Told::Gone { namespace, name } => live.remove(Watched::SchedulingShard, &namespace, &name),
                    Told::Resumed | Told::Lost(_) => return true,
                }
                if listed {
                    sender.send_replace(Some(live.shards().into_iter().collect()));
                }
                true
            };
            follow(client, Watched::SchedulingShard, tell).await;
        });
        let stop = self.context.stop.clone();
        loop {
            tokio::select! {
                () = stop.stopped() => break,
                ended = any_ended(&mut self.running) => {
                    self.stop_all().await;
                    return ended;
                }
                _ = specs.changed() => {
                    tokio::time::sleep(SHARD_QUIET).await;
                    let now = specs.borrow_and_update().clone();
                    if let Some(now) = now {
                        self.arrange(now).await?;
                        self.context.running.begun();
                    }
                }
            }
        }
        self.stop_all().await;
        Ok(())
    }

    /// Makes what runs be what is wanted. A shard whose settings are wrong goes on as it was.
    async fn arrange(&mut self, mut specs: Specs) -> Result<()> {
        let only = self.context.options.shard.clone();
        if let Some(only) = &only {
            specs.retain(|name, _| name == only);
        }
        if specs.is_empty() {
            let name = only.unwrap_or_else(|| "default".to_owned());
            tracing::info!(shard = name, "there is no such SchedulingShard: it is run with defaults");
            specs.insert(name, SchedulingShardSpec::default());
        }
        let mut wanted = BTreeMap::new();
        for (name, spec) in specs {
            match Shard::read(&name, &spec, &self.context.options) {
                Ok(shard) => drop(wanted.insert(name, Some(shard))),
                Err(error) => {
                    tracing::error!(error = format!("{error:#}"), "a shard is wrong, and goes on as it was");
                    wanted.insert(name, None);
                }
            }
        }
        let gone: Vec<_> = self.running.keys().filter(|name| !wanted.contains_key(*name)).cloned().collect();
        for name in gone {
            self.stop(&name).await;
        }
        let first = wanted.keys().next().cloned();
        for (name, shard) in wanted {
            let Some(shard) = shard else { continue };
            let reports_strays = first.as_ref() == Some(&name);
            match self.running.get(&name) {
                Some(worker) if same_but_steering(&worker.shard, &shard) => {
                    worker.steering.send_if_modified(|known| std::mem::replace(known, shard.steering) != shard.steering);
                }
                known => {
                    if known.is_some() {
                        self.stop(&name).await;
                    }
                    self.start(shard, reports_strays)?;
                }
            }
        }
        Ok(())
    }

    fn start(&mut self, shard: Shard, reports_strays: bool) -> Result<()> {
        let context = &self.context;
        let options = &context.options;
        let feed = Arc::new(Feed::start(&context.client, &shard.blank()?));
        let (stopper, stop) = Stop::new();
        let (steering, steered) = watch::channel(shard.steering);
        let pool = (!shard.pool.is_empty()).then(|| (options.node_pool_label_key.clone(), shard.pool.clone()));
        let committer = Committer {
            client: context.client.clone(),
            options: Arc::clone(options),
            writer: self.writer.until(stop),
            ledger: Arc::clone(self.ledgers.entry(shard.name.clone()).or_default()),
            events: self.events.clone(),
            metrics: Arc::clone(&context.metrics),
            pool,
            binding_copies_labels: context.server.minor >= BINDING_COPIES_LABELS,
            failures: Arc::default(),
        };
        let status = Status::new(committer.clone());
        let mut writers = JoinSet::new();
        writers.spawn(status.writer());
        let last = LastCycle::default();
        let shard = Arc::new(shard);
        lock(&context.running.0).all.insert(
            shard.name.clone(),
            RunningShard { feed: Arc::clone(&feed), last: Arc::clone(&last), shard: Arc::clone(&shard) },
        );
        let cycles = Cycles {
            shard: shard.name.clone(),
            feed,
            steering: steered,
            committer,
            journal: Arc::clone(&self.journal),
            status,
            reports_strays,
            last,
            dumps: Dumps::to(&options.dumps),
        };
        let (sender, ended) = oneshot::channel();
        let handle = Handle::current();
        std::thread::Builder::new()
            .name(format!("cycles-{}", shard.name))
            .spawn(move || drop(sender.send(cycles.run(&handle))))
            .context("cannot start a thread")?;
        tracing::info!(shard = shard.name, pool = shard.pool, "runs");
        self.running.insert(shard.name.clone(), Worker { shard, steering, stopper, ended, _writers: writers });
        Ok(())
    }

    async fn stop(&mut self, name: &str) {
        lock(&self.context.running.0).all.remove(name);
        if let Some(worker) = self.running.remove(name) {
            worker.stopper.stop();
            let _ = worker.ended.await;
            tracing::info!(shard = name, "has stopped");
        }
    }

    async fn stop_all(&mut self) {
        self.context.running.begun();
        let names: Vec<_> = self.running.keys().cloned().collect();
        for name in names {
            self.stop(&name).await;
        }
    }
}

fn same_but_steering(a: &Shard, b: &Shard) -> bool {
    (&a.pool, &a.config, &a.params) == (&b.pool, &b.config, &b.params)
}

/// How the first worker that ends by itself ended.
async fn any_ended(running: &mut BTreeMap<String, Worker>) -> Result<()> {
    if running.is_empty() {
        return std::future::pending().await;
    }
    let ended = running.values_mut().map(|worker| &mut worker.ended);
    let (first, ..) = futures::future::select_all(ended).await;
    first.unwrap_or_else(|_| bail!("a thread of cycles has ended"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheduler_that_has_not_begun_is_not_ready() {
        let running = Running::default();
        assert_eq!(running.unready(), None, "whoever waits for its turn");
        running.begin();
        assert!(running.clone().unready().is_some_and(|why| why.contains("not begun")));
        running.begun();
        assert_eq!(running.unready(), None);
    }
}
