//! One kind of objects, followed for ever.
//!
//! First a list: streamed where the server can, else in pages. Then a watch from where the list ended. A watch that ends is
//! resumed from the last position it told (bookmarks move it on when nothing happens); if the server no longer knows that
//! position (410 Gone), everything begins with a list again. Own code where kube-runtime has a watcher, because that one does
//! not tell that a lost watch is back before its next event, and whoever decides must know.

use std::fmt::Debug;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use kube::api::{DynamicObject, ListParams, WatchEvent, WatchParams};
use kube::core::ApiResource;
use kube::{Api, Client, Resource};
use muster_api::live::{Seen, Watched};
use serde::de::DeserializeOwned;

/// Seconds after which the server ends a watch; it is resumed then.
const LIFE_SECONDS: u32 = 290;
/// The server sends a bookmark about every minute. A watch that is silent for longer may be dead without knowing it.
const SILENCE: Duration = Duration::from_secs(150);
const PAGE: u32 = 500;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// The bookmark that ends a streamed list carries this annotation.
const LIST_END: &str = "k8s.io/initial-events-end";

/// What is told about a kind, in this order: `ListBegins`, objects, `ListEnds`, changes …; at any time `Lost`, then `Resumed`
/// or a list again.
#[derive(Debug)]
pub enum Told {
    /// What follows is all there is.
    ListBegins,
    /// All there is has been told.
    ListEnds,
    /// An object is there, new or changed.
    Put(Seen),
    /// An object is gone.
    Gone {
        /// Empty for kinds without.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// The server has accepted the watch: from now on changes come by themselves.
    Resumed,
    /// The connection failed; what is known grows old. Why.
    Lost(String),
}

/// Where a watch stands.
enum Position {
    /// Nothing is known, or not from when.
    Start,
    /// All changes up to this resource version were told.
    At(String),
}

/// Why a watch ended.
enum End {
    /// As every watch does: go on at once.
    Over,
    /// The position is too old.
    Expired,
    /// The server does not stream lists.
    NoStreaming,
    /// Anything else.
    Failed(String),
}

/// Group, version and plural of a kind.
#[must_use]
pub fn resource_of(kind: Watched) -> ApiResource {
    let resource = |group: &str, version: &str, plural: &str| ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version: if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") },
        kind: kind.name().to_owned(),
        plural: plural.to_owned(),
    };
    match kind {
        Watched::Pod => resource("", "v1", "pods"),
        Watched::Node => resource("", "v1", "nodes"),
        Watched::PriorityClass => resource("scheduling.k8s.io", "v1", "priorityclasses"),
        Watched::Queue => resource("scheduling.run.ai", "v2", "queues"),
        Watched::PodGroup => resource("scheduling.run.ai", "v2alpha2", "podgroups"),
        Watched::BindRequest => resource("scheduling.run.ai", "v1alpha2", "bindrequests"),
        Watched::SchedulingShard => resource("kai.scheduler", "v1", "schedulingshards"),
        Watched::PodDisruptionBudget => resource("policy", "v1", "poddisruptionbudgets"),
    }
}

/// Follows a kind until `tell` returns false.
pub async fn follow(client: Client, kind: Watched, tell: impl FnMut(Told) -> bool + Send) {
    match kind {
        Watched::Pod => Follower::new(Api::all(client), |pod| Some(Seen::Pod(Box::new(pod))), tell).run().await,
        Watched::Node => Follower::new(Api::all(client), |node| Some(Seen::Node(Box::new(node))), tell).run().await,
        Watched::PriorityClass => {
            Follower::new(Api::all(client), |class| Some(Seen::PriorityClass(Box::new(class))), tell).run().await;
        }
        Watched::PodDisruptionBudget => {
            Follower::new(Api::all(client), |budget| Some(Seen::Budget(Box::new(budget))), tell).run().await;
        }
        ours => {
            let api: Api<DynamicObject> = Api::all_with(client, &resource_of(ours));
            let seen = move |object: DynamicObject| Some(Seen::Ours(ours, serde_json::to_value(object).ok()?));
            Follower::new(api, seen, tell).run().await;
        }
    }
}

/// All objects of a kind as they are now, page by page.
///
/// # Errors
/// If the server does not answer.
pub async fn list(client: Client, kind: Watched, tell: impl FnMut(Told) -> bool + Send) -> Result<(), kube::Error> {
    let mut follower = match kind {
        Watched::Pod => return list_as(Api::all(client), |pod| Some(Seen::Pod(Box::new(pod))), tell).await,
        Watched::Node => return list_as(Api::all(client), |node| Some(Seen::Node(Box::new(node))), tell).await,
        Watched::PriorityClass => {
            return list_as(Api::all(client), |class| Some(Seen::PriorityClass(Box::new(class))), tell).await;
        }
        Watched::PodDisruptionBudget => {
            return list_as(Api::all(client), |budget| Some(Seen::Budget(Box::new(budget))), tell).await;
        }
        ours => {
            let api: Api<DynamicObject> = Api::all_with(client, &resource_of(ours));
            let seen = move |object: DynamicObject| Some(Seen::Ours(ours, serde_json::to_value(object).ok()?));
            Follower::new(api, seen, tell)
        }
    };
    follower.pages().await.map(drop)
}

async fn list_as<K, S, T>(api: Api<K>, seen: S, tell: T) -> Result<(), kube::Error>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    S: Fn(K) -> Option<Seen>,
    T: FnMut(Told) -> bool,
{
    Follower::new(api, seen, tell).pages().await.map(drop)
}

struct Follower<K, S, T> {
    api: Api<K>,
    /// The object for the fold; `None` if it cannot be.
    seen: S,
    tell: T,
    streaming: bool,
    /// Whoever listens has had enough.
    stopped: bool,
    pause: Duration,
}

impl<K, S, T> Follower<K, S, T>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    S: Fn(K) -> Option<Seen>,
    T: FnMut(Told) -> bool,
{
    fn new(api: Api<K>, seen: S, tell: T) -> Self {
        Self { api, seen, tell, streaming: true, stopped: false, pause: FIRST_PAUSE }
    }

    fn say(&mut self, told: Told) {
        self.stopped |= !(self.tell)(told);
    }

    fn say_put(&mut self, object: K) {
        if let Some(seen) = (self.seen)(object) {
            self.say(Told::Put(seen));
        }
    }

    async fn run(mut self) {
        let mut position = Position::Start;
        while !self.stopped {
            let end = match &position {
                Position::Start if !self.streaming => match self.pages().await {
                    Ok(version) => {
                        position = Position::At(version);
                        continue;
                    }
                    Err(error) => failure(&error),
                },
                _ => self.watch(&mut position).await,
            };
            match end {
                End::Over => {}
                End::Expired => position = Position::Start,
                End::NoStreaming => self.streaming = false,
                End::Failed(why) => {
                    self.say(Told::Lost(why));
                    tokio::time::sleep(self.pause).await;
                    self.pause = (self.pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    /// A whole list in pages; its resource version.
    async fn pages(&mut self) -> Result<String, kube::Error> {
        self.say(Told::ListBegins);
        let mut parameters = ListParams::default().limit(PAGE);
        loop {
            let page = self.api.list(&parameters).await?;
            for object in page.items {
                self.say_put(object);
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => parameters = parameters.continue_token(&token),
                None => {
                    self.say(Told::ListEnds);
                    return Ok(page.metadata.resource_version.unwrap_or_default());
                }
            }
        }
    }

    /// A watch from `position`, with a list before it if that is the start.
    async fn watch(&mut self, position: &mut Position) -> End {
        let mut parameters = WatchParams::default().timeout(LIFE_SECONDS);
        let mut listing = matches!(position, Position::Start);
        if listing {
            parameters = parameters.initial_events();
        }
        // No version: as fresh as the server's storage, not as its cache.
        let from = if let Position::At(version) = position { version.as_str() } else { "" };
        let mut events: BoxStream<'_, _> = match self.api.watch(&parameters, from).await {
            Ok(events) => events.boxed(),
            Err(kube::Error::Api(status)) if listing && matches!(status.code, 400 | 422) => return End::NoStreaming,
            Err(error) => return failure(&error),
        };
        self.say(if listing { Told::ListBegins } else { Told::Resumed });
        while !self.stopped {
            let event = match tokio::time::timeout(SILENCE, events.next()).await {
                Err(_) => return End::Failed(format!("silent for {} s", SILENCE.as_secs())),
                // A list that broke off is begun again, but not at once: the server may be ending.
                Ok(None) if listing => return End::Failed("the list broke off".to_owned()),
                Ok(None) => return End::Over,
                Ok(Some(Err(error))) => return failure(&error),
                Ok(Some(Ok(event))) => event,
            };
            if !listing {
                self.pause = FIRST_PAUSE;
            }
            let version = match event {
                WatchEvent::Error(status) if status.code == 410 => return End::Expired,
                WatchEvent::Error(status) => return End::Failed(status.message.clone()),
                WatchEvent::Bookmark(bookmark) => {
                    if listing && bookmark.metadata.annotations.get(LIST_END).is_some_and(|end| end == "true") {
                        listing = false;
                        self.say(Told::ListEnds);
                    }
                    bookmark.metadata.resource_version
                }
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    let version = object.meta().resource_version.clone().unwrap_or_default();
                    self.say_put(object);
                    version
                }
                WatchEvent::Deleted(object) => {
                    let metadata = object.meta();
                    let (namespace, name) = (metadata.namespace.clone(), metadata.name.clone());
                    let version = metadata.resource_version.clone().unwrap_or_default();
                    self.say(Told::Gone { namespace: namespace.unwrap_or_default(), name: name.unwrap_or_default() });
                    version
                }
            };
            // While a list is streamed its objects come in any order of versions: there is no position in it.
            if !listing {
                *position = Position::At(version);
            }
        }
        End::Over
    }
}

fn failure(error: &kube::Error) -> End {
    match error {
        kube::Error::Api(status) if status.code == 410 => End::Expired,
        other => End::Failed(other.to_string()),
    }
}
