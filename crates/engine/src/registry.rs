//! Providers by name.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::future::join_all;
use inspan_protocol::{DynProvider, IntoProvider};

/// How long a provider may take to shut down.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(10);

/// Providers by their type, such as `claude`.
#[derive(Clone, Default)]
pub struct ProviderRegistry {
    providers: BTreeMap<String, Arc<dyn DynProvider>>,
}

impl ProviderRegistry {
    /// A registry without providers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a provider under its own type, and returns the one that was there before.
    pub fn register(&mut self, provider: impl IntoProvider) -> Option<Arc<dyn DynProvider>> {
        let provider = provider.into_provider();
        self.providers.insert(provider.descriptor().provider_type, provider)
    }

    /// The provider of a type.
    pub fn get(&self, provider_type: &str) -> Option<&Arc<dyn DynProvider>> {
        self.providers.get(provider_type)
    }

    /// The types, in the order of the alphabet.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.providers.keys().map(String::as_str)
    }

    /// The types and their providers, in the order of the alphabet.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Arc<dyn DynProvider>)> {
        self.providers.iter().map(|(name, provider)| (name.as_str(), provider))
    }

    /// The same types, each provider wrapped in another: to record, or to replay.
    #[must_use]
    pub fn map(&self, wrap: impl Fn(Arc<dyn DynProvider>) -> Arc<dyn DynProvider>) -> Self {
        let wrapped =
            |(name, provider): (&String, &Arc<dyn DynProvider>)| (name.clone(), wrap(Arc::clone(provider)));
        Self { providers: self.providers.iter().map(wrapped).collect() }
    }

    /// Shuts all providers down, at the same time. One that takes longer than ten seconds is abandoned.
    pub async fn shutdown(&self) {
        let ends = self.providers.iter().map(async |(name, provider)| {
            if tokio::time::timeout(SHUTDOWN_LIMIT, provider.shutdown()).await.is_err() {
                tracing::warn!(provider = %name, "the provider did not shut down in time");
            }
        });
        join_all(ends).await;
    }
}

impl<P: IntoProvider> FromIterator<P> for ProviderRegistry {
    fn from_iter<I: IntoIterator<Item = P>>(providers: I) -> Self {
        let mut registry = Self::new();
        for provider in providers {
            registry.register(provider);
        }
        registry
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::testing::Idle;

    #[test]
    fn providers_are_found_by_their_type() {
        let provider = |name| Arc::new(Idle { name, ..Idle::default() }) as Arc<dyn DynProvider>;
        let mut registry = ProviderRegistry::new();
        let first = provider("gemini");
        assert!(registry.register(first.clone()).is_none());
        assert!(registry.register(provider("claude")).is_none());
        let replaced = registry.register(provider("gemini")).unwrap();
        assert!(Arc::ptr_eq(&replaced, &first));
        assert_eq!(registry.names().collect::<Vec<_>>(), ["claude", "gemini"]);
        let types = |registry: &ProviderRegistry| {
            registry
                .iter()
                .map(|(name, p)| (name.to_owned(), p.descriptor().provider_type))
                .collect::<Vec<_>>()
        };
        let pair = |name: &str, of: &str| (name.to_owned(), of.to_owned());
        assert_eq!(types(&registry), [pair("claude", "claude"), pair("gemini", "gemini")]);
        let wrapped = registry.map(|_| provider("echo"));
        assert_eq!(types(&wrapped), [pair("claude", "echo"), pair("gemini", "echo")]);
        assert!(registry.get("claude").is_some() && registry.get("openai").is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn all_shut_down_at_once_and_none_holds_the_rest() {
        let mut registry = ProviderRegistry::new();
        for (name, seconds) in [("a", 3), ("b", 5), ("c", 1000)] {
            registry.register(Arc::new(Idle {
                name,
                shutdown: Duration::from_secs(seconds),
                ..Idle::default()
            }));
        }
        let began = Instant::now();
        registry.shutdown().await;
        assert_eq!(began.elapsed().as_secs(), 10);
    }
}
