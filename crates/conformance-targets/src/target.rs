//! A provider that runs a program, as a row of a table.

use std::path::PathBuf;
use std::sync::Arc;

use inspan_conformance::{Call, ConformanceTarget, Deviation, Exception, Kind, Place, Tool};
use inspan_protocol::{DynProvider, Environment, Setup};
use serde_json::{Map, Value};

/// One provider, or one way to run it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    /// The name in reports, if it is not the provider's type.
    pub(crate) name: Option<&'static str>,
    pub(crate) provider: fn() -> Arc<dyn DynProvider>,
    pub(crate) environment: fn(&Place<'_>) -> Vec<(String, String)>,
    /// Options that every turn needs.
    pub(crate) options: fn() -> Map<String, Value>,
    /// Why the program cannot be run here, if so.
    pub(crate) missing: fn(&dyn DynProvider, &Environment) -> Option<String>,
    /// How the model calls a tool.
    pub(crate) call: fn(Tool<'_>) -> Option<Call>,
    pub(crate) exceptions: &'static [Exception],
    pub(crate) lanes: usize,
}

impl Target {
    /// What most programs have in common; a row sets at least `provider` and `environment`.
    pub(crate) const PROGRAM: Self = Self {
        name: None,
        provider: || Arc::new(inspan_protocol::Erased(inspan_providers::EchoProvider)),
        environment: |_| Vec::new(),
        options: Map::new,
        missing: |provider, outer| match provider.setup() {
            Setup::Program(_) => provider.check_setup(outer).err().map(|error| error.message),
            _ => None,
        },
        call: |tool| Some(Call::shell(tool)),
        exceptions: &[],
        lanes: 3,
    };
}

impl ConformanceTarget for Target {
    fn provider(&self) -> Arc<dyn DynProvider> {
        (self.provider)()
    }

    fn environment(&self, place: &Place<'_>) -> Vec<(String, String)> {
        (self.environment)(place)
    }

    fn name(&self) -> String {
        self.name.map_or_else(|| self.provider().descriptor().provider_type, str::to_owned)
    }

    fn missing(&self, outer: &Environment) -> Option<String> {
        (self.missing)(&*self.provider(), outer)
    }

    fn options(&self) -> Map<String, Value> {
        (self.options)()
    }

    fn call(&self, tool: Tool<'_>) -> Option<Call> {
        (self.call)(tool)
    }

    fn exceptions(&self) -> &'static [Exception] {
        self.exceptions
    }

    fn lanes(&self) -> usize {
        self.lanes
    }
}

pub(crate) const fn deviates(
    behaviour: &'static str,
    deviation: Deviation,
    reason: &'static str,
) -> Exception {
    Exception { behaviour, kind: Kind::Deviates(deviation), reason }
}

pub(crate) const fn not_applicable(behaviour: &'static str, reason: &'static str) -> Exception {
    Exception { behaviour, kind: Kind::NotApplicable, reason }
}

/// These variables, and the one that names the program, if the caller has set it.
pub(crate) fn variables<const N: usize>(
    own: [(&'static str, String); N],
    place: &Place<'_>,
    program: &str,
) -> Vec<(String, String)> {
    let program = place.outer.get(program).map(|path| (program.to_owned(), path.to_owned()));
    own.into_iter().map(|(name, value)| (name.to_owned(), value)).chain(program).collect()
}

/// Where a program is on the `PATH`.
pub(crate) fn on_path(command: &str, outer: &Environment) -> Option<PathBuf> {
    let path = outer.get("PATH").unwrap_or_default();
    std::env::split_paths(path).map(|folder| folder.join(command)).find(|path| path.is_file())
}

/// Says that a program is not on the `PATH`, if so.
pub(crate) fn missing_on_path(command: &str, outer: &Environment) -> Option<String> {
    let missing = on_path(command, outer).is_none();
    missing.then(|| format!("the program `{command}` is not on the PATH"))
}

pub(crate) fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}
