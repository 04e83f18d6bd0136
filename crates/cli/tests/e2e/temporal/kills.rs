//! Workers and the server are killed while sessions run: each session ends with success, and no node that has finished
//! runs again.
#![expect(clippy::print_stdout, reason = "figures are printed")]

use std::{collections::BTreeMap, fs, time::Duration};

use anyhow::{Context as _, ensure};
use inspan_protocol::{Envelope, Event};
use inspan_testkit::{Deadline, RunningProcess, Sandbox, eventually, pause};
use serde_json::{Value, json};

use super::{
    super::checks::same,
    cluster::{Cluster, kill},
    commands::SOON,
};

/// How many nodes a session has.
const NODES: usize = 10;
/// Those that are agents, which append nothing.
const AGENTS: [&str; 3] = ["n2", "n5", "n8"];
/// For how many seconds its commands work.
const LASTS: [&str; 4] = ["0.1", "0.2", "0.3", "0.4"];
/// How many sessions run at once.
const SESSIONS: usize = 3;
/// How long the sessions that still run after the last kill may take.
const REST: Duration = Duration::from_secs(40);

/// Whether everything is done that takes minutes.
#[expect(clippy::disallowed_methods, reason = "a test has no command line of its own")]
pub(super) fn is_full() -> bool {
    std::env::var_os("INSPAN_E2E_FULL").is_some_and(|value| value == "1")
}

/// How many seconds the sweep may take.
pub(in super::super) fn kills_limit() -> u64 {
    if is_full() { 900 } else { 100 }
}

/// Numbers that look random and are the same in each run.
pub(super) struct Numbers(pub(super) u64);

impl Numbers {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Commands and agents by turns; each command appends a line to the file of its session before it works and after it.
/// The first one works for `first` seconds.
fn flow(name: &str, first: &str) -> Value {
    let nodes = (0..NODES).map(|number| {
        let before: Vec<_> = number.checked_sub(1).map(|before| format!("n{before}")).into_iter().collect();
        let id = format!("n{number}");
        match number % 3 {
            2 => json!({ "id": id, "type": "echo.agent", "dependsOn": before, "input": { "prompt": "It was {{ n0.exitCode }}." } }),
            _ => {
                let seconds = if number == 0 { first } else { LASTS[number % LASTS.len()] };
                let script = format!("echo {id} begins >> {name}; sleep {seconds}; echo {id} ends >> {name}");
                json!({ "id": id, "type": "exec", "dependsOn": before, "input": { "argv": ["sh", "-c", script] } })
            }
        }
    });
    json!({ "name": name, "nodes": nodes.collect::<Vec<_>>() })
}

/// The sessions of a sweep.
struct Sessions<'a> {
    cluster: &'a Cluster<'a>,
    open: Vec<String>,
    ended: Vec<String>,
    /// How many were begun so far, here and before.
    begun: usize,
    /// For how many seconds the first node works.
    first: &'static str,
}

impl Sessions<'_> {
    /// Starts sessions until enough are open.
    fn fill(&mut self) -> anyhow::Result<()> {
        while self.open.len() < SESSIONS {
            let name = format!("s{}", self.begun);
            self.begun += 1;
            let file = format!("{name}.yaml");
            self.cluster.sandbox.write(&file, &flow(&name, self.first).to_string())?;
            self.cluster.detach(&file, &name)?;
            self.open.push(name);
        }
        Ok(())
    }

    /// Puts those that have ended aside.
    fn sort(&mut self) -> anyhow::Result<()> {
        let list = self.cluster.sandbox.run(&["ps", "--json"])?.expect(0)?.json()?;
        let is_open = |name: &str| list.as_array().into_iter().flatten().any(|one| one["sessionId"] == name);
        let (open, ended) = std::mem::take(&mut self.open).into_iter().partition(|name| is_open(name));
        self.open = open;
        self.ended.extend::<Vec<_>>(ended);
        Ok(())
    }

    /// Waits for all, and checks each one: how many attempts they took that were not needed.
    fn check(mut self) -> anyhow::Result<(usize, usize)> {
        let deadline = Deadline::after(REST);
        while !self.open.is_empty() {
            ensure!(
                !deadline.is_over(),
                "after {REST:?} these still run: {:?}: {}",
                self.open,
                self.state()?
            );
            pause(Duration::from_millis(100));
            self.sort()?;
        }
        let mut more = 0;
        for name in &self.ended {
            more += self.check_one(name).with_context(|| format!("session {name}"))?;
        }
        Ok((self.ended.len(), more))
    }

    fn state(&self) -> anyhow::Result<String> {
        let one = self.open.first().context("none is open")?;
        let log = self.cluster.sandbox.run(&["logs", one])?;
        Ok(log.stdout)
    }

    fn check_one(&self, name: &str) -> anyhow::Result<usize> {
        let shown = self.cluster.show(name)?;
        same("the state", &shown["state"], &json!("success")).with_context(|| format!("{shown:#}"))?;
        let log = self.cluster.log(name)?;
        let attempts = attempts(&log)?;
        let lines = fs::read_to_string(self.cluster.sandbox.path(name))?;
        let times = |line: String| lines.lines().filter(|one| **one == line).count();
        for (node, tried) in &attempts {
            let (begins, ends) = (times(format!("{node} begins")), times(format!("{node} ends")));
            let is_agent = begins == 0 && AGENTS.contains(&node.as_str());
            ensure!(
                is_agent || (ends >= 1 && begins <= *tried && ends <= begins),
                "{node} began {begins} times and ended {ends} times in {tried} attempts:\n{lines}"
            );
        }
        let in_order: Vec<_> =
            lines.lines().filter_map(|line| line.strip_prefix('n')?.strip_suffix(" begins")).collect();
        ensure!(in_order.is_sorted(), "a node began after one that follows it:\n{lines}");
        same("the number of nodes", &attempts.len(), &NODES)?;
        Ok(attempts.values().sum::<usize>() - NODES)
    }
}

/// How many attempts each node took, after a check that each has completed once, and no attempt began after that.
pub(super) fn attempts(log: &[Envelope]) -> anyhow::Result<BTreeMap<String, usize>> {
    let (mut started, mut completed) = (BTreeMap::<String, usize>::new(), Vec::new());
    for envelope in log {
        let Some(place) = envelope.context.task.as_ref().map(ToString::to_string) else { continue };
        match envelope.event {
            Event::TaskStart { .. } => {
                ensure!(!completed.contains(&place), "{place} began again after its end");
                *started.entry(place).or_default() += 1;
            }
            Event::TaskComplete { .. } => {
                ensure!(!completed.contains(&place), "{place} has completed twice");
                completed.push(place);
            }
            _ => {}
        }
    }
    same("the nodes that have completed", &completed.len(), &started.len())?;
    Ok(started)
}

/// Kills one of the two workers or both, and starts others in their place. Gives how many were killed.
pub(super) fn kill_some(
    cluster: &Cluster<'_>,
    workers: &mut Vec<RunningProcess>,
    numbers: &mut Numbers,
) -> anyhow::Result<usize> {
    let both = numbers.below(5) == 0;
    let first = numbers.below(2) as usize;
    let victims = if both { std::mem::take(workers) } else { vec![workers.remove(first)] };
    let kills = victims.len();
    victims.into_iter().try_for_each(kill)?;
    while workers.len() < 2 {
        workers.push(cluster.worker()?);
    }
    Ok(kills)
}

/// Workers are killed again and again, one or both, and others take their place.
pub(in super::super) fn workers_killed(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let wanted = if is_full() { 200 } else { 24 };
    let cluster = Cluster::start(sandbox)?;
    let mut workers = vec![cluster.worker()?, cluster.worker()?];
    let mut sessions =
        Sessions { cluster: &cluster, open: Vec::new(), ended: Vec::new(), begun: 0, first: "0.5" };
    let (mut numbers, mut kills) = (Numbers(17), 0);
    while kills < wanted {
        sessions.sort()?;
        sessions.fill()?;
        pause(Duration::from_millis(200 + numbers.below(1_500)));
        kills += kill_some(&cluster, &mut workers, &mut numbers)?;
    }
    let (count, more) = sessions.check()?;
    println!("    {kills} kills, {count} sessions, {more} attempts again, no finished node again");
    cluster.end(workers)
}

/// The server is killed while sessions run, and starts again on what it has stored: at once, while a worker is killed too,
/// and after two seconds, which is more than a worker may be silent.
pub(in super::super) fn server_killed(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let mut cluster = Cluster::start(sandbox)?;
    let mut workers = vec![cluster.worker()?, cluster.worker()?];
    let (mut count, mut more) = (0, 0);
    // After the long outage each session has given its attempt up, before another worker began it.
    for (outage, worker_too, least) in [(Duration::from_secs(2), false, SESSIONS), (Duration::ZERO, true, 0)]
    {
        let mut sessions =
            Sessions { cluster: &cluster, open: Vec::new(), ended: Vec::new(), begun: count, first: "4" };
        sessions.fill()?;
        let have_begun = || Ok(sessions.open.iter().all(|name| cluster.sandbox.path(name).exists()));
        eventually(SOON, "the sessions have begun", have_begun)?;
        let (open, begun) = (sessions.open, sessions.begun);
        cluster.kill_server()?;
        if worker_too {
            kill(workers.remove(0))?;
        }
        pause(outage);
        cluster.restart_server()?;
        if worker_too {
            workers.push(cluster.worker()?);
        }
        let (ended, again) =
            Sessions { cluster: &cluster, open, ended: Vec::new(), begun, first: "4" }.check()?;
        ensure!(again >= least, "only {again} attempts were given up after {outage:?} without a server");
        count += ended;
        more += again;
    }
    println!("    {count} sessions, {more} attempts again, no finished node again");
    cluster.end(workers)
}
