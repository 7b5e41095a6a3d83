//! Finding, loading and checking `libnccl.so.2`, once a process.
//!
//! # Note [A second name for NCCL]
//!
//! cudarc loads `libnccl.so` and relatives, but never `libnccl.so.2`, the only name in pip's packages and runtime images;
//! and it panics where the library or one of its functions is missing. So the library is found and loaded here, every
//! function that is used is looked up, and only then cudarc is let at it. It finds the very same library because a second,
//! empty one is loaded beside it whose name is `libnccl.so` and whose one dependency is `libnccl.so.2` (`build.rs` makes it): the
//! dynamic linker takes a library that is loaded already for any that has the same name, and looks for functions in its
//! dependencies too.
use std::ffi::{CStr, CString, c_int, c_void};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use ddp_env::names;
use ddp_env::nccl::{FILE, Version, folders};
use libloading::os::unix::{Library as Loaded, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};

use super::fault::Fault;
use crate::bridge::libtorch_folder;

/// All functions that are called, but `ncclGetVersion`, which comes first.
const SYMBOLS: [&str; 13] = [
    "ncclAllGather",
    "ncclAllReduce",
    "ncclBroadcast",
    "ncclCommAbort",
    "ncclCommDestroy",
    "ncclCommFinalize",
    "ncclCommGetAsyncError",
    "ncclCommInitRankConfig",
    "ncclGetErrorString",
    "ncclGetLastError",
    "ncclGetUniqueId",
    "ncclGroupEnd",
    "ncclGroupStart",
];

/// `RTLD_NOLOAD` of glibc: only what is loaded already.
const NO_LOAD: c_int = 4;

/// NCCL, loaded and checked. It stays loaded.
#[derive(Clone, Debug)]
pub(super) struct Library {
    /// The file.
    pub(super) path: PathBuf,
    /// What it says it is.
    pub(super) version: Version,
}

/// The library of this process, loaded at the first call.
pub(super) fn library() -> Result<&'static Library, Fault> {
    static LIBRARY: OnceLock<Result<Library, Fault>> = OnceLock::new();
    LIBRARY.get_or_init(load).as_ref().map_err(Clone::clone)
}

fn load() -> Result<Library, Fault> {
    let named = std::env::var_os(names::DDP_NCCL_LIB).filter(|value| !value.is_empty());
    let loaded = match named.map(PathBuf::from) {
        Some(path) => open(&path, RTLD_NOW | RTLD_LOCAL)
            .map_err(|message| Fault::NotLoaded { path, message })?,
        None => find()?,
    };
    let address = symbol(&loaded, "ncclGetVersion")
        .ok_or_else(|| Fault::NoSymbol { path: FILE.into(), symbol: "ncclGetVersion" })?;
    let path = file_of(address).unwrap_or_else(|| FILE.into());
    let version = version(address);
    if !version.serves() {
        return Err(Fault::TooOld { path, version });
    }
    if let Some(symbol) = SYMBOLS.into_iter().find(|name| symbol(&loaded, name).is_none()) {
        return Err(Fault::NoSymbol { path, symbol });
    }
    name_for_cudarc(address).map_err(|message| Fault::NotNamed { path: path.clone(), message })?;
    // It is never closed: NCCL has threads, and cudarc keeps addresses of its functions.
    std::mem::forget(loaded);
    Ok(Library { path, version })
}

/// What is loaded already (libtorch's own), then what the dynamic linker finds, then the folders it does not know.
fn find() -> Result<Loaded, Fault> {
    if let Ok(loaded) = open(Path::new(FILE), RTLD_NOW | NO_LOAD) {
        return Ok(loaded);
    }
    let linker = match open(Path::new(FILE), RTLD_NOW | RTLD_LOCAL) {
        Ok(loaded) => return Ok(loaded),
        Err(message) => message,
    };
    let looked = folders(libtorch_folder().as_deref());
    let found = looked.iter().map(|folder| folder.join(FILE)).filter(|path| path.exists());
    found
        .filter_map(|path| open(&path, RTLD_NOW | RTLD_LOCAL).ok())
        .next()
        .ok_or(Fault::NotFound { linker, looked })
}

fn open(path: &Path, flags: c_int) -> Result<Loaded, String> {
    // SAFETY: runs the library's constructors, which NVIDIA's library and the stand-in of the tests do without needs.
    unsafe { Loaded::open(Some(path), flags) }.map_err(|error| error.to_string())
}

fn symbol(library: &Loaded, name: &str) -> Option<*const c_void> {
    let name = CString::new(name).ok()?;
    // SAFETY: only the address is taken.
    let symbol = unsafe { library.get::<*const c_void>(name.as_bytes_with_nul()) }.ok()?;
    Some(symbol.as_raw_ptr().cast_const())
}

/// The file that holds an address.
fn file_of(address: *const c_void) -> Option<PathBuf> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: `info` is written on success; all zero is valid for it otherwise.
    let info = unsafe {
        if libc::dladdr(address, info.as_mut_ptr()) == 0 {
            return None;
        }
        info.assume_init()
    };
    if info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: a NUL-terminated text that lives as long as the library.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(name.to_string_lossy().into_owned()))
}

fn version(address: *const c_void) -> Version {
    let mut code: c_int = 0;
    // SAFETY: the address is that of `ncclGetVersion`, whose type has never changed.
    unsafe {
        let function: unsafe extern "C" fn(*mut c_int) -> c_int = std::mem::transmute(address);
        // It only fails for a null argument.
        function(&mut code);
    }
    Version::from_code(code)
}

/// See Note [A second name for NCCL]. `address` is that of `ncclGetVersion`.
fn name_for_cudarc(address: *const c_void) -> Result<(), String> {
    const SECOND_NAME: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/nccl-second-name.so"));
    let file = rustix::fs::memfd_create("nccl-second-name", rustix::fs::MemfdFlags::CLOEXEC)
        .map_err(|error| format!("memfd_create: {error}"))?;
    let mut file = File::from(file);
    file.write_all(SECOND_NAME).map_err(|error| error.to_string())?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let second = open(&path, RTLD_NOW | RTLD_LOCAL)?;
    std::mem::forget(second);
    let seen = open(Path::new("libnccl.so"), RTLD_NOW | RTLD_LOCAL)?;
    match symbol(&seen, "ncclGetVersion") {
        Some(found) if std::ptr::eq(found, address) => {
            std::mem::forget(seen);
            Ok(())
        }
        _ => Err(
            "another one is loaded in this process already, which is libtorch's own; take that one"
                .to_owned(),
        ),
    }
}

/// Loads libtorch's CUDA half if it lies beside the loaded half; without an effect where it is loaded already.
pub(super) fn open_libtorch_cuda(folder: &Path) -> Result<(), String> {
    let path = folder.join("libtorch_cuda.so");
    if path.exists() {
        // Its symbols must be global: libtorch finds its hooks through them. It stays loaded.
        std::mem::forget(open(&path, RTLD_NOW | RTLD_GLOBAL)?);
    }
    Ok(())
}
