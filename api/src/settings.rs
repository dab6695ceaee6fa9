//! Settings of a snapshot (`config`, `schedulerParams`) → [`Config`] and what reading objects needs (wire-contract.md §7, §10.2).
//!
//! A name that KAI knows but this version does not build is a warning and decides nothing; an unknown name is refused. A wrong
//! setting is recorded as bad and its default used, so that a lenient reader can go on.

use muster_core::config::{Action, CardOrder, Config};
use serde_json::{Map, Value};

use crate::plugins::{Chosen, one_of};
use crate::problem::{Findings, Subject, show, show_json};

/// Label of a node pool where no other is set.
const DEFAULT_POOL_KEY: &str = "kai.scheduler/node-pool";

/// Which objects belong to this scheduler's shard (semantics.md §1.1).
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Shard {
    /// Empty: everything belongs.
    pub(crate) key: String,
    /// Empty: what lacks the key belongs.
    pub(crate) value: String,
}

impl Shard {
    /// Whether an object with this label map belongs.
    pub(crate) fn holds(&self, labels: Option<&std::collections::BTreeMap<String, String>>) -> bool {
        let label = labels.and_then(|labels| labels.get(&self.key));
        match (self.key.is_empty(), self.value.is_empty()) {
            (true, _) => true,
            (false, true) => label.is_none(),
            (false, false) => label == Some(&self.value),
        }
    }

    /// The pool that an object with this label map is in, as conditions name it.
    pub(crate) fn pool_of<'a>(&self, labels: Option<&'a std::collections::BTreeMap<String, String>>) -> &'a str {
        let key = if self.key.is_empty() { DEFAULT_POOL_KEY } else { &self.key };
        labels.and_then(|labels| labels.get(key)).map_or("default", |pool| if pool.is_empty() { "default" } else { pool })
    }
}

/// All settings.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Settings {
    pub(crate) config: Config,
    /// Pods of any other scheduler are foreign.
    pub(crate) scheduler_name: String,
    pub(crate) shard: Shard,
    /// A running pod that should have gone longer ago than this is stuck. Nanoseconds.
    pub(crate) stuck_after: i64,
    /// Off: all queues that have a parent stand below one synthetic root.
    pub(crate) full_hierarchy: bool,
    /// The opt-in plugin `numa` is listed.
    pub(crate) numa: bool,
    /// A reservation pod whose GPU nobody shares any more holds it until it is gone, as the device plugin sees it. Off for
    /// snapshots: KAI counts such a GPU as free, and what KAI decided from a snapshot is to be comparable.
    pub(crate) reservations_hold: bool,
    /// PodDisruptionBudgets are followed.
    pub(crate) budgets: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            config: Config::kai_default(),
            scheduler_name: "kai-scheduler".to_owned(),
            shard: Shard { key: DEFAULT_POOL_KEY.to_owned(), value: String::new() },
            stuck_after: 120_000_000_000,
            full_hierarchy: true,
            numa: false,
            reservations_hold: false,
            budgets: false,
        }
    }
}

impl Settings {
    /// Reads both objects; `None` or null: defaults. `actions` stands in for `config.actions`.
    pub(crate) fn read(
        config: Option<&Value>,
        params: Option<&Value>,
        actions: Option<&[String]>,
        findings: &mut Findings,
    ) -> Self {
        let mut settings = Self::default();
        if let Some(fields) = object("config", config, findings) {
            settings.read_config(fields, findings);
        }
        if let Some(fields) = object("schedulerParams", params, findings) {
            settings.read_params(fields, findings);
        }
        if let Some(names) = actions {
            let names = names.iter().map(String::as_str);
            settings.config.actions = read_actions(Subject::setting("--actions"), "", names, findings);
        }
        settings
    }

    fn read_config(&mut self, fields: &Map<String, Value>, findings: &mut Findings) {
        let subject = Subject::setting("config");
        for (key, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
            match key.as_str() {
                "actions" => match value.as_str() {
                    Some(list) if list.trim().is_empty() => {}
                    Some(list) => self.config.actions = read_actions(subject, "actions", list.split(','), findings),
                    None => findings.bad(subject, "actions", show_json(value), "action names separated by commas"),
                },
                "tiers" => self.read_tiers(value, findings),
                "queueDepthPerAction" => self.read_depths(value, findings),
                "usageDBConfig" => {
                    if value.as_object().is_some_and(|usage| !usage.is_empty()) {
                        let note = "historical usage is not part of a snapshot: fair share is divided without it";
                        findings.warn(subject, key, String::new(), note);
                    }
                }
                "scenarioSearchBudgets" => {}
                other => findings.warn(subject, other, String::new(), "unknown setting, ignored"),
            }
        }
    }

    fn read_tiers(&mut self, value: &Value, findings: &mut Findings) {
        let subject = Subject::setting("config");
        let Some(tiers) = value.as_array() else {
            return findings.bad(subject, "tiers", show_json(value), "a list of tiers");
        };
        let mut chosen = Chosen::default();
        for (t, tier) in tiers.iter().enumerate() {
            let plugins = match tier.get("plugins") {
                None | Some(Value::Null) => continue,
                Some(Value::Array(plugins)) => plugins,
                Some(other) => {
                    findings.bad(subject, &format!("tiers[{t}].plugins"), show_json(other), "a list of plugins");
                    continue;
                }
            };
            for (p, plugin) in plugins.iter().enumerate() {
                chosen.read(&format!("tiers[{t}].plugins[{p}]"), plugin, findings);
            }
        }
        if !chosen.any {
            return;
        }
        self.numa = chosen.numa;
        self.config.plugins = chosen.plugins;
        self.config.node_placement = chosen.node_placement;
        self.config.k_value = chosen.k_value;
        self.config.victims.saturation_multiplier = chosen.saturation_multiplier;
        self.config.victims.min_runtime = chosen.min_runtime;
        self.config.victims.search = chosen.search;
        self.config.card_order = match (chosen.pack, chosen.spread) {
            (true, false) => CardOrder::Pack,
            (false, true) => CardOrder::Spread,
            (false, false) => CardOrder::Index,
            (true, true) => {
                // Their scores add up to the same for every card.
                let note = "gpupack and gpuspread cancel each other out";
                findings.warn(subject, "tiers", String::new(), note);
                CardOrder::Index
            }
        };
    }

    fn read_depths(&mut self, value: &Value, findings: &mut Findings) {
        let subject = Subject::setting("config");
        let Some(depths) = value.as_object() else {
            return findings.bad(subject, "queueDepthPerAction", show_json(value), "a number for each action");
        };
        for (name, depth) in depths {
            let field = format!("queueDepthPerAction.{name}");
            let Some(action) = action_named(name) else {
                findings.bad(subject, "queueDepthPerAction", show(name), one_of(&action_names()));
                continue;
            };
            match depth.as_u64().and_then(|n| u32::try_from(n).ok()) {
                Some(depth) => self.config.depth[action as usize] = Some(depth),
                None => findings.bad(subject, &field, show_json(depth), "an integer of 0 or more"),
            }
        }
    }

    /// A dump by a scheduler leaves out keys that are zero; a file written by hand leaves out what should be default. A dump is
    /// known by settings that are never zero there.
    fn read_params(&mut self, fields: &Map<String, Value>, findings: &mut Findings) {
        let subject = Subject::setting("schedulerParams");
        let given = |key: &str| fields.get(key).is_some_and(|value| !value.is_null());
        let dumped = given("schedulerName") && (given("numOfStatusRecordingWorkers") || given("schedulePeriod"));
        if dumped && !given("partitionParams") {
            self.shard = Shard { key: String::new(), value: String::new() };
        }
        if dumped && !given("fullHierarchyFairness") {
            self.full_hierarchy = false;
            let note = "absent in a scheduler's dump means false: all queues are planned below one synthetic root";
            findings.warn(subject, "fullHierarchyFairness", String::new(), note);
        }
        for (key, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
            self.read_param(key, value, findings);
        }
    }

    fn read_param(&mut self, key: &str, value: &Value, findings: &mut Findings) {
        let subject = Subject::setting("schedulerParams");
        let mut refuse = |expected: &str| findings.bad(subject, key, show_json(value), expected);
        let switch = value.as_bool();
        let number = value.as_i64();
        match key {
            "schedulerName" | "queueLabelKey" => match value.as_str() {
                Some(name) if key == "schedulerName" && !name.is_empty() => name.clone_into(&mut self.scheduler_name),
                Some(_) => {}
                None => refuse("a string"),
            },
            "partitionParams" => self.read_partition(value, findings),
            "muster" => self.read_own(value, findings),
            "restrictSchedulingNodes" | "fullHierarchyFairness" => match switch {
                Some(on) if key == "restrictSchedulingNodes" => self.config.restrict_nodes = on,
                Some(on) => self.full_hierarchy = on,
                None => refuse("true or false"),
            },
            "allowConsolidatingReclaim" => match switch {
                Some(on) => self.config.victims.consolidating_reclaim = on,
                None => refuse("true or false"),
            },
            "useSchedulingSignatures" | "scheduleCSIStorage" | "detailedFitErrors" | "updatePodEvictionCondition" => {
                if switch.is_none() {
                    refuse("true or false");
                }
            }
            "stuckInReleasingThreshold" => match number {
                Some(nanoseconds) => self.stuck_after = nanoseconds,
                None => refuse("nanoseconds as an integer"),
            },
            "maxNumberConsolidationPreemptees" => match number {
                Some(-1) => self.config.victims.consolidation_jobs_max = None,
                Some(jobs) => match u32::try_from(jobs) {
                    Ok(jobs) => self.config.victims.consolidation_jobs_max = Some(jobs),
                    Err(_) => refuse("-1 (no bound), 0 (off) or a number of pod groups"),
                },
                None => refuse("an integer"),
            },
            "globalDefaultStalenessGracePeriod" => match number {
                Some(nanoseconds) => self.config.victims.staleness_grace = nanoseconds,
                None => refuse("nanoseconds as an integer"),
            },
            "numOfStatusRecordingWorkers" | "schedulePeriod" => {
                if number.is_none() {
                    refuse("an integer");
                }
            }
            other => findings.warn(subject, other, String::new(), "unknown setting, ignored"),
        }
    }

    /// What only Muster has: the eviction brake, and which victims are taken.
    fn read_own(&mut self, value: &Value, findings: &mut Findings) {
        let subject = Subject::setting("schedulerParams");
        let Some(fields) = value.as_object() else {
            let expected = "an object with maxEvictions, maxEvictionsPerQueue, victims";
            return findings.bad(subject, "muster", show_json(value), expected);
        };
        for (key, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
            let cell = match key.as_str() {
                "victims" => {
                    match value.as_str() {
                        Some("fewest") => self.config.victims.fewest = true,
                        Some("inOrder") => self.config.victims.fewest = false,
                        _ => findings.bad(subject, "muster.victims", show_json(value), one_of(&["inOrder", "fewest"])),
                    }
                    continue;
                }
                "maxEvictions" => &mut self.config.victims.evictions_max,
                "maxEvictionsPerQueue" => &mut self.config.victims.queue_evictions_max,
                other => {
                    findings.bad(subject, "muster", show(other), one_of(&["maxEvictions", "maxEvictionsPerQueue", "victims"]));
                    continue;
                }
            };
            match value.as_i64().map(u32::try_from) {
                Some(Ok(pods)) => *cell = Some(pods),
                _ if value.as_i64() == Some(-1) => *cell = None,
                _ => {
                    let expected = format!("-1 (no bound) or a number of pods from 0 to {}", u32::MAX);
                    findings.bad(subject, &format!("muster.{key}"), show_json(value), expected);
                }
            }
        }
    }

    fn read_partition(&mut self, value: &Value, findings: &mut Findings) {
        let subject = Subject::setting("schedulerParams");
        let Some(fields) = value.as_object() else {
            let expected = "an object with NodePoolLabelKey and NodePoolLabelValue";
            return findings.bad(subject, "partitionParams", show_json(value), expected);
        };
        self.shard = Shard { key: String::new(), value: String::new() };
        for (key, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
            let cell = match key.as_str() {
                "NodePoolLabelKey" => &mut self.shard.key,
                "NodePoolLabelValue" => &mut self.shard.value,
                other => {
                    findings.warn(subject, &format!("partitionParams.{other}"), String::new(), "unknown setting, ignored");
                    continue;
                }
            };
            match value.as_str() {
                Some(text) => text.clone_into(cell),
                None => findings.bad(subject, &format!("partitionParams.{key}"), show_json(value), "a string"),
            }
        }
    }
}

fn object<'a>(kind: &str, value: Option<&'a Value>, findings: &mut Findings) -> Option<&'a Map<String, Value>> {
    match value {
        None | Some(Value::Null) => None,
        Some(Value::Object(fields)) if fields.is_empty() => None,
        Some(Value::Object(fields)) => Some(fields),
        Some(other) => {
            findings.bad(Subject::setting(kind), "", show_json(other), "an object");
            None
        }
    }
}

fn action_named(name: &str) -> Option<Action> {
    Action::DEFAULT.into_iter().find(|action| action.name() == name)
}

fn action_names() -> Vec<&'static str> {
    Action::DEFAULT.iter().map(|action| action.name()).collect()
}

fn read_actions<'a>(
    subject: Subject<'_>,
    field: &str,
    names: impl Iterator<Item = &'a str>,
    findings: &mut Findings,
) -> Vec<Action> {
    let mut actions = Vec::new();
    for name in names.map(str::trim) {
        match action_named(name) {
            Some(action) => actions.push(action),
            None => findings.bad(subject, field, show(name), one_of(&action_names())),
        }
    }
    actions
}

#[cfg(test)]
mod tests {
    use muster_core::config::{MinRuntime, NodePlacement, ReclaimProtection, Strategy};
    use serde_json::json;

    use super::*;

    fn read(config: &Value, params: &Value, actions: Option<&[String]>) -> (Settings, Vec<String>, Vec<String>) {
        let mut findings = Findings::default();
        let settings = Settings::read(Some(config), Some(params), actions, &mut findings);
        let lines = |list: &[crate::problem::Problem]| list.iter().map(ToString::to_string).collect();
        (settings, lines(&findings.bad), lines(&findings.warnings))
    }

    fn with_plugins(plugins: &Value) -> Value {
        json!({"actions": "allocate", "tiers": [{"plugins": plugins}]})
    }

    #[test]
    fn nothing_given_is_kais_default() {
        let (settings, bad, warnings) = read(&Value::Null, &json!({}), None);
        assert_eq!(settings, Settings::default());
        assert!(bad.is_empty() && warnings.is_empty(), "{bad:?} {warnings:?}");
    }

    #[test]
    fn a_missing_plugin_is_off() {
        let (settings, bad, warnings) =
            read(&with_plugins(&json!([{"name": "predicates"}, {"name": "gpuspread"}])), &Value::Null, None);
        assert!(bad.is_empty() && warnings.is_empty(), "{bad:?} {warnings:?}");
        let config = &settings.config;
        assert!(config.plugins.predicates && !config.plugins.proportion && !config.plugins.gpu_sharing_order);
        assert_eq!((config.node_placement, config.card_order), (None, CardOrder::Spread));
        let (settings, ..) = read(&with_plugins(&json!([{"name": "predicates"}])), &Value::Null, None);
        assert_eq!(settings.config.card_order, CardOrder::Index);
    }

    #[test]
    fn arguments_are_honoured() {
        let plugins = json!([
            {"name": "nodeplacement", "arguments": {"gpu": "spread", "cpu": "binpack"}},
            {"name": "proportion", "arguments": {"kValue": "-3", "relcaimerSaturationMultiplier": "1.5"}},
            {"name": "minruntime", "arguments": {"defaultReclaimMinRuntime": "1d", "reclaimResolveMethod": "queue"}}]);
        let (settings, bad, warnings) = read(&with_plugins(&plugins), &Value::Null, None);
        assert!(bad.is_empty() && warnings.is_empty(), "{bad:?} {warnings:?}");
        let expected = NodePlacement { gpu: Strategy::Spread, cpu: Strategy::Binpack };
        assert_eq!(settings.config.node_placement, Some(expected));
        assert!(settings.config.k_value.abs() < f64::EPSILON);
        let victims = settings.config.victims;
        assert!((victims.saturation_multiplier - 1.5).abs() < f64::EPSILON && !victims.search);
        let day = 86_400_000_000_000;
        assert_eq!(victims.min_runtime, Some(MinRuntime { preempt: 0, reclaim: day, reclaim_by: ReclaimProtection::OwnQueue }));
    }

    #[test]
    fn wrong_settings_are_named_and_defaulted() {
        for (config, params, part) in [
            (
                json!({"actions": "alocate"}),
                Value::Null,
                r#"config: actions: "alocate": expected one of allocate, consolidation"#,
            ),
            (json!({"actions": 5}), Value::Null, "config: actions: 5"),
            (with_plugins(&json!([{"name": "predicate"}])), Value::Null, r#"config: tiers[0].plugins[0].name: "predicate""#),
            (with_plugins(&json!([{"arguments": {}}])), Value::Null, "a plugin with a name"),
            (with_plugins(&json!([{"name": "nodeplacement", "arguments": {"gpu": "pack"}}])), Value::Null, "arguments.gpu"),
            (with_plugins(&json!([{"name": "proportion", "arguments": {"kValue": "x"}}])), Value::Null, "a number"),
            (
                with_plugins(&json!([{"name": "minruntime", "arguments": {"defaultPreemptMinRuntime": "x"}}])),
                Value::Null,
                "a duration",
            ),
            (json!({"tiers": {}}), Value::Null, "a list of tiers"),
            (json!({"tiers": [{"plugins": 3}]}), Value::Null, "a list of plugins"),
            (json!({"queueDepthPerAction": {"allocate": -1}}), Value::Null, "queueDepthPerAction.allocate: -1"),
            (json!({"queueDepthPerAction": {"alloc": 1}}), Value::Null, "queueDepthPerAction"),
            (json!([]), Value::Null, "config: []: expected an object"),
            (Value::Null, json!({"restrictSchedulingNodes": "yes"}), "restrictSchedulingNodes"),
            (Value::Null, json!({"stuckInReleasingThreshold": "2m"}), "nanoseconds"),
            (Value::Null, json!({"partitionParams": {"NodePoolLabelKey": 1}}), "partitionParams.NodePoolLabelKey"),
            (Value::Null, json!({"muster": 5}), "schedulerParams: muster: 5: expected an object with maxEvictions"),
            (Value::Null, json!({"muster": {"maxEvictions": -2}}), "muster.maxEvictions: -2: expected -1 (no bound) or a number"),
            (Value::Null, json!({"muster": {"maxEvictionsPerQueue": "2"}}), "muster.maxEvictionsPerQueue: "),
            (Value::Null, json!({"muster": {"victims": "few"}}), "muster.victims: "),
            (Value::Null, json!({"muster": {"maxEviction": 2}}), "one of maxEvictions, maxEvictionsPerQueue, victims"),
            (Value::Null, json!({"maxNumberConsolidationPreemptees": -2}), "maxNumberConsolidationPreemptees: -2"),
        ] {
            let (_, bad, _) = read(&config, &params, None);
            assert!(bad.len() == 1 && bad[0].contains(part), "{config} {params}: {bad:?}");
        }
    }

    #[test]
    fn the_eviction_brake_is_off_unless_set() {
        let bounds = |params: &Value| {
            let (settings, bad, warnings) = read(&Value::Null, params, None);
            assert!(bad.is_empty() && warnings.is_empty(), "{bad:?} {warnings:?}");
            (settings.config.victims.evictions_max, settings.config.victims.queue_evictions_max)
        };
        assert_eq!(bounds(&json!({"muster": {}})), (None, None));
        assert_eq!(
            bounds(&json!({"muster": {"maxEvictions": 0, "maxEvictionsPerQueue": 4_294_967_295_i64}})),
            (Some(0), Some(u32::MAX))
        );
        assert_eq!(bounds(&json!({"muster": {"maxEvictions": -1, "maxEvictionsPerQueue": null}})), (None, None));
    }

    #[test]
    fn options_stand_in_for_the_configuration() {
        let actions = ["allocate".to_owned(), "nothing".to_owned()];
        let (settings, bad, _) = read(&json!({"actions": "reclaim"}), &Value::Null, Some(&actions));
        assert_eq!(settings.config.actions, [Action::Allocate]);
        assert_eq!(bad.len(), 1);
        assert!(bad[0].starts_with(r#"--actions: "nothing": expected one of"#), "{bad:?}");
    }

    #[test]
    fn a_dump_leaves_out_what_is_zero_and_a_hand_written_file_what_is_default() {
        let dump = json!({"schedulerName": "s", "schedulePeriod": 1, "fullHierarchyFairness": true});
        let (settings, ..) = read(&Value::Null, &dump, None);
        assert!(settings.full_hierarchy && settings.shard.key.is_empty());
        let (settings, _, warnings) = read(&Value::Null, &json!({"schedulerName": "s", "schedulePeriod": 1}), None);
        assert!(!settings.full_hierarchy && warnings.iter().any(|w| w.contains("fullHierarchyFairness")));
        let (settings, ..) = read(&Value::Null, &json!({"restrictSchedulingNodes": true}), None);
        assert!(settings.full_hierarchy && settings.config.restrict_nodes && settings.shard == Settings::default().shard);
    }

    #[test]
    fn shards_select_by_label() {
        let labels = |pool: &str| [("pool".to_owned(), pool.to_owned())].into();
        let shard = |key: &str, value: &str| Shard { key: key.to_owned(), value: value.to_owned() };
        assert!(shard("", "x").holds(None));
        assert!(shard("pool", "").holds(None) && !shard("pool", "").holds(Some(&labels("a"))));
        assert!(shard("pool", "a").holds(Some(&labels("a"))) && !shard("pool", "a").holds(Some(&labels("b"))));
        assert!(!shard("pool", "a").holds(None));
        assert_eq!(shard("pool", "").pool_of(Some(&labels(""))), "default");
    }
}
