//! One write: tried again while it makes sense, never without the lead, and no faster than the server likes.
//!
//! Every write can fail, be late, or succeed without our knowing. So whoever writes says what it expects (a uid, a version),
//! and after [`Failed::Unknown`] looks before it believes anything.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::lease::Lead;
use crate::run::{Stop, WRITE_PATIENCE};

/// A write is tried this often.
const TRIES: u32 = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
const FEWEST: usize = 2;
const START: usize = 16;
const MOST: usize = 64;

/// Why a write did not succeed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failed {
    /// The server said no, and will again: status code and message.
    Refused(u16, String),
    /// The server did not answer, or not clearly: it may have been carried out.
    Unknown(String),
    /// This process is ending or leads no longer. Of an earlier try nothing is known.
    Abandoned,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(code, message) => write!(f, "refused ({code}): {message}"),
            Self::Unknown(message) => write!(f, "no clear answer: {message}"),
            Self::Abandoned => f.write_str("abandoned"),
        }
    }
}

impl Failed {
    /// The status code of a refusal.
    #[must_use]
    pub const fn code(&self) -> Option<u16> {
        match self {
            Self::Refused(code, _) => Some(*code),
            Self::Unknown(_) | Self::Abandoned => None,
        }
    }
}

/// What went well, and whether an earlier try may have been carried out as well.
pub type Written<T> = Result<T, (Failed, bool)>;

/// How many writes are under way at once: slowly more while the server answers, half as many when it is overloaded.
#[derive(Debug)]
pub struct Pressure {
    semaphore: Arc<Semaphore>,
    limit: Mutex<Limit>,
}

#[derive(Debug)]
struct Limit {
    /// Permits that exist, those to be withdrawn left out.
    now: usize,
    /// Answers since it was last raised.
    answers: usize,
    /// Permits to withdraw as they come back.
    withdraw: usize,
    /// When it was last halved: many writes that fail at once are one sign, not many.
    halved: Option<Instant>,
}

impl Default for Pressure {
    fn default() -> Self {
        let limit = Limit { now: START, answers: 0, withdraw: 0, halved: None };
        Self { semaphore: Arc::new(Semaphore::new(START)), limit: Mutex::new(limit) }
    }
}

impl Pressure {
    /// Waits for a turn; turns come in the order in which they are asked for.
    pub async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.semaphore).acquire_owned().await.ok()
    }

    /// How many writes may be under way.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit.lock().unwrap_or_else(PoisonError::into_inner).now
    }

    /// The server answered as it should.
    fn went_well(&self) {
        let mut limit = self.limit.lock().unwrap_or_else(PoisonError::into_inner);
        limit.answers += 1;
        if limit.answers >= limit.now && limit.now < MOST {
            (limit.now, limit.answers) = (limit.now + 1, 0);
            if limit.withdraw > 0 { limit.withdraw -= 1 } else { self.semaphore.add_permits(1) }
        }
    }

    /// It is overloaded, or does not answer.
    fn overloaded(&self) {
        let mut limit = self.limit.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if limit.halved.is_some_and(|halved| now.duration_since(halved) < FIRST_PAUSE) {
            return;
        }
        limit.halved = Some(now);
        let next = (limit.now / 2).max(FEWEST);
        limit.withdraw += limit.now - next;
        (limit.now, limit.answers) = (next, 0);
    }

    /// A turn is over.
    fn give_back(&self, turn: OwnedSemaphorePermit) {
        let mut limit = self.limit.lock().unwrap_or_else(PoisonError::into_inner);
        if limit.withdraw > 0 {
            limit.withdraw -= 1;
            turn.forget();
        }
    }
}

/// What a write needs beside its content.
#[derive(Clone, Debug)]
pub struct Writer {
    /// Whether to write.
    pub lead: Lead,
    /// When to end.
    pub stop: Stop,
    /// How fast.
    pub pressure: Arc<Pressure>,
}

impl Writer {
    /// Waits for a turn, then tries until there is a clear answer, or it has been tried often enough.
    ///
    /// # Errors
    /// The last failure, and whether an earlier try, or this one, may have been carried out.
    pub async fn write<T, F>(&self, request: impl FnMut() -> F) -> Written<T>
    where
        F: Future<Output = Result<T, kube::Error>>,
    {
        let turn = tokio::select! {
            turn = self.pressure.turn() => turn,
            () = self.stop.stopped() => None,
        };
        let Some(turn) = turn else { return Err((Failed::Abandoned, false)) };
        let written = self.tries(request).await;
        self.pressure.give_back(turn);
        written
    }

    async fn tries<T, F>(&self, mut request: impl FnMut() -> F) -> Written<T>
    where
        F: Future<Output = Result<T, kube::Error>>,
    {
        let (mut pause, mut unclear, mut last) = (FIRST_PAUSE, false, Failed::Abandoned);
        for _ in 0..TRIES {
            if !self.lead.may_write() || self.stop.is_stopped() {
                return Err((Failed::Abandoned, unclear));
            }
            let retry_after = match tokio::time::timeout(WRITE_PATIENCE, request()).await {
                Ok(Ok(answer)) => {
                    self.pressure.went_well();
                    return Ok(answer);
                }
                Ok(Err(kube::Error::Api(status))) if status.code < 500 && status.code != 429 => {
                    self.pressure.went_well();
                    return Err((Failed::Refused(status.code, status.message.clone()), unclear));
                }
                Ok(Err(kube::Error::Api(status))) => {
                    // What was turned away at the door was not carried out.
                    unclear |= status.code != 429;
                    last = Failed::Unknown(format!("{}: {}", status.code, status.message));
                    status.details.as_ref().map_or(0, |details| details.retry_after_seconds)
                }
                Ok(Err(error)) => {
                    unclear = true;
                    last = Failed::Unknown(error.to_string());
                    0
                }
                Err(_) => {
                    unclear = true;
                    last = Failed::Unknown(format!("no answer within {} s", WRITE_PATIENCE.as_secs()));
                    0
                }
            };
            self.pressure.overloaded();
            let wait = pause.max(Duration::from_secs(retry_after.into())).min(LONGEST_PAUSE);
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.stop.stopped() => {}
            }
            pause *= 2;
        }
        Err((last, unclear))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use kube::core::Status;

    use super::*;
    use crate::run::Stop;

    fn writer() -> (Writer, crate::run::Stopper) {
        let (stopper, stop) = Stop::new();
        (Writer { lead: Lead::always(), stop, pressure: Arc::default() }, stopper)
    }

    fn api(code: u16) -> kube::Error {
        kube::Error::Api(Box::new(Status { code, message: "m".to_owned(), ..Status::default() }))
    }

    async fn answers(writer: &Writer, codes: &[u16]) -> (Written<()>, u32) {
        let tried = AtomicU32::new(0);
        let written = writer
            .write(|| {
                let n = tried.fetch_add(1, Ordering::Relaxed) as usize;
                let answer = codes.get(n).copied().unwrap_or(200);
                async move { if answer == 200 { Ok(()) } else { Err(api(answer)) } }
            })
            .await;
        (written, tried.into_inner())
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_refused_is_not_tried_again_and_what_is_unclear_is() {
        let (writer, _stopper) = writer();
        let refused = |code| Err((Failed::Refused(code, "m".to_owned()), false));
        assert_eq!(answers(&writer, &[409]).await, (refused(409), 1));
        assert_eq!(answers(&writer, &[500, 503, 429]).await, (Ok(()), 4));
        // Tried again after a 429 alone, nothing is unclear; after a 500 a conflict may be our own work.
        assert_eq!(answers(&writer, &[429, 409]).await, (refused(409), 2));
        assert_eq!(answers(&writer, &[500, 409]).await, (Err((Failed::Refused(409, "m".to_owned()), true)), 2));
        let (written, tries) = answers(&writer, &[500; 20]).await;
        assert!(matches!(written, Err((Failed::Unknown(_), true))) && tries == TRIES, "{written:?} {tries}");
    }

    #[tokio::test(start_paused = true)]
    async fn without_the_lead_nothing_is_sent() {
        let (writer, stopper) = writer();
        writer.lead.end();
        assert_eq!(answers(&writer, &[]).await, (Err((Failed::Abandoned, false)), 0));
        let (writer, _) = (Writer { lead: Lead::always(), ..writer }, stopper.stop());
        assert_eq!(answers(&writer, &[]).await, (Err((Failed::Abandoned, false)), 0));
    }

    #[tokio::test(start_paused = true)]
    async fn overload_halves_and_answers_restore() {
        let (writer, _stopper) = writer();
        answers(&writer, &[429, 429]).await.0.expect("it succeeds in the end");
        assert_eq!(writer.pressure.limit(), START / 4);
        for _ in 0..3000 {
            answers(&writer, &[]).await.0.expect("it succeeds");
        }
        assert_eq!(writer.pressure.limit(), MOST);
        assert_eq!(writer.pressure.semaphore.available_permits(), MOST);
    }
}
