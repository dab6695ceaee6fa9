//! Typed indices and columns: a `NodeIdx` cannot be used where a `QueueIdx` is meant.
//!
//! An index is a position in a table. For nodes, queues, gangs and pods that position is also the last tie-break of every
//! order (see [`crate::snapshot::Snapshot`]), so "the first one" always means "the lowest index".

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, Index, IndexMut, Range};

/// A typed position in a table. Implemented by the index types of this module only.
pub trait Idx: Copy + Ord + fmt::Debug {
    /// The index of the `i`-th row. Panics beyond `u32::MAX` rows.
    fn new(i: usize) -> Self;
    /// The position as a `usize`, to slice columns with.
    fn at(self) -> usize;
}

macro_rules! indices {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u32);

        impl Idx for $name {
            fn new(i: usize) -> Self {
                Self(u32::try_from(i).expect("a table has at most u32::MAX rows"))
            }
            fn at(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
    )*};
}

indices! {
    /// A node; nodes are ordered by name.
    NodeIdx;
    /// A pod; pods are ordered by gang, then creation, then uid.
    PodIdx;
    /// A pod group; gangs are ordered by creation, then name, then namespace.
    GangIdx;
    /// A member of a gang's tree: a pod set (leaf) or a set of members.
    SubgroupIdx;
    /// A queue; queues are ordered by creation, then name.
    QueueIdx;
    /// A request class: pods that ask for the same things under the same constraints.
    ClassIdx;
    /// One physical GPU that is shared, or is to be.
    GroupIdx;
    /// A (key, value) pair among the node labels that some class refers to.
    LabelIdx;
    /// A node label key that some class refers to.
    KeyIdx;
    /// A distinct (key, value, effect) among the NoSchedule and NoExecute taints of the nodes.
    TaintIdx;
    /// A resource beside cpu, memory, GPUs and pods.
    DimIdx;
}

/// A column: a `Vec` that only its own kind of index opens.
#[derive(PartialEq, Eq)]
pub struct Col<I, T> {
    cells: Vec<T>,
    of: PhantomData<fn(I)>,
}

impl<I, T: Clone> Clone for Col<I, T> {
    fn clone(&self) -> Self {
        Self { cells: self.cells.clone(), of: PhantomData }
    }

    /// Uses the memory again.
    fn clone_from(&mut self, source: &Self) {
        self.cells.clone_from(&source.cells);
    }
}

impl<I: Idx, T> Col<I, T> {
    /// An empty column.
    #[must_use]
    pub const fn new() -> Self {
        Self { cells: Vec::new(), of: PhantomData }
    }

    /// Appends a cell and returns its index.
    pub fn push(&mut self, cell: T) -> I {
        self.cells.push(cell);
        I::new(self.cells.len() - 1)
    }

    /// Forgets all cells, keeps the memory.
    pub fn clear(&mut self) {
        self.cells.clear();
    }

    /// Keeps the first `len` cells.
    pub fn truncate(&mut self, len: usize) {
        self.cells.truncate(len);
    }

    /// Clears the column, then fills it with `len` copies of `cell`.
    pub fn reset(&mut self, len: usize, cell: T)
    where
        T: Clone,
    {
        self.cells.clear();
        self.cells.resize(len, cell);
    }

    /// All indices, in order.
    pub fn indices(&self) -> impl DoubleEndedIterator<Item = I> + ExactSizeIterator + use<I, T> {
        (0..self.cells.len()).map(I::new)
    }

    /// Indices with their cells, in order.
    pub fn entries(&self) -> impl DoubleEndedIterator<Item = (I, &T)> {
        self.cells.iter().enumerate().map(|(i, cell)| (I::new(i), cell))
    }

    /// The cells of a range of rows.
    #[must_use]
    pub fn range(&self, rows: Span<I>) -> &[T] {
        &self.cells[rows.as_usize()]
    }

    /// The cells, writable. The length cannot change through this.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        &mut self.cells
    }
}

impl<I: Idx, T> Default for Col<I, T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<I, T: fmt::Debug> fmt::Debug for Col<I, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cells.fmt(f)
    }
}

impl<I: Idx, T> From<Vec<T>> for Col<I, T> {
    fn from(cells: Vec<T>) -> Self {
        Self { cells, of: PhantomData }
    }
}

impl<I: Idx, T> FromIterator<T> for Col<I, T> {
    fn from_iter<It: IntoIterator<Item = T>>(cells: It) -> Self {
        Vec::from_iter(cells).into()
    }
}

impl<I, T> Deref for Col<I, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.cells
    }
}

impl<I: Idx, T> Index<I> for Col<I, T> {
    type Output = T;
    fn index(&self, i: I) -> &T {
        &self.cells[i.at()]
    }
}

impl<I: Idx, T> IndexMut<I> for Col<I, T> {
    fn index_mut(&mut self, i: I) -> &mut T {
        &mut self.cells[i.at()]
    }
}

/// Consecutive rows of a table: `start` inclusive, `end` exclusive.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span<I> {
    start: u32,
    end: u32,
    of: PhantomData<fn(I)>,
}

impl<I: Idx> Span<I> {
    /// No rows.
    pub const EMPTY: Self = Self { start: 0, end: 0, of: PhantomData };

    /// The rows `start..end`. Panics if `start > end` or beyond `u32::MAX` rows.
    #[must_use]
    pub fn new(start: usize, end: usize) -> Self {
        assert!(start <= end, "a span does not end before it starts");
        let cut = |i| u32::try_from(i).expect("a table has at most u32::MAX rows");
        Self { start: cut(start), end: cut(end), of: PhantomData }
    }

    /// How many rows.
    #[must_use]
    pub const fn len(self) -> usize {
        (self.end - self.start) as usize
    }

    /// Whether there are no rows.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// The rows as a plain range, to slice with.
    #[must_use]
    pub const fn as_usize(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    /// The indices of the rows, in order.
    pub fn iter(self) -> impl DoubleEndedIterator<Item = I> + ExactSizeIterator + use<I> {
        self.as_usize().map(I::new)
    }
}

impl<I: Idx> Default for Span<I> {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl<I> fmt::Debug for Span<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}
