//! Requests to the API server, each with an end: what may be sent, how long it may take, and what a failure means.

use std::fmt;
use std::time::Duration;

use kube::core::Status;

use crate::lease::Lead;
use crate::run::WRITE_PATIENCE;

/// Reads do no harm when they come late.
const READ_PATIENCE: Duration = Duration::from_secs(15);

/// Why a request did not do what it should.
#[derive(Debug)]
pub enum Trouble {
    /// This process does not lead (any more): nothing was sent.
    NotLeading,
    /// There was no answer in time. It may have been carried out.
    Late(Duration),
    /// The server's answer, or the connection's failure.
    Kube(kube::Error),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLeading => f.write_str("another process leads"),
            Self::Late(after) => write!(f, "the API server did not answer within {} s", after.as_secs()),
            Self::Kube(kube::Error::Api(status)) => write!(f, "{}", status.message),
            Self::Kube(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for Trouble {}

impl Trouble {
    fn status(&self) -> Option<&Status> {
        match self {
            Self::Kube(kube::Error::Api(status)) => Some(status),
            _ => None,
        }
    }

    /// The object is not there.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.status().is_some_and(|status| status.code == 404)
    }

    /// The object is there already.
    #[must_use]
    pub fn is_already_exists(&self) -> bool {
        self.status().is_some_and(|status| status.code == 409 && status.reason == "AlreadyExists")
    }

    /// The object is not (or no longer) what the request was made for.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        self.status().is_some_and(|status| match status.code {
            409 => status.reason != "AlreadyExists",
            // A patch that names another uid than the object has.
            422 => status.message.contains("metadata.uid"),
            _ => false,
        })
    }

    /// This process may not.
    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        self.status().is_some_and(|status| status.code == 403)
    }

    /// The server has looked at the request and refused it: sending it again changes nothing. Everything else may pass, and may
    /// have been carried out all the same.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        let no = |status: &Status| matches!(status.code, 400..=499) && !matches!(status.code, 401 | 408 | 409 | 429);
        !self.is_conflict() && self.status().is_some_and(no)
    }
}

/// Sends a write, if this process leads.
///
/// # Errors
/// If it does not, if the server refuses, or there is no answer in time.
pub async fn write<T>(lead: &Lead, call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Trouble> {
    if !lead.may_write() {
        return Err(Trouble::NotLeading);
    }
    limited(WRITE_PATIENCE, call).await
}

/// Sends a read.
///
/// # Errors
/// If the server refuses, or there is no answer in time.
pub async fn read<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Trouble> {
    limited(READ_PATIENCE, call).await
}

async fn limited<T>(patience: Duration, call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Trouble> {
    match tokio::time::timeout(patience, call).await {
        Ok(answer) => answer.map_err(Trouble::Kube),
        Err(_) => Err(Trouble::Late(patience)),
    }
}
