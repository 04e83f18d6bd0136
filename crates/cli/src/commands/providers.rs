//! `inspan providers`: the agents that flows can use and what each can do.

use inspan_protocol::{ProviderCapabilities, ProviderDescriptor};

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
        line.push(Tone::Faint, &able(&one.capabilities));
        invocation.print([line]);
    }
    Ok(Exit::Success)
}

fn able(capabilities: &ProviderCapabilities) -> String {
    let ProviderCapabilities {
        streaming,
        structured_output,
        permissions,
        tools,
        host_tools,
        thinking,
        images,
        cost,
        fork,
        native_steer,
        // No ability.
        forgets_cut_turns: _,
    } = *capabilities;
    let named = [
        (streaming, "streaming"),
        (structured_output, "structured output"),
        (permissions, "permissions"),
        (tools, "tools"),
        (host_tools, "host tools"),
        (thinking, "thinking"),
        (images, "images"),
        (cost, "cost"),
        (fork, "branched conversations"),
        (native_steer, "native steering"),
    ];
    named.iter().filter(|(can, _)| *can).map(|(_, name)| *name).collect::<Vec<_>>().join(", ")
}
