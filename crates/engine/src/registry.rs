//! Providers by name. Making them is left to whoever builds the registry; choosing one, to whoever runs it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::future::join_all;
use inspan_protocol::DynProvider;

/// How long a provider may take to end what it keeps.
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
    pub fn register(&mut self, provider: Arc<dyn DynProvider>) -> Option<Arc<dyn DynProvider>> {
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

    /// The same types, each provider put into another: to record, or to replay.
    #[must_use]
    pub fn map(&self, wrap: impl Fn(Arc<dyn DynProvider>) -> Arc<dyn DynProvider>) -> Self {
        let wrapped =
            |(name, provider): (&String, &Arc<dyn DynProvider>)| (name.clone(), wrap(Arc::clone(provider)));
        Self { providers: self.providers.iter().map(wrapped).collect() }
    }

    /// Lets every provider end what it keeps, all at once. One that does not end in ten seconds is left.
    pub async fn shutdown(&self) {
        let ends = self.providers.iter().map(async |(name, provider)| {
            if tokio::time::timeout(SHUTDOWN_LIMIT, provider.shutdown()).await.is_err() {
                tracing::warn!(provider = %name, "the provider did not shut down in time");
            }
        });
        join_all(ends).await;
    }
}
