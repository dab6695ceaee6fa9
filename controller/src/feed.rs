//! All kinds that a cycle needs, followed at once and folded into one [`Live`]; and whether what is known may be decided on.
//!
//! A scheduler that has no data does not decide: [`Feed::load`] refuses until every kind was listed once, and again when a kind
//! has been cut off for longer than [`MOST_STALE`].

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use kube::Client;
use muster_api::assumed::Assumed;
use muster_api::live::{Live, Watched};
use muster_api::read::Loaded;
use tokio::sync::watch::{Receiver, Sender, channel};
use tokio::task::JoinSet;

use crate::watch::{Told, follow, list};

/// How long a kind may be cut off before nothing is decided on it. A restart of an API server takes less; whoever cannot reach
/// one for longer cannot write its decisions either.
pub const MOST_STALE: Duration = Duration::from_secs(30);

/// How the watch of one kind fares.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Health {
    listed: bool,
    /// Since when it is cut off, and why.
    lost: Option<(Instant, String)>,
}

/// What happened so far, over all kinds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Lists that were completed.
    pub lists: u64,
    /// Watches that went on where an earlier one had ended.
    pub resumed: u64,
    /// Connections that failed.
    pub lost: u64,
    /// Objects added or changed.
    pub put: u64,
    /// Objects gone.
    pub gone: u64,
}

struct State {
    live: Live,
    health: BTreeMap<Watched, Health>,
    counts: Counts,
}

/// Why nothing can be decided: the kinds that are not known well enough.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoData(Vec<String>);

impl fmt::Display for NoData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nothing is decided: {}", self.0.join("; "))
    }
}

impl std::error::Error for NoData {}

/// A running feed; it ends when dropped.
pub struct Feed {
    state: Arc<Mutex<State>>,
    changes: Receiver<u64>,
    /// Ends the tasks when dropped.
    _tasks: JoinSet<()>,
}

impl Feed {
    /// Begins to follow all kinds. `live` holds the settings, and nothing else yet. Needs a tokio runtime.
    #[must_use]
    pub fn start(client: &Client, live: &Live) -> Self {
        let unlisted = Health { listed: false, lost: None };
        let health = live.kinds().into_iter().map(|kind| (kind, unlisted.clone())).collect();
        let state = Arc::new(Mutex::new(State { live: live.blank(), health, counts: Counts::default() }));
        let (sender, changes) = channel(0);
        let mut tasks = JoinSet::new();
        for kind in live.kinds() {
            let (state, sender) = (Arc::clone(&state), sender.clone());
            tasks.spawn(follow(client.clone(), kind, move |told| {
                lock(&state).take(kind, told, &sender);
                true
            }));
        }
        Self { state, changes, _tasks: tasks }
    }

    /// Rows of this moment.
    ///
    /// # Errors
    /// If a kind is not known well enough to decide on.
    pub fn load(&self, now: Timestamp) -> Result<Loaded, NoData> {
        let state = lock(&self.state);
        state.fit()?;
        Ok(state.live.load(now))
    }

    /// Whether [`Feed::load`] would give rows.
    ///
    /// # Errors
    /// As there.
    pub fn ready(&self) -> Result<(), NoData> {
        lock(&self.state).fit()
    }

    /// The same, with what was decided and is not to be seen yet; what is to be seen by now is forgotten there.
    ///
    /// # Errors
    /// As there.
    pub fn load_with(&self, now: Timestamp, assumed: &Mutex<Assumed>) -> Result<Loaded, NoData> {
        let state = lock(&self.state);
        state.fit()?;
        let mut assumed = assumed.lock().unwrap_or_else(PoisonError::into_inner);
        state.live.settle(now, &mut assumed);
        Ok(state.live.load_with(now, &assumed))
    }

    /// A number that grows with each change of what is known that may change a decision; to wait for the next one.
    #[must_use]
    pub fn changes(&self) -> Receiver<u64> {
        self.changes.clone()
    }

    /// What happened so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        lock(&self.state).counts
    }

    /// Looks at what is known, fit to decide on or not.
    pub fn look<R>(&self, at: impl FnOnce(&Live) -> R) -> R {
        at(&lock(&self.state).live)
    }
}

/// What a fresh list of every kind says now, in pages.
///
/// # Errors
/// If the server does not answer.
pub async fn fetch(client: &Client, settings: &Live) -> Result<Live, kube::Error> {
    let mut live = settings.blank();
    for kind in settings.kinds() {
        list(client.clone(), kind, |told| {
            if let Told::Put(seen) = told {
                live.put(seen);
            }
            true
        })
        .await?;
    }
    Ok(live)
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // A panic while one object was folded leaves the others whole; the next list mends that one.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    fn take(&mut self, kind: Watched, told: Told, sender: &Sender<u64>) {
        let health = self.health.entry(kind).or_insert(Health { listed: false, lost: None });
        let mut changed = true;
        match told {
            Told::ListBegins => {
                self.live.begin(kind);
                changed = false;
            }
            Told::ListEnds => {
                self.live.finish(kind);
                *health = Health { listed: true, lost: None };
                self.counts.lists += 1;
                tracing::debug!(kind = kind.name(), objects = self.live.count(kind), "listed");
            }
            Told::Put(seen) => {
                changed = self.live.put(seen);
                self.counts.put += 1;
            }
            Told::Gone { namespace, name } => {
                self.live.remove(kind, &namespace, &name);
                self.counts.gone += 1;
            }
            Told::Resumed => {
                health.lost = None;
                self.counts.resumed += 1;
                changed = false;
            }
            Told::Lost(why) => {
                tracing::warn!(kind = kind.name(), why, "the watch was lost");
                let since = health.lost.take().map_or_else(Instant::now, |(since, _)| since);
                health.lost = Some((since, why));
                self.counts.lost += 1;
                changed = false;
            }
        }
        if changed {
            sender.send_modify(|count| *count += 1);
        }
    }

    fn fit(&self) -> Result<(), NoData> {
        let unfit = self.health.iter().filter_map(|(kind, health)| match (&health.lost, health.listed) {
            (Some((since, why)), true) if since.elapsed() > MOST_STALE => {
                Some(format!("{} is cut off for {} s ({why})", kind.name(), since.elapsed().as_secs()))
            }
            (_, true) => None,
            (Some((_, why)), false) => Some(format!("{} was not listed yet ({why})", kind.name())),
            (None, false) => Some(format!("{} was not listed yet", kind.name())),
        });
        let unfit: Vec<_> = unfit.collect();
        if unfit.is_empty() { Ok(()) } else { Err(NoData(unfit)) }
    }
}
