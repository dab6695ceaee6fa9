//! The queues as a table: a tree in columns, one table for each resource.

use std::fmt::Write as _;

use muster_api::report_amount::bare;
use muster_core::index::{Col, QueueIdx};
use muster_core::units::{Amounts, Resource, UNLIMITED};

use super::View;
use super::table::Lengths;
use crate::args::Resources;
use crate::text::{cut, plural};

const NAME_WIDTH: usize = 24;
const CELL_WIDTH: usize = 10;

/// Appends the tables, with at most `lengths.queues` queues in each.
pub(super) fn tables_into(out: &mut String, view: &View<'_>, resources: Resources, lengths: &Lengths) {
    let queues_max = lengths.queues;
    let tables: &[(Resource, &str)] = match resources {
        Resources::Gpu => &[(Resource::Gpu, "GPUs")],
        Resources::All => &[(Resource::Gpu, "GPUs"), (Resource::Cpu, "CPU cores"), (Resource::Memory, "memory")],
    };
    let order = tree_order(view);
    if order.is_empty() {
        out.push_str("\nNo queues\n");
        return;
    }
    for &(resource, unit) in tables {
        let _ = write!(out, "\n{:<NAME_WIDTH$}", format!("Queues ({unit})"));
        for title in ["quota", "limit", "fair share", "held", "wanted"] {
            let _ = write!(out, " {title:>CELL_WIDTH$}");
        }
        out.push('\n');
        for &(queue, depth) in order.iter().take(queues_max) {
            row_into(out, view, queue, depth, resource);
        }
        if let Some(rest) = order.len().checked_sub(queues_max).filter(|&rest| rest > 0) {
            let _ = writeln!(out, "  … and {}{}", plural(rest, "more queue", "more queues"), lengths.rest);
        }
    }
}

fn row_into(out: &mut String, view: &View<'_>, queue: QueueIdx, depth: usize, resource: Resource) {
    let row = &view.loaded.snapshot.queues[queue];
    let report = &view.planned.outcome.queues[queue];
    // Deep trees stop to move right before the name is lost.
    let indent = (depth * 2).min(NAME_WIDTH / 2);
    let name = format!("{:indent$}{}", "", cut(&view.loaded.names.queues[queue], NAME_WIDTH - indent));
    let _ = write!(out, "{name:<NAME_WIDTH$}");
    let cell = |amounts: Amounts| match amounts[resource] {
        UNLIMITED => "-".to_owned(),
        amount => bare(resource, amount),
    };
    for amounts in [row.quota, row.limit, report.fair_share, report.allocated, report.requested] {
        let _ = write!(out, " {:>CELL_WIDTH$}", cell(amounts));
    }
    out.push('\n');
}

/// Every queue before the ones below it, with its depth.
fn tree_order(view: &View<'_>) -> Vec<(QueueIdx, usize)> {
    let rows = &view.loaded.snapshot.queues;
    let mut below: Col<QueueIdx, Vec<QueueIdx>> = rows.iter().map(|_| Vec::new()).collect();
    let mut stack = Vec::new();
    for (queue, row) in rows.entries().rev() {
        match row.parent {
            Some(parent) => below[parent].push(queue),
            None => stack.push((queue, 0)),
        }
    }
    let mut order = Vec::with_capacity(rows.len());
    while let Some((queue, depth)) = stack.pop() {
        order.push((queue, depth));
        stack.extend(below[queue].iter().map(|&child| (child, depth + 1)));
    }
    order
}
