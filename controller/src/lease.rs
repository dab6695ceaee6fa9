//! Who of several processes may write.
//!
//! What counts is time since the last renewal was *sent*, on this machine's clocks alone: whatever another machine's clock
//! says, the lease cannot be taken before its whole duration has passed there, and this process stops before that. A process
//! that was frozen finds the time gone when it wakes, before it sends anything.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Whether a role may write now.
#[derive(Clone, Debug, Default)]
pub struct Lead(Arc<Mutex<Until>>);

#[derive(Clone, Copy, Debug, Default)]
enum Until {
    /// Nobody else is there.
    #[default]
    Always,
    /// Both clocks have to agree: the steady one stands still while a machine sleeps, the other can be set.
    Time(Instant, SystemTime),
    Never,
}

impl Lead {
    /// Without leader election.
    #[must_use]
    pub fn always() -> Self {
        Self::default()
    }

    /// Not yet.
    #[must_use]
    pub fn none() -> Self {
        Self(Arc::new(Mutex::new(Until::Never)))
    }

    /// To be asked before each write: whether it may be sent.
    #[must_use]
    pub fn may_write(&self) -> bool {
        match *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Until::Always => true,
            Until::Never => false,
            Until::Time(steady, wall) => Instant::now() < steady && SystemTime::now() < wall,
        }
    }

    /// Extends it to `duration` after a renewal that was sent at these times.
    pub fn extend(&self, sent: Instant, sent_wall: SystemTime, duration: Duration) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Until::Time(sent + duration, sent_wall + duration);
    }

    /// Ends it.
    pub fn end(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Until::Never;
    }
}
