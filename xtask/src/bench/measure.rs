//! Measures by medians, and the row that shows a measured value beside its reference and its goal.

use std::fmt;

use rustix::time::{ClockId, clock_gettime};

const ROUNDS: usize = 9;

/// The processor time of this process. What never waits takes as long on an idle machine, and on a busy one this
/// does not count what others do.
fn processor_seconds() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// The seconds of one round.
fn seconds(round: impl FnOnce()) -> f64 {
    let began = processor_seconds();
    round();
    processor_seconds() - began
}

/// Nanoseconds per operation, in the middle of rounds that did `operations` each.
fn per_operation(operations: u64, rounds: Vec<f64>) -> f64 {
    middle(rounds) * 1e9 / operations as f64
}

/// Nanoseconds per operation, the median of several rounds after one that does not count. `round` does
/// `operations` of them.
pub(crate) fn median(operations: u64, mut round: impl FnMut()) -> f64 {
    median_of(operations, ROUNDS, || (), |()| round())
}

/// As [`median`], of two that are compared: their rounds alternate, so that a machine that is slower for a while is
/// slower for both.
pub(crate) fn medians(operations: u64, mut one: impl FnMut(), mut other: impl FnMut()) -> (f64, f64) {
    one();
    other();
    let (ones, others) = (0..ROUNDS).map(|_| (seconds(&mut one), seconds(&mut other))).unzip();
    (per_operation(operations, ones), per_operation(operations, others))
}

/// As [`median`], where each round first makes what it works on, which is not measured.
pub(crate) fn median_of<T>(
    operations: u64,
    rounds: usize,
    mut make: impl FnMut() -> T,
    mut round: impl FnMut(T),
) -> f64 {
    round(make());
    let rounds = (0..rounds).map(|_| {
        let made = make();
        seconds(|| round(made))
    });
    per_operation(operations, rounds.collect())
}

/// The value in the middle; not a number if there is none.
pub(crate) fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// What a value counts.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Unit {
    Nanoseconds,
    Bytes,
}

/// What a value is to reach.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Goal {
    /// At most so much.
    Within(f64),
    /// At most so many times the reference.
    Times(f64),
}

/// One measured value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Measurement {
    pub(crate) work: String,
    pub(crate) value: f64,
    /// Its reference, in the same run on the same machine, and the reference's value.
    reference: Option<(&'static str, f64)>,
    goal: Option<Goal>,
    unit: Unit,
}

impl Measurement {
    /// A time without a reference and a goal.
    pub(crate) fn time(work: impl Into<String>, nanoseconds: f64) -> Self {
        Self { work: work.into(), value: nanoseconds, reference: None, goal: None, unit: Unit::Nanoseconds }
    }

    /// So many bytes without a reference and a goal.
    pub(crate) fn bytes(work: impl Into<String>, bytes: f64) -> Self {
        Self { unit: Unit::Bytes, ..Self::time(work, bytes) }
    }

    /// Beside this value.
    pub(crate) fn reference(self, what: &'static str, value: f64) -> Self {
        Self { reference: Some((what, value)), ..self }
    }

    /// With a goal.
    pub(crate) fn goal(self, goal: Goal) -> Self {
        Self { goal: Some(goal), ..self }
    }

    /// Whether the goal is reached; `None` without a goal or a reference.
    pub(crate) fn met(&self) -> Option<bool> {
        match self.goal? {
            Goal::Within(limit) => Some(self.value <= limit),
            Goal::Times(limit) => self.ratio().map(|ratio| ratio <= limit),
        }
    }

    fn ratio(&self) -> Option<f64> {
        self.reference.map(|(_, reference)| self.value / reference)
    }
}

/// The head of the table.
pub(crate) const HEAD: &str = "work                                           value  reference                               \
                               ratio  goal       ";

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |value| match self.unit {
            Unit::Nanoseconds => time(value),
            Unit::Bytes => memory(value),
        };
        let reference =
            self.reference.map_or_else(String::new, |(what, value)| format!("{} {what}", shown(value)));
        let ratio = self.ratio().map_or_else(String::new, |ratio| format!("{ratio:.2} ×"));
        let goal = match self.goal {
            Some(Goal::Within(limit)) => format!("≤ {}", shown(limit)),
            Some(Goal::Times(limit)) => format!("≤ {limit} ×"),
            None => String::new(),
        };
        let met = match self.met() {
            Some(true) => "MET",
            Some(false) => "NOT MET",
            None => "",
        };
        let row = format!(
            "{:<40} {:>11}  {reference:<36} {ratio:>8}  {goal:<10} {met}",
            self.work,
            shown(self.value)
        );
        f.write_str(row.trim_end())
    }
}

/// Nanoseconds in the unit that suits them.
fn time(nanoseconds: f64) -> String {
    match nanoseconds {
        n if n.abs() < 1e3 => format!("{n:.1} ns"),
        n if n.abs() < 1e6 => format!("{:.2} µs", n / 1e3),
        n => format!("{:.2} ms", n / 1e6),
    }
}

/// Bytes in the unit that suits them.
fn memory(bytes: f64) -> String {
    match bytes {
        b if b < 1e6 => format!("{:.1} kB", b / 1e3),
        b => format!("{:.1} MB", b / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_whether_its_goal_is_met() {
        let row = |goal| Measurement { goal, ..Measurement::time("emit", 120.0).reference("mpsc", 100.0) };
        let goals = [None, Some(Goal::Within(120.0)), Some(Goal::Within(119.0)), Some(Goal::Times(1.3))];
        assert_eq!(goals.map(|goal| row(goal).met()), [None, Some(true), Some(false), Some(true)]);
        let lone = Measurement::time("emit", 120.0).goal(Goal::Times(1.3));
        assert_eq!(lone.met(), None);
        assert_eq!(
            row(Some(Goal::Times(1.1))).to_string(),
            "emit                                        120.0 ns  100.0 ns mpsc                          1.20 ×  \
             ≤ 1.1 ×    NOT MET"
        );
    }

    #[test]
    fn the_middle_is_not_moved_by_an_outlier() {
        assert_eq!(middle(vec![3.0, 1000.0, 1.0, 2.0, 2.5]), 2.5);
        assert!(middle(Vec::new()).is_nan());
    }

    #[test]
    fn memory_shows_in_the_unit_that_suits_it() {
        let row = Measurement::bytes("peak", 10_600_000.0).goal(Goal::Within(10e6));
        assert_eq!(row.met(), Some(false));
        assert!(row.to_string().contains("10.6 MB") && row.to_string().contains("≤ 10.0 MB"));
        assert_eq!(memory(20_480.0), "20.5 kB");
    }

    #[test]
    fn a_time_shows_in_the_unit_that_suits_it() {
        let shown = [4.0, 999.94, 1_500.0, 2_345_678.0, -1_500.0].map(time);
        assert_eq!(shown, ["4.0 ns", "999.9 ns", "1.50 µs", "2.35 ms", "-1.50 µs"]);
    }
}
