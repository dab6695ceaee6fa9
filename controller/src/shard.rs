//! A SchedulingShard → the settings of its scheduler: what KAI's operator writes into a scheduler's configuration and flags
//! (wire-contract.md §1.5, §7.1, §7.3).

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use muster_api::crds::shard::SchedulingShardSpec;
use muster_api::duration::parse_nanoseconds;
use muster_api::live::Live;
use serde_json::{Map, Value, json};

use crate::run::{Brake, Options};

/// Plugins and their priorities, where an installation says nothing; and whether `spread` or `binpack` switches them.
const PLUGINS: [(&str, i32); 22] = [
    ("predicates", 1900),
    ("proportion", 1800),
    ("priority", 1700),
    ("nodeavailability", 1600),
    ("resourcetype", 1500),
    ("podaffinity", 1400),
    ("elastic", 1300),
    ("kubeflow", 1200),
    ("ray", 1100),
    ("subgrouporder", 1000),
    ("taskorder", 900),
    ("nominatednode", 800),
    ("dynamicresources", 700),
    ("minruntime", 600),
    ("topology", 500),
    ("snapshot", 400),
    ("sg-nodelocalgreedy", 360),
    ("sg-multinodegang", 350),
    ("gpupack", 300),
    ("gpuspread", 300),
    ("nodeplacement", 200),
    ("gpusharingorder", 100),
];
const ACTIONS: [(&str, i32); 5] =
    [("allocate", 500), ("consolidation", 400), ("reclaim", 300), ("preempt", 200), ("stalegangeviction", 100)];

/// A shard, ready to be run.
#[derive(Clone, PartialEq, Debug)]
pub struct Shard {
    /// Its name.
    pub name: String,
    /// Value of the node-pool label; empty: what lacks the label.
    pub pool: String,
    /// As `config` of a snapshot.
    pub config: Value,
    /// As `schedulerParams` of a snapshot.
    pub params: Value,
    /// PodDisruptionBudgets are kept.
    pub keeps_budgets: bool,
    /// What may change while it runs.
    pub steering: Steering,
}

/// What may be changed without beginning anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Steering {
    /// Nobody is told to leave.
    pub paused: bool,
    /// Bounds on evictions.
    pub brake: Brake,
}

impl Shard {
    /// Reads one.
    ///
    /// # Errors
    /// If a setting is wrong, with its name and what was expected.
    pub fn read(name: &str, spec: &SchedulingShardSpec, options: &Options) -> Result<Self> {
        let pool = spec.partition_label_value.clone().unwrap_or_default();
        let steering = Steering { paused: options.pause_evictions, brake: options.brake };
        let params = json!({
            "schedulerName": options.scheduler_name,
            "partitionParams": {"NodePoolLabelKey": options.node_pool_label_key, "NodePoolLabelValue": pool},
        });
        let keeps_budgets = options.eviction_api;
        let mut shard = Self { name: name.to_owned(), pool, config: config_of(spec), params, keeps_budgets, steering };
        for (flag, value) in spec.args.iter().flatten() {
            shard
                .flag(flag.trim_start_matches('-'), value)
                .with_context(|| format!("SchedulingShard {name}: spec.args.{flag}"))?;
        }
        shard.blank().with_context(|| format!("SchedulingShard {name}"))?;
        Ok(shard)
    }

    /// Nothing known, with its settings.
    ///
    /// # Errors
    /// If a setting is wrong.
    pub fn blank(&self) -> Result<Live> {
        let (live, warnings) = Live::new(Some(&self.config), Some(&self.params))?;
        for warning in warnings {
            tracing::warn!(shard = self.name, %warning, "an odd setting");
        }
        Ok(if self.keeps_budgets { live.keep_budgets() } else { live })
    }

    /// One of KAI's scheduler flags, or of ours. Unknown ones are ignored, as by KAI's operator.
    fn flag(&mut self, flag: &str, value: &str) -> Result<()> {
        let switch = || value.parse::<bool>().map_err(|_| anyhow::anyhow!("{value:?}: expected true or false"));
        let number = || value.parse::<i64>().map_err(|_| anyhow::anyhow!("{value:?}: expected an integer"));
        let time = || parse_nanoseconds(value, false).map_err(|expected| anyhow::anyhow!("{value:?}: expected {expected}"));
        let bound = || match number()? {
            -1 => Ok(None),
            n => u32::try_from(n).map(Some).map_err(|_| anyhow::anyhow!("{value:?}: expected -1 (no bound) or a number of pods")),
        };
        let brake = &mut self.steering.brake;
        let (key, value) = match flag {
            "pause-evictions" => return switch().map(|paused| self.steering.paused = paused),
            "max-evictions" => return bound().map(|bound| brake.cycle = bound),
            "max-evictions-per-minute" => return bound().map(|bound| brake.minute = bound),
            "max-evictions-per-queue" => return bound().map(|bound| brake.queue = bound),
            "scheduler-name" => ("schedulerName", json!(value)),
            "restrict-node-scheduling" => ("restrictSchedulingNodes", json!(switch()?)),
            "full-hierarchy-fairness" => ("fullHierarchyFairness", json!(switch()?)),
            "allow-consolidating-reclaim" => ("allowConsolidatingReclaim", json!(switch()?)),
            "max-consolidation-preemptees" => ("maxNumberConsolidationPreemptees", json!(number()?)),
            "default-staleness-grace-period" => ("globalDefaultStalenessGracePeriod", json!(time()?)),
            "stuck-in-releasing-threshold" => ("stuckInReleasingThreshold", json!(time()?)),
            "partition-label-value" => bail!("set spec.partitionLabelValue in place of this"),
            other => {
                tracing::debug!(shard = self.name, flag = other, "a flag without effect here");
                return Ok(());
            }
        };
        self.params[key] = value;
        Ok(())
    }
}

/// `config` of a snapshot: actions, plugins with their arguments, depths.
fn config_of(spec: &SchedulingShardSpec) -> Value {
    let strategy = spec.placement_strategy.clone().unwrap_or_default();
    let gpu = strategy.gpu.unwrap_or_else(|| "binpack".to_owned());
    let cpu = strategy.cpu.unwrap_or_else(|| "binpack".to_owned());
    let packs = gpu == "binpack";
    let consolidates = gpu != "spread" && cpu != "spread";
    let mut actions: BTreeMap<String, (bool, i32)> = ACTIONS
        .iter()
        .map(|(name, priority)| ((*name).to_owned(), (*name != "consolidation" || consolidates, *priority)))
        .collect();
    for (name, given) in spec.actions.iter().flatten() {
        let known = actions.entry(name.clone()).or_insert((true, 0));
        *known = (given.enabled.unwrap_or(known.0), given.priority.unwrap_or(known.1));
    }
    let mut plugins: BTreeMap<String, (bool, i32, Value)> = PLUGINS
        .iter()
        .map(|(name, priority)| {
            let on = match *name {
                "gpupack" | "gpusharingorder" => packs,
                "gpuspread" => !packs,
                _ => true,
            };
            ((*name).to_owned(), (on, *priority, arguments(name, spec, &gpu, &cpu)))
        })
        .collect();
    for (name, given) in spec.plugins.iter().flatten() {
        let known = plugins.entry(name.clone()).or_insert((true, 0, Value::Null));
        known.0 = given.enabled.unwrap_or(known.0);
        known.1 = given.priority.unwrap_or(known.1);
        if let Some(arguments) = &given.arguments {
            known.2 = json!(arguments);
        }
    }
    let mut plugins: Vec<_> = plugins.into_iter().filter(|(_, (on, ..))| *on).collect();
    plugins.sort_by_key(|(_, (_, priority, _))| -i64::from(*priority));
    let plugins = plugins.into_iter().map(|(name, (_, _, arguments))| {
        if arguments.is_null() { json!({"name": name}) } else { json!({"name": name, "arguments": arguments}) }
    });
    let mut actions: Vec<_> = actions.into_iter().filter(|(_, (on, _))| *on).collect();
    actions.sort_by_key(|(_, (_, priority))| -i64::from(*priority));
    let actions: Vec<_> = actions.into_iter().map(|(name, _)| name).collect();
    let mut config = json!({"actions": actions.join(", "), "tiers": [{"plugins": plugins.collect::<Vec<_>>()}]});
    if let Some(depths) = spec.queue_depth_per_action.as_ref().filter(|depths| !depths.is_empty()) {
        config["queueDepthPerAction"] = json!(depths);
    }
    config
}

fn arguments(plugin: &str, spec: &SchedulingShardSpec, gpu: &str, cpu: &str) -> Value {
    let mut all = Map::new();
    match plugin {
        "nodeplacement" => {
            all.insert("gpu".to_owned(), json!(gpu));
            all.insert("cpu".to_owned(), json!(cpu));
        }
        "proportion" => {
            if let Some(value) = spec.k_value {
                all.insert("kValue".to_owned(), json!(value.to_string()));
            }
        }
        "minruntime" => {
            let given = spec.min_runtime.clone().unwrap_or_default();
            let times = [
                ("defaultPreemptMinRuntime", given.preempt_min_runtime),
                ("defaultReclaimMinRuntime", given.reclaim_min_runtime),
            ];
            for (name, time) in times {
                if let Some(time) = time {
                    all.insert(name.to_owned(), json!(time));
                }
            }
        }
        _ => {}
    }
    if all.is_empty() { Value::Null } else { Value::Object(all) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(spec: Value) -> Result<Shard> {
        Shard::read("s", &serde_json::from_value(spec).expect("a spec"), &Options::default())
    }

    #[test]
    fn an_empty_spec_is_kais_default() {
        let shard = shard(json!({})).expect("it is good");
        assert_eq!(shard.config["actions"], "allocate, consolidation, reclaim, preempt, stalegangeviction");
        let now = jiff::Timestamp::UNIX_EPOCH;
        let config = shard.blank().expect("good").load(now).snapshot.config;
        assert_eq!(config, muster_core::config::Config::kai_default());
    }

    #[test]
    fn what_is_set_has_effect() {
        let shard = shard(json!({"placementStrategy": {"gpu": "spread"}, "actions": {"preempt": {"enabled": false}},
            "partitionLabelValue": "a", "queueDepthPerAction": {"allocate": 7}, "minRuntime": {"preemptMinRuntime": "1m"},
            "args": {"pause-evictions": "true", "max-evictions-per-minute": "5", "max-evictions": "-1", "unknown": "x",
                "default-staleness-grace-period": "10s"}}))
        .expect("it is good");
        assert_eq!(shard.config["actions"], "allocate, reclaim, stalegangeviction");
        assert_eq!((shard.steering.paused, shard.steering.brake.minute, shard.steering.brake.cycle), (true, Some(5), None));
        let config = shard.blank().expect("good").load(jiff::Timestamp::UNIX_EPOCH).snapshot.config;
        assert_eq!(config.card_order, muster_core::config::CardOrder::Spread);
        assert_eq!(config.victims.staleness_grace, 10_000_000_000);
        assert_eq!(config.victims.min_runtime.map(|times| times.preempt), Some(60_000_000_000));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (spec, part) in [
            (json!({"args": {"pause-evictions": "yes"}}), "spec.args.pause-evictions: \"yes\": expected true or false"),
            (json!({"args": {"max-evictions": "-2"}}), "spec.args.max-evictions"),
            (json!({"placementStrategy": {"gpu": "tight"}}), "tight"),
            (json!({"actions": {"dance": {}}}), "dance"),
        ] {
            let said = format!("{:#}", shard(spec).map(drop).expect_err("it is wrong"));
            assert!(said.contains(part), "{said}");
        }
    }
}
