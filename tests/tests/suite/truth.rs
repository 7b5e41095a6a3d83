//! Results that PyTorch itself computes, from the Python environment that provides libtorch.
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use ddp_runtime::data::{Collate, DistributedSampler, Order, Sampler, Share, WeightedSampler};
use serde_json::Value;
use tch::{Tensor, kind};

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
fn the_weighted_sampler_gives_pytorchs_draws() {
    let truth: Value = serde_json::from_slice(&output(&mut script("weighted.py"))).unwrap();
    let cases = truth["draws"].as_array().unwrap();
    assert!(cases.len() > 80, "only {} cases", cases.len());
    for case in cases {
        let number = |key: &str| case[key].as_u64().unwrap();
        let weights: Vec<f64> = serde_json::from_value(case["weights"].clone()).unwrap();
        let samples = number("samples") as usize;
        let sampler = match case["replacement"].as_bool().unwrap() {
            true => WeightedSampler::with_replacement(weights, samples),
            false => WeightedSampler::without_replacement(weights, samples),
        };
        let order = Order { seed: number("seed"), epoch: number("epoch") };
        let drawn: Vec<usize> = sampler.unwrap().indices(order).unwrap().iter().collect();
        let expected: Vec<usize> = serde_json::from_value(case["indices"].clone()).unwrap();
        assert_eq!(drawn, expected, "{case}");
    }
}

/// dtype and shape, as PyTorch writes them.
fn leaf(tensor: &Tensor) -> (String, Vec<i64>) {
    let dtype = match tensor.kind() {
        tch::Kind::Float => "torch.float32",
        tch::Kind::Double => "torch.float64",
        tch::Kind::Int64 => "torch.int64",
        tch::Kind::Bool => "torch.bool",
        other => panic!("no case has {other:?}"),
    };
    (dtype.to_owned(), tensor.size())
}

#[test]
fn batches_are_collated_as_by_pytorch() {
    let truth: Value = serde_json::from_slice(&output(&mut script("weighted.py"))).unwrap();
    let row = || Tensor::zeros([3, 4], kind::FLOAT_CPU);
    let check = |name: &str, batch: &[&Tensor]| {
        let found: Vec<_> = batch.iter().map(|tensor| leaf(tensor)).collect();
        let expected: Vec<(String, Vec<i64>)> =
            serde_json::from_value(truth["batches"][name].clone()).unwrap();
        assert_eq!(found, expected, "{name}");
    };
    check("tensors", &[&Collate::collate(vec![row(), row()]).unwrap()]);
    check("integers", &[&Collate::collate(vec![1_i64, 2]).unwrap()]);
    check("floats", &[&Collate::collate(vec![1.0_f64, 2.0]).unwrap()]);
    check("bools", &[&Collate::collate(vec![true, false]).unwrap()]);
    let (x, y) = Collate::collate(vec![(row(), 7_i64), (row(), 9)]).unwrap();
    check("pair", &[&x, &y]);
    let nested = vec![((row(), 1.5), [1_i64, 2]), ((row(), 2.5), [3, 4])];
    let ((x, f), [a, b]) = Collate::collate(nested).unwrap();
    check("nested", &[&x, &f, &a, &b]);
    // The values of a map are of one type here.
    let sample = || BTreeMap::from([("a", row()), ("b", Tensor::from(1_i64))]);
    let map = Collate::collate(vec![sample(), sample()]).unwrap();
    check("map", &[&map["a"], &map["b"]]);
    let lists =
        Collate::collate(vec![vec![row(), row(), row()], vec![row(), row(), row()]]).unwrap();
    check("list", &lists.iter().collect::<Vec<_>>());
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
