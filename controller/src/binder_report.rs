//! What the binder says about a request: its status, a condition on the pod, an event; each written only if it is new
//! (wire-contract.md §4.5).

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use muster_api::crds::bindrequest::BindRequest;
use serde_json::{Value, json};

use crate::binder_known::Request;
use crate::calls::{Failed, Writer, read, settled};
use crate::events::{About, Events, Happened, Tone};

const CONDITION: &str = "PodBound";
const BOUND: &str = "Bound";
const ERROR: &str = "BindingError";

/// Says how requests went.
pub(crate) struct Reporter {
    pub(crate) client: Client,
    pub(crate) writer: Writer,
    pub(crate) events: Events,
}

impl Reporter {
    /// The pod is bound. `pod`: as it was seen last.
    pub(crate) async fn succeeded(&self, request: &Request, pod: &Pod) -> Result<(), Failed> {
        let said = format!("bound to node {}", request.node());
        self.condition(pod, true, BOUND, &said).await?;
        // Last, because nothing more is done about a request that says so.
        self.status(request, json!({"phase": "Succeeded", "reason": null})).await?;
        self.events.say(Happened::new(About::this_pod(&pod.metadata), Tone::Normal, BOUND, said));
        Ok(())
    }

    /// An attempt failed, the `attempts`-th of this request.
    pub(crate) async fn failed(&self, request: &Request, attempts: i32, why: &str, tell_pod: bool) -> Result<(), Failed> {
        if tell_pod {
            let api: Api<Pod> = Api::namespaced(self.client.clone(), &request.name.namespace);
            if let Some(pod) = read(api.get_opt(request.pod())).await? {
                let said = format!("cannot be bound to node {}: {why}", request.node());
                self.condition(&pod, false, ERROR, &said).await?;
                self.events.say(Happened::new(About::this_pod(&pod.metadata), Tone::Warning, ERROR, said));
            }
        }
        self.status(request, json!({"phase": "Failed", "reason": why, "failedAttempts": attempts})).await
    }

    async fn status(&self, request: &Request, status: Value) -> Result<(), Failed> {
        let api: Api<BindRequest> = Api::namespaced(self.client.clone(), &request.name.namespace);
        let patch = Patch::Merge(json!({"metadata": {"uid": request.uid}, "status": status}));
        settled(self.writer.once(api.patch_status(&request.name.name, &PatchParams::default(), &patch)).await)
    }

    async fn condition(&self, pod: &Pod, holds: bool, reason: &str, message: &str) -> Result<(), Failed> {
        let status = if holds { "True" } else { "False" };
        let there = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let mut there = there.filter(|condition| condition.type_ == CONDITION);
        let before = there.next();
        if before.is_some_and(|now| now.status == status && now.message.as_deref() == Some(message)) {
            return Ok(());
        }
        let since = before.filter(|now| now.status == status).and_then(|now| now.last_transition_time.clone());
        let condition = json!({
            "type": CONDITION, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": since.unwrap_or_else(|| Time(Timestamp::now())),
        });
        let ObjectMeta { name, namespace, uid, .. } = &pod.metadata;
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace.as_deref().unwrap_or_default());
        let patch = Patch::Strategic(json!({"metadata": {"uid": uid}, "status": {"conditions": [condition]}}));
        let name = name.as_deref().unwrap_or_default();
        settled(self.writer.once(api.patch_status(name, &PatchParams::default(), &patch)).await)
    }
}
