//! What the hub costs: an emit with nobody, observers and queues to serve, beside tokio's channels.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};

use inspan_engine::{Filter, Hub, RandomIds, SystemClock};
use inspan_protocol::{Envelope, Event, RunId, SessionId};
use tokio::sync::{broadcast, mpsc};

use super::measure::{Goal, Row, Unit, median, medians};

/// Emits in a round, a batch after which queues are emptied.
const BATCH: u64 = 1_000;
const BATCHES: u64 = 100;
const TEXT: &str = "a word or two of an agent";
const EMITS: u64 = BATCH * BATCHES;

fn hub() -> Hub {
    Hub::new(SessionId::from("flow-bench"), Arc::new(SystemClock), Arc::new(RandomIds::new()))
}

fn event(run: &RunId) -> Event {
    Event::AgentText { content: black_box(TEXT).to_owned(), delta: true, run_id: run.clone() }
}

/// All rows. The goals of the first four are what keeps the hub ahead of the TypeScript origin by 1.3, 2.5 and 15
/// times: it takes 110, 360 and 1 890 ns where the least takes 72, 106 and 65.
pub(crate) fn rows() -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    let goals = [(0, "agent:", 1.17), (1, "agent:", 1.17), (10, "agent:", 1.36), (100, "task:", 1.94)];
    for (observers, prefix, goal) in goals {
        let called = if prefix == "agent:" { observers } else { 0 };
        let (value, least) = medians(EMITS, observed(observers, Filter::prefix(prefix)), least(called));
        rows.push(Row {
            work: format!("emit, {observers} observers of {prefix}*"),
            value,
            reference: Some(("the least an emit can do", least)),
            goal: Some(Goal::Times(goal)),
            unit: Unit::Nanoseconds,
        });
    }
    for queues in [1, 10, 100] {
        let value = queued(queues);
        let work = || format!("emit to {queues} queues, drained");
        let mpsc = Some(("tokio mpsc, fan-out, drained", mpsc_emit(queues)?));
        let goal = (queues == 10).then_some(Goal::Times(1.3));
        rows.push(Row { work: work(), value, reference: mpsc, goal, unit: Unit::Nanoseconds });
        let broadcast = Some(("tokio broadcast, drained", broadcast_emit(queues)));
        rows.push(Row { work: work(), value, reference: broadcast, goal: None, unit: Unit::Nanoseconds });
    }
    Ok(rows)
}

/// An event with what it must have and nothing else.
struct Least {
    seq: u64,
    _id: u128,
    _time: SystemTime,
    _session: Arc<str>,
    _text: String,
}

type Call = Arc<dyn Fn(&Arc<Least>) + Send + Sync>;

/// What any hub pays for: one look at the clock, an id made of it, one event behind a pointer, a lock that is free,
/// and the calls.
#[expect(clippy::disallowed_methods, reason = "the look at the clock is what is measured")]
fn least(observers: usize) -> impl FnMut() {
    let (session, seen) = (Arc::<str>::from("flow-bench"), Arc::new(AtomicU64::new(0)));
    let observe = |_| -> Call {
        let seen = Arc::clone(&seen);
        Arc::new(move |event| {
            seen.fetch_add(event.seq, Ordering::Relaxed);
        })
    };
    let observers = RwLock::new((0..observers).map(observe).collect::<Vec<_>>());
    let count = AtomicU64::new(0);
    move || {
        for _ in 0..EMITS {
            let time = SystemTime::now();
            let millis = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
            let seq = count.fetch_add(1, Ordering::Relaxed);
            let id = (millis << 80) | (0x7000 << 64) | (0b10 << 126) | u128::from(seq);
            let (session, text) = (Arc::clone(&session), black_box(TEXT).to_owned());
            let event = Arc::new(Least { seq, _id: id, _time: time, _session: session, _text: text });
            let observers = observers.read().unwrap_or_else(PoisonError::into_inner);
            observers.iter().for_each(|observer| observer(&event));
            black_box(event);
        }
    }
}

/// What an emit with one observer costs, for others to compare with.
pub(super) fn emitting() -> f64 {
    median(EMITS, observed(1, Filter::all()))
}

fn observed(observers: usize, filter: Filter) -> impl FnMut() {
    let hub = hub();
    let seen = Arc::new(AtomicU64::new(0));
    let observe = |_| {
        let seen = Arc::clone(&seen);
        let count = move |envelope: &Arc<Envelope>| {
            seen.fetch_add(envelope.seq, Ordering::Relaxed);
        };
        hub.observe(filter.clone(), Arc::new(count))
    };
    let observers: Vec<_> = (0..observers).map(observe).collect();
    let run = RunId::from("run-1");
    move || {
        let _observers = &observers;
        for _ in 0..EMITS {
            black_box(hub.emit(event(&run)));
        }
    }
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

/// The channels carry what the hub's queues carry, made once: they give no order, no id and no time.
fn ready_made() -> Arc<Envelope> {
    hub().emit(event(&RunId::from("run-1")))
}

fn broadcast_emit(receivers: usize) -> f64 {
    let envelope = ready_made();
    let (sender, first) = broadcast::channel(BATCH as usize);
    let mut receivers: Vec<_> = (1..receivers).map(|_| sender.subscribe()).chain([first]).collect();
    median(EMITS, || {
        for _ in 0..BATCHES {
            for _ in 0..BATCH {
                drop(black_box(sender.send(Arc::clone(&envelope))));
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
    let envelope = ready_made();
    let (senders, mut receivers): (Vec<_>, Vec<_>) =
        (0..receivers).map(|_| mpsc::unbounded_channel()).unzip();
    let mut lost = 0;
    let value = median(EMITS, || {
        for _ in 0..BATCHES {
            for _ in 0..BATCH {
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
