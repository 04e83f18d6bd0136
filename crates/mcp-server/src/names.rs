//! The names of tools: those of flows, changed to what clients accept.

use sha2::{Digest, Sha256};

/// The longest name in characters. Clients put their own prefix before it, and vendors take 64 in all.
const LONGEST: usize = 44;
/// How much of a hash distinguishes two names.
const HASH: usize = 6;

/// The name of a tool for each flow, in the order given, and what the user should know about names that were changed.
pub(crate) fn tool_names(flows: &[String], taken: &[&str]) -> (Vec<String>, Vec<String>) {
    let mut names: Vec<String> = Vec::new();
    let mut warnings = Vec::new();
    for flow in flows {
        let plain = plain_name(flow);
        let is_taken = taken.contains(&plain.as_str()) || names.contains(&plain);
        let name = if is_taken { with_hash(&plain, flow) } else { plain.clone() };
        if is_taken {
            warnings.push(format!(
                "flow `{flow}` is offered as the tool `{name}`, since another tool is called `{plain}`; rename the flow"
            ));
        }
        names.push(name);
    }
    (names, warnings)
}

/// A name of letters, digits, `_` and `-` that begins with a letter.
fn plain_name(flow: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let name: String = flow.chars().map(|c| if fits(c) { c } else { '_' }).collect();
    let name = match name.chars().next() {
        Some(first) if first.is_ascii_alphabetic() => name,
        _ => format!("flow_{name}"),
    };
    if name.len() > LONGEST { with_hash(&name, flow) } else { name }
}

/// The name with a few digits that depend on this flow only, so that it stays the same whatever other flows there are.
fn with_hash(name: &str, flow: &str) -> String {
    let hash = Sha256::digest(flow.as_bytes());
    let digits: String = hash.iter().take(HASH / 2).map(|byte| format!("{byte:02x}")).collect();
    let end = name.len().min(LONGEST - HASH - 1);
    format!("{}_{digits}", &name[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_clients_accept_and_never_the_same() {
        let flows =
            ["fix", "release/notes", "release.notes", "", "7up", "sessions", &"x".repeat(60), "größe"];
        let (names, warnings) = tool_names(&flows.map(str::to_owned), &["sessions"]);
        let expected = [
            "fix",
            "release_notes",
            "release_notes_df9a01",
            "flow_",
            "flow_7up",
            "sessions_e67a51",
            "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx_5e6ba4",
            "gr__e",
        ];
        let shape = |name: &String| {
            name.len() <= LONGEST && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
        };
        assert!(names.iter().all(shape), "{names:?}");
        let stems: Vec<_> =
            names.iter().map(|name| name.rsplit_once('_').map_or(name.as_str(), |(stem, _)| stem)).collect();
        let expected_stems: Vec<_> =
            expected.iter().map(|name| name.rsplit_once('_').map_or(*name, |(stem, _)| stem)).collect();
        assert_eq!(stems, expected_stems);
        let unique: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!((unique.len(), warnings.len()), (names.len(), 2));
    }
}
