//! The contract between launcher and runtime.
