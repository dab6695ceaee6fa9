//! Says on objects why they wait, and takes it back once they do not (wire-contract.md §6). Written only when it has changed:
//! a reason is said once it has held for `HOLDS`, its numbers are brought up to date every `REFRESH`.
//!
//! A pod that its queue holds back carries another reason than one for which there is no room: autoscalers add nodes for
//! `Unschedulable` alone, and none would help a quota (users.md, 14).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};
use muster_api::live::{Live, Stray, Watched};
use muster_api::names::ObjectName;
use muster_api::read::Loaded;
use muster_api::sentences::{self, Facts};
use muster_core::explain::{Bound, Reason, Unhelped};
use muster_core::index::{GangIdx, PodIdx};
use muster_core::outcome::{DecisionKind, Outcome, PendingGang};
use muster_core::snapshot::PodStatus;
use muster_core::units::{MICRO_PER_GPU, Resource};
use serde_json::{Value, json};

use crate::calls::{Failed, read};
use crate::commit::Committer;
use crate::events::{About, Happened, Tone};
use crate::watch::resource_of;
use crate::work::{Backoff, Ended, Work};

/// A reason that does not last is not worth a write.
const HOLDS: Duration = Duration::from_secs(1);
/// Who makes pod groups may be a moment late.
const STRAY_HOLDS: Duration = Duration::from_secs(5);
const REFRESH: Duration = Duration::from_secs(30);
const WRITERS: usize = 5;
const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(30) };

/// What is to be written on.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Key {
    Pod(ObjectName),
    Gang(ObjectName),
}

/// What is to be written.
#[derive(Clone, Debug)]
enum Wish {
    /// Condition `PodScheduled` = false.
    Pod { uid: String, reason: &'static str, message: Arc<str> },
    /// A scheduling condition; `None`: none any more.
    Gang { uid: String, condition: Option<Arc<Telling>> },
}

/// Why a gang waits, for objects.
#[derive(Clone, PartialEq, Debug)]
struct Telling {
    /// On pods.
    pod_reason: &'static str,
    /// Whether it lacks pods or members of its own: no condition on the group, as in KAI.
    not_ready: bool,
    message: Arc<str>,
    /// `reasons` of the scheduling condition.
    reasons: Value,
}

/// What was said of a gang.
struct Told {
    codes: u64,
    since: Instant,
    /// What is on the objects, and since when.
    said: Option<(Arc<Telling>, Instant)>,
    cycle: u64,
}

/// What was said, and what is to be.
pub struct Status {
    gangs: HashMap<ObjectName, Told>,
    /// What each waiting pod was told, by uid: hash, and the cycle that it was last seen in.
    pods: HashMap<String, (u64, u64)>,
    strays: HashMap<String, (Instant, bool, u64)>,
    clearing: HashMap<ObjectName, Instant>,
    cycle: u64,
    work: Arc<Work<Key, Wish>>,
    committer: Committer,
    pool: String,
}

impl Status {
    /// Nothing said yet.
    #[must_use]
    pub fn new(committer: Committer) -> Self {
        let pool = committer.pool.as_ref().map_or_else(|| "default".to_owned(), |(_, value)| value.clone());
        Self {
            gangs: HashMap::new(),
            pods: HashMap::new(),
            strays: HashMap::new(),
            clearing: HashMap::new(),
            cycle: 0,
            work: Arc::new(Work::new(BACKOFF)),
            committer,
            pool,
        }
    }

    /// Writes what is to be written, for ever.
    pub fn writer(&self) -> impl Future<Output = ()> + Send + use<> {
        let (work, committer, pool) = (Arc::clone(&self.work), self.committer.clone(), self.pool.clone());
        async move {
            work.drain(WRITERS, |key, wish| write(committer.clone(), pool.clone(), key, wish)).await;
        }
    }

    /// After a cycle. Whether something is to be taken back still.
    pub fn report(&mut self, loaded: &Loaded, outcome: &Outcome, live: &Live, now: Instant) -> bool {
        self.cycle += 1;
        let facts = Facts { snapshot: &loaded.snapshot, names: &loaded.names };
        let placed: HashSet<PodIdx> = outcome
            .decisions
            .iter()
            .filter(|decision| decision.kind != DecisionKind::Evict)
            .map(|decision| decision.pod)
            .collect();
        for pending in &outcome.pending {
            self.gang(pending, outcome, facts, &placed, live, now);
        }
        let cycle = self.cycle;
        self.gangs.retain(|_, told| told.cycle == cycle);
        self.pods.retain(|_, (_, seen)| *seen == cycle);
        self.clear(loaded, live, now)
    }

    fn gang(
        &mut self,
        pending: &PendingGang,
        outcome: &Outcome,
        facts: Facts<'_>,
        placed: &HashSet<PodIdx>,
        live: &Live,
        now: Instant,
    ) {
        let (gang, reasons) = (pending.gang, outcome.reasons_of(pending));
        let name = &facts.names.gangs[gang];
        let mut hasher = DefaultHasher::new();
        reasons.iter().for_each(|reason| sentences::code(reason).hash(&mut hasher));
        let codes = hasher.finish();
        let fresh = || Told { codes, since: now, said: None, cycle: 0 };
        let told = self.gangs.entry(name.clone()).or_insert_with(fresh);
        told.cycle = self.cycle;
        if told.codes != codes {
            (told.codes, told.since) = (codes, now);
        }
        let holds = now.duration_since(told.since) >= HOLDS;
        let current = told.said.as_ref().is_some_and(|(_, at)| *at >= told.since && now.duration_since(*at) < REFRESH);
        let news = holds && !current;
        if news {
            let telling = tell(reasons, gang, facts);
            let same = told.said.take().filter(|(before, _)| **before == telling).map(|(before, _)| before);
            told.said = Some((same.unwrap_or_else(|| Arc::new(telling)), now));
        }
        let Some((telling, _)) = &told.said else { return };
        let telling = Arc::clone(telling);
        let Some(note) = live.gang(name) else { return };
        if news {
            self.say_gang(name, &note.uid, &telling, is_idle(facts, gang, placed));
        }
        let forced = reasons.iter().any(|reason| matches!(reason, Reason::UnknownSubgroup { .. }));
        if note.mark || forced {
            self.tell_pods(gang, &telling, facts, placed);
        }
    }

    fn say_gang(&self, name: &ObjectName, uid: &str, telling: &Arc<Telling>, idle: bool) {
        if !telling.not_ready && idle {
            self.work.put(Key::Gang(name.clone()), Wish::Gang { uid: uid.to_owned(), condition: Some(Arc::clone(telling)) });
        }
        let reason = if telling.not_ready { "NotReady" } else { "Unschedulable" };
        let about = About::gang(name, uid.to_owned());
        self.committer.events.say(Happened::new(about, Tone::Normal, reason, &*telling.message));
    }

    fn tell_pods(&mut self, gang: GangIdx, telling: &Telling, facts: Facts<'_>, placed: &HashSet<PodIdx>) {
        let mut hasher = DefaultHasher::new();
        (telling.pod_reason, &telling.message).hash(&mut hasher);
        let hash = hasher.finish();
        for pod in facts.snapshot.gangs[gang].pods.iter() {
            if facts.snapshot.pods[pod].status != PodStatus::Pending || placed.contains(&pod) {
                continue;
            }
            let (name, uid) = (&facts.names.pods[pod], &facts.names.pod_uids[pod]);
            let before = self.pods.insert(uid.clone(), (hash, self.cycle));
            if before.is_some_and(|(before, _)| before == hash) {
                continue;
            }
            self.tell_pod(name, uid, telling.pod_reason, Arc::clone(&telling.message));
        }
    }

    fn tell_pod(&self, name: &ObjectName, uid: &str, reason: &'static str, message: Arc<str>) {
        self.committer.events.say(Happened::new(About::pod(name, uid), Tone::Warning, "Unschedulable", &*message));
        self.work.put(Key::Pod(name.clone()), Wish::Pod { uid: uid.to_owned(), reason, message });
    }

    /// Groups that have nothing left to wait for lose their condition.
    fn clear(&mut self, loaded: &Loaded, live: &Live, now: Instant) -> bool {
        let told: HashSet<ObjectName> = live.told_gangs().into_iter().collect();
        self.clearing.retain(|_, at| now.duration_since(*at) < STRAY_HOLDS);
        if told.is_empty() {
            return false;
        }
        let rows = &loaded.snapshot;
        for gang in rows.gangs.indices() {
            let name = &loaded.names.gangs[gang];
            if !told.contains(name) || self.clearing.contains_key(name) {
                continue;
            }
            let waits = |pod| matches!(rows.pods[pod].status, PodStatus::Pending | PodStatus::Gated | PodStatus::Binding);
            if rows.gangs[gang].pods.is_empty() || rows.gangs[gang].pods.iter().any(waits) {
                continue;
            }
            if let Some(note) = live.gang(name) {
                self.clearing.insert(name.clone(), now);
                self.work.put(Key::Gang(name.clone()), Wish::Gang { uid: note.uid, condition: None });
            }
        }
        true
    }

    /// Pods that nobody will place.
    pub fn report_strays(&mut self, strays: &[Stray], now: Instant) {
        for stray in strays {
            let told = self.strays.entry(stray.uid.clone()).or_insert((now, false, 0));
            told.2 = self.cycle;
            if told.1 || now.duration_since(told.0) < STRAY_HOLDS {
                continue;
            }
            told.1 = true;
            let message = match &stray.group {
                Some(group) => format!(
                    "Its annotation pod-group-name names pod group {group}, which does not exist in namespace {}. Create it.",
                    stray.pod.namespace
                ),
                None => "It is in no pod group: no annotation pod-group-name, and nobody made one for it. Run the role \
                         pod-grouper, or name a pod group."
                    .to_owned(),
            };
            self.tell_pod(&stray.pod, &stray.uid, "PodGroupMissing", message.into());
        }
        let cycle = self.cycle;
        self.strays.retain(|_, (_, _, seen)| *seen == cycle);
    }
}

/// Whether no pod of a gang has or gets a place.
fn is_idle(facts: Facts<'_>, gang: GangIdx, placed: &HashSet<PodIdx>) -> bool {
    let idle = |pod| {
        let row = &facts.snapshot.pods[pod];
        matches!(row.status, PodStatus::Pending | PodStatus::Gated | PodStatus::Succeeded | PodStatus::Other)
            && !placed.contains(&pod)
    };
    facts.snapshot.gangs[gang].pods.iter().all(idle)
}

/// Reasons in the words of the contract (wire-contract.md §6.3).
fn tell(reasons: &[Reason], gang: GangIdx, facts: Facts<'_>) -> Telling {
    let mut parts: BTreeMap<&'static str, (Vec<String>, Value)> = BTreeMap::new();
    let mut message = String::new();
    let mut advice = None;
    for reason in sentences::most_telling(reasons) {
        let sentence = sentences::sentence(reason, gang, facts);
        if !message.is_empty() {
            message.push(' ');
        }
        message.push_str(&sentence);
        advice = advice.or_else(|| sentences::advice(reason, gang, facts));
        let part = parts.entry(kai_reason(reason)).or_insert_with(|| (Vec::new(), Value::Null));
        part.0.push(sentence);
        if let Reason::OverLimit(bound) | Reason::OverQuota(bound) = reason {
            part.1 = details(bound, matches!(reason, Reason::OverQuota(_)), facts);
        }
    }
    if let Some(advice) = advice {
        message.push(' ');
        message.push_str(&advice);
    }
    let not_ready = reasons
        .iter()
        .all(|reason| matches!(reason, Reason::TooFewPods { .. } | Reason::TooFewMembers { .. } | Reason::Gated { .. }));
    let held =
        reasons.iter().map(kai_reason).find(|reason| *reason != "PodSchedulingErrors" && *reason != "PreemptionDelayNotElapsed");
    let list = parts.into_iter().map(|(reason, (messages, details))| {
        let mut entry = json!({"reason": reason, "message": messages.join(", ")});
        if !details.is_null() {
            entry["details"] = json!({"queueDetails": details});
        }
        entry
    });
    Telling {
        pod_reason: if not_ready { "NotReady" } else { held.unwrap_or("Unschedulable") },
        not_ready,
        message: message.into(),
        reasons: list.collect(),
    }
}

const fn kai_reason(reason: &Reason) -> &'static str {
    match reason {
        Reason::OverLimit(_) => "OverLimit",
        Reason::OverQuota(_) => "NonPreemptibleOverQuota",
        Reason::NoQueue(_) | Reason::QueueNotLeaf(_) => "QueueDoesNotExist",
        Reason::NotHelped { why: Unhelped::Delayed { .. }, .. } => "PreemptionDelayNotElapsed",
        _ => "PodSchedulingErrors",
    }
}

/// The queue's numbers, of the resource that is short.
fn details(bound: &Bound, quota: bool, facts: Facts<'_>) -> Value {
    let list = |amount: i64| match bound.resource {
        Resource::Cpu => json!({"cpu": format!("{amount}m")}),
        Resource::Memory => json!({"memory": amount.to_string()}),
        Resource::Gpu => json!({"nvidia.com/gpu": format!("{}m", amount / (MICRO_PER_GPU / 1000))}),
    };
    let mut details = json!({"name": facts.names.queues[bound.queue]});
    let (held, limit, asked) = if quota {
        ("queueAllocatedNonPreemptibleResources", "queueDeservedResources", "podGroupRequestedNonPreemptibleResources")
    } else {
        ("queueAllocatedResources", "queueResourceLimits", "podGroupRequestedResources")
    };
    for (field, amount) in [(held, bound.held), (limit, bound.bound), (asked, bound.asked)] {
        details[field] = list(amount);
    }
    details
}

async fn write(committer: Committer, pool: String, key: Key, wish: Wish) -> Ended<Wish> {
    let written = match (&key, &wish) {
        (Key::Pod(name), Wish::Pod { uid, reason, message }) => write_pod(&committer, name, uid, reason, message).await,
        (Key::Gang(name), Wish::Gang { uid, condition }) => write_gang(&committer, &pool, name, uid, condition.as_deref()).await,
        _ => Ok(()),
    };
    match written {
        Ok(()) | Err(Failed::Abandoned) => Ended::Done,
        Err(failed) if failed.is_not_found() => Ended::Done,
        // Of pods a conflict means another uid.
        Err(failed) if failed.is_conflict() && matches!(key, Key::Pod(_)) => Ended::Done,
        Err(failed) => {
            tracing::debug!(?key, %failed, "a status was not written");
            if failed.is_final() { Ended::Done } else { Ended::Failed(wish) }
        }
    }
}

async fn write_pod(committer: &Committer, name: &ObjectName, uid: &str, reason: &str, message: &str) -> Result<(), Failed> {
    let pods: Api<Pod> = Api::namespaced(committer.client.clone(), &name.namespace);
    let patch = json!({"metadata": {"uid": uid}, "status": {"conditions": [{"type": "PodScheduled", "status": "False",
        "reason": reason, "message": message, "lastTransitionTime": second()}]}});
    let parameters = PatchParams::default();
    let written =
        committer.writer.write(|| async { pods.patch_status(&name.name, &parameters, &Patch::Strategic(&patch)).await }).await;
    written.map(drop).map_err(|(failed, _)| failed)
}

async fn write_gang(
    committer: &Committer,
    pool: &str,
    name: &ObjectName,
    uid: &str,
    condition: Option<&Telling>,
) -> Result<(), Failed> {
    let api: Api<DynamicObject> =
        Api::namespaced_with(committer.client.clone(), &name.namespace, &resource_of(Watched::PodGroup));
    let there = read(api.get(&name.name)).await?;
    if there.metadata.uid.as_deref() != Some(uid) {
        return Ok(());
    }
    let before = there.data["status"]["schedulingConditions"].as_array().cloned().unwrap_or_default();
    let Some(after) = conditions(&before, pool, condition, &second()) else { return Ok(()) };
    let after = if after.is_empty() { Value::Null } else { json!(after) };
    let patch = json!({"metadata": {"uid": uid, "resourceVersion": there.metadata.resource_version},
        "status": {"schedulingConditions": after}});
    let parameters = PatchParams::default();
    let written =
        committer.writer.write(|| async { api.patch_status(&name.name, &parameters, &Patch::Merge(&patch)).await }).await;
    written.map(drop).map_err(|(failed, _)| failed)
}

/// The list after a condition was added or taken away; `None`: as it is (wire-contract.md §6.4).
fn conditions(before: &[Value], pool: &str, telling: Option<&Telling>, now: &str) -> Option<Vec<Value>> {
    let id = |condition: &Value| condition["transitionID"].as_str().and_then(|id| id.parse::<u64>().ok()).unwrap_or(0);
    let Some(telling) = telling else { return (!before.is_empty()).then(Vec::new) };
    let mut new = json!({"type": "UnschedulableOnNodePool", "nodePool": pool, "reason": "Unschedulable",
        "message": &*telling.message, "status": "True"});
    let newest = before.iter().max_by_key(|condition| id(condition));
    let same = |known: &Value| ["type", "nodePool", "reason", "message", "status"].iter().all(|field| known[field] == new[field]);
    if newest == before.last() && newest.is_some_and(same) {
        return None;
    }
    new["transitionID"] = json!((newest.map_or(0, id) + 1).to_string());
    new["lastTransitionTime"] = json!(now);
    new["reasons"] = telling.reasons.clone();
    let mut after: Vec<_> = before.iter().filter(|condition| condition["nodePool"] != pool).cloned().collect();
    after.push(new);
    Some(after)
}

fn second() -> String {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn telling(message: &str) -> Telling {
        let reasons = json!([{"reason": "PodSchedulingErrors", "message": message}]);
        Telling { pod_reason: "Unschedulable", not_ready: false, message: message.into(), reasons }
    }

    #[test]
    fn conditions_follow_the_protocol() {
        let first = conditions(&[], "default", Some(&telling("a")), "t1").expect("it is new");
        assert_eq!((first.len(), &first[0]["transitionID"], &first[0]["status"]), (1, &json!("1"), &json!("True")));
        assert_eq!(conditions(&first, "default", Some(&telling("a")), "t2"), None, "it is there already");
        let other = conditions(&first, "pool", Some(&telling("a")), "t2").expect("another pool");
        assert_eq!((other.len(), &other[1]["transitionID"]), (2, &json!("2")));
        let again = conditions(&other, "default", Some(&telling("a")), "t3").expect("it is not the newest");
        assert_eq!(again.iter().map(|c| c["transitionID"].as_str()).collect::<Vec<_>>(), [Some("2"), Some("3")]);
        assert_eq!(conditions(&again, "default", None, "t4"), Some(Vec::new()));
        assert_eq!(conditions(&[], "default", None, "t4"), None);
    }
}
