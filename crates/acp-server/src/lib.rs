//! Flows as an agent of editors that speak the Agent Client Protocol.
