//! Providers that misbehave, each in one way, and what the suite finds: a suite that lets them pass proves nothing.

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
use crate::rig::{Place, Reach};
use crate::secret::PLANTED;

/// In which way it misbehaves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Well,
    EndsTwice,
    NeverEnds,
    SaysMoreThanItGives,
    TellsTheKey,
    NamesNobody,
    Fails,
}

#[derive(Clone, Copy)]
struct Odd(Way);

impl DynProvider for Odd {
    fn descriptor(&self) -> ProviderDescriptor {
        let capabilities = ProviderCapabilities { streaming: true, ..ProviderCapabilities::default() };
        ProviderDescriptor { provider_type: "odd".to_owned(), display_name: "Odd".to_owned(), capabilities }
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
            Way::Well => vec![session, text(&prompt), end()],
            Way::EndsTwice => vec![session, text(&prompt), end(), end()],
            Way::NeverEnds => vec![session, text(&prompt)],
            Way::SaysMoreThanItGives => vec![session, text(&prompt), text(" And more."), end()],
            Way::TellsTheKey => vec![session, text(&prompt), text(PLANTED), end()],
            Way::NamesNobody => vec![session, Err(AgentError::new(ErrorCode::Network, "gone"))],
            Way::Fails => {
                vec![session, Err(AgentError::new(ErrorCode::Network, "gone").from_provider("odd"))]
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

struct OddRig(Way, &'static [Exception]);

impl ConformanceTarget for OddRig {
    fn provider(&self) -> Arc<dyn DynProvider> {
        Arc::new(Odd(self.0))
    }

    fn environment(&self, _: &Place<'_>) -> Vec<(String, String)> {
        vec![("ODD_API_KEY".to_owned(), PLANTED.to_owned())]
    }

    fn reach(&self) -> Reach {
        Reach::Nobody
    }

    fn exceptions(&self) -> &'static [Exception] {
        self.1
    }
}

/// What comes of the first behaviour of the list, and of what follows it in the report.
async fn outcomes(way: Way, exceptions: &'static [Exception]) -> Vec<Outcome> {
    let settings = Settings { filter: "text".to_owned(), ..Settings::default() };
    let report = conform(Arc::new(OddRig(way, exceptions)), &settings).await;
    let wanted = |row: &Row| row.behaviour == "text" || row.behaviour == "no_such_behaviour";
    report.rows.into_iter().filter(wanted).map(|row| row.outcome).collect()
}

fn failed(finding: &str) -> Outcome {
    Outcome::Failed { finding: finding.to_owned() }
}

#[tokio::test]
async fn each_misbehaviour_is_found() {
    let words = "Oxen pull the plough in pairs.";
    let rows = [
        (Way::Well, Outcome::Holds),
        (Way::EndsTwice, failed("something follows the end of the turn")),
        (Way::NeverEnds, failed("the stream ends without an output or an error")),
        (
            Way::SaysMoreThanItGives,
            failed(&format!("the streamed text: \"{words} And more.\", not \"{words}\"")),
        ),
        (Way::TellsTheKey, failed("the planted key shows in the events")),
        (Way::NamesNobody, failed("the provider that the error names: None, not Some(\"odd\")")),
    ];
    for (way, expected) in rows {
        assert_eq!(outcomes(way, &[]).await, [expected], "{way:?}");
    }
}

const fn deviates(behaviour: &'static str, deviation: Deviation) -> Exception {
    Exception { behaviour, kind: Kind::Deviates(deviation), reason: "it is odd" }
}

#[tokio::test]
async fn a_declared_deviation_must_be_exactly_what_is_found() {
    const RIGHT: &[Exception] = &[deviates("text", Deviation::Fails(ErrorCode::Network))];
    const WRONG: &[Exception] = &[deviates("text", Deviation::NoEnd)];
    const UNKNOWN: &[Exception] = &[deviates("no_such_behaviour", Deviation::NoEnd)];
    const ABSENT: &[Exception] =
        &[Exception { behaviour: "text", kind: Kind::NotApplicable, reason: "it is odd" }];
    let deviates =
        Outcome::Deviates { reason: "it is odd".to_owned(), finding: "it fails with NETWORK".to_owned() };
    let otherwise = "it fails with NETWORK (gone); it is declared to deviate otherwise: NoEnd";
    let rows = [
        (Way::Fails, RIGHT, vec![deviates]),
        (Way::Fails, WRONG, vec![failed(otherwise)]),
        (Way::Well, WRONG, vec![failed("it holds, and is declared to deviate: NoEnd")]),
        (Way::Well, UNKNOWN, vec![Outcome::Holds, failed("the rig declares an exception to no behaviour")]),
        (Way::EndsTwice, ABSENT, vec![Outcome::NotApplicable { reason: "it is odd".to_owned() }]),
    ];
    for (way, exceptions, expected) in rows {
        assert_eq!(outcomes(way, exceptions).await, expected, "{way:?} {exceptions:?}");
    }
}
