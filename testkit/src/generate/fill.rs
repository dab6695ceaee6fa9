//! The running work: packed like a cluster that has run for a while, mostly full nodes with holes where jobs have ended.

use oorandom::Rand32;

use super::queues::{QueueTree, milli};
use super::{Gpus, Job, Place, PriorityClass, Shape, below, index, share_of};

/// Nodes that take work at the same time. Small: fuller nodes; large: more scattered gangs.
const OPEN_NODES: usize = 32;

/// How much more than asked is placed at first and then ends again, leaving holes.
const CHURN: f64 = 1.2;

/// Draws in a row that find no place or queue before the rest is filled with one-GPU jobs.
const FAILURES_MAX: u32 = 64;

/// A shared card that still has room.
struct Room {
    card: u32,
    left_milli: u32,
}

/// The nodes while work is placed on them.
struct Nodes<'a> {
    /// Free whole GPUs of each node.
    free: Vec<u32>,
    /// GPUs that are taken, on all nodes.
    used: u64,
    /// GPUs that are to be taken in the end.
    want: u64,
    /// Usable nodes that are still to be opened, the next one last.
    closed: Vec<u32>,
    open: Vec<u32>,
    rooms: Vec<Room>,
    /// The node of each shared card.
    cards: Vec<u32>,
    rng: &'a mut Rand32,
}

/// Running jobs that hold `fill` of all GPUs (or all that are not cordoned), and the node of each shared card.
pub(super) fn running(shape: &Shape, cordoned: &[bool], queues: &mut QueueTree, rng: &mut Rand32) -> (Vec<Job>, Vec<u32>) {
    let mut closed: Vec<u32> = (0..shape.nodes).filter(|&node| !cordoned[node as usize]).collect();
    shuffle(&mut closed, rng);
    let usable = closed.clone();
    let capacity = usable.len() as u64 * u64::from(shape.gpus);
    let want = share_of(shape.fill, u64::from(shape.nodes) * u64::from(shape.gpus)).min(capacity);
    let at_first = share_of(CHURN, want).min(capacity);
    let free = cordoned.iter().map(|&cordoned| if cordoned { 0 } else { shape.gpus }).collect();
    let mut nodes = Nodes { free, used: 0, want, closed, open: Vec::new(), rooms: Vec::new(), cards: Vec::new(), rng };
    let (mut jobs, mut failures) = (Vec::new(), 0);
    while nodes.used < at_first && failures < FAILURES_MAX {
        match nodes.place(shape, queues) {
            Some(job) => {
                jobs.push(job);
                failures = 0;
            }
            None => failures += 1,
        }
    }
    nodes.end_some(&mut jobs, queues);
    nodes.top_up(&mut jobs, &usable, queues);
    (jobs, nodes.cards)
}

impl Nodes<'_> {
    /// One drawn job in a queue and on nodes; `None` if either cannot take it.
    fn place(&mut self, shape: &Shape, queues: &mut QueueTree) -> Option<Job> {
        let draft = shape.mix.draw(shape.gpus, u32::MAX, self.rng);
        let asked = milli(draft.gpus, draft.pods);
        let leaf = queues.draw_running(asked, draft.class, self.rng)?;
        let mut places = Vec::with_capacity(draft.pods as usize);
        for _ in 0..draft.pods {
            let place = match draft.gpus {
                Gpus::Whole(count) => self.take(count).map(|node| Place { node, card: None }),
                Gpus::Milli(milli) => self.share(milli),
            };
            match (place, draft.gpus) {
                (Some(place), _) => places.push(place),
                (None, Gpus::Whole(count)) => {
                    places.iter().for_each(|place: &Place| self.give_back(place.node, count));
                    return None;
                }
                (None, Gpus::Milli(_)) => return None,
            }
        }
        queues.charge(leaf, asked, draft.class);
        Some(Job { leaf, class: draft.class, pods: draft.pods, min: draft.min, gpus: draft.gpus, places })
    }

    /// A node with `count` free GPUs, which are taken.
    fn take(&mut self, count: u32) -> Option<u32> {
        let free = &self.free;
        self.open.retain(|&node| free[node as usize] > 0);
        // What is left on nodes that were opened long ago is for the top-up.
        let old = self.open.len().saturating_sub(4 * OPEN_NODES);
        self.open.drain(..old);
        while self.open.len() < OPEN_NODES
            && let Some(node) = self.closed.pop()
        {
            self.open.push(node);
        }
        let fits = |node: &u32| self.free[*node as usize] >= count;
        let start = if self.open.is_empty() { 0 } else { below(self.open.len(), self.rng) };
        let found = self.open[start..].iter().chain(&self.open[..start]).copied().find(fits);
        let node = match found {
            Some(node) => node,
            None => {
                let node = self.closed.pop()?;
                self.open.push(node);
                node
            }
        };
        self.free[node as usize] -= count;
        self.used += u64::from(count);
        Some(node)
    }

    fn give_back(&mut self, node: u32, count: u32) {
        self.free[node as usize] += count;
        self.used -= u64::from(count);
    }

    /// Room on a shared card, or a new one while GPUs are wanted: shared cards stay taken.
    fn share(&mut self, milli: u32) -> Option<Place> {
        let at = match self.rooms.iter().position(|room| room.left_milli >= milli) {
            Some(at) => at,
            None => {
                let node = if self.used < self.want { self.take(1)? } else { return None };
                self.rooms.push(Room { card: index(self.cards.len()), left_milli: 1000 });
                self.cards.push(node);
                self.rooms.len() - 1
            }
        };
        let card = self.rooms[at].card;
        self.rooms[at].left_milli -= milli;
        if self.rooms[at].left_milli == 0 {
            self.rooms.swap_remove(at);
        }
        Some(Place { node: self.cards[card as usize], card: Some(card) })
    }

    /// Ends jobs at random until no more GPUs than wanted are held. Jobs on shared cards stay.
    fn end_some(&mut self, jobs: &mut Vec<Job>, queues: &mut QueueTree) {
        let mut order: Vec<u32> = (0..index(jobs.len())).collect();
        shuffle(&mut order, self.rng);
        let mut ended = vec![false; jobs.len()];
        for at in order {
            let job = &jobs[at as usize];
            let Gpus::Whole(count) = job.gpus else { continue };
            if self.used <= self.want {
                break;
            }
            job.places.iter().for_each(|place| self.give_back(place.node, count));
            queues.discharge(job.leaf, milli(job.gpus, job.pods), job.class);
            ended[at as usize] = true;
        }
        let mut at = 0;
        jobs.retain(|_| {
            at += 1;
            !ended[at - 1]
        });
    }

    /// One-GPU jobs until as many GPUs are held as wanted.
    fn top_up(&mut self, jobs: &mut Vec<Job>, usable: &[u32], queues: &mut QueueTree) {
        for &node in usable {
            while self.used < self.want && self.free[node as usize] > 0 {
                self.free[node as usize] -= 1;
                self.used += 1;
                let class = PriorityClass::Train;
                // The first leaf has no limit.
                let leaf = queues.draw_running(1000, class, self.rng).unwrap_or(0);
                queues.charge(leaf, 1000, class);
                let places = vec![Place { node, card: None }];
                jobs.push(Job { leaf, class, pods: 1, min: 1, gpus: Gpus::Whole(1), places });
            }
        }
    }
}

/// Fisher and Yates.
fn shuffle(values: &mut [u32], rng: &mut Rand32) {
    for i in (1..values.len()).rev() {
        values.swap(i, below(i + 1, rng));
    }
}
