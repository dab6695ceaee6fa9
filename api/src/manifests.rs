//! What an installation consists of, as Kubernetes objects: namespaces, CRDs, priority classes, service accounts and what they
//! may do, the deployment and its service; and the queues that a fresh one begins with.
//!
//! Rights are stated role by role ([`Role`]), each verb because something the role does needs it. Not known here: how it is
//! printed.

use std::fmt;
use std::str::FromStr;

use serde_json::{Value, json};

use crate::crds;

/// Shared GPUs are held by pods in this namespace, which every component that speaks the contract knows (wire-contract.md §2.6).
pub const RESERVATION_NAMESPACE: &str = "kai-resource-reservation";
/// PriorityClasses and their values (wire-contract.md §8.2).
const PRIORITY_CLASSES: [(&str, i32, &str); 4] = [
    ("train", 50, "Training; may be preempted"),
    ("build-preemptible", 75, "Interactive work that may be preempted"),
    ("build", 100, "Interactive work; is not preempted"),
    ("inference", 125, "Serving; is not preempted"),
];
const READ: [&str; 3] = ["get", "list", "watch"];
const METRICS_PORT: u16 = 8080;
const HEALTH_PORT: u16 = 8082;

/// A part of Muster that can run by itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Role {
    /// Decides, binds plain pods, evicts, reports.
    Scheduler,
    /// Carries out BindRequests and keeps shared GPUs.
    Binder,
    /// Makes a PodGroup for each workload.
    PodGrouper,
    /// Keeps the status of PodGroups.
    PodGroupController,
    /// Keeps the status of Queues.
    QueueController,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 5] = [Self::Scheduler, Self::Binder, Self::PodGrouper, Self::PodGroupController, Self::QueueController];

    /// As options and objects spell it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scheduler => "scheduler",
            Self::Binder => "binder",
            Self::PodGrouper => "pod-grouper",
            Self::PodGroupController => "podgroup-controller",
            Self::QueueController => "queue-controller",
        }
    }

    /// What it may do in the whole cluster.
    fn rules(self) -> Vec<Value> {
        match self {
            Self::Scheduler => vec![
                // One write binds a plain pod; its conditions say why it waits; an eviction is a deletion, or asks first.
                rule("", &["pods"], &["get", "list", "watch", "patch", "delete"]),
                rule("", &["pods/binding", "pods/eviction"], &["create"]),
                rule("", &["pods/status"], &["patch"]),
                rule("", &["nodes", "namespaces"], &READ),
                rule("", &["configmaps"], &["list", "watch"]),
                rule("scheduling.k8s.io", &["priorityclasses"], &READ),
                rule("policy", &["poddisruptionbudgets"], &READ),
                // On a fresh installation it makes the default queues and the default shard.
                rule("scheduling.run.ai", &["queues"], &["get", "list", "watch", "create"]),
                rule("scheduling.run.ai", &["podgroups"], &["get", "list", "watch", "patch"]),
                rule("scheduling.run.ai", &["podgroups/status"], &["patch"]),
                rule("scheduling.run.ai", &["bindrequests"], &["get", "list", "watch", "create", "delete"]),
                rule("kai.scheduler", &["schedulingshards"], &["get", "list", "watch", "create"]),
                rule("kai.scheduler", &["topologies"], &READ),
                // Who asks for tenants' objects has to show that they may see them.
                rule("authentication.k8s.io", &["tokenreviews"], &["create"]),
                rule("authorization.k8s.io", &["subjectaccessreviews"], &["create"]),
                events(),
            ],
            Self::Binder => vec![
                rule("", &["pods"], &["get", "list", "watch", "patch", "delete"]),
                rule("", &["pods/binding"], &["create"]),
                rule("", &["pods/status"], &["patch"]),
                rule("", &["nodes"], &READ),
                // What a pod that shares a GPU must know lies beside it, in its own namespace.
                rule("", &["configmaps"], &["get", "create", "update", "patch", "delete"]),
                rule("scheduling.run.ai", &["bindrequests"], &["get", "list", "watch", "delete"]),
                rule("scheduling.run.ai", &["bindrequests/status"], &["patch"]),
                events(),
            ],
            Self::PodGrouper => vec![
                rule("", &["pods"], &["get", "list", "watch", "patch"]),
                // The way from a pod to who made it.
                rule("apps", &["deployments", "replicasets", "statefulsets", "daemonsets"], &["get"]),
                rule("batch", &["jobs", "cronjobs"], &["get"]),
                rule("scheduling.k8s.io", &["priorityclasses"], &READ),
                rule("scheduling.run.ai", &["podgroups"], &["get", "list", "watch", "create", "patch"]),
                events(),
            ],
            Self::PodGroupController => vec![
                rule("", &["pods", "nodes"], &READ),
                rule("scheduling.k8s.io", &["priorityclasses"], &READ),
                rule("scheduling.run.ai", &["podgroups"], &READ),
                rule("scheduling.run.ai", &["podgroups/status"], &["patch"]),
            ],
            Self::QueueController => vec![
                rule("scheduling.run.ai", &["queues", "podgroups"], &READ),
                rule("scheduling.run.ai", &["queues/status"], &["patch"]),
            ],
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|role| role.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("no such role; expected one of {names}")
        })
    }
}

/// What an installation is like.
#[derive(Clone, Debug)]
pub struct Install {
    /// Namespace of the deployment.
    pub namespace: String,
    /// Image of the deployment.
    pub image: String,
    /// What the deployment does.
    pub roles: Vec<Role>,
}

/// The CRDs, as objects.
///
/// # Panics
/// Never: they are plain data.
#[must_use]
pub fn crds() -> Vec<Value> {
    let to_object = |crd| serde_json::to_value(crd).expect("a CRD is JSON");
    crds::definitions().into_iter().map(to_object).collect()
}

/// Everything that `kubectl apply` can take at once. It looks up the kinds of all objects before it makes the first, so that
/// objects of our own kinds cannot be among them: the scheduler makes [`defaults`] where there is no queue at all.
#[must_use]
pub fn all(install: &Install) -> Vec<Value> {
    let mut all = vec![namespace(&install.namespace), namespace(RESERVATION_NAMESPACE)];
    all.extend(crds());
    all.extend(PRIORITY_CLASSES.map(|(name, value, about)| {
        json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name},
            "value": value, "description": about})
    }));
    all.extend(rights(install));
    all.push(deployment(install));
    all.push(service(install));
    all
}

/// The queues and the shard that a fresh installation begins with (wire-contract.md §8.2).
#[must_use]
pub fn defaults() -> Vec<Value> {
    let queue = |name: &str, parent: Option<&str>| {
        let bounds = json!({"quota": 0, "limit": -1, "overQuotaWeight": 1});
        let mut spec = json!({"resources": {"cpu": bounds, "gpu": bounds, "memory": bounds}});
        if let Some(parent) = parent {
            spec["parentQueue"] = json!(parent);
        }
        json!({"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": name}, "spec": spec})
    };
    let shard = json!({"apiVersion": "kai.scheduler/v1", "kind": "SchedulingShard", "metadata": {"name": "default"}, "spec": {}});
    vec![queue("default-parent-queue", None), queue("default-queue", Some("default-parent-queue")), shard]
}

fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": resources, "verbs": verbs})
}

/// Events of both API groups: a client may use either.
fn events() -> Value {
    json!({"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]})
}

fn labels(component: &str) -> Value {
    json!({"app.kubernetes.io/name": "muster", "app.kubernetes.io/component": component, "app.kubernetes.io/part-of": "muster"})
}

/// Service accounts, a ClusterRole for each role, and the bindings.
fn rights(install: &Install) -> Vec<Value> {
    let here = install.namespace.as_str();
    let account = |namespace: &str, name: &str| {
        let metadata = json!({"name": name, "namespace": namespace});
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    };
    let subject = |namespace: &str, name: &str| json!([{"kind": "ServiceAccount", "name": name, "namespace": namespace}]);
    let role_ref = |kind: &str, name: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name});
    let rbac = "rbac.authorization.k8s.io/v1";
    let mut all = vec![account(here, "muster"), account(RESERVATION_NAMESPACE, RESERVATION_NAMESPACE)];
    for role in &install.roles {
        let name = format!("muster-{role}");
        let metadata = json!({"name": name, "labels": labels(role.name())});
        all.push(json!({"apiVersion": rbac, "kind": "ClusterRole", "metadata": metadata, "rules": role.rules()}));
        all.push(json!({"apiVersion": rbac, "kind": "ClusterRoleBinding", "metadata": metadata,
            "roleRef": role_ref("ClusterRole", &name), "subjects": subject(here, "muster")}));
    }
    // Leases are taken in the own namespace only.
    let leases = rule("coordination.k8s.io", &["leases"], &["get", "list", "watch", "create", "update", "patch"]);
    let mut local = vec![(here, "muster-leases", vec![leases], subject(here, "muster"))];
    if install.roles.contains(&Role::Binder) {
        let pods = rule("", &["pods"], &["create", "delete"]);
        local.push((RESERVATION_NAMESPACE, "muster-reservations", vec![pods], subject(here, "muster")));
        // A reservation pod writes the id of its GPU on itself.
        let own = rule("", &["pods"], &["get", "patch"]);
        local.push((
            RESERVATION_NAMESPACE,
            RESERVATION_NAMESPACE,
            vec![own],
            subject(RESERVATION_NAMESPACE, RESERVATION_NAMESPACE),
        ));
    }
    for (namespace, name, rules, subjects) in local {
        let metadata = json!({"name": name, "namespace": namespace});
        all.push(json!({"apiVersion": rbac, "kind": "Role", "metadata": metadata, "rules": rules}));
        all.push(json!({"apiVersion": rbac, "kind": "RoleBinding", "metadata": metadata,
            "roleRef": role_ref("Role", name), "subjects": subjects}));
    }
    all
}

fn deployment(install: &Install) -> Value {
    let roles: Vec<_> = install.roles.iter().map(|role| role.name()).collect();
    let probe = |path: &str| json!({"httpGet": {"path": path, "port": "health"}});
    let container = json!({
        "name": "muster",
        "image": install.image,
        "args": ["run", format!("--roles={}", roles.join(",")), "--leader-elect", format!("--listen-address=:{METRICS_PORT}"),
            format!("--health-address=:{HEALTH_PORT}"), "--log-json"],
        "env": [{"name": "NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "ports": [{"name": "http-metrics", "containerPort": METRICS_PORT}, {"name": "health", "containerPort": HEALTH_PORT}],
        "livenessProbe": probe("/healthz"),
        "readinessProbe": probe("/readyz"),
        "resources": {"requests": {"cpu": "250m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": {"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}},
    });
    let pod = json!({
        "metadata": {"labels": labels("controller")},
        "spec": {
            "serviceAccountName": "muster",
            // What schedules everybody else must not wait for them.
            "priorityClassName": "system-cluster-critical",
            "securityContext": {"runAsNonRoot": true, "runAsUser": 10000, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
        },
    });
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "muster", "namespace": install.namespace, "labels": labels("controller")},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels("controller")}, "template": pod},
    })
}

fn service(install: &Install) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "muster", "namespace": install.namespace, "labels": labels("controller")},
        "spec": {"selector": labels("controller"),
            "ports": [{"name": "http-metrics", "port": METRICS_PORT, "targetPort": "http-metrics"}]},
    })
}

/// YAML documents, one for each object.
///
/// # Panics
/// Never: JSON values can be written as YAML.
#[must_use]
pub fn to_yaml(objects: &[Value]) -> String {
    let mut text = String::new();
    for object in objects {
        text += "---\n";
        text += &serde_saphyr::to_string(object).expect("JSON can be written as YAML");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn install() -> Install {
        Install { namespace: "muster".to_owned(), image: "muster:test".to_owned(), roles: Role::ALL.to_vec() }
    }

    #[test]
    fn yaml_says_what_the_objects_say() {
        let mut objects = all(&install());
        objects.extend(defaults());
        let text = to_yaml(&objects);
        let back: Vec<Value> = serde_saphyr::from_multiple(&text).expect("YAML");
        assert_eq!(back, objects);
    }

    #[test]
    fn nobody_may_do_everything() {
        for role in Role::ALL {
            for rule in role.rules() {
                let text = rule.to_string();
                assert!(!text.contains('*'), "{role}: {text}");
                assert!(!text.contains("secrets"), "{role}: {text}");
            }
        }
    }

    #[test]
    fn every_binding_leads_to_a_role_and_an_account_that_are_there() {
        let objects = all(&install());
        let there: BTreeSet<_> = objects
            .iter()
            .map(|o| (o["kind"].as_str(), o["metadata"]["namespace"].as_str(), o["metadata"]["name"].as_str()))
            .collect();
        assert_eq!(there.len(), objects.len(), "no two objects have one name");
        for binding in objects.iter().filter(|o| o["kind"].as_str().is_some_and(|kind| kind.ends_with("Binding"))) {
            let role = &binding["roleRef"];
            let namespace = binding["metadata"]["namespace"].as_str();
            assert!(there.contains(&(role["kind"].as_str(), namespace, role["name"].as_str())), "{role}");
            let account = &binding["subjects"][0];
            let account = (Some("ServiceAccount"), account["namespace"].as_str(), account["name"].as_str());
            assert!(there.contains(&account), "{account:?}");
        }
    }

    #[test]
    fn roles_are_read_as_they_are_written() {
        for role in Role::ALL {
            assert_eq!(role.name().parse(), Ok(role));
        }
        assert!("schedular".parse::<Role>().is_err());
    }
}
