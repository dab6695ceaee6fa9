//! Which cards of a node a pod shares (semantics.md §5.4).

use crate::config::CardOrder;
use crate::index::{ClassIdx, GroupIdx, NodeIdx};
use crate::place::key::fits_now;
use crate::tables::Tables;
use crate::tables::classes::Kind;
use crate::tables::nodes::{GPU, PODS};

/// What a pod would take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    /// Whole GPUs that are to be shared from now on.
    pub opened: u32,
    /// Whether it has to wait for something that is leaving.
    pub waits: bool,
}

/// The cards of the last choice; reused.
#[derive(Clone, Debug, Default)]
pub struct CardBuffer {
    joined: Vec<GroupIdx>,
}

impl CardBuffer {
    /// Chooses cards; `None` if the node has too few. The shared ones are in [`CardBuffer::joined`] after it.
    pub fn choose(&mut self, tables: &Tables, order: CardOrder, class: ClassIdx, node: NodeIdx) -> Option<Choice> {
        let Kind::Shared { devices } = tables.classes.kind[class] else { return None };
        self.joined.clear();
        let joined = &mut self.joined;
        decide(tables, order, class, node, devices, |group| joined.push(group))
    }

    /// The shared cards of the last choice.
    #[must_use]
    pub fn joined(&self) -> &[GroupIdx] {
        &self.joined
    }

    /// The choice without the list of its cards.
    #[must_use]
    pub fn judge(tables: &Tables, order: CardOrder, class: ClassIdx, node: NodeIdx, devices: u32) -> Option<Choice> {
        decide(tables, order, class, node, devices, |_| {})
    }
}

/// Takes `devices` cards in the order of preference; each shared one is given to `join`.
///
/// KAI judges a whole GPU as idle by a test that also counts releasing parts of other cards (quirk Q7); here a pod waits as soon
/// as one of its cards is not free at this moment. A new shared card costs a pod slot for its reservation pod; joining one costs
/// none (KAI takes every card for a new one, quirk Q10).
fn decide(
    tables: &Tables,
    order: CardOrder,
    class: ClassIdx,
    node: NodeIdx,
    devices: u32,
    mut join: impl FnMut(GroupIdx),
) -> Option<Choice> {
    let card = tables.nodes.card_mib[node];
    let mib = tables.classes.mib_on(class, card)?;
    if mib > card {
        return None;
    }
    // A node with more GPUs in use than it has takes nobody, not even on a card that has room: one of its cards is not there.
    let whole = tables.nodes.soon[GPU.at()][node];
    let whole = if whole < 0 { return None } else { u32::try_from(whole).unwrap_or(u32::MAX) };
    let mut taken = Taken { last: None, waits: false, count: 0 };
    // Each card that is opened needs a pod slot beside the pod's own; where there is none, spreading ends.
    let slots_left = u32::try_from((tables.nodes.soon[PODS.at()][node] - 1).max(0)).unwrap_or(u32::MAX);
    let opened_first = if order == CardOrder::Spread { devices.min(whole).min(slots_left) } else { 0 };
    while taken.count + opened_first < devices {
        let Some(group) = next_card(tables, order, node, card, mib, taken.last) else { break };
        taken.waits |= tables.gpus.room_now(group, card) < mib;
        taken.last = Some(group);
        taken.count += 1;
        join(group);
    }
    let opened = devices - taken.count;
    let slots = 1 + i64::from(opened);
    if opened > whole || tables.nodes.soon[PODS.at()][node] < slots {
        return None;
    }
    let idle = |dim: crate::tables::nodes::Dim| tables.nodes.idle[dim.at()][node];
    let waits = taken.waits || i64::from(opened) > idle(GPU) || idle(PODS) < slots || !fits_now(tables, class, node);
    Some(Choice { opened, waits })
}

struct Taken {
    last: Option<GroupIdx>,
    waits: bool,
    count: u32,
}

/// The shared card that comes after `last` in the order of preference and has room. Without a list: the best of those that are
/// not better than the last one, which costs one look at each of the node's few cards.
fn next_card(tables: &Tables, order: CardOrder, node: NodeIdx, card: i64, mib: i64, last: Option<GroupIdx>) -> Option<GroupIdx> {
    let rank = |group: GroupIdx| {
        let used = tables.gpus.used_mib[group];
        match order {
            CardOrder::Pack => (-used, group),
            CardOrder::Spread => (used, group),
            CardOrder::Index => (0, group),
        }
    };
    let after = last.map(rank);
    tables
        .gpus
        .on(node)
        .filter(|&group| tables.gpus.room_soon(group, card) >= mib)
        .filter(|&group| after.is_none_or(|after| rank(group) > after))
        .min_by_key(|&group| rank(group))
}
