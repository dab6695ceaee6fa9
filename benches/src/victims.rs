//! Full clusters, where something has to leave before anything can come: the scenarios of `gen_cluster.py` as rows, and what a
//! cycle must decide in each. A time without that is worth nothing.
//!
//! Not known here: how victims are found, and which they should be.

use std::ops::RangeInclusive;

use muster_core::index::{ClassIdx, Idx, NodeIdx, QueueIdx};
use muster_core::outcome::{DecisionKind, Outcome};
use muster_core::snapshot::{GpuRequest, PodStatus, Snapshot};
use muster_core::units::MICRO_PER_GPU;
use oorandom::Rand32;

use crate::shapes::{self, DEPARTMENTS, GPUS_PER_NODE, LOW_PRIORITY, Pods, add_class, add_gang, add_queue, idle_nodes, team};

/// GPUs of the jobs that fill a cluster of mixed jobs.
const SIZES: [u32; 4] = [1, 2, 4, 8];
const HIGH_PRIORITY: i32 = 75;

/// A cluster, and what one cycle must make of it.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Name and size.
    pub name: String,
    /// The cluster. All five actions run, in KAI's order.
    pub rows: Snapshot,
    /// Waiting pods that must be placed.
    pub placed: usize,
    /// Running pods that may be lost.
    pub evicted: RangeInclusive<usize>,
    /// Running pods that may be given another place.
    pub moved: RangeInclusive<usize>,
}

/// What a cycle decided about pods.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Decided {
    /// Waiting pods that got a place.
    pub placed: usize,
    /// Running pods that lost theirs.
    pub evicted: usize,
    /// Running pods that got another one.
    pub moved: usize,
}

impl Decided {
    /// Counts an outcome. A pod that waited and is told to leave only loses the promise that it had.
    #[must_use]
    pub fn of(rows: &Snapshot, outcome: &Outcome) -> Self {
        let mut told = 0;
        let mut decided = Self::default();
        for decision in &outcome.decisions {
            let waits = rows.pods[decision.pod].status == PodStatus::Pending;
            match (decision.kind, waits) {
                (DecisionKind::Evict, true) => decided.placed -= 1,
                (DecisionKind::Evict, false) => told += 1,
                (DecisionKind::Bind | DecisionKind::Pipeline, true) => decided.placed += 1,
                (DecisionKind::Bind | DecisionKind::Pipeline, false) => decided.moved += 1,
            }
        }
        Self { evicted: told - decided.moved, ..decided }
    }
}

impl Scenario {
    /// Counts the outcome of a cycle.
    ///
    /// # Panics
    /// If it is not what the scenario asks for.
    #[must_use]
    pub fn judge(&self, outcome: &Outcome) -> Decided {
        let decided = Decided::of(&self.rows, outcome);
        let is_right =
            decided.placed == self.placed && self.evicted.contains(&decided.evicted) && self.moved.contains(&decided.moved);
        let Self { name, placed, evicted, moved, .. } = self;
        assert!(is_right, "{name}: {decided:?}; expected {placed} placed, {evicted:?} evicted, {moved:?} moved");
        decided
    }
}

/// One over-quota queue holds every GPU; a gang of half the nodes, whole, waits in a queue that deserves as much. Each of its
/// pods costs eight others.
#[must_use]
pub fn large(nodes: usize) -> Scenario {
    let mut held = one_holder(nodes, 0);
    let gang = nodes / 2;
    let class = add_class(&mut held.rows, GpuRequest::Whole(GPUS_PER_NODE));
    add_gang(&mut held.rows, held.starved, class, LOW_PRIORITY, Pods::Pending(gang));
    exactly(format!("large/{nodes}"), held.rows, gang, gang * 8)
}

/// Two queues deserve half each, one holds every GPU, and in the other as many one-GPU jobs wait as run. Half of them belong
/// there.
#[must_use]
pub fn many(nodes: usize) -> Scenario {
    let mut held = one_holder(nodes, gpus(nodes) / 2);
    for _ in 0..nodes * 8 {
        add_gang(&mut held.rows, held.starved, held.single, LOW_PRIORITY, Pods::Pending(1));
    }
    exactly(format!("many/{nodes}"), held.rows, nodes * 4, nodes * 4)
}

/// Like [`large`] with a gang of ten nodes, but the department of its queue deserves one GPU less than the gang asks for, and
/// nothing is left to share: nobody may be taken.
#[must_use]
pub fn hopeless(nodes: usize) -> Scenario {
    const GANG: i64 = 10 * GPUS_PER_NODE as i64;
    let mut rows = idle_nodes(nodes);
    let rich = add_queue(&mut rows, None, (gpus(nodes) - GANG + 1) * MICRO_PER_GPU);
    let holder = add_queue(&mut rows, Some(rich), gpus(nodes) * MICRO_PER_GPU);
    let poor = add_queue(&mut rows, None, (GANG - 1) * MICRO_PER_GPU);
    let starved = add_queue(&mut rows, Some(poor), GANG * MICRO_PER_GPU);
    fill_with_singles(&mut rows, holder);
    let whole = add_class(&mut rows, GpuRequest::Whole(GPUS_PER_NODE));
    add_gang(&mut rows, starved, whole, LOW_PRIORITY, Pods::Pending(10));
    exactly(format!("hopeless/{nodes}"), rows, 0, 0)
}

/// Half of the departments hold the whole cluster with jobs of one to eight GPUs; gangs of the other half wait.
#[must_use]
pub fn reclaim(nodes: usize) -> Scenario {
    let mut random = Rand32::new(1);
    let mut rows = shapes::empty(nodes);
    let teams = DEPARTMENTS * shapes::TEAMS;
    fill_with_mixed(&mut rows, teams / 2, &mut random);
    let asked = add_mixed(&mut rows, (teams / 2, teams), &SIZES, LOW_PRIORITY, &mut random);
    contended(format!("reclaim/{nodes}"), rows, asked)
}

/// All queues hold their share with jobs of one to eight GPUs; gangs of higher priority wait in the same queues.
#[must_use]
pub fn preempt(nodes: usize) -> Scenario {
    let mut random = Rand32::new(1);
    let mut rows = shapes::empty(nodes);
    let teams = DEPARTMENTS * shapes::TEAMS;
    fill_with_mixed(&mut rows, teams, &mut random);
    let asked = add_mixed(&mut rows, (0, teams), &[1, 2, 4], HIGH_PRIORITY, &mut random);
    contended(format!("preempt/{nodes}"), rows, asked)
}

/// Five to seven GPUs of every node run one-GPU jobs; jobs of whole nodes wait, and nobody needs to be lost for them.
#[must_use]
pub fn frag(nodes: usize) -> Scenario {
    let mut random = Rand32::new(1);
    let mut rows = shapes::empty(nodes);
    let single = add_class(&mut rows, GpuRequest::Whole(1));
    let teams = DEPARTMENTS * shapes::TEAMS;
    for node in 0..nodes {
        for _ in 0..5 + below(&mut random, 3) {
            add_gang(&mut rows, team(below(&mut random, teams)), single, LOW_PRIORITY, Pods::On(NodeIdx::new(node)));
        }
    }
    let whole = add_class(&mut rows, GpuRequest::Whole(GPUS_PER_NODE));
    let waiting = (20 * nodes).div_ceil(1250);
    for _ in 0..waiting {
        add_gang(&mut rows, team(below(&mut random, teams)), whole, LOW_PRIORITY, Pods::Pending(1));
    }
    Scenario { name: format!("frag/{nodes}"), rows, placed: waiting, evicted: 0..=0, moved: waiting * 5..=waiting * 7 }
}

/// A cluster of which one queue runs a one-GPU job on every GPU.
struct Held {
    rows: Snapshot,
    /// Deserves half the cluster, has nothing.
    starved: QueueIdx,
    /// One GPU.
    single: ClassIdx,
}

/// The holder deserves `quota` GPUs.
fn one_holder(nodes: usize, quota: i64) -> Held {
    let mut rows = idle_nodes(nodes);
    let parent = add_queue(&mut rows, None, gpus(nodes) * MICRO_PER_GPU);
    let holder = add_queue(&mut rows, Some(parent), quota * MICRO_PER_GPU);
    let starved = add_queue(&mut rows, Some(parent), gpus(nodes) / 2 * MICRO_PER_GPU);
    let single = fill_with_singles(&mut rows, holder);
    Held { rows, starved, single }
}

fn fill_with_singles(rows: &mut Snapshot, queue: QueueIdx) -> ClassIdx {
    let single = add_class(rows, GpuRequest::Whole(1));
    for node in rows.nodes.indices() {
        for _ in 0..GPUS_PER_NODE {
            add_gang(rows, queue, single, LOW_PRIORITY, Pods::On(node));
        }
    }
    single
}

/// Runs jobs of [`SIZES`] of the first `teams` queues until no GPU is free: each on the next node, round and round, that has
/// room.
fn fill_with_mixed(rows: &mut Snapshot, teams: usize, random: &mut Rand32) {
    let classes = SIZES.map(|size| add_class(rows, GpuRequest::Whole(size)));
    let mut open: Vec<(NodeIdx, u32)> = rows.nodes.indices().map(|node| (node, GPUS_PER_NODE)).collect();
    for last in (1..open.len()).rev() {
        open.swap(last, below(random, last + 1));
    }
    let mut at = 0;
    while !open.is_empty() {
        let choice = below(random, SIZES.len());
        let (ahead, behind) = (at..open.len(), 0..at);
        let Some(found) = ahead.chain(behind).find(|&i| open[i].1 >= SIZES[choice]) else { continue };
        add_gang(rows, team(below(random, teams)), classes[choice], LOW_PRIORITY, Pods::On(open[found].0));
        open[found].1 -= SIZES[choice];
        if open[found].1 == 0 {
            open.remove(found);
        }
        at = if open.is_empty() { 0 } else { (found + 1) % open.len() };
    }
}

/// What waits: pods, and their GPUs.
#[derive(Clone, Copy, Default)]
struct Asked {
    pods: usize,
    gpus: usize,
}

/// Adds gangs of so many pods of 1, 4 or 8 GPUs in the queues from..to, 64 pods for each 1,250 nodes.
fn add_mixed(rows: &mut Snapshot, queues: (usize, usize), gangs: &[u32], priority: i32, random: &mut Rand32) -> Asked {
    let sizes = [1, 4, 8];
    let classes = sizes.map(|size| add_class(rows, GpuRequest::Whole(size)));
    let mut left = (64 * rows.nodes.len()).div_ceil(1250);
    let mut asked = Asked::default();
    while left > 0 {
        let pods = left.min(gangs[below(random, gangs.len())] as usize);
        let queue = team(queues.0 + below(random, queues.1 - queues.0));
        let size = below(random, sizes.len());
        add_gang(rows, queue, classes[size], priority, Pods::Pending(pods));
        left -= pods;
        asked.pods += pods;
        asked.gpus += pods * sizes[size] as usize;
    }
    asked
}

/// With these seeds all that waits can be placed (`preempt` may take from the asker's queue only, which need not have whole
/// nodes). It needs as many GPUs as it asks for, of at most [`GPUS_PER_NODE`] a victim, and no more victims than GPUs.
fn contended(name: String, rows: Snapshot, asked: Asked) -> Scenario {
    let least = asked.gpus.div_ceil(GPUS_PER_NODE as usize);
    Scenario { name, rows, placed: asked.pods, evicted: least..=asked.gpus, moved: 0..=asked.gpus }
}

fn exactly(name: String, rows: Snapshot, placed: usize, evicted: usize) -> Scenario {
    Scenario { name, rows, placed, evicted: evicted..=evicted, moved: 0..=0 }
}

fn gpus(nodes: usize) -> i64 {
    i64::try_from(nodes).unwrap_or(i64::MAX) * i64::from(GPUS_PER_NODE)
}

/// A number below `bound`.
fn below(random: &mut Rand32, bound: usize) -> usize {
    random.rand_range(0..u32::try_from(bound).unwrap_or(u32::MAX)) as usize
}
