//! Filters: what they take and give.

use super::{
    super::{
        facts::canonical,
        filters,
        shape::{Kinds, Shape},
    },
    Inference, Need, named,
};
use crate::{
    diagnostic::{Code, Severity},
    expr::{Args, Expr},
};

impl Inference<'_> {
    pub(super) fn filter(&mut self, name: &str, input: Option<&Expr>, shape: &Shape, args: &Args) -> Shape {
        let scalar = shape.kinds != Kinds::NONE && shape.kinds.within(Kinds::NUMBER.or(Kinds::BOOL));
        if scalar && filters::takes_items(name) {
            let (what, range) =
                (input.map_or_else(|| "its input".to_owned(), named), input.and_then(Expr::range));
            let message =
                format!("`{name}` takes a text, a list or a mapping, and {what} is {}", shape.kinds.words());
            self.report(Code::WrongType, Severity::Error, range.unwrap_or((0, 0)), message, None);
            return Shape::any();
        }
        if let Some(attribute) = filters::attribute(name, args) {
            let base = input.and_then(canonical).unwrap_or_else(|| "the list".to_owned());
            let range = input.and_then(Expr::range).unwrap_or((0, 0));
            let item = shape.item().unwrap_or_else(Shape::any);
            // Only `map` fails where an item has no such attribute.
            let fails = name == "map" && args.names.iter().all(|(name, _)| name != "default");
            let need = if fails { Need::Value } else { Need::Nothing };
            let found = self.attribute(&item, attribute, &format!("{base}[…]"), need, range);
            return filters::of_attribute(name, shape, found, args);
        }
        filters::result(name, shape)
    }

    /// The value under a dotted path of an item.
    fn attribute(
        &mut self,
        item: &Shape,
        path: &str,
        base: &str,
        need: Need,
        range: (usize, usize),
    ) -> Shape {
        let (mut shape, mut base) = (item.clone(), base.to_owned());
        for key in path.split('.') {
            if key.bytes().all(|b| b.is_ascii_digit()) {
                return Shape::any();
            }
            shape = self.field(&shape, key, &|| base.clone(), need, || range, false);
            base = format!("{base}.{key}");
        }
        shape
    }
}
