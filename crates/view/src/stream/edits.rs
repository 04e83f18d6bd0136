//! The edits of files that a tool call names, as diffs. Arguments are read by their shape: a path with an old and a new
//! text, a path with a content, a list of changes with a diff each, or a patch.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use similar::TextDiff;

/// The edit of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileEdit {
    /// The file, as the tool was given it.
    pub path: String,
    /// The parts that change.
    pub hunks: Vec<Hunk>,
}

/// One part of a file that changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Hunk {
    /// Its first line in the file, counting from 1, if the arguments tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// Its lines, each after `+`, `-` or a space.
    pub text: String,
}

const PATHS: [&str; 5] = ["file_path", "filePath", "path", "file", "absolute_path"];
const TEXTS: [(&str, &str); 4] = [
    ("old_string", "new_string"),
    ("oldString", "newString"),
    ("oldText", "newText"),
    ("old_str", "new_str"),
];
const CONTENTS: [&str; 3] = ["content", "file_text", "contents"];
const PATCHES: [&str; 4] = ["patch", "patchText", "input", "diff"];

/// Longer texts are not compared, in bytes.
const LONGEST: usize = 512 * 1024;

/// The edits that the arguments of a tool call name; none if it edits no file.
pub fn file_edits(input: &Value) -> Vec<FileEdit> {
    if let Some(changes) = input.get("changes").and_then(Value::as_array) {
        return changes.iter().filter_map(change).collect();
    }
    if let Some(path) = text_of(input, &PATHS) {
        let hunks: Vec<Hunk> = match input.get("edits").and_then(Value::as_array) {
            Some(edits) => edits.iter().flat_map(replacement).collect(),
            None => replacement(input),
        };
        if !hunks.is_empty() {
            return vec![FileEdit { path: path.to_owned(), hunks }];
        }
        if let Some(content) = text_of(input, &CONTENTS) {
            return vec![FileEdit { path: path.to_owned(), hunks: vec![whole('+', content)] }];
        }
    }
    text_of(input, &PATCHES).map(patch).unwrap_or_default()
}

fn text_of<'a>(value: &'a Value, keys: &[&str]) -> Option<&'a str> {
    keys.iter().find_map(|key| value.get(key)?.as_str()).filter(|text| text.len() <= LONGEST)
}

/// An entry of a list of changes: a diff, or the whole content of a file that is added or deleted.
fn change(change: &Value) -> Option<FileEdit> {
    let (path, diff) = (text_of(change, &PATHS)?, text_of(change, &["diff"])?);
    let kind = change.pointer("/kind/type").or_else(|| change.get("kind")).and_then(Value::as_str);
    let hunks = match kind {
        Some("add") => vec![whole('+', diff)],
        Some("delete") => vec![whole('-', diff)],
        _ => hunks(diff.lines()),
    };
    Some(FileEdit { path: path.to_owned(), hunks })
}

/// One text that replaces another.
fn replacement(edit: &Value) -> Vec<Hunk> {
    let texts = TEXTS.iter().find_map(|(old, new)| {
        Some((text_of(edit, &[old]), text_of(edit, &[new])?)).filter(|(old, _)| old.is_some())
    });
    let Some((Some(old), new)) = texts else { return Vec::new() };
    let diff = TextDiff::from_lines(old, new);
    let mut unified = diff.unified_diff();
    let hunks = unified.missing_newline_hint(false).context_radius(3).iter_hunks();
    let text = |hunk: String| hunk.split_once('\n').map(|(_, lines)| lines.to_owned()).unwrap_or_default();
    hunks.map(|hunk| Hunk { line: None, text: text(hunk.to_string()) }).collect()
}

/// A file that is written or deleted as a whole.
fn whole(sign: char, content: &str) -> Hunk {
    Hunk { line: Some(1), text: content.lines().map(|line| format!("{sign}{line}\n")).collect() }
}

/// The hunks of one file in the unified format, or in that of patches whose hunks have no line numbers.
fn hunks<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<Hunk> {
    let mut hunks: Vec<Hunk> = Vec::new();
    for line in lines {
        if line.starts_with("@@") {
            let numbers = line.split('+').nth(1).and_then(|rest| rest.split([',', ' ']).next());
            hunks.push(Hunk { line: numbers.and_then(|line| line.parse().ok()), text: String::new() });
            continue;
        }
        if !line.starts_with(['+', '-', ' ']) && !line.is_empty() {
            continue;
        }
        if hunks.is_empty() {
            hunks.push(Hunk { line: None, text: String::new() });
        }
        if let Some(last) = hunks.last_mut() {
            last.text.push_str(line);
            last.text.push('\n');
        }
    }
    hunks.retain(|hunk| hunk.text.lines().any(|line| line.starts_with(['+', '-'])));
    hunks
}

/// A patch of several files: in the unified format, or with a line such as `*** Update File: a.rs` for each.
fn patch(text: &str) -> Vec<FileEdit> {
    let mut files: Vec<(String, Vec<&str>)> = Vec::new();
    for line in text.lines() {
        let named = ["*** Update File: ", "*** Add File: ", "*** Delete File: ", "+++ b/", "+++ "];
        match named.iter().find_map(|start| line.strip_prefix(start)) {
            Some(path) => files.push((path.trim().to_owned(), Vec::new())),
            None if line.starts_with("--- ") || line.starts_with("***") => {}
            None => {
                if let Some((_, lines)) = files.last_mut() {
                    lines.push(line);
                }
            }
        }
    }
    let edit = |(path, lines): (String, Vec<&str>)| FileEdit { path, hunks: hunks(lines.into_iter()) };
    files.into_iter().map(edit).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn edit(path: &str, hunks: &[(Option<u32>, &str)]) -> FileEdit {
        let hunks = hunks.iter().map(|(line, text)| Hunk { line: *line, text: (*text).to_owned() });
        FileEdit { path: path.to_owned(), hunks: hunks.collect() }
    }

    #[test]
    fn arguments_that_edit_files_are_diffs() {
        let rows = [
            (
                json!({ "file_path": "/a.rs", "old_string": "one\ntwo\nthree", "new_string": "one\n2\nthree" }),
                vec![edit("/a.rs", &[(None, " one\n-two\n+2\n three\n")])],
            ),
            (
                json!({ "filePath": "/b", "edits": [
                    { "oldString": "a", "newString": "b" }, { "oldString": "c", "newString": "" } ] }),
                vec![edit("/b", &[(None, "-a\n+b\n"), (None, "-c\n")])],
            ),
            (
                json!({ "filePath": "n.txt", "content": "hi\nyou" }),
                vec![edit("n.txt", &[(Some(1), "+hi\n+you\n")])],
            ),
            (
                json!({ "changes": [
                    { "path": "new", "kind": { "type": "add" }, "diff": "hello\n" },
                    { "path": "old", "kind": { "type": "update" }, "diff": "@@ -3,2 +4,2 @@ fn x\n a\n-b\n+c\n" },
                    { "path": "gone", "kind": { "type": "delete" }, "diff": "x\n" } ] }),
                vec![
                    edit("new", &[(Some(1), "+hello\n")]),
                    edit("old", &[(Some(4), " a\n-b\n+c\n")]),
                    edit("gone", &[(Some(1), "-x\n")]),
                ],
            ),
            (
                json!({ "input": "*** Begin Patch\n*** Update File: a\n@@\n x\n-y\n+z\n*** Add File: b\n+new\n*** End Patch" }),
                vec![edit("a", &[(None, " x\n-y\n+z\n")]), edit("b", &[(None, "+new\n")])],
            ),
            (
                json!({ "patch": "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-1\n+2\n" }),
                vec![edit("x", &[(Some(1), "-1\n+2\n")])],
            ),
            (json!({ "command": "ls" }), vec![]),
            (json!({ "file_path": "a" }), vec![]),
            (json!({ "input": "no patch" }), vec![]),
            (json!(null), vec![]),
        ];
        for (input, expected) in rows {
            assert_eq!(file_edits(&input), expected, "{input}");
        }
    }
}
