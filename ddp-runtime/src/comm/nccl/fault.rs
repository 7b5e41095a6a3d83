//! What can go wrong between this rank, CUDA's driver and NCCL: all texts, each with the cure where one is known.
use std::ffi::CStr;
use std::path::PathBuf;
use std::time::Duration;

use cudarc::driver::DriverError;
use cudarc::nccl::sys::{self, ncclComm_t, ncclResult_t};
use ddp_env::nccl::{FILE, OLDEST, Version};

use crate::bridge::BridgeError;

/// A failure of the GPU transport.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum Fault {
    /// There is no NCCL.
    #[error(
        "{FILE} is neither where the dynamic linker looks ({linker}) nor in {}; install it (pip: nvidia-nccl-cu13 beside \
         torch; Debian, Ubuntu: libnccl2), or name its file in DDP_NCCL_LIB",
        list(.looked)
    )]
    NotFound { linker: String, looked: Vec<PathBuf> },
    /// The file that DDP_NCCL_LIB names cannot be loaded.
    #[error("DDP_NCCL_LIB names {}, which cannot be loaded: {message}", .path.display())]
    NotLoaded { path: PathBuf, message: String },
    /// A library without a function that is needed.
    #[error("{} has no function {symbol}; take NCCL {OLDEST} or newer (pip: nvidia-nccl-cu13)", .path.display())]
    NoSymbol { path: PathBuf, symbol: &'static str },
    /// A version that is not used.
    #[error("{} is NCCL {version}, which is too old; take {OLDEST} or newer (pip: nvidia-nccl-cu13)", .path.display())]
    TooOld { path: PathBuf, version: Version },
    /// cudarc would load another file than the one that was checked.
    #[error("{} cannot be handed to cudarc: {message}", .path.display())]
    NotNamed { path: PathBuf, message: String },
    /// There is no driver.
    #[error(
        "there is no NVIDIA driver on this host (libcuda.so.1 is not found); with docker: --gpus all"
    )]
    NoDriver,
    /// The driver is older than the functions that are used.
    #[error(
        "NVIDIA's driver has no function {symbol}; it is older than CUDA 11.4 and has to be updated"
    )]
    OldDriver { symbol: &'static str },
    /// The driver sees no GPU.
    #[error(
        "the NVIDIA driver is there, but no GPU is visible; check CUDA_VISIBLE_DEVICES, with docker: --gpus all"
    )]
    NoGpu,
    /// More ranks on this host than GPUs.
    #[error(
        "local rank {local_rank} has no GPU of its own: {visible} are visible on this host; start as many ranks as there \
         are GPUs, or hide the GPUs (CUDA_VISIBLE_DEVICES=\"\") to train on the CPUs"
    )]
    NoGpuLeft { local_rank: usize, visible: usize },
    /// libtorch cannot use the GPU that the driver sees, or the GPU does not do what it should.
    #[error("{0}")]
    Device(String),
    /// The driver refused a call.
    #[error("{call} failed: {text}")]
    Driver { call: &'static str, text: String },
    /// NCCL refused a call, or reported a failure later.
    #[error("{call} failed with {code}: {text}{}", hint(.code))]
    Nccl { call: &'static str, code: String, text: String },
    /// NCCL did not get there in time.
    #[error("{what} timed out after {} s", .limit.as_secs_f64())]
    Timeout { what: String, limit: Duration },
    /// Another rank has failed, so that this one stopped waiting for it.
    #[error("{what}: another rank failed: {message}")]
    Peer { what: String, message: String },
    /// A tensor that this transport cannot carry.
    #[error("{what}; {cure}")]
    Unsupported { what: String, cure: &'static str },
    /// The communicator was given up after an earlier failure.
    #[error("the communicator was aborted")]
    Aborted,
}

impl From<Fault> for BridgeError {
    fn from(fault: Fault) -> Self {
        match &fault {
            // What another rank did, or did not do in time, is told by the watcher.
            Fault::Timeout { .. } | Fault::Peer { .. } | Fault::Aborted => {
                BridgeError::new(fault.to_string())
            }
            _ => BridgeError::of_this_rank(fault.to_string()),
        }
    }
}

/// What usually stands behind a code.
fn hint(code: &str) -> &'static str {
    match code {
        "ncclUnhandledCudaError" => {
            "; a CUDA call inside NCCL failed: is the driver as new as this NCCL needs, and is there GPU memory left? \
             NCCL_DEBUG=INFO tells more"
        }
        "ncclSystemError" => {
            "; usually the network or shared memory: NCCL_SOCKET_IFNAME names the interface, docker needs --shm-size=8g. \
             NCCL_DEBUG=INFO tells more"
        }
        "ncclRemoteError" => "; another rank has ended, or the connection to it was lost",
        "ncclInvalidUsage" => {
            "; usually two ranks on one GPU, or ranks with different versions of NCCL"
        }
        _ => "",
    }
}

fn list(paths: &[PathBuf]) -> String {
    let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    paths.join(", ")
}

/// The result of a call of the driver.
pub(super) fn driver<T>(call: &'static str, result: Result<T, DriverError>) -> Result<T, Fault> {
    result.map_err(|error| Fault::Driver { call, text: describe(error) })
}

/// `CUDA_ERROR_OUT_OF_MEMORY: out of memory`.
fn describe(error: DriverError) -> String {
    let text = |text: Result<&CStr, DriverError>| {
        text.map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
    };
    format!("{}: {}", text(error.error_name()), text(error.error_string()))
}

/// How far a call of NCCL has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It is done.
    Done,
    /// It goes on in the background; the communicator tells when it is done.
    InProgress,
}

/// The result of a call of NCCL, with its own last words. `comm` may be null.
pub(super) fn nccl(
    call: &'static str,
    result: ncclResult_t,
    comm: ncclComm_t,
) -> Result<Progress, Fault> {
    match result {
        ncclResult_t::ncclSuccess => Ok(Progress::Done),
        ncclResult_t::ncclInProgress => Ok(Progress::InProgress),
        code => Err(Fault::Nccl { call, code: format!("{code:?}"), text: last_words(code, comm) }),
    }
}

/// NCCL's text for a code, and what it noted about the last failure of this process.
fn last_words(code: ncclResult_t, comm: ncclComm_t) -> String {
    // SAFETY: both functions return static NUL-terminated texts, or null; the communicator is null or alive.
    let (general, last) =
        unsafe { (text(sys::ncclGetErrorString(code)), text(sys::ncclGetLastError(comm))) };
    let last = last.trim();
    if last.is_empty() { general } else { format!("{general} ({last})") }
}

/// # Safety
/// `text` is null, or NUL-terminated and alive.
unsafe fn text(text: *const std::ffi::c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: by the contract above.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_comes_with_its_cure() {
        let looked = vec![PathBuf::from("/a"), PathBuf::from("/b")];
        let text = Fault::NotFound { linker: "no such file".to_owned(), looked }.to_string();
        assert!(text.starts_with("libnccl.so.2 is neither") && text.contains("in /a, /b; install"));
        let fault = Fault::TooOld { path: "/x".into(), version: Version::new(2, 8, 4) };
        assert!(fault.to_string().starts_with("/x is NCCL 2.8.4, which is too old; take 2.18.0"));
        let fault = Fault::NoGpuLeft { local_rank: 3, visible: 2 };
        assert!(fault.to_string().contains("local rank 3 has no GPU of its own: 2 are visible"));
    }
}
