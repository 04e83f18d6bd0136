//! Sessions from their beginning to their end.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures::stream::BoxStream;
use inspan_engine::{Clock, Hub, LaterClock, RandomIds, SystemClock};
use inspan_flow::{RunStore, WhenWaiting};
use inspan_flow_core::SessionRecord;
use inspan_protocol::{
    AgentError, Command, Envelope, ErrorCode, Event, NodePath, Outcome, SessionId, SessionStatus, Timestamp,
};
use inspan_store::{StoreError, async_trait};
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt as _, PutMultipartOptions, PutOptions, PutPayload, PutResult, memory::InMemory,
    path::Path,
};
use tokio_util::sync::CancellationToken;

use super::cluster::TestCluster;
use crate::{
    HostedAttempt, HostedSession, LostAttempt, SessionHost, SessionWaker, SharedLog, SharedStore,
    WorkflowStatus,
};

const TWO: &str = "
flow: { name: two, outputs: { said: '{{ b.stdout }}' } }
nodes:
  - { id: a, type: exec, input: { argv: [echo, one] } }
  - { id: b, type: exec, dependsOn: [a], input: { argv: [echo, '{{ a.stdout }}'] } }
";

/// The facts of that flow.
const FACTS_OF_TWO: [&str; 9] = [
    "harness:start",
    "phase:start",
    "task:start a",
    "task:complete a",
    "edge:fired a",
    "task:start b",
    "task:complete b",
    "phase:complete",
    "harness:complete",
];

#[tokio::test]
async fn a_flow_runs_over_many_workers() {
    let cluster = TestCluster::new();
    let session = cluster.add("flow-1", TWO).await;
    cluster.run(&session, &[], |_| false).await;
    assert_eq!(cluster.facts(&session).await, FACTS_OF_TWO);
    let entry = cluster.store.entry(&session).await.unwrap();
    assert_eq!((entry.digest.status, entry.owner), (SessionStatus::Complete, None));
}

#[tokio::test]
async fn nothing_is_stored_where_a_folder_is_not_mounted_any_more() {
    let (mounted, away) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let folder = mounted.path().join("inspan");
    std::fs::create_dir(&folder).unwrap();
    let objects = object_store::local::LocalFileSystem::new_with_prefix(&folder).unwrap();
    let cluster = TestCluster::on(SharedLog::new(Arc::new(objects), Path::from("team")));
    let session = cluster.add("flow-1", TWO).await;
    let decider = cluster.decider();
    let begun = decider.decide(&session, &[], None).await.unwrap();
    // What is left of a mount is an empty folder.
    std::fs::rename(&folder, away.path().join("inspan")).unwrap();
    std::fs::create_dir(&folder).unwrap();
    let pause = Command::Pause { reason: None };
    let refused = cluster.store.post(&session, &pause, Timestamp::default()).await.unwrap_err();
    assert_eq!(refused.to_string(), "there is no session `flow-1` in the store");
    let lost: Vec<LostAttempt> = begun.running.into_iter().map(Into::into).collect();
    assert_eq!(lost.len(), 1);
    decider.decide(&session, &lost, None).await.unwrap_err();
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    // It is mounted again.
    std::fs::remove_dir(&folder).unwrap();
    std::fs::rename(away.path().join("inspan"), &folder).unwrap();
    decider.decide(&session, &lost, None).await.unwrap();
    cluster.run(&session, &[], |_| false).await;
    let facts = cluster.facts(&session).await;
    assert_eq!(facts.iter().filter(|fact| *fact == "task:interrupted a").count(), 1);
    assert_eq!(facts.last().map(String::as_str), Some("harness:complete"));
}

#[tokio::test]
async fn an_attempt_that_has_ended_does_not_run_again() {
    let (cluster, folder) = (TestCluster::new(), tempfile::tempdir().unwrap());
    let paid = folder.path().join("paid");
    let flow = format!(
        "flow: {{ name: once }}\nnodes:\n  - {{ id: pay, type: exec, input: {{ argv: [sh, -c, 'echo paid >> {}'] }} }}\n",
        paid.display()
    );
    let session = cluster.add("flow-1", &flow).await;
    let begun = cluster.decider().decide(&session, &[], None).await.unwrap();
    // Who decides has not seen the end yet, and names the attempt again.
    for _ in 0..2 {
        cluster.runner().run(&session, &begun.running[0], CancellationToken::new()).await.unwrap();
    }
    assert_eq!(std::fs::read_to_string(paid).unwrap(), "paid\n");
    let decider = cluster.decider();
    decider.decide(&session, &[], None).await.unwrap();
    decider.forget(&session).await;
    assert!(decider.decide(&session, &[], None).await.unwrap().has_ended);
}

/// A machine whose settings are broken.
#[tokio::test]
async fn an_effect_outside_that_another_worker_has_begun_does_not_begin_again() {
    let (cluster, folder) = (TestCluster::new(), tempfile::tempdir().unwrap());
    let paid = folder.path().join("paid");
    let flow = format!(
        "flow: {{ name: once }}\nnodes:\n  - {{ id: pay, type: exec, effects: external, input: {{ argv: [sh, -c, 'echo paid >> {}; sleep 60'] }} }}\n",
        paid.display()
    );
    let session = cluster.add("flow-1", &flow).await;
    let attempt = cluster.decider().decide(&session, &[], None).await.unwrap().running.remove(0);
    let begins = async {
        let by_attempt = |segment: &crate::log::Segment| segment.header.by != crate::log::Writer::Decider;
        while !paid.exists() || !cluster.log.segments(&session, 0).await.unwrap().iter().any(by_attempt) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let runner = cluster.runner();
    tokio::select! {
        ended = runner.run(&session, &attempt, CancellationToken::new()) => panic!("{ended:?}"),
        () = begins => {}
    }
    // The server gives it out once more, such as after a reset of its history.
    let again = cluster.runner().run(&session, &attempt, CancellationToken::new()).await;
    assert!(matches!(again, Err(crate::AttemptError::BegunElsewhere)), "{again:?}");
    let decision = cluster.decider().decide(&session, &[attempt.into()], None).await.unwrap();
    assert_eq!(decision.running, []);
    let events = cluster.events(&session).await;
    assert!(events.iter().any(|event| matches!(event.event, Event::SessionPrompt(_))));
    assert_eq!(std::fs::read_to_string(paid).unwrap(), "paid\n");
}

/// A store that has no room for what has this in it, so many times.
#[derive(Debug)]
struct Small {
    objects: InMemory,
    part: &'static str,
    most: u32,
    refused: AtomicU32,
}

impl Small {
    fn new(part: &'static str, most: u32) -> Arc<Self> {
        Arc::new(Self { objects: InMemory::new(), part, most, refused: AtomicU32::new(0) })
    }
}

impl std::fmt::Display for Small {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Small")
    }
}

#[async_trait]
impl ObjectStore for Small {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> object_store::Result<PutResult> {
        if payload.iter().any(|bytes| String::from_utf8_lossy(bytes).contains(self.part))
            && self.refused.fetch_add(1, Ordering::Relaxed) < self.most
        {
            return Err(object_store::Error::Generic { store: "Small", source: "no space left".into() });
        }
        self.objects.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        self.objects.get_opts(location, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        self.objects.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.objects.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> object_store::Result<()> {
        self.objects.copy_opts(from, to, options).await
    }
}

#[tokio::test]
async fn work_whose_result_cannot_be_stored_fails() {
    let store = Small::new("\"stdout\":\"", u32::MAX);
    let cluster = TestCluster::on(SharedLog::new(Arc::clone(&store) as _, Path::from("inspan")));
    let session = cluster.add("flow-1", TWO).await;
    let attempt = cluster.decider().decide(&session, &[], None).await.unwrap().running.remove(0);
    // The end is held for long, which is skipped.
    let skip = async {
        while store.refused.load(Ordering::Relaxed) == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        tokio::time::pause();
    };
    let runner = cluster.runner();
    let (ran, ()) = tokio::join!(runner.run(&session, &attempt, CancellationToken::new()), skip);
    ran.unwrap();
    assert!(cluster.decider().decide(&session, &[], None).await.unwrap().has_ended);
    let events = cluster.events(&session).await;
    let errors = events.iter().filter_map(|event| match &event.event {
        Event::TaskFailed { error, .. } => Some(error.message.as_str()),
        _ => None,
    });
    let why = "it has ended, and the folder or bucket of the sessions does not take its result: the shared log failed: Generic Small error: no space left";
    assert_eq!(errors.collect::<Vec<_>>(), [why]);
}

#[tokio::test]
async fn an_agent_asks_nothing_before_the_log_has_its_conversation() {
    let flow = "
flow: { name: echo }
nodes:
  - { id: a, type: echo.agent, input: { prompt: 'one two' } }
";
    let store = Small::new("agent:session", 1);
    let cluster = TestCluster::on(SharedLog::new(Arc::clone(&store) as _, Path::from("inspan")));
    let session = cluster.add("flow-1", flow).await;
    cluster.run(&session, &[], |_| false).await;
    assert_eq!(store.refused.load(Ordering::Relaxed), 2);
    // What the agent said at once would be in one segment with it.
    let segments = cluster.log.segments(&session, 0).await.unwrap();
    let names = segments.iter().map(|segment| segment.events.iter().map(|event| event.event.name()));
    let with_conversation: Vec<Vec<_>> =
        names.map(Iterator::collect).filter(|names: &Vec<_>| names.contains(&"agent:session")).collect();
    assert_eq!(with_conversation, [["agent:start", "agent:session"]]);
}

struct Broken;

impl SessionHost for Broken {
    fn session(&self, _: &SessionRecord) -> Result<HostedSession, AgentError> {
        Err(AgentError::new(ErrorCode::ConfigInvalid, "broken"))
    }

    fn attempt(&self, _: &SessionRecord) -> Result<HostedAttempt, AgentError> {
        Err(AgentError::new(ErrorCode::ConfigInvalid, "broken"))
    }
}

#[tokio::test]
async fn an_attempt_that_a_machine_cannot_run_has_no_end_there() {
    let cluster = TestCluster::new();
    let flow = "
flow: { name: once }
nodes:
  - { id: sent, type: exec, effects: external, input: { argv: ['true'] } }
";
    let session = cluster.add("flow-1", flow).await;
    let begun = cluster.decider().decide(&session, &[], None).await.unwrap();
    let ran =
        cluster.runner_of(Arc::new(Broken)).run(&session, &begun.running[0], CancellationToken::new()).await;
    assert_eq!(ran.unwrap_err().to_string(), "machine `a` cannot run it: broken (CONFIG_INVALID)");
    // Another machine runs it, and nobody is asked: what never began had no effect.
    let lost = [LostAttempt { is_unfit: true, ..begun.running[0].clone().into() }];
    cluster.decider().decide(&session, &lost, None).await.unwrap();
    cluster.run(&session, &[], |_| false).await;
    let facts = cluster.facts(&session).await;
    assert_eq!(facts.iter().filter(|fact| *fact == "task:interrupted sent").count(), 1);
    assert!(!facts.contains(&"session:prompt sent".to_owned()));
    assert_eq!(facts.last().map(String::as_str), Some("harness:complete"));
    // One that its worker left in the middle is another matter.
    let session = cluster.add("flow-2", flow).await;
    let asked =
        |events: &[Arc<Envelope>]| events.iter().any(|event| matches!(event.event, Event::SessionPrompt(_)));
    cluster.run(&session, &["sent.1"], asked).await;
}

#[tokio::test]
async fn the_log_says_which_machine_has_refused_an_attempt_and_its_failure_why() {
    let cluster = TestCluster::new();
    let session = cluster.add("flow-1", TWO).await;
    let mut lost = Vec::new();
    for given_up in [None, Some("machine `a` cannot run it: no program (CONFIG_MISSING)".to_owned())] {
        let begun = cluster.decider().decide(&session, &lost, None).await.unwrap().running.remove(0);
        let refused = crate::Refused {
            why: "machine `b` cannot run it: no key (CONFIG_MISSING)".to_owned(),
            code: ErrorCode::ConfigMissing,
            by: ["b".to_owned()].into(),
            times: 1,
            is_full: false,
        };
        lost = vec![LostAttempt { given_up, is_unfit: true, refused: Some(refused), ..begun.into() }];
    }
    cluster.decider().decide(&session, &lost, None).await.unwrap();
    let said = cluster.events(&session).await.into_iter().filter_map(|event| match &event.event {
        Event::Log { message, .. } => Some(message.clone()),
        Event::TaskFailed { error, .. } => Some(error.to_string()),
        _ => None,
    });
    let expected = [
        "machine `b` cannot run it: no key (CONFIG_MISSING)",
        "machine `a` cannot run it: no program (CONFIG_MISSING) (CONFIG_MISSING)",
    ];
    assert_eq!(said.collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn what_one_attempt_has_read_or_written_the_others_of_its_worker_do_not_read() {
    let flow = "
flow: { name: each }
nodes:
  - { id: a, type: exec, input: { argv: [echo, one] } }
  - { id: b, type: exec, input: { argv: [echo, two] } }
  - { id: c, type: exec, input: { argv: [echo, three] } }
";
    let objects = Arc::new(InMemory::new());
    let cluster = TestCluster::on(SharedLog::new(Arc::<InMemory>::clone(&objects), Path::from("team")));
    let session = cluster.add("flow-1", flow).await;
    let begun = cluster.decider().decide(&session, &[], None).await.unwrap().running;
    let (other, runner) = (cluster.runner(), cluster.runner());
    let run = async |runner: &crate::AttemptRunner, at: usize| {
        runner.run(&session, &begun[at], CancellationToken::new()).await.map_err(|error| error.to_string())
    };
    run(&other, 0).await.unwrap();
    run(&runner, 1).await.unwrap();
    let written = cluster.log.segments(&session, 1).await.unwrap();
    assert_eq!(written.len(), 3);
    for segment in &written[1..] {
        let object = Path::from(format!("team/sessions/{session}/log/{}.jsonl", segment.position));
        objects.put(&object, "broken".into()).await.unwrap();
    }
    run(&runner, 2).await.unwrap();
}

#[tokio::test]
async fn what_has_ended_is_not_read_again() {
    let objects = Arc::new(InMemory::new());
    let cluster = TestCluster::on(SharedLog::new(Arc::<InMemory>::clone(&objects), Path::from("team")));
    let (ended, open) = (cluster.add("flow-1", TWO).await, cluster.add("flow-2", TWO).await);
    cluster.run(&ended, &[], |_| false).await;
    cluster.decider().decide(&open, &[], None).await.unwrap();
    let entries = async || cluster.store.entries("", 9).await.unwrap();
    let before = entries().await;
    assert_eq!(before.iter().filter(|entry| entry.digest.status.has_ended()).count(), 1);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(61)).await;
    // What would be read cannot be.
    let next = before.iter().find(|entry| entry.session == ended).unwrap().digest.last_seq + 1;
    let damaged = [format!("flow-1/log/{next:016}-0000.jsonl"), "flow-2/record.json".to_owned()];
    for object in damaged {
        let object = Path::from(format!("team/sessions/{object}"));
        objects.put(&object, "broken".into()).await.unwrap();
    }
    assert_eq!(entries().await, before);
    let other = cluster.another_store().entries("", 9).await.unwrap();
    assert!(other.iter().all(|entry| entry.damage.is_some()), "{other:?}");
}

#[tokio::test]
async fn an_attempt_whose_worker_is_gone_begins_again_and_nothing_else_does() {
    let cluster = TestCluster::new();
    let session = cluster.add("flow-1", TWO).await;
    cluster.run(&session, &["b.1"], |_| false).await;
    let facts = cluster.facts(&session).await;
    let count = |fact: &str| facts.iter().filter(|known| *known == fact).count();
    let counts = ["task:start a", "task:start b", "task:interrupted b", "task:complete a", "task:complete b"]
        .map(count);
    assert_eq!(counts, [1, 2, 1, 1, 1]);
}

#[tokio::test]
async fn workers_that_stop_one_after_the_other_do_not_fail_what_they_run() {
    for (is_stopped, outcome) in [(true, Outcome::Success), (false, Outcome::Failed)] {
        let cluster = TestCluster::new();
        let session = cluster.add("flow-1", TWO).await;
        let mut lost = Vec::new();
        // A crash loop ends; machines are upgraded without one.
        for _ in 0..=10 {
            let decision = cluster.decider().decide(&session, &lost, None).await.unwrap();
            let lose = |attempt: crate::RunningAttempt| LostAttempt { is_stopped, ..attempt.into() };
            lost = decision.running.into_iter().map(lose).collect();
        }
        cluster.run(&session, &[], |_| false).await;
        let events = cluster.events(&session).await;
        let cut = events.iter().filter(
            |event| matches!(event.event, Event::TaskInterrupted { stopped, .. } if stopped == is_stopped),
        );
        let entry = cluster.store.entry(&session).await.unwrap();
        assert_eq!((cut.count(), entry.digest.outcome), (10, Some(outcome)));
    }
}

/// The server counts the worker as dead, and the log says that it was alive.
#[tokio::test]
async fn an_attempt_that_its_worker_has_left_counts_as_stopped_however_it_is_lost() {
    let flow = "
flow: { name: cut-off }
nodes: [{ id: work, type: exec, input: { argv: [sleep, '60'] } }]
";
    let cluster = TestCluster::new();
    let session = cluster.add("flow-1", flow).await;
    let mut lost = Vec::new();
    for _ in 0..=10 {
        let attempt = cluster.decider().decide(&session, &lost, None).await.unwrap().running.remove(0);
        let (leave, runner) = (CancellationToken::new(), cluster.runner());
        let begins = async {
            let waits = Duration::from_millis(20);
            while std::fs::read_dir(cluster.locks.path()).unwrap().count() == 0 {
                tokio::time::sleep(waits).await;
            }
            tokio::time::sleep(waits * 5).await;
            leave.cancel();
        };
        let (ran, ()) = tokio::join!(runner.run(&session, &attempt, leave.clone()), begins);
        assert!(matches!(ran, Err(crate::AttemptError::WorkerStops)), "{ran:?}");
        let given_up = Some("it was lost 21 times".to_owned());
        lost = vec![LostAttempt { given_up, ..attempt.into() }];
    }
    let decision = cluster.decider().decide(&session, &lost, None).await.unwrap();
    assert_eq!(decision.running.iter().map(|attempt| attempt.name()).collect::<Vec<_>>(), ["work.12"]);
    let events = cluster.events(&session).await;
    let stopped =
        events.iter().filter(|event| matches!(event.event, Event::TaskInterrupted { stopped: true, .. }));
    assert_eq!(stopped.count(), 11);
}

#[tokio::test]
async fn a_worker_that_reads_the_log_takes_no_end_of_an_earlier_pass_for_that_of_this_one() {
    let flow = "
flow: { name: passes }
nodes:
  - { id: a, type: exec, input: { argv: [sh, -c, 'sleep 0.2; echo pass $1', sh, '{{ frame.pass }}'] } }
edges:
  - { from: a, to: a, when: frame.pass < 3, maxIterations: 3 }
";
    let cluster = TestCluster::new();
    let session = cluster.add("flow-1", flow).await;
    // The worker of the last pass is lost too.
    cluster.run(&session, &["a#3.1"], |_| false).await;
    let events = cluster.events(&session).await;
    let outputs = events.iter().filter_map(|event| match &event.event {
        Event::TaskComplete { result, .. } => result["stdout"].as_str(),
        _ => None,
    });
    assert_eq!(outputs.collect::<Vec<_>>(), ["pass 1\n", "pass 2\n", "pass 3\n"]);
    let facts = cluster.facts(&session).await;
    assert_eq!(facts.iter().filter(|fact| fact.starts_with("task:interrupted")).count(), 1, "{facts:?}");
}

#[tokio::test]
async fn a_node_that_ended_in_time_succeeds_however_late_that_is_decided() {
    let flow = "
flow: { name: late }
nodes:
  - { id: a, type: exec, input: { argv: [echo, one] }, policy: { timeout: 1s } }
";
    let cluster = TestCluster::new();
    let session = cluster.add("flow-1", flow).await;
    let begun = cluster.decider().decide(&session, &[], None).await.unwrap().running;
    cluster.runner().run(&session, &begun[0], CancellationToken::new()).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(1_100)).await;
    assert!(cluster.decider().decide(&session, &[], None).await.unwrap().has_ended);
    let facts = cluster.facts(&session).await;
    assert!(facts.contains(&"task:complete a".to_owned()), "{facts:?}");
}

#[tokio::test]
async fn a_question_is_answered_from_elsewhere() {
    let flow = "
flow: { name: ask }
nodes:
  - { id: ask, type: human.input, input: { prompt: 'Which way?', choices: [left, right] } }
  - { id: go, type: exec, dependsOn: [ask], input: { argv: [echo, '{{ ask.choice }}'] } }
";
    let cluster = TestCluster::new();
    let session = cluster.add("flow-1", flow).await;
    let asks = |event: &Event| matches!(event, Event::SessionPrompt(_));
    cluster.run(&session, &[], |events| events.iter().any(|event| asks(&event.event))).await;
    let entry = cluster.store.entry(&session).await.unwrap();
    let prompt = entry.digest.prompts[0].prompt_id.clone();
    let reply = |choice: &str| Command::Reply {
        prompt: prompt.clone(),
        content: String::new(),
        choice: Some(choice.to_owned()),
    };
    let wrong = cluster.store.post(&session, &reply("up"), Timestamp::default()).await.unwrap();
    let right = cluster.store.post(&session, &reply("right"), Timestamp::default()).await.unwrap();
    cluster.run(&session, &[], |_| false).await;
    let verdicts = [
        cluster.store.answer(&session, wrong).await.unwrap(),
        cluster.store.answer(&session, right).await.unwrap(),
    ];
    let why = format!("`up` is not among the choices of question `{prompt}`: left, right");
    assert_eq!(verdicts, [Some(inspan_store::Verdict::Refused(why)), Some(inspan_store::Verdict::Accepted)]);
    let output = cluster.events(&session).await.iter().find_map(|event| match &event.event {
        Event::TaskComplete { task_id, result, .. } if task_id.as_str() == "go" => {
            Some(result["stdout"].clone())
        }
        _ => None,
    });
    assert_eq!(output, Some("right\n".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_being_stored_when_an_attempt_ends_is_stored_once() {
    let flow = "
flow: { name: echo }
nodes:
  - { id: a, type: echo.agent, input: { prompt: 'one two', options: { delayMs: 1 } } }
";
    let folder = tempfile::tempdir().unwrap();
    let objects = object_store::local::LocalFileSystem::new_with_prefix(folder.path()).unwrap();
    let cluster = TestCluster::on(SharedLog::new(Arc::new(objects), Path::from("team")));
    let run = async |number: u32| {
        let session = cluster.add(&format!("flow-{number}"), flow).await;
        cluster.run(&session, &[], |_| false).await;
        let events = cluster.events(&session).await;
        let agent = events.iter().map(|event| event.event.name()).filter(|name| name.starts_with("agent:"));
        let once =
            ["agent:start", "agent:session", "agent:text", "agent:text", "agent:usage", "agent:complete"];
        assert_eq!(agent.collect::<Vec<_>>(), once);
    };
    futures::future::join_all((0..100).map(run)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_that_decide_at_once_agree() {
    let cluster = TestCluster::new();
    for number in 0..20 {
        let session = cluster.add(&format!("flow-{number}"), TWO).await;
        // Each of them also runs every attempt, as workers do of which one was given up by mistake.
        let runs = [(); 3].map(|()| cluster.run(&session, &[], |_| false));
        futures::future::join_all(runs).await;
        assert_eq!(cluster.facts(&session).await, FACTS_OF_TWO, "{session}");
    }
}

#[tokio::test]
async fn a_paused_session_continues_and_a_stopped_one_ends() {
    let flow = "
flow: { name: long }
nodes:
  - { id: a, type: exec, input: { argv: [sleep, '30'] } }
";
    let cluster = TestCluster::new();
    let session = cluster.add("flow-1", flow).await;
    let runs = |event: &Event| matches!(event, Event::TaskStart { .. });
    cluster.run(&session, &[], |events| events.iter().any(|event| runs(&event.event))).await;
    let pause = Command::Pause { reason: None };
    let paused = |events: &[std::sync::Arc<inspan_protocol::Envelope>]| {
        events.iter().any(|event| matches!(event.event, Event::FlowPaused { .. }))
    };
    let number = cluster.store.post(&session, &pause, Timestamp::default()).await.unwrap();
    cluster.run(&session, &[], paused).await;
    let entry = cluster.store.entry(&session).await.unwrap();
    assert_eq!((entry.digest.status, entry.owner), (SessionStatus::Paused, None));
    assert_eq!(cluster.store.answer(&session, number).await.unwrap(), Some(inspan_store::Verdict::Accepted));
    let abort = Command::Abort { reason: None };
    cluster.store.post(&session, &abort, Timestamp::default()).await.unwrap();
    cluster.run(&session, &[], |_| false).await;
    let entry = cluster.store.entry(&session).await.unwrap();
    assert_eq!(entry.digest.outcome, Some(Outcome::Stopped));
}

/// A node that only a worker of a pool may take that has none, with a policy of the flow.
fn waits_for_nobody(policy: &str) -> String {
    format!(
        "
flow: {{ name: pool, policy: {{ {policy} }} }}
nodes:
  - {{ id: fails, type: exec, when: 'false', input: {{ argv: ['false'] }} }}
  - {{ id: work, type: exec, pool: nobodys, effects: external, input: {{ argv: ['true'] }} }}
"
    )
}

#[tokio::test]
async fn an_attempt_that_no_worker_has_taken_is_cancelled() {
    let cluster = TestCluster::new();
    let runs = |events: &[Arc<inspan_protocol::Envelope>]| {
        events.iter().any(|event| matches!(event.event, Event::TaskStart { .. }))
    };
    let never_began = async |session: &SessionId| {
        let events = cluster.events(session).await;
        events.iter().any(|event| matches!(event.event, Event::TaskCancelled { never_began: true, .. }))
    };
    let orders = [
        (Command::Pause { reason: None }, SessionStatus::Paused),
        (Command::Abort { reason: None }, SessionStatus::Aborted),
    ];
    for (order, status) in orders {
        let session = cluster.add(&format!("by-{:?}", order.kind()), &waits_for_nobody("")).await;
        cluster.run(&session, &[], runs).await;
        cluster.store.post(&session, &order, Timestamp::default()).await.unwrap();
        let paused = |events: &[Arc<inspan_protocol::Envelope>]| {
            events.iter().any(|event| matches!(event.event, Event::FlowPaused { .. }))
        };
        cluster.run(&session, &[], paused).await;
        assert_eq!(cluster.store.entry(&session).await.unwrap().digest.status, status);
        assert!(never_began(&session).await, "{:?}", cluster.facts(&session).await);
    }
    let session = cluster.add("by-time", &waits_for_nobody("timeout: 1s")).await;
    cluster.run(&session, &[], |_| false).await;
    assert!(never_began(&session).await);
    let failing = waits_for_nobody("").replace("when: 'false', ", "");
    let session = cluster.add("by-failure", &failing).await;
    cluster.run(&session, &[], |_| false).await;
    assert!(never_began(&session).await);
}

#[tokio::test]
async fn a_worker_does_not_begin_what_is_to_end() {
    let folder = tempfile::tempdir().unwrap();
    let flow = format!(
        "
flow: {{ name: late }}
nodes:
  - {{ id: work, type: exec, effects: external, input: {{ argv: [touch, {}/ran] }} }}
",
        folder.path().display()
    );
    let cluster = TestCluster::new();
    for order in [Command::Pause { reason: None }, Command::Abort { reason: None }] {
        let session = cluster.add(&format!("by-{:?}", order.kind()), &flow).await;
        let decider = cluster.decider();
        let begun = decider.decide(&session, &[], None).await.unwrap();
        cluster.store.post(&session, &order, Timestamp::default()).await.unwrap();
        let ending = decider.decide(&session, &[], None).await.unwrap().ending;
        assert_eq!(ending, ["work.1"]);
        cluster.runner().run(&session, &begun.running[0], CancellationToken::new()).await.unwrap();
        decider.decide(&session, &[], None).await.unwrap();
        let facts = cluster.facts(&session).await;
        assert!(facts.contains(&"task:cancelled work".to_owned()), "{facts:?}");
        assert!(!folder.path().join("ran").exists());
    }
}

#[tokio::test]
async fn what_the_server_cancels_because_the_session_does_has_its_end_in_the_log() {
    let flow = "
flow: { name: long }
nodes:
  - { id: work, type: exec, effects: external, input: { argv: [sleep, '30'] } }
";
    let cluster = TestCluster::new();
    let session = cluster.add("flow-1", flow).await;
    let decider = cluster.decider();
    let begun = decider.decide(&session, &[], None).await.unwrap();
    let (leave, runner) = (CancellationToken::new(), cluster.runner());
    let work = runner.run(&session, &begun.running[0], leave.clone());
    let pause = async {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        let pause = Command::Pause { reason: None };
        cluster.store.post(&session, &pause, Timestamp::default()).await.unwrap();
        decider.decide(&session, &[], None).await.unwrap();
        // The worker hears of it before it has looked at the log.
        leave.cancel();
    };
    let (ended, ()) = tokio::join!(work, pause);
    ended.unwrap();
    decider.decide(&session, &[], None).await.unwrap();
    let facts = cluster.facts(&session).await;
    assert_eq!(facts[facts.len() - 2..], ["task:cancelled work", "flow:paused"]);
}

#[tokio::test]
async fn a_message_that_a_lost_agent_did_not_get_goes_to_its_next_attempt() {
    let flow = "
flow: { name: talk }
nodes:
  - { id: m, type: echo.agent, input: { prompt: hello, options: { multiTurn: true } } }
";
    let node = inspan_protocol::NodeId::new("m").unwrap();
    for (number, is_lost_first) in [(1, false), (2, true)] {
        let cluster = TestCluster::new();
        let session = cluster.add(&format!("flow-{number}"), flow).await;
        let begun = cluster.decider().decide(&session, &[], None).await.unwrap();
        let runner = cluster.runner();
        let work = runner.run(&session, &begun.running[0], CancellationToken::new());
        let listens = async {
            while !cluster.events(&session).await.iter().any(|event| event.event.name() == "agent:usage") {
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        };
        // Its worker is killed.
        tokio::select! { ended = work => panic!("{ended:?}"), () = listens => {} }
        let run = cluster.events(&session).await.iter().find_map(|event| match &event.event {
            Event::AgentStart { run_id, .. } => Some(run_id.clone()),
            _ => None,
        });
        let run = run.unwrap();
        // The session does not know yet that it is lost.
        let mode = inspan_protocol::MessageMode::default();
        let commands = [
            Command::SendTo { node: node.clone(), content: "one".to_owned(), mode },
            Command::SendToRun { run: run.clone(), content: "two".to_owned(), mode },
            Command::Send { content: "three".to_owned() },
            Command::Close { run },
        ];
        for command in &commands {
            cluster.store.post(&session, command, Timestamp::default()).await.unwrap();
        }
        if !is_lost_first {
            cluster.decider().decide(&session, &[], None).await.unwrap();
        }
        let lost: Vec<LostAttempt> = begun.running.into_iter().map(Into::into).collect();
        cluster.decider().decide(&session, &lost, None).await.unwrap();
        cluster.run(&session, &[], |_| false).await;
        let events = cluster.events(&session).await;
        let said = events.iter().filter_map(|event| match &event.event {
            Event::SessionMessage { content, .. } => Some(content.as_str()),
            _ => None,
        });
        assert_eq!(said.collect::<Vec<_>>(), ["one", "two", "three"]);
        let last = events.iter().rev().find_map(|event| match &event.event {
            Event::TaskComplete { result, .. } => Some(result["text"].clone()),
            _ => None,
        });
        assert!(last.is_some(), "it was not closed");
    }
}

#[tokio::test]
async fn a_message_that_nobody_gets_is_refused() {
    let flow = "
flow: { name: talk }
nodes:
  - { id: one, type: echo.agent, input: { prompt: hello } }
";
    let node = inspan_protocol::NodeId::new("one").unwrap();
    let to_one = Command::SendTo { node, content: "hear".to_owned(), mode: Default::default() };
    let rows = [
        // It listens to nothing that is for all.
        (
            Command::Send { content: "hear".to_owned() },
            false,
            "nothing in the session listens for messages now",
        ),
        // It has ended, and no worker has decided what follows.
        (to_one, true, "node `one` has no active run"),
    ];
    for (command, has_ended, why) in rows {
        let cluster = TestCluster::new();
        let session = cluster.add("flow-1", flow).await;
        let begun = cluster.decider().decide(&session, &[], None).await.unwrap();
        if has_ended {
            cluster.runner().run(&session, &begun.running[0], CancellationToken::new()).await.unwrap();
        }
        let number = cluster.store.post(&session, &command, Timestamp::default()).await.unwrap();
        cluster.decider().decide(&session, &[], None).await.unwrap();
        let refused = inspan_store::Verdict::Refused(why.to_owned());
        assert_eq!(cluster.store.answer(&session, number).await.unwrap(), Some(refused));
        cluster.run(&session, &[], |_| false).await;
        let events = cluster.events(&session).await;
        let refused = events.iter().filter(|event| matches!(event.event, Event::SessionRejected { .. }));
        assert_eq!(refused.count(), 1);
    }
}

/// A server that fails at one of the two questions, or at none.
pub(super) struct Server {
    pub(super) answers: bool,
    pub(super) wakes: bool,
}

impl Server {
    fn answer(is_given: bool) -> Result<(), String> {
        if is_given { Ok(()) } else { Err("the server is down".to_owned()) }
    }
}

#[async_trait]
impl SessionWaker for Server {
    async fn status(&self, _: &SessionId) -> Result<WorkflowStatus, String> {
        let undecided_since = Some(Timestamp::from_millis(7_000));
        let waiting_for_worker = vec![NodePath::new("a")];
        let waiting_for_machine = [(NodePath::new("a"), "m1".to_owned())].into_iter().collect();
        let status = WorkflowStatus {
            runs: self.wakes,
            waiting_for_worker,
            waiting_for_machine,
            undecided_since,
            ..WorkflowStatus::default()
        };
        Self::answer(self.answers).map(|()| status)
    }

    async fn wake(&self, _: &SessionId) -> Result<(), String> {
        Self::answer(self.wakes)
    }
}

#[tokio::test]
async fn nothing_is_stored_for_workers_that_cannot_be_told() {
    let cluster = TestCluster::new();
    let down = cluster.store_with(Server { answers: false, wakes: false });
    let refused = cluster.add_to(&down, "flow-1", TWO).await.unwrap_err();
    assert_eq!(refused.to_string(), "the server is down; nothing was stored");
    assert_eq!(cluster.store.entries("", 9).await.unwrap(), []);
    let session = cluster.add("flow-1", TWO).await;
    let stop = Command::Abort { reason: None };
    let refused = down.post(&session, &stop, Timestamp::default()).await.unwrap_err();
    assert!(matches!(refused, StoreError::Unreachable(_)), "{refused}");
    assert_eq!(cluster.store.entry(&session).await.unwrap().unanswered, 0);
}

#[tokio::test]
async fn a_session_that_no_worker_was_told_of_is_interrupted_until_it_is_resumed() {
    let cluster = TestCluster::new();
    let fails = cluster.store_with(Server { answers: true, wakes: false });
    let works = cluster.store_with(Server { answers: true, wakes: true });
    let is_lost = async |session: &SessionId| cluster.store.entry(session).await.unwrap().is_lost();
    for id in ["flow-1", "flow-2"] {
        let refused = cluster.add_to(&fails, id, TWO).await.unwrap_err();
        assert!(
            refused.to_string().starts_with(&format!("session `{id}` is stored, but no worker was told")),
            "{refused}"
        );
        assert!(is_lost(&id.into()).await);
    }
    let resumed = SessionId::from("flow-1");
    let untold = fails.resume(&resumed, Default::default(), Timestamp::default()).await.unwrap_err();
    assert!(matches!(untold, StoreError::NotNotified { .. }) && is_lost(&resumed).await, "{untold}");
    works.resume(&resumed, Default::default(), Timestamp::default()).await.unwrap();
    assert!(!is_lost(&resumed).await);
    // The server had started it, and only its answer was lost.
    let started = SessionId::from("flow-2");
    let decided = cluster.decider().decide(&started, &[], None).await.unwrap();
    assert!(decided.running.len() == 1 && !is_lost(&started).await);
}

#[tokio::test]
async fn a_session_that_the_server_has_lost_is_interrupted_and_continues_as_after_a_crash() {
    let flow = "
flow: { name: lost }
nodes:
  - { id: work, type: exec, input: { argv: [echo, again] } }
  - { id: ask, type: human.input, input: { prompt: 'Which?' } }
";
    let cluster = TestCluster::new();
    let works = cluster.store_with(Server { answers: true, wakes: true });
    let lost = cluster.store_with(Server { answers: true, wakes: false });
    let unknown = cluster.store_with(Server { answers: false, wakes: false });
    let session = cluster.add("flow-1", flow).await;
    let is_lost = async |store: &SharedStore| store.entry(&session).await.unwrap().is_lost();
    // Who was to tell the server of it is gone.
    assert_eq!([is_lost(&works).await, is_lost(&lost).await, is_lost(&unknown).await], [false, true, false]);
    cluster.decider().decide(&session, &[], None).await.unwrap();
    let waits = async |store: &SharedStore| {
        let entry = store.entry(&session).await.unwrap();
        assert_eq!(entry.waiting_for_machine.len(), entry.waiting_for_worker.len());
        entry.waiting_for_worker
    };
    assert_eq!(waits(&works).await, [NodePath::new("a")]);
    assert!(waits(&lost).await.is_empty() && waits(&unknown).await.is_empty());
    let seen = [is_lost(&works).await, is_lost(&lost).await, is_lost(&unknown).await];
    assert_eq!(seen, [false, true, false]);
    let known = async |store: &SharedStore| {
        let entry = store.entry(&session).await.unwrap();
        (entry.undecided_since.map(Timestamp::as_millis), entry.is_unknown)
    };
    let known = [known(&works).await, known(&lost).await, known(&unknown).await];
    assert_eq!(known, [(Some(7_000), false), (None, false), (None, true)]);
    let (graph, mut seen) = (cluster.graph(&session), 0);
    let hub = Hub::new(session.clone(), Arc::new(SystemClock), Arc::new(RandomIds::new()));
    tokio::time::pause();
    let ended = lost.follow(&session, &graph, &hub, &mut seen, WhenWaiting::Stay).await;
    tokio::time::resume();
    assert!(
        ended.unwrap_err().to_string().contains("was interrupted: the workers of a test no longer run it")
    );
    // The server still fails when it is told, but the request is stored.
    let untold = lost.resume(&session, Default::default(), Timestamp::default()).await;
    assert!(matches!(untold, Err(StoreError::NotNotified { .. })), "{untold:?}");
    let asks_again = |events: &[Arc<inspan_protocol::Envelope>]| {
        let count = |name: &str| events.iter().filter(|event| event.event.name() == name).count();
        count("task:complete") == 1 && count("session:prompt") == 2
    };
    cluster.run(&session, &[], asks_again).await;
    assert_eq!(works.answer(&session, 1).await.unwrap(), Some(inspan_store::Verdict::Accepted));
    let facts = cluster.facts(&session).await;
    let count = |fact: &str| facts.iter().filter(|known| *known == fact).count();
    assert_eq!((count("flow:resumed"), count("task:start work")), (1, 2), "{facts:?}");
}

#[tokio::test]
async fn an_answer_after_its_time_is_refused_although_no_worker_has_noticed() {
    let flow = "
flow: { name: late }
nodes:
  - { id: ask, type: human.input, input: { prompt: 'Which way?', choices: [left, right], default: left, timeout: 1s } }
";
    let cluster = TestCluster::new();
    let session = cluster.add("flow-1", flow).await;
    cluster.decider().decide(&session, &[], None).await.unwrap();
    let open = cluster.store.entry(&session).await.unwrap().digest.prompts[0].clone();
    let reply = Command::Reply {
        prompt: open.prompt_id.clone(),
        content: String::new(),
        choice: Some("right".to_owned()),
    };
    let late = open.deadline.unwrap();
    let number = cluster.store.post(&session, &reply, late).await.unwrap();
    tokio::time::sleep(late.since(SystemClock.now())).await;
    cluster.run(&session, &[], |_| false).await;
    let why = format!("question `{}` has expired", open.prompt_id);
    let verdict = cluster.store.answer(&session, number).await.unwrap();
    assert_eq!(verdict, Some(inspan_store::Verdict::Refused(why)));
    let answers = cluster.events(&session).await;
    let is_default = |event: &Event| matches!(event, Event::SessionReply { is_default: true, .. });
    assert_eq!(answers.iter().filter(|event| is_default(&event.event)).count(), 1);
}

#[tokio::test]
async fn an_answer_in_time_counts_also_if_it_comes_from_a_clock_that_is_ahead() {
    let flow = "
flow: { name: early }
nodes:
  - { id: ask, type: human.input, input: { prompt: 'Which way?', choices: [left, right], default: left, timeout: 1h } }
";
    let cluster = TestCluster::new();
    let session = cluster.add("flow-1", flow).await;
    cluster.decider().decide(&session, &[], None).await.unwrap();
    let open = cluster.store.entry(&session).await.unwrap().digest.prompts[0].clone();
    let (prompt, choice) = (open.prompt_id.clone(), Some("right".to_owned()));
    let reply = Command::Reply { prompt, content: String::new(), choice };
    let number = cluster.store.post(&session, &reply, open.deadline.unwrap()).await.unwrap();
    cluster.run(&session, &[], |_| false).await;
    let verdict = cluster.store.answer(&session, number).await.unwrap();
    assert_eq!(verdict, Some(inspan_store::Verdict::Accepted));
}

#[tokio::test]
async fn a_list_says_what_continues_a_session() {
    let cluster = TestCluster::new();
    let old = cluster.add("old", TWO).await;
    cluster.run(&old, &[], |_| false).await;
    let record = cluster.store.record(&old).await.unwrap();
    let seq = cluster.events(&old).await.len() as u64;
    let parent = inspan_flow_core::Parent::new(old.clone(), seq, inspan_flow_core::ParentKind::Resume);
    let new = inspan_flow_core::SessionRecord { session: "new".into(), parent: Some(parent), ..record };
    cluster.store.add(&new).await.unwrap();
    for prefix in ["", "ol"] {
        let entries = cluster.store.entries(prefix, 9).await.unwrap();
        let old = entries.iter().find(|entry| entry.session == old).unwrap();
        assert_eq!(old.continued_by, Some("new".into()), "{prefix}");
    }
}

#[tokio::test]
async fn time_goes_on_from_the_last_event_where_the_clock_of_another_machine_is_ahead() {
    let cluster = TestCluster::new();
    let flow = "flow: { name: waits }\nnodes: [{ id: wait, type: control.wait, input: { ms: 300 } }]\n";
    let session = cluster.add("flow-1", flow).await;
    let hour = Duration::from_secs(3_600);
    let ahead = LaterClock::not_before(SystemClock.now() + hour, Arc::new(SystemClock));
    cluster.decider_with(ahead).decide(&session, &[], None).await.unwrap();
    let right = cluster.decider();
    let decision = right.decide(&session, &[], None).await.unwrap();
    assert!(decision.wake_in.unwrap() <= Duration::from_millis(300), "{decision:?}");
    tokio::time::sleep(Duration::from_millis(350)).await;
    assert!(right.decide(&session, &[], None).await.unwrap().has_ended);
}
