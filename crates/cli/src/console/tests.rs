//! The two forms of the console, lines and picture, from literal events at fixed times.

use std::sync::Arc;

use inspan_flow::{Graph, Loaded, builtin_nodes, compile};
use inspan_protocol::{
    AgentError, CancelReason, Envelope, ErrorCode, Event, EventContext, NodeId, NodePath, Outcome, Prompt,
    PromptId, PromptKind, RunId, SessionId, SkipReason, StopReason, Timestamp, Usage,
};
use serde_json::{Value, json};

use super::plain::Detail;
use super::plain::PlainLog;
use super::summary::summary;
use super::tree::Canvas;
use super::tree::tree;
use inspan_view::{Colour, Line, SessionView, Tone};

const NOON: i64 = 1_767_787_200_000;

/// Events as a test gives them: milliseconds since noon, the place, what happened.
struct Tale(Vec<Envelope>);

impl Tale {
    fn new() -> Self {
        Self(Vec::new())
    }

    fn at(&mut self, ms: i64, task: &str, event: Event) -> &mut Self {
        let mut context = EventContext::session(SessionId::from("flow-1")).with_phase("Run Flow");
        if !task.is_empty() {
            context = context.with_task(serde_json::from_value::<NodePath>(json!(task)).unwrap());
        }
        let seq = self.0.len() as u64 + 1;
        self.0.push(Envelope::new(context, seq, Timestamp::from_millis(NOON + ms), event));
        self
    }
}

fn node(id: &str) -> NodeId {
    NodeId::new(id).unwrap()
}

fn start(path: &str, node_type: &str, attempt: u32) -> Event {
    let path: NodePath = serde_json::from_value(json!(path)).unwrap();
    Event::TaskStart {
        task_id: node(path.node()),
        node_type: node_type.into(),
        attempt,
        path,
        cleans_up: false,
        since: None,
        session_id: None,
        messages: Vec::new(),
    }
}

fn agent(run: &str) -> Event {
    let run_id = RunId::from(run);
    let model = Some("claude-sonnet-4-5".to_owned());
    Event::AgentStart {
        agent_name: "a".to_owned(),
        run_id,
        provider: "claude".to_owned(),
        model,
        turn: 1,
        multi_turn: Default::default(),
        listens: false,
    }
}

fn text(run: &str, content: &str) -> Event {
    Event::AgentText { content: content.to_owned(), delta: true, run_id: RunId::from(run) }
}

fn tool(run: &str, id: &str, name: &str, input: Value) -> Event {
    let run_id = RunId::from(run);
    Event::AgentToolStart { tool_name: name.to_owned(), tool_use_id: id.to_owned(), input, run_id }
}

fn answer(run: &str, id: &str, name: &str, is_error: bool) -> Event {
    let (tool_name, tool_use_id) = (name.to_owned(), id.to_owned());
    Event::AgentToolComplete {
        tool_name,
        tool_use_id,
        result: json!("x"),
        is_error,
        run_id: RunId::from(run),
    }
}

fn usage(run: &str, tokens: u64, cost_usd: Option<f64>) -> Event {
    let usage = Usage { input_tokens: tokens, ..Usage::default() };
    Event::AgentUsage {
        usage,
        cost_usd,
        context: None,
        turn_id: None,
        reported: None,
        uncounted: false,
        run_id: RunId::from(run),
    }
}

fn agent_done(run: &str) -> Event {
    Event::AgentComplete {
        agent_name: "a".to_owned(),
        success: true,
        run_id: RunId::from(run),
        stop_reason: StopReason::Complete,
        usage: Usage::default(),
        duration_ms: 1,
        unpriced: false,
    }
}

fn gave(id: &str, duration_ms: u64, result: serde_json::Value) -> Event {
    Event::TaskComplete { task_id: node(id), result: Arc::new(result), duration_ms }
}

fn done(id: &str, duration_ms: u64) -> Event {
    Event::TaskComplete { task_id: node(id), result: Arc::new(json!({})), duration_ms }
}

fn failed(id: &str, code: ErrorCode, message: &str, will_retry: bool) -> Event {
    Event::TaskFailed { task_id: node(id), error: AgentError::new(code, message), will_retry }
}

fn end(outcome: Outcome, duration_ms: u64) -> Event {
    Event::HarnessComplete { success: outcome == Outcome::Success, outcome, duration_ms, outputs: None }
}

const REVIEW: &str = "
flow: { name: review-loop }
nodes:
  - { id: plan, type: claude.agent, input: { prompt: x } }
  - id: code
    type: claude.agent
    input: { prompt: x }
    policy: { retry: { maxAttempts: 3, backoff: 4s } }
  - { id: review, type: claude.agent, input: { prompt: x } }
  - { id: ok, type: human.input, input: { prompt: x } }
  - { id: escalate, type: control.fail, input: { message: x } }
edges:
  - { from: plan, to: code }
  - { from: code, to: review }
  - { from: review, to: code, when: \"'PASS' not in review.text\", maxIterations: 3 }
  - { from: review, to: ok }
  - { from: ok, to: escalate, when: \"ok.choice == 'no'\" }
";

/// A compiled flow.
pub(crate) fn graph(text: &str) -> Arc<Graph> {
    let loaded = Loaded::from_text("flow.yaml", text, Default::default());
    let nodes = builtin_nodes(&crate::commands::all_providers());
    Arc::new(compile(&loaded, &nodes).unwrap_or_else(|problems| panic!("{problems}")).graph)
}

fn review_tale() -> Tale {
    let mut tale = Tale::new();
    tale.at(0, "", Event::HarnessStart { name: "review-loop".to_owned() })
        .at(1, "", Event::PhaseStart { name: "Run Flow".to_owned(), phase_number: None })
        .at(5, "plan", start("plan", "claude.agent", 1))
        .at(6, "plan", agent("r1"))
        .at(800, "plan", text("r1", "I read the issue.\nThe parser "))
        .at(900, "plan", text("r1", "drops \u{1b}[31mthe last\u{1b}[0m line."))
        .at(950, "plan", tool("r1", "t1", "Read", json!({ "file_path": "src/parser.rs" })))
        .at(1100, "plan", answer("r1", "t1", "Read", false))
        .at(1900, "plan", usage("r1", 1200, Some(0.004)))
        .at(1910, "plan", agent_done("r1"))
        .at(1920, "plan", done("plan", 1915))
        .at(1921, "", Event::EdgeFired { from: node("plan"), to: node("code") })
        .at(1930, "code", start("code", "claude.agent", 1))
        .at(1940, "code", agent("r2"))
        .at(2500, "code", failed("code", ErrorCode::Overloaded, "the vendor is overloaded", true))
        .at(7500, "code", start("code", "claude.agent", 2))
        .at(7501, "code", agent("r3"))
        .at(7800, "code", tool("r3", "t2", "Bash", json!({ "command": "cargo test" })))
        .at(9800, "code", answer("r3", "t2", "Bash", true))
        .at(9900, "code", usage("r3", 5400, None))
        .at(9950, "code", agent_done("r3"))
        .at(9960, "code", done("code", 2460))
        .at(9970, "review", start("review", "claude.agent", 1))
        .at(9980, "review", agent("r4"))
        .at(9990, "review", text("r4", "Not yet: "))
        .at(11_000, "review", usage("r4", 900, Some(0.002)))
        .at(11_010, "review", agent_done("r4"))
        .at(
            11_020,
            "review",
            gave("review", 1050, json!({ "text": "Not yet: the last line is lost", "permissionDenials": [
                { "toolName": "Write", "toolUseId": "t9", "toolInput": { "file_path": "notes.md", "content": "x" } },
            ] })),
        )
        .at(
            11_030,
            "",
            Event::LoopIterate { from: node("review"), to: node("code"), iteration: 1, nodes: Vec::new() },
        )
        .at(11_040, "code#2", start("code#2", "claude.agent", 1))
        .at(11_041, "code#2", agent("r5"))
        .at(12_000, "code#2", text("r5", "Now the last line is kept."))
        .at(12_100, "code#2", usage("r5", 100, Some(0.001)))
        .at(12_110, "code#2", agent_done("r5"))
        .at(12_120, "code#2", done("code", 1080))
        .at(12_130, "review#2", start("review#2", "claude.agent", 1))
        .at(12_140, "review#2", agent("r6"))
        .at(12_900, "review#2", done("review", 770))
        .at(12_910, "ok", start("ok", "human.input", 1))
        .at(
            12_920,
            "ok",
            Event::SessionPrompt(Prompt {
                choices: Some(vec!["yes".to_owned(), "no".to_owned()]),
                deadline: Some(Timestamp::from_millis(NOON + 600_000)),
                default: Some("no".to_owned()),
                ..Prompt::new("p1", PromptKind::Input, "Open the pull request?")
            }),
        )
        .at(
            20_000,
            "",
            Event::SessionReply {
                prompt_id: PromptId::from("p1"),
                content: "yes".to_owned(),
                choice: Some("yes".to_owned()),
                is_default: false,
            },
        )
        .at(20_001, "ok", done("ok", 7090))
        .at(20_002, "escalate", Event::TaskSkipped { task_id: node("escalate"), reason: SkipReason::Edge, failures: vec![] })
        .at(20_010, "", Event::PhaseComplete { name: "Run Flow".to_owned() })
        .at(20_011, "", end(Outcome::Success, 20_011));
    tale
}

fn plain(flow: &str, tale: &Tale) -> String {
    let mut state = SessionView::new(&graph(flow));
    let mut log = PlainLog::default();
    let mut out = String::new();
    for envelope in &tale.0 {
        state.apply(envelope);
        for line in log.lines(envelope, &state, Detail::Everything) {
            out.push_str(&line.render(Colour::Off));
            out.push('\n');
        }
    }
    for line in summary(&state, canvas(0, 100, None), &[]) {
        out.push_str(&line.render(Colour::Off));
        out.push('\n');
    }
    out
}

fn canvas(ms: i64, columns: usize, lines: Option<usize>) -> Canvas {
    Canvas { columns, lines, now: Timestamp::from_millis(NOON + ms), frame: Some(2) }
}

/// The picture at each of these moments.
fn pictures(flow: &str, tale: &Tale, moments: &[i64], columns: usize, lines: Option<usize>) -> String {
    let mut out = String::new();
    for moment in moments {
        let mut state = SessionView::new(&graph(flow));
        let until = Timestamp::from_millis(NOON + moment);
        tale.0
            .iter()
            .filter(|envelope| envelope.timestamp <= until)
            .for_each(|envelope| state.apply(envelope));
        out.push_str(&format!("── {moment} ms\n"));
        for line in tree(&state, canvas(*moment, columns, lines)) {
            assert!(line.width() <= columns, "`{}` is wider than {columns}", line.text());
            out.push_str(&line.render(Colour::Off));
            out.push('\n');
        }
    }
    out
}

#[test]
fn the_lines_of_a_review() {
    insta::assert_snapshot!(plain(REVIEW, &review_tale()));
}

#[test]
fn the_picture_of_a_review() {
    let moments = [1, 6, 850, 1000, 3000, 8000, 9990, 11_035, 12_050, 15_000, 25_000];
    insta::assert_snapshot!(pictures(REVIEW, &review_tale(), &moments, 100, None));
}

#[test]
fn a_small_terminal_shows_what_is_lively() {
    insta::assert_snapshot!(pictures(REVIEW, &review_tale(), &[850, 8000, 25_000], 44, Some(4)));
}

#[test]
fn an_attempt_that_was_lost_and_a_flow_that_ends_early_are_shown() {
    let timed_out =
        AgentError::new(ErrorCode::Timeout, "flow `review-loop` did not end within its timeout of 9s");
    let mut tale = Tale::new();
    tale.at(0, "", Event::HarnessStart { name: "review-loop".to_owned() })
        .at(5, "plan", start("plan", "claude.agent", 1))
        .at(6, "plan", agent("r1"))
        .at(900, "plan", agent_done("r1"))
        .at(
            901,
            "plan",
            Event::TaskInterrupted { task_id: node("plan"), attempt: 1, never_began: false, stopped: false },
        )
        .at(910, "plan", start("plan", "claude.agent", 2))
        .at(911, "plan", agent("r2"))
        .at(9_000, "", Event::FlowEnding { outcome: Outcome::TimedOut, error: Some(timed_out.clone()) })
        .at(9_010, "plan", agent_done("r2"))
        .at(
            9_011,
            "plan",
            Event::TaskCancelled {
                task_id: node("plan"),
                session_id: None,
                reason: Some(CancelReason::Timeout),
                cause: Some(8),
                never_began: false,
                permission_denials: Vec::new(),
            },
        )
        .at(9_020, "", Event::PhaseFailed { name: "Run Flow".to_owned(), error: timed_out })
        .at(9_021, "", end(Outcome::TimedOut, 9_021));
    insta::assert_snapshot!(plain(REVIEW, &tale));
    insta::assert_snapshot!(pictures(REVIEW, &tale, &[905, 1000, 9_005], 100, None));
}

#[test]
fn a_failure_says_what_and_why_and_what_to_do() {
    let mut tale = Tale::new();
    tale.at(0, "", Event::HarnessStart { name: "review-loop".to_owned() })
        .at(5, "plan", start("plan", "claude.agent", 1))
        .at(6, "plan", agent("r1"))
        .at(
            7,
            "plan",
            Event::AgentWarning {
                code: "unknownLine".to_owned(),
                message: "a line was not understood".to_owned(),
                run_id: RunId::from("r1"),
            },
        )
        .at(900, "plan", failed("plan", ErrorCode::Auth, "the key was refused", false))
        .at(
            901,
            "code",
            Event::TaskSkipped { task_id: node("code"), reason: SkipReason::Failure, failures: vec![] },
        )
        .at(
            902,
            "",
            Event::PhaseFailed {
                name: "Run Flow".to_owned(),
                error: AgentError::new(ErrorCode::Auth, "the key was refused"),
            },
        )
        .at(903, "", end(Outcome::Failed, 903));
    insta::assert_snapshot!(plain(REVIEW, &tale));
}

const FRAMES: &str = "
flow: { name: fix-files, policy: { failFast: false } }
nodes:
  - id: each
    type: control.foreach
    input: { items: [a.rs, b.rs, { os: linux, version: 2 }, d.rs], as: file, onItemError: continue }
    body:
      nodes:
        - id: fix
          type: claude.agent
          input: { prompt: x }
          policy: { retry: { maxAttempts: 2, backoff: 4s } }
        - { id: ok, type: human.input, dependsOn: [fix], input: { prompt: x } }
  - id: polish
    type: control.loop
    dependsOn: [each]
    input: { maxIterations: 3, until: draft.done }
    body:
      nodes:
        - { id: draft, type: claude.agent, input: { prompt: x } }
        - { id: check, type: echo, dependsOn: [draft], input: { text: x } }
";

fn frame(id: &str, index: u32) -> Event {
    Event::FrameStart { task_id: node(id), index, input: None, carried: None }
}

fn frame_done(id: &str, index: u32) -> Event {
    let outputs = Arc::new(json!({}));
    Event::FrameComplete { task_id: node(id), index, outputs, duration_ms: 1, ends_loop: false }
}

fn frames_tale() -> Tale {
    let items = Arc::new(json!(["a.rs", "b.rs", { "os": "linux", "version": 2 }, "d.rs"]));
    let lost = AgentError::new(ErrorCode::Network, "frame 1: node `fix`: the vendor cannot be reached");
    let mut tale = Tale::new();
    tale.at(0, "", Event::HarnessStart { name: "fix-files".to_owned() })
        .at(1, "", Event::PhaseStart { name: "Run Flow".to_owned(), phase_number: None })
        .at(5, "each", start("each", "control.foreach", 1))
        .at(
            6,
            "each",
            Event::FrameItems { task_id: node("each"), items, keys: vec![], max_concurrency: None },
        )
        .at(10, "each", frame("each", 0))
        .at(10, "each", frame("each", 1))
        .at(10, "each", frame("each", 2))
        .at(10, "each", frame("each", 3))
        .at(20, "each[0]/fix", start("each[0]/fix", "claude.agent", 1))
        .at(21, "each[0]/fix", agent("r0"))
        .at(22, "each[1]/fix", start("each[1]/fix", "claude.agent", 1))
        .at(23, "each[1]/fix", agent("r1"))
        .at(24, "each[2]/fix", start("each[2]/fix", "claude.agent", 1))
        .at(25, "each[2]/fix", agent("r2"))
        .at(500, "each[0]/fix", text("r0", "The parser "))
        .at(600, "each[0]/fix", text("r0", "drops a line."))
        .at(700, "each[2]/fix", tool("r2", "t2", "Bash", json!({ "command": "cargo test" })))
        .at(900, "each[0]/fix", usage("r0", 1200, Some(0.004)))
        .at(950, "each[0]/fix", agent_done("r0"))
        .at(960, "each[0]/fix", done("fix", 940))
        .at(961, "each[0]/fix", Event::EdgeFired { from: node("fix"), to: node("ok") })
        .at(970, "each[0]/ok", start("each[0]/ok", "human.input", 1))
        .at(
            980,
            "each[0]/ok",
            Event::SessionPrompt(Prompt {
                choices: Some(vec!["yes".to_owned(), "no".to_owned()]),
                ..Prompt::new("p0", PromptKind::Input, "Ship a.rs?")
            }),
        )
        .at(1000, "each[1]/fix", usage("r1", 300, Some(0.001)))
        .at(1010, "each[1]/fix", agent_done("r1"))
        .at(1020, "each[1]/fix", failed("fix", ErrorCode::Network, "the vendor cannot be reached", true))
        .at(5030, "each[1]/fix", start("each[1]/fix", "claude.agent", 2))
        .at(5040, "each[1]/fix", agent("r3"))
        .at(5050, "each[1]/fix", agent_done("r3"))
        .at(5060, "each[1]/fix", failed("fix", ErrorCode::Network, "the vendor cannot be reached", false))
        .at(
            5070,
            "each[1]/ok",
            Event::TaskSkipped { task_id: node("ok"), reason: SkipReason::Failure, failures: vec![] },
        )
        .at(5080, "each", Event::FrameFailed { task_id: node("each"), index: 1, error: lost })
        .at(6000, "each[2]/fix", done("fix", 5976))
        .at(
            6001,
            "each[2]/ok",
            Event::TaskSkipped { task_id: node("ok"), reason: SkipReason::When, failures: vec![] },
        )
        .at(6002, "each", frame_done("each", 2))
        .at(
            7000,
            "",
            Event::SessionReply {
                prompt_id: PromptId::from("p0"),
                content: "yes".to_owned(),
                choice: Some("yes".to_owned()),
                is_default: false,
            },
        )
        .at(7001, "each[0]/ok", done("ok", 6031))
        .at(7002, "each", frame_done("each", 0))
        .at(
            7003,
            "each[3]/fix",
            Event::TaskSkipped { task_id: node("fix"), reason: SkipReason::When, failures: vec![] },
        )
        .at(
            7004,
            "each[3]/ok",
            Event::TaskSkipped { task_id: node("ok"), reason: SkipReason::Edge, failures: vec![] },
        )
        .at(7005, "each", frame_done("each", 3))
        .at(7010, "each", done("each", 7005))
        .at(7020, "polish", start("polish", "control.loop", 1))
        .at(7030, "polish", frame("polish", 0))
        .at(7040, "polish[0]/draft", start("polish[0]/draft", "claude.agent", 1))
        .at(7050, "polish[0]/draft", done("draft", 10))
        .at(7060, "polish[0]/check", start("polish[0]/check", "echo", 1))
        .at(7070, "polish[0]/check", done("check", 10))
        .at(7080, "polish", frame_done("polish", 0))
        .at(7090, "polish", frame("polish", 1))
        .at(7100, "polish[1]/draft", start("polish[1]/draft", "claude.agent", 1))
        .at(7110, "polish[1]/draft", agent("r9"))
        .at(8000, "polish[1]/draft", agent_done("r9"))
        .at(8010, "polish[1]/draft", done("draft", 910))
        .at(8020, "polish[1]/check", start("polish[1]/check", "echo", 1))
        .at(8030, "polish[1]/check", done("check", 10))
        .at(8040, "polish", frame_done("polish", 1))
        .at(8050, "polish", done("polish", 1030))
        .at(8060, "", Event::PhaseComplete { name: "Run Flow".to_owned() })
        .at(8061, "", end(Outcome::Success, 8061));
    tale
}

#[test]
fn the_frames_of_a_node_are_its_branches() {
    insta::assert_snapshot!(pictures(
        FRAMES,
        &frames_tale(),
        &[650, 2000, 5085, 6500, 7500, 9000],
        100,
        None
    ));
    insta::assert_snapshot!(pictures(FRAMES, &frames_tale(), &[650, 2000, 5085], 48, Some(7)));
}

#[test]
fn the_lines_of_frames_name_whole_paths() {
    insta::assert_snapshot!(plain(FRAMES, &frames_tale()));
}

#[test]
fn many_frames_take_the_room_that_there_is() {
    let items: Vec<u32> = (0..2000).collect();
    let items = Arc::new(json!(items));
    let mut tale = Tale::new();
    tale.at(0, "", Event::HarnessStart { name: "fix-files".to_owned() })
        .at(5, "each", start("each", "control.foreach", 1))
        .at(
            6,
            "each",
            Event::FrameItems { task_id: node("each"), items, keys: vec![], max_concurrency: None },
        );
    for index in 0..2000 {
        let path = format!("each[{index}]/fix");
        tale.at(10, "each", frame("each", index)).at(11, &path, start(&path, "claude.agent", 1));
    }
    for index in 3..90 {
        let error = AgentError::new(ErrorCode::Network, format!("frame {index}: lost"));
        let path = format!("each[{index}]/fix");
        tale.at(20, &path, failed("fix", ErrorCode::Network, "lost", false)).at(
            21,
            "each",
            Event::FrameFailed { task_id: node("each"), index, error },
        );
    }
    insta::assert_snapshot!(pictures(FRAMES, &tale, &[15, 30], 80, Some(12)));
}

/// A terminal with these lines as an SVG picture, right on light and dark pages.
fn terminal_svg(lines: &[Line], columns: usize) -> String {
    const STYLE: &str = "rect{fill:#f6f8fa;stroke:#d0d7de}text{fill:#1f2328}.strong{font-weight:600}.faint{fill:#6e7781}\
        .good{fill:#1a7f37}.bad{fill:#cf222e;font-weight:600}.warning{fill:#9a6700}.accent{fill:#0969da}\n\
        @media (prefers-color-scheme: dark){rect{fill:#0d1117;stroke:#30363d}text{fill:#e6edf3}.faint{fill:#8b949e}\
        .good{fill:#3fb950}.bad{fill:#f85149}.warning{fill:#d29922}.accent{fill:#58a6ff}}";
    let (width, height) = (columns * 17 / 2 + 32, lines.len() * 20 + 28);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"ui-monospace, SFMono-Regular, Menlo, Consolas, 'Liberation Mono', monospace\" font-size=\"14\">\n\
         <style>{STYLE}</style>\n<rect x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"8\"/>\n",
        width - 1,
        height - 1,
    );
    for (at, line) in lines.iter().enumerate() {
        out.push_str(&format!("<text x=\"16\" y=\"{}\" xml:space=\"preserve\">", at * 20 + 28));
        for (tone, text) in line.pieces() {
            let class = format!("{tone:?}").to_lowercase();
            let text = text.replace('&', "&amp;").replace('<', "&lt;");
            out.push_str(&format!("<tspan class=\"{class}\">{text}</tspan>"));
        }
        out.push_str("</text>\n");
    }
    out + "</svg>\n"
}

/// `INSPAN_BLESS=1` draws it again.
#[test]
fn the_picture_in_the_readme_is_fresh() {
    let mut state = SessionView::new(&graph(FRAMES));
    let now = Timestamp::from_millis(NOON + 2000);
    let seen = frames_tale();
    seen.0.iter().filter(|envelope| envelope.timestamp <= now).for_each(|envelope| state.apply(envelope));
    let mut lines = vec![Line::new().with(Tone::Faint, "$ ").with(Tone::Strong, "inspan run fix-files.yaml")];
    lines.extend(tree(&state, canvas(2000, 92, None)));
    let picture = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/console.svg");
    inspan_testkit::check_golden(picture, &terminal_svg(&lines, 92)).unwrap();
}

fn event(value: Value) -> Event {
    serde_json::from_value(value).unwrap()
}

#[test]
fn a_flow_whose_time_is_up_says_so_after_what_failed_while_it_ended() {
    let timed_out =
        AgentError::new(ErrorCode::Timeout, "flow `review-loop` did not end within its timeout of 9s");
    let mut tale = Tale::new();
    tale.at(0, "", Event::HarnessStart { name: "review-loop".to_owned() })
        .at(5, "plan", start("plan", "claude.agent", 1))
        .at(9_000, "", Event::FlowEnding { outcome: Outcome::TimedOut, error: Some(timed_out.clone()) })
        .at(9_010, "plan", failed("plan", ErrorCode::BindingFailed, "no such name", false))
        .at(9_020, "", Event::PhaseFailed { name: "Run Flow".to_owned(), error: timed_out })
        .at(9_021, "", end(Outcome::TimedOut, 9_021));
    let text = plain(REVIEW, &tale);
    let last = text.lines().rfind(|line| line.starts_with("error: ")).unwrap();
    assert!(last.contains("did not end within its timeout"), "{text}");
}

#[test]
fn a_failure_that_is_handled_does_not_hide_the_one_that_ended_the_flow() {
    let flow = "
flow: { name: f }
nodes:
  - { id: a, type: echo, input: { text: x }, policy: { continueOnError: true } }
  - { id: b, type: echo, dependsOn: [a], input: { text: x } }
";
    let error = AgentError::new(ErrorCode::OutputInvalid, "the outputs do not fit");
    let mut tale = Tale::new();
    tale.at(0, "", Event::HarnessStart { name: "f".to_owned() })
        .at(1, "a", start("a", "echo", 1))
        .at(2, "a", failed("a", ErrorCode::Process, "no", false))
        .at(3, "b", start("b", "echo", 1))
        .at(4, "b", done("b", 1))
        .at(5, "", Event::PhaseFailed { name: "Run Flow".to_owned(), error })
        .at(6, "", end(Outcome::Failed, 6));
    let text = plain(flow, &tale);
    let said: Vec<_> =
        text.lines().filter(|line| line.contains("rror: ") || line.contains("arning: ")).collect();
    let expected = ["warning: a failed: no [PROCESS]", "error: the outputs do not fit [OUTPUT_INVALID]"];
    assert_eq!(said, expected, "{text}");
}

#[test]
fn an_item_that_fails_by_itself_is_reported_at_the_end() {
    let flow = "
flow: { name: f }
nodes:
  - id: each
    type: control.foreach
    input: { items: [1], onItemError: continue }
    body: { nodes: [{ id: a, type: echo, input: { text: x } }] }
";
    let error = AgentError::new(ErrorCode::Timeout, "the item took too long");
    let items = Arc::new(json!([1]));
    let mut tale = Tale::new();
    tale.at(0, "", Event::HarnessStart { name: "f".to_owned() })
        .at(1, "each", start("each", "control.foreach", 1))
        .at(
            1,
            "each",
            Event::FrameItems { task_id: node("each"), items, keys: vec![], max_concurrency: None },
        )
        .at(1, "each", frame("each", 0))
        .at(2, "each[0]/a", start("each[0]/a", "echo", 1))
        .at(3, "each[0]/a", done("a", 1))
        .at(4, "each", Event::FrameFailed { task_id: node("each"), index: 0, error })
        .at(5, "each", done("each", 4))
        .at(6, "", end(Outcome::Success, 6));
    let text = plain(flow, &tale);
    let warned = text.lines().filter(|line| line.starts_with("warning: ")).collect::<Vec<_>>();
    assert_eq!(warned, ["warning: each[0] failed: the item took too long [TIMEOUT]"], "{text}");
}

#[test]
fn a_flow_that_the_budget_of_a_node_ended_says_so_once() {
    let spent = "the budget of `plan` is used up: 10 tokens (12 spent)";
    let error = AgentError::new(ErrorCode::BudgetExceeded, spent);
    let mut tale = Tale::new();
    tale.at(0, "", Event::HarnessStart { name: "review-loop".to_owned() })
        .at(5, "plan", start("plan", "claude.agent", 1))
        .at(10, "plan", failed("plan", ErrorCode::BudgetExceeded, spent, false))
        .at(11, "", Event::FlowEnding { outcome: Outcome::BudgetExceeded, error: Some(error.clone()) })
        .at(12, "", Event::PhaseFailed { name: "Run Flow".to_owned(), error })
        .at(13, "", end(Outcome::BudgetExceeded, 13));
    let text = plain(REVIEW, &tale);
    let errors: Vec<_> = text.lines().filter(|line| line.starts_with("error: ")).collect();
    assert!(matches!(errors.as_slice(), [only] if only.contains("plan failed: the budget")), "{text}");
}

#[test]
fn a_person_and_a_default_are_told_apart_and_nothing_is_reused_from_its_own_session() {
    let question = json!({ "type": "session:prompt", "promptId": "p", "prompt": "Go?", "kind": "input",
        "choices": ["yes", "no"], "default": "no" });
    let answer = json!({ "type": "session:reply", "promptId": "p", "content": "no", "choice": "no", "isDefault": true });
    let done = json!({ "type": "task:reused", "taskId": "plan", "from": "flow-1/plan", "result": {} });
    let mut tale = Tale::new();
    tale.at(0, "", Event::HarnessStart { name: "review-loop".to_owned() })
        .at(5, "ok", start("ok", "human.input", 1))
        .at(6, "ok", event(question.clone()))
        .at(7, "", event(answer))
        .at(8, "plan", event(done));
    let text = plain(REVIEW, &tale);
    for expected in ["no (the default: nobody answered)", "≡ marked as done by a person"] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

#[test]
fn a_node_that_a_person_is_to_decide_about_before_it_begins_waits() {
    let mut state = SessionView::new(&graph(REVIEW));
    let mut tale = Tale::new();
    tale.at(0, "", Event::HarnessStart { name: "review-loop".to_owned() }).at(
        5,
        "plan",
        event(json!({ "type": "session:prompt", "promptId": "plan.1.confirm", "prompt": "Done?", "kind": "input" })),
    );
    tale.0.iter().for_each(|envelope| state.apply(envelope));
    assert_eq!(state.rows[0].status, inspan_protocol::NodeStatus::Waiting);
}
