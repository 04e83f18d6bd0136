//! One flow on every provider that needs no program: the logs have one shape. `cargo xtask e2e` checks the same shape
//! for those that run programs.

use std::fs;

use inspan_conformance::{ModelAccess, THREE_NODES, TargetContext, shape, three_nodes};
use inspan_model_server::ModelServer;
use inspan_protocol::{Envelope, Environment};
use inspan_testkit::read_jsonl;

use crate::program::{program, ran};

#[test]
fn three_nodes_leave_a_log_of_the_same_shape_for_every_agent() {
    let targets = inspan_conformance_targets::services();
    let services: Vec<_> =
        targets.iter().filter(|target| target.model_access() == ModelAccess::Server).collect();
    assert!(!services.is_empty());
    for target in services {
        let provider = target.provider().descriptor().provider_type;
        let (flow, scenario) = three_nodes(&provider, &target.options());
        let server = ModelServer::start(target.scenario(scenario)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("flow.yaml"), flow.to_string()).unwrap();
        let mut command = program(folder.path(), &["run", "flow.yaml", "--json", "--events", "events.jsonl"]);
        let caller_env = Environment::default();
        let context =
            TargetContext { server: &server.base_url(), folder: folder.path(), caller_env: &caller_env };
        let ran = ran(folder.path(), command.envs(target.environment(&context)));
        assert_eq!(ran.code, Some(0), "{provider}: {}{}", ran.stdout, ran.stderr);
        let log: Vec<Envelope> = read_jsonl(folder.path().join("events.jsonl")).unwrap();
        assert_eq!(shape(&log), THREE_NODES, "{provider}");
        assert_eq!(server.requests().len(), 3, "{provider}");
    }
}
