//! `http.request`: asks a server over HTTP.

use std::{collections::BTreeMap, sync::Arc};

use inspan_protocol::InputProblem;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::typed::{self, Allowed};
use crate::{
    graph::Effects,
    node::{DescribeNode, NodeTypeInfo},
};

/// The input of `http.request`.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpInput {
    /// The method; GET if absent.
    #[serde(default)]
    pub method: HttpMethod,
    /// The address; it begins with `http://` or `https://`.
    pub url: String,
    /// Headers by their names.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Parameters that are added to the address. A list gives one for each item; null is left out.
    #[serde(default)]
    pub query: BTreeMap<String, QueryValue>,
    /// A body that is sent as JSON.
    #[serde(default)]
    pub json: Option<Value>,
    /// A body that is sent as it is.
    #[serde(default)]
    pub body: Option<String>,
    /// Status codes of 400 and above that are not a failure, or `any`.
    #[serde(default)]
    pub allow_status: Allowed<u16>,
    /// How many redirects are followed; 10 if absent. With 0 a redirect is the output.
    #[serde(default)]
    #[schemars(range(max = 20))]
    pub max_redirects: Option<u32>,
    /// Set by the compiler: the JSON pointers of the texts in which `${NAME}` is a secret.
    #[serde(default)]
    #[schemars(extend("x-compiler" = true))]
    pub secrets_in: Vec<String>,
}

/// How the server is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[expect(missing_docs, reason = "the comments would change the form of the generated schema")]
pub enum HttpMethod {
    #[default]
    Get,
    Head,
    Options,
    Post,
    Put,
    Patch,
    Delete,
}

impl HttpMethod {
    /// Its word in a request.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Options => "OPTIONS",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }
}

/// The value of a parameter.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("type" = ["string", "number", "boolean", "array", "null"]))]
pub struct QueryValue(pub Value);

/// The output of `http.request`.
#[derive(Serialize, JsonSchema)]
pub struct HttpOutput {
    /// The status code.
    pub status: u16,
    /// The headers of the response, by their names in small letters.
    pub headers: BTreeMap<String, String>,
    /// The body as text.
    pub text: String,
    /// The body as a value, if the server says that it is JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub json: Option<Value>,
}

/// `http.request`.
pub struct HttpRequest;

/// Headers that the client sets itself.
const OWN_HEADERS: [&str; 6] =
    ["connection", "content-length", "host", "keep-alive", "transfer-encoding", "upgrade"];

impl HttpInput {
    /// What of it cannot be sent.
    pub fn problem(&self) -> Option<InputProblem> {
        if !["http://", "https://"].iter().any(|start| has_prefix(&self.url, start)) {
            return Some(InputProblem::new("/url", "`url` must begin with `http://` or `https://`"));
        }
        if self.json.is_some() && self.body.is_some() {
            return Some(InputProblem::new("/body", "`json` and `body` are both set; keep one"));
        }
        self.headers.iter().find_map(|(name, value)| {
            let is_name = !name.is_empty()
                && name.chars().all(|c| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c));
            let why = if !is_name {
                format!("`{name}` cannot be the name of a header")
            } else if OWN_HEADERS.contains(&name.to_ascii_lowercase().as_str()) {
                format!("the header `{name}` cannot be set")
            } else if !value.chars().all(|c| matches!(c, '\t' | ' '..='~')) {
                format!("the header `{name}` has a value that no header can have")
            } else {
                return None;
            };
            Some(InputProblem::new(format!("/headers/{}", typed::pointer_part(name)), why))
        })
    }
}

fn has_prefix(text: &str, start: &str) -> bool {
    text.get(..start.len()).is_some_and(|head| head.eq_ignore_ascii_case(start))
}

impl DescribeNode for HttpRequest {
    fn describe(&self) -> NodeTypeInfo {
        let help =
            "Asks a server over HTTP; a status of 400 and above fails the node unless `allowStatus` has it.";
        typed::describe::<HttpInput, HttpOutput>("http.request", "io", help)
    }

    fn name(&self) -> Arc<str> {
        "http.request".into()
    }

    fn check_input(&self, input: &Value) -> Vec<InputProblem> {
        if input.get("secretsIn").is_some() {
            return vec![InputProblem::new("/secretsIn", "`secretsIn` is set by the compiler; remove it")];
        }
        // What begins with a secret or a template is checked before it is sent.
        let open = ["${", "{{", "{%"];
        let is_open = |found: &InputProblem| {
            let text = input.pointer(&found.pointer).and_then(Value::as_str).unwrap_or_default();
            let is_url = found.pointer == "/url";
            open.iter().any(|open| if is_url { text.starts_with(open) } else { text.contains(open) })
        };
        let found = typed::read_input::<HttpInput>(input.clone()).ok().and_then(|input| input.problem());
        found.into_iter().filter(|found| !is_open(found)).collect()
    }

    fn effects_for(&self, input: &Value) -> Effects {
        // Sent again, such a request may take effect twice.
        match input.get("method").map(Value::as_str) {
            None | Some(Some("GET" | "HEAD" | "OPTIONS")) => Effects::default(),
            _ => Effects::External,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_cannot_be_sent_is_found_before_it_is() {
        let cases = [
            (json!({ "url": "https://a.example/{{ x }}" }), None),
            (json!({ "url": "HTTP://a.example" }), None),
            (json!({ "url": "${HOOK}" }), None),
            (json!({ "url": "{{ flow.input.url }}" }), None),
            (json!({ "url": "ftp://a.example" }), Some("/url")),
            (json!({ "url": "file:///etc/passwd" }), Some("/url")),
            (json!({ "url": "http://a", "json": 1, "body": "1" }), Some("/body")),
            (json!({ "url": "http://a", "headers": { "Host": "b" } }), Some("/headers/Host")),
            (json!({ "url": "http://a", "headers": { "a/b": "c" } }), Some("/headers/a~1b")),
            (json!({ "url": "http://a", "headers": { "": "c" } }), Some("/headers/")),
            (json!({ "url": "http://a", "headers": { "x": "a\nb" } }), Some("/headers/x")),
            (json!({ "url": "http://a", "headers": { "x": "{{ a\n}}", "y-z": "\t~" } }), None),
            (json!({ "url": "http://a", "secretsIn": ["/url"] }), Some("/secretsIn")),
        ];
        for (input, pointer) in cases {
            let found = HttpRequest.check_input(&input);
            let found: Vec<_> = found.iter().map(|problem| problem.pointer.as_str()).collect();
            assert_eq!(found, Vec::from_iter(pointer), "{input}");
        }
    }

    #[test]
    fn only_what_changes_nothing_is_sent_again_without_asking() {
        let effects =
            |method: Value| HttpRequest.effects_for(&json!({ "url": "http://a", "method": method }));
        assert_eq!(HttpRequest.effects_for(&json!({ "url": "http://a" })), Effects::Workspace);
        assert_eq!(["GET", "HEAD", "OPTIONS"].map(|method| effects(method.into())), [Effects::Workspace; 3]);
        let others = ["POST", "PUT", "PATCH", "DELETE", "{{ flow.input.method }}"];
        assert_eq!(others.map(|method| effects(method.into())), [Effects::External; 5]);
    }
}
