//! The exact words and numbers of every reason why nobody was evicted or moved, and of every rule by which somebody was.

use muster_core::config::Action;
use muster_core::explain::{Bound, Reason, Unhelped};
use muster_core::outcome::Why;
use muster_core::units::{Resource, UNLIMITED};
use serde_json::{Value, json};

use super::{bound, cluster, i};
use crate::evictions;
use crate::report;
use crate::sentences::{Facts, advice, code, gist, most_telling, sentence};

fn gpus(queue: usize, most: i64, held: i64, asked: i64) -> Bound {
    bound(queue, Resource::Gpu, most * 1_000_000, held * 1_000_000, asked * 1_000_000)
}

/// Code, sentence, advice and numbers.
#[track_caller]
fn check(action: Action, why: Unhelped, expected: (&str, &str, Option<&str>), numbers: Value) {
    let (snapshot, names) = cluster();
    let facts = Facts { snapshot: &snapshot, names: &names };
    let reason = Reason::NotHelped { action, why };
    assert_eq!(sentence(&reason, i(0), facts), expected.1);
    assert_eq!((code(&reason), advice(&reason, i(0), facts).as_deref()), (expected.0, expected.2));
    let mut found = report::reason(&reason, i(0), facts);
    let object = found.as_object_mut().expect("an object");
    assert_eq!(object.remove("action"), Some(json!(action.name())));
    for key in ["code", "sentence", "advice"] {
        assert_eq!(object.remove(key).is_some(), key != "advice" || expected.2.is_some(), "{key}");
    }
    assert_eq!(found, numbers);
}

#[test]
fn shares_and_bounds() {
    let numbers = |queue: &str, bound: i64, held: i64, asked: i64| {
        let excess = held + asked - bound;
        json!({"queue": queue, "resource": "gpu", "bound": bound, "held": held, "asked": asked, "excess": excess})
    };
    check(
        Action::Reclaim,
        Unhelped::AboveShare(gpus(1, 8, 8, 4)),
        (
            "reclaim-above-fair-share",
            "Reclaim: queue team-a would hold 12 GPUs, 4 above its fair share of 8.",
            Some("Raise the quota or over-quota weight of queue team-a, or end 4 GPUs of its work."),
        ),
        numbers("team-a", 8, 8, 4),
    );
    check(
        Action::Preempt,
        Unhelped::AboveQuota(gpus(0, 4, 3, 2)),
        (
            "preempt-above-quota",
            "Preempt: queue dept, above team-a, would hold 5 GPUs of work that may not be evicted, 1 above its quota of 4.",
            Some("Raise the quota of queue dept by 1 GPU, or let the gang be evicted (preemptible)."),
        ),
        numbers("dept", 4, 3, 2),
    );
    check(
        Action::Reclaim,
        Unhelped::OverLimit(gpus(0, 8, 8, 1)),
        (
            "reclaim-over-limit",
            "Reclaim: queue dept, above team-a, may hold 8 GPUs (limit); it holds 8 and the gang asks for 1, and too little of \
             that may go.",
            Some("Raise the limit of queue dept by 1 GPU, or end as much of its work."),
        ),
        numbers("dept", 8, 8, 1),
    );
    check(
        Action::Reclaim,
        Unhelped::KeepsShare(gpus(2, 8, 7, 0)),
        (
            "reclaim-others-within-share",
            "Reclaim: no queue beside its own holds more than it may count on; queue team-b comes nearest, with 7 of 8 GPUs.",
            Some("Wait until work ends, or lower what queue team-b may count on (quota, over-quota weight)."),
        ),
        numbers("team-b", 8, 7, 0),
    );
}

#[test]
fn saturation() {
    let side = |queue: &str, bound: Value, held: i64, asked: i64, excess: Value, percent: Value| {
        let place = json!({"queue": queue, "resource": "gpu", "bound": bound});
        report::merged(place, json!({"held": held, "asked": asked, "excess": excess, "percent": percent}))
    };
    let expected = |sentence| {
        let advice = Some("Raise the quota or over-quota weight of queue dept, or end 1 GPU of its work.");
        ("reclaim-saturated", sentence, advice)
    };
    check(
        Action::Reclaim,
        Unhelped::Saturated { ours: gpus(0, 10, 9, 2), theirs: gpus(2, 20, 21, 0) },
        expected(
            "Reclaim: queue dept, above team-a, would be served to 110 % of its fair share, 11 of 10 GPUs, queue team-b beside \
             it to 105 % of its fair share, 21 of 20 GPUs: who is served less gives nothing.",
        ),
        json!({
            "ours": side("dept", json!(10), 9, 2, json!(1), json!(110)),
            "theirs": side("team-b", json!(20), 21, 0, json!(1), json!(105)),
            "saturationMultiplier": 1.0,
        }),
    );
    check(
        Action::Reclaim,
        Unhelped::Saturated { ours: gpus(0, 0, 0, 1), theirs: Bound { bound: UNLIMITED, ..gpus(2, 0, 3, 0) } },
        expected(
            "Reclaim: queue dept, above team-a, would be served with 1 GPU, though its fair share is 0, queue team-b beside it \
             to none of its fair share, which is unlimited: who is served less gives nothing.",
        ),
        json!({
            "ours": side("dept", json!(0), 0, 1, json!(1), Value::Null),
            "theirs": side("team-b", Value::Null, 3, 0, Value::Null, Value::Null),
            "saturationMultiplier": 1.0,
        }),
    );
    let (mut snapshot, names) = cluster();
    snapshot.config.victims.saturation_multiplier = 1.5;
    let facts = Facts { snapshot: &snapshot, names: &names };
    let why = Unhelped::Saturated { ours: gpus(0, 10, 9, 2), theirs: gpus(2, 20, 24, 0) };
    let text = sentence(&Reason::NotHelped { action: Action::Reclaim, why }, i(0), facts);
    assert!(text.contains("to 120 % of its fair share, 24 of 20 GPUs (saturation multiplier 1.5): who"), "{text}");
}

#[test]
fn who_may_ask_and_who_may_go() {
    check(
        Action::Preempt,
        Unhelped::Delayed { left: 44_100_000_000 },
        (
            "preempt-delayed",
            "Preempt: nobody goes for it while its preemption delay lasts, 45 s more.",
            Some("Wait, or lower spec.preemptionDelay."),
        ),
        json!({"leftSeconds": 44.1}),
    );
    check(
        Action::Consolidation,
        Unhelped::NotPreemptible,
        (
            "consolidation-not-preemptible",
            "Consolidation: work is moved only for gangs that may be evicted, and this one may not.",
            Some("Let the gang be evicted (preemptible)."),
        ),
        json!({}),
    );
    check(
        Action::Reclaim,
        Unhelped::BeyondQueueDepth { depth: 1200 },
        (
            "reclaim-beyond-queue-depth",
            "Reclaim: 1,200 gangs of its queue came before it, as many as queueDepthPerAction lets a cycle try.",
            None,
        ),
        json!({"depth": 1200}),
    );
    for (action, text) in [
        (Action::Preempt, "Preempt: nobody of a lower priority runs in its queue who may be evicted."),
        (Action::Reclaim, "Reclaim: nobody runs in other queues who may be evicted."),
        (Action::Consolidation, "Consolidation: nobody runs who may be moved."),
    ] {
        check(action, Unhelped::Nobody, (&format!("{}-nobody", action.name()), text, None), json!({}));
    }
}

#[test]
fn counting_and_searching() {
    let too_little = |pods, most, text, more| {
        let advice = format!("Add nodes that {more} more of its pods fit on, or end work that may not be evicted there.");
        let expected = ("preempt-too-little", text, Some(advice.as_str()));
        check(Action::Preempt, Unhelped::TooLittle { pods, most }, expected, json!({"pods": pods, "most": most}));
    };
    too_little(8, 3, "Preempt: if everybody went who may go, 3 of 8 pods of one kind find a node.", 5);
    too_little(2, 0, "Preempt: if everybody went who may go, none of 2 pods of one kind find a node.", 2);
    check(
        Action::Consolidation,
        Unhelped::TooLittleFree { asked: 4_000_000, free: 2_500_000 },
        (
            "consolidation-too-little-free",
            "Consolidation: moving work frees nothing: 2.5 GPUs are free on all nodes together and the gang asks for 4.",
            Some("Free 1.5 GPUs, on whichever nodes."),
        ),
        json!({"resource": "gpu", "asked": 4, "free": 2.5}),
    );
    check(
        Action::Reclaim,
        Unhelped::NoArrangement { tries: 1 },
        (
            "reclaim-no-arrangement",
            "Reclaim: taking those who may go now, in their order, does not make it start within the rules (1 try).",
            Some("Wait until minimum runtimes are over, or free resources on nodes that fit."),
        ),
        json!({"tries": 1}),
    );
    check(
        Action::Consolidation,
        Unhelped::GivenUp { tries: 129 },
        (
            "consolidation-given-up",
            "Consolidation: the search was given up after 129 tries.",
            Some("Report this with the snapshot: no search should take so long."),
        ),
        json!({"tries": 129}),
    );
}

#[test]
fn budgets() {
    check(
        Action::Reclaim,
        Unhelped::Kept { gangs: 2 },
        (
            "reclaim-disruption-budget",
            "Reclaim: 2 gangs could go, but PodDisruptionBudgets let no more pods go.",
            Some("Wait until more of their pods are ready, or let the budgets allow more disruptions."),
        ),
        json!({"gangs": 2}),
    );
}

#[test]
fn the_brake() {
    check(
        Action::Reclaim,
        Unhelped::Brake { queue: None, max: 10, so_far: 6, needed: 8 },
        (
            "reclaim-brake",
            "Reclaim: the eviction brake lets at most 10 pods go in a cycle; 6 went before and this takes 8 more.",
            Some("Wait for the next cycle, or raise the brake (--max-evictions 14 or more)."),
        ),
        json!({"queue": null, "max": 10, "soFar": 6, "needed": 8}),
    );
    check(
        Action::Reclaim,
        Unhelped::Brake { queue: Some(i(2)), max: 1, so_far: 1, needed: 8 },
        (
            "reclaim-brake",
            "Reclaim: the eviction brake lets at most 1 pod go from queue team-b in a cycle; 1 went before and this takes \
             8 more.",
            Some("Raise the brake (--max-evictions-per-queue 9 or more)."),
        ),
        json!({"queue": "team-b", "max": 1, "soFar": 1, "needed": 8}),
    );
}

#[test]
fn a_short_table_says_what_tells_most() {
    let (snapshot, names) = cluster();
    let facts = Facts { snapshot: &snapshot, names: &names };
    let not = |action, why| Reason::NotHelped { action, why };
    let reasons = [
        Reason::BackedOff,
        not(Action::Consolidation, Unhelped::TooLittleFree { asked: 2, free: 1 }),
        not(Action::Reclaim, Unhelped::AboveShare(gpus(1, 8, 8, 4))),
        not(Action::Preempt, Unhelped::Nobody),
    ];
    let shown: Vec<&Reason> = most_telling(&reasons).collect();
    assert_eq!(shown, [&reasons[0], &reasons[2]]);
    assert_eq!(gist(shown[1], i(0), facts), "Reclaim: its queue would hold more than its fair share.");
    // Gangs of other queues, with other numbers, have the same gist.
    let other = not(Action::Reclaim, Unhelped::AboveShare(gpus(2, 4, 1, 9)));
    assert_eq!(gist(shown[1], i(0), facts), gist(&other, i(0), facts));
    assert_eq!(most_telling(&reasons[..1]).count(), 1);
    // What the first reason says already is not said again.
    let limit = gpus(1, 8, 8, 4);
    let reasons = [
        Reason::OverLimit(limit),
        not(Action::Reclaim, Unhelped::OverLimit(limit)),
        not(Action::Preempt, Unhelped::AboveQuota(limit)),
    ];
    assert_eq!(most_telling(&reasons).collect::<Vec<_>>(), [&reasons[0], &reasons[2]]);
    assert_eq!(most_telling(&reasons[..2]).count(), 1);
}

#[test]
fn rules_of_evictions() {
    let (_, names) = cluster();
    for (why, code, brief, sentence, numbers) in [
        (
            Why::AboveShare(gpus(2, 3, 4, 1)),
            "above-share",
            "share: 4 of 3 GPUs",
            "Queue team-b held 4 GPUs, 1 above its share of 3.",
            json!({"queue": "team-b", "resource": "gpu", "bound": 3, "held": 4, "asked": 1}),
        ),
        (
            Why::AboveQuota(bound(2, Resource::Memory, 1 << 30, 3 << 30, 0)),
            "above-quota",
            "quota: 3Gi of 1Gi memory",
            "Queue team-b held 3Gi of memory, 2Gi above its quota of 1Gi, and the queue that asks stays within its own.",
            json!({"queue": "team-b", "resource": "memory", "bound": 1 << 30, "held": 3_i64 << 30, "asked": 0}),
        ),
        (
            Why::LowerPriority { victim: 50, asker: 75 },
            "lower-priority",
            "priority 50 < 75",
            "Its priority is 50, that of the gang that asks, in the same queue, is 75.",
            json!({"priority": 50, "askerPriority": 75}),
        ),
        (Why::Moves, "moves", "moves", "It is not lost: it gets another place.", json!({})),
        (
            Why::Stale { since: 3_720_000_000_000, grace: 60_000_000_000 },
            "stale-gang",
            "stale for 62 min",
            "Its gang has been below its minimum for 62 min; it may be for 60 s.",
            json!({"staleSeconds": 3720, "graceSeconds": 60}),
        ),
        (Why::NoRule, "no-rule", "no rule", "Plugin proportion is off: no rule protects queues.", json!({})),
    ] {
        assert_eq!((evictions::code(&why), evictions::brief(&why).as_str()), (code, brief));
        let expected = report::merged(json!({"code": code, "sentence": sentence}), numbers);
        assert_eq!(evictions::rule(&why, &names), expected);
    }
}
