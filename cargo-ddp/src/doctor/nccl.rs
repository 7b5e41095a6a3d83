//! NCCL: which file a training process would load, and its version.
#![allow(unsafe_code)] // only the library itself can tell its version

use std::ffi::{CStr, c_int};
use std::path::{Path, PathBuf};

use ddp_env::names;
use ddp_env::nccl::{FILE, OLDEST, Version, folders};
use libloading::Library;

use super::finding::Finding;
use super::torch::Torch;

const SUBJECT: &str = "NCCL";
const INSTALL: &str = "pip install nvidia-nccl-cu13 (beside torch), or Debian's libnccl2; another file can be named in DDP_NCCL_LIB";

/// Whether this host has GPUs for which NCCL is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    Now,
    /// There is no GPU here.
    Later,
}

/// What was found.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// A library, and its version.
    Library(PathBuf, Version),
    /// A file that is not NCCL.
    Broken(PathBuf, String),
    Nothing,
}

pub(super) fn check(torch: Option<&Torch>, need: Need) -> Finding {
    let named = std::env::var_os(names::DDP_NCCL_LIB).filter(|value| !value.is_empty());
    finding(&find(named.map(PathBuf::from), torch), need)
}

fn finding(found: &Found, need: Need) -> Finding {
    match (found, need) {
        (Found::Library(path, version), _) if version.serves() => {
            Finding::ok(SUBJECT, format!("{version} in {}", path.display()))
        }
        (Found::Library(path, version), _) => Finding::missing(
            SUBJECT,
            format!("{version} in {} is too old: {OLDEST} or newer is needed", path.display()),
            INSTALL,
        ),
        (Found::Broken(path, why), _) => {
            Finding::missing(SUBJECT, format!("{}: {why}", path.display()), INSTALL)
        }
        (Found::Nothing, Need::Now) => Finding::missing(SUBJECT, format!("no {FILE}"), INSTALL),
        (Found::Nothing, Need::Later) => {
            Finding::ok(SUBJECT, format!("no {FILE}; only ranks on GPUs need it"))
        }
    }
}

/// Looks as a training process does: a file that is named, libtorch's own, what the dynamic linker finds, the usual folders.
fn find(named: Option<PathBuf>, torch: Option<&Torch>) -> Found {
    if let Some(path) = named {
        return match ask(&path) {
            Ok((path, version)) => Found::Library(path, version),
            Err(why) => Found::Broken(path, why),
        };
    }
    // The link of the project's setup leads into the packages of a Python environment.
    let lib = torch.map(|torch| std::fs::canonicalize(torch.lib()).unwrap_or_else(|_| torch.lib()));
    let mut folders = folders(lib.as_deref());
    let usual = folders.split_off(if lib.is_some() { 2 } else { 0 });
    let files = |folders: Vec<PathBuf>| folders.into_iter().map(|folder| folder.join(FILE));
    let beside: Vec<PathBuf> = files(folders).filter(|path| path.exists()).collect();
    // libtorch's CUDA half names the folders beside it before all others; without it the linker comes first.
    let (first, then) = match torch {
        Some(torch) if torch.has_cuda() => (beside, Vec::new()),
        _ => (Vec::new(), beside),
    };
    let linker = std::iter::once(PathBuf::from(FILE));
    let rest = then.into_iter().chain(files(usual).filter(|path| path.exists()));
    for path in first.into_iter().chain(linker).chain(rest) {
        match ask(&path) {
            Ok((path, version)) => return Found::Library(path, version),
            Err(_) if path == Path::new(FILE) => {}
            Err(why) => return Found::Broken(path, why),
        }
    }
    Found::Nothing
}

/// The version that a library says it is, and the file that it was found in. It needs no GPU for that.
fn ask(path: &Path) -> Result<(PathBuf, Version), String> {
    type Function = unsafe extern "C" fn(*mut c_int) -> c_int;
    let mut code: c_int = 0;
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: loading runs the library's constructors, as the dynamic linker would; the function has had this type in every
    // version, and writes one number. `info` is valid when it is all zero, and its text lives as long as the library.
    unsafe {
        let library = Library::new(path).map_err(|error| error.to_string())?;
        let function: libloading::Symbol<Function> = library
            .get(b"ncclGetVersion\0")
            .map_err(|_| "it has no function ncclGetVersion".to_owned())?;
        function(&mut code);
        libc::dladdr(*function as *const libc::c_void, info.as_mut_ptr());
        let name = info.assume_init().dli_fname;
        let file = if name.is_null() {
            path.to_owned()
        } else {
            PathBuf::from(CStr::from_ptr(name).to_string_lossy().into_owned())
        };
        Ok((file, Version::from_code(code)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::State;

    #[test]
    fn each_case_has_its_state_and_its_cure() {
        let library = |code| Found::Library("/x/libnccl.so.2".into(), Version::from_code(code));
        let good = finding(&library(22907), Need::Now);
        assert_eq!(good, Finding::ok(SUBJECT, "2.29.7 in /x/libnccl.so.2"));
        let old = finding(&library(2804), Need::Later);
        assert!(
            old.state == State::Missing && old.text.contains("2.8.4 in /x/libnccl.so.2 is too old")
        );
        assert_eq!(finding(&Found::Nothing, Need::Later).state, State::Ok);
        let missing = finding(&Found::Nothing, Need::Now);
        assert!(missing.state == State::Missing && missing.cure.is_some());
    }

    #[test]
    fn a_file_beside_libtorch_that_is_no_library_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let (torch, nccl) = (dir.path().join("torch"), dir.path().join("nvidia/nccl/lib"));
        std::fs::create_dir_all(torch.join("lib")).unwrap();
        std::fs::create_dir_all(&nccl).unwrap();
        std::fs::write(torch.join("lib/libtorch_cuda.so"), "").unwrap();
        std::fs::write(nccl.join(FILE), "no library").unwrap();
        let torch = Torch { dir: torch, named_by: "LIBTORCH" };
        let Found::Broken(path, _) = find(None, Some(&torch)) else { panic!("it was not found") };
        assert!(path.ends_with("nvidia/nccl/lib/libnccl.so.2"));
    }
}
