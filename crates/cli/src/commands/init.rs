//! `inspan init [DIR]`: a small flow project that runs without an API key. Its files are
//! under `init/project`.

use std::{
    fs::{self, OpenOptions},
    io::Write,
    path::Path,
};

use serde_json::json;

use crate::{
    args::InitArgs,
    console::{Line, Tone},
    exit::Exit,
    failure::Failure,
    invocation::{Form, Invocation},
    terminal,
};

/// What is written: the path within the project, and the text.
const PROJECT: [(&str, &str); 3] = [
    ("flow.yaml", include_str!("init/project/flow.yaml")),
    ("flow.test.yaml", include_str!("init/project/flow.test.yaml")),
    ("prompts/verdict.md", include_str!("init/project/prompts/verdict.md")),
];

pub(super) fn run(args: &InitArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let paths = PROJECT.map(|(path, text)| (args.dir.join(path), text));
    if let Some((there, _)) = paths.iter().find(|(path, _)| path.symlink_metadata().is_ok()) {
        let failure = Failure::usage(format!("{} already exists; nothing was written", there.display()));
        return Err(failure.with_hint("name another folder: `inspan init DIR`"));
    }
    for (path, text) in &paths {
        write(path, text).map_err(|error| {
            Failure::new(Exit::Failed, format!("{} cannot be written: {error}", path.display()))
        })?;
    }
    let written: Vec<String> = paths.iter().map(|(path, _)| path.display().to_string()).collect();
    match invocation.form {
        Form::Json => invocation.json(&json!({ "outcome": Exit::Success.word(), "written": written })),
        Form::Text => tell(&written, invocation),
    }
    Ok(Exit::Success)
}

fn write(path: &Path, text: &str) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    // Not even a file that came between the look and the write is overwritten.
    OpenOptions::new().write(true).create_new(true).open(path)?.write_all(text.as_bytes())
}

fn tell(written: &[String], invocation: &Invocation) {
    let say = |pieces: &[(Tone, &str)]| {
        let mut line = Line::new();
        for (tone, text) in pieces {
            line.push(*tone, text);
        }
        terminal::painted_line(&line.render(invocation.terminal.stdout));
    };
    for path in written {
        say(&[(Tone::Good, "wrote "), (Tone::Plain, path)]);
    }
    let flow = written.first().map_or("flow.yaml", String::as_str);
    let flow = if flow.contains([' ', '\'', '"']) {
        format!("'{}'", flow.replace('\'', "'\\''"))
    } else {
        flow.to_owned()
    };
    say(&[]);
    say(&[(Tone::Strong, "Run it now, no API key needed:")]);
    say(&[(Tone::Accent, &format!("  inspan run {flow}"))]);
    say(&[]);
    say(&[(Tone::Strong, "With a real agent (`inspan doctor` shows which are installed):")]);
    say(&[(Tone::Accent, &format!("  inspan run {flow} --provider verdict=claude"))]);
    say(&[(Tone::Plain, "  or change `type: echo.agent` to `type: claude.agent` in the flow")]);
}
