//! Tests on a real control plane, one after another; `cargo xtask e2e` runs them.
//!
//! A harness of our own, because a control plane that many tests share has to be stopped when the last one is done. A test that
//! disturbs the servers starts its own.

mod binder;
mod budgets;
mod contract;
mod crds;
mod endpoints;
mod faults;
mod feed;
mod grouping;
mod history;
mod invariants;
mod manifests;
mod newcomer;
mod queue_status;
mod roles;
mod rules;
mod scale;
mod scale_load;
mod scheduler;
mod scheduler_beside;
mod support;
mod write_budget;
mod writes;

use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Failed, Trial};

use support::Shared;

type Test = fn(&Shared) -> anyhow::Result<()>;

const TESTS: &[(&str, Test)] = &[
    ("control_plane::nodes_are_ready_and_jobs_run", support::nodes_are_ready_and_jobs_run),
    ("crds::are_accepted", crds::are_accepted),
    ("crds::keep_every_field", crds::keep_every_field),
    ("crds::keep_what_users_write", crds::keep_what_users_write),
    ("crds::refuse_what_kai_refuses", crds::refuse_what_kai_refuses),
    ("manifests::install_and_install_again", manifests::install_and_install_again),
    ("manifests::rights_are_the_roles", manifests::rights_are_the_roles),
    ("feed::says_what_is_missing", feed::says_what_is_missing),
    ("feed::equals_a_fresh_list_after_a_random_history", feed::equals_a_fresh_list_after_a_random_history),
    ("grouping::a_plain_job_is_grouped", grouping::a_plain_job_is_grouped),
    ("grouping::each_kind_says_what_is_wrong", grouping::each_kind_says_what_is_wrong),
    ("binder::a_burst_of_halves", binder::a_burst_of_halves),
    ("binder::one_that_fails_does_not_starve_others", binder::one_that_fails_does_not_starve_others),
    ("binder::killed_at_any_moment", binder::killed_at_any_moment),
    ("scheduler::places_what_comes", scheduler::places_what_comes),
    ("scheduler::takes_for_others", scheduler::takes_for_others),
    ("scheduler::keeps_within_bounds", scheduler::keeps_within_bounds),
    ("scheduler::two_shards", scheduler_beside::two_shards),
    ("scheduler::a_burst_of_halves", scheduler_beside::a_burst_of_halves),
    ("faults::a_killed_api_server", faults::a_killed_api_server),
    ("faults::cut_watches_and_lost_writes", faults::cut_watches_and_lost_writes),
    ("faults::a_frozen_leader", faults::a_frozen_leader),
    ("faults::killed_fifty_times", faults::killed_fifty_times),
    ("newcomer::from_manifests_to_a_running_job", newcomer::from_manifests_to_a_running_job),
    ("rules::elastic_groups_grow_and_shrink", rules::elastic_groups_grow_and_shrink),
    ("rules::memory_requests_share_cards", rules::memory_requests_share_cards),
    ("budgets::are_kept_in_the_choice", budgets::are_kept_in_the_choice),
    ("endpoints::ask_for_a_token", endpoints::ask_for_a_token),
    ("endpoints::give_a_snapshot", endpoints::give_a_snapshot),
    ("write_budget::of_a_plain_pod", write_budget::of_a_plain_pod),
    ("queue_status::sums_reach_the_top", queue_status::sums_reach_the_top),
    ("scale::cycles_leave_nothing_behind", scale::cycles_leave_nothing_behind),
];

/// Measurements, for `cargo xtask live-bench` alone: they take minutes each.
const MEASUREMENTS: &[(&str, Test)] = &[
    ("scale::jobs_while_running", scale::jobs_while_running),
    ("scale::pods_while_running", scale::pods_while_running),
    ("scale::all_at_once", scale::all_at_once),
    ("scale::memory_and_idle", scale::memory_and_idle),
];

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // They share one API server on few cores, and some count what it does.
    arguments.test_threads = Some(1);
    let shared = Arc::new(Shared::default());
    let chosen = if std::env::var_os("MUSTER_E2E_MEASURE").is_some() { MEASUREMENTS } else { TESTS };
    let trials = chosen.iter().map(|&(name, test)| {
        let shared = Arc::clone(&shared);
        Trial::test(name, move || test(&shared).map_err(|error| Failed::from(format!("{error:#}"))))
    });
    let trials: Vec<_> = trials.collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    if let Some(mut shared) = Arc::into_inner(shared) {
        shared.end();
    }
    conclusion.exit_code()
}
