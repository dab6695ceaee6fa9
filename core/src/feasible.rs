//! Request class × node → may it go there, whatever is free? Computed once per class and kept; one bit a node.
//!
//! What depends on what is free is [`crate::place`]'s; what depends on placed pods (affinity, ports, volumes, DRA) is not known
//! here yet.

use muster_kernels::mask;
use roaring::RoaringBitmap;

use crate::config::Config;
use crate::explain::{Refusal, Tally};
use crate::index::{ClassIdx, Col, Idx, NodeIdx};
use crate::snapshot::{GpuRequest, Mig, Requirement};
use crate::tables::Tables;
use crate::tables::classes::Kind;
use crate::tables::labels::{Labels, set};

/// Masks of the classes looked at so far.
#[derive(Clone, Debug, Default)]
pub struct Feasible {
    words: usize,
    /// For each class its mask, one after the other; `words` each.
    masks: Vec<u64>,
    /// Nodes that fail, by the first test that they fail; `None`: not computed yet.
    tally: Col<ClassIdx, Option<Tally>>,
}

impl Feasible {
    /// Nothing computed yet, for these tables.
    #[must_use]
    pub fn new(tables: &Tables) -> Self {
        let words = mask::words(tables.nodes.len());
        let classes = tables.classes.row.len();
        Self { words, masks: vec![0; words * classes], tally: vec![None; classes].into() }
    }

    /// Computes the mask of a class unless it is known.
    pub fn prepare(&mut self, tables: &Tables, config: &Config, class: ClassIdx) {
        if self.tally[class].is_none() {
            let nodes = &mut self.masks[class.at() * self.words..][..self.words];
            self.tally[class] = Some(refuse(tables, config, class, nodes));
        }
    }

    /// The nodes where a class may go. Panics if it was not prepared.
    #[must_use]
    pub fn mask(&self, class: ClassIdx) -> &[u64] {
        assert!(self.tally[class].is_some(), "the class was prepared");
        &self.masks[class.at() * self.words..][..self.words]
    }

    /// The nodes where it may not go, by the first test that each fails. Panics if it was not prepared.
    #[must_use]
    pub fn tally(&self, class: ClassIdx) -> Tally {
        self.tally[class].expect("the class was prepared")
    }
}

/// Runs the tests of semantics.md §9.2 in the order of [`Refusal`], leaving the nodes that pass in `nodes`.
fn refuse(tables: &Tables, config: &Config, class: ClassIdx, nodes: &mut [u64]) -> Tally {
    let mut tally = Tally::default();
    mask::fill(nodes, tables.nodes.len());
    if !config.plugins.predicates {
        return tally;
    }
    let row = &tables.classes.row[class];
    let mut scratch = vec![0; nodes.len()];
    for refusal in
        [Refusal::NotReady, Refusal::WorkerLabel, Refusal::NodeKind, Refusal::Taint, Refusal::Selector, Refusal::Affinity]
    {
        let before = mask::count(nodes);
        match refusal {
            Refusal::NotReady => mask::and(nodes, &tables.nodes.ready),
            Refusal::WorkerLabel if config.restrict_nodes => mask::and(nodes, worker_mask(tables, class)),
            Refusal::NodeKind => mask::retain(nodes, |node| right_kind(tables, class, NodeIdx::new(node))),
            Refusal::Taint => {
                for (taint, tainted) in tables.labels.tainted.entries() {
                    if !row.tolerated.contains(&taint) {
                        expand(tainted, &mut scratch);
                        mask::and_not(nodes, &scratch);
                    }
                }
            }
            Refusal::Selector => all_of(&tables.labels, &row.selector, &mut scratch, nodes),
            Refusal::Affinity => {
                if let Some(terms) = &row.affinity {
                    any_of(&tables.labels, terms, &mut scratch, nodes);
                }
            }
            _ => {}
        }
        tally.add(refusal, u32::try_from(before - mask::count(nodes)).expect("nodes are counted in u32"));
    }
    tally
}

fn worker_mask(tables: &Tables, class: ClassIdx) -> &[u64] {
    match tables.classes.kind[class] {
        Kind::CpuOnly => &tables.nodes.cpu_worker,
        Kind::Whole | Kind::Shared { .. } | Kind::Mig => &tables.nodes.gpu_worker,
    }
}

/// Semantics.md §9.2, tests 2 and 3.
fn right_kind(tables: &Tables, class: ClassIdx, node: NodeIdx) -> bool {
    let mig = tables.nodes.mig[node];
    match tables.classes.kind[class] {
        Kind::CpuOnly => true,
        Kind::Mig => matches!(mig, Mig::Mixed | Mig::Unknown) && !mask::get(&tables.nodes.legacy_mig, node.at()),
        Kind::Whole => mig != Mig::Mixed,
        Kind::Shared { .. } => {
            let sized = matches!(tables.classes.row[class].gpu, GpuRequest::Memory { .. });
            matches!(mig, Mig::Off | Mig::Unknown) && (!sized || mask::get(&tables.nodes.card_known, node.at()))
        }
    }
}

fn expand(from: &RoaringBitmap, to: &mut [u64]) {
    to.fill(0);
    for node in from {
        mask::set(to, node as usize);
    }
}

/// Keeps the nodes that meet all requirements.
fn all_of(labels: &Labels, requirements: &[Requirement], scratch: &mut [u64], nodes: &mut [u64]) {
    for requirement in requirements {
        let (these, wanted) = nodes_of(labels, requirement);
        expand(&these, scratch);
        if wanted {
            mask::and(nodes, scratch);
        } else {
            mask::and_not(nodes, scratch);
        }
    }
}

/// Keeps the nodes that meet some term; an empty term is met by none (Kubernetes' node affinity).
fn any_of(labels: &Labels, terms: &[Vec<Requirement>], scratch: &mut [u64], nodes: &mut [u64]) {
    let mut met = vec![0; nodes.len()];
    let mut term_nodes = vec![0; nodes.len()];
    for term in terms.iter().filter(|term| !term.is_empty()) {
        term_nodes.copy_from_slice(nodes);
        all_of(labels, term, scratch, &mut term_nodes);
        mask::or(&mut met, &term_nodes);
    }
    nodes.copy_from_slice(&met);
}

/// A set of nodes, and whether the requirement wants them or all others.
fn nodes_of(labels: &Labels, requirement: &Requirement) -> (RoaringBitmap, bool) {
    let union = |these: &[crate::index::LabelIdx]| these.iter().fold(RoaringBitmap::new(), |all, &l| all | &labels.with[l]);
    let where_key = |key: &Option<crate::index::KeyIdx>, wanted: &dyn Fn(Option<i64>) -> bool| {
        key.map_or_else(RoaringBitmap::new, |key| labels.key_where(key, wanted))
    };
    match requirement {
        Requirement::In(these) => (union(these), true),
        Requirement::NotIn(these) => (union(these), false),
        Requirement::Exists(key) => (where_key(key, &|_| true), true),
        Requirement::DoesNotExist(key) => (where_key(key, &|_| true), false),
        Requirement::Greater(key, bound) => (where_key(key, &|n| n.is_some_and(|n| n > *bound)), true),
        Requirement::Less(key, bound) => (where_key(key, &|n| n.is_some_and(|n| n < *bound)), true),
        Requirement::NodeIn(nodes) => (set(nodes), true),
        Requirement::NodeNotIn(nodes) => (set(nodes), false),
    }
}
