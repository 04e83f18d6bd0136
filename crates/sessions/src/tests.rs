//! Following a log and finding sessions, in a store in memory.

use std::sync::Arc;

use async_trait::async_trait;
use futures::future::{BoxFuture, join_all};
use inspan_engine::{SystemClock, VirtualClock};
use inspan_flow::{
    Batch, CommandAnswer, FlowSource, Lease, MemoryStore, NodeRegistry, Owner, RunStore, SessionRecord,
    SqliteOptions, SqliteStore, StoreError, Verdict,
};
use inspan_protocol::{Envelope, Event, EventContext, NodePath, Prompt, PromptKind, SessionId, Timestamp};
use serde_json::{Map, Value, json};
use tokio::{sync::Notify, task::JoinSet};

use crate::{
    Accepted, Followed, ForkOptions, ForkPoint, Launcher, Receipt, ResumeOptions, SessionCommand,
    SessionError, SessionErrorCode, SessionTarget, Sessions, StartOptions,
};

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(1_767_780_000_000 + millis)
}

fn record(id: &str) -> SessionRecord {
    let flow = FlowSource { name: "oxen".to_owned(), text: "name: oxen\n".into(), ..Default::default() };
    SessionRecord::new(id.into(), flow, Map::new(), at(0))
}

async fn create(store: &MemoryStore, id: &str) -> Lease {
    store.create(&record(id), &Owner::of_process(), at(0)).await.unwrap()
}

fn envelope(id: &str, seq: u64, event: Event) -> Arc<Envelope> {
    Arc::new(Envelope::new(EventContext::session(SessionId::from(id)), seq, at(seq as i64), event))
}

fn log(id: &str, seqs: std::ops::RangeInclusive<u64>) -> Vec<Arc<Envelope>> {
    let event = |seq| match seq {
        1 => Event::HarnessStart { name: "oxen".to_owned() },
        _ => serde_json::from_value(json!({ "type": "_note", "number": seq })).unwrap(),
    };
    seqs.map(|seq| envelope(id, seq, event(seq))).collect()
}

fn end(id: &str, seq: u64) -> Arc<Envelope> {
    let end = json!({ "type": "harness:complete", "success": true, "outcome": "success", "durationMs": 1 });
    envelope(id, seq, serde_json::from_value(end).unwrap())
}

async fn append(store: &MemoryStore, lease: &Lease, events: &[Arc<Envelope>]) {
    store.append(lease, Batch { events, answers: &[] }).await.unwrap();
}

fn sessions(store: &Arc<MemoryStore>) -> Sessions {
    let store: Arc<dyn RunStore> = Arc::<MemoryStore>::clone(store);
    Sessions::new(store, NodeRegistry::default(), Arc::new(SystemClock))
}

fn seqs(followed: &Followed) -> Vec<u64> {
    match followed {
        Followed::Events(events) => events.iter().map(|envelope| envelope.seq).collect(),
        other => panic!("no events: {other:?}"),
    }
}

#[tokio::test]
async fn what_was_answered_names_no_question_and_no_run_of_another_node() {
    let store = Arc::new(MemoryStore::new());
    let lease = create(&store, "s1").await;
    let ask = |id: &str| Event::SessionPrompt(Prompt::new(id, PromptKind::Input, "Go on?"));
    let of_node = |node: &str, event: Event, seq| {
        let context = EventContext { task: Some(NodePath::new(node)), ..EventContext::session("s1".into()) };
        Arc::new(Envelope::new(context, seq, at(seq as i64), event))
    };
    let event = |event: Value| serde_json::from_value::<Event>(event).unwrap();
    let answer = event(json!({ "type": "session:reply", "promptId": "a.1", "content": "no" }));
    let begins = event(
        json!({ "type": "agent:start", "agentName": "b", "runId": "ab.2", "provider": "echo", "turn": 1 }),
    );
    let events = [
        ("a", ask("a.1")),
        ("a", answer),
        ("ab", ask("ab.1")),
        ("e[0]/a", ask("e[0]/a.1")),
        ("e[0]/ab", begins),
    ];
    let events: Vec<_> =
        events.into_iter().zip(2..).map(|((node, event), seq)| of_node(node, event, seq)).collect();
    append(&store, &lease, &[log("s1", 1..=1), events].concat()).await;
    let target = sessions(&store).target(&"s1".into()).await.unwrap();
    let named = async |name: &str| match target.prompt(name, |_| true).await {
        Ok(open) => open.prompt_id.to_string(),
        Err(error) => error.message,
    };
    let run = async |name: &str| match target.active_run(Some(name)).await {
        Ok(run) => run.to_string(),
        Err(error) => error.message,
    };
    let answered = "question `a.1` is already answered: no";
    assert_eq!([named("a").await, named("a.1").await], [answered, answered]);
    assert_eq!([named("ab").await, named("ab.1").await], ["ab.1", "ab.1"]);
    assert_eq!(named("e[0]/a").await, "e[0]/a.1");
    assert_eq!([run("e[0]/ab").await, run("ab.2").await], ["ab.2", "ab.2"]);
    let none = ["a", "ab"].map(|name| format!("session `s1` has no active run `{name}`"));
    assert_eq!([run("a").await, run("ab").await], none);
    assert_eq!(named("ab.").await, "session `s1` has no open question `ab.`");
}

#[tokio::test]
async fn an_approval_names_the_question_that_its_caller_saw() {
    let store = Arc::new(MemoryStore::new());
    let lease = create(&store, "s1").await;
    let ask = |id: &str, kind, seq, seconds: i64| {
        let detail = json!({ "toolName": "Bash", "input": { "command": id } });
        let asked = Prompt { detail: Some(detail), ..Prompt::new(id, kind, "May I?") };
        let context = EventContext { task: Some(NodePath::new("a")), ..EventContext::session("s1".into()) };
        Arc::new(Envelope::new(context, seq, at(1_000 * seconds), Event::SessionPrompt(asked)))
    };
    let answer = |id: &str, seq, seconds: i64| {
        let event = json!({ "type": "session:reply", "promptId": id, "content": "allow" });
        let context = EventContext::session("s1".into());
        Arc::new(Envelope::new(context, seq, at(1_000 * seconds), serde_json::from_value(event).unwrap()))
    };
    let (input, permission) = (PromptKind::Input, PromptKind::Permission);
    let asked = [ask("h.1", input, 2, 0), ask("a.1", permission, 3, 1), answer("a.1", 4, 2)];
    let asked_again = [ask("a.1.2", permission, 5, 3), answer("h.1", 6, 12)];
    append(&store, &lease, &[log("s1", 1..=1), asked.to_vec()].concat()).await;
    append(&store, &lease, &asked_again).await;
    let sessions = sessions(&store);
    for prompt in [None, Some("a".to_owned())] {
        let approve = SessionCommand::Approve { prompt, always: false };
        let refused = sessions.apply(&"s1".into(), &approve, None).await.unwrap_err();
        let why =
            "`approve` needs the ID of its question as `prompt`; open is `a.1.2`: [a] Allow Bash a.1.2?";
        assert_eq!((refused.code, refused.message.as_str()), (SessionErrorCode::InvalidRequest, why));
    }
    let entry = store.entry(&"s1".into()).await.unwrap();
    let is_unseen = async |asked: &Envelope, seconds: i64| {
        let Event::SessionPrompt(open) = &asked.event else { panic!("no question") };
        let clock = Arc::new(VirtualClock::starting_at(at(1_000 * seconds)));
        let store: Arc<dyn RunStore> = Arc::<MemoryStore>::clone(&store);
        SessionTarget::new(store, clock, entry.clone()).is_unseen(open).await.unwrap()
    };
    // A clock that was set back makes everything new.
    let [second, ..] = &asked_again;
    let seen = [0, 4, 11, 12].map(|seconds| is_unseen(second, seconds));
    assert_eq!(join_all(seen).await, [true, true, true, false]);
    let third = ask("a.1.3", permission, 7, 20);
    append(&store, &lease, std::slice::from_ref(&third)).await;
    assert_eq!(join_all([21, 22].map(|seconds| is_unseen(&third, seconds))).await, [true, false]);
}

#[tokio::test]
async fn all_questions_of_a_session_share_what_is_known_of_it() {
    let store = Arc::new(MemoryStore::new());
    let lease = create(&store, "s1").await;
    let ask = |seq| {
        let prompt = Prompt::new(format!("a.{seq}"), PromptKind::Input, "Go on?");
        envelope("s1", seq, Event::SessionPrompt(prompt))
    };
    append(&store, &lease, &[log("s1", 1..=1), (2..=4).map(ask).collect()].concat()).await;
    let open = sessions(&store).inbox(None).await.unwrap();
    // Each would hold all questions otherwise, as the entry has them.
    assert_eq!((open.len(), Arc::strong_count(&open[0].entry)), (3, 3));
}

#[tokio::test(start_paused = true)]
async fn a_follower_gets_what_is_there_what_comes_and_the_end() {
    let store = Arc::new(MemoryStore::new());
    let lease = create(&store, "s1").await;
    append(&store, &lease, &log("s1", 1..=3)).await;
    let mut follower = sessions(&store).follow(&"s1".into(), 2);
    assert_eq!(seqs(&follower.next().await.unwrap()), [2, 3]);
    let writer = async {
        append(&store, &lease, &log("s1", 4..=5)).await;
    };
    let (next, ()) = tokio::join!(follower.next(), writer);
    assert_eq!(seqs(&next.unwrap()), [4, 5]);
    append(&store, &lease, &[end("s1", 6)]).await;
    store.release(&lease).await.unwrap();
    assert_eq!(seqs(&follower.next().await.unwrap()), [6]);
    let entry = Box::new(store.entry(&"s1".into()).await.unwrap());
    assert_eq!(follower.next().await.unwrap(), Followed::Ended(entry));
}

#[tokio::test(start_paused = true)]
async fn a_follower_is_idle_once_and_then_waits_for_the_process_that_resumes() {
    let store = Arc::new(MemoryStore::new());
    let lease = create(&store, "s1").await;
    append(&store, &lease, &log("s1", 1..=2)).await;
    store.release(&lease).await.unwrap();
    let mut follower = sessions(&store).follow(&"s1".into(), 1);
    assert_eq!(seqs(&follower.next().await.unwrap()), [1, 2]);
    let entry = Box::new(store.entry(&"s1".into()).await.unwrap());
    assert_eq!(follower.next().await.unwrap(), Followed::Idle(entry));
    let resumed = async {
        let lease = store.acquire(&"s1".into(), &Owner::of_process(), at(9)).await.unwrap();
        append(&store, &lease, &log("s1", 3..=3)).await;
    };
    let (next, ()) = tokio::join!(follower.next(), resumed);
    assert_eq!(seqs(&next.unwrap()), [3]);
}

#[test]
fn a_session_of_a_program_with_node_types_of_its_own_can_be_read_and_not_run() {
    let text = "
flow: { name: own }
nodes:
  - { id: a, type: own.read, input: { path: x } }
  - { id: b, type: own.agent, dependsOn: [a], input: { prompt: '{{ a.text }}' } }
  - { id: c, type: own.agent, dependsOn: [b], session: b, input: { prompt: '{{ b.text }}' } }
";
    let flow = |text: &str| FlowSource { name: "own".to_owned(), text: text.into(), ..Default::default() };
    let read = |text: &str| {
        crate::graph(&SessionRecord { flow: flow(text), ..record("s1") }, &NodeRegistry::default())
    };
    let graph = read(text).unwrap();
    let nodes = graph.flow().nodes.iter().map(|node| format!("{} {}", node.id, node.node_type));
    assert_eq!(nodes.collect::<Vec<_>>(), ["a own.read", "b own.agent", "c own.agent"]);
    let refused = |text: &str| {
        let error = read(text).unwrap_err();
        (error.code, error.message, error.hint.unwrap_or_default())
    };
    let other = SessionErrorCode::FlowOfOtherVersion;
    // What is wrong beside the node types is not said: it may follow from them.
    let both = refused(&text.replace("session: b", "session: a"));
    let message =
        "the session's flow uses the node types `own.agent`, `own.read`, which this program does not have";
    assert_eq!(both, (other, message.to_owned(), "use the program that started the session".to_owned()));
    let (code, message, _) = refused("flow: { name: own }\nnodes: []\nmore: 1\n");
    assert_eq!(code, other);
    assert!(message.starts_with("the flow of session `s1` no longer compiles: "), "{message}");
}

#[tokio::test]
async fn who_reads_something_else_does_not_wait_for_all_that_follow() {
    const FOLLOWERS: usize = 300;
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("store.db"), &SqliteOptions::default()).unwrap();
    let lease = store.create(&record("s1"), &Owner::of_process(), at(0)).await.unwrap();
    store.append(&lease, Batch { events: &log("s1", 1..=500), answers: &[] }).await.unwrap();
    let sessions = Sessions::new(Arc::new(store), NodeRegistry::default(), Arc::new(SystemClock));
    let mut followers = JoinSet::new();
    for _ in 0..FOLLOWERS {
        let mut follower = sessions.follow(&"s1".into(), 1);
        followers.spawn(async move { follower.ready().await.unwrap().map(|page| page.len()) });
    }
    // All of them ask first.
    for _ in 0..FOLLOWERS {
        tokio::task::yield_now().await;
    }
    sessions.entry(&"s1".into()).await.unwrap();
    let before = std::iter::from_fn(|| followers.try_join_next()).count();
    assert!(before < FOLLOWERS / 2, "{before} pages were read before the entry");
    assert!(followers.join_all().await.iter().all(Option::is_some));
}

#[test]
fn every_code_has_a_word_of_its_own() {
    let words: std::collections::BTreeSet<_> = SessionErrorCode::ALL.iter().map(|code| code.word()).collect();
    assert_eq!(words.len(), SessionErrorCode::ALL.len());
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_comes_between_the_pause_of_a_session_and_the_end_of_its_process_is_accepted() {
    let store = Arc::new(MemoryStore::new());
    let lease = create(&store, "s1").await;
    let paused = serde_json::from_value(json!({ "type": "flow:paused", "nodeIds": [] })).unwrap();
    append(&store, &lease, &log("s1", 1..=1)).await;
    append(&store, &lease, &[envelope("s1", 2, paused)]).await;
    let sessions = sessions(&store);
    let pause = SessionCommand::Pause { reason: None };
    let session = SessionId::from("s1");
    let process_ends = async {
        while store.unanswered(&session).await.unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        store.release(&lease).await.unwrap();
    };
    let (receipt, ()) = tokio::join!(sessions.apply(&session, &pause, Some("k1")), process_ends);
    let accepted = Receipt { verdict: Accepted::Accepted, session_id: session.clone() };
    assert_eq!(receipt.unwrap(), accepted);
    // Sent again it resumes nothing: without a launcher that would be an error.
    assert_eq!(sessions.apply(&session, &pause, Some("k1")).await.unwrap(), accepted);
}

#[tokio::test(start_paused = true)]
async fn a_pause_is_accepted_once_the_process_has_paused_and_left() {
    let (pause, stop) = (SessionCommand::Pause { reason: None }, SessionCommand::Stop { reason: None });
    let complete =
        json!({ "type": "harness:complete", "success": true, "outcome": "success", "durationMs": 1 });
    for (command, last, expected) in [
        (&pause, json!({ "type": "flow:paused", "nodeIds": [] }), Ok(())),
        (&pause, complete.clone(), Err(SessionErrorCode::SessionEnded)),
        (&stop, complete, Err(SessionErrorCode::SessionEnded)),
    ] {
        let store = Arc::new(MemoryStore::new());
        let lease = create(&store, "s1").await;
        append(&store, &lease, &log("s1", 1..=1)).await;
        let (sessions, session) = (sessions(&store), SessionId::from("s1"));
        let applied = tokio::spawn({
            let (sessions, command) = (sessions.clone(), command.clone());
            async move { sessions.apply(&"s1".into(), &command, Some("k")).await }
        });
        while store.unanswered(&session).await.unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        let pause = envelope("s1", 2, serde_json::from_value(json!({ "type": "session:pause" })).unwrap());
        let answers = [CommandAnswer { number: 1, verdict: Verdict::Accepted }];
        store.append(&lease, Batch { events: &[pause], answers: &answers }).await.unwrap();
        tokio::time::sleep(std::time::Duration::from_secs(5)).await;
        assert!(!applied.is_finished());
        append(&store, &lease, &[envelope("s1", 3, serde_json::from_value(last).unwrap())]).await;
        store.release(&lease).await.unwrap();
        // Sent again with its key it is answered as before.
        for result in [applied.await.unwrap(), sessions.apply(&session, command, Some("k")).await] {
            assert_eq!(result.map(drop).map_err(|error| error.code), expected);
        }
    }
}

#[tokio::test]
async fn a_pause_with_a_key_counts_once_also_if_the_session_was_paused_already() {
    let store = Arc::new(MemoryStore::new());
    let lease = create(&store, "s1").await;
    let paused = serde_json::from_value(json!({ "type": "flow:paused", "nodeIds": [] })).unwrap();
    append(&store, &lease, &log("s1", 1..=1)).await;
    append(&store, &lease, &[envelope("s1", 2, paused)]).await;
    store.release(&lease).await.unwrap();
    let (sessions, session) = (sessions(&store), SessionId::from("s1"));
    let pause = SessionCommand::Pause { reason: None };
    let accepted = Receipt { verdict: Accepted::Accepted, session_id: session.clone() };
    for key in [None, Some("k1"), Some("k1")] {
        assert_eq!(sessions.apply(&session, &pause, key).await.unwrap(), accepted);
    }
    assert_eq!(store.unanswered(&session).await.unwrap().len(), 1);
    // A process resumes it, and answers what was posted before.
    let lease = store.acquire(&session, &Owner::of_process(), at(3)).await.unwrap();
    let answers = [CommandAnswer { number: 1, verdict: Verdict::Accepted }];
    store.append(&lease, Batch { events: &[], answers: &answers }).await.unwrap();
    assert_eq!(sessions.apply(&session, &pause, Some("k1")).await.unwrap(), accepted);
    assert_eq!(store.unanswered(&session).await.unwrap(), []);
}

/// Starts nothing until it is let, and then says what it was asked for.
#[derive(Default)]
struct SlowLauncher {
    begun: Notify,
    allowed: Notify,
    done: Notify,
}

impl SlowLauncher {
    async fn launch(&self) -> Result<SessionId, SessionError> {
        self.begun.notify_one();
        self.allowed.notified().await;
        self.done.notify_one();
        Ok("s1".into())
    }
}

#[async_trait]
impl Launcher for SlowLauncher {
    async fn start(
        &self,
        _: &str,
        _: &Map<String, Value>,
        _: &StartOptions,
    ) -> Result<SessionId, SessionError> {
        self.launch().await
    }

    async fn resume(&self, _: &SessionId, _: &ResumeOptions) -> Result<SessionId, SessionError> {
        self.launch().await
    }

    async fn fork(
        &self,
        _: &SessionId,
        _: Option<&ForkPoint>,
        _: &Map<String, Value>,
        _: &ForkOptions,
    ) -> Result<SessionId, SessionError> {
        self.launch().await
    }
}

#[tokio::test]
async fn a_name_of_the_command_line_finds_nothing_elsewhere() {
    let store = Arc::new(MemoryStore::new());
    create(&store, "s1").await;
    let refused = sessions(&store).find("@last").await.unwrap_err();
    let said = (refused.message.as_str(), refused.code);
    let expected = "`@last` is for the command line; elsewhere a session is named by its ID";
    assert_eq!(said, (expected, SessionErrorCode::UnknownSession));
    assert!(refused.hint.unwrap().starts_with("`GET /api/v1/sessions`"));
}

#[tokio::test]
async fn what_a_caller_has_begun_is_done_also_if_it_leaves() {
    let store = Arc::new(MemoryStore::new());
    let lease = create(&store, "s1").await;
    let asked = json!({ "type": "session:prompt", "promptId": "how.1", "kind": "input", "prompt": "How?" });
    append(&store, &lease, &log("s1", 1..=1)).await;
    append(&store, &lease, &[envelope("s1", 2, serde_json::from_value(asked).unwrap())]).await;
    store.release(&lease).await.unwrap();
    let launcher = Arc::new(SlowLauncher::default());
    let sessions = sessions(&store).with_launcher(Arc::<SlowLauncher>::clone(&launcher));
    let (session, input) = (SessionId::from("s1"), Map::new());
    let answer = SessionCommand::Reply { prompt: None, content: Some("so".to_owned()), choice: None };
    let calls: [BoxFuture<'_, ()>; 3] = [
        Box::pin(async { drop(sessions.apply(&session, &answer, None).await) }),
        Box::pin(async { drop(sessions.start("oxen", &input, StartOptions::default(), Some("k")).await) }),
        Box::pin(async { drop(sessions.fork(&session, None, &input, None).await) }),
    ];
    for mut call in calls {
        tokio::select! {
            () = &mut call => panic!("nothing was launched"),
            () = launcher.begun.notified() => {}
        }
        drop(call);
        launcher.allowed.notify_one();
        launcher.done.notified().await;
    }
}

/// Finds that another program has started the session, and names it as any failure.
struct LateLauncher(Arc<MemoryStore>);

impl LateLauncher {
    async fn refuse(
        &self,
        session: Option<&SessionId>,
        request: Option<&String>,
    ) -> Result<SessionId, SessionError> {
        let mut started = record(session.unwrap().as_str());
        started.settings.insert("request".to_owned(), json!(request));
        self.0.create(&started, &Owner::of_process(), at(0)).await.unwrap();
        Err(SessionError::new(SessionErrorCode::InvalidRequest, "exit code 2"))
    }
}

#[async_trait]
impl Launcher for LateLauncher {
    async fn start(
        &self,
        _: &str,
        _: &Map<String, Value>,
        options: &StartOptions,
    ) -> Result<SessionId, SessionError> {
        self.refuse(options.session_id.as_ref(), options.request.as_ref()).await
    }

    async fn fork(
        &self,
        _: &SessionId,
        _: Option<&ForkPoint>,
        _: &Map<String, Value>,
        options: &ForkOptions,
    ) -> Result<SessionId, SessionError> {
        self.refuse(options.session_id.as_ref(), options.request.as_ref()).await
    }

    async fn resume(&self, _: &SessionId, options: &ResumeOptions) -> Result<SessionId, SessionError> {
        let refused = self.refuse(options.session_id.as_ref(), options.request.as_ref()).await;
        refused.map_err(|error| SessionError::new(SessionErrorCode::SessionHeld, error.message))
    }
}

#[tokio::test]
async fn a_request_that_another_program_carried_out_at_the_same_moment_counts_once() {
    let store = Arc::new(MemoryStore::new());
    drop(create(&store, "s1").await);
    let sessions = sessions(&store).with_launcher(Arc::new(LateLauncher(Arc::clone(&store))));
    let (session, input) = (SessionId::from("s1"), Map::new());
    let start = || sessions.start("oxen", &input, StartOptions::default(), Some("k"));
    let fork = || sessions.fork(&session, None, &input, Some("f"));
    let first = (start().await.unwrap(), fork().await.unwrap());
    assert_eq!((start().await.unwrap(), fork().await.unwrap()), first);
    // The session has ended: what the other program resumed it as is a new one.
    let resume = SessionCommand::Resume(ResumeOptions::default());
    let resumed = sessions.apply(&session, &resume, Some("r")).await.unwrap().session_id;
    assert!(![&session, &first.0, &first.1].contains(&&resumed), "{resumed}");
    let other = StartOptions { confirmed: true, ..StartOptions::default() };
    let reused = sessions.start("oxen", &input, other, Some("k")).await.unwrap_err();
    assert_eq!(reused.code, SessionErrorCode::KeyReused);
}

#[tokio::test]
async fn an_answer_to_a_session_that_has_ended_is_refused_as_any_command_there() {
    let store = Arc::new(MemoryStore::new());
    let lease = create(&store, "s1").await;
    append(&store, &lease, &log("s1", 1..=1)).await;
    append(&store, &lease, &[end("s1", 2)]).await;
    let sessions = sessions(&store);
    let reply = SessionCommand::Reply { prompt: None, content: Some("so".to_owned()), choice: None };
    for command in [reply, SessionCommand::Reject { prompt: None, reason: None }] {
        let refused = sessions.apply(&"s1".into(), &command, None).await.unwrap_err();
        assert_eq!(refused.code, SessionErrorCode::SessionEnded, "{}", refused.message);
    }
}

/// The clock of this process is ahead of that of the process that runs the session: it was set forward meanwhile.
#[tokio::test]
async fn who_runs_a_session_decides_whether_the_time_of_its_question_is_up() {
    let store = Arc::new(MemoryStore::new());
    let lease = create(&store, "s1").await;
    let asked = json!({
        "type": "session:prompt", "promptId": "how.1", "kind": "input", "prompt": "How?", "deadline": at(1_000),
    });
    append(&store, &lease, &log("s1", 1..=1)).await;
    append(&store, &lease, &[envelope("s1", 2, serde_json::from_value(asked).unwrap())]).await;
    let sessions = sessions(&store);
    let session = SessionId::from("s1");
    let answer = SessionCommand::Reply { prompt: None, content: Some("so".to_owned()), choice: None };
    let open = sessions.inbox(None).await.unwrap();
    assert_eq!(open.iter().map(|open| open.is_late).collect::<Vec<_>>(), [false]);
    let process_answers = async {
        while store.unanswered(&session).await.unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        let answers = [CommandAnswer { number: 1, verdict: Verdict::Accepted }];
        store.append(&lease, Batch { events: &[], answers: &answers }).await.unwrap();
    };
    let (receipt, ()) = tokio::join!(sessions.apply(&session, &answer, None), process_answers);
    assert_eq!(receipt.unwrap().verdict, Accepted::Accepted);
    // Nobody runs it any more.
    store.release(&lease).await.unwrap();
    let open = sessions.inbox(None).await.unwrap();
    assert_eq!(open.iter().map(|open| open.is_late).collect::<Vec<_>>(), [true]);
    let refused = sessions.apply(&session, &answer, None).await.unwrap_err();
    assert_eq!(refused.code, SessionErrorCode::QuestionExpired, "{}", refused.message);
}

#[test]
fn only_a_store_of_this_machine_is_maintained() {
    let hint = |error| SessionError::from(error).hint.unwrap();
    let what = || "it is empty".to_owned();
    let here = StoreError::Damaged { path: "sessions.db".into(), what: what() };
    assert!(hint(here).contains("inspan store"));
    let shared = StoreError::DamagedObject { object: "sessions/s/record.json".to_owned(), what: what() };
    let error = SessionError::from(shared.clone());
    assert_eq!(error.code, SessionErrorCode::StoreDamaged);
    assert!(!hint(shared).contains("inspan store"));
}

#[tokio::test]
async fn a_session_that_waits_for_a_usage_limit_says_so_and_how_it_continues() {
    let store = Arc::new(MemoryStore::new());
    let lease = create(&store, "s1").await;
    let waiting = serde_json::from_value(json!({ "type": "flow:waiting", "on": "limit" })).unwrap();
    append(&store, &lease, &log("s1", 1..=1)).await;
    append(&store, &lease, &[envelope("s1", 2, waiting)]).await;
    let sessions = sessions(&store);
    let session = SessionId::from("s1");
    let driven = sessions.output(&session).await.unwrap();
    assert_eq!(driven.holdup.unwrap(), "waits for a usage limit, and continues by itself");
    store.release(&lease).await.unwrap();
    let left = sessions.output(&session).await.unwrap();
    let how = "waits for a usage limit, and no process runs it: `inspan resume s1` continues it";
    assert_eq!(left.holdup.unwrap(), how);
}

#[tokio::test]
async fn a_session_that_has_not_ended_is_compared_by_its_state_and_without_a_cost_that_nobody_knows() {
    let store = Arc::new(MemoryStore::new());
    let lease = create(&store, "s1").await;
    let [start, begins, spent] = [
        json!({ "type": "task:start", "taskId": "a", "nodeType": "echo.agent", "attempt": 1, "path": "a" }),
        json!({
            "type": "agent:start", "agentName": "a", "runId": "a.1", "provider": "echo", "turn": 1
        }),
        json!({ "type": "agent:spent", "runId": "a.1", "costUsd": 0.5, "usage": { "inputTokens": 1, "outputTokens": 1 } }),
    ]
    .map(|event| serde_json::from_value::<Event>(event).unwrap());
    let of_node = |(seq, event)| {
        let context = EventContext { task: Some(NodePath::new("a")), ..EventContext::session("s1".into()) };
        Arc::new(Envelope::new(context, seq, at(seq as i64 * 1_000), event))
    };
    let events: Vec<_> = (2..).zip([start, begins, spent]).map(of_node).collect();
    append(&store, &lease, &[log("s1", 1..=1), events].concat()).await;
    let sessions = sessions(&store);
    let compared = async || {
        let mut compared = json!(sessions.compare(&"s1".into(), &"s1".into()).await.unwrap());
        let node = compared["nodes"][0]["sides"][0].take();
        let side = compared["sessions"][0].take();
        json!([side["state"], side["outcome"], side["costUsd"], node])
    };
    let node = |status: &str, cost: Value| {
        let mut node = json!({ "status": status, "attempts": 1, "durationMs": 2_000 });
        if !cost.is_null() {
            node["costUsd"] = cost;
        }
        node
    };
    assert_eq!(compared().await, json!(["running", null, 0.5, node("running", json!(0.5))]));
    store.release(&lease).await.unwrap();
    assert_eq!(compared().await, json!(["interrupted", null, null, node("interrupted", Value::Null)]));
}
