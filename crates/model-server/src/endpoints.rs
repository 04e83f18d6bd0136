//! The addresses of a model server for the clients of each format, and the variables in which clients look for them.

/// The addresses of one model server.
///
/// ```
/// # use inspan_model_server::Endpoints;
/// let endpoints = Endpoints::at("http://127.0.0.1:4321");
/// assert_eq!(endpoints.variables()[1], ("OPENAI_BASE_URL", "http://127.0.0.1:4321/v1".to_owned()));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoints {
    base: String,
}

impl Endpoints {
    /// Those of a server at this address, which has no slash at its end.
    #[must_use]
    pub fn at(base: impl Into<String>) -> Self {
        Self { base: base.into() }
    }

    /// For clients of the Anthropic format.
    #[must_use]
    pub fn anthropic(&self) -> String {
        self.base.clone()
    }

    /// For clients of both OpenAI formats.
    #[must_use]
    pub fn openai(&self) -> String {
        format!("{}/v1", self.base)
    }

    /// For clients of the Gemini API.
    #[must_use]
    pub fn gemini(&self) -> String {
        self.base.clone()
    }

    /// The variables in which clients look for an address, Claude Code among them. The keys are up to the caller: any
    /// will do.
    #[must_use]
    pub fn variables(&self) -> [(&'static str, String); 3] {
        [
            ("ANTHROPIC_BASE_URL", self.anthropic()),
            ("OPENAI_BASE_URL", self.openai()),
            ("GOOGLE_GEMINI_BASE_URL", self.gemini()),
        ]
    }
}
