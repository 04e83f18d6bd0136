//! `inspan doctor`: whether agent CLIs and API keys are available, and how to fix what is missing. No value of a key is read.

use std::path::PathBuf;

use futures::future::join_all;
use inspan_protocol::{Probe, ProgramStatus, ServiceStatus, Setup};
use serde_json::{Value, json};

use super::all_providers;
use crate::args::DoctorArgs;
use crate::engine::{Engine, EngineReport};
use crate::exit::Exit;
use crate::failure::{Failure, with_end};
use crate::invocation::Invocation;
use crate::invocation::OutputForm;
use crate::settings::Settings;
use crate::store;
use crate::terminal::Interactivity;
use crate::terminal::ProgressStyle;
use inspan_view::{Colour, Line, Tone, safe::harmless};

mod channels;
mod conformance;
mod handshake;

use channels::ChannelStatus;
use handshake::{HandshakeResult, greet};

pub(super) fn run(args: &DoctorArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    if let Some(names) = &args.conformance {
        return conformance::run(names, args, invocation);
    }
    let findings = store::block_on(async {
        let mut findings = Findings::of(invocation).await;
        if let Some(engine) = Engine::of(invocation)? {
            findings.engine = Some(engine.look().await);
        }
        if !args.offline {
            findings.greeted = greet(&findings.usable(), invocation).await;
        }
        Ok(findings)
    })?;
    let failure = (!findings.is_healthy())
        .then(|| Failure::new(Exit::Configuration, "no agent can be used, or the cluster cannot be used"));
    match invocation.form {
        OutputForm::Json => invocation.json(&with_end(findings.json(invocation), failure.as_ref())),
        OutputForm::Text => findings.print(invocation),
    }
    Ok(failure.map_or(Exit::Success, |failure| failure.exit))
}

/// What was found on this machine.
#[derive(Default)]
struct Findings {
    programs: Vec<Program>,
    services: Vec<ServiceStatus>,
    /// Providers whose program each node names, with the option that names it.
    any_program: Vec<(String, &'static str)>,
    built_in: Vec<String>,
    /// The variables that may hold keys.
    keys: Vec<&'static str>,
    greeted: Vec<HandshakeResult>,
    channels: Vec<ChannelStatus>,
    /// The cluster, if the call names one.
    engine: Option<EngineReport>,
}

/// An agent CLI.
struct Program {
    status: ProgramStatus,
    /// Versions like the one that the adapter was tested with, as `2.1.147 - 2.1.247`.
    supported: String,
    is_supported: bool,
    /// The command that installs the tested version, if this one is another.
    hint: Option<String>,
}

impl Program {
    fn new(status: ProgramStatus, install: &str) -> Self {
        let series = series(&status.tested_version);
        let tested = patch(&status.tested_version);
        let is_near = |version: &str| {
            let patches = patch(version).zip(tested).map(|(patch, tested)| patch.abs_diff(tested));
            self::series(version) == series && patches.is_none_or(|patches| patches <= NEAR)
        };
        let fits = |version: &str| series.is_empty() || is_near(version);
        let is_supported = status.version.as_deref().is_none_or(fits);
        let hint = (!is_supported).then(|| format!("{install}@{}", status.tested_version));
        let supported = match tested {
            _ if series.is_empty() => String::new(),
            Some(tested) => {
                format!("{series}.{} - {series}.{}", tested.saturating_sub(NEAR), tested.saturating_add(NEAR))
            }
            None => format!("{series}.x"),
        };
        Self { supported, is_supported, hint, status }
    }
}

/// How many releases of a series are taken for like the tested one. Claude Code changed what it asks about and how it counts
/// within one series.
const NEAR: u64 = 50;

/// The third number of a version.
fn patch(version: &str) -> Option<u64> {
    version.split('.').nth(2)?.parse().ok()
}

/// The first two numbers of a version.
fn series(version: &str) -> String {
    version.split('.').take(2).collect::<Vec<_>>().join(".")
}

impl Findings {
    async fn of(invocation: &Invocation) -> Self {
        let registry = all_providers();
        let env = invocation.session_env();
        let probes = registry.iter().map(async |(name, provider)| {
            let probe = provider.probe(&env, inspan_process::guard()).await;
            (name.to_owned(), provider.setup(), probe)
        });
        let mut findings = Self::default();
        for (name, setup, probe) in join_all(probes).await {
            findings.keys.extend(setup.keys());
            match (setup, probe) {
                (Setup::Program(program), Probe::Program(status)) => {
                    findings.programs.push(Program::new(status, program.install));
                }
                (_, Probe::Service(service)) => findings.services.push(service),
                (Setup::AnyProgram { option }, _) => findings.any_program.push((name, option)),
                _ => findings.built_in.push(name),
            }
        }
        findings.channels = channels::look(invocation).await;
        findings.keys.sort_unstable();
        findings.keys.dedup();
        findings
    }

    /// The providers that can be called, as far as it shows.
    fn usable(&self) -> Vec<String> {
        let programs = self.programs.iter().filter(|program| program.status.version.is_some());
        let services = self.services.iter().filter(|service| service.problem.is_none());
        let programs = programs.map(|program| program.status.provider.clone());
        programs.chain(services.map(|service| service.provider.clone())).collect()
    }

    /// Whether at least one agent works, and the cluster does if there is one; nobody needs all agents.
    fn is_healthy(&self) -> bool {
        let refused =
            |name: &str| self.greeted.iter().any(|one| one.provider == name && one.problem.is_some());
        let engine = self.engine.as_ref().is_none_or(|engine| engine.problem.is_none());
        engine && self.without_problem().any(|provider| !refused(provider))
    }

    fn without_problem(&self) -> impl Iterator<Item = &str> {
        let programs =
            self.programs.iter().map(|program| (&program.status.provider, &program.status.problem));
        let services = self.services.iter().map(|service| (&service.provider, &service.problem));
        programs
            .chain(services)
            .filter(|(_, problem)| problem.is_none())
            .map(|(provider, _)| provider.as_str())
    }

    fn json(&self, invocation: &Invocation) -> Value {
        let with_handshake = |mut value: Value, provider: &str| {
            if let Some(greeted) = self.greeted.iter().find(|greeted| greeted.provider == provider) {
                value["handshake"] = json!(greeted);
            }
            value
        };
        let program = |program: &Program| {
            let mut value = json!(program.status);
            if !program.supported.is_empty() {
                value["supported"] = json!(program.supported);
                value["isSupported"] = json!(program.is_supported);
            }
            if let Some(hint) = &program.hint {
                value["hint"] = json!(hint);
            }
            with_handshake(value, &program.status.provider)
        };
        let service = |service: &ServiceStatus| with_handshake(json!(service), &service.provider);
        let keys = self.keys.iter().map(|key| ((*key).to_owned(), json!(invocation.env.get(key).is_some())));
        let terminal = invocation.terminal;
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "programs": self.programs.iter().map(program).collect::<Vec<_>>(),
            "services": self.services.iter().map(service).collect::<Vec<_>>(),
            "builtIn": self.built_in,
            "channels": self.channels,
            "engine": self.engine,
            "keys": keys.collect::<serde_json::Map<_, _>>(),
            "folders": { "state": invocation.state_folder(), "config": invocation.config_file() },
            "settings": match Settings::of(None, invocation) {
                Ok(settings) => json!({ "files": settings.files() }),
                Err(failure) => json!({ "error": failure.message }),
            },
            "terminal": {
                "progress": if terminal.progress == ProgressStyle::Live { "live" } else { "lines" },
                "person": terminal.interactivity == Interactivity::Interactive,
                "colour": terminal.stderr == Colour::On,
            },
        })
    }

    fn print(&self, invocation: &Invocation) {
        let page = Page(invocation);
        page.title("Agents");
        for program in &self.programs {
            self.print_program(&page, program);
        }
        for service in &self.services {
            match (&service.problem, &service.host, &service.key) {
                (None, Some(host), Some(key)) => {
                    page.good(&service.provider, &format!("{host}, with {key}"));
                }
                (problem, ..) => {
                    page.neutral(&service.provider, problem.as_deref().unwrap_or("nothing is known of it"));
                }
            }
            self.print_handshake(&page, &service.provider);
        }
        for (provider, option) in &self.any_program {
            let about = format!("your own agents; a node sets their program with `{option}`");
            page.neutral(provider, &about);
        }
        for name in &self.built_in {
            page.good(name, "built in, needs nothing");
        }
        page.title("Keys");
        for key in &self.keys {
            match invocation.env.get(key) {
                Some(_) => page.good(key, "set"),
                None => page.neutral(key, "not set"),
            }
        }
        channels::print(&self.channels, &page);
        if self.engine.is_some() && !self.channels.is_empty() {
            page.row(Tone::Warning, "!", "delivery", "workers send nothing; `inspan run` does until it ends");
            page.help("keep `inspan notify deliver` or `inspan serve` running on one machine");
        }
        self.print_engine(&page);
        print_places(&page, invocation);
        print_terminal(&page, invocation);
    }

    fn print_engine(&self, page: &Page<'_>) {
        let Some(EngineReport { name, version, workers, problem }) = &self.engine else { return };
        page.title("Engine");
        match problem {
            Some(problem) => page.bad(name, problem),
            None => page.good(name, &format!("Temporal {}", version.as_deref().unwrap_or_default())),
        }
        for worker in workers {
            page.good("worker", worker);
        }
        if workers.is_empty() && problem.is_none() {
            page.row(Tone::Warning, "!", "workers", "none: sessions wait until one is started");
            page.help("`inspan worker` on each machine that shall run agents");
        }
    }

    fn print_program(&self, page: &Page<'_>, program: &Program) {
        let status = &program.status;
        match &status.problem {
            Some(problem) => {
                let (what, fix) = problem.split_once("; ").unwrap_or((problem, ""));
                // A missing program is not a problem as long as another agent works.
                if status.path.is_none() && self.without_problem().next().is_some() {
                    page.neutral(&status.provider, what);
                } else {
                    page.bad(&status.provider, what);
                }
                if !fix.is_empty() {
                    page.help(fix);
                }
            }
            None => {
                let version = status.version.as_deref().unwrap_or("unknown version");
                let path = status.path.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
                page.good(&status.provider, &format!("{version}, {path}"));
            }
        }
        self.print_handshake(page, &status.provider);
        if let Some(login) = &status.login {
            page.good(&format!("{} login", status.provider), login);
        }
        if !program.is_supported {
            let tested = &program.status.tested_version;
            let about = format!("made for {tested}; this version may behave in other ways");
            page.row(Tone::Warning, "!", &format!("{} version", status.provider), &about);
        }
        if let Some(hint) = &program.hint {
            page.help(hint);
        }
    }

    fn print_handshake(&self, page: &Page<'_>, provider: &str) {
        let Some(greeted) = self.greeted.iter().find(|greeted| greeted.provider == provider) else { return };
        let name = format!("{provider} answers");
        match &greeted.problem {
            None => page.good(&name, &format!("after {} ms, and no model was asked", greeted.took_ms)),
            Some(problem) => page.bad(&name, problem),
        }
    }
}

fn print_places(page: &Page<'_>, invocation: &Invocation) {
    page.title("Places");
    page.place("state", invocation.state_folder());
    match Settings::of(None, invocation) {
        Ok(settings) if settings.files().is_empty() => page.place("settings", invocation.config_file()),
        Ok(settings) => {
            for file in settings.files() {
                page.place("settings", Some(file.clone()));
            }
        }
        Err(failure) => page.bad("settings", &failure.message),
    }
}

fn print_terminal(page: &Page<'_>, invocation: &Invocation) {
    page.title("Terminal");
    let terminal = invocation.terminal;
    page.neutral(
        "progress",
        if terminal.progress == ProgressStyle::Live { "a live picture" } else { "lines" },
    );
    let person = match terminal.interactivity == Interactivity::Interactive {
        true => "asked here",
        false => "nobody is there to be asked",
    };
    page.neutral("questions", person);
    page.neutral("colours", if terminal.stderr == Colour::On { "on" } else { "off" });
}

/// The lines of the report.
struct Page<'a>(&'a Invocation);

impl Page<'_> {
    fn title(&self, text: &str) {
        self.0.print([Line::new().with(Tone::Strong, text)]);
    }

    fn row(&self, tone: Tone, sign: &str, name: &str, about: &str) {
        let mut line = Line::new().with(Tone::Plain, "  ").with(tone, sign).with(Tone::Plain, " ");
        line.push(Tone::Plain, name).pad_to(28);
        self.0.print([line.with(Tone::Plain, " ").with(Tone::Faint, &harmless(about))]);
    }

    fn good(&self, name: &str, about: &str) {
        self.row(Tone::Good, "✔", name, about);
    }

    fn neutral(&self, name: &str, about: &str) {
        self.row(Tone::Faint, "·", name, about);
    }

    fn bad(&self, name: &str, about: &str) {
        self.row(Tone::Bad, "✘", name, about);
    }

    fn help(&self, text: &str) {
        let line = Line::new().with(Tone::Accent, "      help").with(Tone::Plain, ": ");
        self.0.print([line.with(Tone::Plain, &harmless(text))]);
    }

    fn place(&self, name: &str, path: Option<PathBuf>) {
        match path {
            Some(path) if path.exists() => self.good(name, &path.display().to_string()),
            Some(path) => self.neutral(name, &format!("{}, not there and not needed yet", path.display())),
            None => self.row(Tone::Warning, "!", name, "unknown: neither HOME nor an XDG variable is set"),
        }
    }
}
