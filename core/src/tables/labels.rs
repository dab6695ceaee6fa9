//! Which nodes carry which labels and taints: long-lived sets, expanded to dense masks once per class ([`crate::feasible`]).

use roaring::RoaringBitmap;

use crate::index::{Col, Idx, KeyIdx, LabelIdx, NodeIdx, TaintIdx};
use crate::snapshot::Snapshot;

/// Sets of nodes, by position in the node table.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Labels {
    /// Nodes with a label. Fixed.
    pub with: Col<LabelIdx, RoaringBitmap>,
    /// The label's value as an integer. Fixed.
    pub number: Col<LabelIdx, Option<i64>>,
    /// The labels of a key. Fixed.
    pub of_key: Col<KeyIdx, Vec<LabelIdx>>,
    /// Nodes with a taint. Fixed.
    pub tainted: Col<TaintIdx, RoaringBitmap>,
}

impl Labels {
    pub(crate) fn load(&mut self, rows: &Snapshot) {
        self.with = rows.labels.iter().map(|row| set(&row.nodes)).collect();
        self.number = rows.labels.iter().map(|row| row.number).collect();
        self.of_key = rows.keys.clone();
        self.tainted = rows.taints.iter().map(|nodes| set(nodes)).collect();
    }

    /// Nodes that carry the key with any value that `wanted` accepts.
    #[must_use]
    pub fn key_where(&self, key: KeyIdx, wanted: impl Fn(Option<i64>) -> bool) -> RoaringBitmap {
        let mut nodes = RoaringBitmap::new();
        for &label in &self.of_key[key] {
            if wanted(self.number[label]) {
                nodes |= &self.with[label];
            }
        }
        nodes
    }
}

/// A set of nodes.
#[must_use]
pub fn set(nodes: &[NodeIdx]) -> RoaringBitmap {
    nodes.iter().map(|node| u32::try_from(node.at()).expect("an index is a u32")).collect()
}
