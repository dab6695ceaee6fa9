//! Interning: pods that ask for the same things under the same constraints share a class; and the tables of labels, taints and
//! resources that classes refer to.

use std::collections::{BTreeMap, BTreeSet};

use ahash::AHashMap;
use muster_core::index::{ClassIdx, Col, DimIdx, Idx, KeyIdx, LabelIdx, NodeIdx, TaintIdx};
use muster_core::snapshot::{Blocked, ClassRow, ExtraDim, GpuRequest, LabelRow, Requirement};

use crate::gpu::mig_gpus;
use crate::names::ClassText;
use crate::nodes::NodeFacts;
use crate::requests::Requests;
use crate::selector::{Constraints, Expression, Taint, Term, Test};

/// What makes two pods equal for the scheduler, by names.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Shape {
    pub(crate) requests: Requests,
    pub(crate) gpu: GpuRequest,
    pub(crate) constraints: Constraints,
    pub(crate) legacy_mig: bool,
    /// Needs resource claims.
    pub(crate) claims: bool,
    pub(crate) missing_config_maps: Vec<String>,
}

/// Distinct shapes, numbered in order of first appearance.
#[derive(Debug, Default)]
pub(crate) struct Shapes {
    numbers: AHashMap<Shape, usize>,
}

impl Shapes {
    /// The number of a shape.
    pub(crate) fn intern(&mut self, shape: Shape) -> usize {
        let next = self.numbers.len();
        *self.numbers.entry(shape).or_insert(next)
    }

    /// Numbers the shapes anew: in the order in which `uses` has them first, so that arrival does not matter.
    pub(crate) fn renumber<'a>(&mut self, uses: impl Iterator<Item = &'a mut usize>) {
        let mut numbers = vec![usize::MAX; self.numbers.len()];
        let mut next = 0;
        for shape in uses {
            if numbers[*shape] == usize::MAX {
                numbers[*shape] = next;
                next += 1;
            }
            *shape = numbers[*shape];
        }
        self.numbers.values_mut().for_each(|number| *number = numbers[*number]);
    }

    fn in_order(self) -> Vec<Shape> {
        let mut shapes: Vec<_> = self.numbers.into_iter().map(|(shape, number)| (number, shape)).collect();
        shapes.sort_unstable_by_key(|(number, _)| *number);
        shapes.into_iter().map(|(_, shape)| shape).collect()
    }
}

/// Tables with their names, and the class of each shape.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    pub(crate) dims: Col<DimIdx, ExtraDim>,
    pub(crate) dim_names: Col<DimIdx, String>,
    /// By node: its other resources.
    pub(crate) node_extra: Vec<Vec<(DimIdx, i64)>>,
    pub(crate) labels: Col<LabelIdx, LabelRow>,
    pub(crate) keys: Col<KeyIdx, Vec<LabelIdx>>,
    pub(crate) taints: Col<TaintIdx, Vec<NodeIdx>>,
    pub(crate) taint_names: Col<TaintIdx, String>,
    pub(crate) classes: Col<ClassIdx, ClassRow>,
    pub(crate) class_texts: Col<ClassIdx, ClassText>,
    /// By number of the shape.
    pub(crate) class_of: Vec<ClassIdx>,
}

/// Builds all tables. `nodes` in index order.
pub(crate) fn tables(shapes: Shapes, nodes: &[NodeFacts]) -> Tables {
    let shapes = shapes.in_order();
    let mut tables = Tables::default();
    let dims = tables.fill_dims(&shapes, nodes);
    let labels = tables.fill_labels(&shapes, nodes);
    let taints = tables.fill_taints(nodes);
    let node_names: BTreeMap<&str, NodeIdx> =
        nodes.iter().enumerate().map(|(n, node)| (node.name.as_str(), NodeIdx::new(n))).collect();
    let resolver = Resolver { dims: &dims, labels: &labels, node_names: &node_names, taints: &taints };
    let mut known: AHashMap<(ClassRow, ClassText), ClassIdx> = AHashMap::new();
    for shape in &shapes {
        let key = resolver.class(shape);
        let class = *known.entry(key).or_insert_with_key(|(row, text)| {
            tables.class_texts.push(text.clone());
            tables.classes.push(row.clone())
        });
        tables.class_of.push(class);
    }
    tables
}

impl Tables {
    /// Resources sorted by name.
    fn fill_dims<'a>(&mut self, shapes: &'a [Shape], nodes: &'a [NodeFacts]) -> BTreeMap<&'a str, DimIdx> {
        let asked = shapes.iter().flat_map(|shape| &shape.requests.extra);
        let offered = nodes.iter().flat_map(|node| &node.extra);
        let names: BTreeSet<&str> = asked.chain(offered).map(|(name, _)| name.as_str()).collect();
        let mut dims = BTreeMap::new();
        for name in names {
            self.dim_names.push(name.to_owned());
            dims.insert(name, self.dims.push(ExtraDim { mig_gpus: mig_gpus(name) }));
        }
        self.node_extra = nodes.iter().map(|node| resolve_extra(&node.extra, &dims)).collect();
        dims
    }

    /// Labels sorted by key, then value; only keys that some shape refers to.
    fn fill_labels<'a>(&mut self, shapes: &'a [Shape], nodes: &'a [NodeFacts]) -> Labels<'a> {
        let mut keys: BTreeSet<&str> = BTreeSet::new();
        for Shape { constraints, .. } in shapes {
            keys.extend(constraints.selector.keys().map(String::as_str));
            let terms = constraints.affinity.iter().flatten();
            keys.extend(terms.flat_map(|term| &term.labels).map(|expression| expression.key.as_str()));
        }
        let mut labels = Labels::default();
        for key in keys {
            let mut values: BTreeMap<&str, Vec<NodeIdx>> = BTreeMap::new();
            for (n, node) in nodes.iter().enumerate() {
                if let Some(value) = node.labels.get(key) {
                    values.entry(value).or_default().push(NodeIdx::new(n));
                }
            }
            if values.is_empty() {
                continue;
            }
            let mut of_key = Vec::new();
            let mut by_value = BTreeMap::new();
            for (value, nodes) in values {
                let label = self.labels.push(LabelRow { number: value.parse().ok(), nodes });
                of_key.push(label);
                by_value.insert(value, label);
            }
            labels.by_key.insert(key, (self.keys.push(of_key), by_value));
        }
        labels
    }

    /// Taints sorted by key, value, effect.
    fn fill_taints(&mut self, nodes: &[NodeFacts]) -> Vec<Taint> {
        let mut carriers: BTreeMap<&Taint, Vec<NodeIdx>> = BTreeMap::new();
        for (n, node) in nodes.iter().enumerate() {
            for taint in &node.taints {
                carriers.entry(taint).or_default().push(NodeIdx::new(n));
            }
        }
        let mut taints = Vec::new();
        for (taint, nodes) in carriers {
            self.taint_names.push(taint.to_string());
            self.taints.push(nodes);
            taints.push(taint.clone());
        }
        taints
    }
}

/// The label table by name.
#[derive(Default)]
struct Labels<'a> {
    by_key: BTreeMap<&'a str, (KeyIdx, BTreeMap<&'a str, LabelIdx>)>,
}

impl Labels<'_> {
    fn key(&self, key: &str) -> Option<KeyIdx> {
        self.by_key.get(key).map(|(key, _)| *key)
    }

    /// The labels of a key with one of these values that some node carries, ascending.
    fn among(&self, key: &str, values: &[String]) -> Vec<LabelIdx> {
        let Some((_, by_value)) = self.by_key.get(key) else { return Vec::new() };
        let mut labels: Vec<_> = values.iter().filter_map(|value| by_value.get(value.as_str()).copied()).collect();
        labels.sort_unstable();
        labels.dedup();
        labels
    }
}

fn resolve_extra(extra: &[(String, i64)], dims: &BTreeMap<&str, DimIdx>) -> Vec<(DimIdx, i64)> {
    let mut resolved: Vec<_> =
        extra.iter().filter_map(|(name, amount)| dims.get(name.as_str()).map(|dim| (*dim, *amount))).collect();
    resolved.sort_unstable();
    resolved
}

/// Names to indices, all tables being known.
struct Resolver<'a> {
    dims: &'a BTreeMap<&'a str, DimIdx>,
    labels: &'a Labels<'a>,
    node_names: &'a BTreeMap<&'a str, NodeIdx>,
    taints: &'a [Taint],
}

impl Resolver<'_> {
    fn class(&self, shape: &Shape) -> (ClassRow, ClassText) {
        let constraints = &shape.constraints;
        let blocked = [
            (shape.legacy_mig, Blocked::LegacyMig),
            (!shape.missing_config_maps.is_empty(), Blocked::MissingConfigMap),
            (shape.claims, Blocked::ResourceClaims),
        ]
        .into_iter()
        .find_map(|(on, why)| on.then_some(why));
        let selected = constraints.selector.iter();
        let tolerated = self.taints.iter().enumerate();
        let row = ClassRow {
            cpu: shape.requests.cpu,
            memory: shape.requests.memory,
            gpu: shape.gpu,
            extra: resolve_extra(&shape.requests.extra, self.dims),
            selector: selected.map(|(key, value)| Requirement::In(self.labels.among(key, std::slice::from_ref(value)))).collect(),
            affinity: constraints.affinity.as_ref().map(|terms| terms.iter().map(|term| self.term(term)).collect()),
            tolerated: tolerated
                .filter(|(_, taint)| constraints.tolerations.iter().any(|toleration| toleration.tolerates(taint)))
                .map(|(t, _)| TaintIdx::new(t))
                .collect(),
            blocked,
        };
        let text = ClassText {
            missing_config_maps: shape.missing_config_maps.clone(),
            selector: constraints.selector_text(),
            affinity: constraints.affinity_text(),
        };
        (row, text)
    }

    fn term(&self, term: &Term) -> Vec<Requirement> {
        let labels = term.labels.iter().map(|expression| self.expression(expression));
        let names = term.names.iter().map(|condition| {
            let nodes = self.node_names.get(condition.name.as_str()).copied().into_iter().collect();
            if condition.not { Requirement::NodeNotIn(nodes) } else { Requirement::NodeIn(nodes) }
        });
        labels.chain(names).collect()
    }

    fn expression(&self, Expression { key, test }: &Expression) -> Requirement {
        let index = self.labels.key(key);
        match test {
            Test::In(values) => Requirement::In(self.labels.among(key, values)),
            Test::NotIn(values) => Requirement::NotIn(self.labels.among(key, values)),
            Test::Exists => Requirement::Exists(index),
            Test::DoesNotExist => Requirement::DoesNotExist(index),
            Test::Greater(bound) => Requirement::Greater(index, *bound),
            Test::Less(bound) => Requirement::Less(index, *bound),
        }
    }
}
