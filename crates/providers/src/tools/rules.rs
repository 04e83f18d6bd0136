//! Which tools may be called: the rules of `allowedTools` and `disallowedTools`, in the syntax of Claude
//! Code.
//!
//! | rule | fits |
//! |---|---|
//! | `name` | the tool of this name |
//! | `mcp__server` | every tool of the server |
//! | `mcp__server__get_*` | every tool whose name fits; `*` is any part of a name |

use inspan_protocol::{AgentError, ErrorCode};

/// The rules of one turn.
#[derive(Debug, Default)]
pub(super) struct Rules {
    allowed: Vec<String>,
    denied: Vec<String>,
}

/// What the rules decide about a tool.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Ruling {
    /// It may be called.
    Allowed,
    /// Each call needs a permission.
    Ask,
    /// It does not exist for the model.
    Denied,
}

impl Rules {
    pub(super) fn new(allowed: Option<&[String]>, denied: Option<&[String]>) -> Result<Self, AgentError> {
        let read = |option: &str, rules: Option<&[String]>| {
            rules.unwrap_or_default().iter().map(|rule| check(option, rule.trim())).collect::<Result<_, _>>()
        };
        Ok(Self { allowed: read("allowedTools", allowed)?, denied: read("disallowedTools", denied)? })
    }

    /// What holds for a tool; a denial goes before everything.
    pub(super) fn of(&self, tool: &str) -> Ruling {
        let any = |rules: &[String]| rules.iter().any(|rule| fits(rule, tool));
        match (any(&self.denied), any(&self.allowed)) {
            (true, _) => Ruling::Denied,
            (false, true) => Ruling::Allowed,
            (false, false) => Ruling::Ask,
        }
    }

    /// The rules that fit none of these tools, each with its option.
    pub(super) fn idle<'a>(&'a self, tools: &[String]) -> Vec<(&'static str, &'a str)> {
        let all = [("allowedTools", &self.allowed), ("disallowedTools", &self.denied)];
        let each = all.into_iter().flat_map(|(option, rules)| rules.iter().map(move |rule| (option, rule)));
        each.filter(|(_, rule)| !tools.iter().any(|tool| fits(rule, tool)))
            .map(|(option, rule)| (option, rule.as_str()))
            .collect()
    }
}

fn check(option: &str, rule: &str) -> Result<String, AgentError> {
    let word = |c: char| c.is_ascii_alphanumeric() || "_-*".contains(c);
    if !rule.is_empty() && rule.chars().all(word) {
        return Ok(rule.to_owned());
    }
    let message = format!(
        "`{option}` has the rule `{}`, which is not a tool name; rules about arguments are for Claude Code only",
        rule.chars().take(80).collect::<String>()
    );
    Err(AgentError::new(ErrorCode::ConfigInvalid, message))
}

fn fits(rule: &str, tool: &str) -> bool {
    let server = rule.strip_prefix("mcp__").filter(|rest| !rest.is_empty() && !rest.contains("__"));
    let of_server = server.is_some() && tool.strip_prefix(rule).is_some_and(|rest| rest.starts_with("__"));
    of_server || like(rule.as_bytes(), tool.as_bytes())
}

/// Whether a text is like a pattern, in time that grows with their lengths only.
fn like(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(byte) if *byte == text[t] => (p, t) = (p + 1, t + 1),
            _ => match star {
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    (p, t) = (at + 1, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_name_tools_as_claude_code_does() {
        let rows: [(&str, &str, bool); 13] = [
            ("weather", "weather", true),
            ("weather", "weather2", false),
            ("mcp__herd", "mcp__herd__count", true),
            ("mcp__herd", "mcp__herder__count", false),
            ("mcp__herd__count", "mcp__herd__count", true),
            ("mcp__herd__count", "mcp__herd__count_all", false),
            ("mcp__herd__*", "mcp__herd__count", true),
            ("mcp__herd__get_*", "mcp__herd__set_a", false),
            ("mcp__*__get_*", "mcp__herd__get_a", true),
            ("*", "anything", true),
            ("a*b*c", "aXbYbc", true),
            ("a*b*c", "aXbYb", false),
            ("mcp__", "mcp____x", false),
        ];
        for (rule, tool, expected) in rows {
            assert_eq!(fits(rule, tool), expected, "{rule} {tool}");
        }
    }

    #[test]
    fn a_denial_goes_before_an_allowance() {
        let list = |rules: &[&str]| rules.iter().map(|rule| (*rule).to_owned()).collect::<Vec<_>>();
        let (allowed, denied) = (list(&["mcp__herd", "gone"]), list(&["mcp__herd__sell", "*_all"]));
        let rules = Rules::new(Some(&allowed), Some(&denied)).unwrap();
        let tools = ["mcp__herd__count", "mcp__herd__sell", "mcp__herd__count_all", "weather"];
        assert_eq!(
            tools.map(|tool| rules.of(tool)),
            [Ruling::Allowed, Ruling::Denied, Ruling::Denied, Ruling::Ask]
        );
        assert_eq!(rules.idle(&tools.map(str::to_owned)), [("allowedTools", "gone")]);
        assert_eq!(Rules::default().of("weather"), Ruling::Ask);
        for wrong in ["Bash(git *)", "", "two words"] {
            let error = Rules::new(None, Some(&list(&[wrong]))).unwrap_err();
            assert_eq!(error.code, ErrorCode::ConfigInvalid, "{wrong}");
        }
    }
}
