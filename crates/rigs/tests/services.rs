//! Every provider that needs no program, held against the whole list, in real HTTP against the scripted model server.

use std::sync::Arc;

use inspan_conformance::{Rig, Settings, conform};
use inspan_protocol::Environment;

/// Fails with the whole table if a row fails.
async fn check(name: &str, expected: [usize; 4]) {
    let rigs: Vec<Arc<dyn Rig>> = inspan_rigs::find(name);
    assert_eq!(rigs.len(), 1, "{name}");
    let settings = Settings { env: Environment::default(), ..Settings::default() };
    let report = conform(Arc::clone(&rigs[0]), &settings).await;
    assert!(report.holds(), "{report}");
    assert_eq!(report.counts(), expected, "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn anthropic() {
    check("anthropic", [0; 4]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn echo() {
    check("echo", [0; 4]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn scripted() {
    check("scripted", [0; 4]).await;
}
