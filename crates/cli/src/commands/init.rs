//! `inspan init [DIR] [--template NAME]`: a small flow project that runs without an API key. The files of each template are
//! in a folder under `init`.

use std::{
    fs::{self, OpenOptions},
    io::Write,
    path::Path,
};

use serde_json::json;

use crate::args::InitArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::invocation::OutputForm;
use inspan_view::{Line, Tone, quoted, table};

/// A project that `init` writes.
pub(crate) struct Template {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// The path of each file within the project, and its text.
    files: &'static [(&'static str, &'static str)],
}

macro_rules! templates {
    ($($name:literal $about:literal $($file:literal)+;)+) => {
        /// All templates; the first is written unless another is named.
        pub(crate) const TEMPLATES: &[Template] = &[$(Template {
            name: $name,
            about: $about,
            files: &[$(($file, include_str!(concat!("init/", $name, "/", $file)))),+],
        }),+];
    };
}

templates! {
    "verdict" "A first flow: two agents argue, a third decides, and you say whether it stands"
        "flow.yaml" "flow.test.yaml" "prompts/verdict.md";
    "fix-issue" "Plan, code and test a fix, review it until it passes, open a pull request with your consent"
        "flow.yaml" "flow.test.yaml" "inspan.toml" "prompts/plan.md" "prompts/code.md" "prompts/review.md"
        "schemas/plan.json" "schemas/review.json";
    "review-pr" "Review a change from several sides at once, doubt each finding, write one comment"
        "flow.yaml" "flow.test.yaml" "inspan.toml" "prompts/classify.md" "prompts/find.md" "prompts/refute.md"
        "schemas/classify.json" "schemas/findings.json" "schemas/verdict.json";
    "task-list" "Work through a list of tasks, each with a fresh agent, until none is open"
        "flow.yaml" "flow.test.yaml" "inspan.toml" "tasks.md" "prompts/do.md";
    "triage" "Label a list of issues, several at once, and count them"
        "flow.yaml" "flow.test.yaml" "inspan.toml" "schemas/sort.json";
    "research" "Research a question from several angles, write several reports, take the best one"
        "flow.yaml" "flow.test.yaml" "inspan.toml" "prompts/angles.md" "prompts/search.md" "prompts/write.md"
        "prompts/judge.md" "schemas/angles.json" "schemas/verdict.json";
    "approval" "Revise a text until a person approves it"
        "flow.yaml" "flow.test.yaml" "inspan.toml" "prompts/draft.md";
    "nightly" "Run checks, explain those that fail, and report in any case"
        "flow.yaml" "flow.test.yaml" "inspan.toml" "prompts/explain.md";
}

/// Keeps the line ends of a checkout on Windows: a script with others does not run.
const ATTRIBUTES: (&str, &str) = (".gitattributes", "* text=auto eol=lf\n");

pub(super) fn run(args: &InitArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    if args.list_templates {
        list(invocation);
        return Ok(Exit::Success);
    }
    if args.dir.exists() && !args.dir.is_dir() {
        let failure = Failure::usage(format!("{} is a file; nothing was written", args.dir.display()));
        return Err(failure.with_hint("name a folder: `inspan init DIR`"));
    }
    let template = TEMPLATES.iter().find(|template| template.name == args.template).unwrap_or(&TEMPLATES[0]);
    // It holds for the whole folder, so a folder with files of the user's gets none.
    let is_new = fs::read_dir(&args.dir).map_or(true, |mut files| files.next().is_none());
    let files = template.files.iter().chain(is_new.then_some(&ATTRIBUTES));
    let paths: Vec<_> = files.map(|(path, text)| (args.dir.join(path), *text)).collect();
    if let Some((there, _)) = paths.iter().find(|(path, _)| path.symlink_metadata().is_ok()) {
        let failure = Failure::usage(format!("{} already exists; nothing was written", there.display()));
        return Err(failure.with_hint("name another folder: `inspan init DIR`"));
    }
    for (at, (path, text)) in paths.iter().enumerate() {
        if let Err(error) = write(path, text) {
            // The same call works once what was in the way is gone.
            paths[..at].iter().for_each(|(written, _)| drop(fs::remove_file(written)));
            return Err(Failure::new(Exit::Failed, format!("{} cannot be written: {error}", path.display())));
        }
    }
    let written: Vec<String> = paths.iter().map(|(path, _)| path.display().to_string()).collect();
    match invocation.form {
        OutputForm::Json => invocation.json(&json!({ "outcome": Exit::Success.word(), "written": written })),
        OutputForm::Text => tell(args, template, &written, invocation),
    }
    Ok(Exit::Success)
}

fn list(invocation: &Invocation) {
    if invocation.form == OutputForm::Json {
        let all = TEMPLATES.iter().map(|template| json!({ "name": template.name, "about": template.about }));
        return invocation.json(&all.collect::<Vec<_>>());
    }
    let rows: Vec<_> = TEMPLATES
        .iter()
        .map(|one| [(Tone::Accent, one.name.to_owned()), (Tone::Plain, one.about.to_owned())])
        .collect();
    invocation.print(table(&rows, usize::MAX));
}

fn write(path: &Path, text: &str) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    // Not even a file that came between the look and the write is overwritten.
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(text.as_bytes()).inspect_err(|_| drop(fs::remove_file(path)))
}

fn tell(args: &InitArgs, template: &Template, written: &[String], invocation: &Invocation) {
    let say = |pieces: &[(Tone, &str)]| {
        let mut line = Line::new();
        for (tone, text) in pieces {
            line.push(*tone, text);
        }
        invocation.print([line]);
    };
    for path in written {
        say(&[(Tone::Good, "wrote "), (Tone::Plain, path)]);
    }
    let real = "With a real agent (`inspan doctor` shows which are installed):";
    say(&[]);
    say(&[(Tone::Strong, "Run it now, no API key needed:")]);
    if template.files.iter().all(|(path, _)| *path != "inspan.toml") {
        let flow = argument(written.first().map_or("flow.yaml", String::as_str));
        say(&[(Tone::Accent, &format!("  inspan run {flow}"))]);
        say(&[]);
        say(&[(Tone::Strong, real)]);
        say(&[(Tone::Accent, &format!("  inspan run {flow} --provider verdict=claude"))]);
        say(&[(Tone::Plain, "  or change `type: echo.agent` to `type: claude.agent` in the flow")]);
        return;
    }
    if args.dir != Path::new(".") {
        say(&[(Tone::Accent, &format!("  cd {}", argument(&args.dir.display().to_string())))]);
    }
    say(&[(Tone::Accent, "  inspan run flow.yaml")]);
    say(&[(Tone::Accent, "  inspan test")]);
    say(&[]);
    say(&[(Tone::Strong, real)]);
    say(&[(Tone::Plain, "  delete inspan.toml, which replaces the agents with fixed answers;")]);
    say(&[(Tone::Plain, "  the first lines of flow.yaml show how to run it then")]);
}

/// A path as an argument of a command, which a dash would make an option.
fn argument(path: &str) -> String {
    let dot = if path.starts_with('-') { "./" } else { "" };
    quoted(&format!("{dot}{path}"))
}
