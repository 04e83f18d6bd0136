//! Makes the output of a vendor's program deterministic: its conversations get names that depend on what was
//! asked, its times become zero, and the folder it works in becomes a neutral one.
//!
//! The names are given while the flow runs and not in the files afterwards, because the conversation of one call is
//! part of the next one's request, and so of the key of the next recording.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::StreamExt;
use inspan_protocol::{
    DynProvider, ExecutionContext, ProviderItem, ProviderSessionId, ProviderStream, ProviderWrapper,
    StreamEvent,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The neutral name of the folder of the flow.
const FOLDER: &str = "/home/dev/project";

/// The names given within one case.
#[derive(Clone)]
pub(super) struct Names(Arc<Mutex<Given>>);

struct Given {
    /// The vendor's text, and the text that replaces it.
    pairs: Vec<(String, String)>,
    /// How often each request was made.
    calls: HashMap<String, u32>,
}

impl Names {
    /// Names for a flow that runs in this folder.
    pub(super) fn new(folder: &Path) -> Self {
        let pairs = vec![(folder.display().to_string(), FOLDER.to_owned())];
        Self(Arc::new(Mutex::new(Given { pairs, calls: HashMap::new() })))
    }

    /// The same provider, without the vendor's own names in what goes in and out.
    pub(super) fn wrap(&self, provider: Arc<dyn DynProvider>) -> Arc<dyn DynProvider> {
        Arc::new(Stable { provider, names: self.clone() })
    }

    fn given(&self) -> MutexGuard<'_, Given> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A name for whatever conversation this request begins.
    fn for_request(&self, input: &Value) -> String {
        let text = input.to_string();
        let call = {
            let mut given = self.given();
            let calls = given.calls.entry(text.clone()).or_default();
            *calls += 1;
            *calls
        };
        format!("00000000-0000-4000-8000-{:012x}", fingerprint(&format!("{call} {text}")) >> 16)
    }

    fn name(&self, session: &ProviderSessionId, name: &str) {
        let mut given = self.given();
        if given.pairs.iter().all(|(real, _)| real != session.as_str()) {
            given.pairs.push((session.to_string(), name.to_owned()));
        }
    }

    fn to_real(&self, value: &Value) -> Value {
        let given = self.given();
        replaced(value, &|text| {
            given.pairs.iter().fold(text.to_owned(), |text, (real, name)| text.replace(name, real))
        })
    }

    fn to_stable<T: Serialize + DeserializeOwned>(&self, said: &T) -> Option<T> {
        let value = serde_json::to_value(said).ok()?;
        let given = self.given();
        let name = |text: &str| {
            given.pairs.iter().fold(text.to_owned(), |text, (real, name)| text.replace(real, name))
        };
        serde_json::from_value(replaced(&value, &name)).ok()
    }
}

struct Stable {
    provider: Arc<dyn DynProvider>,
    names: Names,
}

impl ProviderWrapper for Stable {
    fn inner(&self) -> &dyn DynProvider {
        &*self.provider
    }

    fn execute(&self, input: Value, context: ExecutionContext) -> ProviderStream<Value> {
        let names = self.names.clone();
        let fresh = names.for_request(&input);
        let stream = self.provider.execute(names.to_real(&input), context);
        stream
            .map(move |item| match item {
                Ok(ProviderItem::Event(event)) => {
                    if let StreamEvent::Session { session_id } = &event {
                        names.name(session_id, &fresh);
                    }
                    Ok(ProviderItem::Event(names.to_stable(&event).unwrap_or(event)))
                }
                Ok(ProviderItem::Output(output)) => {
                    let mut output = names.to_stable(&output).unwrap_or(output);
                    if let Some(duration) = output.get_mut("durationMs") {
                        *duration = Value::from(0);
                    }
                    Ok(ProviderItem::Output(output))
                }
                Err(error) => Err(names.to_stable(&error).unwrap_or(error)),
            })
            .boxed()
    }
}

/// The same value with every string in it replaced, names of fields left as they are.
fn replaced(value: &Value, replace: &dyn Fn(&str) -> String) -> Value {
    match value {
        Value::String(text) => Value::String(replace(text)),
        Value::Array(items) => items.iter().map(|item| replaced(item, replace)).collect(),
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| (name.clone(), replaced(value, replace))).collect()
        }
        other => other.clone(),
    }
}

/// A recording's text without the times of its events, which are on separate lines.
pub(super) fn without_times(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("\"atMs\": "));
    lines.map(|line| format!("{line}\n")).collect()
}

/// FNV-1a: the same on every machine and in every version of the standard library.
fn fingerprint(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_conversation_has_one_name_in_all_that_is_sent_and_received() {
        let names = Names::new(Path::new("/tmp/x1"));
        let fresh = names.for_request(&json!({ "prompt": "a" }));
        names.name(&ProviderSessionId::from("real-1"), &fresh);
        names.name(&ProviderSessionId::from("real-1"), "another");
        let said = json!({ "sessionId": "real-1", "text": "in /tmp/x1/a of real-1" });
        let received = json!({ "sessionId": fresh, "text": format!("in /home/dev/project/a of {fresh}") });
        assert_eq!(names.to_stable(&said), Some(received.clone()));
        assert_eq!(names.to_real(&received), said);
    }

    #[test]
    fn a_name_depends_on_the_request_and_on_how_often_it_was_made() {
        let made = |inputs: &[&str]| -> Vec<String> {
            let names = Names::new(Path::new("/tmp/x1"));
            inputs.iter().map(|prompt| names.for_request(&json!({ "prompt": prompt }))).collect()
        };
        let (one, other) = (made(&["a", "b", "a"]), made(&["b", "a", "a"]));
        assert_eq!((&one[0], &one[1], &one[2]), (&other[1], &other[0], &other[2]));
        assert_eq!(one.iter().collect::<std::collections::BTreeSet<_>>().len(), 3);
        assert_eq!(one[0], "00000000-0000-4000-8000-66e826736dec");
    }

    #[test]
    fn times_are_left_out_of_a_recording() {
        let text =
            "{\n  \"events\": [\n    {\n      \"atMs\": 12,\n      \"event\": \"atMs\"\n    }\n  ]\n}\n";
        assert_eq!(
            without_times(text),
            "{\n  \"events\": [\n    {\n      \"event\": \"atMs\"\n    }\n  ]\n}\n"
        );
    }
}
