//! A proxy before the API server that misbehaves as told: refuses, cuts, loses requests or their answers, answers late.
//!
//! Clients speak plain HTTP/1.1 to it; each request goes on over a connection of its own, which ends with the answer. What a
//! fault hits is drawn from a seed, in the order in which requests arrive.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::http::Endpoint;

/// What goes wrong. Percentages are of writes (everything but GET and HEAD), each drawn by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Faults {
    /// Every request and connection is refused, as if the network were gone.
    pub unreachable: bool,
    /// Writes that never reach the server.
    pub lost_writes_percent: u32,
    /// Writes that succeed while their answer is lost.
    pub lost_answers_percent: u32,
    /// Writes whose answer comes [`Faults::late_by`] later.
    pub late_answers_percent: u32,
    /// How late.
    pub late_by: Duration,
    /// Writes that are answered with 500; half of them have been carried out all the same.
    pub errors_percent: u32,
    /// Writes that are turned away with 429, to come back in a second.
    pub turned_away_percent: u32,
}

/// What passed through.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Requests that only read.
    pub reads: u64,
    /// Others.
    pub writes: u64,
    /// Writes that a fault hit.
    pub faults: u64,
    /// Connections that [`Proxy::cut`] ended.
    pub cut: u64,
}

#[derive(Default)]
struct Shared {
    faults: Mutex<Faults>,
    counts: Mutex<Counts>,
    /// Both ends of all that is open, to cut it.
    open: Mutex<BTreeMap<u64, Vec<TcpStream>>>,
    next: AtomicU64,
    random: Mutex<u64>,
    stop: AtomicBool,
}

/// A running proxy; it ends when dropped.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Proxy {
    /// Listens on a free port of this machine.
    ///
    /// # Errors
    /// If there is none.
    pub fn start(server: Endpoint, seed: u64) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port for a proxy")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared { random: Mutex::new(seed | 1), ..Shared::default() });
        let listening = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if listening.stop.load(Ordering::Relaxed) {
                    return;
                }
                let (shared, server) = (Arc::clone(&listening), server.clone());
                // A connection that ends early is what this is for.
                thread::spawn(move || drop(shared.serve(client, &server)));
            }
        });
        Ok(Self { address, shared })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on this goes wrong.
    pub fn set(&self, faults: Faults) {
        *lock(&self.shared.faults) = faults;
        if faults.unreachable {
            self.cut();
        }
    }

    /// Ends all open connections, watches among them.
    pub fn cut(&self) {
        let open = std::mem::take(&mut *lock(&self.shared.open));
        lock(&self.shared.counts).cut += open.len() as u64;
        for stream in open.into_values().flatten() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// What passed so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        *lock(&self.shared.counts)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.cut();
        // Wakes the listener, which then sees that it is to stop.
        let _ = TcpStream::connect(self.address);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What becomes of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Passes,
    IsLost,
    AnswerIsLost,
    AnswerIsLate(Duration),
    /// Carried out or not.
    IsAnError(bool),
    IsTurnedAway,
}

const ERROR: &str = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","code":500,
    "reason":"InternalError","message":"a fault of the proxy"}"#;
const TURNED_AWAY: &str = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","code":429,
    "reason":"TooManyRequests","details":{"retryAfterSeconds":1},"message":"a fault of the proxy"}"#;

/// An answer of our own, in the server's form.
fn answer(mut client: &TcpStream, status: &str, body: &str) -> Result<()> {
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    Ok(client.write_all(format!("{head}{body}").as_bytes())?)
}

impl Shared {
    fn serve(&self, client: TcpStream, server: &Endpoint) -> Result<()> {
        client.set_nodelay(true)?;
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.open).insert(id, vec![client.try_clone()?]);
        let served = self.serve_one(id, &client, server);
        lock(&self.open).remove(&id);
        let _ = client.shutdown(Shutdown::Both);
        served
    }

    fn serve_one(&self, id: u64, mut client: &TcpStream, server: &Endpoint) -> Result<()> {
        let (head, body) = read_request(client)?;
        let fate = self.fate(&head);
        match fate {
            Fate::IsLost => return Ok(()),
            Fate::IsTurnedAway => return answer(client, "429 Too Many Requests\r\nRetry-After: 1", TURNED_AWAY),
            Fate::IsAnError(false) => return answer(client, "500 Internal Server Error", ERROR),
            _ => {}
        }
        let (mut upstream, socket) = server.connect()?;
        match lock(&self.open).get_mut(&id) {
            Some(streams) => streams.push(socket),
            None => bail!("cut"),
        }
        upstream.write_all(&head)?;
        upstream.write_all(&body)?;
        upstream.flush()?;
        if let Fate::AnswerIsLate(delay) = fate {
            thread::sleep(delay);
        }
        let mut buffer = [0; 16 << 10];
        loop {
            let count = match upstream.read(&mut buffer) {
                // Go's servers close without a farewell.
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => 0,
                read => read?,
            };
            if count == 0 {
                break;
            }
            // Read to its end all the same, so that the server has done what it was asked.
            if !matches!(fate, Fate::AnswerIsLost | Fate::IsAnError(_)) {
                client.write_all(&buffer[..count])?;
            }
        }
        if matches!(fate, Fate::IsAnError(_)) {
            return answer(client, "500 Internal Server Error", ERROR);
        }
        Ok(())
    }

    fn fate(&self, head: &[u8]) -> Fate {
        let faults = *lock(&self.faults);
        let reads = head.starts_with(b"GET ") || head.starts_with(b"HEAD ");
        let draws = [(); 6].map(|()| self.draw());
        let fate = match () {
            () if faults.unreachable => Fate::IsLost,
            () if reads => Fate::Passes,
            () if draws[0] < faults.lost_writes_percent => Fate::IsLost,
            () if draws[1] < faults.lost_answers_percent => Fate::AnswerIsLost,
            () if draws[2] < faults.late_answers_percent => Fate::AnswerIsLate(faults.late_by),
            () if draws[3] < faults.errors_percent => Fate::IsAnError(draws[4] < 50),
            () if draws[5] < faults.turned_away_percent => Fate::IsTurnedAway,
            () => Fate::Passes,
        };
        let mut counts = lock(&self.counts);
        if reads {
            counts.reads += 1;
        } else {
            counts.writes += 1;
            counts.faults += u64::from(fate != Fate::Passes);
        }
        fate
    }

    /// A number below 100 (xorshift64).
    fn draw(&self) -> u32 {
        let mut random = lock(&self.random);
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        u32::try_from((*random >> 32) % 100).unwrap_or(0)
    }
}

/// Head (with the wish to close the connection after the answer) and body of a request.
fn read_request(client: &TcpStream) -> Result<(Vec<u8>, Vec<u8>)> {
    let mut reader = BufReader::new(client);
    let mut head = Vec::new();
    let mut length = 0;
    loop {
        let mut line = Vec::new();
        if reader.read_until(b'\n', &mut line)? == 0 {
            bail!("the client went away");
        }
        let text = String::from_utf8_lossy(&line).to_ascii_lowercase();
        if text.trim_end().is_empty() {
            break;
        }
        if let Some(number) = text.strip_prefix("content-length:") {
            length = number.trim().parse().context("Content-Length")?;
        }
        if text.starts_with("transfer-encoding:") {
            bail!("a body of unknown length is nothing that Kubernetes' clients send");
        }
        if !text.starts_with("connection:") {
            head.append(&mut line);
        }
    }
    head.extend_from_slice(b"Connection: close\r\n\r\n");
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok((head, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that answers each request with its own first line, and counts them.
    fn echo() -> (SocketAddr, Arc<AtomicU64>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        let seen = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&seen);
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let (head, body) = read_request(&stream).expect("a request");
                counter.fetch_add(1, Ordering::Relaxed);
                let first = String::from_utf8_lossy(&head).lines().next().unwrap_or_default().to_owned();
                let _ = write!(stream, "HTTP/1.1 200 OK\r\n\r\n{first} + {} bytes", body.len());
            }
        });
        (address, seen)
    }

    #[test]
    fn faults_hit_writes_as_told() {
        let (address, seen) = echo();
        let proxy = Proxy::start(Endpoint::plain(address), 7).expect("a proxy");
        let client = Endpoint::plain(proxy.address());
        let answer = client.request("POST", "/x", "abc").expect("an answer");
        assert_eq!(answer.body, "POST /x HTTP/1.0 + 3 bytes");
        proxy.set(Faults { lost_writes_percent: 100, ..Faults::default() });
        assert!(client.request("POST", "/x", "abc").is_err());
        assert_eq!(seen.load(Ordering::Relaxed), 1, "a lost write does not reach the server");
        proxy.set(Faults { lost_answers_percent: 100, ..Faults::default() });
        assert!(client.request("PATCH", "/x", "abc").is_err());
        assert_eq!(seen.load(Ordering::Relaxed), 2, "a write whose answer is lost does");
        assert!(client.get("/y").is_ok(), "reads pass");
        proxy.set(Faults { turned_away_percent: 100, ..Faults::default() });
        assert_eq!(client.request("POST", "/x", "abc").expect("an answer").status, 429);
        assert_eq!(seen.load(Ordering::Relaxed), 3, "what is turned away does not reach the server");
        proxy.set(Faults { errors_percent: 100, ..Faults::default() });
        for _ in 0..40 {
            assert_eq!(client.request("POST", "/x", "abc").expect("an answer").status, 500);
        }
        let carried_out = seen.load(Ordering::Relaxed) - 3;
        assert!((1..40).contains(&carried_out), "{carried_out} of 40 that failed were carried out");
        proxy.set(Faults { unreachable: true, ..Faults::default() });
        assert!(client.get("/y").is_err());
        assert_eq!(proxy.counts(), Counts { reads: 2, writes: 44, faults: 43, cut: proxy.counts().cut });
    }
}
