//! What was decided about a cluster and is not to be seen in it yet: the next cycle plans with it as if it were.
//!
//! An assumption is about one pod, by name and uid, and ends as soon as the cluster shows it, or shows that it cannot come true
//! ([`crate::live::Live::settle`]); whoever writes ends it when the write has failed. Not known here: writes, and time.

use std::sync::Arc;

use ahash::{AHashMap, AHashSet};
use jiff::{SignedDuration, Timestamp};

use crate::gangs::GangFacts;
use crate::names::ObjectName;
use crate::pods::{BindFacts, Phase, PodFacts};

/// What becomes of a pod.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Becomes {
    /// It is being bound.
    Placed {
        /// Where.
        node: String,
        /// The shared GPUs it takes.
        groups: Vec<String>,
    },
    /// It was told to leave.
    Leaves {
        /// When.
        since: Timestamp,
    },
    /// It is not tried for a while.
    Waits,
}

/// Times of a pod group, in nanoseconds since 1970.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GangBecomes {
    /// When it began to run.
    pub started: Option<i64>,
    /// When it was evicted.
    pub evicted: Option<i64>,
}

/// A write that has succeeded shows within this, or something undid it.
const SHOWS_WITHIN: SignedDuration = SignedDuration::from_secs(30);

#[derive(Clone, PartialEq, Eq, Debug)]
struct OfPod {
    uid: String,
    becomes: Becomes,
    /// When the write succeeded.
    written: Option<Timestamp>,
    /// Uid of the BindRequest that was made for it.
    request: Option<String>,
}

/// All of it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Assumed {
    pods: AHashMap<ObjectName, OfPod>,
    gangs: AHashMap<ObjectName, GangBecomes>,
    /// Uids of pod groups that are not tried.
    aside: AHashMap<ObjectName, String>,
}

impl Assumed {
    /// Assumes something about a pod, in place of what was.
    pub fn pod(&mut self, name: ObjectName, uid: String, becomes: Becomes) {
        self.pods.insert(name, OfPod { uid, becomes, written: None, request: None });
    }

    /// The write has succeeded; `request`: uid of the BindRequest that it made.
    pub fn written(&mut self, name: &ObjectName, uid: &str, now: Timestamp, request: Option<String>) {
        if let Some(pod) = self.pods.get_mut(name).filter(|pod| pod.uid == uid) {
            (pod.written, pod.request) = (Some(now), request);
        }
    }

    /// Assumes nothing about a pod any more.
    pub fn forget(&mut self, name: &ObjectName, uid: &str) {
        if self.pods.get(name).is_some_and(|pod| pod.uid == uid) {
            self.pods.remove(name);
        }
    }

    /// Assumes times of a pod group, beside what was.
    pub fn gang(&mut self, name: ObjectName, becomes: GangBecomes) {
        let known = self.gangs.entry(name).or_default();
        known.started = becomes.started.or(known.started);
        known.evicted = becomes.evicted.or(known.evicted);
    }

    /// A pod group is not tried any more, as long as it is the same object.
    pub fn set_aside(&mut self, name: ObjectName, uid: String) {
        self.aside.insert(name, uid);
    }

    /// What is assumed of a pod.
    #[must_use]
    pub fn of(&self, name: &ObjectName) -> Option<&Becomes> {
        self.pods.get(name).map(|pod| &pod.becomes)
    }

    /// Pods that something is assumed of.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    /// Whether nothing is assumed of any pod.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    pub(crate) fn apply(&self, pods: &mut [Arc<PodFacts>], gangs: &mut [GangFacts], binds: &mut Vec<BindFacts>) {
        if !self.pods.is_empty() {
            // They stand in place of requests that failed, or that an earlier pod of the name left behind.
            let placed = self.pods.iter().filter(|(_, pod)| matches!(pod.becomes, Becomes::Placed { .. })).map(|(name, _)| name);
            let placed: AHashSet<(&str, &str)> = placed.map(ObjectName::parts).collect();
            if !placed.is_empty() {
                binds.retain(|bind| !placed.contains(&(bind.name.namespace.as_str(), bind.pod.as_str())));
            }
            for pod in pods {
                let Some(assumed) = self.pods.get(&pod.name).filter(|assumed| assumed.uid == pod.uid) else { continue };
                match &assumed.becomes {
                    Becomes::Placed { node, groups } => {
                        binds.push(BindFacts {
                            name: pod.name.clone(),
                            pod: pod.name.name.clone(),
                            node: node.clone(),
                            groups: groups.clone(),
                            owner: Some(pod.uid.clone()),
                        });
                    }
                    Becomes::Leaves { since } => {
                        let pod = Arc::make_mut(pod);
                        pod.told = pod.deleted.is_none();
                        pod.deleted = pod.deleted.or(Some(*since));
                    }
                    Becomes::Waits => Arc::make_mut(pod).gated = true,
                }
            }
        }
        if !self.gangs.is_empty() || !self.aside.is_empty() {
            for gang in gangs {
                gang.backed_off |= self.aside.get(&gang.name).is_some_and(|uid| *uid == gang.uid);
                let Some(assumed) = self.gangs.get(&gang.name) else { continue };
                gang.times.started = gang.times.started.max(assumed.started);
                gang.times.evicted = gang.times.evicted.max(assumed.evicted);
            }
        }
    }

    pub(crate) fn settle<'a>(
        &mut self,
        now: Timestamp,
        pod: impl Fn(&ObjectName) -> Option<&'a PodFacts>,
        gang: impl Fn(&ObjectName) -> Option<&'a GangFacts>,
        requested: impl Fn(&ObjectName, &str) -> bool,
    ) {
        self.pods.retain(|name, assumed| {
            let Some(seen) = pod(name).filter(|seen| seen.uid == assumed.uid) else { return false };
            let ended = matches!(seen.phase, Phase::Succeeded | Phase::Failed);
            match assumed.becomes {
                _ if ended || assumed.written.is_some_and(|written| now.duration_since(written) > SHOWS_WITHIN) => false,
                Becomes::Placed { .. } => {
                    seen.node.is_none() && !assumed.request.as_ref().is_some_and(|request| requested(name, request))
                }
                Becomes::Leaves { .. } => seen.deleted.is_none(),
                Becomes::Waits => seen.node.is_none(),
            }
        });
        self.aside.retain(|name, uid| gang(name).is_some_and(|seen| seen.uid == *uid));
        self.gangs.retain(|name, assumed| {
            gang(name).is_some_and(|seen| seen.times.started < assumed.started || seen.times.evicted < assumed.evicted)
        });
    }
}
