//! NVIDIA's driver and its devices.

use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::finding::Finding;
use super::nccl::{self, Need};
use super::torch::Torch;
use crate::host::gpus;

/// A driver that does not answer must not hold the doctor.
const SMI_LIMIT: Duration = Duration::from_secs(10);

pub(super) fn check(torch: Option<&Torch>) -> Vec<Finding> {
    let Ok(version) = fs::read_to_string("/proc/driver/nvidia/version") else {
        let gpu = Finding::ok("GPU", "no NVIDIA driver; ranks train on the CPU");
        return vec![gpu, nccl::check(torch, Need::Later)];
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
    findings.push(nccl::check(torch, Need::Now));
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
