//! The eviction brake: at most so many pods told to leave in a cycle, in all and from each leaf queue. An asker whose victims
//! would exceed it gets nobody, whoever comes after it may still get some: no batch is cut in two.

use crate::actions::Plan;
use crate::config::Config;
use crate::explain::Unhelped;
use crate::index::{Col, PodIdx, QueueIdx};
use crate::tables::Tables;

/// How many pods were told to leave so far in this cycle.
#[derive(Clone, Debug, Default)]
pub struct Brake {
    all: u32,
    of: Col<QueueIdx, u32>,
    asked: Col<QueueIdx, u32>,
}

impl Brake {
    /// A cycle begins.
    pub fn begin(&mut self, tables: &Tables) {
        self.all = 0;
        self.of.reset(tables.queues.parent.len(), 0);
        self.asked.reset(tables.queues.parent.len(), 0);
    }

    /// Counts a pod that was told to leave.
    pub fn count(&mut self, tables: &Tables, pod: PodIdx) {
        self.all += 1;
        if let Some(queue) = queue_of(tables, pod) {
            self.of[queue] += 1;
        }
    }

    /// Whether these pods were too many, as far as they have to leave where they were.
    pub fn refuses<'a>(&mut self, plan: &Plan<'_>, pods: impl Iterator<Item = &'a PodIdx>) -> Option<Unhelped> {
        let rules = &plan.config.victims;
        if rules.evictions_max.is_none() && rules.queue_evictions_max.is_none() {
            return None;
        }
        let tables = &*plan.tables;
        let stays = |pod: PodIdx| tables.pods.evicted_from[pod].is_none() || tables.pods.is_home(pod);
        self.refuses_all(tables, plan.config, pods.copied().filter(|&pod| !stays(pod)))
    }

    /// Whether all of these pods would be too many.
    pub fn refuses_all(&mut self, tables: &Tables, config: &Config, pods: impl Iterator<Item = PodIdx>) -> Option<Unhelped> {
        let rules = &config.victims;
        self.asked.reset(tables.queues.parent.len(), 0);
        let mut all = 0;
        let mut over = None;
        for pod in pods {
            all += 1;
            let Some(queue) = queue_of(tables, pod) else { continue };
            self.asked[queue] += 1;
            if let Some(max) = rules.queue_evictions_max.filter(|&max| self.of[queue] + self.asked[queue] > max) {
                over = Some((queue, max));
            }
        }
        if let Some(max) = rules.evictions_max.filter(|&max| all > 0 && self.all + all > max) {
            return Some(Unhelped::Brake { queue: None, max, so_far: self.all, needed: all });
        }
        let (queue, max) = over?;
        Some(Unhelped::Brake { queue: Some(queue), max, so_far: self.of[queue], needed: self.asked[queue] })
    }
}

fn queue_of(tables: &Tables, pod: PodIdx) -> Option<QueueIdx> {
    tables.gangs.queue[tables.pods.gang[pod]?].ok()
}
