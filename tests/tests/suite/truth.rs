//! Results that PyTorch itself computes, from the Python environment that provides libtorch.
use std::path::{Path, PathBuf};
use std::process::Command;

use ddp_runtime::data::{DistributedSampler, Share};
use serde_json::Value;

use crate::worker;

/// The python whose torch is the libtorch in use.
fn python() -> PathBuf {
    if let Some(python) = std::env::var_os("DDP_TRUTH_PYTHON") {
        return python.into();
    }
    // The link that `cargo xtask setup` makes leads into an environment: .../lib/pythonX.Y/site-packages/torch.
    let link = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/libtorch");
    let torch = link.canonicalize().expect("`cargo xtask setup` has made target/libtorch");
    torch.ancestors().nth(4).expect("torch lies in an environment").join("bin/python")
}

pub(crate) fn script(name: &str) -> Command {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("truth").join(name);
    let mut command = Command::new(python());
    command.arg(path).env("OMP_NUM_THREADS", "1");
    command
}

#[track_caller]
pub(crate) fn output(command: &mut Command) -> Vec<u8> {
    let output =
        command.output().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed:\n{text}");
    output.stdout
}

#[test]
fn the_sampler_gives_pytorchs_indices() {
    let cases: Vec<Value> = serde_json::from_slice(&output(&mut script("sampler.py"))).unwrap();
    assert!(cases.len() > 1000, "only {} cases", cases.len());
    for case in &cases {
        let number = |key: &str| case[key].as_u64().unwrap();
        let share = Share::new(number("rank") as usize, number("world") as usize).unwrap();
        let mut sampler = DistributedSampler::new(number("n") as usize, share)
            .seed(number("seed"))
            .shuffle(case["shuffle"].as_bool().unwrap())
            .drop_last(case["drop_last"].as_bool().unwrap());
        sampler.set_epoch(number("epoch"));
        let expected: Vec<i64> = serde_json::from_value(case["indices"].clone()).unwrap();
        match sampler.indices() {
            Ok(indices) => assert_eq!(indices, expected, "{case}"),
            // PyTorch hands out nothing where there is less than one sample a rank; here that is an error.
            Err(error) => assert!(expected.is_empty(), "{case}: {error}"),
        }
    }
}

#[test]
fn fifty_optimizer_steps_follow_pytorchs_ddp() {
    let folder = tempfile::tempdir().unwrap();
    for (ranks, dtype) in [(2, "float32"), (3, "float64"), (4, "float32")] {
        let path = |name: &str| folder.path().join(format!("{name}-{ranks}.npz"));
        let (input, truth) = (path("input"), path("truth"));
        output(script("optim.py").arg("--make").arg(&input).args(["--dtype", dtype]));
        let world = ranks.to_string();
        let run = &mut script("optim.py");
        output(run.args(["--world", &world, "--input"]).arg(&input).arg("--output").arg(&truth));
        let outcome = worker("optim").arg(input).arg(truth).ranks(ranks).run().success();
        assert!(outcome.ranks[0].stdout.contains("adamw weights:"), "{}", outcome.tails());
    }
}
