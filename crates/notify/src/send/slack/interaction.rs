//! What a person did in Slack, read from an envelope: everything in it is checked.

use serde_json::{Value, json};

use super::blocks::{AnswerTarget, CHOOSE, DIALOG, FIELD, WRITE};

/// The longest text that is taken as an answer, in bytes.
const LONGEST: usize = 32 * 1024;

/// What a person did.
#[derive(Debug, PartialEq)]
pub(super) struct Interaction {
    /// Who.
    pub(super) user: String,
    /// Where the question is shown: the channel and the message.
    pub(super) place: SlackMessage,
    /// What.
    pub(super) act: Act,
}

/// A message in Slack.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct SlackMessage {
    pub(super) channel: String,
    pub(super) message: String,
}

/// What was done.
#[derive(Debug, PartialEq)]
pub(super) enum Act {
    /// One of the choices.
    Choose(AnswerTarget),
    /// They want to write a text; the token opens a dialog.
    Write { target: AnswerTarget, trigger: String },
    /// They wrote one.
    Wrote { target: AnswerTarget, text: String },
}

impl Act {
    /// What it answers.
    pub(super) fn target(&self) -> &AnswerTarget {
        match self {
            Self::Choose(target) | Self::Write { target, .. } | Self::Wrote { target, .. } => target,
        }
    }
}

impl SlackMessage {
    fn of(value: &Value) -> Option<Self> {
        let text = |key: &str| value[key].as_str().filter(|text| text.len() <= 64).map(str::to_owned);
        Some(Self { channel: text("channel_id")?, message: text("message_ts")? })
    }

    pub(super) fn json(&self) -> Value {
        json!({ "channel_id": self.channel, "message_ts": self.message })
    }
}

impl Interaction {
    /// The interaction of a payload; `None` if it is not ours or not what Slack sends.
    pub(super) fn of(payload: &Value) -> Option<Self> {
        let user = payload["user"]["id"].as_str().filter(|user| user.len() <= 64)?.to_owned();
        match payload["type"].as_str()? {
            "block_actions" => {
                let [action] = payload["actions"].as_array()?.as_slice() else { return None };
                let target: AnswerTarget = serde_json::from_str(action["value"].as_str()?).ok()?;
                let place = SlackMessage::of(&payload["container"])?;
                let act = match action["action_id"].as_str()? {
                    WRITE if target.c.is_none() => {
                        Act::Write { target, trigger: payload["trigger_id"].as_str()?.to_owned() }
                    }
                    id if id.starts_with(CHOOSE) && target.c.is_some() => Act::Choose(target),
                    _ => return None,
                };
                Some(Self { user, place, act })
            }
            "view_submission" => {
                let view = &payload["view"];
                if view["callback_id"] != json!(DIALOG) {
                    return None;
                }
                let metadata: Value = serde_json::from_str(view["private_metadata"].as_str()?).ok()?;
                let target: AnswerTarget = serde_json::from_value(metadata["target"].clone()).ok()?;
                let place = SlackMessage::of(&metadata["place"])?;
                let text = view["state"]["values"][DIALOG][FIELD]["value"].as_str()?;
                let text = text.trim().to_owned();
                let is_text = !text.is_empty() && text.len() <= LONGEST && target.c.is_none();
                is_text.then_some(Self { user, place, act: Act::Wrote { target, text } })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn action(id: &str, value: &str) -> Value {
        json!({
            "type": "block_actions", "user": { "id": "U1" }, "trigger_id": "t",
            "container": { "channel_id": "C1", "message_ts": "1.2" },
            "actions": [{ "action_id": id, "value": value }],
        })
    }

    #[test]
    fn what_is_not_ours_is_nothing() {
        let good = r#"{"s":"run-1","p":"gate.1","n":"team","c":"yes"}"#;
        let target = || AnswerTarget {
            s: "run-1".into(),
            p: "gate.1".into(),
            n: "team".to_owned(),
            c: Some("yes".to_owned()),
        };
        let place = SlackMessage { channel: "C1".to_owned(), message: "1.2".to_owned() };
        let chosen = Interaction { user: "U1".to_owned(), place, act: Act::Choose(target()) };
        assert_eq!(Interaction::of(&action("inspan-choose-0", good)), Some(chosen));
        let mut without_user = action("inspan-choose-0", good);
        without_user["user"] = json!({});
        let mut two = action("inspan-choose-0", good);
        two["actions"] = json!([{}, {}]);
        let rows = [
            action("other", good),
            action("inspan-write", good),
            action("inspan-choose-0", r#"{"s":"run-1","p":"gate.1","n":"team"}"#),
            action("inspan-choose-0", r#"{"s":"run-1","p":"gate.1","c":"yes"}"#),
            action("inspan-choose-0", r#"{"s":"run-1","p":"gate.1","n":"team","c":"yes","x":1}"#),
            action("inspan-choose-0", "{"),
            without_user,
            two,
            json!({ "type": "view_submission", "user": { "id": "U1" }, "view": { "callback_id": "x" } }),
            json!([]),
        ];
        for row in rows {
            assert_eq!(Interaction::of(&row), None, "{row}");
        }
    }
}
