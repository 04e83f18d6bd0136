//! What one case works with: a folder, an environment without the user's own, and `inspan` as a child process.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use inspan_model_server::{ModelServer, Scenario};
use inspan_protocol::Envelope;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use super::install::{Agent, Programs};
use super::processes::{MARK, end_all, none_left};
use super::surroundings::{PLANTED_KEYS, nowhere};
use super::time::{Deadline, Stopwatch, pause};

/// The world of one case.
pub(crate) struct World {
    folder: TempDir,
    programs: Programs,
    agents: Vec<Agent>,
    pub(crate) mark: String,
    pub(crate) deadline: Deadline,
    env: BTreeMap<String, String>,
    runs: std::cell::Cell<u32>,
}

/// A run of `inspan` that has ended.
#[derive(Debug)]
pub(crate) struct Finished {
    /// The exit code, or 128 and the signal.
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// What `--events` wrote.
    pub(crate) events: Vec<Envelope>,
    pub(crate) took: Duration,
}

/// A run of `inspan` that goes on.
pub(crate) struct Running {
    child: Child,
    artefacts: Artefacts,
    began: Stopwatch,
    deadline: Deadline,
    mark: String,
}

#[derive(Debug, Clone)]
struct Artefacts {
    stdout: PathBuf,
    stderr: PathBuf,
    events: PathBuf,
}

impl World {
    /// A fresh world with these agents in it, in which all must be over by the deadline.
    pub(crate) fn new(
        case: &str,
        agents: &[Agent],
        programs: &Programs,
        bound: Duration,
    ) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("inspan-e2e-").tempdir()?;
        let inside = |name: &str| folder.path().join(name);
        for name in ["bin", "home", "tmp", "work", "artefacts"] {
            std::fs::create_dir(inside(name)).with_context(|| format!("failed to make `{name}`"))?;
        }
        let mark = format!("{case}-{}", std::process::id());
        let text = |name: &str| inside(name).display().to_string();
        let env = [
            ("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin", text("bin"))),
            ("HOME", text("home")),
            ("TMPDIR", text("tmp")),
            // What is kept of sessions is among what may not contain a planted key.
            ("INSPAN_HOME", text("artefacts/sessions")),
            ("LANG", "C.UTF-8".to_owned()),
            (MARK, mark.clone()),
        ];
        let keys = PLANTED_KEYS.map(|(name, key)| (name, key.to_owned()));
        // A case that needs a model starts its server.
        let mut env: Vec<_> = env.into_iter().chain(keys).chain(nowhere().variables()).collect();
        for agent in agents {
            std::os::unix::fs::symlink(programs.of(*agent)?, inside("bin").join(agent.command()))?;
            env.extend(agent.settle(folder.path())?);
        }
        let env = env.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let (programs, agents) = (programs.clone(), agents.to_vec());
        Ok(Self { folder, programs, agents, mark, deadline: Deadline::after(bound), env, runs: 0.into() })
    }

    /// A server that answers by this scenario, and through which every later run reaches its model.
    pub(crate) fn serve(&mut self, scenario: Value) -> anyhow::Result<ModelServer> {
        self.serve_scenario(serde_json::from_value(scenario).context("the case's scenario is none")?)
    }

    /// As [`World::serve`].
    pub(crate) fn serve_scenario(&mut self, scenario: Scenario) -> anyhow::Result<ModelServer> {
        let server = ModelServer::start(scenario)?;
        let endpoints = server.endpoints();
        for (name, value) in endpoints.variables() {
            self.set(name, &value);
        }
        for agent in &self.agents {
            agent.lead_to(&endpoints, self.folder.path())?;
        }
        Ok(server)
    }

    /// Sets a variable of every later run.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.env.insert(name.to_owned(), value.to_owned());
    }

    /// The environment of every run.
    pub(crate) fn env(&self) -> &BTreeMap<String, String> {
        &self.env
    }

    /// The folder the flow and its agents work in.
    pub(crate) fn work(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    /// The folder for what the user gets to see or keep; it is searched for the planted keys.
    pub(crate) fn artefacts(&self) -> PathBuf {
        self.folder.path().join("artefacts")
    }

    /// Fails if a process is left behind, which is ended, or a planted key stands in an artefact.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        none_left(&self.mark).and(check_secret(&self.artefacts()))
    }

    /// Writes a flow, given as JSON, which is YAML too.
    pub(crate) fn flow(&self, flow: &Value) -> anyhow::Result<PathBuf> {
        let path = self.work().join("flow.yaml");
        std::fs::write(&path, serde_json::to_string_pretty(flow)?)?;
        Ok(path)
    }

    /// Runs a flow to its end.
    pub(crate) fn run(&self, flow: &Value, arguments: &[&str]) -> anyhow::Result<Finished> {
        self.start(flow, arguments)?.finish()
    }

    /// Starts `inspan run` on a flow.
    pub(crate) fn start(&self, flow: &Value, arguments: &[&str]) -> anyhow::Result<Running> {
        let flow = self.flow(flow)?.display().to_string();
        self.call(&[&["run", &flow], arguments].concat())
    }

    /// Goes on with a session, to its end or to where it rests.
    pub(crate) fn resume(&self, session: &str, arguments: &[&str]) -> anyhow::Result<Finished> {
        self.call(&[&["resume", session], arguments].concat())?.finish()
    }

    /// Calls a verb that drives no session itself: its exit code, stdout and stderr.
    pub(crate) fn verb(&self, arguments: &[&str]) -> anyhow::Result<(i32, String, String)> {
        let output = Command::new(&self.programs.inspan)
            .args(arguments)
            .current_dir(self.work())
            .env_clear()
            .envs(&self.env)
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("failed to start {}", self.programs.inspan.display()))?;
        let text = |bytes| String::from_utf8(bytes).context("the output is not UTF-8");
        Ok((output.status.code().unwrap_or(-1), text(output.stdout)?, text(output.stderr)?))
    }

    /// Runs an agent's program to its end without `inspan`, with these lines as its input.
    pub(crate) fn alone(&self, agent: Agent, arguments: &[&str], input: &str) -> anyhow::Result<Finished> {
        let given = self.folder.path().join("input");
        std::fs::write(&given, input)?;
        let mut command = Command::new(self.folder.path().join("bin").join(agent.command()));
        command.args(arguments).stdin(File::open(given)?);
        self.spawn(command, self.next_artefacts())?.finish()
    }

    /// Starts `inspan` with a verb that drives a session.
    fn call(&self, arguments: &[&str]) -> anyhow::Result<Running> {
        let artefacts = self.next_artefacts();
        let mut command = Command::new(&self.programs.inspan);
        command.args(arguments).args(["--json", "--events"]).arg(&artefacts.events).stdin(Stdio::null());
        self.spawn(command, artefacts)
    }

    fn next_artefacts(&self) -> Artefacts {
        let number = self.runs.get() + 1;
        self.runs.set(number);
        let file = |ending: &str| self.artefacts().join(format!("run-{number}.{ending}"));
        Artefacts { stdout: file("stdout"), stderr: file("stderr"), events: file("events.jsonl") }
    }

    fn spawn(&self, mut command: Command, artefacts: Artefacts) -> anyhow::Result<Running> {
        let program = PathBuf::from(command.get_program());
        let child = command
            .current_dir(self.work())
            .env_clear()
            .envs(&self.env)
            .stdout(File::create(&artefacts.stdout)?)
            .stderr(File::create(&artefacts.stderr)?)
            .spawn()
            .with_context(|| format!("failed to start {}", program.display()))?;
        let began = Stopwatch::start();
        Ok(Running { child, artefacts, began, deadline: self.deadline, mark: self.mark.clone() })
    }
}

impl Running {
    /// Sends the signal of Ctrl-C.
    pub(crate) fn interrupt(&self) -> anyhow::Result<()> {
        self.signal(Signal::INT).context("failed to interrupt inspan")
    }

    /// Kills it, and nothing else, without a warning.
    pub(crate) fn kill(&self) -> anyhow::Result<()> {
        self.signal(Signal::KILL).context("failed to kill inspan")
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = Pid::from_raw(self.child.id().cast_signed()).context("the child has no process id")?;
        Ok(kill_process(pid, signal)?)
    }

    /// Waits for its end; the whole family is ended if the case's time is up first.
    pub(crate) fn finish(mut self) -> anyhow::Result<Finished> {
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if self.deadline.is_over() {
                end_all(&self.mark);
                self.child.wait()?;
                bail!("the program still ran when the case's time was up\n{}", self.artefacts.told());
            }
            pause(Duration::from_millis(5));
        };
        let took = self.began.elapsed();
        let code = status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(-1);
        let Artefacts { stdout, stderr, events } = &self.artefacts;
        let (stdout, stderr) = (read(stdout)?, read(stderr)?);
        let events = if events.exists() { inspan_testkit::read_jsonl(events)? } else { Vec::new() };
        Ok(Finished { code, stdout, stderr, events, took })
    }
}

impl Artefacts {
    fn told(&self) -> String {
        let tail = |path: &Path| {
            let text = read(path).unwrap_or_default();
            let lines: Vec<_> = text.lines().rev().take(12).collect();
            lines.into_iter().rev().collect::<Vec<_>>().join("\n")
        };
        format!(
            "stdout: {}\nstderr: {}\nevents: {}",
            tail(&self.stdout),
            tail(&self.stderr),
            tail(&self.events)
        )
    }
}

impl Finished {
    /// The one object that `--json` prints.
    pub(crate) fn json(&self) -> anyhow::Result<Value> {
        serde_json::from_str(&self.stdout).with_context(|| format!("stdout is not one JSON value: {self}"))
    }

    /// Fails unless the run ended so.
    pub(crate) fn expect_code(&self, code: i32) -> anyhow::Result<&Self> {
        ensure!(self.code == code, "the exit code is {}, not {code}: {self}", self.code);
        Ok(self)
    }
}

impl std::fmt::Display for Finished {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "exit code {} after {:?}", self.code, self.took)?;
        writeln!(f, "stdout: {}", self.stdout.trim_end())?;
        write!(f, "stderr: {}", self.stderr.trim_end())?;
        let events = self.events.iter().rev().take(15).rev();
        events.into_iter().try_for_each(|event| {
            write!(f, "\n  {} {}", event.seq, serde_json::to_string(&event.event).unwrap_or_default())
        })
    }
}

fn read(path: &Path) -> anyhow::Result<String> {
    let bytes = std::fs::read(path).with_context(|| format!("failed to read {}", path.display()))?;
    String::from_utf8(bytes).with_context(|| format!("{} is not UTF-8", path.display()))
}

/// Fails if a file under this folder contains a planted key, whole or in the part that a program might show.
fn check_secret(folder: &Path) -> anyhow::Result<()> {
    for entry in walkdir::WalkDir::new(folder) {
        let entry = entry?;
        if !entry.file_type().is_file() {
            continue;
        }
        let bytes = std::fs::read(entry.path())?;
        for (name, key) in PLANTED_KEYS {
            let planted = &key.as_bytes()[..24];
            if bytes.windows(planted.len()).any(|window| window == planted) {
                bail!("{} contains the planted {name}", entry.file_name().to_string_lossy());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_planted_key_is_found_in_any_file() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("deep")).unwrap();
        std::fs::write(folder.path().join("deep/a.json"), "{}").unwrap();
        check_secret(folder.path()).unwrap();
        for (name, key) in PLANTED_KEYS {
            std::fs::write(folder.path().join("deep/b.json"), format!("x{key}y")).unwrap();
            let told = check_secret(folder.path()).unwrap_err().to_string();
            assert_eq!(told, format!("b.json contains the planted {name}"));
        }
    }
}
