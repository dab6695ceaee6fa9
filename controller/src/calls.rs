//! Requests to the API server. Each has an end; a write is sent by who leads only, no faster than the server likes, and by whom
//! has no other way again while that makes sense.
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

/// Reads do no harm when they come late.
const READ_PATIENCE: Duration = Duration::from_secs(15);
/// [`Writer::write`] tries this often.
const TRIES: u32 = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
const FEWEST: usize = 2;
const START: usize = 16;
const MOST: usize = 64;

/// Why a request did not do what it should.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failed {
    /// The server has looked at it and said no.
    Refused {
        /// Of HTTP.
        code: u16,
        /// In CamelCase, as the server has it; may be empty.
        reason: String,
        /// For people.
        message: String,
    },
    /// There was no answer, or no clear one: it may have been carried out, and may succeed if it is sent again.
    Unknown(String),
    /// This process is ending or leads no longer. Of an earlier try nothing is known.
    Abandoned,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { message, .. } | Self::Unknown(message) => f.write_str(message),
            Self::Abandoned => f.write_str("abandoned: this process leads no longer"),
        }
    }
}

impl std::error::Error for Failed {}

impl Failed {
    /// A refusal of our own, in the server's manner.
    #[must_use]
    pub fn refused(code: u16, message: impl Into<String>) -> Self {
        Self::Refused { code, reason: String::new(), message: message.into() }
    }

    /// The status code of a refusal.
    #[must_use]
    pub const fn code(&self) -> Option<u16> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            Self::Unknown(_) | Self::Abandoned => None,
        }
    }

    /// The object is not there.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    /// The object is there already.
    #[must_use]
    pub fn is_already_exists(&self) -> bool {
        matches!(self, Self::Refused { code: 409, reason, .. } if reason == "AlreadyExists")
    }

    /// The object is not (or no longer) what the request was made for.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        match self {
            Self::Refused { code: 409, reason, .. } => reason != "AlreadyExists",
            // A patch that names another uid than the object has.
            Self::Refused { code: 422, message, .. } => message.contains("metadata.uid"),
            _ => false,
        }
    }

    /// The object is gone, or another one has its name: nothing is left to be done for the one that was meant.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_not_found() || self.is_conflict()
    }

    /// This process may not.
    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        self.code() == Some(403)
    }

    /// Sending it again changes nothing, whatever becomes of the object.
    #[must_use]
    pub fn is_final(&self) -> bool {
        self.code().is_some_and(|code| code != 409) && !self.is_conflict()
    }
}

/// What went well, and whether an earlier try may have been carried out as well.
pub type Written<T> = Result<T, (Failed, bool)>;

/// What an answer that is none says beside [`Failed`].
struct Answer {
    failed: Failed,
    /// It may have been carried out.
    unclear: bool,
    /// Fewer at once would be better.
    overloaded: bool,
    /// The server's wish.
    pause: Duration,
}

/// Sends it and judges what comes back.
async fn send<T>(patience: Duration, call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Answer> {
    let unclear = |said: String| Answer { failed: Failed::Unknown(said), unclear: true, overloaded: true, pause: Duration::ZERO };
    let status = match tokio::time::timeout(patience, call).await {
        Ok(Ok(answer)) => return Ok(answer),
        Ok(Err(kube::Error::Api(status))) => status,
        Ok(Err(error)) => return Err(unclear(error.to_string())),
        Err(_) => return Err(unclear(format!("the API server did not answer within {} s", patience.as_secs()))),
    };
    Err(match status.code {
        // What was turned away at the door was not carried out.
        401 | 429 => {
            let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
            let failed = Failed::Unknown(format!("{}: {}", status.code, status.message));
            Answer { failed, unclear: false, overloaded: status.code == 429, pause: Duration::from_secs(seconds.into()) }
        }
        408 | 500.. => unclear(format!("{}: {}", status.code, status.message)),
        code => {
            let failed = Failed::Refused { code, reason: status.reason.clone(), message: status.message.clone() };
            Answer { failed, unclear: false, overloaded: false, pause: Duration::ZERO }
        }
    })
}

/// Sends a read.
///
/// # Errors
/// If the server refuses, or there is no answer in time.
pub async fn read<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Failed> {
    send(READ_PATIENCE, call).await.map_err(|answer| answer.failed)
}

/// Of what is gone, or something else by now, nothing is left to be done.
///
/// # Errors
/// The other failures.
pub fn settled<T>(answer: Result<T, Failed>) -> Result<(), Failed> {
    match answer {
        Err(failed) if !failed.is_over() => Err(failed),
        _ => Ok(()),
    }
}

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

/// The right to have one write under way.
struct Turn<'a> {
    pressure: &'a Pressure,
    permit: Option<OwnedSemaphorePermit>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut limit = self.pressure.limit.lock().unwrap_or_else(PoisonError::into_inner);
        if limit.withdraw > 0
            && let Some(permit) = self.permit.take()
        {
            limit.withdraw -= 1;
            permit.forget();
        }
    }
}

impl Pressure {
    /// Waits for a turn; turns come in the order in which they are asked for.
    async fn turn(&self) -> Turn<'_> {
        // The semaphore is never closed.
        Turn { pressure: self, permit: Arc::clone(&self.semaphore).acquire_owned().await.ok() }
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
}

/// Sends writes. Copies share their pressure.
#[derive(Clone, Debug)]
pub struct Writer {
    lead: Lead,
    stop: Stop,
    pressure: Arc<Pressure>,
}

impl Writer {
    /// One with a pressure of its own.
    #[must_use]
    pub fn new(lead: Lead, stop: Stop) -> Self {
        Self { lead, stop, pressure: Arc::default() }
    }

    /// The same, for what must not hold up the others' writes, nor be held up by them.
    #[must_use]
    pub fn apart(&self) -> Self {
        Self { pressure: Arc::default(), ..self.clone() }
    }

    /// The same, which ends with something smaller.
    #[must_use]
    pub fn until(&self, stop: Stop) -> Self {
        Self { stop, ..self.clone() }
    }

    /// When it ends.
    #[must_use]
    pub const fn stop(&self) -> &Stop {
        &self.stop
    }

    /// Whether it may write now.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.lead.may_write()
    }

    /// Waits for a turn, then sends it once: for whoever tries again by itself.
    ///
    /// # Errors
    /// If this process does not lead, the server refuses, or there is no clear answer in time.
    pub async fn once<T>(&self, call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Failed> {
        let Some(_turn) = self.turn().await else { return Err(Failed::Abandoned) };
        self.attempt(call).await.map_err(|answer| answer.failed)
    }

    /// Waits for a turn, then tries until there is a clear answer, or it has been tried often enough.
    ///
    /// # Errors
    /// The last failure, and whether an earlier try, or this one, may have been carried out.
    pub async fn write<T, F>(&self, mut request: impl FnMut() -> F) -> Written<T>
    where
        F: Future<Output = Result<T, kube::Error>>,
    {
        let Some(_turn) = self.turn().await else { return Err((Failed::Abandoned, false)) };
        let (mut pause, mut unclear, mut last) = (FIRST_PAUSE, false, Failed::Abandoned);
        for _ in 0..TRIES {
            let answer = match self.attempt(request()).await {
                Ok(answer) => return Ok(answer),
                Err(answer) => answer,
            };
            unclear |= answer.unclear;
            if !matches!(answer.failed, Failed::Unknown(_)) {
                return Err((answer.failed, unclear));
            }
            last = answer.failed;
            tokio::select! {
                () = tokio::time::sleep(pause.max(answer.pause).min(LONGEST_PAUSE)) => {}
                () = self.stop.stopped() => {}
            }
            pause *= 2;
        }
        Err((last, unclear))
    }

    async fn turn(&self) -> Option<Turn<'_>> {
        tokio::select! {
            turn = self.pressure.turn() => Some(turn),
            () = self.stop.stopped() => None,
        }
    }

    async fn attempt<T>(&self, call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Answer> {
        let begun = if self.stop.is_stopped() { None } else { self.lead.begin() };
        let Some(_under_way) = begun else {
            return Err(Answer { failed: Failed::Abandoned, unclear: false, overloaded: false, pause: Duration::ZERO });
        };
        let answer = send(WRITE_PATIENCE, call).await;
        match &answer {
            Err(answer) if answer.overloaded => self.pressure.overloaded(),
            _ => self.pressure.went_well(),
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use kube::core::Status;

    use super::*;

    fn writer() -> (Writer, crate::run::Stopper) {
        let (stopper, stop) = Stop::new();
        (Writer::new(Lead::always(), stop), stopper)
    }

    fn api(code: u16) -> kube::Error {
        kube::Error::Api(Box::new(Status { code, message: "m".to_owned(), ..Status::default() }))
    }

    async fn answers(writer: &Writer, codes: &[u16]) -> (Written<()>, u32) {
        let tried = AtomicU32::new(0);
        let written = writer
            .write(async || {
                // Counted when it is sent, not when it is made.
                let n = tried.fetch_add(1, Ordering::Relaxed) as usize;
                let answer = codes.get(n).copied().unwrap_or(200);
                if answer == 200 { Ok(()) } else { Err(api(answer)) }
            })
            .await;
        (written, tried.into_inner())
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_refused_is_not_tried_again_and_what_is_unclear_is() {
        let (writer, _stopper) = writer();
        let refused = |code, unclear| Err((Failed::refused(code, "m"), unclear));
        assert_eq!(answers(&writer, &[409]).await, (refused(409, false), 1));
        assert_eq!(answers(&writer, &[500, 503, 429]).await, (Ok(()), 4));
        // Tried again after a 429 or a 401 alone, nothing is unclear; after a 500 a conflict may be our own work.
        assert_eq!(answers(&writer, &[429, 401, 409]).await, (refused(409, false), 3));
        assert_eq!(answers(&writer, &[500, 409]).await, (refused(409, true), 2));
        let (written, tries) = answers(&writer, &[500; 20]).await;
        assert!(matches!(written, Err((Failed::Unknown(_), true))) && tries == TRIES, "{written:?} {tries}");
    }

    #[tokio::test(start_paused = true)]
    async fn without_the_lead_nothing_is_sent() {
        let (writer, stopper) = writer();
        writer.lead.end();
        assert_eq!(answers(&writer, &[]).await, (Err((Failed::Abandoned, false)), 0));
        assert_eq!(writer.once(async { Ok(()) }).await, Err(Failed::Abandoned));
        let (writer, ()) = (Writer { lead: Lead::always(), ..writer }, stopper.stop());
        assert_eq!(answers(&writer, &[]).await, (Err((Failed::Abandoned, false)), 0));
    }

    #[tokio::test(start_paused = true)]
    async fn overload_halves_and_answers_restore() {
        let (writer, _stopper) = writer();
        answers(&writer, &[429, 429]).await.0.expect("it succeeds in the end");
        assert_eq!(writer.pressure.limit(), START / 4);
        for _ in 0..1500 {
            answers(&writer, &[]).await.0.expect("it succeeds");
            writer.once(async { Ok(()) }).await.expect("it succeeds");
        }
        assert_eq!(writer.pressure.limit(), MOST);
        assert_eq!(writer.pressure.semaphore.available_permits(), MOST);
    }

    #[test]
    fn refusals_are_told_apart() {
        let refused =
            |code, reason: &str, message: &str| Failed::Refused { code, reason: reason.into(), message: message.into() };
        for (failed, over, exists, last) in [
            (refused(404, "NotFound", ""), true, false, true),
            (refused(409, "AlreadyExists", ""), false, true, false),
            (refused(409, "Conflict", ""), true, false, false),
            (refused(422, "Invalid", "metadata.uid: field is immutable"), true, false, false),
            (refused(422, "Invalid", "spec.x: wrong"), false, false, true),
            (Failed::Unknown(String::new()), false, false, false),
            (Failed::Abandoned, false, false, false),
        ] {
            assert_eq!((failed.is_over(), failed.is_already_exists(), failed.is_final()), (over, exists, last), "{failed:?}");
        }
    }
}
