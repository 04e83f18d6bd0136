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

struct FaultyTarget(Misbehaviour, &'static [Exception]);

impl ConformanceTarget for FaultyTarget {
    fn provider(&self) -> Arc<dyn DynProvider> {
        Arc::new(FaultyProvider(self.0))
    }

    fn environment(&self, _: &TargetContext<'_>) -> Vec<(String, String)> {
        vec![("FAULTY_API_KEY".to_owned(), PLANTED.to_owned())]
    }

    fn model_access(&self) -> ModelAccess {
        ModelAccess::None
    }

    fn exceptions(&self) -> &'static [Exception] {
        self.1
    }
}

/// The outcome of the first behaviour of the list, and of what follows it in the report.
async fn outcomes(misbehaviour: Misbehaviour, exceptions: &'static [Exception]) -> Vec<BehaviourOutcome> {
    let settings = SuiteSettings { filter: "text".to_owned(), ..SuiteSettings::default() };
    let report = conform(Arc::new(FaultyTarget(misbehaviour, exceptions)), &settings).await;
    let wanted = |row: &BehaviourRow| row.behaviour == "text" || row.behaviour == "no_such_behaviour";
    report.rows.into_iter().filter(wanted).map(|row| row.outcome).collect()
}

fn failed(finding: &str) -> BehaviourOutcome {
    BehaviourOutcome::Failed { finding: finding.to_owned() }
}

#[tokio::test]
async fn each_misbehaviour_is_found() {
    let words = "Oxen pull the plough in pairs.";
    let rows = [
        (Misbehaviour::None, BehaviourOutcome::Holds),
        (Misbehaviour::EndsTwice, failed("something follows the end of the turn")),
        (Misbehaviour::NeverEnds, failed("the stream ends without an output or an error")),
        (
            Misbehaviour::StreamsMoreThanItReturns,
            failed(&format!("the streamed text: \"{words} And more.\", not \"{words}\"")),
        ),
        (Misbehaviour::ShowsTheKey, failed("the planted key shows in the events")),
        (
            Misbehaviour::NamesNoProvider,
            failed("the provider that the error names: None, not Some(\"faulty\")"),
        ),
    ];
    for (misbehaviour, expected) in rows {
        assert_eq!(outcomes(misbehaviour, &[]).await, [expected], "{misbehaviour:?}");
    }
}

const fn deviates(behaviours: &'static [&'static str], deviation: Deviation) -> Exception {
    Exception { behaviours, kind: ExceptionKind::Deviates(deviation), reason: "it is faulty" }
}

#[tokio::test]
async fn a_declared_deviation_must_be_exactly_what_is_found() {
    const RIGHT: &[Exception] = &[deviates(&["text"], Deviation::Fails(ErrorCode::Network))];
    const WRONG: &[Exception] = &[deviates(&["text"], Deviation::NoEnd)];
    const UNKNOWN: &[Exception] = &[deviates(&["no_such_behaviour"], Deviation::NoEnd)];
    const ABSENT: &[Exception] =
        &[Exception { behaviours: &["text"], kind: ExceptionKind::NotApplicable, reason: "it is faulty" }];
    let deviates = BehaviourOutcome::Deviates {
        reason: "it is faulty".to_owned(),
        finding: "it fails with NETWORK".to_owned(),
    };
    let otherwise = "it fails with NETWORK (gone); it is declared to deviate otherwise: NoEnd";
    let rows = [
        (Misbehaviour::Fails, RIGHT, vec![deviates]),
        (Misbehaviour::Fails, WRONG, vec![failed(otherwise)]),
        (Misbehaviour::None, WRONG, vec![failed("it holds, and is declared to deviate: NoEnd")]),
        (
            Misbehaviour::None,
            UNKNOWN,
            vec![BehaviourOutcome::Holds, failed("the target declares an exception to an unknown behaviour")],
        ),
        (
            Misbehaviour::EndsTwice,
            ABSENT,
            vec![BehaviourOutcome::NotApplicable { reason: "it is faulty".to_owned() }],
        ),
    ];
    for (misbehaviour, exceptions, expected) in rows {
        assert_eq!(outcomes(misbehaviour, exceptions).await, expected, "{misbehaviour:?} {exceptions:?}");
    }
}
