//! Rules about the written pages: links lead somewhere, every dependency has its reason, every quirk of KAI has its line.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use cargo_metadata::Metadata;
use pulldown_cmark::{Event, Options, Parser, Tag};

use super::Offence;

/// Where dependencies are justified: a table whose rows begin with a name in backticks.
const DEPENDENCIES: &str = "docs/design/dependencies.md";

/// Where differences from KAI are listed.
const COMPAT: &str = "docs/compat.md";

/// Quirks are numbered from 1 to this.
const QUIRKS: usize = 33;

/// Links of one page: a relative one must lead to a file or folder of this repository. A clone has nothing beside it.
pub(super) fn check_links(root: &Path, path: &str, text: &str, offences: &mut Vec<Offence>) {
    let folder = Path::new(path).parent().unwrap_or(Path::new(""));
    for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES | Options::ENABLE_FOOTNOTES).into_offset_iter() {
        let (Event::Start(Tag::Link { dest_url, .. }) | Event::Start(Tag::Image { dest_url, .. })) = event else { continue };
        let target = dest_url.split('#').next().unwrap_or_default();
        if target.is_empty() || target.contains("://") || target.starts_with("mailto:") {
            continue;
        }
        let line = text[..range.start].matches('\n').count() + 1;
        let mut depth = 0_i32;
        let leaves = folder.join(target).components().any(|part| {
            depth += if part.as_os_str() == ".." { -1 } else { 1 };
            depth < 0
        });
        if leaves {
            offences.push(Offence::new(path, line, format!("link {target} leaves the repository: a clone does not have it")));
        } else if !root.join(folder).join(target).exists() {
            offences.push(Offence::new(path, line, format!("link {target} leads nowhere")));
        }
    }
}

/// Direct dependencies on crates of others, each with the rooms that have it.
fn direct_dependencies(metadata: &Metadata) -> BTreeMap<String, BTreeSet<String>> {
    let members = metadata.workspace_packages();
    let own: BTreeSet<_> = members.iter().map(|package| package.name.as_str()).collect();
    let mut users = BTreeMap::<_, BTreeSet<_>>::new();
    for package in &members {
        for dependency in package.dependencies.iter().filter(|dependency| !own.contains(dependency.name.as_str())) {
            users.entry(dependency.name.clone()).or_default().insert(package.name.to_string());
        }
    }
    users
}

/// Every direct dependency has its row, and no row is left of one that went.
pub(super) fn check_dependencies(root: &Path, metadata: &Metadata, offences: &mut Vec<Offence>) -> Result<()> {
    let path = root.join(DEPENDENCIES);
    let text = if path.exists() {
        fs::read_to_string(&path).with_context(|| format!("cannot read {DEPENDENCIES}"))?
    } else {
        String::new()
    };
    compare_dependencies(&direct_dependencies(metadata), &text, offences);
    Ok(())
}

fn compare_dependencies(users: &BTreeMap<String, BTreeSet<String>>, text: &str, offences: &mut Vec<Offence>) {
    let mut rows = BTreeMap::new();
    for (i, line) in text.lines().enumerate() {
        let Some((name, _)) = line.strip_prefix("| `").and_then(|rest| rest.split_once('`')) else { continue };
        if rows.insert(name, i + 1).is_some() {
            offences.push(Offence::new(DEPENDENCIES, i + 1, format!("a second row for {name}")));
        }
    }
    for (name, rooms) in users.iter().filter(|(name, _)| !rows.contains_key(name.as_str())) {
        let rooms: Vec<_> = rooms.iter().map(String::as_str).collect();
        let message = format!("no row says what `{name}` saves (used by {})", rooms.join(", "));
        offences.push(Offence::new(DEPENDENCIES, 1, message));
    }
    for (name, line) in rows.into_iter().filter(|(name, _)| !users.contains_key(*name)) {
        offences.push(Offence::new(DEPENDENCIES, line, format!("{name} is no dependency: delete the row")));
    }
}

/// Every quirk is kept or mended on purpose. The page comes with the engine; without it there is nothing to check.
pub(super) fn check_quirks(root: &Path, offences: &mut Vec<Offence>) -> Result<()> {
    let path = root.join(COMPAT);
    if path.exists() {
        compare_quirks(&fs::read_to_string(path)?, offences);
    }
    Ok(())
}

fn compare_quirks(text: &str, offences: &mut Vec<Offence>) {
    let words: BTreeSet<_> = text.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    for quirk in (1..=QUIRKS).map(|n| format!("Q{n}")).filter(|quirk| !words.contains(quirk.as_str())) {
        offences.push(Offence::new(COMPAT, 1, format!("quirk {quirk} (semantics.md §13) is not mentioned: kept or mended?")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(offences: Vec<Offence>) -> Vec<String> {
        offences.into_iter().map(|o| format!("{}: {}", o.line, o.message)).collect()
    }

    #[test]
    fn links_lead_somewhere() {
        let mut offences = Vec::new();
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let text = "[a](Cargo.toml) [b](src/tidy/) [c](#here) [d](https://x.example/none) `[code](none)`\n\n\
                    ```\n[code](none)\n```\n[e](none.md#x)\n\n| t |\n|---|\n| [f][ref] |\n\n\
                    [ref]: src/none.rs\n[g](../xtask/Cargo.toml)";
        check_links(root, "page.md", text, &mut offences);
        let found = messages(offences);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].starts_with("6: link none.md leads nowhere"), "{found:?}");
        assert!(found[1].contains("src/none.rs leads nowhere"), "{found:?}");
        assert!(found[2].contains("leaves the repository"), "{found:?}");
        let mut offences = Vec::new();
        check_links(root, "src/page.md", "[up](../Cargo.toml) [in](main.rs)", &mut offences);
        assert_eq!(offences, []);
    }

    #[test]
    fn dependencies_and_rows_match() {
        let users = ["alpha", "beta"].map(|name| (name.to_owned(), BTreeSet::from(["core".to_owned()]))).into();
        let mut offences = Vec::new();
        compare_dependencies(&users, "| `alpha` | saves much |\n| `gamma` | gone |\n| `alpha` | again |\n", &mut offences);
        let found = messages(offences);
        assert_eq!(
            found,
            [
                "3: a second row for alpha",
                "1: no row says what `beta` saves (used by core)",
                "2: gamma is no dependency: delete the row"
            ]
        );
    }

    #[test]
    fn every_quirk_is_mentioned() {
        let all: String = (1..=QUIRKS).map(|n| format!("| Q{n} | kept |\n")).collect();
        let mut offences = Vec::new();
        compare_quirks(&all, &mut offences);
        assert_eq!(offences, []);
        compare_quirks(&all.replace("Q3 ", "Q 3 "), &mut offences);
        assert_eq!(offences.len(), 1, "Q30 to Q33 do not stand for Q3");
    }
}
