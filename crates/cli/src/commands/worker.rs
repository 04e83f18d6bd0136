//! `inspan worker`: runs attempts of a cluster's sessions on this machine.

use tokio_util::sync::CancellationToken;

use super::session::{self, Signals};
use crate::{
    args::WorkerArgs,
    engine::{Engine, EngineReport},
    exit::Exit,
    failure::Failure,
    invocation::Invocation,
    terminal,
};

pub(super) fn run(args: &WorkerArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let Some(engine) = Engine::of(invocation)? else {
        return Err(Failure::usage("a worker needs a cluster to work for")
            .with_hint("name it: `inspan worker --engine 'temporal://HOST?sessions=/FOLDER'`"));
    };
    invocation.trace_by_default("inspan_temporal=warn");
    session::runtime()?.block_on(async {
        let mut signals = Signals::listen();
        let EngineReport { name, version, problem, .. } = engine.look().await;
        if let Some(problem) = problem {
            return Err(Failure::new(Exit::Configuration, problem));
        }
        let version = version.unwrap_or_default();
        terminal::progress(&format!("working for {name} (Temporal {version})\n"));
        let stop = CancellationToken::new();
        let mut work = std::pin::pin!(engine.work(invocation, args, stop.clone()));
        loop {
            tokio::select! {
                ended = &mut work => return ended.map(|()| Exit::Success),
                (exit, name) = signals.next() => {
                    if stop.is_cancelled() {
                        return Ok(exit);
                    }
                    terminal::progress(&format!("{name}: running attempts are given to other workers\n"));
                    stop.cancel();
                }
            }
        }
    })
}
