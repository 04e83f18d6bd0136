//! A place for one test of the real program: a temporary home, an environment without the user's own variables, agent
//! CLIs, a model server, and child processes. Every wait ends, and no process outlives the sandbox.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use inspan_model_server::{Endpoints, ModelServer, Scenario};
use inspan_protocol::{Envelope, ProgramSetup};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::agents::{Agent, write_settings};
use crate::processes::{MARK, interruptible, kill_marked, marked, none_left, write_program};
use crate::time::{Deadline, Stopwatch, pause};

/// The API keys of every sandbox; no artefact may contain one of them.
pub const PLANTED_KEYS: [(&str, &str); 2] = [
    ("ANTHROPIC_API_KEY", "sk-ant-api03-planted-0f6b1c9e4d7a42d8-not-a-key"),
    ("OPENAI_API_KEY", "sk-proj-planted-7c2e5a904b1f48d3-not-a-key"),
];

/// The model server of a sandbox without one: nothing listens there.
const NO_SERVER: &str = "http://127.0.0.1:1";

/// A temporary home for one test.
pub struct Sandbox {
    folder: TempDir,
    inspan: PathBuf,
    programs: Vec<ProgramSetup>,
    mark: String,
    deadline: Deadline,
    env: BTreeMap<String, String>,
    runs: Cell<u32>,
}

/// A child process that is running.
pub struct RunningProcess {
    /// The process.
    pub child: Child,
    /// The file that its stderr goes to.
    pub stderr: PathBuf,
    /// The file that `--events` writes.
    pub events: PathBuf,
    stdout: PathBuf,
    began: Stopwatch,
    deadline: Deadline,
    mark: String,
}

/// A child process that has ended.
#[derive(Debug)]
pub struct Finished {
    /// The exit code, or 128 and the signal.
    pub code: i32,
    /// What it wrote to stdout.
    pub stdout: String,
    /// What it wrote to stderr.
    pub stderr: String,
    /// What `--events` wrote.
    pub events: Vec<Envelope>,
    /// How long it ran.
    pub took: Duration,
}

impl Sandbox {
    /// A new sandbox with these agent CLIs on its path, in which everything must have ended within the limit. `programs`
    /// are those that providers describe. `inspan` is the program under test; its path may be empty if it is not run.
    pub fn new(
        inspan: &Path,
        name: &str,
        agents: &[Agent],
        programs: Vec<ProgramSetup>,
        limit: Duration,
    ) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("inspan-test-").tempdir()?;
        let inside = |name: &str| folder.path().join(name);
        for name in ["bin", "home", "tmp", "work", "artefacts"] {
            std::fs::create_dir(inside(name)).with_context(|| format!("failed to make `{name}`"))?;
        }
        // No other folder has this name while this one exists.
        let unique = folder.path().file_name().unwrap_or_default().to_string_lossy();
        let mark = format!("{name}-{unique}");
        let text = |name: &str| inside(name).display().to_string();
        let usual = [
            ("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin", text("bin"))),
            ("HOME", text("home")),
            ("TMPDIR", text("tmp")),
            // The store is among what may not contain a planted key.
            ("INSPAN_HOME", text("artefacts/sessions")),
            ("LANG", "C.UTF-8".to_owned()),
            (MARK, mark.clone()),
        ];
        let keys = PLANTED_KEYS.map(|(name, key)| (name, key.to_owned()));
        let addresses = Endpoints::at(NO_SERVER).variables();
        let env = usual.into_iter().chain(keys).chain(addresses);
        let mut env: BTreeMap<_, _> = env.map(|(name, value)| (name.to_owned(), value)).collect();
        for agent in agents {
            std::os::unix::fs::symlink(agent.installed()?, inside("bin").join(agent.command()))?;
            env.extend(agent.prepare(folder.path())?);
        }
        let is_here = |program: &ProgramSetup| agents.iter().any(|agent| agent.command() == program.command);
        let programs: Vec<_> = programs.into_iter().filter(is_here).collect();
        for program in &programs {
            env.extend(write_settings(program, NO_SERVER, folder.path())?);
        }
        let (inspan, deadline) = (inspan.to_owned(), Deadline::after(limit));
        Ok(Self { folder, inspan, programs, mark, deadline, env, runs: Cell::new(0) })
    }

    /// Starts a model server that answers by this scenario; every later run finds its model there.
    pub fn serve(&mut self, scenario: Scenario) -> anyhow::Result<ModelServer> {
        let server = ModelServer::start(scenario)?;
        let endpoints = server.endpoints();
        for (name, value) in endpoints.variables() {
            self.set(name, &value);
        }
        for program in &self.programs {
            write_settings(program, &server.base_url(), self.folder.path())?;
        }
        Ok(server)
    }

    /// Sets a variable of every later run.
    pub fn set(&mut self, name: &str, value: &str) {
        self.env.insert(name.to_owned(), value.to_owned());
    }

    /// The environment of every run.
    pub fn env(&self) -> &BTreeMap<String, String> {
        &self.env
    }

    /// When everything must have ended.
    pub fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// The working directory of every run.
    pub fn work(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    /// The folder for all that a user sees or stores; [`Sandbox::check`] searches it for the planted keys.
    pub fn artefacts(&self) -> PathBuf {
        self.folder.path().join("artefacts")
    }

    /// The folder of the session store.
    pub fn home(&self) -> PathBuf {
        self.artefacts().join("sessions")
    }

    /// A path in the working directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.work().join(name)
    }

    /// Writes a file in the working directory.
    pub fn write(&self, name: &str, text: &str) -> anyhow::Result<()> {
        std::fs::write(self.path(name), text).with_context(|| format!("failed to write {name}"))
    }

    /// As [`write_program`], in the working directory.
    pub fn script(&self, name: &str, text: &str) -> anyhow::Result<()> {
        write_program(&self.path(name), text)
    }

    /// `inspan` with these arguments, in this sandbox.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = interruptible(&self.inspan);
        command.args(arguments);
        self.enclose(&mut command);
        command
    }

    /// Gives a command the working directory and the environment of this sandbox, and an empty stdin.
    pub fn enclose(&self, command: &mut Command) {
        command.current_dir(self.work()).env_clear().envs(&self.env).stdin(Stdio::null());
    }

    /// Starts a command whose output goes to files.
    pub fn start(&self, mut command: Command) -> anyhow::Result<RunningProcess> {
        let number = self.runs.get();
        self.runs.set(number + 1);
        let file = |ending: &str| self.artefacts().join(format!("run-{number}.{ending}"));
        let (stdout, stderr) = (file("stdout"), file("stderr"));
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command
            .stdout(File::create(&stdout)?)
            .stderr(File::create(&stderr)?)
            .spawn()
            .with_context(|| format!("failed to start {program}"))?;
        let (began, deadline, mark) = (Stopwatch::start(), self.deadline, self.mark.clone());
        Ok(RunningProcess { child, stdout, stderr, events: self.events_file(number), began, deadline, mark })
    }

    /// Runs `inspan` to its end.
    pub fn run(&self, arguments: &[&str]) -> anyhow::Result<Finished> {
        self.start(self.command(arguments))?.finish().with_context(|| arguments.join(" "))
    }

    /// Starts an `inspan` command that drives a session, with `--json` and `--events`.
    pub fn start_session(&self, arguments: &[&str]) -> anyhow::Result<RunningProcess> {
        let mut command = self.command(arguments);
        command.args(["--json", "--events"]).arg(self.events_file(self.runs.get()));
        self.start(command)
    }

    /// Writes a flow as JSON, which is YAML too, and returns its path.
    pub fn flow(&self, flow: &Value) -> anyhow::Result<PathBuf> {
        self.write("flow.yaml", &serde_json::to_string_pretty(flow)?)?;
        Ok(self.path("flow.yaml"))
    }

    /// Starts `inspan run` with this flow.
    pub fn start_flow(&self, flow: &Value, arguments: &[&str]) -> anyhow::Result<RunningProcess> {
        let flow = self.flow(flow)?.display().to_string();
        self.start_session(&[&["run", &flow], arguments].concat())
    }

    /// Runs a flow to its end.
    pub fn run_flow(&self, flow: &Value, arguments: &[&str]) -> anyhow::Result<Finished> {
        self.start_flow(flow, arguments)?.finish()
    }

    /// Runs `inspan resume` to its end.
    pub fn resume(&self, session: &str, arguments: &[&str]) -> anyhow::Result<Finished> {
        self.start_session(&[&["resume", session], arguments].concat())?.finish()
    }

    /// Runs an agent CLI to its end without `inspan`, with this text on its stdin.
    pub fn run_agent(&self, agent: Agent, arguments: &[&str], input: &str) -> anyhow::Result<Finished> {
        let stdin = self.folder.path().join("input");
        std::fs::write(&stdin, input)?;
        let mut command = Command::new(self.folder.path().join("bin").join(agent.command()));
        self.enclose(command.args(arguments));
        command.stdin(File::open(stdin)?);
        self.start(command)?.finish()
    }

    /// Process ids and command lines of the processes of this sandbox that are running.
    pub fn processes(&self) -> BTreeMap<i32, String> {
        marked(&self.mark)
    }

    /// Fails if a process of this sandbox is still running after five seconds, and kills it.
    pub fn none_left(&self) -> anyhow::Result<()> {
        none_left(&self.mark)
    }

    /// Fails if a process was left behind, or an artefact contains a planted key.
    pub fn check(&self) -> anyhow::Result<()> {
        self.none_left().and(check_no_key(&self.artefacts()))
    }

    fn events_file(&self, number: u32) -> PathBuf {
        self.artefacts().join(format!("run-{number}.events.jsonl"))
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // A failed test may have left some.
        kill_marked(&self.mark);
    }
}

impl RunningProcess {
    /// Sends the signal of Ctrl-C.
    pub fn interrupt(&self) -> anyhow::Result<()> {
        let pid = Pid::from_raw(self.child.id().cast_signed()).context("the child has no process id")?;
        kill_process(pid, Signal::INT).context("failed to interrupt the program")
    }

    /// Kills the process, and nothing else, without a warning.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill().context("failed to kill the program")
    }

    /// Whether the process has ended.
    pub fn has_ended(&mut self) -> anyhow::Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Waits for the end of the process; all processes of the sandbox are killed if its time is up first.
    pub fn finish(mut self) -> anyhow::Result<Finished> {
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if self.deadline.is_over() {
                kill_marked(&self.mark);
                self.child.wait()?;
                bail!("the program was still running when the time was up\n{}", self.output());
            }
            pause(Duration::from_millis(1));
        };
        let took = self.began.elapsed();
        let code = status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(-1);
        let events = if self.events.exists() { crate::read_jsonl(&self.events)? } else { Vec::new() };
        Ok(Finished { code, stdout: read(&self.stdout)?, stderr: read(&self.stderr)?, events, took })
    }

    /// The last lines of all that it wrote.
    fn output(&self) -> String {
        let tail = |path: &Path| {
            let text = read(path).unwrap_or_default();
            let lines: Vec<_> = text.lines().rev().take(12).collect();
            lines.into_iter().rev().collect::<Vec<_>>().join("\n")
        };
        let [stdout, stderr, events] = [&self.stdout, &self.stderr, &self.events].map(|path| tail(path));
        format!("stdout: {stdout}\nstderr: {stderr}\nevents: {events}")
    }
}

impl Finished {
    /// The one value that `--json` prints.
    pub fn json(&self) -> anyhow::Result<Value> {
        serde_json::from_str(&self.stdout).with_context(|| format!("stdout is not one JSON value: {self}"))
    }

    /// Fails unless it ended with this code.
    pub fn expect_code(&self, code: i32) -> anyhow::Result<&Self> {
        ensure!(self.code == code, "the exit code is {}, not {code}: {self}", self.code);
        Ok(self)
    }

    /// As [`Finished::expect_code`], and returns the value.
    pub fn expect(self, code: i32) -> anyhow::Result<Self> {
        self.expect_code(code)?;
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
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Fails if a file under this folder contains a planted key, whole or in the part that a program might show.
fn check_no_key(folder: &Path) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            check_no_key(&entry.path())?;
        } else if entry.file_type()?.is_file() {
            let bytes = std::fs::read(entry.path())?;
            for (name, key) in PLANTED_KEYS {
                let planted = &key.as_bytes()[..24];
                if bytes.windows(planted.len()).any(|window| window == planted) {
                    bail!("{} contains the planted {name}", entry.file_name().to_string_lossy());
                }
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
        check_no_key(folder.path()).unwrap();
        for (name, key) in PLANTED_KEYS {
            std::fs::write(folder.path().join("deep/b.json"), format!("x{key}y")).unwrap();
            let error = check_no_key(folder.path()).unwrap_err().to_string();
            assert_eq!(error, format!("b.json contains the planted {name}"));
        }
    }

    #[test]
    fn what_a_program_started_ends_with_the_sandbox() {
        let sandbox = Sandbox::new(Path::new("/bin/sh"), "test", &[], Vec::new(), Duration::from_secs(10));
        let sandbox = sandbox.unwrap();
        let ended = sandbox.run(&["-c", "setsid sleep 600 & echo $INSPAN_HOME >&2; exit 3"]).unwrap();
        assert_eq!((ended.code, ended.stderr.trim()), (3, &*sandbox.home().display().to_string()));
        let error = sandbox.none_left().unwrap_err().to_string();
        assert!(error.starts_with("left behind after 5s: ") && error.ends_with("sleep 600"), "{error}");
        assert_eq!(sandbox.processes(), BTreeMap::new());
        sandbox.check().unwrap();
    }
}
