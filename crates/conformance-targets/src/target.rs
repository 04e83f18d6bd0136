//! A provider that runs a program, as a row of a table.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use inspan_conformance::{
    ConformanceTarget, Deviation, Exception, ExceptionKind, ModelCall, PLANTED, TargetContext, Tool,
};
use inspan_protocol::{DynProvider, Environment, ModelServerAddress, ProgramSetup, Setup};
use serde_json::{Map, Value};

/// One provider, or one way to run it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProviderTarget {
    /// The name in reports, if it is not the provider's type.
    pub(crate) name: Option<&'static str>,
    pub(crate) provider: fn() -> Arc<dyn DynProvider>,
    /// The variables of the program, but those that its provider describes.
    pub(crate) environment: fn(&TargetContext<'_>) -> Vec<(String, String)>,
    /// Changes the settings that the provider describes for a model server.
    pub(crate) change_settings: fn(&mut Value),
    /// Options that every turn needs.
    pub(crate) options: fn() -> Map<String, Value>,
    /// Why the program cannot be run here, if so.
    pub(crate) missing: fn(&dyn DynProvider, &Environment) -> Option<String>,
    /// How the model calls a tool.
    pub(crate) call: fn(Tool<'_>) -> Option<ModelCall>,
    pub(crate) exceptions: &'static [Exception],
    pub(crate) workers: usize,
}

impl ProviderTarget {
    /// What most programs have in common; a row sets at least `provider` and `environment`.
    pub(crate) const PROGRAM: Self = Self {
        name: None,
        provider: || Arc::new(inspan_protocol::Erased(inspan_providers::EchoProvider)),
        environment: |_| Vec::new(),
        change_settings: |_| {},
        options: Map::new,
        missing: |provider, caller_env| match provider.setup() {
            Setup::Program(_) => provider.check_setup(caller_env).err().map(|error| error.message),
            _ => None,
        },
        call: |tool| Some(ModelCall::shell(tool)),
        exceptions: &[],
        workers: 3,
    };
}

impl ConformanceTarget for ProviderTarget {
    fn provider(&self) -> Arc<dyn DynProvider> {
        (self.provider)()
    }

    fn environment(&self, context: &TargetContext<'_>) -> Vec<(String, String)> {
        let mut variables = (self.environment)(context);
        if let Some(program) = self.provider().setup().program() {
            let path = context.caller_env.get(program.variable);
            variables.extend(path.map(|path| (program.variable.to_owned(), path.to_owned())));
            variables.extend(model_settings(&program, context, self.change_settings));
        }
        variables
    }

    fn name(&self) -> String {
        self.name.map_or_else(|| self.provider().descriptor().provider_type, str::to_owned)
    }

    fn missing(&self, caller_env: &Environment) -> Option<String> {
        (self.missing)(&*self.provider(), caller_env)
    }

    fn options(&self) -> Map<String, Value> {
        (self.options)()
    }

    fn call(&self, tool: Tool<'_>) -> Option<ModelCall> {
        (self.call)(tool)
    }

    fn exceptions(&self) -> &'static [Exception] {
        self.exceptions
    }

    fn workers(&self) -> usize {
        self.workers
    }
}

pub(crate) const fn deviates(
    behaviours: &'static [&'static str],
    deviation: Deviation,
    reason: &'static str,
) -> Exception {
    Exception { behaviours, kind: ExceptionKind::Deviates(deviation), reason }
}

pub(crate) const fn not_applicable(behaviours: &'static [&'static str], reason: &'static str) -> Exception {
    Exception { behaviours, kind: ExceptionKind::NotApplicable, reason }
}

/// Variables for an environment.
pub(crate) fn variables<const N: usize>(variables: [(&str, String); N]) -> Vec<(String, String)> {
    variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Writes the settings by which this program asks the server; the variable that names their folder.
pub(crate) fn model_settings(
    program: &ProgramSetup,
    context: &TargetContext<'_>,
    change: fn(&mut Value),
) -> Option<(String, String)> {
    let address = ModelServerAddress { base: context.server, key: PLANTED };
    let mut settings = program.model_settings?(&address);
    change(&mut settings.content);
    let folder = own_folder(context);
    write(&folder.join(settings.file), &settings.text());
    Some((settings.folder.to_owned(), text(&folder)))
}

/// Where a program is on the `PATH`.
pub(crate) fn on_path(command: &str, caller_env: &Environment) -> Option<PathBuf> {
    let path = caller_env.get("PATH").unwrap_or_default();
    std::env::split_paths(path).map(|folder| folder.join(command)).find(|path| path.is_file())
}

/// Says that a program is not on the `PATH`, if so.
pub(crate) fn missing_on_path(command: &str, caller_env: &Environment) -> Option<String> {
    let missing = on_path(command, caller_env).is_none();
    missing.then(|| format!("the program `{command}` is not on the PATH"))
}

pub(crate) fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

/// A folder for the files that belong to this server.
pub(crate) fn own_folder(context: &TargetContext<'_>) -> PathBuf {
    context.folder.join(context.server.rsplit(':').next().unwrap_or_default())
}

/// Writes a file and the folders above it. If it cannot be written, the program does not reach the server, and the suite
/// reports that.
pub(crate) fn write(path: &Path, content: &str) {
    drop(path.parent().map_or(Ok(()), std::fs::create_dir_all).and_then(|()| std::fs::write(path, content)));
}

pub(crate) fn text(path: &Path) -> String {
    path.display().to_string()
}
