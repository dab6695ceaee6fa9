//! The role that decides: reads the cluster, plans a cycle, and carries it out.

use anyhow::Result;

use crate::run::Context;

/// Runs until told to stop.
///
/// # Errors
/// If it cannot begin.
pub async fn run(context: Context) -> Result<()> {
    context.stop.stopped().await;
    Ok(())
}
