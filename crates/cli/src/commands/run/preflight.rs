//! What a flow needs beyond its file, looked for before anything is started: the programs of its agents.

use inspan_flow::{Graph, Loaded};

use crate::{failure::Failure, invocation::Invocation};

pub(super) fn check(_: &Graph, _: &Loaded, _: &Invocation) -> Result<(), Failure> {
    Ok(())
}
