//! The guarantees of durability, each tested against its fault by the real program and the real store, and printed
//! with its figure and its bound. `cargo xtask faults` runs them; `--full` sets `INSPAN_FAULTS=full`.
#![expect(clippy::print_stdout, reason = "each row prints its figure and its bound")]

mod children;
mod damage;
mod disk;
mod leases;
mod load;
mod opening;
mod order;
mod place;
mod power;
mod slow_subscriber;
mod soak;
mod sweep;
mod time;

use std::sync::{Mutex, PoisonError};

use inspan_testkit::Stopwatch;

/// How much is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    /// What fits before every change.
    Sample,
    /// All of it.
    Full,
}

/// One guarantee.
struct Promise {
    /// What must hold; a row that breaks it fails.
    bound: &'static str,
    /// Causes the fault and checks the result; returns the figure.
    prove: fn(Size) -> anyhow::Result<String>,
}

/// Proves one row, alone on the machine since all of them measure time, and prints its figure and its bound.
#[expect(clippy::disallowed_methods, reason = "a test has no command line of its own")]
fn prove(name: &str, row: &Promise) {
    static MACHINE: Mutex<()> = Mutex::new(());
    let _alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let full = std::env::var_os("INSPAN_FAULTS").is_some_and(|value| value == "full");
    let watch = Stopwatch::start();
    let proved = (row.prove)(if full { Size::Full } else { Size::Sample });
    println!("{name:<44} {:>6.1} s", watch.elapsed().as_secs_f64());
    let figure = proved.as_ref().map_or_else(|error| format!("{error:#}"), Clone::clone);
    for line in figure.lines().chain([format!("bound: {}", row.bound).as_str()]) {
        println!("        {line}");
    }
    assert!(proved.is_ok(), "{figure}");
}

macro_rules! rows {
    ($($name:ident: $row:expr;)*) => {
        $(
            #[test]
            fn $name() {
                prove(stringify!($name), &$row);
            }
        )*
    };
}

rows! {
    killed_everywhere: sweep::ROW;
    the_power_is_cut: power::ROW;
    two_processes_resume_one_session: leases::TWO;
    an_owner_that_was_taken_over: leases::STALE;
    no_space_on_the_disk: disk::FULL;
    the_kth_write_fails: disk::ERRORS;
    torn_tails_and_flipped_bits: damage::ROW;
    many_open_a_new_store_at_once: opening::RACE;
    killed_while_the_store_is_made: opening::MAKING;
    a_newer_foreign_broken_or_read_only_store: opening::FOREIGN;
    agent_clis_that_fail: children::FAILING;
    killed_before_an_agent_received_its_prompt: children::UNHEARD;
    a_subscriber_that_never_reads: slow_subscriber::DEAD;
    a_reader_that_holds_the_store: slow_subscriber::READER;
    a_server_that_is_killed_again_and_again: soak::ROW;
    clocks_that_jump_by_an_hour_and_a_day: time::JUMPS;
    events_twice_late_lost_or_shuffled: order::ROW;
    a_question_that_waits_for_30_days: time::MONTH;
    ten_thousand_waiting_sessions: load::SESSIONS;
    an_agent_that_writes_very_much: load::TEXT;
}
