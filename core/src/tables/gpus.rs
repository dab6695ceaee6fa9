//! Shared GPUs: one row (a *group*, in KAI's word) for each physical card that is or will be shared.
//!
//! The ledger is exact MiB. A group takes one whole GPU of its node from idle as soon as somebody holds a part of it, and one
//! from soon as soon as somebody keeps a part of it (semantics.md §1.5.1 in closed form).

use crate::index::{Col, GroupIdx, Idx, NodeIdx};
use crate::snapshot::Snapshot;

/// One row a shared card; `last_on` and `room` one cell a node.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Gpus {
    /// The node it is in. Fixed.
    pub node: Col<GroupIdx, NodeIdx>,
    /// The group before it on the same node (lower index). Fixed.
    pub before: Col<GroupIdx, Option<GroupIdx>>,
    /// MiB held at this moment. Written by the ledger.
    pub held_mib: Col<GroupIdx, i64>,
    /// MiB kept once everything that is leaving is gone, promises included. Written by the ledger.
    pub kept_mib: Col<GroupIdx, i64>,
    /// MiB of all pods that hold or keep a part, those that are leaving and those that were promised one both included: what
    /// card order goes by (semantics.md §5.4). Written by the ledger.
    pub used_mib: Col<GroupIdx, i64>,
    /// Pods that hold a part. Written by the ledger.
    pub holders: Col<GroupIdx, u32>,
    /// Pods that keep a part. Written by the ledger.
    pub keepers: Col<GroupIdx, u32>,
    /// The group of the highest index on each node; follow `before` for the others. Written by `open` and `close`.
    pub last_on: Col<NodeIdx, Option<GroupIdx>>,
    /// Groups that were shared when the cycle began: their reservation pods are among the pods. Fixed.
    pub at_start: usize,
    /// The most MiB that a kept group of the node still has room for; -1 if no group of it is kept. Written by the ledger.
    pub room: Col<NodeIdx, i64>,
}

/// Whole GPUs that a charge took from a node: -1, 0 or 1 each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Taken {
    pub(crate) held: i64,
    pub(crate) kept: i64,
}

impl Gpus {
    pub(crate) fn load(&mut self, rows: &Snapshot) {
        self.last_on.reset(rows.nodes.len(), None);
        self.room.reset(rows.nodes.len(), -1);
        for &node in rows.groups.iter() {
            self.open(node);
        }
        self.at_start = self.node.len();
    }

    /// Whether the group's reservation pod is still to come, and takes a pod slot beside those of its users.
    #[must_use]
    pub fn awaits_reservation(&self, group: GroupIdx) -> bool {
        group.at() >= self.at_start
    }

    /// A card that is not shared yet is to be: a new row.
    pub(crate) fn open(&mut self, node: NodeIdx) -> GroupIdx {
        self.before.push(self.last_on[node]);
        self.held_mib.push(0);
        self.kept_mib.push(0);
        self.used_mib.push(0);
        self.holders.push(0);
        self.keepers.push(0);
        let group = self.node.push(node);
        self.last_on[node] = Some(group);
        group
    }

    /// Takes back the last `open`.
    pub(crate) fn close(&mut self) {
        let last = self.node.len() - 1;
        let group: GroupIdx = super::at(last);
        assert!(self.holders[group] == 0 && self.keepers[group] == 0, "a shared card is closed only when nobody uses it");
        self.last_on[self.node[group]] = self.before[group];
        self.node.truncate(last);
        self.before.truncate(last);
        self.held_mib.truncate(last);
        self.kept_mib.truncate(last);
        self.used_mib.truncate(last);
        self.holders.truncate(last);
        self.keepers.truncate(last);
    }

    /// The groups of a node, highest index first.
    pub fn on(&self, node: NodeIdx) -> impl Iterator<Item = GroupIdx> + '_ {
        std::iter::successors(self.last_on[node], |&group| self.before[group])
    }

    /// MiB that a pod can still be promised on a group: only a kept group takes more pods (one that everybody leaves is about
    /// to be a whole GPU again); -1 otherwise.
    #[must_use]
    pub fn room_soon(&self, group: GroupIdx, card_mib: i64) -> i64 {
        if self.keepers[group] == 0 { -1 } else { (card_mib - self.kept_mib[group]).max(-1) }
    }

    /// MiB that a pod could start with at once; -1 if nobody holds the group.
    #[must_use]
    pub fn room_now(&self, group: GroupIdx, card_mib: i64) -> i64 {
        if self.holders[group] == 0 { -1 } else { card_mib - self.held_mib[group] }
    }

    /// Adds (`sign` 1) or removes (-1) a pod's part of a group.
    pub(crate) fn charge(&mut self, group: GroupIdx, mib: i64, holds: bool, keeps: bool, sign: i64) -> Taken {
        let mut taken = Taken { held: 0, kept: 0 };
        self.used_mib[group] += mib * sign;
        if holds {
            self.held_mib[group] += mib * sign;
            taken.held = step(&mut self.holders[group], sign);
        }
        if keeps {
            self.kept_mib[group] += mib * sign;
            taken.kept = step(&mut self.keepers[group], sign);
        }
        taken
    }

    pub(crate) fn refresh_room(&mut self, node: NodeIdx, card_mib: i64) {
        self.room[node] = self.on(node).map(|group| self.room_soon(group, card_mib)).max().unwrap_or(-1);
    }
}

/// Counts one user more or less; 1 if it is the first, -1 if it was the last, else 0.
fn step(users: &mut u32, sign: i64) -> i64 {
    if sign > 0 {
        *users += 1;
        i64::from(*users == 1)
    } else {
        *users -= 1;
        -i64::from(*users == 0)
    }
}
