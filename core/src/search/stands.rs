//! Where the units of a prefix stand, so that only those are looked at where something is won: prefixes are long, and most of
//! them stands where it does not help.

use crate::index::{Col, NodeIdx};
use crate::search::Unit;

/// No unit before it.
const END: u32 = u32::MAX;

/// Positions in a prefix, by node.
#[derive(Clone, Debug, Default)]
pub(super) struct Stands {
    /// The last gang of one pod on each node, and for each position the one before it there.
    last_on: Col<NodeIdx, u32>,
    before: Vec<u32>,
    /// Nodes that have any.
    nodes: Vec<NodeIdx>,
    /// Units of another kind.
    others: Vec<usize>,
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
        self.before.clear();
        self.others.clear();
    }

    /// One unit more.
    pub(super) fn push(&mut self, unit: &Unit) {
        let at = self.before.len();
        let mut before = END;
        if let Some(alone) = unit.alone.filter(|_| !unit.told) {
            before = std::mem::replace(&mut self.last_on[alone.node], u32::try_from(at).expect("units are counted in u32"));
            if before == END {
                self.nodes.push(alone.node);
            }
        } else {
            self.others.push(at);
        }
        self.before.push(before);
    }

    /// Units that are not gangs of one pod, or were told to leave.
    pub(super) fn others(&self) -> &[usize] {
        &self.others
    }

    /// Gangs of one pod on a node, the last one first.
    pub(super) fn on(&self, node: NodeIdx) -> impl Iterator<Item = usize> + '_ {
        let mut at = self.last_on[node];
        std::iter::from_fn(move || {
            let &before = self.before.get(at as usize)?;
            Some(std::mem::replace(&mut at, before) as usize)
        })
    }
}
