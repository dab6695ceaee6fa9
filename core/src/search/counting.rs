//! What can be known without trying: how many pods of each class of a gang could be placed, node by node.

use muster_kernels::mask;

use crate::actions::Plan;
use crate::index::{ClassIdx, GangIdx, Idx, NodeIdx};
use crate::place::gang::next_pods;
use crate::tables::Tables;
use crate::tables::classes::Kind;
use crate::tables::nodes::GPU;

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
                classes.push(Need { class, pods: 0, copies: Vec::new(), sum: 0 });
            }
            (classes[*used].class, classes[*used].pods) = (class, 1);
            *used += 1;
        });
        for need in &mut self.classes[..self.used] {
            plan.search.feasible.prepare(plan.tables, plan.config, need.class);
            let nodes = plan.search.feasible.mask(need.class);
            need.copies.clear();
            need.copies.resize(plan.tables.nodes.len(), 0);
            for node in mask::ones(nodes) {
                need.copies[node] = copies(plan.tables, need.class, NodeIdx::new(node));
            }
            need.sum = need.copies.iter().sum();
        }
        self.seen = plan.tables.nodes.changes.len();
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

    /// Whether every class by itself has places enough. If not, the gang cannot start: exact for the relaxation in which each
    /// class has the cluster to itself.
    #[must_use]
    pub fn enough(&self) -> bool {
        self.classes[..self.used].iter().all(|need| need.sum >= need.pods)
    }
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
