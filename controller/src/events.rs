//! Events: what happened to an object, for people. Best effort, never waited for, and not said twice within a while: nothing
//! needs them to work.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::PostParams;
use kube::{Api, Client};
use muster_api::names::ObjectName;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::calls::Writer;

/// More than this many wait: the newest are dropped.
const MOST_WAITING: usize = 16_384;
/// Sent at once.
const SENDERS: usize = 8;
/// What was said is remembered of this many.
const MOST_REMEMBERED: usize = 65_536;
/// The same is said again after this.
const REPEATED_AFTER: Duration = Duration::from_secs(600);
/// A message is cut there; the server refuses more than 1024 bytes.
const MESSAGE_MAX: usize = 1000;

/// What an event is about.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct About {
    /// `Pod`, `PodGroup` …
    pub kind: &'static str,
    /// Its group and version.
    pub api_version: &'static str,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Uid.
    pub uid: String,
}

impl About {
    /// A pod.
    #[must_use]
    pub fn pod(pod: &ObjectName, uid: &str) -> Self {
        let (namespace, name) = (pod.namespace.clone(), pod.name.clone());
        Self { kind: "Pod", api_version: "v1", namespace, name, uid: uid.to_owned() }
    }

    /// A pod as the server shows it.
    #[must_use]
    pub fn this_pod(metadata: &ObjectMeta) -> Self {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let (namespace, name, uid) = (text(&metadata.namespace), text(&metadata.name), text(&metadata.uid));
        Self { kind: "Pod", api_version: "v1", namespace, name, uid }
    }

    /// A pod group.
    #[must_use]
    pub fn gang(gang: &ObjectName, uid: String) -> Self {
        let (namespace, name) = (gang.namespace.clone(), gang.name.clone());
        Self { kind: "PodGroup", api_version: "scheduling.run.ai/v2alpha2", namespace, name, uid }
    }
}

/// Whether an event is good news.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tone {
    /// It is.
    Normal,
    /// Somebody should look.
    Warning,
}

/// Something that happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Happened {
    /// To what.
    pub about: About,
    /// Good news or not.
    pub tone: Tone,
    /// In CamelCase, one of KAI's.
    pub reason: &'static str,
    /// In words.
    pub message: String,
    /// Annotations of the event.
    pub annotations: Vec<(&'static str, String)>,
    /// Whether to say it again though the same was said a moment ago.
    pub always: bool,
}

impl Happened {
    /// That, unless it was said a moment ago.
    #[must_use]
    pub fn new(about: About, tone: Tone, reason: &'static str, message: impl Into<String>) -> Self {
        Self { about, tone, reason, message: message.into(), annotations: Vec::new(), always: false }
    }

    /// The same, whatever was said before.
    #[must_use]
    pub fn always(self) -> Self {
        Self { always: true, ..self }
    }
}

/// Where events go. Copies lead to the same place.
#[derive(Clone, Debug)]
pub struct Events {
    sender: mpsc::Sender<Happened>,
}

impl Events {
    /// Sends what comes until all copies are gone.
    #[must_use]
    pub fn start(client: Client, component: &str, writer: &Writer, tasks: &mut JoinSet<()>) -> Self {
        let (component, writer) = (component.to_owned(), writer.apart());
        let (sender, mut receiver) = mpsc::channel::<Happened>(MOST_WAITING);
        tasks.spawn(async move {
            let mut said = Said::default();
            let mut sending = JoinSet::new();
            while let Some(happened) = receiver.recv().await {
                if !happened.always && !said.is_new(&happened, Instant::now()) {
                    continue;
                }
                if sending.len() >= SENDERS {
                    sending.join_next().await;
                }
                let api: Api<Event> = Api::namespaced(client.clone(), &happened.about.namespace);
                let event = event_of(happened, &component, Timestamp::now());
                let writer = writer.clone();
                sending.spawn(async move {
                    if let Err((failed, _)) = writer.write(|| async { api.create(&PostParams::default(), &event).await }).await {
                        tracing::debug!(%failed, "an event was not written");
                    }
                });
            }
        });
        Self { sender }
    }

    /// Says that something happened. Dropped if too many wait.
    pub fn say(&self, happened: Happened) {
        let _ = self.sender.try_send(happened);
    }
}

/// What was said lately: hashes of object, reason and message, and when it was said first.
#[derive(Default)]
struct Said(HashMap<u64, Instant>);

impl Said {
    fn is_new(&mut self, happened: &Happened, now: Instant) -> bool {
        if self.0.len() >= MOST_REMEMBERED {
            self.0.retain(|_, at| now.duration_since(*at) < REPEATED_AFTER);
            if self.0.len() >= MOST_REMEMBERED {
                self.0.clear();
            }
        }
        let mut hasher = DefaultHasher::new();
        (&happened.about, happened.reason, &happened.message).hash(&mut hasher);
        let hash = hasher.finish();
        // The first time counts, or it would never be said again.
        let is_new = self.0.get(&hash).is_none_or(|at| now.duration_since(*at) >= REPEATED_AFTER);
        if is_new {
            self.0.insert(hash, now);
        }
        is_new
    }
}

fn event_of(happened: Happened, component: &str, now: Timestamp) -> Event {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let About { kind, api_version, namespace, name, uid } = happened.about;
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    // As client-go names them, with a number so that two of one nanosecond differ.
    let own_name: String = name.chars().take(200).collect();
    let own_name = format!("{own_name}.{:x}{number:04x}", now.as_nanosecond());
    let time = Time(now);
    Event {
        metadata: ObjectMeta {
            name: Some(own_name),
            namespace: Some(namespace.clone()),
            annotations: (!happened.annotations.is_empty())
                .then(|| happened.annotations.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some(api_version.to_owned()),
            kind: Some(kind.to_owned()),
            namespace: Some(namespace),
            name: Some(name),
            uid: Some(uid),
            ..ObjectReference::default()
        },
        reason: Some(happened.reason.to_owned()),
        message: Some(cut(happened.message)),
        type_: Some(format!("{:?}", happened.tone)),
        source: Some(EventSource { component: Some(component.to_owned()), host: None }),
        reporting_component: Some(component.to_owned()),
        first_timestamp: Some(time.clone()),
        last_timestamp: Some(time),
        count: Some(1),
        ..Event::default()
    }
}

fn cut(mut message: String) -> String {
    if message.len() > MESSAGE_MAX {
        let end = (0..=MESSAGE_MAX).rev().find(|&at| message.is_char_boundary(at)).unwrap_or(0);
        message.truncate(end);
        message.push('…');
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn happened(uid: &str, message: &str) -> Happened {
        let about = About { kind: "Pod", api_version: "v1", namespace: "n".into(), name: "p".into(), uid: uid.into() };
        Happened::new(about, Tone::Warning, "Unschedulable", message)
    }

    #[test]
    fn the_same_is_said_once_for_a_while() {
        let (mut said, now) = (Said::default(), Instant::now());
        assert!(said.is_new(&happened("a", "x"), now));
        assert!(said.is_new(&happened("b", "x"), now), "of another object");
        assert!(!said.is_new(&happened("a", "x"), now + REPEATED_AFTER / 2));
        assert!(said.is_new(&happened("a", "x"), now + REPEATED_AFTER), "the first time counts");
        assert!(said.is_new(&happened("a", "y"), now + REPEATED_AFTER));
        assert!(!said.is_new(&happened("a", "x"), now + REPEATED_AFTER + REPEATED_AFTER / 2), "in turns with another");
    }

    #[test]
    fn long_messages_are_cut_between_characters() {
        let event = event_of(happened("a", &"ä".repeat(2000)), "kai-scheduler", Timestamp::UNIX_EPOCH);
        assert!(event.message.is_some_and(|message| message.len() <= 1024 && message.ends_with('…')));
    }
}
