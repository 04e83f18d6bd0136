//! A question as a program asks it for us: its words, the form of one JSON object that an answer fills in, and the
//! command that the filled form becomes. MCP and ACP clients show such forms.

use std::time::Duration;

use inspan_protocol::{FieldKind, FormField, Prompt, PromptKind, Reply};
use inspan_view::{Permission, entry::without_nulls, format::cut, safe::clean};
use serde_json::{Map, Value, json};

use crate::SessionCommand;

/// What is typed so soon after a question came was typed before its author could read it.
pub const UNREAD: Duration = Duration::from_millis(500);

/// The longest line that tells a question, in letters.
const MOST: usize = 400;

/// The field of a text, of a choice, and of a decision on a permission.
const ANSWER: &str = "answer";
const CHOICE: &str = "choice";
const DECISION: &str = "decision";
/// The field of what the agent is told with a denial.
const REASON: &str = "reason";
/// The words of a decision.
const ALLOW: &str = "allow";
const ALWAYS: &str = "always";
const DENY: &str = "deny";

/// The words of a question: the node that asks, and what it asks. Of a permission also the whole arguments of the tool.
pub fn question_text(prompt: &Prompt) -> String {
    let node = prompt.task.as_ref().map(|task| format!("[{task}] ")).unwrap_or_default();
    match Permission::of(prompt.kind, prompt.detail.as_ref(), &prompt.prompt) {
        None => format!("{node}{}", prompt.prompt),
        Some(permission) => {
            let lines = permission.lines().into_iter().map(|line| format!("\n{}", line.text()));
            lines.fold(format!("{node}{}", permission.title()), |text, line| text + &line)
        }
    }
}

/// The words of a question in one line of bounded length.
pub fn question_line(prompt: &Prompt) -> String {
    cut(&clean(&question_text(prompt)), MOST)
}

/// The JSON Schema of the form: an object whose fields are texts, numbers, true or false, or one of some texts.
pub fn question_schema(prompt: &Prompt) -> Value {
    let (properties, required) = match (prompt.kind, prompt.form(), prompt.choices.as_deref()) {
        (PromptKind::Permission, ..) => {
            let always = prompt.choices.iter().flatten().any(|choice| choice == ALWAYS);
            let words: Vec<_> =
                [ALLOW, ALWAYS, DENY].into_iter().filter(|word| always || *word != ALWAYS).collect();
            (
                json!({
                    DECISION: { "type": "string", "enum": words, "title": "Decision" },
                    REASON: { "type": "string", "title": "Reason for the agent, if denied" },
                }),
                vec![DECISION.to_owned()],
            )
        }
        (_, Some(form), _) => {
            let fields = form.fields();
            let properties: Map<_, _> =
                fields.iter().map(|field| (field.name.clone(), property(field))).collect();
            let asked = fields.iter().filter(|field| field.is_required && field.default.is_none());
            (Value::Object(properties), asked.map(|field| field.name.clone()).collect())
        }
        (_, None, Some(choices @ [_, ..])) => {
            let mut properties = json!({ CHOICE: { "type": "string", "enum": choices, "title": "Choice" } });
            if prompt.allows_text() {
                properties[ANSWER] = json!({ "type": "string", "title": "Another answer" });
                (properties, Vec::new())
            } else {
                (properties, vec![CHOICE.to_owned()])
            }
        }
        (_, None, _) => (json!({ ANSWER: { "type": "string", "title": "Answer" } }), vec![ANSWER.to_owned()]),
    };
    json!({ "type": "object", "properties": properties, "required": required })
}

/// The command that a filled form becomes.
///
/// # Errors
/// The form does not answer the question; the text says why. It is never taken as consent.
pub fn answer_command(prompt: &Prompt, filled: &Value) -> Result<SessionCommand, String> {
    let Some(fields) = filled.as_object() else {
        return Err("the answer must be a JSON object".to_owned());
    };
    let text = |key: &str| fields.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let id = Some(prompt.prompt_id.to_string());
    if prompt.kind == PromptKind::Permission {
        return match text(DECISION) {
            Some(ALLOW) => Ok(SessionCommand::Approve { prompt: id, always: false }),
            Some(ALWAYS) => Ok(SessionCommand::Approve { prompt: id, always: true }),
            Some(DENY) => Ok(SessionCommand::Reject { prompt: id, reason: text(REASON).map(str::to_owned) }),
            _ => Err(format!("`{DECISION}` must be `{ALLOW}`, `{ALWAYS}` or `{DENY}`")),
        };
    }
    if let Some(form) = prompt.form() {
        let typed = |field: &FormField| match (&field.kind, fields.get(&field.name)) {
            // The form offers the values as texts.
            (FieldKind::OneOf(values), Some(given)) => {
                values.iter().find(|value| plain(value) == plain(given)).or(Some(given)).cloned()
            }
            (_, given) => given.cloned(),
        };
        let mut answer: Map<String, Value> = fields.clone();
        for field in form.fields() {
            answer.extend(typed(field).map(|value| (field.name.clone(), value)));
        }
        let content = form.check(&Value::Object(answer)).map(|filled| Value::Object(filled).to_string())?;
        return Ok(SessionCommand::Reply { prompt: id, content: Some(content), choice: None });
    }
    let choice = text(CHOICE).map(str::to_owned);
    let content = text(ANSWER).unwrap_or_default().to_owned();
    if choice.is_none() && content.is_empty() {
        return Err("the answer is empty".to_owned());
    }
    prompt.check(content.clone(), choice.clone()).map_err(|why| why.to_string())?;
    Ok(SessionCommand::Reply { prompt: id, content: Some(content), choice })
}

/// What a line means as an answer, or why it is none.
pub fn read_answer(prompt: &Prompt, typed: &str) -> Result<Reply, String> {
    let typed = typed.trim();
    let choices = prompt.choices.as_deref().unwrap_or_default();
    let chosen = |choice: &String| Reply { content: choice.clone(), choice: Some(choice.clone()) };
    if typed.is_empty() {
        return match &prompt.default {
            Some(default) if choices.contains(default) => Ok(chosen(default)),
            Some(default) => Ok(Reply { content: default.clone(), choice: None }),
            None => Err("type an answer".to_owned()),
        };
    }
    // `n use the other folder`: a denial with what the agent is told.
    if let (PromptKind::Permission, Some((word, reason))) = (prompt.kind, typed.split_once([' ', ',', ':']))
        && ["n", "no", DENY].contains(&word.to_lowercase().as_str())
        && choices.iter().any(|choice| choice == DENY)
    {
        let reason = reason.trim_start_matches([' ', ',', ':']);
        // Of a line with two decisions nobody knows which one is meant.
        if reason != DENY && choices.iter().any(|choice| choice == reason) {
            return Err(format!("it is the choice `{DENY}` and another one: type one of them"));
        }
        return prompt.check(reason.to_owned(), Some(DENY.to_owned())).map_err(|why| why.to_string());
    }
    let word = match (prompt.kind, typed.to_lowercase().as_str()) {
        (PromptKind::Permission, "y" | "yes") => "allow".to_owned(),
        (PromptKind::Permission, "n" | "no") => "deny".to_owned(),
        (_, word) => word.to_owned(),
    };
    let exact = choices.iter().find(|choice| choice.to_lowercase() == word);
    let numbered = || typed.parse::<usize>().ok().and_then(|n| choices.get(n.checked_sub(1)?));
    if let Some(choice) = exact.or_else(numbered) {
        return Ok(chosen(choice));
    }
    if prompt.allows_text() {
        return Ok(Reply { content: typed.to_owned(), choice: None });
    }
    let mut begins = choices.iter().filter(|choice| choice.to_lowercase().starts_with(&word));
    match (begins.next(), begins.next()) {
        (Some(choice), None) => Ok(chosen(choice)),
        _ => Err(match choices.len() {
            1 => "not a valid answer; type 1".to_owned(),
            many => format!("not a valid answer; type 1-{many}"),
        }),
    }
}

/// A field as a property that clients of MCP and ACP know.
fn property(field: &FormField) -> Value {
    let mut property = match &field.kind {
        FieldKind::Text { min, max } => json!({ "type": "string", "minLength": min, "maxLength": max }),
        FieldKind::Number { min, max, is_integer } => {
            let kind = if *is_integer { "integer" } else { "number" };
            let bound = |bound: &Option<f64>| bound.map(|bound| number(bound, *is_integer));
            json!({ "type": kind, "minimum": bound(min), "maximum": bound(max) })
        }
        FieldKind::Boolean => json!({ "type": "boolean" }),
        FieldKind::OneOf(values) => {
            json!({ "type": "string", "enum": values.iter().map(plain).collect::<Vec<_>>() })
        }
        // A kind that came later is asked for as text, and checked as what it is.
        _ => json!({ "type": "string" }),
    };
    property["title"] = json!(field.title);
    property["description"] = json!(field.description);
    property["default"] = match (&field.kind, &field.default) {
        (FieldKind::OneOf(_), Some(default)) => Value::from(plain(default)),
        (_, default) => json!(default),
    };
    without_nulls(property)
}

/// A bound of integers without a fraction, since clients read it as an integer.
fn number(bound: f64, is_integer: bool) -> Value {
    let text = if is_integer { format!("{bound:.0}") } else { bound.to_string() };
    serde_json::from_str(&text).unwrap_or(Value::Null)
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(prompt: &str, content: &str, choice: Option<&str>) -> Result<SessionCommand, String> {
        let (prompt, choice) = (Some(prompt.to_owned()), choice.map(str::to_owned));
        Ok(SessionCommand::Reply { prompt, content: Some(content.to_owned()), choice })
    }

    #[test]
    fn a_text_and_choices_are_one_field_each() {
        let text = Prompt::new("q", PromptKind::Input, "Why?");
        let schema = json!({ "type": "object", "properties": { "answer": { "type": "string", "title": "Answer" } }, "required": ["answer"] });
        assert_eq!(question_schema(&text), schema);
        assert_eq!(answer_command(&text, &json!({ "answer": "so" })), reply("q", "so", None));
        assert_eq!(answer_command(&text, &json!({})), Err("the answer is empty".to_owned()));
        assert_eq!(answer_command(&text, &json!("so")), Err("the answer must be a JSON object".to_owned()));

        let choices = Some(vec!["yes".to_owned(), "no".to_owned()]);
        let mut chosen = Prompt { choices, ..text };
        let choice = json!({ "type": "string", "enum": ["yes", "no"], "title": "Choice" });
        let schema =
            json!({ "type": "object", "properties": { "choice": choice.clone() }, "required": ["choice"] });
        assert_eq!(question_schema(&chosen), schema);
        assert_eq!(answer_command(&chosen, &json!({ "choice": "no" })), reply("q", "", Some("no")));
        let refused = "`maybe` is not among the choices of question `q`: yes, no";
        assert_eq!(answer_command(&chosen, &json!({ "choice": "maybe" })), Err(refused.to_owned()));

        chosen.allow_text = Some(true);
        let answer = json!({ "type": "string", "title": "Another answer" });
        let schema =
            json!({ "type": "object", "properties": { "choice": choice, "answer": answer }, "required": [] });
        assert_eq!(question_schema(&chosen), schema);
        assert_eq!(answer_command(&chosen, &json!({ "answer": "later" })), reply("q", "later", None));
    }

    #[test]
    fn a_form_keeps_its_fields_and_its_values() {
        let schema = json!({ "type": "object", "required": ["title"], "properties": {
            "title": { "type": "string", "minLength": 2, "description": "What it is called" },
            "count": { "type": "integer", "minimum": 1, "default": 2 },
            "level": { "enum": ["low", 3] },
            "draft": { "type": "boolean" },
        } });
        let form = Prompt { schema: Some(schema), ..Prompt::new("q", PromptKind::Input, "Fill in.") };
        let expected = json!({ "type": "object", "required": ["title"], "properties": {
            "title": { "type": "string", "minLength": 2, "description": "What it is called" },
            "count": { "type": "integer", "minimum": 1, "default": 2 },
            "level": { "type": "string", "enum": ["low", "3"] },
            "draft": { "type": "boolean" },
        } });
        assert_eq!(question_schema(&form), expected);
        let filled = json!({ "title": "ox", "level": "3" });
        assert_eq!(answer_command(&form, &filled), reply("q", r#"{"count":2,"level":3,"title":"ox"}"#, None));
        let short = answer_command(&form, &json!({ "title": "o" }));
        assert_eq!(short, Err("`title` must have at least 2 characters".to_owned()));
    }

    #[test]
    fn only_the_words_of_consent_allow() {
        let detail = json!({ "toolName": "Bash", "input": { "command": "ls" } });
        let choices = Some(["allow", "always", "deny"].map(str::to_owned).to_vec());
        let prompt = Prompt::new("q", PromptKind::Permission, "Allow `Bash`?");
        let asked = Prompt {
            detail: Some(detail),
            choices,
            task: Some(inspan_protocol::NodePath::new("fix")),
            ..prompt
        };
        assert_eq!(question_text(&asked), "[fix] Allow Bash ls?");
        let decision = json!({ "type": "string", "enum": ["allow", "always", "deny"], "title": "Decision" });
        let reason = json!({ "type": "string", "title": "Reason for the agent, if denied" });
        let properties = json!({ "decision": decision, "reason": reason });
        let schema = json!({ "type": "object", "properties": properties, "required": ["decision"] });
        assert_eq!(question_schema(&asked), schema);
        let decided = |word: &str| answer_command(&asked, &json!({ "decision": word }));
        let prompt = || Some("q".to_owned());
        assert_eq!(decided("allow"), Ok(SessionCommand::Approve { prompt: prompt(), always: false }));
        assert_eq!(decided("always"), Ok(SessionCommand::Approve { prompt: prompt(), always: true }));
        assert_eq!(decided("deny"), Ok(SessionCommand::Reject { prompt: prompt(), reason: None }));
        let told = json!({ "decision": "deny", "reason": "use another folder" });
        let reason = Some("use another folder".to_owned());
        assert_eq!(answer_command(&asked, &told), Ok(SessionCommand::Reject { prompt: prompt(), reason }));
        let why = "`decision` must be `allow`, `always` or `deny`";
        assert_eq!([decided("yes"), decided("")], [Err(why.to_owned()), Err(why.to_owned())]);
    }
}
