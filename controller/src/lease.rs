//! Who of several processes may write.
//!
//! What counts is time since the last renewal was *sent*, on this machine's clocks alone: whatever another machine's clock
//! says, the lease cannot be taken before its whole duration has passed there, and this process stops before that. A process
//! that was frozen finds the time gone when it wakes, before it sends anything.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::Api;
use kube::api::PostParams;
use tokio::sync::watch;

use crate::run::{Context, Stop, WRITE_PATIENCE};

/// How long others wait after the last renewal that they saw.
const DURATION: Duration = Duration::from_secs(15);
/// How long after a renewal was sent writes may be sent. A write takes at most [`WRITE_PATIENCE`]: even the last one has ended
/// before somebody else begins.
const WRITE_FOR: Duration = Duration::from_secs(10);
const RENEW_EVERY: Duration = Duration::from_secs(2);
const _: () = assert!(WRITE_FOR.as_secs() + WRITE_PATIENCE.as_secs() < DURATION.as_secs());

/// Whether a role may write now, and how many of its writes are under way.
#[derive(Clone, Debug)]
pub struct Lead {
    until: Arc<Mutex<Until>>,
    under_way: watch::Sender<usize>,
}

/// A write that is under way, until it is dropped.
#[derive(Debug)]
pub struct UnderWay(watch::Sender<usize>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

#[derive(Clone, Copy, Debug)]
enum Until {
    /// Nobody else is there.
    Always,
    /// Both clocks have to agree: the steady one stands still while a machine sleeps, the other can be set.
    Time(Instant, SystemTime),
    Never,
}

impl Lead {
    /// Without leader election.
    #[must_use]
    pub fn always() -> Self {
        Self::new(Until::Always)
    }

    /// Not yet.
    #[must_use]
    pub fn none() -> Self {
        Self::new(Until::Never)
    }

    fn new(until: Until) -> Self {
        Self { until: Arc::new(Mutex::new(until)), under_way: watch::channel(0).0 }
    }

    /// To be asked right before each write, and kept until it has ended. `None`: it may not be sent.
    #[must_use]
    pub fn begin(&self) -> Option<UnderWay> {
        // Counted first, so that whoever waits for quiet after the end of the lead misses none.
        self.under_way.send_modify(|count| *count += 1);
        let under_way = UnderWay(self.under_way.clone());
        self.may_write().then_some(under_way)
    }

    /// Returns once no write is under way.
    pub async fn quiet(&self) {
        // An error means that nobody could begin one.
        let _ = self.under_way.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Whether writes may be sent.
    #[must_use]
    pub fn may_write(&self) -> bool {
        match *self.until.lock().unwrap_or_else(PoisonError::into_inner) {
            Until::Always => true,
            Until::Never => false,
            Until::Time(steady, wall) => Instant::now() < steady && SystemTime::now() < wall,
        }
    }

    /// Extends it to `duration` after a renewal that was sent at these times.
    pub fn extend(&self, sent: Instant, sent_wall: SystemTime, duration: Duration) {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = Until::Time(sent + duration, sent_wall + duration);
    }

    /// Ends it.
    pub fn end(&self) {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = Until::Never;
    }
}

/// What was seen of a lease that somebody else holds: only whether it changes counts, by our own clock.
#[derive(Debug)]
struct Seen {
    version: String,
    since: Instant,
}

struct Candidate {
    api: Api<Lease>,
    name: String,
    identity: String,
    seen: Option<Seen>,
}

impl Candidate {
    /// Takes or renews it; whether we have it now. `Err`: nobody knows.
    async fn try_once(&mut self) -> Result<bool, String> {
        let there = self.api.get_opt(&self.name).await.map_err(|error| error.to_string())?;
        let now = MicroTime(Timestamp::now());
        let Some(mut lease) = there else {
            let spec = self.spec(LeaseSpec { acquire_time: Some(now.clone()), ..LeaseSpec::default() }, now);
            let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
            let lease = Lease { metadata, spec: Some(spec) };
            return won(self.api.create(&PostParams::default(), &lease).await);
        };
        let spec = lease.spec.take().unwrap_or_default();
        let holder = spec.holder_identity.clone().unwrap_or_default();
        let ours = holder == self.identity;
        if !ours && !holder.is_empty() && !self.is_over(lease.metadata.resource_version.as_deref().unwrap_or_default(), &spec) {
            return Ok(false);
        }
        let mut spec = self.spec(spec, now.clone());
        if !ours {
            spec.acquire_time = Some(now);
            spec.lease_transitions = Some(spec.lease_transitions.unwrap_or(0).saturating_add(1));
        }
        lease.spec = Some(spec);
        // With the version that was read: whoever comes second is refused.
        won(self.api.replace(&self.name, &PostParams::default(), &lease).await)
    }

    fn spec(&self, spec: LeaseSpec, now: MicroTime) -> LeaseSpec {
        let seconds = i32::try_from(DURATION.as_secs()).unwrap_or(i32::MAX);
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(seconds),
            renew_time: Some(now),
            ..spec
        }
    }

    /// Whether another holder's lease has stood still for its whole duration while we looked.
    fn is_over(&mut self, version: &str, spec: &LeaseSpec) -> bool {
        let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok()).filter(|&seconds| seconds > 0);
        let duration = seconds.map_or(DURATION, Duration::from_secs);
        match &self.seen {
            Some(seen) if seen.version == version => seen.since.elapsed() > duration,
            _ => {
                self.seen = Some(Seen { version: version.to_owned(), since: Instant::now() });
                false
            }
        }
    }

    /// Lets somebody else have it at once.
    async fn release(&self) {
        let give = async {
            let mut lease = self.api.get(&self.name).await?;
            if let Some(spec) = lease.spec.as_mut().filter(|spec| spec.holder_identity.as_deref() == Some(&self.identity)) {
                spec.holder_identity = Some(String::new());
                self.api.replace(&self.name, &PostParams::default(), &lease).await?;
            }
            Ok::<_, kube::Error>(())
        };
        if !matches!(tokio::time::timeout(WRITE_PATIENCE, give).await, Ok(Ok(()))) {
            tracing::debug!(lease = self.name, "was not released; it runs out by itself");
        }
    }
}

fn won(answer: Result<Lease, kube::Error>) -> Result<bool, String> {
    match answer {
        Ok(_) => Ok(true),
        // Somebody was faster.
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error.to_string()),
    }
}

/// Runs `role` whenever this process leads, until told to stop. What the role is given stops and may not write once the lead
/// is lost; then it waits for its next turn.
///
/// # Errors
/// If the role ends with one.
pub async fn hold<F>(context: Context, name: &str, role: impl Fn(Context) -> F) -> Result<()>
where
    F: Future<Output = Result<()>>,
{
    let api = Api::namespaced(context.client.clone(), &context.options.namespace);
    let identity = context.options.identity.clone();
    let mut candidate = Candidate { api, name: name.to_owned(), identity, seen: None };
    let lead = Lead::none();
    while !context.stop.is_stopped() {
        if !step(&mut candidate, &lead).await {
            tokio::select! {
                () = tokio::time::sleep(RENEW_EVERY) => {}
                () = context.stop.stopped() => {}
            }
            continue;
        }
        tracing::info!(lease = name, "leads");
        let (stopper, stop) = Stop::new();
        let mut running = std::pin::pin!(role(Context { lead: lead.clone(), stop, ..context.clone() }));
        let ended = tokio::select! {
            ended = &mut running => Some(ended),
            () = keep(&mut candidate, &lead) => None,
            () = context.stop.stopped() => None,
        };
        stopper.stop();
        let ended = match ended {
            Some(ended) => ended,
            // It finishes what it may still write, or abandons it.
            None => match tokio::time::timeout(DURATION, &mut running).await {
                Ok(ended) => ended,
                Err(_) => Ok(()),
            },
        };
        lead.end();
        tracing::info!(lease = name, "leads no longer");
        // Who comes next must not list the cluster while a write of ours is still on its way.
        if tokio::time::timeout(WRITE_PATIENCE, lead.quiet()).await.is_ok() {
            candidate.release().await;
        }
        ended?;
    }
    Ok(())
}

/// Tries once, and extends the lead if that worked.
async fn step(candidate: &mut Candidate, lead: &Lead) -> bool {
    let (sent, sent_wall) = (Instant::now(), SystemTime::now());
    match tokio::time::timeout(WRITE_PATIENCE, candidate.try_once()).await {
        Ok(Ok(true)) => {
            lead.extend(sent, sent_wall, WRITE_FOR);
            true
        }
        Ok(Ok(false)) => false,
        Ok(Err(error)) => {
            tracing::warn!(lease = candidate.name, error, "cannot be taken or renewed");
            false
        }
        Err(_) => {
            tracing::warn!(lease = candidate.name, "no answer");
            false
        }
    }
}

/// Renews until the lead is lost.
async fn keep(candidate: &mut Candidate, lead: &Lead) {
    loop {
        tokio::time::sleep(RENEW_EVERY).await;
        // One renewal that fails is no loss, the time is.
        step(candidate, lead).await;
        if !lead.may_write() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lead_ends_by_itself() {
        let lead = Lead::none();
        assert!(!lead.may_write() && Lead::always().may_write());
        let (now, wall) = (Instant::now(), SystemTime::now());
        lead.extend(now, wall, Duration::from_secs(10));
        assert!(lead.may_write());
        // Frozen for longer, by either clock.
        lead.extend(now.checked_sub(Duration::from_secs(11)).expect("the machine is up"), wall, Duration::from_secs(10));
        assert!(!lead.may_write());
        lead.extend(now, wall - Duration::from_secs(11), Duration::from_secs(10));
        assert!(!lead.may_write());
        lead.extend(now, wall, Duration::from_secs(10));
        lead.end();
        assert!(!lead.may_write());
    }

    #[tokio::test(start_paused = true)]
    async fn who_leads_no_longer_waits_for_what_it_has_sent() {
        let is_quiet = async |lead: &Lead| tokio::time::timeout(Duration::from_secs(1), lead.quiet()).await.is_ok();
        let lead = Lead::always();
        let (first, second) = (lead.begin(), lead.begin());
        lead.end();
        assert!(first.is_some() && second.is_some() && lead.begin().is_none());
        assert!(!is_quiet(&lead).await);
        drop(first);
        assert!(!is_quiet(&lead).await);
        drop(second);
        assert!(is_quiet(&lead).await);
    }
}
