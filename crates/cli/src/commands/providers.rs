//! `inspan providers`: the agents that flows can use and what each can do.

use inspan_protocol::ProviderDescriptor;

use super::all_providers;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::invocation::OutputForm;
use inspan_view::{Line, Tone};

pub(super) fn run(invocation: &Invocation) -> Result<Exit, Failure> {
    let providers = all_providers();
    let all: Vec<ProviderDescriptor> = providers.iter().map(|(_, provider)| provider.descriptor()).collect();
    if invocation.form == OutputForm::Json {
        invocation.json(&all);
        return Ok(Exit::Success);
    }
    let width = all.iter().map(|one| one.provider_type.len()).max().unwrap_or(0);
    let names = all.iter().map(|one| one.display_name.chars().count()).max().unwrap_or(0);
    for one in &all {
        let mut line = Line::new();
        line.push(Tone::Accent, &one.provider_type).pad_to(width + 2);
        line.push(Tone::Plain, &one.display_name).pad_to(width + names + 4);
        let able = one.capabilities.abilities().into_iter().filter(|(_, can)| *can);
        line.push(Tone::Faint, &able.map(|(name, _)| name).collect::<Vec<_>>().join(", "));
        invocation.print([line]);
    }
    Ok(Exit::Success)
}
