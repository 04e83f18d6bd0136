//! Real agents of the Agent Client Protocol: Claude Code by its adapter, and OpenCode.

use std::time::Duration;

use inspan_model_server::{Block, Scenario, Turn};
use inspan_protocol::{ErrorCode, Message, Provider, StopReason, StreamEvent, ThinkingLevel};
use inspan_providers::{AcpInput, AcpOptions, AcpProvider};
use serde_json::json;
use tokio::time::Instant;

mod world;

use crate::turns::{run, tools};
use crate::world::PIXEL;
use world::{AGENTS, AcpSandbox, TestedAgent, prompt, shell};

#[tokio::test(flavor = "multi_thread")]
async fn turns_share_a_process_and_count_apart() {
    for agent in AGENTS {
        let thoughtful =
            Turn { blocks: vec![Block::thinking("let me think"), Block::text("First.")], ..Turn::default() };
        let world = AcpSandbox::new(Scenario::of([thoughtful, shell("touch made"), Turn::text("Third.")]));
        let provider = AcpProvider::new();
        let (events, first) = run(&provider, prompt("one", world.options(agent)), world.context()).await;
        let first = first.unwrap();
        assert!(
            matches!(&events[0], StreamEvent::Session { session_id } if Some(session_id) == first.session_id.as_ref()),
            "{agent:?}"
        );
        let thought: String = events
            .iter()
            .filter_map(|event| match event {
                StreamEvent::Thinking { content, .. } => Some(content.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!((thought.as_str(), first.text.as_str(), first.num_turns), ("let me think", "First.", 1));
        assert_eq!((first.usage.input_tokens, first.usage.output_tokens), (100, 20), "{agent:?}");
        let warm = world.running();
        let next = AcpOptions { resume: first.session_id.clone(), ..world.options(agent) };
        let (events, second) = run(&provider, prompt("two", next), world.context()).await;
        let second = second.unwrap();
        assert_eq!(
            (second.text.as_str(), second.session_id, second.stop_reason),
            ("Third.", first.session_id, StopReason::Complete)
        );
        assert_eq!(tools(&events).iter().map(|tool| tool.3).collect::<Vec<_>>(), [false], "{agent:?}");
        assert!(world.folder("proj/made").exists());
        // Two requests of the second turn cost twice what the one of the first did.
        let twice = first.cost_usd.map(|cost| (cost * 2.0 * 1e8).round() / 1e8);
        assert_eq!((first.cost_usd.is_some(), second.cost_usd), (true, twice), "{agent:?}");
        assert!(warm.iter().all(|process| world.running().contains(process)), "{agent:?}");
        world.end(&provider).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_agent_offers_can_be_chosen() {
    let world = AcpSandbox::new(Scenario::of([Turn::text("ok")]));
    let provider = AcpProvider::new();
    let options = AcpOptions {
        model: Some("scripted/two".to_owned()),
        mode: Some("plan".to_owned()),
        thinking: Some(ThinkingLevel::High),
        ..world.options(TestedAgent::OpenCode)
    };
    let output = run(&provider, prompt("go", options), world.context()).await.1.unwrap();
    assert_eq!(output.model.as_deref(), Some("scripted/two"));
    let request = world.main_requests().pop().unwrap();
    assert_eq!(
        (request["model"].as_str(), request["reasoning_effort"].as_str()),
        (Some("two"), Some("high"))
    );
    assert!(
        request.to_string().contains("Plan Mode") || request.to_string().contains("plan mode"),
        "{request}"
    );
    let options =
        AcpOptions { model: Some("scripted/three".to_owned()), ..world.options(TestedAgent::OpenCode) };
    let error = run(&provider, prompt("go", options), world.context()).await.1.unwrap_err();
    assert_eq!(error.code, ErrorCode::ModelNotFound);
    world.end(&provider).await;

    let world = AcpSandbox::new(Scenario::of([Turn::text("ok")]));
    let options = AcpOptions {
        model: Some("sonnet".to_owned()),
        mode: Some("plan".to_owned()),
        ..world.options(TestedAgent::Claude)
    };
    let provider = AcpProvider::new();
    let output = run(&provider, prompt("go", options), world.context()).await.1.unwrap();
    assert_eq!(output.model.as_deref(), Some("sonnet"));
    let request = world.main_requests().pop().unwrap();
    assert!(request["model"].as_str().unwrap().contains("sonnet"), "{}", request["model"]);
    world.end(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_reach_the_model() {
    for agent in AGENTS {
        let world = AcpSandbox::new(Scenario::of([Turn::text("ok")]));
        let provider = AcpProvider::new();
        for text in ["/compact now", "/nosuch command", "! ls", "# note", "$HOME"] {
            let output = run(&provider, prompt(text, world.options(agent)), world.context()).await.1.unwrap();
            assert_eq!(output.text, "ok", "{agent:?} {text}");
            let request = world.main_requests().pop().unwrap();
            assert!(
                request["messages"].to_string().contains(text),
                "{agent:?} {text}: {}",
                request["messages"]
            );
        }
        let picture: Message = serde_json::from_value(json!({ "role": "user", "content": [
            { "type": "text", "text": "what is this" },
            { "type": "image", "media_type": "image/png", "data": PIXEL },
        ] }))
        .unwrap();
        let input = AcpInput {
            messages: Some(vec![picture]),
            options: Some(world.options(agent)),
            ..AcpInput::default()
        };
        let items: Vec<_> = futures::StreamExt::collect(provider.execute(input, world.context())).await;
        assert!(items.iter().all(Result::is_ok), "{items:?}");
        if agent == TestedAgent::Claude {
            // The other agent sends no pictures to a model that does not say it reads them.
            assert!(world.main_requests().pop().unwrap().to_string().contains("image/png"));
        }
        world.end(&provider).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_tool_leaves_nothing_and_its_session_continues() {
    for agent in AGENTS {
        let world = AcpSandbox::new(Scenario::of([shell("sleep 613"), Turn::text("I go on.")]));
        let provider = AcpProvider::new();
        let context = world.context();
        let cancel = context.cancel.clone();
        let turn = run(&provider, prompt("go", world.options(agent)), context);
        let cut = async {
            world.wait_for("sleep 613").await;
            cancel.cancel();
            Instant::now()
        };
        let ((events, output), cut) = tokio::join!(turn, cut);
        let output = output.unwrap();
        assert!(cut.elapsed() < Duration::from_secs(10), "{:?}", cut.elapsed());
        assert_eq!((output.stop_reason, tools(&events).len()), (StopReason::Aborted, 1), "{agent:?}");
        let next = AcpOptions { resume: output.session_id, ..world.options(agent) };
        let output = run(&provider, prompt("again", next), world.context()).await.1.unwrap();
        assert_eq!(output.text, "I go on.", "{agent:?}");
        world.end(&provider).await;
    }
}
