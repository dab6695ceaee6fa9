//! Where walking up leads to, for all members of a list at once. Knows positions only, not what queues or sub-groups are.

/// What is above a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Above {
    /// The member at this position, which has no parent; possibly itself.
    Root(usize),
    /// Itself.
    Cycle,
    /// Members that are above themselves.
    BelowCycle,
}

/// What is above each member, given the positions of parents. Every member is visited once, so that a chain of a hundred
/// thousand costs no more than as many siblings.
pub(crate) fn above(parents: &[Option<usize>]) -> Vec<Above> {
    let mut known: Vec<Option<Above>> = vec![None; parents.len()];
    // Position in `path` of those that are being walked over.
    let mut step: Vec<Option<usize>> = vec![None; parents.len()];
    let mut path = Vec::new();
    for start in 0..parents.len() {
        let mut at = start;
        let found = loop {
            match (known[at], step[at]) {
                (Some(Above::Cycle | Above::BelowCycle), _) => break Above::BelowCycle,
                (Some(root), _) => break root,
                (None, Some(first)) => {
                    for member in path.drain(first..) {
                        known[member] = Some(Above::Cycle);
                    }
                    break Above::BelowCycle;
                }
                (None, None) => {}
            }
            step[at] = Some(path.len());
            path.push(at);
            match parents[at] {
                Some(parent) => at = parent,
                None => break Above::Root(at),
            }
        };
        for member in path.drain(..) {
            known[member] = Some(found);
        }
    }
    known.into_iter().map(|above| above.unwrap_or(Above::BelowCycle)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_cycles_and_what_hangs_below_them() {
        let parents = [Some(1), None, Some(3), Some(2), Some(2), Some(4), Some(6), Some(0)];
        let root = Above::Root(1);
        let (cycle, below) = (Above::Cycle, Above::BelowCycle);
        assert_eq!(above(&parents), [root, root, cycle, cycle, below, below, cycle, root]);
        assert_eq!(above(&[]), []);
    }

    #[test]
    fn long_chains_and_cycles_take_no_time() {
        const LONG: usize = 1_000_000;
        let chain: Vec<_> = (0..LONG).map(|i| (i + 1 < LONG).then_some(i + 1)).collect();
        assert!(above(&chain).iter().all(|above| *above == Above::Root(LONG - 1)));
        let cycle: Vec<_> = (0..LONG).map(|i| Some((i + 1) % LONG)).collect();
        assert!(above(&cycle).iter().all(|above| *above == Above::Cycle));
    }
}
