//! `muster explain`: one cycle, then for one gang (or all that wait) where it is, why it waits, and what would help.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use muster_api::evictions::{code as eviction_code, rule, sentence as eviction_sentence};
use muster_api::read::Loaded;
use muster_api::report;
use muster_api::sentences::{Facts, advice, code, sentence, visible};
use muster_core::index::{GangIdx, NodeIdx, PodIdx};
use muster_core::outcome::{Decision, DecisionKind, Eviction, PendingGang};
use muster_core::snapshot::PodStatus;
use serde_json::{Value, json};

use crate::args::{Explain, Format};
use crate::cycle::{self, Planned};
use crate::fault::Fault;
use crate::text::{plural, wrap_into};
use crate::{input, sink};

/// Loads, plans, explains.
pub(crate) fn run(args: &Explain) -> Result<(), Fault> {
    let (loaded, planned) = cycle::in_pool(args.input.threads, || {
        let loaded = input::load(&args.input)?;
        let planned = cycle::run(&loaded.snapshot, args.input.verify)?;
        Ok::<_, Fault>((loaded, planned))
    })??;
    let gangs = match &args.gang {
        Some(name) => vec![find(name, &loaded).map_err(|message| one_error(&message, &args.input.snapshot))?],
        None => planned.outcome.pending.iter().map(|pending| pending.gang).collect(),
    };
    let stories = Stories::new(&loaded, &planned);
    let bytes = match args.output {
        Format::Json => {
            let list: Vec<Value> = gangs.iter().map(|&gang| stories.json(gang)).collect();
            format!("{}\n", json!({ "gangs": list })).into_bytes()
        }
        Format::Table if gangs.is_empty() => b"No gang waits.\n".to_vec(),
        Format::Table => {
            let parts: Vec<String> = gangs.iter().map(|&gang| stories.text(gang)).collect();
            parts.join("\n").into_bytes()
        }
    };
    sink::print(&bytes)
}

/// How many names are offered in place of an unknown one.
const SUGGESTIONS: usize = 5;

/// A message with the summary line that ends every refusal of an input.
fn one_error(message: &str, input: &Path) -> Fault {
    let input = if input == Path::new("-") { "standard input".into() } else { input.display().to_string() };
    Fault::bad_input(format!("{message}\n1 error in {input}"))
}

/// The gang of that name, or why there is none. Without `/` the name has to be unique among the namespaces.
fn find(name: &str, loaded: &Loaded) -> Result<GangIdx, String> {
    let gangs = &loaded.names.gangs;
    let full = name.contains('/');
    let spelled = |gang: GangIdx| if full { gangs[gang].to_string() } else { gangs[gang].name.clone() };
    let found: Vec<GangIdx> = gangs.indices().filter(|&gang| spelled(gang) == name).collect();
    match found[..] {
        [one] => Ok(one),
        [] => {
            let mut close: Vec<(f64, String)> = gangs
                .indices()
                .map(|gang| (strsim::jaro_winkler(&spelled(gang), name), gangs[gang].to_string()))
                .filter(|&(likeness, _)| likeness > 0.8)
                .collect();
            close.sort_by(|(a, x), (b, y)| b.total_cmp(a).then_with(|| x.cmp(y)));
            close.truncate(SUGGESTIONS);
            let close: Vec<String> = close.into_iter().map(|(_, name)| name).collect();
            let hint = match close.len() {
                0 => format!("the snapshot has {}", plural(gangs.len(), "pod group", "pod groups")),
                _ => format!("did you mean {}?", close.join(", ")),
            };
            Err(format!("PodGroup {name}: not in this snapshot; {hint}"))
        }
        _ => {
            let names: Vec<String> = found.iter().take(SUGGESTIONS).map(|&gang| gangs[gang].to_string()).collect();
            Err(format!("PodGroup {name}: in several namespaces; name one of {}", names.join(", ")))
        }
    }
}

/// Where the pods of gangs are at the end of the cycle.
struct Stories<'a> {
    loaded: &'a Loaded,
    planned: &'a Planned,
    pending: BTreeMap<GangIdx, &'a PendingGang>,
    /// The last decision on each pod that was decided on.
    decided: BTreeMap<PodIdx, &'a Decision>,
    /// What is leaving each node: terminating at the start, or evicted.
    leaving: BTreeMap<NodeIdx, Vec<PodIdx>>,
}

/// A gang's pods, by what becomes of them: those on a node with their node.
#[derive(Default)]
struct Fates {
    running: BTreeMap<NodeIdx, Vec<PodIdx>>,
    placed: BTreeMap<NodeIdx, Vec<PodIdx>>,
    promised: BTreeMap<NodeIdx, Vec<PodIdx>>,
    leaving: BTreeMap<NodeIdx, Vec<PodIdx>>,
    waiting: usize,
    ended: usize,
}

impl<'a> Stories<'a> {
    fn new(loaded: &'a Loaded, planned: &'a Planned) -> Self {
        let mut decided = BTreeMap::new();
        let mut leaving: BTreeMap<NodeIdx, Vec<PodIdx>> = BTreeMap::new();
        for (pod, row) in loaded.snapshot.pods.entries() {
            if let (PodStatus::Releasing | PodStatus::StuckInReleasing, Some(node)) = (row.status, row.node) {
                leaving.entry(node).or_default().push(pod);
            }
        }
        for decision in &planned.outcome.decisions {
            decided.insert(decision.pod, decision);
            if decision.kind == DecisionKind::Evict {
                leaving.entry(decision.node).or_default().push(decision.pod);
            }
        }
        let pending = planned.outcome.pending.iter().map(|pending| (pending.gang, pending)).collect();
        Self { loaded, planned, pending, decided, leaving }
    }

    const fn facts(&self) -> Facts<'a> {
        Facts { snapshot: &self.loaded.snapshot, names: &self.loaded.names }
    }

    fn fates(&self, gang: GangIdx) -> Fates {
        let mut fates = Fates::default();
        for pod in self.loaded.snapshot.gangs[gang].pods.iter() {
            let row = &self.loaded.snapshot.pods[pod];
            let by_node = match (self.decided.get(&pod), row.status, row.node) {
                (Some(decision), ..) => match decision.kind {
                    DecisionKind::Bind => Some((&mut fates.placed, decision.node)),
                    DecisionKind::Pipeline => Some((&mut fates.promised, decision.node)),
                    DecisionKind::Evict => Some((&mut fates.leaving, decision.node)),
                },
                (None, PodStatus::Releasing | PodStatus::StuckInReleasing, Some(node)) => Some((&mut fates.leaving, node)),
                (None, PodStatus::Running | PodStatus::Bound | PodStatus::Binding, Some(node)) => {
                    Some((&mut fates.running, node))
                }
                _ => None,
            };
            match (by_node, row.status) {
                (Some((nodes, node)), _) => nodes.entry(node).or_default().push(pod),
                (None, PodStatus::Pending | PodStatus::Gated) => fates.waiting += 1,
                (None, _) => fates.ended += 1,
            }
        }
        fates
    }

    /// One paragraph a fact.
    fn text(&self, gang: GangIdx) -> String {
        let names = &self.loaded.names;
        let row = &self.loaded.snapshot.gangs[gang];
        let fates = self.fates(gang);
        let mut out = String::new();
        let kind = if row.preemptible { "may be evicted" } else { "may not be evicted" };
        let queue = &names.gang_queues[gang];
        let pods = plural(row.pods.len(), "pod", "pods");
        let about = format!("{pods}, queue {queue}, priority {}, {kind}", row.priority);
        let _ = writeln!(out, "Gang {}", visible(&names.gangs[gang].to_string()));
        wrap_into(&mut out, "  ", &about);
        self.places_into(&mut out, &fates.running, "already on a node");
        self.places_into(&mut out, &fates.placed, "placed in this cycle");
        self.places_into(&mut out, &fates.leaving, "leaving");
        self.evictions_into(&mut out, gang);
        self.promises_into(&mut out, &fates);
        if fates.ended > 0 {
            let _ = writeln!(out, "  {} ended, or hold nothing", plural(fates.ended, "pod", "pods"));
        }
        let Some(pending) = self.pending.get(&gang) else {
            if fates.waiting == 0 {
                out.push_str("  Nothing of it waits.\n");
            }
            return out;
        };
        let wait = if pending.pods == 1 { "waits" } else { "wait" };
        let _ = writeln!(out, "  {} {wait}:", plural(pending.pods as usize, "pod", "pods"));
        for reason in self.planned.outcome.reasons_of(pending) {
            wrap_into(&mut out, "  - ", &format!("{} [{}]", sentence(reason, gang, self.facts()), code(reason)));
            if let Some(advice) = advice(reason, gang, self.facts()) {
                wrap_into(&mut out, "    What helps: ", &advice);
            }
        }
        out
    }

    fn places_into(&self, out: &mut String, nodes: &BTreeMap<NodeIdx, Vec<PodIdx>>, what: &str) {
        if nodes.is_empty() {
            return;
        }
        let pods: usize = nodes.values().map(Vec::len).sum();
        let list: Vec<String> =
            nodes.iter().map(|(&node, pods)| format!("{} ({})", self.loaded.names.nodes[node], pods.len())).collect();
        let text = format!("{} {what}: {}", plural(pods, "pod", "pods"), list.join(", "));
        wrap_into(out, "  ", &text);
    }

    /// The gang's pods that are told to leave, for whom, and by which rule.
    fn evictions(&self, gang: GangIdx) -> impl Iterator<Item = (&'a Decision, &'a Eviction)> {
        let (outcome, pods) = (&self.planned.outcome, &self.loaded.snapshot.pods);
        let evicted = outcome.decisions.iter().filter(|decision| decision.kind == DecisionKind::Evict);
        evicted.zip(&outcome.evictions).filter(move |(decision, _)| pods[decision.pod].gang == Some(gang))
    }

    /// Pods that are told to leave, for whom, and by which rule; then who is told to for this gang.
    fn evictions_into(&self, out: &mut String, gang: GangIdx) {
        let names = &self.loaded.names;
        for (decision, eviction) in self.evictions(gang) {
            let asker = eviction.asker.map_or(String::new(), |asker| format!(" for {}", names.gangs[asker]));
            let (pod, node) = (&names.pods[decision.pod].name, &names.nodes[decision.node]);
            let (why, code) = (eviction_sentence(&eviction.why, names), eviction_code(&eviction.why));
            wrap_into(out, "  - ", &format!("{pod} is told to leave {node}{asker}: {why} [{code}]"));
        }
        for batch in self.planned.outcome.batches.iter().filter(|batch| batch.asker == gang) {
            let placed = plural(batch.placed as usize, "pod", "pods");
            let (evicted, moved, least) = (batch.evicted, batch.moved, batch.least);
            let text = format!(
                "{}: {placed} placed for {evicted} evicted and {moved} moved; at least {least} had to leave",
                batch.action.name()
            );
            wrap_into(out, "  - ", &text);
        }
    }

    /// Promised pods, and what has to leave first.
    fn promises_into(&self, out: &mut String, fates: &Fates) {
        let names = &self.loaded.names;
        for (&node, pods) in &fates.promised {
            let who: Vec<&str> = pods.iter().map(|&pod| names.pods[pod].name.as_str()).collect();
            let (gets, leaving) = (if pods.len() == 1 { "gets" } else { "get" }, self.leaving_text(node));
            let when = if leaving.is_empty() {
                "in a later cycle: others have to leave their nodes first"
            } else {
                "once this has left it: "
            };
            let text = format!("{} {gets} {} {when}{leaving}", who.join(", "), names.nodes[node]);
            wrap_into(out, "  ", &text);
        }
    }

    fn leaving_text(&self, node: NodeIdx) -> String {
        let pods = self.leaving.get(&node).map_or(&[][..], Vec::as_slice);
        let list: Vec<String> = pods.iter().map(|&pod| self.loaded.names.pods[pod].to_string()).collect();
        list.join(", ")
    }

    fn json(&self, gang: GangIdx) -> Value {
        let names = &self.loaded.names;
        let row = &self.loaded.snapshot.gangs[gang];
        let fates = self.fates(gang);
        let list = |nodes: &BTreeMap<NodeIdx, Vec<PodIdx>>| -> Vec<Value> {
            let entry = |(&node, pods): (&NodeIdx, &Vec<PodIdx>)| {
                let pods: Vec<&str> = pods.iter().map(|&pod| names.pods[pod].name.as_str()).collect();
                json!({"node": names.nodes[node], "pods": pods})
            };
            nodes.iter().map(entry).collect()
        };
        let mut promised = list(&fates.promised);
        for (entry, &node) in promised.iter_mut().zip(fates.promised.keys()) {
            let pods = self.leaving.get(&node).map_or(&[][..], Vec::as_slice);
            entry["waitsFor"] = pods.iter().map(|&pod| names.pods[pod].to_string()).collect();
        }
        let reasons: Vec<Value> = match self.pending.get(&gang) {
            Some(pending) => {
                let reasons = self.planned.outcome.reasons_of(pending).iter();
                reasons.map(|reason| report::reason(reason, gang, self.facts())).collect()
            }
            None => Vec::new(),
        };
        json!({
            "namespace": names.gangs[gang].namespace,
            "podGroup": names.gangs[gang].name,
            "queue": names.gang_queues[gang],
            "priority": row.priority,
            "preemptible": row.preemptible,
            "running": list(&fates.running),
            "bound": list(&fates.placed),
            "pipelined": promised,
            "leaving": list(&fates.leaving),
            "evictions": self.evictions(gang).map(|(decision, eviction)| json!({
                "pod": names.pods[decision.pod].name,
                "node": names.nodes[decision.node],
                "for": eviction.asker.map(|asker| names.gangs[asker].to_string()),
                "rule": rule(&eviction.why, names),
            })).collect::<Vec<Value>>(),
            "podsWaiting": fates.waiting,
            "reasons": reasons,
        })
    }
}
