//! Every [`Reason`] as a stable code, one sentence, and what to do next. `core` yields indices and numbers; the words are here
//! and nowhere else. Pure: the same reason gives the same words.

use std::borrow::Cow;
use std::cmp::Reverse;

use muster_core::explain::{Bound, Nearest, Reason, Refusal, Scarce, Shortage, Tally, Unhelped};
use muster_core::index::{GangIdx, PodIdx, QueueIdx, SubgroupIdx};
use muster_core::snapshot::{Blocked, ClassRow, GpuRequest, NoQueue, Snapshot};
use muster_core::units::Resource;

use crate::names::{ClassText, Names};
use crate::report_amount::{bare, count, full, scarce_bare, scarce_full};
use crate::unhelped;

/// What the indices of a reason stand for.
#[derive(Clone, Copy)]
pub struct Facts<'a> {
    /// The rows.
    pub snapshot: &'a Snapshot,
    /// Their names.
    pub names: &'a Names,
}

impl<'a> Facts<'a> {
    fn class(self, pod: PodIdx) -> &'a ClassRow {
        &self.snapshot.classes[self.snapshot.pods[pod].class]
    }

    fn class_text(self, pod: PodIdx) -> &'a ClassText {
        &self.names.classes[self.snapshot.pods[pod].class]
    }
}

/// Whether a sentence names the pod that it is about.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Naming {
    /// Yes: for one gang.
    Named,
    /// No: so that gangs with the same fate have the same sentence.
    Unnamed,
}

/// The code of a reason for machines. Stable: it never changes its meaning.
#[must_use]
pub const fn code(reason: &Reason) -> &'static str {
    match reason {
        Reason::NoQueue(NoQueue::Missing) => "queue-missing",
        Reason::NoQueue(NoQueue::MissingAncestor) => "queue-ancestor-missing",
        Reason::QueueNotLeaf(_) => "queue-not-leaf",
        Reason::BackedOff => "backed-off",
        Reason::ActionNotRun(_) => "action-not-run",
        Reason::BeyondQueueDepth { .. } => "beyond-queue-depth",
        Reason::TooFewPods { .. } => "too-few-pods",
        Reason::TooFewMembers { .. } => "too-few-members",
        Reason::Gated { .. } => "gated",
        Reason::UnknownSubgroup { .. } => "unknown-subgroup",
        Reason::OverLimit(_) => "over-limit",
        Reason::OverQuota(_) => "over-quota",
        Reason::Blocked { why: Blocked::MissingConfigMap, .. } => "configmap-missing",
        Reason::Blocked { why: Blocked::LegacyMig, .. } => "legacy-mig",
        Reason::Blocked { why: Blocked::ResourceClaims, .. } => "resource-claims",
        Reason::TooLarge { .. } => "too-large",
        Reason::NoNode { .. } => "no-node",
        Reason::OneStep => "one-step",
        Reason::TakenBack { .. } => "taken-back",
        Reason::NotHelped { action, why } => unhelped::code(*action, why),
    }
}

/// Why `gang` waits, in one sentence with names and numbers.
#[must_use]
pub fn sentence(reason: &Reason, gang: GangIdx, facts: Facts<'_>) -> String {
    shown(say(reason, gang, facts, Naming::Named))
}

/// The same without what differs between gangs that wait for the same thing: they have the same gist.
#[must_use]
pub fn gist(reason: &Reason, gang: GangIdx, facts: Facts<'_>) -> String {
    shown(say(reason, gang, facts, Naming::Unnamed))
}

/// What a short table says of a gang: why it was not placed, then the one action that tells most about why nobody made room,
/// unless that says the same.
pub fn most_telling(reasons: &[Reason]) -> impl Iterator<Item = &Reason> {
    let refused = |reason: &&Reason| matches!(reason, Reason::NotHelped { .. });
    let rank = |reason: &&Reason| match reason {
        Reason::NotHelped { why, .. } => unhelped::rank(why),
        _ => 0,
    };
    let limit = reasons.iter().any(|reason| matches!(reason, Reason::OverLimit(_)));
    let quota = reasons.iter().any(|reason| matches!(reason, Reason::OverQuota(_)));
    let said = move |reason: &&Reason| match reason {
        Reason::NotHelped { why: Unhelped::OverLimit(_), .. } => limit,
        Reason::NotHelped { why: Unhelped::AboveQuota(_), .. } => quota,
        _ => false,
    };
    let best = reasons.iter().filter(|reason| refused(reason) && !said(reason)).min_by_key(rank);
    reasons.iter().filter(move |reason| !refused(reason)).chain(best)
}

/// `text` with what would garble or steer a terminal escaped: control characters (C0, DEL, C1, line ends among them), marks of
/// text direction, and characters without width. Names are the users'; this stands between them and every table and sentence.
#[must_use]
pub fn visible(text: &str) -> Cow<'_, str> {
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) || !text.chars().any(garbles) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if garbles(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    Cow::Owned(shown)
}

fn garbles(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

fn shown(text: String) -> String {
    match visible(&text) {
        Cow::Borrowed(_) => text,
        Cow::Owned(escaped) => escaped,
    }
}

fn say(reason: &Reason, gang: GangIdx, facts: Facts<'_>, naming: Naming) -> String {
    let names = facts.names;
    match *reason {
        Reason::NoQueue(NoQueue::Missing) if names.gang_queues[gang].is_empty() => "It names no queue.".to_owned(),
        Reason::NoQueue(NoQueue::Missing) => format!("Queue {} does not exist in this shard.", names.gang_queues[gang]),
        Reason::NoQueue(NoQueue::MissingAncestor) => {
            format!("Queue {} exists, but a queue above it does not.", names.gang_queues[gang])
        }
        Reason::QueueNotLeaf(queue) => {
            format!("Queue {} has queues below it; gangs are served in leaf queues only.", names.queues[queue])
        }
        Reason::BackedOff => "It was found unschedulable before, and its schedulingBackoff says not to try again.".to_owned(),
        Reason::TakenBack { pods: 1 } => {
            "A pod got a place in this cycle, and it was taken for a gang that comes first.".to_owned()
        }
        Reason::TakenBack { pods } => {
            format!("{pods} pods got places in this cycle, and they were taken for gangs that come first.")
        }
        Reason::OneStep => {
            "It got one step of what it still wants (a pod, or an optional member); the next cycle takes another.".to_owned()
        }
        Reason::NotHelped { action, why } => unhelped::say(action, &why, gang, facts, naming),
        Reason::ActionNotRun(action) => format!("Action {}, which would place it, did not run in this cycle.", action.name()),
        Reason::BeyondQueueDepth { queue, depth } => {
            let (before, queue) = (if depth == 1 { "gang" } else { "gangs" }, &names.queues[queue]);
            let depth = count(depth.into());
            format!("{depth} {before} of queue {queue} came before it, as many as queueDepthPerAction lets a cycle try.")
        }
        Reason::TooFewPods { subgroup, present, gated, min } => too_few_pods(subgroup, present, gated, min, facts),
        Reason::TooFewMembers { set, ready, required } => {
            let whose = set.map_or("its sub-groups".to_owned(), |set| format!("the members of {}", names.subgroups[set]));
            let (has, needs) = if ready == 1 { ("has", "it needs") } else { ("have", "they need") };
            format!("{} of {whose} {has} the pods {needs}; {} must.", none_or(ready), count(required.into()))
        }
        Reason::Gated { pods: 1 } => "Its waiting pod is held back by a scheduling gate.".to_owned(),
        Reason::Gated { pods } => format!("All {} waiting pods are held back by scheduling gates.", count(pods.into())),
        Reason::UnknownSubgroup { pods: 1 } => "1 pod names a sub-group that the gang does not have.".to_owned(),
        Reason::UnknownSubgroup { pods } => {
            format!("{} pods name a sub-group that the gang does not have.", count(pods.into()))
        }
        Reason::OverLimit(bound) => bound_sentence(&bound, "", "limit", gang, facts, naming),
        Reason::OverQuota(bound) => bound_sentence(&bound, " of work that may not be evicted", "quota", gang, facts, naming),
        Reason::Blocked { pod, why } => blocked(pod, why, facts, naming),
        Reason::TooLarge { pod, short } => {
            let (who, asked) = (who(pod, facts, naming), scarce_full(short.what, short.asked, names));
            match short.free {
                0 => format!("{who} asks for {asked}; no node offers any."),
                most => format!("{who} asks for {asked}; the largest node offers {}.", scarce_bare(short.what, most)),
            }
        }
        Reason::NoNode { pod, placed, members, refusals, nearest } => {
            let nearest = nearest.filter(|_| naming == Naming::Named);
            let start = no_node_start(pod, placed, members, facts, naming);
            format!("{start}: {}{}.", refusals_text(&refusals, pod, facts), nearest_text(nearest, facts))
        }
    }
}

fn too_few_pods(subgroup: SubgroupIdx, present: u32, gated: u32, min: u32, facts: Facts<'_>) -> String {
    let name = &facts.names.subgroups[subgroup];
    let whose = if name == "default" { String::new() } else { format!(" of sub-group {name}") };
    let verb = if present == 1 { "exists" } else { "exist" };
    let held = match gated {
        0 => String::new(),
        1 => "; 1 more is held back by a scheduling gate".to_owned(),
        _ => format!("; {} more are held back by scheduling gates", count(gated.into())),
    };
    if min == 1 {
        return format!("No pod{whose} exists that could start{held}.");
    }
    format!("{} of the {} pods{whose} that must start together {verb}{held}.", none_or(present), count(min.into()))
}

fn bound_sentence(bound: &Bound, of_what: &str, kind: &str, gang: GangIdx, facts: Facts<'_>, naming: Naming) -> String {
    let &Bound { queue, resource, bound: most, held, asked } = bound;
    let names = facts.names;
    let place = match facts.snapshot.gangs[gang].queue {
        Ok(own) if own != queue && naming == Naming::Named => format!(", above {},", names.queues[own]),
        _ => String::new(),
    };
    let rule = format!("Queue {}{place} may hold {}{of_what} ({kind})", names.queues[queue], full(resource, most));
    if naming == Naming::Unnamed {
        return format!("{rule}; what is asked is more than is left of it.");
    }
    let too = if resource == Resource::Memory { "too much" } else { "too many" };
    let (held, asked, excess) = (bare(resource, held), bare(resource, asked), bare(resource, bound.excess()));
    format!("{rule}; it holds {held} and the gang asks for {asked}: {excess} {too}.")
}

fn blocked(pod: PodIdx, why: Blocked, facts: Facts<'_>, naming: Naming) -> String {
    let who = who(pod, facts, naming);
    match (why, facts.class_text(pod).missing_config_maps.as_slice()) {
        (Blocked::MissingConfigMap, [one]) => format!("{who} needs ConfigMap {one}, which does not exist."),
        (Blocked::MissingConfigMap, many) => format!("{who} needs ConfigMaps that do not exist: {}.", many.join(", ")),
        (Blocked::ResourceClaims, _) => {
            format!("{who} needs resource claims (DRA), which this version does not consider.")
        }
        (Blocked::LegacyMig, _) => format!("{who} asks for a MIG instance by annotation, which is not supported."),
    }
}

fn who(pod: PodIdx, facts: Facts<'_>, naming: Naming) -> String {
    match naming {
        Naming::Named => format!("Pod {}", facts.names.pods[pod]),
        Naming::Unnamed => "A pod".to_owned(),
    }
}

fn no_node_start(pod: PodIdx, placed: u32, members: u32, facts: Facts<'_>, naming: Naming) -> String {
    if members <= 1 {
        return format!("{} found no node", who(pod, facts, naming));
    }
    if naming == Naming::Unnamed {
        return "Not all members found a node at once".to_owned();
    }
    let name = &facts.names.pods[pod];
    let fit = if placed == 1 { "fits" } else { "fit" };
    let next = ordinal(placed.saturating_add(1));
    format!("{} of {} members {fit} at once; the {next} ({name}) found no node", none_or(placed), count(members.into()))
}

/// The tests that nodes failed, most nodes first.
fn refusals_text(refusals: &Tally, pod: PodIdx, facts: Facts<'_>) -> String {
    let mut entries: Vec<(Refusal, u32)> = refusals.entries().collect();
    entries.sort_by_key(|&(_, nodes)| Reverse(nodes));
    let parts: Vec<String> = entries
        .iter()
        .enumerate()
        .map(|(i, &(refusal, nodes))| {
            let noun = match (i, nodes) {
                (0, 1) => " node",
                (0, _) => " nodes",
                _ => "",
            };
            format!("{}{noun} {}", count(nodes.into()), refusal_text(refusal, nodes == 1, pod, facts))
        })
        .collect();
    if parts.is_empty() { "there are no nodes".to_owned() } else { parts.join(", ") }
}

fn refusal_text(refusal: Refusal, one: bool, pod: PodIdx, facts: Facts<'_>) -> String {
    let pick = |singular: &'static str, plural: &'static str| if one { singular } else { plural };
    let (is, has, does) = (pick("is", "are"), pick("has", "have"), pick("does", "do"));
    let (class, text) = (facts.class(pod), facts.class_text(pod));
    let in_brackets = |text: &str| if text.is_empty() { String::new() } else { format!(" ({text})") };
    match refusal {
        Refusal::NotReady => format!("{is} not ready, cordoned or under pressure"),
        Refusal::WorkerLabel => format!("{} the worker label that restricted scheduling asks for", pick("lacks", "lack")),
        Refusal::NodeKind => format!("{is} of the wrong kind for this GPU request (MIG, or GPU memory unknown)"),
        Refusal::Taint => format!("{has} a taint that is not tolerated"),
        Refusal::Selector => format!("{does} not match the node selector{}", in_brackets(&text.selector)),
        Refusal::Affinity => format!("{does} not match the required node affinity{}", in_brackets(&text.affinity)),
        Refusal::Gpu => match class.gpu {
            GpuRequest::Fraction { devices, .. } | GpuRequest::Memory { devices, .. } => {
                format!("{has} {} with enough room", if devices > 1 { "too few GPUs" } else { "no GPU" })
            }
            GpuRequest::Whole(_) | GpuRequest::None => format!("{has} too few free GPUs"),
        },
        Refusal::Cpu => format!("{has} too little free CPU"),
        Refusal::Memory => format!("{has} too little free memory"),
        Refusal::Extra => match class.extra.as_slice() {
            [(dim, _)] => format!("{has} too little free {}", facts.names.dims[*dim]),
            _ => format!("{has} too little of another resource"),
        },
        Refusal::Pods => format!("{has} no free pod slot"),
        Refusal::CardQuota => format!("{has} larger GPUs than the queue may still hold"),
    }
}

fn nearest_text(nearest: Option<Nearest>, facts: Facts<'_>) -> String {
    let Some(Nearest { node, short: Shortage { what, asked, free }, scarce }) = nearest else { return String::new() };
    let more = match scarce.saturating_sub(1) {
        0 => String::new(),
        1 => ", and 1 more resource is short there".to_owned(),
        others => format!(", and {others} more resources are short there"),
    };
    let free = scarce_full(what, free, facts.names);
    format!("; nearest is {}, {free} free of {} asked{more}", facts.names.nodes[node], scarce_bare(what, asked))
}

/// What to do about a reason, as one imperative sentence; `None` where there is nothing to do but wait.
#[must_use]
pub fn advice(reason: &Reason, gang: GangIdx, facts: Facts<'_>) -> Option<String> {
    advise(reason, gang, facts).map(shown)
}

fn advise(reason: &Reason, gang: GangIdx, facts: Facts<'_>) -> Option<String> {
    let names = facts.names;
    let text = match *reason {
        Reason::NoQueue(NoQueue::Missing) => {
            "Name an existing leaf queue in spec.queue, or create this one; with node pools it needs the pool's label."
        }
        Reason::NoQueue(NoQueue::MissingAncestor) => {
            "Create the missing parentQueue or correct it; with node pools every queue of the path needs the pool's label."
        }
        Reason::QueueNotLeaf(queue) => {
            return Some(format!("Name one of its leaf queues in spec.queue: {}.", leaves_below(queue, facts)));
        }
        Reason::BackedOff => "Set spec.schedulingBackoff to -1, or have its owner clear the scheduling condition.",
        Reason::ActionNotRun(action) => return Some(format!("Add {} to the actions.", action.name())),
        Reason::NotHelped { why, .. } => return unhelped::advise(&why, facts),
        Reason::BeyondQueueDepth { .. } | Reason::OneStep | Reason::TakenBack { .. } => return None,
        Reason::TooFewPods { gated, present, min, .. } if gated > 0 && present + gated >= min => "Remove the scheduling gates.",
        Reason::TooFewPods { .. } | Reason::TooFewMembers { .. } => {
            "Create the missing pods, or lower the minimum (minMember, minSubGroup)."
        }
        Reason::Gated { .. } => "Remove the scheduling gates.",
        Reason::UnknownSubgroup { .. } => {
            "Add the sub-group to spec.subGroups, or correct the pods' label kai.scheduler/subgroup-name."
        }
        Reason::OverLimit(bound) => {
            let (queue, excess) = (&names.queues[bound.queue], full(bound.resource, bound.excess()));
            return Some(format!("Raise the limit of queue {queue} by {excess}, or end as much of its work."));
        }
        Reason::OverQuota(bound) => {
            let (queue, excess) = (&names.queues[bound.queue], full(bound.resource, bound.excess()));
            return Some(format!("Raise the quota of queue {queue} by {excess}, or let the gang be evicted (preemptible)."));
        }
        Reason::Blocked { pod, why: Blocked::MissingConfigMap } => {
            let missing = facts.class_text(pod).missing_config_maps.join(", ");
            return Some(format!("Create {missing} in namespace {}.", names.gangs[gang].namespace));
        }
        Reason::Blocked { why: Blocked::ResourceClaims, .. } => {
            "Ask for nvidia.com/gpu in the container's resources, or wait for a version that knows DRA."
        }
        Reason::Blocked { why: Blocked::LegacyMig, .. } => {
            "Ask for nvidia.com/mig-<g>g.<m>gb in the container's resources instead."
        }
        Reason::TooLarge { short, .. } => {
            return Some(format!("Ask for less, or add a node with {}.", scarce_full(short.what, short.asked, names)));
        }
        Reason::NoNode { refusals, nearest, .. } => return Some(no_node_advice(&refusals, nearest, facts)),
    };
    Some(text.to_owned())
}

fn no_node_advice(refusals: &Tally, nearest: Option<Nearest>, facts: Facts<'_>) -> String {
    if let Some(Nearest { node, short: Shortage { what, asked, free }, .. }) = nearest {
        let missing = scarce_full(what, asked.saturating_sub(free), facts.names);
        let all = scarce_full(what, asked, facts.names);
        return format!("Free {missing} on {}, or add a node with {all}.", facts.names.nodes[node]);
    }
    let most = refusals.entries().max_by_key(|&(refusal, nodes)| (nodes, Reverse(refusal)));
    match most.map(|(refusal, _)| refusal) {
        None => "Add nodes.",
        Some(Refusal::NotReady) => "Uncordon nodes, or bring them back to Ready.",
        Some(Refusal::WorkerLabel) => "Label nodes as workers, or turn restrictSchedulingNodes off.",
        Some(Refusal::NodeKind) => "Add nodes of the kind that the request needs, or change the request.",
        Some(Refusal::Taint) => "Tolerate the taints, or remove them.",
        Some(Refusal::Selector) => "Correct the node selector, or label nodes to match it.",
        Some(Refusal::Affinity) => "Correct the required node affinity, or label nodes to match it.",
        Some(Refusal::CardQuota) => "Raise the queue's GPU limit or quota, or add nodes with smaller GPUs.",
        Some(Refusal::Gpu | Refusal::Cpu | Refusal::Memory | Refusal::Extra | Refusal::Pods) => "Free resources, or add nodes.",
    }
    .to_owned()
}

/// Names of up to three leaves below a queue.
fn leaves_below(queue: QueueIdx, facts: Facts<'_>) -> String {
    let rows = &facts.snapshot.queues;
    let parents = |q: QueueIdx| std::iter::successors(rows[q].parent, |&p| rows[p].parent).take(rows.len());
    let is_leaf = |q: QueueIdx| rows.iter().all(|row| row.parent != Some(q));
    let below = rows.indices().filter(|&q| parents(q).any(|p| p == queue));
    let mut leaves = below.filter(|&q| is_leaf(q)).map(|q| facts.names.queues[q].as_str());
    let shown: Vec<&str> = leaves.by_ref().take(3).collect();
    let rest = if leaves.next().is_some() { ", …" } else { "" };
    format!("{}{rest}", shown.join(", "))
}

/// A number at the start of a sentence.
pub(crate) fn none_or(number: u32) -> String {
    if number == 0 { "None".to_owned() } else { count(number.into()) }
}

fn ordinal(number: u32) -> String {
    const WORDS: [&str; 10] = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"];
    if let Some(word) = number.checked_sub(1).and_then(|i| WORDS.get(i as usize)) {
        return (*word).to_owned();
    }
    let suffix = match (number % 10, number % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{}{suffix}", count(number.into()))
}

/// The word for a resource of a queue in machine-readable output.
#[must_use]
pub const fn resource_name(resource: Resource) -> &'static str {
    match resource {
        Resource::Cpu => "cpu",
        Resource::Memory => "memory",
        Resource::Gpu => "gpu",
    }
}

/// The word for something scarce in machine-readable output.
#[must_use]
pub fn scarce_name(what: Scarce, names: &Names) -> &str {
    match what {
        Scarce::Cpu => "cpu",
        Scarce::Memory => "memory",
        Scarce::Gpus => "gpus",
        Scarce::CardMib => "gpuMemory",
        Scarce::Pods => "pods",
        Scarce::Extra(dim) => &names.dims[dim],
    }
}

#[cfg(test)]
#[path = "sentences_tests.rs"]
mod tests;
