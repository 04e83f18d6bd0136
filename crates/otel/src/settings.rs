//! Where traces go and what is in them, from the variables that the OpenTelemetry specification names.

use std::{borrow::Cow, time::Duration};

use inspan_protocol::Environment;
use inspan_transport::{HeaderMap, HeaderName, HeaderValue, Url};
use percent_encoding::percent_decode_str;

/// The path of traces below a collector's address.
const TRACES: &str = "v1/traces";
/// How long one request may take, unless a variable says otherwise.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The longest that a variable may set.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(600);

/// Whether a trace holds what agents, tools and people wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Content {
    /// It does not.
    #[default]
    Off,
    /// It does.
    On,
}

impl Content {
    /// As `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT` says; off unless it does.
    pub fn of(environment: &Environment) -> Self {
        let value = environment.get("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT").unwrap_or_default();
        let on = ["true", "span_only", "span_and_event"];
        if on.iter().any(|word| value.eq_ignore_ascii_case(word)) { Self::On } else { Self::Off }
    }
}

/// How spans are sent. Headers may hold keys and are never shown.
#[derive(Clone, Debug)]
pub struct ExportSettings {
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) timeout: Duration,
    pub(crate) compression: Compression,
    /// Attributes of what sends the spans.
    pub(crate) resource: Vec<(String, String)>,
    pub(crate) environment: Environment,
}

/// How the body of a request is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compression {
    None,
    Gzip,
}

/// A variable or an address that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {what}")]
pub struct SettingsError {
    /// The variable, or the option of the command line.
    pub name: String,
    /// What is wrong with it.
    pub what: String,
}

impl SettingsError {
    fn new(name: &str, what: impl Into<String>) -> Self {
        Self { name: name.to_owned(), what: what.into() }
    }
}

impl ExportSettings {
    /// Where spans are sent while a session runs: nowhere unless `OTEL_EXPORTER_OTLP_ENDPOINT` or
    /// `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` is set, or if `OTEL_SDK_DISABLED` or `OTEL_TRACES_EXPORTER` turns it off.
    ///
    /// # Errors
    /// A variable has a value that cannot be used.
    pub fn live(environment: &Environment) -> Result<Option<Self>, SettingsError> {
        let is_off =
            environment.get("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"))
                || environment
                    .get("OTEL_TRACES_EXPORTER")
                    .is_some_and(|value| value.eq_ignore_ascii_case("none"));
        if is_off {
            return Ok(None);
        }
        // The address of one signal is used as it is, the common one has a path for each signal.
        let url =
            match (Variable::TRACES.get(environment, "ENDPOINT"), Variable::ALL.get(environment, "ENDPOINT"))
            {
                (Some((name, url)), _) => address(&name, url)?,
                (None, Some((name, url))) => below(address(&name, url)?),
                (None, None) => return Ok(None),
            };
        Self::with(url, environment).map(Some)
    }

    /// The collector at an address that a person names, with everything else from the environment.
    ///
    /// # Errors
    /// The address is not an HTTP address, or a variable has a value that cannot be used.
    pub fn to(name: &str, url: &str, environment: &Environment) -> Result<Self, SettingsError> {
        Self::with(below(address(name, url)?), environment)
    }

    fn with(url: Url, environment: &Environment) -> Result<Self, SettingsError> {
        if let Some((name, protocol)) = variable(environment, "PROTOCOL")
            && protocol != "http/protobuf"
        {
            let what = format!("`{protocol}` is not supported; traces are sent as `http/protobuf`");
            return Err(SettingsError::new(&name, what));
        }
        let compression = match variable(environment, "COMPRESSION") {
            None => Compression::None,
            Some((_, "none")) => Compression::None,
            Some((_, "gzip")) => Compression::Gzip,
            Some((name, other)) => {
                return Err(SettingsError::new(&name, format!("`{other}` is neither `gzip` nor `none`")));
            }
        };
        let timeout = match variable(environment, "TIMEOUT") {
            None => TIMEOUT,
            Some((name, millis)) => {
                let limit =
                    millis.trim().parse().ok().map(Duration::from_millis).filter(|limit| !limit.is_zero());
                limit
                    .ok_or_else(|| SettingsError::new(&name, "is not a number of milliseconds"))?
                    .min(LONGEST_TIMEOUT)
            }
        };
        Ok(Self {
            url,
            headers: headers(environment)?,
            timeout,
            compression,
            resource: resource(environment)?,
            environment: environment.clone(),
        })
    }

    /// What is secret of an address that the command line names.
    pub(crate) fn secrets(&self) -> Vec<String> {
        let password = self.url.password().map(|password| percent_decode_str(password).decode_utf8_lossy());
        let values = self.url.query_pairs().map(|(_, value)| value);
        password.into_iter().chain(values).map(Cow::into_owned).collect()
    }

    /// Where spans are sent, without a login that the address may hold.
    pub fn shown_url(&self) -> String {
        let mut url = self.url.clone();
        // Both fail only for an address that can hold no login.
        let _ = url.set_username("");
        let _ = url.set_password(None);
        url.set_query(None);
        url.to_string()
    }
}

/// The beginning of a variable's name.
struct Variable(&'static str);

impl Variable {
    const TRACES: Self = Self("OTEL_EXPORTER_OTLP_TRACES_");
    const ALL: Self = Self("OTEL_EXPORTER_OTLP_");

    fn get<'a>(&self, environment: &'a Environment, what: &str) -> Option<(String, &'a str)> {
        let name = format!("{}{what}", self.0);
        environment.get(&name).map(|value| (name.clone(), value))
    }
}

/// The value for traces, else the one for all signals, with its name.
fn variable<'a>(environment: &'a Environment, what: &str) -> Option<(String, &'a str)> {
    Variable::TRACES.get(environment, what).or_else(|| Variable::ALL.get(environment, what))
}

fn address(name: &str, text: &str) -> Result<Url, SettingsError> {
    let url =
        Url::parse(text.trim()).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    url.ok_or_else(|| SettingsError::new(name, "is not an address such as `http://127.0.0.1:4318`"))
}

/// The address of traces below a collector's.
fn below(mut url: Url) -> Url {
    let path = url.path().trim_end_matches('/');
    if !path.ends_with(TRACES) {
        let path = format!("{path}/{TRACES}");
        url.set_path(&path);
    }
    url
}

/// A list of `key=value`, with values as they are in addresses.
fn pairs(name: &str, text: &str) -> Result<Vec<(String, String)>, SettingsError> {
    let wrong = || SettingsError::new(name, "is not a list of `key=value` with commas between them");
    text.split(',')
        .map(str::trim)
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (key, value) = pair.split_once('=').ok_or_else(wrong)?;
            let value = percent_decode_str(value.trim()).decode_utf8().map_err(|_| wrong())?;
            let key = key.trim();
            if key.is_empty() { Err(wrong()) } else { Ok((key.to_owned(), value.into_owned())) }
        })
        .collect()
}

fn headers(environment: &Environment) -> Result<HeaderMap, SettingsError> {
    let mut headers = HeaderMap::new();
    let Some((name, text)) = variable(environment, "HEADERS") else { return Ok(headers) };
    for (key, value) in pairs(&name, text)? {
        let wrong = || SettingsError::new(&name, format!("`{key}` cannot be sent as a header"));
        let header = HeaderName::try_from(key.as_str()).map_err(|_| wrong())?;
        let mut value = HeaderValue::try_from(value).map_err(|_| wrong())?;
        value.set_sensitive(true);
        headers.insert(header, value);
    }
    Ok(headers)
}

fn resource(environment: &Environment) -> Result<Vec<(String, String)>, SettingsError> {
    const NAME: &str = "OTEL_RESOURCE_ATTRIBUTES";
    let given = environment.get(NAME).map(|text| pairs(NAME, text)).transpose()?.unwrap_or_default();
    let mut resource = vec![
        ("service.name".to_owned(), "inspan".to_owned()),
        ("service.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
    ];
    let service =
        environment.get("OTEL_SERVICE_NAME").map(|name| ("service.name".to_owned(), name.to_owned()));
    for (key, value) in given.into_iter().chain(service) {
        match resource.iter_mut().find(|(known, _)| *known == key) {
            Some((_, old)) => *old = value,
            None => resource.push((key, value)),
        }
    }
    Ok(resource)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)]) -> Environment {
        variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn url(variables: &[(&str, &str)]) -> Result<Option<String>, String> {
        let settings = ExportSettings::live(&environment(variables));
        settings
            .map(|settings| settings.map(|settings| settings.shown_url()))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_address_is_that_of_the_specification() {
        const ALL: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
        const TRACES: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
        let some = |url: &str| Ok(Some(url.to_owned()));
        let rows = [
            (url(&[]), Ok(None)),
            (url(&[(ALL, "")]), Ok(None)),
            (url(&[(ALL, "http://h:4318")]), some("http://h:4318/v1/traces")),
            (url(&[(ALL, "http://h:4318/")]), some("http://h:4318/v1/traces")),
            (url(&[(ALL, "https://h/otlp")]), some("https://h/otlp/v1/traces")),
            (url(&[(ALL, "http://me:secret@h/")]), some("http://h/v1/traces")),
            (url(&[(ALL, "http://h"), (TRACES, "http://t:1/own")]), some("http://t:1/own")),
            (url(&[(ALL, "http://h"), ("OTEL_SDK_DISABLED", "true")]), Ok(None)),
            (url(&[(ALL, "http://h"), ("OTEL_TRACES_EXPORTER", "none")]), Ok(None)),
            (
                url(&[(ALL, "localhost:4318")]),
                Err(format!("{ALL}: is not an address such as `http://127.0.0.1:4318`")),
            ),
            (
                url(&[(ALL, "http://h"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]),
                Err("OTEL_EXPORTER_OTLP_PROTOCOL: `grpc` is not supported; traces are sent as `http/protobuf`"
                    .to_owned()),
            ),
            (url(&[(ALL, "http://h"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")]), some("http://h/v1/traces")),
        ];
        for (read, expected) in rows {
            assert_eq!(read, expected);
        }
    }

    #[test]
    fn headers_resource_and_limits_are_read() {
        let settings = ExportSettings::to(
            "--otlp",
            "http://h/v1/traces",
            &environment(&[
                ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b, x = y"),
                ("OTEL_EXPORTER_OTLP_TIMEOUT", "1500"),
                ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
                ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=ci,service.name=other"),
                ("OTEL_SERVICE_NAME", "nightly"),
            ]),
        )
        .unwrap();
        let headers: Vec<_> = settings
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap(), value.is_sensitive()))
            .collect();
        assert_eq!(headers, [("api-key", "a b", true), ("x", "y", true)]);
        assert_eq!(settings.shown_url(), "http://h/v1/traces");
        assert_eq!(
            (settings.timeout, settings.compression),
            (Duration::from_millis(1500), Compression::Gzip)
        );
        let resource: Vec<_> =
            settings.resource.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(
            resource,
            [
                ("service.name", "nightly"),
                ("service.version", env!("CARGO_PKG_VERSION")),
                ("deployment.environment.name", "ci"),
            ]
        );
    }

    #[test]
    fn an_error_names_the_variable_and_hides_its_value() {
        let wrong = |name: &str, value: &str| {
            ExportSettings::to("--otlp", "http://h", &environment(&[(name, value)])).unwrap_err().to_string()
        };
        assert_eq!(
            wrong("OTEL_EXPORTER_OTLP_HEADERS", "authorization=a\u{7f}secret"),
            "OTEL_EXPORTER_OTLP_HEADERS: `authorization` cannot be sent as a header"
        );
        assert_eq!(
            wrong("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "soon"),
            "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT: is not a number of milliseconds"
        );
        assert_eq!(
            wrong("OTEL_RESOURCE_ATTRIBUTES", "secret"),
            "OTEL_RESOURCE_ATTRIBUTES: is not a list of `key=value` with commas between them"
        );
    }

    #[test]
    fn content_is_off_unless_a_variable_turns_it_on() {
        const NAME: &str = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT";
        let rows =
            [("", false), ("false", false), ("event_only", false), ("True", true), ("span_only", true)];
        for (value, on) in rows {
            assert_eq!(Content::of(&environment(&[(NAME, value)])) == Content::On, on, "{value}");
        }
    }
}
