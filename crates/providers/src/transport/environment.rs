//! What a vendor's program gets to see of the caller's environment: one table of what belongs to whom.
//! What each adapter sets for its own program is left to the adapters.

use inspan_protocol::Environment;

/// The vendor that a program belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vendor {
    /// Claude Code.
    Claude,
}

/// Who may see a variable. A name that ends with `*` stands for all that begin so. The first row that fits
/// decides; a variable in no row is everybody's, because agents run the user's own tools.
const RULES: &[(&str, &[Vendor])] = &[
    // The mark of a session that we run inside of: a program that sees it believes to be nested.
    ("CLAUDECODE", &[]),
    ("CLAUDE_CODE_ENTRYPOINT", &[]),
    ("CLAUDE_CODE_SSE_PORT", &[]),
    ("ANTHROPIC_*", &[Vendor::Claude]),
    ("CLAUDE_*", &[Vendor::Claude]),
    ("OPENAI_*", &[]),
    ("AZURE_OPENAI_*", &[]),
    ("CODEX_*", &[]),
    ("OPENCODE_*", &[]),
    ("GEMINI_*", &[]),
    ("GOOGLE_API_KEY", &[]),
    ("GOOGLE_GENERATIVE_AI_API_KEY", &[]),
    ("FACTORY_API_KEY", &[]),
    ("CURSOR_API_KEY", &[]),
    ("OPENROUTER_API_KEY", &[]),
    ("MISTRAL_API_KEY", &[]),
    ("GROQ_API_KEY", &[]),
    ("XAI_API_KEY", &[]),
    ("DEEPSEEK_API_KEY", &[]),
    ("COHERE_API_KEY", &[]),
    ("TOGETHER_API_KEY", &[]),
    ("FIREWORKS_API_KEY", &[]),
    ("PERPLEXITY_API_KEY", &[]),
    ("HF_TOKEN", &[]),
];

/// The variables that a vendor's program may see.
pub(crate) fn for_vendor(environment: &Environment, vendor: Vendor) -> Vec<(String, String)> {
    environment
        .iter()
        .filter(|(name, _)| {
            let rule = RULES.iter().find(|(pattern, _)| fits(pattern, name));
            rule.is_none_or(|(_, vendors)| vendors.contains(&vendor))
        })
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// The variables that belong to no vendor: what a program of the user's own may see.
pub(crate) fn for_others(environment: &Environment) -> Vec<(String, String)> {
    let others = environment.iter().filter(|(name, _)| !RULES.iter().any(|(pattern, _)| fits(pattern, name)));
    others.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn fits(pattern: &str, name: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == name, |start| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_sees_its_own_keys_and_no_others() {
        let names = [
            "ANTHROPIC_API_KEY",
            "AWS_PROFILE",
            "CLAUDECODE",
            "CLAUDE_CODE_ENTRYPOINT",
            "CLAUDE_CONFIG_DIR",
            "GEMINI_API_KEY",
            "HOME",
            "OPENAI_API_KEY",
            "PATH",
        ];
        let environment: Environment =
            names.map(|name| (name.to_owned(), "x".to_owned())).into_iter().collect();
        let seen: Vec<String> =
            for_vendor(&environment, Vendor::Claude).into_iter().map(|(name, _)| name).collect();
        assert_eq!(seen, ["ANTHROPIC_API_KEY", "AWS_PROFILE", "CLAUDE_CONFIG_DIR", "HOME", "PATH"]);
        let others: Vec<String> = for_others(&environment).into_iter().map(|(name, _)| name).collect();
        assert_eq!(others, ["AWS_PROFILE", "HOME", "PATH"]);
    }
}
