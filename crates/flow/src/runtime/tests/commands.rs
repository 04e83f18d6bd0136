//! Commands that other processes post to the store: each is answered once, together with its effect.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use inspan_engine::{Channel, Clock, Hub, VirtualClock};
use inspan_protocol::{BoxError, Command, Envelope, Event, MessageMode, NodeId, Outcome, Timestamp};

use super::stage::{Running, Stage, kill, pass, pause_after, session, spawn};
use crate::{
    Resume, RunStore, Verdict, WhenWaiting,
    testing::{Do, TalkProvider},
};

const FLOW: &str = r#"
name: ask
nodes:
  - { id: chat, type: talk.agent, input: { prompt: one, options: { multiTurn: true, idleTimeoutMs: 5000 } } }
  - { id: human, type: human.input, input: { prompt: "?" }, dependsOn: [chat] }
  - { id: e, type: effect, dependsOn: [human] }
"#;

fn talk() -> TalkProvider {
    TalkProvider::new(|_, _| vec![Do::Name("c"), Do::Work(100), Do::End("done", Some(0.1), 1)])
}

fn reply(content: &str) -> Command {
    Command::Reply { prompt: "human.1".into(), content: content.to_owned(), choice: None }
}

fn say(content: &str) -> Command {
    let node = NodeId::new("chat").unwrap();
    Command::SendTo { node, content: content.to_owned(), mode: MessageMode::FollowUp }
}

impl Stage {
    async fn post(&self, command: &Command) -> u64 {
        let now = Timestamp::from_millis(self.now() as i64);
        self.store.inner.post(&session(), command, now).await.unwrap()
    }

    /// Repairs the store and continues, in a separate task.
    async fn repaired_and_resumed(&self) -> Running {
        self.store.repair();
        tokio::spawn(self.open().await.resume(Resume::default()))
    }

    async fn answer(&self, number: u64) -> Option<Verdict> {
        self.store.inner.answer(&session(), number).await.unwrap()
    }

    /// The content of each message and reply in the log.
    async fn said(&self) -> Vec<String> {
        let log = self.log().await;
        let said = log.iter().filter_map(|envelope| {
            let event = serde_json::to_value(&envelope.event).unwrap();
            let named = matches!(envelope.event.name(), "session:message" | "session:reply");
            named.then(|| event["content"].as_str().unwrap_or_default().to_owned())
        });
        said.collect()
    }
}

#[tokio::test(start_paused = true)]
async fn a_command_takes_effect_and_is_answered() {
    let play = talk();
    let stage = Stage::new(FLOW, &play);
    let running = spawn(stage.builder().build());
    pass(1_000).await;
    let first = stage.post(&say("hello")).await;
    pass(1).await;
    let wrong = stage.post(&reply("yes")).await;
    pass(8_000).await;
    let right = stage.post(&reply("yes")).await;
    pass(0).await;
    let result = running.await.unwrap().unwrap();
    stage.check().await;
    assert_eq!(
        (result.outcome, play.calls()),
        (Outcome::Success, vec!["one".to_owned(), "c: hello".to_owned()])
    );
    let answers = [stage.answer(first).await, stage.answer(wrong).await, stage.answer(right).await];
    let refused = Verdict::Refused("there is no question `human.1`".to_owned());
    assert_eq!(answers, [Some(Verdict::Accepted), Some(refused), Some(Verdict::Accepted)]);
    assert_eq!(stage.said().await, ["hello", "yes"]);
}

#[tokio::test(start_paused = true)]
async fn a_message_to_an_agent_ends_no_wait() {
    let text = r#"
name: ask
nodes:
  - { id: chat, type: talk.agent, input: { prompt: one, options: { multiTurn: true, idleTimeoutMs: 5000 } } }
  - { id: wait, type: control.wait, input: { until: "session:message" } }
"#;
    // The wait begins again after a pause, and then reads what came before.
    for is_paused in [false, true] {
        let stage = Stage::new(text, &talk());
        let mut running = spawn(stage.builder().build());
        pass(1_000).await;
        stage.post(&say("alone")).await;
        pass(1_000).await;
        if is_paused {
            stage.post(&Command::Pause { reason: None }).await;
            assert_eq!(running.await.unwrap().unwrap().outcome, Outcome::Paused);
            let runner = stage.builder().open(&session()).await.unwrap();
            running = tokio::spawn(runner.resume(Resume::default()));
            pass(1_000).await;
        }
        stage.post(&Command::Send { content: "together".to_owned() }).await;
        let result = running.await.unwrap().unwrap();
        assert_eq!(result.outputs.get("wait").unwrap()["event"]["content"], "together", "{is_paused}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_command_that_can_have_no_effect_is_refused() {
    let text = r#"
name: ask
nodes:
  - { id: chat, type: talk.agent, input: { prompt: one } }
  - { id: human, type: human.input, input: { prompt: "?", choices: [yes, no] }, dependsOn: [chat] }
  - { id: last, type: control.wait, input: { ms: 1000 }, dependsOn: [human] }
"#;
    let stage = Stage::new(text, &talk());
    let running = spawn(stage.builder().build());
    pass(1_000).await;
    let close = |run: &str| Command::Close { run: run.into() };
    let chosen = |prompt: &str, choice: &str| Command::Reply {
        prompt: prompt.into(),
        content: String::new(),
        choice: Some(choice.to_owned()),
    };
    let refused = |why: &str| Some(Verdict::Refused(why.to_owned()));
    let cases = [
        (chosen("human.7", "yes"), refused("there is no question `human.7`")),
        (
            chosen("human.1", "maybe"),
            refused("`maybe` is not among the choices of question `human.1`: yes, no"),
        ),
        (reply("perhaps"), refused("question `human.1` takes no text, only one of its choices: yes, no")),
        (say("hello"), refused("node `chat` has no active run")),
        (close("chat.1"), refused("run `chat.1` has ended")),
        (close("chat.9"), refused("there is no run `chat.9`")),
        (chosen("human.1", "yes"), Some(Verdict::Accepted)),
        (chosen("human.1", "no"), refused("question `human.1` is already answered")),
    ];
    let wrong = cases.iter().filter(|(_, verdict)| *verdict != Some(Verdict::Accepted)).count();
    for (command, verdict) in cases {
        let number = stage.post(&command).await;
        pass(10).await;
        assert_eq!(stage.answer(number).await, verdict, "{command:?}");
    }
    assert_eq!(running.await.unwrap().unwrap().outcome, Outcome::Success);
    assert_eq!(stage.count("session:rejected").await, wrong);
    stage.check().await;
}

#[tokio::test(start_paused = true)]
async fn a_command_waits_for_an_owner_and_for_its_turn() {
    let play = talk();
    let stage = Stage::new(FLOW, &play);
    pause_after(stage.builder().when_waiting(WhenWaiting::Leave).build(), 50).await;
    // No process runs it; the agent will continue soon, and the question has not been asked.
    let early = stage.post(&say("hello")).await;
    assert_eq!(stage.answer(early).await, None);
    let left = stage.resume_and_leave().await;
    assert_eq!((left.outcome, stage.answer(early).await), (Outcome::Waiting, Some(Verdict::Accepted)));
    assert_eq!(play.calls(), ["one", "c: one", "c: hello"]);
    // The question was asked by a process that has ended; the answer waits until it is asked again.
    let answer = stage.post(&reply("yes")).await;
    let done = stage.resume_and_leave().await;
    stage.check().await;
    assert_eq!((done.outcome, stage.answer(answer).await), (Outcome::Success, Some(Verdict::Accepted)));
    assert_eq!(
        (stage.said().await, stage.effects.done().len()),
        (vec!["hello".to_owned(), "yes".to_owned()], 1)
    );
}

#[tokio::test(start_paused = true)]
async fn a_message_that_was_stored_waits_for_the_first_run_that_takes_it() {
    let play = talk();
    let stage = Stage::new(FLOW, &play);
    pause_after(stage.builder().when_waiting(WhenWaiting::Leave).build(), 50).await;
    let to_all = Command::Send { content: "hello".to_owned() };
    let stored = stage.post(&to_all).await;
    let left = stage.resume_and_leave().await;
    assert_eq!((left.outcome, stage.answer(stored).await), (Outcome::Waiting, Some(Verdict::Accepted)));
    assert_eq!(play.calls(), ["one", "c: one", "c: hello"]);
    // Now only a person is waited for: a message that is stored keeps waiting, and is refused when the session ends.
    let late = stage.post(&to_all).await;
    let open = left.open_prompts()[0].prompt_id.clone();
    let answer = Command::Reply { prompt: open, content: "yes".to_owned(), choice: None };
    let answer = stage.post(&answer).await;
    let done = stage.resume_and_leave().await;
    assert_eq!((done.outcome, stage.answer(answer).await), (Outcome::Success, Some(Verdict::Accepted)));
    let refused = Verdict::Refused("the session is not active".to_owned());
    assert_eq!(stage.answer(late).await, Some(refused));
    assert_eq!(stage.story().await.iter().filter(|line| *line == "session:rejected").count(), 1);
    stage.check().await;
}

/// Two questions with a default and a deadline.
const TWO: &str = r#"
name: two
nodes:
  - { id: p, type: human.input, input: { prompt: "p?", choices: ["yes", "no"], timeout: 3s, default: "no" } }
  - { id: q, type: human.input, input: { prompt: "q?", choices: ["yes", "no"], timeout: 3s, default: "no" } }
"#;

fn yes(prompt: &str) -> Command {
    Command::Reply { prompt: prompt.into(), content: String::new(), choice: Some("yes".to_owned()) }
}

/// A channel that answers each question with its default as soon as it is asked.
struct Nobody(OnceLock<Hub>);

impl Channel for Nobody {
    fn name(&self) -> &str {
        "nobody"
    }

    async fn on_start(&self, hub: Hub) -> Result<(), BoxError> {
        self.0.set(hub).map_err(|_| "it was started twice".into())
    }

    async fn on_event(&self, envelope: &Arc<Envelope>) -> Result<(), BoxError> {
        if let (Event::SessionPrompt(asked), Some(hub)) = (&envelope.event, self.0.get()) {
            let _refused =
                hub.reply(asked.prompt_id.clone(), asked.default.clone().unwrap_or_default(), None);
        }
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_stored_answer_counts_before_its_question_is_asked_again() {
    // The last process paused or died, and the time of the question was up or not when the next one began.
    for (dies, ms) in [(false, 100), (false, 60_000), (true, 100), (true, 60_000)] {
        let stage = Stage::new(TWO, &talk());
        if dies {
            let running = spawn(stage.builder().build());
            pass(50).await;
            kill(running).await;
        } else {
            pause_after(stage.builder().build(), 50).await;
        }
        let stored = stage.post(&yes("p.1")).await;
        pass(ms).await;
        let runner =
            stage.builder().channel(Arc::new(Nobody(OnceLock::new()))).open(&session()).await.unwrap();
        let done = runner.resume(Resume::default()).await.unwrap();
        stage.check().await;
        let choices = ["p", "q"].map(|node| done.outputs.get(node).unwrap()["choice"].clone());
        assert_eq!((done.outcome, choices), (Outcome::Success, ["yes".into(), "no".into()]), "{dies} {ms}");
        assert_eq!(stage.answer(stored).await, Some(Verdict::Accepted));
        let asked = ["p", "q"].map(|node| format!("session:prompt {node}"));
        let asked = [stage.count(&asked[0]).await, stage.count(&asked[1]).await];
        assert_eq!(asked, [1, 2], "{dies} {ms}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_of_a_program_asks_as_those_of_flows_do() {
    let stage = Stage::new("name: own\nnodes: [{ id: own, type: asks }]\n", &talk());
    let began = stage.now();
    pause_after(stage.builder().build(), 50).await;
    // The pause ends the question at once.
    assert!(stage.now() - began < 1_000, "{}", stage.now());
    let id = stage.log().await.iter().find_map(|envelope| match &envelope.event {
        Event::SessionPrompt(prompt) => Some(prompt.prompt_id.clone()),
        _ => None,
    });
    let answer = Command::Reply { prompt: id.unwrap(), content: "yes".to_owned(), choice: None };
    let stored = stage.post(&answer).await;
    let done = stage.resume().await;
    assert_eq!(done.outputs.get("own").unwrap()["said"], "yes");
    assert_eq!(stage.answer(stored).await, Some(Verdict::Accepted));
    assert_eq!(stage.count("session:prompt own").await, 1);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_was_stored_too_late_is_refused() {
    let stage = Stage::new(TWO, &talk());
    pause_after(stage.builder().build(), 50).await;
    pass(60_000).await;
    let late = stage.post(&yes("p.1")).await;
    let done = stage.resume().await;
    stage.check().await;
    assert_eq!(done.outputs.get("p").unwrap()["choice"], "no");
    let refused = Verdict::Refused("question `p.1` is already answered".to_owned());
    assert_eq!(stage.answer(late).await, Some(refused));
}

#[tokio::test(start_paused = true)]
async fn what_a_person_said_about_a_doubtful_node_counts_before_it_is_asked_again() {
    let text = "name: risky\nnodes: [{ id: e, type: effect, effects: external }]\n";
    for (choice, runs) in [("run it again", 2), ("it is done", 1)] {
        let stage = Stage::new(text, &talk());
        let running = spawn(stage.builder().build());
        pass(5).await;
        kill(running).await;
        let left = stage.resume_and_leave().await;
        let prompt = left.open_prompts()[0].prompt_id.clone();
        let choice = Some(choice.to_owned());
        let stored = stage.post(&Command::Reply { prompt, content: String::new(), choice }).await;
        let done = stage.resume_and_leave().await;
        stage.check().await;
        assert_eq!((done.outcome, stage.answer(stored).await), (Outcome::Success, Some(Verdict::Accepted)));
        let asked = stage.count("session:prompt e").await;
        assert_eq!((asked, stage.effects.done().len()), (1, runs));
    }
}

#[tokio::test(start_paused = true)]
async fn pause_and_stop_come_through_the_store_too() {
    let stage = Stage::new(FLOW, &talk());
    let running = spawn(stage.builder().build());
    pass(50).await;
    let pause = stage.post(&Command::Pause { reason: None }).await;
    assert_eq!(running.await.unwrap().unwrap().outcome, Outcome::Paused);
    assert_eq!(stage.answer(pause).await, Some(Verdict::Accepted));
    // A stop is requested while no process runs it: it is stopped before anything runs.
    let stop = stage.post(&Command::Abort { reason: None }).await;
    let late = stage.post(&say("too late")).await;
    let result = stage.resume().await;
    stage.check().await;
    assert_eq!(
        (result.outcome, stage.now(), stage.count("task:start chat").await),
        (Outcome::Stopped, 50, 1)
    );
    let answers = (stage.answer(stop).await, stage.answer(late).await);
    let refused = Verdict::Refused("the session is not active".to_owned());
    assert_eq!(answers, (Some(Verdict::Accepted), Some(refused)));
}

#[tokio::test(start_paused = true)]
async fn a_pause_counts_from_the_moment_a_process_has_resumed_the_session() {
    let pause = Command::Pause { reason: None };
    for is_taken in [false, true] {
        let stage = Stage::new(FLOW, &talk());
        pause_after(stage.builder().build(), 50).await;
        let early = if is_taken { None } else { Some(stage.post(&pause).await) };
        let runner = stage.open().await;
        let posted = match early {
            Some(number) => number,
            None => stage.post(&pause).await,
        };
        let (handle, resumed) = (runner.handle(), tokio::spawn(runner.resume(Resume::default())));
        pass(1_000).await;
        assert_eq!(resumed.is_finished(), is_taken);
        assert_eq!(stage.answer(posted).await, Some(Verdict::Accepted));
        assert_eq!(stage.count("task:start chat").await, if is_taken { 1 } else { 2 });
        drop(handle.pause(None).await);
        assert_eq!(resumed.await.unwrap().unwrap().outcome, Outcome::Paused);
    }
}

#[tokio::test(start_paused = true)]
async fn a_command_takes_effect_once_wherever_its_owner_dies() {
    for k in 1.. {
        let play = talk();
        let stage = Stage::new(FLOW, &play);
        let mut running = spawn(stage.builder().build());
        pass(1_000).await;
        let message = stage.post(&say("hello")).await;
        stage.store.fail(k, usize::MAX);
        // It waits for the store as long as it does, and dies.
        pass(100_000).await;
        let died = running.is_finished();
        if died {
            running = stage.repaired_and_resumed().await;
            pass(10_000).await;
        }
        let asked = stage.log().await.iter().rev().find_map(|envelope| match &envelope.event {
            Event::SessionPrompt(prompt) => Some(prompt.prompt_id.clone()),
            _ => None,
        });
        let prompt = asked.unwrap_or_else(|| panic!("nothing is asked at {k}"));
        let yes = Command::Reply { prompt, content: "yes".to_owned(), choice: None };
        let answer = stage.post(&yes).await;
        pass(1_000).await;
        let ended = running.await.unwrap();
        let result = match ended {
            Ok(result) => result,
            Err(_) => stage.repaired_and_resumed().await.await.unwrap().unwrap(),
        };
        assert_eq!(result.outcome, Outcome::Success);
        stage.check().await;
        let answers = [stage.answer(message).await, stage.answer(answer).await];
        assert_eq!(answers, [Some(Verdict::Accepted), Some(Verdict::Accepted)], "{k}");
        assert_eq!(stage.said().await, ["hello", "yes"], "{k}");
        let received = play.calls().iter().filter(|call| call.contains("hello")).count();
        assert!(received >= 1, "{k}: {:?}", play.calls());
        if stage.store.appended() < k {
            assert!(k > 4);
            return;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_never_waits_keeps_its_log_and_receives_commands() {
    const ROUNDS: usize = 3_000;
    let flow = format!(
        r#"
name: round
nodes:
  - {{ id: a, type: echo, input: {{ text: x }} }}
  - {{ id: b, type: echo, input: {{ text: y }}, dependsOn: [a] }}
edges:
  - {{ from: b, to: a, maxIterations: {ROUNDS}, onExhausted: continue }}
"#
    );
    let stage = Stage::new(&flow, &talk());
    let running = spawn(stage.builder().build());
    while stage.store.appended() < 3 {
        tokio::task::yield_now().await;
    }
    let number = stage.post(&Command::Abort { reason: None }).await;
    let result = running.await.unwrap().unwrap();
    assert_eq!((result.outcome, stage.answer(number).await), (Outcome::Stopped, Some(Verdict::Accepted)));
    let rounds = stage.story().await.iter().filter(|line| line.starts_with("loop:iterate")).count();
    assert!((1..ROUNDS).contains(&rounds), "it was stopped after {rounds} rounds");
    stage.check().await;
}

/// A clock that can be put forward, as it is after the machine has slept.
struct PutForward(VirtualClock, AtomicU64);

impl Clock for PutForward {
    fn now(&self) -> Timestamp {
        self.0.now() + Duration::from_millis(self.1.load(Ordering::Relaxed))
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_too_late_if_the_time_is_up_for_who_gave_it_and_for_the_process() {
    const ASK: &str =
        "name: ask\nnodes:\n  - { id: human, type: human.input, input: { prompt: \"?\", timeout: 1h } }\n";
    const HOUR: u64 = 3_600_000;
    for (given_at, slept, is_late) in
        [(2 * HOUR, 0, false), (1_000, 2 * HOUR, false), (2 * HOUR, 2 * HOUR, true)]
    {
        let stage = Stage::new(ASK, &talk());
        let started = VirtualClock::starting_at(Timestamp::from_millis(0));
        let clock = Arc::new(PutForward(started, AtomicU64::new(0)));
        let running = spawn(stage.builder().clock(clock.clone()).build());
        pass(1_000).await;
        clock.1.store(slept, Ordering::Relaxed);
        let given_at = Timestamp::from_millis(given_at as i64);
        let number = stage.store.inner.post(&session(), &reply("yes"), given_at).await.unwrap();
        pass(1_000).await;
        let verdict = match is_late {
            true => Verdict::Refused("question `human.1` has expired".to_owned()),
            false => Verdict::Accepted,
        };
        assert_eq!(stage.answer(number).await, Some(verdict), "{given_at} {slept}");
        let outcome = running.await.unwrap().unwrap().outcome;
        assert_eq!(outcome == Outcome::Success, !is_late, "{given_at} {slept}");
    }
}
