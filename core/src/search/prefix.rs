//! The first sufficient prefix of the stream, and everybody back who is not needed.
//!
//! Most of a prefix stands where it does not help. So of each prefix that passes counting those are tried whom counting needs
//! beside its last unit, without which no prefix was enough; if that comes out well, nobody of them can be given back. If it does
//! not, those who took their own places again before the asker's turn came are not counted on any more. Small prefixes are tried
//! as a whole, too, and then each unit is given back by trying without it.
//!
//! Counting needs no tables: a unit whose pods hold whole resources is only *offered* until a try needs it told to leave.

use crate::actions::Plan;
use crate::explain::Unhelped;
use crate::index::{GangIdx, PodIdx};
use crate::search::{Asker, SearchMemory, Unit, rules};
use crate::statement::Mark;
use crate::tables::gangs::Member;
use crate::tables::{Tables, is_active};

/// Longer prefixes are not tried as a whole: whoever stands elsewhere takes its place again.
const WHOLE_UNITS_MAX: usize = 64;
/// So many prefixes are tried as a whole, one after the other; from then on those after twice, four times… as many.
const WHOLES_MAX: u32 = 4;

impl SearchMemory {
    /// Takes units in order until the asker starts and the rules hold. Those who are needed on single nodes come first, sets of
    /// others after all of these (semantics.md §6.4.5).
    pub(super) fn find_prefix(&mut self, plan: &mut Plan<'_>, asker: &Asker) -> Result<(), Unhelped> {
        self.prefix.clear();
        self.stands.clear(plan.tables.nodes.len());
        self.turns.clear();
        self.returns.forget();
        (self.some_out, self.gone) = (false, 0);
        let mut failed = 0;
        while let Some(unit) = self.stream.next(plan, asker, &mut self.unit_pods) {
            let before = self.places.total();
            self.take(plan, asker, unit);
            let enough = self.places.enough_now(plan);
            if self.places.total() > before || !self.places.counts() {
                self.stream.won(plan.tables, unit, &self.unit_pods);
            }
            // What counting excludes no try brings about; with the shortcuts off that is shown.
            if enough || self.some_out || !plan.config.victims.shortcuts {
                let wins = enough && self.places.may_win(before);
                if wins && self.try_needed(plan, asker) || self.try_gang(plan, asker) {
                    return Ok(());
                }
                let units = self.prefix.len();
                if self.is_turn(failed) && self.places.counts() {
                    self.turns.push(units);
                } else if !self.places.counts() && self.try_sets(plan, asker, units) {
                    return Ok(());
                }
                failed += u32::from(enough || self.some_out);
            }
            if self.prefix.len() - self.gone == WHOLE_UNITS_MAX && self.try_turns(plan, asker) {
                return Ok(());
            }
            if self.tried_enough(plan) {
                return Err(Unhelped::GivenUp { tries: self.tries });
            }
        }
        if self.try_turns(plan, asker) { Ok(()) } else { Err(Unhelped::NoArrangement { tries: self.tries }) }
    }

    /// Whether one of the prefixes is enough that are tried as a whole or in parts.
    fn try_turns(&mut self, plan: &mut Plan<'_>, asker: &Asker) -> bool {
        let turns = std::mem::take(&mut self.turns);
        let found = turns.iter().any(|&units| !self.tried_enough(plan) && self.try_sets(plan, asker, units));
        self.turns = turns;
        self.turns.clear();
        found
    }

    /// Whether the prefix is tried as a whole, after so many that were not enough: always where counting knows nothing.
    const fn is_turn(&self, failed: u32) -> bool {
        let turn = failed < WHOLES_MAX || failed.is_power_of_two();
        !self.places.counts() || self.prefix.len() - self.gone <= WHOLE_UNITS_MAX && turn
    }

    /// One unit more. The rest of a gang that has nothing else to give is only offered: nothing depends on it in the tables.
    fn take(&mut self, plan: &mut Plan<'_>, asker: &Asker, mut unit: Unit) {
        if self.can_offer(plan, &unit) {
            self.offer(plan, &unit, 1);
        } else {
            unit.tell(plan, asker, &self.unit_pods);
        }
        match unit.alone {
            Some(alone) => self.stands.push(self.prefix.len(), &unit, std::iter::once(alone.node)),
            None => {
                let nodes = unit.of(&self.unit_pods).iter().filter_map(|&pod| plan.tables.pods.node[pod]);
                self.stands.push(self.prefix.len(), &unit, nodes);
            }
        }
        self.prefix.push(unit);
    }

    /// Whether nothing in the tables depends on a unit but what it holds, and counting can add that up.
    fn can_offer(&self, plan: &Plan<'_>, unit: &Unit) -> bool {
        let pods = unit.of(&self.unit_pods);
        let whole = || unit.core && pods.len() as u64 == u64::from(plan.tables.gangs.active(unit.gang));
        self.places.can_offer(plan.tables) && (unit.alone.is_some() || whole())
    }

    /// Counts a unit as gone (`sign` 1), or no longer (-1).
    fn offer(&mut self, plan: &Plan<'_>, unit: &Unit, sign: i64) {
        match unit.alone {
            Some(alone) => self.places.offer_alone(plan, alone, sign),
            None => self.places.offer(plan, unit.of(&self.unit_pods), sign),
        }
    }

    /// Whether those are enough whom counting needs beside the last unit. If not, all is as before, but those are taken out whom
    /// the rules protect from this asker, and those are not counted on who would take their places again first.
    fn try_needed(&mut self, plan: &mut Plan<'_>, asker: &Asker) -> bool {
        loop {
            let before = plan.statement.mark(plan.tables);
            self.choose(plan, asker);
            if let Some(at) = self.first_protected(plan, asker) {
                let gang = self.prefix[self.chosen[at]].gang;
                self.go_back(plan, before);
                self.take_out(plan, asker, self.chosen[at]);
                self.stream.refuse(plan.tables, gang);
            } else {
                let known = self.would_return(plan);
                if !known {
                    let ready = plan.statement.mark(plan.tables);
                    self.tell_chosen(plan, asker);
                    if self.try_once(plan, asker) {
                        self.spare_last(plan, asker, ready);
                        return true;
                    }
                }
                let alone = self.chosen.len() == 1;
                let returned = known || self.list_returned(plan);
                self.go_back(plan, before);
                if !returned || self.tried_enough(plan) {
                    return false;
                }
                if alone {
                    self.note_return(plan);
                }
                for chosen in 0..self.chosen.len() {
                    let at = self.chosen[chosen];
                    self.prefix[at].out = true;
                    self.some_out = true;
                    let unit = self.prefix[at];
                    self.offer(plan, &unit, -1);
                }
            }
            if !self.places.enough_now(plan) {
                return false;
            }
        }
    }

    /// The last unit was needed beside those that failed before it; it may not be beside these. The log is that of the smaller
    /// answer if there is one.
    fn spare_last(&mut self, plan: &mut Plan<'_>, asker: &Asker, ready: Mark) {
        let Some(last) = self.last() else { return };
        let unit = self.prefix[last];
        let others = self.chosen.iter().map(|&at| &self.prefix[at]);
        if self.chosen.len() < 2 || rest_goes(plan.tables, unit, others, &self.unit_pods) {
            return;
        }
        plan.statement.rollback(plan.tables, ready);
        self.chosen.pop();
        if unit.told {
            self.keep(plan, asker, unit);
        }
        self.tell_chosen(plan, asker);
        if !self.try_once(plan, asker) {
            plan.statement.rollback(plan.tables, ready);
            self.chosen.push(last);
            self.tell_chosen(plan, asker);
            let again = self.try_once(plan, asker);
            assert!(again, "what was tried once comes out the same");
        }
    }

    /// Chooses whom counting needs beside the last unit, from the last one to the first. Those who stand where nothing is won are
    /// not looked at.
    fn choose(&mut self, plan: &mut Plan<'_>, asker: &Asker) {
        self.chosen.clear();
        self.withdrawn.clear();
        self.list_winners(plan);
        let last = self.last();
        for winner in (0..self.winners.len()).rev() {
            let at = self.winners[winner];
            let unit = self.prefix[at];
            let last = Some(at) == last;
            let chosen = self.chosen.iter().map(|&at| &self.prefix[at]);
            let below = rest_goes(plan.tables, unit, chosen, &self.unit_pods);
            if last || below || !self.enough_without(plan, asker, unit) {
                self.chosen.push(at);
            } else if !unit.told {
                self.withdrawn.push(at);
            }
        }
        self.chosen.reverse();
    }

    /// The last unit that is not taken out.
    fn last(&self) -> Option<usize> {
        self.prefix.iter().rposition(|unit| !unit.gone)
    }

    /// Lists the positions of those who may have won a place.
    fn list_winners(&mut self, plan: &Plan<'_>) {
        let (places, prefix) = (&mut self.places, &self.prefix);
        self.winners.clear();
        if places.has_limits() {
            let wins = |&at: &usize| prefix[at].told || places.wins_at(plan, &prefix[at], &self.unit_pods);
            self.winners.extend((0..prefix.len()).filter(wins));
        } else {
            self.winners.extend(self.stands.told());
            self.nodes.clear();
            places.list_won(plan, &mut self.nodes);
            self.winners.extend(self.nodes.iter().flat_map(|&node| self.stands.on(node)));
            self.winners.sort_unstable();
            self.winners.dedup();
        }
        self.winners.retain(|&at| !prefix[at].out);
    }

    /// Whether counting passes without a unit; then it stays.
    fn enough_without(&mut self, plan: &mut Plan<'_>, asker: &Asker, unit: Unit) -> bool {
        let mark = plan.statement.mark(plan.tables);
        self.keep(plan, asker, unit);
        let enough = self.places.enough_now(plan);
        if !enough {
            if unit.told {
                plan.statement.rollback(plan.tables, mark);
                self.places.refresh(plan);
            } else {
                self.offer(plan, &unit, 1);
            }
        }
        enough
    }

    /// A unit stays.
    pub(super) fn keep(&mut self, plan: &mut Plan<'_>, asker: &Asker, unit: Unit) {
        if unit.told {
            for &pod in unit.of(&self.unit_pods) {
                plan.statement.keep(plan.tables, pod, asker.action);
            }
        } else {
            self.offer(plan, &unit, -1);
        }
    }

    /// A unit is no part of the prefix any more.
    fn take_out(&mut self, plan: &mut Plan<'_>, asker: &Asker, at: usize) {
        let unit = self.prefix[at];
        if !unit.out {
            self.keep(plan, asker, unit);
        }
        (self.prefix[at].out, self.prefix[at].gone) = (true, true);
        self.gone += 1;
    }

    /// Of the chosen the first one whom the rules protect if all of them were lost.
    fn first_protected(&mut self, plan: &Plan<'_>, asker: &Asker) -> Option<usize> {
        if !self.stream.loses() {
            return None;
        }
        self.units.clear();
        self.units.extend(self.chosen.iter().map(|&at| self.prefix[at]));
        rules::first_protected(plan, asker, &mut self.ledger, &self.units, &self.unit_pods)
    }

    /// The chosen are told to leave; nobody else is.
    fn tell_chosen(&mut self, plan: &mut Plan<'_>, asker: &Asker) {
        self.units.clear();
        for &at in &self.chosen {
            let mut unit = self.prefix[at];
            if !unit.told {
                unit.tell(plan, asker, &self.unit_pods);
            }
            self.units.push(unit);
        }
    }

    /// Leaves in `chosen` those who were offered and have their own places again, or that of another of them; whether there are
    /// any.
    fn list_returned(&mut self, plan: &Plan<'_>) -> bool {
        let (chosen, prefix, pods) = (&mut self.chosen, &self.prefix, &plan.tables.pods);
        self.homes.clear();
        self.homes.extend(chosen.iter().flat_map(|&at| prefix[at].of(&self.unit_pods)).filter_map(|&pod| pods.home(pod)));
        self.homes.sort_unstable();
        let returned = |&pod: &PodIdx| {
            pods.is_home(pod)
                || is_active(pods.status[pod]) && pods.node[pod].is_some_and(|node| self.homes.binary_search(&node).is_ok())
        };
        chosen.retain(|&at| !prefix[at].told && prefix[at].of(&self.unit_pods).iter().all(returned));
        !chosen.is_empty()
    }

    /// Back to a mark: whoever was withdrawn is offered again.
    pub(super) fn go_back(&mut self, plan: &mut Plan<'_>, mark: Mark) {
        plan.statement.rollback(plan.tables, mark);
        for withdrawn in 0..self.withdrawn.len() {
            let unit = self.prefix[self.withdrawn[withdrawn]];
            self.offer(plan, &unit, 1);
        }
        self.withdrawn.clear();
        self.places.refresh(plan);
    }

    /// Whether the chosen are enough; if so, what is not needed has been given back, if not, all is as at the mark.
    pub(super) fn try_all_chosen(&mut self, plan: &mut Plan<'_>, asker: &Asker, before: Mark) -> bool {
        self.tell_chosen(plan, asker);
        let told = plan.statement.mark(plan.tables);
        if !self.try_once(plan, asker) {
            self.go_back(plan, before);
            return false;
        }
        let at_home = |unit: &Unit| unit.of(&self.unit_pods).iter().all(|&pod| plan.tables.pods.is_home(pod));
        self.stayed.clear();
        self.stayed.extend(self.units.iter().map(at_home));
        plan.statement.rollback(plan.tables, told);
        self.units.iter_mut().for_each(|unit| unit.told = true);
        self.places.clear_offers(plan);
        self.places.refresh(plan);
        self.keep_who_stayed(plan, asker);
        self.give_back(plan, asker);
        true
    }

    /// Those who ended where they were need not be told to leave, if that comes out well too.
    fn keep_who_stayed(&mut self, plan: &mut Plan<'_>, asker: &Asker) {
        let all = plan.statement.mark(plan.tables);
        self.spare_units.clone_from(&self.units);
        self.keep_where(plan, asker, |search, _, at| search.stayed[at]);
        if !self.comes_out_well(plan, asker) {
            plan.statement.rollback(plan.tables, all);
            self.units.clone_from(&self.spare_units);
            self.places.refresh(plan);
        }
    }

    /// From the last unit to the first: everybody stays without whom the asker still starts and the rules hold.
    fn give_back(&mut self, plan: &mut Plan<'_>, asker: &Asker) {
        self.keep_where(plan, asker, |search, plan, _| search.comes_out_well(plan, asker));
        let again = self.try_once(plan, asker);
        assert!(again, "what was tried once comes out the same");
    }

    /// Tries, and takes the try back.
    fn comes_out_well(&mut self, plan: &mut Plan<'_>, asker: &Asker) -> bool {
        if plan.config.victims.shortcuts && !self.places.enough_now(plan) {
            return false;
        }
        let before = plan.statement.mark(plan.tables);
        let good = self.try_once(plan, asker);
        plan.statement.rollback(plan.tables, before);
        self.places.refresh(plan);
        good
    }

    /// Keeps every told unit for which `good` holds while it is kept, the last one first; `good` gets its place in the list
    /// before. No gang is left below its minimum: a pod above it is not kept while the rest has to go.
    pub(super) fn keep_where(
        &mut self,
        plan: &mut Plan<'_>,
        asker: &Asker,
        good: impl Fn(&mut Self, &mut Plan<'_>, usize) -> bool,
    ) {
        for at in (0..self.units.len()).rev() {
            let unit = self.units[at];
            if rest_goes(plan.tables, unit, self.units[at + 1..].iter(), &self.unit_pods) {
                continue;
            }
            let mark = plan.statement.mark(plan.tables);
            self.keep(plan, asker, unit);
            self.units.remove(at);
            if !good(self, plan, at) {
                self.units.insert(at, unit);
                plan.statement.rollback(plan.tables, mark);
            }
        }
        self.places.refresh(plan);
    }
}

/// Whether a part of a gang would be left below its minimum if it stayed: the rest of the gang goes, or the rest of the pod set
/// of a pod above the minimum. Where any one pod is enough nothing is below.
pub(super) fn rest_goes<'a>(tables: &Tables, unit: Unit, mut others: impl Iterator<Item = &'a Unit>, pods: &[PodIdx]) -> bool {
    let set = |pod: &PodIdx| tables.pods.subgroup[*pod];
    let same_set = |other: &Unit| other.of(pods).iter().any(|pod| unit.of(pods).iter().any(|own| set(own) == set(pod)));
    !unit.core
        && others.any(|other| other.gang == unit.gang && (other.core || unit.single && !other.single && same_set(other)))
        && !any_pod_is_enough(tables, unit.gang)
}

/// Whether a gang needs no more than one pod, whichever it is.
fn any_pod_is_enough(tables: &Tables, gang: GangIdx) -> bool {
    let subgroups = tables.gangs.subgroups[gang];
    subgroups.len() == 1 && subgroups.iter().all(|only| tables.gangs.threshold(Member::Subgroup(only)) <= 1)
}
