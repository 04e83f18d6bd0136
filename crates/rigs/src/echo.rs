//! The provider `echo` as the suite meets it: it repeats its prompt and asks nobody.

use std::sync::Arc;

use inspan_conformance::{Place, Reach, Rig};
use inspan_protocol::{DynProvider, Erased};
use inspan_providers::EchoProvider;

/// The rig of `echo`.
#[derive(Clone, Copy, Debug, Default)]
pub struct EchoRig;

impl Rig for EchoRig {
    fn provider(&self) -> Arc<dyn DynProvider> {
        Arc::new(Erased(EchoProvider))
    }

    fn environment(&self, _: &Place<'_>) -> Vec<(String, String)> {
        Vec::new()
    }

    fn reach(&self) -> Reach {
        Reach::Nobody
    }
}
