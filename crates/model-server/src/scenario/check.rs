//! What a scenario must not say: keys that contradict each other or could never take effect.
//! The shape itself is checked by serde in `scenario.rs`.

use axum::http::{HeaderName, HeaderValue};

use super::{Block, Matcher, Scenario, ScenarioError, Turn};

impl Scenario {
    /// Checks what the types cannot express; loading and starting a server do this too.
    ///
    /// # Errors
    /// The first contradiction, with its place.
    pub fn check(&self) -> Result<(), ScenarioError> {
        let numbered = self.turns.iter().enumerate().map(|(index, turn)| (format!("turn {index}"), turn));
        for (place, turn) in numbered.chain([("aux".to_owned(), &self.aux)]) {
            if let Some(problem) = problem_of(turn) {
                return Err(ScenarioError::Invalid { place, problem });
            }
        }
        if self.aux.when.is_some() {
            return Err(ScenarioError::Invalid {
                place: "aux".to_owned(),
                problem: "`when` has no effect here, auxiliary requests never reach the rules".to_owned(),
            });
        }
        Ok(())
    }
}

fn problem_of(turn: &Turn) -> Option<String> {
    let speaks = !turn.blocks.is_empty() || turn.structured.is_some();
    let faults = [
        ("truncateAfter", turn.truncate_after.is_some()),
        ("stallAfter", turn.stall_after.is_some()),
        ("errorEventAfter", turn.error_event_after.is_some()),
    ];
    let ends: Vec<&str> = faults.iter().filter(|(_, given)| *given).map(|(name, _)| *name).collect();
    let streams = speaks || !ends.is_empty() || turn.garbage_after.is_some();

    if turn.http_error.is_some() && (streams || turn.hang) {
        return Some("`httpError` must be alone, without blocks, faults or `hang`".to_owned());
    }
    if turn.hang && streams {
        return Some("`hang` must be alone, without blocks or faults".to_owned());
    }
    if ends.len() > 1 {
        return Some(format!("`{}` cannot be combined", ends.join("` and `")));
    }
    if turn.stall_ping_ms.is_some() && turn.stall_after.is_none() {
        return Some("`stallPingMs` needs `stallAfter`".to_owned());
    }
    if turn.stall_ping_ms == Some(0) {
        return Some("`stallPingMs` must be at least 1".to_owned());
    }
    if turn.times.is_some() && turn.when.is_none() {
        return Some("`times` needs `when`".to_owned());
    }
    if turn.when.as_ref().is_some_and(|matcher| *matcher == Matcher::default()) {
        return Some("`when` is empty and would fit every request".to_owned());
    }
    let not_object = |block: &Block| matches!(block, Block::ToolUse { input, .. } if !input.is_object());
    if turn.blocks.iter().any(not_object) {
        return Some("the `input` of a `tool_use` must be an object".to_owned());
    }
    if let Some(error) = &turn.http_error
        && !(400..=599).contains(&error.status)
    {
        return Some(format!("`httpError.status` {} is not within 400 to 599", error.status));
    }
    let error_headers = turn.http_error.iter().flat_map(|error| &error.headers);
    turn.headers.iter().chain(error_headers).find_map(|(name, value)| {
        let sendable =
            HeaderName::from_bytes(name.as_bytes()).is_ok() && HeaderValue::from_str(value).is_ok();
        (!sendable).then(|| format!("header `{name}` cannot be sent"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_contradiction_is_named() {
        let rows = [
            (
                r#"{"turns":[{"hang":true,"httpError":{"status":500}}]}"#,
                "turn 0 of the scenario: `httpError` must be alone, without blocks, faults or `hang`",
            ),
            (
                r#"{"turns":[{"hang":true,"blocks":[{"type":"pause","ms":1}]}]}"#,
                "turn 0 of the scenario: `hang` must be alone, without blocks or faults",
            ),
            (
                r#"{"turns":[{},{"truncateAfter":1,"stallAfter":2}]}"#,
                "turn 1 of the scenario: `truncateAfter` and `stallAfter` cannot be combined",
            ),
            (r#"{"turns":[{"stallPingMs":5}]}"#, "turn 0 of the scenario: `stallPingMs` needs `stallAfter`"),
            (
                r#"{"turns":[{"stallAfter":1,"stallPingMs":0}]}"#,
                "turn 0 of the scenario: `stallPingMs` must be at least 1",
            ),
            (r#"{"turns":[{"times":2}]}"#, "turn 0 of the scenario: `times` needs `when`"),
            (
                r#"{"turns":[{"when":{}}]}"#,
                "turn 0 of the scenario: `when` is empty and would fit every request",
            ),
            (
                r#"{"turns":[{"blocks":[{"type":"tool_use","name":"Bash","input":"ls"}]}]}"#,
                "turn 0 of the scenario: the `input` of a `tool_use` must be an object",
            ),
            (
                r#"{"turns":[{"httpError":{"status":200}}]}"#,
                "turn 0 of the scenario: `httpError.status` 200 is not within 400 to 599",
            ),
            (
                r#"{"turns":[{"headers":{"bad name":"x"}}]}"#,
                "turn 0 of the scenario: header `bad name` cannot be sent",
            ),
            (
                r#"{"turns":[],"aux":{"when":{"model":"m"}}}"#,
                "aux of the scenario: `when` has no effect here, auxiliary requests never reach the rules",
            ),
        ];
        let found: Vec<String> = rows
            .iter()
            .map(|(text, _)| Scenario::from_json(text).expect_err("a contradiction").to_string())
            .collect();
        assert_eq!(found, rows.map(|(_, expected)| expected.to_owned()).to_vec());
    }

    #[test]
    fn an_unknown_key_is_an_error_that_names_it() {
        let texts = [
            r#"{"turns":[],"delay":1}"#,
            r#"{"turns":[{"truncate_after":1}]}"#,
            r#"{"turns":[{"blocks":[{"type":"text","text":"a","size":1}]}]}"#,
            r#"{"turns":[{"blocks":[{"type":"song","text":"a"}]}]}"#,
        ];
        let found = texts.map(|text| {
            let message = Scenario::from_json(text).expect_err("an unknown key").to_string();
            message.split(", expected").next().unwrap_or_default().to_owned()
        });
        assert_eq!(
            found,
            [
                "scenario text is malformed: unknown field `delay`",
                "scenario text is malformed: unknown field `truncate_after`",
                "scenario text is malformed: unknown field `size`",
                "scenario text is malformed: unknown variant `song`",
            ]
        );
    }

    /// The error about an unknown key or word lists the known ones.
    #[test]
    fn every_key_is_explained() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/model-server.md");
        let page = std::fs::read_to_string(page).unwrap();
        let places = [
            r#"{"turns":[],"?":1}"#,
            r#"{"turns":[],"after":"?"}"#,
            r#"{"turns":[{"?":1}]}"#,
            r#"{"turns":[{"when":{"?":1}}]}"#,
            r#"{"turns":[{"usage":{"?":1}}]}"#,
            r#"{"turns":[{"httpError":{"?":1}}]}"#,
            r#"{"turns":[{"errorEventAfter":{"?":1}}]}"#,
            r#"{"turns":[{"blocks":[{"type":"?"}]}]}"#,
            r#"{"turns":[{"blocks":[{"type":"text","?":1}]}]}"#,
            r#"{"turns":[{"blocks":[{"type":"thinking","?":1}]}]}"#,
            r#"{"turns":[{"blocks":[{"type":"tool_use","?":1}]}]}"#,
            r#"{"turns":[{"blocks":[{"type":"shell","?":1}]}]}"#,
            r#"{"turns":[{"blocks":[{"type":"pause","?":1}]}]}"#,
        ];
        let mut missing = Vec::new();
        let mut found = 0;
        for place in places {
            let message = Scenario::from_json(place).expect_err("no such key").to_string();
            let expected = message.split_once("expected ").expect("what is expected").1;
            for word in expected.split('`').skip(1).step_by(2) {
                found += 1;
                let explained = [format!("`{word}`"), format!("`\"{word}\"`")];
                if !explained.iter().any(|word| page.contains(word.as_str())) {
                    missing.push(word.to_owned());
                }
            }
        }
        assert!(found > 50, "only {found} words are listed: the errors have changed");
        assert!(missing.is_empty(), "docs/model-server.md does not explain {missing:?}");
    }

    #[test]
    fn a_scenario_survives_its_own_json() {
        let scenario = Scenario::of([
            Turn::text("a").when(Matcher::last("b")),
            Turn::error(429),
            Turn { hang: true, ..Turn::default() },
            Turn::structured(serde_json::json!({"n": 1})),
        ]);
        let text = serde_json::to_string(&scenario).unwrap();
        assert_eq!(Scenario::from_json(&text).unwrap(), scenario);
    }
}
