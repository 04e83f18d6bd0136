//! What a question for permission shows beside the arguments of its tool: the changes, texts and places that a yes covers.

use std::collections::BTreeSet;

use inspan_protocol::beginning;
use serde_json::{Map, Value, json};

use super::super::permission::SHOWN;
use super::super::wire::Location;

/// Changes and places that a question lists at most, each.
const MOST_FILES: usize = 100;

/// The arguments with what else is known of the call, and the files that are shown by that. What the arguments say already is
/// not said again.
pub(super) fn shown(
    arguments: Value,
    title: Option<&str>,
    locations: &[Location],
    content: &[Value],
) -> (Value, Vec<String>) {
    let mut said = BTreeSet::from([title.unwrap_or_default(), ""]);
    texts_of(&arguments, &mut said);
    let (mut room, mut paths, mut files_not_shown) = (Room { left: SHOWN, hidden: 0 }, Vec::new(), 0_usize);
    let (mut changes, mut texts) = (Vec::new(), Vec::new());
    for block in content {
        match block["type"].as_str() {
            Some("diff") => {
                let text = |key: &str| block[key].as_str().unwrap_or_default();
                let (path, old, new) = (text("path"), text("oldText"), text("newText"));
                if [path, old, new].iter().all(|text| said.contains(text)) {
                    paths.push(path.to_owned());
                    continue;
                }
                let (old, new) = changed(old, new);
                if changes.len() >= MOST_FILES || path.len() > SHOWN || room.left == 0 && !new.is_empty() {
                    files_not_shown += 1;
                    continue;
                }
                paths.push(path.to_owned());
                changes.push((json!({ "path": path, "newText": room.take(new) }), old));
            }
            Some("content") => {
                let text = block["content"]["text"].as_str().filter(|text| !said.contains(text));
                texts.extend(text.map(|text| room.take(text)));
            }
            _ => {}
        }
    }
    // What is there already may be long, and must not push out what comes in its place.
    for (change, old) in changes.iter_mut().filter(|(_, old)| !old.is_empty()) {
        change["oldText"] = json!(room.take(old));
    }
    let mut places = Vec::new();
    for location in locations.iter().filter(|location| !paths.contains(&location.path)).collect::<Vec<_>>() {
        if !said.contains(location.path.as_str()) {
            if places.len() >= MOST_FILES || location.path.len() > SHOWN {
                files_not_shown += 1;
                continue;
            }
            places.push(location);
        }
        paths.push(location.path.clone());
    }
    let mut more = Map::new();
    let mut add = |key: &str, value: Value, is_something: bool| {
        if is_something {
            more.insert(key.to_owned(), value);
        }
    };
    let changes: Vec<Value> = changes.into_iter().map(|(change, _)| change).collect();
    add("changes", json!(changes), !changes.is_empty());
    add("text", json!(texts.join("\n")), !texts.is_empty());
    add("locations", json!(places), !places.is_empty());
    add("bytesNotShown", json!(room.hidden), room.hidden > 0);
    add("filesNotShown", json!(files_not_shown), files_not_shown > 0);
    drop(said);
    (with(arguments, more), paths)
}

/// The arguments with further fields. Arguments that have one of them, or no fields, are put beside them.
fn with(arguments: Value, mut more: Map<String, Value>) -> Value {
    match arguments {
        arguments if more.is_empty() => arguments,
        Value::Object(mut map) if !more.keys().any(|key| map.contains_key(key)) => {
            map.extend(more);
            Value::Object(map)
        }
        arguments => {
            more.insert("input".to_owned(), arguments);
            Value::Object(more)
        }
    }
}

/// All texts in a value.
pub(super) fn texts_of<'a>(value: &'a Value, texts: &mut BTreeSet<&'a str>) {
    match value {
        Value::String(text) => drop(texts.insert(text)),
        Value::Array(list) => list.iter().for_each(|value| texts_of(value, texts)),
        Value::Object(map) => map.values().for_each(|value| texts_of(value, texts)),
        _ => {}
    }
}

/// The lines in which two texts differ: an agent may give the whole of a long file.
fn changed<'a>(old: &'a str, new: &'a str) -> (&'a str, &'a str) {
    let lines = |text: &'a str| text.split_inclusive('\n');
    let same = |pair: &(&str, &str)| pair.0 == pair.1;
    let start: usize = lines(old).zip(lines(new)).take_while(same).map(|(line, _)| line.len()).sum();
    let (old, new) = (&old[start..], &new[start..]);
    let pairs = lines(old).rev().zip(lines(new).rev());
    let end: usize = pairs.take_while(same).map(|(line, _)| line.len()).sum();
    (&old[..old.len() - end], &new[..new.len() - end])
}

/// How many characters may still be shown, and how many bytes were not.
struct Room {
    left: usize,
    hidden: usize,
}

impl Room {
    fn take<'a>(&mut self, text: &'a str) -> &'a str {
        let end = text.char_indices().nth(self.left).map_or(text.len(), |(end, _)| end);
        let shown = beginning(text, end);
        let is_whole = shown.len() == text.len();
        self.left = if is_whole { self.left - shown.chars().count() } else { 0 };
        self.hidden += text.len() - shown.len();
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(path: &str) -> Location {
        Location { path: path.to_owned(), line: None }
    }

    fn diff(path: &str, old: &str, new: &str) -> Value {
        json!({ "type": "diff", "path": path, "oldText": old, "newText": new })
    }

    #[test]
    fn a_question_shows_every_change_and_place_once() {
        let text = |text: &str| json!({ "type": "content", "content": { "type": "text", "text": text } });
        let rows = [
            (
                json!({ "title": "Writing to a" }),
                vec![],
                vec![text("Writing to a"), text("be careful"), diff("/a", "1\n2\n3\n", "1\nevil\n3\n")],
                json!({
                    "title": "Writing to a",
                    "text": "be careful",
                    "changes": [{ "path": "/a", "oldText": "2\n", "newText": "evil\n" }],
                }),
                vec!["/a"],
            ),
            (
                json!({ "file_path": "/a", "content": "x" }),
                vec![place("/a"), place("/b")],
                vec![diff("/a", "", "x")],
                json!({ "file_path": "/a", "content": "x", "locations": [{ "path": "/b" }] }),
                vec!["/a", "/b"],
            ),
            (
                json!({ "changes": [], "path": "/a" }),
                vec![],
                vec![diff("/c", "", "x")],
                json!({
                    "input": { "changes": [], "path": "/a" },
                    "changes": [{ "path": "/c", "newText": "x" }],
                }),
                vec!["/c"],
            ),
        ];
        for (arguments, locations, content, input, paths) in rows {
            let paths: Vec<String> = paths.into_iter().map(str::to_owned).collect();
            assert_eq!(shown(arguments, Some("Writing to a"), &locations, &content), (input, paths));
        }
    }

    #[test]
    fn what_is_not_shown_is_counted_and_not_covered() {
        let long = "ä".repeat(SHOWN);
        let content =
            [diff("/a", &long, &format!("{long}x")), diff("/b", "", "never seen"), diff("/c", "gone", "")];
        let (input, paths) = shown(json!({}), None, &[], &content);
        assert_eq!(paths, ["/a", "/c"]);
        assert_eq!(
            (input["changes"][0]["newText"].as_str(), input["changes"][1]["oldText"].as_str()),
            (Some(long.as_str()), Some(""))
        );
        assert_eq!(
            (&input["bytesNotShown"], &input["filesNotShown"]),
            (&json!(1 + long.len() + "gone".len()), &json!(1))
        );
        let locations: Vec<Location> = (0..=MOST_FILES).map(|number| place(&number.to_string())).collect();
        let (input, paths) = shown(json!({ "path": "x" }), None, &locations, &[]);
        assert_eq!((paths.len(), &input["filesNotShown"]), (MOST_FILES, &json!(1)));
    }
}
