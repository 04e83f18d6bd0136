//! Reads a scenario from a file or a text, and says why it cannot be used.

use std::path::{Path, PathBuf};

use super::Scenario;

/// Why a scenario cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The file cannot be read.
    #[error("scenario {} cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The text is not a scenario.
    #[error("scenario {origin} is malformed: {source}")]
    Parse {
        /// The file, or `text`.
        origin: String,
        /// Where and why.
        source: serde_json::Error,
    },
    /// The keys contradict each other.
    #[error("{place} of the scenario: {problem}")]
    Invalid {
        /// `turn 3`, counted from 0, or `aux`.
        place: String,
        /// What is wrong.
        problem: String,
    },
}

impl Scenario {
    /// Reads and checks a scenario file.
    ///
    /// # Errors
    /// The file cannot be read, is not a scenario, or contradicts itself.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ScenarioError> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path)
            .map_err(|source| ScenarioError::Read { path: path.to_path_buf(), source })?;
        Self::parse(&text, &path.display().to_string())
    }

    /// Reads and checks a scenario from JSON text.
    ///
    /// # Errors
    /// The text is not a scenario, or contradicts itself.
    pub fn from_json(text: &str) -> Result<Self, ScenarioError> {
        Self::parse(text, "text")
    }

    fn parse(text: &str, origin: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = serde_json::from_str(text)
            .map_err(|source| ScenarioError::Parse { origin: origin.to_owned(), source })?;
        scenario.check()?;
        Ok(scenario)
    }
}
