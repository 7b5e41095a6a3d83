//! libtorch's CUDA half: where it lies, this thread's device and stream.
use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr;

use super::{BridgeError, Result, check, sys};

/// The folder of the libtorch that this process has loaded.
pub(crate) fn libtorch_folder() -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    folder_in(&maps)
}

/// The folder of `libtorch_cpu.so` in the text of `/proc/PID/maps`.
fn folder_in(maps: &str) -> Option<PathBuf> {
    let file = maps.lines().find_map(|line| {
        let path = &line[line.find('/')?..];
        path.ends_with("/libtorch_cpu.so").then_some(path)
    })?;
    Some(Path::new(file).parent()?.to_owned())
}

fn number(ordinal: usize) -> Result<c_int> {
    c_int::try_from(ordinal).map_err(|_| BridgeError::of_this_rank(format!("no GPU {ordinal}")))
}

/// Makes a GPU the device of this thread, as far as libtorch is concerned.
pub(crate) fn set_device(ordinal: usize) -> Result<()> {
    let ordinal = number(ordinal)?;
    // SAFETY: a number goes in; libtorch checks it.
    check(unsafe { sys::ddp_cuda_set_device(ordinal) })
}

/// The `cudaStream_t` on which this thread's operations on that GPU run. It belongs to libtorch, which keeps it for good.
pub(crate) fn current_stream(ordinal: usize) -> Result<*mut c_void> {
    let mut stream = ptr::null_mut();
    let ordinal = number(ordinal)?;
    // SAFETY: the pointer is written during the call.
    check(unsafe { sys::ddp_cuda_current_stream(ordinal, &mut stream) })?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_is_that_of_the_loaded_file() {
        let maps = "7f00-7f01 r-xp 00000000 fe:00 12   /opt/my torch/lib/libtorch_cpu.so\n";
        assert_eq!(folder_in(maps), Some("/opt/my torch/lib".into()));
        assert_eq!(folder_in("7f00-7f01 r-xp 0 fe:00 1 /lib/libc.so.6\n7f02 rw-p 0 0 0\n"), None);
    }

    #[test]
    fn this_process_has_loaded_libtorch() {
        // Links it: a binary that uses nothing of it does not load it.
        let _ = tch::Tensor::from(1.0);
        assert!(libtorch_folder().is_some_and(|folder| folder.join("libtorch_cpu.so").exists()));
    }
}
