//! Things to be done, by key: the newest value of a key wins, no key is worked on twice at a time, and one that fails waits
//! longer each time while the others go on.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::hash::Hash;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// How long a key waits after failures in a row: `first`, then twice as long each time, at most `longest`.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// After the first failure.
    pub first: Duration,
    /// At most.
    pub longest: Duration,
}

impl Backoff {
    /// After this many failures in a row (1 or more).
    #[must_use]
    pub fn after(self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(30);
        self.first.saturating_mul(1 << doublings).min(self.longest)
    }
}

/// How work on a key ended.
#[derive(Debug)]
pub enum Ended<V> {
    /// Well; failures are forgotten.
    Done,
    /// It has to be done again, after the back-off; with this value unless there is a newer one.
    Failed(V),
    /// It has to be done again after this time.
    Later(V, Duration),
}

struct Item<V> {
    /// What is to be done; `None` while it is being done, unless something newer came.
    value: Option<V>,
    running: bool,
    failures: u32,
    /// Until then it waits, whatever comes.
    not_before: Option<Instant>,
}

struct State<K, V> {
    items: HashMap<K, Item<V>>,
    ready: VecDeque<K>,
    waiting: BinaryHeap<Reverse<(Instant, u64)>>,
    /// Keys of `waiting`.
    tickets: HashMap<u64, K>,
    next_ticket: u64,
}

/// A queue of work.
pub struct Work<K, V> {
    state: Mutex<State<K, V>>,
    changed: Notify,
    backoff: Backoff,
}

impl<K: Clone + Eq + Hash + Send + 'static, V: Send + 'static> Work<K, V> {
    /// An empty queue.
    #[must_use]
    pub fn new(backoff: Backoff) -> Self {
        let state = State {
            items: HashMap::new(),
            ready: VecDeque::new(),
            waiting: BinaryHeap::new(),
            tickets: HashMap::new(),
            next_ticket: 0,
        };
        Self { state: Mutex::new(state), changed: Notify::new(), backoff }
    }

    /// This is to be done, and what was to be done for the key is not. A key that waits after a failure goes on waiting.
    pub fn put(&self, key: K, value: V) {
        let mut state = self.lock();
        let state = &mut *state;
        let blank = Item { value: None, running: false, failures: 0, not_before: None };
        let item = state.items.entry(key.clone()).or_insert(blank);
        let was_queued = item.value.replace(value).is_some();
        if !was_queued && !item.running && item.not_before.is_none() {
            state.ready.push_back(key);
            self.changed.notify_one();
        }
    }

    /// Nothing is to be done for the key. What is being done is not stopped.
    pub fn forget(&self, key: &K) {
        let mut state = self.lock();
        if let Some(item) = state.items.get_mut(key) {
            if item.running {
                item.value = None;
            } else {
                state.items.remove(key);
            }
        }
    }

    /// How many keys are being worked on or wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().items.len()
    }

    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Works for ever, on at most `most` keys at a time. What is being done is abandoned when this is dropped.
    pub async fn drain<F>(&self, most: usize, mut handle: impl FnMut(K, V) -> F)
    where
        F: Future<Output = Ended<V>> + Send + 'static,
    {
        let mut running: JoinSet<Ended<V>> = JoinSet::new();
        let mut keys: HashMap<tokio::task::Id, K> = HashMap::new();
        loop {
            while running.len() < most
                && let Some((key, value)) = self.take()
            {
                let id = running.spawn(handle(key.clone(), value)).id();
                keys.insert(id, key);
            }
            let wake = self.next_wake();
            let sleep = async {
                match wake {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let changed = pin!(self.changed.notified());
            tokio::select! {
                Some(ended) = running.join_next_with_id() => match ended {
                    Ok((id, ended)) => if let Some(key) = keys.remove(&id) { self.ended(key, ended) },
                    Err(error) => if let Some(key) = keys.remove(&error.id()) { self.broke(key, &error) },
                },
                () = changed => {}
                () = sleep => {}
            }
        }
    }

    fn take(&self) -> Option<(K, V)> {
        let mut state = self.lock();
        let state = &mut *state;
        let now = Instant::now();
        while let Some(&Reverse((at, ticket))) = state.waiting.peek()
            && at <= now
        {
            state.waiting.pop();
            let Some(key) = state.tickets.remove(&ticket) else { continue };
            if let Some(item) = state.items.get_mut(&key)
                && item.not_before == Some(at)
            {
                item.not_before = None;
                state.ready.push_back(key);
            }
        }
        while let Some(key) = state.ready.pop_front() {
            if let Some(item) = state.items.get_mut(&key)
                && !item.running
                && item.not_before.is_none()
                && let Some(value) = item.value.take()
            {
                item.running = true;
                return Some((key, value));
            }
        }
        None
    }

    fn next_wake(&self) -> Option<Instant> {
        self.lock().waiting.peek().map(|Reverse((at, _))| *at)
    }

    fn ended(&self, key: K, ended: Ended<V>) {
        let mut state = self.lock();
        let state = &mut *state;
        let Some(item) = state.items.get_mut(&key) else { return };
        item.running = false;
        let pause = match ended {
            Ended::Done => {
                item.failures = 0;
                None
            }
            Ended::Failed(value) => {
                item.value.get_or_insert(value);
                item.failures += 1;
                Some(self.backoff.after(item.failures))
            }
            Ended::Later(value, pause) => {
                item.value.get_or_insert(value);
                Some(pause)
            }
        };
        match (pause, item.value.is_some()) {
            (Some(pause), _) => {
                let at = Instant::now() + pause;
                item.not_before = Some(at);
                let ticket = state.next_ticket;
                state.next_ticket += 1;
                state.tickets.insert(ticket, key);
                state.waiting.push(Reverse((at, ticket)));
            }
            (None, true) => state.ready.push_back(key),
            (None, false) => drop(state.items.remove(&key)),
        }
    }

    /// A panic is a bug of ours; it must not stop the other keys.
    fn broke(&self, key: K, error: &tokio::task::JoinError) {
        tracing::error!(%error, "work broke off; it is dropped until its object changes");
        let mut state = self.lock();
        if let Some(item) = state.items.get_mut(&key) {
            item.running = false;
            if item.value.is_some() {
                state.ready.push_back(key);
            } else {
                state.items.remove(&key);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<K, V>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const BACKOFF: Backoff = Backoff { first: Duration::from_millis(20), longest: Duration::from_millis(100) };

    type Log = Arc<Mutex<Vec<(u32, &'static str)>>>;

    /// Runs `handle` on the queue until nothing is left.
    async fn finish<F>(work: &Work<u32, &'static str>, most: usize, handle: impl FnMut(u32, &'static str) -> F)
    where
        F: Future<Output = Ended<&'static str>> + Send + 'static,
    {
        let empty = async {
            while !work.is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            () = work.drain(most, handle) => {}
            () = empty => {}
            () = tokio::time::sleep(Duration::from_secs(20)) => panic!("it does not end"),
        }
    }

    fn log(log: &Log, key: u32, value: &'static str) {
        log.lock().expect("no panic").push((key, value));
    }

    #[tokio::test]
    async fn the_newest_value_wins() {
        let work = Work::new(BACKOFF);
        work.put(1, "old");
        work.put(2, "two");
        work.put(1, "new");
        let done = Log::default();
        finish(&work, 8, |key, value| {
            log(&done, key, value);
            async { Ended::Done }
        })
        .await;
        assert_eq!(*done.lock().expect("no panic"), [(1, "new"), (2, "two")]);
    }

    #[tokio::test]
    async fn one_that_fails_waits_and_the_others_do_not() {
        let work = Work::new(BACKOFF);
        let done = Log::default();
        let began = Instant::now();
        work.put(1, "bad");
        for key in 2..50 {
            work.put(key, "good");
        }
        let mut tries = 0;
        finish(&work, 1, |key, value| {
            log(&done, key, value);
            let failed = key == 1 && tries < 3;
            if key == 1 {
                tries += 1;
            }
            async move { if failed { Ended::Failed(value) } else { Ended::Done } }
        })
        .await;
        let done = done.lock().expect("no panic");
        assert_eq!(done.len(), 48 + 4);
        assert_eq!(done[49..], [(1, "bad"); 3], "all others came before its second attempt");
        assert!(began.elapsed() >= Duration::from_millis(20 + 40 + 80));
    }

    #[tokio::test]
    async fn a_new_value_does_not_cut_a_backoff_short() {
        let work = Arc::new(Work::new(Backoff { first: Duration::from_millis(60), longest: Duration::from_millis(60) }));
        work.put(1, "old");
        let (done, began, again) = (Log::default(), Instant::now(), Arc::clone(&work));
        finish(&work, 4, |key, value| {
            log(&done, key, value);
            if value == "old" {
                let again = Arc::clone(&again);
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    again.put(1, "new");
                });
            }
            async move { if value == "old" { Ended::Failed(value) } else { Ended::Done } }
        })
        .await;
        assert_eq!(*done.lock().expect("no panic"), [(1, "old"), (1, "new")]);
        assert!(began.elapsed() >= Duration::from_millis(60));
    }

    #[tokio::test]
    async fn a_panic_does_not_stop_the_others() {
        let work = Work::new(BACKOFF);
        work.put(1, "panics");
        work.put(2, "works");
        let done = Log::default();
        finish(&work, 1, |key, value| {
            log(&done, key, value);
            async move {
                assert_ne!(key, 1, "a bug");
                Ended::Done
            }
        })
        .await;
        assert_eq!(done.lock().expect("no panic").len(), 2);
    }
}
