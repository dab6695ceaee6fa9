//! Where one pod goes: the best node among those that fit, by one integer key per (class, node).
//!
//! [`key`] says what the key is, [`scan`] is the plain way to the best node, [`index`] the fast one (equal by property test),
//! [`cards`] chooses shared GPUs inside a node, [`gang`] places a whole gang or nothing.

pub mod cards;
pub mod gang;
pub mod index;
pub mod key;
pub mod scan;

use crate::config::{Action, Config};
use crate::feasible::Feasible;
use crate::index::{ClassIdx, NodeIdx, PodIdx};
use crate::place::cards::CardBuffer;
use crate::place::index::NodeIndex;
use crate::snapshot::GpuRequest;
use crate::statement::{Cards, Statement};
use crate::tables::Tables;
use crate::tables::classes::Kind;
use crate::units::{Resource, UNLIMITED};

/// What finding a node needs beside the tables; kept from cycle to cycle.
#[derive(Clone, Debug)]
pub struct NodeSearch {
    /// Where each class may go at all.
    pub feasible: Feasible,
    /// The best node per class.
    pub index: NodeIndex,
    cards: CardBuffer,
}

impl NodeSearch {
    /// Nothing known yet, for these tables.
    #[must_use]
    pub fn new(tables: &Tables) -> Self {
        Self { feasible: Feasible::new(tables), index: NodeIndex::new(tables), cards: CardBuffer::default() }
    }

    /// The best node for a pod, with its key; `None` if no node fits.
    pub fn best(&mut self, tables: &Tables, config: &Config, pod: PodIdx) -> Option<(NodeIdx, i64)> {
        let class = tables.pods.class[pod];
        if tables.classes.row[class].blocked.is_some() {
            return None;
        }
        self.feasible.prepare(tables, config, class);
        let view = key::View { tables, config, mask: self.feasible.mask(class), class };
        let room = card_quota(tables, config, pod);
        if let Some(node) = tables.pods.nominated[pod].filter(|_| config.plugins.nominated_node) {
            let nominated = view.key(node);
            if nominated > 0 && card_allowed(tables, class, node, room) {
                return Some((node, nominated));
            }
        }
        let best = self.index.best(&view);
        match best {
            // Rare: the best card is larger than what the queue may still hold. Then every node is asked.
            Some((node, _)) if !card_allowed(tables, class, node, room) => {
                scan::best(&view, |node| card_allowed(tables, class, node, room))
            }
            _ => best,
        }
    }

    /// Gives a waiting pod its best node; `false` if there is none.
    pub fn place(
        &mut self,
        tables: &mut Tables,
        statement: &mut Statement,
        config: &Config,
        pod: PodIdx,
        action: Action,
    ) -> bool {
        let Some((node, found)) = self.best(tables, config, pod) else { return false };
        let class = tables.pods.class[pod];
        if let Kind::Shared { .. } = tables.classes.kind[class] {
            let choice = self.cards.choose(tables, config.card_order, class, node).expect("a node with a key has the cards");
            let cards = Cards { joined: self.cards.joined(), opened: choice.opened };
            statement.place(tables, pod, node, cards, choice.waits, action);
        } else {
            let waits = !key::fits_now(tables, class, node);
            debug_assert!(found > 0, "only a node that fits is chosen");
            statement.place(tables, pod, node, Cards::NONE, waits, action);
        }
        true
    }
}

/// Micro-GPU that the queues above a pod may still hold, if the pod's share depends on the card it gets (semantics.md §5.5).
fn card_quota(tables: &Tables, config: &Config, pod: PodIdx) -> i64 {
    if !config.plugins.proportion || !tables.classes.charge_varies(tables.pods.class[pod]) {
        return UNLIMITED;
    }
    let Some(gang) = tables.pods.gang[pod] else { return UNLIMITED };
    let Ok(queue) = tables.gangs.queue[gang] else { return UNLIMITED };
    let queues = &tables.queues;
    let room = |bound: i64, held: i64| if bound == UNLIMITED { UNLIMITED } else { bound - held };
    let gpu = Resource::Gpu;
    let limits = queues.ancestors(queue).map(|q| room(queues.limit[q][gpu], queues.allocated[q][gpu])).min();
    let quotas = queues.ancestors(queue).map(|q| room(queues.quota[q][gpu], queues.non_preemptible[q][gpu])).min();
    let quota = if tables.gangs.preemptible[gang] { None } else { quotas };
    limits.into_iter().chain(quota).min().unwrap_or(UNLIMITED)
}

fn card_allowed(tables: &Tables, class: ClassIdx, node: NodeIdx, room: i64) -> bool {
    match tables.classes.row[class].gpu {
        GpuRequest::Memory { .. } => tables.queue_charge(class, node)[Resource::Gpu] <= room,
        _ => true,
    }
}
