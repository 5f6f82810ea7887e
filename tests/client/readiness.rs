//! readiness
