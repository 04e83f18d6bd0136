//! One item of `edges`.

use crate::{
    diagnostic::{Code, Problem, Sink, SourceSpan},
    graph::{EdgeOn, OnExhausted},
    spec::{Key, Text, Yaml, fields::Fields},
};

/// The words for how a source may end.
pub(super) const ENDS: [(&str, EdgeOn); 4] = [
    ("success", EdgeOn::Success),
    ("failure", EdgeOn::Failure),
    ("skipped", EdgeOn::Skipped),
    ("any", EdgeOn::Any),
];

/// An edge as written.
#[derive(Debug)]
pub(crate) struct EdgeSpec<'a> {
    /// Its place: `edges[2]`, or `nodes[3].body.edges[2]`.
    pub(crate) key: String,
    pub(crate) span: SourceSpan,
    pub(crate) from: Option<Text<'a>>,
    pub(crate) to: Option<Text<'a>>,
    pub(crate) on: EdgeOn,
    pub(crate) when: Option<&'a Yaml>,
    /// How often it may fire, and the place of that key.
    pub(crate) max_iterations: Option<(u32, SourceSpan)>,
    pub(crate) on_exhausted: OnExhausted,
}

impl<'a> EdgeSpec<'a> {
    pub(super) fn read(value: &'a Yaml, key: &Key<'_>, sink: &mut Sink) -> Option<Self> {
        let mut fields = Fields::open(value, key, sink)?;
        let mut end = |name| fields.required(name, "the edge", sink);
        let (from, to) = (end("from"), end("to"));
        let on = fields.word("on", &ENDS, sink);
        let when = fields.get("when");
        let is_loop = fields.get("maxIterations").is_some();
        let max_iterations =
            fields.count("maxIterations", sink).map(|count| (count, fields.key_span("maxIterations")));
        if let Some((_, span)) = fields.get("onExhausted").and_then(Yaml::placed_text)
            && !is_loop
        {
            let message = "`onExhausted` needs `maxIterations`";
            sink.push(Problem::error(Code::MissingKey, span, message).key(Key::Field(key, "maxIterations")));
        }
        let words = [("fail", OnExhausted::Fail), ("continue", OnExhausted::Continue)];
        let on_exhausted = fields.word("onExhausted", &words, sink);
        fields.unbuilt("forEach", sink);
        let span = value.span;
        fields.finish(sink);
        // An invalid limit was reported; the edge still closes a loop.
        let max_iterations = max_iterations.or(is_loop.then_some((1, span)));
        Some(Self {
            key: key.to_string(),
            span,
            from,
            to,
            on: on.unwrap_or_default(),
            when,
            max_iterations,
            on_exhausted: on_exhausted.unwrap_or_default(),
        })
    }
}
