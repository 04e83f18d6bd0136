//! Which variables hold secrets, and which of their values are no secrets after all: what is not a secret must never
//! be changed.

use std::borrow::Cow;

use super::decoded::decoded;

/// Shorter values are ordinary words and numbers.
pub(super) const SHORTEST: usize = 8;
/// A value that is marked as a secret by its owner may be shorter.
const SHORTEST_MARKED: usize = 4;
/// From here on a value of letters alone is taken for a key rather than a word.
const LONGEST_WORD: usize = 15;

/// A variable with one of these words in its name holds a secret.
const SECRET: &[&str] = &[
    "APIKEY",
    "BEARER",
    "JWT",
    "PASS",
    "PASSCODE",
    "PASSPHRASE",
    "PASSWD",
    "PASSWORD",
    "PAT",
    "PWD",
    "SECRET",
    "TOKEN",
];
/// A word that ends so is one of these, too: `PGPASSWORD`.
const SECRET_ENDINGS: &[&str] = &["APIKEY", "PASSWD", "PASSWORD", "SECRET", "TOKEN"];
/// One with these may hold one.
const PERHAPS: &[&str] = &["AUTH", "AUTHORIZATION", "COOKIE", "CREDENTIAL", "KEY", "OAUTH"];
/// One with these holds lines or pairs of a name and a value.
const HEADERS: &[&str] = &["HEADER", "HEADERS"];
/// One with these says how something is done, or which part of the data is meant.
const NO_SECRET: &[&str] =
    &["CACHE", "FOREIGN", "GROUP", "INDEX", "PARTITION", "PRIMARY", "PUBLIC", "SHARD", "SORT"];
/// One that ends with these says something about a secret.
const ABOUT_SECRET: &[&str] = &[
    "ALGORITHM",
    "COUNT",
    "DIR",
    "DOMAIN",
    "ENABLED",
    "ENDPOINT",
    "EXPIRY",
    "FILE",
    "FORMAT",
    "HOST",
    "LENGTH",
    "LIMIT",
    "METHOD",
    "MODE",
    "NAME",
    "PATH",
    "PORT",
    "PREFIX",
    "PROVIDER",
    "REGION",
    "SCOPE",
    "SCOPES",
    "SIZE",
    "SOCK",
    "TIMEOUT",
    "TTL",
    "TYPE",
    "URI",
    "URL",
    "VERSION",
];
/// Passwords of examples, and frequent words.
const COMMON: &[&str] = &[
    "administrator",
    "anonymous",
    "authentication",
    "authorization",
    "certificate",
    "changeit",
    "changeme",
    "credential",
    "credentials",
    "database",
    "default",
    "development",
    "disabled",
    "enabled",
    "environment",
    "example",
    "external",
    "internal",
    "localhost",
    "mysqlroot",
    "optional",
    "password",
    "passwords",
    "placeholder",
    "postgres",
    "postgresql",
    "production",
    "redacted",
    "required",
    "secret",
    "secrets",
    "something",
    "staging",
    "testing",
    "timestamp",
    "undefined",
    "username",
];
/// A path begins so.
const ROOTS: &[&str] = &[
    "./",
    "../",
    "~/",
    "/app/",
    "/data/",
    "/dev/",
    "/etc/",
    "/home/",
    "/mnt/",
    "/opt/",
    "/private/",
    "/proc/",
    "/root/",
    "/run/",
    "/secrets/",
    "/srv/",
    "/sys/",
    "/tmp/",
    "/usr/",
    "/var/",
    "/work/",
    "/workspace/",
    "/Users/",
    "C:\\",
];

/// Where a secret is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    /// Anywhere.
    Anywhere,
    /// Where it is a whole word, since it looks like one.
    Word,
}

/// What a variable's name says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    Plain,
    Perhaps,
    Secret,
    Headers,
}

/// The secrets in a variable.
pub(super) fn secrets<'a>(name: &str, value: &'a str) -> Vec<(Cow<'a, str>, Sort)> {
    let mut found = Vec::new();
    if let Some(password) = super::shapes::password_of_url(value) {
        found.extend(sort(password, Name::Secret).map(|sort| (Cow::Borrowed(password), sort)));
    }
    let name = said_by(name);
    match name {
        Name::Plain => {}
        Name::Headers => {
            for field in value.split(['\n', ',']) {
                let Some((_, content)) = field.split_once([':', '=']) else { continue };
                let content = content.trim();
                // Those of OpenTelemetry are written as in addresses.
                for content in [Cow::Borrowed(content)].into_iter().chain(decoded(content).map(Cow::Owned)) {
                    let token = content.split_once(' ').map(|(_, token)| token.trim().to_owned());
                    for secret in [content].into_iter().chain(token.map(Cow::Owned)) {
                        found.extend(sort(&secret, Name::Perhaps).map(|sort| (secret, sort)));
                    }
                }
            }
        }
        Name::Perhaps | Name::Secret => {
            let value = value.trim();
            found.extend(sort(value, name).map(|sort| (Cow::Borrowed(value), sort)));
            let lines =
                value.lines().map(str::trim).filter(|line| line.len() > 20 && line.len() < value.len());
            found.extend(
                lines
                    .filter(|line| !line.starts_with("-----"))
                    .filter_map(|line| Some((Cow::Borrowed(line), sort(line, name)?))),
            );
            if let Ok(serde_json::Value::Object(fields)) = serde_json::from_str(value) {
                for (field, content) in fields {
                    if let serde_json::Value::String(content) = content {
                        let inner = secrets(&camel_to_snake(&field), &content);
                        found.extend(
                            inner.into_iter().map(|(text, sort)| (Cow::Owned(text.into_owned()), sort)),
                        );
                    }
                }
            }
        }
    }
    found
}

/// Where a value is replaced that its owner calls a secret.
pub(super) fn sort_of_secret(value: &str) -> Option<Sort> {
    let value = value.trim();
    if value.len() < SHORTEST_MARKED || COMMON.contains(&&*value.to_lowercase()) {
        return None;
    }
    Some(if value.len() < SHORTEST || is_word(value) { Sort::Word } else { Sort::Anywhere })
}

/// Where a line of a secret is replaced, if it is not like other texts.
pub(super) fn sort_of_line(line: &str) -> Option<Sort> {
    sort(line, Name::Secret)
}

/// Whether a variable's name says that its value may be a secret.
pub(super) fn looks_secret(name: &str) -> bool {
    said_by(name) != Name::Plain
}

fn said_by(name: &str) -> Name {
    let upper = name.to_ascii_uppercase();
    let words: Vec<&str> = upper.split(['_', '-', '.']).filter(|word| !word.is_empty()).collect();
    let any = |list: &[&str]| {
        words
            .iter()
            .any(|word| list.contains(word) || word.strip_suffix('S').is_some_and(|one| list.contains(&one)))
    };
    let Some(last) = words.last() else { return Name::Plain };
    // The working folders of a shell.
    let is_folder = matches!(upper.as_str(), "PWD" | "OLDPWD");
    if is_folder || any(NO_SECRET) || ABOUT_SECRET.contains(last) {
        return Name::Plain;
    }
    let ends_as_secret = |word: &&str| SECRET_ENDINGS.iter().any(|end| word.ends_with(end));
    let is_key = |pair: &[&str]| pair[1] == "KEY" && matches!(pair[0], "API" | "ACCESS" | "PRIVATE");
    if any(HEADERS) {
        Name::Headers
    } else if any(SECRET) || words.iter().any(ends_as_secret) || words.windows(2).any(is_key) {
        Name::Secret
    } else if any(PERHAPS) {
        Name::Perhaps
    } else {
        Name::Plain
    }
}

fn is_word(value: &str) -> bool {
    let letters = |part: &str| !part.is_empty() && part.chars().all(char::is_alphabetic);
    value.split('_').all(letters) && value.len() <= LONGEST_WORD
}

fn sort(value: &str, name: Name) -> Option<Sort> {
    let is_number = !value.contains(|c: char| c.is_alphabetic()) && value.len() < 16;
    let is_address = value.contains("://") && super::shapes::password_of_url(value).is_none();
    if value.len() < SHORTEST
        || is_number
        || is_address
        || ROOTS.iter().any(|root| value.starts_with(root))
        || COMMON.contains(&&*value.to_lowercase())
    {
        return None;
    }
    match (is_word(value), name) {
        (false, _) => Some(Sort::Anywhere),
        (true, Name::Secret) => Some(Sort::Word),
        (true, _) => None,
    }
}

fn camel_to_snake(name: &str) -> String {
    let mut snake = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(c);
    }
    snake
}
