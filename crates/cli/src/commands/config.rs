//! `inspan config`: each setting and where it comes from.

use serde_json::{Map, Value, json};

use crate::exit::Exit;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::invocation::OutputForm;
use crate::settings::Settings;
use crate::terminal;
use inspan_view::{Line, Tone, safe::harmless};

pub(super) fn run(invocation: &Invocation) -> Result<Exit, Failure> {
    let settings = Settings::of(None, invocation)?;
    if invocation.form == OutputForm::Json {
        let values: Map<String, Value> = settings
            .iter()
            .map(|(key, setting)| (key.to_owned(), json!({ "value": setting.value, "from": setting.from })))
            .collect();
        invocation.json(&json!({ "settings": values, "files": settings.files() }));
        return Ok(Exit::Success);
    }
    let rows: Vec<(&str, String, &str)> = settings
        .iter()
        .map(|(key, setting)| {
            let value = setting.value.as_str().map_or_else(|| setting.value.to_string(), str::to_owned);
            (key, harmless(&value), setting.from.as_str())
        })
        .collect();
    if rows.is_empty() {
        let own = invocation.config_file();
        let own = own.map(|file| format!("{}, or ", file.display())).unwrap_or_default();
        terminal::progress(&format!("no settings; create {own}inspan.toml in a project\n"));
        return Ok(Exit::Success);
    }
    let widest = |column: fn(&(&str, String, &str)) -> usize| rows.iter().map(column).max().unwrap_or(0);
    let keys = widest(|row| row.0.chars().count());
    let values = widest(|row| row.1.chars().count()).min(40);
    for (key, value, from) in &rows {
        let mut line = Line::new();
        line.push(Tone::Accent, key).pad_to(keys + 2);
        line.push(Tone::Plain, value).pad_to(keys + values + 4);
        line.push(Tone::Faint, &format!(" {}", harmless(from)));
        terminal::data_line(&line.render(invocation.terminal.stdout));
    }
    Ok(Exit::Success)
}
