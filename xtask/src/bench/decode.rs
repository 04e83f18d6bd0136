//! What decoding costs: lines of a vendor's stream to events, beside nothing but parsing the same lines.
//! Measuring and judging is left to `measure`.

use std::hint::black_box;
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use inspan_providers::ClaudeDecoder;
use serde_json::{Value, json};

use super::measure::{Goal, Row, median};

const LINES: usize = 2_000;
const PASSES: u64 = 5;

/// Each kind of line of a turn that uses tools, in turn; made up, in the shape of the real ones.
fn lines() -> Vec<String> {
    const SESSION: &str = "3f2c1d7e-5a4b-4c8d-9e0f-1a2b3c4d5e6f";
    let said = "The agent reads the file, edits \"main.rs\" and runs the tests again.\nAll of them pass by now, as it seems. ";
    let report = "running 12 tests\ntest a ... ok\ntest b ... ok\ntest c ... ok\ntest result: ok. 12 passed; 0 failed; \
                  0 ignored; 0 measured; 0 filtered out; finished in 0.03s\n";
    let line = |index: usize| {
        // A call, its answer, and three lines around them.
        let (uuid, tool) =
            (format!("0190a1b2-c3d4-7e5f-8a9b-{index:012x}"), format!("toolu_{:024}", index / 5));
        let assistant = |content: Value| {
            json!({
                "type": "assistant",
                "message": {
                    "id": format!("msg_{index:024}"), "type": "message", "role": "assistant", "model": "a-model-1",
                    "content": [content], "stop_reason": null,
                    "usage": { "input_tokens": index * 3, "output_tokens": index, "cache_read_input_tokens": 1234 },
                },
                "parent_tool_use_id": null, "session_id": SESSION, "uuid": uuid,
            })
        };
        match index % 5 {
            0 => assistant(json!({ "type": "text", "text": said.repeat(2) })),
            1 => {
                let input = json!({
                    "command": "cargo test --workspace -- --nocapture", "description": "Run the whole test suite",
                    "timeout": 120_000, "args": ["a", "b", "c"],
                });
                assistant(json!({ "type": "tool_use", "id": tool, "name": "Bash", "input": input }))
            }
            2 => json!({
                "type": "user",
                "message": { "role": "user", "content": [{
                    "type": "tool_result", "tool_use_id": tool, "content": format!("{report}{said}"), "is_error": false,
                }] },
                "parent_tool_use_id": null, "session_id": SESSION, "uuid": uuid,
            }),
            3 => json!({
                "type": "stream_event",
                "event": {
                    "type": "content_block_delta", "index": 0,
                    "delta": { "type": "text_delta", "text": said.repeat(3) },
                },
                "session_id": SESSION, "parent_tool_use_id": null, "uuid": uuid,
            }),
            _ => assistant(json!({ "type": "thinking", "thinking": said.repeat(3) })),
        }
        .to_string()
    };
    (0..LINES).map(line).collect()
}

/// All rows.
pub(crate) fn rows() -> anyhow::Result<Vec<Row>> {
    let lines = lines();
    let bytes: usize = lines.iter().map(String::len).sum();
    let operations = LINES as u64 * PASSES;
    let mut events = 0;
    let decoded = median(operations, || {
        for _ in 0..PASSES {
            let mut decoder = ClaudeDecoder::new();
            events = lines.iter().map(|line| black_box(decoder.push_line(line)).len()).sum();
        }
    });
    ensure!(events >= LINES / 5 * 4, "{LINES} lines gave only {events} events");
    let mut broken = 0;
    let parsed = median(operations, || {
        for _ in 0..PASSES {
            broken +=
                lines.iter().filter(|line| black_box(serde_json::from_str::<Value>(line)).is_err()).count();
        }
    });
    ensure!(broken == 0, "{broken} lines are no JSON");
    let work = format!("decode a line of {} bytes to events", bytes / LINES);
    let row = |reference| Row { work: work.clone(), value: decoded, reference: Some(reference), goal: None };
    // On the machine of the goals, 900 ns, `Value` takes 1 900.
    let mut rows = vec![Row { goal: Some(Goal::Times(0.47)), ..row(("serde_json to Value", parsed)) }];
    if let Some(node) = node(&lines)? {
        rows.push(row(("node, JSON.parse", node)));
    }
    Ok(rows)
}

/// What parsing alone costs in Node; nothing if it is not there.
fn node(lines: &[String]) -> anyhow::Result<Option<f64>> {
    const SCRIPT: &str = "
        const lines = require('fs').readFileSync(process.argv[1], 'utf8').trimEnd().split('\\n');
        const rounds = [];
        let kept = 0;
        for (let round = 0; round < 12; round++) {
            const began = process.cpuUsage();
            for (let pass = 0; pass < 5; pass++) for (const line of lines) kept += JSON.parse(line).type.length;
            const took = process.cpuUsage(began);
            rounds.push((took.user + took.system) * 1000 / (5 * lines.length));
        }
        rounds.splice(0, 3);
        rounds.sort((a, b) => a - b);
        console.log(kept > 0 ? rounds[rounds.length >> 1] : NaN);
    ";
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), lines.join("\n"))?;
    let said = Command::new("node").args(["-e", SCRIPT]).arg(file.path()).stdin(Stdio::null()).output();
    let Ok(said) = said else { return Ok(None) };
    let said = String::from_utf8_lossy(&said.stdout).trim().to_owned();
    Ok(Some(said.parse().with_context(|| format!("node says {said:?}"))?))
}
