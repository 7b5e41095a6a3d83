//! Kernels that libtorch has on GPUs only, for this process on the CPU: then synchronised BatchNorm goes the way of GPUs.
// They are written in C++, which can only be called through unsafe code.
#![allow(unsafe_code)]

use std::ffi::c_int;

use anyhow::{Result, ensure};

/// Set for a rank that is to have them.
pub const VARIABLE: &str = "DDP_TESTS_FUSED_BATCH_NORM";

unsafe extern "C" {
    fn ddp_tests_add_fused_batch_norm() -> c_int;
}

/// Adds them where the environment says so.
///
/// # Errors
/// When libtorch refuses them.
pub fn add_if_asked() -> Result<()> {
    if std::env::var_os(VARIABLE).is_some() {
        // SAFETY: takes no arguments; registering kernels is allowed at any time.
        let status = unsafe { ddp_tests_add_fused_batch_norm() };
        ensure!(status == 0, "the kernels of BatchNorm cannot be added");
    }
    Ok(())
}
