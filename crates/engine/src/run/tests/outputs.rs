//! Outputs that must fit a schema, and questions for permission.

use inspan_protocol::{
    AgentQuestion, Host, PermissionDecision, PermissionPolicy, PermissionRequest, Prompt, PromptKind,
    Redactor,
};

use super::*;

fn asking(permissions: PermissionPolicy) -> Host {
    Host { permissions, ..Host::default() }
}

fn structured(value: Value) -> Vec<Do> {
    vec![Do::Output(json!({ "text": "x", "sessionId": "s-1", "structuredOutput": value }))]
}

fn schema() -> Value {
    json!({ "outputSchema": { "type": "object", "required": ["n"], "properties": { "n": { "type": "integer" } } } })
}

#[tokio::test(start_paused = true)]
async fn an_output_that_does_not_fit_gets_one_repair() {
    let hub = hub();
    let mut watch = EventCollector::new(&hub);
    let script = Script::new([structured(json!({ "n": "one" })), structured(json!({ "n": 1 }))]);
    let end = run(&hub, &script, schema()).execute().await.unwrap();
    assert_eq!((end.facts.structured_output, end.turns), (Some(json!({ "n": 1 })), 2));
    let repair = "Your structured output does not fit the JSON Schema it must fit:\n\
        - /n: \"one\" is not of type \"integer\"\nGive the whole structured output again so that it fits.";
    assert_eq!(script.inputs()[1..], [follow_with(repair, schema())]);
    assert_eq!(
        brief(&watch.envelopes()),
        ["agent:start", "agent:session s-1", "agent:warning repair", "agent:turn", "agent:complete Complete"]
    );
}

#[tokio::test(start_paused = true)]
async fn what_was_denied_in_any_turn_is_told_at_the_end_of_the_run() {
    let denied = |id: &str| json!({ "toolName": "Bash", "toolUseId": id });
    let turn = |id: &str, n: Value| {
        let output = json!({ "text": "x", "sessionId": "s-1", "structuredOutput": { "n": n },
            "permissionDenials": [denied(id)] });
        vec![Do::Say(session("s-1")), Do::Output(output)]
    };
    let failed = |code| AgentError::new(code, "no").with_denials(&[denied("b")]);
    let both = [denied("a"), denied("b")];
    let first = || turn("a", json!("one"));

    let end = run(&hub(), &Script::new([first(), turn("b", json!(1))]), schema()).execute().await.unwrap();
    assert_eq!((&end.output["permissionDenials"], &end.denials[..]), (&json!(both), &both[..]));
    let failures = [
        (turn("b", json!("two")), ErrorCode::OutputInvalid),
        (vec![Do::Fail(failed(ErrorCode::Process))], ErrorCode::Process),
    ];
    for (second, code) in failures {
        let error = run(&hub(), &Script::new([first(), second]), schema()).execute().await.unwrap_err();
        assert_eq!((error.code, error.denials()), (code, &both[..]));
    }
    // A turn that is cut may give no output.
    let script = || Script::new([first(), vec![Do::AwaitCancel, Do::Fail(failed(ErrorCode::Aborted))]]);
    let (late, cancel) = (script(), CancellationToken::new());
    let late = run(&hub(), &late, schema()).deadline(Duration::from_secs(1)).execute().await.unwrap_err();
    assert_eq!((late.code, late.denials()), (ErrorCode::Timeout, &both[..]));
    let running = tokio::spawn(run(&hub(), &script(), schema()).cancel(cancel.clone()).execute());
    settle().await;
    cancel.cancel();
    assert_eq!(running.await.unwrap().unwrap().denials, both);
}

#[tokio::test(start_paused = true)]
async fn what_the_options_give_to_an_mcp_server_is_said_nowhere() {
    let hub = hub();
    let mut watch = EventCollector::new(&hub);
    let call = vec![
        Do::Say(tool_start("t")),
        Do::Say(StreamEvent::ToolComplete {
            tool_use_id: "t".to_owned(),
            result: json!("401 for planted-42"),
            is_error: false,
        }),
        Do::Say(say("the token planted-42")),
        Do::Output(json!({ "text": "it is planted-42", "sessionId": "s-1" })),
    ];
    let options = json!({ "mcpServers": { "s": { "command": "s", "env": { "MY_TOKEN": "planted-42" } } } });
    let end = run(&hub, &Script::new([call]), options).execute().await.unwrap();
    assert_eq!(end.facts.text, "it is [redacted MY_TOKEN]");
    let said = serde_json::to_string(&watch.envelopes()).unwrap();
    assert!(said.contains("401 for [redacted MY_TOKEN]") && !said.contains("planted-42"), "{said}");
}

#[tokio::test(start_paused = true)]
async fn an_output_that_still_does_not_fit_fails() {
    let missing = vec![Do::Output(json!({ "text": "x", "sessionId": "s-1" }))];
    let without_session = vec![Do::Output(json!({ "text": "x" }))];
    let refused = vec![Do::Output(json!({ "text": "no", "sessionId": "s-1", "stopReason": "refusal" }))];
    let rows = [
        (vec![missing.clone(), structured(json!({}))], "/: \"n\" is a required property", 2),
        (vec![structured(json!({ "n": "a" })), missing], "there is no structured output", 2),
        (vec![without_session], "there is no structured output", 1),
        (vec![refused], "there is no structured output", 1),
    ];
    for (calls, fault, turns) in rows {
        let hub = hub();
        let script = Script::new(calls);
        let message = format!("the structured output does not fit its schema: {fault}");
        let expected = AgentError::new(ErrorCode::OutputInvalid, message).from_provider("script");
        assert_eq!(run(&hub, &script, schema()).execute().await, Err(expected));
        assert_eq!(script.inputs().len(), turns);
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_last_answer_must_fit_and_each_has_its_own_repair() {
    let hub = hub();
    let busy = |value: Value| [vec![Do::Sleep(Duration::from_secs(1))], structured(value)].concat();
    let script = Script::new([
        busy(json!({ "n": "unfit, but a message follows" })),
        busy(json!({})),
        busy(json!({ "n": "unfit, but a message follows the repair" })),
        busy(json!({})),
        busy(json!({ "n": 5 })),
    ]);
    let running = tokio::spawn(run(&hub, &script, schema()).execute());
    settle().await;
    message(&hub, "a", FollowUp).unwrap();
    tokio::time::sleep(Duration::from_millis(2500)).await;
    message(&hub, "b", FollowUp).unwrap();
    let end = running.await.unwrap().unwrap();
    assert_eq!((end.facts.structured_output, end.turns), (Some(json!({ "n": 5 })), 5));
}

#[tokio::test(start_paused = true)]
async fn permission_is_asked_of_a_person_or_denied() {
    let ask = PermissionPolicy::Ask { deadline: Duration::from_secs(60) };
    type Answer = Option<(&'static str, Option<&'static str>)>;
    let rows: [(PermissionPolicy, Answer, &str, u64); 5] = [
        (PermissionPolicy::Deny, None, "no broker", 0),
        (ask, Some(("allow", None)), "Allow { updated_input: None }", 0),
        (ask, Some(("", Some("deny"))), "Deny { message: \"permission was denied\" }", 0),
        (ask, Some(("not today", Some("deny"))), "Deny { message: \"not today\" }", 0),
        (ask, None, "Deny { message: \"permission was denied\" }", 60),
    ];
    for (policy, answer, expected, seconds) in rows {
        let hub = hub();
        let mut watch = EventCollector::new(&hub);
        let script = Script::new([vec![Do::Ask("Bash"), output("x")]]);
        let began = Instant::now();
        let running = tokio::spawn(run(&hub, &script, json!({})).host(asking(policy)).execute());
        settle().await;
        if let Some((content, choice)) = answer {
            hub.reply("prompt-1".into(), content, choice.map(str::to_owned)).unwrap();
        }
        running.await.unwrap().unwrap();
        assert_eq!(began.elapsed().as_secs(), seconds);
        let events = watch.events();
        let prompts: Vec<_> =
            events.iter().filter(|event| matches!(event, Event::SessionPrompt { .. })).cloned().collect();
        let prompt = Event::SessionPrompt(Prompt {
            choices: Some(["allow", "always", "deny"].map(str::to_owned).into()),
            detail: Some(json!({ "toolName": "Bash", "input": { "command": "ls" }, "toolUseId": "t1" })),
            deadline: Some(crate::testing::NOON + Duration::from_secs(60)),
            default: Some("deny".to_owned()),
            ..Prompt::new("prompt-1", PromptKind::Permission, "Allow `Bash`?")
        });
        assert_eq!(prompts, if policy == PermissionPolicy::Deny { vec![] } else { vec![prompt] });
        let said = Event::AgentText { content: expected.to_owned(), delta: true, run_id: "run-1".into() };
        assert_eq!(events.iter().filter(|event| **event == said).count(), 1, "{events:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_questions_of_an_agent_are_asked_one_after_another() {
    let asked: Vec<AgentQuestion> = serde_json::from_value(json!([
        { "question": "Which colour?", "options": [{ "label": "red", "description": "warm" }, { "label": "blue" }] },
        { "question": "Which parts?", "options": [{ "label": "lid" }, { "label": "lock" }], "multiSelect": true },
    ]))
    .unwrap();
    let policy = PermissionPolicy::Ask { deadline: Duration::from_secs(60) };
    let allowed = |answers| PermissionDecision::Allow { updated_input: Some(json!({ "answers": answers })) };
    let rows: [(&[&str], PermissionDecision); 6] = [
        (&["red", "LID, 2"], allowed(json!([["red"], ["lid", "lock"]]))),
        (&["green, or red", "lid, hinge"], allowed(json!([["green, or red"], ["lid, hinge"]]))),
        (&["red|but dark", "lid"], allowed(json!([["red", "but dark"], ["lid"]]))),
        (&["no answer|decide it"], PermissionDecision::Deny { message: "decide it".to_owned() }),
        (&["blue", "no answer"], PermissionDecision::Deny { message: "nobody answered".to_owned() }),
        (&[], PermissionDecision::Deny { message: "nobody answered".to_owned() }),
    ];
    for (replies, decision) in rows {
        let hub = hub();
        let broker = super::super::permissions::broker(
            policy,
            None,
            &hub,
            &Redactor::default(),
            CancellationToken::new(),
        )
        .unwrap();
        let request =
            PermissionRequest { questions: asked.clone(), ..PermissionRequest::new("ask", Value::Null) };
        let decided = tokio::spawn(broker.request(request));
        for reply in replies {
            settle().await;
            let [open] = &hub.open_prompts()[..] else { panic!("one question at a time") };
            assert_eq!(open.kind, PromptKind::Question);
            let (choice, text) =
                reply.split_once('|').map_or((None, *reply), |(choice, text)| (Some(choice), text));
            hub.reply(open.prompt_id.clone(), text, choice.map(str::to_owned)).unwrap();
        }
        assert_eq!(decided.await.unwrap(), decision, "{replies:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_question_for_permission_is_open_no_longer_than_the_run() {
    let ask = PermissionPolicy::Ask { deadline: Duration::from_secs(60) };
    let hub = hub();
    let mut watch = EventCollector::new(&hub);
    let script = Script::new([vec![Do::Ask("Bash"), output("x")]]);
    let run = run(&hub, &script, json!({})).host(asking(ask)).deadline(Duration::from_secs(20));
    run.execute().await.unwrap();
    let deadlines: Vec<_> = watch
        .events()
        .into_iter()
        .filter_map(|event| match event {
            Event::SessionPrompt(prompt) => prompt.deadline,
            _ => None,
        })
        .collect();
    assert_eq!(deadlines, [crate::testing::NOON + Duration::from_secs(20)]);
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_is_not_known_can_be_allowed_for_one_use_only() {
    let hub = hub();
    let policy = PermissionPolicy::Ask { deadline: Duration::from_secs(60) };
    let broker =
        super::super::permissions::broker(policy, None, &hub, &Redactor::default(), CancellationToken::new())
            .unwrap();
    let request = PermissionRequest { once_only: true, ..PermissionRequest::new("other", json!({})) };
    let decided = tokio::spawn(broker.request(request));
    settle().await;
    assert_eq!(hub.open_prompts()[0].choices, Some(["allow", "deny"].map(str::to_owned).into()));
    hub.reply("prompt-1".into(), "", Some("always".to_owned())).unwrap_err();
    hub.reply("prompt-1".into(), "", Some("allow".to_owned())).unwrap();
    assert_eq!(decided.await.unwrap(), PermissionDecision::Allow { updated_input: None });
}

#[tokio::test(start_paused = true)]
async fn a_question_that_the_agent_takes_back_is_answered_by_its_default() {
    for is_cancelled in [false, true] {
        let hub = hub();
        let mut watch = EventCollector::new(&hub);
        let cancel = CancellationToken::new();
        let policy = PermissionPolicy::Ask { deadline: Duration::from_secs(60) };
        let broker =
            super::super::permissions::broker(policy, None, &hub, &Redactor::default(), cancel.clone())
                .unwrap();
        let asked = broker.request(PermissionRequest::new("Bash", json!({ "command": "ls" })));
        if is_cancelled {
            cancel.cancel();
        }
        drop(asked);
        let replies = watch.events().into_iter().filter(|event| matches!(event, Event::SessionReply { .. }));
        let denied = Event::SessionReply {
            prompt_id: "prompt-1".into(),
            content: "deny".to_owned(),
            choice: Some("deny".to_owned()),
            is_default: true,
        };
        assert_eq!(replies.collect::<Vec<_>>(), if is_cancelled { vec![] } else { vec![denied] });
        assert_eq!(hub.open_prompts(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_is_always_allowed_is_asked_for_once_in_a_run() {
    let ask = PermissionPolicy::Ask { deadline: Duration::from_secs(60) };
    let hub = hub();
    let mut watch = EventCollector::new(&hub);
    for prompts in ["prompt-1", "prompt-3"] {
        let script = Script::new([vec![Do::Ask("Bash"), Do::Ask("Bash"), Do::Ask("Write"), output("x")]]);
        let running = tokio::spawn(run(&hub, &script, json!({})).host(asking(ask)).execute());
        settle().await;
        hub.reply(prompts.into(), "", Some("always".to_owned())).unwrap();
        settle().await;
        let other = hub.open_prompts().pop().unwrap();
        hub.reply(other.prompt_id, "", Some("deny".to_owned())).unwrap();
        running.await.unwrap().unwrap();
    }
    let events = watch.events();
    let said = events.iter().filter_map(|event| match event {
        Event::AgentText { content, .. } => Some(content.as_str()),
        _ => None,
    });
    let (yes, no) = ("Allow { updated_input: None }", "Deny { message: \"permission was denied\" }");
    assert_eq!(said.collect::<Vec<_>>(), [yes, yes, no, yes, yes, no]);
    let asked = events.iter().filter(|event| matches!(event, Event::SessionPrompt { .. })).count();
    assert_eq!(asked, 4);
}

#[tokio::test(start_paused = true)]
async fn what_a_tool_takes_and_gives_can_be_read_again_however_deep_it_is() {
    let deep = (0..200).fold(json!(1), |value, _| json!([value]));
    let call = StreamEvent::ToolStart {
        tool_name: "Bash".to_owned(),
        tool_use_id: "t-1".to_owned(),
        input: deep.clone(),
    };
    let answer =
        StreamEvent::ToolComplete { tool_use_id: "t-1".to_owned(), result: deep.clone(), is_error: false };
    let hub = hub();
    let mut watch = EventCollector::new(&hub);
    let script = Script::new([[vec![Do::Say(call), Do::Say(answer)], turn("said")].concat()]);
    run(&hub, &script, json!({})).execute().await.unwrap();
    let text = Value::String(deep.to_string());
    let seen: Vec<_> = watch
        .events()
        .into_iter()
        .filter_map(|event| match event {
            Event::AgentToolStart { input, .. } => Some(input),
            Event::AgentToolComplete { result, .. } => Some(result),
            _ => None,
        })
        .collect();
    assert_eq!(seen, [text.clone(), text]);
}
