//! What an agent may do: by the options of the call, else by the permission broker; and what an answer means in the
//! agent's own options.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use inspan_protocol::{
    AgentQuestion, AnswerOption, PermissionDecision, PermissionRequest, Redactor, beginning, spelled_out,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::decode::AcpQuestion;
use super::files::within;
use super::options::AcpOptions;
use super::wire::{CreateTerminal, PermissionOption, ReadFile, WriteFile};

/// As much of a file as a question shows, in characters.
pub(super) const SHOWN: usize = 4_000;
/// Commands that were allowed and not run yet; beyond that the oldest is asked about again.
const COMMANDS_LIMIT: usize = 64;

/// The tools that a call allows and denies by their names.
#[derive(Clone, Debug, Default)]
pub(super) struct Policy {
    allowed: Vec<String>,
    denied: Vec<String>,
}

/// What the options of the call say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Ruled {
    Allowed,
    Denied,
    /// Nothing: the permission broker decides.
    Open,
}

impl Policy {
    pub(super) fn new(options: &AcpOptions) -> Self {
        Self {
            allowed: options.allowed_tools.clone().unwrap_or_default(),
            denied: options.disallowed_tools.clone().unwrap_or_default(),
        }
    }

    /// The rule for a tool with these names. A denial wins.
    ///
    /// A title, in which the model may have had a hand, can deny and never allows.
    pub(super) fn rule(&self, names: &[String], titles: &[String]) -> Ruled {
        let has = |list: &[String], names: &[String]| names.iter().any(|name| list.contains(name));
        if has(&self.denied, names) || has(&self.denied, titles) {
            Ruled::Denied
        } else if has(&self.allowed, names) {
            Ruled::Allowed
        } else {
            Ruled::Open
        }
    }
}

/// What a person is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum AskedFor {
    /// Whether the tool may be used.
    #[default]
    Permission,
    /// Which of several options that allow it once is meant.
    Option,
    /// What the agent itself wants to know.
    Answers,
}

/// An answer in the agent's options.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Choice {
    Allow(String),
    /// A person's answers to the agent's own questions, and the option that goes with them.
    Answer(String, Vec<Value>),
    /// Denied, by an option if there is one for it.
    Deny(Option<String>),
    /// It was allowed, and yet has to be denied: why.
    Impossible(Option<String>, &'static str),
}

/// Options of the kind `allow_once` that change what later calls may do: Qwen Code's goes back to the mode before it planned,
/// which may be one that asks about nothing.
const WIDER: [&str; 1] = ["restore_previous"];

/// The options that allow it once, and nothing more.
fn once(options: &[PermissionOption]) -> Vec<&PermissionOption> {
    let plain = |option: &&PermissionOption| {
        option.kind == "allow_once" && !WIDER.contains(&option.option_id.as_str())
    };
    options.iter().filter(plain).collect()
}

impl AcpQuestion {
    /// Asks the person what only a person can know: the agent's own questions, if it takes `answers`, or which of several
    /// options is meant. Nobody has seen what they say, so that none of them is the one for a yes.
    pub(super) fn ask_person(&mut self, takes_answers: bool) {
        let ways = once(&self.options);
        let always = self.options.iter().any(|option| option.kind == "allow_always");
        if takes_answers && !always && self.names.iter().any(|name| name == "think") {
            let asked = Vec::deserialize(&self.request.input["questions"]).unwrap_or_default();
            self.request.questions = asked;
        }
        if !self.request.questions.is_empty() {
            self.asked_for = AskedFor::Answers;
        } else if ways.len() > 1 {
            let option =
                |way: &&PermissionOption| AnswerOption { label: way.name.clone(), description: None };
            let PermissionRequest { tool_name, input, description, .. } = &self.request;
            // As a question for permission it shows all that a yes covers, and the words of the agent last. In a block of code
            // nothing is markup.
            let arguments = serde_json::to_string_pretty(input).unwrap_or_default();
            let mut question = format!("How may `{tool_name}` be used?\n\n```json\n{arguments}\n```");
            if let Some(said) = description {
                question.push_str(&format!("\n\nagent says: {}", shown(said)));
            }
            let question = spelled_out(&question);
            let options = ways.iter().map(option).collect();
            self.request.questions = vec![AgentQuestion { question, options, multiple: false }];
            self.asked_for = AskedFor::Option;
        }
    }

    /// The option for a decision, by its kind.
    ///
    /// A permission for one use does not hold for later ones; but a tool that the call allows by name is allowed for good.
    pub(super) fn choose(&self, ruled: Ruled, decision: &PermissionDecision) -> Choice {
        let of = |kind: &str| {
            self.options.iter().find(|option| option.kind == kind).map(|option| option.option_id.clone())
        };
        let deny = || of("reject_once").or_else(|| of("reject_always"));
        let PermissionDecision::Allow { updated_input } = decision else { return Choice::Deny(deny()) };
        let ways = once(&self.options);
        let answers = updated_input.as_ref().and_then(|changed| changed["answers"].as_array());
        match (self.asked_for, updated_input) {
            (AskedFor::Answers, _) => match (answers, ways.first()) {
                (Some(answers), Some(way)) => Choice::Answer(way.option_id.clone(), answers.clone()),
                _ => Choice::Impossible(deny(), "the agent's questions were not answered"),
            },
            (AskedFor::Option, _) => {
                let name = answers.and_then(|answers| answers.first()?.get(0)?.as_str());
                let mut meant = ways.iter().filter(|way| Some(way.name.as_str()) == name);
                match (meant.next(), meant.next()) {
                    (Some(way), None) => Choice::Allow(way.option_id.clone()),
                    _ => Choice::Impossible(
                        deny(),
                        "several options allow it once, and none of them was chosen",
                    ),
                }
            }
            (AskedFor::Permission, Some(changed)) if *changed != self.request.input => Choice::Impossible(
                deny(),
                "it was allowed with other arguments, which this protocol cannot pass on",
            ),
            (AskedFor::Permission, _) => {
                let for_good = || (ruled == Ruled::Allowed).then(|| of("allow_always")).flatten();
                match ways.first().map(|way| way.option_id.clone()).or_else(for_good) {
                    Some(option) => Choice::Allow(option),
                    None => Choice::Impossible(deny(), "the agent offers no way to allow it just once"),
                }
            }
        }
    }
}

/// What was allowed in this turn by the agent's own question, so that it is not asked about again when the agent does
/// it through us.
#[derive(Debug, Default)]
pub(super) struct Granted {
    files: BTreeSet<PathBuf>,
    commands: Vec<String>,
}

impl Granted {
    /// The tool of this question was allowed.
    pub(super) fn add(&mut self, question: &AcpQuestion, root: &Path) {
        let is = |kinds: &[&str]| question.names.iter().any(|name| kinds.contains(&name.as_str()));
        if is(&["edit", "delete", "move"]) {
            self.files.extend(question.paths.iter().filter_map(|path| within(root, path).ok()));
        }
        if let Some(command) = question.command.as_ref().filter(|_| is(&["execute"])) {
            if self.commands.len() >= COMMANDS_LIMIT {
                self.commands.remove(0);
            }
            self.commands.push(command.clone());
        }
    }

    /// Whether this file may be written without asking.
    pub(super) fn file(&self, wanted: &WriteFile, root: &Path) -> bool {
        within(root, &wanted.path).is_ok_and(|path| self.files.contains(&path))
    }

    /// Whether this command may be run without asking; once for each time that it was allowed. Nobody has seen variables of
    /// it or another folder.
    pub(super) fn command(&mut self, wanted: &CreateTerminal, root: &Path) -> bool {
        if !wanted.env.is_empty() || wanted.cwd.as_ref().is_some_and(|cwd| Path::new(cwd) != root) {
            return false;
        }
        let line = line(wanted);
        let Some(at) = self.commands.iter().position(|allowed| *allowed == line) else { return false };
        self.commands.remove(at);
        true
    }
}

/// As much of a text as is shown.
pub(super) fn shown(text: &str) -> &str {
    beginning(text, text.char_indices().nth(SHOWN).map_or(text.len(), |(end, _)| end))
}

impl CreateTerminal {
    /// Its variables.
    fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.env.iter().map(|variable| (variable.name.as_str(), variable.value.as_str()))
    }

    /// Takes the secrets of its variables out of texts, too.
    pub(super) fn redactor(&self, redactor: &Redactor) -> Redactor {
        redactor.clone().with_variables(self.pairs())
    }
}

/// What a tool of the agent says that runs the command: the line of it, or the script that a shell runs.
pub(super) fn texts_of_command(wanted: &CreateTerminal) -> Vec<String> {
    let program = wanted.command.rsplit('/').next().unwrap_or_default();
    let script = match &wanted.args[..] {
        [flags, script] if program.ends_with("sh") && flags.starts_with('-') && flags.ends_with('c') => {
            Some(script.clone())
        }
        _ => None,
    };
    std::iter::once(line(wanted)).chain(script).collect()
}

/// A command as a line.
pub(super) fn line(wanted: &CreateTerminal) -> String {
    std::iter::once(&wanted.command).chain(&wanted.args).map(String::as_str).collect::<Vec<_>>().join(" ")
}

/// The question whether a file may be written, with its names.
pub(super) fn about_file(wanted: &WriteFile) -> (PermissionRequest, Vec<String>) {
    let content = shown(&wanted.content);
    let more = wanted.content.len() - content.len();
    let mut input = json!({ "path": wanted.path, "content": content });
    if more > 0 {
        input["bytesNotShown"] = json!(more);
    }
    about("fs/write_text_file", "edit", input, format!("write {}", wanted.path))
}

/// The question whether a file may be read, with its names.
pub(super) fn about_reading(wanted: &ReadFile) -> (PermissionRequest, Vec<String>) {
    about("fs/read_text_file", "read", json!({ "path": wanted.path }), format!("read {}", wanted.path))
}

/// The question whether a command may be run, with its names.
pub(super) fn about_command(
    wanted: &CreateTerminal,
    redactor: &Redactor,
) -> (PermissionRequest, Vec<String>) {
    let mut input = json!({ "command": wanted.command });
    if !wanted.args.is_empty() {
        input["args"] = json!(wanted.args);
    }
    if let Some(cwd) = &wanted.cwd {
        input["cwd"] = json!(cwd);
    }
    if !wanted.env.is_empty() {
        // The agent's own secrets may be among the values.
        let redactor = wanted.redactor(redactor);
        let shown = wanted.pairs().map(|(name, value)| redactor.text(&format!("{name}={value}")));
        input["env"] = json!(shown.collect::<Vec<_>>());
    }
    about("terminal/create", "execute", input, format!("run {}", line(wanted)))
}

fn about(tool: &str, kind: &str, input: Value, words: String) -> (PermissionRequest, Vec<String>) {
    let description = Some(shown(&words).to_owned());
    let request = PermissionRequest { description, ..PermissionRequest::new(tool, input) };
    (request, vec![kind.to_owned(), tool.to_owned()])
}

#[cfg(test)]
mod tests;
