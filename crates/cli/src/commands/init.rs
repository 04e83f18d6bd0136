//! init
use crate::{args::InitArgs, exit::Exit, failure::Failure, invocation::Invocation};
pub(super) fn run(_: &InitArgs, _: &Invocation) -> Result<Exit, Failure> {
    Ok(Exit::Success)
}
