/** What the HTTP API takes and answers: written by `cargo xtask schema` from the OpenAPI document. */
declare namespace Api {
  /** What is explained. */
  type About = {
    /** The newest event that counts; all that there are if absent. */
    at?: number | null;
    /** The path of a node; the session if absent. */
    node?: string | null;
  };
  /** The verdict of a command that took effect. */
  type Accepted = "accepted";
  /** What an agent run does right now. */
  type AgentActivity = {
    kind: "asking";
  } | {
    kind: "thinking";
  } | {
    kind: "writing";
    /** The last line with letters in it. */
    text: string;
  } | {
    kind: "using";
    /** Its name and its most important argument. */
    text: string;
  } | {
    kind: "listening";
    /** Until when. */
    until: Timestamp;
  } | {
    kind: "ended";
  };
  /** What went wrong, in a form that can be acted on, logged and sent. The code that creates one leaves keys, tokens and header values out of it. */
  type AgentError = {
    _tag: ErrorTag;
    code: ErrorCode;
    detail?: any;
    message: string;
    provider?: string | null;
    resetsAt?: Timestamp | null;
    retryAfterMs?: number | null;
    retryable: boolean;
  };
  /** The answer to a question. */
  type Answer = {
    /** When it came. */
    at: Timestamp;
    /** Which of the choices it is. */
    choice?: string | null;
    /** The answer. */
    content: string;
    /** Whether nobody answered, and it is the default of the question. */
    isDefault?: boolean;
  };
  /** A moment of a session. */
  type At = {
    /** The newest event that counts; all that there are if absent. */
    at?: number | null;
  };
  /** One attempt. */
  type Bar = {
    /** Which attempt, counting from 1; 0 for a node that was skipped or reused. */
    attempt: number;
    /** When it began. */
    from: Timestamp;
    /** Which pass of its loop, counting from 1. */
    pass: number;
    /** Its state, or how it ended. */
    status: BarStatus;
    /** When it ended; absent while it runs. */
    to?: Timestamp | null;
    /** The tool calls of its agent. */
    tools?: Array<ToolSpan>;
    /** The turns of its agent. */
    turns?: Array<Span>;
  };
  /** The state of an attempt, or how it ended. */
  type BarStatus = "running" | "complete" | "failed" | "cancelled" | "interrupted" | "limited" | "passedOn" | "skipped" | "reused";
  /** The limits of one budget; a limit that is absent stays as it was. */
  type BudgetLimits = {
    /** Tokens of all kinds. */
    tokens?: number | null;
    /** In US dollars. */
    usd?: number | null;
  };
  /** How much of its context a conversation fills. */
  type ContextUse = {
    /** Tokens of the last request to the model and of its answer. */
    usedTokens: number;
    /** How many the model takes; absent if the vendor does not say so. */
    windowTokens?: number | null;
  };
  /** What a session has spent. */
  type Cost = {
    /** What counts against the budget: what the sessions before had spent that this one continues is part of it. */
    againstBudget?: Spending | null;
    /** What the flow may spend, as it is now. */
    budget?: BudgetLimits | null;
    /** The models; the dearest first. */
    byModel: Array<ModelCost>;
    /** The nodes by their places in the flow, frames and passes together; the dearest first. */
    byNode: Array<NodeCost>;
    /** Which part of the tokens that were read came from a vendor's cache, from 0 to 1. */
    cacheShare: number;
    /** What the whole was expected to cost by earlier sessions, in US dollars. */
    forecast?: CostForecast | null;
    /** The sum of the prices that are known, in US dollars. */
    knownUsd: number;
    /** What is reserved for attempts that run, in US dollars. */
    reservedUsd?: number;
    /** In US dollars, unless the price of some turn is unknown. */
    spentUsd?: number | null;
    /** Tokens of all kinds. */
    tokens: number;
    /** Tokens by kind. */
    usage: Usage;
  };
  /** What earlier sessions lead to expect. */
  type CostForecast = {
    /** The cost in US dollars. */
    costUsd: Estimate;
    /** How long it takes, in milliseconds. */
    durationMs: Estimate;
    /** How many sessions it is based on. */
    sessions: number;
  };
  /** What is drawn of a flow or a session. */
  type Drawing = {
    /** The edges between them. */
    edges: Array<DrawnEdge>;
    /** The flow's name. */
    flow: string;
    /** The height. */
    h?: number;
    /** The nodes, in the author's order. */
    nodes: Array<DrawnNode>;
    /** The session, if it is a picture of one. */
    session?: DrawnSession | null;
    /** The width. */
    w?: number;
  };
  /** An edge. */
  type DrawnEdge = {
    /** How often it fired. */
    fired?: number;
    /** The id of the node where it begins. */
    from: string;
    /** The text beside it, if the drawing is placed. */
    label?: string | null;
    /** The left end of the label's middle line. */
    labelAt?: Point | null;
    /** How often it may fire, if it closes a cycle. */
    maxIterations?: number | null;
    /** After which end of the node it fires. */
    on: EdgeOn;
    /** The points that it passes, if the drawing is placed. */
    points?: Array<Array<number>>;
    /** How often it did not. */
    skipped?: number;
    /** The id of the node where it ends. */
    to: string;
    /** Its condition. */
    when?: string | null;
  };
  /** An agent that takes over after a failure, or when its condition holds. */
  type DrawnFallback = {
    /** The agent's name. */
    agent: string;
    /** The condition of the fallback. */
    when?: string | null;
  };
  /** What a node runs in frames. */
  type DrawnFrames = {
    /** Absent where a flow calls itself. */
    body?: Group | null;
    /** How often the body runs, in words. */
    how: string;
  };
  /** A node. */
  type DrawnNode = {
    /** The agents that may work on it first, if there are several. */
    agents?: Array<string>;
    /** Over all frames and passes. */
    attempts?: number;
    /** The agent that worked on it last, where there are several. */
    by?: string | null;
    /** In US dollars; absent if any price is unknown. */
    costUsd?: number | null;
    /** The sum over its frames, in milliseconds. */
    durationMs?: number | null;
    /** The first error. */
    error?: string | null;
    /** The agents that take over from the one before. */
    fallback?: Array<DrawnFallback>;
    /** What it runs in frames, if it does. */
    frames?: DrawnFrames | null;
    /** The height. */
    h?: number;
    /** The node's id. */
    id: string;
    /** Passes of the loops that lead back to it. */
    passes?: number;
    /** The ids of the nodes around it and its own, joined by `/`. */
    path: string;
    /** How far it is with its frames. */
    progress?: FramesProgress | null;
    /** How often it has each status: more than one if it is in a frame. */
    runs?: Record<string, number>;
    /** How it is drawn. */
    shape: NodeShape;
    /** Of several frames the one to be seen first. */
    status?: NodeStatus;
    /** Tokens of all kinds. */
    tokens?: number;
    /** The node's type. */
    type: string;
    /** The width. */
    w?: number;
    /** The condition without which it is skipped. */
    when?: string | null;
    /** The left end. */
    x?: number;
    /** The upper end. */
    y?: number;
  };
  /** One node over all frames that ran it. */
  type DrawnResults = {
    /** Over all frames and passes. */
    attempts: number;
    /** The agent that worked on it last, where there are several. */
    by?: string | null;
    /** In US dollars; absent if any price is unknown. */
    costUsd?: number | null;
    /** The sum over its frames, in milliseconds. */
    durationMs?: number | null;
    /** The first error. */
    error?: string | null;
    /** Passes of the loops that lead back to it. */
    passes: number;
    /** How far it is with its frames. */
    progress?: FramesProgress | null;
    /** How often it has each status: more than one if it is in a frame. */
    runs: Record<string, number>;
    /** Of several frames the one to be seen first. */
    status: NodeStatus;
    /** Tokens of all kinds. */
    tokens: number;
  };
  /** The session as a whole. */
  type DrawnSession = {
    /** In US dollars; absent if any price is unknown. */
    costUsd?: number | null;
    /** How long it took, in milliseconds. */
    durationMs?: number | null;
    /** The session. */
    sessionId: string;
    /** The word for its status. */
    status: string;
    /** Tokens of all kinds. */
    tokens: number;
  };
  /** After which ends of its source an edge may fire. */
  type EdgeOn = "success" | "failure" | "skipped" | "any";
  /** What went wrong. Whether trying again may help follows from it alone. */
  type ErrorCode = "CONFIG_MISSING" | "CONFIG_INVALID" | "AUTH" | "RATE_LIMITED" | "OVERLOADED" | "MODEL_NOT_FOUND" | "BILLING" | "INVALID_REQUEST" | "REFUSED" | "TOOL_DENIED" | "TIMEOUT" | "ABORTED" | "CONTEXT_LENGTH" | "NETWORK" | "PROTOCOL" | "PROCESS" | "HOOK_FAILED" | "NODE_FAILED" | "BINDING_FAILED" | "OUTPUT_INVALID" | "LOOP_EXHAUSTED" | "BUDGET_EXCEEDED";
  /** The family of an [`ErrorCode`], written as `_tag`. */
  type ErrorTag = "ConfigError" | "ProviderError" | "RequestError" | "HookError" | "FlowError";
  /** An amount that is not exactly known. */
  type Estimate = {
    /** What is to be expected, if that is known. */
    expected?: number | null;
    /** The most, if that is known. */
    high?: number | null;
    /** The least. */
    low: number;
  };
  /** Which events are sent. */
  type EventsQuery = {
    /** `0` sends what is there and ends. */
    follow?: number | null;
    /** The first event. The header `Last-Event-ID` counts before it. */
    from?: number | null;
    /** At most so many events. */
    limit?: number | null;
    /** Only events of this node and of what is within it. */
    node?: string | null;
    /** Only events of these names, separated by commas; `agent:*` means all that begin so. */
    types?: string | null;
  };
  /** The edit of one file. */
  type FileEdit = {
    /** The parts that change. */
    hunks: Array<Hunk>;
    /** The file, as the tool was given it. */
    path: string;
  };
  /** The session to fork. */
  type Fork = {
    /** The event after which, or the node from which on work is not reused; all finished work is reused if absent. */
    at?: ForkPoint | null;
    /** Values of the flow's input that change. */
    input?: Record<string, any>;
    /** A text of the caller. Requests with the same key start one session. */
    key?: string | null;
  };
  /** Where a fork begins. */
  type ForkPoint = number | NodePath;
  /** What the frames of a node are. */
  type FrameKind = "foreach" | "loop" | "subflow" | "pack";
  /** Some frames of a node. */
  type FramePage = {
    /** Those that were asked for, in their order. */
    frames: Array<ShownFrame>;
    /** The newest event that they are made of. */
    seq: number;
    /** How many there are that fit what was asked for. */
    total: number;
  };
  /** Which frames of a node are wanted. */
  type FrameQuery = {
    /** The newest event that counts; all that there are if absent. */
    at?: number | null;
    /** Leaves out so many. */
    from?: number;
    /** At most so many, 100 if absent. */
    limit?: number | null;
    /** The path of the node. With a pass, `each#2`, the frames of that pass. */
    node: string;
    /** Only those with this status: `running`, `waiting`, `complete`, `failed` or `cancelled`. */
    status?: NodeStatus | null;
  };
  /** How far a node is with its frames. */
  type FramesProgress = {
    /** Frames that failed. */
    failed: number;
    /** Frames that are open. */
    open: number;
    /** Frames that ended well. */
    succeeded: number;
    /** How many frames there are, for a foreach whose items are known. */
    total?: number | null;
  };
  /** A time in which everything waited. */
  type Gap = {
    /** Since when. */
    from: Timestamp;
    /** What for. */
    kind: WaitKind;
    /** Until when. */
    to: Timestamp;
  };
  /** What is wanted of a graph. */
  type GraphQuery = {
    /** The newest event that counts; all that there are if absent. */
    at?: number | null;
    /** Whether the answer has the results of the session, as it does if this is absent. Without them it does not wait for the log. */
    results?: boolean | null;
  };
  /** Nodes that run together, in the author's order, and the edges between them. */
  type Group = {
    /** The edges between them. */
    edges: Array<DrawnEdge>;
    /** The nodes, in the author's order. */
    nodes: Array<DrawnNode>;
  };
  /** One part of a file that changes. */
  type Hunk = {
    /** Its first line in the file, counting from 1, if the arguments tell. */
    line?: number | null;
    /** Its lines, each after `+`, `-` or a space. */
    text: string;
  };
  /** Whose questions are listed. */
  type InboxFilter = {
    /** Only those of this session. */
    session?: string | null;
  };
  /** The token of the address that `inspan serve` prints. */
  type Login = {
    token: string;
  };
  /** When a message reaches a run. */
  type MessageMode = "followUp" | "steer";
  /** What one model has spent. */
  type ModelCost = {
    /** In US dollars, unless some price is unknown. */
    costUsd?: number | null;
    /** The model that the vendor named, else the one that was asked for. */
    model?: string | null;
    /** The provider's type. */
    provider: string;
    /** How many agent runs it had. */
    runs: number;
    /** Tokens of all kinds. */
    tokens: number;
    /** Tokens by kind. */
    usage: Usage;
  };
  /** A moment of a session, and the frames that are open. */
  type Moment = {
    /** The newest event that counts; all that there are if absent. */
    at?: number | null;
    /** The frames whose nodes are in the state too, separated by commas: `each[3],each[4]`. */
    open?: string | null;
  };
  /** What one node has spent. */
  type NodeCost = {
    /** In US dollars, unless some price is unknown. */
    costUsd?: number | null;
    /** What it was expected to cost, in US dollars. */
    forecastUsd?: number | null;
    /** Its place in the flow: `scan/review`. */
    path: string;
    /** How many agent runs it began. */
    runs: number;
    /** Tokens of all kinds. */
    tokens: number;
  };
  /** A node of a flow, unique in its graph: `[A-Za-z_][A-Za-z0-9_]*`. Chosen by the author. */
  type NodeId = string;
  /** The place of a node in a run: `review`, `review#3` on the third pass of a loop edge, `scan[2]/review` inside the third iteration of the frame that `scan` opened. */
  type NodePath = string;
  /** What sort of work a node does. */
  type NodeShape = "agent" | "control" | "person" | "work";
  /** The state of a node. */
  type NodeStatus = "pending" | "running" | "complete" | "failed" | "skipped" | "reused" | "cancelled" | "paused" | "interrupted" | "waiting";
  /** One of the two streams that a program prints to. */
  type OutputStream = "stdout" | "stderr";
  /** An agent run. */
  type PageAgent = {
    /** What it does right now. */
    doing: AgentActivity;
    /** The model that was asked for. */
    model?: string | null;
    /** The provider's type. */
    provider: string;
    /** Tools that were called in all. */
    toolCalls: number;
  };
  /** How often an edge fired, over all frames and passes. */
  type PageEdge = {
    /** How often it fired. */
    fired: number;
    /** The place of the node that it leaves. */
    from: string;
    /** After which end of the node that it leaves it fires: two edges between the same nodes differ in it. */
    on: EdgeOn;
    /** How often it did not. */
    skipped: number;
    /** The place of the node that it enters. */
    to: string;
  };
  /** How far a node is with its frames. */
  type PageFrames = {
    /** Those that failed. */
    failed: number;
    /** What they are. */
    kind: FrameKind;
    /** Those that are open. */
    open: number;
    /** Those that there are to look at, of all passes. */
    shown: number;
    /** Those that ended well. */
    succeeded: number;
    /** How many there are, once that is known. */
    total?: number | null;
  };
  /** One node. */
  type PageNode = {
    /** Its newest agent run. */
    agent?: PageAgent | null;
    /** The newest attempt of this pass, 0 before the first. */
    attempt: number;
    /** Attempts over all passes. */
    attempts: number;
    /** The agent that works on it, where there are several. */
    by?: string | null;
    /** The cost in US dollars, unless the price of some turn is unknown. */
    costUsd?: number | null;
    /** Tool calls that its agents were denied, each in one line. */
    denied?: Array<string>;
    /** How long the newest attempt took. */
    durationMs?: number | null;
    /** The newest failure. */
    error?: AgentError | null;
    /** Earlier passes that failed. */
    failedPasses?: number;
    /** How far it is with its frames. */
    frames?: PageFrames | null;
    /** Its id. */
    id: string;
    /** Attempts whose process was lost. */
    interrupted?: number;
    /** The last line that its program wrote. */
    output?: string;
    /** Which pass of its loop, counting from 1. */
    pass: number;
    /** Its path without the pass at the end. */
    path: string;
    /** When the next attempt is due. */
    retryAt?: Timestamp | null;
    /** Whether its output was taken from earlier work. */
    reused: boolean;
    /** Why it was skipped. */
    skipped?: SkipReason | null;
    /** When the newest attempt began. */
    startedAt?: Timestamp | null;
    /** Its status as people see it. */
    status: NodeStatus;
    /** Tokens over all attempts, passes and frames. */
    tokens: number;
    /** Its type. */
    type: string;
    /** What went wrong in its work and was tolerated: the first 20 warnings, each once. */
    warnings?: Array<string>;
  };
  /** What differs between two states. */
  type PagePatch = {
    /** The edges that differ; they replace those with the same ends and the same `on`. */
    edges?: Array<PageEdge>;
    /** The paths of nodes that are gone; only where a patch leads backwards. */
    gone?: Array<string>;
    /** The newest event of the state that it leads to. */
    seq: number;
    /** The nodes that differ, each whole. */
    set?: Record<string, PageNode>;
    [key: string]: any;
  };
  /** The state of a session at an event. */
  type PageState = {
    /** How often each edge fired and did not, of those that ever did either; by the places of the nodes. */
    edges: Array<PageEdge>;
    /** The nodes of the flow by their paths, and those of frames that were asked for. */
    nodes: Record<string, PageNode>;
    /** The newest event that it contains. */
    seq: number;
    [key: string]: any;
  };
  /** A point. */
  type Point = {
    /** From the left. */
    x: number;
    /** From above. */
    y: number;
  };
  /** A command and the caller's key. */
  type Posted = {
    command: SessionCommand;
    /** A text of the caller. Requests with the same key are one command. */
    key?: string | null;
  };
  /** Why a request was not answered. */
  type Problem = {
    /** The code that programs rely on. */
    code: "hostNotAllowed" | "originNotAllowed" | "crossSite" | "tokenMissing" | "notJson" | "tooLarge" | "notFound" | "methodNotAllowed" | "tooManyStreams" | "timeout" | "unknownSession" | "ambiguousSession" | "sessionExists" | "sessionEnded" | "sessionContinued" | "sessionHeld" | "notRunning" | "flowOfOtherVersion" | "unknownNode" | "unknownPrompt" | "ambiguousPrompt" | "alreadyAnswered" | "questionExpired" | "invalidAnswer" | "unknownRun" | "ambiguousRun" | "commandRefused" | "noResponse" | "keyReused" | "unknownFlow" | "invalidFlow" | "invalidInput" | "invalidRequest" | "cannotStart" | "configuration" | "storeDamaged" | "storeUnavailable" | "failed";
    /** What went wrong, in one sentence. */
    detail: string;
    /** The problems of a flow, each as `inspan check --json` reports it. */
    diagnostics?: Array<any>;
    /** What to do about it. */
    hint?: string | null;
    /** The status of the answer. */
    status: number;
    /** What the code means. */
    title: string;
    /** `urn:inspan:problem:` and the code. */
    type: string;
  };
  /** A question to a person. */
  type Prompt = {
    /** Whether a free text is an answer; if absent, exactly when there are no choices. */
    allowText?: boolean | null;
    /** The answers to choose from. */
    choices?: Array<string> | null;
    /** When the default is taken, or the node fails without one. */
    deadline?: Timestamp | null;
    /** The answer taken at the deadline. */
    default?: string | null;
    /** More about it; for a permission `toolName`, its arguments as `input`, and what the agent says about it as `description`. */
    detail?: any;
    /** Whether a flow asks for input, an agent for permission, or an agent for an answer. */
    kind: PromptKind;
    /** The question. */
    prompt: string;
    /** The question's id, which the reply repeats. */
    promptId: PromptId;
    /** The form that the answer fills in, as a JSON Schema; the answer is then a JSON mapping. */
    schema?: any;
    /** The node that waits for the answer. Absent in the event, whose context names it. */
    task?: NodePath | null;
  };
  /** One question to a person. Within a flow it is named after the attempt of the node that asks. */
  type PromptId = string;
  /** What kind of question is asked. */
  type PromptKind = "input" | "permission" | "question";
  /** The result of a command. */
  type Receipt = {
    /** The session in which it took effect; another than the one addressed if a new session continues that one. */
    sessionId: SessionId;
    /** `accepted`: a refusal is an error. */
    verdict: Accepted;
  };
  /** One agent invocation, fresh every time. Within a flow it is named after the attempt of the node. */
  type RunId = string;
  /** What may be asked of a session. */
  type SessionCommand = {
    /** Which of the choices it is. */
    choice?: string | null;
    /** The answer; of a form a JSON mapping as text. It may be absent if `choice` is given. */
    content?: string | null;
    /** The question: its id, the beginning of it, or its node. The only open one if absent. */
    prompt?: string | null;
    type: "reply";
  } | {
    /** Also for the rest of the agent's run, without asking again. */
    always?: boolean;
    /** The question, by its id: what is open by the time of the command may be another one. */
    prompt?: string;
    type: "approve";
  } | {
    /** The question; the only open one if absent. */
    prompt?: string | null;
    /** What the agent is told, such as what it should do instead. */
    reason?: string | null;
    type: "reject";
  } | {
    /** The message. */
    content: string;
    /** When it is delivered. */
    mode?: MessageMode;
    /** The node. */
    node?: NodeId | null;
    /** The run. */
    run?: RunId | null;
    type: "send";
  } | {
    /** The run or its node; the only active one if absent. */
    run?: string | null;
    type: "close";
  } | {
    /** Why. */
    reason?: string | null;
    type: "pause";
  } | {
    /** Limits to raise, by their names as for a start; `limitToRaise` of a paused session names those that are used up, with commas. */
    budget?: Record<string, number>;
    /** A message to the agents that were interrupted. */
    message?: string | null;
    /** The id of the new session, if one is started. */
    sessionId?: SessionId | null;
    type: "resume";
  } | {
    /** Why. */
    reason?: string | null;
    type: "stop";
  } | {
    /** The node. */
    node: NodePath;
    type: "retry";
  };
  /** Which sessions are listed. */
  type SessionFilter = {
    /** The `next` of the answer before. */
    cursor?: string | null;
    /** Only those of the flow of this name. */
    flow?: string | null;
    /** The sessions of the answer, at most 1000; 100 if absent. */
    limit?: number | null;
    /** Only those whose id or flow has this in it. */
    q?: string | null;
    /** Only those in one of these states, separated by commas: `running,waiting`. `open` means all that have not ended. */
    state?: string | null;
  };
  /** One execution of a flow. Made by the runner, or chosen by the caller. */
  type SessionId = string;
  /** A page of sessions. */
  type SessionPage = {
    /** The cursor of the next page, if there is one. */
    next?: string | null;
    /** The sessions, each as `inspan ps --json` lists it. */
    sessions: Array<any>;
  };
  /** One frame. */
  type ShownFrame = {
    /** What they cost in US dollars, unless the price of some turn is unknown. */
    costUsd?: number | null;
    /** How many of its nodes have ended. */
    done: number;
    /** How long it took. */
    durationMs?: number | null;
    /** Why it failed. */
    error?: AgentError | null;
    /** The item in short, or the pass of a loop. */
    name?: string | null;
    /** Its nodes by their paths. */
    nodes: Record<string, PageNode>;
    /** How many nodes it has. */
    of: number;
    /** Its path, `each[3]`. */
    path: string;
    /** When it began. */
    startedAt?: Timestamp | null;
    /** Running, waiting for a person, interrupted, paused, complete, failed or cancelled. */
    status: NodeStatus;
    /** Tokens of its nodes. */
    tokens: number;
  };
  /** Why a node did not run. */
  type SkipReason = "when" | "edge" | "failure" | "notSelected";
  /** A time from a moment to another. */
  type Span = {
    /** When it began. */
    from: Timestamp;
    /** When it ended; absent if it has not. */
    to?: Timestamp | null;
  };
  /** What was spent. */
  type Spending = {
    /** The known cost in US dollars. */
    costUsd: number;
    /** Tokens of all kinds. */
    tokens: number;
    /** Whether nothing is known of the tokens of some turn, so that they are more than `tokens`. */
    uncounted?: boolean;
    /** Whether the price of some turn is unknown, so that the cost is more than `costUsd`. */
    unpriced?: boolean;
  };
  /** The session to start. */
  type Start = {
    /** The id of a flow in `/flows`, or the path of its file. */
    flow: string;
    /** The flow's input. */
    input?: Record<string, any>;
    /** A text of the caller. Requests with the same key start one session. */
    key?: string | null;
    /** How it is run. */
    options?: StartOptions;
  };
  /** How a session is started. */
  type StartOptions = {
    /** Limits of budgets by their names as `--budget` takes them: `usd`, `tokens`, `review.usd`, `each/.tokens`. */
    budget?: Record<string, number>;
    /** Starts it also if its forecast is above the flow's `confirmAbove`. */
    confirmed?: boolean;
    /** How many nodes may run at once. */
    maxConcurrency?: number | null;
    /** The model of all agent nodes, or of one (`review=opus`). */
    model?: Array<string>;
    /** The provider of all agent nodes (`claude`), or of one (`review=claude`). */
    provider?: Array<string>;
    /** The id of the new session; a fresh one if absent. */
    sessionId?: SessionId | null;
  };
  /** The new session. */
  type Started = {
    sessionId: SessionId;
    /** Where it is in this API. */
    url: string;
  };
  /** An attempt of a node. */
  type StreamAttempt = {
    /** Which attempt of the pass, counting from 1. */
    attempt: number;
    /** Which pass of its loop, counting from 1. */
    pass: number;
  };
  /** One item of a node's stream. */
  type StreamItem = ({
    /** How many bytes the input has, if only its beginning is shown. */
    cut?: number | null;
    /** The whole input of the node, if it is known. */
    input?: any;
    kind: "prompt";
    /** The prompt to an agent. */
    text?: string | null;
  } | {
    kind: "text";
    /** Whether it is void, because the vendor's stream broke and started again. */
    retracted?: boolean;
    /** The text. */
    text: string;
  } | {
    kind: "thinking";
    /** Whether it is void, because the vendor's stream broke and started again. */
    retracted?: boolean;
    /** The text. */
    text: string;
  } | {
    /** The vendor's id of the call. */
    callId: string;
    /** How many bytes arguments or answer have, if only the beginning is shown. */
    cut?: number | null;
    /** How long it took. */
    durationMs?: number | null;
    /** The files that its arguments edit. */
    edits?: Array<FileEdit>;
    /** Its arguments. */
    input: any;
    kind: "tool";
    /** The tool. */
    name: string;
    /** Whether it succeeded, once that is known. */
    ok?: boolean | null;
    /** What it answered. */
    output?: any;
  } | {
    kind: "exec";
    /** Which of its two streams. */
    stream: OutputStream;
    /** The text. */
    text: string;
    /** Whether no more of it was recorded. */
    truncated?: boolean;
  } | {
    kind: "message";
    /** Whether it was to reach the turn in progress. */
    steers: boolean;
    /** The message. */
    text: string;
  } | {
    /** The answer, once there is one. */
    answer?: Answer | null;
    kind: "question";
    /** The question. */
    prompt: Prompt;
  } | {
    /** How much of its context the conversation fills; absent means unknown. */
    context?: ContextUse | null;
    /** In US dollars; absent means unknown. */
    costUsd?: number | null;
    kind: "usage";
    /** Tokens. */
    usage: Usage;
  } | {
    /** A short fixed word. */
    code: string;
    kind: "warning";
    /** What happened. */
    message: string;
  } | {
    /** Why. */
    error: AgentError;
    kind: "error";
    /** Whether another attempt follows. */
    willRetry: boolean;
  } | {
    /** How many bytes it has, if only its beginning is shown. */
    cut?: number | null;
    /** How long the attempt took. */
    durationMs: number;
    kind: "output";
    /** The output. */
    output: any;
  } | {
    kind: "retract";
  } | {
    kind: "note";
    /** The sentence. */
    text: string;
  }) & ({
    /** When it began. */
    at: Timestamp;
    /** Which attempt, counting from 1; 0 before the first. */
    attempt: number;
    /** Its place among the items of the node; it never changes. */
    index: number;
    /** Which pass of its loop, counting from 1. */
    pass: number;
    /** The agent run. */
    runId?: RunId | null;
    /** The event that began it. */
    seq: number;
    /** The turn of the run. */
    turn?: number | null;
    /** The newest event that is part of it. */
    until: number;
  });
  /** Some items of a node. */
  type StreamPage = {
    /** The attempts that have items, in their order. */
    attempts: Array<StreamAttempt>;
    /** The items that were asked for, in their order. */
    items: Array<StreamItem>;
    /** The newest event that the items are made of. */
    seq: number;
    /** How many items there are. */
    total: number;
  };
  /** Which items of a node's stream are wanted. */
  type StreamQuery = {
    /** The newest event that counts; all that there are if absent. */
    at?: number | null;
    /** Only items of this attempt. */
    attempt?: number | null;
    /** The index of the first item; without it and `since`, the last items are sent. */
    from?: number | null;
    /** At most so many, 100 if absent. */
    limit?: number | null;
    /** The path of the node: `each[3]/fix`, or `fix#2` for one pass. */
    node: string;
    /** Only items of this pass of its loop. */
    pass?: number | null;
    /** Only items that changed after this event. */
    since?: number | null;
  };
  /** When everything happened. */
  type Timeline = {
    /** The paths of the nodes that decided how long it took, in the order in which they ran. */
    criticalPath: Array<string>;
    /** How long the session took, once it has ended: the same number that a list and `show` give. */
    durationMs?: number | null;
    /** When the session began. */
    from?: Timestamp | null;
    /** The times when everything waited, in their order. */
    gaps: Array<Gap>;
    /** Rows that a limit left out. */
    omitted?: number;
    /** The nodes: first those of the flow, then those in frames, each by the time it began. */
    rows: Array<TimelineRow>;
    /** The newest event, or the end of the session. */
    to?: Timestamp | null;
  };
  /** Which rows of a timeline are wanted. */
  type TimelineQuery = {
    /** The newest event that counts; all that there are if absent. */
    at?: number | null;
    /** At most so many rows, 2000 if absent. */
    limit?: number | null;
    /** Only nodes whose paths begin with this: `each[3]/` for those of one frame. */
    within?: string;
  };
  /** One node. */
  type TimelineRow = {
    /** Its attempts over all passes. */
    bars: Array<Bar>;
    /** Its path without the pass at the end. */
    path: string;
    /** When it waited. */
    waits: Array<Wait>;
  };
  type Timestamp = string;
  /** A tool call. */
  type ToolSpan = {
    /** When it was called. */
    from: Timestamp;
    /** The tool. */
    name: string;
    /** Whether it succeeded, once that is known. */
    ok?: boolean | null;
    /** When it answered; absent if it has not. */
    to?: Timestamp | null;
  };
  /** Two moments of a session. */
  type Two = {
    /** The event of the state that it leads to; the newest if absent. */
    at?: number | null;
    /** The event of the state that the caller has. */
    from: number;
    /** The frames whose nodes are in both states, separated by commas. */
    open?: string | null;
  };
  /** Two sessions. */
  type Two2 = {
    /** One session. */
    a: string;
    /** The other one. */
    b: string;
  };
  /** Tokens of one turn or one run. A count that the vendor does not give stays zero. */
  type Usage = {
    /** Tokens written to the vendor's cache. */
    cacheCreationTokens: number;
    /** Tokens read from the vendor's cache. */
    cacheReadTokens: number;
    /** Tokens read that were not in the vendor's cache. */
    inputTokens: number;
    /** Tokens written, reasoning included where the vendor counts it so. */
    outputTokens: number;
    /** Tokens spent on reasoning, where the vendor says so. */
    reasoningTokens: number;
  };
  /** A time in which a node waited. */
  type Wait = {
    /** Since when. */
    from: Timestamp;
    /** What for. */
    kind: WaitKind;
    /** The question, the error or the limit, in one line. */
    text: string;
    /** Until when; absent while it waits. */
    to?: Timestamp | null;
  };
  /** What a node or the session waits for. */
  type WaitKind = "person" | "limit" | "retry" | "paused" | "stopped" | "idle";
}
