//! doctor
use crate::{exit::Exit, failure::Failure, invocation::Invocation};
pub(super) fn run(_: &Invocation) -> Result<Exit, Failure> {
    Ok(Exit::Success)
}
