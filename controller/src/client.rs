//! A connection to the API server.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

/// A server that does not accept a connection within this is not there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longer than the server lets a watch live (`watch::LIFE`), so that a silent connection ends at last even without a bookmark.
const READ_TIMEOUT: Duration = Duration::from_secs(330);
/// A write that takes longer counts as failed; it may have succeeded all the same.
const WRITE_TIMEOUT: Duration = Duration::from_secs(15);

/// How to find the server: `kubeconfig` if given; else what kubectl would use ($KUBECONFIG, then `~/.kube/config`); else,
/// inside a pod, its service account. `context` names one of the kubeconfig.
///
/// # Errors
/// If there is none of these, or the file is wrong; the message says what was tried.
pub async fn config(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<Config> {
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    let mut config = match (kubeconfig, context) {
        (Some(path), _) => {
            let file = Kubeconfig::read_from(path).with_context(|| format!("kubeconfig {}", path.display()))?;
            Config::from_custom_kubeconfig(file, &options).await.with_context(|| format!("kubeconfig {}", path.display()))?
        }
        (None, Some(context)) => {
            Config::from_kubeconfig(&options).await.with_context(|| format!("context {context} of the kubeconfig"))?
        }
        (None, None) => Config::infer().await.context("no kubeconfig ($KUBECONFIG, ~/.kube/config), and not in a pod")?,
    };
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    config.write_timeout = Some(WRITE_TIMEOUT);
    Ok(config)
}

/// A client.
///
/// # Errors
/// If certificates or keys of the configuration cannot be used.
pub fn connect(config: Config) -> Result<Client> {
    let server = config.cluster_url.to_string();
    Client::try_from(config).with_context(|| format!("cannot make a client for {server}"))
}
