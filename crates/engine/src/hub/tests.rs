//! The order, the filters and the queues of the hub.

use std::{
    collections::BTreeSet,
    sync::{
        Barrier,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

use futures::StreamExt;
use inspan_protocol::{EventContext, EventId, NodeId, UnknownEvent};
use proptest::prelude::*;

use super::*;
use crate::testing::{drain, hub, log, quiet_hub, session_context, text};

fn seqs(envelopes: &[Envelope]) -> Vec<u64> {
    envelopes.iter().map(|envelope| envelope.seq).collect()
}

fn path(text: &str) -> NodePath {
    NodePath::root(&NodeId::new(text).unwrap())
}

#[tokio::test(start_paused = true)]
async fn an_event_gets_its_place_identity_time_and_context() {
    let hub = hub();
    let mut all = hub.subscribe(Filter::all());
    hub.emit(log("a"));
    tokio::time::advance(std::time::Duration::from_millis(5)).await;
    let run = RunId::from("run-1");
    let emitted =
        hub.with_phase("Run Flow").with_task(path("plan")).with_agent(run.clone()).emit(text("run-1", "hi"));
    let envelope = |seq, millis, context, event| Envelope {
        v: 1,
        id: EventId::of(&"flow-1".into(), seq),
        seq,
        timestamp: crate::testing::NOON + std::time::Duration::from_millis(millis),
        context: Arc::new(context),
        event,
    };
    let place = EventContext {
        phase: Some("Run Flow".into()),
        task: Some(path("plan")),
        agent: Some(run),
        ..session_context()
    };
    let expected = [envelope(1, 0, session_context(), log("a")), envelope(2, 5, place, text("run-1", "hi"))];
    assert_eq!(drain(&mut all), expected);
    assert_eq!(*emitted, expected[1]);
    assert_eq!(hub.last_seq(), 2);
}

#[test]
fn a_scoped_handle_merges_contexts_and_keeps_the_session() {
    let hub = quiet_hub().with_phase("one").with_task(path("a"));
    let other = EventContext { task: Some(path("b")), ..EventContext::session("other".into()) };
    let merged = EventContext { phase: Some("one".into()), task: Some(path("b")), ..session_context() };
    assert_eq!(**hub.scoped(other).context(), merged);
}

#[test]
fn a_continued_session_continues_after_its_last_event() {
    let first = quiet_hub();
    let hub = Hub::continuing("flow-1".into(), first.clock().clone(), first.ids().clone(), 41);
    assert_eq!(hub.emit(log("a")).seq, 42);
}

#[test]
fn filters_choose_by_name_and_context() {
    let hub = quiet_hub();
    let extension = Event::Unknown(UnknownEvent::extension("_acme:ping", serde_json::Map::new()).unwrap());
    let review = path("scan").within(2, &NodeId::new("review").unwrap());
    let filters = [
        Filter::all(),
        Filter::parse("*").unwrap(),
        Filter::name("log"),
        Filter::parse("agent:*").unwrap(),
        Filter::parse("agent:tool:*, log").unwrap(),
        Filter::names(["agent:text", "_acme:ping"]),
        Filter::parse("_acme:*").unwrap(),
        Filter::all().of_run("run-1".into()),
        Filter::all().of_task(review.clone()),
        Filter::prefix("agent:").of_node(NodeId::new("review").unwrap()),
        Filter::name("session:prompt"),
    ];
    let mut subscriptions: Vec<_> = filters.into_iter().map(|filter| hub.subscribe(filter)).collect();
    hub.emit(log("1"));
    hub.emit(text("run-1", "2"));
    hub.with_agent("run-1".into()).emit(extension);
    hub.with_task(review).emit(text("run-2", "4"));
    hub.with_task(path("plan")).emit(Event::AgentToolStart {
        tool_name: "Bash".to_owned(),
        tool_use_id: "t".to_owned(),
        input: serde_json::Value::Null,
        run_id: "run-3".into(),
    });
    hub.emit(Event::SessionClose { run_id: "run-1".into() });
    let seen: Vec<_> = subscriptions.iter_mut().map(|subscription| seqs(&drain(subscription))).collect();
    assert_eq!(
        seen,
        [
            vec![1, 2, 3, 4, 5, 6],
            vec![1, 2, 3, 4, 5, 6],
            vec![1],
            vec![2, 4, 5],
            vec![1, 5],
            vec![2, 3, 4],
            vec![3],
            vec![2, 3, 6],
            vec![4],
            vec![4],
            vec![],
        ]
    );
}

#[test]
fn filter_texts_are_read_and_written() {
    let accepted = ["*", "agent:*", "agent:*,session:prompt", "_x.y-z:*", "log"];
    let refused = ["", "a,,b", "*agent", "agent text", "agent:*:x", "log,"];
    let read = |text: &str| Filter::parse(text).map(|filter| filter.to_string());
    assert_eq!(accepted.map(read), accepted.map(|text| Ok(text.to_owned())));
    let faults = ["", "", "*agent", "agent text", "agent:*:x", ""];
    assert_eq!(refused.map(read), faults.map(|part| Err(InvalidFilter(part.to_owned()))));
}

#[test]
fn a_dropped_subscriber_gets_nothing_and_is_let_go() {
    let hub = quiet_hub();
    let held = Arc::new(());
    let seen = Arc::new(AtomicU32::new(0));
    let observer = {
        let (held, seen, own) = (held.clone(), seen.clone(), hub.clone());
        // It holds the hub itself: a cycle that ends when the observer is dropped.
        let callback = move |_: &Arc<Envelope>| {
            let _ = (&held, &own);
            seen.fetch_add(1, Relaxed);
        };
        hub.observe(Filter::all(), Arc::new(callback))
    };
    hub.emit(log("a"));
    drop(observer);
    assert_eq!(Arc::strong_count(&held), 1);
    hub.emit(log("b"));
    assert_eq!(seen.load(Relaxed), 1);

    let subscription = hub.subscribe(Filter::all());
    let queue = Arc::downgrade(&subscription.queue);
    drop(subscription);
    assert!(queue.upgrade().is_none());
}

#[test]
fn what_an_observer_emits_follows_the_present_event_everywhere() {
    let hub = quiet_hub();
    let mut before = hub.subscribe(Filter::all());
    let echo = {
        let hub = hub.clone();
        Arc::new(move |envelope: &Arc<Envelope>| {
            if envelope.event == log("ping") {
                assert_eq!(hub.emit(log("pong")).seq, envelope.seq + 1);
            }
        })
    };
    let _echo = hub.observe(Filter::name("log"), echo);
    let mut after = hub.subscribe(Filter::all());
    hub.emit(log("ping"));
    hub.emit(log("end"));
    let seen = [&mut before, &mut after]
        .map(|subscription| drain(subscription).into_iter().map(|e| (e.seq, e.event)).collect::<Vec<_>>());
    let expected = vec![(1, log("ping")), (2, log("pong")), (3, log("end"))];
    assert_eq!(seen, [expected.clone(), expected]);
}

#[test]
fn an_observer_that_panics_is_unsubscribed_and_the_others_are_served() {
    let hub = quiet_hub();
    let calls = Arc::new(AtomicU32::new(0));
    let count = calls.clone();
    let broken = move |_: &Arc<Envelope>| {
        count.fetch_add(1, Relaxed);
        panic!("on purpose");
    };
    let _broken = hub.observe(Filter::all(), Arc::new(broken));
    let mut all = hub.subscribe(Filter::all());
    hub.emit(log("a"));
    hub.emit(log("b"));
    assert_eq!(seqs(&drain(&mut all)), [1, 2]);
    assert_eq!(calls.load(Relaxed), 1);
}

#[test]
fn an_observer_may_come_and_go_during_a_delivery() {
    let hub = quiet_hub();
    let found: Arc<Mutex<Option<Subscription>>> = Arc::default();
    let finder = {
        let (hub, found) = (hub.clone(), found.clone());
        Arc::new(move |_: &Arc<Envelope>| {
            found.lock().get_or_insert_with(|| hub.subscribe(Filter::all()));
        })
    };
    let finder = hub.observe(Filter::name("log"), finder);
    hub.emit(log("a"));
    hub.emit(log("b"));
    drop(finder);
    let mut found = found.lock().take().unwrap();
    assert_eq!(seqs(&drain(&mut found)), [2]);
}

#[tokio::test]
async fn a_lossless_subscription_ends_at_its_limit_and_says_where() {
    let hub = quiet_hub();
    let mut all = hub.subscribe_up_to(Filter::all(), 2);
    for name in ["a", "b", "c", "d"] {
        hub.emit(log(name));
    }
    assert_eq!((all.backlog(), all.overflow()), (2, Some(3)));
    let rest: Vec<_> = StreamExt::collect(&mut all).await;
    assert_eq!(rest.iter().map(|envelope| envelope.seq).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn a_bounded_subscription_keeps_the_newest_and_tells_what_it_missed() {
    let hub = quiet_hub();
    let mut newest = hub.subscribe_bounded(Filter::all(), 2);
    let mut next = move || newest.try_next().map(|item| item.map(|envelope| envelope.seq));
    for name in ["a", "b", "c", "d", "e"] {
        hub.emit(log(name));
    }
    let seen = [next(), next(), next(), next()];
    hub.emit(log("f"));
    assert_eq!(
        (seen, next()),
        ([Some(Err(Lagged { missed: 3 })), Some(Ok(4)), Some(Ok(5)), None], Some(Ok(6)))
    );
}

#[tokio::test]
async fn subscriptions_end_with_the_hub_after_what_they_hold() {
    let hub = quiet_hub();
    let mut all = hub.subscribe(Filter::all());
    let mut newest = hub.subscribe_bounded(Filter::all(), 8);
    hub.emit(log("a"));
    let waiting = tokio::spawn(async move {
        let lossless = [all.next().await, all.next().await].map(|item| item.map(|e| e.seq));
        let bounded = [newest.next().await, newest.next().await].map(|item| item.map(|e| e.unwrap().seq));
        (lossless, bounded)
    });
    tokio::task::yield_now().await;
    drop(hub);
    assert_eq!(waiting.await.unwrap(), ([Some(1), None], [Some(1), None]));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Whatever the threads do, each subscriber sees a dense, ordered line, and each thread's own events in
    /// the order it emitted them.
    #[test]
    fn concurrent_emitters_yield_one_dense_order_for_all(
        threads in 2_usize..5,
        each in 1_usize..200,
        echo in any::<bool>(),
    ) {
        let hub = quiet_hub();
        let mut queued = hub.subscribe(Filter::all());
        let mut late = None;
        let observed: Arc<Mutex<Vec<Arc<Envelope>>>> = Arc::default();
        let watching = {
            let observed = observed.clone();
            hub.observe(Filter::all(), Arc::new(move |envelope| observed.lock().push(envelope.clone())))
        };
        let echoing = echo.then(|| {
            let inner = hub.clone();
            hub.observe(Filter::name("agent:text"), Arc::new(move |_| drop(inner.emit(log("echo")))))
        });
        let start = Barrier::new(threads);
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let (hub, start) = (hub.clone(), &start);
                scope.spawn(move || {
                    start.wait();
                    for number in 0..each {
                        hub.emit(text(&thread.to_string(), &number.to_string()));
                    }
                });
            }
            late = Some(hub.subscribe(Filter::all()));
        });
        drop((watching, echoing));
        let count = (threads * each * if echo { 2 } else { 1 }) as u64;
        let queued = drain(&mut queued);
        prop_assert_eq!(seqs(&queued), (1..=count).collect::<Vec<_>>());
        let observed: Vec<_> = observed.lock().iter().map(|envelope| (**envelope).clone()).collect();
        prop_assert_eq!(&observed, &queued);
        let late = drain(&mut late.unwrap());
        prop_assert_eq!(&late[..], &queued[queued.len() - late.len()..]);
        let ids: BTreeSet<_> = queued.iter().map(|envelope| envelope.id).collect();
        prop_assert_eq!(ids.len() as u64, count);
        for thread in 0..threads {
            let own: Vec<_> = queued.iter().filter(|e| {
                matches!(&e.event, Event::AgentText { run_id, .. } if *run_id == *thread.to_string())
            }).map(|e| e.event.clone()).collect();
            let expected: Vec<_> =
                (0..each).map(|number| text(&thread.to_string(), &number.to_string())).collect();
            prop_assert_eq!(own, expected);
        }
    }
}
