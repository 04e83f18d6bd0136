//! What a program provides to the agents and commands that it runs: environment, folder, tools, permissions.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use crate::{HostTools, Supervisor};

/// The program that runs agents and commands. It is the same for all calls, so they share it.
#[derive(Clone, Default)]
pub struct Host {
    /// The environment that a vendor's program or client may draw from.
    pub env: Environment,
    /// The directory that agents and commands work in, unless their input names one.
    pub cwd: Option<PathBuf>,
    /// Who answers an agent's questions for permission.
    pub permissions: PermissionPolicy,
    /// Tools of the program that agents may call.
    pub tools: HostTools,
    /// The supervisor that starts programs; without one they are started directly.
    pub supervisor: Option<Supervisor>,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host")
            .field("env", &self.env)
            .field("cwd", &self.cwd)
            .field("permissions", &self.permissions)
            .field("tools", &self.tools)
            .finish_non_exhaustive()
    }
}

/// Who decides whether an agent may use a tool that needs permission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PermissionPolicy {
    /// Nobody: every question is denied.
    #[default]
    Deny,
    /// A person, by a `session:prompt` of kind `permission`, whose choices are `allow`, `always` (this tool, for the
    /// rest of the run; not if which tool it is is not known) and `deny`; no answer by the deadline is a denial.
    Ask {
        /// How long to wait for the answer.
        deadline: Duration,
    },
}

/// Environment variables. Their values never show in debug output.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Environment {
    variables: Arc<BTreeMap<String, String>>,
    /// The names of those that hold secrets, whatever they are called.
    secrets: Arc<BTreeSet<String>>,
    /// Variables that nobody gets and whose values are secrets all the same.
    withheld: Arc<BTreeMap<String, String>>,
}

impl Environment {
    /// The value of a variable; an empty one counts as not set.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// A text with its variables filled in: `${NAME}`, and `${NAME:-otherwise}`.
    ///
    /// # Errors
    /// The name of the first variable that is neither set nor has an otherwise.
    pub fn fill(&self, text: &str) -> Result<String, String> {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("${") {
            let Some((inside, behind)) = after.split_once('}') else { break };
            let (name, otherwise) = match inside.split_once(":-") {
                Some((name, otherwise)) => (name, Some(otherwise)),
                None => (inside, None),
            };
            out.push_str(before);
            out.push_str(self.get(name).or(otherwise).ok_or_else(|| name.to_owned())?);
            rest = behind;
        }
        out.push_str(rest);
        Ok(out)
    }

    /// All variables in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.variables.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The same environment, in which the values of these variables are secrets whatever they are called.
    #[must_use]
    pub fn mark<N: AsRef<str>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        Arc::make_mut(&mut self.secrets).extend(names.into_iter().map(|name| name.as_ref().to_owned()));
        self
    }

    /// Whether a variable is marked as a secret.
    pub fn is_marked(&self, name: &str) -> bool {
        self.secrets.contains(name)
    }

    /// The variables that are marked as secrets, and those that are withheld.
    pub(crate) fn marked(&self) -> impl Iterator<Item = (&str, &str)> {
        let withheld = self.withheld.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        self.iter().filter(|(name, _)| self.secrets.contains(*name)).chain(withheld)
    }

    /// The same environment without some variables.
    #[must_use]
    pub fn without(&self, hidden: impl Fn(&str) -> bool) -> Self {
        let seen = self.variables.iter().filter(|(name, _)| !hidden(name));
        let variables = seen.map(|(name, value)| (name.clone(), value.clone())).collect();
        Self { variables: Arc::new(variables), ..self.clone() }
    }

    /// The same environment without some variables, whose values are still taken out of what is reported: a program may
    /// find them elsewhere, such as in `/proc`.
    #[must_use]
    pub fn withhold(&self, withheld: impl Fn(&str) -> bool) -> Self {
        let mut known = (*self.withheld).clone();
        known.extend(
            self.iter().filter(|(name, _)| withheld(name)).map(|(n, v)| (n.to_owned(), v.to_owned())),
        );
        Self { withheld: Arc::new(known), ..self.without(withheld) }
    }

    /// The same environment with one variable set.
    #[must_use]
    pub fn with(&self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let mut variables = (*self.variables).clone();
        variables.insert(name.into(), value.into());
        Self { variables: Arc::new(variables), ..self.clone() }
    }
}

impl FromIterator<(String, String)> for Environment {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(pairs: I) -> Self {
        Self { variables: Arc::new(pairs.into_iter().collect()), ..Self::default() }
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.variables.keys()).finish()
    }
}
