//! Worked examples, odd input, and the laws of the division.

use proptest::prelude::*;

use super::reference;
use super::{Scratch, allocatable_share, divide};
use crate::index::{Col, Idx, QueueIdx};
use crate::snapshot::QueueRow;
use crate::tables::queues::Queues;
use crate::units::{Amounts, MICRO_PER_GPU, Resource, UNLIMITED};

/// A queue of a test. GPU counts in whole devices; -1: no bound. Cpu and memory are left without quota, weight and request.
#[derive(Clone, Copy)]
struct Gpus {
    parent: Option<usize>,
    priority: i32,
    quota: i64,
    limit: i64,
    weight: f64,
    usage: f64,
    request: i64,
}

/// Quota, weight, request.
fn queue(quota: i64, weight: f64, request: i64) -> Gpus {
    Gpus { parent: None, priority: 0, quota, limit: -1, weight, usage: 0.0, request }
}

fn micro(gpus: i64) -> i64 {
    if gpus == -1 { UNLIMITED } else { gpus * MICRO_PER_GPU }
}

fn load(rows: Vec<QueueRow>, requests: &[Amounts]) -> Queues {
    let mut queues = Queues::default();
    queues.load(&rows.into());
    for (queue, &request) in requests.iter().enumerate() {
        queues.requested[QueueIdx::new(queue)] = request;
    }
    queues
}

fn gpu_queues(queues: &[Gpus]) -> Queues {
    let row = |q: &Gpus| QueueRow {
        parent: q.parent.map(QueueIdx::new),
        priority: q.priority,
        quota: Amounts::new(0, 0, micro(q.quota)),
        limit: Amounts::new(UNLIMITED, UNLIMITED, micro(q.limit)),
        weight: [0.0, 0.0, q.weight],
        usage: [0.0, 0.0, q.usage],
        ..QueueRow::default()
    };
    let requests: Vec<_> = queues.iter().map(|q| Amounts::new(0, 0, micro(q.request))).collect();
    load(queues.iter().map(row).collect(), &requests)
}

/// Shares in micro-GPU.
fn micro_shares(pie: i64, k_value: f64, queues: &[Gpus]) -> Vec<i64> {
    let mut table = gpu_queues(queues);
    divide(&mut table, Amounts::new(0, 0, pie), k_value, &mut Scratch::default());
    table.fair_share.iter().map(|share| share[Resource::Gpu]).collect()
}

/// Shares in GPUs; all are whole.
fn shares(pie: i64, k_value: f64, queues: &[Gpus]) -> Vec<i64> {
    let whole = |micro: i64| {
        assert_eq!(micro % MICRO_PER_GPU, 0);
        micro / MICRO_PER_GPU
    };
    micro_shares(micro(pie), k_value, queues).into_iter().map(whole).collect()
}

/// semantics.md §3.7, in its order.
#[test]
fn worked_examples() {
    assert_eq!(shares(8, 1.0, &[queue(2, 1.0, 8), queue(2, 3.0, 8)]), [3, 5]);
    assert_eq!(shares(10, 1.0, &[queue(0, 1.0, 10); 3]), [4, 3, 3]);
    let high = Gpus { priority: 2, ..queue(0, 1.0, 10) };
    let low = Gpus { priority: 1, ..queue(0, 1.0, 5) };
    assert_eq!(shares(10, 1.0, &[high, high, high, low]), [3, 3, 3, 1]);
    assert_eq!(shares(10, 1.0, &[low, high, high, high]), [1, 3, 3, 3]);
    let used = Gpus { usage: 0.5, ..queue(0, 1.0, 16) };
    assert_eq!(shares(16, 1.0, &[used, queue(0, 1.0, 16)]), [5, 11]);
    assert_eq!(shares(4, 1.0, &[queue(6, 1.0, 6), queue(6, 1.0, 6)]), [6, 6]);
}

/// A leftover comes back to the high priority only as far as the low ones cannot use it.
#[test]
fn leftovers_return_after_lower_priorities() {
    let high = Gpus { priority: 2, ..queue(0, 1.0, 10) };
    let idle = Gpus { priority: 1, ..queue(0, 1.0, 0) };
    assert_eq!(shares(10, 0.0, &[high, high, high, idle]), [4, 3, 3, 0]);
}

#[test]
fn what_one_does_not_want_goes_to_the_others() {
    // First round 4:4:4; the first wants 1, so 3 + the rest go round again.
    assert_eq!(shares(12, 0.0, &[queue(0, 1.0, 1), queue(0, 1.0, 99), queue(0, 1.0, 99)]), [1, 6, 5]);
    assert_eq!(shares(12, 0.0, &[queue(0, 9.0, 1), queue(0, 1.0, 2), queue(0, 2.0, 99)]), [1, 2, 9]);
}

/// The first wants exactly its proportion, so there is no second round that would divide the remaining unit by weight: leftovers
/// are 0.25 and 0.75, not 0.75 and 0.25.
#[test]
fn an_exact_proportion_does_not_start_another_round() {
    assert_eq!(shares(6, 0.0, &[queue(0, 4.0, 3), queue(0, 3.0, 99), queue(0, 1.0, 99)]), [3, 2, 1]);
}

#[test]
fn the_last_slice_may_be_a_part_of_a_gpu() {
    let half = MICRO_PER_GPU / 2;
    // 2.5 : 2.5, both round down to 2; one unit is left, of which the first gets all.
    assert_eq!(micro_shares(5 * MICRO_PER_GPU, 0.0, &[queue(0, 1.0, 9); 2]), [3 * MICRO_PER_GPU, 2 * MICRO_PER_GPU]);
    // 2.25 : 2.25; what is left is half a unit.
    assert_eq!(micro_shares(9 * half, 0.0, &[queue(0, 1.0, 9); 2]), [5 * half, 2 * MICRO_PER_GPU]);
}

#[test]
fn weight_zero_gets_its_quota_only() {
    assert_eq!(shares(9, 1.0, &[queue(1, 0.0, 9), queue(1, 1.0, 9)]), [1, 8]);
    assert_eq!(shares(9, 1.0, &[queue(1, 0.0, 9), queue(1, 0.0, 9)]), [1, 1]);
    // Not even where odd usage gives it a claim, which counts in the sum: 6.4, rounded down, and the leftover.
    let owed = Gpus { usage: -0.5, ..queue(0, 0.0, 9) };
    assert_eq!(shares(8, 1.0, &[owed, queue(0, 1.0, 9)]), [0, 7]);
}

#[test]
fn limits_cut_requests() {
    let limited = Gpus { limit: 3, ..queue(2, 1.0, 9) };
    assert_eq!(shares(10, 1.0, &[limited, queue(0, 1.0, 99)]), [3, 7]);
    assert_eq!(shares(10, 1.0, &[Gpus { limit: 1, ..limited }, queue(0, 1.0, 99)]), [1, 9]);
    assert_eq!(shares(10, 1.0, &[Gpus { limit: 0, ..limited }, queue(0, 1.0, 99)]), [0, 10]);
}

#[test]
fn an_unlimited_quota_is_the_whole_amount() {
    assert_eq!(shares(10, 1.0, &[queue(-1, 1.0, 99), queue(2, 1.0, 99)]), [10, 2]);
    assert_eq!(shares(10, 1.0, &[queue(-1, 1.0, 4), queue(2, 1.0, 99)]), [4, 6]);
}

#[test]
fn usage_lowers_a_share_and_k_says_how_much() {
    let used = Gpus { usage: 1.0, ..queue(0, 1.0, 99) };
    let fresh = queue(0, 1.0, 99);
    // n = 0.5 each; w = max(0, 0.5 + k (0.5 - usage)).
    assert_eq!(shares(12, 0.0, &[used, fresh]), [6, 6]);
    assert_eq!(shares(12, -3.0, &[used, fresh]), [6, 6]);
    assert_eq!(shares(12, 0.5, &[used, fresh]), [3, 9]);
    assert_eq!(shares(12, 1.0, &[used, fresh]), [0, 12]);
    assert_eq!(shares(12, 1.0, &[used, used]), [0, 0]);
}

/// Parent shares 6:3 (weights 2:1), children share exactly those; grandchildren likewise.
#[test]
fn children_share_what_their_parent_got() {
    let below = |parent, queue: Gpus| Gpus { parent: Some(parent), ..queue };
    let tree = [
        queue(0, 2.0, 20),
        queue(0, 1.0, 20),
        below(0, queue(1, 1.0, 10)),
        below(0, queue(0, 1.0, 10)),
        below(1, queue(5, 1.0, 10)),
        below(1, queue(5, 1.0, 10)),
        below(2, queue(0, 1.0, 9)),
        below(2, queue(0, 0.0, 1)),
    ];
    // 6 over 1 + (5 over two: 2, 2, leftover to the first); quotas 5 + 5 are honoured under a parent that has 3.
    assert_eq!(shares(9, 1.0, &tree), [6, 3, 4, 2, 5, 5, 4, 0]);
}

/// Children listed before their parents, and the same tree upside down, give the same shares.
#[test]
fn the_position_of_a_parent_does_not_matter() {
    let below = |parent, queue: Gpus| Gpus { parent: Some(parent), ..queue };
    let up = [below(2, queue(0, 1.0, 9)), below(2, queue(0, 2.0, 9)), below(3, queue(0, 1.0, 18)), queue(0, 1.0, 18)];
    assert_eq!(shares(6, 1.0, &up), [2, 4, 6, 6]);
}

#[test]
fn a_negative_weight_counts_in_the_sum_and_gets_nothing() {
    // W = 2: n = -0.5, 1.5; w = 0, 1.5: all to the second.
    assert_eq!(shares(8, 0.0, &[queue(0, -1.0, 9), queue(0, 3.0, 9)]), [0, 8]);
    // W = -2: n = 1.5, -0.5: all to the first. Odd, and KAI's rule.
    assert_eq!(shares(8, 0.0, &[queue(0, -3.0, 9), queue(0, 1.0, 9)]), [8, 0]);
    assert_eq!(shares(8, 0.0, &[queue(0, -1.0, 9), queue(0, 1.0, 9)]), [0, 0]);
}

#[test]
fn weights_that_are_no_numbers_give_nothing() {
    for weight in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        assert_eq!(shares(8, 1.0, &[queue(1, weight, 9), queue(1, 1.0, 9)]), [1, 1]);
    }
    assert_eq!(shares(8, f64::NAN, &[queue(0, 1.0, 9), queue(0, 3.0, 9)]), [2, 6]);
}

/// Decimal weights whose proportions are whole on paper and not in binary (semantics.md N13).
#[test]
fn a_share_within_noise_of_a_whole_number_is_that_number() {
    for pie in [10, 30, 70, 1_000, 99_990] {
        let tenths = [0.1, 0.2, 0.7].map(|weight| queue(0, weight, 1_000_000));
        assert_eq!(shares(pie, 1.0, &tenths), [pie / 10, pie / 5, pie / 10 * 7]);
        let tiny = [1e-9, 2e-9, 7e-9].map(|weight| queue(0, weight, 1_000_000));
        assert_eq!(shares(pie, 0.0, &tiny), [pie / 10, pie / 5, pie / 10 * 7]);
    }
    // A want that the proportion meets exactly: 0.3 of 10 is 3, so nothing is left over to round.
    assert_eq!(shares(10, 1.0, &[queue(0, 0.3, 3), queue(0, 0.7, 7)]), [3, 7]);
}

/// n + k (n - u) of the second and third is 3 * 5/12 - 2 * 5/8 = 0 on paper, and 2e-16 in binary.
#[test]
fn a_weight_that_usage_cancels_is_zero() {
    let used = |weight: f64| Gpus { usage: weight / 8.0, ..queue(0, weight, 1) };
    assert_eq!(shares(1, 2.0, &[used(2.0), used(5.0), used(5.0)]), [0, 0, 0]);
    assert_eq!(shares(1, 2.0, &[used(2.0), used(5.0), Gpus { usage: 0.6, ..used(5.0) }]), [0, 0, 1]);
}

/// On paper 1/3 and 4/3: equal leftovers go by index, whatever the last digits say.
#[test]
fn equal_leftovers_go_by_index() {
    let weights = |weights: [f64; 3]| weights.map(|weight| queue(0, weight, 99));
    assert_eq!(shares(7, 0.0, &weights([1.0, 4.0, 16.0])), [1, 1, 5]);
    assert_eq!(shares(7, 0.0, &weights([4.0, 1.0, 16.0])), [2, 0, 5]);
}

#[test]
fn huge_numbers_do_not_overflow() {
    let most = UNLIMITED - 1;
    let row = |quota| QueueRow {
        parent: None,
        priority: 0,
        quota: Amounts([quota; 3]),
        limit: Amounts::UNLIMITED,
        weight: [1e300; 3],
        usage: [0.0; 3],
        ..QueueRow::default()
    };
    for quota in [0, 1, most, UNLIMITED, -1_000_000, i64::MIN] {
        for pie in [0, 1, most, UNLIMITED, -1, i64::MIN] {
            let mut queues = load(vec![row(quota), row(quota), row(0)], &[Amounts([most; 3]); 3]);
            divide(&mut queues, Amounts([pie; 3]), 1.0, &mut Scratch::default());
            let total: i128 = queues.fair_share.iter().map(|share| i128::from(share[Resource::Memory])).sum();
            let guaranteed = i128::from(if quota == UNLIMITED { pie.max(0).min(most) } else { quota.min(most) });
            let guaranteed = guaranteed * 2;
            // What is over is cut to an i64 where negative quotas would make it larger.
            assert!(total <= guaranteed.max(i128::from(pie.max(0))), "quota {quota}, pie {pie}: {total}");
            assert!(total >= guaranteed, "quota {quota}, pie {pie}: {total}");
        }
    }
}

/// 1,000 departments of ten queues: every whole GPU finds its queue.
#[test]
fn many_queues() {
    let departments = 1_000;
    let mut tree = vec![queue(0, 1.0, 10_000); departments];
    tree.extend((0..10 * departments).map(|i| Gpus { parent: Some(i / 10), ..queue(0, 1.0 + (i % 3) as f64, 1_000) }));
    let shares = shares(50_003, 1.0, &tree);
    assert_eq!(shares[..departments].iter().sum::<i64>(), 50_003);
    assert_eq!(shares[departments..].iter().sum::<i64>(), 50_003);
    assert_eq!(shares[..4], [51, 51, 51, 50]);
}

#[test]
fn allocatable_share_skips_what_is_unlimited() {
    let share = |quota, limit, fair| allocatable_share(Amounts([quota; 3]), Amounts([limit; 3]), Amounts([fair; 3])).0[0];
    assert_eq!(share(2, UNLIMITED, 5), 5);
    assert_eq!(share(7, UNLIMITED, 5), 7);
    assert_eq!(share(7, 6, 5), 6);
    assert_eq!(share(UNLIMITED, 6, 5), 6);
    assert_eq!(share(UNLIMITED, UNLIMITED, 5), UNLIMITED);
}

/// Random trees in numbers that the reference can treat exactly.
fn trees() -> impl Strategy<Value = Vec<reference::Row>> {
    let quota = prop_oneof![4 => 0..30_i64, 1 => Just(UNLIMITED)];
    let limit = prop_oneof![2 => Just(UNLIMITED), 1 => 0..60_i64];
    let weight = prop_oneof![6 => 1..6_i64, 1 => Just(0), 1 => Just(-1_i64)];
    let usage = prop_oneof![1 => Just(0_i64), 1 => 0..9_i64];
    let row = (0..3_i32, quota, limit, weight, usage, 0..80_i64).prop_map(|(priority, quota, limit, weight, usage, request)| {
        reference::Row { parent: None, priority, quota, limit, weight, usage, request }
    });
    // A parent comes before its children; every second row or so is a root.
    proptest::collection::vec((any::<proptest::sample::Index>(), row), 1..14).prop_map(|rows| {
        let link = |(i, (pick, row)): (usize, (proptest::sample::Index, reference::Row))| {
            let parent = pick.index(2 * i + 3);
            reference::Row { parent: (parent < i).then_some(parent), ..row }
        };
        rows.into_iter().enumerate().map(link).collect()
    })
}

/// The rows as a table: millicores and bytes as they are, GPUs in quarters.
fn table(rows: &[reference::Row]) -> Queues {
    let amounts = |n: i64| if n == UNLIMITED { Amounts::UNLIMITED } else { Amounts::new(n, n, n * MICRO_PER_GPU / 4) };
    let row = |row: &reference::Row| QueueRow {
        parent: row.parent.map(QueueIdx::new),
        priority: row.priority,
        quota: amounts(row.quota),
        limit: amounts(row.limit),
        weight: [row.weight as f64; 3],
        usage: [row.usage as f64 / reference::USAGE_PARTS as f64; 3],
        ..QueueRow::default()
    };
    let requests: Vec<_> = rows.iter().map(|row| amounts(row.request)).collect();
    load(rows.iter().map(row).collect(), &requests)
}

/// Shares by the fast division, with scratch that another division has used.
fn divided(rows: &[reference::Row], pie: Amounts, halves_of_k: i64, scratch: &mut Scratch) -> Col<QueueIdx, Amounts> {
    let mut queues = table(rows);
    divide(&mut queues, pie, halves_of_k as f64 / reference::K_PARTS as f64, scratch);
    queues.fair_share
}

proptest! {
    #[test]
    fn equals_exact_fractions(rows in trees(), pie in 0..200_i64, halves_of_k in 0..5_i64) {
        let amounts = Amounts::new(pie, pie, pie * MICRO_PER_GPU / 4);
        let shares = divided(&rows, amounts, halves_of_k, &mut Scratch::default());
        for (resource, scale) in [(Resource::Cpu, 1), (Resource::Memory, 1), (Resource::Gpu, MICRO_PER_GPU / 4)] {
            let expected = reference::divide(&rows, amounts[resource], scale, resource.share_unit(), halves_of_k);
            let is: Vec<_> = shares.iter().map(|share| share[resource]).collect();
            prop_assert_eq!(is, expected, "{:?}", resource);
        }
    }

    #[test]
    fn scratch_does_not_matter(rows in trees(), before in trees(), pie in 0..200_i64) {
        let pie = Amounts::new(pie, pie, pie * MICRO_PER_GPU / 4);
        let mut used = Scratch::default();
        divided(&before, pie, 2, &mut used);
        let sizes = |scratch: &Scratch| [scratch.order.capacity(), scratch.siblings.capacity(), scratch.line.capacity()];
        let expected = divided(&rows, pie, 2, &mut Scratch::default());
        prop_assert_eq!(&divided(&rows, pie, 2, &mut used), &expected);
        let warm = sizes(&used);
        prop_assert_eq!(&divided(&rows, pie, 2, &mut used), &expected);
        prop_assert_eq!(sizes(&used), warm);
    }

    #[test]
    fn laws_of_a_group(
        mut rows in trees(), pie in 0..200_i64, halves_of_k in 0..5_i64, weights in proptest::collection::vec(0.0..9.0_f64, 14)
    ) {
        rows.iter_mut().for_each(|row| row.parent = None);
        let mut queues = table(&rows);
        for (i, &weight) in weights.iter().enumerate().take(rows.len()) {
            queues.weight[QueueIdx::new(i)] = [if rows[i].weight == 0 { 0.0 } else { weight }; 3];
        }
        let pie = Amounts::new(pie, pie, pie * MICRO_PER_GPU / 4);
        let k_value = halves_of_k as f64 / 2.0;
        divide(&mut queues, pie, k_value, &mut Scratch::default());
        for resource in Resource::ALL {
            let (mut guaranteed, mut over) = (0, 0);
            for q in queues.parent.indices() {
                let requestable = queues.requested[q][resource].min(queues.limit[q][resource]);
                let quota = queues.quota[q][resource];
                let sure = requestable.min(if quota == UNLIMITED { pie[resource] } else { quota });
                let more = queues.fair_share[q][resource] - sure;
                prop_assert!(more >= 0);
                prop_assert!(more == 0 || queues.weight[q][0] > 0.0);
                // A leftover may exceed the request, by less than a unit.
                prop_assert!(queues.fair_share[q][resource] < requestable + resource.share_unit() || more == 0);
                guaranteed += sure;
                over += more;
            }
            prop_assert!(over <= (pie[resource] - guaranteed).max(0));
        }
    }

    /// A larger pie gives more in total. (Not to every queue: rounding by largest leftover never promises that; and not with
    /// usage, which can leave a queue without weight once another is satisfied.)
    #[test]
    fn a_larger_pie_gives_more_in_total(mut rows in trees(), pie in 0..200_i64, more in 1..50_i64) {
        rows.iter_mut().for_each(|row| (row.parent, row.usage, row.weight) = (None, 0, row.weight.max(0)));
        let total = |pie: i64| {
            let shares = divided(&rows, Amounts::new(pie, pie, pie * MICRO_PER_GPU / 4), 0, &mut Scratch::default());
            shares.iter().fold(Amounts::ZERO, |total, &share| total + share)
        };
        prop_assert!(total(pie).fits(total(pie + more)));
    }
}
