//! The requests of the agent: for permission to use a tool, or for files and terminals.

use inspan_protocol::PermissionRequest;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::super::permission::AskedFor;
use super::super::wire;
use super::tools::OTHER;
use super::{AcpDecoded, AcpDecoder, head};
use crate::json_rpc::{METHOD_NOT_FOUND, RemoteId};

/// The code for parameters that cannot be read.
const INVALID_PARAMS: i64 = -32602;

/// A question for permission.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) struct AcpQuestion {
    pub(in super::super) request: PermissionRequest,
    /// What the agent itself calls the tool and its kind, never in words of the model.
    pub(in super::super) names: Vec<String>,
    /// What it shows in their place, which its model may have written.
    pub(in super::super) titles: Vec<String>,
    /// The files that the tool will touch, as the agent says.
    pub(in super::super) paths: Vec<String>,
    /// The command that the tool will run, as the agent says.
    pub(in super::super) command: Option<String>,
    pub(in super::super) options: Vec<wire::PermissionOption>,
    /// What a person is asked about it.
    pub(in super::super) asked_for: AskedFor,
}

/// Something that the agent wants done.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) enum WantedAction {
    ReadFile(wire::ReadFile),
    WriteFile(wire::WriteFile),
    CreateTerminal(wire::CreateTerminal),
    TerminalOutput(wire::AboutTerminal),
    WaitForTerminal(wire::AboutTerminal),
    KillTerminal(wire::AboutTerminal),
    ReleaseTerminal(wire::AboutTerminal),
}

impl AcpDecoder {
    pub(super) fn request(
        &mut self,
        id: RemoteId,
        method: &str,
        params: &RawValue,
        out: &mut Vec<AcpDecoded>,
    ) {
        let wanted = match method {
            "session/request_permission" => return self.ask(id, params, out),
            "fs/read_text_file" => read(params).map(WantedAction::ReadFile),
            "fs/write_text_file" => read(params).map(WantedAction::WriteFile),
            "terminal/create" => read(params).map(WantedAction::CreateTerminal),
            "terminal/output" => read(params).map(WantedAction::TerminalOutput),
            "terminal/wait_for_exit" => read(params).map(WantedAction::WaitForTerminal),
            "terminal/kill" => read(params).map(WantedAction::KillTerminal),
            "terminal/release" => read(params).map(WantedAction::ReleaseTerminal),
            other => {
                let message = format!("`{}` is not offered here", head(other));
                self.warn_once("unsupported", other, "refused the agent a request that is not offered:", out);
                return out.push(AcpDecoded::Refused { id, code: METHOD_NOT_FOUND, message });
            }
        };
        out.push(match wanted {
            Some(wanted) => AcpDecoded::Wanted { id, wanted },
            None => unreadable(id, method),
        });
    }

    fn ask(&mut self, id: RemoteId, params: &RawValue, out: &mut Vec<AcpDecoded>) {
        let Some(wire::AskPermission { tool_call, options }) = read(params) else {
            return out.push(unreadable(id, "session/request_permission"));
        };
        let (mut question, events) = self.turn.tools.ask(tool_call);
        self.tell(events, out);
        question.options = options;
        if question.request.tool_name == OTHER {
            question.name_by_options();
        }
        out.push(AcpDecoded::PermissionRequested { id, question: Box::new(question) });
    }
}

impl AcpQuestion {
    /// For a tool without a name and a kind: only the agent's options may say which it is, as those of Qwen Code for tools of
    /// MCP servers do.
    fn name_by_options(&mut self) {
        self.request.once_only = true;
        let offers: Vec<&str> = self.options.iter().map(|option| option.name.as_str()).collect();
        let title = self.request.description.take().unwrap_or_default();
        self.request.description = Some(format!("{title} (offers: {})", offers.join(", ")));
    }
}

fn read<T: DeserializeOwned>(params: &RawValue) -> Option<T> {
    serde_json::from_str(params.get()).ok()
}

fn unreadable(id: RemoteId, method: &str) -> AcpDecoded {
    AcpDecoded::Refused {
        id,
        code: INVALID_PARAMS,
        message: format!("the parameters of `{method}` cannot be read"),
    }
}
