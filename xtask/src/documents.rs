//! Documents that tell the truth: links that lead somewhere, code blocks that say what they are, flows that
//! compile. What other blocks show is left to the program that reads such text.

use std::collections::BTreeMap;

use inspan_engine::ProviderRegistry;
use inspan_flow::{Loaded, NodeRegistry, builtin_nodes, compile};

use crate::finding::Finding;
use crate::workspace::{File, Workspace};

/// Checks every document outside the fixtures, which may be broken on purpose.
pub(crate) fn check(workspace: &Workspace) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut providers = ProviderRegistry::new();
    for provider in inspan_providers::builtin() {
        providers.register(provider);
    }
    let nodes = builtin_nodes(&providers);
    for file in
        workspace.documents().filter(|file| !file.path.starts_with("fixtures/") || file.name() == "README.md")
    {
        findings.extend(check_links(file, workspace));
        let (blocks, broken) = blocks(file);
        findings.extend(broken);
        findings.extend(blocks.iter().filter_map(|block| check_flow(file, block, &nodes)));
    }
    findings
}

/// A fenced block of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Block {
    /// The language after the opening fence.
    language: String,
    /// The line of the opening fence, from 1.
    line: usize,
    text: String,
}

/// The blocks of a document, and what is wrong with its fences.
fn blocks(file: &File) -> (Vec<Block>, Vec<Finding>) {
    let (mut blocks, mut findings) = (Vec::new(), Vec::new());
    let mut open: Option<Block> = None;
    for (index, line) in file.text.lines().enumerate() {
        match (line.trim_start().strip_prefix("```"), open.take()) {
            (Some(language), None) => {
                if language.is_empty() {
                    let sentence = "name the block's language after the fence, `text` if it has none";
                    findings.push(Finding::broken(format!("{}:{}", file.path, index + 1), sentence));
                }
                open = Some(Block { language: language.to_owned(), line: index + 1, text: String::new() });
            }
            (Some(_), Some(block)) => blocks.push(block),
            (None, Some(mut block)) => {
                block.text.push_str(line);
                block.text.push('\n');
                open = Some(block);
            }
            (None, None) => {}
        }
    }
    if let Some(block) = open {
        let sentence = "the block that begins here never ends: close its fence";
        findings.push(Finding::broken(format!("{}:{}", file.path, block.line), sentence));
    }
    (blocks, findings)
}

/// Compiles a block that shows a whole flow.
fn check_flow(file: &File, block: &Block, nodes: &NodeRegistry) -> Option<Finding> {
    let is_flow = block.language == "yaml" && block.text.lines().any(|line| line == "nodes:");
    let loaded = is_flow.then(|| Loaded::from_text(&file.path, &block.text, BTreeMap::new()))?;
    let problems = compile(&loaded, nodes).err()?;
    let sentence = format!("the flow in this block does not compile: {problems}");
    Some(Finding::broken(format!("{}:{}", file.path, block.line), sentence))
}

fn check_links(file: &File, workspace: &Workspace) -> Vec<Finding> {
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
                format!("the link `{target}` leads nowhere: mend it, or write the file")
            }
            Some(path) if !heading.is_empty() && !has_heading(workspace, &path, heading) => {
                format!("the link `{target}` names a heading that is not there: mend it")
            }
            Some(_) => continue,
        };
        findings.push(Finding::broken(format!("{}:{line}", file.path), sentence));
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
    use super::{Block, blocks, check};
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
            "a.md:4: the link `nowhere.md` leads nowhere: mend it, or write the file",
            "a.md:4: the link `../x.md` leaves the tree: link to a file of the tree or to a web page",
            "a.md:5: the link `docs/b.md#none` names a heading that is not there: mend it",
        ];
        assert_eq!(check(&tree).iter().map(ToString::to_string).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn flows_compile() {
        let flow =
            |node_type: &str| format!("```yaml\nname: a\nnodes:\n  - {{ id: a, type: {node_type} }}\n```\n");
        let (good, bad) = (flow("control.noop"), flow("control.nop"));
        let tree = Workspace::of(&[("README.md", good.as_str()), ("docs/flow.md", bad.as_str())]);
        let found: Vec<_> = check(&tree).iter().map(|finding| finding.to_string()).collect();
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with("docs/flow.md:1: the flow in this block does not compile: "),
            "{found:?}"
        );
    }

    #[test]
    fn blocks_are_closed_and_named() {
        let text = "```yaml\na: 1\n```\n```\nb\n```\n```sh\n";
        let file = File { path: "a.md".to_owned(), text: text.to_owned() };
        let (blocks, findings) = blocks(&file);
        let block = |language: &str, line, text: &str| Block {
            language: language.to_owned(),
            line,
            text: text.to_owned(),
        };
        assert_eq!(blocks, [block("yaml", 1, "a: 1\n"), block("", 4, "b\n")]);
        let expected = [
            "a.md:4: name the block's language after the fence, `text` if it has none",
            "a.md:7: the block that begins here never ends: close its fence",
        ];
        assert_eq!(findings.iter().map(ToString::to_string).collect::<Vec<_>>(), expected);
    }
}
