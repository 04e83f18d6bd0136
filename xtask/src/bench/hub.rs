//! What the hub costs: an emit with observers, beside the least that any hub must do.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};

use inspan_engine::{Filter, Hub, RandomIds, SystemClock};
use inspan_protocol::{Envelope, Event, RunId, SessionId};

use super::measure::{Goal, Measurement, medians};

const TEXT: &str = "a word or two of an agent";
/// Emits in a round.
const EMITS: u64 = 100_000;

fn hub() -> Hub {
    Hub::new(SessionId::from("flow-bench"), Arc::new(SystemClock), Arc::new(RandomIds::new()))
}

fn event(run: &RunId) -> Event {
    Event::AgentText { content: black_box(TEXT).to_owned(), delta: true, run_id: run.clone() }
}

/// All rows. On the machine of the goals the TypeScript origin takes 110 and 360 ns where the least takes 72 and 106.
pub(crate) fn rows() -> Vec<Measurement> {
    let row = |observers, goal| {
        let (value, least) = medians(EMITS, observed(observers), least(observers));
        Measurement::time(format!("emit, {observers} observers"), value)
            .reference("the least an emit can do", least)
            .goal(Goal::Times(goal))
    };
    vec![row(1, 1.5), row(10, 3.4)]
}

/// An event with what it must have and nothing else.
struct Least {
    seq: u64,
    _id: u128,
    _time: SystemTime,
    _session: Arc<str>,
    _text: String,
}

type BenchCall = Arc<dyn Fn(&Arc<Least>) + Send + Sync>;

/// What any hub costs: one read of the clock, an id made of it, one event behind a pointer, a lock that is free,
/// and the calls.
#[expect(clippy::disallowed_methods, reason = "the look at the clock is what is measured")]
fn least(observers: usize) -> impl FnMut() {
    let (session, seen) = (Arc::<str>::from("flow-bench"), Arc::new(AtomicU64::new(0)));
    let observe = |_| -> BenchCall {
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

fn observed(observers: usize) -> impl FnMut() {
    let hub = hub();
    let seen = Arc::new(AtomicU64::new(0));
    let observe = |_| {
        let seen = Arc::clone(&seen);
        let count = move |envelope: &Arc<Envelope>| {
            seen.fetch_add(envelope.seq, Ordering::Relaxed);
        };
        hub.observe(Filter::all(), Arc::new(count))
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
