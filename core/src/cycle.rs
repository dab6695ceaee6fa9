//! One scheduling cycle, top to bottom. Read this first.

use bumpalo::Bump;

use crate::actions::{Plan, allocate, evict_for, stale_gang};
use crate::config::{Action, Config};
use crate::fair_share;
use crate::index::GangIdx;
use crate::net::{Net, Netting};
use crate::order::Order;
use crate::outcome::{Decision, DecisionKind, Outcome, QueueReport};
use crate::pending::Failures;
use crate::place::NodeSearch;
use crate::search::SearchMemory;
use crate::snapshot::{PodStatus, Snapshot};
use crate::statement::{Mark, Statement};
use crate::tables::Tables;

/// A part of a cycle, for whoever measures time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// The division of the cluster among the queues.
    FairShare,
    /// An action.
    Act(Action),
    /// Reasons and the outcome.
    Explain,
}

impl Stage {
    /// A short name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FairShare => "fair share",
            Self::Act(action) => action.name(),
            Self::Explain => "explain",
        }
    }
}

/// A scheduler between cycles: the tables, and memory that is used again.
#[derive(Debug)]
pub struct Scheduler {
    tables: Tables,
    statement: Statement,
    search: NodeSearch,
    order: Order,
    failures: Failures,
    victims: SearchMemory,
    shares: fair_share::Scratch,
    arena: Bump,
    turns_before: u64,
    outcome: Outcome,
    /// Where the log of decisions ends.
    decided: Mark,
    netting: Netting,
}

impl Scheduler {
    /// Rows → tables. Panics if the rows are not what [`crate::snapshot`] says.
    #[must_use]
    pub fn new(snapshot: &Snapshot) -> Self {
        let tables = Tables::load(snapshot);
        let mut statement = Statement::default();
        statement.begin(&tables);
        Self {
            search: NodeSearch::new(&tables),
            decided: statement.start(),
            tables,
            statement,
            order: Order::default(),
            failures: Failures::default(),
            victims: SearchMemory::default(),
            shares: fair_share::Scratch::default(),
            arena: Bump::new(),
            turns_before: 0,
            outcome: Outcome::default(),
            netting: Netting::default(),
        }
    }

    /// One cycle: shares, then the actions in the order of the configuration, then reasons. `begin` is called as each stage
    /// begins. What was decided stays in the tables, as the next cycle's start.
    pub fn run(&mut self, config: &Config, begin: &mut dyn FnMut(Stage)) -> &Outcome {
        self.get_ready(config);
        begin(Stage::FairShare);
        fair_share::divide(&mut self.tables.queues, self.tables.pie, config.k_value, &mut self.shares);
        for &action in &config.actions {
            begin(Stage::Act(action));
            let mut plan = Plan {
                tables: &mut self.tables,
                statement: &mut self.statement,
                search: &mut self.search,
                order: &mut self.order,
                failures: &mut self.failures,
                config,
                arena: &self.arena,
            };
            match action {
                Action::Allocate => allocate::run(&mut plan),
                Action::Consolidation | Action::Reclaim | Action::Preempt => evict_for::run(&mut plan, &mut self.victims, action),
                Action::StaleGangEviction => stale_gang::run(&mut plan, &mut self.victims.brake),
            }
        }
        begin(Stage::Explain);
        self.failures.explain(&self.tables, &self.statement, config, &mut self.outcome);
        self.report();
        self.decided = self.statement.mark(&self.tables);
        &self.outcome
    }

    /// What the last cycle comes to when it is carried out; for whoever does. The plan stays as it is, the tables follow: who
    /// never started waits, who can start has its place. Calling it again gives the same.
    pub fn net(&mut self, config: &Config) -> &Net {
        self.statement.rollback(&mut self.tables, self.decided);
        self.netting.work_out(&mut self.tables, &mut self.statement, config, &self.outcome);
        self.netting.net()
    }

    /// Takes back everything that the last cycle decided, and what it came to.
    pub fn rewind(&mut self) {
        self.statement.rollback(&mut self.tables, self.statement.start());
    }

    /// The tables as they are.
    #[must_use]
    pub const fn tables(&self) -> &Tables {
        &self.tables
    }

    /// The log of the last cycle.
    #[must_use]
    pub const fn statement(&self) -> &Statement {
        &self.statement
    }

    /// Whether a gang, as the last cycle left it, is below its minimum though it runs (semantics.md §6.8).
    #[must_use]
    pub fn is_stale(&self, gang: GangIdx) -> bool {
        stale_gang::is_stale(&self.tables, gang)
    }

    /// Whose turn it is, or was when a cycle broke off.
    #[must_use]
    pub const fn at_work(&self) -> Option<GangIdx> {
        self.order.at_turn()
    }

    fn get_ready(&mut self, config: &Config) {
        self.arena.reset();
        self.outcome.clear();
        self.statement.begin(&self.tables);
        self.failures.clear(&self.tables);
        self.victims.brake.begin(&self.tables);
        self.tables.pods.line_up_again();
        self.search.index.begin(&mut self.tables, config, &self.search.feasible, self.turns_before);
        self.turns_before = self.search.index.turn();
    }

    /// Writes the log as decisions, and the queues as they stand.
    fn report(&mut self) {
        let outcome = &mut self.outcome;
        for op in self.statement.ops() {
            let kind = kind_of(op.after.status);
            // Whoever only had a promise is told to leave the node that it was promised.
            let place = if kind == DecisionKind::Evict { op.before } else { op.after };
            let Some(node) = place.node else { continue };
            let start = outcome.groups.len();
            outcome.groups.extend_from_slice(self.tables.pods.groups_of(op.after));
            let cut = |i: usize| u32::try_from(i).expect("groups are counted in u32");
            let groups = (cut(start), cut(outcome.groups.len()));
            outcome.decisions.push(Decision { kind, pod: op.pod, node, groups, action: op.action });
        }
        outcome.evictions.extend_from_slice(self.statement.evictions());
        outcome.batches.extend_from_slice(self.statement.batches());
        let queues = &self.tables.queues;
        for queue in queues.parent.indices() {
            outcome.queues.push(QueueReport {
                fair_share: queues.fair_share[queue],
                allocated: queues.allocated[queue],
                non_preemptible: queues.non_preemptible[queue],
                requested: queues.requested[queue],
            });
        }
        outcome.pie = self.tables.pie;
    }
}

fn kind_of(status: PodStatus) -> DecisionKind {
    match status {
        PodStatus::Pipelined => DecisionKind::Pipeline,
        PodStatus::Releasing => DecisionKind::Evict,
        _ => DecisionKind::Bind,
    }
}
