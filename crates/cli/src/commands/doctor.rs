//! `inspan doctor`: whether the vendors' programs and keys are here, and what to do about what is not. No
//! value of a key is looked at, let alone shown.

use std::path::PathBuf;

use inspan_providers::{
    ProgramStatus, ServiceStatus, probe_acp, probe_anthropic, probe_claude, probe_codex, probe_openai,
    probe_opencode,
};
use serde_json::{Value, json};

use super::registries;
use crate::{
    args::DoctorArgs,
    console::{Line, Tone, harmless},
    exit::Exit,
    failure::Failure,
    invocation::{Form, Invocation},
    settings::Settings,
    terminal::{self, Colour, Person, Progress},
};

mod conformance;
mod handshake;

use handshake::{Greeted, greet};

/// How the program of a provider is got.
const INSTALL: [(&str, &str); 3] = [
    ("claude", "npm install -g @anthropic-ai/claude-code"),
    ("codex", "npm install -g @openai/codex"),
    ("opencode", "npm install -g opencode-ai"),
];
/// The provider whose program each node names.
const ANY_AGENT: &str = "acp";
/// Variables that hold keys.
const KEYS: [&str; 5] = [
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "CLAUDE_CODE_OAUTH_TOKEN",
    "CODEX_API_KEY",
    "OPENAI_API_KEY",
];

pub(super) fn run(args: &DoctorArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    if let Some(names) = &args.conformance {
        return conformance::run(names, args, invocation);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Exit::Failed, format!("failed to start the runtime: {error}")))?;
    let env = &invocation.env;
    let (claude, codex, opencode, others) = runtime.block_on(async {
        tokio::join!(
            probe_claude(env, inspan_process::guard()),
            probe_codex(env, inspan_process::guard()),
            probe_opencode(env, inspan_process::guard()),
            probe_acp(env, inspan_process::guard()),
        )
    });
    let statuses =
        [claude, codex, opencode].into_iter().map(|status| Program::judged(status, Need::Expected));
    let others = others.into_iter().map(|status| Program::judged(status, Need::Optional));
    let programs: Vec<Program> = statuses.chain(others).collect();
    // A missing key is no fault: nobody needs every service.
    let services = [probe_anthropic(&invocation.env), probe_openai(&invocation.env)];
    let here = programs.iter().filter(|program| program.status.version.is_some());
    let keyed = services.iter().filter(|service| service.problem.is_none());
    let names: Vec<String> = here
        .map(|program| program.status.provider.clone())
        .chain(keyed.map(|service| service.provider.clone()))
        .filter(|_| !args.offline)
        .collect();
    let greeted = runtime.block_on(greet(&names, invocation));
    // Nobody needs every agent, but one of them must work.
    let refused = |name: &str| greeted.iter().any(|one| one.provider == name && one.problem.is_some());
    let healthy = programs
        .iter()
        .map(|program| (&program.status.provider, &program.status.problem))
        .chain(services.iter().map(|service| (&service.provider, &service.problem)))
        .any(|(provider, problem)| problem.is_none() && !refused(provider));
    let exit = if healthy { Exit::Success } else { Exit::Configuration };
    match invocation.form {
        Form::Json => invocation.json(&json(&programs, &services, &greeted, exit, invocation)),
        Form::Text => text(&programs, &services, &greeted, invocation),
    }
    Ok(exit)
}

/// A vendor's program and what is to be said of it.
struct Program {
    status: ProgramStatus,
    /// Versions that the adapter is made for, as `2.1.x`.
    supported: String,
    is_supported: bool,
    need: Need,
    /// What to do about its problem.
    hint: Option<String>,
}

/// Whether it is a fault that a program is not there.
#[derive(Clone, Copy, PartialEq)]
enum Need {
    Expected,
    Optional,
}

impl Program {
    fn judged(status: ProgramStatus, need: Need) -> Self {
        let series = series(&status.tested_version);
        let fits = |version: &str| series.is_empty() || self::series(version) == series;
        let is_supported = status.version.as_deref().is_none_or(fits);
        let install = INSTALL.iter().find(|(provider, _)| *provider == status.provider);
        let hint = match (&status.path, install) {
            // The problem itself says how to get it.
            (None, _) => None,
            _ if !is_supported => install.map(|(_, command)| format!("{command}@{}", status.tested_version)),
            _ => None,
        };
        let supported = if series.is_empty() { String::new() } else { format!("{series}.x") };
        Self { supported, is_supported, need, hint, status }
    }
}

/// The first two numbers of a version.
fn series(version: &str) -> String {
    version.split('.').take(2).collect::<Vec<_>>().join(".")
}

fn built_in(programs: &[Program], services: &[ServiceStatus]) -> Vec<String> {
    let registry = registries::providers();
    let external = |name: &&str| {
        programs.iter().any(|program| program.status.provider == **name)
            || services.iter().any(|service| service.provider == **name)
            || *name == ANY_AGENT
    };
    registry.names().filter(|name| !external(name)).map(str::to_owned).collect()
}

fn json(
    programs: &[Program],
    services: &[ServiceStatus],
    greeted: &[Greeted],
    exit: Exit,
    invocation: &Invocation,
) -> Value {
    let handshake = |value: &mut Value, provider: &str| {
        if let Some(greeted) = greeted.iter().find(|greeted| greeted.provider == provider) {
            value["handshake"] = json!(greeted);
        }
    };
    let programs_json: Vec<Value> = programs
        .iter()
        .map(|program| {
            let mut value = json!(program.status);
            if !program.supported.is_empty() {
                value["supported"] = json!(program.supported);
                value["isSupported"] = json!(program.is_supported);
            }
            if let Some(hint) = &program.hint {
                value["hint"] = json!(hint);
            }
            handshake(&mut value, &program.status.provider);
            value
        })
        .collect();
    let services_json: Vec<Value> = services
        .iter()
        .map(|service| {
            let mut value = json!(service);
            handshake(&mut value, &service.provider);
            value
        })
        .collect();
    let keys: serde_json::Map<String, Value> =
        KEYS.iter().map(|key| ((*key).to_owned(), json!(invocation.env.get(key).is_some()))).collect();
    let terminal = invocation.terminal;
    json!({
        "outcome": exit.word(),
        "version": env!("CARGO_PKG_VERSION"),
        "programs": programs_json,
        "services": services_json,
        "builtIn": built_in(programs, services),
        "keys": keys,
        "folders": { "state": invocation.state_folder(), "config": invocation.config_file() },
        "settings": match Settings::of(None, invocation) {
            Ok(settings) => json!({ "files": settings.files() }),
            Err(failure) => json!({ "error": failure.message }),
        },
        "terminal": {
            "progress": if terminal.progress == Progress::Live { "live" } else { "lines" },
            "person": terminal.person == Person::Present,
            "colour": terminal.stderr == Colour::On,
        },
    })
}

fn text(programs: &[Program], services: &[ServiceStatus], greeted: &[Greeted], invocation: &Invocation) {
    let colour = invocation.terminal.stdout;
    let say = |line: &Line| {
        terminal::painted_line(&line.render(colour));
    };
    let title = |text: &str| {
        let mut line = Line::new();
        line.push(Tone::Strong, text);
        say(&line);
    };
    let row = |tone, sign: &str, name: &str, about: &str| {
        let mut line = Line::new();
        line.push(Tone::Plain, "  ")
            .push(tone, sign)
            .push(Tone::Plain, " ")
            .push(Tone::Plain, name)
            .pad_to(28);
        line.push(Tone::Plain, " ").push(Tone::Faint, &harmless(about));
        say(&line);
    };
    let help = |text: &str| {
        let mut line = Line::new();
        line.push(Tone::Accent, "      help").push(Tone::Plain, ": ").push(Tone::Plain, &harmless(text));
        say(&line);
    };
    let answers = |provider: &str| {
        let Some(greeted) = greeted.iter().find(|greeted| greeted.provider == provider) else { return };
        let name = format!("{provider} answers");
        match &greeted.problem {
            None => {
                row(Tone::Good, "✔", &name, &format!("after {} ms, and no model was asked", greeted.took_ms))
            }
            Some(problem) => row(Tone::Bad, "✘", &name, problem),
        }
    };
    title("Agents");
    let one_works = programs.iter().any(|program| program.status.problem.is_none())
        || services.iter().any(|service| service.problem.is_none());
    for program in programs {
        let status = &program.status;
        match &status.problem {
            // Nobody needs every agent.
            Some(problem) if program.need == Need::Optional => {
                let what = problem.split_once("; ").map_or(problem.as_str(), |(what, _)| what);
                row(Tone::Faint, "·", &status.provider, what);
            }
            Some(problem) => {
                let (what, help_too) = problem.split_once("; ").unwrap_or((problem, ""));
                // What is not there is no fault, as long as there is another.
                let absent = status.path.is_none() && one_works;
                let (tone, sign) = if absent { (Tone::Faint, "·") } else { (Tone::Bad, "✘") };
                row(tone, sign, &status.provider, what);
                if !help_too.is_empty() {
                    help(help_too);
                }
            }
            None => {
                let version = status.version.as_deref().unwrap_or("unknown version");
                let path = status.path.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
                row(Tone::Good, "✔", &status.provider, &format!("{version}, {path}"));
            }
        }
        answers(&status.provider);
        if let Some(login) = &status.login {
            row(Tone::Good, "✔", &format!("{} login", status.provider), login);
        }
        if !program.is_supported {
            let about = format!("made for {}; this version may behave in other ways", program.supported);
            row(Tone::Warning, "!", &format!("{} version", status.provider), &about);
        }
        if let Some(hint) = &program.hint {
            help(hint);
        }
    }
    for service in services {
        match (&service.problem, &service.host, &service.key) {
            (None, Some(host), Some(key)) => {
                row(Tone::Good, "✔", &service.provider, &format!("{host}, with {key}"));
            }
            (problem, ..) => row(
                Tone::Faint,
                "·",
                &service.provider,
                problem.as_deref().unwrap_or("nothing is known of it"),
            ),
        }
        answers(&service.provider);
    }
    row(Tone::Faint, "·", ANY_AGENT, "any agent of yours; a node names its program by the option `command`");
    for name in built_in(programs, services) {
        row(Tone::Good, "✔", &name, "built in, needs nothing");
    }
    title("Keys");
    for key in KEYS {
        match invocation.env.get(key) {
            Some(_) => row(Tone::Good, "✔", key, "set"),
            None => row(Tone::Faint, "·", key, "not set"),
        }
    }
    title("Places");
    place(&row, "state", invocation.state_folder());
    match Settings::of(None, invocation) {
        Ok(settings) if settings.files().is_empty() => place(&row, "settings", invocation.config_file()),
        Ok(settings) => {
            for file in settings.files() {
                place(&row, "settings", Some(file.clone()));
            }
        }
        Err(failure) => row(Tone::Bad, "✘", "settings", &failure.message),
    }
    title("Terminal");
    let terminal = invocation.terminal;
    let progress = if terminal.progress == Progress::Live { "a live picture" } else { "lines" };
    row(Tone::Faint, "·", "progress", progress);
    let person =
        if terminal.person == Person::Present { "asked here" } else { "nobody is there to be asked" };
    row(Tone::Faint, "·", "questions", person);
    let colours = if terminal.stderr == Colour::On { "on" } else { "off" };
    row(Tone::Faint, "·", "colours", colours);
}

fn place(row: &dyn Fn(Tone, &str, &str, &str), name: &str, path: Option<PathBuf>) {
    match path {
        Some(path) if path.exists() => row(Tone::Good, "✔", name, &path.display().to_string()),
        Some(path) => {
            row(Tone::Faint, "·", name, &format!("{}, not there and not needed yet", path.display()))
        }
        None => row(Tone::Warning, "!", name, "unknown: neither HOME nor an XDG variable is set"),
    }
}
