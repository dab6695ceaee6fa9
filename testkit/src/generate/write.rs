//! A drawn cluster as Kubernetes objects. Names and creation times keep the order in which things were drawn: running work is
//! older than pending work, and jobs are created one second apart.

use std::io::{self, Write};

use super::objects::{Meta, NOW_SECOND, Node, Pod, PodGroup, Queue, SnapshotWriter, priority_class, topology, uid};
use super::{Cluster, Gpus, Job, Place, PriorityClass};

const NAMESPACE: &str = "jobs";
const RESERVATION: &str = "kai-resource-reservation";
const RACK: &str = "topology.example.com/rack";
const BLOCK: &str = "topology.example.com/block";
const HOST: &str = "kubernetes.io/hostname";
const RACKS_PER_BLOCK: usize = 8;

/// Millicores and MiB that a node has for each GPU, and that a pod asks for with each.
const NODE_PER_GPU: (u64, u64) = (24_000, 256 * 1024);
const POD_PER_GPU: (u64, u64) = (8_000, 64 * 1024);

impl Cluster {
    /// Writes the snapshot and returns the sink, not flushed. Fails when the sink does.
    pub fn write<W: Write>(&self, out: W) -> io::Result<W> {
        let mut snapshot = SnapshotWriter::begin(out, &self.shape.actions)?;
        snapshot.list("nodes", (0..self.cordoned.len()).map(|i| self.node(i)))?;
        snapshot.list("queues", (0..self.queues.len()).map(|i| self.queue(i)))?;
        snapshot.list("priorityClasses", PriorityClass::ALL.iter().map(|class| priority_class(class.name(), class.value())))?;
        snapshot.list("topologies", std::iter::once(topology("cluster", &[BLOCK, RACK, HOST])))?;
        snapshot.list("podGroups", self.jobs.iter().enumerate().map(|(i, job)| self.pod_group(i, job)))?;
        let numbers = self.jobs.iter().scan(0, |next, job| {
            let first = *next;
            *next += job.pods as usize;
            Some(first)
        });
        let members = self
            .jobs
            .iter()
            .enumerate()
            .zip(numbers)
            .flat_map(|((i, job), first)| (0..job.pods as usize).map(move |k| self.pod(i, job, k, first + k)));
        snapshot.list("pods", members.chain((0..self.cards.len()).map(|card| self.reservation(card))))?;
        snapshot.finish()
    }

    fn node(&self, i: usize) -> Node<'_> {
        let shape = &self.shape;
        let name = node_name(i);
        // Evenly: node i of n is in rack i × racks / n.
        let rack = i * (shape.racks as usize) / self.cordoned.len();
        let mut labels = vec![
            (HOST, name.clone()),
            (RACK, format!("rack-{rack:04}")),
            (BLOCK, format!("block-{:03}", rack / RACKS_PER_BLOCK)),
        ];
        if shape.gpus > 0 {
            labels.push(("nvidia.com/gpu.count", shape.gpus.to_string()));
            labels.push(("nvidia.com/gpu.memory", "81920".to_owned()));
            labels.push(("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3".to_owned()));
        }
        let parts = u64::from(shape.gpus).max(1);
        Node {
            meta: Meta { uid: uid(1, i), labels, created_second: NOW_SECOND - 90 * 86_400, name, ..Meta::default() },
            cpu_milli: parts * NODE_PER_GPU.0,
            memory_mib: parts * NODE_PER_GPU.1,
            gpus: shape.gpus,
            pods: 250,
            cordoned: self.cordoned[i],
        }
    }

    fn queue(&self, i: usize) -> Queue<'_> {
        let queue = &self.queues.queues[i];
        let age = i64::try_from(self.queues.len() - i).unwrap_or(i64::MAX);
        Queue {
            meta: Meta {
                name: queue.name.clone(),
                uid: uid(2, i),
                created_second: NOW_SECOND - 80 * 86_400 - age,
                ..Meta::default()
            },
            parent: queue.parent.map(|parent| self.queues.queues[parent].name.clone()),
            gpu_quota: Some(queue.quota),
            gpu_limit: queue.limit,
        }
    }

    /// Job `i` of n was created n - i seconds before the snapshot.
    fn created_second(&self, i: usize) -> i64 {
        NOW_SECOND - i64::try_from(self.jobs.len() - i).unwrap_or(i64::MAX)
    }

    fn pod_group(&self, i: usize, job: &Job) -> PodGroup<'_> {
        let created_second = self.created_second(i);
        let annotations = if job.places.is_empty() {
            Vec::new()
        } else {
            vec![("kai.scheduler/last-start-timestamp", super::objects::rfc3339(created_second))]
        };
        PodGroup {
            meta: Meta {
                name: job_name(i),
                namespace: NAMESPACE,
                uid: uid(3, i),
                annotations,
                created_second,
                ..Meta::default()
            },
            queue: &self.queues.leaf(job.leaf).name,
            priority_class: job.class.name(),
            min_member: job.min,
        }
    }

    fn pod(&self, i: usize, job: &Job, k: usize, number: usize) -> Pod<'_> {
        let place = job.places.get(k);
        let mut annotations = vec![("pod-group-name", job_name(i))];
        let mut labels = vec![("kai.scheduler/queue", self.queues.leaf(job.leaf).name.clone())];
        let milli = match job.gpus {
            Gpus::Whole(0) => 500,
            Gpus::Whole(count) => u64::from(count) * 1000,
            Gpus::Milli(milli) => {
                annotations.push(("gpu-fraction", format!("0.{milli:03}").trim_end_matches('0').to_owned()));
                u64::from(milli)
            }
        };
        if let Some(Place { card, .. }) = place {
            let kind = if card.is_some() { "Fraction" } else { "Regular" };
            annotations.push(("received-resource-type", kind.to_owned()));
            labels.extend(card.map(|card| ("runai-gpu-group", group_name(card as usize))));
        }
        Pod {
            meta: Meta {
                name: format!("{}-{k}", job_name(i)),
                namespace: NAMESPACE,
                uid: uid(4, number),
                labels,
                annotations,
                created_second: self.created_second(i),
            },
            cpu_milli: milli * POD_PER_GPU.0 / 1000,
            memory_mib: milli * POD_PER_GPU.1 / 1000,
            gpus: if let Gpus::Whole(count) = job.gpus { count } else { 0 },
            node: place.map(|place| node_name(place.node as usize)),
            required_label: None,
        }
    }

    /// The placeholder that holds a shared card (wire-contract.md §3.5).
    fn reservation(&self, card: usize) -> Pod<'_> {
        Pod {
            meta: Meta {
                name: format!("gpu-reservation-{card:06}"),
                namespace: RESERVATION,
                uid: uid(5, card),
                labels: vec![("app", RESERVATION.to_owned()), ("runai-gpu-group", group_name(card))],
                annotations: Vec::new(),
                created_second: NOW_SECOND - 86_400,
            },
            cpu_milli: 1,
            memory_mib: 10,
            gpus: 1,
            node: Some(node_name(self.cards[card] as usize)),
            required_label: None,
        }
    }
}

fn node_name(i: usize) -> String {
    format!("node-{i:06}")
}

fn job_name(i: usize) -> String {
    format!("job-{i:07}")
}

fn group_name(card: usize) -> String {
    uid(6, card)
}
