//! A session that a cluster runs, in the process that started it.

use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt;
use inspan_engine::{Clock, Filter, Hub, IdSource, RandomIds, SystemClock};
use inspan_flow::{
    Graph, ParentKind, Resume, RunError, SessionRecord, StoreError, Verdict, WhenWaiting, check_input,
};
use inspan_protocol::{Command, Envelope, SessionId, SessionStatus};
use inspan_sessions::{RESPONSE, SessionError, SessionErrorCode};
use serde_json::{Map, Value, json};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::{
    Begin, Runner, SessionConsole, refused,
    signals::{RunningSession, SessionEnd, Signals},
};
use crate::{
    commands::flow::refused_input,
    console::restore,
    engine::Engine,
    exit::Exit,
    failure::Failure,
    invocation::{Invocation, OutputForm},
    terminal,
};

/// A session that a cluster runs.
#[derive(Clone)]
pub(super) struct Remote {
    engine: Engine,
    session: SessionId,
    graph: Arc<Graph>,
}

impl Remote {
    /// Starts a session on the cluster, or continues one there.
    pub(super) async fn begin(
        engine: Engine,
        begin: Begin,
        graph: &Arc<Graph>,
        settings: Map<String, Value>,
    ) -> Result<Self, Failure> {
        let session = match begin {
            Begin::New { id, input, reusing } => {
                let input = check_input(graph, input).map_err(|error| refused_input(&error))?;
                let parent = reusing.map(|(_, parent)| parent);
                let id = match (id, &parent) {
                    (Some(id), _) => Some(id),
                    (None, Some(parent)) if parent.kind == ParentKind::Resume => {
                        engine.claimed(&parent.session).await?
                    }
                    (None, _) => None,
                };
                let id = id.unwrap_or_else(|| RandomIds::new().session_id());
                let made = SessionRecord::new(id, (*graph.source).clone().used(), input, SystemClock.now());
                let record = SessionRecord { parent, settings, ..made };
                engine.start(&record, graph).await.map_err(|error| refused(&error))?;
                record.session
            }
            Begin::Rest { session, resume, .. } => {
                let says_something = resume != Resume::default();
                let number = engine.resume(&session, resume).await?;
                // Without a text or a budget nothing is lost: a session that is not paused is shown as it goes on.
                if says_something {
                    must_be_taken(&engine, &session, number).await?;
                }
                session
            }
        };
        Ok(Self { engine, session, graph: Arc::clone(graph) })
    }

    /// Says what was started.
    pub(super) fn report(&self, invocation: &Invocation) -> Result<Exit, Failure> {
        let (id, engine) = (&self.session, self.engine.name());
        match invocation.form {
            OutputForm::Json => invocation.json(&json!({ "sessionId": id, "engine": engine })),
            OutputForm::Text => {
                terminal::data_line(id.as_str());
                let logs = invocation.commands().command("logs", id, "-f");
                terminal::progress(&format!("running on {engine}; watch it with `{logs}`\n"));
            }
        }
        Ok(Exit::Success)
    }

    /// Its events as they come, shown by the console, until it ends or waits.
    pub(super) async fn runner(
        self,
        host: Arc<SessionConsole>,
        seen: u64,
        when_waiting: WhenWaiting,
    ) -> Runner {
        let Self { engine, session, graph } = self.clone();
        let hub = Hub::new(session.clone(), Arc::new(SystemClock), Arc::new(RandomIds::new()));
        hub.start_session();
        let taker = (engine.clone(), session.clone());
        let relay = hub.clone();
        // Defaults that were taken because nobody is here: the session does not wait for a person then.
        let defaults: Arc<Mutex<Vec<JoinHandle<Option<u64>>>>> = Arc::default();
        let taken = Arc::clone(&defaults);
        let mut seen = seen;
        // The console's own thread gives commands too.
        let runtime = Handle::current();
        let work = async move {
            // As a channel of this hub it would be announced by events that the session's log does not have.
            host.begin().map_err(|error| {
                RunError::Store(StoreError::Io { path: "the console".into(), message: error.to_string() })
            })?;
            let shown = Arc::clone(&host);
            let _shown =
                relay.observe(Filter::all(), Arc::new(move |event: &Arc<Envelope>| shown.show(event)));
            loop {
                let result = engine.follow(&session, &graph, &relay, &mut seen, when_waiting).await?;
                let posts = std::mem::take(&mut *defaults.lock().unwrap_or_else(PoisonError::into_inner));
                // Paused or ended it is whatever the defaults do.
                if posts.is_empty() || result.status != SessionStatus::Waiting {
                    return Ok(result);
                }
                for post in posts {
                    if let Ok(Some(number)) = post.await {
                        // Without an answer the session is as it was.
                        let _late = engine.answered(&session, number).await;
                    }
                }
            }
        };
        Runner {
            hub,
            commands: Arc::new(move |command| {
                let (engine, session) = taker.clone();
                let is_default = matches!(command, Command::TakeDefault { .. });
                let post = runtime.spawn(async move {
                    let posted = engine.post(&session, &command).await;
                    if let Err(error) = &posted {
                        terminal::progress(&format!("warning: {error}\n"));
                    }
                    posted.ok()
                });
                if is_default {
                    taken.lock().unwrap_or_else(PoisonError::into_inner).push(post);
                }
                Ok(())
            }),
            work: work.boxed(),
            remote: Some(self),
        }
    }

    /// Waits for the session to end. The first signal has it paused, and this is waited for as long as `inspan pause` waits;
    /// the second one ends only the wait: there may be no worker, and those that there are need no one who waits.
    pub(super) async fn watch(
        &self,
        signals: &mut Signals,
        mut running: RunningSession,
        console: &SessionConsole,
    ) -> Result<SessionEnd, Failure> {
        let (asked_by, name) = tokio::select! {
            biased;
            result = &mut running => return Ok(SessionEnd { by: None, result }),
            signal = signals.next() => signal,
        };
        let id = &self.session;
        console.notice(&format!(
            "waiting until the workers of {} have paused the session; the next signal ends the wait",
            self.engine.name()
        ));
        let pause = Command::Pause { reason: Some(name.to_owned()) };
        let mut posting = std::pin::pin!(self.engine.post(id, &pause));
        let mut patience = std::pin::pin!(tokio::time::sleep(RESPONSE));
        let mut is_stored = false;
        let (exit, why) = loop {
            tokio::select! {
                biased;
                result = &mut running => return Ok(SessionEnd { by: None, result }),
                posted = &mut posting, if !is_stored => match posted {
                    // It may have ended just now, and its last events come.
                    Ok(_) | Err(StoreError::SessionEnded(_)) => is_stored = true,
                    Err(error) => break (asked_by, format!("session `{id}` was not paused: {error}")),
                },
                () = &mut patience => break (asked_by, format!("session `{id}` is not paused after {RESPONSE:?}")),
                (exit, _) = signals.next() => break (exit, format!("stopped waiting until session `{id}` is paused")),
            }
        };
        restore();
        running.abort();
        let failure = match is_stored {
            true => Failure::new(exit, format!("{why}; the pause is stored")).with_hint(format!(
                "a worker applies it when it takes the session; then `inspan resume {id}` continues it"
            )),
            false => Failure::new(exit, why)
                .with_hint(format!("`inspan ps` shows whether it runs; `inspan pause {id}` pauses it")),
        };
        Err(failure.of_session(id))
    }
}

/// Fails if a session is not resumed as it was asked to.
async fn must_be_taken(engine: &Engine, session: &SessionId, number: u64) -> Result<(), Failure> {
    match engine.answered(session, number).await? {
        Some(Verdict::Accepted) => Ok(()),
        Some(Verdict::Refused(why)) => {
            Err(Failure::from(SessionError::new(SessionErrorCode::CommandRefused, why)).of_session(session))
        }
        None => {
            terminal::progress(&format!(
                "warning: no worker has resumed session `{session}` for {RESPONSE:?}; the next one that takes it resumes \
                 it as asked, or refuses that\n"
            ));
            Ok(())
        }
    }
}
