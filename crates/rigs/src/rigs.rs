//! The rigs by name: those whose providers run a vendor's program, and those that need none.

use std::sync::Arc;

use inspan_conformance::Rig;

use crate::{
    AcpRig, AnthropicRig, ClaudeRig, CodexRig, DroidRig, EchoRig, GeminiRig, OpenAiRig, OpenCodeRig, QwenRig,
    ScriptedRig,
};

/// Those that need nothing but themselves.
pub fn services() -> Vec<Arc<dyn Rig>> {
    vec![Arc::new(AnthropicRig), Arc::new(OpenAiRig), Arc::new(EchoRig), Arc::new(ScriptedRig)]
}

/// Those that run a vendor's program, which has to be installed.
pub fn programs() -> Vec<Arc<dyn Rig>> {
    vec![
        Arc::new(ClaudeRig),
        Arc::new(CodexRig),
        Arc::new(OpenCodeRig),
        Arc::new(DroidRig),
        Arc::new(GeminiRig),
        Arc::new(QwenRig),
        Arc::new(AcpRig::OpenCode),
        Arc::new(AcpRig::Claude),
    ]
}

/// All of them.
pub fn all() -> Vec<Arc<dyn Rig>> {
    services().into_iter().chain(programs()).collect()
}

/// The rigs of a name: one rig's own, or all of a provider that is met in several ways.
pub fn find(name: &str) -> Vec<Arc<dyn Rig>> {
    let fits = |rig: &Arc<dyn Rig>| rig.name() == name || rig.provider().descriptor().provider_type == name;
    all().into_iter().filter(fits).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_provider_has_a_rig_and_each_rig_a_name() {
        let names: Vec<String> = all().iter().map(|rig| rig.name()).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
        let unmet: Vec<String> = inspan_providers::builtin()
            .iter()
            .map(|provider| provider.descriptor().provider_type)
            .filter(|name| find(name).is_empty())
            .collect();
        assert_eq!(unmet, Vec::<String>::new());
    }
}
