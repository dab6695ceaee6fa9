//! A random history of a cluster, from a seed: objects of all kinds that the feed follows come, change and go, in an order that
//! nobody planned (pods before their groups, nodes after their pods).

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use muster_api::live::Watched;
use muster_controller::watch::resource_of;
use serde_json::{Value, json};

use crate::support::node;

/// A source of numbers with the same output on every machine (xorshift64).
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// Below `sides`.
    pub(crate) fn throw(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) % sides
    }
}

pub(crate) struct History {
    client: Client,
    dice: Dice,
    next: AtomicU64,
}

/// Whoever is not there cannot be changed or deleted, and who is there cannot be made again: both are part of a random history.
fn tolerate<T>(result: Result<T, kube::Error>) -> Result<()> {
    match result {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 422) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl History {
    pub(crate) fn new(client: Client, seed: u64) -> Self {
        Self { client, dice: Dice::new(seed), next: AtomicU64::new(0) }
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "default")
    }

    fn ours(&self, kind: Watched) -> Api<DynamicObject> {
        match kind {
            Watched::PodGroup | Watched::BindRequest => Api::namespaced_with(self.client.clone(), "default", &resource_of(kind)),
            _ => Api::all_with(self.client.clone(), &resource_of(kind)),
        }
    }

    /// Many pods, so that lists have pages.
    pub(crate) async fn crowd(&self, count: u64) -> Result<()> {
        for _ in 0..count {
            self.make_pod(self.next.fetch_add(1, Ordering::Relaxed) % 12).await?;
        }
        Ok(())
    }

    async fn make_pod(&self, group: u64) -> Result<()> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let pod = json!({
            "metadata": {"name": format!("pod-{number}"), "annotations": {"pod-group-name": format!("group-{group}")}},
            "spec": {"schedulerName": if group == 0 { "default-scheduler" } else { "kai-scheduler" }, "containers": [
                {"name": "c", "image": "none",
                    "resources": {"limits": {"nvidia.com/gpu": (group % 3).to_string(), "cpu": "1"}}}]},
        });
        self.pods().create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        Ok(())
    }

    async fn some_pod(&mut self) -> Result<Option<Pod>> {
        let all = self.pods().list(&ListParams::default()).await?.items;
        let at = usize::try_from(self.dice.throw(all.len().max(1) as u64))?;
        Ok(all.into_iter().nth(at))
    }

    /// `count` random changes.
    pub(crate) async fn go_on(&mut self, count: u64) -> Result<()> {
        for _ in 0..count {
            match self.dice.throw(12) {
                0..3 => {
                    let group = self.dice.throw(12);
                    self.make_pod(group).await?;
                }
                3..7 => self.change_a_pod().await?,
                7 => self.change_a_node().await?,
                8 => {
                    let name = self.dice.throw(12);
                    self.change_ours(Watched::PodGroup, "group", name).await?;
                }
                9 => {
                    let (kind, name) = [(Watched::Queue, "queue"), (Watched::SchedulingShard, "shard")][self.coin()];
                    let number = self.dice.throw(6);
                    self.change_ours(kind, name, number).await?;
                }
                10 => {
                    let number = self.dice.throw(8);
                    self.change_ours(Watched::BindRequest, "pod", number).await?;
                }
                _ => self.change_a_class().await?,
            }
        }
        Ok(())
    }

    fn coin(&mut self) -> usize {
        usize::from(self.dice.throw(2) == 1)
    }

    async fn change_a_pod(&mut self) -> Result<()> {
        let Some(pod) = self.some_pod().await? else { return Ok(()) };
        let name = pod.metadata.name.context("a name")?;
        let pods = self.pods();
        match self.dice.throw(4) {
            0 => {
                let node = format!("node-{}", self.dice.throw(6));
                let binding = json!({"metadata": {"name": name}, "target": {"apiVersion": "v1", "kind": "Node", "name": node}});
                tolerate(pods.create_subresource::<_, Value>("binding", &name, &PostParams::default(), &binding).await)
            }
            1 => {
                let patch = json!({"metadata": {"labels": {"kai.scheduler/task-priority": self.dice.throw(9).to_string()}}});
                tolerate(pods.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await)
            }
            2 => {
                let phase = ["Running", "Succeeded", "Failed"][usize::try_from(self.dice.throw(3))?];
                let patch = json!({"status": {"phase": phase}});
                tolerate(pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch)).await)
            }
            _ => tolerate(pods.delete(&name, &DeleteParams::default().grace_period(0)).await),
        }
    }

    async fn change_a_node(&mut self) -> Result<()> {
        let name = format!("node-{}", self.dice.throw(6));
        let nodes: Api<Node> = Api::all(self.client.clone());
        match self.dice.throw(4) {
            0 => tolerate(nodes.delete(&name, &DeleteParams::default()).await),
            1 => {
                let patch = json!({"spec": {"unschedulable": self.coin() == 1}});
                tolerate(nodes.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await)
            }
            _ => {
                let gpus = u32::try_from(self.dice.throw(9))?;
                tolerate(nodes.create(&PostParams::default(), &serde_json::from_value(node(&name, gpus))?).await)
            }
        }
    }

    async fn change_a_class(&mut self) -> Result<()> {
        let name = format!("class-{}", self.dice.throw(4));
        let classes: Api<k8s_openapi::api::scheduling::v1::PriorityClass> = Api::all(self.client.clone());
        if self.coin() == 0 {
            return tolerate(classes.delete(&name, &DeleteParams::default()).await);
        }
        let class = json!({"metadata": {"name": name}, "value": self.dice.throw(200)});
        tolerate(classes.create(&PostParams::default(), &serde_json::from_value(class)?).await)
    }

    async fn change_ours(&mut self, kind: Watched, prefix: &str, number: u64) -> Result<()> {
        let name = format!("{prefix}-{number}");
        let api = self.ours(kind);
        if self.dice.throw(4) == 0 {
            return tolerate(api.delete(&name, &DeleteParams::default()).await);
        }
        let spec = match kind {
            Watched::Queue => json!({"parentQueue": format!("queue-{}", self.dice.throw(6)), "priority": self.dice.throw(5)}),
            Watched::PodGroup => json!({"queue": format!("queue-{}", self.dice.throw(6)), "minMember": self.dice.throw(4),
                "priorityClassName": format!("class-{}", self.dice.throw(4))}),
            Watched::BindRequest => json!({"podName": name, "selectedNode": format!("node-{}", self.dice.throw(6))}),
            _ => json!({"partitionLabelValue": format!("pool-{}", self.dice.throw(3))}),
        };
        let resource = resource_of(kind);
        let object = json!({"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name}, "spec": spec});
        let force = PatchParams::apply("history").force();
        tolerate(api.patch(&name, &force, &Patch::Apply(object)).await)
    }
}
