//! Metrics, health, and answers to questions, over HTTP.
//!
//! | address | paths | who may ask |
//! |---|---|---|
//! | metrics | `/metrics` | everybody |
//! | health | `/healthz`, `/readyz` | everybody |
//! | inspect | `/explain`, `/get-job-order`, `/get-snapshot` | on loopback everybody there; else whom the API server lets |
//!
//! With `--enable-profiler` the last one serves `/debug/pprof/profile`, too. The last row shows tenants' objects: beyond loopback
//! it takes a token that the API server accepts, of somebody who may `get` the path as a non-resource URL.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_DISPOSITION, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use pprof::protos::Message as _;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::inspect;
use crate::metrics::Metrics;
use crate::probe::Probe;
use crate::run::{Context, Stop};
use crate::scheduler::Running;

const PROFILE: &str = "/debug/pprof/profile";
const PROFILE_SECONDS: u64 = 30;
const PROFILE_SECONDS_MAX: u64 = 300;
/// Not a divisor of anything that runs periodically.
const PROFILE_HERTZ: i32 = 99;
const HEADER_PATIENCE: Duration = Duration::from_secs(10);
/// Connections of one address at a time.
const CONNECTIONS_MAX: usize = 64;

type Answer = Response<Full<Bytes>>;

/// What an address serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Serves {
    metrics: bool,
    health: bool,
    inspect: bool,
    profiler: bool,
    /// Whether a token is asked for.
    guarded: bool,
}

#[derive(Clone)]
struct State {
    serves: Serves,
    metrics: Arc<Metrics>,
    probe: Probe,
    running: Running,
    client: Client,
    stop: Stop,
}

/// Listens on all addresses, each once.
///
/// # Errors
/// If one is taken.
pub async fn serve(context: &Context, probe: &Probe, tasks: &mut JoinSet<()>) -> Result<()> {
    let options = &context.options;
    let mut addresses = vec![options.metrics_address, options.health_address, options.inspect_address];
    addresses.sort_unstable();
    addresses.dedup();
    for address in addresses {
        let serves = Serves {
            metrics: address == options.metrics_address,
            health: address == options.health_address,
            inspect: address == options.inspect_address,
            profiler: address == options.inspect_address && options.profiler,
            guarded: !address.ip().is_loopback(),
        };
        let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
        let state = State {
            serves,
            metrics: Arc::clone(&context.metrics),
            probe: probe.clone(),
            running: context.running.clone(),
            client: context.client.clone(),
            stop: context.stop.clone(),
        };
        tracing::info!(address = %listener.local_addr().unwrap_or(address), ?serves, "listens");
        tasks.spawn(listen(listener, state));
    }
    Ok(())
}

async fn listen(listener: TcpListener, state: State) {
    let mut connections = JoinSet::new();
    loop {
        while connections.len() >= CONNECTIONS_MAX {
            connections.join_next().await;
        }
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::debug!(%error, "a connection was not accepted");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
            // What is done need not be kept.
            Some(_) = connections.join_next() => continue,
        };
        let state = state.clone();
        connections.spawn(async move {
            let service = service_fn(move |request| answer(state.clone(), request));
            let mut builder = hyper::server::conn::http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(HEADER_PATIENCE);
            if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await {
                tracing::debug!(%error, "a connection broke off");
            }
        });
    }
}

async fn answer(state: State, request: Request<Incoming>) -> Result<Answer, Infallible> {
    let path = request.uri().path().to_owned();
    if request.method() != Method::GET {
        return Ok(text(StatusCode::METHOD_NOT_ALLOWED, "only GET".to_owned()));
    }
    let serves = state.serves;
    let answer = match path.as_str() {
        "/metrics" if serves.metrics => bytes("text/plain; version=0.0.4", state.metrics.text()),
        "/healthz" | "/livez" if serves.health => text(StatusCode::OK, "ok\n".to_owned()),
        "/readyz" if serves.health => match readiness(&state) {
            None => text(StatusCode::OK, "ok\n".to_owned()),
            Some(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
        },
        "/explain" | "/get-job-order" | "/get-snapshot" if serves.inspect => match is_allowed(&state, &request, &path).await {
            Ok(()) => show(&state, &path, request.uri().query().unwrap_or_default()).await,
            Err((status, why)) => text(status, format!("{why}\n")),
        },
        PROFILE if serves.profiler => match is_allowed(&state, &request, &path).await {
            Ok(()) => profile(request.uri().query().unwrap_or_default()).await,
            Err((status, why)) => text(status, format!("{why}\n")),
        },
        _ => text(StatusCode::NOT_FOUND, "not found\n".to_owned()),
    };
    Ok(answer)
}

fn readiness(state: &State) -> Option<String> {
    if state.stop.is_stopped() {
        return Some("it is ending".to_owned());
    }
    state.probe.unready().or_else(|| state.running.unready())
}

fn parameter(query: &str, name: &str) -> Option<String> {
    let mut parts = query.split('&').filter_map(|part| part.split_once('='));
    parts.find(|(key, _)| *key == name).map(|(_, value)| value.replace("%2F", "/").replace("%2f", "/"))
}

/// What the process does for some seconds, as `go tool pprof` reads it.
async fn profile(query: &str) -> Answer {
    let seconds = parameter(query, "seconds").map_or(Ok(PROFILE_SECONDS), |text| text.parse::<u64>());
    let Ok(seconds) = seconds.map(|seconds| seconds.clamp(1, PROFILE_SECONDS_MAX)) else {
        return text(StatusCode::BAD_REQUEST, "seconds: expected a number\n".to_owned());
    };
    match take_profile(Duration::from_secs(seconds)).await {
        Ok(profile) => bytes("application/octet-stream", profile),
        Err(error) => text(StatusCode::SERVICE_UNAVAILABLE, format!("no profile: {error:#}\n")),
    }
}

/// One at a time: the second is refused.
async fn take_profile(time: Duration) -> Result<Vec<u8>> {
    let guard = pprof::ProfilerGuardBuilder::default().frequency(PROFILE_HERTZ).build()?;
    tokio::time::sleep(time).await;
    let encode = move || -> Result<Vec<u8>> { Ok(guard.report().build()?.pprof()?.encode_to_vec()) };
    tokio::task::spawn_blocking(encode).await?
}

async fn show(state: &State, path: &str, query: &str) -> Answer {
    let parameter = |name: &str| parameter(query, name);
    let shard = match inspect::choose(&state.running, parameter("shard").as_deref()) {
        Ok(shard) => shard,
        Err(why) => return text(StatusCode::NOT_FOUND, format!("{why}\n")),
    };
    if path == "/get-snapshot" {
        return match inspect::snapshot(&state.client, &shard).await {
            Ok(zip) => {
                let mut answer = bytes("application/zip", zip);
                let name = HeaderValue::from_static("attachment; filename=snapshot.zip");
                answer.headers_mut().insert(CONTENT_DISPOSITION, name);
                answer
            }
            Err(error) => text(StatusCode::BAD_GATEWAY, format!("{error:#}\n")),
        };
    }
    let Some(last) = inspect::last(&shard).await else {
        let why = "no cycle has ended here within some seconds: /readyz and the log say what is missing\n";
        return text(StatusCode::SERVICE_UNAVAILABLE, why.to_owned());
    };
    if path == "/get-job-order" {
        return json(inspect::job_order(&last));
    }
    match inspect::explain(&last, &shard.shard.name, parameter("podgroup").as_deref(), parameter("pod").as_deref()) {
        Ok(found) => json(found),
        Err(why) => text(StatusCode::NOT_FOUND, format!("{why}\n")),
    }
}

/// Whether whoever asks may see what others own: on loopback everybody.
async fn is_allowed(state: &State, request: &Request<Incoming>, path: &str) -> Result<(), (StatusCode, String)> {
    if state.serves.guarded { may_ask(&state.client, request, path).await } else { Ok(()) }
}

/// Whether the token of a request is accepted, and its owner may get this path.
async fn may_ask(client: &Client, request: &Request<Incoming>, path: &str) -> Result<(), (StatusCode, String)> {
    let header = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let Some(token) = header.and_then(|value| value.strip_prefix("Bearer ")) else {
        return Err((StatusCode::UNAUTHORIZED, "a token is needed: Authorization: Bearer …".to_owned()));
    };
    let failed = |error: kube::Error| (StatusCode::BAD_GATEWAY, format!("the API server does not say who asks: {error}"));
    let spec = TokenReviewSpec { token: token.to_owned(), ..TokenReviewSpec::default() };
    let review = TokenReview { spec, ..TokenReview::default() };
    let review = Api::<TokenReview>::all(client.clone()).create(&PostParams::default(), &review).await.map_err(failed)?;
    let status = review.status.unwrap_or_default();
    let Some(user) = status.user.filter(|_| status.authenticated == Some(true)) else {
        return Err((StatusCode::UNAUTHORIZED, "the API server does not accept this token".to_owned()));
    };
    let attributes = NonResourceAttributes { path: Some(path.to_owned()), verb: Some("get".to_owned()) };
    let spec = SubjectAccessReviewSpec {
        user: user.username.clone(),
        groups: user.groups,
        uid: user.uid,
        extra: user.extra,
        non_resource_attributes: Some(attributes),
        ..SubjectAccessReviewSpec::default()
    };
    let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
    let review = Api::<SubjectAccessReview>::all(client.clone()).create(&PostParams::default(), &review).await.map_err(failed)?;
    if review.status.is_some_and(|status| status.allowed) {
        return Ok(());
    }
    Err((StatusCode::FORBIDDEN, format!("{} may not get {path}", user.username.unwrap_or_default())))
}

fn text(status: StatusCode, text: String) -> Answer {
    let mut answer = bytes("text/plain; charset=utf-8", text.into_bytes());
    *answer.status_mut() = status;
    answer
}

fn json(value: serde_json::Value) -> Answer {
    bytes("application/json", format!("{value:#}\n").into_bytes())
}

fn bytes(kind: &'static str, body: Vec<u8>) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(body)));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}
