//! `inspan nodes [TYPE]`: the node types of flows, or one of them with all that it takes and gives. With `--flow` those of
//! the packs of a flow too.

use inspan_flow::{NodeCatalog, NodeTypeInfo, types_of};
use serde_json::{Value, json};

use super::{all_nodes, flow};
use crate::args::NodesArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::invocation::OutputForm;
use inspan_view::{Line, Tone};

/// How deep the keys of an input are listed.
const DEPTH: usize = 2;

pub(super) fn run(args: &NodesArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let known = all_nodes();
    let known = match &args.flow {
        Some(path) => {
            let loaded = flow::read(path)?;
            types_of(&loaded, &known)
                .map_err(|problems| flow::invalid(&problems, &loaded, None, invocation))?
        }
        None => NodeCatalog::clone(&known),
    };
    match &args.node_type {
        Some(name) => describe(&find(name, &known)?, invocation),
        None => list(&known, invocation),
    }
    Ok(Exit::Success)
}

/// The node type of a name.
pub(super) fn find(name: &str, registry: &NodeCatalog) -> Result<NodeTypeInfo, Failure> {
    let found = registry.get(name).map(|node_type| node_type.describe());
    found.ok_or_else(|| Failure::unknown("node type", name, registry.names()))
}

fn list(known: &NodeCatalog, invocation: &Invocation) {
    let mut all = known.describe();
    if invocation.form == OutputForm::Json {
        invocation.json(&all.iter().map(short).collect::<Vec<_>>());
        return;
    }
    all.sort_by(|a, b| a.pack.cmp(&b.pack));
    let width = all.iter().map(|info| info.name.len()).max().unwrap_or(0);
    let mut pack = "";
    for info in &all {
        if *info.pack != *pack {
            let gap = (!pack.is_empty()).then(Line::new);
            invocation.print(gap.into_iter().chain([Line::new().with(Tone::Strong, &info.pack)]));
            pack = &info.pack;
        }
        let mut line = Line::new();
        line.push(Tone::Plain, "  ").push(Tone::Accent, &info.name).pad_to(width + 4);
        line.push(Tone::Plain, &info.help);
        invocation.print([line]);
    }
}

fn short(info: &NodeTypeInfo) -> Value {
    json!({ "type": &*info.name, "pack": &*info.pack, "help": info.help })
}

fn describe(info: &NodeTypeInfo, invocation: &Invocation) {
    if invocation.form == OutputForm::Json {
        let mut value = short(info);
        value["input"] = info.input.clone();
        value["output"] = info.output.clone();
        invocation.json(&value);
        return;
    }
    let mut lines =
        vec![Line::new().with(Tone::Accent, &info.name).with(Tone::Plain, &format!("  {}", info.help))];
    for (title, schema) in [("Input", &info.input), ("Output", &info.output)] {
        lines.push(Line::new());
        lines.push(Line::new().with(Tone::Strong, title));
        let before = lines.len();
        keys(schema, schema, 1, &mut lines);
        if lines.len() == before {
            lines.push(Line::new().with(Tone::Plain, "  ").with(Tone::Faint, &kind(schema, schema)));
        }
    }
    invocation.print(lines);
}

/// The keys of an object, each with its kind and its sentence, and the keys within them.
fn keys(schema: &Value, root: &Value, depth: usize, lines: &mut Vec<Line>) {
    let schema = resolved(schema, root);
    for variant in variants(schema) {
        keys(variant, root, depth, lines);
    }
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return };
    let required: Vec<&str> = texts(schema.get("required"));
    let width = properties.keys().map(String::len).max().unwrap_or(0);
    for (key, value) in properties.iter().filter(|(_, value)| value.get("x-compiler").is_none()) {
        let mut line = Line::new();
        line.push(Tone::Plain, &"  ".repeat(depth)).push(Tone::Accent, key).pad_to(2 * depth + width + 2);
        line.push(Tone::Faint, &kind(value, root));
        if required.contains(&key.as_str()) {
            line.push(Tone::Warning, " required");
        }
        let about = value.get("description").or_else(|| resolved(value, root).get("description"));
        if let Some(about) = about.and_then(Value::as_str) {
            let first = about.split("\n\n").next().unwrap_or(about).replace('\n', " ");
            line.push(Tone::Plain, &format!("  {first}"));
        }
        lines.push(line);
        if depth < DEPTH {
            keys(value, root, depth + 1, lines);
        }
    }
}

fn resolved<'a>(schema: &'a Value, root: &'a Value) -> &'a Value {
    let target = schema.get("$ref").and_then(Value::as_str).and_then(|path| path.strip_prefix('#'));
    target.and_then(|path| root.pointer(path)).unwrap_or(schema)
}

fn variants(schema: &Value) -> impl Iterator<Item = &Value> {
    ["anyOf", "oneOf", "allOf"].into_iter().filter_map(|key| schema.get(key)?.as_array()).flatten()
}

fn texts(value: Option<&Value>) -> Vec<&str> {
    value.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
}

/// What kind of value it is, in a word or a few.
fn kind(schema: &Value, root: &Value) -> String {
    let schema = resolved(schema, root);
    if let Some(words) = schema.get("enum").and_then(Value::as_array) {
        return words.iter().filter(|word| !word.is_null()).map(plain).collect::<Vec<_>>().join(" | ");
    }
    if let Some(word) = schema.get("const") {
        return plain(word);
    }
    let list = |of: &str| match (of, schema.get("items")) {
        ("array", Some(items)) => format!("list of {}", kind(items, root)),
        ("array", None) => "list".to_owned(),
        (other, _) => other.to_owned(),
    };
    let mut kinds: Vec<String> = match schema.get("type") {
        Some(Value::String(one)) => vec![list(one)],
        Some(Value::Array(several)) => {
            several.iter().filter_map(Value::as_str).filter(|one| *one != "null").map(list).collect()
        }
        _ => variants(schema).map(|variant| kind(variant, root)).filter(|kind| kind != "null").collect(),
    };
    kinds.dedup();
    if kinds.is_empty() { "any".to_owned() } else { kinds.join(" | ") }
}

fn plain(word: &Value) -> String {
    word.as_str().map_or_else(|| word.to_string(), str::to_owned)
}
