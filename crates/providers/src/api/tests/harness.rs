//! What the tests of the adapters share: a provider with its own folder, and one turn against some server with its
//! events and its end.

use std::fmt::Debug;
use std::sync::Arc;

use inspan_model_server::{ModelServer, Scenario};
use inspan_protocol::{
    Environment, ErrorCode, ExecutionContext, Host, Provider, ProviderOutput, ProviderSessionId, StreamEvent,
    Usage,
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tempfile::TempDir;

use super::replay::RecordedResponse;
use crate::api::Api;
use crate::api::account::Account;
use crate::conversation::ConversationStore;
use crate::tests::{FinishedTurn, watched};

/// What the checks have to know about one adapter.
pub(crate) trait Vendor {
    type Api: Api<Input = Self::Input, Output = Self::Output>;
    type Provider: Provider<Input = Self::Input, Output = Self::Output> + Default + Debug;
    type Input: DeserializeOwned;
    type Output: ProviderOutput + Debug;

    /// The variable of the key, and a key that may only be in the headers of a request.
    const KEY: (&'static str, &'static str);
    /// Where the vendor is asked.
    const PATH: &'static str;
    /// The header of the key, and the text before it there.
    const HEADER: (&'static str, &'static str);
    /// The beginning of an answer with the text `so far`.
    const BEGUN: &'static str;
    /// An event that only says that the vendor is still there.
    const SIGN: &'static str;
    /// An event that is cut off in its JSON.
    const GARBAGE: &'static str;
    /// Words in which the vendor repeats the key.
    const REPEATS: &'static str;

    /// The empty conversation that a recorded response is added to.
    fn history(case: &RecordedResponse) -> <Self::Api as Api>::History;
    /// What a conversation of one response stores of it.
    fn stored(messages: &[Value]) -> Value;
    /// One that stores its conversations here.
    fn with_store(store: Arc<dyn ConversationStore>) -> Self::Provider;
    /// The address of the API at a server.
    fn base_url(server: &str) -> String;
    /// An input that continues a conversation.
    fn resumed(prompt: &str, session: &str) -> Value;
    /// Inputs that this adapter refuses before it asks, beside those that all refuse.
    fn unaskable() -> Vec<Value>;
    /// Who spoke and what, in the body of a request; `> ` begins the call of a tool, `= ` its result.
    fn spoken(body: &Value) -> Vec<String>;
    /// A message of the user as a conversation stores it.
    fn user(text: &str) -> Value;
    /// What an output says, and where it is resumed.
    fn returned(output: &Self::Output) -> (&str, Option<&ProviderSessionId>);
    /// The tokens that are known of an interrupted answer of the scripted server.
    fn usage_when_cut() -> Usage;
}

/// A provider whose conversations are in a temporary folder.
pub(crate) struct Harness<R: Vendor> {
    pub(crate) folder: TempDir,
    pub(crate) provider: R::Provider,
    pub(crate) env: Environment,
}

impl<R: Vendor> Harness<R> {
    /// One that asks the server at this address.
    pub(crate) fn new(address: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (home, address) = (folder.path().display().to_string(), R::base_url(address));
        let pairs = [R::KEY, (R::Api::ADDRESS.variable, address.as_str()), ("INSPAN_HOME", home.as_str())];
        let env = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into_iter().collect();
        Self { folder, provider: R::Provider::default(), env }
    }

    pub(crate) fn context(&self) -> ExecutionContext {
        ExecutionContext::new(Host { env: self.env.clone(), ..Host::default() })
    }

    /// One turn to its end.
    pub(crate) async fn turn(&self, input: Value) -> FinishedTurn<R::Output> {
        self.turn_in(input, self.context(), |_, _| {}).await
    }

    /// One turn to its end, with a callback for each event as it comes.
    pub(crate) async fn turn_in(
        &self,
        input: Value,
        context: ExecutionContext,
        mut look: impl FnMut(&StreamEvent, &ExecutionContext),
    ) -> FinishedTurn<R::Output> {
        let input: R::Input = serde_json::from_value(input).unwrap();
        let turn = watched(&self.provider, input, context.clone(), |event| look(event, &context)).await;
        if let Err(error) = &turn.1 {
            assert_eq!(error.provider.as_deref(), Some(R::Api::PROVIDER));
        }
        turn
    }

    /// All files of the folder, as one text.
    pub(crate) fn stored(&self) -> String {
        let mut stored = String::new();
        for entry in std::fs::read_dir(self.folder.path().join("conversations")).into_iter().flatten() {
            stored.push_str(&std::fs::read_to_string(entry.unwrap().path()).unwrap());
        }
        stored
    }
}

/// The address of the account that an environment gives, and these headers of it, which hide the key where they are shown.
pub(crate) fn account<A: Api>(pairs: &[(&str, &str)], names: &[&str]) -> Result<Vec<String>, String> {
    let environment: Environment =
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let account = Account::of::<A>(&environment).map_err(|error| error.to_string())?;
    let shown = format!("{:?}", account.headers);
    assert!(!shown.contains("planted"), "{shown}");
    let header = |name: &&str| account.headers.get(*name);
    let headers = names.iter().filter_map(header).map(|value| value.to_str().unwrap_or("?").to_owned());
    Ok([account.url.to_string()].into_iter().chain(headers).collect())
}

/// The scripted model, with these turns.
pub(crate) fn scripted(turns: impl IntoIterator<Item = inspan_model_server::Turn>) -> ModelServer {
    ModelServer::start(Scenario { aux_detect: false, ..Scenario::of(turns) }).unwrap()
}

/// The code of an error, the word in its detail, and the text that was streamed before it.
pub(crate) fn reported<O: Debug>(turn: &FinishedTurn<O>) -> (ErrorCode, String, String) {
    let error = turn.1.as_ref().unwrap_err();
    let kind = error.detail.as_ref().and_then(|detail| detail["kind"].as_str()).unwrap_or_default();
    (error.code, kind.to_owned(), text(&turn.0))
}

/// The text of the events.
pub(crate) fn text(events: &[StreamEvent]) -> String {
    let texts = events.iter().filter_map(|event| match event {
        StreamEvent::Text { content, .. } => Some(content.as_str()),
        _ => None,
    });
    texts.collect()
}

/// The session that the first event names.
pub(crate) fn session_of(events: &[StreamEvent]) -> ProviderSessionId {
    match &events[0] {
        StreamEvent::Session { session_id } => session_id.clone(),
        other => panic!("{other:?} came before the session"),
    }
}

/// Who spoke and what, in one request.
pub(crate) fn spoken<R: Vendor>(server: &ModelServer, request: usize) -> Vec<String> {
    R::spoken(&server.requests()[request].body)
}
