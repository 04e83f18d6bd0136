//! Installs what `cargo xtask e2e` would install first: the agents, and the programs that the tests put beside them.
//! `.ci/run` has it done while it builds.
#![expect(clippy::print_stdout, reason = "a program for people")]

use inspan_testkit::{Agent, PageTool, PythonPackage};

fn main() -> anyhow::Result<()> {
    let agents = [
        Agent::Claude,
        Agent::Codex,
        Agent::OpenCode,
        Agent::ClaudeAcp,
        Agent::Droid,
        Agent::Gemini,
        Agent::Qwen,
    ];
    let tools = [PageTool::Axe, PageTool::TypeScript].into_iter().map(PageTool::installed);
    let packages = [PythonPackage::Temporal, PythonPackage::Rotel, PythonPackage::Moto];
    let agents = agents.into_iter().map(Agent::installed);
    for program in agents.chain(tools).chain(packages.into_iter().map(PythonPackage::installed)) {
        println!("{}", program?.display());
    }
    Ok(())
}
