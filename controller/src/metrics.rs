//! What is counted, under the names that KAI's dashboards know (wire-contract.md §9), and beside them durations in seconds.
//! Made once: a role that is started again, after a lost lease, counts on.

use std::time::Duration;

use muster_core::outcome::Outcome;
use muster_core::units::{MICRO_PER_GPU, Resource};
use prometheus::{
    Encoder as _, Gauge, GaugeVec, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry, TextEncoder,
};

use crate::orders::Leave;

/// Everything that `/metrics` shows.
#[derive(Debug)]
pub struct Metrics {
    /// What the parts below are registered in.
    pub registry: Registry,
    /// Of the scheduler.
    pub scheduler: SchedulerMetrics,
}

/// Of the scheduler.
#[derive(Debug)]
pub struct SchedulerMetrics {
    cycle_milliseconds: Gauge,
    open_milliseconds: Gauge,
    close_milliseconds: Gauge,
    action_milliseconds: GaugeVec,
    task_milliseconds: Histogram,
    bind_milliseconds: Histogram,
    scheduled: IntCounterVec,
    evicted: IntCounterVec,
    preemptions: IntCounter,
    fair_share: [GaugeVec; 3],
    cycle_seconds: Histogram,
    bind_seconds: Histogram,
    /// Cycles that were run.
    pub cycles: IntCounter,
    /// Cycles that broke off with a bug.
    pub panics: IntCounter,
    /// Cycles that were not run since too little is known.
    pub no_data: IntCounter,
    /// Binds that failed.
    pub bind_failures: IntCounter,
    /// Pods that were bound.
    pub binds: IntCounter,
    /// Pods whose write is under way.
    pub assumed: IntGauge,
    /// 1 while this process leads.
    pub leading: IntGauge,
}

impl Metrics {
    /// All at zero. `namespace` is the first part of every name.
    ///
    /// # Errors
    /// If `namespace` cannot be part of a name.
    pub fn new(namespace: &str) -> prometheus::Result<Self> {
        let registry = Registry::new();
        let scheduler = SchedulerMetrics::new(&registry, namespace)?;
        Ok(Self { registry, scheduler })
    }

    /// In the text format of Prometheus.
    #[must_use]
    pub fn text(&self) -> Vec<u8> {
        let mut text = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut text) {
            tracing::error!(%error, "metrics cannot be written");
        }
        text
    }
}

/// Makes and registers.
struct Maker<'a> {
    registry: &'a Registry,
    namespace: &'a str,
}

impl Maker<'_> {
    fn opts(&self, name: &str, help: &str) -> Opts {
        Opts::new(name, help).namespace(self.namespace)
    }

    fn keep<C: prometheus::core::Collector + Clone + 'static>(&self, made: C) -> prometheus::Result<C> {
        self.registry.register(Box::new(made.clone()))?;
        Ok(made)
    }

    fn gauge(&self, name: &str, help: &str) -> prometheus::Result<Gauge> {
        self.keep(Gauge::with_opts(self.opts(name, help))?)
    }

    fn integer(&self, name: &str, help: &str) -> prometheus::Result<IntGauge> {
        self.keep(IntGauge::with_opts(self.opts(name, help))?)
    }

    fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<GaugeVec> {
        self.keep(GaugeVec::new(self.opts(name, help), labels)?)
    }

    fn counter(&self, name: &str, help: &str) -> prometheus::Result<IntCounter> {
        self.keep(IntCounter::with_opts(self.opts(name, help))?)
    }

    fn counters(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntCounterVec> {
        self.keep(IntCounterVec::new(self.opts(name, help), labels)?)
    }

    fn histogram(&self, name: &str, help: &str, first: f64, count: usize) -> prometheus::Result<Histogram> {
        let buckets = prometheus::exponential_buckets(first, 2.0, count)?;
        self.keep(Histogram::with_opts(HistogramOpts::new(name, help).namespace(self.namespace).buckets(buckets))?)
    }
}

const QUEUE_LABELS: [&str; 3] = ["queue_name", "queue_metadata_name", "queue_display_name"];

impl SchedulerMetrics {
    fn new(registry: &Registry, namespace: &str) -> prometheus::Result<Self> {
        let make = Maker { registry, namespace };
        let last = |of: &str| format!("{of}, milliseconds, of the last cycle");
        Ok(Self {
            cycle_milliseconds: make.gauge("e2e_scheduling_latency_milliseconds", &last("A whole cycle"))?,
            open_milliseconds: make.gauge("open_session_latency_milliseconds", &last("Making rows"))?,
            close_milliseconds: make.gauge("close_session_latency_milliseconds", &last("Handing over decisions"))?,
            action_milliseconds: make.gauges("action_scheduling_latency_milliseconds", &last("An action"), &["action"])?,
            task_milliseconds: make.histogram(
                "task_scheduling_latency_milliseconds",
                "From a pod's creation to the decision to bind it",
                5.0,
                10,
            )?,
            bind_milliseconds: make.histogram(
                "task_bind_latency_milliseconds",
                "From the decision to the answer of the API server",
                5.0,
                10,
            )?,
            scheduled: make.counters("podgroups_scheduled_by_action", "Pod groups that an action placed pods of", &["action"])?,
            evicted: make.counters(
                "pod_group_evicted_pods_total",
                "Pods that were told to leave",
                &["podgroup", "namespace", "uid", "nodepool", "action"],
            )?,
            preemptions: make.counter("total_preemption_attempts", "Preemptions that were carried out")?,
            fair_share: [
                make.gauges("queue_fair_share_cpu_cores", "What a queue is due, cores", &QUEUE_LABELS)?,
                make.gauges("queue_fair_share_memory_gb", "What a queue is due, 10^9 bytes", &QUEUE_LABELS)?,
                make.gauges("queue_fair_share_gpu", "What a queue is due, GPUs", &QUEUE_LABELS)?,
            ],
            cycle_seconds: make.histogram("cycle_duration_seconds", "A whole cycle", 0.0005, 16)?,
            bind_seconds: make.histogram(
                "bind_duration_seconds",
                "From the decision to the answer of the API server",
                0.001,
                16,
            )?,
            cycles: make.counter("cycles_total", "Cycles")?,
            panics: make.counter("cycle_panics_total", "Cycles that broke off with a bug")?,
            no_data: make.counter("cycles_without_data_total", "Cycles that were not run since too little was known")?,
            bind_failures: make.counter("bind_failures_total", "Pods that were not bound as decided")?,
            binds: make.counter("binds_total", "Pods that were bound, or whose BindRequest was made")?,
            assumed: make.integer("assumed_pods", "Pods that were decided about and do not show it yet")?,
            leading: make.integer("scheduler_leading", "1 while this process leads")?,
        })
    }

    /// A cycle is over.
    pub fn cycle(&self, open: Duration, actions: &[(&'static str, Duration)], close: Duration, whole: Duration) {
        let milliseconds = |duration: Duration| duration.as_secs_f64() * 1e3;
        self.cycles.inc();
        self.open_milliseconds.set(milliseconds(open));
        self.close_milliseconds.set(milliseconds(close));
        self.cycle_milliseconds.set(milliseconds(whole));
        self.cycle_seconds.observe(whole.as_secs_f64());
        for (action, duration) in actions {
            self.action_milliseconds.with_label_values(&[action]).set(milliseconds(*duration));
        }
    }

    /// What queues are due.
    pub fn shares(&self, loaded: &muster_api::read::Loaded, outcome: &Outcome) {
        self.fair_share.iter().for_each(GaugeVec::reset);
        for queue in outcome.queues.indices() {
            let (name, title) = (&loaded.names.queues[queue], &loaded.names.queue_titles[queue]);
            let labels = [if title.is_empty() { name } else { title }, name, title];
            for resource in Resource::ALL {
                #[expect(clippy::cast_precision_loss, reason = "shown, not computed with")]
                let share = outcome.queues[queue].fair_share[resource] as f64;
                let unit = match resource {
                    Resource::Cpu => 1e3,
                    Resource::Memory => 1e9,
                    #[expect(clippy::cast_precision_loss, reason = "a small constant")]
                    Resource::Gpu => MICRO_PER_GPU as f64,
                };
                self.fair_share[resource as usize].with_label_values(&labels).set(share / unit);
            }
        }
    }

    /// Gangs got pods placed.
    pub fn placed(&self, action: &str, gangs: u64) {
        self.scheduled.with_label_values(&[action]).inc_by(gangs);
        if action == "preempt" {
            self.preemptions.inc_by(gangs);
        }
    }

    /// A pod waited this long for its decision.
    pub fn waited(&self, since_created: Duration) {
        self.task_milliseconds.observe(since_created.as_secs_f64() * 1e3);
    }

    /// A bind has succeeded.
    pub fn bound(&self, took: Duration) {
        self.binds.inc();
        self.bind_milliseconds.observe(took.as_secs_f64() * 1e3);
        self.bind_seconds.observe(took.as_secs_f64());
    }

    /// An eviction has succeeded.
    pub fn evicted(&self, leave: &Leave, gang_uid: &str, pool: &str) {
        let labels = [leave.gang.name.as_str(), &leave.gang.namespace, gang_uid, pool, leave.action.name()];
        self.evicted.with_label_values(&labels).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_kais() {
        let metrics = Metrics::new("kai").expect("a good namespace");
        metrics.scheduler.placed("preempt", 2);
        let text = String::from_utf8(metrics.text()).expect("text");
        assert!(text.contains("kai_total_preemption_attempts 2\n"), "{text}");
        assert!(text.contains("kai_podgroups_scheduled_by_action{action=\"preempt\"} 2\n"), "{text}");
        assert!(Metrics::new("no good").is_err());
    }
}
