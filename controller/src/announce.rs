//! Events: what happened to an object, for people. Never needed for anything to work, so a failure is only logged.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::PostParams;
use kube::{Api, Client};

use crate::calls::write;
use crate::lease::Lead;

/// The same is not said again within this time.
const REPEAT: Duration = Duration::from_secs(300);
/// What is remembered about it at most.
const MOST_REMEMBERED: usize = 10_000;

/// Whether an event is good news.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Tone {
    /// It is.
    Normal,
    /// Somebody should look.
    Warning,
}

/// Says things about objects.
pub struct Announcer {
    client: Client,
    lead: Lead,
    /// Who says it, e.g. `binder`.
    component: String,
    said: Mutex<HashMap<u64, Instant>>,
}

/// A pod, to say something about.
#[must_use]
pub fn pod_reference(metadata: &ObjectMeta) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        name: metadata.name.clone(),
        namespace: metadata.namespace.clone(),
        uid: metadata.uid.clone(),
        ..ObjectReference::default()
    }
}

impl Announcer {
    /// One that speaks for a component.
    #[must_use]
    pub fn new(client: Client, lead: Lead, component: &str) -> Self {
        Self { client, lead, component: component.to_owned(), said: Mutex::default() }
    }

    /// Says it, unless it was said a moment ago.
    pub async fn say(&self, about: &ObjectReference, tone: Tone, reason: &str, message: &str) {
        if !self.is_new(about, tone, reason, message) {
            return;
        }
        let now = Timestamp::now();
        let name = about.name.as_deref().unwrap_or_default();
        let event = Event {
            metadata: ObjectMeta {
                name: Some(format!("{name}.{:x}", now.as_nanosecond())),
                namespace: about.namespace.clone(),
                ..ObjectMeta::default()
            },
            involved_object: about.clone(),
            type_: Some(format!("{tone:?}")),
            reason: Some(reason.to_owned()),
            message: Some(message.chars().take(1024).collect()),
            source: Some(EventSource { component: Some(self.component.clone()), host: None }),
            first_timestamp: Some(Time(now)),
            last_timestamp: Some(Time(now)),
            count: Some(1),
            ..Event::default()
        };
        let api: Api<Event> = Api::namespaced(self.client.clone(), about.namespace.as_deref().unwrap_or("default"));
        if let Err(error) = write(&self.lead, api.create(&PostParams::default(), &event)).await {
            tracing::debug!(%error, object = name, reason, "an event could not be written");
        }
    }

    fn is_new(&self, about: &ObjectReference, tone: Tone, reason: &str, message: &str) -> bool {
        let mut hasher = DefaultHasher::new();
        (about.uid.as_deref(), about.name.as_deref(), about.namespace.as_deref(), tone, reason, message).hash(&mut hasher);
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.len() >= MOST_REMEMBERED {
            said.retain(|_, when| when.elapsed() < REPEAT);
            if said.len() >= MOST_REMEMBERED {
                said.clear();
            }
        }
        let now = Instant::now();
        let before = said.insert(hasher.finish(), now);
        before.is_none_or(|when| now.duration_since(when) >= REPEAT)
    }
}
