//! Rules that need the syntax: length of functions, `unsafe`, attributes, and what the pure rooms must not name.
//!
//! What is inside a macro call (`proptest! { … }`) is tokens to the parser; functions, `unsafe` and names are found there too.

use std::collections::BTreeSet;
use std::path::Path;

use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::Offence;
use super::ratchet::{Kind, Ratchet};

/// One file, and what is known about it.
pub(super) struct File<'a> {
    /// Relative to the root; its first part is the room.
    pub(super) path: &'a str,
    pub(super) text: &'a str,
    /// A library or program begins with it.
    pub(super) is_root: bool,
    /// The body of a `#[cfg(test)] mod name;`.
    pub(super) is_test: bool,
}

impl File<'_> {
    fn room(&self) -> &str {
        self.path.split('/').next().unwrap_or_default()
    }

    /// `unsafe` is allowed, with a reason.
    fn may_be_unsafe(&self) -> bool {
        self.room() == "kernels"
    }

    /// Must not name clocks, the environment, the standard output, or maps with a random order.
    fn is_pure(&self) -> bool {
        !self.is_test && ["core/src/", "kernels/src/"].iter().any(|folder| self.path.starts_with(folder))
    }
}

/// What the pure rooms must not name: the last or the only part of a path, and why.
const IMPURE_NAMES: &[(&str, &str)] = &[
    ("SystemTime", "no clock in a pure room: time is an argument"),
    ("Instant", "no clock in a pure room: the caller passes a stage hook"),
    ("HashMap", "random order in a pure room: use a column, or a sorted list"),
    ("HashSet", "random order in a pure room: use a column, or a mask"),
    ("RandomState", "randomness in a pure room"),
    ("println", "no output in a pure room"),
    ("eprintln", "no output in a pure room"),
    ("print", "no output in a pure room"),
    ("eprint", "no output in a pure room"),
];

/// Modules of `std` that the pure rooms must not name.
const IMPURE_MODULES: &[(&str, &str)] = &[
    ("time", "no clock in a pure room: time is an argument"),
    ("env", "no environment in a pure room: settings are arguments"),
    ("fs", "no input or output in a pure room"),
    ("net", "no input or output in a pure room"),
    ("process", "no processes in a pure room"),
];

/// Attributes that hide a failing test.
const HIDING: &[(&str, &str)] = &[
    ("ignore", "`#[ignore]`: a test that does not run is none; mend or delete it"),
    ("should_panic", "`should_panic` does not say which panic: test the law instead, or use catch_unwind and look"),
];

/// The files that are bodies of `#[cfg(test)] mod name;`, in `sources` (path and text).
pub(super) fn test_files(sources: &[(String, String)]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (path, text) in sources {
        let Ok(file) = syn::parse_file(text) else { continue };
        let path = Path::new(path);
        let stem = path.file_stem().unwrap_or_default();
        let folder = path.parent().unwrap_or(Path::new(""));
        let folder = if ["lib", "main", "mod"].iter().any(|root| stem == *root) { folder.into() } else { folder.join(stem) };
        for item in &file.items {
            if let syn::Item::Mod(module) = item
                && module.content.is_none()
                && is_for_tests(&module.attrs)
            {
                let base = folder.join(module.ident.to_string());
                found.insert(base.with_extension("rs").to_string_lossy().into_owned());
                found.insert(base.join("mod.rs").to_string_lossy().into_owned());
            }
        }
    }
    found
}

/// `#[cfg(test)]`, also as part of `all(…)`.
fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) if list.path.is_ident("cfg") => {
            let text = list.tokens.to_string().replace(' ', "");
            text == "test" || text.starts_with("all(test")
        }
        _ => false,
    })
}

/// All rules on one file.
pub(super) fn check(file: &File, ratchet: &mut Ratchet, offences: &mut Vec<Offence>) {
    let syntax = match syn::parse_file(file.text) {
        Ok(syntax) => syntax,
        Err(error) => {
            offences.push(Offence::new(file.path, error.span().start().line, format!("cannot be parsed: {error}")));
            return;
        }
    };
    if file.is_root && !file.may_be_unsafe() && !syntax.attrs.iter().any(is_forbid_unsafe) {
        offences.push(Offence::new(file.path, 1, "a crate's root outside kernels says `#![forbid(unsafe_code)]`"));
    }
    Walk { file, ratchet, offences, test_depth: 0 }.visit_file(&syntax);
    let tokens = file.text.parse().expect("what is a file of Rust is tokens of Rust");
    check_unsafe(file, tokens, offences);
}

/// `unsafe` is a keyword, so tokens tell all uses, inside macros and attributes too.
fn check_unsafe(file: &File, stream: TokenStream, offences: &mut Vec<Offence>) {
    let tokens: Vec<TokenTree> = stream.into_iter().collect();
    for (i, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Group(group) => check_unsafe(file, group.stream(), offences),
            TokenTree::Ident(ident) if ident == "unsafe" => {
                let line = ident.span().start().line;
                let is_pointer_type =
                    matches!(tokens.get(i + 1..i + 3), Some([TokenTree::Ident(f), TokenTree::Group(_)]) if f == "fn");
                if !file.may_be_unsafe() {
                    offences.push(Offence::new(file.path, line, "`unsafe` outside kernels"));
                } else if !is_pointer_type && !has_safety_comment(file.text, line) {
                    let message = "`unsafe` without `// SAFETY:` (a block) or `# Safety` (a function) above it";
                    offences.push(Offence::new(file.path, line, message));
                }
            }
            _ => {}
        }
    }
}

fn is_forbid_unsafe(attribute: &syn::Attribute) -> bool {
    match &attribute.meta {
        syn::Meta::List(list) => list.path.is_ident("forbid") && list.tokens.to_string() == "unsafe_code",
        _ => false,
    }
}

struct Walk<'a, 'r> {
    file: &'a File<'a>,
    ratchet: &'r mut Ratchet,
    offences: &'r mut Vec<Offence>,
    /// How many `#[cfg(test)]` are around.
    test_depth: u32,
}

impl Walk<'_, '_> {
    fn offend(&mut self, span: Span, message: impl Into<String>) {
        self.offences.push(Offence::new(self.file.path, span.start().line, message));
    }

    fn function(&mut self, name: &syn::Ident, body: Span) {
        let lines = body.end().line - body.start().line + 1;
        let key = format!("{}::{name}", self.file.path);
        let line = name.span().start().line;
        self.ratchet.measure(Kind::Function, &key, lines, (self.file.path, line), self.offences);
    }

    fn is_pure(&self) -> bool {
        self.file.is_pure() && self.test_depth == 0
    }

    /// A path by its parts; `span` is where it begins.
    fn path(&mut self, parts: &[String], span: Span) {
        if !self.is_pure() {
            return;
        }
        for part in parts {
            if let Some((_, why)) = IMPURE_NAMES.iter().find(|(name, _)| name == part) {
                self.offend(span, format!("`{part}`: {why}"));
            }
        }
        if parts.first().is_some_and(|first| first == "std")
            && let Some((module, why)) = parts.get(1).and_then(|second| IMPURE_MODULES.iter().find(|(name, _)| name == second))
        {
            self.offend(span, format!("`std::{module}`: {why}"));
        }
    }

    /// `use` trees have no paths; every leaf gives one.
    fn use_tree(&mut self, tree: &syn::UseTree, before: &[String]) {
        let extended = |ident: &syn::Ident| [before, &[ident.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.use_tree(&path.tree, &extended(&path.ident)),
            syn::UseTree::Name(name) => self.path(&extended(&name.ident), name.ident.span()),
            syn::UseTree::Rename(rename) => self.path(&extended(&rename.ident), rename.ident.span()),
            syn::UseTree::Glob(glob) => self.path(before, glob.span()),
            syn::UseTree::Group(group) => group.items.iter().for_each(|item| self.use_tree(item, before)),
        }
    }

    /// What a macro call holds: functions, `unsafe`, hiding attributes, and paths.
    fn tokens(&mut self, stream: TokenStream) {
        let tokens: Vec<TokenTree> = stream.into_iter().collect();
        let mut path: Vec<String> = Vec::new();
        for (i, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Group(group) => {
                    if group.delimiter() == Delimiter::Bracket
                        && matches!(i.checked_sub(1).map(|j| &tokens[j]), Some(TokenTree::Punct(p)) if p.as_char() == '#')
                        && let Some(TokenTree::Ident(name)) = group.stream().into_iter().next()
                    {
                        self.attribute(&name.to_string(), name.span());
                    }
                    self.tokens(group.stream());
                }
                TokenTree::Ident(ident) => {
                    if ident == "fn" {
                        self.function_in_tokens(&tokens[i + 1..]);
                    }
                    let follows = i >= 2 && is_colon(&tokens[i - 1]) && is_colon(&tokens[i - 2]);
                    if !follows {
                        path.clear();
                    }
                    path.push(ident.to_string());
                    let goes_on = tokens.get(i + 1).is_some_and(is_colon) && tokens.get(i + 2).is_some_and(is_colon);
                    if !goes_on {
                        self.path(&std::mem::take(&mut path), ident.span());
                    }
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
    }

    /// After the word `fn`: a name, and a body before the next `;`.
    fn function_in_tokens(&mut self, after: &[TokenTree]) {
        let Some(TokenTree::Ident(name)) = after.first() else { return };
        for token in after {
            match token {
                TokenTree::Punct(punct) if punct.as_char() == ';' => return,
                TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                    return self.function(name, group.span());
                }
                _ => {}
            }
        }
    }

    fn attribute(&mut self, name: &str, span: Span) {
        if let Some((_, why)) = HIDING.iter().find(|(hiding, _)| *hiding == name) {
            self.offend(span, *why);
        }
    }

    /// Walks something that may be there for tests only.
    fn scoped(&mut self, attributes: &[syn::Attribute], walk: impl FnOnce(&mut Self)) {
        let for_tests = u32::from(is_for_tests(attributes));
        self.test_depth += for_tests;
        walk(self);
        self.test_depth -= for_tests;
    }
}

fn is_colon(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == ':')
}

/// Looks in the line itself, then upwards over comments and attributes.
fn has_safety_comment(text: &str, line: usize) -> bool {
    let lines: Vec<_> = text.lines().take(line).collect();
    let Some((own, above)) = lines.split_last() else { return false };
    let tells = |line: &str| line.contains("SAFETY:") || line.contains("# Safety");
    let belongs = |line: &&&str| line.trim_start().starts_with("//") || line.trim_start().starts_with("#[");
    tells(own) || above.iter().rev().take_while(belongs).any(|line| tells(line))
}

impl<'ast> Visit<'ast> for Walk<'_, '_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes: &[syn::Attribute] = match item {
            syn::Item::Mod(module) => &module.attrs,
            syn::Item::Fn(function) => &function.attrs,
            syn::Item::Impl(block) => &block.attrs,
            syn::Item::Use(import) => &import.attrs,
            _ => &[],
        };
        self.scoped(attributes, |walk| visit::visit_item(walk, item));
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.function(&function.sig.ident, function.block.span());
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.function(&function.sig.ident, function.block.span());
        self.scoped(&function.attrs, |walk| visit::visit_impl_item_fn(walk, function));
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let Some(body) = &function.default {
            self.function(&function.sig.ident, body.span());
        }
        visit::visit_trait_item_fn(self, function);
    }

    fn visit_item_use(&mut self, import: &'ast syn::ItemUse) {
        self.use_tree(&import.tree, &[]);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let parts: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.path(&parts, path.span());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        if let Some(name) = attribute.path().get_ident() {
            self.attribute(&name.to_string(), attribute.span());
        }
        visit::visit_attribute(self, attribute);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `line: message` of everything found in a file; the file has its `//!` and, as a root, its `forbid`.
    fn found(path: &str, text: &str) -> Vec<String> {
        let mut offences = Vec::new();
        let mut ratchet = Ratchet::parse("", "", &mut offences);
        let file = File { path, text, is_root: false, is_test: false };
        check(&file, &mut ratchet, &mut offences);
        offences.sort();
        offences.into_iter().map(|o| format!("{}: {}", o.line, o.message)).collect()
    }

    fn found_in(path: &str, text: &str, part: &str) -> bool {
        found(path, text).iter().any(|message| message.contains(part))
    }

    /// A function of `lines` lines, braces included, in any surrounding.
    fn long(lines: usize) -> String {
        format!("fn long() {{\n{}}}\n", "    step();\n".repeat(lines - 2))
    }

    #[test]
    fn long_functions_are_found_wherever_they_are() {
        for (before, after) in [
            ("", ""),
            ("#[test] ", ""),
            ("impl X {\n", "}"),
            ("trait X {\n", "}"),
            ("mod m {\n", "}"),
            ("fn outer() { const X: u8 = { ", " 1 }; }"),
            ("proptest! {\n", "}"),
            ("macro_rules! m { () => {\n", "} }"),
            ("#[cfg(test)] mod tests {\n", "}"),
        ] {
            let name = |lines| format!("{before}{}{after}", long(lines));
            assert!(found_in("api/src/a.rs", &name(71), "a.rs::long has 71 lines"), "{before}");
            assert!(!found_in("api/src/a.rs", &name(70), "a.rs::long"), "{before}");
        }
    }

    #[test]
    fn unsafe_is_for_kernels_with_a_reason() {
        let uses = ["unsafe { f() }", "unsafe fn g() {}", "unsafe impl T for X {}", "m!(unsafe { f() });"];
        for (i, item) in uses.iter().enumerate() {
            let text = if i == 0 { format!("fn h() {{\n{item}\n}}") } else { (*item).to_owned() };
            assert!(found_in("core/src/a.rs", &text, "outside kernels"), "{item}");
            assert!(found_in("kernels/src/a.rs", &text, "without"), "{item}");
            let with_reason = text.replace(item, &format!("// SAFETY: it is.\n#[inline]\n{item}"));
            if i > 0 {
                assert!(found("kernels/src/a.rs", &with_reason).is_empty(), "{item}");
            }
        }
        let block = "fn h() {\n    // SAFETY: `f` has no precondition.\n    unsafe { f() }\n}";
        assert!(found("kernels/src/a.rs", block).is_empty());
        assert!(found("kernels/src/a.rs", "type F = unsafe fn(u8);").is_empty());
        assert!(!found_in("core/src/a.rs", "//! unsafe words\n// unsafe\nconst X: &str = \"unsafe\";", "unsafe"));
    }

    #[test]
    fn roots_forbid_unsafe_code() {
        let root = |path, text| {
            let mut offences = Vec::new();
            let mut ratchet = Ratchet::parse("", "", &mut offences);
            check(&File { path, text, is_root: true, is_test: false }, &mut ratchet, &mut offences);
            offences.len()
        };
        assert_eq!(root("api/src/lib.rs", "//! x\n#![warn(missing_docs)]"), 1);
        assert_eq!(root("api/src/lib.rs", "//! x\n#![forbid(unsafe_code)]"), 0);
        assert_eq!(root("kernels/src/lib.rs", "//! x"), 0);
    }

    #[test]
    fn hidden_tests_are_found() {
        for text in [
            "#[test]\n#[ignore]\nfn t() {}",
            "#[test]\n#[ignore = \"slow\"]\nfn t() {}",
            "proptest! {\n#[ignore]\nfn t(x in 0..1) {}\n}",
        ] {
            assert!(found_in("api/src/a.rs", text, "#[ignore]"), "{text}");
        }
        assert!(found_in("api/tests/a.rs", "#[test]\n#[should_panic(expected = \"x\")]\nfn t() {}", "should_panic"));
        assert!(found("api/src/a.rs", "#[expect(dead_code)]\nfn ignore() {}").is_empty());
    }

    #[test]
    fn pure_rooms_name_nothing_impure() {
        let impure = [
            "use std::time::Duration;",
            "use std::{fmt, time};",
            "use std::collections::{BTreeMap, HashMap as Map};",
            "fn f() { println!(\"x\"); }",
            "fn f() -> std::time::Instant { g() }",
            "fn f() { std::env::var(\"X\").ok(); }",
            "fn f() { assert!(std::env::args().count() > 0); }",
            "fn f(x: &HashSet<u8>) {}",
            "use std::time::*;",
        ];
        for text in impure {
            assert!(!found("core/src/a.rs", text).is_empty(), "{text}");
            assert!(!found("kernels/src/a.rs", text).is_empty(), "{text}");
            assert!(found("api/src/a.rs", text).is_empty(), "{text}");
            assert!(found("core/tests/a.rs", text).is_empty(), "{text}");
            assert!(found("core/src/a.rs", &format!("#[cfg(test)]\nmod tests {{ {text} }}")).is_empty(), "{text}");
        }
        assert!(found("core/src/a.rs", "use std::collections::BTreeMap;\nfn time(env: u8) { time::now(env) }").is_empty());
    }

    #[test]
    fn bodies_of_test_modules_are_known() {
        let sources = [
            ("core/src/lib.rs".to_owned(), "#[cfg(test)] mod laws; mod plan;".to_owned()),
            ("core/src/plan.rs".to_owned(), "#[cfg(all(test, unix))] mod tests;".to_owned()),
        ];
        let files = test_files(&sources);
        for known in ["core/src/laws.rs", "core/src/laws/mod.rs", "core/src/plan/tests.rs"] {
            assert!(files.contains(known), "{known}");
        }
        assert!(!files.contains("core/src/plan.rs"));
    }

    #[test]
    fn what_is_no_rust_is_said() {
        assert!(found_in("api/src/a.rs", "fn {", "cannot be parsed"));
    }
}
