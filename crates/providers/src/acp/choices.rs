//! What is chosen in a session before its first prompt: model, thinking, mode, in this order, because the choices may
//! depend on the model.

use inspan_protocol::{AgentError, ErrorCode, ErrorKind, StreamEvent, ThinkingLevel};
use serde_json::{Value, json};

use super::agent::AcpAgent;
use super::decode::chosen_model;
use super::launch::Choices;
use super::wire::{ConfigOption, Configured, Modes, Opened};

/// Modes in which agents ask before they change something. Droid calls it `normal`.
const ASKS: [&str; 2] = ["default", "normal"];
/// Modes of agents in which they ask for nothing, or for little.
const ASK_NOTHING: [&str; 7] =
    ["auto", "auto-high", "auto-low", "auto-medium", "bypassPermissions", "full-access", "yolo"];

impl AcpAgent {
    /// Chooses what the launch says among what the session offers. What is not offered fails the call before it
    /// costs anything, except thinking, which only changes how good the answer is.
    pub(super) async fn choose(&mut self, opened: Opened) -> Result<(), AgentError> {
        let Choices { model, mode, thinking } = self.launch.choices.clone();
        let mut options = opened.config_options.unwrap_or_default();
        let mut current = opened.models.as_ref().and_then(|models| models.current_model_id.clone());
        if let Some(model) = model {
            if let Some(option) = find(&options, "model") {
                offered(&option.values(), &model, "model", ErrorCode::ModelNotFound)?;
                self.set(&mut options, "model", &model).await?;
            } else if let Some(models) = &opened.models {
                let values: Vec<String> =
                    models.available_models.iter().map(|model| model.model_id.clone()).collect();
                offered(&values, &model, "model", ErrorCode::ModelNotFound)?;
                if current.as_ref() != Some(&model) {
                    let params = json!({ "sessionId": self.session, "modelId": model });
                    self.call::<Option<Value>>("session/set_model", params).await?;
                }
                current = Some(model);
            } else {
                return Err(not_offered("model"));
            }
        }
        if let Some(level) = thinking {
            self.think(&mut options, level).await?;
        }
        self.choose_mode(mode, &mut options, opened.modes).await?;
        self.decoder.set_model(chosen_model(&options).or(current));
        Ok(())
    }

    /// Without a mode of the call the session has the agent's mode that asks. Some agents begin in one in which a model
    /// answers for the person.
    async fn choose_mode(
        &mut self,
        mode: Option<String>,
        options: &mut Vec<ConfigOption>,
        modes: Option<Modes>,
    ) -> Result<(), AgentError> {
        let option = find(options, "mode");
        let (values, now) = match (option, modes) {
            (Some(option), _) => (option.values(), option.current_value.as_str().map(str::to_owned)),
            (None, Some(modes)) => {
                let values: Vec<String> = modes.available_modes.into_iter().map(|mode| mode.id).collect();
                (values, modes.current_mode_id)
            }
            (None, None) if mode.is_none() => return Ok(()),
            (None, None) => return Err(not_offered("mode")),
        };
        let is_offered = |mode: &&str| values.iter().any(|value| value == *mode);
        let Some(mode) = mode.or_else(|| ASKS.into_iter().find(is_offered).map(str::to_owned)) else {
            let asks_nothing = now.filter(|now| ASK_NOTHING.contains(&now.as_str()));
            self.warnings.extend(asks_nothing.map(|mode| {
                let message = format!(
                    "this agent is in its mode `{mode}`, in which it may ask for no permission; name another one by `mode`"
                );
                StreamEvent::warning("modeAsksNothing", message)
            }));
            return Ok(());
        };
        offered(&values, &mode, "mode", ErrorCode::ConfigInvalid)?;
        self.warn_of_plan(&mode, &values);
        if option.is_some() {
            self.set(options, "mode", &mode).await?;
        } else if now.as_ref() != Some(&mode) {
            let params = json!({ "sessionId": self.session, "modeId": mode });
            self.call::<Option<Value>>("session/set_mode", params).await?;
        }
        Ok(())
    }

    /// The Claude agent starts Claude Code so that it may pass over permissions wherever it offers that as a mode, and Claude
    /// Code then asks for nothing in its mode `plan`.
    fn warn_of_plan(&mut self, mode: &str, offered: &[String]) {
        if mode == "plan" && offered.iter().any(|value| value == "bypassPermissions") {
            let message = "this agent asks for no permission in its mode `plan`, and can write files and run commands; \
                           in the mode `default` it asks";
            self.warnings.push(StreamEvent::warning("planAsksNothing", message));
        }
    }

    async fn think(
        &mut self,
        options: &mut Vec<ConfigOption>,
        level: ThinkingLevel,
    ) -> Result<(), AgentError> {
        let Some(option) = find(options, "thought_level") else {
            let message = "the agent offers no choice of how much its model thinks; it thinks as it does";
            self.warnings.push(StreamEvent::warning("thinkingNotOffered", message));
            return Ok(());
        };
        let values = option.values();
        let Some(value) = words(level).iter().find(|word| values.iter().any(|value| value == *word)) else {
            let message = format!(
                "the agent does not offer to think `{0}`; {1}",
                words(level)[0],
                offers(words(level)[0], &values)
            );
            return Err(AgentError::new(ErrorCode::ConfigInvalid, message).with_kind(ErrorKind::NotOffered));
        };
        self.set(options, "thought_level", value).await
    }

    /// Sets an option, and stores the choices that the agent then offers.
    async fn set(
        &mut self,
        options: &mut Vec<ConfigOption>,
        category: &str,
        value: &str,
    ) -> Result<(), AgentError> {
        let Some(option) = find(options, category) else { return Err(not_offered(category)) };
        if option.current_value == value {
            return Ok(());
        }
        let id = option.id.clone();
        let params = json!({ "sessionId": self.session, "configId": id, "value": value });
        let now: Option<Configured> = self.call("session/set_config_option", params).await?;
        match now.and_then(|now| now.config_options) {
            Some(now) => *options = now,
            None => {
                options
                    .iter_mut()
                    .filter(|option| option.id == id)
                    .for_each(|option| option.current_value = json!(value));
            }
        }
        Ok(())
    }
}

/// The option of a category; agents that name no categories name the option so.
fn find<'a>(options: &'a [ConfigOption], category: &str) -> Option<&'a ConfigOption> {
    let by_category = options.iter().find(|option| option.category.as_deref() == Some(category));
    by_category.or_else(|| options.iter().find(|option| option.id == category))
}

/// An agent's words for a level of thinking, the most fitting first.
fn words(level: ThinkingLevel) -> &'static [&'static str] {
    match level {
        ThinkingLevel::Off => &["off", "none", "disabled"],
        ThinkingLevel::Minimal => &["minimal", "low"],
        ThinkingLevel::Low => &["low"],
        ThinkingLevel::High => &["high"],
        ThinkingLevel::Xhigh => &["xhigh", "max", "high"],
        _ => &["medium", "default"],
    }
}

fn offered(values: &[String], wanted: &str, what: &str, code: ErrorCode) -> Result<(), AgentError> {
    if values.iter().any(|value| value == wanted) {
        return Ok(());
    }
    let message = format!("the agent does not offer the {what} `{wanted}`; {}", offers(wanted, values));
    Err(AgentError::new(code, message).with_kind(ErrorKind::NotOffered))
}

fn not_offered(what: &str) -> AgentError {
    let message = format!("the agent offers no choice of its {what}; leave out the option `{what}`");
    AgentError::new(ErrorCode::ConfigInvalid, message).with_kind(ErrorKind::NotOffered)
}

/// How many values a sentence names.
const SHOWN: usize = 5;

/// Says what is offered instead of `wanted`: all of a short list, else the closest and how many there are.
pub(crate) fn offers(wanted: &str, offered: &[String]) -> String {
    let list =
        |values: &[&String]| values.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(", ");
    let mut values: Vec<&String> = offered.iter().collect();
    match values.len() {
        0 => return "it offers none".to_owned(),
        all if all <= SHOWN => return format!("it offers {}", list(&values)),
        _ => {}
    }
    let folded = wanted.to_lowercase();
    let likeness = |value: &str| {
        let value = value.to_lowercase();
        let likeness = strsim::jaro_winkler(&folded, &value);
        // A name within the other one is meant more often than one that looks like it.
        if value.contains(&folded) || folded.contains(&value) { likeness + 1.0 } else { likeness }
    };
    values.sort_by(|left, right| likeness(right).total_cmp(&likeness(left)));
    let closest = list(values.get(..SHOWN).unwrap_or_default());
    format!("the closest of the {} that it offers are {closest}", values.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closest_come_first() {
        let many: Vec<String> = (0..40)
            .map(|number| format!("vendor/other-{number}"))
            .chain(["openai/gpt-5".to_owned(), "anthropic/claude-sonnet-4-5".to_owned()])
            .collect();
        let few = ["high".to_owned(), "low".to_owned()];
        let first = |wanted: &str| offers(wanted, &many).split('`').nth(1).map(str::to_owned);
        assert_eq!(first("sonnet"), Some("anthropic/claude-sonnet-4-5".to_owned()));
        assert_eq!(first("anthropic/claude-sonet-4-5"), Some("anthropic/claude-sonnet-4-5".to_owned()));
        assert_eq!(first("GPT-5"), Some("openai/gpt-5".to_owned()));
        assert!(offers("sonnet", &many).starts_with("the closest of the 42 that it offers are `"));
        assert_eq!(offers("sonnet", &many).matches('`').count(), 2 * SHOWN);
        assert_eq!(offers("lo", &few), "it offers `high`, `low`");
        assert_eq!(offers("lo", &[]), "it offers none");
    }
}
