//! The settings of one channel, as `[channels.NAME]` of a settings file has them: read key by key, so that an error
//! names the key.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use inspan_protocol::Environment;
use reqwest::Url;
use serde_json::{Map, Value};

use crate::notice::NoticeKind;

/// A channel as it is configured.
#[derive(Clone, Debug, PartialEq)]
pub struct ChannelSettings {
    /// What is sent.
    pub on: Vec<NoticeKind>,
    /// The flows that it is for, by name; `*` matches any text. Empty means all.
    pub flows: Vec<String>,
    /// Where it is sent to.
    pub target: ChannelTarget,
}

/// Where a channel sends to. Secrets are named by the variable of the environment that holds them.
#[derive(Clone, Debug, PartialEq)]
pub enum ChannelTarget {
    /// A signed HTTP request.
    Webhook {
        /// Where to.
        url: Address,
        /// The variable with the key of the signature.
        secret_env: String,
    },
    /// A message in Slack.
    Slack {
        /// The API; `https://slack.com/api` unless set.
        api: Url,
        /// The id of the Slack channel or user.
        channel: String,
        /// The variable with the bot's token.
        token_env: String,
        /// The variable with the app's token, which receives answers.
        app_token_env: Option<String>,
        /// The ids of the users who may answer. Without any, questions have no buttons.
        allow: Vec<String>,
    },
    /// A message to a topic of an ntfy server.
    Ntfy {
        /// The server; `https://ntfy.sh` unless set.
        server: Url,
        /// The topic.
        topic: Named,
        /// The variable with the access token.
        token_env: Option<String>,
    },
    /// An e-mail.
    Smtp {
        /// The mail server.
        host: String,
        /// Its port.
        port: u16,
        /// How the connection is encrypted.
        tls: SmtpTls,
        /// The sender.
        from: String,
        /// The recipients.
        to: Vec<String>,
        /// The user's name at the server.
        username: Option<String>,
        /// The variable with the password.
        password_env: Option<String>,
    },
    /// A notification of this machine's desktop.
    Desktop,
    /// A program that reads the notification as JSON.
    Command {
        /// The program and its arguments.
        argv: Vec<String>,
        /// Variables that it gets beside `PATH` and `HOME`.
        env: Vec<String>,
        /// How long it may take.
        timeout: Duration,
    },
}

/// A text, or the variable that holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    /// The text.
    Plain(String),
    /// The variable.
    Variable(String),
}

/// An address, or the variable that holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// The address.
    Plain(Url),
    /// The variable, and whether `http` is allowed.
    Variable(String, bool),
}

/// The encryption of the connection to a mail server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmtpTls {
    /// Encrypted from the first byte.
    Tls,
    /// Encrypted before the login.
    StartTls,
    /// Not encrypted; for a server on the same machine only.
    None,
}

/// What is wrong with a channel's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsError {
    /// The key, unless one is missing.
    pub key: Option<String>,
    /// Why.
    pub message: String,
}

impl ChannelSettings {
    /// The types of channels.
    pub const TYPES: [&str; 6] = ["webhook", "slack", "ntfy", "smtp", "desktop", "command"];

    /// Reads the keys of a channel.
    ///
    /// # Errors
    /// A key is unknown, missing or has a wrong value.
    pub fn read(keys: Map<String, Value>) -> Result<Self, SettingsError> {
        let mut keys = Keys(keys);
        let kind = keys.required("type")?;
        let on = match keys.texts("on")? {
            None => vec![NoticeKind::Question, NoticeKind::Failure, NoticeKind::Budget],
            Some(words) => words
                .iter()
                .map(|word| {
                    NoticeKind::of_word(word).ok_or_else(|| {
                        let known = NoticeKind::CONFIGURABLE.map(NoticeKind::word).join(", ");
                        wrong("on", format!("`{word}` is not among what can be sent: {known}"))
                    })
                })
                .collect::<Result<_, _>>()?,
        };
        let flows = keys.texts("flows")?.unwrap_or_default();
        let target = match kind.as_str() {
            "webhook" => webhook(&mut keys)?,
            "slack" => slack(&mut keys)?,
            "ntfy" => ntfy(&mut keys)?,
            "smtp" => smtp(&mut keys)?,
            "desktop" => ChannelTarget::Desktop,
            "command" => command(&mut keys)?,
            other => {
                let known = Self::TYPES.join(", ");
                return Err(wrong("type", format!("`{other}` is not a channel type; the types are {known}")));
            }
        };
        match keys.0.keys().next() {
            Some(unknown) => Err(wrong(unknown, format!("a channel of type `{kind}` has no `{unknown}`"))),
            None => Ok(Self { on, flows, target }),
        }
    }

    /// The same as a file of this folder means it: a program that is a relative path is in the folder, wherever Inspan is
    /// called from.
    #[must_use]
    pub fn in_folder(mut self, folder: &Path) -> Self {
        if let ChannelTarget::Command { argv, .. } = &mut self.target
            && let Some(program) = argv.first_mut()
            // A name alone is searched in `PATH`.
            && Path::new(program).components().count() > 1
        {
            let whole: PathBuf = folder.join(&*program).components().collect();
            *program = whole.to_string_lossy().into_owned();
        }
        self
    }

    /// Whether it is for a flow.
    pub fn wants_flow(&self, flow: &str) -> bool {
        self.flows.is_empty() || self.flows.iter().any(|pattern| matches(pattern, flow))
    }

    /// The variables that hold its secrets.
    pub fn variables(&self) -> Vec<&str> {
        fn named(named: &Named) -> Option<&str> {
            match named {
                Named::Variable(name) => Some(name),
                Named::Plain(_) => None,
            }
        }
        match &self.target {
            ChannelTarget::Webhook { url, secret_env } => {
                let url = match url {
                    Address::Variable(name, _) => Some(name.as_str()),
                    Address::Plain(_) => None,
                };
                url.into_iter().chain([secret_env.as_str()]).collect()
            }
            ChannelTarget::Slack { token_env, app_token_env, .. } => {
                [token_env.as_str()].into_iter().chain(app_token_env.as_deref()).collect()
            }
            ChannelTarget::Ntfy { topic, token_env, .. } => {
                named(topic).into_iter().chain(token_env.as_deref()).collect()
            }
            ChannelTarget::Smtp { password_env, .. } => password_env.iter().map(String::as_str).collect(),
            ChannelTarget::Desktop => Vec::new(),
            ChannelTarget::Command { env, .. } => env.iter().map(String::as_str).collect(),
        }
    }

    /// The variables that are named and not set.
    pub fn missing(&self, environment: &Environment) -> Vec<&str> {
        self.variables().into_iter().filter(|name| environment.get(name).is_none()).collect()
    }
}

fn webhook(keys: &mut Keys) -> Result<ChannelTarget, SettingsError> {
    let allows_http = keys.flag("allowHttp")?;
    let url = match (keys.text("url")?, keys.variable("urlEnv")?) {
        (Some(url), None) => Address::Plain(written("url", &url, allows_http)?),
        (None, Some(name)) => Address::Variable(name, allows_http),
        _ => return Err(missing("a webhook needs `url` or `urlEnv`, and not both")),
    };
    let secret_env = keys.variable("secretEnv")?;
    let secret_env =
        secret_env.ok_or_else(|| missing("`secretEnv` is missing: the variable with the key that signs"))?;
    Ok(ChannelTarget::Webhook { url, secret_env })
}

fn slack(keys: &mut Keys) -> Result<ChannelTarget, SettingsError> {
    let api = keys.text("api")?.unwrap_or_else(|| "https://slack.com/api".to_owned());
    let api = written("api", &api, false)?;
    let channel = keys.required("channel")?;
    let token_env = keys.variable("tokenEnv")?;
    let token_env =
        token_env.ok_or_else(|| missing("`tokenEnv` is missing: the variable with the bot's token"))?;
    let app_token_env = keys.variable("appTokenEnv")?;
    let allow = keys.texts("allow")?.unwrap_or_default();
    if app_token_env.is_some() == allow.is_empty() {
        return Err(missing(
            "answers from Slack need both `appTokenEnv` and `allow`, the ids of the users who may answer",
        ));
    }
    Ok(ChannelTarget::Slack { api, channel, token_env, app_token_env, allow })
}

fn ntfy(keys: &mut Keys) -> Result<ChannelTarget, SettingsError> {
    let allows_http = keys.flag("allowHttp")?;
    let server = keys.text("server")?.unwrap_or_else(|| "https://ntfy.sh".to_owned());
    let server = written("server", &server, allows_http)?;
    let topic = match (keys.text("topic")?, keys.variable("topicEnv")?) {
        (Some(topic), None) => Named::Plain(topic),
        (None, Some(name)) => Named::Variable(name),
        _ => return Err(missing("an ntfy channel needs `topic` or `topicEnv`, and not both")),
    };
    Ok(ChannelTarget::Ntfy { server, topic, token_env: keys.variable("tokenEnv")? })
}

fn smtp(keys: &mut Keys) -> Result<ChannelTarget, SettingsError> {
    let host = keys.required("host")?;
    let tls = match keys.text("tls")?.as_deref() {
        None | Some("tls") => SmtpTls::Tls,
        Some("starttls") => SmtpTls::StartTls,
        Some("none") if is_loopback(&host) => SmtpTls::None,
        Some("none") => return Err(wrong("tls", "`none` is for a server on this machine only".to_owned())),
        Some(other) => return Err(wrong("tls", format!("`{other}` is not one of tls, starttls, none"))),
    };
    let port = match keys.number("port")? {
        Some(port) => u16::try_from(port).map_err(|_| wrong("port", format!("{port} is not a port")))?,
        None => match tls {
            SmtpTls::Tls => 465,
            SmtpTls::StartTls => 587,
            SmtpTls::None => 25,
        },
    };
    let from = keys.required("from")?;
    let to = keys.texts("to")?.filter(|to| !to.is_empty()).ok_or_else(|| missing("`to` is missing"))?;
    let mailbox = |key: &str, address: &String| match address.parse::<lettre::message::Mailbox>() {
        Ok(_) => Ok(()),
        Err(error) => Err(wrong(key, format!("`{address}` is not an address: {error}"))),
    };
    mailbox("from", &from)?;
    to.iter().try_for_each(|address| mailbox("to", address))?;
    let (username, password_env) = (keys.text("username")?, keys.variable("passwordEnv")?);
    if username.is_some() != password_env.is_some() {
        return Err(missing("a login needs both `username` and `passwordEnv`"));
    }
    Ok(ChannelTarget::Smtp { host, port, tls, from, to, username, password_env })
}

fn command(keys: &mut Keys) -> Result<ChannelTarget, SettingsError> {
    let argv = keys.texts("argv")?.filter(|argv| !argv.is_empty());
    let argv = argv.ok_or_else(|| missing("`argv` is missing: the program and its arguments"))?;
    let env = keys.texts("env")?.unwrap_or_default();
    let seconds = keys.number("timeoutSeconds")?.unwrap_or(30);
    let timeout = u64::try_from(seconds).ok().filter(|seconds| (1..=600).contains(seconds));
    let timeout = timeout.ok_or_else(|| wrong("timeoutSeconds", "it must be from 1 to 600".to_owned()))?;
    Ok(ChannelTarget::Command { argv, env, timeout: Duration::from_secs(timeout) })
}

/// An address that a file has, and so nothing secret before its host.
fn written(key: &str, text: &str, allows_http: bool) -> Result<Url, SettingsError> {
    let url = address(text, allows_http).map_err(|why| wrong(key, why))?;
    if url.username().is_empty() && url.password().is_none() {
        return Ok(url);
    }
    let instead = match key {
        "url" => "`urlEnv` names the variable that has the whole address",
        _ => "`tokenEnv` names the variable that has a token",
    };
    Err(wrong(key, format!("it must not contain a user name or a password; {instead}")))
}

/// An address to send to: `https`, or `http` on this machine or where it is allowed.
pub(crate) fn address(text: &str, allows_http: bool) -> Result<Url, String> {
    let url: Url = text.parse().map_err(|error| format!("it is not an address: {error}"))?;
    match url.scheme() {
        "https" => Ok(url),
        "http" if allows_http || url.host_str().is_some_and(is_loopback) => Ok(url),
        "http" => Err("`http` is not encrypted; use `https`, or set `allowHttp = true`".to_owned()),
        other => Err(format!("`{other}` is not `https`")),
    }
}

/// Whether a host is this machine.
pub(crate) fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Whether a name fits a pattern in which `*` matches any text.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((head, rest)) => match name.strip_prefix(head) {
            None => false,
            Some(tail) => {
                let mut ends = tail.char_indices().map(|(at, _)| at).chain([tail.len()]);
                ends.any(|at| matches(rest, &tail[at..]))
            }
        },
    }
}

fn wrong(key: &str, message: String) -> SettingsError {
    SettingsError { key: Some(key.to_owned()), message: format!("`{key}`: {message}") }
}

fn missing(message: &str) -> SettingsError {
    SettingsError { key: None, message: message.to_owned() }
}

/// The keys that were not read yet.
struct Keys(Map<String, Value>);

impl Keys {
    fn text(&mut self, key: &str) -> Result<Option<String>, SettingsError> {
        match self.0.remove(key) {
            None => Ok(None),
            Some(Value::String(text)) if !text.is_empty() => Ok(Some(text)),
            Some(_) => Err(wrong(key, "it must be a text".to_owned())),
        }
    }

    fn required(&mut self, key: &str) -> Result<String, SettingsError> {
        self.text(key)?.ok_or_else(|| missing(&format!("`{key}` is missing")))
    }

    /// The name of a variable of the environment.
    fn variable(&mut self, key: &str) -> Result<Option<String>, SettingsError> {
        let name = self.text(key)?;
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        match name {
            Some(name) if !name.chars().all(is_name) => {
                // The value may be the secret itself, so it is not repeated.
                Err(wrong(key, "it must be the name of a variable of the environment".to_owned()))
            }
            name => Ok(name),
        }
    }

    fn texts(&mut self, key: &str) -> Result<Option<Vec<String>>, SettingsError> {
        let Some(value) = self.0.remove(key) else { return Ok(None) };
        let texts = value.as_array().map(|items| {
            items.iter().map(|item| item.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>()
        });
        texts.flatten().map(Some).ok_or_else(|| wrong(key, "it must be a list of texts".to_owned()))
    }

    fn number(&mut self, key: &str) -> Result<Option<i64>, SettingsError> {
        let Some(value) = self.0.remove(key) else { return Ok(None) };
        value.as_i64().map(Some).ok_or_else(|| wrong(key, "it must be a whole number".to_owned()))
    }

    fn flag(&mut self, key: &str) -> Result<bool, SettingsError> {
        let Some(value) = self.0.remove(key) else { return Ok(false) };
        value.as_bool().ok_or_else(|| wrong(key, "it must be true or false".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: Value) -> Result<ChannelSettings, SettingsError> {
        ChannelSettings::read(value.as_object().cloned().unwrap())
    }

    #[test]
    fn a_wrong_key_is_named() {
        let rows = [
            (json!({}), None, "`type` is missing"),
            (
                json!({ "type": "pager" }),
                Some("type"),
                "`type`: `pager` is not a channel type; the types are webhook, slack, ntfy, smtp, desktop, command",
            ),
            (json!({ "type": "desktop", "x": 1 }), Some("x"), "`x`: a channel of type `desktop` has no `x`"),
            (
                json!({ "type": "desktop", "on": ["fail"] }),
                Some("on"),
                "`on`: `fail` is not among what can be sent: question, failure, limit, budget, end",
            ),
            (
                json!({ "type": "webhook", "url": "http://h/x", "secretEnv": "S" }),
                Some("url"),
                "`url`: `http` is not encrypted; use `https`, or set `allowHttp = true`",
            ),
            (
                json!({ "type": "webhook", "url": "https://me:pw@h/x", "secretEnv": "S" }),
                Some("url"),
                "`url`: it must not contain a user name or a password; `urlEnv` names the variable that has the whole address",
            ),
            (
                json!({ "type": "ntfy", "server": "https://tk_1@h", "topic": "t" }),
                Some("server"),
                "`server`: it must not contain a user name or a password; `tokenEnv` names the variable that has a token",
            ),
            (
                json!({ "type": "webhook", "url": "https://h/x" }),
                None,
                "`secretEnv` is missing: the variable with the key that signs",
            ),
            (
                json!({ "type": "webhook", "url": "https://h/x", "secretEnv": "whsec_a+b/c=" }),
                Some("secretEnv"),
                "`secretEnv`: it must be the name of a variable of the environment",
            ),
            (
                json!({ "type": "slack", "channel": "C", "tokenEnv": "T", "appTokenEnv": "A" }),
                None,
                "answers from Slack need both `appTokenEnv` and `allow`, the ids of the users who may answer",
            ),
            (
                json!({ "type": "smtp", "host": "mail.example.com", "tls": "none", "from": "a@b.c", "to": ["a@b.c"] }),
                Some("tls"),
                "`tls`: `none` is for a server on this machine only",
            ),
            (
                json!({ "type": "command", "argv": [] }),
                None,
                "`argv` is missing: the program and its arguments",
            ),
        ];
        for (value, key, message) in rows {
            let error = SettingsError { key: key.map(str::to_owned), message: message.to_owned() };
            assert_eq!(read(value.clone()), Err(error), "{value}");
        }
    }

    #[test]
    fn a_program_that_is_a_relative_path_is_in_the_folder_of_the_settings() {
        let program = |program: &str| {
            let read = read(json!({ "type": "command", "argv": [program, "./x"] })).unwrap();
            match read.in_folder(Path::new("/flows/a")).target {
                ChannelTarget::Command { argv, .. } => argv,
                other => panic!("{other:?}"),
            }
        };
        let rows =
            ["./notify.sh", "bin/notify.sh", "../notify.sh", "/bin/notify.sh", "notify.sh"].map(program);
        let expected = [
            "/flows/a/notify.sh",
            "/flows/a/bin/notify.sh",
            "/flows/a/../notify.sh",
            "/bin/notify.sh",
            "notify.sh",
        ];
        assert_eq!(rows, expected.map(|program| [program, "./x"]));
    }

    #[test]
    fn a_channel_is_quiet_about_what_needs_nobody_unless_it_is_set() {
        let settings = read(json!({ "type": "desktop", "flows": ["night*", "a*c*e"] })).unwrap();
        assert_eq!(settings.on, [NoticeKind::Question, NoticeKind::Failure, NoticeKind::Budget]);
        let wanted =
            ["nightly", "night", "abcde", "ace", "abcd", "by-night"].map(|flow| settings.wants_flow(flow));
        assert_eq!(wanted, [true, true, true, true, false, false]);
    }
}
