//! Everything at once, and everything fails: gangs, shared cards and plain pods come and go, some make others leave, while
//! servers are killed, connections cut, writes lost, processes frozen or killed. What must hold then: `invariants`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use kube::Client;
use kube::api::{DeleteParams, PostParams, Preconditions};
use muster_e2e::cluster::{Cluster, wait};
use muster_e2e::proxy::{Faults, Proxy};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::history::Dice;
use crate::invariants::{Audit, calm};
use crate::roles::{Kubelet, admin, api, half, namespaces, runtime, until};
use crate::scheduler::{Muster, PATIENCE, cluster, create, group, queue};
use crate::support::{Shared, get};

/// GPUs that queue b is due, and that one wave takes of them at most: two waves are there at a time.
const OF_B: i64 = 16;
const GANG: usize = 6;
const HALVES: usize = 4;
const PLAIN: usize = 2;
/// More than fits, all of it beyond what queue a is due.
const FILL: usize = 24;
/// What fits beside two waves, with room for halves that lie badly.
const FILL_AT_REST: usize = 2;
const NODES: usize = 3;

/// What users want, and what makes it so: whatever is missing is made, as by their controllers.
#[derive(Default)]
struct Wanted {
    /// By kind and name.
    objects: BTreeMap<(String, String), Value>,
    /// Minimum members of each gang.
    gangs: BTreeMap<String, usize>,
    /// Uids of pods that were taken away.
    removed: BTreeSet<String>,
}

/// A cluster under load, watched.
struct World {
    runtime: Runtime,
    client: Client,
    audit: Arc<Audit>,
    wanted: Arc<Mutex<Wanted>>,
    kubelet: Kubelet,
    waves: usize,
}

fn lock(wanted: &Mutex<Wanted>) -> MutexGuard<'_, Wanted> {
    wanted.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A cluster with two queues; gangs that are left in part are given up soon.
fn two_queues(shared: &Shared) -> Result<Cluster> {
    let cluster = cluster(shared, NODES)?;
    namespaces(&cluster, "default")?;
    let mut objects = vec![queue("all", None, 24, -1), queue("a", Some("all"), 24 - OF_B, -1), queue("b", Some("all"), OF_B, -1)];
    objects.push(json!({"apiVersion": "kai.scheduler/v1", "kind": "SchedulingShard", "metadata": {"name": "default"},
        "spec": {"args": {"default-staleness-grace-period": "15s"}}}));
    create(&cluster, objects)?;
    Ok(cluster)
}

impl World {
    /// Begins, with queue a filling everything.
    fn start(cluster: &Cluster) -> Result<Self> {
        let runtime = runtime()?;
        let (client, audit) = runtime.block_on(async { anyhow::Ok((admin(cluster).await?, Audit::start(cluster).await?)) })?;
        let kubelet = Kubelet::start(&cluster.kubeconfig(), 8)?;
        let (audit, wanted) = (Arc::new(audit), Arc::<Mutex<Wanted>>::default());
        let world =
            Self { client: client.clone(), audit: Arc::clone(&audit), wanted: Arc::clone(&wanted), kubelet, runtime, waves: 0 };
        world.runtime.spawn(async move {
            let mut made = BTreeSet::new();
            loop {
                reconcile(&client, &audit, &wanted, &mut made).await;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        world.want(group("fill", "a", "", FILL, 1, false));
        Ok(world)
    }

    /// A pod group and its pods.
    fn want(&self, objects: Vec<Value>) {
        let mut wanted = lock(&self.wanted);
        for object in objects {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let name = text(&object["metadata"]["name"]);
            if let Some(least) = object["spec"]["minMember"].as_u64() {
                wanted.gangs.insert(name.clone(), usize::try_from(least).unwrap_or(usize::MAX));
            }
            wanted.objects.insert((text(&object["kind"]), name), object);
        }
    }

    /// Takes pods away: those of these groups whose number is at least `from`.
    fn drop_pods(&self, groups: &[String], from: usize) -> Result<()> {
        let ours = |name: &str| {
            let Some((group, number)) = name.rsplit_once('-') else { return false };
            groups.iter().any(|known| known == group) && number.parse::<usize>().is_ok_and(|number| number >= from)
        };
        lock(&self.wanted).objects.retain(|(kind, name), _| kind != "Pod" || !ours(name));
        wait(&format!("pods of {groups:?} to be gone"), PATIENCE, || {
            Ok(!self.audit.there().values().any(|pod| pod.namespace == "default" && ours(&pod.name)))
        })
    }

    /// The wave before the last one goes. Queue a takes its place, for a while.
    fn ebb(&self) -> Result<()> {
        let Some(old) = self.waves.checked_sub(2) else { return Ok(()) };
        self.drop_pods(&[format!("gang{old}"), format!("half{old}"), format!("plain{old}")], 0)
    }

    /// Waits until every GPU is used.
    fn await_full(&self, muster: &Muster) -> Result<()> {
        let idle = || self.audit.idle_gpus();
        wait("all GPUs to be used", PATIENCE, || Ok(idle() == 0))
            .with_context(|| format!("{} are idle\n{}", idle(), muster.said()))
    }

    /// A gang and halves of cards that queue b is due, and some plain pods of queue a.
    fn flood(&mut self) -> Result<()> {
        let wave = self.waves;
        self.waves += 1;
        self.want(group(&format!("gang{wave}"), "b", "", GANG, 1, true));
        let halves = format!("half{wave}");
        let mut objects = group(&halves, "b", "", HALVES, 1, false);
        for (at, pod) in objects[1..].iter_mut().enumerate() {
            let shared = half("default", &format!("{halves}-{at}"));
            for (key, value) in shared["metadata"]["annotations"].as_object().context("annotations")? {
                pod["metadata"]["annotations"][key] = value.clone();
            }
            pod["spec"]["containers"] = shared["spec"]["containers"].clone();
        }
        self.want(objects);
        self.want(group(&format!("plain{wave}"), "a", "", PLAIN, 1, false));
        Ok(())
    }

    /// One wave goes, queue a takes its place, and has to give it back to the next.
    fn next_wave(&mut self, muster: &Muster) -> Result<()> {
        self.ebb()?;
        self.await_full(muster)?;
        self.flood()
    }

    /// Ends the waves with what fits, and waits until all of it runs and nothing else is left; then takes everything away, and
    /// nothing may be left at all.
    fn ends_well(&self, journals: &[&Path], said: impl Fn() -> String) -> Result<()> {
        self.drop_pods(&["fill".to_owned()], FILL_AT_REST)?;
        self.becomes_calm().with_context(&said)?;
        let ours = lock(&self.wanted).removed.clone();
        let evicted = self.audit.evictions_are_recorded(journals, &ours)?;
        ensure!(evicted > 0, "nobody had to leave: that is no test");
        eprintln!("e2e: {} binds, {evicted} evictions in {} waves", self.audit.binds(), self.waves);
        let groups = lock(&self.wanted).gangs.keys().cloned().collect::<Vec<_>>();
        self.drop_pods(&groups, 0)?;
        self.becomes_calm().with_context(&said)?;
        ensure!(self.audit.there().is_empty(), "left over: {:?}", self.audit.there());
        ensure!(self.kubelet.wrong().is_empty(), "{:?}", self.kubelet.wrong());
        self.audit.wrong()
    }

    fn becomes_calm(&self) -> Result<()> {
        let gangs = lock(&self.wanted).gangs.clone();
        self.runtime.block_on(until(PATIENCE, async || {
            self.audit.wrong()?;
            let pods = self.audit.there().values().filter(|pod| pod.namespace == "default").count();
            let wanted = lock(&self.wanted).objects.keys().filter(|(kind, _)| kind == "Pod").count();
            if pods != wanted {
                return Ok(Some(format!("{pods} pods are there, {wanted} are wanted")));
            }
            calm(&self.client, &self.audit, &gangs).await
        }))
    }

    /// Waits until so many pods of the last wave that queue b is due are bound.
    fn await_bound(&self, pods: usize, muster: &Muster) -> Result<()> {
        let wave = self.waves - 1;
        let groups = [format!("gang{wave}"), format!("half{wave}")];
        let bound = || {
            let there = self.audit.there();
            there.values().filter(|pod| groups.contains(&pod.gang) && pod.node.is_some() && !pod.leaves).count()
        };
        wait(&format!("{pods} pods of {groups:?} to be bound"), PATIENCE, || {
            self.audit.wrong()?;
            Ok(bound() >= pods)
        })
        .with_context(|| format!("{} are bound\n{}", bound(), muster.said()))
    }
}

/// Makes what is wanted and is not there, and takes away pods that are not wanted. The server may be gone just now: then later.
async fn reconcile(client: &Client, audit: &Audit, wanted: &Mutex<Wanted>, made: &mut BTreeSet<String>) {
    let there = audit.there().into_iter().filter(|(_, pod)| pod.namespace == "default");
    let there: BTreeMap<_, _> = there.map(|(uid, pod)| (pod.name, uid)).collect();
    let objects = lock(wanted).objects.clone();
    let key = |name: &String| ("Pod".to_owned(), name.clone());
    for (name, uid) in there.iter().filter(|(name, _)| !objects.contains_key(&key(name))) {
        lock(wanted).removed.insert(uid.clone());
        let only = Preconditions { uid: Some(uid.clone()), resource_version: None };
        let parameters = DeleteParams { preconditions: Some(only), grace_period_seconds: Some(0), ..DeleteParams::default() };
        let _ = api(client, "default", "v1", "Pod").delete(name, &parameters).await;
    }
    for ((kind, name), object) in objects {
        let known = if kind == "Pod" { there.contains_key(&name) } else { made.contains(&name) };
        let version = object["apiVersion"].as_str().unwrap_or_default().to_owned();
        let Ok(body) = serde_json::from_value(object) else { continue };
        if known {
            continue;
        }
        match api(client, "default", &version, &kind).create(&PostParams::default(), &body).await {
            Ok(_) if kind != "Pod" => drop(made.insert(name)),
            Err(kube::Error::Api(status)) if status.code == 409 && kind != "Pod" => drop(made.insert(name)),
            _ => {}
        }
    }
}

/// The API server is killed while pods are being bound, and comes back; the third time it has forgotten its history, and what
/// happened before is not to be had from it any more.
pub(crate) fn a_killed_api_server(shared: &Shared) -> Result<()> {
    let mut cluster = two_queues(shared)?;
    let mut world = World::start(&cluster)?;
    let muster = Muster::start(&cluster, "muster", &[])?;
    for round in 0..3 {
        world.next_wave(&muster)?;
        world.await_bound(2, &muster)?;
        cluster.kill_api_server()?;
        if round == 2 {
            cluster.compact()?;
        }
        cluster.start_api_server()?;
    }
    let journal = muster.journal();
    world.ends_well(&[journal], || muster.said())?;
    muster.stop()
}

/// Every connection is cut every second, and one write in twenty is lost, or its answer is, or it comes late, is an error, or is
/// turned away.
pub(crate) fn cut_watches_and_lost_writes(shared: &Shared) -> Result<()> {
    let cluster = two_queues(shared)?;
    let mut world = World::start(&cluster)?;
    let (proxy, through) = cluster.proxy(7)?;
    let muster = Muster::start_through(&cluster, &through, "muster", &[])?;
    cutting_every_second(&proxy, || {
        for _ in 0..4 {
            world.next_wave(&muster)?;
            world.await_bound(GANG + HALVES, &muster)?;
        }
        anyhow::Ok(())
    })?;
    let cut = proxy.counts().cut;
    ensure!(cut > 20, "few connections were cut: {:?}", proxy.counts());
    let late_by = Duration::from_secs(5);
    proxy.set(Faults {
        lost_writes_percent: 1,
        lost_answers_percent: 1,
        late_answers_percent: 1,
        late_by,
        errors_percent: 1,
        turned_away_percent: 1,
        ..Faults::default()
    });
    for _ in 0..6 {
        world.next_wave(&muster)?;
        world.await_bound(GANG + HALVES, &muster)?;
    }
    world.ends_well(&[muster.journal()], || muster.said())?;
    let counts = proxy.counts();
    eprintln!("e2e: {} connections were cut; {} of {} writes were hit", counts.cut, counts.faults, counts.writes);
    ensure!(counts.faults > 10, "nothing went wrong: {counts:?}");
    muster.stop()
}

/// Cuts while something is being done.
fn cutting_every_second<R>(proxy: &Proxy, work: impl FnOnce() -> R) -> R {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut last = Instant::now();
            while !done.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(20));
                if last.elapsed() >= Duration::from_secs(1) {
                    last = Instant::now();
                    proxy.cut();
                }
            }
        });
        let result = work();
        done.store(true, Ordering::Relaxed);
        result
    })
}

/// Two processes, one leads. Frozen in the middle of its work for longer than its lease, it has lost it when it wakes, and does
/// no harm though it wakes in the middle of the other's work.
pub(crate) fn a_frozen_leader(shared: &Shared) -> Result<()> {
    let cluster = two_queues(shared)?;
    let mut world = World::start(&cluster)?;
    let flags = ["--leader-elect", "--namespace=default"];
    let first = Muster::start(&cluster, "first", &flags)?;
    world.next_wave(&first)?;
    world.await_bound(2, &first)?;
    let holder = || -> Result<String> {
        let lease = get(&cluster, &["lease", "kai-scheduler", "-n", "default"])?;
        Ok(lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned())
    };
    let was = holder()?;
    first.process.freeze()?;
    let second = Muster::start(&cluster, "second", &flags)?;
    wait("the lease to change hands", PATIENCE, || Ok(holder()? != was))?;
    world.await_bound(GANG + HALVES, &second)?;
    world.next_wave(&second)?;
    world.await_bound(2, &second)?;
    first.process.thaw()?;
    world.await_bound(GANG + HALVES, &second)?;
    wait("the first to notice", PATIENCE, || Ok(first.said().contains("leads no longer")))?;
    let by_first = first.metric("kai_binds_total")?;
    world.next_wave(&second)?;
    world.await_bound(GANG + HALVES, &second)?;
    ensure!((first.metric("kai_binds_total")? - by_first).abs() < 0.5, "only the leader binds\n{}", first.said());
    // The second goes in good order, and the first takes over at once.
    let journal = second.journal().to_owned();
    second.stop()?;
    world.next_wave(&first)?;
    world.await_bound(GANG + HALVES, &first)?;
    world.ends_well(&[first.journal(), &journal], || first.said())?;
    first.stop()
}

/// Killed at random moments, fifty times, and started again each time.
pub(crate) fn killed_fifty_times(shared: &Shared) -> Result<()> {
    const KILLS: u64 = 50;
    let cluster = two_queues(shared)?;
    let mut world = World::start(&cluster)?;
    let began = Instant::now();
    let first = Muster::start(&cluster, "muster", &[])?;
    let start = u64::try_from(began.elapsed().as_millis())?;
    let log = first.log().to_owned();
    drop(first);
    let mut dice = Dice::new(11);
    let decided = || std::fs::read_to_string(&log).unwrap_or_default().matches("decided").count();
    let mut at_work = 0;
    for kill in 0..KILLS {
        match kill % 5 {
            0 => world.flood()?,
            2 => world.ebb()?,
            _ => {}
        }
        let before = decided();
        let mut muster = Muster::start_unready(&cluster, &cluster.kubeconfig(), "muster", &[])?;
        // The moment is the test: from before it has begun to well within its work.
        std::thread::sleep(Duration::from_millis(dice.throw(start + 600)));
        muster.process.kill()?;
        at_work += usize::from(decided() > before);
        world.audit.wrong()?;
    }
    let muster = Muster::start(&cluster, "muster", &[])?;
    world.ends_well(&[muster.journal()], || muster.said())?;
    eprintln!("e2e: killed {KILLS} times, {at_work} of them after it had decided something; a start takes {start} ms");
    ensure!(at_work >= 10, "it was at work only {at_work} times");
    muster.stop()
}
