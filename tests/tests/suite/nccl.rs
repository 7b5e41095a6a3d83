//! The GPU transport on the stand-in for NCCL and the driver (`tests/nccl-double`), whose devices are host memory: CPU tensors then
//! go through all of it. What needs no tensors is tested in `ddp-runtime/src/comm/nccl/tests.rs`.
// What the helpers unwrap is the test's own doing, as in the tests themselves.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use ddp_tests::kernels::VARIABLE;
use ddp_tests::{Job, Outcome};
use tempfile::TempDir;

use crate::batch_norm::all_followed;
use crate::truth::{output, script};
use crate::worker;

/// The stand-in under the names of what it stands in for, and the folder of its logs.
struct Double {
    folder: TempDir,
}

impl Double {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let double = std::env::current_exe().unwrap().with_file_name("libddp_nccl_double.so");
        assert!(double.exists(), "{} was not built", double.display());
        for name in ["libnccl.so.2", "libcuda.so", "libcuda.so.1"] {
            symlink(&double, folder.path().join(name)).unwrap();
        }
        Self { folder }
    }

    /// A job whose ranks have the stand-in.
    fn job(&self, case: &str) -> Job {
        let path = self.folder.path().to_str().unwrap();
        let job = worker(case).env("LD_LIBRARY_PATH", path).env("TMPDIR", path);
        job.env("DDP_DOUBLE_LOG", path).env("NCCL_HOSTID", "")
    }

    /// The calls of a rank, in order.
    fn log(&self, rank: usize) -> Vec<String> {
        let text = fs::read_to_string(self.folder.path().join(format!("{rank}.log"))).unwrap();
        text.lines().map(str::to_owned).collect()
    }
}

/// Requires that every rank failed and that one of them says this.
#[track_caller]
fn says(outcome: &Outcome, rank: usize, text: &str) {
    let said = &outcome.ranks[rank].stderr;
    assert!(said.contains(text), "rank {rank} does not say {text:?}\n{}", outcome.tails());
}

/// With delays in the streams, and launches that take their time.
fn slow(job: Job) -> Job {
    job.env("DDP_DOUBLE_DELAY_US", "1500").env("DDP_DOUBLE_SLOW_LAUNCH", "1")
}

#[test]
fn gradients_are_those_of_one_process() {
    for (ranks, model, kind) in [(2, "mlp", "f32"), (3, "conv", "f64"), (4, "transformer", "f32")] {
        let double = Double::new();
        let outcome =
            slow(double.job("gradients").arg(model).arg(kind)).ranks(ranks).run().success();
        says(&outcome, 0, &format!("ddp: {ranks} GPUs over NCCL 2.29.7 ("));
        for rank in 0..ranks {
            let log = double.log(rank);
            let reduced = log.iter().filter(|line| line.starts_with("ncclAllReduce")).count();
            assert!(reduced > 5, "{reduced} all-reduces on rank {rank}");
            let nothing = "end: 0 communicators, 0 streams, 0 events, 0 contexts, 0 allocations";
            assert_eq!(log.last().unwrap(), nothing, "{}", outcome.tails());
        }
    }
}

#[test]
fn what_the_ranks_do_beside_gradients_works_too() {
    let cases = [
        ("leaves", "branch-by-rank"),
        ("leaves", "kept-gradient"),
        ("leaves", "unequal-weights"),
        ("leaves", "buffers"),
        ("votes", "figures"),
        ("dist", "tensors"),
    ];
    for (case, arg) in cases {
        let double = Double::new();
        let job = double.job(case).arg(arg).env("DDP_BACKEND", "nccl");
        let _ = job.ranks(2).run().success();
    }
}

/// What `cargo xtask gpu` runs on a GPU, as far as host memory can take its place.
#[test]
fn gradients_are_complete_when_the_next_operation_reads_them() {
    let double = Double::new();
    let _ = slow(double.job("gpu").arg("race").arg("20")).ranks(2).run().success();
    let _ = double.job("gpu").arg("gradients").ranks(2).run().success();
    let _ = double.job("gpu").arg("gradients").run().success();
    for ranks in [0, 2, 3] {
        let _ = double.job("gpu").arg("batch-norm").ranks(ranks).run().success();
    }
}

/// Synchronised BatchNorm with the kernels of GPUs: the ranks' values go over NCCL, among the buckets.
#[test]
fn statistics_of_layers_stay_on_the_device() {
    let folder = tempfile::tempdir().unwrap();
    let truth = folder.path().join("truth.npz");
    output(script("batch_norm.py").arg(&truth));
    for sizes in ["0,12", "2,3,7", "1,1,3,7"] {
        let double = Double::new();
        let job = double.job("batch-norm").arg("layers").arg(&truth).arg(sizes).env(VARIABLE, "1");
        all_followed(&job.ranks(sizes.split(',').count()).run().success());
    }
    for ranks in [2, 3] {
        let double = Double::new();
        let job = slow(double.job("gpu").arg("batch-norm").env(VARIABLE, "1"));
        let _ = job.ranks(ranks).run().success();
        let gathered =
            double.log(0).iter().filter(|line| line.starts_with("ncclAllGather")).count();
        // Two dtypes, three rounds, two layers.
        assert!(gathered >= 12, "{gathered} all-gathers");
        let _ =
            double.job("batch-norm").arg("join").env(VARIABLE, "1").ranks(ranks).run().success();
    }
}

/// Each collective stands between the events that order it: see Note [Streams].
#[test]
fn every_collective_is_ordered_by_events_on_both_sides() {
    let double = Double::new();
    let _ = double.job("gradients").arg("mlp").arg("f64").ranks(2).run().success();
    for rank in 0..2 {
        let log = double.log(rank);
        let collective =
            |line: &String| line.starts_with("ncclAll") || line.starts_with("ncclGroupEnd");
        for (at, line) in log.iter().enumerate().filter(|(_, line)| collective(line)) {
            let grouped = log[..at].iter().rposition(|line| line == "ncclGroupStart");
            let first = if line == "ncclGroupEnd" { grouped.unwrap() } else { at };
            let before = [&log[first - 2], &log[first - 1]];
            assert_eq!(before, ["cuEventRecord default stream", "cuStreamWaitEvent own stream"]);
            assert_eq!(log[at + 1], "cuEventRecord own stream");
        }
        let ended: Vec<&str> = log.iter().rev().skip(1).take(2).map(String::as_str).collect();
        assert_eq!(ended, ["ncclCommDestroy", "ncclCommFinalize"]);
    }
}

#[test]
fn p07_each_rank_takes_its_own_gpu() {
    let double = Double::new();
    let job = double.job("gradients").arg("mlp").arg("f32").env("DDP_DOUBLE_GPUS", "1");
    let outcome = job.ranks(2).run().failure();
    for rank in 0..2 {
        says(
            &outcome,
            rank,
            "ranks 0, 1 are on one GPU (Stand-in, 01010101..), which NCCL cannot do",
        );
    }
    assert!(!double.log(0).iter().any(|line| line.starts_with("ncclCommInit")), "NCCL was entered");
    let job = double.job("gradients").arg("mlp").arg("f32").env("DDP_DOUBLE_GPUS", "1");
    let _ = job.env("NCCL_MULTI_RANK_GPU_ENABLE", "1").ranks(2).run().success();
}

#[test]
fn p35_a_rank_without_a_gpu_left_says_so() {
    let double = Double::new();
    let job = double.job("gradients").arg("mlp").arg("f32").env("DDP_DOUBLE_GPUS", "2");
    let outcome = job.ranks(3).run().failure();
    for rank in 0..3 {
        says(
            &outcome,
            rank,
            "rank 2: local rank 2 has no GPU of its own: 2 are visible on this host",
        );
    }
}

#[test]
fn without_a_gpu_the_program_ends_at_its_beginning_only_if_one_is_asked_for() {
    let double = Double::new();
    let none = |backend| {
        let job = double.job("gradients").arg("mlp").arg("f32").env("DDP_DOUBLE_GPUS", "0");
        job.env("DDP_BACKEND", backend).ranks(2)
    };
    let outcome = none("nccl").run().failure();
    says(&outcome, 1, "rank 0: the NVIDIA driver is there, but no GPU is visible");
    let _ = none("auto").run().success();
}

#[test]
fn needs_a_host_without_driver_to_miss_it() {
    if fs::exists("/proc/driver/nvidia/version").unwrap() {
        eprintln!("this host has a driver");
        return;
    }
    let job = worker("gradients").arg("mlp").arg("f32").env("DDP_BACKEND", "nccl");
    let outcome = job.ranks(2).run().failure();
    says(&outcome, 0, "there is no NVIDIA driver on this host (libcuda.so.1 is not found)");
}

/// A library with these functions and no others.
fn library(double: &Double, source: &str) -> PathBuf {
    let (code, library) = (double.folder.path().join("x.c"), double.folder.path().join("x.so"));
    fs::write(&code, source).unwrap();
    let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    let status = compiler.arg("-shared").arg("-fPIC").arg(&code).arg("-o").arg(&library).status();
    assert!(status.unwrap().success());
    library
}

#[test]
fn a_library_that_does_not_serve_is_named_with_what_it_lacks() {
    let double = Double::new();
    let refused = |name: &str, value: &str, text: &str| {
        let job = double.job("gradients").arg("mlp").arg("f32").env(name, value);
        says(&job.ranks(2).run().failure(), 1, text);
    };
    let text = "rank 0: DDP_NCCL_LIB names /no/such.so, which cannot be loaded";
    refused("DDP_NCCL_LIB", "/no/such.so", text);
    let new = library(&double, "int ncclGetVersion(int *v) { *v = 22400; return 0; }");
    let text = "/x.so has no function ncclAllGather; take NCCL 2.18.0 or newer";
    refused("DDP_NCCL_LIB", new.to_str().unwrap(), text);
    let other = library(&double, "int nothing;");
    refused("DDP_NCCL_LIB", other.to_str().unwrap(), "has no function ncclGetVersion");
    refused(
        "DDP_DOUBLE_VERSION",
        "21706",
        "is NCCL 2.17.6, which is too old; take 2.18.0 or newer",
    );
}

/// The outcome of a job with faults, which has to end by itself.
fn with_faults(faults: &str, limit: &str) -> (Double, Outcome) {
    let double = Double::new();
    let job = double.job("gradients").arg("mlp").arg("f32").env("DDP_DOUBLE_FAULTS", faults);
    let outcome = job.env("DDP_TIMEOUT", limit).limit(Duration::from_secs(90)).ranks(2).run();
    (double, outcome.failure())
}

#[test]
fn a_unique_id_that_cannot_be_made_ends_all_ranks() {
    let (_double, outcome) = with_faults("ncclGetUniqueId@0=3", "60");
    for rank in 0..2 {
        says(&outcome, rank, "rank 0: ncclGetUniqueId failed with ncclInternalError");
        says(&outcome, rank, "(ncclGetUniqueId was told to fail)");
    }
}

#[test]
fn a_rank_that_cannot_join_ends_the_others_at_once() {
    let (_double, outcome) = with_faults("ncclCommInitRankConfig@1=5", "60");
    says(&outcome, 1, "rank 1: ncclCommInitRankConfig failed with ncclInvalidUsage");
    says(&outcome, 0, "rank 1: ncclCommInitRankConfig failed with ncclInvalidUsage");
    assert!(outcome.ranks[0].took < Duration::from_secs(40), "{}", outcome.tails());
}

#[test]
fn a_rank_that_dies_while_it_joins_is_noticed() {
    let (double, outcome) = with_faults("die@1=0", "60");
    says(&outcome, 0, "ncclCommInitRankConfig failed with ncclRemoteError");
    assert!(double.log(0).iter().any(|line| line == "ncclCommAbort"));
}

#[test]
fn a_first_all_reduce_that_hangs_comes_with_the_usual_causes() {
    let (_double, outcome) = with_faults("hang@1=1", "15");
    let hangs = |rank: usize| {
        outcome.ranks[rank].stderr.contains("timed out after 15 s; usual causes: GPUs")
    };
    assert!(hangs(0) || hangs(1), "{}", outcome.tails());
}

#[test]
fn a_first_all_reduce_that_is_wrong_is_not_believed() {
    let (_double, outcome) = with_faults("wrong@0=1", "60");
    says(&outcome, 0, "the first all-reduce between the GPUs gave 67, where 3 is right");
}

#[test]
fn a_collective_that_hangs_is_aborted_on_all_ranks() {
    let (double, outcome) = with_faults("hang@1=6", "15");
    let told = |rank: usize| {
        let text = &outcome.ranks[rank].stderr;
        text.contains("no answer from the other ranks within 15 s")
            || text.contains("another rank")
            || text.contains("rank 0 failed")
            || text.contains("rank 1 failed")
    };
    assert!(told(0) && told(1), "{}", outcome.tails());
    for rank in 0..2 {
        assert!(double.log(rank).iter().any(|line| line == "ncclCommAbort"), "rank {rank}");
    }
}

#[test]
fn a_failure_that_nccl_notes_by_itself_ends_all_ranks() {
    let (_double, outcome) = with_faults("async@1=6", "60");
    says(&outcome, 1, "failed with ncclRemoteError");
    says(&outcome, 0, "rank 1 failed");
    assert!(outcome.ranks[0].took < Duration::from_secs(40), "{}", outcome.tails());
}

#[test]
fn a_call_that_fails_is_named_and_told_to_the_others() {
    let (_double, outcome) = with_faults("ncclAllGather@0=1 ncclBroadcast@0=1", "60");
    says(&outcome, 0, "ncclBroadcast failed with ncclUnhandledCudaError");
    says(&outcome, 1, "rank 0 failed");
}

/// What the doctor says of NCCL.
fn doctor(double: &Double, env: &[(&str, &str)]) -> String {
    let torch = double.folder.path().join("torch");
    fs::create_dir_all(torch.join("lib")).unwrap();
    fs::write(torch.join("lib/libtorch_cpu.so"), "").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_ddp-launch"))
        .args(["ddp", "doctor"])
        .env("LIBTORCH", torch)
        .env_remove("LIBTORCH_USE_PYTORCH")
        .env("LD_LIBRARY_PATH", double.folder.path())
        .envs(env.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines: Vec<&str> =
        text.lines().skip_while(|line| !line.contains("  NCCL  ")).take(2).collect();
    lines.join("\n")
}

#[test]
fn the_doctor_says_which_nccl_would_be_loaded() {
    let double = Double::new();
    let path = double.folder.path().join("libnccl.so.2");
    let good = doctor(&double, &[]);
    assert!(
        good.starts_with("ok ") && good.contains(&format!("2.29.7 in {}", path.display())),
        "{good}"
    );
    let old = doctor(&double, &[("DDP_DOUBLE_VERSION", "2804")]);
    assert!(old.starts_with("missing ") && old.contains("is too old: 2.18.0 or newer"), "{old}");
    let gone = doctor(&double, &[("DDP_NCCL_LIB", "/no/such.so")]);
    assert!(gone.starts_with("missing ") && gone.contains("-> pip install nvidia-nccl"), "{gone}");
}
