//! What holds for every program that stays warm between turns: the cases, and what they need of a program.

use std::fmt::Debug;
use std::ops::Deref;
use std::time::Duration;

use inspan_model_server::{Block, Scenario, Turn};
use inspan_protocol::{
    ErrorCode, ExecutionContext, OutputFacts, Provider, ProviderInput, ProviderOutput, ProviderSessionId,
    StopReason, StreamEvent,
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::turns::{self, kind, run, tools};
use crate::world::{Answers, BOUND, Home, asking};

/// A real program in a home of its own, with a model server.
pub(crate) trait RealProgram: Deref<Target = Home> + Sized {
    type Provider: Provider<Output: Debug> + Default;

    fn new(scenario: Scenario) -> Self;

    fn context(&self) -> ExecutionContext;

    /// The numbers of the running programs, without what they run themselves.
    fn processes(&self) -> Vec<u32>;

    /// The options with which the model's tools run once a person has said yes, if any are needed.
    fn options() -> Value {
        json!({})
    }

    fn context_asking(&self, answers: Answers) -> ExecutionContext {
        asking(self.context(), answers)
    }
}

type Input<W> = <<W as RealProgram>::Provider as Provider>::Input;

/// An input of the program, with these options beside its own.
fn input<W: RealProgram>(prompt: &str, more: &[(&str, Value)]) -> Input<W> {
    let mut options = W::options();
    for (name, value) in more {
        options[name] = value.clone();
    }
    serde_json::from_value(json!({ "prompt": prompt, "options": options })).unwrap()
}

/// The next turn of a conversation, which has to succeed.
async fn go_on<W: RealProgram>(
    world: &W,
    provider: &W::Provider,
    session: &ProviderSessionId,
    more: &[(&str, Value)],
) -> (Vec<StreamEvent>, OutputFacts) {
    let mut next = input::<W>("", more);
    next.resume(session, "go on");
    let (events, result) = run(provider, next, world.context()).await;
    (events, result.unwrap().facts())
}

/// Ends the program after the first turn, and continues its conversation elsewhere: what the first turn gave, and the
/// second with its events.
pub(crate) async fn continues_in_a_new_process_and_directory<W: RealProgram>(
    world: &W,
) -> (OutputFacts, Vec<StreamEvent>, OutputFacts) {
    let provider = W::Provider::default();
    let first = run(&provider, input::<W>("one", &[]), world.context()).await.1.unwrap().facts();
    world.assert_ends(&provider).await;
    let provider = W::Provider::default();
    std::fs::create_dir(world.folder("proj/sub")).unwrap();
    let session = first.session.as_ref().unwrap();
    let (events, second) = go_on(world, &provider, session, &[("cwd", json!("sub"))]).await;
    assert_eq!((second.text.as_str(), &second.session), ("second", &first.session));
    world.assert_ends(&provider).await;
    (first, events, second)
}

/// Cancels a turn once its tool runs: the tool is gone, the program stays, and the conversation continues.
pub(crate) async fn a_cancelled_tool_leaves_nothing_behind<W: RealProgram>() {
    let sleep = Turn { blocks: vec![Block::shell("sleep 300; echo late")], ..Turn::default() };
    let world = W::new(Scenario::of([sleep, Turn::text("continued")]));
    let provider = W::Provider::default();
    let context = world.context_asking(Answers::Allow);
    let cancel = context.cancel.clone();
    let called = CancellationToken::new();
    let stop = async {
        called.cancelled().await;
        world.wait_for("sleep").await;
        cancel.cancel();
    };
    let watch = |event: &StreamEvent| {
        if matches!(event, StreamEvent::ToolStart { .. }) {
            called.cancel();
        }
    };
    let running = turns::run_watching(&provider, input::<W>("wait", &[]), context, watch);
    let ((events, result), ()) = tokio::join!(running, stop);
    let output = result.unwrap().facts();
    assert_eq!(output.stop_reason, StopReason::Aborted);
    assert_eq!((tools(&events).len(), tools(&events)[0].3), (1, true));
    // A program may kill its tool's shell in the moment after it said that the turn ended.
    world.wait_until_gone("sleep 300", Duration::from_secs(2)).await;
    let warm = world.processes();
    let (_, second) = go_on(&world, &provider, &output.session.unwrap(), &[]).await;
    assert_eq!((second.text.as_str(), world.processes()), ("continued", warm));
    world.assert_ends(&provider).await;
}

/// Drops a turn while its tool runs.
pub(crate) async fn a_dropped_stream_kills_the_tool_too<W: RealProgram>() {
    let sleep = Turn { blocks: vec![Block::shell("sleep 300; echo late")], ..Turn::default() };
    let world = W::new(Scenario::of([sleep]));
    let provider = W::Provider::default();
    let stream = provider.execute(input::<W>("wait", &[]), world.context_asking(Answers::Allow));
    tokio::select! {
        () = world.wait_for("sleep") => {}
        () = turns::drain(stream) => panic!("the turn ended by itself"),
    }
    // The stream was dropped with its future.
    world.wait_until_nothing_runs(BOUND).await;
}

/// A model that says nothing for so long ends the turn, and the same process takes the next.
pub(crate) async fn a_silent_stream_is_a_timeout_and_the_process_stays_usable<W: RealProgram>(
    stall: Duration,
) {
    let world =
        W::new(Scenario::of([Turn { stall_after: Some(4), ..Turn::text("a b c d") }, Turn::text("again")]));
    let provider = W::Provider::default();
    let hasty = [("stallTimeoutMs", json!(stall.as_millis() as u64))];
    let (events, result) = run(&provider, input::<W>("hi", &hasty), world.context()).await;
    let error = result.unwrap_err();
    assert_eq!((error.code, kind(&error)), (ErrorCode::Timeout, json!("stall")));
    let StreamEvent::Session { session_id } = &events[0] else { panic!("{:?}", events[0]) };
    let warm = world.processes();
    let (_, second) = go_on(&world, &provider, session_id, &hasty).await;
    assert_eq!((second.text.as_str(), world.processes()), ("again", warm));
    world.assert_ends(&provider).await;
}
