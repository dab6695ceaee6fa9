//! The plain way to the best node: look at every one. The reference for [`crate::place::index`].

use crate::index::{Idx, NodeIdx};
use crate::place::key::View;

/// The node with the largest key among those that `allowed` accepts, the first of equals; `None` if no key is above 0.
pub fn best(view: &View<'_>, allowed: impl Fn(NodeIdx) -> bool) -> Option<(NodeIdx, i64)> {
    let mut best = None;
    for node in (0..view.tables.nodes.len()).map(NodeIdx::new) {
        let key = view.key(node);
        if key > best.map_or(0, |(_, key)| key) && allowed(node) {
            best = Some((node, key));
        }
    }
    best
}
