//! `inspan run FILE`: builds a session from the command line, watches over it, and says how it went. Nothing
//! is started before everything that can be checked beforehand is in order.

use std::{sync::Arc, time::Duration};

use inspan_engine::{Channel, Pace, PermissionPolicy, ProviderRegistry, Recorder, Replayer, SystemClock};
use inspan_flow::{FlowRunner, Graph, NodeRegistry, check_input};
use inspan_protocol::SessionId;
use serde_json::{Map, Value};

use super::{flow, registries};
use crate::{
    args::{ReplayPace, RunArgs},
    exit::Exit,
    failure::Failure,
    invocation::{Form, Invocation},
    terminal::{Person, Progress},
};
use events::Events;
use host::Host;
use signals::{Ended, Signals};

mod events;
mod host;
mod input;
mod preflight;
mod report;
mod signals;

/// How long a person has to answer an agent's question for permission.
const PERMISSION: Duration = Duration::from_secs(30 * 60);
/// How long what is left of a session may take to end, once nobody waits for it.
const LEFTOVERS: Duration = Duration::from_millis(500);

pub(super) fn run(args: &RunArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let mut invocation = invocation.clone();
    if args.no_input {
        invocation.terminal.person = Person::Absent;
    }
    let providers = providers(args, invocation.terminal.progress)?;
    let nodes = registries::nodes(&providers);
    let loaded = input::changed(flow::read(&args.file)?, args)?;
    let graph = Arc::new(flow::ready(&loaded, &nodes, &invocation)?.graph);
    let given = input::of(args)?;
    check_input(&graph, given.clone()).map_err(|error| flow::refused(&error))?;
    if args.replay.is_none() {
        preflight::check(&graph, &loaded, &invocation)?;
    }
    // The text and its tree are larger than the graph that was made of them.
    drop(loaded);
    let events = args.events.as_deref().map(Events::open).transpose()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Exit::Failed, format!("failed to start the runtime: {error}")))?;
    let session = Session { graph, nodes, providers, given, events, invocation, args };
    // A session is a task of the runtime: driven from outside, every step of it would cost a change of threads.
    let exit = runtime.block_on(session.watch());
    runtime.shutdown_timeout(LEFTOVERS);
    exit
}

/// The providers, as they are, recorded or replayed.
fn providers(args: &RunArgs, progress: Progress) -> Result<ProviderRegistry, Failure> {
    if let Some(dir) = &args.record {
        let recorder = Recorder::new(dir).map_err(|error| Failure::usage(error.to_string()))?;
        return Ok(registries::providers().map(|provider| recorder.record(provider)));
    }
    let Some(replay) = &args.replay else { return Ok(registries::providers()) };
    let dir = replay.clone().unwrap_or_else(|| args.file.with_file_name("recordings"));
    if !dir.is_dir() {
        let failure = Failure::usage(format!("there are no recordings in {}: no such folder", dir.display()));
        let hint = format!("make them with `inspan run {} --record {}`", args.file.display(), dir.display());
        return Err(failure.with_hint(hint));
    }
    let replayer = Replayer::load(&dir).map_err(|error| Failure::usage(error.to_string()))?;
    let pace = match (args.pace, progress) {
        (Some(ReplayPace::Recorded), _) | (None, Progress::Live) => Pace::Recorded,
        (Some(ReplayPace::Immediate), _) | (None, Progress::Lines) => Pace::Immediate,
    };
    let replayer = replayer.pace(pace);
    Ok(registries::providers().map(|provider| replayer.replay(provider)))
}

/// One session, ready to begin.
struct Session<'a> {
    graph: Arc<Graph>,
    nodes: NodeRegistry,
    providers: ProviderRegistry,
    given: Map<String, Value>,
    events: Option<Events>,
    invocation: Invocation,
    args: &'a RunArgs,
}

impl Session<'_> {
    async fn watch(self) -> Result<Exit, Failure> {
        let host = Arc::new(Host::new(&self.graph, &self.invocation));
        let channel: Arc<dyn Channel> = Arc::<Host>::clone(&host);
        let mut builder = FlowRunner::builder(Arc::clone(&self.graph), self.nodes)
            .clock(Arc::new(SystemClock))
            .env(self.invocation.env.clone())
            .permissions(match self.invocation.terminal.person {
                Person::Present => PermissionPolicy::Ask { deadline: PERMISSION },
                Person::Absent => PermissionPolicy::Deny,
            })
            .channel(channel);
        if let Some(cwd) = &self.invocation.cwd {
            builder = builder.cwd(cwd);
        }
        if let Some(id) = &self.args.session_id {
            builder = builder.session_id(SessionId::from(id.as_str()));
        }
        if let Some(limit) = self.args.max_concurrency {
            builder = builder.max_concurrency(limit);
        }
        let runner = builder.build();
        let hub = runner.hub().clone();
        let writing = self.events.map(|events| events.begin(&hub)).transpose()?;
        let to_stdout = writing.as_ref().is_some_and(events::Writing::is_stdout);
        let signals = Signals::listen();
        let running = tokio::spawn(runner.run(self.given));
        let ended = signals::watch(signals, running, &hub).await;
        let state = host.stop();
        let Ended { by, result } = ended;
        let Some(result) = result else {
            // Nobody wants to wait any more: what still runs is dropped, and its programs are killed.
            let exit = by.unwrap_or(Exit::Interrupted);
            return Err(Failure::new(exit, "stopped at once; what was running was killed"));
        };
        self.providers.shutdown().await;
        let kept = match writing {
            Some(writing) => writing.finish(),
            None => Ok(()),
        };
        let result = match result {
            Ok(Ok(result)) => result,
            Ok(Err(error)) => return Err(Failure::new(Exit::Failed, error.to_string())),
            Err(panic) => return Err(Failure::new(Exit::Failed, format!("the session broke down: {panic}"))),
        };
        let waiting = host.waiting();
        let report = report::Report::new(&result, &waiting, by);
        host.summarise(state, &report);
        match (self.invocation.form, to_stdout) {
            (Form::Json, false) => self.invocation.json(&report.json()),
            (Form::Text, false) => report.print(&self.graph),
            (_, true) => {}
        }
        kept.map(|()| report.exit)
    }
}
