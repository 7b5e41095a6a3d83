//! Loss scaling: the iterations of `truth/grad_scaler.py`, and one decision for all ranks.
use anyhow::{Context, Result, bail, ensure};
use ddp_runtime::{GradScaler, GradScalerState};
use serde_json::Value;
use tch::nn::{self, OptimizerConfig};
use tch::{Device, Kind, Tensor};

use super::compare::close;

/// Numbers that both sides can compute: a sine over the positions.
fn values(shape: [i64; 2], seed: i64) -> Tensor {
    let count = shape[0] * shape[1];
    let angles = Tensor::arange(count, (Kind::Double, Device::Cpu)) + 10 * seed;
    angles.sin().to_kind(Kind::Float).view(shape)
}

fn store(seed: i64) -> (nn::VarStore, Tensor) {
    let vs = nn::VarStore::new(Device::Cpu);
    let weight = vs.root().var_copy("weight", &values([2, 3], seed));
    (vs, weight)
}

/// What the script computed, from a file.
fn truth(path: &str) -> Result<Value> {
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {path}"))?;
    Ok(serde_json::from_str(&text)?)
}

/// A number that was single precision before it was written.
fn single(value: &Value) -> Result<f32> {
    Ok(value.as_f64().context("no number")? as f32)
}

fn follows(path: &str) -> Result<()> {
    let truth = truth(path)?;
    let list = |key: &str| truth[key].as_array().with_context(|| format!("no {key}"));
    let ((a, weight_a), (b, weight_b)) = (store(1), store(2));
    let models = [weight_a, weight_b];
    let sgd = nn::Sgd { momentum: 0.9, ..Default::default() };
    let mut opts = [sgd.build(&a, 0.1)?, nn::Adam::default().build(&b, 0.05)?];
    let mut scaler = GradScaler::with_state(GradScalerState {
        scale: 1000.0,
        growth_factor: 1.7,
        backoff_factor: 0.3,
        growth_interval: 3,
        growth_tracker: 0,
    })?;
    let (scales, trackers, weights) = (list("scales")?, list("tracker")?, list("weights")?);
    for (k, scale) in scales.iter().enumerate() {
        opts.iter_mut().for_each(nn::Optimizer::zero_grad);
        for (number, weight) in models.iter().enumerate() {
            let out = values([4, 3], 3 + k as i64).matmul(&weight.tr());
            let mut loss = out.tanh().square().mean(Kind::Float);
            if k % 5 == 2 && number == k % 2 {
                loss *= f64::INFINITY;
            }
            scaler.scale(&loss).backward();
        }
        if k % 2 == 0 {
            scaler.unscale(&opts[0])?;
            opts[0].clip_grad_norm(0.05);
        }
        for opt in &mut opts {
            scaler.step(opt)?;
        }
        if k == 11 {
            scaler.update_to(4096.0)?
        } else {
            scaler.update()?
        }
        if k == 16 {
            scaler = GradScaler::with_state(scaler.state())?;
        }
        // The same number, to the last bit.
        let (found, scale) = (scaler.current_scale(), single(scale)?);
        ensure!(found == scale, "iteration {k}: scale {found}, PyTorch {scale}");
        let tracker = u64::from(scaler.state().growth_tracker);
        ensure!(trackers[k].as_u64() == Some(tracker), "iteration {k}: {tracker} successes");
        for (weight, expected) in models.iter().zip(weights[k].as_array().context("no weights")?) {
            let expected: Vec<f32> = serde_json::from_value(expected.clone())?;
            let expected = Tensor::from_slice(&expected).view([2, 3]);
            // Adam's single-precision sums differ in their order.
            close(&format!("iteration {k}"), &[weight.copy()], &[expected], 1e-5)?;
        }
    }
    let largest = GradScalerState { scale: 3e38, growth_interval: 1, ..Default::default() };
    let mut scaler = GradScaler::with_state(largest)?;
    let vs = nn::VarStore::new(Device::Cpu);
    let weight = vs.root().ones("weight", &[1]);
    scaler.backward_step(&mut nn::Sgd::default().build(&vs, 1.0)?, &weight.sum(Kind::Float))?;
    ensure!(scaler.current_scale() == single(&truth["largest"])?, "{}", scaler.current_scale());
    Ok(())
}

/// The last rank alone finds an infinity, in gradients that are not averaged yet: no rank steps.
fn agreed() -> Result<()> {
    let scope = ddp_runtime::init()?;
    let (vs, weight) = store(1);
    scope.register(&vs)?;
    let mut opt = nn::Sgd::default().build(&vs, 0.1)?;
    let mut scaler = GradScaler::new();
    let before = weight.copy();
    let last = scope.rank() + 1 == scope.world_size();
    let factor = if last { f64::INFINITY } else { 1.0 };
    scope.no_sync(|| scaler.scale(&(weight.square().sum(Kind::Float) * factor)).backward());
    ensure!(!scaler.step(&mut opt)?, "a step was taken");
    scaler.update()?;
    ensure!(weight == before && scaler.current_scale() == 32768.0, "{}", scaler.current_scale());
    let finite = weight.square().sum(Kind::Float);
    ensure!(scaler.backward_step(&mut opt, &finite)?, "no step was taken");
    close("weights", &[weight.copy()], &[before * 0.8], 1e-6)?;
    Ok(scope.finish()?)
}

pub(super) fn run(args: &[String]) -> Result<()> {
    match args {
        [case] if case == "agreed" => agreed(),
        [case, path] if case == "follows" => follows(path),
        _ => bail!("no case {args:?}"),
    }
}
