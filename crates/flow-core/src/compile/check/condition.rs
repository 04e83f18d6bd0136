//! Conditions as written: a structure of `equals`, `not`, `and` and `or`, or an expression.

use super::{Checker, contradictions::literal, names::Site};
use crate::{
    diagnostic::{Code, Problem, did_you_mean},
    expr::{Condition, Predicate, parse_condition, parse_variable},
    spec::{Data, Entry, Key, Yaml},
};

const WORDS: [&str; 4] = ["equals", "not", "and", "or"];

impl Checker<'_> {
    /// Parses and checks the condition under a key.
    pub(super) fn condition(&mut self, value: &Yaml, site: &Site<'_>, key: &Key<'_>) -> Option<Condition> {
        let test = ConditionParser { site, checker: self }.test(value, key)?;
        Some(Condition::new(format!("{}, key `{key}`", site.owner).into(), test))
    }
}

struct ConditionParser<'p, 'c> {
    site: &'p Site<'p>,
    checker: &'p mut Checker<'c>,
}

impl ConditionParser<'_, '_> {
    fn test(&mut self, value: &Yaml, key: &Key<'_>) -> Option<Predicate> {
        match &value.data {
            Data::Bool(held) => Some(Predicate::Constant(*held)),
            Data::Text(text) => match parse_condition(text, self.checker.body) {
                Ok((test, uses)) => {
                    self.checker.names(&uses, value, self.site, key);
                    Some(test)
                }
                Err(fault) => {
                    self.checker.syntax_error(fault, Code::ConditionSyntax, value, self.site, key);
                    None
                }
            },
            Data::Map(entries) => self.structure(value, entries, key),
            _ => {
                self.report(
                    Problem::error(
                        Code::WrongType,
                        value.span,
                        format!("a condition cannot be {}", value.kind()),
                    )
                    .help("use an expression, or one of `equals`, `not`, `and`, `or`".to_owned()),
                    key,
                );
                None
            }
        }
    }

    fn structure(&mut self, value: &Yaml, entries: &[Entry], key: &Key<'_>) -> Option<Predicate> {
        self.unknown_keys(entries, &WORDS, "a condition", "is one of `equals`, `not`, `and`, `or`", key);
        let [entry] = entries else {
            let message = "a condition must have exactly one of `equals`, `not`, `and`, `or`";
            self.report(Problem::error(Code::ConditionSyntax, value.span, message), key);
            return None;
        };
        let inner = Key::Field(key, &entry.key);
        match entry.key.as_str() {
            "equals" => self.equals(&entry.value, &inner),
            "not" => self.test(&entry.value, &inner).map(|test| Predicate::Not(Box::new(test))),
            "and" => self.parts(&entry.value, &inner).map(Predicate::All),
            "or" => self.parts(&entry.value, &inner).map(Predicate::Any),
            _ => None,
        }
    }

    /// Reports keys that a mapping may not have; `what` it is, and `has` the right ones.
    fn unknown_keys(&mut self, entries: &[Entry], known: &[&str], what: &str, has: &str, key: &Key<'_>) {
        for entry in entries.iter().filter(|entry| !known.contains(&entry.key.as_str())) {
            let help =
                did_you_mean(&entry.key, known.iter().copied()).unwrap_or_else(|| format!("{what} {has}"));
            let message = format!("unknown key `{}` in {what}", entry.key);
            let problem = Problem::error(Code::UnknownKey, entry.key_span, message).help(help);
            self.report(problem, &Key::Field(key, &entry.key));
        }
    }

    fn parts(&mut self, value: &Yaml, key: &Key<'_>) -> Option<Vec<Predicate>> {
        let Data::List(items) = &value.data else {
            let message = format!("`{}` must be a list of conditions, found {}", key.last(), value.kind());
            self.report(Problem::error(Code::WrongType, value.span, message), key);
            return None;
        };
        if items.is_empty() {
            let holds = if key.last() == "and" { "always" } else { "never" };
            let message = format!("`{}` without conditions {holds} holds", key.last());
            self.report(Problem::warning(Code::ConstantCondition, value.span, message), key);
        }
        let tests: Vec<_> =
            items.iter().enumerate().map(|(at, item)| self.test(item, &Key::Index(key, at))).collect();
        tests.into_iter().collect()
    }

    fn equals(&mut self, value: &Yaml, key: &Key<'_>) -> Option<Predicate> {
        let Data::Map(entries) = &value.data else {
            let message =
                format!("`equals` must be a mapping with `var` and `value`, found {}", value.kind());
            self.report(Problem::error(Code::WrongType, value.span, message), key);
            return None;
        };
        self.unknown_keys(entries, &["var", "value"], "`equals`", "takes `var` and `value`", key);
        for name in ["var", "value"] {
            if value.get(name).is_none() {
                let message = format!("`equals` is missing `{name}`");
                self.report(Problem::error(Code::MissingKey, value.span, message), &Key::Field(key, name));
            }
        }
        let (variable, expected) = (value.get("var")?, value.get("value")?);
        if expected.text().is_some() && literal(expected).is_none() {
            let message = "`value` is compared as it is written: it is not a template";
            let help = "compare in an expression, such as `when: \"a.text == b.text\"`".to_owned();
            let problem = Problem::warning(Code::ConstantCondition, expected.span, message).help(help);
            self.report(problem, &Key::Field(key, "value"));
        }
        let key = Key::Field(key, "var");
        let Some(text) = variable.text() else {
            let message = format!("`var` must be a path, found {}", variable.kind());
            self.report(Problem::error(Code::WrongType, variable.span, message), &key);
            return None;
        };
        match parse_variable(text, expected.json(), self.checker.body) {
            Ok((test, uses)) => {
                self.checker.names(&uses, variable, self.site, &key);
                Some(test)
            }
            Err(fault) => {
                self.checker.syntax_error(fault, Code::ConditionSyntax, variable, self.site, &key);
                None
            }
        }
    }

    fn report(&mut self, problem: Problem, key: &Key<'_>) {
        self.checker.sink.push(self.site.locate(problem, key));
    }
}
