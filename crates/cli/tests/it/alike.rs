//! One flow on every provider that needs no program: the logs have one shape. Those that run programs are held to the
//! same shape by `cargo xtask e2e`.

use std::fs;

use inspan_conformance::{Place, Reach, THREE_NODES, shape, three_nodes};
use inspan_model_server::ModelServer;
use inspan_protocol::{Envelope, Environment};
use inspan_testkit::read_jsonl;

use crate::program::{program, ran};

#[test]
fn three_nodes_leave_a_log_of_the_same_shape_whoever_the_agent_is() {
    let targets = inspan_conformance_targets::services();
    let asked: Vec<_> = targets.iter().filter(|target| target.reach() == Reach::Server).collect();
    assert!(!asked.is_empty());
    for target in asked {
        let provider = target.provider().descriptor().provider_type;
        let (flow, scenario) = three_nodes(&provider, &target.options());
        let server = ModelServer::start(target.scenario(scenario)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("flow.yaml"), flow.to_string()).unwrap();
        let mut command = program(folder.path(), &["run", "flow.yaml", "--json", "--events", "events.jsonl"]);
        let outer = Environment::default();
        let place = Place { server: &server.base_url(), folder: folder.path(), outer: &outer };
        let ran = ran(folder.path(), command.envs(target.environment(&place)));
        assert_eq!(ran.code, Some(0), "{provider}: {}{}", ran.stdout, ran.stderr);
        let log: Vec<Envelope> = read_jsonl(folder.path().join("events.jsonl")).unwrap();
        assert_eq!(shape(&log), THREE_NODES, "{provider}");
        assert_eq!(server.requests().len(), 3, "{provider}");
    }
}
