//! Which units of a prefix are tried together where those whom counting needs are not enough (semantics.md §6.4.5).
//!
//! All that one gang gave: it has one turn, so of several pods above its minimum one comes back at most, and the others stay
//! away. Where victims have to find other places, those on a few nodes, the fullest first: one may take the place that another
//! leaves. At last everybody.

use bumpalo::collections::Vec as BumpVec;

use crate::actions::Plan;
use crate::index::{Idx, NodeIdx};
use crate::place::gang::next_pods;
use crate::search::counting::free_on;
use crate::search::prefix::rest_goes;
use crate::search::{Asker, SearchMemory, rules};
use crate::tables::Tables;
use crate::units::Resource;

impl SearchMemory {
    /// Whether all units are enough that the gang of the last one gave so far; tried for the first four, then for twice, four
    /// times… as many.
    pub(super) fn try_gang(&mut self, plan: &mut Plan<'_>, asker: &Asker) -> bool {
        let Some(&last) = self.prefix.last() else { return false };
        if last.gone || !last.single || !self.places.counts() {
            return false;
        }
        self.chosen.clear();
        self.chosen.extend((0..self.prefix.len()).filter(|&at| self.prefix[at].gang == last.gang && !self.prefix[at].gone));
        let units = self.chosen.len();
        units > 1 && (units <= 4 || units.is_power_of_two()) && self.try_chosen(plan, asker)
    }

    /// Whether some of the first `units` or all of them are enough.
    pub(super) fn try_sets(&mut self, plan: &mut Plan<'_>, asker: &Asker, units: usize) -> bool {
        if !self.stream.loses() && self.places.counts() && self.try_nodes(plan, asker, units) {
            return true;
        }
        self.chosen.clear();
        self.chosen.extend((0..units).filter(|&at| !self.prefix[at].gone));
        self.try_chosen(plan, asker)
    }

    /// Of the nodes where the first `units` stand those that could take one of the asker's pods, the fullest first: units on so
    /// many of them as the asker needs, then on one more, on three more… nodes.
    fn try_nodes(&mut self, plan: &mut Plan<'_>, asker: &Asker, units: usize) -> bool {
        let tables = &*plan.tables;
        let mut nodes: BumpVec<'_, (i64, usize, NodeIdx)> = BumpVec::new_in(plan.arena);
        for unit in self.prefix[..units].iter().filter(|unit| !unit.gone) {
            for &pod in unit.of(&self.unit_pods) {
                let Some(node) = tables.pods.home(pod) else { continue };
                let at = nodes.iter().position(|&(.., known)| known == node).unwrap_or_else(|| {
                    nodes.push((free_on(tables, node), nodes.len(), node));
                    nodes.len() - 1
                });
                if !unit.told {
                    nodes[at].0 += rules::held_before(tables, pod)[Resource::Gpu];
                }
            }
        }
        let (mut asked, mut smallest) = (0, i64::MAX);
        next_pods(tables, plan.config, asker.gang, plan.arena, |pod| {
            let gpu = tables.classes.charge_at(tables.pods.class[pod], tables.nodes.smallest_card)[Resource::Gpu];
            (asked, smallest) = (asked + gpu, smallest.min(gpu));
        });
        let elsewhere: i64 = (0..tables.nodes.len())
            .map(NodeIdx::new)
            .filter(|&node| self.places.may_take(plan, node) && nodes.iter().all(|&(.., known)| known != node))
            .map(|node| free_on(tables, node))
            .sum();
        nodes.retain(|&(room, ..)| room >= smallest);
        nodes.sort_unstable();
        let mut missing = asked - elsewhere;
        let mut least = 0;
        while missing > 0 && least < nodes.len() {
            missing -= nodes[least].0;
            least += 1;
        }
        let mut more = 0;
        while missing <= 0 && least + more <= nodes.len() {
            if self.choose_on(plan.tables, units, &nodes[..least + more]) && self.try_chosen(plan, asker) {
                return true;
            }
            more = 2 * more + 1;
        }
        false
    }

    /// Chooses of the first `units` those on some nodes; whether these are several, and not all.
    fn choose_on(&mut self, tables: &Tables, units: usize, nodes: &[(i64, usize, NodeIdx)]) -> bool {
        self.chosen.clear();
        for at in 0..units {
            let stands_on = |pod: &&_| tables.pods.home(**pod).is_some_and(|home| nodes.iter().any(|&(.., node)| node == home));
            if !self.prefix[at].gone && self.prefix[at].of(&self.unit_pods).iter().any(|pod| stands_on(&pod)) {
                self.chosen.push(at);
            }
        }
        // No gang is left below its minimum.
        let stood_on = self.chosen.len();
        for at in 0..units {
            let unit = self.prefix[at];
            let others = self.chosen[..stood_on].iter().map(|&c| &self.prefix[c]);
            if !unit.gone && rest_goes(tables, unit, others, &self.unit_pods) && !self.chosen.contains(&at) {
                self.chosen.push(at);
            }
        }
        self.chosen.sort_unstable();
        self.chosen.len() > 1 && self.chosen.len() < self.prefix[..units].iter().filter(|unit| !unit.gone).count()
    }

    /// Whether the chosen are enough, nobody else being told to leave; if so, what is not needed has been given back.
    fn try_chosen(&mut self, plan: &mut Plan<'_>, asker: &Asker) -> bool {
        let before = plan.statement.mark(plan.tables);
        self.withdrawn.clear();
        for at in 0..self.prefix.len() {
            let unit = self.prefix[at];
            if self.chosen.binary_search(&at).is_err() && !unit.out {
                self.keep(plan, asker, unit);
                if !unit.told {
                    self.withdrawn.push(at);
                }
            }
        }
        let counted = self.places.counts() && plan.config.victims.shortcuts && !self.some_out;
        if counted && !self.places.enough_now(plan) {
            self.go_back(plan, before);
            return false;
        }
        self.try_all_chosen(plan, asker, before)
    }
}
