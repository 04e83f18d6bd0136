//! Two processes that want the same session: one gets it, and one that lost it stores nothing more.

use inspan_testkit::{Finished, RunningProcess};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use inspan_engine::{Clock, ProviderRegistry, SystemClock};
use inspan_flow::{
    FlowRunner, LEASE, Owner, RunError, SqliteOptions, SqliteStore, StoreError, builtin_nodes,
};
use inspan_protocol::{SessionId, Timestamp};
use serde_json::Map;

use super::place::{FaultSandbox, compile, runtime, until};
use super::{Promise, Size};

pub(super) const TWO: Promise = Promise {
    bound: "one runs; the other names who holds it and ends with 1; nothing runs again that one of them ran",
    prove: two,
};

pub(super) const STALE: Promise =
    Promise { bound: "its next append is refused as fenced, and nothing of it is kept", prove: stale };

/// A step that waits until it is released.
const SLOW: &str = r#"
flow: { name: slow }
nodes:
  - { id: first, type: exec, input: { argv: [sh, -c, "echo first >> effects"] } }
  - { id: slow, type: exec, dependsOn: [first], input: { argv: [sh, -c, "echo slow >> effects; while [ ! -e go ]; do sleep 0.02; done"] } }
  - { id: last, type: exec, dependsOn: [slow], input: { argv: [sh, -c, "echo last >> effects"] } }
"#;

const RESUME: [&str; 4] = ["resume", "s", "--no-input", "--json"];

fn slow_has_run(place: &FaultSandbox, times: usize) -> anyhow::Result<bool> {
    Ok(place.effects().iter().filter(|effect| *effect == "slow").count() == times)
}

fn two(size: Size) -> anyhow::Result<String> {
    let rounds = size.count(4, 20);
    let mut kinds = [0, 0];
    for _ in 0..rounds {
        let place = size.place("two-")?;
        place.write("flow.yaml", SLOW)?;
        let mut first = place.start(place.command(&["run", "flow.yaml", "--session-id", "s"]))?;
        until("the slow step runs", || slow_has_run(&place, 1))?;
        let refused = place.run(&RESUME)?.expect(2)?;
        ensure!(refused.stderr.contains(&format!("process {}", first.child.id())), "{}", refused.stderr);
        kinds[0] += 1;
        first.kill()?;
        first.finish()?;
        place.none_left()?;
        let mut both = [place.start(place.command(&RESUME))?, place.start(place.command(&RESUME))?];
        until("one of them is refused", || Ok(both[0].has_ended()? || both[1].has_ended()?))?;
        until("the other one runs", || slow_has_run(&place, 2))?;
        let winner = usize::from(both[0].has_ended()?);
        let holder = both[winner].child.id();
        place.write("go", "")?;
        let mut ended: Vec<Finished> =
            both.into_iter().map(RunningProcess::finish).collect::<Result<_, _>>()?;
        let won = ended.remove(winner).expect(0)?;
        ensure!(won.json()?["outcome"] == "success", "{}", won.stdout);
        let lost = ended.remove(0).expect(2)?;
        ensure!(lost.stderr.contains(&format!("process {holder}")), "{}", lost.stderr);
        kinds[1] += 1;
        let effects = place.effects();
        ensure!(effects == ["first", "slow", "slow", "last"], "the effects are {effects:?}");
        place.sound()?;
    }
    let [running, racing] = kinds;
    Ok(format!("{running} resumes of a running session and {racing} races of two resumes: each time one ran"))
}

/// A clock that is behind the machine's.
struct Behind(Duration);

impl Clock for Behind {
    fn now(&self) -> Timestamp {
        let now = SystemClock.now();
        let behind = i64::try_from(self.0.as_millis()).unwrap_or(i64::MAX);
        Timestamp::from_millis(now.as_millis().saturating_sub(behind))
    }
}

fn stale(size: Size) -> anyhow::Result<String> {
    let place = size.place("stale-")?;
    place.write("flow.yaml", SLOW)?;
    let (session, seq_taken) = (SessionId::from("s"), Owner::of_process());
    // An owner of which this machine cannot say whether it is alive, and whose lease expired an hour ago.
    let owner = Owner { machine: "elsewhere".to_owned(), host: "elsewhere".to_owned(), ..seq_taken };
    std::fs::create_dir_all(place.home())?;
    let error = runtime()?.block_on(async {
        let store = Arc::new(SqliteStore::open(place.store(), &SqliteOptions::default())?);
        let nodes = builtin_nodes(&ProviderRegistry::new());
        let graph = compile(&place.path("flow.yaml"), &ProviderRegistry::new())?;
        let path = [("PATH".to_owned(), "/usr/bin:/bin".to_owned())];
        let runner = FlowRunner::builder(Arc::new(graph), nodes)
            .session_id(session)
            .owner(owner)
            .clock(Arc::new(Behind(Duration::from_secs(3600) + LEASE)))
            .env(path.into_iter().collect())
            .store(store)
            .build();
        let running = tokio::spawn(runner.run(Map::new()));
        let taken = async {
            while !slow_has_run(&place, 1)? {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            // Blocks this thread, and with it the owner, which does not notice.
            let mut other = place.start(place.command(&RESUME))?;
            until("the other one runs", || slow_has_run(&place, 2))?;
            ensure!(!other.has_ended()?, "the other one has ended");
            place.write("go", "")?;
            anyhow::Ok(other)
        };
        let mut other = taken.await?;
        let ended =
            tokio::time::timeout(Duration::from_secs(20), running).await.context("the owner goes on")??;
        until("the other one has ended", || other.has_ended())?;
        other.finish()?.expect(0)?;
        match ended {
            Err(RunError::Store(error @ StoreError::Fenced { .. })) => anyhow::Ok(error.to_string()),
            Err(error) => bail!("the owner ended with another error: {error}"),
            Ok(result) => bail!("the owner ended with {:?}", result.outcome),
        }
    })?;
    place.sound()?;
    let log = place.look("s")?.context("the session is gone")?.log;
    inspan_engine::check_order(&log).map_err(anyhow::Error::msg)?;
    let ends = log.iter().filter(|envelope| envelope.event.name() == "harness:complete").count();
    ensure!(ends == 1, "the session ended {ends} times");
    Ok(format!("the owner was told: {error}"))
}
