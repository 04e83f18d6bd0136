//! The files of the page: small, whole, and with nothing in them that comes from elsewhere.

use std::collections::BTreeSet;

use super::{PageFiles, asset, code_of};
use crate::file::resolved;

/// What a browser loads of the page, in bytes, at most.
const LARGEST: usize = 200_000;

/// The files that are part of the program, with their text.
fn files() -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = PageFiles::iter()
        .map(|name| {
            let file = PageFiles::get(&name).unwrap();
            (name.into_owned(), String::from_utf8(file.data.into_owned()).unwrap())
        })
        .collect();
    all.sort();
    all
}

/// The texts between quotes after each `before`.
fn quoted<'a>(text: &'a str, before: &str) -> Vec<&'a str> {
    text.split(before)
        .skip(1)
        .filter_map(|rest| {
            let quote = rest.chars().next().filter(|c| matches!(c, '"' | '\''))?;
            rest[1..].split(quote).next()
        })
        .collect()
}

#[test]
fn the_page_is_small() {
    let total: usize = files().iter().map(|(name, _)| asset(name).unwrap().bytes.len()).sum();
    assert!(total <= LARGEST, "the page has {total} bytes, {} too many", total - LARGEST);
}

#[test]
fn every_file_is_served_and_every_reference_leads_to_one() {
    let mut missing = Vec::new();
    let mut used = BTreeSet::from(["/index.html".to_owned()]);
    for (name, text) in files() {
        assert!(asset(&name).is_some_and(|asset| !asset.bytes.is_empty()), "{name}");
        let references = match name.rsplit_once('.').unwrap().1 {
            "html" => [quoted(&text, "href="), quoted(&text, "src=")].concat(),
            "js" => [quoted(&text, "from "), quoted(&text, "from"), quoted(&text, "\nimport ")].concat(),
            _ => Vec::new(),
        };
        for reference in references.into_iter().filter(|to| to.starts_with(['.', '/'])) {
            let path = resolved(&name, reference);
            if asset(&path).is_none() {
                missing.push(format!("{name} refers to {reference}"));
            }
            used.insert(path);
        }
    }
    assert_eq!(missing, Vec::<String>::new());
    let all: BTreeSet<String> = files().into_iter().map(|(name, _)| format!("/{name}")).collect();
    assert_eq!(used, all, "each file is referred to, and no other");
}

#[test]
fn scripts_and_styles_are_served_without_comments() {
    let script = "// What it is.\n\n/** One. @type {A} */\nconst a = f(/** @type {B} */ (b), 'x // y');\n  // why\n  a();\n/**\n * @param {C} c\n */\nfunction g(c) {}\n";
    assert_eq!(code_of(script, "/**"), "const a = f( (b), 'x // y');\na();\nfunction g(c) {}\n");
    assert_eq!(code_of("/* all */\na { b: c }\n", "/*"), "a { b: c }\n");
    for (name, _) in files() {
        let served = String::from_utf8(asset(&name).unwrap().bytes.into_owned()).unwrap();
        assert!(name.starts_with("vendor/") || !served.contains("/*"), "{name}");
    }
}

#[test]
fn nothing_is_inline_and_nothing_comes_from_elsewhere() {
    let mut found = Vec::new();
    for (name, text) in files() {
        let refused: &[&str] = match name.rsplit_once('.').unwrap().1 {
            "html" => &["<style", "style=", "<script>", " on", "http:", "https:", "data:", "//"],
            "css" => &["url(", "@import"],
            "js" if !name.starts_with("vendor/") => &[
                "eval(",
                "new Function",
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "dangerouslySetInnerHTML",
                "document.write",
                "http://",
                "https://",
                "await import(",
                "<img",
                "<iframe",
            ],
            "js" => &["new Function", "await import(", "https://", "fetch("],
            _ => &["<script", "href="],
        };
        let hits = refused.iter().filter(|part| text.contains(**part));
        found.extend(hits.map(|part| format!("{name} contains {part}")));
    }
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn the_licence_and_version_of_each_vendored_file_are_written_down() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/page/vendor");
    let readme = std::fs::read_to_string(format!("{folder}/README.md")).unwrap();
    let mut vendored = Vec::new();
    for (name, text) in files() {
        let Some(file) = name.strip_prefix("vendor/") else { continue };
        let row = readme.lines().find(|line| line.starts_with(&format!("| `{file}`"))).unwrap();
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        assert!(text.lines().next().unwrap().contains(cells[3]), "{file} begins with another version");
        let licence = cells[5].split('`').nth(1).unwrap();
        assert!(std::fs::metadata(format!("{folder}/{licence}")).unwrap().len() > 500, "{licence} is short");
        vendored.push(file.to_owned());
    }
    assert_eq!(vendored, ["hooks.js", "htm.js", "preact.js", "signals-core.js", "signals.js"]);
}

#[test]
fn a_path_that_is_no_file_of_the_page_is_not_served() {
    let served = |path: &str| asset(path).map(|asset| asset.content_type);
    assert_eq!(served("/"), Some("text/html; charset=utf-8"));
    assert_eq!(served("/js/main.js"), Some("text/javascript; charset=utf-8"));
    assert_eq!(served("/css/base.css"), Some("text/css; charset=utf-8"));
    assert_eq!(served("/icon.svg"), Some("image/svg+xml"));
    for path in
        ["/vendor/README.md", "/js", "/../Cargo.toml", "/js/../../src/lib.rs", "//etc/passwd", "/nothing.js"]
    {
        assert_eq!(served(path), None, "{path}");
    }
}
