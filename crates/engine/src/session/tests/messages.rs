//! Messages that come while an agent works or waits: none is lost, and each is delivered once.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_follow_up_waits_for_the_turn_and_belongs_to_the_chat() {
    let script = Script::new([turn("one"), turn("two")]);
    let session = open(&script);
    let chat = tokio::spawn(session.chat("a"));
    settle().await;
    session.follow_up("b").unwrap();
    session.follow_up("c").unwrap();
    let snapshot = session.snapshot().unwrap();
    assert_eq!(
        (snapshot.status, snapshot.queued),
        (AgentSessionStatus::Running, vec!["b".into(), "c".into()])
    );
    let result = chat.await.unwrap().unwrap();
    assert_eq!(texts(&result.messages), ["a", "one", "b\n\nc", "two"]);
    assert_eq!((result.text.as_str(), result.duration_ms), ("two", 2000));
    assert_eq!(prompts(&script), [fresh("a"), resumed("b\n\nc")]);
    let snapshot = session.snapshot().unwrap();
    assert_eq!((snapshot.status, snapshot.queued, snapshot.turns), (AgentSessionStatus::Idle, vec![], 2));
}

#[tokio::test(start_paused = true)]
async fn a_steer_interrupts() {
    let script = Script::new([working("wrong w"), turn("right")]);
    let session = open(&script);
    let chat = tokio::spawn(session.chat("a"));
    settle().await;
    session.steer("no, b").unwrap();
    let result = chat.await.unwrap().unwrap();
    assert_eq!(texts(&result.messages), ["a", "wrong w", "no, b", "right"]);
    assert_eq!(result.stop_reason, StopReason::Complete);
}

#[tokio::test(start_paused = true)]
async fn what_comes_while_it_rests_is_said_with_the_next_chat() {
    let script = Script::new([turn("one")]);
    let session = open(&script);
    session.follow_up("first").unwrap();
    session.steer("second").unwrap();
    assert_eq!(session.snapshot().unwrap().queued, ["first", "second"]);
    session.chat("third").await.unwrap();
    assert_eq!(prompts(&script), [fresh("first\n\nsecond\n\nthird")]);
}

#[tokio::test(start_paused = true)]
async fn the_queue_can_be_taken_back() {
    let script = Script::new([turn("one")]);
    let session = open(&script);
    session.follow_up("idle").unwrap();
    assert_eq!(session.drain_queue(), ["idle"]);
    let chat = tokio::spawn(session.chat("a"));
    settle().await;
    session.follow_up("b").unwrap();
    session.follow_up("c").unwrap();
    assert_eq!(session.drain_queue(), ["b", "c"]);
    assert_eq!(session.drain_queue(), Vec::<String>::new());
    chat.await.unwrap().unwrap();
    assert_eq!(prompts(&script), [fresh("a")]);
}

#[tokio::test(start_paused = true)]
async fn what_a_failed_or_aborted_chat_did_not_deliver_waits_on() {
    let failed = vec![
        Do::Say(session("s-1")),
        Do::Sleep(Duration::from_secs(1)),
        Do::Fail(error(ErrorCode::Overloaded)),
    ];
    let script = Script::new([failed, working("x"), turn("ok")]);
    let session = open(&script);
    for (text, message, code) in [("a", "b", ErrorCode::Overloaded), ("c", "d", ErrorCode::Aborted)] {
        let chat = tokio::spawn(session.chat(text));
        settle().await;
        session.follow_up(message).unwrap();
        if code == ErrorCode::Aborted {
            session.abort();
        }
        assert_eq!(chat.await.unwrap().unwrap_err().error.code, code);
        assert_eq!(session.snapshot().unwrap().queued, [message]);
    }
    session.chat("e").await.unwrap();
    assert_eq!(prompts(&script), [fresh("a"), resumed("b\n\nc"), resumed("d\n\ne")]);
}

#[tokio::test(start_paused = true)]
async fn a_chat_that_is_dropped_loses_nothing() {
    let script = Script::new([working("x"), turn("ok")]);
    let session = open(&script);
    let chat = tokio::spawn(session.chat("a"));
    settle().await;
    session.follow_up("b").unwrap();
    let joined = tokio::spawn(session.chat("c"));
    settle().await;
    chat.abort();
    assert!(chat.await.unwrap_err().is_cancelled());
    // The chats that shared its end are notified.
    assert_eq!(joined.await.unwrap().unwrap_err().error.code, ErrorCode::Aborted);
    let snapshot = session.snapshot().unwrap();
    assert_eq!((snapshot.status, snapshot.queued), (AgentSessionStatus::Idle, vec!["b".into(), "c".into()]));
    session.chat("d").await.unwrap();
    assert_eq!(prompts(&script), [fresh("a"), resumed("b\n\nc\n\nd")]);
}

#[tokio::test(start_paused = true)]
async fn a_chat_joins_the_one_in_progress() {
    let script = Script::new([working("x"), turn("both")]);
    let session = open(&script);
    let first = tokio::spawn(session.chat("a"));
    settle().await;
    let second = session.chat(Chat::new("b").mode(MessageMode::Steer)).await.unwrap();
    assert_eq!((second.text.as_str(), &second), ("both", &first.await.unwrap().unwrap()));
    assert_eq!(prompts(&script), [fresh("a"), resumed("b")]);
}

#[tokio::test(start_paused = true)]
async fn an_agent_without_a_conversation_receives_the_earlier_messages() {
    let answer = |text: &str| vec![Do::Sleep(Duration::from_secs(1)), Do::Output(json!({ "text": text }))];
    let script = Script::new([answer("one"), answer("two")]);
    let session = open(&script);
    let chat = tokio::spawn(session.chat("a"));
    settle().await;
    session.follow_up("b").unwrap();
    let result = chat.await.unwrap().unwrap();
    assert_eq!(texts(&result.messages), ["a", "one", "b", "two"]);
    let second = "This conversation began elsewhere. What was said so far:\n\nThe user:\na\n\nYou:\none\n\nIt goes on here.\n\nb";
    assert_eq!(prompts(&script), [fresh("a"), fresh(second)]);
}

#[tokio::test(start_paused = true)]
async fn an_empty_prompt_is_refused_and_the_queue_stays() {
    let script = Script::new([turn("ok")]);
    let session = open(&script);
    assert_eq!(session.chat(" ").await.unwrap_err().error.code, ErrorCode::ConfigInvalid);
    session.follow_up("b").unwrap();
    // The queued messages alone are a prompt.
    session.chat("").await.unwrap();
    assert_eq!(prompts(&script), [fresh("b")]);
}

#[tokio::test(start_paused = true)]
async fn a_run_at_its_limit_leaves_the_rest() {
    let script = Script::new([turn("one")]);
    let session = open_with(&script, AgentOptions::new().max_turns(1));
    let chat = tokio::spawn(session.chat("a"));
    settle().await;
    session.follow_up("b").unwrap();
    assert_eq!(chat.await.unwrap().unwrap().stop_reason, StopReason::MaxTurns);
    assert_eq!(session.drain_queue(), ["b"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_message_is_said_once_whenever_it_comes() {
    const EACH: usize = 200;
    let quick = || vec![Do::Say(session("s-1")), output("ok")];
    let script = Script::new(std::iter::repeat_with(quick).take(3 * EACH + 100));
    let session = open(&script);
    let posters: Vec<_> = ["a", "b"]
        .map(|name| {
            let session = session.clone();
            std::thread::spawn(move || {
                (0..EACH).for_each(|number| session.follow_up(format!("{name}{number}")).unwrap());
            })
        })
        .into();
    for number in 0..50 {
        session.chat(format!("chat{number}")).await.unwrap();
    }
    posters.into_iter().for_each(|poster| poster.join().unwrap());
    let left = session.drain_queue();
    let said = prompts(&script)
        .into_iter()
        .flat_map(|(prompt, _)| prompt.split("\n\n").map(str::to_owned).collect::<Vec<_>>());
    let all: Vec<String> = said.chain(left).collect();
    for (name, count) in [("a", EACH), ("b", EACH), ("chat", 50)] {
        let of: Vec<&String> =
            all.iter().filter(|text| text.trim_end_matches(|c: char| c.is_ascii_digit()) == name).collect();
        let expected: Vec<String> = (0..count).map(|number| format!("{name}{number}")).collect();
        assert_eq!(of, expected.iter().collect::<Vec<_>>());
    }
}
