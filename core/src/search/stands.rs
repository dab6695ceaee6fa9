//! Where the units of a prefix stand, so that only those are looked at where something is won: prefixes are long, and most of
//! them stands where it does not help.

use crate::index::{Col, NodeIdx};
use crate::search::Unit;

/// No unit before it.
const END: u32 = u32::MAX;

/// Positions in a prefix, by node.
#[derive(Clone, Debug, Default)]
pub(super) struct Stands {
    /// The last unit on each node, and for each of them the one before it there: indices of `links`.
    last_on: Col<NodeIdx, u32>,
    links: Vec<(usize, u32)>,
    /// Nodes that have any.
    nodes: Vec<NodeIdx>,
    /// Units that were told to leave.
    told: Vec<usize>,
}

impl Stands {
    /// No units, on so many nodes.
    pub(super) fn clear(&mut self, nodes: usize) {
        if self.last_on.len() == nodes {
            self.nodes.drain(..).for_each(|node| self.last_on[node] = END);
        } else {
            self.last_on.reset(nodes, END);
            self.nodes.clear();
        }
        self.links.clear();
        self.told.clear();
    }

    /// A unit at a position, whose pods stand on these nodes; larger positions come later.
    pub(super) fn push(&mut self, at: usize, unit: &Unit, nodes: impl Iterator<Item = NodeIdx>) {
        if unit.told {
            self.told.push(at);
            return;
        }
        for node in nodes {
            let before = self.last_on[node];
            if self.links.get(before as usize).is_some_and(|&(last, _)| last == at) {
                continue;
            }
            self.last_on[node] = u32::try_from(self.links.len()).expect("units are counted in u32");
            self.links.push((at, before));
            if before == END {
                self.nodes.push(node);
            }
        }
    }

    /// Units that were told to leave.
    pub(super) fn told(&self) -> &[usize] {
        &self.told
    }

    /// Units on a node, the last one first.
    pub(super) fn on(&self, node: NodeIdx) -> impl Iterator<Item = usize> + '_ {
        let mut at = self.last_on[node];
        std::iter::from_fn(move || {
            let &(unit, before) = self.links.get(at as usize)?;
            at = before;
            Some(unit)
        })
    }
}
