//! Tests of templates and conditions as the author writes them. Which names exist is tested with the
//! compiler.

use inspan_protocol::NodeId;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::graph::NodeIx;

/// `plan` has run, `review` has not.
struct Names;

impl Resolver for Names {
    fn root(&self, name: &str) -> Option<PathRoot> {
        match name {
            "plan" => Some(PathRoot::Node(NodeIx(0))),
            "review" => Some(PathRoot::Node(NodeIx(1))),
            "flow" => Some(PathRoot::Flow),
            "state" => Some(PathRoot::State),
            "loop" => Some(PathRoot::Local(name.into())),
            _ => None,
        }
    }
}

struct Values {
    outputs: Vec<Option<Arc<Value>>>,
    flow: Value,
    state: Value,
    locals: Value,
}

impl Values {
    fn new() -> Self {
        let plan = json!({
            "title": "Fix it",
            "items": [{ "n": 1 }, { "n": 2.5 }],
            "a-b": true,
            "none": null,
            "text": "<b> & \"q\"",
            "big": 9_007_199_254_740_993_u64,
        });
        Self {
            outputs: vec![Some(Arc::new(plan)), None],
            flow: json!({ "input": { "topic": "rust", "empty": "" }, "name": "f", "sessionId": "s" }),
            state: json!({ "seen": [1, 2] }),
            locals: json!({ "loop": { "index": 3 } }),
        }
    }

    fn scope(&self) -> Scope<'_> {
        Scope::new(&self.outputs, &self.flow, &self.state, &self.locals)
    }

    fn resolve(&self, text: &str) -> Result<Value, String> {
        let draft = match parse_template(text, &Names) {
            Ok(None) => TemplateValue::Literal(Value::String(text.to_owned())),
            Ok(Some((binding, _))) => TemplateValue::Bound(binding),
            Err(fault) => return Err(format!("{} at {}", fault.reason, fault.offset)),
        };
        Template::new(NodeId::new("x").ok(), "input", draft)
            .resolve(&self.scope())
            .map_err(|error| error.to_string())
    }

    fn holds(&self, text: &str) -> Result<bool, String> {
        let place: Arc<str> = "node `x`, key `when`".into();
        match parse_condition(text, &Names) {
            Ok((test, _)) => {
                Condition::new(place, test).holds(&self.scope()).map_err(|error| error.to_string())
            }
            Err(fault) => Err(format!("{} at {}", fault.reason, fault.offset)),
        }
    }
}

mod bounds;

#[test]
fn templates_give_values_and_texts() {
    let values = Values::new();
    let rows = [
        // Literals stay as they are.
        ("plain { text } of 100 %", json!("plain { text } of 100 %")),
        ("{# a remark #}kept\n", json!("kept\n")),
        // One whole binding keeps the type.
        ("{{ plan.items }}", json!([{ "n": 1 }, { "n": 2.5 }])),
        ("{{plan.items[0].n}}", json!(1)),
        ("  {{ plan.items[-1].n }}\n", json!(2.5)),
        ("{{ plan[\"a-b\"] }}", json!(true)),
        ("{{ plan.none }}", json!(null)),
        ("{{ plan.big }}", json!(9_007_199_254_740_993_u64)),
        ("{{ plan.big + 0 }}", json!(9_007_199_254_740_993_u64)),
        ("{{ state.seen }}", json!([1, 2])),
        ("{{ loop.index }}", json!(3)),
        ("{{ plan.items | length }}", json!(2)),
        ("{{ plan.items[0].n + 1 }}", json!(2)),
        ("{{ plan.title == 'Fix it' }}", json!(true)),
        ("{{ {\"a\": {\"b\": 1}} }}", json!({ "a": { "b": 1 } })),
        ("{{ [flow.input.topic, 1, none] }}", json!(["rust", 1, null])),
        ("{{ '}}' }}", json!("}}")),
        ("{{ plan.items | map(attribute='n') | list }}", json!([1, 2.5])),
        // A loop can leave out what has no value.
        ("{% for r in [review, plan, review.x] if r %}{{ r.title }}.{% endfor %}", json!("Fix it.")),
        (
            "{% for r in [review, plan] if r is defined %}{{ r.title }}.{% else %}none{% endfor %}",
            json!("Fix it."),
        ),
        // Anything else becomes text.
        ("on {{ flow.input.topic }}", json!("on rust")),
        ("{{ plan.title }}{{ loop.index }}", json!("Fix it3")),
        ("n: {{ plan.items }}", json!("n: [{\"n\":1},{\"n\":2.5}]")),
        ("n: {{ plan.items | list }}", json!("n: [{\"n\":1},{\"n\":2.5}]")),
        ("{{ plan.none }} and {{ plan[\"a-b\"] }}", json!("null and true")),
        ("{{ plan.none }} and {{ plan[\"a-b\"] | bool }}", json!("null and true")),
        ("raw {{ plan.text }}", json!("raw <b> & \"q\"")),
        ("{% if true %}{{ plan.text }}{% endif %}\n", json!("<b> & \"q\"\n")),
        ("a {{- plan.title -}} b", json!("aFix itb")),
        ("{% for item in plan.items %}{{ loop.index }}={{ item.n }};{% endfor %}", json!("1=1;2=2.5;")),
        ("{% raw %}{{ plan }}{% endraw %}", json!("{{ plan }}")),
        ("n={% raw %}${#a}{% endraw %} {# b #}", json!("n=${#a} ")),
        ("{% set t = plan.title %}{{ t | upper }}!", json!("FIX IT!")),
        // What has not run may be tested.
        ("a{% if review %} b {{ review.text }}{% endif %}", json!("a")),
        ("{{ review | default('none') }}", json!("none")),
        ("{{ 'yes' if review is defined else 'no' }}", json!("no")),
        ("x {{ review.a if review }}", json!("x ")),
        ("{{ review.text | default('none') }}", json!("none")),
        ("{{ review.a.b[0].c | default('none') }}", json!("none")),
        ("{{ plan.nope.deeper | d(review.text) | d(plan.title) }}", json!("Fix it")),
        ("{{ plan.title | default(review.text) }}", json!("Fix it")),
        ("{{ flow.input.empty | default('x', true) }}{{ none | default('x') }}", json!("xnull")),
        ("{{ review.text is defined }}", json!(false)),
        ("{{ review.a.b is not defined }}", json!(true)),
        ("{{ review.text is none or review.text is string }}", json!(false)),
        ("{% if review.text %}a{% elif not review.a.b %}b{% endif %}", json!("b")),
        ("{{ review.text or plan.title }}", json!("Fix it")),
        ("{{ 'a' if review.text.x else 'b' }}", json!("b")),
        // Loops, and what a template sets itself.
        ("{{ [1, 2] + [3] }}", json!([1, 2, 3])),
        ("{{ 'ab' * 2 ~ [1, 'x'] ~ none ~ true }}", json!("abab[1,\"x\"]nulltrue")),
        ("{{ plan.title[:3] }}{{ [1, 2, 3][::-1] }}", json!("Fix[3,2,1]")),
        ("{{ [0, 1, 2, 3][1:3] }}", json!([1, 2])),
        ("{{ [0, 1, 2, 3][-3:-1] ~ [0, 1][5:] ~ [0, 1][:-9] }}", json!("[1,2][][]")),
        ("{{ [0, 1, 2, 3][::2] ~ [0, 1, 2, 3][3:0:-2] ~ [0, 1, 2][0:2:-1] }}", json!("[0,2][3,1][]")),
        ("{{ 'abc'[-9223372036854775808:] ~ 'abc'[::-9223372036854775808] }}", json!("abcc")),
        ("{{ 1 < 2 < 3 and 'i' in plan.title and 2 not in [1] and 'title' in plan }}", json!(true)),
        (
            "{{ 7 // 2 }} {{ 7 / 2 }} {{ 7 % 4 }} {{ 2 ** 10 }} {{ -plan.items[0].n }}",
            json!("3 3.5 3 1024 -1"),
        ),
        (
            "{% set ns = namespace(n=0) %}{% for i in range(3) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}",
            json!("3"),
        ),
        ("{% for k, v in {'a': 1} | items %}{{ k }}{{ v }}{% endfor %}", json!("a1")),
        (
            "{% for i in [1, 2, 3] if i > 1 %}{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}{% endfor %}",
            json!("1/2,2/2"),
        ),
        ("{% for i in [] %}x{% else %}none{% endfor %}", json!("none")),
        (
            "{% for i in [1, 1, 2] %}{{ loop.cycle('a', 'b') }}{{ loop.changed(i) }}{% endfor %}",
            json!("atruebfalseatrue"),
        ),
        (
            "{% for i in [1] %}{% set outer = loop %}{% for j in [1, 2] %}{{ outer.index }}{{ j }}{% endfor %}{% endfor %}",
            json!("1112"),
        ),
        (
            "{% for i in [[1, [2]]] recursive %}({{ loop(i) if i is sequence else i }}){% endfor %}",
            json!("((1)((2)))"),
        ),
        (
            "{% with a = 1 %}{{ a }}{% endwith %}{% set b %}x{{ a is defined }}{% endset %}{{ b }}",
            json!("1xfalse"),
        ),
        ("{% filter upper | trim %} a{{ plan.title }} {% endfilter %}", json!("AFIX IT")),
        ("{{ dict(a=1) }}{{ dict({'b': 2}, c=3) | length }}", json!("{\"a\":1}2")),
        (
            "{{ plan.items | map(attribute='n') | sum }} {{ plan.items | selectattr('n', 'gt', 2) | list }}",
            json!("3.5 [{\"n\":2.5}]"),
        ),
        ("{{ '42\n' | int + ' 0x1f ' | int(base=16) + '\t1.5\n' | float }}", json!(74.5)),
        ("{{ ['1\n', '2\n'] | map('int') | sum + ' x ' | int(default=5) }}", json!(8)),
        ("{{ plan.items | map(attribute='m', default=0) | list }}", json!([0, 0])),
        ("{{ ['a'] | map('upper') | join(',') }}{{ plan.items | tojson(indent=1) | length }}", json!("A36")),
        (
            "{{ [3, 1, 2] | sort | reverse | first }}{{ 'a,b' | split(',') | last }}{{ {'b': 1, 'a': 2} | dictsort }}",
            json!("3b[[\"a\",2],[\"b\",1]]"),
        ),
        ("{% set plan = 'own' %}{{ plan }}", json!("own")),
        ("{% if false %}{% set plan = 'own' %}{% endif %}{{ plan.title }}", json!("Fix it")),
    ];
    let said: Vec<_> = rows.iter().map(|(text, _)| (*text, values.resolve(text))).collect();
    let expected: Vec<_> = rows.iter().map(|(text, value)| (*text, Ok(value.clone()))).collect();
    assert_eq!(said, expected);
}

#[test]
fn what_cannot_be_worked_out_names_its_place_and_expression() {
    let values = Values::new();
    let rows = [
        ("{{ review }}", "`review`: `review` has no output: the node has not completed"),
        ("a {{ review.text }}", "`review.text`: `review` has no output: the node has not completed"),
        ("{{ plan.titel }}", "`plan.titel`: `plan` has no `titel`"),
        ("{{ plan.items[7].n }}", "`plan.items[7].n`: `plan.items` has no item 7"),
        ("{{ plan.title.x }}", "`plan.title.x`: `plan.title` has no `x`"),
        ("{{ plan.titel | upper }}", "`plan.titel | upper`: `plan` has no `titel`"),
        ("{{ plan.nope or plan.title }}{{ plan.x.y }}", "`plan.x.y`: `plan` has no `x`"),
        (
            "{{ plan.title * plan.title }}",
            "`plan.title * plan.title`: strings can only be multiplied with integers",
        ),
        (
            "{{ review.text | upper }}",
            "`review.text | upper`: `review` has no output: the node has not completed",
        ),
        (
            "a{{ review.text ~ 'x' }}",
            "`review.text ~ 'x'`: `review` has no output: the node has not completed",
        ),
        ("{{ [review.text] }}", "`[review.text]`: `review` has no output: the node has not completed"),
        (
            "{% for a in review.list %}{% endfor %}",
            "`review.list`: `review` has no output: the node has not completed",
        ),
        (
            "{% if true %}{{ review.text }}{% endif %}",
            "`review.text`: `review` has no output: the node has not completed",
        ),
        ("{% set t = plan.nope %}", "`plan.nope`: `plan` has no `nope`"),
        (
            "{{ review.text == 'x' }}",
            "`review.text == 'x'`: `review` has no output: the node has not completed",
        ),
        ("{{ (plan.items | first).m }}", "`(plan.items | first).m`: the value has no `m`"),
        ("{% for i in plan.items %}{{ i.zz }}{% endfor %}", "`i.zz`: `i` has no `zz`"),
        (
            "{{ plan.items | map(attribute='zz') | list }}",
            "`plan.items | map(attribute='zz') | list`: item 0 has no `zz`; say `default=…` where it may be missing",
        ),
        (
            "{{ 1e300 * 1e300 }}",
            "`1e300 * 1e300`: `inf` is not a number in JSON: the calculation is out of range",
        ),
        (
            "x {{ [1e300 * 1e300] }}",
            "`[1e300 * 1e300]`: `inf` is not a number in JSON: the calculation is out of range",
        ),
        ("{{ 1 / 0 }}", "`1 / 0`: unable to calculate 1 / 0"),
        (
            "{% set plan.x = 1 %}",
            "`1`: `plan` is not a namespace, and only members of a `namespace()` can be set",
        ),
    ];
    let said: Vec<_> = rows.iter().map(|(text, _)| (*text, values.resolve(text))).collect();
    let expected: Vec<_> =
        rows.iter().map(|(text, reason)| (*text, Err(format!("node `x`, key `input`: {reason}")))).collect();
    assert_eq!(said, expected);
}

#[test]
fn in_the_entry_of_a_server_only_the_flows_own_text_names_variables() {
    let mut values = Values::new();
    values.flow["input"] = json!({
        "topic": "${TOKEN}", "rest": "{TOKEN}", "dollar": "$", "file": "{file:/etc/passwd}",
        "options": { "model": "${M}", "mcpServers": { "s": { "args": ["${TOKEN}"] } } },
        "safe": { "model": "${M}", "mcpServers": { "s": { "args": ["a"] } } },
    });
    let whole = |text: &str| {
        let Ok(Some((binding, _))) = parse_template(text, &Names) else { panic!("{text} is not a template") };
        let entry = TemplateValue::Object(vec![("options".to_owned(), TemplateValue::Bound(binding))]);
        Template::new(NodeId::new("x").ok(), "input", entry).resolve(&values.scope()).is_ok()
    };
    assert_eq!(["options", "safe"].map(|name| whole(&format!("{{{{ flow.input.{name} }}}}"))), [false, true]);
    let under = |key: &str, text: &str| {
        let Ok(Some((binding, _))) = parse_template(text, &Names) else { panic!("{text} is not a template") };
        let entry = TemplateValue::Object(vec![(key.to_owned(), TemplateValue::Bound(binding))]);
        let entry = TemplateValue::Object(vec![("options".to_owned(), entry)]);
        Template::new(NodeId::new("x").ok(), "input", entry)
            .resolve(&values.scope())
            .map(|value| value["options"].clone())
            .map_err(|error| error.to_string())
    };
    let refused = "node `x`, key `input.options.mcpServers`: `flow.input.topic`: it names a variable or a file by `${`, `{env:` or \
        `{file:`, and only the flow's own text may do that here";
    assert_eq!(under("mcpServers", "{{ flow.input.topic }}"), Err(refused.to_owned()));
    // What is named elsewhere in the text is no room for another name.
    for text in [
        "{% if not flow.name %}${OTHER}{% endif %}{{ flow.input.dollar }}{{ flow.input.rest }}",
        "{{ flow.input.dollar ~ flow.input.rest if flow.name else '${OTHER}' }}",
        "{{ flow.input.file }}",
        "{env:A{{ flow.name }}}",
    ] {
        assert!(under("mcpServers", text).is_err(), "{text}");
    }
    let each = under("mcpServers", "{% for n in [1, 2] %}${A}{env:B}{% endfor %}");
    assert_eq!(each, Ok(json!({ "mcpServers": "${A}{env:B}${A}{env:B}" })));
    let chosen = "{{ flow.input.topic if flow.name else '${TOKEN}' }}";
    for text in
        ["a {{ flow.input.topic }}", "{{ flow.input.topic | upper }}", "${{ flow.input.rest }}", chosen]
    {
        assert!(under("mcpServers", text).is_err(), "{text}");
    }
    let own = under("mcpServers", "Bearer ${TOKEN} {{ flow.name }}");
    assert_eq!(own, Ok(json!({ "mcpServers": "Bearer ${TOKEN} f" })));
    let either = under("mcpServers", "Bearer {{ '${TOKEN}' if flow.name else 'none' }}");
    assert_eq!(either, Ok(json!({ "mcpServers": "Bearer ${TOKEN}" })));
    assert_eq!(under("server", "{{ flow.input.topic }}"), Ok(json!({ "server": "${TOKEN}" })));
    let nested = under("mcpServers", "{% if flow.name %}--key=${KEY}{% endif %}");
    assert_eq!(nested, Ok(json!({ "mcpServers": "--key=${KEY}" })));
    assert_eq!(under("prompt", "{{ flow.input.topic }}"), Ok(json!({ "prompt": "${TOKEN}" })));
}

#[test]
fn what_is_no_template_is_refused_with_its_place() {
    let values = Values::new();
    let rows = [
        ("ok {{ plan.title", "the braces opened here are never closed at 3"),
        ("{% raw %}{%}", "the braces opened here are never closed at 0"),
        ("{% if x %}", "unexpected end of input, expected end of block at 0"),
        ("é {{ plan.title | uper }}", "unknown filter `uper` at 19"),
        ("{% if plan is not define %}{% endif %}", "unknown test `define` at 18"),
        ("a\n{% include 'x' %}", "unknown statement include at 2"),
        ("{% import 'x' as y %}", "unknown statement import at 0"),
        ("{% macro f() %}{% endmacro %}", "unknown statement macro at 0"),
        ("{{ plan.items | map('uper') }}", "unknown filter `uper` at 20"),
        ("{{ plan.items | selectattr('n', 'gtt', 1) }}", "unknown test `gtt` at 27"),
        ("{{ fromjson(plan.title) }}", "unknown function `fromjson` at 3"),
        ("{{ plan.title.upper() }}", "values have no methods such as `upper()` at 3"),
        ("{{ plan.title = 'x' }}", "unexpected input after expression at 14"),
        ("{{ plan.title é }}", "unexpected `é` in an expression at 14"),
        ("{{ !plan.title }}", "unexpected `!` in an expression at 3"),
        ("{{ plan.title == 'x' && true }}", "unexpected `&&` in an expression at 21"),
    ];
    let said: Vec<_> = rows.iter().map(|(text, _)| (*text, values.resolve(text))).collect();
    let expected: Vec<_> = rows.iter().map(|(text, reason)| (*text, Err((*reason).to_owned()))).collect();
    assert_eq!(said, expected);
}

#[test]
fn conditions_are_strict() {
    let values = Values::new();
    let fails =
        |expression: &str, reason: &str| Err(format!("node `x`, key `when`: `{expression}`: {reason}"));
    let rows = [
        ("plan.title", Ok(true)),
        ("not plan.title", Ok(false)),
        ("flow.input.empty", Ok(false)),
        ("plan.none", Ok(false)),
        ("plan.items | length > 1 and plan.title != ''", Ok(true)),
        ("{{ plan.items[0].n == 1.0 }}", Ok(true)),
        ("{{- plan.title != '{{' -}}", Ok(true)),
        ("review is defined and review.passed", Ok(false)),
        ("review is not defined", Ok(true)),
        ("review.a.b is defined", Ok(false)),
        ("review.text | default('x') == 'x'", Ok(true)),
        ("(review.text if review.text else 'no') == 'no'", Ok(true)),
        ("plan.passed is defined", Ok(false)),
        ("'rust' in flow.input.topic", Ok(true)),
        ("not plan.passed", fails("plan.passed", "`plan` has no `passed`")),
        ("plan.passed", fails("plan.passed", "`plan` has no `passed`")),
        ("not (plan.passed)", fails("not (plan.passed)", "`plan` has no `passed`")),
        (
            "plan.title and review",
            fails("plan.title and review", "`review` has no output: the node has not completed"),
        ),
        ("plan.title ==", Err("unexpected end of input, expected expression at 0".to_owned())),
        ("plan.title is strnig", Err("unknown test `strnig` at 14".to_owned())),
    ];
    let said: Vec<_> = rows.iter().map(|(text, _)| (*text, values.holds(text))).collect();
    assert_eq!(said, rows.to_vec());
}

#[test]
fn a_structure_compares_values_and_takes_the_undefined_for_null() {
    let values = Values::new();
    let equals = |path: &str, value: Value| {
        let (test, _) = parse_variable(path, value, &Names).unwrap();
        test
    };
    let holds = |test: Predicate| Condition::new("x".into(), test).holds(&values.scope());
    let said = [
        holds(equals("plan.title", json!("Fix it"))),
        holds(equals("plan.items[0].n", json!(1.0))),
        holds(equals("plan.items", json!([{ "n": 1.0 }, { "n": 2.5 }]))),
        holds(equals("plan.big", json!(9_007_199_254_740_993_u64))),
        holds(equals("plan.big", json!(9_007_199_254_740_992_u64))),
        holds(equals("review.text", json!(null))),
        holds(equals("review.text", json!("x"))),
        holds(Predicate::Not(Box::new(equals("plan.none", json!(null))))),
        holds(Predicate::All(vec![equals("plan.none", json!(null)), Predicate::Constant(false)])),
        holds(Predicate::Any(vec![equals("plan.none", json!(1)), Predicate::Constant(true)])),
        holds(Predicate::All(Vec::new())),
        holds(Predicate::Any(Vec::new())),
    ];
    let expected = [true, true, true, true, false, true, false, false, false, true, true, false];
    assert_eq!(said, expected.map(Ok));
}

/// As in Jinja: a text never decides where a number is meant.
#[test]
fn values_of_different_kinds_have_no_order() {
    let values = Values::new();
    let holds =
        ["'a' < 'b'", "1 <= 1.0", "true > 0.5", "false < true", "[1, none, 2] < [1, none, 3]", "[] < [1]"];
    assert_eq!(holds.map(|test| values.holds(test)), holds.map(|_| Ok(true)));
    assert_eq!(values.holds("'a' != 1 and 'a' not in [1] and plan.none == none"), Ok(true));

    let text = "a text and a number have no order: `| float` makes a number of a text";
    let rows = [
        ("plan.title >= 0.7", text),
        ("plan.title < 1", text),
        ("plan.title is gt(1)", text),
        ("[['a']] > [[1]]", text),
        ("['a', 1] | sort | first == 1", text),
        ("['a', 1] | max == 'a'", text),
        ("[{'n': 'a'}, {'n': 1}] | min(attribute='n')", text),
        ("[{'m': 1, 'n': 'a'}, {'m': 1, 'n': 1}] | sort(attribute='m, n')", text),
        ("{'a': 'a', 'b': 1} | dictsort(by='value')", text),
        ("['a', 1] | select('gt', 0) | list", text),
        ("[{'n': 'a'}] | selectattr('n', 'lt', 1) | list", text),
        ("plan.none < plan.none", "null and null have no order"),
        ("plan <= plan", "a mapping and a mapping have no order"),
        ("plan.items > 'a'", "a list and a text have no order"),
        ("[true, 2] | sort", "`sort` has no order for true or false among numbers"),
        ("review.score is lt(1)", "`review` has no output: the node has not completed"),
    ];
    let said = rows.map(|(test, _)| values.holds(test));
    assert_eq!(said, rows.map(|(test, why)| Err(format!("node `x`, key `when`: `{test}`: {why}"))));
    let template = "{% if plan.title > 1 %}yes{% endif %}";
    assert!(values.resolve(template).unwrap_err().contains(text), "{:?}", values.resolve(template));
}

#[test]
fn uses_tell_where_a_name_stands_and_whether_it_must_be_there() {
    let uses = |text: &str| -> Vec<(String, usize, bool)> {
        let (_, uses) = parse_template(text, &Names).unwrap().unwrap();
        uses.into_iter().map(|used| (used.path.to_string(), used.offset, used.bare)).collect()
    };
    let row = |path: &str, offset: usize, bare: bool| (path.to_owned(), offset, bare);
    assert_eq!(
        [
            uses("{{ plan.a.b }}"),
            uses("é {{ plan.items[0].n }} {{ review }}"),
            uses("{{ plan.a | upper }}"),
            uses("{{ review | default(plan.b) }}"),
            uses("{% if review %}{{ review.x }}{% endif %}{{ plan.y }}"),
            uses("{% for p in plan.items %}{{ p.n }}{{ range(2) }}{% endfor %}"),
        ],
        [
            vec![row("plan.a.b", 3, true)],
            vec![row("plan.items", 6, true), row("review", 28, true)],
            vec![row("plan.a", 3, true)],
            vec![row("review", 3, false), row("plan.b", 20, false)],
            vec![row("review", 6, false), row("review.x", 18, false), row("plan.y", 43, true)],
            vec![row("plan.items", 12, true)],
        ]
    );
}

/// Anything that is nested very deep is refused or evaluated, and never ends the program.
#[test]
fn deep_nesting_is_survived() {
    let values = Values::new();
    let deep = [
        format!("{{{{ {}1{} }}}}", "(".repeat(20_000), ")".repeat(20_000)),
        format!("{{{{ {}1{} }}}}", "[".repeat(20_000), "]".repeat(20_000)),
        format!("{{{{ {}1 }}}}", "-".repeat(20_000)),
        format!("{{{{ {}plan }}}}", "not ".repeat(20_000)),
        format!("{{{{ plan{} }}}}", ".a".repeat(20_000)),
        format!("{{{{ plan{} }}}}", "|string".repeat(20_000)),
        format!("{{{{ 1{} }}}}", " + 1".repeat(20_000)),
        format!("{{{{ 1{} }}}}", " if 1 else 1".repeat(20_000)),
        format!("{}{}", "{% if 1 %}".repeat(20_000), "{% endif %}".repeat(20_000)),
        format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(20_000)),
    ];
    let failed = deep.each_ref().map(|text| values.resolve(text).is_err());
    assert_eq!(failed, [true; 10]);
    // As deep as it may be.
    let wide = [
        format!("{{{{ {}1{} }}}}", "(".repeat(40), ")".repeat(40)),
        format!("{{{{ 1{} }}}}", " + 1".repeat(300)),
        format!("{{{{ plan.title{} }}}}", "|string".repeat(299)),
        format!("{}{}", "{% if 1 %}".repeat(60), "{% endif %}".repeat(60)),
        format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(59)),
    ];
    let worked = wide.each_ref().map(|text| values.resolve(text));
    let expected = [json!(1), json!(301), json!("Fix it"), json!(""), json!("")];
    assert_eq!(worked, expected.map(Ok));
}

proptest! {
    #[test]
    fn any_text_is_a_template_or_refused(text in "(\\{\\{|\\}\\}|\\{%|%\\}|[ .\\[\\]|'\"a-z0-9é-]|plan|raw|endraw|if|for|not){0,24}") {
        let values = Values::new();
        let (resolved, held) = (values.resolve(&text), values.holds(&text));
        // Literals come back as they went in.
        if !text.contains('{') {
            prop_assert_eq!(resolved, Ok(Value::String(text)));
        } else {
            prop_assert!(resolved.is_ok() || resolved.is_err_and(|reason| !reason.is_empty()));
            prop_assert!(held.is_ok() || held.is_err_and(|reason| !reason.is_empty()));
        }
    }
}

#[test]
fn the_passes_of_a_loop_are_listed_once_and_only_if_asked_for() {
    let (empty, made) = (json!({}), std::cell::Cell::new(0));
    let make = || {
        made.set(made.get() + 1);
        json!([{ "n": 1 }, { "n": 2 }])
    };
    let passes = Passes::new(&make);
    let scope = Scope {
        outputs: &[],
        flow: &empty,
        state: &empty,
        locals: &empty,
        passes: Some(&passes),
        outer: None,
    };
    assert_eq!((scope.local("previous"), scope.local("frame"), made.get()), (None, None, 0));
    let listed = json!([{ "n": 1 }, { "n": 2 }]);
    assert_eq!([scope.local("passes"), scope.local("passes")], [Some(&listed); 2]);
    assert_eq!(made.get(), 1);
}
