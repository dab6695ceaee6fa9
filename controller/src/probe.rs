//! Whether the API server still knows us: what readiness says, and when to give up.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::PostParams;
use kube::{Api, Client};

use crate::commit::lock;
use crate::run::Stop;

const PERIOD: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(5);
/// No answer for longer: not ready.
const FRESH: Duration = Duration::from_secs(30);
/// So many answers in a row that our token is not accepted: it will not be accepted any more. A new process reads a new one.
const UNAUTHORIZED_MAX: u32 = 3;

/// What the last answers were. Copies say the same.
#[derive(Clone, Debug, Default)]
pub struct Probe {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    well: Option<Instant>,
    trouble: String,
}

impl Probe {
    /// Asks again and again until told to stop.
    ///
    /// # Errors
    /// If the server does not accept who we are, for good.
    pub async fn watch(&self, client: &Client, stop: &Stop) -> Result<()> {
        let api: Api<SelfSubjectReview> = Api::all(client.clone());
        let mut unauthorized = 0;
        loop {
            let answer = tokio::time::timeout(PATIENCE, api.create(&PostParams::default(), &SelfSubjectReview::default())).await;
            match answer {
                Ok(Ok(_)) => {
                    unauthorized = 0;
                    *lock(&self.state) = State { well: Some(Instant::now()), trouble: String::new() };
                }
                Ok(Err(kube::Error::Api(status))) if status.code == 401 => {
                    unauthorized += 1;
                    if unauthorized >= UNAUTHORIZED_MAX {
                        bail!("the API server does not accept our credentials (401): {}", status.message);
                    }
                    lock(&self.state).trouble = format!("401: {}", status.message);
                }
                Ok(Err(error)) => lock(&self.state).trouble = error.to_string(),
                Err(_) => lock(&self.state).trouble = format!("no answer within {} s", PATIENCE.as_secs()),
            }
            tokio::select! {
                () = tokio::time::sleep(PERIOD) => {}
                () = stop.stopped() => return Ok(()),
            }
        }
    }

    /// Why we are not ready, if so.
    #[must_use]
    pub fn unready(&self) -> Option<String> {
        let state = lock(&self.state);
        match state.well {
            Some(well) if well.elapsed() < FRESH => None,
            Some(_) => Some(format!("the API server: {}", state.trouble)),
            None => Some(format!("the API server has not answered yet {}", state.trouble)),
        }
    }
}
