//! `inspan resume ID`: resumes a session; one that has ended, or whose flow was edited, continues in a
//! new session that reuses finished work.

use std::sync::Arc;

use inspan_flow::{Graph, Loaded, OverrideError, Parent, ParentKind, Resume, StoreError};
use inspan_protocol::{BudgetRaise, SessionId};
use inspan_sessions::SessionErrorCode;
use serde_json::{Map, Value};

use super::{
    flow, fork,
    session::{Ask, detach, refused},
    stored::{Continuation, Missing, StoredSession, plan, with_stored_answers},
};
use crate::{
    args::{BudgetChange, ResumeArgs},
    exit::Exit,
    failure::Failure,
    invocation::{Invocation, OutputForm},
    terminal::{self, Interactivity},
};

/// What to do where the flow cannot be used as it is now.
const AS_STARTED: &str = "`--as-started` uses the flow as it was started";

pub(super) fn run(args: &ResumeArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let files =
        [("--input-file", args.input_file.as_deref()), ("--message-file", args.message_file.as_deref())];
    detach::check(&args.mode, &files, &args.input, invocation)?;
    let mut kept = StoredSession::open(&args.session, invocation)?;
    if args.in_place {
        kept.must_be_open()?;
    }
    // A node is one of this session: what continues it may have run that again already.
    if args.from.is_some()
        && let Some(by) = kept.continued_by.take()
    {
        return Err(StoreError::Continued { session: kept.record.session, by }.into());
    }
    while let Some(by) = kept.continued_by.take() {
        let old = &kept.record.session;
        terminal::progress(&format!("session `{old}` was already resumed as `{by}`: resuming that one\n"));
        kept = StoredSession::open(by.as_str(), invocation)?;
    }
    let edited = match kept.edited() {
        _ if args.as_started => None,
        Ok(edited) => edited,
        // The session has its own copy of a file that is gone.
        Err(why) if why.code == SessionErrorCode::UnknownFlow && !args.edited => None,
        Err(why) if why.code == SessionErrorCode::InvalidFlow && !args.edited => {
            terminal::progress(&format!("note: {}; using the flow as it was started\n", why.message));
            None
        }
        Err(why) => return Err(why.with_hint(AS_STARTED)),
    };
    if args.plan
        && let Some(owner) = kept.owner.take()
    {
        let session = kept.record.session.clone();
        return Err(StoreError::Held { session, owner: Box::new(owner) }.into());
    }
    if args.failed && !kept.status.has_ended() {
        let session = &kept.record.session;
        let message = format!("session `{session}` has not ended; `--failed` needs one that has");
        return Err(Failure::usage(message).with_hint(format!("`inspan resume {session}` continues it")));
    }
    let mut given = None;
    if edited.is_none() && args.from.is_none() && !kept.status.has_ended() {
        let values = flow::given_input(&kept.graph, args.input_file.as_deref(), &args.input)?;
        let input = &kept.record.input;
        // Another input is an edit too.
        if values.iter().all(|(key, value)| input.get(key) == Some(value)) {
            return in_place(kept, args, invocation);
        }
        given = Some(values);
    }
    let edited = match edited {
        Some((loaded, ignored)) => (loaded, FlowVersion::Edited { ignored }),
        None => (kept.loaded()?, FlowVersion::AsStarted),
    };
    continue_as_new(kept, edited, given, args, invocation)
}

/// Resumes the session itself, or shows what that would do.
fn in_place(kept: StoredSession, args: &ResumeArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let file = args.message_file.as_deref().map(|file| flow::private_text(file, "message")).transpose()?;
    let resume = Resume {
        message: args.message.clone().or(file),
        messages: args.tell.iter().cloned().collect(),
        budget: budgets(&args.budget, &kept.graph)?,
    };
    // A session that runs is refused for that.
    if kept.owner.is_none() && resume != Resume::default() {
        let run = kept.folded(kept.record.run(&kept.graph))?;
        let messages = run.check_messages(resume.message.as_deref(), &resume.messages);
        messages.map_err(|error| refused(&error.into()))?;
        run.check_raise(&resume.budget)?;
    }
    if args.plan {
        return kept.show_plan_to_resume(&resume.budget, invocation);
    }
    kept.resume(resume, &args.mode, Ask::Terminal, invocation)
}

/// The budgets that are raised, which the flow must have.
fn budgets(changes: &[BudgetChange], graph: &Graph) -> Result<BudgetRaise, Failure> {
    flow::each_once("budget", changes.iter().map(BudgetChange::name))?;
    let all = BudgetChange::all(changes);
    let refused = |error: OverrideError| Failure::of_change("budget", error);
    for node in all.nodes.keys() {
        graph.find_place(node).map_err(refused)?;
    }
    for node in all.bodies.keys() {
        graph.find_body(node).map_err(refused)?;
    }
    Ok(all)
}

/// Which flow a session continues with.
enum FlowVersion {
    /// The file as it is now, which differs.
    Edited {
        /// What it has no place for of the options that the session was started with.
        ignored: Vec<String>,
    },
    /// The flow that it began with.
    AsStarted,
}

/// Continues in a new session, which reuses finished work; `given` is the input of the arguments, if that was read already.
fn continue_as_new(
    mut kept: StoredSession,
    (loaded, which): (Loaded, FlowVersion),
    given: Option<Map<String, Value>>,
    args: &ResumeArgs,
    invocation: &Invocation,
) -> Result<Exit, Failure> {
    let has_message = args.message.is_some() || args.message_file.is_some();
    if has_message || !args.tell.is_empty() {
        let session = &kept.record.session;
        let reason =
            format!("session `{session}` continues as a new session, where a message would reach no agent");
        return Err(Failure::of_option(if has_message { "message" } else { "tell" }, reason));
    }
    let hint = matches!(which, FlowVersion::Edited { .. }).then_some(AS_STARTED);
    let graph = Arc::new(flow::ready(&loaded, &kept.nodes, hint, invocation)?.graph);
    if let FlowVersion::Edited { ignored } = &which {
        for what in ignored {
            terminal::progress(&format!("{what}\n"));
        }
    }
    if !args.plan {
        kept.check_secrets(&graph, invocation)?;
        kept = kept.with_answers(invocation)?;
    }
    let missing = if args.edited { Missing::Reported } else { Missing::Refused };
    let mut parent = Parent::new(kept.record.session.clone(), kept.last_seq, ParentKind::Resume);
    parent.tries_failures_again = args.failed;
    let mut reusable = kept.reusable(&parent, &graph, missing)?;
    if let Some(from) = &args.from {
        let place = fork::node(from, "not a node of the flow", &graph, &kept)?;
        fork::run_again(&place, &mut reusable, &graph, &kept)?;
        parent.again = Some(place);
    }
    if args.failed
        && !reusable.has_anything_again()
        && kept.folded(kept.record.run(&kept.graph))?.state().failure().is_none()
    {
        let session = &kept.record.session;
        return Err(Failure::usage(format!("session `{session}` has no failures")));
    }
    let answers = if args.plan { kept.stored_answers()? } else { Vec::new() };
    answers.iter().for_each(|(prompt, reply)| reusable.take_answer(prompt, reply));
    parent.budget = budgets(&args.budget, &graph)?;
    reusable.check_raise(&graph, &parent.budget)?;
    reusable.raise(&parent.budget);
    let id = args.session_id.as_deref().map(SessionId::from);
    let given =
        given.map_or_else(|| flow::given_input(&graph, args.input_file.as_deref(), &args.input), Ok)?;
    let input = kept.input_again(&graph, given, &args.input)?;
    let again = Continuation { graph, input, reusable, id, parent };
    let plan = again.plan(&kept)?;
    if args.plan {
        plan::show(&with_stored_answers(plan, &answers, |node| node.before.as_ref()), &kept, invocation);
        return Ok(Exit::Success);
    }
    if let FlowVersion::Edited { ignored } = which
        && !args.edited
    {
        let ignored =
            (!ignored.is_empty()).then(|| "options of the session's start would be ignored".to_owned());
        let asked = again.of_flow_before(&kept)?;
        let lost = plan::done_again(&plan, asked.as_ref(), &kept.graph);
        let lost: Vec<String> = lost.into_iter().chain(ignored).collect();
        if !lost.is_empty() && invocation.form != OutputForm::Json {
            for line in plan::lines(&plan, &kept) {
                terminal::progress(&format!("{line}\n"));
            }
        }
        if !lost.is_empty() && !agreed(invocation, args.mode.no_input, "Continue with this plan? [y/N] ")? {
            return Err(Failure::usage(format!("the flow was edited, and {}", lost.join("; ")))
                .with_hint("`--edited` uses the edited flow, `--as-started` the original"));
        }
        terminal::progress(
            "note: the flow was edited; using the edited flow (`--as-started` uses the original)\n",
        );
    }
    kept.continue_as_new(again, &args.mode, invocation)
}

/// Whether a person at the terminal says yes; without a person the answer is no.
pub(super) fn agreed(invocation: &Invocation, no_input: bool, question: &str) -> Result<bool, Failure> {
    if invocation.terminal.interactivity == Interactivity::Unattended
        || no_input
        || invocation.form == OutputForm::Json
    {
        return Ok(false);
    }
    terminal::progress(question);
    let mut line = String::new();
    std::io::stdin()
        .read_line(&mut line)
        .map_err(|error| Failure::new(Exit::Failed, format!("the answer cannot be read: {error}")))?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}
