//! The providers that need no program.

use std::sync::Arc;

use inspan_conformance::{ConformanceTarget, ModelAccess, ModelCall, PLANTED, Prompt, TargetContext};
use inspan_model_server::{Block, Turn};
use inspan_protocol::{DynProvider, IntoProvider};
use inspan_providers::{AnthropicProvider, EchoProvider, OpenAiProvider, ScriptedProvider};
use serde_json::{Value, json};

use crate::programs::variables;

pub(crate) const TARGETS: [ConformanceTarget; 4] = [
    service(
        || AnthropicProvider::new().into_provider(),
        |context| {
            variables([
                ("ANTHROPIC_API_KEY", PLANTED.to_owned()),
                ("ANTHROPIC_BASE_URL", context.server.to_owned()),
            ])
        },
    ),
    service(
        || OpenAiProvider::new().into_provider(),
        |context| {
            variables([
                ("OPENAI_API_KEY", PLANTED.to_owned()),
                ("OPENAI_BASE_URL", format!("{}/v1", context.server)),
            ])
        },
    ),
    ConformanceTarget {
        model_access: ModelAccess::None,
        ..ConformanceTarget::new(|| EchoProvider.into_provider(), |_| Vec::new())
    },
    ConformanceTarget {
        model_access: ModelAccess::None,
        input: scripted_input,
        ..ConformanceTarget::new(|| ScriptedProvider.into_provider(), |_| Vec::new())
    },
];

/// A service that is called over HTTP with a key. A request without tools is its usual one, and nothing on the side.
const fn service(
    provider: fn() -> Arc<dyn DynProvider>,
    environment: fn(&TargetContext<'_>) -> Vec<(String, String)>,
) -> ConformanceTarget {
    ConformanceTarget {
        call: ModelCall::of_program,
        aux_detect: false,
        ..ConformanceTarget::new(provider, environment)
    }
}

fn scripted_input(prompt: &Prompt<'_>) -> Value {
    let mut options = prompt.options.clone();
    // It thinks as the script says, whatever the option.
    options.remove("thinking");
    let turns: Vec<Value> = prompt.scenario.turns.iter().map(steps).collect();
    options.insert("turns".to_owned(), json!(turns));
    json!({ "prompt": prompt.text, "options": options })
}

/// The steps of a turn, as far as a script can express them.
fn steps(turn: &Turn) -> Value {
    let step = |block: &Block| match block {
        Block::Text { text, .. } => Some(json!({ "text": text })),
        Block::Thinking { text, .. } => Some(json!({ "thinking": text })),
        _ => None,
    };
    let usage = json!({ "usage": { "tokens": {
        "inputTokens": turn.usage.input_tokens, "outputTokens": turn.usage.output_tokens,
        "cacheReadTokens": turn.usage.cache_read_tokens, "cacheCreationTokens": turn.usage.cache_creation_tokens,
    } } });
    turn.blocks.iter().filter_map(step).chain([usage]).collect()
}

#[cfg(test)]
mod tests {
    use inspan_conformance::{BEHAVIOURS, BehaviourOutcome, ProviderReport, SuiteSettings, conform};

    /// The provider's report; fails with the whole table if a row fails.
    async fn report(name: &str) -> ProviderReport {
        let mut targets = crate::find(name);
        assert_eq!(targets.len(), 1, "{name}");
        let report = conform(targets.remove(0), &SuiteSettings::default()).await;
        assert!(report.holds(), "{report}");
        assert_eq!(
            report.rows.len(),
            BEHAVIOURS.len() + 1,
            "a row for each behaviour, and one for what is left"
        );
        report
    }

    fn names(report: &ProviderReport, wanted: fn(&BehaviourOutcome) -> bool) -> Vec<&str> {
        let rows = report.rows.iter().filter(|row| wanted(&row.outcome));
        rows.map(|row| row.behaviour.as_str()).collect()
    }

    fn holds(outcome: &BehaviourOutcome) -> bool {
        matches!(outcome, BehaviourOutcome::Holds)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn anthropic() {
        let report = report("anthropic").await;
        let expected = ["cancel_mid_tool", "cost_per_turn"];
        assert_eq!(names(&report, |outcome| !holds(outcome)), expected, "{report}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn echo() {
        let report = report("echo").await;
        let expected = [
            "text",
            "empty_prompt",
            "unknown_option",
            "unknown_session",
            "cancel_before_start",
            "nothing_left",
        ];
        assert_eq!(names(&report, holds), expected, "{report}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn scripted() {
        let report = report("scripted").await;
        let expected = [
            "text",
            "thinking",
            "empty_prompt",
            "unknown_option",
            "unknown_session",
            "cancel_before_start",
            "nothing_left",
        ];
        assert_eq!(names(&report, holds), expected, "{report}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn openai() {
        let report = report("openai").await;
        assert_eq!(
            names(&report, |outcome| !holds(outcome)),
            ["cancel_mid_tool", "cost_per_turn"],
            "{report}"
        );
    }
}
