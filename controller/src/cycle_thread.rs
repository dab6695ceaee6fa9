//! The thread of one shard: waits until something has changed and then for quiet, makes rows, plans, and hands over what was
//! decided. It never waits for a write: what was decided is assumed from then on.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use muster_api::read::Loaded;
use muster_core::config::Config;
use muster_core::cycle::{Scheduler, Stage};
use muster_core::outcome::Outcome;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::commit::{Committer, lock};
use crate::events::{About, Happened, Tone};
use crate::evict::{Evictor, Minute};
use crate::feed::Feed;
use crate::journal::Journal;
use crate::mishap::{self, Dumps, Mishap};
use crate::orders::{Leave, Orders, orders};
use crate::shard::Steering;
use crate::status::Status;

/// With nothing waiting and nothing changed, only time can make a difference, and not soon.
const IDLE_PERIOD: Duration = Duration::from_secs(15);
/// So many cycles in a row that break off, and no gang to blame: it does not get better by itself.
const PANICS_MAX: u32 = 5;

/// The last cycle, for whoever asks.
#[derive(Debug)]
pub struct Last {
    /// Rows and names.
    pub loaded: Loaded,
    /// What was decided.
    pub outcome: Outcome,
}

/// Where the last cycle is to be found; not while the next one runs, since both need much memory.
pub type LastCycle = Arc<watch::Sender<Option<Arc<Last>>>>;

/// A shard at work.
pub struct Cycles {
    /// Name of the shard.
    pub shard: String,
    /// What is known.
    pub feed: Arc<Feed>,
    /// What may be changed while it runs.
    pub steering: watch::Receiver<Steering>,
    /// For writes.
    pub committer: Committer,
    /// Where evictions are recorded.
    pub journal: Arc<Journal>,
    /// What was said.
    pub status: Status,
    /// Whether pods in no group at all are this shard's to report.
    pub reports_strays: bool,
    /// Where the last cycle is left.
    pub last: LastCycle,
    /// Where rows go whose cycle broke off.
    pub dumps: Dumps,
}

/// How long each part of a cycle took.
#[derive(Default)]
struct Stopwatch {
    actions: Vec<(&'static str, Duration)>,
    begun: Option<(Stage, Instant)>,
}

impl Stopwatch {
    fn begin(&mut self, stage: Option<Stage>) {
        let now = Instant::now();
        if let Some((Stage::Act(action), at)) = self.begun.take() {
            self.actions.push((action.name(), now.duration_since(at)));
        }
        self.begun = stage.map(|stage| (stage, now));
    }
}

impl Cycles {
    /// Cycle after cycle until told to stop, on the calling thread. `handle`: of the runtime that writes.
    ///
    /// # Errors
    /// If cycles break off again and again.
    pub fn run(mut self, handle: &Handle) -> anyhow::Result<()> {
        let mut minute = Minute::default();
        let mut changes = self.feed.changes();
        let (mut panics, mut waiting) = (0, true);
        while handle.block_on(self.wait(&mut changes, waiting)) {
            match catch_unwind(AssertUnwindSafe(|| self.cycle(handle, &mut minute))) {
                Ok(still_waiting) => (panics, waiting) = (0, still_waiting),
                Err(_) => {
                    panics += 1;
                    self.committer.metrics.scheduler.panics.inc();
                    tracing::error!(
                        shard = self.shard,
                        panics,
                        "a cycle broke off, and what it decided is dropped: please report this"
                    );
                    if panics >= PANICS_MAX {
                        anyhow::bail!("shard {}: {panics} cycles in a row broke off", self.shard);
                    }
                }
            }
        }
        Ok(())
    }

    /// False once it is time to end.
    async fn wait(&mut self, changes: &mut watch::Receiver<u64>, waiting: bool) -> bool {
        let options = Arc::clone(&self.committer.options);
        let stop = self.committer.writer.stop().clone();
        let period = if waiting { options.schedule_period } else { IDLE_PERIOD.max(options.schedule_period) };
        tokio::select! {
            () = stop.stopped() => return false,
            _ = changes.changed() => {
                let most = tokio::time::sleep(options.most_unquiet);
                tokio::pin!(most);
                loop {
                    tokio::select! {
                        () = &mut most => break,
                        () = tokio::time::sleep(options.quiet) => break,
                        changed = changes.changed() => if changed.is_err() { return false },
                    }
                }
            }
            _ = self.steering.changed() => {}
            () = tokio::time::sleep(period) => {}
        }
        !stop.is_stopped()
    }

    /// One cycle. Returns whether anything waits for time to pass.
    fn cycle(&mut self, handle: &Handle, minute: &mut Minute) -> bool {
        let options = Arc::clone(&self.committer.options);
        if !options.observe && !self.committer.writer.leads() {
            return true;
        }
        let (began, now) = (Instant::now(), Timestamp::now());
        let room_made = self.feed.ready().map(|()| drop(self.last.send_replace(None)));
        let mut loaded = match room_made.and_then(|()| self.feed.load_with(now, &self.committer.ledger)) {
            Ok(loaded) => loaded,
            Err(no_data) => {
                self.committer.metrics.scheduler.no_data.inc();
                tracing::warn!(shard = self.shard, %no_data, "no cycle");
                return true;
            }
        };
        self.brake(&mut loaded.snapshot.config, minute, began);
        let opened = began.elapsed();
        let mut watch = Stopwatch::default();
        let mut scheduler = Scheduler::new(&loaded.snapshot);
        let outcome = match mishap::plan(&mut scheduler, &loaded, &mut |stage| watch.begin(Some(stage))) {
            Ok(outcome) => outcome,
            Err(mishap) => {
                self.set_aside(&loaded, &mishap);
                return true;
            }
        };
        watch.begin(None);
        let decided = Instant::now();
        let net = scheduler.net(&loaded.snapshot.config).clone();
        let new_group = || uuid::Uuid::new_v4().to_string();
        let orders = orders(&loaded, (&outcome, &net), new_group, |gang| scheduler.is_stale(gang));
        // Its tables are as large as the rows.
        drop(scheduler);
        self.count(&orders, now);
        minute.count(decided, orders.leaves.len());
        let last = Arc::new(Last { loaded, outcome });
        let waits = !last.outcome.pending.is_empty()
            || !net.never_started.is_empty()
            || !orders.promises.is_empty()
            || orders.marks.values().any(|m| m.stale.is_some());
        let stale = last.loaded.snapshot.gangs.iter().any(|gang| gang.times.stale.is_some());
        let unsaid = if options.observe {
            self.observe(&orders);
            false
        } else {
            self.carry_out(orders, handle, now);
            self.tell(&last, handle)
        };
        self.last.send_replace(Some(Arc::clone(&last)));
        let metrics = &self.committer.metrics.scheduler;
        metrics.shares(&last.loaded, &last.outcome);
        metrics.cycle(opened, &watch.actions, decided.elapsed(), began.elapsed());
        metrics.assumed.set(i64::try_from(lock(&self.committer.ledger).len()).unwrap_or(i64::MAX));
        waits || stale || unsaid || metrics.assumed.get() > 0
    }

    /// A cycle broke off: rows to a file, the gang whose turn it was out of the next cycles. Panics again if nobody's turn it
    /// was.
    fn set_aside(&mut self, loaded: &Loaded, mishap: &Mishap) {
        let rows = match self.dumps.write(&self.shard, loaded, mishap) {
            Ok(Some(path)) => path.display().to_string(),
            Ok(None) => "not written again".to_owned(),
            Err(error) => format!("cannot be written: {error}"),
        };
        let (shard, panic) = (&self.shard, &mishap.said);
        let Some(name) = mishap::culprit(loaded, mishap) else {
            tracing::error!(shard, panic, rows, "a cycle broke off, in nobody's turn");
            panic!("{panic}");
        };
        self.committer.metrics.scheduler.panics.inc();
        tracing::error!(shard, podGroup = %name, panic, rows, "a cycle broke off, a bug of muster: this pod group is set aside");
        let uid = self.feed.look(|live| live.gang(name)).map(|note| note.uid).unwrap_or_default();
        lock(&self.committer.ledger).set_aside(name.clone(), uid.clone());
        let message = "The scheduler broke off in its turn (a bug: please report it with the rows that the log names). It is not \
                       tried until it is made anew or the scheduler is restarted.";
        self.committer.events.say(Happened::new(About::gang(name, uid), Tone::Warning, "SetAside", message));
    }

    fn brake(&self, config: &mut Config, minute: &mut Minute, now: Instant) {
        let steering = *self.steering.borrow();
        let victims = &mut config.victims;
        let left = steering.brake.minute.map(|most| minute.left(now, most));
        let tighter = |a: Option<u32>, b: Option<u32>| match (a, b) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        victims.evictions_max = if steering.paused { Some(0) } else { tighter(steering.brake.cycle, left) };
        victims.queue_evictions_max = steering.brake.queue;
    }

    fn count(&self, orders: &Orders, now: Timestamp) {
        let metrics = &self.committer.metrics.scheduler;
        for (action, gangs) in &orders.placed_by {
            metrics.placed(action, *gangs);
        }
        self.feed.look(|live| {
            for bind in &orders.binds {
                if let Some(created) = live.created(&bind.pod) {
                    metrics.waited(Duration::try_from(now.duration_since(created)).unwrap_or_default());
                }
            }
        });
        if !orders.binds.is_empty() || !orders.leaves.is_empty() {
            tracing::info!(shard = self.shard, binds = orders.binds.len(), evictions = orders.leaves.len(), "decided");
        }
    }

    fn observe(&self, orders: &Orders) {
        for bind in &orders.binds {
            tracing::info!(shard = self.shard, pod = %bind.pod, node = bind.node, "would bind");
        }
        for leave in &orders.leaves {
            tracing::info!(shard = self.shard, pod = %leave.pod, node = leave.node, rule = leave.sentence, "would evict");
        }
    }

    fn carry_out(&self, orders: Orders, handle: &Handle, now: Timestamp) {
        for bind in self.committer.commit(&orders, now) {
            handle.spawn(bind);
        }
        for (gang, marks) in &orders.marks {
            handle.spawn(self.committer.clone().mark(gang.clone(), *marks, now));
        }
        for promise in &orders.promises {
            let said = format!("{} gets node {} once what is leaving there is gone", promise.pod, promise.node);
            let about = About::pod(&promise.pod, &promise.uid);
            self.committer.events.say(Happened::new(about, Tone::Normal, "Pipelined", said));
        }
        if !orders.leaves.is_empty() {
            let (committer, journal) = (self.committer.clone(), Arc::clone(&self.journal));
            let evictor = Evictor { committer, journal, shard: self.shard.clone() };
            let uids: HashMap<_, _> = self.feed.look(|live| {
                let uid = |leave: &Leave| Some((leave.gang.clone(), live.gang(&leave.gang)?.uid));
                orders.leaves.iter().filter_map(uid).collect()
            });
            handle.spawn(evictor.evict(orders.leaves, now, move |leave| uids.get(&leave.gang).cloned().unwrap_or_default()));
        }
    }

    /// Whether something is to be said or taken back still.
    fn tell(&mut self, last: &Last, handle: &Handle) -> bool {
        let now = Instant::now();
        let (status, reports_strays) = (&mut self.status, self.reports_strays);
        let (failed, unsaid) = self.feed.look(|live| {
            let mut unsaid = status.report(&last.loaded, &last.outcome, live, now);
            if reports_strays {
                let strays = live.strays();
                unsaid |= !strays.is_empty();
                status.report_strays(&strays, now);
            }
            (live.failed_binds(), unsaid)
        });
        for (request, uid) in failed {
            let committer = self.committer.clone();
            handle.spawn(async move { committer.remove_request(&request, uid).await });
        }
        unsaid
    }
}
