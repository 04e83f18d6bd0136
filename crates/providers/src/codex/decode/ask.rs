//! What the program asks of us: consent to a command, a change, a tool or more rights, and what is not offered to
//! it.

use inspan_protocol::PermissionRequest;
use serde_json::{Value, json};

use super::super::wire;
use super::item::{fields, mcp_name};
use super::{CodexDecoded, CodexDecoder, QuestionForm, fault, head, read};
use crate::json_rpc::RemoteId;

impl CodexDecoder {
    pub(super) fn request(&mut self, id: RemoteId, method: &str, params: &str, out: &mut Vec<CodexDecoded>) {
        let ask: wire::AskLine<'_> = match read(params) {
            Ok(ask) => ask,
            Err(error) => return out.push(fault(method, params, &error)),
        };
        let item = ask.item_id.as_deref().unwrap_or_default();
        let thread = ask.thread_id.as_deref().unwrap_or_default().to_owned();
        let is_sub_agent =
            self.session.as_ref().is_some_and(|own| own.as_str() != thread) && !thread.is_empty();
        let asked = |tool_name: String, input: Value, reason: Option<String>, form: QuestionForm| {
            // What a sub-agent does is not a tool of the run, whose ids may be the same.
            let tool_use_id =
                Some(item).filter(|id| !id.is_empty() && !is_sub_agent).map(|id| self.call_of(id).to_owned());
            let description = match reason {
                Some(reason) if is_sub_agent => Some(format!("a sub-agent asks: {reason}")),
                None if is_sub_agent => Some("a sub-agent asks".to_owned()),
                reason => reason,
            };
            let request =
                PermissionRequest { tool_use_id, description, ..PermissionRequest::new(tool_name, input) };
            CodexDecoded::PermissionRequested { id: id.clone(), request, form }
        };
        let known = match is_sub_agent {
            true => self.turn.others.get(&(thread, item.to_owned())),
            false => self.turn.inputs.get(self.call_of(item)).map(|(_, input)| input),
        };
        let known = known.cloned();
        let decoded = match method {
            "item/commandExecution/requestApproval" => {
                let reported = fields([
                    ("command", &ask.command),
                    ("cwd", &ask.cwd),
                    ("network", &ask.network_approval_context),
                    ("additionalPermissions", &ask.additional_permissions),
                ]);
                // A question about the network names no command, but the item does.
                let input = match known {
                    Some(Value::Object(mut known)) => {
                        known.extend(reported.as_object().cloned().unwrap_or_default());
                        Value::Object(known)
                    }
                    _ => reported,
                };
                asked("commandExecution".to_owned(), input, ask.reason, QuestionForm::Decision)
            }
            "item/fileChange/requestApproval" => {
                // A person must not allow what is not shown without knowing that.
                let mut input =
                    known.unwrap_or_else(|| json!({ "changes": "the program did not tell them" }));
                if let Some(root) = ask.grant_root.filter(|root| !root.is_null()) {
                    input["grantRoot"] = root;
                }
                asked("fileChange".to_owned(), input, ask.reason, QuestionForm::Decision)
            }
            "item/permissions/requestApproval" => {
                let wanted = ask.permissions.unwrap_or_else(|| json!({}));
                let input = json!({ "permissions": wanted });
                asked("requestPermissions".to_owned(), input, ask.reason, QuestionForm::Permissions(wanted))
            }
            "mcpServer/elicitation/request" => {
                let meta = ask.meta.unwrap_or_default();
                if meta["codex_approval_kind"] == "mcp_tool_call" {
                    let server = ask.server_name.as_deref().unwrap_or("unknown");
                    let tool = mcp_name(server, meta["tool_name"].as_str().unwrap_or("unknown"));
                    let input = meta["tool_params"].clone();
                    // The question names no item, but the tool that waits for it does.
                    let item = self.waiting(&tool, &input);
                    let request = PermissionRequest {
                        tool_use_id: item,
                        description: ask.message,
                        ..PermissionRequest::new(tool, input)
                    };
                    CodexDecoded::PermissionRequested { id, request, form: QuestionForm::Elicitation }
                } else {
                    self.warn_once("unsupportedRequest", method, "cancelled the program's request", out);
                    CodexDecoded::Elicited { id }
                }
            }
            other => {
                let method = head(other);
                self.warn_once("unsupportedRequest", &method, "refused the program's request", out);
                CodexDecoded::Unsupported { id, method }
            }
        };
        out.push(decoded);
    }

    /// The call that has this name and input and has not answered.
    fn waiting(&self, tool: &str, input: &Value) -> Option<String> {
        let turn = &self.turn;
        let asked =
            |id: &String| turn.inputs.get(id).is_some_and(|(name, given)| name == tool && given == input);
        let open = turn.open_tools.iter().filter(|(id, _)| asked(id));
        open.max_by_key(|(_, place)| *place).map(|(id, _)| id.clone())
    }
}
