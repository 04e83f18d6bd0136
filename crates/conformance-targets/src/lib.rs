//! The conformance targets: every provider as the suite runs it.

use inspan_conformance::ConformanceTarget;

mod acp;
mod programs;
mod services;

/// Those that need no program.
pub fn services() -> Vec<ConformanceTarget> {
    services::TARGETS.to_vec()
}

/// All of them.
pub fn all() -> Vec<ConformanceTarget> {
    services().into_iter().chain(programs::TARGETS).chain(acp::TARGETS).collect()
}

/// The targets of a name: one target's own, or all of a provider that is run in several ways.
pub fn find(name: &str) -> Vec<ConformanceTarget> {
    let fits = |target: &ConformanceTarget| {
        target.name() == name || (target.provider)().descriptor().provider_type == name
    };
    all().into_iter().filter(fits).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_provider_has_a_target_and_each_target_a_name() {
        let names: Vec<String> = all().iter().map(|target| target.name()).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
        let missing: Vec<String> = inspan_providers::builtin()
            .iter()
            .map(|provider| provider.descriptor().provider_type)
            .filter(|name| find(name).is_empty())
            .collect();
        assert_eq!(missing, Vec::<String>::new());
    }
}
