//! What an API server is and serves, asked once at start: nothing below assumes more than was found here.

use std::collections::BTreeSet;
use std::fmt;

use anyhow::{Context, Result, bail};
use kube::Client;
use muster_api::live::Watched;

use crate::watch::resource_of;

/// The oldest minor version that is supported (1.34).
const OLDEST_MINOR: u32 = 34;
/// The newest that was tested (1.37).
const NEWEST_MINOR: u32 = 37;

/// A server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Server {
    /// As it says, e.g. `v1.37.2`.
    pub version: String,
    /// Its minor version.
    pub minor: u32,
    /// API groups with version, e.g. `resource.k8s.io/v1`; the core group is `v1`.
    pub groups: BTreeSet<String>,
    /// Kinds that a cycle needs and that are not served.
    pub missing: Vec<Watched>,
}

/// Asks.
///
/// # Errors
/// If the server cannot be reached, or is older than 1.34.
pub async fn discover(client: &Client) -> Result<Server> {
    let info = client.apiserver_version().await.context("the API server does not say its version")?;
    // Some distributions write `34+`.
    let minor = info.minor.trim_end_matches(|c: char| !c.is_ascii_digit());
    let minor: u32 = minor.parse().with_context(|| format!("minor version {:?} of the API server", info.minor))?;
    if info.major != "1" || minor < OLDEST_MINOR {
        bail!("Kubernetes {}: expected 1.{OLDEST_MINOR} to 1.{NEWEST_MINOR}; upgrade the cluster", info.git_version);
    }
    if minor > NEWEST_MINOR {
        tracing::warn!(version = info.git_version, "this version of Kubernetes is newer than those that were tested");
    }
    let mut groups: BTreeSet<String> = client.list_core_api_versions().await?.versions.into_iter().collect();
    for group in client.list_api_groups().await.context("API groups")?.groups {
        groups.extend(group.versions.into_iter().map(|version| version.group_version));
    }
    let mut missing = Vec::new();
    for kind in Watched::ALL {
        let resource = resource_of(kind);
        let served = groups.contains(&resource.api_version) && serves(client, &resource.api_version, &resource.plural).await?;
        if !served {
            missing.push(kind);
        }
    }
    Ok(Server { version: info.git_version, minor, groups, missing })
}

async fn serves(client: &Client, api_version: &str, plural: &str) -> Result<bool> {
    let list = if api_version.contains('/') {
        client.list_api_group_resources(api_version).await
    } else {
        client.list_core_api_resources(api_version).await
    };
    let list = list.with_context(|| format!("resources of {api_version}"))?;
    Ok(list.resources.iter().any(|resource| resource.name == plural))
}

impl Server {
    /// Whether an API group is served in a version, e.g. `resource.k8s.io/v1`.
    #[must_use]
    pub fn serves(&self, group_version: &str) -> bool {
        self.groups.contains(group_version)
    }

    /// Refuses a server without our kinds.
    ///
    /// # Errors
    /// If a kind is missing, with what to do.
    pub fn require_kinds(&self) -> Result<()> {
        if self.missing.is_empty() {
            return Ok(());
        }
        let names: Vec<_> = self.missing.iter().map(|kind| kind.name()).collect();
        bail!(
            "the cluster does not know the kinds {}; install them: muster crds | kubectl apply --server-side -f -",
            names.join(", ")
        )
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kubernetes {}", self.version)
    }
}
