//! The layer table drawn for `ARCHITECTURE.md`: floors of crates, and a row for each.

use std::fmt::Write as _;

use super::Layer;

/// The floors as a block of text, the highest first. A crate is one floor above the highest crate it uses,
/// and names in its box all that it uses.
pub(crate) fn draw(layers: &[Layer]) -> String {
    let highest = layers.iter().map(|layer| floor(layers, layer)).max().unwrap_or_default();
    let mut lines = vec!["```text".to_owned()];
    for level in (0..=highest).rev() {
        let here = layers.iter().filter(|layer| floor(layers, layer) == level);
        let boxes: Vec<[String; 4]> = here.map(draw_box).collect();
        for line in 0..4 {
            let row: Vec<&str> = boxes.iter().map(|lines| lines[line].as_str()).collect();
            lines.push(format!("  {}", row.join("   ")));
        }
    }
    lines.push("```".to_owned());
    lines.join("\n")
}

fn draw_box(layer: &Layer) -> [String; 4] {
    let name = short(layer.package);
    let uses = match uses(layer) {
        names if names.is_empty() => String::new(),
        names => format!("▼ {names}"),
    };
    let width = name.len().max(uses.chars().count());
    let edge = "─".repeat(width + 2);
    [format!("┌{edge}┐"), format!("│ {name:width$} │"), format!("│ {uses:width$} │"), format!("└{edge}┘")]
}

/// The table as Markdown, the highest layer first, with what each crate uses, owns and must not know.
pub(crate) fn table(layers: &[Layer]) -> String {
    let mut text = "| Crate | Uses | Owns | Must not know |\n|---|---|---|---|".to_owned();
    for layer in layers.iter().rev() {
        let uses = match uses(layer) {
            names if names.is_empty() => "nobody".to_owned(),
            names => names,
        };
        // Writing to a string cannot fail.
        let _ = write!(text, "\n| `{}` | {uses} | {} | {} |", layer.folder, layer.owns, layer.must_not_know);
    }
    text
}

fn floor(layers: &[Layer], layer: &Layer) -> usize {
    let below = layers.iter().filter(|other| layer.knows.contains(&other.package));
    below.map(|other| floor(layers, other) + 1).max().unwrap_or_default()
}

fn uses(layer: &Layer) -> String {
    let names: Vec<&str> = layer.knows.iter().map(|name| short(name)).collect();
    names.join(", ")
}

fn short(package: &str) -> &str {
    package.strip_prefix("inspan-").unwrap_or(package)
}
