//! A real control plane on this machine, for tests: etcd, kube-apiserver, kube-controller-manager and kwok with simulated
//! nodes, on loopback, in a temporary folder; and the faults that tests need.
//!
//! Known here: processes, ports, files, HTTP. Not known: any type of Kubernetes, and anything of Muster; tests bring their own
//! client. Start at [`cluster::Cluster::start`]; the binaries come from [`tools::Tools::build`], once.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod cluster;
pub mod http;
pub mod leftover;
pub mod process;
pub mod proxy;
pub mod tools;

mod files;
