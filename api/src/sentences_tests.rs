//! The exact words of every reason.

use muster_core::config::Action;
use muster_core::index::{ClassIdx, Col, DimIdx, Idx, NodeIdx, Span};
use muster_core::snapshot::{ExtraDim, GangRow, PodRow, PodStatus, QueueRow, TaskPriority};

use super::*;
use crate::names::ObjectName;

#[path = "unhelped_tests.rs"]
mod unhelped_words;

fn i<I: Idx>(at: usize) -> I {
    I::new(at)
}

fn pod(class: usize) -> PodRow {
    PodRow {
        gang: Some(i(0)),
        subgroup: Some(i(0)),
        class: i(class),
        status: PodStatus::Pending,
        node: None,
        nominated: None,
        groups: (0, 0),
        foreign: false,
        reservation: false,
        kept: false,
        leader: false,
        ray_head: false,
        task_priority: TaskPriority::Absent,
    }
}

fn object(name: &str) -> ObjectName {
    ObjectName { namespace: "ml".to_owned(), name: name.to_owned() }
}

/// Queues dept > team-a, team-b, team-c, team-d; gang ml/train in team-a with one pod of each class.
fn cluster() -> (Snapshot, Names) {
    let names = |list: &[&str]| -> Vec<String> { list.iter().map(|&name| name.to_owned()).collect() };
    let text = ClassText { selector: "pool=a".into(), affinity: "gpu in (a100)".into(), ..ClassText::default() };
    let lost = |list: &[&str]| ClassText { missing_config_maps: names(list), ..ClassText::default() };
    let class = |gpu| ClassRow { gpu, ..ClassRow::default() };
    let extra = ClassRow { extra: vec![(i(0), 1000)], ..ClassRow::default() };
    let queue = |parent: Option<usize>| QueueRow { parent: parent.map(i), ..QueueRow::default() };
    let snapshot = Snapshot {
        dims: Col::from(vec![ExtraDim { mig_gpus: 1 }]),
        classes: Col::from(vec![
            class(GpuRequest::Whole(8)),
            class(GpuRequest::Fraction { portion: 500_000, devices: 1 }),
            class(GpuRequest::Memory { mib: 2000, devices: 2 }),
            extra,
        ]),
        queues: Col::from(vec![queue(None), queue(Some(0)), queue(Some(0)), queue(Some(0)), queue(Some(0))]),
        gangs: Col::from(vec![GangRow {
            queue: Ok(i(1)),
            priority: 50,
            preemptible: true,
            subgroups: Span::new(0, 2),
            required: 2,
            pods: Span::new(0, 4),
            backed_off: false,
            times: Default::default(),
        }]),
        pods: Col::from(vec![pod(0), pod(1), pod(2), pod(3)]),
        ..Snapshot::default()
    };
    let names = Names {
        nodes: Col::from(names(&["node-1", "node-17"])),
        queues: Col::from(names(&["dept", "team-a", "team-b", "team-c", "team-d"])),
        gangs: Col::from(vec![object("train")]),
        gang_queues: Col::from(names(&["team-x"])),
        subgroups: Col::from(names(&["default", "workers"])),
        pods: Col::from(vec![object("train-0"), object("train-1"), object("train-2"), object("train-3")]),
        dims: Col::from(names(&["nvidia.com/mig-1g.10gb"])),
        classes: Col::from(vec![text, lost(&["settings"]), lost(&["a", "b"]), ClassText::default()]),
        ..Names::default()
    };
    (snapshot, names)
}

#[track_caller]
fn check(reason: Reason, expected_code: &str, expected: &str, expected_advice: Option<&str>) {
    let (snapshot, names) = cluster();
    let facts = Facts { snapshot: &snapshot, names: &names };
    assert_eq!(code(&reason), expected_code);
    assert_eq!(sentence(&reason, i(0), facts), expected);
    assert_eq!(advice(&reason, i(0), facts).as_deref(), expected_advice);
}

fn bound(queue: usize, resource: Resource, bound: i64, held: i64, asked: i64) -> Bound {
    Bound { queue: i(queue), resource, bound, held, asked }
}

fn tally(entries: &[(Refusal, u32)]) -> Tally {
    let mut tally = Tally::default();
    entries.iter().for_each(|&(refusal, nodes)| tally.add(refusal, nodes));
    tally
}

#[test]
fn queues() {
    check(
        Reason::NoQueue(NoQueue::Missing),
        "queue-missing",
        "Queue team-x does not exist in this shard.",
        Some("Name an existing leaf queue in spec.queue, or create this one; with node pools it needs the pool's label."),
    );
    check(
        Reason::NoQueue(NoQueue::MissingAncestor),
        "queue-ancestor-missing",
        "Queue team-x exists, but a queue above it does not.",
        Some("Create the missing parentQueue or correct it; with node pools every queue of the path needs the pool's label."),
    );
    check(
        Reason::QueueNotLeaf(i(0)),
        "queue-not-leaf",
        "Queue dept has queues below it; gangs are served in leaf queues only.",
        Some("Name one of its leaf queues in spec.queue: team-a, team-b, team-c, …."),
    );
    check(
        Reason::BeyondQueueDepth { queue: i(1), depth: 1200 },
        "beyond-queue-depth",
        "1,200 gangs of queue team-a came before it, as many as queueDepthPerAction lets a cycle try.",
        None,
    );
    check(
        Reason::ActionNotRun(Action::Allocate),
        "action-not-run",
        "Action allocate, which would place it, did not run in this cycle.",
        Some("Add allocate to the actions."),
    );
    check(
        Reason::BackedOff,
        "backed-off",
        "It was found unschedulable before, and its schedulingBackoff says not to try again.",
        Some("Set spec.schedulingBackoff to -1, or have its owner clear the scheduling condition."),
    );
    check(
        Reason::OneStep,
        "one-step",
        "It got one step of what it still wants (a pod, or an optional member); the next cycle takes another.",
        None,
    );
}

#[test]
fn a_gang_without_queue() {
    let (snapshot, mut names) = cluster();
    names.gang_queues = Col::from(vec![String::new()]);
    let facts = Facts { snapshot: &snapshot, names: &names };
    assert_eq!(sentence(&Reason::NoQueue(NoQueue::Missing), i(0), facts), "It names no queue.");
}

#[test]
fn bounds() {
    check(
        Reason::OverLimit(bound(1, Resource::Gpu, 8_000_000, 6_000_000, 4_000_000)),
        "over-limit",
        "Queue team-a may hold 8 GPUs (limit); it holds 6 and the gang asks for 4: 2 too many.",
        Some("Raise the limit of queue team-a by 2 GPUs, or end as much of its work."),
    );
    check(
        Reason::OverLimit(bound(0, Resource::Memory, 64 << 30, 60 << 30, 8 << 30)),
        "over-limit",
        "Queue dept, above team-a, may hold 64Gi of memory (limit); it holds 60Gi and the gang asks for 8Gi: 4Gi too much.",
        Some("Raise the limit of queue dept by 4Gi of memory, or end as much of its work."),
    );
    check(
        Reason::OverQuota(bound(1, Resource::Cpu, 16_000, 15_500, 1_250)),
        "over-quota",
        "Queue team-a may hold 16 CPU cores of work that may not be evicted (quota); it holds 15.5 and the gang asks for 1.25: \
         0.75 too many.",
        Some("Raise the quota of queue team-a by 0.75 CPU cores, or let the gang be evicted (preemptible)."),
    );
}

#[test]
fn members() {
    let pods = |subgroup, present, gated, min| Reason::TooFewPods { subgroup: i(subgroup), present, gated, min };
    let create = Some("Create the missing pods, or lower the minimum (minMember, minSubGroup).");
    let gates = Some("Remove the scheduling gates.");
    check(pods(0, 3, 0, 4), "too-few-pods", "3 of the 4 pods that must start together exist.", create);
    check(
        pods(1, 1, 1, 2),
        "too-few-pods",
        "1 of the 2 pods of sub-group workers that must start together exists; 1 more is held back by a scheduling gate.",
        gates,
    );
    check(pods(0, 0, 0, 1), "too-few-pods", "No pod exists that could start.", create);
    check(
        Reason::TooFewMembers { set: None, ready: 1, required: 2 },
        "too-few-members",
        "1 of its sub-groups has the pods it needs; 2 must.",
        create,
    );
    check(
        Reason::TooFewMembers { set: Some(i(1)), ready: 0, required: 2 },
        "too-few-members",
        "None of the members of workers have the pods they need; 2 must.",
        create,
    );
    check(Reason::Gated { pods: 1 }, "gated", "Its waiting pod is held back by a scheduling gate.", gates);
    check(Reason::Gated { pods: 2 }, "gated", "All 2 waiting pods are held back by scheduling gates.", gates);
    check(
        Reason::UnknownSubgroup { pods: 2 },
        "unknown-subgroup",
        "2 pods name a sub-group that the gang does not have.",
        Some("Add the sub-group to spec.subGroups, or correct the pods' label kai.scheduler/subgroup-name."),
    );
}

#[test]
fn pods_that_fit_nowhere() {
    check(
        Reason::Blocked { pod: i(1), why: Blocked::MissingConfigMap },
        "configmap-missing",
        "Pod ml/train-1 needs ConfigMap settings, which does not exist.",
        Some("Create settings in namespace ml."),
    );
    check(
        Reason::Blocked { pod: i(2), why: Blocked::MissingConfigMap },
        "configmap-missing",
        "Pod ml/train-2 needs ConfigMaps that do not exist: a, b.",
        Some("Create a, b in namespace ml."),
    );
    check(
        Reason::Blocked { pod: i(0), why: Blocked::LegacyMig },
        "legacy-mig",
        "Pod ml/train-0 asks for a MIG instance by annotation, which is not supported.",
        Some("Ask for nvidia.com/mig-<g>g.<m>gb in the container's resources instead."),
    );
    check(
        Reason::TooLarge { pod: i(0), short: Shortage { what: Scarce::Gpus, asked: 16, free: 8 } },
        "too-large",
        "Pod ml/train-0 asks for 16 GPUs; the largest node offers 8.",
        Some("Ask for less, or add a node with 16 GPUs."),
    );
    let dim: DimIdx = i(0);
    check(
        Reason::TooLarge { pod: i(3), short: Shortage { what: Scarce::Extra(dim), asked: 2000, free: 0 } },
        "too-large",
        "Pod ml/train-3 asks for 2 of nvidia.com/mig-1g.10gb; no node offers any.",
        Some("Ask for less, or add a node with 2 of nvidia.com/mig-1g.10gb."),
    );
}

#[test]
fn no_node() {
    let node: NodeIdx = i(1);
    let nearest = Nearest { node, short: Shortage { what: Scarce::Gpus, asked: 8, free: 2 }, scarce: 1 };
    check(
        Reason::NoNode {
            pod: i(0),
            placed: 4,
            members: 8,
            refusals: tally(&[(Refusal::Taint, 200), (Refusal::Gpu, 1000), (Refusal::Selector, 1)]),
            nearest: Some(nearest),
        },
        "no-node",
        "4 of 8 members fit at once; the fifth (ml/train-0) found no node: 1,000 nodes have too few free GPUs, 200 have a taint \
         that is not tolerated, 1 does not match the node selector (pool=a); nearest is node-17, 2 GPUs free of 8 asked.",
        Some("Free 6 GPUs on node-17, or add a node with 8 GPUs."),
    );
    check(
        Reason::NoNode {
            pod: i(1),
            placed: 0,
            members: 1,
            refusals: tally(&[(Refusal::Gpu, 1)]),
            nearest: Some(Nearest { short: Shortage { what: Scarce::CardMib, asked: 8192, free: 4096 }, scarce: 3, ..nearest }),
        },
        "no-node",
        "Pod ml/train-1 found no node: 1 node has no GPU with enough room; nearest is node-17, 4,096 MiB of GPU memory free of \
         8,192 MiB asked, and 2 more resources are short there.",
        Some("Free 4,096 MiB of GPU memory on node-17, or add a node with 8,192 MiB of GPU memory."),
    );
    check(
        Reason::NoNode { pod: i(2), placed: 0, members: 12, refusals: Tally::default(), nearest: None },
        "no-node",
        "None of 12 members fit at once; the first (ml/train-2) found no node: there are no nodes.",
        Some("Add nodes."),
    );
    check(
        Reason::NoNode {
            pod: i(0),
            placed: 11,
            members: 12,
            refusals: tally(&[(Refusal::Affinity, 3), (Refusal::NotReady, 2)]),
            nearest: None,
        },
        "no-node",
        "11 of 12 members fit at once; the 12th (ml/train-0) found no node: 3 nodes do not match the required node affinity \
         (gpu in (a100)), 2 are not ready, cordoned or under pressure.",
        Some("Correct the required node affinity, or label nodes to match it."),
    );
}

#[test]
fn every_refusal_has_its_words() {
    let (snapshot, names) = cluster();
    let facts = Facts { snapshot: &snapshot, names: &names };
    let mut texts = std::collections::BTreeSet::new();
    for refusal in Refusal::ALL {
        for one in [true, false] {
            texts.insert(refusal_text(refusal, one, i(3), facts));
        }
    }
    assert_eq!(texts.len(), 2 * Refusal::ALL.len(), "{texts:?}");
    assert!(texts.contains("has too little free nvidia.com/mig-1g.10gb"));
    assert_eq!(refusal_text(Refusal::Gpu, false, i(2), facts), "have too few GPUs with enough room");
}

#[test]
fn the_gist_is_the_same_for_equal_gangs() {
    let (snapshot, names) = cluster();
    let facts = Facts { snapshot: &snapshot, names: &names };
    let class: ClassIdx = i(0);
    let short = Shortage { what: Scarce::Gpus, asked: 8, free: 2 };
    let of = |pod, node| Reason::NoNode {
        pod: i(pod),
        placed: 0,
        members: 1,
        refusals: tally(&[(Refusal::Gpu, 2)]),
        nearest: Some(Nearest { node: i(node), short, scarce: 1 }),
    };
    assert_eq!(snapshot.pods[PodIdx::new(0)].class, class);
    assert_eq!(gist(&of(0, 0), i(0), facts), "A pod found no node: 2 nodes have too few free GPUs.");
    assert_eq!(gist(&of(0, 0), i(0), facts), gist(&of(0, 1), i(0), facts));
    assert_ne!(sentence(&of(0, 0), i(0), facts), sentence(&of(0, 1), i(0), facts));
    let many = Reason::NoNode { pod: i(0), placed: 3, members: 4, refusals: tally(&[(Refusal::Gpu, 2)]), nearest: None };
    assert_eq!(gist(&many, i(0), facts), "Not all members found a node at once: 2 nodes have too few free GPUs.");
    let limit = Reason::OverLimit(bound(0, Resource::Gpu, 8_000_000, 6_000_000, 4_000_000));
    assert_eq!(gist(&limit, i(0), facts), "Queue dept may hold 8 GPUs (limit); what is asked is more than is left of it.");
}

#[test]
fn names_cannot_steer_a_terminal() {
    assert!(matches!(visible("Träger-1 → größer"), Cow::Borrowed("Träger-1 → größer")));
    assert_eq!(visible("a\x1b[31mb\u{9b}c\u{7f}\n"), "a\\u{1b}[31mb\\u{9b}c\\u{7f}\\n");
    assert_eq!(visible("x\u{202e}y\u{2066}z\u{feff}"), "x\\u{202e}y\\u{2066}z\\u{feff}");
    let (snapshot, mut names) = cluster();
    names.gang_queues[i(0)] = "\u{1b}[31mx\u{7}".to_owned();
    names.queues[i(2)] = "y\u{202e}".to_owned();
    names.queues[i(1)] = "z\u{9b}".to_owned();
    let facts = Facts { snapshot: &snapshot, names: &names };
    for reason in [Reason::NoQueue(NoQueue::Missing), Reason::QueueNotLeaf(i(0)), Reason::QueueNotLeaf(i(2))] {
        let texts =
            [sentence(&reason, i(0), facts), gist(&reason, i(0), facts), advice(&reason, i(0), facts).unwrap_or_default()];
        assert!(texts.iter().flat_map(|text| text.chars()).all(|c| !garbles(c)), "{texts:?}");
    }
    assert!(sentence(&Reason::NoQueue(NoQueue::Missing), i(0), facts).contains("Queue \\u{1b}[31mx\\u{7} does not exist"));
}
