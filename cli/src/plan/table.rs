//! The plan for people: decisions, queues, what waits and why, GPUs, times.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::time::Duration;

use muster_api::report_amount::bare;
use muster_api::sentences::{gist, most_telling, visible};
use muster_core::index::{GangIdx, NodeIdx, PodIdx};
use muster_core::outcome::{Decision, DecisionKind};
use muster_core::units::Resource;

use super::gpus::GpuUse;
use super::{View, evictions, queues};
use crate::args::Resources;
use crate::text::{WIDTH, count, cut, milliseconds, plural, wrap_into};

/// How many entries of each part are shown.
pub(crate) struct Lengths {
    pub(crate) gangs: usize,
    pub(crate) queues: usize,
    pub(crate) reasons: usize,
    /// How to see the rest, where there is a way.
    pub(crate) rest: &'static str,
}

impl Lengths {
    pub(crate) const fn new(all: bool) -> Self {
        if all {
            Self { gangs: usize::MAX, queues: usize::MAX, reasons: usize::MAX, rest: "" }
        } else {
            Self { gangs: 10, queues: 40, reasons: 10, rest: ", see --all" }
        }
    }
}

/// The whole report.
pub(crate) fn text(view: &View<'_>, resources: Resources, lengths: &Lengths) -> String {
    let mut out = String::new();
    let snapshot = &view.loaded.snapshot;
    let parts = [
        plural(snapshot.nodes.len(), "node", "nodes"),
        plural(snapshot.queues.len(), "queue", "queues"),
        plural(snapshot.gangs.len(), "gang", "gangs"),
        plural(snapshot.pods.len(), "pod", "pods"),
    ];
    let _ = writeln!(out, "Cluster: {}", parts.join(", "));
    decisions_into(&mut out, view, lengths);
    evictions::table_into(&mut out, view, lengths);
    queues::tables_into(&mut out, view, resources, lengths);
    pending_into(&mut out, view, lengths);
    gpus_into(&mut out, view);
    times_into(&mut out, view);
    out
}

fn decisions_into(out: &mut String, view: &View<'_>, lengths: &Lengths) {
    let gangs_max = lengths.gangs;
    let kinds = [(DecisionKind::Bind, "start now"), (DecisionKind::Pipeline, "start once others have left")];
    // Who moves is among the evictions, with the new place.
    let leaving: HashSet<PodIdx> = view.decisions(DecisionKind::Evict).map(|decision| decision.pod).collect();
    for (kind, title) in kinds {
        let decisions: Vec<&Decision> = view.decisions(kind).filter(|decision| !leaving.contains(&decision.pod)).collect();
        let gangs = gangs_of(view, &decisions);
        if gangs.is_empty() {
            continue;
        }
        let (pods, many) = (plural(decisions.len(), "pod", "pods"), plural(gangs.len(), "gang", "gangs"));
        let _ = writeln!(out, "\nDecisions: {pods} of {many} {title}");
        let names = &view.loaded.names.gangs;
        let width = gangs.iter().take(gangs_max).map(|gang| visible(&names[gang.gang].to_string()).chars().count()).max();
        let width = width.unwrap_or(0).min(32);
        for gang in gangs.iter().take(gangs_max) {
            let name = cut(&names[gang.gang].to_string(), width);
            let lead = format!("  {name:<width$}  {} → ", plural(gang.pods, "pod", "pods"));
            nodes_into(out, view, &lead, &gang.nodes, gangs_max == usize::MAX);
        }
        if let Some(rest) = gangs.len().checked_sub(gangs_max).filter(|&rest| rest > 0) {
            let _ = writeln!(out, "  … and {}{}", plural(rest, "more gang", "more gangs"), lengths.rest);
        }
    }
    if view.planned.outcome.decisions.is_empty() {
        out.push_str("\nDecisions: none\n");
    }
}

/// The pods of one gang that some decisions are about.
struct GangDecisions {
    gang: GangIdx,
    pods: usize,
    /// Nodes with their pods, in the order of the decisions.
    nodes: Vec<(NodeIdx, usize)>,
}

/// One entry a gang, in the order of their first decisions.
fn gangs_of(view: &View<'_>, decisions: &[&Decision]) -> Vec<GangDecisions> {
    let mut gangs: Vec<GangDecisions> = Vec::new();
    let mut position: HashMap<GangIdx, usize> = HashMap::new();
    let mut node_position: HashMap<(GangIdx, NodeIdx), usize> = HashMap::new();
    for &decision in decisions {
        let Some(gang) = view.gang(decision) else { continue };
        let at = *position.entry(gang).or_insert_with(|| {
            gangs.push(GangDecisions { gang, pods: 0, nodes: Vec::new() });
            gangs.len() - 1
        });
        let entry = &mut gangs[at];
        entry.pods += 1;
        let at = *node_position.entry((gang, decision.node)).or_insert_with(|| {
            entry.nodes.push((decision.node, 0));
            entry.nodes.len() - 1
        });
        entry.nodes[at].1 += 1;
    }
    gangs
}

/// `node-01 (3), node-02 (1)`: one line, or all of them.
fn nodes_into(out: &mut String, view: &View<'_>, lead: &str, nodes: &[(NodeIdx, usize)], all: bool) {
    let names = &view.loaded.names.nodes;
    let shown = |&(node, pods): &(NodeIdx, usize)| {
        if pods == 1 { names[node].clone() } else { format!("{} ({pods})", names[node]) }
    };
    if all {
        wrap_into(out, lead, &nodes.iter().map(shown).collect::<Vec<_>>().join(", "));
        return;
    }
    let mut line = lead.to_owned();
    for (i, node) in nodes.iter().enumerate() {
        let text = cut(&shown(node), 40);
        let rest = format!(", … {} more", count(nodes.len() - i));
        let reserve = if i + 1 < nodes.len() { rest.chars().count() } else { 0 };
        if i > 0 && line.chars().count() + 2 + text.chars().count() + reserve > WIDTH {
            line.push_str(&rest);
            break;
        }
        line.push_str(if i == 0 { "" } else { ", " });
        line.push_str(&text);
    }
    let _ = writeln!(out, "{line}");
}

/// Gangs with the same fate.
#[derive(Default)]
struct Fate {
    gangs: usize,
    pods: u64,
    /// The first of them.
    example: String,
}

fn pending_into(out: &mut String, view: &View<'_>, lengths: &Lengths) {
    let reasons_max = lengths.reasons;
    let outcome = &view.planned.outcome;
    if outcome.pending.is_empty() {
        out.push_str("\nPending: nothing\n");
        return;
    }
    let mut fates: HashMap<Vec<String>, Fate> = HashMap::new();
    for pending in &outcome.pending {
        let reasons = most_telling(outcome.reasons_of(pending));
        let gists: Vec<String> = reasons.map(|reason| gist(reason, pending.gang, view.facts())).collect();
        let fate = fates.entry(gists).or_default();
        if fate.gangs == 0 {
            fate.example = view.loaded.names.gangs[pending.gang].to_string();
        }
        fate.gangs += 1;
        fate.pods += u64::from(pending.pods);
    }
    let mut fates: Vec<(Vec<String>, Fate)> = fates.into_iter().collect();
    fates.sort_by(|(a, x), (b, y)| (y.gangs, a).cmp(&(x.gangs, b)));
    let pods: u64 = fates.iter().map(|(_, fate)| fate.pods).sum();
    let pods = plural(usize::try_from(pods).unwrap_or(usize::MAX), "pod", "pods");
    let _ = writeln!(out, "\nPending: {pods} of {}", plural(outcome.pending.len(), "gang", "gangs"));
    for (gists, fate) in fates.iter().take(reasons_max) {
        let lead = format!("{:>8}  ", count(fate.gangs));
        for (i, gist) in gists.iter().enumerate() {
            wrap_into(out, if i == 0 { &lead } else { "          " }, gist);
        }
        let such = if fate.gangs == 1 { "" } else { "such as " };
        let _ = writeln!(out, "          ({such}{})", cut(&fate.example, WIDTH - 20));
    }
    if fates.len() > reasons_max {
        let rest: usize = fates[reasons_max..].iter().map(|(_, fate)| fate.gangs).sum();
        let _ = writeln!(out, "  … and {} for other reasons{}", plural(rest, "more gang", "more gangs"), lengths.rest);
    }
}

fn gpus_into(out: &mut String, view: &View<'_>) {
    let gpus = GpuUse::new(&view.loaded.snapshot, &view.planned.outcome);
    let amount = |micro| bare(Resource::Gpu, micro);
    let percent = |micro| GpuUse::percent(micro, gpus.capacity);
    let _ = write!(
        out,
        "\nGPUs: {} of {} held ({:.1} %), {} ({:.1} %) before",
        amount(gpus.after),
        amount(gpus.capacity),
        percent(gpus.after),
        amount(gpus.before),
        percent(gpus.before)
    );
    let _ = match gpus.promised {
        0 => writeln!(out),
        promised => writeln!(out, ", {} promised", amount(promised)),
    };
}

fn times_into(out: &mut String, view: &View<'_>) {
    out.push_str("\nTime\n");
    let mut line = |name: &str, time: Duration, what: &str| {
        let text = format!("  {name:<20} {:>10}  {what}", milliseconds(time));
        let _ = writeln!(out, "{}", text.trim_end());
    };
    line("load", view.load, "bytes to rows");
    for stage in &view.planned.stages {
        line(stage.name, stage.time, "");
    }
    line("cycle", view.planned.total(), "rows to finished plan, reasons included");
    line("process", view.started.elapsed(), "all of it, up to this line");
}
