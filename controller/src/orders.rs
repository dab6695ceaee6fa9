//! What a cycle decided → what has to be written, netted out: a pod that was placed and told to leave within one cycle, or
//! told to leave and put back, is not touched; whoever was promised a place that is free in truth starts (`muster_core::net`).

use std::collections::{BTreeMap, HashMap, HashSet};

use muster_api::evictions;
use muster_api::names::ObjectName;
use muster_api::read::Loaded;
use muster_core::config::Action;
use muster_core::index::{GangIdx, GroupIdx, Idx as _, PodIdx};
use muster_core::net::Net;
use muster_core::outcome::{Decision, DecisionKind, Eviction, Outcome};
use muster_core::snapshot::{GpuRequest, PodStatus};
use muster_core::units::{MICRO_PER_GPU, portion_mib};
use serde_json::Value;

/// What a pod gets of GPUs, in the words of the contract (wire-contract.md §1.3).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Received {
    /// `Regular`, `Fraction` or `MigInstance`.
    pub kind: &'static str,
    /// Devices.
    pub count: i64,
    /// Share of each, two decimals, never less than the share.
    pub portion: String,
}

/// A pod is to be bound.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bind {
    /// Which.
    pub pod: ObjectName,
    /// Its uid.
    pub uid: String,
    /// Where.
    pub node: String,
    /// The shared GPUs it takes; none for plain pods.
    pub groups: Vec<String>,
    /// What it gets.
    pub received: Received,
}

/// A pod is to leave.
#[derive(Clone, PartialEq, Debug)]
pub struct Leave {
    /// Which.
    pub pod: ObjectName,
    /// Its uid.
    pub uid: String,
    /// Where it is.
    pub node: String,
    /// Its pod group.
    pub gang: ObjectName,
    /// Its queue.
    pub queue: String,
    /// For whom; `None`: its gang is stale.
    pub asker: Option<ObjectName>,
    /// The asker's queue.
    pub asker_queue: Option<String>,
    /// By which action.
    pub action: Action,
    /// By which rule: code, sentence, numbers.
    pub rule: Value,
    /// The rule as a sentence.
    pub sentence: String,
    /// Where it is to run in future.
    pub moves_to: Option<String>,
}

/// A pod gets a node once what is leaving there is gone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Promise {
    /// Which.
    pub pod: ObjectName,
    /// Its uid.
    pub uid: String,
    /// Where.
    pub node: String,
}

/// Times to be written on a pod group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Marks {
    /// It begins to run.
    pub starts: bool,
    /// It was evicted from, for others.
    pub evicted: bool,
    /// It is below its minimum, or no longer.
    pub stale: Option<bool>,
}

/// Everything that a cycle wants written.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Orders {
    /// In the order of decision.
    pub binds: Vec<Bind>,
    /// In the order of decision; those for one asker are consecutive.
    pub leaves: Vec<Leave>,
    /// Pods that wait for what leaves.
    pub promises: Vec<Promise>,
    /// By pod group.
    pub marks: BTreeMap<ObjectName, Marks>,
    /// Gangs that got pods placed, by action.
    pub placed_by: BTreeMap<&'static str, u64>,
    /// Those that are counted there.
    placed: HashSet<(&'static str, GangIdx)>,
}

/// Makes orders. `new_group` names a GPU that is to be shared from now on; `is_stale` is told by the scheduler.
pub fn orders(
    loaded: &Loaded,
    (outcome, net): (&Outcome, &Net),
    mut new_group: impl FnMut() -> String,
    is_stale: impl Fn(GangIdx) -> bool,
) -> Orders {
    let mut last: HashMap<PodIdx, usize> = HashMap::with_capacity(outcome.decisions.len());
    for (at, decision) in outcome.decisions.iter().enumerate() {
        last.insert(decision.pod, at);
    }
    let pods = |decisions: &[Decision]| decisions.iter().map(|decision| decision.pod).collect::<HashSet<PodIdx>>();
    let (starts, held_back) = (pods(&net.starts), pods(&net.held_back));
    // Whoever was moved and then lost the new place, too, leaves once: for the first asker, by the rule that took the place.
    let mut evictions: HashMap<PodIdx, Eviction> = HashMap::new();
    let evicted = outcome.decisions.iter().filter(|decision| decision.kind == DecisionKind::Evict);
    for (decision, &eviction) in evicted.zip(&outcome.evictions) {
        evictions.entry(decision.pod).and_modify(|first| first.why = eviction.why).or_insert(eviction);
    }
    let mut names = GroupNames { loaded, new: HashMap::new(), make: &mut new_group };
    let mut orders = Orders::default();
    for (at, decision) in outcome.decisions.iter().enumerate() {
        let end = &outcome.decisions[last[&decision.pod]];
        let row = &loaded.snapshot.pods[decision.pod];
        let held = row.node.is_some() && !matches!(row.status, PodStatus::Pending | PodStatus::Gated);
        let is_last = last[&decision.pod] == at;
        match (decision.kind, held) {
            // What was nowhere before starts somewhere.
            (DecisionKind::Bind, false) if is_last && !held_back.contains(&decision.pod) => {
                orders.bind(loaded, decision, names.all(outcome, decision));
            }
            (DecisionKind::Pipeline, false) if is_last && starts.contains(&decision.pod) => {
                orders.bind(loaded, decision, names.all(outcome, decision));
            }
            (DecisionKind::Bind | DecisionKind::Pipeline, false) if is_last => orders.promise(loaded, decision),
            // What was somewhere leaves, unless it ends where it was.
            (DecisionKind::Evict, true) if !stays(row.node == Some(end.node), end) => {
                if let Some(eviction) = evictions.remove(&decision.pod) {
                    orders.leave(loaded, decision, &eviction, (!is_last).then_some(end));
                }
            }
            _ => {}
        }
    }
    orders.mark_stale(loaded, is_stale);
    orders
}

/// Whether a pod that had a place ends in it as if nothing had been.
fn stays(same_node: bool, end: &Decision) -> bool {
    same_node && end.kind == DecisionKind::Bind
}

struct GroupNames<'a> {
    loaded: &'a Loaded,
    new: HashMap<GroupIdx, String>,
    make: &'a mut dyn FnMut() -> String,
}

impl GroupNames<'_> {
    fn all(&mut self, outcome: &Outcome, decision: &Decision) -> Vec<String> {
        let known = &self.loaded.names.groups;
        let name = |&group: &GroupIdx| {
            if group.at() < known.len() {
                known[group].clone()
            } else {
                self.new.entry(group).or_insert_with(|| (self.make)()).clone()
            }
        };
        outcome.groups_of(decision).iter().map(name).collect()
    }
}

impl Orders {
    fn bind(&mut self, loaded: &Loaded, decision: &Decision, groups: Vec<String>) {
        let names = &loaded.names;
        if let Some(gang) = loaded.snapshot.pods[decision.pod].gang {
            let before = loaded.snapshot.gangs[gang].pods.iter().any(|pod| is_active(loaded.snapshot.pods[pod].status));
            let action = decision.action.name();
            if self.placed.insert((action, gang)) {
                *self.placed_by.entry(action).or_default() += 1;
            }
            // One that runs already has nothing to be marked with: an empty mark would be a write for nothing.
            if !before {
                self.marks.entry(names.gangs[gang].clone()).or_default().starts = true;
            }
        }
        self.binds.push(Bind {
            pod: names.pods[decision.pod].clone(),
            uid: names.pod_uids[decision.pod].clone(),
            node: names.nodes[decision.node].clone(),
            received: received(loaded, decision),
            groups,
        });
    }

    fn promise(&mut self, loaded: &Loaded, decision: &Decision) {
        let names = &loaded.names;
        let (pod, uid) = (names.pods[decision.pod].clone(), names.pod_uids[decision.pod].clone());
        self.promises.push(Promise { pod, uid, node: names.nodes[decision.node].clone() });
    }

    fn leave(&mut self, loaded: &Loaded, decision: &Decision, eviction: &Eviction, later: Option<&Decision>) {
        let names = &loaded.names;
        let Some(gang) = loaded.snapshot.pods[decision.pod].gang else { return };
        if decision.action != Action::StaleGangEviction {
            self.marks.entry(names.gangs[gang].clone()).or_default().evicted = true;
        }
        self.leaves.push(Leave {
            pod: names.pods[decision.pod].clone(),
            uid: names.pod_uids[decision.pod].clone(),
            node: names.nodes[decision.node].clone(),
            gang: names.gangs[gang].clone(),
            queue: names.gang_queues[gang].clone(),
            asker: eviction.asker.map(|asker| names.gangs[asker].clone()),
            asker_queue: eviction.asker.map(|asker| names.gang_queues[asker].clone()),
            action: decision.action,
            rule: evictions::rule(&eviction.why, names),
            sentence: evictions::sentence(&eviction.why, names),
            moves_to: later.filter(|end| end.kind != DecisionKind::Evict).map(|end| names.nodes[end.node].clone()),
        });
    }

    fn mark_stale(&mut self, loaded: &Loaded, is_stale: impl Fn(GangIdx) -> bool) {
        for gang in loaded.snapshot.gangs.indices() {
            let known = loaded.snapshot.gangs[gang].times.stale.is_some();
            let stale = is_stale(gang);
            if stale != known {
                self.marks.entry(loaded.names.gangs[gang].clone()).or_default().stale = Some(stale);
            }
        }
    }
}

const fn is_active(status: PodStatus) -> bool {
    matches!(status, PodStatus::Binding | PodStatus::Bound | PodStatus::Running | PodStatus::Releasing)
}

fn received(loaded: &Loaded, decision: &Decision) -> Received {
    let class = &loaded.snapshot.classes[loaded.snapshot.pods[decision.pod].class];
    let mig = class.extra.iter().any(|(dim, _)| loaded.names.dims[*dim].starts_with("nvidia.com/mig-"));
    let regular = |kind, count, portion: &str| Received { kind, count, portion: portion.to_owned() };
    match class.gpu {
        GpuRequest::None if mig => regular("MigInstance", 0, "0.00"),
        GpuRequest::None => regular("Regular", 0, "0.00"),
        GpuRequest::Whole(count) => regular("Regular", count.into(), "1.00"),
        GpuRequest::Fraction { portion, devices } => {
            Received { kind: "Fraction", count: devices.into(), portion: two_decimals(portion, MICRO_PER_GPU) }
        }
        GpuRequest::Memory { mib, devices } => {
            let card = loaded.snapshot.nodes[decision.node].card_mib.unwrap_or(mib);
            Received {
                kind: "Fraction",
                count: devices.into(),
                portion: two_decimals(mib.min(card), portion_mib(MICRO_PER_GPU, card)),
            }
        }
    }
}

/// `part ÷ whole`, rounded up, so that nobody is told less than is taken.
fn two_decimals(part: i64, whole: i64) -> String {
    let (part, whole) = (i128::from(part), i128::from(whole.max(1)));
    let hundredths = (part * 100 + whole - 1) / whole;
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_rounded_up() {
        for (part, whole, text) in [
            (500_000, 1_000_000, "0.50"),
            (333_333, 1_000_000, "0.34"),
            (1, 81_920, "0.01"),
            (81_920, 81_920, "1.00"),
            (0, 0, "0.00"),
        ] {
            assert_eq!(two_decimals(part, whole), text);
        }
    }
}
