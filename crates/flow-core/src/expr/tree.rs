//! Expressions and templates as trees of owned values.

mod own;
mod read;

use minijinja::{
    Value,
    machinery::ast::{BinOpKind, CompareOpKind},
};

pub(super) use self::read::TreeBuilder;
pub(crate) use self::read::asks_for_kind;
use super::path::Path;

#[derive(Debug)]
pub(crate) enum Expr {
    Const(Value),
    /// A plain path into the scope.
    Path(Path),
    /// A name that the template sets, the path that it means where the template has not set it, and where it is written.
    Name(String, Option<Path>, u32),
    /// A part of another value, with the place of its name.
    Attr(Box<Expr>, String, u32),
    Item(Box<(Expr, Expr)>),
    Slice(Box<(Expr, [Option<Expr>; 3])>),
    Not(Box<Expr>),
    Neg(Box<Expr>),
    And(Box<(Expr, Expr)>),
    Or(Box<(Expr, Expr)>),
    Binary(BinOpKind, Box<(Expr, Expr)>),
    Compare(Box<Expr>, Vec<(CompareOpKind, Expr)>),
    If(Box<(Expr, Expr, Option<Expr>)>),
    Default(Box<(Expr, Option<Expr>, Option<Expr>)>),
    /// The input is absent in `{% filter … %}`: it is the output of the block.
    Filter(String, Option<Box<Expr>>, Args),
    Test(String, Box<Expr>, Args),
    Call(Function, Args),
    List(Vec<Expr>),
    Map(Vec<(Expr, Expr)>),
}

impl Expr {
    /// Its place in the text that was parsed, if it begins with a name: the offset of its first byte, and its length.
    pub(crate) fn range(&self) -> Option<(usize, usize)> {
        match self {
            Self::Path(path) => Some(path.range()),
            Self::Name(name, _, at) => Some((*at as usize, name.len())),
            Self::Attr(base, key, at) => {
                let (from, _) = base.range()?;
                Some((from, (*at as usize + key.len()).saturating_sub(from)))
            }
            Self::Item(both) => both.0.range(),
            Self::Slice(parts) => parts.0.range(),
            Self::Filter(_, Some(input), _) | Self::Not(input) | Self::Neg(input) => input.range(),
            Self::Default(parts) => parts.0.range(),
            Self::Binary(_, both) | Self::And(both) | Self::Or(both) => {
                both.0.range().or_else(|| both.1.range())
            }
            Self::Compare(first, _) => first.range(),
            Self::Test(_, subject, _) => subject.range(),
            _ => None,
        }
    }
}

#[derive(Debug)]
pub(crate) enum Function {
    Range,
    Dict,
    Namespace,
    /// `loop(…)` in a recursive loop.
    Loop,
    /// `loop.cycle(…)` and the like.
    Method(Box<Expr>, String),
}

/// Arguments: positional and named.
#[derive(Debug, Default)]
pub(crate) struct Args {
    pub(crate) places: Vec<Expr>,
    pub(crate) names: Vec<(String, Expr)>,
}

#[derive(Debug)]
pub(crate) enum Stmt {
    Text(String),
    /// With the source of the expression, for errors.
    Emit(Expr, String),
    For(Box<For>),
    If(Box<(Expr, String, Vec<Stmt>, Vec<Stmt>)>),
    With(Vec<(AssignTarget, Expr, String)>, Vec<Stmt>),
    Set(AssignTarget, Expr, String),
    SetBlock(AssignTarget, Option<Expr>, Vec<Stmt>),
    Filter(Expr, Vec<Stmt>),
    Do(Expr, String),
}

#[derive(Debug)]
pub(crate) struct For {
    pub(crate) target: AssignTarget,
    pub(crate) items: Expr,
    pub(crate) source: String,
    pub(crate) filter: Option<Expr>,
    pub(crate) is_recursive: bool,
    pub(crate) body: Vec<Stmt>,
    pub(crate) otherwise: Vec<Stmt>,
}

/// The target of an assignment.
#[derive(Debug)]
pub(crate) enum AssignTarget {
    Name(String),
    /// `ns.x`.
    Member(String, String),
    Many(Vec<AssignTarget>),
}
