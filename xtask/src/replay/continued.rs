//! The agents of a session that died and is resumed. The input and output of each call of the uninterrupted session are
//! recorded with their place in the log; afterwards calls that had ended are not made again, and a call that continues
//! a conversation, for which there is no recording, gets the next answer of that conversation.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures::{StreamExt as _, stream};
use inspan_engine::{Filter, Hub, NodeCalls, Observer, ProviderRegistry, Replayer};
use inspan_protocol::{
    AgentError, DynProvider, ExecutionContext, ProviderItem, ProviderSessionId, ProviderStream,
    ProviderWrapper, StreamEvent,
};
use serde_json::Value;

use super::session;

/// Where the input of a scripted agent has its script.
const SCRIPT: &str = "/options/turns";

/// The calls of a session, in the order in which they ended.
#[derive(Clone)]
pub(crate) struct Calls {
    recordings: PathBuf,
    ended: Arc<Mutex<Vec<Call>>>,
    /// The newest event.
    seq: Arc<AtomicU64>,
}

#[derive(Clone)]
struct Call {
    provider: String,
    input: Value,
    end: Result<Value, AgentError>,
    /// The conversation, if it was named.
    session: Option<ProviderSessionId>,
    /// The newest event when it began, and when it ended; what it gave came after that.
    began_at: u64,
    ended_at: u64,
}

impl Calls {
    pub(crate) fn new(recordings: &Path) -> Self {
        Self { recordings: recordings.to_owned(), ended: Arc::default(), seq: Arc::default() }
    }

    /// Keeps up with the log.
    pub(crate) fn watch(&self, hub: &Hub) -> Observer {
        let seq = Arc::clone(&self.seq);
        hub.observe(Filter::all(), Arc::new(move |envelope| seq.store(envelope.seq, Ordering::Relaxed)))
    }

    /// A provider whose calls are noted.
    pub(crate) fn note(&self, provider: Arc<dyn DynProvider>) -> Arc<dyn DynProvider> {
        Arc::new(Wrapped { provider, calls: self.clone(), how: How::Note })
    }

    /// Providers that continue after so many events.
    pub(crate) fn after(&self, cut: u64) -> anyhow::Result<ProviderRegistry> {
        let replayer = Replayer::load(&self.recordings)?;
        let mut providers = ProviderRegistry::new();
        for provider in inspan_providers::builtin() {
            let replayed = replayed(&replayer, provider);
            let name = replayed.descriptor().provider_type;
            for call in self.ended().iter().filter(|call| call.ended_at < cut && call.provider == name) {
                // Taking a recording is all that beginning the call does.
                drop(replayed.execute(call.input.clone(), ExecutionContext::default()));
            }
            let how = How::After { cut, resumed: Mutex::default() };
            providers.register(Arc::new(Wrapped { provider: replayed, calls: self.clone(), how }));
        }
        Ok(providers)
    }

    /// What answers for the calls of nodes. A call that was in flight is made again, and gets its recording again;
    /// those that had ended are not made.
    pub(crate) fn of_nodes(&self) -> anyhow::Result<NodeCalls> {
        Ok(NodeCalls::Replay(Replayer::load(&self.recordings)?))
    }

    fn ended(&self) -> Vec<Call> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

enum How {
    Note,
    After {
        cut: u64,
        /// The conversations that were resumed.
        resumed: Mutex<Vec<ProviderSessionId>>,
    },
}

struct Wrapped {
    provider: Arc<dyn DynProvider>,
    calls: Calls,
    how: How,
}

impl Wrapped {
    fn note(&self, input: Value, context: ExecutionContext) -> ProviderStream<Value> {
        let provider = self.provider.descriptor().provider_type;
        let calls = self.calls.clone();
        let given = input.clone();
        let began_at = calls.seq.load(Ordering::Relaxed);
        let mut session = None;
        let noted = self.provider.execute(input, context).inspect(move |item| {
            let end = match item {
                Ok(ProviderItem::Event(StreamEvent::Session { session_id })) => {
                    session = Some(session_id.clone());
                    return;
                }
                Ok(ProviderItem::Event(_)) => return,
                Ok(ProviderItem::Output(output)) => Ok(output.clone()),
                Err(error) => Err(error.clone()),
            };
            let (provider, input) = (provider.clone(), given.clone());
            let ended_at = calls.seq.load(Ordering::Relaxed);
            let call = Call { provider, input, end, session: session.clone(), began_at, ended_at };
            calls.ended.lock().unwrap_or_else(PoisonError::into_inner).push(call);
        });
        noted.boxed()
    }
}

impl Wrapped {
    /// The result of a call that continues a conversation; `None` if it does not, or if the same call
    /// was recorded.
    fn next(
        &self,
        input: &Value,
        cut: u64,
        resumed: &Mutex<Vec<ProviderSessionId>>,
    ) -> Option<(Result<Value, AgentError>, ProviderSessionId)> {
        let with = self.provider.input_facts(input).ok()?.session?;
        let ended = self.calls.ended();
        if ended.iter().any(|call| call.input == *input) {
            return None;
        }
        // Scripts give their conversations the same names.
        let same_script = |call: &&Call| call.input.pointer(SCRIPT) == input.pointer(SCRIPT);
        let of_session = |call: &&Call| call.session.as_ref() == Some(&with);
        let calls: Vec<_> = ended.iter().filter(of_session).filter(same_script).collect();
        let mut resumed = resumed.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = !resumed.contains(&with);
        resumed.push(with.clone());
        let newest = calls.iter().rev().find(|call| call.began_at <= cut)?;
        if newest.ended_at < cut || !is_first {
            // An agent that had said its last says it again.
            return Some((newest.end.clone(), with));
        }
        let next = newest;
        // That call was in flight, and is not made again.
        drop(self.provider.execute(next.input.clone(), ExecutionContext::default()));
        Some((next.end.clone(), with))
    }
}

impl ProviderWrapper for Wrapped {
    fn inner(&self) -> &dyn DynProvider {
        &*self.provider
    }

    fn execute(&self, input: Value, context: ExecutionContext) -> ProviderStream<Value> {
        let (cut, resumed) = match &self.how {
            How::Note => return self.note(input, context),
            How::After { cut, resumed } => (*cut, resumed),
        };
        match self.next(&input, cut, resumed) {
            None => self.provider.execute(input, context),
            Some((end, session_id)) => {
                let named = ProviderItem::Event(StreamEvent::Session { session_id });
                stream::iter([Ok(named), end.map(ProviderItem::Output)]).boxed()
            }
        }
    }
}

/// Every provider that comes with Inspan, its calls answered by the recordings and noted.
pub(crate) fn noted(replayer: &Replayer, calls: &Calls) -> ProviderRegistry {
    session::providers().map(|provider| calls.note(replayed(replayer, provider)))
}

/// A provider that is answered by recordings; one that does as its input says needs none.
fn replayed(replayer: &Replayer, provider: Arc<dyn DynProvider>) -> Arc<dyn DynProvider> {
    match provider.descriptor().provider_type.as_str() {
        "scripted" => provider,
        _ => replayer.replay(provider),
    }
}
