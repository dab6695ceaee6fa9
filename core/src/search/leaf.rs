//! The possible victims of one leaf queue, first to go first: the order of service reversed.
//!
//! The list is made once for an action. What a stream needs of a gang stands in its row, since streams are long; a gang that has
//! changed since is looked up in the tables and put in a small list beside.

use std::cmp::Reverse;
use std::ops::ControlFlow;

use crate::config::{Action, Config};
use crate::index::{ClassIdx, Col, GangIdx, NodeIdx, PodIdx};
use crate::order::{Turn, turn};
use crate::search::Asker;
use crate::search::stream::can_go;
use crate::tables::gangs::Member;
use crate::tables::{Tables, is_active};
use crate::units::Amounts;

/// A gang that could go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) turn: Turn,
    /// What it holds in its queues.
    holds: Amounts,
    /// When it began to run.
    pub(super) started: Option<i64>,
    /// Its only pod, if it has no other.
    pub(super) alone: Option<Alone>,
}

/// A pod that is a whole gang and has a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Alone {
    pub(crate) pod: PodIdx,
    pub(crate) node: NodeIdx,
    pub(crate) class: ClassIdx,
}

/// Is shown one pod after the other, until it has seen enough.
pub(super) type Visit<'v> = dyn FnMut(Alone) -> ControlFlow<()> + 'v;

/// One leaf.
#[derive(Clone, Debug, Default)]
pub(super) struct Leaf {
    listed: Vec<Row>,
    /// Gangs to be put in their places in `listed` once the leaf gives to somebody.
    fresh: Vec<GangIdx>,
    /// Those before it hold nothing any more.
    from: usize,
    /// Where this search is.
    at: usize,
    /// Gangs that come back with another place; few.
    again: Vec<Turn>,
    /// It gives for this asker.
    pub(super) gives: bool,
    /// Units that the rules of reclaim protected, given those who were needed.
    pub(super) refused: u32,
    /// How long its gangs are protected from this asker once they run.
    pub(super) min_runtime: Option<i64>,
}

impl Row {
    fn of(tables: &Tables, config: &Config, gang: GangIdx) -> Self {
        Self {
            turn: turn(tables, config, gang),
            holds: held_by(tables, gang),
            started: tables.gangs.times[gang].started,
            alone: Alone::of(tables, gang),
        }
    }
}

impl Alone {
    fn of(tables: &Tables, gang: GangIdx) -> Option<Self> {
        let gangs = &tables.gangs;
        let (&[only], 1) = (gangs.members(Member::Gang(gang)), gangs.pods[gang].len()) else { return None };
        let pod = gangs.pods[gang].iter().next()?;
        let required = gangs.is_pod_set(only) && gangs.threshold(Member::Subgroup(only)) > 0 && gangs.required[gang] > 0;
        let node = tables.pods.node[pod]?;
        (required && can_go(tables, pod)).then_some(Self { pod, node, class: tables.pods.class[pod] })
    }
}

impl Leaf {
    /// Nobody is listed.
    pub(super) fn clear(&mut self) {
        self.listed.clear();
        self.fresh.clear();
        self.from = 0;
    }

    /// A gang more; [`Leaf::sort`] must follow.
    pub(super) fn push(&mut self, tables: &Tables, config: &Config, gang: GangIdx) {
        self.listed.push(Row::of(tables, config, gang));
    }

    pub(super) fn sort(&mut self) {
        self.listed.sort_unstable_by_key(|row| Reverse(row.turn));
    }

    /// A gang more, once the list is in use.
    pub(super) fn push_late(&mut self, gang: GangIdx) {
        self.fresh.push(gang);
    }

    /// Another search begins. Whether there may be anybody.
    pub(super) fn rewind(&mut self, tables: &Tables) -> bool {
        self.again.clear();
        self.refused = 0;
        while self.listed.get(self.from).is_some_and(|row| !tables.gangs.is_active(row.turn.2)) {
            self.from += 1;
        }
        self.at = self.from;
        self.from < self.listed.len() || !self.fresh.is_empty()
    }

    /// Puts fresh gangs in their places.
    pub(super) fn sort_in(&mut self, tables: &Tables, config: &Config) {
        for gang in self.fresh.drain(..) {
            let row = Row::of(tables, config, gang);
            let at = self.from + self.listed[self.from..].partition_point(|listed| listed.turn > row.turn);
            self.listed.insert(at, row);
        }
        self.at = self.from;
    }

    /// All that are listed and may hold something.
    pub(super) fn gangs(&self) -> impl Iterator<Item = GangIdx> + '_ {
        self.listed[self.from..].iter().map(|row| row.turn.2)
    }

    /// All that are listed and may hold something, with their rows if they have not changed.
    pub(super) fn rows<'a>(&'a self, has_changed: &'a Col<GangIdx, bool>) -> impl Iterator<Item = (GangIdx, Option<&'a Row>)> {
        self.listed[self.from..].iter().map(|row| (row.turn.2, Some(row).filter(|row| !has_changed[row.turn.2])))
    }

    /// Every pod that could go, or was told to in this turn and stood there before; of gangs below a priority. Until `visit` has
    /// seen enough.
    pub(super) fn pods(
        &self,
        tables: &Tables,
        below: Option<i32>,
        has_changed: &Col<GangIdx, bool>,
        visit: &mut Visit<'_>,
    ) -> ControlFlow<()> {
        for row in &self.listed[self.from..] {
            let (Reverse(_), _, gang) = row.turn;
            if below.is_some_and(|below| tables.gangs.priority[gang] >= below) {
                continue;
            }
            if let Some(alone) = row.alone.filter(|_| !has_changed[gang]) {
                visit(alone)?;
                continue;
            }
            for pod in tables.gangs.pods[gang].iter() {
                let home = tables.pods.evicted_from[pod].map(|home| home.node);
                if let Some(node) = home.or_else(|| can_go(tables, pod).then_some(tables.pods.node[pod])).flatten() {
                    visit(Alone { pod, node, class: tables.pods.class[pod] })?;
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// What the gang holds that goes first, passing over those that cannot be victims of this asker.
    pub(super) fn top(
        &mut self,
        tables: &Tables,
        config: &Config,
        asker: &Asker,
        has_changed: &Col<GangIdx, bool>,
    ) -> Option<Amounts> {
        if !self.gives {
            return None;
        }
        for entry in &mut self.again {
            *entry = turn(tables, config, entry.2);
        }
        self.again.sort_unstable();
        while let Some(row) = self.listed.get(self.at) {
            let gang = row.turn.2;
            if !may_be_victim(tables, asker, gang, has_changed[gang]) {
                self.at += 1;
            } else if has_changed[gang] && turn(tables, config, gang) != row.turn {
                self.again.push(turn(tables, config, gang));
                self.again.sort_unstable();
                self.at += 1;
            } else {
                break;
            }
        }
        let row = self.listed.get(self.at);
        let again = self.again.last().copied();
        match row {
            Some(row) if again.is_none_or(|again| again <= row.turn) => {
                let gang = row.turn.2;
                Some(if has_changed[gang] { held_by(tables, gang) } else { row.holds })
            }
            _ => again.map(|(.., gang)| held_by(tables, gang)),
        }
    }

    /// Takes the gang that goes first off the line; with its row, unless it has changed.
    pub(super) fn pop(&mut self, has_changed: &Col<GangIdx, bool>) -> Option<(GangIdx, Option<Row>)> {
        let row = self.listed.get(self.at).copied();
        let again = self.again.last().copied();
        if again > row.map(|row| row.turn) {
            return self.again.pop().map(|(.., gang)| (gang, None));
        }
        self.at += 1;
        row.map(|row| (row.turn.2, Some(row).filter(|_| !has_changed[row.turn.2])))
    }

    /// Puts a gang back of which something is left. Its place is looked up at the next call: the unit is not gone yet.
    pub(super) fn push_again(&mut self, gang: GangIdx) {
        self.again.push((Reverse(i32::MIN), u8::MAX, gang));
    }
}

/// Whether a gang holds something and may go for the asker, by what both are.
pub(super) fn may_be_victim(tables: &Tables, asker: &Asker, gang: GangIdx, look: bool) -> bool {
    gang != asker.gang
        && (!look || tables.gangs.is_active(gang))
        && (asker.action != Action::Preempt || tables.gangs.priority[gang] < tables.gangs.priority[asker.gang])
}

/// What a gang holds in its queues.
fn held_by(tables: &Tables, gang: GangIdx) -> Amounts {
    tables.gangs.pods[gang]
        .iter()
        .filter(|&pod| is_active(tables.pods.status[pod]))
        .filter_map(|pod| Some((tables.pods.class[pod], tables.pods.node[pod]?)))
        .fold(Amounts::ZERO, |sum, (class, node)| sum + tables.queue_charge(class, node))
}
