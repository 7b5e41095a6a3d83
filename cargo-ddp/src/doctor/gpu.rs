//! NVIDIA's driver, its devices, and NCCL.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::finding::Finding;
use super::torch::Torch;
use crate::host::gpus;

/// The name of NCCL in packages and runtime images; `libnccl.so` is in developer packages only.
const NCCL: &str = "libnccl.so.2";

/// A driver that does not answer must not hold the doctor.
const SMI_LIMIT: Duration = Duration::from_secs(10);

pub(super) fn check(torch: Option<&Torch>) -> Vec<Finding> {
    let Ok(version) = fs::read_to_string("/proc/driver/nvidia/version") else {
        return vec![Finding::ok("GPU", "no NVIDIA driver; ranks train on the CPU")];
    };
    let version = version.lines().next().unwrap_or_default();
    let version = version.strip_prefix("NVRM version:").unwrap_or(version);
    let driver = version.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut findings = vec![Finding::ok("NVIDIA driver", driver), devices()];
    if let Some(torch) = torch.filter(|torch| !torch.has_cuda()) {
        findings.push(Finding::warn(
            "CUDA",
            format!("the libtorch in {} is built for the CPU", torch.dir.display()),
            "take a libtorch with CUDA to train on the GPUs",
        ));
    }
    findings.push(nccl(&found(&search_path(torch))));
    findings
}

fn devices() -> Finding {
    let visible = gpus::visible();
    let names = nvidia_smi().unwrap_or_default();
    let mut text = format!("{visible} visible");
    for name in names.lines().map(|line| line.split(" (UUID").next().unwrap_or(line)) {
        text.push_str(&format!("\n{:24} {}", "", name.trim()));
    }
    if visible == 0 {
        let cure = "check CUDA_VISIBLE_DEVICES; with docker: --gpus all";
        return Finding::warn("GPU", text, cure);
    }
    Finding::ok("GPU", text)
}

/// The answer of `nvidia-smi -L`, if there is one in time.
fn nvidia_smi() -> Option<String> {
    let mut child = Command::new("nvidia-smi")
        .arg("-L")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let until = Instant::now() + SMI_LIMIT;
    let ended = loop {
        match child.try_wait() {
            Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(20)),
            Ok(Some(status)) => break status.success(),
            _ => break false,
        }
    };
    if !ended {
        let _ = child.kill();
        return None;
    }
    let mut text = String::new();
    child.stdout.take()?.read_to_string(&mut text).ok()?;
    Some(text)
}

fn nccl(found: &[PathBuf]) -> Finding {
    if found.is_empty() {
        return Finding::warn(
            "NCCL",
            format!("no {NCCL}"),
            "pip install nvidia-nccl-cu13 (beside torch), or Debian's libnccl2; without it GPUs \
             are synchronised through the CPU",
        );
    }
    let paths: Vec<_> = found.iter().map(|path| path.display().to_string()).collect();
    Finding::ok("NCCL", paths.join(", "))
}

/// Folders that may hold NCCL: those of the dynamic linker, and those of pip's packages.
fn search_path(torch: Option<&Torch>) -> Vec<PathBuf> {
    let configured = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&configured).collect();
    if let Some(torch) = torch {
        folders.push(torch.lib());
        // The link of the project's setup leads into the packages of a Python environment.
        let package = fs::canonicalize(&torch.dir).ok();
        let packages = package.as_deref().and_then(Path::parent);
        folders.extend(packages.map(|packages| packages.join("nvidia/nccl/lib")));
    }
    let system = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/local/lib",
        "/usr/local/cuda/lib64",
    ];
    folders.extend(system.map(PathBuf::from));
    folders
}

fn found(folders: &[PathBuf]) -> Vec<PathBuf> {
    folders.iter().map(|folder| folder.join(NCCL)).filter(|path| path.exists()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nccl_is_found_beside_the_torch_of_a_python_environment() {
        let dir = tempfile::tempdir().unwrap();
        let (torch, nccl_dir) = (dir.path().join("torch"), dir.path().join("nvidia/nccl/lib"));
        fs::create_dir_all(&torch).unwrap();
        fs::create_dir_all(&nccl_dir).unwrap();
        fs::write(nccl_dir.join(NCCL), "").unwrap();
        let torch = Torch { dir: torch, named_by: "LIBTORCH" };
        let found = found(&search_path(Some(&torch)));
        assert!(found.iter().any(|path| path.ends_with("nvidia/nccl/lib/libnccl.so.2")));
        assert!(nccl(&found).cure.is_none() && nccl(&[]).cure.is_some());
    }
}
