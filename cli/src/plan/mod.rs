//! `muster plan`: one cycle on one snapshot (PLAN_CONTRACT.md), for people or for machines.

mod evictions;
pub(crate) mod gpus;
mod json;
mod queues;
pub(crate) mod table;

use std::time::{Duration, Instant};

use muster_api::read::Loaded;
use muster_api::sentences::Facts;
use muster_core::index::GangIdx;
use muster_core::outcome::{Decision, DecisionKind};

use crate::args::{Format, Plan};
use crate::cycle::{self, Planned};
use crate::fault::Fault;
use crate::{input, sink};

/// Everything there is to print.
pub(crate) struct View<'a> {
    pub(crate) loaded: &'a Loaded,
    pub(crate) planned: &'a Planned,
    /// Bytes to rows.
    pub(crate) load: Duration,
    /// When the process started.
    pub(crate) started: Instant,
}

impl View<'_> {
    pub(crate) const fn facts(&self) -> Facts<'_> {
        Facts { snapshot: &self.loaded.snapshot, names: &self.loaded.names }
    }

    /// The decisions of one kind.
    pub(crate) fn decisions(&self, kind: DecisionKind) -> impl Iterator<Item = &Decision> {
        self.planned.outcome.decisions.iter().filter(move |decision| decision.kind == kind)
    }

    /// The gang of a decision. Only pods of gangs are decided on.
    pub(crate) fn gang(&self, decision: &Decision) -> Option<GangIdx> {
        self.loaded.snapshot.pods[decision.pod].gang
    }
}

/// Loads, plans, prints.
pub(crate) fn run(args: &Plan, started: Instant) -> Result<(), Fault> {
    let (loaded, planned, load) = cycle::in_pool(args.input.threads, || {
        let begin = Instant::now();
        let loaded = input::load(&args.input)?;
        let load = begin.elapsed();
        let planned = cycle::run(&loaded.snapshot, args.input.verify)?;
        Ok::<_, Fault>((loaded, planned, load))
    })??;
    let view = View { loaded: &loaded, planned: &planned, load, started };
    let bytes = match args.output {
        Format::Json => json::bytes(&view),
        Format::Table => table::text(&view, args.resources, &table::Lengths::new(args.all)).into_bytes(),
    };
    sink::print(&bytes)
}
