//! Templates: JSON in which strings may have bindings. Each string is parsed into the simplest form that is enough: a
//! literal, a path, text with paths, or an expression.

use inspan_protocol::NodeId;
use serde_json::{Map, Value};

use crate::expr::{
    BindingError, Condition, Scope, SyntaxFault,
    limits::Limits,
    path::{Path, PathRoot, plain_path},
    program::{CompiledExpr, CompiledTemplate, NameUse, Resolver, Strictness, lone_path},
    segment::{Segment, Trims, has_segments, segments},
    tree::Stmt,
    vocabulary,
};
use crate::{ids::NodeIx, spec::Key};

/// How deep blocks may be nested in a template.
const MAX_BLOCKS: usize = 60;

/// A parsed value with bindings in it.
#[derive(Debug)]
pub struct Template {
    /// The node that it belongs to, for errors.
    node: Option<NodeId>,
    /// The key of the node, or of the flow, that it is the value of.
    key: &'static str,
    root: TemplateValue,
}

/// What is known of a part of a template before anything runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StaticValue<'a> {
    /// It is not set.
    Absent,
    /// It has this value.
    Known(&'a Value),
    /// It is a template or a condition.
    Bound,
}

/// A part of a template.
#[derive(Debug)]
pub(crate) enum TemplateValue {
    /// A value without bindings.
    Literal(Value),
    /// A string with bindings.
    Bound(Binding),
    /// A string that is one whole binding, where only a string is allowed.
    Text(Binding),
    /// A condition: its value is true or false.
    Condition(Condition),
    /// A list with bindings in it.
    List(Vec<TemplateValue>),
    /// An object with bindings in it.
    Object(Vec<(String, TemplateValue)>),
}

/// A string with bindings. The large ones are boxed, since a flow has many nodes and few of those.
#[derive(Debug)]
pub(crate) enum Binding {
    /// One whole `{{ path }}`.
    Path(Path),
    /// One whole `{{ expression }}`.
    CompiledExpr(String, Box<CompiledExpr>),
    /// Text with paths in it.
    Text(Vec<Piece>),
    /// Text with anything in it.
    CompiledTemplate(Box<CompiledTemplate>),
}

#[derive(Debug)]
pub(crate) enum Piece {
    Text(String),
    Path(Path),
}

impl Template {
    /// The value of a key of a node, or of the flow if there is no node.
    pub(crate) fn new(node: Option<NodeId>, key: &'static str, root: TemplateValue) -> Self {
        Self { node, key, root }
    }

    /// What was parsed.
    pub(crate) fn value(&self) -> &TemplateValue {
        &self.root
    }

    /// Evaluates the template. A string that is one whole binding keeps the type of its value.
    pub fn resolve(&self, scope: &Scope<'_>) -> Result<Value, BindingError> {
        let limits = Limits::default();
        self.root.resolve(scope, &limits, self.node.as_ref(), &Key::Field(&Key::Root, self.key))
    }

    /// What is known of the part under these keys before anything runs.
    pub fn part(&self, keys: &[&str]) -> StaticValue<'_> {
        let mut part = &self.root;
        for (at, key) in keys.iter().enumerate() {
            match part {
                TemplateValue::Literal(value) => {
                    let found = keys[at..].iter().try_fold(value, |value, key| value.get(key));
                    return found.map_or(StaticValue::Absent, StaticValue::Known);
                }
                TemplateValue::Object(entries) => match entries.iter().find(|(name, _)| name == key) {
                    Some((_, inner)) => part = inner,
                    None => return StaticValue::Absent,
                },
                TemplateValue::List(_) => return StaticValue::Absent,
                _ => return StaticValue::Bound,
            }
        }
        match part {
            TemplateValue::Literal(value) => StaticValue::Known(value),
            _ => StaticValue::Bound,
        }
    }

    /// The value under a key, if it reads only `flow` and `state`, whose values are known before anything runs.
    pub(crate) fn known(&self, key: &str, flow: &Value, state: &Value) -> Option<Value> {
        let found = match &self.root {
            TemplateValue::Literal(value) => return value.get(key).cloned(),
            TemplateValue::Object(entries) => {
                entries.iter().find(|(name, _)| name == key).map(|(_, value)| value)?
            }
            _ => return None,
        };
        self.known_value(found, flow, state)
    }

    /// The whole value, if it reads only `flow` and `state`.
    pub(crate) fn known_whole(&self, flow: &Value, state: &Value) -> Option<Value> {
        self.known_value(&self.root, flow, state)
    }

    fn known_value(&self, found: &TemplateValue, flow: &Value, state: &Value) -> Option<Value> {
        let mut is_known = true;
        found.each_path(&mut |path| is_known &= matches!(path.root, PathRoot::Flow | PathRoot::State));
        let scope = Scope::new(&[], flow, state, &Value::Null);
        let value = || {
            found.resolve(&scope, &Limits::default(), self.node.as_ref(), &Key::Field(&Key::Root, self.key))
        };
        if is_known { value().ok() } else { None }
    }

    /// The nodes whose outputs it reads, each with how many bodies further out it is.
    pub(crate) fn nodes(&self) -> Vec<(u32, NodeIx)> {
        let mut nodes = Vec::new();
        self.root.each_path(&mut |path| nodes.extend(path.root.node()));
        nodes
    }
}

impl TemplateValue {
    /// Visits each path that it reads.
    fn each_path<'t>(&'t self, visit: &mut dyn FnMut(&'t Path)) {
        match self {
            Self::Literal(_) => {}
            Self::Bound(binding) | Self::Text(binding) => match binding {
                Binding::Path(path) => visit(path),
                Binding::CompiledExpr(_, program) => program.paths().iter().for_each(visit),
                Binding::Text(pieces) => pieces.iter().for_each(|piece| {
                    if let Piece::Path(path) = piece {
                        visit(path);
                    }
                }),
                Binding::CompiledTemplate(program) => program.paths().iter().for_each(visit),
            },
            Self::Condition(condition) => condition.paths().into_iter().for_each(visit),
            Self::List(items) => items.iter().for_each(|item| item.each_path(visit)),
            Self::Object(entries) => entries.iter().for_each(|(_, value)| value.each_path(visit)),
        }
    }

    /// A list, which is a literal if all its items are.
    pub(crate) fn list(items: Vec<TemplateValue>) -> Self {
        if items.iter().all(|item| matches!(item, Self::Literal(_))) {
            Self::Literal(items.into_iter().filter_map(Self::into_literal).collect())
        } else {
            Self::List(items)
        }
    }

    /// An object, which is a literal if all its values are.
    pub(crate) fn object(entries: Vec<(String, TemplateValue)>) -> Self {
        if entries.iter().all(|(_, value)| matches!(value, Self::Literal(_))) {
            let entries = entries.into_iter().filter_map(|(key, value)| Some((key, value.into_literal()?)));
            Self::Literal(Value::Object(entries.collect()))
        } else {
            Self::Object(entries)
        }
    }

    /// An object with one more value.
    pub(crate) fn with_literal(self, (key, value): (String, Value)) -> Self {
        match self {
            Self::Literal(Value::Object(mut entries)) => {
                entries.insert(key, value);
                Self::Literal(Value::Object(entries))
            }
            Self::Object(mut entries) => {
                entries.push((key, Self::Literal(value)));
                Self::Object(entries)
            }
            other => other,
        }
    }

    fn into_literal(self) -> Option<Value> {
        match self {
            Self::Literal(value) => Some(value),
            _ => None,
        }
    }

    fn resolve(
        &self,
        scope: &Scope<'_>,
        limits: &Limits,
        node: Option<&NodeId>,
        key: &Key<'_>,
    ) -> Result<Value, BindingError> {
        Ok(match self {
            Self::Literal(value) => value.clone(),
            Self::Bound(binding) | Self::Text(binding) => {
                let failed = |(expression, reason): (&str, String)| {
                    let whose = node.map_or_else(|| "the flow".to_owned(), |id| format!("node `{id}`"));
                    let place = format!("{whose}, key `{key}`").into();
                    BindingError { place, expression: expression.to_owned(), reason }
                };
                let value = binding.resolve(scope, limits).map_err(failed)?;
                // Else an output could name a secret: itself, or with the text around it.
                let mut named = Vec::new();
                if key.is_in_server() {
                    self.each_path(&mut |path| named.extend(path.get(scope).into_iter().flat_map(names_in)));
                }
                let given: Vec<_> = key.servers_in(&value).into_iter().flat_map(names_in).collect();
                if !given.is_empty() {
                    let own = binding.own_names();
                    named.extend(given.into_iter().filter(|name| !own.contains(name)));
                }
                if !named.is_empty() {
                    let reason = "it names a variable or a file by `${`, `{env:` or `{file:`, and only the flow's own text may do \
                                  that here";
                    return Err(failed((binding.first_source(), reason.to_owned())));
                }
                // Null stays null; it does not become the text "null".
                match value {
                    Value::String(_) | Value::Null => value,
                    value if matches!(self, Self::Text(_)) => Value::String(value.to_string()),
                    value => value,
                }
            }
            Self::Condition(condition) => Value::Bool(condition.holds_within(scope, limits)?),
            Self::List(items) => {
                let items = items.iter().enumerate();
                let items = items.map(|(at, item)| item.resolve(scope, limits, node, &Key::Index(key, at)));
                Value::Array(items.collect::<Result<_, _>>()?)
            }
            Self::Object(entries) => {
                let mut map = Map::new();
                for (name, value) in entries {
                    map.insert(name.clone(), value.resolve(scope, limits, node, &Key::Field(key, name))?);
                }
                Value::Object(map)
            }
        })
    }
}

impl Binding {
    /// Whether it keeps the type of its value.
    pub(crate) fn is_whole(&self) -> bool {
        matches!(self, Self::Path(_) | Self::CompiledExpr(..))
    }

    /// What its own text names.
    fn own_names(&self) -> Vec<&str> {
        match self {
            Self::Path(_) => Vec::new(),
            Self::CompiledExpr(source, _) => names(source).collect(),
            Self::Text(pieces) => {
                let texts = pieces.iter().filter_map(|piece| match piece {
                    Piece::Text(text) => Some(text),
                    Piece::Path(_) => None,
                });
                texts.flat_map(|text| names(text)).collect()
            }
            Self::CompiledTemplate(script) => own_names(&script.body),
        }
    }

    /// The first expression in it.
    fn first_source(&self) -> &str {
        let pieces = match self {
            Self::Path(path) => return &path.source,
            Self::CompiledExpr(source, _) => return source,
            Self::Text(pieces) => pieces.as_slice(),
            Self::CompiledTemplate(_) => &[],
        };
        let paths =
            pieces.iter().filter_map(|piece| if let Piece::Path(path) = piece { Some(path) } else { None });
        paths.map(|path| &*path.source).next().unwrap_or("the template")
    }

    fn resolve<'a>(&'a self, scope: &Scope<'a>, limits: &Limits) -> Result<Value, (&'a str, String)> {
        match self {
            Self::Path(path) => Ok(to_copy(path, scope, limits)?.clone()),
            Self::CompiledExpr(source, program) => {
                program.value(scope, limits).map_err(|reason| (source.as_str(), reason))
            }
            Self::Text(pieces) => {
                let mut text = String::new();
                for piece in pieces {
                    match piece {
                        Piece::Text(piece) => text.push_str(piece),
                        Piece::Path(path) => match to_copy(path, scope, limits)? {
                            Value::String(value) => text.push_str(value),
                            other => text.push_str(&other.to_string()),
                        },
                    }
                }
                Ok(Value::String(text))
            }
            Self::CompiledTemplate(script) => {
                let text = script.text(scope, limits);
                text.map(Value::String).map_err(|broken| (broken.source, broken.reason))
            }
        }
    }
}

/// The value of a path, which may be copied.
fn to_copy<'a>(path: &'a Path, scope: &Scope<'a>, limits: &Limits) -> Result<&'a Value, (&'a str, String)> {
    let value = path.get(scope).and_then(|value| limits.copy(value).map(|()| value));
    value.map_err(|reason| (path.source.as_str(), reason))
}

/// What the own text of a template names, at any depth.
fn own_names(parts: &[Stmt]) -> Vec<&str> {
    let mut own = Vec::new();
    for part in parts {
        match part {
            Stmt::Text(text) | Stmt::Emit(_, text) => own.extend(names(text)),
            Stmt::For(each) => {
                own.extend([&each.body, &each.otherwise].into_iter().flat_map(|body| own_names(body)))
            }
            Stmt::If(parts) => own.extend([&parts.2, &parts.3].into_iter().flat_map(|body| own_names(body))),
            Stmt::With(_, body) | Stmt::SetBlock(_, _, body) | Stmt::Filter(_, body) => {
                own.extend(own_names(body))
            }
            Stmt::Set(..) | Stmt::Do(..) => {}
        }
    }
    own
}

/// What a text names that is filled in in the entry of an MCP server: a variable as `${NAME`, and in the entries of OpenCode
/// also as `{env:NAME`, and a file as `{file:PATH`.
fn names(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices(['$', '{']).filter_map(|(at, _)| {
        let text = &text[at..];
        let end = match text.strip_prefix("${") {
            Some(name) => name.find(|c: char| c != '_' && !c.is_ascii_alphanumeric()).map(|end| end + 2),
            None if text.starts_with("{env:") || text.starts_with("{file:") => text.find('}'),
            None => return None,
        };
        Some(&text[..end.unwrap_or(text.len())])
    })
}

/// What the texts of a value name.
fn names_in(value: &Value) -> Vec<&str> {
    match value {
        Value::String(text) => names(text).collect(),
        Value::Array(items) => items.iter().flat_map(names_in).collect(),
        Value::Object(fields) => {
            fields.iter().flat_map(|(key, value)| names(key).chain(names_in(value))).collect()
        }
        _ => Vec::new(),
    }
}

/// Parses a string into a binding and the names that it uses; none if there are no bindings.
pub(crate) fn parse_template(
    text: &str,
    resolver: &dyn Resolver,
) -> Result<Option<(Binding, Vec<NameUse>)>, SyntaxFault> {
    if !has_segments(text) {
        return Ok(None);
    }
    if let Some((source, offset)) = lone_name(text) {
        return whole(source, offset, resolver).map(Some);
    }
    let parts = segments(text).map_err(|offset| SyntaxFault {
        reason: "the braces opened here are never closed".to_owned(),
        offset,
        help: Some(unclosed(text, offset)),
    })?;
    for part in &parts {
        let (Segment::Expression { source, offset, .. } | Segment::Statement { source, offset }) = part
        else {
            continue;
        };
        let mut words = source.split_whitespace();
        if matches!(part, Segment::Statement { .. })
            && (words.next(), words.next()) == (Some("else"), Some("if"))
        {
            let reason = "unknown statement `else if`".to_owned();
            return Err(SyntaxFault {
                reason,
                offset: *offset,
                help: Some("write `{% elif … %}`".to_owned()),
            });
        }
        vocabulary::check(source).map_err(|fault| fault.after(*offset))?;
    }
    let is_blank = |part: &&Segment<'_>| matches!(part, Segment::Text(text) if text.trim().is_empty());
    let mut solid = parts.iter().filter(|part| !is_blank(part));
    if let (Some(Segment::Expression { source, offset, .. }), None) = (solid.next(), solid.next()) {
        return whole(source, *offset, resolver).map(Some);
    }
    let plain = parts.iter().all(|part| match part {
        Segment::Text(_) => true,
        Segment::Expression { source, trims: Trims::No, .. } => plain_path(source).is_some(),
        _ => false,
    });
    if plain { Ok(Some(pieces(&parts, resolver))) } else { script(text, &parts, resolver).map(Some) }
}

/// How to close braces that are opened at an offset of a text, or to write them as text.
fn unclosed(text: &str, offset: usize) -> String {
    let (before, text) = text.split_at(offset);
    if text.starts_with("{#") {
        return match before.ends_with('$') {
            true => as_shell_length(text),
            false => {
                "close the comment by `#}`, or write `{% raw %}{#{% endraw %}` for the text `{#`".to_owned()
            }
        };
    }
    let (open, close) = match text.as_bytes().get(1) {
        Some(b'%') => ("{%", "%}"),
        _ => ("{{", "}}"),
    };
    let inner = text[2..].split(['}', '\n', '%', '#']).next().unwrap_or_default().trim();
    let inner = if inner.is_empty() || inner.len() > 40 { "…" } else { inner };
    format!("write `{open} {inner} {close}`")
}

/// How the length of a shell's variable is written, for a text that begins with the `{#` of one.
pub(crate) fn as_shell_length(text: &str) -> String {
    let is_name = |name: &&str| name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric());
    let name = text[2..].split('}').next().filter(|name| !name.is_empty()).filter(is_name).unwrap_or("name");
    format!(
        "`{{#` begins a comment: for the shell's `${{#{name}}}` write `{{% raw %}}${{#{name}}}{{% endraw %}}`"
    )
}

/// How an expression with a `$` before its braces is written: without it, or so that it is meant.
pub(crate) fn without_dollar(expression: &str) -> String {
    let expression = if expression.is_empty() || expression.len() > 40 { "…" } else { expression };
    format!(
        "write `{{{{ {expression} }}}}`; if the text is to have a `$` there, write `{{{{ '$' }}}}{{{{ {expression} }}}}`"
    )
}

/// The name and its offset, if a text is one name or dotted path in braces, as most bindings are.
fn lone_name(text: &str) -> Option<(&str, usize)> {
    let inner = text.trim().strip_prefix("{{")?.strip_suffix("}}")?;
    let offset = text.len() - text.trim_start().len() + 2;
    vocabulary::is_plain(inner).then_some((inner, offset))
}

fn whole(
    source: &str,
    offset: usize,
    resolver: &dyn Resolver,
) -> Result<(Binding, Vec<NameUse>), SyntaxFault> {
    let offset = offset + source.len() - source.trim_start().len();
    let source = source.trim();
    if let Some((path, used)) = lone_path(source, offset, resolver) {
        return Ok((path.map_or(Binding::Text(Vec::new()), Binding::Path), vec![used]));
    }
    let (program, uses) = CompiledExpr::parse(source, offset, Strictness::Template, resolver)?;
    Ok((Binding::CompiledExpr(source.to_owned(), Box::new(program)), uses))
}

fn pieces(parts: &[Segment<'_>], resolver: &dyn Resolver) -> (Binding, Vec<NameUse>) {
    let mut found = Vec::with_capacity(parts.len());
    let mut uses = Vec::new();
    for part in parts {
        match part {
            Segment::Text(text) => found.push(Piece::Text((*text).to_owned())),
            Segment::Expression { source, offset, .. } => {
                let offset = offset + source.len() - source.trim_start().len();
                if let Some((path, used)) = lone_path(source, offset, resolver) {
                    found.extend(path.map(Piece::Path));
                    uses.push(used);
                }
            }
            _ => {}
        }
    }
    (Binding::Text(found), uses)
}

fn script(
    text: &str,
    parts: &[Segment<'_>],
    resolver: &dyn Resolver,
) -> Result<(Binding, Vec<NameUse>), SyntaxFault> {
    check_depth(parts)?;
    let (script, uses) = CompiledTemplate::parse(text, resolver)?;
    Ok((Binding::CompiledTemplate(Box::new(script)), uses))
}

/// How a statement changes the nesting of a template.
enum BlockChange {
    Opens,
    Closes,
    Branches,
    Stands,
}

impl BlockChange {
    fn of(source: &str) -> Self {
        match source.split_whitespace().next().unwrap_or_default() {
            word if word.starts_with("end") => Self::Closes,
            "if" | "for" | "with" | "filter" | "autoescape" => Self::Opens,
            "set" if !source.contains('=') => Self::Opens,
            "elif" => Self::Branches,
            _ => Self::Stands,
        }
    }
}

/// Refuses a template that is nested too deep to be parsed safely; each `elif` is one more level.
fn check_depth(parts: &[Segment<'_>]) -> Result<(), SyntaxFault> {
    let mut open: Vec<usize> = Vec::new();
    for part in parts {
        let Segment::Statement { source, offset } = part else { continue };
        let depth = open.last().copied().unwrap_or_default();
        match BlockChange::of(source) {
            BlockChange::Opens => open.push(depth + 1),
            BlockChange::Closes => drop(open.pop()),
            BlockChange::Branches => {
                if let Some(last) = open.last_mut() {
                    *last += 1;
                }
            }
            BlockChange::Stands => {}
        }
        if open.last().is_some_and(|depth| *depth > MAX_BLOCKS) {
            let reason = format!("blocks are nested deeper than {MAX_BLOCKS} levels");
            return Err(SyntaxFault { reason, offset: *offset, help: None });
        }
    }
    Ok(())
}
