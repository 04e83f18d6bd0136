//! Templates that exceed a limit: each soon gets its own error, and never ends the program.

use proptest::prelude::*;

use super::Values;
use crate::expr::vocabulary::{FILTERS, TESTS};

/// Templates that would make or take without end.
const HOSTILE: &[&str] = &[
    "{% for i in range(1000000000) %}x{% endfor %}",
    "{% for i in range(10000) %}{% for j in range(10000) %}x{% endfor %}{% endfor %}",
    "{{ 'x' * 10000000000 }}",
    "{{ ('x' * 100000) * 100000 }}",
    "{{ [1] * 10000000000 }}",
    "{{ 10000000000 * [[]] }}",
    "{% set s = namespace(x='x'*1000) %}{% for i in range(64) %}{% set s.x = s.x ~ s.x %}{% endfor %}",
    "{% set s = namespace(x='x'*1000) %}{% for i in range(64) %}{% set s.x = s.x + s.x %}{% endfor %}",
    "{% set s = namespace(x=[1]) %}{% for i in range(64) %}{% set s.x = s.x + s.x %}{% endfor %}{{ s.x }}",
    "{% set s = namespace(x=[1]) %}{% for i in range(40) %}{% set s.x = [s.x, s.x] %}{% endfor %}{{ s.x }}",
    "{% set s = namespace(x={'a': 1}) %}{% for i in range(40) %}{% set s.x = {'a': s.x, 'b': s.x} %}{% endfor %}",
    "{% set s = namespace(x=[1]) %}{% for i in range(100000) %}{% set s.x = [s.x] %}{% endfor %}",
    "{% set s = namespace() %}{% set s.x = s %}{% set s.y = [s] %}",
    "{% set s = namespace(x='xx') %}{% for i in range(64) %}{% set s.x %}{{ s.x }}{{ s.x }}{% endset %}{% endfor %}",
    "{% for a in ['x' * 1000000] %}{% for b in [a * 40] %}{% for c in [b ~ b] %}{{ c }}{% endfor %}{% endfor %}{% endfor %}",
    "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "{{ ('a'*100000)|replace('a', 'b'*100000) }}",
    "{{ ('a'*100000)|replace('', 'b'*100000) }}",
    "{{ range(100000)|join('x'*100000) }}",
    "{{ ('\n'*100000)|indent(1000000) }}",
    "{{ 'x\ny'|indent(100000000000) }}",
    "{{ 'x\ny'|indent(width=100000000000) }}",
    "{{ '%10000000000d'|format(1) }}",
    "{{ '%*d'|format(10000000000, 1) }}",
    "{{ '%.10000000000f'|format(1.0) }}",
    "{{ ('%(a)s' * 10000)|format(a='x' * 1000000) }}",
    "{{ range(10)|slice(10000000000) }}",
    "{{ [1]|slice(10000000000, 'x') }}",
    "{{ [1]|batch(10000000000, 'x') }}",
    "{{ [[1]]|tojson(indent=10000000000) }}",
    "{{ [[1]]|tojson(10000000000) }}",
    "{{ ('a'*10000000)|list|length }}",
    "{{ ('a'*10000000)|sort|length }}",
    "{{ ('a '*10000000)|split|length }}",
    "{{ ('a\n'*10000000)|lines|length }}",
    "{{ ('a'*10000000)|map('upper') }}",
    "{{ (range(100000)|list * 100)|sort|length }}",
    "{{ range(100000)|map('indent', 1000000000) }}",
    "{{ range(100000)|map('string')|map('replace', '1', 'x' * 100000)|list }}",
    "{{ range(100000)|select('in', 'x' * 10000000)|list }}",
    "{{ ('a' * 10000000)|trim('b' * 100000 ~ 'a') }}",
    "{{ range(100000)|map('string')|sum(start='') }}",
    "{{ range(-9223372036854775808, 9223372036854775807) }}",
    "{% set x = 'a'*100000 %}{% for i in range(10000) %}{% if ('a'*99999 ~ 'b') in x %}{% endif %}{% endfor %}",
    "{% set x %}{% for i in range(100000) %}{{ 'y' * 10000 }}{% endfor %}{% endset %}",
    "{% filter replace('y', 'z' * 10000000) %}yyyyyyyyyy{% endfilter %}",
];

#[test]
fn what_would_never_end_is_an_error() {
    let values = Values::new();
    let failed: Vec<_> = HOSTILE.iter().map(|text| (*text, values.resolve(text).is_err())).collect();
    assert_eq!(failed, HOSTILE.iter().map(|text| (*text, true)).collect::<Vec<_>>());
}

#[test]
fn the_error_says_what_was_exceeded() {
    let values = Values::new();
    let rows = [
        ("{{ range(100000) | map('string') | map('length') | sum }}", "takes more than 1000000 steps"),
        ("{{ 'x' * 100000000 }}", "needs more memory than a template may use: 64 MiB"),
        (
            "{% set s = namespace(x=[]) %}{% for i in range(200) %}{% set s.x = [s.x] %}{% endfor %}",
            "values are nested deeper than 100 levels",
        ),
    ];
    let said = rows.map(|(text, _)| values.resolve(text).unwrap_err());
    let expected = [
        "node `x`, key `input`: `range(100000) | map('string') | map('length') | sum`: takes more than 1000000 steps",
        "node `x`, key `input`: `'x' * 100000000`: needs more memory than a template may use: 64 MiB",
        "node `x`, key `input`: `[s.x]`: values are nested deeper than 100 levels",
    ];
    assert_eq!(said, expected);
}

/// Usual work on much text and on long lists stays well within the limits.
#[test]
fn large_inputs_are_worked_on() {
    let values = Values::new();
    let rows = [
        ("{{ ('line\n' * 1000000) | length }}", "5000000"),
        (
            "{% set t = 'line\n' * 1000000 %}{{ t[:10] | length }}{{ 'x' in t }}{{ t | upper | length }}",
            "10false5000000",
        ),
        ("{{ range(100000) | list | length }}", "100000"),
        ("{{ range(20000) | map('string') | join(',') | length }}", "108889"),
        (
            "{% set s = namespace(x=[]) %}{% for i in range(1000) %}{% set s.x = s.x + [i] %}{% endfor %}{{ s.x | length }}",
            "1000",
        ),
        ("{% for i in range(50000) %}{{ i if i % 10000 == 0 }}{% endfor %}", "010000200003000040000"),
    ];
    let said = rows.map(|(text, _)| values.resolve(&format!("{text}{{{{ '' }}}}")));
    assert_eq!(said, rows.map(|(_, expected)| Ok(expected.into())));
}

/// Pieces that random templates are made of: values, operators, filters and statements that grow.
fn templates() -> impl Strategy<Value = String> {
    let value = prop_oneof![
        Just("s.x".to_owned()),
        Just("plan.items".to_owned()),
        Just("review.text".to_owned()),
        Just("'ab'".to_owned()),
        Just("[1, 'x']".to_owned()),
        Just("range(999)".to_owned()),
        (0..100_000_u64).prop_map(|number| number.to_string()),
    ];
    let expression = value.prop_recursive(6, 40, 3, |inner| {
        let operator =
            prop::sample::select(vec!["+", "~", "*", "-", "//", "%", "**", "==", "<", "in", "and", "or"]);
        let filter = prop::sample::select(super::super::vocabulary::FILTERS);
        prop_oneof![
            (inner.clone(), operator, inner.clone()).prop_map(|(a, how, b)| format!("({a} {how} {b})")),
            (inner.clone(), filter.clone()).prop_map(|(a, filter)| format!("({a} | {filter})")),
            (inner.clone(), filter.clone(), inner.clone())
                .prop_map(|(a, filter, b)| format!("({a} | {filter}({b}))")),
            (inner.clone(), filter, inner.clone(), inner.clone())
                .prop_map(|(a, filter, b, c)| format!("({a} | {filter}({b}, {c}))")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("[{a}, {b}]")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{{'k': {a}, 'l': {b}}}")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{a}[{b}]")),
            (inner.clone(), inner).prop_map(|(a, b)| format!("{a}[:{b}]")),
        ]
    });
    (expression.clone(), expression, 1..70_u32).prop_map(|(grow, show, times)| {
        format!(
            "{{% set s = namespace(x='x') %}}{{% for i in range({times}) %}}{{% set s.x = {grow} %}}{{% endfor %}}{{{{ {show} }}}}"
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_a_template_does_it_ends_within_its_bounds(text in templates()) {
        let values = Values::new();
        let most = 10 * 64 * 1024 * 1024;
        prop_assert!(values.resolve(&text).is_ok_and(|value| value.to_string().len() < most) || values.resolve(&text).is_err());
    }
}

#[test]
fn no_filter_test_or_operator_panics_whatever_it_is_given() {
    let values = [
        "0",
        "-1",
        "1.5",
        "9223372036854775807",
        "(-9223372036854775807 - 1)",
        "170141183460469231731687303715884105727",
        "(-170141183460469231731687303715884105727 - 1)",
        "1e308",
        "-1e308",
        "''",
        "'ä%s'",
        "[]",
        "[1, 'a', none]",
        "{}",
        "none",
        "true",
        "plan",
    ];
    let uses = FILTERS
        .iter()
        .map(|filter| format!("A | {filter}(B)"))
        .chain(FILTERS.iter().map(|filter| format!("A | {filter}")))
        .chain(TESTS.iter().flat_map(|test| [format!("A is {test}(B)"), format!("A is {test}")]))
        .chain(["+", "-", "*", "/", "//", "%", "**", "~", "in", "<", "=="].map(|op| format!("A {op} B")))
        .chain(["-A", "A[B]", "A[B:]", "A[:B]", "A[::B]"].map(str::to_owned));
    let all = Values::new();
    for used in uses {
        for (a, b) in values.iter().flat_map(|a| values.iter().map(move |b| (a, b))) {
            let text = format!("{{{{ {} }}}}", used.replace('A', a).replace('B', b));
            // An error is as good as a value.
            let _ = all.resolve(&text);
        }
    }
    let divisible =
        ["4 is divisibleby(2)", "4 is divisibleby(3)", "4.5 is divisibleby(1.5)", "'a' is divisibleby(2)"];
    let seen = divisible.map(|test| all.holds(test));
    assert_eq!(seen, [Ok(true), Ok(false), Ok(true), Ok(false)]);
    let zero = all.holds("3 is divisibleby 0").unwrap_err();
    assert!(zero.contains("unable to calculate 3 % 0"), "{zero}");
}
