//! What a plan comes to when it is carried out. A pod that was placed and told to leave again within the cycle stays in the plan
//! but is not touched (architecture.md, Decisions 4): its place is free at this moment, and whoever was promised it can start.
//!
//! Without this both would starve. Promises are not kept by the API server: the next cycle would place the same pod, tell it to
//! leave for the same gang, and nobody would ever have the place. Not known here: what a write is, and who writes.

use crate::bounds::{self, Held};
use crate::config::Config;
use crate::index::{Col, GangIdx, NodeIdx, PodIdx, QueueIdx};
use crate::outcome::{Decision, DecisionKind, Outcome};
use crate::snapshot::PodStatus;
use crate::statement::Statement;
use crate::tables::nodes::GPU;
use crate::tables::pods::Placement;
use crate::tables::{Tables, holds_node};
use crate::units::Amounts;

/// Where what is carried out differs from the plan. Reused from cycle to cycle.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Net {
    /// Pods that waited, were placed or promised a place, and were told to leave it: they go on waiting and are not to be
    /// touched. In the order of their last decisions.
    pub never_started: Vec<PodIdx>,
    /// Promises that come true now: the pod's last decision, as one to bind; its groups are a range of [`Outcome::groups`]. In
    /// the order of the decisions; of a gang all that was promised, or nothing.
    pub starts: Vec<Decision>,
    /// Decisions to bind that must wait, as promises: the gang started as a whole, and then one of its pods was given another
    /// place that is not free yet. In the order of the decisions.
    pub held_back: Vec<Decision>,
}

/// What a cycle did to a pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Touched {
    /// It waited when the cycle began.
    waited: bool,
    /// It only moves from a place that it never had.
    moves_unseen: bool,
    /// Its last decision, by position.
    last: u32,
}

/// What a cycle did for a gang.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Turn {
    /// It was promised something.
    promised: bool,
    /// Pods really leave for it: it waits for them.
    waits: bool,
    /// What it was promised comes true now.
    starts: bool,
}

/// A [`Net`], and memory that is used again.
#[derive(Clone, Debug, Default)]
pub struct Netting {
    net: Net,
    touched: Col<PodIdx, Option<Touched>>,
    turns: Col<GangIdx, Turn>,
    /// Gangs that were promised something, in the order of decision.
    promised: Vec<GangIdx>,
    /// What pods of a queue hold at this moment, those that are leaving included, promises not.
    held: Col<QueueIdx, Held>,
}

impl Netting {
    /// The result of the last `Netting::work_out`.
    #[must_use]
    pub const fn net(&self) -> &Net {
        &self.net
    }

    /// Takes back what never happens, lets start what can, and logs both in the statement.
    pub(crate) fn work_out(&mut self, tables: &mut Tables, statement: &mut Statement, config: &Config, outcome: &Outcome) {
        self.look(tables, statement, outcome);
        self.give_back(tables, statement, outcome);
        self.count_queues(tables);
        // Who is held back makes room for others.
        while self.start(tables, statement, config, outcome) {}
        self.write(tables, outcome);
    }

    /// Reads the log: what was done to whom, who was promised something, and for whom pods really leave.
    fn look(&mut self, tables: &Tables, statement: &Statement, outcome: &Outcome) {
        self.touched.reset(tables.pods.class.len(), None);
        self.turns.reset(tables.gangs.queue.len(), Turn::default());
        self.promised.clear();
        let mut evictions = outcome.evictions.iter();
        for (at, op) in statement.ops().iter().enumerate() {
            let last = u32::try_from(at).expect("decisions are counted in u32");
            let waited = op.before.status == PodStatus::Pending;
            let touched = self.touched[op.pod].get_or_insert(Touched { waited, moves_unseen: false, last });
            touched.last = last;
            let asker = match op.after.status {
                PodStatus::Pipelined => tables.pods.gang[op.pod],
                PodStatus::Releasing => evictions.next().and_then(|eviction| eviction.asker),
                _ => None,
            };
            let Some(gang) = asker else { continue };
            let turn = &mut self.turns[gang];
            if op.after.status == PodStatus::Releasing {
                turn.waits |= !touched.waited;
            } else if !std::mem::replace(&mut turn.promised, true) {
                self.promised.push(gang);
            }
        }
    }

    /// Pods that never had the place that they were told to leave do not leave it: they wait as before, or have the promise of
    /// another place and nothing else.
    fn give_back(&mut self, tables: &mut Tables, statement: &mut Statement, outcome: &Outcome) {
        for at in 0..outcome.decisions.len().min(statement.ops().len()) {
            let op = statement.ops()[at];
            let Some(touched) = self.touched[op.pod].as_mut().filter(|touched| touched.waited && touched.last as usize == at)
            else {
                continue;
            };
            let now = tables.pods.placement(op.pod);
            if now.status == PodStatus::Releasing {
                let waits = Placement { status: PodStatus::Pending, node: None, groups: (0, 0), leaves: None };
                statement.correct(tables, op.pod, waits, op.action);
            } else if now.leaves.is_some() {
                touched.moves_unseen = true;
                statement.correct(tables, op.pod, Placement { leaves: None, ..now }, op.action);
            }
        }
    }

    /// What each queue holds at this moment: what it has in the plan, less what is only promised, and what is leaving.
    fn count_queues(&mut self, tables: &Tables) {
        self.held.reset(tables.queues.parent.len(), Held::default());
        if self.promised.is_empty() {
            return;
        }
        for queue in tables.queues.parent.indices() {
            self.held[queue] = Held::of(tables, queue);
        }
        for pod in tables.pods.status.indices() {
            let place = tables.pods.placement(pod);
            if place.status == PodStatus::Pipelined {
                self.charge(tables, pod, place.node, -1);
                self.charge(tables, pod, place.leaves.map(|left| left.node), 1);
            } else if place.status == PodStatus::Releasing {
                self.charge(tables, pod, place.node, 1);
            }
        }
    }

    fn charge(&mut self, tables: &Tables, pod: PodIdx, node: Option<NodeIdx>, sign: i64) {
        let (Some(node), Some(gang), Some(_)) = (node, tables.pods.gang[pod], tables.pods.subgroup[pod]) else { return };
        let Ok(queue) = tables.gangs.queue[gang] else { return };
        let charge = tables.queue_charge(tables.pods.class[pod], node);
        for queue in tables.queues.ancestors(queue) {
            self.held[queue].add(charge, tables.gangs.preemptible[gang], sign);
        }
    }

    /// Every gang that was promised something starts if it can. Whether anything was held back, so that others may fit now.
    fn start(&mut self, tables: &mut Tables, statement: &mut Statement, config: &Config, outcome: &Outcome) -> bool {
        let mut made_room = false;
        for at in 0..self.promised.len() {
            let gang = self.promised[at];
            let turn = self.turns[gang];
            if turn.starts {
                continue;
            }
            self.turns[gang].starts = !turn.waits && self.start_gang(tables, statement, config, outcome, gang);
            made_room |= !self.turns[gang].starts && self.hold_back(tables, statement, outcome, gang);
        }
        made_room
    }

    /// All of a gang that was promised something starts, or nothing.
    fn start_gang(
        &mut self,
        tables: &mut Tables,
        statement: &mut Statement,
        config: &Config,
        outcome: &Outcome,
        gang: GangIdx,
    ) -> bool {
        let pods = tables.gangs.pods[gang];
        let moves = |pod| tables.pods.status[pod] == PodStatus::Pipelined && tables.pods.leaves[pod].is_some();
        if pods.iter().any(moves) {
            return false;
        }
        let mark = statement.mark(tables);
        let mut asked = Amounts::ZERO;
        for pod in pods.iter() {
            let now = tables.pods.placement(pod);
            if let (PodStatus::Pipelined, Some(node), Some(touched)) = (now.status, now.node, self.touched[pod]) {
                let action = outcome.decisions[touched.last as usize].action;
                statement.correct(tables, pod, Placement { status: PodStatus::Allocated, ..now }, action);
                asked += tables.queue_charge(tables.pods.class[pod], node);
            }
        }
        let starting = statement.since(mark);
        let fits = starting.iter().all(|op| fits_now(tables, op.pod));
        if !fits || config.plugins.proportion && !bounds::allow_beside(tables, gang, asked, |queue| self.held[queue]) {
            statement.rollback(tables, mark);
            return false;
        }
        for op in starting {
            self.charge(tables, op.pod, op.after.node, 1);
        }
        true
    }

    /// A gang that starts only in part, because one of its pods moves from a place that it never had, does not start: what was
    /// given to it in this cycle is promised to it.
    fn hold_back(&mut self, tables: &mut Tables, statement: &mut Statement, outcome: &Outcome, gang: GangIdx) -> bool {
        let pods = tables.gangs.pods[gang];
        let moves_unseen = pods.iter().any(|pod| {
            self.touched[pod].is_some_and(|touched| touched.moves_unseen) && tables.pods.status[pod] == PodStatus::Pipelined
        });
        if !moves_unseen || tables.gangs.starts_whole(gang) {
            return false;
        }
        let mark = statement.mark(tables);
        for pod in pods.iter() {
            let now = tables.pods.placement(pod);
            if let (PodStatus::Allocated, Some(touched)) = (now.status, self.touched[pod]) {
                let action = outcome.decisions[touched.last as usize].action;
                statement.correct(tables, pod, Placement { status: PodStatus::Pipelined, ..now }, action);
                self.charge(tables, pod, now.node, -1);
            }
        }
        !statement.since(mark).is_empty()
    }

    /// What has become of whom, compared with the plan.
    fn write(&mut self, tables: &Tables, outcome: &Outcome) {
        let Net { never_started, starts, held_back } = &mut self.net;
        never_started.clear();
        starts.clear();
        held_back.clear();
        for (at, decision) in outcome.decisions.iter().enumerate() {
            let pod = decision.pod;
            if self.touched[pod].is_none_or(|touched| touched.last as usize != at) {
                continue;
            }
            match (decision.kind, tables.pods.status[pod]) {
                (DecisionKind::Evict, PodStatus::Pending) => never_started.push(pod),
                (DecisionKind::Pipeline, PodStatus::Allocated) => starts.push(Decision { kind: DecisionKind::Bind, ..*decision }),
                (DecisionKind::Bind, PodStatus::Pipelined) => {
                    held_back.push(Decision { kind: DecisionKind::Pipeline, ..*decision });
                }
                _ => {}
            }
        }
    }
}

/// Whether a pod that was charged as one that starts has room at this moment. What its node had too little of before is no
/// matter unless the pod takes of it, too.
fn fits_now(tables: &Tables, pod: PodIdx) -> bool {
    let place = tables.pods.placement(pod);
    let Some(node) = place.node.filter(|_| holds_node(place.status)) else { return false };
    let class = tables.pods.class[pod];
    let cards = tables.pods.groups_of(place);
    let card_mib = tables.nodes.card_mib[node];
    tables.classes.needs(class).iter().all(|need| tables.nodes.idle[need.dim.at()][node] >= 0)
        && (cards.is_empty() || tables.nodes.idle[GPU.at()][node] >= 0)
        && cards.iter().all(|&card| tables.gpus.held_mib[card] <= card_mib)
}
