//! The names that a template sets itself, and where each has a value. Outside of that a name means what it means
//! elsewhere: `{% set scan = scan.value %}` reads the node `scan`, and what a `{% for %}` sets ends with it.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
};

use minijinja::machinery::ast;

/// What a name is at one place of a template.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Own {
    /// The template has set it.
    Set,
    /// It has set it where a test held, or did not.
    Perhaps,
    /// It sets it at another place.
    Elsewhere,
    /// It never sets it.
    Never,
}

/// The names that statements set.
#[derive(Default)]
pub(super) struct OwnNames {
    /// All of them, at any depth.
    all: BTreeSet<String>,
    /// Those of the open blocks, the innermost last, each with whether it is certain to be set.
    open: Vec<BTreeMap<String, bool>>,
}

impl OwnNames {
    pub(super) fn of(body: &[ast::Stmt<'_>]) -> Self {
        let mut all = BTreeSet::new();
        collect(body, &mut all);
        Self { all, open: vec![BTreeMap::new()] }
    }

    pub(super) fn find(&self, name: &str) -> Own {
        match self.open.iter().rev().find_map(|block| block.get(name)) {
            Some(true) => Own::Set,
            Some(false) => Own::Perhaps,
            None if self.all.contains(name) => Own::Elsewhere,
            None => Own::Never,
        }
    }

    /// Notes that a statement has set its target, in the innermost block.
    pub(super) fn set(&mut self, to: &ast::Expr<'_>) {
        let mut names = BTreeSet::new();
        target(to, &mut names);
        if let Some(block) = self.open.last_mut() {
            block.extend(names.into_iter().map(|name| (name, true)));
        }
    }

    /// Opens a block, which a recursive loop enters again with what its body has set.
    pub(super) fn open(&mut self, again: Option<&[ast::Stmt<'_>]>) {
        let mut names = BTreeSet::new();
        again.into_iter().for_each(|body| collect(body, &mut names));
        self.open.push(names.into_iter().map(|name| (name, false)).collect());
    }

    pub(super) fn close(&mut self) {
        self.open.pop();
    }

    /// The names as they are now, for [`Self::instead`] and [`Self::merge`].
    pub(super) fn now(&self) -> Vec<BTreeMap<String, bool>> {
        self.open.clone()
    }

    /// Goes back to what was set before one of two ways; what was set at its end.
    pub(super) fn instead(&mut self, before: Vec<BTreeMap<String, bool>>) -> Vec<BTreeMap<String, bool>> {
        mem::replace(&mut self.open, before)
    }

    /// Joins what another way has set: what only one of the two sets may have no value.
    pub(super) fn merge(&mut self, other: Vec<BTreeMap<String, bool>>) {
        for (block, other) in self.open.iter_mut().zip(other) {
            for (name, certain) in block.iter_mut() {
                *certain &= other.get(name) == Some(&true);
            }
            for name in other.into_keys() {
                block.entry(name).or_insert(false);
            }
        }
    }
}

fn collect(body: &[ast::Stmt<'_>], names: &mut BTreeSet<String>) {
    for statement in body {
        match statement {
            ast::Stmt::ForLoop(each) => {
                target(&each.target, names);
                collect(&each.body, names);
                collect(&each.else_body, names);
            }
            ast::Stmt::IfCond(cond) => {
                collect(&cond.true_body, names);
                collect(&cond.false_body, names);
            }
            ast::Stmt::WithBlock(with) => {
                with.assignments.iter().for_each(|(to, _)| target(to, names));
                collect(&with.body, names);
            }
            ast::Stmt::Set(set) => target(&set.target, names),
            ast::Stmt::SetBlock(set) => {
                target(&set.target, names);
                collect(&set.body, names);
            }
            ast::Stmt::AutoEscape(block) => collect(&block.body, names),
            ast::Stmt::FilterBlock(block) => collect(&block.body, names),
            _ => {}
        }
    }
}

fn target(to: &ast::Expr<'_>, names: &mut BTreeSet<String>) {
    match to {
        ast::Expr::Var(var) => drop(names.insert(var.id.into())),
        ast::Expr::List(list) => list.items.iter().for_each(|item| target(item, names)),
        ast::Expr::Tuple(list) => list.items.iter().for_each(|item| target(item, names)),
        _ => {}
    }
}
