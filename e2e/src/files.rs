//! The files that a control plane starts from: certificates, keys, tokens, kubeconfig. Made anew for each run, worthless after
//! it.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::Result;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use serde_json::json;

/// What signs and is signed, in `folder`: `ca.crt`, `server.crt`, `server.key`, `accounts.key`, `accounts.pub`,
/// `tokens.csv`. Returns the authority (PEM).
pub(crate) fn write_secrets(folder: &Path, token: &str) -> Result<String> {
    let mut authority = CertificateParams::new(Vec::new())?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.distinguished_name.push(DnType::CommonName, "muster-e2e");
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
    let key = KeyPair::generate()?;
    let names = ["localhost", "127.0.0.1", "kubernetes.default.svc"].map(str::to_owned);
    let server = CertificateParams::new(names)?.signed_by(&key, &authority)?;
    fs::write(folder.join("ca.crt"), authority.pem())?;
    fs::write(folder.join("server.crt"), server.pem())?;
    fs::write(folder.join("server.key"), key.serialize_pem())?;
    let accounts = KeyPair::generate()?;
    fs::write(folder.join("accounts.key"), accounts.serialize_pem())?;
    fs::write(folder.join("accounts.pub"), accounts.public_key_pem())?;
    fs::write(folder.join("tokens.csv"), format!("{token},admin,admin,system:masters\n"))?;
    Ok(authority.pem())
}

/// A kubeconfig: to the API server itself if `authority` names its certificate, else to a proxy that speaks plainly.
pub(crate) fn write_kubeconfig(path: &Path, address: SocketAddr, authority: Option<&Path>, token: &str) -> Result<()> {
    let mut cluster = json!({"server": format!("http://{address}")});
    if let Some(authority) = authority {
        cluster = json!({"server": format!("https://{address}"), "certificate-authority": authority});
    }
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "e2e",
        "clusters": [{"name": "e2e", "cluster": cluster}],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": "admin"}}],
    });
    Ok(fs::write(path, serde_json::to_string_pretty(&config)?)?)
}
