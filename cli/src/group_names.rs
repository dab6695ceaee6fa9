//! Names for GPUs that a plan newly puts to shared use: the same plan gives the same names, and no name is in use already.

use std::collections::{HashMap, HashSet};

use muster_api::names::Names;
use muster_core::index::{GroupIdx, Idx};
use muster_core::outcome::Outcome;

/// A name for each group that the outcome takes and the snapshot does not have.
pub(crate) fn new_group_names(outcome: &Outcome, names: &Names) -> HashMap<GroupIdx, String> {
    let used: HashSet<&str> = names.groups.iter().map(String::as_str).collect();
    let mut keys: Vec<(GroupIdx, String)> = Vec::new();
    let mut known = HashSet::new();
    for decision in &outcome.decisions {
        for (position, &group) in outcome.groups_of(decision).iter().enumerate() {
            if group.at() >= names.groups.len() && known.insert(group) {
                let (node, pod, uid) = (&names.nodes[decision.node], &names.pods[decision.pod], &names.pod_uids[decision.pod]);
                keys.push((group, format!("{node}\n{pod}\n{uid}\n{position}")));
            }
        }
    }
    let mut result: HashMap<GroupIdx, String> = HashMap::with_capacity(keys.len());
    let mut made = HashSet::with_capacity(keys.len());
    for (group, key) in keys {
        // Two shared GPUs with one name would be one GPU. A pod that is given a new one twice in a cycle has the same key twice.
        let mut names = (0_u64..).map(|attempt| uuid(&format!("{key}\n{attempt}")));
        let name = names.find(|name| !used.contains(name.as_str()) && !made.contains(name)).expect("names do not end");
        made.insert(name.clone());
        result.insert(group, name);
    }
    result
}

/// A UUID of version 8 (free form, RFC 9562) from the 128-bit FNV-1a hash of the key.
fn uuid(key: &str) -> String {
    let mut hash: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    for byte in key.bytes() {
        hash = (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
    }
    let hash = hash & !(0xf << 76) & !(0x3 << 62) | 0x8 << 76 | 0x2 << 62;
    let hex = format!("{hash:032x}");
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_uuids_that_depend_on_the_key_only() {
        let name = uuid("n1\nml/notebook-0\nb\n0");
        assert_eq!(name, uuid("n1\nml/notebook-0\nb\n0"));
        assert_ne!(name, uuid("n1\nml/notebook-0\nb\n1"));
        assert_eq!(name.len(), 36);
        assert_eq!((&name[14..15], &name[8..9]), ("8", "-"));
        assert!("89ab".contains(&name[19..20]), "{name}");
    }
}
