//! What providers can do, as flags and in the words for people.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a provider can do; the flow compiler refuses what it cannot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderCapabilities {
    /// Events come while the turn runs, not only at its end.
    pub streaming: bool,
    /// It answers in JSON of a given schema.
    pub structured_output: bool,
    /// It asks before it uses a tool.
    pub permissions: bool,
    /// Its tools can be allowed and denied.
    pub tools: bool,
    /// It can call tools of the program that runs it.
    #[serde(default)]
    pub host_tools: bool,
    /// The amount of thinking can be chosen.
    pub thinking: bool,
    /// It reads pictures.
    pub images: bool,
    /// It says what a turn cost.
    pub cost: bool,
    /// It branches a conversation: with `fork` beside `resume` in its options, the turn knows what was said, and the
    /// conversation itself stays as it is. If its outputs have a turn id, `forkAt` says after which turn the branch begins.
    #[serde(default)]
    pub fork: bool,
    /// A turn that was cut short is no part of its conversation afterwards, so what it was asked is asked again.
    #[serde(default)]
    pub forgets_cut_turns: bool,
    /// A message can join a turn in progress without interrupting it: it reads `ExecutionContext::steering`.
    pub native_steer: bool,
}

impl ProviderCapabilities {
    /// Each ability by the word for people, and whether the provider has it. A new field does not compile until it is
    /// here.
    pub fn abilities(self) -> [(&'static str, bool); 10] {
        let Self {
            streaming,
            structured_output,
            permissions,
            tools,
            host_tools,
            thinking,
            images,
            cost,
            fork,
            native_steer,
            // No ability.
            forgets_cut_turns: _,
        } = self;
        [
            ("streaming", streaming),
            ("structured output", structured_output),
            ("permissions", permissions),
            ("tool rules", tools),
            ("host tools", host_tools),
            ("thinking level", thinking),
            ("images", images),
            ("cost", cost),
            ("branched conversations", fork),
            ("native steering", native_steer),
        ]
    }
}
