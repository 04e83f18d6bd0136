//! `--budget`: limits of budgets that the command line sets or raises.

use inspan_flow::Loaded;

use crate::{args::BudgetChange, failure::Failure};

/// Puts the limits into the flow.
pub(super) fn set(flow: &mut Loaded, changes: &[BudgetChange]) -> Result<(), Failure> {
    for change in changes {
        flow.set_budget(change.node.as_ref(), change.limits)
            .map_err(|error| Failure::usage(format!("--budget: {error}")))?;
    }
    Ok(())
}
