//! Amounts with their units, and the only conversions between them.
//!
//! Every amount is an `i64` cell of a column whose name or type says the unit:
//!
//! | resource | on a node | in a queue |
//! |---|---|---|
//! | cpu | millicores | millicores |
//! | memory | bytes | bytes |
//! | GPU | whole devices; a shared device in MiB | micro-GPU (10⁻⁶ device) |
//! | pods | pods | – |
//! | any other ([`crate::snapshot::ExtraDim`]) | its Kubernetes value × 1000 | – |
//!
//! Why micro- and not milli-GPU in queues: KAI rounds a share to 0.01 GPU, so that eight pods of 0.125 overrun a quota of 1.
//! Milli-GPU mend that case, but not sixteen of 0.0625 or three of 0.3333; micro-GPU hold all of them and still leave room
//! for nine million million GPUs in an `i64`.

use std::ops::{Add, AddAssign, Index, IndexMut, Sub, SubAssign};

/// Micro-GPU in one GPU.
pub const MICRO_PER_GPU: i64 = 1_000_000;

/// "No bound" for quotas and limits (`-1` on the wire). Larger than any amount.
pub const UNLIMITED: i64 = i64::MAX;

/// MiB that stand for one whole card where the node does not say how large its cards are: any number would do, and this one
/// keeps fractions exact to a millionth.
pub const NOMINAL_CARD_MIB: i64 = 1_000_000;

/// The three resources that queues account for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Resource {
    /// Millicores.
    Cpu,
    /// Bytes.
    Memory,
    /// Micro-GPU.
    Gpu,
}

impl Resource {
    /// All of them, in column order.
    pub const ALL: [Self; 3] = [Self::Cpu, Self::Memory, Self::Gpu];

    /// What fair share hands out at once, and rounds down to (semantics.md §3.3): one millicore, one byte, one GPU.
    #[must_use]
    pub const fn share_unit(self) -> i64 {
        match self {
            Self::Cpu | Self::Memory => 1,
            Self::Gpu => MICRO_PER_GPU,
        }
    }
}

/// An amount of each resource that queues account for. [`UNLIMITED`] cells stay unlimited under addition.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct Amounts(pub [i64; 3]);

impl Amounts {
    /// Nothing.
    pub const ZERO: Self = Self([0; 3]);
    /// No bound on anything.
    pub const UNLIMITED: Self = Self([UNLIMITED; 3]);

    /// Millicores, bytes, micro-GPU.
    #[must_use]
    pub const fn new(cpu: i64, memory: i64, gpu: i64) -> Self {
        Self([cpu, memory, gpu])
    }

    /// `self ≤ other` for all three resources (semantics.md §2.6).
    #[must_use]
    pub fn fits(self, other: Self) -> bool {
        Resource::ALL.iter().all(|&r| self[r] <= other[r])
    }

    /// Cell by cell with `f`.
    #[must_use]
    pub fn zip(self, other: Self, f: impl Fn(i64, i64) -> i64) -> Self {
        Self(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }
}

impl Index<Resource> for Amounts {
    type Output = i64;
    fn index(&self, r: Resource) -> &i64 {
        &self.0[r as usize]
    }
}

impl IndexMut<Resource> for Amounts {
    fn index_mut(&mut self, r: Resource) -> &mut i64 {
        &mut self.0[r as usize]
    }
}

impl Add for Amounts {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        self.zip(other, i64::saturating_add)
    }
}

impl Sub for Amounts {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        self.zip(other, i64::saturating_sub)
    }
}

impl AddAssign for Amounts {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl SubAssign for Amounts {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

/// MiB that `portion` of a card of `card` MiB takes: rounded down, so that n pods of 1/n always fit (semantics.md §2.4).
#[must_use]
pub fn portion_mib(portion: i64, card: i64) -> i64 {
    let mib = i128::from(portion) * i128::from(card) / i128::from(MICRO_PER_GPU);
    i64::try_from(mib).unwrap_or(i64::MAX)
}

/// Micro-GPU that `mib` of a card of `card` MiB are: rounded up, so that a queue never holds more than it pays for.
#[must_use]
pub fn mib_share(mib: i64, card: i64) -> i64 {
    let share = (i128::from(mib) * i128::from(MICRO_PER_GPU) + i128::from(card) - 1) / i128::from(card);
    i64::try_from(share).unwrap_or(i64::MAX)
}
