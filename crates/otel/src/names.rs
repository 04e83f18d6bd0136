//! Every name of a span, attribute or event, and the version of the conventions that they follow. Names that begin with
//! `gen_ai.` and `error.` are those of the conventions; what these have no name for begins with `inspan.`.

/// The release of `open-telemetry/semantic-conventions-genai` whose names these are.
pub const GENAI_CONVENTIONS: &str = "0.1.0";
/// Where the general conventions of that release are described; sent with the spans.
pub(crate) const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/1.45.0";
/// The name of what makes the spans.
pub(crate) const SCOPE: &str = "inspan";

/// What an operation is, the value of `gen_ai.operation.name`.
pub(crate) mod operation {
    /// A session of a flow.
    pub(crate) const WORKFLOW: &str = "invoke_workflow";
    /// An agent at work.
    pub(crate) const AGENT: &str = "invoke_agent";
    /// A tool call.
    pub(crate) const TOOL: &str = "execute_tool";
    /// One request to a model.
    pub(crate) const CHAT: &str = "chat";
}

/// Attributes of the conventions.
pub(crate) mod gen_ai {
    /// One of [`super::operation`].
    pub(crate) const OPERATION: &str = "gen_ai.operation.name";
    /// The vendor.
    pub(crate) const PROVIDER: &str = "gen_ai.provider.name";
    /// The agent, or the flow.
    pub(crate) const AGENT: &str = "gen_ai.agent.name";
    /// The vendor's conversation.
    pub(crate) const CONVERSATION: &str = "gen_ai.conversation.id";
    /// The model that was asked for.
    pub(crate) const REQUEST_MODEL: &str = "gen_ai.request.model";
    /// The model that answered.
    pub(crate) const RESPONSE_MODEL: &str = "gen_ai.response.model";
    /// Why the model stopped.
    pub(crate) const FINISH_REASONS: &str = "gen_ai.response.finish_reasons";
    /// Tokens read, cached ones included.
    pub(crate) const INPUT_TOKENS: &str = "gen_ai.usage.input_tokens";
    /// Tokens written.
    pub(crate) const OUTPUT_TOKENS: &str = "gen_ai.usage.output_tokens";
    /// Tokens read from the vendor's cache.
    pub(crate) const CACHE_READ_TOKENS: &str = "gen_ai.usage.cache_read.input_tokens";
    /// Tokens written to the vendor's cache.
    pub(crate) const CACHE_WRITE_TOKENS: &str = "gen_ai.usage.cache_write.input_tokens";
    /// Tokens written for reasoning.
    pub(crate) const REASONING_TOKENS: &str = "gen_ai.usage.reasoning.output_tokens";
    /// The tool.
    pub(crate) const TOOL: &str = "gen_ai.tool.name";
    /// The vendor's id of the tool call.
    pub(crate) const TOOL_CALL: &str = "gen_ai.tool.call.id";
    /// What the tool was given; content.
    pub(crate) const TOOL_ARGUMENTS: &str = "gen_ai.tool.call.arguments";
    /// What the tool gave; content.
    pub(crate) const TOOL_RESULT: &str = "gen_ai.tool.call.result";
    /// What the agent answered; content.
    pub(crate) const OUTPUT_MESSAGES: &str = "gen_ai.output.messages";
}

/// Why a span is an error.
pub(crate) const ERROR_TYPE: &str = "error.type";
/// The error of something that names none.
pub(crate) const OTHER_ERROR: &str = "_OTHER";

/// What the conventions have no name for.
pub(crate) mod own {
    /// The session.
    pub(crate) const SESSION: &str = "inspan.session.id";
    /// How the session ended.
    pub(crate) const OUTCOME: &str = "inspan.outcome";
    /// A cost in US dollars.
    pub(crate) const COST: &str = "inspan.cost_usd";
    /// The node's place in the run.
    pub(crate) const PATH: &str = "inspan.node.path";
    /// The node's type.
    pub(crate) const NODE_TYPE: &str = "inspan.node.type";
    /// Which try of the node this is.
    pub(crate) const ATTEMPT: &str = "inspan.node.attempt";
    /// Which pass of its loop, where it is not the first.
    pub(crate) const PASS: &str = "inspan.node.pass";
    /// How the attempt ended, unless well or with an error: `cancelled`, `interrupted`, `replaced`.
    pub(crate) const END: &str = "inspan.node.end";
    /// Why the attempt was cancelled.
    pub(crate) const CANCEL_REASON: &str = "inspan.node.cancel_reason";
    /// Whether another attempt follows.
    pub(crate) const WILL_RETRY: &str = "inspan.node.will_retry";
    /// Which frame of a foreach or loop, from 0.
    pub(crate) const FRAME: &str = "inspan.frame.index";
    /// The agent run.
    pub(crate) const RUN: &str = "inspan.run.id";
    /// The turn of an agent run.
    pub(crate) const TURN: &str = "inspan.turn";
    /// What is waited for: `input`, `permission`, `limit`, `retry`, `resume` or `process`.
    pub(crate) const WAITS_FOR: &str = "inspan.wait.for";
    /// Until when, as RFC 3339.
    pub(crate) const UNTIL: &str = "inspan.wait.until";
    /// The question.
    pub(crate) const PROMPT: &str = "inspan.prompt.id";
    /// The question's words; content.
    pub(crate) const PROMPT_TEXT: &str = "inspan.prompt.text";
    /// How one session follows another: `fork` or `resume`.
    pub(crate) const LINK: &str = "inspan.link";
    /// More about an event.
    pub(crate) const DETAIL: &str = "inspan.detail";
    /// The node that an event is about.
    pub(crate) const NODE: &str = "inspan.node";
    /// Tokens of all kinds.
    pub(crate) const TOKENS: &str = "inspan.tokens";
}

/// Names of spans that no convention names.
pub(crate) mod span {
    /// One item of a foreach, one pass of a loop, or a subflow.
    pub(crate) const FRAME: &str = "frame";
    /// A person is asked.
    pub(crate) const QUESTION: &str = "wait for person";
    /// A failed node is due to be tried again.
    pub(crate) const RETRY: &str = "wait for retry";
    /// A vendor's usage limit is waited out.
    pub(crate) const LIMIT: &str = "wait for limit";
    /// The session is paused.
    pub(crate) const PAUSED: &str = "wait for resume";
    /// No process runs the session.
    pub(crate) const NO_PROCESS: &str = "wait for process";
}

/// Events within spans.
pub(crate) mod event {
    /// A node will not run.
    pub(crate) const SKIPPED: &str = "inspan.node.skipped";
    /// A node's output was taken from earlier work.
    pub(crate) const REUSED: &str = "inspan.node.reused";
    /// An agent was chosen.
    pub(crate) const AGENT: &str = "inspan.agent.chosen";
    /// A loop edge fired.
    pub(crate) const ITERATE: &str = "inspan.loop.iterate";
    /// A frame is to end before its time.
    pub(crate) const FRAME_ENDING: &str = "inspan.frame.ending";
    /// A turn of an agent began.
    pub(crate) const TURN: &str = "inspan.agent.turn";
    /// A message that steers reached an agent.
    pub(crate) const STEER: &str = "inspan.agent.steer";
    /// An adapter tolerated something.
    pub(crate) const WARNING: &str = "inspan.agent.warning";
    /// The session got a message.
    pub(crate) const MESSAGE: &str = "inspan.session.message";
    /// The session is to pause.
    pub(crate) const PAUSE: &str = "inspan.session.pause";
    /// The session is to stop.
    pub(crate) const STOP: &str = "inspan.session.stop";
    /// Nothing can run.
    pub(crate) const WAITING: &str = "inspan.session.waiting";
    /// The session runs again.
    pub(crate) const RESUMED: &str = "inspan.session.resumed";
    /// The flow is to end early.
    pub(crate) const ENDING: &str = "inspan.session.ending";
    /// A budget is used up.
    pub(crate) const BUDGET_EXCEEDED: &str = "inspan.budget.exceeded";
    /// What an earlier session spent counts too.
    pub(crate) const BUDGET_CARRIED: &str = "inspan.budget.carried";
}
