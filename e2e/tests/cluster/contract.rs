//! Objects as users and KAI write them, by the fields of the wire contract (§1), not by our types: what a round trip must keep.

use serde_json::{Value, json};

/// An object, whole: what is below `spec`, and below `status` if the kind has one.
pub(crate) struct Example {
    pub(crate) plural: &'static str,
    pub(crate) object: Value,
    pub(crate) status: Option<Value>,
}

fn example(plural: &'static str, api: &str, kind: &str, namespaced: bool, spec: Value, status: Option<Value>) -> Example {
    let mut metadata = json!({"name": "round-trip"});
    if namespaced {
        metadata["namespace"] = json!("default");
    }
    Example { plural, object: json!({"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec}), status }
}

/// All kinds, with every field that the contract names.
pub(crate) fn examples() -> Vec<Example> {
    vec![
        example("queues", "scheduling.run.ai/v2", "Queue", false, queue(), Some(queue_status())),
        example("podgroups", "scheduling.run.ai/v2alpha2", "PodGroup", true, pod_group(), Some(pod_group_status())),
        example(
            "bindrequests",
            "scheduling.run.ai/v1alpha2",
            "BindRequest",
            true,
            bind_request(),
            Some(json!({
            "phase": "Failed", "reason": "the node is gone", "failedAttempts": 1})),
        ),
        example(
            "topologies",
            "kai.scheduler/v1alpha1",
            "Topology",
            false,
            json!({"levels": [
            {"nodeLabel": "topology.example.com/block", "alias": "block"}, {"nodeLabel": "rack"},
            {"nodeLabel": "kubernetes.io/hostname", "alias": "host"}]}),
            None,
        ),
        example("schedulingshards", "kai.scheduler/v1", "SchedulingShard", false, shard(), Some(conditions())),
        example("configs", "kai.scheduler/v1", "Config", false, config(), Some(conditions())),
    ]
}

fn conditions() -> Value {
    json!({"conditions": [{"type": "Ready", "status": "True", "reason": "ready", "message": "System is ready",
        "observedGeneration": 1, "lastTransitionTime": "2026-08-07T10:00:00Z"}]})
}

fn queue() -> Value {
    json!({"displayName": "Team A", "parentQueue": "department-1", "priority": 200,
        "preemptMinRuntime": "5m0s", "reclaimMinRuntime": "1h",
        "resources": {"gpu": {"quota": 2.5, "overQuotaWeight": 1, "limit": -1}, "cpu": {"quota": 4000,
        "overQuotaWeight": 0.5, "limit": 8000},
            "memory": {"quota": -1, "overQuotaWeight": 0, "limit": 64000}}})
}

fn queue_status() -> Value {
    json!({"conditions": [{"type": "OverQuota", "status": "False", "lastProbeTime": "2026-08-07T10:00:00Z",
            "lastTransitionTime": "2026-08-07T10:00:00Z", "reason": "r", "message": "m"}],
        "childQueues": ["team-b", "team-c"], "allocated": {"cpu": "100m", "memory": 1024, "nvidia.com/gpu": 1.5.to_string()},
        "allocatedNonPreemptible": {"nvidia.com/gpu": 0}, "requested": {"cpu": 2, "run.ai/gpu.memory": "4k"}})
}

fn pod_group() -> Value {
    let near = json!({"topology": "dc", "requiredTopologyLevel": "rack", "preferredTopologyLevel": "kubernetes.io/hostname"});
    json!({"minMember": 2, "minSubGroup": 1, "queue": "default-queue", "priorityClassName": "train",
        "preemptibility": "non-preemptible",
        "topologyConstraint": near, "markUnschedulable": false, "schedulingBackoff": -1, "preemptionDelay": "30s",
        "stalenessGracePeriod": "-1s",
        "subGroups": [{"name": "workers", "minSubGroup": 1}, {"name": "worker-0", "parent": "workers", "minMember": 0,
            "topologyConstraint": near}]})
}

fn pod_group_status() -> Value {
    let amounts = json!({"nvidia.com/gpu": "1", "cpu": 1});
    let details = json!({"queueDetails": {"name": "q", "queueRequestedResources": amounts, "queueDeservedResources": amounts,
        "queueAllocatedNonPreemptibleResources": amounts, "podGroupRequestedResources": amounts,
        "podGroupRequestedNonPreemptibleResources": amounts, "queueAllocatedResources": amounts,
        "queueResourceLimits": amounts}});
    json!({
        "conditions": [{"type": "t", "status": "True", "transitionID": "1", "lastTransitionTime": "2026-08-07T10:00:00Z",
            "reason": "r", "message": "m"}],
        "schedulingConditions": [{"type": "UnschedulableOnNodePool", "nodePool": "default", "reason": "Unschedulable",
        "message": "m",
            "reasons": [{"reason": "OverLimit", "message": "over", "details": details}],
            "lastTransitionTime": "2026-08-07T10:00:00Z",
            "status": "True", "transitionID": "7"}],
        "resourcesStatus": {"allocated": amounts, "allocatedNonPreemptible": amounts, "requested": amounts},
    })
}

fn bind_request() -> Value {
    let allocation = json!({
        "allocationTimestamp": "2026-08-07T10:00:00Z",
        "devices": {
            "results": [{"request": "gpu", "driver": "gpu.example.com", "pool": "node-1", "device": "gpu-0",
            "adminAccess": false,
                "consumedCapacity": {"memory": "10Gi"}, "shareID": "a671734a-e8e5-11e4-8fde-42010af09327",
                "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 5}],
                "bindingConditions": ["ready"], "bindingFailureConditions": ["broken"]}],
            "config": [{"source": "FromClass", "requests": ["gpu"],
                "opaque": {"driver": "gpu.example.com", "parameters": {"apiVersion": "x/v1", "kind": "GpuConfig",
                "sharing": {"deep": [1, "two"]}}}}],
        },
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In",
        "values": ["node-1"]}]}]},
    });
    let requests = json!([{"name": "container-0-request-0", "exactly": {"deviceClassName": "gpu.example.com",
        "allocationMode": "ExactCount",
        "count": 1, "adminAccess": false, "selectors": [{"cel": {"expression": "true"}}],
        "capacity": {"requests": {"memory": "10Gi"}}}}]);
    json!({"podName": "round-trip", "selectedNode": "node-1", "receivedResourceType": "Fraction",
        "receivedGPU": {"count": 2, "portion": "0.50"}, "selectedGPUGroups": ["0b3f7b8a-5f5c-4d8e-9b59-2b8c3d1c5a10"],
        "resourceClaimAllocations": [{"name": "gpu", "allocation": allocation}],
        "extendedResourceClaimAllocation": {"allocation": allocation, "deviceRequests": requests,
            "containerMappings": [{"containerName": "c", "requestName": "container-0-request-0",
            "resourceName": "nvidia.com/gpu"}]},
        "predictedNUMAZones": [{"zone": "node-0", "amount": {"cpu": 4, "nvidia.com/gpu": "1"}}], "backoffLimit": 3})
}

fn shard() -> Value {
    json!({"args": {"v": "4"}, "goMemLimitRatio": 0.8, "goMemLimit": "2Gi", "placementStrategy": {"gpu": "binpack",
        "cpu": "spread"},
        "partitionLabelValue": "pool-a", "queueDepthPerAction": {"reclaim": 10},
        "minRuntime": {"preemptMinRuntime": "1m", "reclaimMinRuntime": "2m"}, "kValue": 0.5,
        "usageDBConfig": {"clientType": "prometheus", "connectionString": "http://p:9090", "connectionStringEnvVar": "URL",
            "usageParams": {"halfLifePeriod": "10m", "windowSize": "1h", "windowType": "sliding",
                "tumblingWindowStartTime": "2026-08-07T10:00:00Z", "fetchInterval": "1m", "stalenessPeriod": "5m",
                "waitTimeout": "1m",
                "extraParams": {"gpuAllocationMetric": "kai_queue_allocated_gpus"}}},
        "scenarioSearchBudgets": {"maxActionSearchDuration": {"default": "5m"}, "maxJobSearchDuration": "4m",
        "minJobSearchDuration": "0s",
            "maxGeneratorSearchDuration": {"NodeLocalGreedy": "30s"}},
        "plugins": {"numa": {"enabled": true, "priority": 3, "arguments": {"a": "b"}}},
        "actions": {"consolidation": {"enabled": false, "priority": 2}}})
}

fn config() -> Value {
    let resources = json!({"requests": {"cpu": 1, "memory": "256Mi"}, "limits": {"cpu": "500m", "memory": 1_073_741_824}});
    let service = json!({"enabled": true, "image": {"repository": "r", "name": "n", "tag": "t", "pullPolicy": "Always"},
        "resources": resources, "k8sClientConfig": {"qps": 20, "burst": 100},
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference":
            {"matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}]}}]}},
        "podDisruptionBudget": {"enabled": true, "maxUnavailable": "50%"}});
    let vpa = json!({"enabled": true, "updatePolicy": {"updateMode": "InPlaceOrRecreate", "minReplicas": 1},
        "resourcePolicy": {"containerPolicies": [{"containerName": "*", "mode": "Auto", "minAllowed": {"cpu": "50m"},
        "maxAllowed": {"cpu": 2},
            "controlledResources": ["cpu"], "controlledValues": "RequestsOnly"}]}});
    json!({
        "namespace": "kai-scheduler",
        "global": {"vpa": vpa, "openshift": false, "affinity": {}, "requireDefaultPodAntiAffinityTerm": true,
            "securityContext": {"runAsUser": 10000, "capabilities": {"drop": ["all"]}}, "imagesPullSecret": "s",
            "additionalImagePullSecrets": ["s"], "nodeSelector": {"a": "b"},
            "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoSchedule"}],
            "daemonsetsTolerations": [{"operator": "Exists"}],
            "priorityClassName": "p", "replicaCount": 2, "queueLabelKey": "kai.scheduler/queue",
            "schedulerName": "kai-scheduler",
            "nodePoolLabelKey": "kai.scheduler/node-pool", "namespaceLabelSelector": {"a": "b"}, "podLabelSelector": {"a": "b"},
            "jsonLog": true},
        "binder": {"service": service, "replicas": 1, "maxConcurrentReconciles": 10, "volumeBindingTimeoutSeconds": 120,
            "probePort": 8081, "metricsPort": 8080, "cdiEnabled": true,
            "plugins": {"gpusharing": {"enabled": true, "priority": 100, "arguments": {"cdiEnabled": "false"}}},
            "resourceReservation": {"image": {"name": "resource-reservation"}, "namespace": "kai-resource-reservation",
                "serviceAccountName": "kai-resource-reservation", "appLabel": "kai-resource-reservation",
                "allocationTimeout": 40,
                "runtimeClassName": "nvidia", "podResources": resources}, "vpa": vpa},
        "scheduler": {"service": service, "GOGC": 400, "schedulerService": {"type": "ClusterIP", "port": 8080,
        "targetPort": 8080},
            "replicas": 1},
        "admission": {"service": service, "webhook": {"port": 443, "targetPort": 9443, "probePort": 8081, "metricsPort": 8080},
            "gpuSharing": true, "blockNvidiaVisibleDevices": false, "queueLabelSelector": false,
            "validatingWebhookConfigurationName": "v", "mutatingWebhookConfigurationName": "m",
            "gpuFractionRuntimeClassName": "nvidia"},
        "queueController": {"service": service, "controllerService": {"metrics": {"name": "metrics", "port": 8080,
        "targetPort": 8080},
            "webhook": {"name": "webhook", "port": 443, "targetPort": 9443}},
            "webhooks": {"enableValidation": true, "webhookConfigurationNamePrefix": "kai-queue-validation-"},
            "metricsNamespace": "kai",
            "queueLabelToMetricLabel": "a=b", "queueLabelToDefaultMetricValue": "a=c"},
        "podGroupController": {"controllerService": {"webhook": {"name": "webhook", "port": 443, "targetPort": 9443}},
            "webhooks": {"enableValidation": false}, "maxConcurrentReconciles": 4},
        "podGrouper": {"args": {"gangScheduleKnative": true, "genericKartaFallback": false,
        "defaultPrioritiesConfigMapName": "n",
            "defaultPrioritiesConfigMapNamespace": "ns"}, "k8sClientConfig": {"qps": 1, "burst": 2}},
        "nodeScaleAdjuster": {"args": {"scalingPodImage": {"name": "scalingpod"}, "nodeScaleNamespace": "kai-scale-adjust",
            "nodeScaleServiceAccount": "kai-scale-adjust", "gpuMemoryToFractionRatio": 0.1}},
        "numaPlacementExporter": {"service": {"enabled": true},
        "nodeSelector": {"feature.node.kubernetes.io/memory-numa": "true"},
            "tolerations": [], "pollInterval": "5s", "driftResyncInterval": "1m", "podResourcesHostPath": "/var",
            "podResourcesSocket": "s",
            "sysfsHostPath": "/sys"},
        "prometheus": {"enabled": true, "instanceName": "prometheus", "retentionPeriod": "2w", "sampleInterval": "1m",
            "enablePersistentStorage": true, "storageSize": "50Gi", "storageClassName": "standard",
            "serviceMonitor": {"enabled": true, "interval": "30s", "scrapeTimeout": "10s", "bearerTokenFile": "/t"},
            "externalPrometheusUrl": "http://p", "externalPrometheusHealthProbe": {"interval": 30, "timeout": 10,
            "maxRetries": 5},
            "accountingLabelKey": "kai.scheduler/accounting", "accountingLabelValue": "true"},
    })
}

/// Specs that KAI's CRDs refuse: plural, what is wrong with it, the spec.
pub(crate) fn refused() -> Vec<(&'static str, &'static str, Value)> {
    let levels = |labels: &[&str]| json!({"levels": labels.iter().map(|label| json!({"nodeLabel": label})).collect::<Vec<_>>()});
    let many: Vec<_> = (0..17).map(|i| format!("l{i}")).collect();
    vec![
        ("podgroups", "minMember below 0", json!({"minMember": -1})),
        ("podgroups", "unknown preemptibility", json!({"preemptibility": "sometimes"})),
        ("podgroups", "a sub-group without name", json!({"subGroups": [{"minMember": 1}]})),
        ("podgroups", "a sub-group's name in capitals", json!({"subGroups": [{"name": "Workers"}]})),
        ("queues", "a priority that is no integer", json!({"priority": "high"})),
        ("queues", "a quota that is no number", json!({"resources": {"gpu": {"quota": "2"}}})),
        ("topologies", "no level", levels(&[])),
        ("topologies", "17 levels", levels(&many.iter().map(String::as_str).collect::<Vec<_>>())),
        ("topologies", "a level twice", levels(&["rack", "rack"])),
        ("topologies", "hostname not last", levels(&["kubernetes.io/hostname", "rack"])),
        ("topologies", "a label key with a space", levels(&["a b"])),
        ("schedulingshards", "a memory ratio above 1", json!({"goMemLimitRatio": 1.5})),
        ("schedulingshards", "a memory ratio of 0", json!({"goMemLimitRatio": 0})),
        ("schedulingshards", "usage without a client", json!({"usageDBConfig": {"connectionString": "x"}})),
        ("configs", "an unknown update mode", json!({"global": {"vpa": {"updatePolicy": {"updateMode": "Sometimes"}}}})),
    ]
}
