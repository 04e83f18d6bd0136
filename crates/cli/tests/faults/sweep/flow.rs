//! The flow that is killed everywhere: fifty nodes with parallel lanes, agents, a fan-out and its merge, a loop by
//! edges, frames of a foreach and of a loop, a question to a person, and programs that may only run once. Each effect leaves a line in `effects`.

use std::fmt::Write as _;

/// How many nodes it has.
pub(super) const NODES: usize = 52;

/// How often the loop goes round.
pub(super) const PASSES: usize = 3;

/// The flow as the file says it.
pub(super) fn text() -> String {
    let mut nodes = Vec::new();
    let mut add = |id: &str, kind: &str, after: &str, input: &str| {
        nodes.push(format!("  - {{ id: {id}, type: {kind}, dependsOn: [{after}], input: {input} }}"));
    };
    let work = |key: &str| format!("{{ argv: [sh, -c, \"echo work {key} >> effects; echo {key}\"] }}");
    let agent =
        |key: &str| format!("{{ prompt: \"key={key}; Do it.\", options: {{ executable: ./agent.sh }} }}");
    for lane in ["a", "b", "c", "d"] {
        add(&format!("{lane}1"), "exec", "start", &work(&format!("{lane}1")));
        add(
            &format!("{lane}2"),
            "echo",
            &format!("{lane}1"),
            &format!("{{ text: \"{{{{ {lane}1.stdout }}}}\" }}"),
        );
        add(&format!("{lane}3"), "exec", &format!("{lane}2"), &work(&format!("{lane}3")));
        add(&format!("{lane}4"), "constant", &format!("{lane}3"), "{ value: [1, 2] }");
    }
    for (name, after) in [("x", "a1"), ("y", "b1"), ("z", "c3")] {
        // One of them waits for messages for a while.
        let input = match name {
            "z" => agent(name).replace(" } }", ", multiTurn: true, idleTimeoutMs: 120 } }"),
            _ => agent(name),
        };
        add(name, "claude.agent", after, &input);
        add(&format!("{name}said"), "echo", name, &format!("{{ text: \"{{{{ {name}.text }}}}\" }}"));
    }
    add("joined", "control.merge", "a4, b4, c4, d4, xsaid, ysaid, zsaid", "{ mode: all }");
    for at in 1..=8 {
        let name = format!("f{at}");
        match at % 2 {
            0 => add(&name, "exec", "joined", &work(&name)),
            _ => add(&name, "echo", "joined", "{ text: \"{{ xsaid.text }} and {{ ysaid.text }}\" }"),
        }
    }
    add("fanned", "control.merge", "f1, f2, f3, f4, f5, f6, f7, f8", "{ mode: all }");
    let pass = "{% if pass %}{{ pass.value + 1 }}{% else %}1{% endif %}";
    let round =
        format!("{{ argv: [sh, -c, \"echo work loop{pass} >> effects; echo {pass}\"], parse: json }}");
    add("round", "exec", "fanned", &round);
    add("pass", "constant", "round", "{ value: \"{{ round.value }}\" }");
    add("gate", "human.input", "pass", "{ prompt: \"Go on?\", choices: [go, stay] }");
    for name in ["p", "q"] {
        let once = format!("{{ argv: [sh, -c, \"echo once {name} >> effects; sleep 0.01\"] }}");
        nodes.push(format!(
            "  - {{ id: {name}, type: exec, effects: external, dependsOn: [gate], input: {once} }}"
        ));
    }
    let mut add = |id: &str, kind: &str, after: &str, input: &str| {
        nodes.push(format!("  - {{ id: {id}, type: {kind}, dependsOn: [{after}], input: {input} }}"));
    };
    add("w", "claude.agent", "p, q", &agent("w"));
    let each = "{ id: e, type: exec, input: { argv: [sh, -c, \"echo work each{{ item }} >> effects; echo {{ item }}\"] } }";
    let after = "{ id: after, type: echo, dependsOn: [e], input: { text: \"{{ e.stdout }}\" } }";
    nodes.push(format!(
        "  - {{ id: each, type: control.foreach, dependsOn: [w], input: {{ items: [1, 2, 3], maxConcurrency: 2 }}, \
         body: {{ nodes: [{each}, {after}] }} }}"
    ));
    let turn =
        "{ id: turn, type: exec, input: { argv: [sh, -c, \"echo work turn{{ frame.index }} >> effects\"] } }";
    nodes.push(format!(
        "  - {{ id: repeat, type: control.loop, dependsOn: [each], \
         input: {{ until: \"frame.index == 1\", maxIterations: 3 }}, body: {{ nodes: [{turn}] }} }}"
    ));
    let mut add = |id: &str, kind: &str, after: &str, input: &str| {
        nodes.push(format!("  - {{ id: {id}, type: {kind}, dependsOn: [{after}], input: {input} }}"));
    };
    let mut before = "repeat".to_owned();
    for at in 1..=10 {
        let name = format!("t{at}");
        add(&name, "echo", &before, "{ text: \"{{ gate.choice }} {{ w.text }}\" }");
        before = name;
    }
    add("last", "exec", &before, &work("last"));
    let mut text = "flow: { name: fifty, policy: { maxConcurrency: 4 } }\nnodes:\n".to_owned();
    text.push_str("  - { id: start, type: constant, input: { value: 1 } }\n");
    for node in nodes {
        let _infallible = writeln!(text, "{node}");
    }
    let _infallible = writeln!(
        text,
        "edges:\n  - {{ from: pass, to: round, when: \"pass.value < {PASSES}\", maxIterations: {PASSES} }}"
    );
    text
}

/// The side effects of the flow when nothing goes wrong, without the conversations' ids.
pub(super) fn effects() -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for lane in ["a", "b", "c", "d"] {
        all.extend([format!("work {lane}1"), format!("work {lane}3")]);
    }
    all.extend([2, 4, 6, 8].map(|at| format!("work f{at}")));
    all.extend((1..=PASSES).map(|pass| format!("work loop{pass}")));
    all.extend([1, 2, 3].map(|item| format!("work each{item}")));
    all.extend([0, 1].map(|pass| format!("work turn{pass}")));
    all.push("work last".to_owned());
    all.extend(["p", "q"].map(|name| format!("once {name}")));
    for name in ["w", "x", "y", "z"] {
        all.extend([1, 2].map(|step| format!("agent {name} {step}")));
    }
    all.sort();
    all
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_has_as_many_nodes_as_it_says() {
        assert_eq!(super::text().matches("- { id: ").count(), super::NODES);
    }
}
