//! Shared GPUs: each has one reservation pod that holds the card for its group (wire-contract.md §3.4–3.6).
//!
//! The name of such a pod follows from node and group, so that making it twice gives one. It is cleared away when nobody uses or
//! wants the group; pods that run in a group whose card is held no longer are ended, since the card may be anybody's.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1::{Pod, Toleration};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client, Resource as _};
use muster_api::names::ObjectName;
use muster_api::sharing::{self, GROUP_LABEL};
use serde_json::json;

use crate::binder_known::{Group, Holder, Known, Member, Part};
use crate::calls::{Failed, Writer, read, settled};
use crate::events::{About, Events, Happened, Tone};
use crate::run;

/// What a pod in a group without a reservation is told.
const LOST: &str = "ReservationLost";

/// Why a group cannot be had.
#[derive(Debug)]
pub(crate) enum Unheld {
    /// For people; trying the same again is of little use.
    Refused(String),
    /// A request failed, it may pass.
    Failed(Failed),
    /// The reservation is in a state that passes.
    Passing(String),
}

impl From<Failed> for Unheld {
    fn from(failed: Failed) -> Self {
        if failed.is_final() { Self::Refused(failed.to_string()) } else { Self::Failed(failed) }
    }
}

/// Makes reservations and clears them away.
pub(crate) struct Reservations {
    pub(crate) client: Client,
    pub(crate) writer: Writer,
    pub(crate) known: Arc<Known>,
    pub(crate) settings: run::Reservation,
    pub(crate) events: Events,
    /// Running pods are left alone even if their card is lost.
    pub(crate) spare: bool,
    pub(crate) locks: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

/// `gpu-reservation-` and the first 8 bytes of SHA-256 of `<node>/<group>`.
pub(crate) fn reservation_name(node: &str, group: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, format!("{node}/{group}").as_bytes());
    digest.as_ref().iter().take(8).fold("gpu-reservation-".to_owned(), |mut name, byte| {
        let _ = write!(name, "{byte:02x}");
        name
    })
}

/// What has to be done about a group.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Nothing,
    /// Nobody needs what these hold, or they hold nothing.
    Release(Vec<Holder>),
    /// They run on a card that is not held.
    End(Vec<Member>),
    /// They carry the label of an attempt that came to nothing.
    Strip(Vec<Member>),
}

/// Judges a group by what is known of it.
pub(crate) fn verdict(group: &Group) -> Verdict {
    let over: Vec<_> = group.holders.iter().filter(|holder| holder.ended).cloned().collect();
    if !over.is_empty() {
        return Verdict::Release(over);
    }
    let bound = |member: &&Member| member.node.is_some() && !member.ended;
    let stale = |member: &&Member| member.node.is_none() && !member.ended && !group.asking.contains(&member.name);
    if !group.wanted {
        let stale: Vec<_> = group.members.iter().filter(stale).cloned().collect();
        if !stale.is_empty() {
            return Verdict::Strip(stale);
        }
    }
    let used = group.members.iter().any(|member| bound(&member));
    match (group.holders.is_empty(), used) {
        (true, true) => {
            let running: Vec<_> = group.members.iter().filter(bound).filter(|member| member.running).cloned().collect();
            if running.is_empty() { Verdict::Nothing } else { Verdict::End(running) }
        }
        (false, false) if !group.wanted => {
            let held: Vec<_> = group.holders.iter().filter(|holder| !holder.deleting).cloned().collect();
            if held.is_empty() { Verdict::Nothing } else { Verdict::Release(held) }
        }
        _ => Verdict::Nothing,
    }
}

impl Reservations {
    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.settings.namespace)
    }

    fn lock_of(&self, group: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever holds or waits for a lock has a copy.
        locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        Arc::clone(locks.entry(group.to_owned()).or_default())
    }

    /// Sees to it that a reservation for the group is there or being started; its name. `pod` is the one that needs it.
    pub(crate) async fn ensure(&self, node: &str, group: &str, pod: &Pod, fake: bool) -> Result<String, Unheld> {
        let lock = self.lock_of(group);
        let _held = lock.lock().await;
        let known = self.known.group(group);
        let live = known.holders.iter().filter(|holder| !holder.ended);
        // Older versions gave names by chance: whichever is there counts.
        if let Some(holder) = live.min_by_key(|holder| (holder.gpu.is_none(), holder.name.clone())) {
            return self.there(&holder.name, node, group).await;
        }
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        if let Some(other) = known.members.iter().find(|other| other.node.is_some() && !other.ended && other.uid != uid) {
            let said = format!("GPU group {group} is used by {} but its card is not held any more", other.name);
            return Err(Unheld::Refused(said));
        }
        if self.known.scales_up() {
            return Err(Unheld::Refused("a cluster autoscaler is adding nodes: no card is taken until it is done".to_owned()));
        }
        let name = reservation_name(node, group);
        let tolerations: &[Toleration] = pod.spec.as_ref().and_then(|spec| spec.tolerations.as_deref()).unwrap_or_default();
        let wanted = sharing::reservation_pod(sharing::Reservation {
            name: &name,
            namespace: &self.settings.namespace,
            node,
            group,
            app_label: &self.settings.app_label,
            image: &self.settings.image,
            service_account: &self.settings.service_account,
            runtime_class: &self.settings.runtime_class,
            tolerations,
            fake,
        });
        match self.writer.once(self.pods().create(&PostParams::default(), &wanted)).await {
            Ok(made) => {
                // So that who comes next under the lock knows of it.
                self.known.meet_holder(&made, &self.settings.namespace);
                Ok(name)
            }
            Err(failed) if failed.is_already_exists() => self.there(&name, node, group).await,
            Err(failed) => Err(failed.into()),
        }
    }

    /// Whether a reservation that is said to be there is, and can be used; its name.
    async fn there(&self, name: &str, node: &str, group: &str) -> Result<String, Unheld> {
        let namespace = &self.settings.namespace;
        let Some(pod) = read(self.pods().get_opt(name)).await? else {
            self.forget(name);
            return Err(Unheld::Passing(format!("reservation pod {name} is gone")));
        };
        let Part::Holder(holder) = Part::of(&pod, namespace) else {
            return Err(Unheld::Refused(format!("reservation pod {name} does not stand for a GPU group")));
        };
        if holder.group != group {
            return Err(Unheld::Refused(format!("reservation pod {name} stands for GPU group {}, not {group}", holder.group)));
        }
        if holder.node != node {
            let said = format!("GPU group {group} is on node {} (reservation pod {name}), not on {node}", holder.node);
            return Err(Unheld::Refused(said));
        }
        if holder.ended || holder.deleting {
            return Err(Unheld::Passing(format!("reservation pod {name} is going")));
        }
        self.known.meet_holder(&pod, namespace);
        Ok(holder.name)
    }

    fn forget(&self, name: &str) {
        let namespace = self.settings.namespace.clone();
        self.known.remove_pod(&ObjectName { namespace: namespace.clone(), name: name.to_owned() }, &namespace);
    }

    /// Waits until the reservation says which GPU it has.
    pub(crate) async fn gpu(&self, name: &str, group: &str) -> Result<String, Unheld> {
        let patience = self.settings.patience;
        let mut changes = self.known.changes();
        let told = async {
            loop {
                changes.borrow_and_update();
                match self.known.holder(name) {
                    Some(holder) if holder.ended => {
                        return Err(Unheld::Refused(format!("reservation pod {name} failed on node {}", holder.node)));
                    }
                    Some(holder) => {
                        if let Some(gpu) = &holder.gpu {
                            return match self.known.other_with(&holder) {
                                Some(other) => Err(Unheld::Refused(format!("GPU {gpu} is held for GPU group {other} as well"))),
                                None => Ok(gpu.clone()),
                            };
                        }
                    }
                    None => return Err(Unheld::Passing(format!("reservation pod {name} is gone"))),
                }
                if changes.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        match tokio::time::timeout(patience, told).await {
            Ok(answer) => answer,
            Err(_) => self.give_up(name, group).await,
        }
    }

    /// After the last patience: one more look, then the pod is taken away.
    async fn give_up(&self, name: &str, group: &str) -> Result<String, Unheld> {
        let lock = self.lock_of(group);
        let _held = lock.lock().await;
        match read(self.pods().get_opt(name)).await? {
            Some(pod) => {
                if let Part::Holder(Holder { gpu: Some(gpu), .. }) = Part::of(&pod, &self.settings.namespace) {
                    return Ok(gpu);
                }
                self.delete(&pod).await?;
            }
            None => self.forget(name),
        }
        let seconds = self.settings.patience.as_secs();
        Err(Unheld::Refused(format!("reservation pod {name} did not say within {seconds} s which GPU it was given")))
    }

    /// Without grace: there is nothing in it that could end well or badly.
    async fn delete(&self, pod: &Pod) -> Result<(), Failed> {
        let parameters = DeleteParams { grace_period_seconds: Some(0), ..only(pod) };
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        settled(self.writer.once(self.pods().delete(name, &parameters)).await)
    }

    /// Brings a group in order. What is known decides whether anything has to be done, what the server says now whether it is.
    pub(crate) async fn sync(&self, group: &str) -> Result<(), Failed> {
        if verdict(&self.known.group(group)) == Verdict::Nothing {
            return Ok(());
        }
        let lock = self.lock_of(group);
        let _held = lock.lock().await;
        let fresh = self.look(group).await?;
        // Requests come from the watch: one that is new is carried out after this, and makes what it needs.
        let known = self.known.group(group);
        let now = Group { holders: fresh.holders, members: fresh.members, ..known };
        match verdict(&now) {
            Verdict::Nothing => {}
            Verdict::Release(holders) => {
                for holder in holders {
                    tracing::info!(group, pod = holder.name, node = holder.node, "the card is given back");
                    let parameters = DeleteParams { grace_period_seconds: Some(0), ..only_uid(&holder.uid) };
                    settled(self.writer.once(self.pods().delete(&holder.name, &parameters)).await)?;
                }
            }
            Verdict::End(members) => self.end(group, members).await?,
            Verdict::Strip(members) => {
                for member in members {
                    self.strip(&member).await?;
                }
            }
        }
        Ok(())
    }

    async fn end(&self, group: &str, members: Vec<Member>) -> Result<(), Failed> {
        for member in members {
            let said = format!("the reservation of GPU group {group} is gone, its card may be anybody's");
            self.events.say(Happened::new(About::pod(&member.name, &member.uid), Tone::Warning, LOST, said));
            tracing::warn!(pod = %member.name, group, spared = self.spare, "its card is not held any more: the pod is ended");
            if !self.spare {
                let pods: Api<Pod> = Api::namespaced(self.client.clone(), &member.name.namespace);
                settled(self.writer.once(pods.delete(&member.name.name, &only_uid(&member.uid))).await)?;
            }
        }
        Ok(())
    }

    /// Takes the group labels off a pod that was not bound after all.
    async fn strip(&self, member: &Member) -> Result<(), Failed> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &member.name.namespace);
        let Some(pod) = read(pods.get_opt(&member.name.name)).await? else { return Ok(()) };
        let placed = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).is_some_and(|node| !node.is_empty());
        let changes = sharing::label_changes(pod.meta(), &[]);
        if placed || changes.is_empty() {
            return Ok(());
        }
        // Only this version of the pod: it may be bound the next moment.
        let metadata = json!({"labels": changes, "resourceVersion": pod.metadata.resource_version});
        let patch = Patch::Merge(json!({"metadata": metadata}));
        settled(self.writer.once(pods.patch(&member.name.name, &PatchParams::default(), &patch)).await)
    }

    /// What the server says of a group now.
    async fn look(&self, group: &str) -> Result<Group, Failed> {
        let everywhere: Api<Pod> = Api::all(self.client.clone());
        let one = ListParams::default().labels(&format!("{GROUP_LABEL}={group}"));
        let several = ListParams::default().labels(&format!("{GROUP_LABEL}/{group}"));
        let (one, several) = futures::future::try_join(read(everywhere.list(&one)), read(everywhere.list(&several))).await?;
        let mut found = Group::default();
        for pod in one.items.iter().chain(&several.items) {
            match Part::of(pod, &self.settings.namespace) {
                Part::Holder(holder) => found.holders.push(holder),
                Part::Member(member) => found.members.push(member),
                Part::Scaling { .. } | Part::Nothing => {}
            }
        }
        found.members.sort_by(|a, b| a.name.cmp(&b.name));
        found.members.dedup_by(|a, b| a.name == b.name);
        Ok(found)
    }
}

/// A deletion that holds for this very pod.
fn only(pod: &Pod) -> DeleteParams {
    only_uid(pod.metadata.uid.as_deref().unwrap_or_default())
}

fn only_uid(uid: &str) -> DeleteParams {
    let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
    DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(ended: bool, deleting: bool) -> Holder {
        let text = |text: &str| text.to_owned();
        Holder { name: text("r"), uid: text("u"), node: text("n"), group: text("g"), gpu: None, ended, deleting }
    }

    fn member(name: &str, node: Option<&str>, running: bool, ended: bool) -> Member {
        let name = ObjectName { namespace: "ns".to_owned(), name: name.to_owned() };
        Member { name, uid: "u".to_owned(), node: node.map(str::to_owned), running, ended, groups: vec!["g".to_owned()] }
    }

    fn group(holders: Vec<Holder>, members: Vec<Member>, asking: &[&str]) -> Group {
        let name = |name: &&str| ObjectName { namespace: "ns".to_owned(), name: (*name).to_owned() };
        Group { holders, members, wanted: !asking.is_empty(), asking: asking.iter().map(name).collect() }
    }

    #[test]
    fn names_follow_from_node_and_group() {
        // printf node-1/group-1 | sha256sum
        assert_eq!(reservation_name("node-1", "group-1"), "gpu-reservation-ca239632e9e20d1c");
        assert_ne!(reservation_name("node-1", "group-2"), reservation_name("node-2", "group-1"));
    }

    #[test]
    fn a_card_is_held_as_long_as_it_is_used_or_wanted() {
        let held = || vec![holder(false, false)];
        let release = Verdict::Release(held());
        for (members, asking, expected) in [
            (vec![], vec![], &release),
            (vec![], vec!["p"], &Verdict::Nothing),
            (vec![member("p", Some("n"), true, false)], vec![], &Verdict::Nothing),
            (vec![member("p", Some("n"), false, false)], vec![], &Verdict::Nothing),
            (vec![member("p", Some("n"), false, true)], vec![], &release),
            // Labelled by an attempt that goes on.
            (vec![member("p", None, false, false)], vec!["p"], &Verdict::Nothing),
        ] {
            assert_eq!(&verdict(&group(held(), members.clone(), &asking)), expected, "{members:?} {asking:?}");
        }
        assert_eq!(verdict(&group(vec![holder(false, true)], vec![], &[])), Verdict::Nothing, "it is going already");
        let over = vec![holder(true, false)];
        assert_eq!(verdict(&group(over.clone(), vec![], &["p"])), Verdict::Release(over), "one that failed holds nothing");
    }

    #[test]
    fn labels_of_attempts_that_came_to_nothing_go_first() {
        let left = member("p", None, false, false);
        assert_eq!(verdict(&group(vec![holder(false, false)], vec![left.clone()], &[])), Verdict::Strip(vec![left]));
    }

    #[test]
    fn pods_that_run_on_a_lost_card_are_ended_and_no_others() {
        let running = member("a", Some("n"), true, false);
        let members = vec![running.clone(), member("b", Some("n"), false, false), member("c", Some("n"), false, true)];
        assert_eq!(verdict(&group(vec![], members.clone(), &[])), Verdict::End(vec![running]));
        assert_eq!(
            verdict(&group(vec![holder(false, true)], members, &[])),
            Verdict::Nothing,
            "one that is going still holds it"
        );
        assert_eq!(verdict(&group(vec![], vec![member("b", Some("n"), false, false)], &[])), Verdict::Nothing);
    }
}
