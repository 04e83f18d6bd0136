//! What the hub costs: an emit with nobody, observers and queues to serve, beside tokio's channels.
//! Measuring and judging is left to `measure`.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use inspan_engine::{Filter, Hub, RandomIds, SystemClock};
use inspan_protocol::{Envelope, Event, RunId, SessionId};
use tokio::sync::{broadcast, mpsc};

use super::measure::{Goal, Row, median};

/// Emits in a round, a batch after which queues are emptied.
const BATCH: u64 = 1_000;
const BATCHES: u64 = 100;
const EMITS: u64 = BATCH * BATCHES;

fn hub() -> Hub {
    Hub::new(SessionId::from("flow-bench"), Arc::new(SystemClock), Arc::new(RandomIds::new()))
}

fn event(run: &RunId) -> Event {
    Event::AgentText { content: "a word or two".to_owned(), delta: true, run_id: run.clone() }
}

/// All rows.
pub(crate) fn rows() -> anyhow::Result<Vec<Row>> {
    let broadcast = |receivers| ("tokio broadcast, drained", broadcast_emit(receivers));
    let mut rows = vec![Row {
        work: "emit, nobody listens".to_owned(),
        value: observed(0, Filter::all()),
        reference: Some(broadcast(1)),
        goal: Some(Goal::Within(85.0)),
    }];
    // The origin takes 110, 360 and 1 890 ns, measured elsewhere: ahead of it by 1.3, 2.5 and 15 times.
    let goals = [(1, 85.0), (10, 144.0)];
    for (observers, goal) in goals {
        rows.push(Row {
            work: format!("emit, {observers} observers of agent:*"),
            value: observed(observers, Filter::prefix("agent:")),
            reference: Some(broadcast(observers)),
            goal: Some(Goal::Within(goal)),
        });
    }
    rows.push(Row {
        work: "emit, 100 observers of agent:*".to_owned(),
        value: observed(100, Filter::prefix("agent:")),
        reference: Some(broadcast(100)),
        goal: None,
    });
    rows.push(Row {
        work: "emit, 100 observers of task:*".to_owned(),
        value: observed(100, Filter::prefix("task:")),
        reference: Some(broadcast(100)),
        goal: Some(Goal::Within(126.0)),
    });
    for queues in [1, 10, 100] {
        rows.push(Row {
            work: format!("emit to {queues} queues, drained"),
            value: queued(queues),
            reference: Some(("tokio mpsc fan-out, drained", mpsc_emit(queues)?)),
            goal: (queues == 10).then_some(Goal::Times(1.3)),
        });
    }
    Ok(rows)
}

fn observed(observers: usize, filter: Filter) -> f64 {
    let hub = hub();
    let seen = Arc::new(AtomicU64::new(0));
    let observe = |_| {
        let seen = Arc::clone(&seen);
        let count = move |envelope: &Arc<Envelope>| {
            seen.fetch_add(envelope.seq, Ordering::Relaxed);
        };
        hub.observe(filter.clone(), Arc::new(count))
    };
    let _observers: Vec<_> = (0..observers).map(observe).collect();
    let run = RunId::from("run-1");
    median(EMITS, || {
        for _ in 0..EMITS {
            black_box(hub.emit(event(&run)));
        }
    })
}

fn queued(queues: usize) -> f64 {
    let hub = hub();
    let mut queues: Vec<_> = (0..queues).map(|_| hub.subscribe(Filter::all())).collect();
    let run = RunId::from("run-1");
    median(EMITS, || {
        for _ in 0..BATCHES {
            for _ in 0..BATCH {
                hub.emit(event(&run));
            }
            for queue in &mut queues {
                while let Some(envelope) = queue.try_next() {
                    black_box(envelope);
                }
            }
        }
    })
}

/// An envelope per emit goes through tokio's channels too, but made without an order, an id or a time.
fn envelope(hub: &Hub, template: &Envelope, run: &RunId) -> Arc<Envelope> {
    Arc::new(Envelope { context: Arc::clone(hub.context()), event: event(run), ..template.clone() })
}

fn broadcast_emit(receivers: usize) -> f64 {
    let hub = hub();
    let run = RunId::from("run-1");
    let template = hub.emit(Event::SessionClose { run_id: run.clone() });
    let (sender, first) = broadcast::channel(BATCH as usize);
    let mut receivers: Vec<_> = (1..receivers).map(|_| sender.subscribe()).chain([first]).collect();
    median(EMITS, || {
        for _ in 0..BATCHES {
            for _ in 0..BATCH {
                drop(black_box(sender.send(envelope(&hub, &template, &run))));
            }
            for receiver in &mut receivers {
                while let Ok(envelope) = receiver.try_recv() {
                    black_box(envelope);
                }
            }
        }
    })
}

fn mpsc_emit(receivers: usize) -> anyhow::Result<f64> {
    let hub = hub();
    let run = RunId::from("run-1");
    let template = hub.emit(Event::SessionClose { run_id: run.clone() });
    let (senders, mut receivers): (Vec<_>, Vec<_>) =
        (0..receivers).map(|_| mpsc::unbounded_channel()).unzip();
    let mut lost = 0;
    let value = median(EMITS, || {
        for _ in 0..BATCHES {
            for _ in 0..BATCH {
                let envelope = envelope(&hub, &template, &run);
                lost += senders.iter().filter(|sender| sender.send(Arc::clone(&envelope)).is_err()).count();
            }
            for receiver in &mut receivers {
                while let Ok(envelope) = receiver.try_recv() {
                    black_box(envelope);
                }
            }
        }
    });
    anyhow::ensure!(lost == 0, "a channel lost {lost} messages");
    Ok(value)
}
