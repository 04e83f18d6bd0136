//! Providers that misbehave, each in one misbehaviour, and what the suite finds: a suite that lets them pass proves nothing.

use std::sync::Arc;

use futures::future::BoxFuture;
use futures::{StreamExt, stream};
use inspan_protocol::{
    AgentError, Chunk, DynProvider, ErrorCode, ExecutionContext, InputFacts, OutputFacts,
    ProviderCapabilities, ProviderDescriptor, ProviderItem, ProviderSessionId, ProviderStream, StopReason,
    StreamEvent, Usage,
};
use serde_json::{Value, json};

use super::*;
use crate::finding::Deviation;
use crate::target::{ModelAccess, TargetContext};
use crate::worker::PLANTED;

/// How it misbehaves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Misbehaviour {
    None,
    EndsTwice,
    NeverEnds,
    StreamsMoreThanItReturns,
    ShowsTheKey,
    NamesNoProvider,
    Fails,
}

#[derive(Clone, Copy)]
struct FaultyProvider(Misbehaviour);

impl DynProvider for FaultyProvider {
    fn descriptor(&self) -> ProviderDescriptor {
        let capabilities = ProviderCapabilities { streaming: true, ..ProviderCapabilities::default() };
        ProviderDescriptor {
            provider_type: "faulty".to_owned(),
            display_name: "FaultyProvider".to_owned(),
            capabilities,
        }
    }

    fn input_schema(&self) -> Value {
        json!({})
    }

    fn output_schema(&self) -> Value {
        json!({})
    }

    fn execute(&self, input: Value, _: ExecutionContext) -> ProviderStream<Value> {
        let prompt = input["prompt"].as_str().unwrap_or_default().to_owned();
        let event = |event| Ok(ProviderItem::Event(event));
        let text =
            |content: &str| event(StreamEvent::Text { content: content.to_owned(), chunk: Chunk::Delta });
        let end = || Ok(ProviderItem::Output(json!({ "text": prompt })));
        let session = event(StreamEvent::Session { session_id: "s-1".into() });
        let items = match self.0 {
            Misbehaviour::None => vec![session, text(&prompt), end()],
            Misbehaviour::EndsTwice => vec![session, text(&prompt), end(), end()],
            Misbehaviour::NeverEnds => vec![session, text(&prompt)],
            Misbehaviour::StreamsMoreThanItReturns => vec![session, text(&prompt), text(" And more."), end()],
            Misbehaviour::ShowsTheKey => vec![session, text(&prompt), text(PLANTED), end()],
            Misbehaviour::NamesNoProvider => vec![session, Err(AgentError::new(ErrorCode::Network, "gone"))],
            Misbehaviour::Fails => {
                vec![session, Err(AgentError::new(ErrorCode::Network, "gone").from_provider("faulty"))]
            }
        };
        stream::iter(items).boxed()
    }

    fn resume(&self, input: Value, _: &ProviderSessionId, _: &str) -> Result<Value, AgentError> {
        Ok(input)
    }

    fn input_facts(&self, _: &Value) -> Result<InputFacts, AgentError> {
        Ok(InputFacts::default())
    }

    fn output_facts(&self, output: &Value) -> Result<OutputFacts, AgentError> {
        Ok(OutputFacts {
            text: output["text"].as_str().unwrap_or_default().to_owned(),
            structured_output: None,
            session: Some("s-1".into()),
            turn_id: None,
            stop_reason: StopReason::Complete,
            usage: Usage::default(),
            cost_usd: None,
            num_turns: 1,
        })
    }

    fn shutdown(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// Makes a provider that misbehaves so.
macro_rules! faulty {
    ($misbehaviour:ident) => {
        || Arc::new(FaultyProvider(Misbehaviour::$misbehaviour))
    };
}

type Faulty = fn() -> Arc<dyn DynProvider>;

/// The outcome of the first behaviour of the list, and of what follows it in the report.
async fn outcomes(provider: Faulty, exceptions: &'static [Exception]) -> Vec<BehaviourOutcome> {
    let settings = SuiteSettings { filter: "text".to_owned(), ..SuiteSettings::default() };
    let environment = |_: &TargetContext<'_>| vec![("FAULTY_API_KEY".to_owned(), PLANTED.to_owned())];
    let target = ConformanceTarget {
        model_access: ModelAccess::None,
        exceptions,
        ..ConformanceTarget::new(provider, environment)
    };
    let report = conform(target, &settings).await;
    let wanted = |row: &BehaviourRow| row.behaviour == "text" || row.behaviour == "no_such_behaviour";
    report.rows.into_iter().filter(wanted).map(|row| row.outcome).collect()
}

fn failed(finding: &str) -> BehaviourOutcome {
    BehaviourOutcome::Failed { finding: finding.to_owned() }
}

#[tokio::test]
async fn each_misbehaviour_is_found() {
    let words = "Oxen pull the plough in pairs.";
    let rows: [(Faulty, BehaviourOutcome); 6] = [
        (faulty!(None), BehaviourOutcome::Holds),
        (faulty!(EndsTwice), failed("something follows the end of the turn")),
        (faulty!(NeverEnds), failed("the stream ends without an output or an error")),
        (
            faulty!(StreamsMoreThanItReturns),
            failed(&format!("the streamed text: \"{words} And more.\", not \"{words}\"")),
        ),
        (faulty!(ShowsTheKey), failed("the planted key shows in the events")),
        (faulty!(NamesNoProvider), failed("the provider that the error names: None, not Some(\"faulty\")")),
    ];
    for (provider, expected) in rows {
        assert_eq!(outcomes(provider, &[]).await, [expected]);
    }
}

const fn deviates(behaviours: &'static [&'static str], deviation: Deviation) -> Exception {
    Exception::deviates(behaviours, deviation, "it is faulty")
}

#[tokio::test]
async fn a_declared_deviation_must_be_exactly_what_is_found() {
    const RIGHT: &[Exception] = &[deviates(&["text"], Deviation::Fails(ErrorCode::Network))];
    const WRONG: &[Exception] = &[deviates(&["text"], Deviation::NoEnd)];
    const UNKNOWN: &[Exception] = &[deviates(&["no_such_behaviour"], Deviation::NoEnd)];
    const ABSENT: &[Exception] = &[Exception::not_applicable(&["text"], "it is faulty")];
    let deviates = BehaviourOutcome::Deviates {
        reason: "it is faulty".to_owned(),
        finding: "it fails with NETWORK".to_owned(),
    };
    let otherwise = "it fails with NETWORK (gone); it is declared to deviate otherwise: NoEnd";
    let rows: [(Faulty, _, _); 5] = [
        (faulty!(Fails), RIGHT, vec![deviates]),
        (faulty!(Fails), WRONG, vec![failed(otherwise)]),
        (faulty!(None), WRONG, vec![failed("it holds, and is declared to deviate: NoEnd")]),
        (
            faulty!(None),
            UNKNOWN,
            vec![BehaviourOutcome::Holds, failed("the target declares an exception to an unknown behaviour")],
        ),
        (
            faulty!(EndsTwice),
            ABSENT,
            vec![BehaviourOutcome::NotApplicable { reason: "it is faulty".to_owned() }],
        ),
    ];
    for (provider, exceptions, expected) in rows {
        assert_eq!(outcomes(provider, exceptions).await, expected, "{exceptions:?}");
    }
}
