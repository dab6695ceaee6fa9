//! The plugins that a configuration lists: names, and arguments checked one by one (wire-contract.md §7.3).

use muster_core::config::{MinRuntime, NodePlacement, Plugins, ReclaimProtection, Strategy};
use serde_json::Value;

use crate::duration::parse_nanoseconds;
use crate::problem::{Findings, Subject, plain, show, show_json};

/// Plugins that decide nothing here: the first three because they never place a pod, the others because what they need is not
/// considered yet; that is reported where a pod needs it (`assemble::needs`), so that a default configuration stays quiet.
const SILENT_PLUGINS: [&str; 6] = ["snapshot", "reflectjoborder", "dynamicresources", "topology", "podaffinity", "numa"];
/// Plugins with effect, in KAI's names.
const BUILT_PLUGINS: [&str; 18] = [
    "predicates",
    "proportion",
    "priority",
    "elastic",
    "kubeflow",
    "ray",
    "nodeavailability",
    "gpusharingorder",
    "gpupack",
    "gpuspread",
    "resourcetype",
    "subgrouporder",
    "taskorder",
    "nominatednode",
    "nodeplacement",
    "minruntime",
    "sg-nodelocalgreedy",
    "sg-multinodegang",
];

/// The plugins that a configuration lists.
pub(crate) struct Chosen {
    pub(crate) any: bool,
    pub(crate) plugins: Plugins,
    pub(crate) node_placement: Option<NodePlacement>,
    pub(crate) pack: bool,
    pub(crate) spread: bool,
    pub(crate) numa: bool,
    pub(crate) k_value: f64,
    pub(crate) saturation_multiplier: f64,
    pub(crate) min_runtime: Option<MinRuntime>,
    pub(crate) search: bool,
}

impl Default for Chosen {
    fn default() -> Self {
        let off = Plugins {
            predicates: false,
            proportion: false,
            priority: false,
            elastic: false,
            kubeflow: false,
            ray: false,
            task_order: false,
            subgroup_order: false,
            nominated_node: false,
            gpu_sharing_order: false,
            node_availability: false,
            resource_type: false,
        };
        Self {
            any: false,
            plugins: off,
            node_placement: None,
            pack: false,
            spread: false,
            numa: false,
            k_value: 1.0,
            saturation_multiplier: 1.0,
            min_runtime: None,
            search: false,
        }
    }
}

impl Chosen {
    pub(crate) fn read(&mut self, field: &str, plugin: &Value, findings: &mut Findings) {
        let subject = Subject::setting("config");
        let Some(name) = plugin.get("name").and_then(Value::as_str) else {
            return findings.bad(subject, field, show_json(plugin), "a plugin with a name");
        };
        self.any = true;
        let mut arguments = Arguments::of(field, plugin, findings);
        if !self.switch_on(name, &mut arguments) {
            let known: Vec<_> = BUILT_PLUGINS.iter().chain(&SILENT_PLUGINS).copied().collect();
            return findings.bad(subject, &format!("{field}.name"), show(name), one_of(&known));
        }
        arguments.close(name);
        for key in plugin.as_object().into_iter().flatten().map(|(key, _)| key.as_str()) {
            if !matches!(key, "name" | "arguments") {
                // The `disable…` switches are read by nothing in KAI either (semantics.md §0.3, Q32).
                let on = plugin.get(key).is_some_and(|v| !matches!(v, Value::Null | Value::Bool(false)));
                if on {
                    findings.warn(subject, &format!("{field}.{key}"), String::new(), "ignored, as in KAI");
                }
            }
        }
    }

    /// Whether the name is known.
    fn switch_on(&mut self, name: &str, arguments: &mut Arguments<'_>) -> bool {
        let plugins = &mut self.plugins;
        match name {
            "predicates" => plugins.predicates = true,
            "proportion" => {
                plugins.proportion = true;
                // Zero and below: usage is ignored (semantics.md §3.5).
                self.k_value = arguments.number("kValue").map_or(1.0, |k| k.max(0.0));
                // KAI's spelling, and the right one (Q25); below 1 counts as 1 (semantics.md §6.6.3).
                let multiplier =
                    ["relcaimerSaturationMultiplier", "reclaimerSaturationMultiplier"].map(|key| arguments.number(key));
                self.saturation_multiplier = multiplier.into_iter().flatten().next().unwrap_or(1.0).max(1.0);
            }
            "priority" => plugins.priority = true,
            "elastic" => plugins.elastic = true,
            "kubeflow" => plugins.kubeflow = true,
            "ray" => plugins.ray = true,
            "nodeavailability" => plugins.node_availability = true,
            "gpusharingorder" => plugins.gpu_sharing_order = true,
            "gpupack" => self.pack = true,
            "gpuspread" => self.spread = true,
            "resourcetype" => plugins.resource_type = true,
            "subgrouporder" => plugins.subgroup_order = true,
            "taskorder" => plugins.task_order = true,
            "nominatednode" => plugins.nominated_node = true,
            "nodeplacement" => {
                let (gpu, cpu) = (arguments.strategy("gpu"), arguments.strategy("cpu"));
                self.node_placement = Some(NodePlacement { gpu, cpu });
            }
            "minruntime" => {
                let reclaim = arguments.duration("defaultReclaimMinRuntime").unwrap_or(0);
                let preempt = arguments.duration("defaultPreemptMinRuntime").unwrap_or(0);
                let reclaim_by = match arguments.choice("reclaimResolveMethod", &["lca", "queue"]) {
                    Some("queue") => ReclaimProtection::OwnQueue,
                    _ => ReclaimProtection::CommonAncestor,
                };
                self.min_runtime = Some(MinRuntime { preempt, reclaim, reclaim_by });
            }
            "sg-nodelocalgreedy" | "sg-multinodegang" => self.search = true,
            "dynamicresources" => {
                arguments.number("maxCelCacheEntries");
            }
            "numa" => {
                self.numa = true;
                arguments.text("ignoreList");
                arguments.choice("reconstructAvailable", &["true", "false"]);
            }
            other => return SILENT_PLUGINS.contains(&other),
        }
        true
    }
}

/// Arguments of one plugin: read by name, then [`Arguments::close`] warns about the rest.
struct Arguments<'a> {
    field: String,
    left: Vec<(&'a str, String)>,
    findings: &'a mut Findings,
}

impl<'a> Arguments<'a> {
    fn of(field: &str, plugin: &'a Value, findings: &'a mut Findings) -> Self {
        let field = format!("{field}.arguments");
        let mut left = Vec::new();
        match plugin.get("arguments") {
            None | Some(Value::Null) => {}
            Some(Value::Object(fields)) => {
                for (key, value) in fields {
                    match value {
                        Value::String(text) => left.push((key.as_str(), text.clone())),
                        Value::Number(_) | Value::Bool(_) => left.push((key.as_str(), value.to_string())),
                        other => {
                            findings.bad(Subject::setting("config"), &format!("{field}.{key}"), show_json(other), "a string")
                        }
                    }
                }
            }
            Some(other) => findings.bad(Subject::setting("config"), &field, show_json(other), "an object of strings"),
        }
        Self { field, left, findings }
    }

    fn text(&mut self, key: &str) -> Option<String> {
        let at = self.left.iter().position(|(name, _)| *name == key)?;
        Some(self.left.swap_remove(at).1)
    }

    fn refuse(&mut self, key: &str, text: &str, expected: impl Into<String>) {
        self.findings.bad(Subject::setting("config"), &format!("{}.{key}", self.field), show(text), expected);
    }

    fn number(&mut self, key: &str) -> Option<f64> {
        let text = self.text(key)?;
        let number = text.trim().parse::<f64>().ok().filter(|n| n.is_finite());
        if number.is_none() {
            self.refuse(key, &text, "a number");
        }
        number
    }

    /// In nanoseconds.
    fn duration(&mut self, key: &str) -> Option<i64> {
        let text = self.text(key)?;
        match parse_nanoseconds(&text, true) {
            Ok(nanoseconds) => Some(nanoseconds),
            Err(expected) => {
                self.refuse(key, &text, expected);
                None
            }
        }
    }

    fn choice<'c>(&mut self, key: &str, names: &[&'c str]) -> Option<&'c str> {
        let text = self.text(key)?;
        let choice = names.iter().find(|name| **name == text).copied();
        if choice.is_none() {
            self.refuse(key, &text, one_of(names));
        }
        choice
    }

    fn strategy(&mut self, key: &str) -> Strategy {
        match self.choice(key, &["binpack", "spread"]) {
            Some("spread") => Strategy::Spread,
            _ => Strategy::Binpack,
        }
    }

    fn close(self, plugin: &str) {
        for (key, _) in &self.left {
            let note = format!("{plugin} has no such argument, ignored");
            self.findings.warn(Subject::setting("config"), &format!("{}.{}", self.field, plain(key)), String::new(), note);
        }
    }
}

/// For messages.
pub(crate) fn one_of(names: &[&str]) -> String {
    format!("one of {}", names.join(", "))
}
