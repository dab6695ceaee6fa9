//! Who would only come home: victims that are served before the asker and find no place but their own.
//!
//! A try with one gang of one pod is the same as one with another of its leaf, its class and its place among the gangs that wait
//! there: the queues stand the same, so both come before the asker or both after it. If the first one came home, and no node has
//! room for a pod of that class, the other one comes home too, and the asker fails as it did without anybody. So that need not
//! be tried: exact, and where clusters are full most tries are of this kind.

use crate::actions::Plan;
use crate::index::{ClassIdx, Idx, NodeIdx, QueueIdx};
use crate::search::counting::copies;
use crate::search::leaf::Alone;
use crate::search::{SearchMemory, Unit};
use muster_kernels::mask;

/// What is known of one asker's victims.
#[derive(Clone, Debug, Default)]
pub struct Returns {
    /// Leaf, class and place in line of those who came home when they were tried alone.
    known: Vec<(QueueIdx, ClassIdx, usize)>,
    /// Classes that were looked at, and whether no node has room for one more pod.
    full: Vec<(ClassIdx, bool)>,
}

impl Returns {
    /// Another asker.
    pub(super) fn forget(&mut self) {
        self.known.clear();
        self.full.clear();
    }
}

impl SearchMemory {
    /// If one unit is chosen that is a gang of one pod, still where it was: what its try depends on.
    fn chosen_alone(&self, plan: &Plan<'_>) -> Option<(Unit, Alone, (QueueIdx, ClassIdx, usize))> {
        let &[at] = self.chosen.as_slice() else { return None };
        let unit = self.prefix[at];
        let alone = unit.alone.filter(|_| !unit.told && plan.config.victims.shortcuts)?;
        let leaf = plan.tables.gangs.queue[unit.gang].ok()?;
        Some((unit, alone, (leaf, alone.class, self.simulation.place_in_line(plan, leaf, unit.gang))))
    }

    /// Whether it is known that the only one chosen would come home.
    pub(super) fn would_return(&mut self, plan: &mut Plan<'_>) -> bool {
        let Some((unit, alone, key)) = self.chosen_alone(plan) else { return false };
        if !self.returns.known.contains(&key) || plan.tables.gangs.backed_off[unit.gang] || !self.is_full(plan, alone.class) {
            return false;
        }
        // Home is where it may still be.
        mask::get(plan.search.feasible.mask(alone.class), alone.node.at())
    }

    /// The only one chosen came home.
    pub(super) fn note_return(&mut self, plan: &Plan<'_>) {
        if let Some((_, _, key)) = self.chosen_alone(plan)
            && !self.returns.known.contains(&key)
        {
            self.returns.known.push(key);
        }
    }

    /// Whether no node has room for one more pod of a class; while nobody is told to leave.
    fn is_full(&mut self, plan: &mut Plan<'_>, class: ClassIdx) -> bool {
        if let Some(&(_, full)) = self.returns.full.iter().find(|&&(known, _)| known == class) {
            return full;
        }
        plan.search.feasible.prepare(plan.tables, plan.config, class);
        let has_room = |node: usize| copies(plan.tables, class, NodeIdx::new(node), None) > 0;
        let full = !mask::ones(plan.search.feasible.mask(class)).any(has_room);
        self.returns.full.push((class, full));
        full
    }
}
