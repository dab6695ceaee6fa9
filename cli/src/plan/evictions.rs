//! Who has to leave, for whom, by which rule, and how far that is above the lower bound.

use std::collections::HashMap;
use std::fmt::Write as _;

use muster_api::evictions;
use muster_api::report;
use muster_core::index::{GangIdx, PodIdx};
use muster_core::outcome::{Batch, Decision, DecisionKind, Eviction, Why};
use serde_json::{Value, json};

use super::View;
use super::table::Lengths;
use crate::text::{WIDTH, count, cut, plural};

/// A decision to evict with all that is known of it.
pub(super) struct Leaving<'a> {
    /// Its place among all decisions.
    pub(super) seq: usize,
    pub(super) decision: &'a Decision,
    pub(super) eviction: &'a Eviction,
    /// The place that the pod gets in return.
    pub(super) moves_to: Option<&'a Decision>,
}

/// Every eviction, in order.
pub(super) fn all<'a>(view: &View<'a>) -> Vec<Leaving<'a>> {
    let outcome = &view.planned.outcome;
    let mut places: HashMap<PodIdx, (usize, &Decision)> = HashMap::new();
    for (seq, decision) in outcome.decisions.iter().enumerate() {
        if decision.kind != DecisionKind::Evict {
            places.insert(decision.pod, (seq, decision));
        }
    }
    let evicted = outcome.decisions.iter().enumerate().filter(|(_, decision)| decision.kind == DecisionKind::Evict);
    let leaving = |((seq, decision), eviction): ((usize, &'a Decision), &'a Eviction)| {
        let later = places.get(&decision.pod).filter(|&&(at, _)| at > seq);
        Leaving { seq, decision, eviction, moves_to: later.map(|&(_, place)| place) }
    };
    evicted.zip(&outcome.evictions).map(leaving).collect()
}

/// What a cycle's evictions come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Sums {
    /// Told to leave, moved ones included.
    pub(super) leave: usize,
    /// Those of them that get another place.
    pub(super) moved: usize,
    /// Told to leave on behalf of an asker.
    pub(super) asked_for: usize,
    /// The sum of the askers' lower bounds, each at its turn.
    pub(super) at_least: usize,
}

impl Sums {
    pub(super) fn of(view: &View<'_>, evictions: &[Leaving<'_>]) -> Self {
        let at_least = view.planned.outcome.batches.iter().map(|batch| batch.least as usize).sum();
        Self {
            leave: evictions.len(),
            moved: evictions.iter().filter(|leaving| leaving.moves_to.is_some()).count(),
            asked_for: evictions.iter().filter(|leaving| leaving.eviction.asker.is_some()).count(),
            at_least,
        }
    }

    /// How many more leave for askers than the bound says.
    pub(super) const fn above_bound(&self) -> usize {
        self.asked_for.saturating_sub(self.at_least)
    }
}

/// A gang by name, for machines.
pub(super) fn gang_json(view: &View<'_>, gang: GangIdx) -> Value {
    let names = &view.loaded.names;
    json!({"namespace": names.gangs[gang].namespace, "podGroup": names.gangs[gang].name})
}

/// What was done for each asker, for machines.
pub(super) fn batches_json(view: &View<'_>) -> Vec<Value> {
    let batch = |batch: &Batch| {
        report::merged(
            json!({"for": gang_json(view, batch.asker)}),
            json!({
                "queue": view.loaded.names.gang_queues[batch.asker],
                "action": batch.action.name(),
                "placed": batch.placed,
                "evicted": batch.evicted,
                "moved": batch.moved,
                "atLeast": batch.least,
                "tries": batch.tries,
            }),
        )
    };
    view.planned.outcome.batches.iter().map(batch).collect()
}

/// Columns are at most so wide; the last one gets what is left.
const COLUMNS_MAX: [usize; 3] = [24, 12, 18];
const GAP: usize = 2;

/// The table for people: nothing if nobody leaves.
pub(super) fn table_into(out: &mut String, view: &View<'_>, lengths: &Lengths) {
    let evictions = all(view);
    if evictions.is_empty() {
        return;
    }
    let sums = Sums::of(view, &evictions);
    let _ = writeln!(out, "\nEvictions: {}", summary(view, sums));
    if sums.asked_for > 0 {
        let (at_least, above) = (count(sums.at_least), count(sums.above_bound()));
        let _ = writeln!(out, "  at least {at_least} of {} had to, by counting: {above} above that bound", count(sums.asked_for));
    }
    let shown = &evictions[..evictions.len().min(lengths.gangs)];
    let rows: Vec<[String; 4]> = shown.iter().map(|leaving| row(view, leaving)).collect();
    let titles = ["pod", "node", "for", "rule"];
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.max().unwrap_or(0).clamp(titles[column].len(), COLUMNS_MAX[column])
    };
    let mut widths = [width(0), width(1), width(2), 0];
    widths[3] = WIDTH - widths.iter().map(|width| width + GAP).sum::<usize>();
    line_into(out, &titles.map(str::to_owned), &widths);
    for row in &rows {
        line_into(out, row, &widths);
    }
    if let Some(rest) = evictions.len().checked_sub(lengths.gangs).filter(|&rest| rest > 0) {
        let _ = writeln!(out, "  … and {}{}", plural(rest, "more pod", "more pods"), lengths.rest);
    }
}

/// `12 pods leave for 3 gangs, 2 of them move; 4 of stale gangs`.
fn summary(view: &View<'_>, sums: Sums) -> String {
    let leave = |pods: usize| format!("{} {}", plural(pods, "pod", "pods"), if pods == 1 { "leaves" } else { "leave" });
    let stale = sums.leave - sums.asked_for;
    if sums.asked_for == 0 {
        return format!("{}, all of stale gangs", leave(stale));
    }
    let askers = plural(view.planned.outcome.batches.len(), "gang", "gangs");
    let mut text = format!("{} for {askers}", leave(sums.asked_for));
    if sums.moved > 0 {
        let _ = write!(text, ", {} of them to another place", count(sums.moved));
    }
    if stale > 0 {
        let _ = write!(text, "; {} of stale gangs", count(stale));
    }
    text
}

fn row(view: &View<'_>, leaving: &Leaving<'_>) -> [String; 4] {
    let names = &view.loaded.names;
    let rule = match (leaving.eviction.why, leaving.moves_to) {
        (Why::Moves, Some(place)) => format!("moves to {}", names.nodes[place.node]),
        (why, _) => evictions::brief(&why),
    };
    let asker = leaving.eviction.asker.map_or("-".to_owned(), |gang| names.gangs[gang].to_string());
    [names.pods[leaving.decision.pod].to_string(), names.nodes[leaving.decision.node].clone(), asker, rule]
}

fn line_into(out: &mut String, cells: &[String; 4], widths: &[usize; 4]) {
    let mut line = String::new();
    for (cell, &width) in cells.iter().zip(widths) {
        let _ = write!(line, "{:GAP$}{:<width$}", "", cut(cell, width));
    }
    let _ = writeln!(out, "{}", line.trim_end());
}
