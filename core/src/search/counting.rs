//! What can be known without trying: how many pods of each class of a gang could be placed, node by node.

use muster_kernels::mask;

use crate::actions::Plan;
use crate::index::{ClassIdx, GangIdx, Idx, NodeIdx, PodIdx};
use crate::place::gang::next_pods;
use crate::tables::Tables;
use crate::tables::classes::Kind;
use crate::tables::nodes::GPU;
use crate::units::{Amounts, MICRO_PER_GPU, Resource, mib_share};

/// For each class of the asker, how many pods of it each node could take at most, and the sum of that.
#[derive(Clone, Debug, Default)]
pub struct Places {
    classes: Vec<Need>,
    used: usize,
    seen: usize,
}

#[derive(Clone, Debug)]
struct Need {
    class: ClassIdx,
    pods: i64,
    copies: Vec<i64>,
    sum: i64,
    /// Where it may go at all.
    nodes: Vec<u64>,
    /// What could be freed, resource by resource, each indexed by node.
    freed: Vec<i64>,
}

impl Places {
    /// Counts for the next turn of a gang.
    pub fn begin(&mut self, plan: &mut Plan<'_>, gang: GangIdx) {
        self.used = 0;
        let (classes, used) = (&mut self.classes, &mut self.used);
        next_pods(plan.tables, plan.config, gang, plan.arena, |pod| {
            let class = plan.tables.pods.class[pod];
            if let Some(need) = classes[..*used].iter_mut().find(|need| need.class == class) {
                need.pods += 1;
                return;
            }
            if *used == classes.len() {
                classes.push(Need { class, pods: 0, copies: Vec::new(), sum: 0, nodes: Vec::new(), freed: Vec::new() });
            }
            (classes[*used].class, classes[*used].pods) = (class, 1);
            *used += 1;
        });
        for need in &mut self.classes[..self.used] {
            plan.search.feasible.prepare(plan.tables, plan.config, need.class);
            let nodes = plan.search.feasible.mask(need.class);
            need.nodes.clear();
            need.nodes.extend_from_slice(nodes);
            need.copies.clear();
            need.copies.resize(plan.tables.nodes.len(), 0);
            for node in mask::ones(nodes) {
                need.copies[node] = copies(plan.tables, need.class, NodeIdx::new(node));
            }
            need.sum = need.copies.iter().sum();
        }
        self.seen = plan.tables.nodes.changes.len();
    }

    /// Whether everything that may ever be freed would do: `freed` is called with a way to add one pod that could go. Exact for
    /// the relaxation in which every victim goes, each class has the cluster to itself, and a part of a card frees all of it.
    pub(crate) fn could_do(&mut self, tables: &Tables, freed: impl Fn(&mut dyn FnMut(PodIdx))) -> bool {
        let nodes = tables.nodes.len();
        self.classes[..self.used].iter_mut().all(|need| {
            if need.sum >= need.pods {
                return true;
            }
            let needs = tables.classes.needs(need.class);
            let shared = matches!(tables.classes.kind[need.class], Kind::Shared { .. });
            let dims = needs.iter().map(|n| n.dim).chain(shared.then_some(GPU));
            let rows = needs.len() + usize::from(shared);
            need.freed.clear();
            need.freed.resize(nodes * rows, 0);
            freed(&mut |pod| {
                let Some(node) = tables.pods.node[pod] else { return };
                let class = tables.pods.class[pod];
                let parts = tables.classes.mib_on(class, 1).is_some();
                for (row, dim) in dims.clone().enumerate() {
                    let whole = tables.classes.needs(class).iter().find(|n| n.dim == dim).map_or(0, |n| n.amount);
                    let cards = if dim == GPU && parts { i64::from(u8::MAX) } else { 0 };
                    need.freed[row * nodes + node.at()] += whole + cards;
                }
            });
            let most = |node: usize| {
                if need.copies[node] == 0 && !mask::get(&need.nodes, node) {
                    return 0;
                }
                let of = |row: usize, dim: crate::tables::nodes::Dim, amount: i64| {
                    let there = tables.nodes.soon[dim.at()][NodeIdx::new(node)] + need.freed[row * nodes + node];
                    there.max(0) / amount
                };
                let by_needs = needs.iter().enumerate().map(|(row, n)| of(row, n.dim, n.amount)).min().unwrap_or(0);
                // How many parts fit is not looked at: a card that is freed is enough for this bound.
                if shared && of(needs.len(), GPU, 1) == 0 { need.copies[node] } else { by_needs }
            };
            (0..nodes).map(most).sum::<i64>() >= need.pods
        })
    }

    /// Looks again at the nodes that changed.
    pub fn refresh(&mut self, plan: &Plan<'_>) {
        for &node in &plan.tables.nodes.changes[self.seen..] {
            for need in &mut self.classes[..self.used] {
                if mask::get(plan.search.feasible.mask(need.class), node.at()) {
                    let now = copies(plan.tables, need.class, node);
                    need.sum += now - need.copies[node.at()];
                    need.copies[node.at()] = now;
                }
            }
        }
        self.seen = plan.tables.nodes.changes.len();
    }

    /// Looks again, then [`Places::enough`].
    pub fn enough_now(&mut self, plan: &Plan<'_>) -> bool {
        self.refresh(plan);
        self.enough()
    }

    /// Whether every class by itself has places enough. If not, the gang cannot start: exact for the relaxation in which each
    /// class has the cluster to itself.
    #[must_use]
    pub fn enough(&self) -> bool {
        self.classes[..self.used].iter().all(|need| need.sum >= need.pods)
    }
}

/// Whether the GPUs that a gang asks for are free somewhere, on whichever nodes: moving work around frees no more than that.
#[must_use]
pub fn room_in_all(tables: &Tables, asks: Amounts) -> bool {
    let whole: i64 = tables.nodes.soon[GPU.at()].iter().map(|&free| free.max(0)).sum();
    let shared = tables.gpus.node.entries().map(|(group, &node)| {
        let card = tables.nodes.card_mib[node];
        mib_share(tables.gpus.room_soon(group, card).max(0), card)
    });
    let mig: i64 = tables
        .nodes
        .soon
        .iter()
        .zip(&tables.nodes.quota_gpus)
        .map(|(free, each)| if *each == 0 { 0 } else { free.iter().map(|f| f.max(&0) / 1000 * each).sum() })
        .sum();
    asks[Resource::Gpu] <= (whole + mig).saturating_mul(MICRO_PER_GPU).saturating_add(shared.sum())
}

/// How many pods of a class a node could take, of what will be free there.
fn copies(tables: &Tables, class: ClassIdx, node: NodeIdx) -> i64 {
    let mut most = i64::MAX;
    for need in tables.classes.needs(class) {
        most = most.min(tables.nodes.soon[need.dim.at()][node].max(0) / need.amount);
    }
    let Kind::Shared { devices } = tables.classes.kind[class] else { return most };
    let card = tables.nodes.card_mib[node];
    let whole = tables.nodes.soon[GPU.at()][node];
    let Some(mib) = tables.classes.mib_on(class, card).filter(|&mib| mib <= card && whole >= 0) else { return 0 };
    let parts = |free: i64| if free < 0 { 0 } else { free.checked_div(mib).unwrap_or(i64::from(u32::MAX)) };
    let shared: i64 = tables.gpus.on(node).map(|group| parts(tables.gpus.room_soon(group, card))).sum();
    most.min((shared + whole * parts(card)) / i64::from(devices))
}
