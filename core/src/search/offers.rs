//! What is counted as free because somebody could go who is not told to leave yet: whole resources, and cards whose last users
//! would go.

use crate::index::{Col, GroupIdx, Idx, NodeIdx};
use crate::search::leaf::Alone;
use crate::tables::Tables;
use crate::tables::classes::Kind;
use crate::tables::nodes::{Dim, GPU, PODS};

/// Offers; on few nodes.
#[derive(Clone, Debug, Default)]
pub struct Offered {
    /// Whole resources, indexed by node, then dimension.
    cells: Vec<i64>,
    dims: usize,
    /// Users of each shared card that are offered.
    users: Col<GroupIdx, u32>,
    cards: Vec<GroupIdx>,
    /// The same for all cards of a node.
    users_on: Col<NodeIdx, u32>,
    /// Nodes with offers.
    touched: Vec<NodeIdx>,
    is_touched: Col<NodeIdx, bool>,
}

impl Offered {
    /// Nothing is offered on a cluster of this shape.
    pub(super) fn reset(&mut self, tables: &Tables) {
        self.dims = tables.nodes.soon.len();
        self.cells.clear();
        self.cells.resize(self.dims * tables.nodes.len(), 0);
        self.users.reset(tables.gpus.node.len(), 0);
        self.users_on.reset(tables.nodes.len(), 0);
        self.is_touched.reset(tables.nodes.len(), false);
        self.touched.clear();
        self.cards.clear();
    }

    /// Whether it was made for a cluster of this shape.
    pub(super) fn is_for(&self, tables: &Tables) -> bool {
        self.dims == tables.nodes.soon.len() && self.is_touched.len() == tables.nodes.len()
    }

    /// Whether there may be offers anywhere.
    pub(super) const fn is_empty(&self) -> bool {
        self.touched.is_empty()
    }

    /// Nodes with offers.
    pub(super) fn nodes(&self) -> impl Iterator<Item = NodeIdx> + '_ {
        self.touched.iter().copied()
    }

    /// Takes back the offers on one of the nodes that have any; which one.
    pub(super) fn clear_next(&mut self) -> Option<NodeIdx> {
        let node = self.touched.pop()?;
        self.is_touched[node] = false;
        self.cells[node.at() * self.dims..][..self.dims].fill(0);
        self.users_on[node] = 0;
        if self.touched.is_empty() {
            self.cards.drain(..).for_each(|card| self.users[card] = 0);
        }
        Some(node)
    }

    /// Counts a pod as gone (`sign` 1), or no longer (-1).
    pub(super) fn add(&mut self, tables: &Tables, Alone { pod, node, class }: Alone, sign: i64) {
        if !std::mem::replace(&mut self.is_touched[node], true) {
            self.touched.push(node);
        }
        for need in tables.classes.needs(class) {
            self.cells[node.at() * self.dims + need.dim.at()] += sign * need.amount;
        }
        if !matches!(tables.classes.kind[class], Kind::Shared { .. }) {
            return;
        }
        for &card in tables.pods.groups_of(tables.pods.placement(pod)) {
            while self.users.len() <= card.at() {
                self.users.push(0);
            }
            if self.users[card] == 0 {
                self.cards.push(card);
            }
            let step = |users: u32| {
                users.checked_add_signed(if sign > 0 { 1 } else { -1 }).expect("what was offered is taken back once")
            };
            self.users[card] = step(self.users[card]);
            self.users_on[node] = step(self.users_on[node]);
        }
    }

    /// What is offered of a dimension on a node: with a card whose users all go, a whole GPU and the slot of the reservation pod
    /// that it would need.
    pub(super) fn at(&self, tables: &Tables, dim: Dim, node: NodeIdx) -> i64 {
        let whole = self.cells[node.at() * self.dims + dim.at()];
        if self.users_on[node] == 0 || dim != GPU && dim != PODS {
            return whole;
        }
        let gpus = &tables.gpus;
        let goes = |&card: &GroupIdx| self.users.get(card.at()).is_some_and(|&users| users > 0 && users == gpus.keepers[card]);
        let cards = gpus.on(node).filter(goes).filter(|&card| dim == GPU || gpus.awaits_reservation(card));
        whole + i64::try_from(cards.count()).expect("few cards")
    }
}
