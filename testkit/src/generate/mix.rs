//! Which kinds of work a cluster gets, and how one job of each kind is drawn.

use std::fmt;
use std::str::FromStr;

use oorandom::Rand32;

use super::{Gpus, PriorityClass};

/// The share of the pods that each kind of work gets, as weights.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Mix {
    /// One pod with whole GPUs.
    pub singles: f64,
    /// Several pods that start together.
    pub gangs: f64,
    /// One pod with a part of a GPU.
    pub fractions: f64,
    /// Several pods of which half are enough to start.
    pub elastic: f64,
}

impl Default for Mix {
    fn default() -> Self {
        Self { singles: 40.0, gangs: 35.0, fractions: 15.0, elastic: 10.0 }
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { singles, gangs, fractions, elastic } = self;
        write!(f, "singles={singles},gangs={gangs},fractions={fractions},elastic={elastic}")
    }
}

impl FromStr for Mix {
    type Err = String;

    /// `kind=weight` with commas between; kinds that are not named get nothing.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut mix = Self { singles: 0.0, gangs: 0.0, fractions: 0.0, elastic: 0.0 };
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (kind, weight) = part.split_once('=').ok_or_else(|| format!("{part:?}: expected kind=weight"))?;
            let weight = weight.trim().parse().map_err(|_| format!("{part:?}: expected a number after `=`"))?;
            match kind.trim() {
                "singles" => mix.singles = weight,
                "gangs" => mix.gangs = weight,
                "fractions" => mix.fractions = weight,
                "elastic" => mix.elastic = weight,
                kind => return Err(format!("{kind:?}: expected singles, gangs, fractions or elastic")),
            }
        }
        if mix.is_usable() { Ok(mix) } else { Err(format!("{text:?}: expected weights of 0 and more, not all of them 0")) }
    }
}

/// A job without queue and place.
pub(super) struct Draft {
    pub(super) class: PriorityClass,
    pub(super) pods: u32,
    pub(super) min: u32,
    pub(super) gpus: Gpus,
}

const GANG_PODS: [u32; 4] = [2, 4, 8, 16];
const ELASTIC_PODS: [u32; 3] = [2, 4, 8];
const MILLI: [u32; 4] = [125, 250, 500, 500];

impl Mix {
    pub(super) fn is_usable(&self) -> bool {
        let weights = [self.singles, self.gangs, self.fractions, self.elastic];
        weights.iter().all(|weight| weight.is_finite() && *weight >= 0.0) && weights.iter().sum::<f64>() > 0.0
    }

    /// A job of at most `pods_max` > 0 pods for nodes of `node_gpus` GPUs. Kinds are drawn by weight / mean pods, so that the
    /// weights are shares of the pods.
    pub(super) fn draw(&self, node_gpus: u32, pods_max: u32, rng: &mut Rand32) -> Draft {
        let class = draw_class(rng);
        let chances = [self.singles, self.gangs / mean(&GANG_PODS), self.fractions, self.elastic / mean(&ELASTIC_PODS)];
        let mut point = f64::from(rng.rand_float()) * chances.iter().sum::<f64>();
        // Rounding may leave the point at the very end: then the last kind that has a chance.
        let last = chances.iter().rposition(|&chance| chance > 0.0).unwrap_or(0);
        let kind = chances
            .iter()
            .position(|&chance| {
                point -= chance;
                point < 0.0
            })
            .map_or(last, |kind| kind.min(last));
        let whole = |sizes: &[u32], rng: &mut Rand32| Gpus::Whole(pick(sizes, rng).min(node_gpus));
        match kind {
            0 => Draft { class, pods: 1, min: 1, gpus: whole(&[1, 1, 1, 2, 4, 8], rng) },
            1 => {
                let pods = pick(&GANG_PODS, rng).min(pods_max);
                Draft { class, pods, min: pods, gpus: whole(&[1, 2, 4, 8, 8], rng) }
            }
            2 if node_gpus > 0 => Draft { class, pods: 1, min: 1, gpus: Gpus::Milli(pick(&MILLI, rng)) },
            2 => Draft { class, pods: 1, min: 1, gpus: Gpus::Whole(0) },
            _ => {
                let pods = pick(&ELASTIC_PODS, rng).min(pods_max);
                Draft { class, pods, min: pods.div_ceil(2), gpus: whole(&[1, 1, 2], rng) }
            }
        }
    }
}

fn draw_class(rng: &mut Rand32) -> PriorityClass {
    match rng.rand_range(0..20) {
        0..13 => PriorityClass::Train,
        13..17 => PriorityClass::BuildPreemptible,
        17..19 => PriorityClass::Build,
        _ => PriorityClass::Inference,
    }
}

fn pick(values: &[u32], rng: &mut Rand32) -> u32 {
    values[super::below(values.len(), rng)]
}

fn mean(values: &[u32]) -> f64 {
    values.iter().map(|&value| f64::from(value)).sum::<f64>() / values.len() as f64
}
