//! What each provider can do and where it deviates, as tables of a document, drawn from the descriptors and the
//! targets of the conformance suite.

use inspan_conformance::{BEHAVIOURS, ExceptionKind};
use inspan_protocol::ProviderCapabilities;

/// One row per provider, one column per capability.
pub(crate) fn capabilities() -> String {
    let mut table = String::from("| Provider | Is |");
    let rows: Vec<_> = inspan_providers::builtin().iter().map(|provider| provider.descriptor()).collect();
    let names = ProviderCapabilities::default().abilities().map(|(name, _)| name);
    table.extend(names.map(|name| format!(" {name} |")));
    table.push_str("\n|---|---|");
    table.push_str(&":-:|".repeat(names.len()));
    for row in &rows {
        table.push_str(&format!("\n| `{}` | {} |", row.provider_type, row.display_name));
        table.extend(row.capabilities.abilities().map(|(_, can)| if can { " ✔ |" } else { "  |" }));
    }
    table
}

/// One row for each behaviour in which a provider deviates, with the reason.
pub(crate) fn deviations() -> String {
    let mut table = String::from("| Provider | Is expected to be one that | But |\n|---|---|---|");
    for target in inspan_conformance_targets::all() {
        for exception in target.exceptions() {
            let but = match exception.kind {
                ExceptionKind::NotApplicable => format!("{} (not checked)", exception.reason),
                ExceptionKind::Deviates(_) => exception.reason.to_owned(),
            };
            for name in exception.behaviours {
                let behaviour = BEHAVIOURS.iter().find(|behaviour| behaviour.name == *name);
                let sentence = behaviour.map_or(*name, |behaviour| behaviour.sentence);
                table.push_str(&format!("\n| `{}` | {sentence} | {but} |", target.name()));
            }
        }
    }
    table
}
