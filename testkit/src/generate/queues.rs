//! The queue tree: quotas that sum up to the cluster at every level, some limits, uneven demand.

use oorandom::Rand32;

use super::{Gpus, PriorityClass};

/// One queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct QueueDraft {
    pub(super) name: String,
    /// Number of the queue above.
    pub(super) parent: Option<usize>,
    pub(super) quota: u64,
    pub(super) limit: Option<u64>,
}

/// All queues, level by level from the roots; the leaves are last.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct QueueTree {
    pub(super) queues: Vec<QueueDraft>,
    first_leaf: usize,
    /// Running sums of the leaves' shares of the running and of the pending work.
    running: Vec<f32>,
    pending: Vec<f32>,
    /// Thousandths of a GPU that the running work of each leaf holds: all of it, and what may not be evicted.
    held_milli: Vec<[u64; 2]>,
}

impl QueueTree {
    /// A tree of `depth` levels with `leaves` leaves over a cluster of `gpus`.
    pub(super) fn new(leaves: u32, depth: u32, gpus: u64, rng: &mut Rand32) -> Self {
        let mut queues: Vec<QueueDraft> = Vec::new();
        let mut above = 0..0;
        for level in 0..depth {
            let count = level_size(leaves, level, depth);
            let start = queues.len();
            let kind = match depth - level {
                1 => "team".to_owned(),
                2 => "dept".to_owned(),
                _ => format!("unit{level}"),
            };
            for i in 0..count as usize {
                let parent = (!above.is_empty()).then(|| above.start + i * above.len() / count as usize);
                queues.push(QueueDraft { name: format!("{kind}-{i:04}"), parent, quota: 0, limit: None });
            }
            above = start..queues.len();
        }
        let first_leaf = above.start;
        for (i, q) in above.enumerate() {
            // Exact: the quotas of all leaves sum up to all GPUs.
            let (i, leaves) = (i as u64, u64::from(leaves));
            let quota = gpus * (i + 1) / leaves - gpus * i / leaves;
            let limit = (i % 4 == 3).then(|| quota + quota.div_ceil(4));
            queues[q].quota = quota;
            queues[q].limit = limit;
            let mut up = queues[q].parent;
            while let Some(p) = up {
                queues[p].quota += quota;
                up = queues[p].parent;
            }
        }
        let running = uneven(leaves, rng);
        let pending = uneven(leaves, rng);
        Self { queues, first_leaf, running, pending, held_milli: vec![[0; 2]; leaves as usize] }
    }

    /// How many queues there are on all levels.
    pub(super) fn len(&self) -> usize {
        self.queues.len()
    }

    /// The queue of a leaf.
    pub(super) fn leaf(&self, leaf: u32) -> &QueueDraft {
        &self.queues[self.first_leaf + leaf as usize]
    }

    /// A leaf for waiting work.
    pub(super) fn draw_pending(&self, rng: &mut Rand32) -> u32 {
        draw(&self.pending, rng)
    }

    /// A leaf that may hold this much more running work by its limit and its quota, if a few draws find one.
    pub(super) fn draw_running(&self, milli: u64, class: PriorityClass, rng: &mut Rand32) -> Option<u32> {
        (0..16).map(|_| draw(&self.running, rng)).find(|&leaf| {
            let QueueDraft { quota, limit, .. } = self.leaf(leaf);
            let [all, pinned] = self.held_milli[leaf as usize];
            limit.is_none_or(|limit| all + milli <= limit * 1000) && (class.preemptible() || pinned + milli <= quota * 1000)
        })
    }

    /// Charges running work to a leaf.
    pub(super) fn charge(&mut self, leaf: u32, milli: u64, class: PriorityClass) {
        let held = &mut self.held_milli[leaf as usize];
        held[0] += milli;
        held[1] += if class.preemptible() { 0 } else { milli };
    }

    /// Takes back what [`charge`](Self::charge) did.
    pub(super) fn discharge(&mut self, leaf: u32, milli: u64, class: PriorityClass) {
        let held = &mut self.held_milli[leaf as usize];
        held[0] -= milli;
        held[1] -= if class.preemptible() { 0 } else { milli };
    }
}

/// Thousandths of a GPU that `pods` pods ask for.
pub(super) fn milli(gpus: Gpus, pods: u32) -> u64 {
    u64::from(pods)
        * match gpus {
            Gpus::Whole(count) => u64::from(count) * 1000,
            Gpus::Milli(milli) => u64::from(milli),
        }
}

/// Queues on a level: the levels grow by equal factors up to `leaves` on the last.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most `leaves`")]
fn level_size(leaves: u32, level: u32, depth: u32) -> u32 {
    let size = f64::from(leaves).powf(f64::from(level + 1) / f64::from(depth));
    if level + 1 == depth { leaves } else { (size.round() as u32).clamp(1, leaves) }
}

/// Running sums of weights from 1 to 8, drawn evenly on a logarithmic scale.
fn uneven(count: u32, rng: &mut Rand32) -> Vec<f32> {
    let mut sum = 0.0;
    (0..count)
        .map(|_| {
            sum += [1.0, 2.0, 4.0, 8.0][rng.rand_range(0..4) as usize];
            sum
        })
        .collect()
}

#[expect(clippy::cast_possible_truncation, reason = "at most 100000 leaves")]
fn draw(sums: &[f32], rng: &mut Rand32) -> u32 {
    let point = rng.rand_float() * sums[sums.len() - 1];
    sums.partition_point(|&sum| sum <= point).min(sums.len() - 1) as u32
}
