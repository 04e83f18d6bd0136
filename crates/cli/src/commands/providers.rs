//! `inspan providers`: the agents that flows can use and what each can do.

use inspan_protocol::ProviderDescriptor;

use super::all_providers;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::invocation::OutputForm;
use inspan_view::{Tone, table};

pub(super) fn run(invocation: &Invocation) -> Result<Exit, Failure> {
    let providers = all_providers();
    let all: Vec<ProviderDescriptor> = providers.iter().map(|(_, provider)| provider.descriptor()).collect();
    if invocation.form == OutputForm::Json {
        invocation.json(&all);
        return Ok(Exit::Success);
    }
    let rows: Vec<_> = all
        .into_iter()
        .map(|one| {
            let able = one.capabilities.abilities().into_iter().filter(|(_, can)| *can);
            let able = able.map(|(name, _)| name).collect::<Vec<_>>().join(", ");
            [(Tone::Accent, one.provider_type), (Tone::Plain, one.display_name), (Tone::Faint, able)]
        })
        .collect();
    invocation.print(table(&rows, usize::MAX));
    Ok(Exit::Success)
}
