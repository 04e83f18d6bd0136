//! What decoding costs: lines of a vendor's stream to events, beside nothing but parsing the same lines.

use std::hint::black_box;
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use inspan_providers::ClaudeDecoder;
use serde_json::Value;

use super::measure::{Goal, Measurement, median, medians, middle};

const LINES: usize = 2_000;
const PASSES: u64 = 5;

/// Each kind of line of a turn that uses tools, in turn; made up, in the shape of the real ones: each begins with its
/// `type`, as every line of the transcripts under `fixtures/` does.
fn lines() -> Vec<String> {
    const TAIL: &str = r#""session_id":"3f2c1d7e-5a4b-4c8d-9e0f-1a2b3c4d5e6f""#;
    let said = "The agent reads the file, edits \"main.rs\" and runs the tests again.\nAll of them pass by now, as it seems. ";
    let report = "running 12 tests\ntest a ... ok\ntest b ... ok\ntest c ... ok\ntest result: ok. 12 passed; 0 failed; \
                  0 ignored; 0 measured; 0 filtered out; finished in 0.03s\n";
    let quoted = |text: &str| Value::from(text).to_string();
    let line = |index: usize| {
        // A call, its answer, and three lines around them.
        let (uuid, tool) =
            (format!(r#""uuid":"0190a1b2-c3d4-7e5f-8a9b-{index:012x}""#), format!("toolu_{:024}", index / 5));
        let assistant = |content: String| {
            let usage = format!(
                r#"{{"input_tokens":{},"output_tokens":{index},"cache_read_input_tokens":1234}}"#,
                index * 3
            );
            format!(
                r#"{{"type":"assistant","message":{{"id":"msg_{index:024}","type":"message","role":"assistant","model":"a-model-1","content":[{content}],"stop_reason":null,"usage":{usage}}},"parent_tool_use_id":null,{TAIL},{uuid}}}"#
            )
        };
        match index % 5 {
            0 => assistant(format!(r#"{{"type":"text","text":{}}}"#, quoted(&said.repeat(2)))),
            1 => assistant(format!(
                r#"{{"type":"tool_use","id":"{tool}","name":"Bash","input":{{"command":"cargo test --workspace -- --nocapture","description":"Run the whole test suite","timeout":120000,"args":["a","b","c"]}}}}"#
            )),
            2 => format!(
                r#"{{"type":"user","message":{{"role":"user","content":[{{"tool_use_id":"{tool}","type":"tool_result","content":{},"is_error":false}}]}},"parent_tool_use_id":null,{TAIL},{uuid}}}"#,
                quoted(&format!("{report}{said}"))
            ),
            3 => format!(
                r#"{{"type":"stream_event","event":{{"type":"content_block_delta","index":0,"delta":{{"type":"text_delta","text":{}}}}},{TAIL},"parent_tool_use_id":null,{uuid}}}"#,
                quoted(&said.repeat(3))
            ),
            _ => assistant(format!(r#"{{"type":"thinking","thinking":{}}}"#, quoted(&said.repeat(3)))),
        }
    };
    (0..LINES).map(line).collect()
}

/// All rows.
pub(crate) fn rows() -> anyhow::Result<Vec<Measurement>> {
    let lines = lines();
    let bytes = lines.iter().map(String::len).sum::<usize>() / LINES;
    let work = format!("decode a line of {bytes} bytes to events");
    let (value, parsed) = decoded_and_parsed(&lines)?;
    let mut rows = vec![Measurement::time(work.clone(), value).reference("serde_json to Value", parsed)];
    // The goal is relative to Bun; Node is used where Bun is not installed.
    for (runtime, what) in [("bun", "JSON.parse in Bun"), ("node", "JSON.parse in Node")] {
        if let Some((value, parsed)) = decoded_and_parsed_by(runtime, &lines)? {
            rows.push(Measurement::time(work, value).reference(what, parsed).goal(Goal::Times(2.0)));
            break;
        }
    }
    Ok(rows)
}

/// Nanoseconds for each line: to decode it, and to parse it.
fn decoded_and_parsed(lines: &[String]) -> anyhow::Result<(f64, f64)> {
    let (mut events, mut broken) = (0, 0);
    let parse = || {
        for _ in 0..PASSES {
            broken +=
                lines.iter().filter(|line| black_box(serde_json::from_str::<Value>(line)).is_err()).count();
        }
    };
    let values = medians(LINES as u64 * PASSES, || events = decode(lines), parse);
    let expected = LINES * PASSES as usize;
    ensure!(events == expected, "{expected} lines gave {events} events");
    ensure!(broken == 0, "{broken} lines are no JSON");
    Ok(values)
}

/// Nanoseconds for each line: to decode it, and to parse it in a JavaScript runtime. Nothing if that is not installed.
fn decoded_and_parsed_by(runtime: &str, lines: &[String]) -> anyhow::Result<Option<(f64, f64)>> {
    let (mut decoded, mut parsed) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        let Some(took) = parse_by(runtime, lines)? else { return Ok(None) };
        parsed.push(took);
        decoded.push(median(LINES as u64 * PASSES, || {
            decode(lines);
        }));
    }
    Ok(Some((middle(decoded), middle(parsed))))
}

/// Decodes the lines several times, and says how many events they gave.
fn decode(lines: &[String]) -> usize {
    let pass = || {
        let mut decoder = ClaudeDecoder::new();
        lines.iter().map(|line| black_box(decoder.push_line(line)).len()).sum::<usize>()
    };
    (0..PASSES).map(|_| pass()).sum()
}

/// What `JSON.parse` of one line takes in a JavaScript runtime; nothing if that is not installed.
fn parse_by(runtime: &str, lines: &[String]) -> anyhow::Result<Option<f64>> {
    const SCRIPT: &str = "
        const lines = require('fs').readFileSync(process.env.LINES, 'utf8').trimEnd().split('\\n');
        const rounds = [];
        let parsed = 0;
        for (let round = 0; round < 12; round++) {
            const began = process.cpuUsage();
            for (let pass = 0; pass < 5; pass++) {
                for (const line of lines) parsed += JSON.parse(line).type.length;
            }
            const took = process.cpuUsage(began);
            rounds.push((took.user + took.system) * 1000 / (5 * lines.length));
        }
        rounds.splice(0, 3);
        rounds.sort((a, b) => a - b);
        console.log(parsed > 0 ? rounds[rounds.length >> 1] : NaN);
    ";
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), lines.join("\n"))?;
    let mut command = Command::new(runtime);
    let said = command.args(["-e", SCRIPT]).env("LINES", file.path()).stdin(Stdio::null()).output();
    let Ok(said) = said else { return Ok(None) };
    let said = String::from_utf8_lossy(&said.stdout).trim().to_owned();
    Ok(Some(said.parse().with_context(|| format!("{runtime} says {said:?}"))?))
}
