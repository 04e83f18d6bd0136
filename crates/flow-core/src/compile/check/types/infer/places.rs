//! The place of an expression in the text of the author: the offset of its first byte, and its length.

use crate::expr::{Expr, Path};

/// The place of an expression, if it begins with a name.
pub(super) fn start(expr: &Expr) -> Option<(usize, usize)> {
    match expr {
        Expr::Path(path) => Some(path_range(path)),
        Expr::Name(name, _, at) => Some((*at as usize, name.len())),
        Expr::Attr(base, key, at) => {
            let (from, _) = start(base)?;
            Some((from, (*at as usize + key.len()).saturating_sub(from)))
        }
        Expr::Item(both) => start(&both.0),
        Expr::Slice(parts) => start(&parts.0),
        Expr::Filter(_, Some(input), _) | Expr::Not(input) | Expr::Neg(input) => start(input),
        Expr::Default(parts) => start(&parts.0),
        Expr::Binary(_, both) | Expr::And(both) | Expr::Or(both) => start(&both.0).or_else(|| start(&both.1)),
        Expr::Compare(first, _) => start(first),
        Expr::Test(_, subject, _) => start(subject),
        _ => None,
    }
}

pub(super) fn path_range(path: &Path) -> (usize, usize) {
    (path.offset as usize, path.source.len())
}

/// The place of one step of a path.
pub(super) fn step_range(path: &Path, step: usize) -> (usize, usize) {
    let source = path.source.as_str();
    let word = |c: char| c == '_' || c.is_alphanumeric();
    let mut at = source.find(|c: char| !word(c)).unwrap_or(source.len());
    for nth in 0..=step {
        let rest = &source[at..];
        let lead = rest.len() - rest.trim_start().len();
        let rest = &rest[lead..];
        let (from, len) = match rest.strip_prefix('.') {
            Some(after) => {
                let gap = after.len() - after.trim_start().len();
                let name = after.trim_start();
                (at + lead + 1 + gap, name.find(|c: char| !word(c)).unwrap_or(name.len()))
            }
            None => (at + lead, rest.find(']').map_or(rest.len(), |end| end + 1)),
        };
        if nth == step {
            return (path.offset as usize + from, len);
        }
        at = (from + len).min(source.len());
    }
    path_range(path)
}
