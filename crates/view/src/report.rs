//! The report of a session for people: what it was, how it ended, what failed, what was asked, what it cost, what each
//! node did. One content, as Markdown and as an HTML page without scripts.

use std::fmt::Write as _;

use inspan_protocol::{Envelope, Event, NodeStatus, PromptId, Redactor};
use serde_json::Value;

use crate::{
    Cost, NodeRow, PageFold, PageSession, entry::DisplayStatus, format, inside, look, page::shown, safe,
};

/// Nodes of which the report has a row; those of ended frames come last.
const ROWS: usize = 500;
/// The longest text of a value, in bytes.
const LONGEST: usize = 16 * 1024;

/// The questions of a session, with their answers, as events come in.
#[derive(Clone, Debug, Default)]
pub struct QuestionFold {
    asked: Vec<(PromptId, String, String, Option<String>)>,
}

impl QuestionFold {
    /// Takes the next event of the log.
    pub fn apply(&mut self, envelope: &Envelope) {
        match &envelope.event {
            Event::SessionPrompt(prompt) => {
                let task = envelope.context.task.as_ref().map(ToString::to_string).unwrap_or_default();
                self.asked.retain(|(id, ..)| *id != prompt.prompt_id);
                self.asked.push((prompt.prompt_id.clone(), task, prompt.prompt.clone(), None));
            }
            Event::SessionReply { prompt_id, content, choice, is_default } => {
                if let Some(asked) = self.asked.iter_mut().find(|(id, ..)| id == prompt_id) {
                    asked.3 = Some(look::answer(content, choice.as_deref(), *is_default));
                }
            }
            _ => {}
        }
    }
}

/// A report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    title: String,
    facts: Vec<(&'static str, String)>,
    parts: Vec<(&'static str, ReportPart)>,
}

/// A part of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ReportPart {
    /// Rows under a row of titles.
    Table(Vec<&'static str>, Vec<Vec<String>>),
    /// Text of a machine.
    Code(String),
}

impl Report {
    /// The report of a session. It is passed on, and an input is in the log as it was given: secrets are taken out of it.
    pub fn of(
        fold: &PageFold,
        session: &PageSession,
        cost: &Cost,
        questions: &QuestionFold,
        redactor: &Redactor,
    ) -> Self {
        let entry = fold.entry(session);
        let (view, status) = (fold.view(), DisplayStatus::of(&entry));
        let facts_of_run = view.run().state();
        let mut facts = vec![
            ("session", entry.session.to_string()),
            ("status", status.word().to_owned()),
            ("file", session.record.flow.file.clone()),
        ];
        facts.extend(entry.digest.started_at.map(|at| ("started", format::moment(at))));
        let rested = format::idle_part(facts_of_run.idle_time());
        facts.extend(fold.duration_ms(&entry).map(|ms| ("took", format!("{}{rested}", format::millis(ms)))));
        facts.extend(fold.spent(&entry).text().map(|spent| ("spent", spent)));
        facts.extend(
            session
                .record
                .parent
                .as_ref()
                .map(|parent| ("follows", format!("{} at event {}", parent.session, parent.seq))),
        );
        facts.extend(facts_of_run.failure().map(|error| ("failure", error.to_string())));
        let mut rows = Vec::new();
        add_rows(&view.rows, "", status, &mut rows);
        let mut parts = Vec::new();
        let failed = rows.iter().filter(|(row, ..)| row.error.is_some());
        let failed: Vec<Vec<String>> = failed
            .map(|(row, path, _)| {
                let error = row.error.as_ref().map(ToString::to_string).unwrap_or_default();
                vec![path.clone(), row.attempts.to_string(), error]
            })
            .collect();
        let asked = questions.asked.iter().map(|(_, task, question, answer)| {
            vec![task.clone(), question.clone(), answer.clone().unwrap_or_else(|| "no answer".to_owned())]
        });
        let models = cost.by_model.iter().map(|model| {
            vec![
                format!("{} {}", model.provider, model.model.as_deref().unwrap_or_default())
                    .trim()
                    .to_owned(),
                model.runs.to_string(),
                format::count(model.tokens),
                dollars(model.cost_usd),
            ]
        });
        let nodes = rows.iter().take(ROWS).map(|(row, path, status)| node(row, path, *status));
        let tables = [
            ("Failures", vec!["node", "attempts", "error"], failed),
            ("Questions", vec!["node", "question", "answer"], asked.collect()),
            ("Nodes", vec!["node", "status", "attempts", "time", "tokens", "cost"], nodes.collect()),
            ("Models", vec!["model", "runs", "tokens", "cost"], models.collect()),
        ];
        parts.extend(
            tables
                .into_iter()
                .filter(|(.., rows)| !rows.is_empty())
                .map(|(title, head, rows)| (title, ReportPart::Table(head, rows))),
        );
        if !session.record.input.is_empty() {
            parts.push((
                "Input",
                ReportPart::Code(value(&redactor.value(Value::Object(session.record.input.clone())))),
            ));
        }
        parts.extend(fold.outputs().map(|outputs| ("Output", ReportPart::Code(value(outputs)))));
        Self { title: entry.flow.clone(), facts, parts }
    }

    /// As Markdown.
    pub fn markdown(&self) -> String {
        let mut out = format!("# {}\n\n", safe::markdown(&self.title));
        for (name, fact) in &self.facts {
            // Writing to a string cannot fail.
            let _ = writeln!(out, "- **{name}**: {}", safe::markdown(fact));
        }
        for (title, part) in &self.parts {
            let _ = write!(out, "\n## {title}\n\n");
            match part {
                ReportPart::Table(head, rows) => {
                    let _ = writeln!(out, "| {} |\n|{}", head.join(" | "), " --- |".repeat(head.len()));
                    for row in rows {
                        let cells: Vec<String> = row.iter().map(|text| safe::markdown(text)).collect();
                        let _ = writeln!(out, "| {} |", cells.join(" | "));
                    }
                }
                ReportPart::Code(text) => {
                    let fence = "`".repeat(longest_run(text, '`').max(2) + 1);
                    let _ = writeln!(out, "{fence}json\n{text}\n{fence}");
                }
            }
        }
        out
    }

    /// As an HTML page that needs nothing else.
    pub fn html(&self) -> String {
        let title = safe::markup(&safe::text(&self.title));
        let mut out = format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n\
             <style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n<dl>\n"
        );
        for (name, fact) in &self.facts {
            let _ = writeln!(out, "<dt>{name}</dt><dd>{}</dd>", safe::markup(&safe::text(fact)));
        }
        out.push_str("</dl>\n");
        for (title, part) in &self.parts {
            let _ = writeln!(out, "<h2>{title}</h2>");
            match part {
                ReportPart::Table(head, rows) => {
                    let row = |tag: &str, cells: &mut dyn Iterator<Item = String>| {
                        let cells: String = cells.map(|cell| format!("<{tag}>{cell}</{tag}>")).collect();
                        format!("<tr>{cells}</tr>\n")
                    };
                    let head = row("th", &mut head.iter().map(|title| (*title).to_owned()));
                    let rows: String = rows
                        .iter()
                        .map(|cells| row("td", &mut cells.iter().map(|text| safe::markup(&safe::text(text)))))
                        .collect();
                    let _ =
                        write!(out, "<table>\n<thead>{head}</thead>\n<tbody>\n{rows}</tbody>\n</table>\n");
                }
                ReportPart::Code(text) => {
                    let _ = writeln!(out, "<pre>{}</pre>", safe::markup(&safe::text(text)));
                }
            }
        }
        out.push_str("</body>\n</html>\n");
        out
    }
}

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;\
    color-scheme:light dark}dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1rem}dd{margin:0}\
    table{border-collapse:collapse;display:block;overflow-x:auto}td,th{border:1px solid #8886;padding:.25rem .6rem;\
    text-align:left;vertical-align:top}pre{overflow-x:auto;padding:1rem;border:1px solid #8886}";

/// The rows of a body, each with its path and status, those of its frames after them.
fn add_rows<'v>(
    rows: &'v [NodeRow],
    prefix: &str,
    status: DisplayStatus,
    found: &mut Vec<(&'v NodeRow, String, NodeStatus)>,
) {
    for row in rows {
        found.push((row, format!("{prefix}{}", row.label), shown(row, status)));
    }
    for row in rows {
        let path = format!("{prefix}{}", row.label);
        for (key, frame) in &row.frames {
            add_rows(&frame.rows, &inside(&path, *key, frame), status, found);
        }
    }
}

fn node(row: &NodeRow, path: &str, status: NodeStatus) -> Vec<String> {
    let (_, sign) = look::sign(status);
    vec![
        path.to_owned(),
        format!("{sign} {}", look::word(status)),
        row.attempts.to_string(),
        row.worked_ms().map(format::millis).unwrap_or_default(),
        if row.spent.tokens > 0 { format::count(row.spent.tokens) } else { String::new() },
        if row.spent.turns > 0 { dollars(row.spent.known_usd()) } else { String::new() },
    ]
}

fn dollars(usd: Option<f64>) -> String {
    usd.map_or("unknown".to_owned(), format::dollars)
}

/// A value as text, or the beginning of it.
fn value(value: &Value) -> String {
    let mut text = serde_json::to_string_pretty(value).unwrap_or_default();
    if text.len() > LONGEST {
        text.truncate(text.floor_char_boundary(LONGEST));
        text.push('…');
    }
    safe::text(&text).into_owned()
}

/// How often a character follows itself at most.
fn longest_run(text: &str, wanted: char) -> usize {
    text.split(|c| c != wanted).map(str::len).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use inspan_protocol::Environment;

    use super::*;
    use crate::{CostFold, testing::Recorded};

    fn report(recorded: &Recorded) -> Report {
        let redactor = Redactor::new(&Environment::default());
        let mut fold = PageFold::new(&recorded.session.record, &recorded.graph);
        let (mut cost, mut questions) = (CostFold::default(), QuestionFold::default());
        for envelope in &recorded.log {
            fold.apply(envelope);
            cost.apply(envelope);
            questions.apply(envelope);
        }
        let cost = cost.cost(&recorded.graph, fold.view().run().state(), None, false);
        Report::of(&fold, &recorded.session, &cost, &questions, &redactor)
    }

    #[test]
    fn recorded_sessions_have_a_report() {
        for name in ["review_loop", "human_input", "frame_partial", "failing"] {
            insta::assert_snapshot!(name, report(&Recorded::flow(name)).markdown());
        }
        insta::assert_snapshot!("html", report(&Recorded::flow("failing")).html());
    }

    #[test]
    fn the_time_of_a_node_is_that_of_all_its_attempts() {
        let text = report(&Recorded::flow("retry")).markdown();
        assert!(text.contains("| late | ✘ failed | 2 | 3m 00s |"), "{text}");
    }

    #[test]
    fn what_a_session_says_is_never_markup() {
        let fact = "<script>alert(1)</script> [x](http://a) | `y`\u{1b}[31m";
        let report = Report {
            title: fact.to_owned(),
            facts: vec![("status", fact.to_owned())],
            parts: vec![
                ("Nodes", ReportPart::Table(vec!["node"], vec![vec![fact.to_owned()]])),
                ("Output", ReportPart::Code("```\n<b>".to_owned())),
            ],
        };
        let line = r"\<script\>alert(1)\</script\> \[x\](http://a) \| \`y\`";
        let markdown = format!(
            "# {line}\n\n- **status**: {line}\n\n## Nodes\n\n| node |\n| --- |\n| {line} |\n\n## Output\n\n````json\n```\n<b>\n````\n"
        );
        assert_eq!(report.markdown(), markdown);
        let html = report.html();
        assert!(!html.contains("<script") && !html.contains("<b>") && !html.contains('\u{1b}'), "{html}");
    }
}
