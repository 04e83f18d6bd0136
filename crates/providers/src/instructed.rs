//! Structured output by instruction, for agents that cannot enforce a schema: the words that ask for it, and the
//! JSON found in the answer. The engine checks it against the schema.

use serde_json::Value;
use serde_json::value::RawValue;

/// Where JSON may begin is tried so often at most; an answer with more brackets is no answer in JSON.
const TRIES: usize = 1_000;

/// What is added to a prompt to have its answer in JSON of a schema.
pub(crate) fn instruction(schema: &Value) -> String {
    format!(
        "End your answer with one JSON value that is valid against the JSON Schema below. Put that value into a fenced \
         code block marked `json`, as the last thing you write, with nothing after it.\n\n```json\n{schema}\n```"
    )
}

/// The JSON that is looked for in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Any,
    /// An answer may cite its sources as `[2]`, which is not an object.
    Object,
}

impl Wanted {
    /// What an answer in a schema has.
    pub(crate) fn of(schema: &Value) -> Self {
        if schema["type"] == "object" { Self::Object } else { Self::Any }
    }

    fn is(self, json: &str) -> bool {
        self == Self::Any || json.starts_with('{')
    }
}

/// The JSON of an answer: the answer if it is JSON as a whole, else the last fenced block that is what is wanted, else the last
/// bare value that is.
pub(crate) fn extract(answer: &str, wanted: Wanted) -> Option<Value> {
    let whole = answer.trim();
    if let Ok(value) = serde_json::from_str(whole) {
        return Some(value);
    }
    fenced(whole, wanted).or_else(|| bare(whole, wanted))
}

/// The last fenced block that holds JSON and nothing else.
fn fenced(answer: &str, wanted: Wanted) -> Option<Value> {
    let read = |block: &str| {
        Some(block.trim()).filter(|json| wanted.is(json)).and_then(|json| serde_json::from_str(json).ok())
    };
    let mut found = None;
    let mut open: Option<(&str, usize)> = None;
    let mut at = 0;
    for line in answer.split_inclusive('\n') {
        let begins = at;
        at += line.len();
        let text = line.trim();
        let ticks = text.len() - text.trim_start_matches('`').len();
        match open {
            None if ticks >= 3 => open = Some((&text[..ticks], at)),
            Some((fence, from)) if ticks >= fence.len() && ticks == text.len() => {
                found = read(&answer[from..begins]).or(found);
                open = None;
            }
            _ => {}
        }
    }
    // An answer that was cut before the end of its block may still have the whole value.
    if let Some((_, from)) = open {
        found = read(&answer[from..]).or(found);
    }
    found
}

/// The last object or list in the text that is not within another one.
fn bare(answer: &str, wanted: Wanted) -> Option<Value> {
    let mut found = None;
    let mut at = 0;
    for _ in 0..TRIES {
        let Some(start) = answer[at..].find(['{', '[']).map(|start| at + start) else { break };
        let mut values = serde_json::Deserializer::from_str(&answer[start..]).into_iter::<Box<RawValue>>();
        match values.next() {
            Some(Ok(value)) => {
                found = Some(value).filter(|value| wanted.is(value.get())).or(found);
                at = start + values.byte_offset().max(1);
            }
            // What begins here was cut short, so all that follows is within it.
            Some(Err(error)) if error.is_eof() => break,
            _ => at = start + 1,
        }
    }
    serde_json::from_str(found?.get()).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_last_json_of_an_answer_is_its_output() {
        let rows = [
            (r#"{"a":1}"#, Some(json!({ "a": 1 }))),
            (" [1, 2]\n", Some(json!([1, 2]))),
            ("7", Some(json!(7))),
            ("Here:\n```json\n{\"a\": 1}\n```\n", Some(json!({ "a": 1 }))),
            ("```json\n{\"a\":1}\n```\nor rather\n```\n{\"a\":2}\n```", Some(json!({ "a": 2 }))),
            ("```json\n{\"a\":1}\n```\nthen run\n```sh\nls [a]\n```", Some(json!({ "a": 1 }))),
            ("````json\n{\"a\":\"```\"}\n````", Some(json!({ "a": "```" }))),
            ("```json\n{\"a\":1}", Some(json!({ "a": 1 }))),
            ("It is {\"a\":{\"b\":[]}} as you see.", Some(json!({ "a": { "b": [] } }))),
            ("First {\"a\":1}, then {\"a\":2}; see [here](x).", Some(json!({ "a": 2 }))),
            ("a {b} and [c", None),
            ("First {\"a\":1}, then {\"b\":[{\"c\":2},", Some(json!({ "a": 1 }))),
            ("Cut: [{\"a\":1}, {\"a\":2}", None),
            ("nothing at all", None),
            ("", None),
        ];
        for (answer, expected) in rows {
            assert_eq!(extract(answer, Wanted::Any), expected, "{answer}");
        }
        let objects = [
            ("{\"x\": 11}\n\nSee [1] and [2].", Some(json!({ "x": 11 }))),
            ("```json\n{\"x\": 11}\n```\n```\n[2]\n```", Some(json!({ "x": 11 }))),
            ("See [{\"x\": 11}].", None),
            ("[2]", Some(json!([2]))),
        ];
        for (answer, expected) in objects {
            assert_eq!(extract(answer, Wanted::Object), expected, "{answer}");
        }
    }

    #[test]
    fn integers_of_64_bits_keep_every_digit() {
        for number in
            ["18446744073709551615", "9223372036854775807", "-9223372036854775808", "9007199254740993"]
        {
            let json = format!("{{\"n\":{number}}}");
            for answer in [json.clone(), format!("```json\n{json}\n```"), format!("So {json} it is.")] {
                let found = extract(&answer, Wanted::Object).map(|value| value.to_string());
                assert_eq!(found.as_ref(), Some(&json), "{answer}");
            }
        }
    }

    #[test]
    fn many_brackets_take_no_long_time() {
        assert_eq!(extract(&"[".repeat(1_000_000), Wanted::Any), None);
        assert_eq!(extract(&format!("{}x", "[".repeat(10_000)), Wanted::Any), None);
    }

    proptest! {
        #[test]
        fn no_answer_stops_it(answer in any::<String>(), braces in "[`{}\\[\\]\", \n\\\\a1:]{0,60}") {
            let _none = (extract(&answer, Wanted::Object), extract(&braces, Wanted::Any));
        }

        #[test]
        fn whatever_stands_in_a_fence_comes_out(key in "[a-z]{1,8}", text in any::<String>()) {
            let value = json!({ key: text });
            prop_assert_eq!(extract(&format!("So:\n```json\n{value}\n```"), Wanted::Object), Some(value));
        }
    }
}
