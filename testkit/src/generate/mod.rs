//! Seeded clusters and workloads of any size, as snapshots that `muster plan` and KAI's own tool read.
//!
//! A [`Shape`] says how large and how mixed; [`Cluster::new`] draws a compact plan from its seed (some bytes a pod), and
//! [`Cluster::write`] streams it out as Kubernetes objects. The same shape gives the same bytes on every machine: the generator
//! of random numbers is PCG32 with fixed output (`oorandom`), no hash map is iterated and no clock is read.
//! Not known here: the scheduler and its rows.

mod fill;
mod mix;
pub mod objects;
mod queues;
mod write;

use std::fmt;

use oorandom::Rand32;

pub use mix::Mix;
use queues::QueueTree;

/// What to generate. Every field is used as it stands; [`Shape::check`] says whether it can be.
#[derive(Clone, PartialEq, Debug)]
pub struct Shape {
    /// Nodes.
    pub nodes: u32,
    /// GPUs of each node.
    pub gpus: u32,
    /// Racks that the nodes are spread over evenly; eight racks are a block.
    pub racks: u32,
    /// Leaf queues.
    pub queues: u32,
    /// Levels of the queue tree, 1: all queues are leaves.
    pub depth: u32,
    /// Kinds of work, running and pending.
    pub mix: Mix,
    /// Share of the GPUs that running work holds, 0..=1.
    pub fill: f64,
    /// Pods that wait.
    pub pending: u32,
    /// Share of the nodes that are cordoned and empty, 0..=1.
    pub cordoned: f64,
    /// Where all draws come from.
    pub seed: u64,
    /// `config.actions` of the snapshot.
    pub actions: String,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            nodes: 1250,
            gpus: 8,
            racks: 79,
            queues: 32,
            depth: 2,
            mix: Mix::default(),
            fill: 0.8,
            pending: 1000,
            cordoned: 0.0,
            seed: 1,
            actions: objects::DEFAULT_ACTIONS.to_owned(),
        }
    }
}

/// A field of a [`Shape`] that cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadShape {
    /// The field, by its option's name.
    pub field: &'static str,
    /// What it was.
    pub value: String,
    /// What it has to be.
    pub expected: &'static str,
}

impl fmt::Display for BadShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--{}: {}: expected {}", self.field, self.value, self.expected)
    }
}

impl std::error::Error for BadShape {}

impl Shape {
    /// Whether a cluster of this shape can be made. Fails with the first field that is out of range.
    pub fn check(&self) -> Result<(), BadShape> {
        let tests = [
            ("nodes", self.nodes.to_string(), self.nodes <= 2_000_000, "at most 2000000 nodes"),
            ("gpus", self.gpus.to_string(), self.gpus <= 64, "0 to 64 GPUs a node"),
            ("racks", self.racks.to_string(), self.racks >= 1, "at least 1 rack"),
            ("queues", self.queues.to_string(), (1..=100_000).contains(&self.queues), "1 to 100000 leaf queues"),
            ("depth", self.depth.to_string(), (1..=16).contains(&self.depth), "1 to 16 levels"),
            ("fill", self.fill.to_string(), (0.0..=1.0).contains(&self.fill), "a share from 0 to 1"),
            ("pending", self.pending.to_string(), self.pending <= 20_000_000, "at most 20000000 pods"),
            ("cordoned", self.cordoned.to_string(), (0.0..=1.0).contains(&self.cordoned), "a share from 0 to 1"),
            ("mix", self.mix.to_string(), self.mix.is_usable(), "weights of 0 and more, not all of them 0"),
        ];
        match tests.into_iter().find(|(_, _, good, _)| !good) {
            Some((field, value, _, expected)) => Err(BadShape { field, value, expected }),
            None => Ok(()),
        }
    }
}

/// What each pod of a job asks of GPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Gpus {
    /// Whole ones; 0: none.
    Whole(u32),
    /// Thousandths of one.
    Milli(u32),
}

/// Where a running pod is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    /// The node's number.
    pub(crate) node: u32,
    /// The shared card's number, for pods that ask for a part of one.
    pub(crate) card: Option<u32>,
}

/// A pod group and its equal pods.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Job {
    pub(crate) leaf: u32,
    pub(crate) class: PriorityClass,
    pub(crate) pods: u32,
    pub(crate) min: u32,
    pub(crate) gpus: Gpus,
    /// Empty: all pods wait. Else one place for each pod.
    pub(crate) places: Vec<Place>,
}

/// KAI's own priority classes: only the first two may be evicted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PriorityClass {
    Train,
    BuildPreemptible,
    Build,
    Inference,
}

impl PriorityClass {
    pub(crate) const ALL: [Self; 4] = [Self::Train, Self::BuildPreemptible, Self::Build, Self::Inference];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::BuildPreemptible => "build-preemptible",
            Self::Build => "build",
            Self::Inference => "inference",
        }
    }

    pub(crate) const fn value(self) -> i32 {
        match self {
            Self::Train => 50,
            Self::BuildPreemptible => 75,
            Self::Build => 100,
            Self::Inference => 125,
        }
    }

    pub(crate) const fn preemptible(self) -> bool {
        self.value() < 100
    }
}

/// A drawn cluster: compact, ready to be written.
#[derive(Clone, PartialEq, Debug)]
pub struct Cluster {
    shape: Shape,
    queues: QueueTree,
    cordoned: Vec<bool>,
    jobs: Vec<Job>,
    /// The node of each shared card.
    cards: Vec<u32>,
}

/// How much a cluster holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Nodes.
    pub nodes: usize,
    /// GPUs of all nodes.
    pub gpus: u64,
    /// Queues of all levels.
    pub queues: usize,
    /// Pod groups.
    pub gangs: usize,
    /// Pods that run.
    pub running: u64,
    /// Pods that wait.
    pub pending: u64,
}

impl Cluster {
    /// Draws a cluster. Fails as [`Shape::check`] does.
    pub fn new(shape: &Shape) -> Result<Self, BadShape> {
        shape.check()?;
        // One stream for each concern: more pending pods leave the nodes and the running work as they were.
        let stream = |number| Rand32::new_inc(shape.seed, number);
        let total = u64::from(shape.nodes) * u64::from(shape.gpus);
        let mut queues = QueueTree::new(shape.queues, shape.depth, total, &mut stream(1));
        let cordoned = draw_cordoned(shape, &mut stream(2));
        let (mut jobs, cards) = fill::running(shape, &cordoned, &mut queues, &mut stream(3));
        let mut rng = stream(4);
        let mut left = shape.pending;
        while left > 0 {
            let draft = shape.mix.draw(shape.gpus, left, &mut rng);
            let leaf = queues.draw_pending(&mut rng);
            left -= draft.pods;
            jobs.push(Job { leaf, class: draft.class, pods: draft.pods, min: draft.min, gpus: draft.gpus, places: Vec::new() });
        }
        Ok(Self { shape: shape.clone(), queues, cordoned, jobs, cards })
    }

    /// How much it holds.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let pods =
            |running: bool| self.jobs.iter().filter(|job| job.places.is_empty() != running).map(|job| u64::from(job.pods)).sum();
        Counts {
            nodes: self.cordoned.len(),
            gpus: u64::from(self.shape.nodes) * u64::from(self.shape.gpus),
            queues: self.queues.len(),
            gangs: self.jobs.len(),
            running: pods(true),
            pending: pods(false),
        }
    }
}

fn draw_cordoned(shape: &Shape, rng: &mut Rand32) -> Vec<bool> {
    let mut cordoned = vec![false; shape.nodes as usize];
    let mut left = share_of(shape.cordoned, u64::from(shape.nodes));
    while left > 0 {
        let node = rng.rand_range(0..shape.nodes) as usize;
        left -= u64::from(!cordoned[node]);
        cordoned[node] = true;
    }
    cordoned
}

/// `share` of `total`, rounded down.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a count is a count")]
pub(crate) fn share_of(share: f64, total: u64) -> u64 {
    (share * total as f64) as u64
}

/// A number below `bound` > 0.
pub(crate) fn below(bound: usize, rng: &mut Rand32) -> usize {
    rng.rand_range(0..index(bound)) as usize
}

pub(crate) fn index(i: usize) -> u32 {
    u32::try_from(i).expect("a generated cluster has at most u32::MAX objects of a kind")
}

#[cfg(test)]
mod tests;
