//! The providers that need no program.

use std::sync::Arc;

use inspan_conformance::{ConformanceTarget, ModelAccess, ModelCall, PLANTED, Prompt, TargetContext, Tool};
use inspan_model_server::{Block, Scenario, Turn};
use inspan_protocol::{DynProvider, IntoProvider};
use inspan_providers::{AnthropicProvider, EchoProvider, OpenAiProvider, ScriptedProvider};
use serde_json::{Value, json};

/// The target for a service that is called over HTTP with a key.
#[derive(Clone, Copy)]
pub(crate) struct ServiceTarget {
    provider: fn() -> Arc<dyn DynProvider>,
    /// The variable that holds the key.
    key: &'static str,
    /// The variable that holds the address of the service.
    address: &'static str,
    /// What the address has after the address of the server.
    path: &'static str,
}

/// The target for `anthropic`.
pub(crate) const ANTHROPIC: ServiceTarget = ServiceTarget {
    provider: || AnthropicProvider::new().into_provider(),
    key: "ANTHROPIC_API_KEY",
    address: "ANTHROPIC_BASE_URL",
    path: "",
};

/// The target for `openai`.
pub(crate) const OPENAI: ServiceTarget = ServiceTarget {
    provider: || OpenAiProvider::new().into_provider(),
    key: "OPENAI_API_KEY",
    address: "OPENAI_BASE_URL",
    path: "/v1",
};

impl ConformanceTarget for ServiceTarget {
    fn provider(&self) -> Arc<dyn DynProvider> {
        (self.provider)()
    }

    fn environment(&self, context: &TargetContext<'_>) -> Vec<(String, String)> {
        let address = format!("{}{}", context.server, self.path);
        vec![(self.key.to_owned(), PLANTED.to_owned()), (self.address.to_owned(), address)]
    }

    fn call(&self, tool: Tool<'_>) -> Option<ModelCall> {
        ModelCall::of_program(tool)
    }

    fn scenario(&self, scenario: Scenario) -> Scenario {
        // A request without tools is its usual one, and nothing on the side.
        Scenario { aux_detect: false, ..scenario }
    }
}

/// The target for `echo`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EchoTarget;

impl ConformanceTarget for EchoTarget {
    fn provider(&self) -> Arc<dyn DynProvider> {
        EchoProvider.into_provider()
    }

    fn environment(&self, _: &TargetContext<'_>) -> Vec<(String, String)> {
        Vec::new()
    }

    fn model_access(&self) -> ModelAccess {
        ModelAccess::None
    }
}

/// The target for `scripted`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ScriptedTarget;

impl ConformanceTarget for ScriptedTarget {
    fn provider(&self) -> Arc<dyn DynProvider> {
        ScriptedProvider.into_provider()
    }

    fn environment(&self, _: &TargetContext<'_>) -> Vec<(String, String)> {
        Vec::new()
    }

    fn model_access(&self) -> ModelAccess {
        ModelAccess::None
    }

    fn input(&self, prompt: &Prompt<'_>) -> Value {
        let mut options = prompt.options.clone();
        // It thinks as the script says, whatever the option.
        options.remove("thinking");
        let turns: Vec<Value> = prompt.scenario.turns.iter().map(steps).collect();
        options.insert("turns".to_owned(), json!(turns));
        json!({ "prompt": prompt.text, "options": options })
    }
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
