//! As much of an HTTP client as tests need beside their real one: one request, one connection, the whole answer.
//!
//! Speaks HTTP/1.0, whose answers end with the connection: no chunks, no keep-alive.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// A server that stops answering must not stop a test for ever.
const PATIENCE: Duration = Duration::from_secs(30);

/// A server on this machine.
#[derive(Clone, Debug)]
pub struct Endpoint {
    address: SocketAddr,
    tls: Option<Arc<ClientConfig>>,
    token: Option<String>,
}

/// What came back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// E.g. 200.
    pub status: u16,
    /// The text.
    pub body: String,
    /// The same before it was taken for text.
    pub bytes: Vec<u8>,
}

/// Bytes in both directions, encrypted or not.
pub(crate) trait Stream: Read + Write + Send {}

impl<T: Read + Write + Send> Stream for T {}

impl Endpoint {
    /// A server without encryption.
    #[must_use]
    pub const fn plain(address: SocketAddr) -> Self {
        Self { address, tls: None, token: None }
    }

    /// The same, asked with a bearer token.
    #[must_use]
    pub fn with_token(&self, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..self.clone() }
    }

    /// A server whose certificate this authority signed (PEM), and the bearer token it asks for.
    ///
    /// # Errors
    /// If the authority is no certificate.
    pub fn tls(address: SocketAddr, authority: &str, token: &str) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(authority.as_bytes()) {
            roots.add(certificate.context("a certificate")?)?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let config = config.with_root_certificates(roots).with_no_client_auth();
        Ok(Self { address, tls: Some(Arc::new(config)), token: Some(token.to_owned()) })
    }

    /// Asks, and reads the whole answer.
    ///
    /// # Errors
    /// If the server cannot be reached, goes away, or does not speak HTTP. An answer with any status is none.
    pub fn request(&self, method: &str, path: &str, body: &str) -> Result<Answer> {
        let (mut stream, socket) = self.connect()?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let mut head = format!("{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Length: {}\r\n", body.len());
        if let Some(token) = &self.token {
            head += &format!("Authorization: Bearer {token}\r\n");
        }
        if !body.is_empty() {
            head += "Content-Type: application/json\r\n";
        }
        stream.write_all(format!("{head}\r\n{body}").as_bytes())?;
        stream.flush()?;
        let mut answer = Vec::new();
        match stream.read_to_end(&mut answer) {
            // Go's servers close without a farewell.
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof && !answer.is_empty() => {}
            read => drop(read.with_context(|| format!("{method} {path}"))?),
        }
        let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n");
        let end = end.with_context(|| format!("{method} {path}: no HTTP answer"))?;
        let (head, bytes) = (String::from_utf8_lossy(&answer[..end]), answer[end + 4..].to_vec());
        let Some(status) = head.split_whitespace().nth(1).and_then(|status| status.parse().ok()) else {
            bail!("{method} {path}: no HTTP status in {head:?}");
        };
        Ok(Answer { status, body: String::from_utf8_lossy(&bytes).into_owned(), bytes })
    }

    /// [`Endpoint::request`] without a body.
    ///
    /// # Errors
    /// As there.
    pub fn get(&self, path: &str) -> Result<Answer> {
        self.request("GET", path, "")
    }

    /// A connection, and its socket to shut it from outside.
    pub(crate) fn connect(&self) -> Result<(Box<dyn Stream>, TcpStream)> {
        let socket = TcpStream::connect(self.address).with_context(|| format!("cannot reach {}", self.address))?;
        socket.set_nodelay(true)?;
        let outside = socket.try_clone()?;
        let Some(tls) = &self.tls else { return Ok((Box::new(socket), outside)) };
        let name = ServerName::from(self.address.ip());
        let connection = ClientConnection::new(Arc::clone(tls), name)?;
        Ok((Box::new(StreamOwned::new(connection, socket)), outside))
    }
}
