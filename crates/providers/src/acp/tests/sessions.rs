//! How sessions are opened: new and earlier ones, what is chosen in them, and what is missing for them.

use inspan_protocol::{ErrorCode, Provider, ProviderSessionId, StreamEvent, ThinkingLevel};
use serde_json::{Value, json};

use super::super::{AcpOptions, AcpProvider};
use super::agent::{END, TEXT, agent, fault, greet, methods, once, options, plain, run, warnings};

/// What an agent sends of an earlier conversation when it loads it.
const HISTORY: &str = r#"say '{"method":"session/update","params":{"sessionId":"s-1","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"returned long ago"}}}}'"#;

fn resume(session: &str) -> AcpOptions {
    AcpOptions { resume: Some(ProviderSessionId::from(session)), ..options() }
}

#[tokio::test]
async fn an_earlier_session_is_resumed_or_else_loaded_without_its_history() {
    let history = HISTORY;
    let rows = [
        (r#"{"loadSession":true,"sessionCapabilities":{"resume":{}}}"#, "session/resume"),
        (r#"{"loadSession":true,"sessionCapabilities":{"resume":null}}"#, "session/load"),
        (r#"{"loadSession":true}"#, "session/load"),
    ];
    for (abilities, method) in rows {
        // The history comes before the answer, and the rest of it after.
        let opens = format!("{}\n{history}\nhear; say {TEXT}; say {END}; cat", greet(abilities, "null"));
        let fake = agent(&opens.replace(
            "hear; say '{\"jsonrpc\":\"2.0\",\"id\":2",
            &format!("hear; {history}; say '{{\"jsonrpc\":\"2.0\",\"id\":2"),
        ));
        let (events, result) = once(resume("s-1"), fake.context()).await;
        let output = result.unwrap();
        assert_eq!(methods(&fake)[..3], ["initialize", method, "session/prompt"]);
        assert_eq!(fake.received()[1]["params"]["sessionId"], "s-1");
        if method == "session/load" {
            assert_eq!((output.text.as_str(), output.session_id.unwrap().as_str()), ("so far", "s-1"));
            assert_eq!(events.len(), 2, "the session and one text: {events:?}");
        }
    }
}

/// The Claude agent, in whatever way a session is opened, asks its model nothing that nobody sees, and lets no other model decide.
/// No other agent is told so.
#[tokio::test]
async fn the_claude_agent_is_told_how_to_run_claude_code() {
    let models = r#"{"modelOverrides":{"sonnet":"mine"},"hooks":{}}"#;
    let env = Some([("CLAUDE_MODEL_CONFIG".to_owned(), models.to_owned())].into());
    let abilities = r#"{"sessionCapabilities":{"resume":{},"fork":{}}}"#;
    let greeted = greet(abilities, r#"{"sessionId":"s-1"}"#);
    let named = |name: &str| {
        let info = format!(r#""agentInfo":{{"name":"{name}","version":"0.101.0"}},"authMethods""#);
        greeted.replace(r#""authMethods""#, &info)
    };
    let told = async |script: &str, options: AcpOptions| {
        let fake = agent(&format!("{script}\nhear; say {TEXT}; say {END}; cat"));
        once(AcpOptions { env: env.clone(), ..options }, fake.context()).await.1.unwrap();
        fake.received()[1]["params"]["_meta"].clone()
    };
    let expected = json!({ "claudeCode": { "options": { "title": "Inspan", "promptSuggestions": false, "settings": {
        "useAutoModeDuringPlan": false, "crossSessionInbound": "refuse", "modelOverrides": { "sonnet": "mine" },
    } } } });
    let claude = named("@agentclientprotocol/claude-agent-acp");
    for options in [options(), resume("s-1"), AcpOptions { fork: Some(true), ..resume("s-1") }] {
        assert_eq!(told(&claude, options).await, expected);
    }
    assert_eq!(told(&named("other"), options()).await, Value::Null);
    assert_eq!(told(&greeted, options()).await, Value::Null);
}

#[tokio::test]
async fn the_cost_of_a_branch_is_its_own_or_unknown() {
    let sum = |usd: f64| {
        format!(
            r#"say '{{"method":"session/update","params":{{"sessionId":"s-2","update":{{"sessionUpdate":"usage_update","cost":{{"amount":{usd},"currency":"USD"}}}}}}}}'"#
        )
    };
    // The agent has copied what the earlier session cost.
    let greeted = greet(r#"{"sessionCapabilities":{"fork":{}}}"#, r#"{"sessionId":"s-2"}"#);
    let first = format!("hear; {}; say {END}", sum(5.1));
    let second = format!("hear; {}; say {}", sum(5.35), END.replace("\"id\":3", "\"id\":4"));
    let fake = agent(&format!("{greeted}\n{first}\n{second}\ncat"));
    let provider = AcpProvider::new();
    let branch = AcpOptions { fork: Some(true), ..resume("s-1") };
    let output = run(&provider, branch, fake.context()).await.1.unwrap();
    assert_eq!((methods(&fake)[1].as_str(), output.cost_usd), ("session/fork", None));
    let output = run(&provider, resume("s-2"), fake.context()).await.1.unwrap();
    assert_eq!(output.cost_usd, Some(0.25));
    provider.shutdown().await;
}

#[tokio::test]
async fn an_agent_that_offers_to_resume_and_does_not_know_how_is_asked_to_load() {
    let offers = r#"{"loadSession":true,"sessionCapabilities":{"resume":{}}}"#;
    let refuses = greet(offers, "null")
        .replace(r#""result":null"#, r#""error":{"code":-32601,"message":"Method not found"}"#);
    let end = END.replace("\"id\":3", "\"id\":4");
    let loads = r#"hear; say '{"jsonrpc":"2.0","id":3,"result":{}}'"#;
    let fake = agent(&format!("{refuses}\n{loads}; {HISTORY}\nhear; say {TEXT}; say {end}; cat"));
    let (_, result) = once(resume("s-1"), fake.context()).await;
    assert_eq!(result.unwrap().text, "so far");
    assert_eq!(methods(&fake)[..4], ["initialize", "session/resume", "session/load", "session/prompt"]);
}

#[tokio::test]
async fn a_conversation_that_is_loaded_empty_is_not_known() {
    let script = format!("{}\nhear; say {TEXT}; say {END}; cat", greet(r#"{"loadSession":true}"#, "null"));
    let (code, message, kind) = fault(&script, resume("s-9")).await;
    assert_eq!((code, kind), (ErrorCode::InvalidRequest, json!("sessionNotFound")));
    let (lead, end) = message.split_once(" in the folder /").unwrap();
    assert_eq!(lead, "the agent does not know the conversation s-9");
    assert!(end.ends_with("/work: it loaded an empty one"), "{message}");
}

#[tokio::test]
async fn an_agent_that_cannot_resume_says_so() {
    let (code, message, kind) = fault(&format!("{} cat", plain()), resume("s-1")).await;
    assert_eq!(
        (code, message.as_str(), kind),
        (ErrorCode::ConfigInvalid, "the agent cannot resume earlier conversations", json!("notOffered"))
    );
    let refuses = |error: &str| {
        format!(
            "{}\ncat",
            greet(r#"{"loadSession":true}"#, "null")
                .replace(r#""result":null"#, &format!(r#""error":{error}"#))
        )
    };
    let script =
        refuses(r#"{"code":-32603,"message":"Internal error: OpenCode service failure planted-secret"}"#);
    let (code, message, kind) = fault(&script, resume("s-9")).await;
    assert_eq!((code, kind), (ErrorCode::InvalidRequest, json!("sessionNotFound")));
    let (lead, end) = message.split_once(" in the folder /").unwrap();
    assert_eq!(lead, "the agent cannot resume the conversation s-9");
    assert!(end.ends_with("/work: OpenCode service failure [redacted MY_TOKEN]"), "{message}");
}

#[tokio::test]
async fn processes_that_count_their_sessions_keep_their_conversations_apart() {
    // Each process names its session `s-1`, and answers with its own number.
    let text = TEXT.replace("so far", "'$$'");
    let counts = choosing(r#"{"sessionId":"s-1"}"#)
        .replace("*session/prompt*) ", &format!("*session/prompt*) say {text}; "));
    let fake = agent(&counts);
    let provider = AcpProvider::new();
    let first = run(&provider, options(), fake.context()).await.1.unwrap();
    let second = run(&provider, options(), fake.context()).await.1.unwrap();
    assert!(first.text != second.text && first.session_id != second.session_id);
    let asked = fake.received().into_iter().filter(|line| line["method"] == "session/prompt");
    assert!(asked.into_iter().all(|line| line["params"]["sessionId"] == "s-1"));
    let next = AcpOptions { resume: first.session_id.clone(), ..options() };
    let third = run(&provider, next, fake.context()).await.1.unwrap();
    assert_eq!((third.text, third.session_id), (first.text, first.session_id));
    provider.shutdown().await;
}

#[tokio::test]
async fn a_missing_login_is_reported_with_what_to_do() {
    let login = r#"[{"id":"key","name":"Use a key","description":"Set AGENT_KEY"}]"#;
    let script = format!(
        r#"say() {{ printf '%s\n' "$1"; }}
        read -r line; say '{{"id":1,"result":{{"protocolVersion":1,"authMethods":{login}}}}}'
        read -r line; say '{{"id":2,"error":{{"code":-32000,"message":"Authentication required"}}}}'; cat"#
    );
    let (code, message, _) = fault(&script, options()).await;
    assert_eq!(
        (code, message.as_str()),
        (
            ErrorCode::Auth,
            "the agent has no login or key that is accepted: Authentication required; log the agent in by itself, or \
             let it see its key by the option `passEnv`; the agent offers Use a key: Set AGENT_KEY (`authMethod: key`)"
        )
    );
    let logs_in = format!(
        r#"say() {{ printf '%s\n' "$1"; }}
        hear() {{ read -r line && printf '%s\n' "$line" >> received; }}
        hear; say '{{"id":1,"result":{{"protocolVersion":1,"authMethods":{login}}}}}'
        hear; say '{{"id":2,"result":{{}}}}'; hear; say '{{"id":3,"result":{{"sessionId":"s-1"}}}}'
        hear; say '{{"id":4,"result":{{"stopReason":"end_turn"}}}}'; cat"#
    );
    let fake = agent(&logs_in);
    once(AcpOptions { auth_method: Some("key".to_owned()), ..options() }, fake.context()).await.1.unwrap();
    assert_eq!(methods(&fake), ["initialize", "authenticate", "session/new", "session/prompt"]);
    assert_eq!(fake.received()[1]["params"], json!({ "methodId": "key" }));
}

/// A session that offers this, and that answers whatever is chosen in it.
fn choosing(opened: &str) -> String {
    format!(
        "{}\nwhile hear; do id=${{line#*\\\"id\\\":}}; id=${{id%%,*}}; \
         case $line in *session/prompt*) say \"{{\\\"id\\\":$id,\\\"result\\\":{{\\\"stopReason\\\":\\\"end_turn\\\"}}}}\";; \
         *) say \"{{\\\"id\\\":$id,\\\"result\\\":{{}}}}\";; esac; done",
        greet("{}", opened)
    )
}

const OFFERS: &str = r#"{"sessionId":"s-1","configOptions":[
  {"id":"m","category":"model","type":"select","currentValue":"small","options":[{"group":"g","name":"G","options":[{"value":"big"},{"value":"small"}]}]},
  {"id":"effort","category":"thought_level","type":"select","currentValue":"low","options":[{"value":"low"},{"value":"high"}]},
  {"id":"mode","type":"select","currentValue":"build","options":[{"value":"build"},{"value":"plan"}]}]}"#;
const OLDER: &str = r#"{"sessionId":"s-1","models":{"currentModelId":"small","availableModels":[{"modelId":"small"},{"modelId":"big"}]},"modes":{"currentModeId":"build","availableModes":[{"id":"build"},{"id":"plan"}]}}"#;

#[tokio::test]
async fn model_thinking_and_mode_are_chosen_where_they_are_offered() {
    let all = AcpOptions {
        model: Some("big".to_owned()),
        mode: Some("plan".to_owned()),
        thinking: Some(ThinkingLevel::Xhigh),
        ..options()
    };
    let fake = agent(&choosing(&OFFERS.replace('\n', "")));
    let (events, result) = once(all.clone(), fake.context()).await;
    assert_eq!((result.unwrap().model.as_deref(), warnings(&events)), (Some("big"), vec![]));
    let chosen: Vec<Value> = fake.received()[2..5].iter().map(|line| line["params"].clone()).collect();
    assert_eq!(
        chosen,
        [
            json!({ "sessionId": "s-1", "configId": "m", "value": "big" }),
            json!({ "sessionId": "s-1", "configId": "effort", "value": "high" }),
            json!({ "sessionId": "s-1", "configId": "mode", "value": "plan" }),
        ]
    );
    let fake = agent(&choosing(OLDER));
    let (events, result) = once(all, fake.context()).await;
    assert_eq!(
        (result.unwrap().model.as_deref(), warnings(&events)),
        (Some("big"), vec!["thinkingNotOffered"])
    );
    assert_eq!(methods(&fake)[2..], ["session/set_model", "session/set_mode", "session/prompt"]);
    // What is chosen already is not chosen again.
    let fake = agent(&choosing(OLDER));
    let same = AcpOptions { model: Some("small".to_owned()), mode: Some("build".to_owned()), ..options() };
    once(same, fake.context()).await.1.unwrap();
    assert_eq!(methods(&fake)[2..], ["session/prompt"]);
}

#[tokio::test]
async fn a_mode_in_which_the_claude_agent_asks_nothing_is_warned_of() {
    let plan = AcpOptions { mode: Some("plan".to_owned()), ..options() };
    let offers = OFFERS.replace('\n', "");
    let bypass = [
        offers.replace(r#"{"value":"plan"}"#, r#"{"value":"plan"},{"value":"bypassPermissions"}"#),
        OLDER.replace(r#"{"id":"plan"}"#, r#"{"id":"plan"},{"id":"bypassPermissions"}"#),
    ];
    for opened in bypass {
        let fake = agent(&choosing(&opened));
        let (events, result) = once(plan.clone(), fake.context()).await;
        result.unwrap();
        assert_eq!(warnings(&events), ["planAsksNothing"], "{opened}");
    }
}

#[tokio::test]
async fn without_a_mode_the_agent_is_put_into_the_one_that_asks() {
    let (offers, asks) = (OFFERS.replace('\n', ""), r#"{"value":"default"},{"value":"plan"}"#);
    let offers = offers.replace(r#""currentValue":"build""#, r#""currentValue":"auto""#);
    let older = OLDER.replace(r#""currentModeId":"build""#, r#""currentModeId":"auto""#);
    let older_asks = older.replace(r#"{"id":"plan"}"#, r#"{"id":"plan"},{"id":"default"}"#);
    let droid = |asks: &str, now: &str| {
        format!(
            r#"{{"sessionId":"s-1","modes":{{"currentModeId":"{now}","availableModes":[{asks}{{"id":"spec"}},{{"id":"auto-high"}}]}}}}"#
        )
    };
    let rows = [
        (offers.replace(r#"{"value":"plan"}"#, asks), vec!["session/set_config_option"], vec![]),
        (older_asks.clone(), vec!["session/set_mode"], vec![]),
        (older_asks.replace(r#""currentModeId":"auto""#, r#""currentModeId":"default""#), vec![], vec![]),
        (offers, vec![], vec!["modeAsksNothing"]),
        (older, vec![], vec!["modeAsksNothing"]),
        (OLDER.to_owned(), vec![], vec![]),
        (droid(r#"{"id":"normal"},"#, "auto-high"), vec!["session/set_mode"], vec![]),
        (droid(r#"{"id":"normal"},"#, "normal"), vec![], vec![]),
        (droid("", "auto-high"), vec![], vec!["modeAsksNothing"]),
    ];
    for (opened, chosen, warned) in rows {
        let fake = agent(&choosing(&opened));
        let (events, result) = once(options(), fake.context()).await;
        result.unwrap();
        let methods = methods(&fake);
        let between: Vec<&str> = methods[2..methods.len() - 1].iter().map(String::as_str).collect();
        assert_eq!((between, warnings(&events)), (chosen, warned), "{opened}");
    }
}

#[tokio::test]
async fn what_is_not_offered_fails_before_it_costs_anything() {
    let model = |name: &str| AcpOptions { model: Some(name.to_owned()), ..options() };
    let mode = |name: &str| AcpOptions { mode: Some(name.to_owned()), ..options() };
    let thinks = AcpOptions { thinking: Some(ThinkingLevel::Off), ..options() };
    let nothing = r#"{"sessionId":"s-1"}"#;
    let offers = OFFERS.replace('\n', "");
    let rows = [
        (
            offers.as_str(),
            model("huge"),
            ErrorCode::ModelNotFound,
            "the agent does not offer the model `huge`; it offers `big`, `small`",
        ),
        (
            OLDER,
            model("huge"),
            ErrorCode::ModelNotFound,
            "the agent does not offer the model `huge`; it offers `small`, `big`",
        ),
        (
            nothing,
            model("big"),
            ErrorCode::ConfigInvalid,
            "the agent offers no choice of its model; leave out the option `model`",
        ),
        (
            &offers,
            mode("fast"),
            ErrorCode::ConfigInvalid,
            "the agent does not offer the mode `fast`; it offers `build`, `plan`",
        ),
        (
            OLDER,
            mode("fast"),
            ErrorCode::ConfigInvalid,
            "the agent does not offer the mode `fast`; it offers `build`, `plan`",
        ),
        (
            nothing,
            mode("plan"),
            ErrorCode::ConfigInvalid,
            "the agent offers no choice of its mode; leave out the option `mode`",
        ),
        (
            &offers,
            thinks,
            ErrorCode::ConfigInvalid,
            "the agent does not offer to think `off`; it offers `low`, `high`",
        ),
    ];
    for (opened, options, code, message) in rows {
        let seen = fault(&choosing(opened), options).await;
        assert_eq!(seen, (code, message.to_owned(), json!("notOffered")));
    }
}

#[tokio::test]
async fn a_server_of_a_kind_that_the_agent_does_not_take_fails_the_call() {
    let server = json!({ "type": "http", "url": "http://127.0.0.1:1" });
    let options = AcpOptions { mcp_servers: Some([("s".to_owned(), server)].into()), ..options() };
    let (code, message, _) = fault(&format!("{} cat", plain()), options.clone()).await;
    assert_eq!(
        (code, message.as_str()),
        (ErrorCode::ConfigInvalid, "the agent takes no MCP servers of the type `http`, as `s` is")
    );
    let takes = greet(r#"{"mcpCapabilities":{"http":true}}"#, r#"{"sessionId":"s-1"}"#);
    let fake = agent(&format!("{takes} hear; say {END}; cat"));
    once(options, fake.context()).await.1.unwrap();
    assert_eq!(
        fake.received()[1]["params"],
        json!({
            "cwd": fake.work(),
            "mcpServers": [{ "type": "http", "name": "s", "url": "http://127.0.0.1:1", "headers": [] }],
        })
    );
}

#[tokio::test]
async fn a_structured_answer_is_found_in_its_text() {
    let text = TEXT.replace("so far", r#"Here:\n```json\n{\"a\":1}\n```"#);
    let fake = agent(&format!("{} hear; say {text}; say {END}; cat", plain()));
    let wanted = AcpOptions { output_schema: Some(json!({ "type": "object" })), ..options() };
    let output = once(wanted, fake.context()).await.1.unwrap();
    assert_eq!(output.structured_output, Some(json!({ "a": 1 })), "{output:?}");
    let fake = agent(&format!("{} hear; say {TEXT}; say {END}; cat", plain()));
    let wanted = AcpOptions { output_schema: Some(json!({ "type": "object" })), ..options() };
    assert_eq!(once(wanted, fake.context()).await.1.unwrap().structured_output, None);
}

#[tokio::test]
async fn an_error_that_was_also_said_is_taken_back() {
    let returned = TEXT.replace("so far", "API Error: 401 bad key planted-secret");
    let fake = agent(&format!(
        "{} hear; say {returned}; say '{{\"id\":3,\"error\":{{\"code\":-32603,\"message\":\"Internal error: API Error: 401 bad key planted-secret\",\"data\":{{\"errorKind\":\"authentication_failed\"}}}}}}'; cat",
        plain()
    ));
    let (events, result) = once(options(), fake.context()).await;
    let error = result.unwrap_err();
    assert_eq!(error.code, ErrorCode::Auth);
    assert!(!error.message.contains("planted"), "{error:?}");
    assert_eq!(events.last(), Some(&StreamEvent::Retract));
}

#[tokio::test]
async fn a_warm_process_serves_the_same_launch_only() {
    let script = choosing(r#"{"sessionId":"s-1"}"#)
        .replace(r#""agentCapabilities":{}"#, r#""agentCapabilities":{"loadSession":true}"#)
        .replace("\nwhile hear", &format!("\n{HISTORY}\nwhile hear"));
    let fake = agent(&format!("echo $$ >> pids\n{script}"));
    let provider = AcpProvider::new();
    run(&provider, options(), fake.context()).await.1.unwrap();
    run(&provider, resume("s-1"), fake.context()).await.1.unwrap();
    assert_eq!(fake.pids().len(), 1);
    let other = AcpOptions { args: Some(vec!["--other".to_owned()]), ..resume("s-1") };
    run(&provider, other, fake.context()).await.1.unwrap();
    assert_eq!((fake.pids().len(), fake.running().len()), (2, 1));
    provider.shutdown().await;
    assert!(fake.running().is_empty());
}
