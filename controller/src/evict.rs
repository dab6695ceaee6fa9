//! Tells pods to leave: recorded first, each with its uid, for one asker after the other.
//!
//! The brake has two parts. Per cycle and queue `core` keeps it, where no batch is cut in two; per minute it is kept here, as
//! the bound of the next cycle ([`Minute`]).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, EvictParams, Patch, PatchParams, PostParams, Preconditions};
use muster_core::config::Action;
use serde_json::{Value, json};

use crate::calls::Failed;
use crate::commit::{Committer, lock};
use crate::events::{About, Happened, Tone};
use crate::journal::Journal;
use crate::orders::Leave;

const MINUTE: Duration = Duration::from_secs(60);

/// Evictions of the last 60 seconds.
#[derive(Debug, Default)]
pub struct Minute(VecDeque<(Instant, u32)>);

impl Minute {
    /// So many were ordered.
    pub fn count(&mut self, now: Instant, pods: usize) {
        if pods > 0 {
            self.0.push_back((now, u32::try_from(pods).unwrap_or(u32::MAX)));
        }
    }

    /// How many more there may be now, of at most `most` in any 60 seconds.
    pub fn left(&mut self, now: Instant, most: u32) -> u32 {
        while self.0.front().is_some_and(|(at, _)| now.duration_since(*at) >= MINUTE) {
            self.0.pop_front();
        }
        let used: u64 = self.0.iter().map(|(_, pods)| u64::from(*pods)).sum();
        u32::try_from(u64::from(most).saturating_sub(used)).unwrap_or(0)
    }
}

/// Carries out evictions.
#[derive(Clone)]
pub struct Evictor {
    /// What it shares with binds.
    pub committer: Committer,
    /// Where evictions are recorded.
    pub journal: Arc<Journal>,
    /// Name of the shard, for the record.
    pub shard: String,
}

impl Evictor {
    /// All that one cycle decided. `gang_uid` knows pod groups.
    pub async fn evict(self, leaves: Vec<Leave>, now: Timestamp, gang_uid: impl Fn(&Leave) -> String) {
        let with_uid: Vec<_> = leaves.into_iter().map(|leave| (gang_uid(&leave), leave)).collect();
        let mut batches: Vec<Vec<(String, Leave)>> = Vec::new();
        for item in with_uid {
            match batches.last_mut().filter(|batch| batch[0].1.asker == item.1.asker) {
                Some(batch) => batch.push(item),
                None => batches.push(vec![item]),
            }
        }
        for batch in batches {
            self.batch(batch, now).await;
        }
    }

    /// Those who leave for one asker: all, or, where the Eviction API refuses one of them, nobody.
    async fn batch(&self, batch: Vec<(String, Leave)>, now: Timestamp) {
        let abandon = |why: &str| {
            tracing::error!(why, pods = batch.len(), "evictions were not carried out");
            batch.iter().for_each(|(_, leave)| self.take_back(leave));
        };
        if self.committer.options.eviction_api {
            for (_, leave) in &batch {
                // Who has left by itself stands in nobody's way.
                if let Err(failed) = self.ask(leave, true).await
                    && !failed.is_over()
                {
                    return abandon(&format!("{} may not leave: {failed}", leave.pod));
                }
            }
        }
        let records: Vec<_> = batch.iter().map(|(_, leave)| self.record("evict", leave, now, None, batch.len())).collect();
        if let Err(error) = self.journal.append(&records) {
            return abandon(&format!("the journal cannot be written: {error}"));
        }
        let pods = batch.len();
        let all = batch.into_iter().map(|(uid, leave)| self.one(uid, leave, now, pods));
        futures::future::join_all(all).await;
    }

    async fn one(&self, gang_uid: String, leave: Leave, now: Timestamp, of: usize) {
        if self.committer.options.disruption_target {
            self.announce(&leave).await;
        }
        let left = if self.committer.options.eviction_api { self.ask(&leave, false).await } else { self.delete(&leave).await };
        match left {
            // Gone, or another pod of that name: it has left by itself.
            Err(failed) if failed.is_over() => self.take_back(&leave),
            Ok(()) => {
                lock(&self.committer.ledger).written(&leave.pod, &leave.uid, Timestamp::now(), None);
                self.committer.metrics.scheduler.evicted(&leave, &gang_uid, self.pool());
                self.say(&leave, gang_uid, of);
            }
            Err(failed) => {
                tracing::warn!(pod = %leave.pod, %failed, "a pod was not evicted");
                let record = self.record("failed", &leave, now, Some(failed.to_string()), of);
                if let Err(error) = self.journal.append(&[record]) {
                    tracing::error!(%error, "the eviction journal cannot be written");
                }
                self.take_back(&leave);
            }
        }
    }

    fn pool(&self) -> &str {
        self.committer.pool.as_ref().map_or("default", |(_, value)| value)
    }

    fn take_back(&self, leave: &Leave) {
        lock(&self.committer.ledger).forget(&leave.pod, &leave.uid);
    }

    async fn delete(&self, leave: &Leave) -> Result<(), Failed> {
        let pods: Api<Pod> = Api::namespaced(self.committer.client.clone(), &leave.pod.namespace);
        let parameters = only(leave);
        let written = self.committer.writer.write(|| async { pods.delete(&leave.pod.name, &parameters).await }).await;
        written.map(drop).map_err(|(failed, _)| failed)
    }

    async fn ask(&self, leave: &Leave, dry_run: bool) -> Result<(), Failed> {
        let pods: Api<Pod> = Api::namespaced(self.committer.client.clone(), &leave.pod.namespace);
        let post_options = PostParams { dry_run, ..PostParams::default() };
        let parameters = EvictParams { delete_options: Some(only(leave)), post_options };
        // 429 is how a PodDisruptionBudget says no: that is an answer, not overload.
        let request = || async {
            match pods.evict(&leave.pod.name, &parameters).await {
                Err(kube::Error::Api(status)) if status.code == 429 && refused_by_budget(&status) => {
                    Ok(Some(status.message.clone()))
                }
                other => other.map(|_| None),
            }
        };
        match self.committer.writer.write(request).await {
            Ok(None) => Ok(()),
            Ok(Some(message)) => Err(Failed::refused(429, message)),
            Err((failed, _)) => Err(failed),
        }
    }

    /// The condition that tells a pod's owner that it was not its fault.
    async fn announce(&self, leave: &Leave) {
        let pods: Api<Pod> = Api::namespaced(self.committer.client.clone(), &leave.pod.namespace);
        let condition = json!({"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
            "message": message(leave), "lastTransitionTime": Timestamp::now().to_string()});
        let patch = json!({"metadata": {"uid": leave.uid}, "status": {"conditions": [condition]}});
        let parameters = PatchParams::default();
        let written = self
            .committer
            .writer
            .write(|| async { pods.patch_status(&leave.pod.name, &parameters, &Patch::Strategic(&patch)).await })
            .await;
        if let Err((failed, _)) = written {
            tracing::debug!(pod = %leave.pod, %failed, "the condition DisruptionTarget was not written");
        }
    }

    fn say(&self, leave: &Leave, gang_uid: String, of: usize) {
        let mut annotations = vec![("num-evicted-pods", of.to_string()), ("evictor-action-type", leave.action.name().to_owned())];
        if let Some(asker) = &leave.asker {
            annotations.push(("evictor-pod-group-name", asker.name.clone()));
            annotations.push(("evictor-pod-group-namespace", asker.namespace.clone()));
        }
        self.committer.events.say(Happened {
            annotations,
            ..Happened::new(About::gang(&leave.gang, gang_uid), Tone::Normal, "Evict", message(leave)).always()
        });
    }

    fn record(&self, what: &str, leave: &Leave, now: Timestamp, error: Option<String>, of: usize) -> Value {
        let name = |name: &muster_api::names::ObjectName| json!({"namespace": name.namespace, "name": name.name});
        let mut record = json!({
            "time": now.to_string(),
            "what": what,
            "shard": self.shard,
            "action": leave.action.name(),
            "pod": {"namespace": leave.pod.namespace, "name": leave.pod.name, "uid": leave.uid},
            "node": leave.node,
            "podGroup": name(&leave.gang),
            "queue": leave.queue,
            "for": leave.asker.as_ref().map(name),
            "forQueue": leave.asker_queue,
            "movesTo": leave.moves_to,
            "rule": leave.rule,
            "pods": of,
        });
        if let Some(error) = error {
            record["error"] = json!(error);
        }
        record
    }
}

fn only(leave: &Leave) -> DeleteParams {
    let preconditions = Preconditions { uid: Some(leave.uid.clone()), resource_version: None };
    DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() }
}

fn refused_by_budget(status: &kube::core::Status) -> bool {
    status.details.as_ref().is_some_and(|details| details.causes.iter().any(|cause| cause.reason == "DisruptionBudget"))
}

/// What the victim's owner reads (wire-contract.md §6.5).
fn message(leave: &Leave) -> String {
    let asker = leave.asker.as_ref().map(ToString::to_string).unwrap_or_default();
    let (pod, sentence) = (&leave.pod, &leave.sentence);
    match (leave.action, &leave.moves_to) {
        (Action::Consolidation, Some(node)) => {
            format!("Pod {pod} was moved to {node} to make room for pod group {asker}. {sentence}")
        }
        (Action::StaleGangEviction, _) => format!("Pod {pod} was told to leave. {sentence}"),
        (action, Some(node)) => format!("Pod {pod} was moved to {node} for pod group {asker} ({}). {sentence}", action.name()),
        (action, None) => format!("Pod {pod} was told to leave for pod group {asker} ({}). {sentence}", action.name()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_is_any_sixty_seconds() {
        let (mut minute, start) = (Minute::default(), Instant::now());
        minute.count(start, 3);
        minute.count(start + Duration::from_secs(30), 4);
        assert_eq!(minute.left(start + Duration::from_secs(59), 10), 3);
        assert_eq!(minute.left(start + Duration::from_secs(60), 10), 6);
        assert_eq!(minute.left(start + Duration::from_secs(60), 2), 0);
        assert_eq!(minute.left(start + Duration::from_secs(90), 10), 10);
    }
}
