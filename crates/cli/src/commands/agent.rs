//! `inspan agent PROMPT`: one agent without a flow, and what `inspan chat` shares with it: the options, the exit
//! codes, the one JSON object.

use std::{fs, io::Read, path::Path, sync::Arc};

use inspan_engine::{AgentOptions, AgentResult, Chat, ChatError, RetryOptions};
use inspan_protocol::{AgentError, DynProvider, ErrorCode, PermissionPolicy, Redactor, StopReason};
use serde_json::{Value, json};

use super::{all_providers, notify::marked, session};
use crate::{
    args::{AgentArgs, AgentOptionArgs},
    exit::Exit,
    failure::{Failure, Shown},
    invocation::{Invocation, OutputForm},
    settings::Settings,
    terminal::{self, Interactivity},
};
use inspan_view::entry::without_nulls;
use talk::{Between, TerminalConversation};

mod attachment;
pub(super) mod talk;
mod writer;

pub(super) fn run(args: &AgentArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let (settings, invocation) = &settings(invocation)?;
    let named = named(args.provider.as_deref().or(settings.provider()))?;
    let provider = provider(named, args.provider.as_deref())?;
    let mut options = options(&args.how, named, settings, invocation);
    if let Some(file) = &args.schema {
        options = options.output_schema(schema(file)?);
    }
    let session =
        inspan_engine::AgentSession::new(Arc::clone(&provider), options).map_err(|error| refused(&error))?;
    let prompt = if args.prompt == "-" { whole_stdin()? } else { args.prompt.clone() };
    if prompt.trim().is_empty() {
        return Err(Failure::usage("the prompt is empty"));
    }
    let mut chat = Chat::new(prompt);
    for file in &args.attach {
        chat = chat.attachment(attachment::read(file)?);
    }
    let runtime = session::runtime()?;
    let turned = runtime.block_on(async {
        let mut talk = TerminalConversation::new(session.clone(), invocation, Between::Nothing);
        if args.schema.is_some() {
            talk.say_structured();
        }
        let turned = talk.turn(chat).await;
        session.close();
        provider.shutdown().await;
        turned
    });
    runtime.shutdown_timeout(session::LEFTOVERS);
    if invocation.form == OutputForm::Json {
        invocation.json(&report(&turned.end, turned.exit(), invocation));
    }
    end(&turned.end, turned.exit(), invocation)
}

/// The settings, and the call in which what their channels use is a secret.
pub(super) fn settings(invocation: &Invocation) -> Result<(Settings, Invocation), Failure> {
    let settings = Settings::of_agent(invocation)?;
    let env = marked(invocation.env.clone(), &settings);
    Ok((settings, Invocation { env, ..invocation.clone() }))
}

/// The exit code, or the failure that has it.
fn end(end: &Result<AgentResult, ChatError>, exit: Exit, invocation: &Invocation) -> Result<Exit, Failure> {
    let Err(error) = end else { return Ok(exit) };
    let mut failure = failed(&error.error, exit);
    if invocation.form == OutputForm::Json {
        terminal::progress(&failure.text(invocation.terminal.stderr));
        failure.shown = Shown::Already;
    }
    Err(failure)
}

/// The name of the provider, which must be set somewhere.
pub(super) fn named(name: Option<&str>) -> Result<&str, Failure> {
    name.ok_or_else(|| {
        Failure::usage("no provider given").with_hint(
            "name it with `--provider TYPE`, or set `provider` in the settings (`inspan config --help`)",
        )
    })
}

/// The provider of a name, which is that of `--provider` if that is given.
pub(super) fn provider(name: &str, given: Option<&str>) -> Result<Arc<dyn DynProvider>, Failure> {
    let providers = all_providers();
    providers.get(name).cloned().ok_or_else(|| {
        let unknown = Failure::unknown("provider", name, providers.names());
        if given.is_some() { unknown.in_option("provider") } else { unknown }
    })
}

pub(super) fn options(
    how: &AgentOptionArgs,
    provider: &str,
    settings: &Settings,
    invocation: &Invocation,
) -> AgentOptions {
    let permissions = match invocation.terminal.interactivity {
        Interactivity::Interactive if !how.no_input => {
            PermissionPolicy::Ask { deadline: settings.permission_timeout() }
        }
        Interactivity::Interactive | Interactivity::Unattended => PermissionPolicy::Deny,
    };
    let mut options = AgentOptions::new()
        .env(invocation.session_env())
        .permissions(permissions)
        .supervisor(inspan_process::guard())
        .retry(RetryOptions::times(how.attempts.get()));
    if let Some(cwd) = &invocation.cwd {
        options = options.cwd(cwd);
    }
    // The command line has its own names for the same options.
    let said = [
        ("thinking", how.thinking.is_some()),
        ("reasoningEffort", how.thinking.is_some()),
        ("systemPrompt", how.system_prompt.is_some()),
        ("instructions", how.system_prompt.is_some()),
        ("maxTurns", how.max_turns.is_some()),
        ("maxTokens", how.max_tokens.is_some()),
        ("maxOutputTokens", how.max_tokens.is_some()),
        ("temperature", how.temperature.is_some()),
        ("tools", !how.tools.is_empty()),
        ("disallowedTools", !how.disabled_tools.is_empty()),
        ("disabledTools", !how.disabled_tools.is_empty()),
    ];
    let is_said = |name: &str| said.contains(&(name, true)) || how.option.iter().any(|more| more.key == name);
    let mut model = how.model.as_deref();
    for (name, value) in settings.options(provider).filter(|(name, _)| !is_said(name)) {
        match name {
            "model" => model = model.or(value.as_str()),
            _ => options = options.option(name, value.clone()),
        }
    }
    if let Some(model) = model {
        options = options.model(model);
    }
    if let Some(thinking) = how.thinking {
        options = options.thinking(thinking);
    }
    if let Some(system_prompt) = &how.system_prompt {
        options = options.system_prompt(system_prompt);
    }
    if let Some(max_turns) = how.max_turns {
        options = options.max_turns(max_turns.get());
    }
    if let Some(max_tokens) = how.max_tokens {
        options = options.max_tokens(max_tokens.get());
    }
    if let Some(temperature) = how.temperature {
        options = options.temperature(temperature);
    }
    if !how.tools.is_empty() {
        options = options.tools(&how.tools);
    }
    if !how.disabled_tools.is_empty() {
        options = options.disabled_tools(&how.disabled_tools);
    }
    if let Some(timeout) = how.timeout {
        options = options.timeout(timeout);
    }
    how.option.iter().fold(options, |options, more| options.option(&more.key, more.value.clone()))
}

/// Options or a state that the agent does not take: nothing was started.
pub(super) fn refused(error: &AgentError) -> Failure {
    Failure::usage(format!("{} [{}]", error.message, error.code))
}

/// An answer that did not come.
pub(super) fn failed(error: &AgentError, exit: Exit) -> Failure {
    let (what, help) = error.message.split_once("; ").unwrap_or((&error.message, ""));
    let from = error.provider.as_ref().map(|provider| format!("{provider}: ")).unwrap_or_default();
    let failure = Failure::new(exit, format!("{from}{what} [{}]", error.code));
    if help.is_empty() { failure } else { failure.with_hint(help) }
}

/// The code that an answer earns; `by` is the signal that cut it short, if one did.
pub(super) fn exit(end: &Result<AgentResult, ChatError>, by: Option<Exit>) -> Exit {
    match end {
        Ok(result) => match result.stop_reason {
            StopReason::Refusal | StopReason::Error => Exit::Failed,
            _ => Exit::Success,
        },
        Err(failed) => match failed.error.code {
            ErrorCode::Aborted => by.unwrap_or(Exit::Interrupted),
            ErrorCode::Timeout => Exit::TimedOut,
            code => Exit::of_error(code),
        },
    }
}

/// The one object of `--json`: the result, or the error and what was done before it.
pub(super) fn report(end: &Result<AgentResult, ChatError>, exit: Exit, invocation: &Invocation) -> Value {
    let mut report = match end {
        Ok(result) => json!(result),
        Err(failed) => without_nulls(json!({ "error": failed.error, "partial": failed.partial })),
    };
    report["outcome"] = json!(exit.word());
    report["exitCode"] = json!(exit.code());
    // The messages have what the person said.
    Redactor::new(&invocation.session_env()).value(report)
}

fn schema(file: &Path) -> Result<Value, Failure> {
    let broken = |why: String| Failure::usage(format!("cannot use the schema {}: {why}", file.display()));
    let text = fs::read_to_string(file).map_err(|error| broken(error.to_string()))?;
    serde_json::from_str(&text).map_err(|error| broken(format!("it is not JSON: {error}")))
}

fn whole_stdin() -> Result<String, Failure> {
    let mut text = String::new();
    let read = std::io::stdin().lock().read_to_string(&mut text);
    read.map_err(|error| Failure::usage(format!("cannot read the prompt from stdin: {error}")))?;
    Ok(text)
}
