//! The user's settings: defaults for what the command line does not set, from files and from the environment. The
//! project's file overrides the user's, a variable overrides both, and the command line overrides all.

use std::{
    collections::BTreeMap,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    time::Duration,
};

use inspan_flow::parse_time;
use inspan_notify::ChannelSettings;
use inspan_protocol::{Redactor, plain_words};
use serde::Deserialize;
use serde_json::{Value, json};
use toml::Spanned;

use crate::{commands::all_providers, exit::Exit, failure::Failure, invocation::Invocation};

/// The name of a project's file.
const PROJECT: &str = "inspan.toml";
/// How large a file may be, in bytes.
const LARGEST: u64 = 256 * 1024;
/// How long a person has to answer an agent's question for permission, unless the settings say otherwise.
const PERMISSION_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// What is set, by key: `provider`, `budget.usd`, `providers.claude.model`, ….
#[derive(Debug, Default)]
pub(crate) struct Settings {
    values: BTreeMap<String, Setting>,
    files: Vec<PathBuf>,
    channels: BTreeMap<String, ConfiguredChannel>,
}

/// A channel for notifications, and the file that configures it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ConfiguredChannel {
    pub(crate) settings: ChannelSettings,
    pub(crate) file: PathBuf,
}

/// One value, and where it is set.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Setting {
    pub(crate) value: Value,
    pub(crate) from: String,
}

/// A file of settings.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    provider: Option<Spanned<String>>,
    store: Option<Spanned<PathBuf>>,
    budget: Option<Budget>,
    #[serde(rename = "confirmAbove")]
    confirm_above: Option<Budget>,
    #[serde(rename = "permissionTimeout")]
    permission_timeout: Option<Spanned<String>>,
    #[serde(default)]
    providers: BTreeMap<String, Spanned<Provider>>,
    #[serde(default)]
    agents: BTreeMap<String, Spanned<NamedAgent>>,
    #[serde(default)]
    channels: BTreeMap<String, Spanned<BTreeMap<String, Spanned<Value>>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Budget {
    usd: Option<Spanned<f64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Provider {
    model: Option<Spanned<String>>,
    #[serde(default)]
    options: BTreeMap<String, Spanned<Value>>,
}

/// An agent that flows name.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NamedAgent {
    #[serde(rename = "type")]
    node_type: Spanned<String>,
    model: Option<Spanned<String>>,
    prompt: Option<Spanned<String>>,
    #[serde(default)]
    options: BTreeMap<String, Spanned<Value>>,
}

impl Settings {
    /// All settings for a flow in a folder, else in the folder the program was called in.
    pub(crate) fn of(folder: Option<&Path>, invocation: &Invocation) -> Result<Self, Failure> {
        Self::read_all(folder, Whose::Project, invocation)
    }

    /// The settings for an agent without a flow. Options can name programs to start, so those of a
    /// project's file, which may not be trusted, do not count here.
    pub(crate) fn of_agent(invocation: &Invocation) -> Result<Self, Failure> {
        Self::read_all(None, Whose::ProjectWithoutOptions, invocation)
    }

    /// What the project's file has for a flow in a folder, and nothing else.
    pub(crate) fn of_project(folder: Option<&Path>, invocation: &Invocation) -> Result<Self, Failure> {
        let mut settings = Self::default();
        settings.read_project(folder, Whose::Project, invocation)?;
        Ok(settings)
    }

    fn read_all(folder: Option<&Path>, project: Whose, invocation: &Invocation) -> Result<Self, Failure> {
        let mut settings = Self::of_user(invocation)?;
        settings.read_project(folder, project, invocation)?;
        settings.variables(invocation)?;
        if let Some(file) = &invocation.store {
            settings.set("store", json!(file.to_string_lossy()), "--store".to_owned());
        }
        Ok(settings)
    }

    fn read_project(
        &mut self,
        folder: Option<&Path>,
        project: Whose,
        invocation: &Invocation,
    ) -> Result<(), Failure> {
        let folder = folder.filter(|folder| !folder.as_os_str().is_empty());
        let here = match (folder, &invocation.cwd) {
            (Some(folder), Some(cwd)) => Some(cwd.join(folder)),
            (folder, cwd) => folder.map(Path::to_owned).or_else(|| cwd.clone()),
        };
        // The folders above one are those of where it is, whatever it was called.
        let here = here.map(|here| here.canonicalize().unwrap_or(here));
        if let Some(file) = here.as_deref().and_then(project_file) {
            self.read(file, project)?;
        }
        Ok(())
    }

    /// What the user's own file has, and no project's.
    pub(crate) fn of_user(invocation: &Invocation) -> Result<Self, Failure> {
        let mut settings = Self::default();
        if let Some(file) = invocation.config_file() {
            settings.read(file, Whose::User)?;
        }
        Ok(settings)
    }

    /// The folder of the sessions that the user's own file names, if it does.
    pub(crate) fn store(invocation: &Invocation) -> Result<Option<PathBuf>, Failure> {
        Ok(Self::of_user(invocation)?.text("store").map(PathBuf::from))
    }

    /// The channels for notifications, by name.
    pub(crate) fn channels(&self) -> &BTreeMap<String, ConfiguredChannel> {
        &self.channels
    }

    /// Every value by its key.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Setting)> {
        self.values.iter().map(|(key, setting)| (key.as_str(), setting))
    }

    /// The files that were read.
    pub(crate) fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// The provider of `inspan agent` and `inspan chat`.
    pub(crate) fn provider(&self) -> Option<&str> {
        self.text("provider")
    }

    /// What a flow without a budget may cost, in US dollars.
    pub(crate) fn budget_usd(&self) -> Option<f64> {
        self.values.get("budget.usd")?.value.as_f64()
    }

    /// The forecast in US dollars above which a run is confirmed first, for a flow that says none.
    pub(crate) fn confirm_above_usd(&self) -> Option<f64> {
        self.values.get("confirmAbove.usd")?.value.as_f64()
    }

    /// How long a person has to answer an agent's question for permission.
    pub(crate) fn permission_timeout(&self) -> Duration {
        let written = self.text("permissionTimeout").and_then(|text| parse_time(text).ok());
        written.unwrap_or(PERMISSION_TIMEOUT)
    }

    /// The options of one provider, its model among them.
    pub(crate) fn options<'a>(&'a self, provider: &str) -> impl Iterator<Item = (&'a str, &'a Value)> {
        let (model, options) =
            (format!("providers.{provider}.model"), format!("providers.{provider}.options."));
        self.values.iter().filter_map(move |(key, setting)| {
            let name = if *key == model { "model" } else { key.strip_prefix(&options)? };
            Some((name, &setting.value))
        })
    }

    /// The providers that have options.
    pub(crate) fn providers(&self) -> Vec<&str> {
        let named = self.values.keys().filter_map(|key| key.strip_prefix("providers.")?.split('.').next());
        let mut named: Vec<&str> = named.collect();
        named.dedup();
        named
    }

    /// The agents by their names, each as in a flow's `agents`.
    pub(crate) fn agents(&self) -> BTreeMap<String, Value> {
        let mut agents: BTreeMap<String, Value> = BTreeMap::new();
        for (key, setting) in &self.values {
            let Some((name, key)) = key.strip_prefix("agents.").and_then(|key| key.split_once('.')) else {
                continue;
            };
            let agent = agents.entry(name.to_owned()).or_insert_with(|| json!({}));
            match key.strip_prefix("options.") {
                Some(option) => agent["options"][option] = setting.value.clone(),
                None => agent[key] = setting.value.clone(),
            }
        }
        agents
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.values.get(key)?.value.as_str()
    }

    fn set(&mut self, key: &str, value: Value, from: String) {
        self.values.insert(key.to_owned(), Setting { value, from });
    }

    fn read(&mut self, file: PathBuf, whose: Whose) -> Result<(), Failure> {
        let Some(text) = content(&file)? else { return Ok(()) };
        let at = |offset: usize| {
            let line = text[..offset.min(text.len())].matches('\n').count() + 1;
            format!("{}:{line}", file.display())
        };
        let wrong =
            |offset: usize, what: &str| Failure::new(Exit::Configuration, format!("{}: {what}", at(offset)));
        // Before anything of it is shown, also by an error.
        if let Some((key, secret)) =
            toml::from_str(&text).ok().as_ref().and_then(|all| secret_in("a name", all))
        {
            let start = text.find(secret).unwrap_or_default();
            let why = format!(
                "{key} looks like a secret: leave it out, and set the variable that the provider or channel reads"
            );
            return Err(wrong(start, &why));
        }
        let written: Written = toml::from_str(&text).map_err(|error| {
            wrong(error.span().map_or(0, |span| span.start), &plain_words(error.message().trim()))
        })?;
        if let Some(provider) = written.provider {
            let start = provider.span().start;
            let name = provider.into_inner();
            check_provider(&name).map_err(|why| wrong(start, &why))?;
            self.set("provider", json!(name), at(start));
        }
        if let Some(store) = written.store {
            let start = store.span().start;
            if whose != Whose::User {
                let why = "`store` can only be set in the user's settings file, since sessions are found from any folder";
                return Err(wrong(start, why));
            }
            let folder = store.into_inner();
            if !folder.is_absolute() {
                return Err(wrong(start, "`store` must be an absolute path"));
            }
            self.set("store", json!(folder), at(start));
        }
        for (key, amount) in [("budget", written.budget), ("confirmAbove", written.confirm_above)] {
            let Some(usd) = amount.and_then(|amount| amount.usd) else { continue };
            let start = usd.span().start;
            let amount = check_amount(key, *usd.get_ref()).map_err(|why| wrong(start, &why))?;
            self.set(&format!("{key}.usd"), json!(amount), at(start));
        }
        if let Some(timeout) = written.permission_timeout {
            let (start, text) = (timeout.span().start, timeout.into_inner());
            parse_time(&text).map_err(|why| wrong(start, &format!("`permissionTimeout`: {why}")))?;
            self.set("permissionTimeout", json!(text), at(start));
        }
        for (name, provider) in written.providers {
            let start = provider.span().start;
            check_provider(&name).map_err(|why| wrong(start, &why))?;
            let Provider { model, options } = provider.into_inner();
            let model = model.map(|model| {
                let start = model.span().start;
                ("model".to_owned(), start, Value::String(model.into_inner()))
            });
            let options = options.into_iter().map(|(key, value)| {
                let start = value.span().start;
                (key, start, value.into_inner())
            });
            for (key, start, value) in model.into_iter().chain(options) {
                check_option(&name, &key, &value).map_err(|why| wrong(start, &why))?;
                let under = if key == "model" { "" } else { "options." };
                if whose == Whose::ProjectWithoutOptions && key != "model" {
                    continue;
                }
                self.set(&format!("providers.{name}.{under}{key}"), value, at(start));
            }
        }
        for (name, agent) in written.agents {
            let start = agent.span().start;
            self.agent(&name, agent.into_inner(), |offset| at(offset.unwrap_or(start)))
                .map_err(|(start, why)| wrong(start, &why))?;
        }
        for (name, channel) in written.channels {
            let start = channel.span().start;
            let from = file.clone();
            self.channel(&name, channel.into_inner(), from, |offset| at(offset.unwrap_or(start)))
                .map_err(|(offset, why)| wrong(offset.unwrap_or(start), &why))?;
        }
        self.files.push(file);
        Ok(())
    }

    /// Sets a channel, replacing one of the same name; a wrong key is given with its place.
    fn channel(
        &mut self,
        name: &str,
        keys: BTreeMap<String, Spanned<Value>>,
        file: PathBuf,
        at: impl Fn(Option<usize>) -> String,
    ) -> Result<(), (Option<usize>, String)> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if name.is_empty() || name.len() > 40 || !name.chars().all(is_name) {
            let why = format!("`{name}` is not a channel name: use 1 to 40 letters, digits, `-` and `_`");
            return Err((None, why));
        }
        let places: BTreeMap<String, usize> =
            keys.iter().map(|(key, value)| (key.clone(), value.span().start)).collect();
        let values = keys.iter().map(|(key, value)| (key.clone(), value.get_ref().clone())).collect();
        let settings = ChannelSettings::read(values).map_err(|error| {
            let place = error.key.as_ref().and_then(|key| places.get(key).copied());
            (place, format!("channel `{name}`: {}", error.message))
        })?;
        let settings = match file.parent() {
            Some(folder) => settings.in_folder(folder),
            None => settings,
        };
        let prefix = format!("channels.{name}.");
        self.values.retain(|key, _| !key.starts_with(&prefix));
        for (key, value) in keys {
            self.set(&format!("{prefix}{key}"), value.get_ref().clone(), at(Some(places[&key])));
        }
        self.channels.insert(name.to_owned(), ConfiguredChannel { settings, file });
        Ok(())
    }

    /// Sets an agent, replacing one of the same name; a wrong value is given with its place.
    fn agent(
        &mut self,
        name: &str,
        agent: NamedAgent,
        at: impl Fn(Option<usize>) -> String,
    ) -> Result<(), (usize, String)> {
        let start = agent.node_type.span().start;
        let node_type = agent.node_type.into_inner();
        let Some(provider) = node_type.strip_suffix(".agent") else {
            return Err((start, format!("`{node_type}` is not an agent type like `claude.agent`")));
        };
        check_provider(provider).map_err(|why| (start, why))?;
        let prefix = format!("agents.{name}.");
        self.values.retain(|key, _| !key.starts_with(&prefix));
        let text = |key: &str, value: Option<Spanned<String>>| {
            value.map(|value| (key.to_owned(), value.span().start, Value::String(value.into_inner())))
        };
        let options = agent.options.into_iter().map(|(key, value)| {
            let start = value.span().start;
            (format!("options.{key}"), start, value.into_inner())
        });
        for (key, start, value) in text("model", agent.model).into_iter().chain(options) {
            let option = key.strip_prefix("options.").unwrap_or(&key);
            check_option(provider, option, &value).map_err(|why| (start, why))?;
            self.set(&format!("{prefix}{key}"), value, at(Some(start)));
        }
        if let Some((key, start, prompt)) = text("prompt", agent.prompt) {
            self.set(&format!("{prefix}{key}"), prompt, at(Some(start)));
        }
        self.set(&format!("{prefix}type"), json!(node_type), at(None));
        Ok(())
    }

    /// `INSPAN_PROVIDER`, `INSPAN_BUDGET_USD`, `INSPAN_HOME`, and `INSPAN_CLAUDE_MODEL` for each provider.
    fn variables(&mut self, invocation: &Invocation) -> Result<(), Failure> {
        let wrong = |name: &str, why: String| Failure::new(Exit::Configuration, format!("{name}: {why}"));
        let get = |name: &str| match invocation.env.get(name).filter(|value| !value.is_empty()) {
            Some(value) if secret_in(name, &json!(value)).is_some() => {
                Err(wrong(name, "it looks like a secret".to_owned()))
            }
            value => Ok(value.map(str::to_owned)),
        };
        if let Some(provider) = get("INSPAN_PROVIDER")? {
            check_provider(&provider).map_err(|why| wrong("INSPAN_PROVIDER", why))?;
            self.set("provider", json!(provider), "INSPAN_PROVIDER".to_owned());
        }
        if let Some(usd) = get("INSPAN_BUDGET_USD")? {
            let amount = usd.parse().map_err(|_| format!("`{usd}` is not a number"));
            let amount = amount
                .and_then(|usd| check_amount("budget", usd))
                .map_err(|why| wrong("INSPAN_BUDGET_USD", why))?;
            self.set("budget.usd", json!(amount), "INSPAN_BUDGET_USD".to_owned());
        }
        if let Some(home) = get("INSPAN_HOME")? {
            self.set("store", json!(home), "INSPAN_HOME".to_owned());
        }
        for provider in all_providers().names() {
            let name = format!("INSPAN_{}_MODEL", provider.to_uppercase());
            if let Some(model) = get(&name)? {
                self.set(&format!("providers.{provider}.model"), json!(model), name);
            }
        }
        Ok(())
    }
}

/// Whose a file is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    User,
    Project,
    ProjectWithoutOptions,
}

/// The nearest `inspan.toml`: in this folder or, within a repository, above it.
fn project_file(folder: &Path) -> Option<PathBuf> {
    let is_in_repository = folder.ancestors().any(|folder| folder.join(".git").exists());
    for folder in folder.ancestors() {
        let file = folder.join(PROJECT);
        if file.is_file() {
            return Some(file);
        }
        if !is_in_repository || folder.join(".git").exists() {
            return None;
        }
    }
    None
}

/// The content of a file, if there is one.
fn content(file: &Path) -> Result<Option<String>, Failure> {
    let wrong = |why: String| Failure::new(Exit::Configuration, format!("{}: {why}", file.display()));
    let opened = match File::open(file) {
        Ok(opened) => opened,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(wrong(error.to_string())),
    };
    let mut text = String::new();
    opened.take(LARGEST + 1).read_to_string(&mut text).map_err(|error| wrong(error.to_string()))?;
    if text.len() as u64 > LARGEST {
        return Err(wrong(format!("it is larger than {LARGEST} bytes")));
    }
    Ok(Some(text))
}

fn check_provider(name: &str) -> Result<(), String> {
    let providers = all_providers();
    if providers.get(name).is_some() {
        return Ok(());
    }
    let known: Vec<&str> = providers.names().collect();
    Err(format!("unknown provider `{name}`; {}", inspan_sessions::meant(name, &known)))
}

fn check_amount(key: &str, usd: f64) -> Result<f64, String> {
    let is_amount = usd.is_finite() && usd > 0.0;
    is_amount.then_some(usd).ok_or_else(|| format!("`{key}.usd` must be greater than 0, and this is {usd}"))
}

/// Whether the provider takes this option, as far as that is known without the others.
fn check_option(provider: &str, key: &str, value: &Value) -> Result<(), String> {
    let providers = all_providers();
    let Some(known) = providers.get(provider) else { return Ok(()) };
    let plain = known.input_facts(&json!({ "prompt": "x", "options": {} }));
    match known.input_facts(&json!({ "prompt": "x", "options": { key: value } })) {
        Err(error) if plain.is_ok() => {
            Err(format!("provider `{provider}` does not accept `{key}`: {}", error.message))
        }
        _ => Ok(()),
    }
}

/// The first text that looks like a key or a token, and the name of what holds it; `name` is that of the value.
fn secret_in<'a>(name: &str, value: &'a Value) -> Option<(String, &'a str)> {
    let is_secret = |text: &str| Redactor::default().text(text) != text;
    match value {
        Value::String(text) => is_secret(text).then(|| (name.to_owned(), text.as_str())),
        Value::Array(items) => items.iter().find_map(|item| secret_in(name, item)),
        Value::Object(map) => map.iter().find_map(|(key, value)| match is_secret(key) {
            true => Some(("a name".to_owned(), key.as_str())),
            false => secret_in(&format!("`{key}`"), value),
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
provider = "claude"
store = "/var/lib/inspan"

[budget]
usd = 2.5

[confirmAbove]
usd = 1

[providers.claude]
model = "opus"

[providers.claude.options]
maxTurns = 7
allowedTools = ["Read", "Bash(git *)"]

[providers.anthropic.options.mcpServers.herd]
command = "sh"
args = ["herd.sh"]
"#;

    #[test]
    fn a_corrupted_file_is_read_or_refused_with_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(PROJECT);
        std::fs::write(&file, FILE).unwrap();
        let mut whole = Settings::default();
        whole.read(file.clone(), Whose::User).unwrap();
        assert_eq!(whole.iter().count(), 8);
        inspan_testkit::fuzz(FILE.as_bytes(), |bytes| {
            std::fs::write(&file, bytes).unwrap();
            if let Err(failure) = Settings::default().read(file.clone(), Whose::User) {
                assert!(failure.message.contains(PROJECT), "{}", failure.message);
            }
        });
    }
}
