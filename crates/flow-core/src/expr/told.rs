//! A condition in words, and the values that it looks at: for those who explain what it decided. Deciding is left
//! to `condition`.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    Scope,
    condition::{Condition, Test},
    path::Path,
};

impl Condition {
    /// The condition in one line, as its author wrote it or nearly so.
    pub fn words(&self) -> String {
        words(&self.test)
    }

    /// What it looks at, by the paths that it names; null where there is nothing.
    pub(crate) fn seen(&self, scope: &Scope<'_>) -> BTreeMap<String, Value> {
        let mut paths = Vec::new();
        collect(&self.test, &mut paths);
        let value = |path: &Path| path.get(scope).cloned().unwrap_or_default();
        paths.into_iter().map(|path| (path.source.to_string(), value(path))).collect()
    }
}

fn words(test: &Test) -> String {
    let joined = |parts: &[Test], word: &str| parts.iter().map(nested).collect::<Vec<_>>().join(word);
    match test {
        Test::Equals(path, value) => format!("{} equals {value}", path.source),
        Test::Not(inner) => format!("not {}", nested(inner)),
        Test::All(parts) => joined(parts, " and "),
        Test::Any(parts) => joined(parts, " or "),
        Test::Path(path) => path.source.to_string(),
        Test::Program(source, _) => source.clone(),
        Test::Constant(held) => held.to_string(),
    }
}

fn nested(test: &Test) -> String {
    match test {
        Test::Path(_) | Test::Constant(_) => words(test),
        _ => format!("({})", words(test)),
    }
}

fn collect<'a>(test: &'a Test, paths: &mut Vec<&'a Path>) {
    match test {
        Test::Equals(path, _) | Test::Path(path) => paths.push(path),
        Test::Not(inner) => collect(inner, paths),
        Test::All(parts) | Test::Any(parts) => parts.iter().for_each(|part| collect(part, paths)),
        Test::Program(_, program) => paths.extend(program.paths()),
        Test::Constant(_) => {}
    }
}
