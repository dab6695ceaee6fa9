//! Muster on a live cluster: the only room that knows a client, a runtime, and time.
//!
//! | module | does |
//! |---|---|
//! | [`client`] | a connection, from a kubeconfig or from inside the cluster |
//! | [`discovery`] | what this server is and serves |
//! | [`defaults`] | the queues and the shard that a fresh installation begins with |
//! | [`watch`] | one kind of objects, followed for ever: list, watch, resume, begin again |
//! | [`feed`] | all kinds, folded into [`muster_api::live::Live`]; whether what is known may be decided on |
//! | [`run`] | starts the roles, ends them; what each of them is given |
//! | [`lease`] | who of several processes may write |
//! | [`metrics`] | what is counted |
//! | [`probe`] | whether the API server still knows us |
//! | [`http`] | metrics, health, and answers to questions |
//! | [`scheduler`] | the role that decides: a thread of cycles for each shard |
//! | [`shard`] | a SchedulingShard as settings |
//! | [`cycle_thread`] | waits, makes rows, plans, hands over |
//! | [`mishap`] | what becomes of a cycle that breaks off |
//! | [`orders`] | a cycle's outcome as writes |
//! | [`commit`], [`evict`] | those writes |
//! | [`status`] | says on objects why they wait |
//! | [`calls`] | requests with an end: who may write, how fast, how often, and what a failure means |
//! | [`events`], [`journal`] | what is said about an object; one line on disk |
//! | [`grouping`] | the role that makes a PodGroup for each workload |
//! | [`binder`] | the role that carries out BindRequests and holds shared GPUs |
//! | [`queue_status`] | the roles that keep the status of PodGroups and Queues |
//! | [`work`] | things to be done by key, with back-off |
//!
//! Nothing is decided here: rows go to `core`, and its outcome is carried out.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod binder;
pub mod calls;
pub mod client;
pub mod commit;
pub mod cycle_thread;
pub mod defaults;
pub mod discovery;
pub mod events;
pub mod evict;
pub mod feed;
pub mod grouping;
pub mod http;
pub mod inspect;
pub mod journal;
pub mod lease;
pub mod metrics;
pub mod mishap;
pub mod orders;
pub mod probe;
pub mod queue_status;
pub mod run;
pub mod scheduler;
pub mod shard;
pub mod status;
pub mod watch;
pub mod work;

mod binder_known;
mod binder_report;
mod grouping_owners;
mod reservations;
