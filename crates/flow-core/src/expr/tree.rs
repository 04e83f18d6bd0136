//! Expressions and templates as trees of owned values.

mod read;

use minijinja::{
    Value,
    machinery::ast::{BinOpKind, CompareOpKind},
};

pub(super) use self::read::TreeBuilder;
use super::path::Path;

#[derive(Debug)]
pub(super) enum Expr {
    Const(Value),
    /// A plain path into the scope.
    Path(Path),
    /// A name that the template sets, and the path that it means where the template has not set it.
    Name(String, Option<Path>),
    Attr(Box<Expr>, String),
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

#[derive(Debug)]
pub(super) enum Function {
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
pub(super) struct Args {
    pub(super) places: Vec<Expr>,
    pub(super) names: Vec<(String, Expr)>,
}

#[derive(Debug)]
pub(super) enum Stmt {
    Text(String),
    /// With the source of the expression, for errors.
    Emit(Expr, String),
    For(Box<For>),
    If(Box<(Expr, String, Vec<Stmt>, Vec<Stmt>)>),
    With(Vec<(Target, Expr, String)>, Vec<Stmt>),
    Set(Target, Expr, String),
    SetBlock(Target, Option<Expr>, Vec<Stmt>),
    Filter(Expr, Vec<Stmt>),
    Do(Expr, String),
}

#[derive(Debug)]
pub(super) struct For {
    pub(super) target: Target,
    pub(super) items: Expr,
    pub(super) source: String,
    pub(super) filter: Option<Expr>,
    pub(super) is_recursive: bool,
    pub(super) body: Vec<Stmt>,
    pub(super) otherwise: Vec<Stmt>,
}

/// The target of an assignment.
#[derive(Debug)]
pub(super) enum Target {
    Name(String),
    /// `ns.x`.
    Member(String, String),
    Many(Vec<Target>),
}
