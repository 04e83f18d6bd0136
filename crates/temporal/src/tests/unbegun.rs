//! Attempts that no machine has begun.

use std::{sync::Arc, time::Duration};

use inspan_engine::{Clock as _, LaterClock, SystemClock};
use inspan_protocol::{Envelope, Event, SessionId};
use tokio_util::sync::CancellationToken;

use super::cluster::{Machine, TestCluster};
use crate::{AttemptError, AttemptRunner, LostAttempt};

const LIMITED: &str = "
flow: { name: limited }
nodes:
  - { id: a, type: exec, input: { argv: [sh, -c, 'sleep 0.5; echo done'] }, policy: { timeout: 1s } }
";

#[tokio::test]
async fn a_timeout_does_not_run_before_a_worker_has_begun_the_attempt() {
    let cluster = TestCluster::new();
    let session = cluster.add("flow-1", LIMITED).await;
    let begun = cluster.decider().decide(&session, &[], None).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    let waits = cluster.decider().decide(&session, &[], None).await.unwrap();
    assert_eq!((waits.running, &waits.ending[..]), (begun.running.clone(), &[][..]));
    // It is looked at again, but not all the time.
    assert!(waits.wake_in.unwrap() > Duration::from_millis(900), "{:?}", waits.wake_in);
    cluster.runner().run(&session, &begun.running[0], CancellationToken::new()).await.unwrap();
    assert!(cluster.decider().decide(&session, &[], None).await.unwrap().has_ended);
    let facts = cluster.facts(&session).await;
    assert!(facts.contains(&"task:complete a".to_owned()), "{facts:?}");
}

#[tokio::test]
async fn a_timeout_runs_from_when_a_worker_has_begun_the_attempt() {
    let cluster = TestCluster::new();
    let session = cluster.add("flow-1", &LIMITED.replace("0.5", "30")).await;
    let decider = cluster.decider();
    let begun = decider.decide(&session, &[], None).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    decider.decide(&session, &[], None).await.unwrap();
    let runner = cluster.runner();
    let work = runner.run(&session, &begun.running[0], CancellationToken::new());
    let decide = async {
        tokio::time::sleep(Duration::from_millis(600)).await;
        // One knows the session, and one reads its log.
        for decider in [&decider, &cluster.decider()] {
            let decision = decider.decide(&session, &[], None).await.unwrap();
            assert_eq!(decision.ending, [""; 0]);
            assert!(decision.wake_in.unwrap() <= Duration::from_millis(500), "{:?}", decision.wake_in);
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(cluster.decider().decide(&session, &[], None).await.unwrap().ending, ["a.1"]);
    };
    let (ended, ()) = tokio::join!(work, decide);
    ended.unwrap();
    assert!(cluster.decider().decide(&session, &[], None).await.unwrap().has_ended);
    let failed = cluster.events(&session).await.iter().find_map(|event| match &event.event {
        Event::TaskFailed { error, .. } => Some(error.message.clone()),
        _ => None,
    });
    assert_eq!(failed.as_deref(), Some("node `a` did not end within its timeout of 1s"));
}

const EXTERNAL: &str = "
flow: { name: once, secrets: [DEPLOY_TOKEN] }
nodes:
  - { id: sent, type: exec, effects: external, input: { argv: ['true'] } }
";

#[tokio::test]
async fn what_a_machine_lacks_before_a_node_begins_makes_it_unfit() {
    let cluster = TestCluster::new();
    let lacks_secret = cluster.add("flow-1", EXTERNAL).await;
    let session = cluster.add("flow-2", &EXTERNAL.replace(", secrets: [DEPLOY_TOKEN]", "")).await;
    let attempt = async |session: &SessionId| {
        cluster.decider().decide(session, &[], None).await.unwrap().running.remove(0)
    };
    let error = async |runner: &AttemptRunner, session: &SessionId| {
        let ran = runner.run(session, &attempt(session).await, CancellationToken::new()).await;
        ran.unwrap_err().to_string()
    };
    let why = "machine `a` cannot run it: the environment variable DEPLOY_TOKEN, which the flow's `secrets` name, \
               is not set (CONFIG_MISSING)";
    assert_eq!(error(&cluster.runner(), &lacks_secret).await, why);
    // So does the program or the key of its agent.
    let agent = "flow: { name: f }\nnodes: [{ id: sent, type: anthropic.agent, input: { prompt: x, options: { model: m } } }]\n";
    let why = "machine `a` cannot run it: anthropic: no API key; set ANTHROPIC_API_KEY in the environment (CONFIG_MISSING)";
    for (id, flow) in [
        ("flow-3", agent.to_owned()),
        (
            "flow-4",
            agent
                .replace("anthropic.agent", "agent.run")
                .replace("{ prompt", "{ provider: anthropic, prompt"),
        ),
    ] {
        let lacks_key = cluster.add(id, &flow).await;
        assert_eq!(error(&cluster.runner(), &lacks_key).await, why, "{id}");
    }
    // Its folder of sessions is another one, such as where a mount is missing.
    let unmounted = TestCluster::new();
    let why = "machine `a` cannot run it: the shared log has no session `flow-2` (PROCESS)";
    assert_eq!(error(&unmounted.runner(), &session).await, why);
    // The folder for locks cannot be written.
    let file = tempfile::NamedTempFile::new().unwrap();
    let notify = Arc::new(|_| Box::pin(async {}) as futures::future::BoxFuture<'static, ()>);
    let runner = AttemptRunner::new(
        cluster.log.clone(),
        "b",
        Arc::new(Machine),
        Arc::new(SystemClock),
        notify,
        file.path(),
    );
    let why = error(&runner, &session).await;
    assert!(why.starts_with("machine `b` cannot run it: the attempt was not locked in "), "{why}");
    // Another one stops before the node begins.
    let stops = CancellationToken::new();
    stops.cancel();
    let given = attempt(&session).await;
    let held = cluster.lock(&session, "sent");
    let ran = cluster.runner().run(&session, &given, stops).await;
    assert!(matches!(ran, Err(AttemptError::NeverBegan)), "{ran:?}");
    drop(held);
    // Nobody is asked.
    let lost = [LostAttempt { is_unfit: true, ..given.into() }];
    cluster.decider().decide(&session, &lost, None).await.unwrap();
    cluster.run(&session, &[], |_| false).await;
    let facts = cluster.facts(&session).await;
    assert!(!facts.contains(&"session:prompt sent".to_owned()), "{facts:?}");
    assert_eq!(facts.last().map(String::as_str), Some("harness:complete"));
}

const TALK: &str = "
flow: { name: talk }
nodes:
  - { id: a, type: echo.agent, input: { prompt: one } }
  - { id: b, type: echo.agent, session: a, dependsOn: [a], input: { prompt: two } }
";

#[tokio::test]
async fn the_log_says_what_an_attempt_waits_for_that_one_machine_alone_can_run() {
    let cluster = TestCluster::new();
    let session = cluster.add("flow-1", TALK).await;
    let begins_b = |events: &[Arc<Envelope>]| {
        let is_b = |event: &Envelope| event.context.task.as_ref().is_some_and(|task| task.as_str() == "b");
        events.iter().any(|event| is_b(event) && matches!(event.event, Event::TaskStart { .. }))
    };
    cluster.run(&session, &[], begins_b).await;
    let said = async || {
        let events = cluster.events(&session).await;
        let said = events.iter().filter_map(|event| match &event.event {
            Event::Log { message, .. } => Some(format!("{}: {message}", event.context.task.as_ref()?)),
            _ => None,
        });
        said.collect::<Vec<_>>()
    };
    let decider = cluster.decider();
    let decision = decider.decide(&session, &[], None).await.unwrap();
    let wait = Duration::from_secs(10);
    assert!(decision.wake_in.is_some_and(|time| time <= wait), "{:?}", decision.wake_in);
    assert_eq!((decision.running[0].machine.as_deref(), said().await), (Some("a"), Vec::new()));
    let later = || LaterClock::not_before(SystemClock.now() + wait, Arc::new(SystemClock));
    // Each of them is another worker, and says it once.
    for _ in 0..2 {
        let decision = cluster.decider_with(later()).decide(&session, &[], None).await.unwrap();
        assert_eq!(decision.wake_in, None);
    }
    let waits = "b: attempt 1 waits for a worker of the machine `a`, where its agent's conversation is: all slots there \
                 are taken, or no worker is there";
    assert_eq!(said().await, [waits]);
    // The server has given it up, and the machine was only busy.
    let lost = [LostAttempt { not_taken: true, ..decision.running[0].clone().into() }];
    let again = cluster.decider_with(later()).decide(&session, &lost, None).await.unwrap();
    assert_eq!((again.running, said().await), (decision.running, vec![waits.to_owned(); 2]));
    cluster.run(&session, &[], |_| false).await;
    let facts = cluster.facts(&session).await;
    assert!(!facts.contains(&"task:interrupted b".to_owned()), "{facts:?}");
    assert_eq!(facts.last().map(String::as_str), Some("harness:complete"));
}
