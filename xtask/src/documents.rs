//! Documents that are correct: links that lead somewhere, code blocks that name their language. What the blocks of
//! README.md and docs/ show is compiled and run by the test `documents` of `inspan-cli`.

use crate::tidy::TidyFinding;
use crate::workspace::{File, Workspace};

/// Checks every document outside the fixtures, which may be broken on purpose.
pub(crate) fn check(workspace: &Workspace) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    for file in
        workspace.documents().filter(|file| !file.path.starts_with("fixtures/") || file.name() == "README.md")
    {
        findings.extend(check_links(file, workspace));
        findings.extend(check_fences(file));
    }
    findings
}

/// What is wrong with the fences of a document.
fn check_fences(file: &File) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    let mut open = None;
    for (index, line) in file.text.lines().enumerate() {
        let Some(info) = line.trim_start().strip_prefix("```") else { continue };
        if open.take().is_some() {
            continue;
        }
        if info.is_empty() {
            let sentence = "name the block's language after the fence, `text` if it has none";
            findings.push(TidyFinding::broken(format!("{}:{}", file.path, index + 1), sentence));
        }
        open = Some(index + 1);
    }
    if let Some(line) = open {
        let sentence = "the block that begins here never ends: close its fence";
        findings.push(TidyFinding::broken(format!("{}:{line}", file.path), sentence));
    }
    findings
}

fn check_links(file: &File, workspace: &Workspace) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    for (line, target) in links(&file.text) {
        if target.contains("://") || target.starts_with("mailto:") {
            continue;
        }
        let (path, heading) = target.split_once('#').unwrap_or((target, ""));
        let sentence = match resolve(&file.path, path) {
            None => {
                format!("the link `{target}` leaves the tree: link to a file of the tree or to a web page")
            }
            Some(path) if !exists(workspace, &path) => {
                format!("the link `{target}` leads nowhere: fix it, or write the file")
            }
            Some(path) if !heading.is_empty() && !has_heading(workspace, &path, heading) => {
                format!("the link `{target}` names a heading that is not there: fix it")
            }
            Some(_) => continue,
        };
        findings.push(TidyFinding::broken(format!("{}:{line}", file.path), sentence));
    }
    findings
}

/// The targets of all inline links and pictures outside code, with their lines.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut links = Vec::new();
    let mut in_block = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        }
        if in_block {
            continue;
        }
        // Every second piece between back quotes is code.
        for piece in line.split('`').step_by(2) {
            for rest in piece.split("](").skip(1) {
                let target = rest.split_once(')').map(|(target, _)| target);
                links.extend(
                    target.and_then(|target| target.split(' ').next()).map(|target| (index + 1, target)),
                );
            }
        }
    }
    links
}

/// `target` as a path from the root, seen from the document `from`; nothing if it leaves the tree.
fn resolve(from: &str, target: &str) -> Option<String> {
    if target.is_empty() {
        return Some(from.to_owned());
    }
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in target.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." {
            parts.pop()?;
        } else {
            parts.push(part);
        }
    }
    Some(parts.join("/"))
}

fn exists(workspace: &Workspace, path: &str) -> bool {
    let folder = format!("{path}/");
    path.is_empty() || workspace.files.iter().any(|file| file.path == path || file.path.starts_with(&folder))
}

/// Whether the document has a heading whose anchor, made as code hosts make it, is `anchor`.
fn has_heading(workspace: &Workspace, path: &str, anchor: &str) -> bool {
    let slug = |line: &str| {
        let kept = line.trim_start_matches('#').trim().chars().filter_map(|c| match c {
            ' ' | '-' => Some('-'),
            c if c.is_alphanumeric() || c == '_' => Some(c.to_ascii_lowercase()),
            _ => None,
        });
        kept.collect::<String>()
    };
    let text = workspace.text(path).unwrap_or_default();
    text.lines().any(|line| line.starts_with('#') && slug(line) == anchor)
}

#[cfg(test)]
mod tests {
    use super::{check, check_fences};
    use crate::workspace::{File, Workspace};

    #[test]
    fn links_lead_somewhere() {
        let text = "# A map\n[a](docs/b.md) [b](#a-map) [c](docs/b.md#the-parts) ![p](docs/p.svg \"title\") [d](docs)\n\
                    [web](https://example.org/x) `[code](nowhere.md)`\n[e](nowhere.md) [f](../x.md)\n[g](docs/b.md#none)\n\
                    ```md\n[h](nowhere.md)\n```\n";
        let tree = Workspace::of(&[
            ("a.md", text),
            ("docs/b.md", "## The parts!\n[back](../a.md)\n"),
            ("docs/p.svg", ""),
        ]);
        let expected = [
            "a.md:4: the link `nowhere.md` leads nowhere: fix it, or write the file",
            "a.md:4: the link `../x.md` leaves the tree: link to a file of the tree or to a web page",
            "a.md:5: the link `docs/b.md#none` names a heading that is not there: fix it",
        ];
        assert_eq!(check(&tree).iter().map(ToString::to_string).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn blocks_are_closed_and_named() {
        let text = "```yaml\na: 1\n```\n```\nb\n```\n```sh\n";
        let file = File { path: "a.md".to_owned(), text: text.to_owned() };
        let findings = check_fences(&file);
        let expected = [
            "a.md:4: name the block's language after the fence, `text` if it has none",
            "a.md:7: the block that begins here never ends: close its fence",
        ];
        assert_eq!(findings.iter().map(ToString::to_string).collect::<Vec<_>>(), expected);
    }
}
