//! Which tools there are, which may be used unasked and which may not, as the program's own rules. Unlike the
//! program's, they ask before anything that may do damage.

use inspan_protocol::{AgentError, ErrorCode};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::options::OpenCodeOptions;

/// The tool by which the program takes structured output.
pub(super) const STRUCTURED: &str = "StructuredOutput";

/// What is done when a tool is to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Action {
    Allow,
    Ask,
    Deny,
}

/// One rule; of all that fit, the last one decides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Rule {
    pub(super) permission: String,
    pub(super) pattern: String,
    pub(super) action: Action,
}

/// What holds unless an option says otherwise. Each of the program's own names is here, so that no settings file
/// of a project can allow one of them. Reading files of the project does no damage, except files that have
/// secrets.
const USUAL: &[(&str, &str, Action)] = &[
    ("*", "*", Action::Ask),
    ("bash", "*", Action::Ask),
    ("doom_loop", "*", Action::Ask),
    ("edit", "*", Action::Ask),
    ("external_directory", "*", Action::Ask),
    ("glob", "*", Action::Allow),
    ("grep", "*", Action::Allow),
    ("list", "*", Action::Allow),
    ("lsp", "*", Action::Allow),
    // The question itself goes to the person, and needs no permission.
    ("question", "*", Action::Allow),
    ("read", "*", Action::Allow),
    ("read", "*.env", Action::Ask),
    ("read", "*.env.*", Action::Ask),
    ("read", "*.env.example", Action::Allow),
    ("skill", "*", Action::Allow),
    // A sub-agent's tools are asked about as the agent's own are.
    ("task", "*", Action::Allow),
    ("todowrite", "*", Action::Allow),
    ("webfetch", "*", Action::Ask),
    ("websearch", "*", Action::Ask),
];
/// Rules that are about no tool, and so hold whatever tools there are.
const NO_TOOLS: &[&str] = &["doom_loop", "external_directory"];

/// The rules of a call.
pub(super) fn rules(options: &OpenCodeOptions) -> Result<Vec<Rule>, AgentError> {
    let rule = |permission: &str, pattern: &str, action| Rule {
        permission: permission.to_owned(),
        pattern: pattern.to_owned(),
        action,
    };
    let there = match &options.tools {
        Some(names) => Some(names.iter().map(|name| parse(name)).collect::<Result<Vec<_>, _>>()?),
        None => None,
    };
    let mut rules = Vec::new();
    for (permission, pattern, action) in USUAL {
        let gone = there.as_ref().is_some_and(|there| {
            !NO_TOOLS.contains(permission) && there.iter().all(|(name, _)| name != permission)
        });
        match (gone, *pattern) {
            (false, _) => rules.push(rule(permission, pattern, *action)),
            // Only a denial of all of it, and of nothing after, hides a tool from the model.
            (true, "*") => rules.push(rule(permission, pattern, Action::Deny)),
            (true, _) => {}
        }
    }
    for (name, pattern) in there.into_iter().flatten() {
        if USUAL.iter().all(|(permission, ..)| *permission != name) {
            rules.push(rule(name, pattern, Action::Ask));
        }
    }
    for (list, action) in [(&options.allowed_tools, Action::Allow), (&options.disallowed_tools, Action::Deny)]
    {
        for tool in list.iter().flatten() {
            let (permission, pattern) = parse(tool)?;
            rules.push(rule(permission, pattern, action));
        }
    }
    // It is only there if the turn has a schema; a rule in any case lets turns with and without one share a server.
    rules.push(rule(STRUCTURED, "*", Action::Allow));
    Ok(rules)
}

/// The same rules in the form of a settings file, where sub-agents find them too. There a later pattern of a
/// permission decides as well; the form sorts the names, which puts `*` first.
pub(super) fn settings(rules: &[Rule]) -> Value {
    let mut by_permission: Map<String, Value> = Map::new();
    for rule in rules {
        let patterns = by_permission.entry(rule.permission.clone()).or_insert_with(|| json!({}));
        patterns[rule.pattern.as_str()] = json!(rule.action);
    }
    for patterns in by_permission.values_mut() {
        // A word replaces what another settings file says about the permission; an object would only add to
        // it.
        if let Value::Object(map) = patterns
            && map.len() == 1
            && let Some(action) = map.remove("*")
        {
            *patterns = action;
        }
    }
    Value::Object(by_permission)
}

/// `bash(git *)` as a permission and a pattern. The tools that change files share one permission.
fn parse(tool: &str) -> Result<(&str, &str), AgentError> {
    let tool = tool.trim();
    let (name, pattern) = match tool.split_once('(') {
        Some((name, rest)) => (name.trim(), rest.strip_suffix(')').unwrap_or_default()),
        None => (tool, "*"),
    };
    if name.is_empty() || pattern.is_empty() {
        let message = format!("`{tool}` names no tool; write `bash`, or `bash(git *)`");
        return Err(AgentError::new(ErrorCode::ConfigInvalid, message));
    }
    let name = match name {
        "write" | "patch" | "multiedit" | "apply_patch" => "edit",
        name => name,
    };
    Ok((name, pattern))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(options: &OpenCodeOptions, permission: &str, pattern: &str) -> Action {
        let fits = |rule: &str, word: &str| {
            rule == word || rule.strip_suffix('*').is_some_and(|start| word.starts_with(start))
        };
        let rules = rules(options).unwrap();
        let last =
            rules.iter().rfind(|rule| fits(&rule.permission, permission) && fits(&rule.pattern, pattern));
        last.unwrap().action
    }

    #[test]
    fn what_may_do_harm_is_asked_about_unless_an_option_says_otherwise() {
        let list = |items: &[&str]| Some(items.iter().map(|item| (*item).to_owned()).collect());
        let usual = OpenCodeOptions::default();
        let chosen = OpenCodeOptions {
            allowed_tools: list(&["bash(git *)", "write"]),
            disallowed_tools: list(&["bash(git push*)", "webfetch"]),
            ..OpenCodeOptions::default()
        };
        let few = OpenCodeOptions { tools: list(&["read", "tidy_up"]), ..OpenCodeOptions::default() };
        let none = OpenCodeOptions { tools: list(&[]), ..OpenCodeOptions::default() };
        let rows = [
            (&usual, "bash", "ls", Action::Ask),
            (&usual, "edit", "a.rs", Action::Ask),
            (&usual, "some_mcp_tool", "*", Action::Ask),
            (&usual, "read", "src/a.rs", Action::Allow),
            (&usual, "read", "*.env", Action::Ask),
            (&chosen, "bash", "ls", Action::Ask),
            (&chosen, "bash", "git log", Action::Allow),
            (&chosen, "bash", "git push -f", Action::Deny),
            (&chosen, "edit", "a.rs", Action::Allow),
            (&chosen, "webfetch", "https://a", Action::Deny),
            (&few, "read", "a.rs", Action::Allow),
            (&few, "tidy_up", "*", Action::Ask),
            (&few, "bash", "ls", Action::Deny),
            (&few, "external_directory", "/etc/*", Action::Ask),
            (&none, "read", "a.rs", Action::Deny),
            (&none, STRUCTURED, "*", Action::Allow),
        ];
        for (options, permission, pattern, expected) in rows {
            assert_eq!(decide(options, permission, pattern), expected, "{permission} {pattern}");
        }
    }

    #[test]
    fn a_tool_without_a_name_is_refused() {
        for tool in ["", "(git *)", "bash()", "bash(git"] {
            let options =
                OpenCodeOptions { allowed_tools: Some(vec![tool.to_owned()]), ..OpenCodeOptions::default() };
            assert_eq!(rules(&options).unwrap_err().code, ErrorCode::ConfigInvalid, "{tool}");
        }
    }

    #[test]
    fn the_settings_say_the_same() {
        let options = OpenCodeOptions {
            allowed_tools: Some(vec!["bash(git *)".to_owned(), "webfetch".to_owned()]),
            ..OpenCodeOptions::default()
        };
        let settings = settings(&rules(&options).unwrap());
        assert_eq!(
            (&settings["bash"], &settings["webfetch"], &settings["edit"], &settings["*"]),
            (&json!({ "*": "ask", "git *": "allow" }), &json!("allow"), &json!("ask"), &json!("ask"))
        );
    }
}
