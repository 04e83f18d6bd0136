//! Checks the arguments of `exec`: a command line meant for a shell, templates in a script, variables that no shell
//! expands.

use crate::{
    diagnostic::{Code, Problem, Sink, SourceSpan},
    expr::first_code,
    spec::{Header, NodeSpec, Yaml},
};

/// Programs that read a script from the argument after `-c`.
const SHELLS: [&str; 7] = ["sh", "bash", "zsh", "dash", "ksh", "fish", "ash"];

/// Warns about `argv` that will not do what it seems to.
pub(super) fn check(spec: &NodeSpec<'_>, input: &Yaml, header: &Header<'_>, sink: &mut Sink) {
    let Some(argv) = input.get("argv") else { return };
    let items = argv.items();
    let Some(program) = items.first().and_then(|item| item.text()) else { return };
    let mut warn = |code, (at, span): (usize, SourceSpan), message: String, help: String| {
        let problem = Problem::warning(code, span, message).help(help);
        sink.push(problem.node(spec.id.as_ref()).key(spec.key(format_args!("input.argv[{at}]"))));
    };
    let name = program.rsplit('/').next().unwrap_or(program);
    let is_flag = |text: &str| text.starts_with('-') && !text.starts_with("--") && text.ends_with('c');
    let flag = items.iter().skip(1).position(|item| item.text().is_some_and(is_flag));
    let script = flag.filter(|_| SHELLS.contains(&name)).map(|flag| flag + 2);
    if let Some(at) = script
        && let Some(text) = items.get(at).and_then(|item| item.text())
        && let Some(offset) = first_code(text)
    {
        let used = template(text).unwrap_or("{{ value }}");
        warn(
            Code::ShellTemplate,
            (at, items[at].place(offset)),
            "the shell runs the value of this template as code".to_owned(),
            format!(
                "pass the value as an argument: `[{name}, -c, 'echo \"$1\"', {name}, \"{used}\"]`; or use `stdin` or `env`"
            ),
        );
    }
    if items.len() == 1 && !program.contains("{{") && program.contains(char::is_whitespace) {
        let is_script = program.contains(['|', '&', ';', '<', '>', '$', '*']);
        let words: Vec<&str> = program.split_whitespace().collect();
        let help = if is_script {
            format!("pipes and redirections need a shell: `[sh, -c, \"{program}\"]`")
        } else {
            format!("write each argument as a separate item: `[{}]`", words.join(", "))
        };
        warn(
            Code::InvalidValue,
            (0, items[0].span),
            format!("`{program}` is used as the name of one program"),
            help,
        );
    }
    // These compare with `<` and `>`.
    let compares = ["expr", "test", "["].contains(&name);
    if script.is_none()
        && !compares
        && let Some(at) = items.iter().skip(1).position(|item| item.text().is_some_and(is_of_shell))
    {
        let (at, sign) = (at + 1, items[at + 1].text().unwrap_or_default());
        warn(
            Code::InvalidValue,
            (at, items[at].span),
            format!("`{sign}` is passed to `{name}` as an argument: no shell reads it"),
            "pipes, redirections and several commands need a shell: `[sh, -c, \"…\"]`".to_owned(),
        );
    }
    if script.is_none() {
        for (at, item) in items.iter().enumerate() {
            let Some(variable) = item.text().and_then(variable) else { continue };
            let key = variable.trim_matches(['$', '{', '}']).to_lowercase();
            let declared = header.input.contains_key(&key);
            let help = if declared {
                format!("use `{{{{ flow.input.{key} }}}}`")
            } else {
                "the program can read its environment; to expand the variable, run a shell: `[sh, -c, …]`"
                    .to_owned()
            };
            warn(
                Code::InvalidValue,
                (at, item.span),
                format!("`{variable}` is passed literally: no shell expands it"),
                help,
            );
        }
    }
}

/// Whether an argument is only a sign that a shell reads. `;` is not meant: `find -exec` takes it.
fn is_of_shell(argument: &str) -> bool {
    ["|", "||", "&&", ">", ">>", "<"].contains(&argument)
}

/// The first `{{ … }}` of a text.
fn template(text: &str) -> Option<&str> {
    let from = text.find("{{")?;
    let len = text[from..].find("}}")? + 2;
    Some(&text[from..from + len]).filter(|found| !found.contains('"'))
}

/// The first `$NAME` or `${NAME}` of a text.
fn variable(text: &str) -> Option<&str> {
    let from = text.find('$')?;
    let rest = &text[from + 1..];
    let is_name = |c: char| c == '_' || c.is_ascii_alphanumeric();
    let (open, name) = rest.strip_prefix('{').map_or((false, rest), |name| (true, name));
    let len = name.find(|c| !is_name(c)).unwrap_or(name.len());
    let is_variable = name.starts_with(|c: char| c == '_' || c.is_ascii_uppercase());
    match (is_variable, open) {
        (false, _) => None,
        (true, false) => Some(&text[from..from + 1 + len]),
        (true, true) => name[len..].starts_with('}').then(|| &text[from..from + 3 + len]),
    }
}
