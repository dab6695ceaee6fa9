//! Who may use whom (docs/architecture.md, "Rooms and direction"), from cargo's own answer.
//!
//! A room that is missing in the table is an offence: whoever adds a crate says here what it may use.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, Metadata, Package, PackageId};

use super::Offence;

/// What a room may use.
struct Room {
    name: &'static str,
    /// Rooms, in the build.
    uses: &'static [&'static str],
    /// Further rooms, in tests only.
    tests_use: &'static [&'static str],
}

const fn room(name: &'static str, uses: &'static [&'static str], tests_use: &'static [&'static str]) -> Room {
    Room { name, uses, tests_use }
}

const KERNELS: &str = "muster-kernels";
const CORE: &str = "muster-core";
const API: &str = "muster-api";
const TESTKIT: &str = "muster-testkit";
const SIM: &str = "muster-sim";
const CONTROLLER: &str = "muster-controller";

const ROOMS: &[Room] = &[
    room(KERNELS, &[], &[]),
    room(CORE, &[KERNELS], &[TESTKIT, API]),
    room(API, &[CORE], &[TESTKIT]),
    room(TESTKIT, &[CORE, API], &[]),
    room(SIM, &[CORE], &[TESTKIT, API]),
    room(CONTROLLER, &[CORE, API], &[TESTKIT, SIM]),
    room("muster", &[KERNELS, CORE, API, TESTKIT, SIM, CONTROLLER], &[]),
    room("muster-benches", &[KERNELS, CORE, API, TESTKIT, SIM, CONTROLLER], &[]),
    room("muster-e2e", &[API, CONTROLLER, TESTKIT], &[]),
    room("muster-fuzz", &[KERNELS, CORE, API, TESTKIT], &[]),
    room("xtask", &[], &[]),
];

/// Rooms that are pure: nothing in their tree may do I/O, keep time, log, or know a wire format.
const PURE: &[&str] = &[KERNELS, CORE];

/// Packages that a pure room must not reach, and all with such a prefix.
const IMPURE: &[&str] =
    &["kube", "k8s-openapi", "tokio", "serde", "tracing", "log", "jiff", "chrono", "time", "rand", "getrandom"];
const IMPURE_PREFIXES: &[&str] = &["kube-", "tokio-", "serde-", "serde_", "tracing-"];

/// All forbidden edges.
pub(super) fn check(metadata: &Metadata) -> Vec<Offence> {
    let mut offences = Vec::new();
    let members = metadata.workspace_packages();
    let names: BTreeSet<&str> = members.iter().map(|package| package.name.as_str()).collect();
    for package in &members {
        check_rooms(package, &names, &mut offences);
    }
    for package in members.iter().filter(|package| PURE.contains(&package.name.as_str())) {
        check_purity(metadata, package, &mut offences);
    }
    offences
}

fn manifest(package: &Package) -> String {
    let folder = package.manifest_path.parent().and_then(|folder| folder.file_name());
    format!("{}/Cargo.toml", folder.unwrap_or_default())
}

fn check_rooms(package: &Package, members: &BTreeSet<&str>, offences: &mut Vec<Offence>) {
    let path = manifest(package);
    let Some(room) = ROOMS.iter().find(|room| room.name == package.name.as_str()) else {
        let message = format!("{} is no room of the house: say in xtask/src/tidy/edges.rs what it may use", package.name);
        offences.push(Offence::new(&path, 1, message));
        return;
    };
    for dependency in package.dependencies.iter().filter(|dependency| members.contains(dependency.name.as_str())) {
        let name = dependency.name.as_str();
        let in_tests = dependency.kind == DependencyKind::Development && room.tests_use.contains(&name);
        if !room.uses.contains(&name) && !in_tests {
            let message = format!("{} must not use {name} ({} dependency)", room.name, dependency.kind);
            offences.push(Offence::new(&path, 1, message));
        }
    }
}

fn is_impure(name: &str) -> bool {
    IMPURE.contains(&name) || IMPURE_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Follows what is linked (neither tests' nor build scripts' dependencies) and reports each impure package with the way to it.
fn check_purity(metadata: &Metadata, package: &Package, offences: &mut Vec<Offence>) {
    let Some(resolve) = &metadata.resolve else { return };
    let nodes: BTreeMap<&PackageId, _> = resolve.nodes.iter().map(|node| (&node.id, node)).collect();
    let mut seen = BTreeSet::from([&package.id]);
    let mut ways = vec![vec![&package.id]];
    while let Some(way) = ways.pop() {
        let Some(node) = way.last().and_then(|last| nodes.get(last)) else { continue };
        for next in &node.deps {
            let linked = next.dep_kinds.iter().any(|kind| kind.kind == DependencyKind::Normal);
            if !linked || !seen.insert(&next.pkg) {
                continue;
            }
            let mut longer = way.clone();
            longer.push(&next.pkg);
            if is_impure(metadata[&next.pkg].name.as_str()) {
                let names: Vec<_> = longer.iter().map(|id| metadata[id].name.as_str()).collect();
                offences.push(Offence::new(&manifest(package), 1, format!("must not reach {}", names.join(" → "))));
            } else {
                ways.push(longer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// A name, and what it uses: name and kind.
    type Uses<'a> = (&'a str, &'a [(&'a str, Option<&'a str>)]);

    /// Metadata of packages; the rooms and `attic` are members of the workspace.
    fn metadata(packages: &[Uses]) -> Metadata {
        let id = |name: &str| format!("path+file:///w/{name}#0.1.0");
        let dependency = |&(name, kind): &(&str, Option<&str>)| {
            json!({"name": name, "source": null, "req": "*", "kind": kind, "rename": null, "optional": false,
                   "uses_default_features": true, "features": [], "target": null, "registry": null})
        };
        let edge = |&(name, kind): &(&str, Option<&str>)| {
            let kinds = [json!({"kind": kind, "target": null})];
            json!({"name": name, "pkg": id(name), "dep_kinds": kinds})
        };
        let all: Vec<Value> = packages.iter().map(|(name, uses)| {
            json!({"name": name, "version": "0.1.0", "id": id(name), "license": null, "license_file": null, "description": null,
                   "source": null, "dependencies": uses.iter().map(dependency).collect::<Vec<_>>(), "targets": [], "features": {},
                   "manifest_path": format!("/w/{name}/Cargo.toml"), "metadata": null, "publish": null, "authors": [],
                   "categories": [], "keywords": [], "readme": null, "repository": null, "homepage": null,
                   "documentation": null, "edition": "2024", "links": null, "default_run": null, "rust_version": null})
        }).collect();
        let nodes: Vec<Value> = packages
            .iter()
            .map(|(name, uses)| {
                json!({"id": id(name), "dependencies": uses.iter().map(|u| id(u.0)).collect::<Vec<_>>(),
                   "deps": uses.iter().map(edge).collect::<Vec<_>>(), "features": []})
            })
            .collect();
        let members: Vec<_> =
            packages.iter().filter(|p| ROOMS.iter().any(|r| r.name == p.0) || p.0 == "attic").map(|p| id(p.0)).collect();
        let text = json!({"packages": all, "workspace_members": members, "resolve": {"nodes": nodes, "root": null},
                          "target_directory": "/w/target", "version": 1, "workspace_root": "/w", "metadata": null});
        serde_json::from_value(text).unwrap()
    }

    fn messages(packages: &[Uses]) -> Vec<String> {
        check(&metadata(packages)).into_iter().map(|o| format!("{}: {}", o.path, o.message)).collect()
    }

    const DEV: Option<&str> = Some("dev");

    #[test]
    fn the_house_as_drawn_has_no_offence() {
        let found = messages(&[
            (KERNELS, &[]),
            (CORE, &[(KERNELS, None), (TESTKIT, DEV)]),
            (API, &[(CORE, None), ("serde", None)]),
            (TESTKIT, &[(CORE, None), (API, None)]),
            ("serde", &[]),
        ]);
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn edges_against_the_direction_are_found() {
        let found = messages(&[(KERNELS, &[(CORE, DEV)]), (CORE, &[(API, None)]), (API, &[]), ("attic", &[])]);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found.contains(&"muster-kernels/Cargo.toml: muster-kernels must not use muster-core (dev dependency)".into()));
        assert!(found.contains(&"muster-core/Cargo.toml: muster-core must not use muster-api (normal dependency)".into()));
        assert!(found[2].contains("attic is no room"), "{found:?}");
    }

    #[test]
    fn impurity_is_found_at_any_depth_but_not_in_tests() {
        let found = messages(&[
            (CORE, &[("pool", None), ("proptest", DEV)]),
            ("pool", &[("serde_json", None)]),
            ("proptest", &[("rand", None)]),
            ("serde_json", &[]),
            ("rand", &[]),
        ]);
        assert_eq!(found, ["muster-core/Cargo.toml: must not reach muster-core → pool → serde_json"]);
    }
}
