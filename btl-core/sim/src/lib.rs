//! Deterministic fabric with device models that runs the shipped engine
