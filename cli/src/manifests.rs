//! `muster crds` and `muster manifests`: what a cluster needs, as YAML for kubectl.

use muster_api::manifests::{Install, all, crds, defaults, to_yaml};

use crate::args::Manifests;
use crate::fault::Fault;
use crate::sink;

/// The CRDs alone.
pub(crate) fn print_crds() -> Result<(), Fault> {
    sink::print(to_yaml(&crds()).as_bytes())
}

/// A whole installation, or what a fresh one begins with.
pub(crate) fn run(args: &Manifests) -> Result<(), Fault> {
    if args.defaults {
        return sink::print(to_yaml(&defaults()).as_bytes());
    }
    let install = Install { namespace: args.namespace.clone(), image: args.image.clone(), roles: args.roles.clone() };
    sink::print(to_yaml(&all(&install)).as_bytes())
}
