//! Questions, answers, defaults and withdrawals.

use std::time::Duration;

use futures::FutureExt;
use inspan_protocol::{Command, CommandKind, NodeId, NodePath};
use serde_json::json;

use super::*;
use crate::testing::{EventCollector, NOON, hub};

fn choice(text: &str, default: Option<&str>, seconds: Option<u64>) -> Prompt {
    Prompt {
        choices: Some(vec!["yes".to_owned(), "no".to_owned()]),
        deadline: seconds.map(|seconds| NOON + Duration::from_secs(seconds)),
        default: default.map(str::to_owned),
        ..Prompt::new("p", PromptKind::Input, text)
    }
}

fn reply(content: &str, choice: Option<&str>) -> Reply {
    Reply { content: content.to_owned(), choice: choice.map(str::to_owned) }
}

#[tokio::test(start_paused = true)]
async fn a_reply_answers_its_prompt() {
    let hub = hub();
    let mut watch = EventCollector::new(&hub);
    let task = NodePath::root(&NodeId::new("ok").unwrap());
    let prompt = Prompt {
        prompt_id: hub.new_prompt(PromptKind::Input, "").prompt_id,
        detail: Some(json!({ "pr": 7 })),
        ..choice("Open it?", Some("no"), Some(60))
    };
    let asked = hub.with_task(task.clone()).ask(prompt.clone());
    let id = asked.prompt_id().clone();
    assert_eq!(id, "prompt-1");
    assert_eq!(hub.open_prompts(), [Prompt { task: Some(task.clone()), ..prompt.clone() }]);
    hub.reply(id.clone(), "", Some("yes".to_owned())).unwrap();
    assert_eq!(asked.await, Ok(reply("yes", Some("yes"))));
    assert_eq!(hub.open_prompts(), []);
    let envelopes = watch.envelopes();
    assert_eq!(envelopes[0].context.task, Some(task));
    assert_eq!(
        envelopes.into_iter().map(|envelope| envelope.event).collect::<Vec<_>>(),
        [
            Event::SessionPrompt(prompt),
            Event::SessionReply {
                prompt_id: id,
                content: "yes".to_owned(),
                choice: Some("yes".to_owned()),
                is_default: false,
            },
        ]
    );
}

#[tokio::test]
async fn what_answers_a_prompt() {
    let texts = || Prompt { choices: None, ..choice("?", None, None) };
    let both = || Prompt { allow_text: Some(true), ..choice("?", None, None) };
    let no_text =
        |choices: &str| Err(Rejection::TextNotAllowed { prompt: "p".into(), choices: choices.to_owned() });
    let wrong = |choices: &str| {
        Err(Rejection::NotAChoice {
            prompt: "p".into(),
            choice: "maybe".to_owned(),
            choices: choices.to_owned(),
        })
    };
    let two_of = |choice: &str| {
        let why = format!("it is the choice `{choice}` and another text");
        Err(Rejection::Misfit { prompt: "p".into(), why })
    };
    let two = || two_of("no");
    let decision = || Prompt {
        choices: Some(["allow", "deny"].map(str::to_owned).to_vec()),
        ..Prompt::new("p", PromptKind::Permission, "?")
    };
    type Row = (Prompt, &'static str, Option<&'static str>, Result<Reply, Rejection>);
    let rows: [Row; 15] = [
        (texts(), "hello", None, Ok(reply("hello", None))),
        (texts(), "hello", Some("maybe"), wrong("")),
        (choice("?", None, None), "yes", None, Ok(reply("yes", Some("yes")))),
        (choice("?", None, None), "", Some("no"), Ok(reply("no", Some("no")))),
        (choice("?", None, None), "well", Some("no"), two()),
        (choice("?", None, None), "yes", Some("no"), two()),
        (choice("?", None, None), "hello", None, no_text("yes, no")),
        (choice("?", None, None), "hello", Some("maybe"), wrong("yes, no")),
        (both(), "hello", None, Ok(reply("hello", None))),
        (both(), "yes", None, Ok(reply("yes", Some("yes")))),
        (both(), "well", Some("no"), Ok(reply("well", Some("no")))),
        (both(), "yes", Some("no"), two()),
        (Prompt { allow_text: Some(false), ..texts() }, "hello", None, no_text("")),
        (decision(), "allow", Some("deny"), Ok(reply("allow", Some("deny")))),
        (decision(), "deny", Some("allow"), two_of("allow")),
    ];
    for (prompt, content, choice, expected) in rows {
        let hub = hub();
        let mut watch = EventCollector::new(&hub);
        let mut asked = hub.ask(prompt.clone());
        let taken = hub.reply("p".into(), content, choice.map(str::to_owned));
        let seen = match taken {
            Ok(()) => Ok((&mut asked).await.unwrap()),
            Err(rejection) => {
                assert_eq!((&mut asked).now_or_never(), None);
                assert_eq!(
                    watch.events().pop(),
                    Some(Event::SessionRejected {
                        command: CommandKind::Reply,
                        reason: rejection.to_string()
                    })
                );
                Err(rejection)
            }
        };
        assert_eq!(seen, expected, "{prompt:?}");
    }
}

#[tokio::test]
async fn a_prompt_is_answered_once() {
    let hub = hub();
    assert_eq!(hub.reply("p".into(), "yes", None), Err(Rejection::UnknownPrompt("p".into())));
    let asked = hub.ask(choice("?", None, None));
    hub.reply("p".into(), "yes", None).unwrap();
    assert_eq!(hub.reply("p".into(), "no", None), Err(Rejection::AlreadyAnswered("p".into())));
    assert_eq!(asked.await, Ok(reply("yes", Some("yes"))));
}

#[tokio::test]
async fn a_question_of_an_earlier_process_is_answered_once_before_it_is_asked_again_or_after() {
    let question = choice("?", None, None);
    let twice = || Err(Rejection::AlreadyAnswered("p".into()));
    for is_asked in [false, true] {
        let hub = hub();
        let mut watch = EventCollector::new(&hub);
        let asked = is_asked.then(|| hub.ask(question.clone()));
        let wrong = hub.reply_to(&question, "", Some("maybe".to_owned()));
        assert!(matches!(wrong, Err(Rejection::NotAChoice { .. })), "{wrong:?}");
        hub.reply_to(&question, "yes", None).unwrap();
        let again = [hub.reply_to(&question, "no", None), hub.reply("p".into(), "no", None)];
        assert_eq!(again, [twice(), twice()]);
        let replies =
            watch.envelopes().into_iter().filter(|seen| seen.event.name() == "session:reply").count();
        assert_eq!(replies, 1);
        if let Some(asked) = asked {
            assert_eq!(asked.await, Ok(reply("yes", Some("yes"))));
        }
        hub.end_session();
        assert_eq!(hub.reply_to(&question, "yes", None), Err(Rejection::NotActive));
    }
}

#[tokio::test]
async fn a_dropped_prompt_is_withdrawn() {
    let hub = hub();
    drop(hub.ask(choice("?", None, None)));
    assert_eq!(hub.open_prompts(), []);
    assert_eq!(hub.reply("p".into(), "yes", None), Err(Rejection::UnknownPrompt("p".into())));
}

#[tokio::test]
async fn a_prompt_that_was_answered_may_be_asked_again() {
    let hub = hub();
    let first = hub.ask(choice("?", None, None));
    hub.reply("p".into(), "yes", None).unwrap();
    let again = hub.ask(choice("?", None, None));
    assert_eq!(first.await, Ok(reply("yes", Some("yes"))));
    drop(again);
    assert_eq!(hub.reply("p".into(), "no", None), Err(Rejection::UnknownPrompt("p".into())));
}

#[tokio::test]
async fn asking_again_withdraws_the_older_question_only() {
    let hub = hub();
    let older = hub.ask(choice("first", None, None));
    let newer = hub.ask(choice("second", None, None));
    assert_eq!(older.await, Err(Unanswered::Withdrawn("p".into())));
    hub.reply("p".into(), "yes", None).unwrap();
    assert_eq!(newer.await, Ok(reply("yes", Some("yes"))));
}

#[tokio::test]
async fn the_end_of_the_session_withdraws_all() {
    let hub = hub();
    let mut watch = EventCollector::new(&hub);
    let open = hub.ask(choice("?", None, None));
    hub.end_session();
    let late = hub.ask(choice("?", None, None));
    let withdrawn = Err(Unanswered::Withdrawn("p".into()));
    assert_eq!([open.await, late.await], [withdrawn.clone(), withdrawn]);
    assert_eq!(watch.names(), ["session:prompt"]);
}

#[tokio::test(start_paused = true)]
async fn the_default_answers_at_the_deadline() {
    for (default, choice_taken) in [("no", Some("no")), ("later", None)] {
        let hub = hub();
        let mut watch = EventCollector::new(&hub);
        // The clock of each hub starts at noon, so the deadline is a minute away.
        let asked = hub.ask(choice("?", Some(default), Some(60)));
        let began = tokio::time::Instant::now();
        assert_eq!(asked.await, Ok(reply(default, choice_taken)));
        assert_eq!(began.elapsed().as_secs(), 60);
        assert_eq!(
            watch.events()[1..],
            [Event::SessionReply {
                prompt_id: "p".into(),
                content: default.to_owned(),
                choice: choice_taken.map(str::to_owned),
                is_default: true,
            }]
        );
        assert_eq!(hub.reply("p".into(), "yes", None), Err(Rejection::AlreadyAnswered("p".into())));
    }
}

#[tokio::test]
async fn the_default_answers_where_nobody_can_be_asked() {
    let hub = hub();
    let mut watch = EventCollector::new(&hub);
    let take = || hub.command(Command::TakeDefault { prompt: "p".into() });
    let asked = hub.ask(choice("?", None, None));
    assert_eq!(take(), Err(Rejection::NoDefault("p".into())));
    drop(asked);
    let asked = hub.ask(choice("?", Some("no"), None));
    assert_eq!((take(), take()), (Ok(()), Err(Rejection::AlreadyAnswered("p".into()))));
    assert_eq!(asked.await, Ok(reply("no", Some("no"))));
    let is_default = |event: &Event| matches!(event, Event::SessionReply { is_default: true, .. });
    assert!(watch.events().iter().any(is_default));
}

#[tokio::test(start_paused = true)]
async fn without_a_default_a_prompt_expires() {
    let hub = hub();
    let mut watch = EventCollector::new(&hub);
    let asked = hub.ask(choice("?", None, Some(60)));
    let expired = Unanswered::Expired { prompt: "p".into(), deadline: NOON + Duration::from_secs(60) };
    assert_eq!(asked.await, Err(expired));
    assert_eq!(watch.names(), ["session:prompt"]);
    assert_eq!(hub.reply("p".into(), "yes", None), Err(Rejection::UnknownPrompt("p".into())));
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_comes_before_the_deadline_wins() {
    let hub = hub();
    let mut asked = hub.ask(choice("?", Some("no"), Some(60)));
    assert_eq!((&mut asked).now_or_never(), None);
    tokio::time::advance(Duration::from_secs(59)).await;
    hub.reply("p".into(), "yes", None).unwrap();
    tokio::time::advance(Duration::from_secs(59)).await;
    assert_eq!(asked.await, Ok(reply("yes", Some("yes"))));
}
