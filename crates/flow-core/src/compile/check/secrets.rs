//! `${NAME}` in the input of a node that fills in secrets: its place, and whether the flow's `secrets` have the
//! name. Only what the author wrote is ever filled in: a text with a template cannot hold `${NAME}`, and what a
//! template gives is sent as it is. So no output of a node can name a secret.

use serde_json::{Value, json};

use super::{Checker, names::Site};
use crate::{
    catalog::CompiledSchema,
    diagnostic::{Code, Problem, did_you_mean},
    nodes::pointer_part,
    spec::{Data, Key, Yaml},
};

/// The key of an input that holds the pointers.
const KEY: &str = "secretsIn";
/// What the body of a request contains is the author's own: `${NAME}` with another name is a text there.
const BODIES: [&str; 2] = ["json", "body"];

impl Checker<'_> {
    /// The key and the JSON pointers of the texts in which secrets are filled in; none if the node fills in none.
    pub(super) fn secrets_in(
        &mut self,
        input: &Yaml,
        schema: Option<&CompiledSchema>,
        site: &Site<'_>,
    ) -> Option<(String, Value)> {
        schema?.json.pointer(&format!("/properties/{KEY}"))?;
        let mut pointers = Vec::new();
        self.find_secrets(input, &Key::Field(&Key::Root, "input"), "", site, &mut pointers);
        (!pointers.is_empty()).then(|| (KEY.to_owned(), json!(pointers)))
    }

    fn find_secrets(
        &mut self,
        value: &Yaml,
        key: &Key<'_>,
        pointer: &str,
        site: &Site<'_>,
        pointers: &mut Vec<String>,
    ) {
        match &value.data {
            Data::Text(text) if self.fills_in(text, value, key, pointer, site) => {
                pointers.push(pointer.to_owned());
            }
            Data::List(items) => {
                for (at, item) in items.iter().enumerate() {
                    self.find_secrets(item, &Key::Index(key, at), &format!("{pointer}/{at}"), site, pointers);
                }
            }
            Data::Map(entries) => {
                for entry in entries.iter() {
                    let name = pointer_part(&entry.key);
                    let key = Key::Field(key, &entry.key);
                    self.find_secrets(&entry.value, &key, &format!("{pointer}/{name}"), site, pointers);
                }
            }
            _ => {}
        }
    }

    /// Whether secrets are filled into a text.
    fn fills_in(&mut self, text: &str, value: &Yaml, key: &Key<'_>, pointer: &str, site: &Site<'_>) -> bool {
        let known: Vec<&str> = self.body.flow.header.secrets.iter().map(|(name, _)| *name).collect();
        let in_body = BODIES
            .iter()
            .any(|body| pointer.strip_prefix('/').is_some_and(|rest| rest.split('/').next() == Some(body)));
        let (mut fills, mut problem) = (false, None);
        for (offset, name) in variables(text) {
            if known.contains(&name) {
                fills = true;
                if text.contains("{{") || text.contains("{%") {
                    let message = format!("a text with `${{{name}}}` cannot hold a template");
                    let help = "what a template gives could name another secret: write the secret in a separate text";
                    problem = problem.or(Some((offset, message, help.to_owned())));
                }
            } else if !in_body {
                let message = format!("`{name}` is not among the `secrets` of the flow");
                let help = did_you_mean(name, known.iter().copied())
                    .unwrap_or_else(|| format!("add it: `secrets: [{name}]`"));
                problem = problem.or(Some((offset, message, help)));
            }
        }
        if let Some((offset, message, help)) = problem {
            let problem = Problem::error(Code::InvalidValue, value.place(offset), message).help(help);
            self.sink.push(site.locate(problem, key));
        }
        fills
    }
}

/// Each `${NAME}` of a text, with its place.
fn variables(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.match_indices("${").filter_map(|(offset, _)| {
        let (name, _) = text[offset + 2..].split_once('}')?;
        let is_name = !name.is_empty()
            && !name.starts_with(|c: char| c.is_ascii_digit())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        is_name.then_some((offset, name))
    })
}
