//! The best node per request class without looking at every node.
//!
//! For each class in use a *tournament*: the keys of all nodes, the largest key of every 16 of them, the largest of every 16 of
//! those, and so on. A key depends on its own node only, so a placement costs one key and one path of the tournament. The
//! tournament of a class learns of changes when it is asked, from the log of changed nodes ([`Nodes::changes`]); after many
//! changes it is filled anew by whole columns.
//!
//! [`Nodes::changes`]: crate::tables::nodes::Nodes::changes

use muster_kernels::select;
use rayon::prelude::*;

use crate::config::Config;
use crate::feasible::Feasible;
use crate::index::{ClassIdx, Col, Idx, NodeIdx};
use crate::place::key::{Scratch, View};
use crate::tables::Tables;
use crate::tables::classes::Kind;

/// Keys under one winner; a cache line or two.
const WIDTH: usize = 16;
/// Bytes that all tournaments may take together; beyond, the least recently used one is given up.
const BYTES_MAX: usize = 256 << 20;
/// Below this many keys the tournaments of several classes are not worth filling on several threads (one costs about 4 ns a key).
const PARALLEL_KEYS_MIN: usize = 1 << 15;

/// Tournaments of the classes in use.
#[derive(Clone, Debug, Default)]
pub struct NodeIndex {
    slots: Vec<Slot>,
    slot_of: Col<ClassIdx, Option<u32>>,
    slots_max: usize,
    turn: u64,
}

#[derive(Clone, Debug)]
struct Slot {
    class: ClassIdx,
    /// Changes known so far, as a position in the log.
    seen: usize,
    /// When it was last asked.
    turn: u64,
    tournament: Tournament,
    scratch: Scratch,
}

impl NodeIndex {
    /// No tournament yet, for these tables.
    #[must_use]
    pub fn new(tables: &Tables) -> Self {
        let bytes = (tables.nodes.len() * size_of::<i64>() * (WIDTH + 1) / WIDTH).max(1);
        Self {
            slots: Vec::new(),
            slot_of: vec![None; tables.classes.row.len()].into(),
            slots_max: (BYTES_MAX / bytes).max(8),
            turn: 0,
        }
    }

    /// A cycle begins, the log of changes is about to be cleared: tournaments that nobody asked in the last cycle are forgotten,
    /// the others catch up.
    pub fn begin(&mut self, tables: &mut Tables, config: &Config, feasible: &Feasible, last_cycle: u64) {
        for slot in &mut self.slots {
            if slot.turn > last_cycle {
                let view = View { tables, config, mask: feasible.mask(slot.class), class: slot.class };
                slot.catch_up(&view);
            } else {
                slot.seen = usize::MAX;
            }
            slot.seen = if slot.seen == usize::MAX { usize::MAX } else { 0 };
        }
        tables.nodes.changes.clear();
    }

    /// How often a tournament was asked so far.
    #[must_use]
    pub const fn turn(&self) -> u64 {
        self.turn
    }

    /// The node with the largest key, the first of equals, with its key; `None` if the class fits nowhere.
    pub fn best(&mut self, view: &View<'_>) -> Option<(NodeIdx, i64)> {
        self.turn += 1;
        let slot = self.slot(view.class);
        let slot = &mut self.slots[slot];
        slot.turn = self.turn;
        slot.catch_up(view);
        slot.tournament.best()
    }

    /// Fills the tournaments of classes that are about to be asked, on all threads. The classes must be prepared in `feasible`.
    pub fn prefill(&mut self, tables: &Tables, config: &Config, feasible: &Feasible, classes: &[ClassIdx]) {
        let classes = &classes[..classes.len().min(self.slots_max)];
        for &class in classes {
            self.turn += 1;
            let slot = self.slot(class);
            self.slots[slot].turn = self.turn;
        }
        let fill = |slot: &mut Slot| {
            slot.catch_up(&View { tables, config, mask: feasible.mask(slot.class), class: slot.class });
        };
        let stale = |slot: &&mut Slot| slot.seen == usize::MAX;
        if classes.len() * tables.nodes.len() >= PARALLEL_KEYS_MIN {
            self.slots.par_iter_mut().filter(stale).for_each(fill);
        } else {
            self.slots.iter_mut().filter(stale).for_each(fill);
        }
    }

    /// The slot of a class; a new one, or the one asked least recently, if it has none.
    fn slot(&mut self, class: ClassIdx) -> usize {
        if let Some(slot) = self.slot_of[class] {
            return slot as usize;
        }
        let slot = if self.slots.len() < self.slots_max {
            self.slots.push(Slot {
                class,
                seen: usize::MAX,
                turn: 0,
                tournament: Tournament::default(),
                scratch: Scratch::default(),
            });
            self.slots.len() - 1
        } else {
            let oldest = self.slots.iter().enumerate().min_by_key(|(_, slot)| slot.turn);
            oldest.expect("there is room for some tournaments").0
        };
        let old = self.slots[slot].class;
        if self.slot_of[old] == Some(cut(slot)) {
            self.slot_of[old] = None;
        }
        self.slots[slot].class = class;
        self.slots[slot].seen = usize::MAX;
        self.slot_of[class] = Some(cut(slot));
        slot
    }
}

impl Slot {
    /// Learns of everything that changed since it was last asked.
    fn catch_up(&mut self, view: &View<'_>) {
        let changes = &view.tables.nodes.changes;
        // One key by itself costs about 15 keys of a column; a shared class has no column way for its keys.
        let shared = matches!(view.tables.classes.kind[view.class], Kind::Shared { .. });
        let few = view.tables.nodes.len() / if shared { 1 } else { WIDTH };
        if self.seen > changes.len() || changes.len() - self.seen > few {
            self.tournament.refill(view, &mut self.scratch);
        } else {
            let mut last = None;
            for &node in &changes[self.seen..] {
                if last != Some(node) {
                    self.tournament.set(node, view.key(node));
                }
                last = Some(node);
            }
        }
        self.seen = changes.len();
    }
}

/// Keys and winners. Level 0 has a cell a node, padded with 0 to a multiple of [`WIDTH`]; each further level has a cell for
/// every `WIDTH` cells below; the last has at most `WIDTH` cells.
#[derive(Clone, Debug, Default)]
struct Tournament {
    levels: Vec<Vec<i64>>,
}

impl Tournament {
    fn refill(&mut self, view: &View<'_>, scratch: &mut Scratch) {
        let nodes = view.tables.nodes.len();
        self.resize(nodes);
        view.fill(&mut self.levels[0][..nodes], scratch);
        for level in 1..self.levels.len() {
            let (below, above) = self.levels.split_at_mut(level);
            for (winner, of) in above[0].iter_mut().zip(below[level - 1].chunks(WIDTH)) {
                *winner = select::max(of);
            }
        }
    }

    fn resize(&mut self, nodes: usize) {
        let mut cells = nodes;
        for level in 0.. {
            if self.levels.len() == level {
                self.levels.push(Vec::new());
            }
            self.levels[level].resize(cells.next_multiple_of(WIDTH), 0);
            if cells <= WIDTH {
                self.levels.truncate(level + 1);
                return;
            }
            cells = cells.div_ceil(WIDTH);
        }
    }

    fn set(&mut self, node: NodeIdx, key: i64) {
        let mut at = node.at();
        let mut value = key;
        for level in 0..self.levels.len() {
            if self.levels[level][at] == value {
                return;
            }
            self.levels[level][at] = value;
            at /= WIDTH;
            value = select::max(&self.levels[level][at * WIDTH..(at + 1) * WIDTH]);
        }
    }

    /// From the top: the first cell that holds the largest value, then among the cells below it.
    fn best(&self) -> Option<(NodeIdx, i64)> {
        let value = select::max(self.levels.last()?);
        if value <= 0 {
            return None;
        }
        let mut at = 0;
        for level in self.levels.iter().rev() {
            let cells = &level[at * WIDTH..(at + 1) * WIDTH];
            at = at * WIDTH + select::first_equal(cells, value).expect("a winner won against somebody");
        }
        Some((NodeIdx::new(at), value))
    }
}

fn cut(slot: usize) -> u32 {
    u32::try_from(slot).expect("there are few tournaments")
}
