//! What a cycle does, action by action.

pub mod allocate;
pub mod evict_for;
pub mod stale_gang;

use bumpalo::Bump;

use crate::config::Config;
use crate::order::Order;
use crate::pending::Failures;
use crate::place::NodeSearch;
use crate::statement::Statement;
use crate::tables::Tables;

/// Everything that an action works with: the tables, the log that writes them, and memory that is used again.
pub struct Plan<'a> {
    /// What is there.
    pub tables: &'a mut Tables,
    /// What was decided.
    pub statement: &'a mut Statement,
    /// Where pods can go.
    pub search: &'a mut NodeSearch,
    /// Who is next.
    pub order: &'a mut Order,
    /// Why turns failed.
    pub failures: &'a mut Failures,
    /// Settings.
    pub config: &'a Config,
    /// Scratch memory of the cycle.
    pub arena: &'a Bump,
}
