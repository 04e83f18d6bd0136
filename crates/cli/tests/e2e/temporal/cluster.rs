//! A Temporal server and workers of one sandbox.

use std::{fs, net::TcpListener, process::Command, time::Duration};

use anyhow::{Context as _, bail, ensure};
use inspan_protocol::Envelope;
use inspan_testkit::{Finished, PythonPackage, RunningProcess, Sandbox, eventually, pause};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// How long a server or a worker may take until it works, on a busy machine.
const START: Duration = Duration::from_secs(60);
/// After how many seconds without a sign a worker counts as lost.
pub(super) const HEARTBEAT: u64 = 1;

/// A server; its workers are started one by one.
pub(super) struct Cluster<'a> {
    pub(super) sandbox: &'a Sandbox,
    /// Its address.
    pub(super) engine: String,
    ports: [u16; 3],
    server: Option<RunningProcess>,
}

impl<'a> Cluster<'a> {
    /// Starts a server; every later command in the sandbox finds its sessions there.
    pub(super) fn start(sandbox: &'a mut Sandbox) -> anyhow::Result<Self> {
        Self::start_with(sandbox, &format!("sessions={}", folder(sandbox)))
    }

    /// As [`Self::start`]; a worker counts as lost after so many seconds without a sign.
    pub(super) fn with_heartbeat(sandbox: &'a mut Sandbox, heartbeat: u64) -> anyhow::Result<Self> {
        Self::start_with(sandbox, &format!("sessions={}&heartbeat={heartbeat}", folder(sandbox)))
    }

    /// Starts a server, with these options in its address.
    pub(super) fn start_with(sandbox: &'a mut Sandbox, options: &str) -> anyhow::Result<Self> {
        let mut tries = 3;
        let (ports, server) = loop {
            let free = || TcpListener::bind("127.0.0.1:0")?.local_addr().map(|address| address.port());
            let ports = [free()?, free()?, free()?];
            tries -= 1;
            match serve(sandbox, ports) {
                // Another program has taken a port that was free.
                Err(error) if tries > 0 && format!("{error:#}").contains("address already in use") => {}
                server => break (ports, server?),
            }
        };
        let mut engine = format!("temporal://127.0.0.1:{}/default?{options}", ports[0]);
        if !options.contains("heartbeat=") {
            engine.push_str(&format!("&heartbeat={HEARTBEAT}"));
        }
        sandbox.set("INSPAN_ENGINE", &engine);
        Ok(Self { sandbox, engine, ports, server: Some(server) })
    }

    /// Kills the server without a warning.
    pub(super) fn kill_server(&mut self) -> anyhow::Result<()> {
        kill(self.server.take().context("the server does not run")?)
    }

    /// Starts the server again on what it has stored.
    pub(super) fn restart_server(&mut self) -> anyhow::Result<()> {
        self.server = Some(serve(self.sandbox, self.ports)?);
        Ok(())
    }

    /// Starts a worker, and waits until it works.
    pub(super) fn worker(&self) -> anyhow::Result<RunningProcess> {
        self.worker_with(&[])
    }

    /// Starts a worker with options.
    pub(super) fn worker_with(&self, options: &[&str]) -> anyhow::Result<RunningProcess> {
        let mut worker = self.sandbox.start(self.sandbox.command(&[&["worker"], options].concat()))?;
        let works = || {
            let wrote = fs::read_to_string(&worker.stderr)?;
            ensure!(!worker.has_ended()?, "the worker has ended: {wrote}");
            Ok(wrote.contains("working for temporal://"))
        };
        eventually(START, "the worker works", works)?;
        Ok(worker)
    }

    /// Starts a session without waiting for it.
    pub(super) fn detach(&self, flow: &str, session: &str) -> anyhow::Result<()> {
        self.sandbox.run(&["run", flow, "--session-id", session, "--detach"])?.expect_code(0).map(drop)
    }

    /// What `inspan show` reports about a session.
    pub(super) fn show(&self, session: &str) -> anyhow::Result<Value> {
        self.sandbox.run(&["show", session, "--json"])?.expect(0)?.json()
    }

    /// The log of a session.
    pub(super) fn log(&self, session: &str) -> anyhow::Result<Vec<Envelope>> {
        events(&self.sandbox.run(&["logs", session, "--json"])?)
    }

    /// Waits until `inspan show` reports this state.
    pub(super) fn wait_for(&self, session: &str, state: &str, limit: Duration) -> anyhow::Result<()> {
        let what = format!("{session} is {state}");
        let reached = || {
            let shown = self.show(session)?;
            match shown["state"].as_str() {
                Some(is) if is == state => Ok(true),
                Some(is @ ("failed" | "stopped" | "success")) => bail!("{session} is {is}: {shown:#}"),
                _ => Ok(false),
            }
        };
        eventually(limit, &what, reached)
    }

    /// Ends workers and the server, so that no process is left.
    pub(super) fn end(mut self, workers: Vec<RunningProcess>) -> anyhow::Result<()> {
        for worker in workers {
            worker.interrupt()?;
            worker.finish()?.expect_code(0)?;
        }
        self.kill_server()
    }
}

/// Starts a server on these ports, on what it has stored. A connection of another program may have one of them for a moment.
fn serve(sandbox: &Sandbox, ports: [u16; 3]) -> anyhow::Result<RunningProcess> {
    for _ in 0..20 {
        match serve_once(sandbox, ports) {
            Err(error) if format!("{error:#}").contains("address already in use") => {
                pause(Duration::from_millis(500));
            }
            served => return served,
        }
    }
    serve_once(sandbox, ports)
}

fn serve_once(sandbox: &Sandbox, ports: [u16; 3]) -> anyhow::Result<RunningProcess> {
    let program = PythonPackage::Temporal.installed()?;
    let [port, http, metrics] = ports.map(|port| port.to_string());
    let mut command = Command::new(&program);
    command.args(["server", "start-dev", "--headless", "--ip", "127.0.0.1", "--log-level", "error"]);
    command.args(["--port", &port, "--http-port", &http, "--metrics-port", &metrics, "--db-filename"]);
    command.arg(sandbox.path("temporal.db"));
    sandbox.enclose(&mut command);
    let mut server = sandbox.start(command)?;
    let address = format!("127.0.0.1:{port}");
    // A connection that is accepted does not say that the server answers, or that it is this one.
    let serves = || {
        ensure!(!server.has_ended()?, "the server has ended: {}", fs::read_to_string(&server.stderr)?);
        let mut describe = Command::new(&program);
        describe.args(["operator", "namespace", "describe", "--namespace", "default", "--address", &address]);
        sandbox.enclose(&mut describe);
        Ok(describe.output()?.status.success())
    };
    eventually(START, "the Temporal server serves", serves)?;
    Ok(server)
}

/// The folder of the sessions.
fn folder(sandbox: &Sandbox) -> String {
    sandbox.artefacts().join("shared").display().to_string()
}

/// Sends a process a signal.
pub(super) fn signal(process: &RunningProcess, signal: Signal) -> anyhow::Result<()> {
    let pid = Pid::from_raw(process.child.id().cast_signed()).context("the child has no process id")?;
    kill_process(pid, signal).with_context(|| format!("no {signal:?} reached the program"))
}

/// Kills a process and waits for its end.
pub(super) fn kill(mut process: RunningProcess) -> anyhow::Result<()> {
    process.kill()?;
    process.finish().map(drop)
}

/// The events that `inspan logs --json` prints.
pub(super) fn events(logs: &Finished) -> anyhow::Result<Vec<Envelope>> {
    let lines = logs.expect_code(0)?.stdout.lines();
    lines.map(|line| serde_json::from_str(line).with_context(|| format!("no event: {line}"))).collect()
}
