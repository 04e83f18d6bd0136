//! The report about one provider: a row for each behaviour, for people and as JSON.

use std::fmt;

use serde::Serialize;

/// The report about one provider.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProviderReport {
    /// The provider, by its target's name.
    pub provider: String,
    /// A row for each behaviour, in the order of the list.
    pub rows: Vec<BehaviourRow>,
    /// How long all of it took, in milliseconds.
    pub took_ms: u64,
}

/// The row of one behaviour.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BehaviourRow {
    /// The behaviour's name.
    pub behaviour: String,
    /// The behaviour's sentence.
    pub sentence: String,
    /// The outcome.
    #[serde(flatten)]
    pub outcome: BehaviourOutcome,
    /// How long it took, in milliseconds.
    pub took_ms: u64,
}

/// The outcome of one behaviour.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "camelCase")]
pub enum BehaviourOutcome {
    /// It is shown.
    Holds,
    /// It is not shown, in exactly the way that the provider declares.
    Deviates {
        /// Why, in the provider's words.
        reason: String,
        /// What is found instead.
        finding: String,
    },
    /// There is nothing to check.
    NotApplicable {
        /// Why.
        reason: String,
    },
    /// It is not shown.
    Failed {
        /// What is found instead.
        finding: String,
    },
}

impl ProviderReport {
    /// Whether nothing failed.
    pub fn holds(&self) -> bool {
        self.failed().next().is_none()
    }

    /// The rows that failed.
    pub fn failed(&self) -> impl Iterator<Item = &BehaviourRow> {
        self.rows.iter().filter(|row| matches!(row.outcome, BehaviourOutcome::Failed { .. }))
    }

    /// How many rows have an outcome of each kind: holds, deviates, not applicable, failed.
    pub fn counts(&self) -> [usize; 4] {
        let mut counts = [0; 4];
        for row in &self.rows {
            let index = match row.outcome {
                BehaviourOutcome::Holds => 0,
                BehaviourOutcome::Deviates { .. } => 1,
                BehaviourOutcome::NotApplicable { .. } => 2,
                BehaviourOutcome::Failed { .. } => 3,
            };
            counts[index] += 1;
        }
        counts
    }
}

impl fmt::Display for ProviderReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in &self.rows {
            let (word, about) = match &row.outcome {
                BehaviourOutcome::Holds => ("holds", None),
                BehaviourOutcome::Deviates { reason, .. } => ("deviates", Some(reason)),
                BehaviourOutcome::NotApplicable { reason } => ("n/a", Some(reason)),
                BehaviourOutcome::Failed { finding } => ("FAILED", Some(finding)),
            };
            let seconds = row.took_ms as f64 / 1000.0;
            writeln!(f, "{word:<9} {seconds:>5.1} s  {:<28} {}", row.behaviour, row.sentence)?;
            if let Some(about) = about {
                writeln!(f, "{:<19}{about}", "")?;
            }
        }
        let [holds, deviates, not_applicable, failed] = self.counts();
        write!(
            f,
            "{}: {holds} hold, {deviates} deviate as declared, {not_applicable} not applicable, {failed} failed, {:.1} s",
            self.provider,
            self.took_ms as f64 / 1000.0
        )
    }
}
