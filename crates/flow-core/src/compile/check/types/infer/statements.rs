//! Statements of templates: what each of their blocks may rely on.

use super::{
    super::{
        facts::{Facts, missing_where_false},
        shape::{Kinds, Shape},
    },
    Inference, Need, named,
};
use crate::{
    diagnostic::{Code, Severity},
    expr::{AssignTarget, Expr, For, Stmt},
};

impl Inference<'_> {
    pub(super) fn body(&mut self, body: &[Stmt]) {
        body.iter().for_each(|statement| self.statement(statement));
    }

    fn statement(&mut self, statement: &Stmt) {
        match statement {
            Stmt::Text(_) => {}
            Stmt::Emit(expr, _) => {
                self.expr(expr, Need::Value);
                if let Expr::Path(path) = expr {
                    self.whole_output(path);
                }
            }
            Stmt::If(parts) => {
                let (test, _, yes, no) = &**parts;
                self.expr(test, Need::Nothing);
                self.under(Facts::of(test, true), Vec::new(), |inner| inner.body(yes));
                self.under(Facts::of(test, false), missing_where_false(test, true), |inner| inner.body(no));
            }
            Stmt::For(each) => self.each(each),
            Stmt::With(set, body) => {
                let known = self.locals.len();
                for (target, value, _) in set {
                    let shape = self.expr(value, Need::Value);
                    self.bind(target, shape);
                }
                self.body(body);
                self.locals.truncate(known);
            }
            Stmt::Set(target, value, _) => {
                let shape = self.expr(value, Need::Value);
                // What is set in a block may be set in another way as well.
                self.bind(target, if self.blocks == 0 { shape } else { Shape::any() });
            }
            Stmt::SetBlock(target, _, body) => {
                self.body(body);
                self.bind(target, Shape::any());
            }
            Stmt::Filter(_, body) => self.body(body),
            Stmt::Do(expr, _) => drop(self.expr(expr, Need::Nothing)),
        }
    }

    fn bind(&mut self, target: &AssignTarget, shape: Shape) {
        match target {
            AssignTarget::Name(name) => {
                let shape = match self.blocks == 0 || !self.locals.iter().any(|(known, _)| known == name) {
                    true => shape,
                    false => Shape::any(),
                };
                self.locals.push((name.clone(), shape));
            }
            AssignTarget::Member(..) => {}
            AssignTarget::Many(targets) => targets.iter().for_each(|target| self.bind(target, Shape::any())),
        }
    }

    fn each(&mut self, each: &For) {
        let proven = each.filter.as_ref().map(|filter| Facts::of(filter, true));
        let is_tested =
            matches!((&proven, &each.target), (Some(facts), AssignTarget::Name(name)) if facts.prove(name));
        let items = match &each.items {
            Expr::List(items) if is_tested => {
                Shape::list_of(items.iter().map(|item| self.expr(item, Need::Nothing)))
            }
            items => self.expr(items, Need::Value),
        };
        let loops = Kinds::LIST.or(Kinds::MAPPING).or(Kinds::STRING);
        if !items.kinds.meets(loops) {
            let range = each.items.range().unwrap_or((0, 0));
            let message = format!("{} is {}, and has no items", named(&each.items), items.kinds.words());
            self.report(Code::WrongType, Severity::Error, range, message, None);
        }
        let item = match items.kinds.within(Kinds::LIST.or(Kinds::NULL)) {
            true => items.item().unwrap_or_else(Shape::any),
            false => Shape::any(),
        };
        let known = self.locals.len();
        self.blocks += 1;
        self.locals.push(("loop".to_owned(), Shape::any()));
        match &each.target {
            AssignTarget::Name(name) => self.locals.push((name.clone(), item)),
            target => self.bind(target, Shape::any()),
        }
        let facts = each.filter.as_ref().map(|filter| {
            self.expr(filter, Need::Nothing);
            Facts::of(filter, true)
        });
        self.under(facts.unwrap_or_default(), Vec::new(), |inner| inner.body(&each.body));
        self.locals.truncate(known);
        let missing = missing_where_false(&each.items, true);
        self.under(Facts::default(), missing, |inner| inner.body(&each.otherwise));
        self.blocks -= 1;
    }
}
