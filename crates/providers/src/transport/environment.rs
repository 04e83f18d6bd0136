//! What a vendor's program gets to see of the caller's environment: one table of what belongs to whom.

use inspan_protocol::{Environment, Redactor};

/// The vendor that a program belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vendor {
    /// No vendor that is known: an agent of the user's choice.
    Any,
    /// Claude Code.
    Claude,
    /// Codex.
    Codex,
    /// Factory's Droid.
    Droid,
    /// Google's Gemini CLI.
    Gemini,
    /// OpenCode, which asks the models of many vendors and so may see their keys.
    OpenCode,
    /// Qwen Code, which speaks OpenAI's format.
    Qwen,
}

/// Who may see a variable. A name that ends with `*` stands for all that begin so. The first row that fits
/// decides; a variable in no row is everybody's, because agents run the user's own tools.
const RULES: &[(&str, &[Vendor])] = &[
    // The mark of a session that we run inside of: a program that sees it believes to be nested.
    ("CLAUDECODE", &[]),
    ("CLAUDE_CODE_ENTRYPOINT", &[]),
    ("CLAUDE_CODE_SSE_PORT", &[]),
    ("CODEX_THREAD_ID", &[]),
    ("CODEX_SANDBOX*", &[]),
    ("CODEX_MANAGED_*", &[]),
    ("ANTHROPIC_*", &[Vendor::Claude, Vendor::OpenCode]),
    ("CLAUDE_*", &[Vendor::Claude]),
    ("OPENAI_*", &[Vendor::Codex, Vendor::OpenCode, Vendor::Qwen]),
    ("AZURE_OPENAI_*", &[Vendor::Codex, Vendor::OpenCode]),
    ("CODEX_*", &[Vendor::Codex]),
    // What is said of another server, and what would loosen the rules that ours is given.
    ("OPENCODE_SERVER_*", &[]),
    ("OPENCODE_PERMISSION", &[]),
    ("OPENCODE_PID", &[]),
    ("OPENCODE_*", &[Vendor::OpenCode]),
    ("GEMINI_*", &[Vendor::Gemini, Vendor::OpenCode]),
    ("GOOGLE_API_KEY", &[Vendor::Gemini, Vendor::OpenCode]),
    ("GOOGLE_GENERATIVE_AI_API_KEY", &[Vendor::OpenCode]),
    ("FACTORY_API_KEY", &[Vendor::Droid]),
    ("DASHSCOPE_API_KEY", &[Vendor::Qwen]),
    ("BAILIAN_*", &[Vendor::Qwen]),
    ("QWEN_*", &[Vendor::Qwen]),
    ("CURSOR_API_KEY", &[]),
    ("OPENROUTER_API_KEY", &[Vendor::OpenCode]),
    ("MISTRAL_API_KEY", &[Vendor::OpenCode]),
    ("GROQ_API_KEY", &[Vendor::OpenCode]),
    ("XAI_API_KEY", &[Vendor::OpenCode]),
    ("DEEPSEEK_API_KEY", &[Vendor::OpenCode]),
    ("COHERE_API_KEY", &[Vendor::OpenCode]),
    ("TOGETHER_API_KEY", &[Vendor::OpenCode]),
    ("FIREWORKS_API_KEY", &[Vendor::OpenCode]),
    ("PERPLEXITY_API_KEY", &[Vendor::OpenCode]),
    ("HF_TOKEN", &[Vendor::OpenCode]),
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

/// The variables that hold a vendor's key.
pub fn vendor_keys(environment: &Environment) -> Vec<String> {
    let names = environment.iter().map(|(name, _)| name);
    let keys = names.filter(|name| {
        Redactor::is_secret_name(name) && RULES.iter().any(|(pattern, _)| fits(pattern, name))
    });
    keys.map(str::to_owned).collect()
}

/// The variables that belong to no vendor: what a program of the user's own may see.
pub(crate) fn for_others(environment: &Environment) -> Vec<(String, String)> {
    let others = environment.iter().filter(|(name, _)| !RULES.iter().any(|(pattern, _)| fits(pattern, name)));
    others.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Whether a variable is meant by a name that may end with `*`.
pub(crate) fn fits(pattern: &str, name: &str) -> bool {
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
            "CODEX_HOME",
            "CODEX_SANDBOX_NETWORK_DISABLED",
            "CODEX_THREAD_ID",
            "GEMINI_API_KEY",
            "HOME",
            "OPENAI_API_KEY",
            "OPENCODE_CONFIG",
            "OPENCODE_PERMISSION",
            "OPENCODE_SERVER_PASSWORD",
            "PATH",
        ];
        let environment: Environment =
            names.map(|name| (name.to_owned(), "x".to_owned())).into_iter().collect();
        let names = |seen: Vec<(String, String)>| seen.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        let seen = |vendor| names(for_vendor(&environment, vendor));
        assert_eq!(
            seen(Vendor::Claude),
            ["ANTHROPIC_API_KEY", "AWS_PROFILE", "CLAUDE_CONFIG_DIR", "HOME", "PATH"]
        );
        assert_eq!(seen(Vendor::Codex), ["AWS_PROFILE", "CODEX_HOME", "HOME", "OPENAI_API_KEY", "PATH"]);
        let many = [
            "ANTHROPIC_API_KEY",
            "AWS_PROFILE",
            "GEMINI_API_KEY",
            "HOME",
            "OPENAI_API_KEY",
            "OPENCODE_CONFIG",
            "PATH",
        ];
        assert_eq!(seen(Vendor::OpenCode), many);
        assert_eq!(names(for_others(&environment)), ["AWS_PROFILE", "HOME", "PATH"]);
        let keys = ["ANTHROPIC_API_KEY", "GEMINI_API_KEY", "OPENAI_API_KEY", "OPENCODE_SERVER_PASSWORD"];
        assert_eq!(vendor_keys(&environment), keys);
    }
}
